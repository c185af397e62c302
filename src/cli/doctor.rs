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
use crate::cli::world;
use crate::config::Config;
use crate::data::Data;
use crate::protocol::operation::Ending;
use crate::sandbox::Backend;
use crate::sandbox::Isolation;
use crate::sandbox::Sandbox;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::GuestError;
use crate::sandbox::local::backend::Local;
use crate::sandbox::local::programs;
use crate::sandbox::local::refusal;

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
    let folders = world::cache_folder()?.join(world::SANDBOXES);
    for (isolation, used_for) in [
        (Isolation::Namespaces, "every task"),
        (Isolation::Landlock, "the demo, else when asked for"),
        (Isolation::Nothing, "the demo, else when asked for"),
    ] {
        let level = format!("isolation {}", isolation.name());
        let tried = try_sandbox(&Local::with(isolation, folders.clone())).await;
        let (word, detail) = match tried {
            Ok(detail) => ("works", format!("for {used_for}; {detail}")),
            Err(failure) => ("refused", failure),
        };
        rows.push(vec![level, word.to_owned(), detail]);
        if isolation == Isolation::Namespaces && word == "refused" {
            well = false;
            rows.extend(
                refusal::advice()
                    .into_iter()
                    .map(|advice| vec![String::new(), "to allow".to_owned(), advice]),
            );
        }
    }
    rows.push(vec![
        "data files".into(),
        data.below("envs").count().to_string(),
        "embedded or from --data".into(),
    ]);
    output::data(&output::table(&rows, &[]));
    Ok(ExitCode::from(if well { exit::DONE } else { exit::MACHINE }))
}

/// Makes a sandbox, runs a command in it and removes it.
async fn try_sandbox(backend: &Local) -> Result<String, String> {
    let started = Instant::now();
    let mut sandbox =
        backend.create(&SandboxSpec::default()).await.map_err(|error| error.to_string())?;
    let tried = run_true(sandbox.as_mut()).await;
    sandbox.close().await.map_err(|error| error.to_string())?;
    let ending = tried?;
    if ending != Ending::Exited(0) {
        return Err(format!("a command ended with {ending:?}"));
    }
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    Ok(format!("a sandbox made, used and removed in {milliseconds:.0} ms"))
}

async fn run_true(sandbox: &mut dyn Sandbox) -> Result<Ending, String> {
    let guest = sandbox.connect().await.map_err(|error| error.to_string())?;
    let failed = |error: GuestError| error.to_string();
    guest.open_session("doctor", &sandbox.place().shell()).await.map_err(failed)?;
    let limit = Duration::from_secs(10);
    guest.run("doctor", b"true", limit, 1000).await.map(|result| result.ending).map_err(failed)
}
