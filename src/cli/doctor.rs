//! `patchgym doctor`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use clap::Args;

use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::model;
use crate::cli::output;
use crate::config::Config;
use crate::data::Data;
use crate::protocol::wire::Ending;
use crate::protocol::wire::SessionStart;
use crate::sandbox::Backend;
use crate::sandbox::SandboxSpec;
use crate::sandbox::local::backend::Local;
use crate::sandbox::local::programs;

/// Arguments of `patchgym doctor`.
#[derive(Args, Debug, Clone)]
pub(super) struct DoctorArguments {
    /// Ask what this model of a server can do
    #[arg(short = 'm', long, value_name = "MODEL", requires = "base_url")]
    model: Option<String>,
    /// Address of the server
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Environment variable, or name in `.env`, that holds the API key
    #[arg(long, value_name = "NAME", default_value = "OPENAI_API_KEY")]
    api_key_env: String,
}

/// Says what works.
pub(super) async fn doctor(arguments: DoctorArguments) -> Result<ExitCode, Failure> {
    if let (Some(name), Some(url)) = (&arguments.model, &arguments.base_url) {
        let layers = [
            format!("server.base_url={url:?}"),
            format!("server.api_key_env={:?}", arguments.api_key_env),
        ];
        let reachable = model::report(name, &Config::resolve(&layers)?).await?;
        return Ok(ExitCode::from(if reachable { exit::DONE } else { exit::MACHINE }));
    }
    let data = Arc::new(Data::open(&Data::folders(None))?);
    let mut rows = Vec::new();
    let mut well = true;
    for (program, needed_for) in [
        ("git", "everything"),
        ("python3", "the demo"),
        ("node", "two demo tasks"),
        ("cc", "one demo task"),
        ("make", "one demo task"),
    ] {
        let missing = !programs::missing(&[program.to_owned()]).is_empty();
        well &= !(missing && matches!(program, "git" | "python3"));
        let word = if missing { "missing" } else { "found" };
        rows.push(vec![program.to_owned(), word.to_owned(), format!("for {needed_for}")]);
    }
    let (word, detail) = match try_sandbox().await {
        Ok(detail) => ("works", detail),
        Err(failure) => {
            well = false;
            ("refused", failure)
        }
    };
    rows.push(vec!["namespaces".into(), word.into(), detail]);
    rows.push(vec![
        "data files".into(),
        data.below("envs").count().to_string(),
        "embedded or from --data".into(),
    ]);
    output::data(&output::table(&rows, &[]));
    Ok(ExitCode::from(if well { exit::DONE } else { exit::MACHINE }))
}

/// Makes a sandbox, runs a command in it and removes it.
async fn try_sandbox() -> Result<String, String> {
    let started = Instant::now();
    let spec = SandboxSpec::default();
    let backend = Local::new();
    let mut sandbox =
        backend.create(&spec).await.map_err(|error| format!("{error}{}", advice()))?;
    let guest = sandbox.connect().await.map_err(|error| error.to_string())?;
    let start =
        SessionStart { cwd: spec.workdir.clone(), env: spec.environment(), exports: Vec::new() };
    guest.open_session("doctor", &start).await.map_err(|error| error.to_string())?;
    let result = guest
        .run("doctor", b"true", Duration::from_secs(10), 1000)
        .await
        .map_err(|error| error.to_string())?;
    sandbox.close().await.map_err(|error| error.to_string())?;
    match result.ending {
        Ending::Exited(0) => Ok(format!(
            "a sandbox made, used and removed in {:.0} ms",
            started.elapsed().as_secs_f64() * 1e3
        )),
        other => Err(format!("a command ended with {other:?}")),
    }
}

/// What on this machine may keep namespaces from being made.
fn advice() -> String {
    let read = |path: &str| fs_err::read_to_string(path).unwrap_or_default().trim().to_owned();
    let settings = [
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ];
    settings
        .iter()
        .find(|(path, bad, _)| read(path) == *bad)
        .map(|(_, _, setting)| format!("; `sysctl -w {setting}` as root allows it"))
        .unwrap_or_default()
}
