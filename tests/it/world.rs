//! What tests of sandboxes and environments work in.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use patchgym::data::Data;
use patchgym::env::Env;
use patchgym::env::environments::Environments;
use patchgym::env::environments::Preparation;
use patchgym::env::sandboxed::SandboxedEnv;
use patchgym::env::sandboxed::SandboxedOptions;
use patchgym::env::site::Sites;
use patchgym::protocol::episode::Action;
use patchgym::protocol::episode::Call;
use patchgym::protocol::episode::Observation;
use patchgym::protocol::operation::CommandResult;
use patchgym::protocol::operation::Ending;
use patchgym::sandbox::Backend;
use patchgym::sandbox::Network;
use patchgym::sandbox::Sandbox;
use patchgym::sandbox::SandboxSpec;
use patchgym::sandbox::client::Guest;
use patchgym::sandbox::local::backend::Local;
use patchgym::task::RepositorySource;
use patchgym::task::Task;
use patchgym::task::recipe::Recipes;
use patchgym::task::repository::Repositories;
use patchgym::tools::set::ToolSet;
use serde_json::json;
use tempfile::TempDir;

/// Longest time of a command that ends by itself.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Bytes kept of each end of its output.
pub(crate) const KEEP: u32 = 1 << 20;

/// A sandbox with an open shell session.
pub(crate) struct Opened {
    pub(crate) sandbox: Box<dyn Sandbox>,
    pub(crate) guest: Guest,
}

impl Opened {
    pub(crate) async fn new(spec: &SandboxSpec) -> Self {
        let mut sandbox = Local::new().create(spec).await.unwrap();
        let guest = sandbox.connect().await.unwrap();
        guest.open_session("main", &sandbox.place().shell()).await.unwrap();
        Self { sandbox, guest }
    }

    pub(crate) async fn result(&self, command: &str, limit: Duration) -> CommandResult {
        self.guest.run("main", command.as_bytes(), limit, KEEP).await.unwrap()
    }

    /// Runs a command; gives how it ended, and all it printed without the last line end.
    pub(crate) async fn run(&self, command: &str) -> (Ending, String) {
        let result = self.result(command, LIMIT).await;
        (result.ending, text_of(&result))
    }

    /// Runs a command, which must succeed; gives what it printed.
    pub(crate) async fn ok(&self, command: &str) -> String {
        let (ending, text) = self.run(command).await;
        assert_eq!(ending, Ending::Exited(0), "{command}: {text}");
        text
    }

    pub(crate) async fn close(self) {
        drop(self.guest);
        self.sandbox.close().await.unwrap();
    }
}

pub(crate) fn text_of(result: &CommandResult) -> String {
    let text = patchgym::text::lossy(&[result.head.as_slice(), &result.tail].concat());
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

/// A folder for repositories, with a cache beside them.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) sites: Sites,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let backend: Arc<dyn Backend> = Arc::new(Local::new());
        let environments = Environments::new(
            Arc::clone(&backend),
            &cache,
            Recipes::default(),
            Preparation::default(),
            Arc::new(|_| {}),
        );
        let sites = Sites {
            backend,
            repositories: Arc::new(Repositories::at(cache)),
            environments: Arc::new(environments),
            data: Arc::new(Data::open(&[]).unwrap()),
        };
        Self { folder, sites }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A directory made by a script of `sh`, which runs in it.
    pub(crate) fn make(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path(name);
        fs_err::create_dir_all(&path).unwrap();
        sh(&path, script);
        path
    }

    /// A task whose repository is a directory's files, made by a script.
    pub(crate) fn task(&self, name: &str, script: &str) -> Task {
        task(RepositorySource::Directory(self.make(name, script)), "HEAD")
    }

    pub(crate) fn env(&self) -> SandboxedEnv {
        let tools = Arc::new(ToolSet::load(&self.sites.data, "navigator").unwrap());
        SandboxedEnv::new(SandboxedOptions {
            sites: self.sites.clone(),
            tools,
            network: Network::None,
            observation_chars: 30_000,
            command_limit: LIMIT,
        })
    }

    /// A sandbox of a task's site, changed by `change`.
    pub(crate) async fn open(&self, task: &Task, change: impl FnOnce(&mut SandboxSpec)) -> Opened {
        let mut site = self.sites.site(task, Network::None).await.unwrap();
        change(&mut site.spec);
        Opened::new(&site.spec).await
    }

    /// A fresh copy of the task's start, on which `patch` was applied with plain `git apply`.
    pub(crate) fn applied(&self, task: &Task, patch: &[u8]) -> PathBuf {
        let prepared = self.sites.repositories.prepare(task, &self.sites.data).unwrap();
        let to = self.path(&format!("applied-{}", fastrand::u64(..)));
        sh(Path::new("/"), &format!("cp -a {} {}", prepared.tree.display(), to.display()));
        if !patch.is_empty() {
            let file = to.with_extension("patch");
            fs_err::write(&file, patch).unwrap();
            sh(&to, &format!("git apply {}", file.display()));
        }
        to
    }
}

pub(crate) fn task(source: RepositorySource, base_commit: &str) -> Task {
    Task {
        id: "toy__toy-1".into(),
        repo: "toy/toy".into(),
        base_commit: base_commit.into(),
        problem_statement: "It does not work.\n".into(),
        version: String::new(),
        created_at: String::new(),
        image: None,
        workdir: "/testbed".into(),
        requires: Vec::new(),
        source,
    }
}

/// Plays one turn of one call.
pub(crate) async fn step(
    env: &mut dyn Env,
    tool: &str,
    arguments: serde_json::Value,
) -> Observation {
    let arguments = arguments.as_object().cloned().unwrap();
    let call = Call { id: "1".into(), tool: tool.into(), arguments };
    let mut stepped = env.step(&Action { calls: vec![call] }).await.unwrap();
    stepped.step.observations.remove(0)
}

/// Runs a command through the tool; gives what the model reads.
pub(crate) async fn run(env: &mut dyn Env, command: &str) -> String {
    step(env, "run", json!({"command": command})).await.text
}

/// Runs a script of `sh` on this machine, which must succeed, without this machine's settings of git.
pub(crate) fn sh(folder: &Path, script: &str) -> String {
    let done = Command::new("sh")
        .args(["-euc", script])
        .current_dir(folder)
        .envs([
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_AUTHOR_NAME", "dev"),
            ("GIT_AUTHOR_EMAIL", "dev@example.com"),
            ("GIT_AUTHOR_DATE", "2021-03-04T05:06:07+0000"),
            ("GIT_COMMITTER_NAME", "dev"),
            ("GIT_COMMITTER_EMAIL", "dev@example.com"),
            ("GIT_COMMITTER_DATE", "2021-03-04T05:06:07+0000"),
        ])
        .output()
        .unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
}

/// A case that is shared with other implementations; none without the folder beside the checkout.
pub(crate) fn case(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {program} is not on this machine");
    }
    found
}
