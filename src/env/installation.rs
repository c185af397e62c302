//! One installation: a repository and what it needs, put into a Python environment inside a sandbox and taken out of it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use serde::Serialize;

use crate::digest;
use crate::env::delivery;
use crate::env::environments::MachineSettings;
use crate::env::environments::Preparation;
use crate::env::environments::PrepareError;
use crate::protocol::operation::Ending;
use crate::sandbox::Access;
use crate::sandbox::Mount;
use crate::sandbox::Place;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::Guest;
use crate::sandbox::local::pip;
use crate::sandbox::local::programs;
use crate::sandbox::local::programs::Python;
use crate::task::Task;
use crate::task::recipe::Recipe;
use crate::task::repository::Prepared;
use crate::text;

/// Where an environment stands in a sandbox. Its programs name this place, so it cannot stand elsewhere.
pub(super) const PLACE: &str = "/opt/environment";
/// Name of the directory that holds what stood there.
pub(super) const ENVIRONMENT: &str = "environment";
/// Name of the tar file of what the installation left in the repository.
pub(super) const LEFT: &str = "left.tar";
/// Where pip keeps what it fetched.
const PIP_CACHE: &str = "/var/cache/pip";
/// Where what is to be taken out of the sandbox is gathered.
const LEFT_HERE: &str = "/var/tmp/left";
const FETCHED_HERE: &str = "/var/tmp/fetched";
/// The shell that installs.
const SESSION: &str = "prepare";
/// How environments are made, part of their hash: raised when it changes, so that old ones are not used.
const FORMAT: u32 = 1;
/// Bytes of the sandbox's disk: an environment, what it is built from, and what pip fetched.
const DISK: u64 = 12 << 30;
/// Bytes kept of each end of a command's output, and the lines of its end that are told.
const KEEP: u32 = 16 << 10;
const TOLD: usize = 12;

/// An installation.
pub(super) struct Installation<'a> {
    /// The interpreter.
    pub(super) python: Python,
    task: &'a Task,
    recipe: &'a Recipe,
    preparation: &'a Preparation,
    /// SHA-256 of the repository's files that decide; none where there is no such file.
    files: BTreeMap<String, Option<String>>,
}

/// What an environment was made of.
#[derive(Serialize)]
struct Receipt<'a> {
    repo: &'a str,
    version: &'a str,
    python: &'a str,
    commands: Vec<String>,
    files: &'a BTreeMap<String, Option<String>>,
    network: &'static str,
    settings: BTreeMap<String, String>,
    seconds: f64,
}

impl<'a> Installation<'a> {
    /// The installation of a task whose repository is `tree`.
    ///
    /// # Errors
    /// When a file that decides cannot be read.
    pub(super) fn new(
        task: &'a Task,
        recipe: &'a Recipe,
        python: Python,
        tree: &Path,
        preparation: &'a Preparation,
    ) -> io::Result<Self> {
        let hash = |name: &str| match fs_err::read(tree.join(name)) {
            Ok(bytes) => Ok(Some(digest::sha256(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let files = recipe.files().map(|name| Ok((name.to_owned(), hash(name)?)));
        let files = files.collect::<io::Result<_>>()?;
        Ok(Self { python, task, recipe, preparation, files })
    }

    /// The repository and its version.
    pub(super) fn of(&self) -> (&'a str, &'a str) {
        (&self.task.repo, &self.task.version)
    }

    /// The hash of everything that decides what comes of it.
    pub(super) fn digest(&self) -> String {
        let Self { python, task, recipe, files, .. } = self;
        let platform = (std::env::consts::ARCH, &python.version, &python.executable);
        let made = (recipe.commands(), &recipe.env, PLACE);
        let of = (&task.repo, &task.version, &task.workdir);
        digest::sha256(format!("{FORMAT} {of:?} {platform:?} {made:?} {files:?}").as_bytes())
    }

    /// What this machine's pip is set to, where it is to be used.
    ///
    /// # Errors
    /// When a setting holds a password.
    pub(super) fn settings(&self) -> Result<BTreeMap<String, String>, PrepareError> {
        match self.preparation.settings {
            MachineSettings::Passed => pip::settings(&self.python.executable, |name| {
                !self.preparation.env.contains_key(name)
            })
            .map_err(PrepareError::Password),
            MachineSettings::Ignored => Ok(BTreeMap::new()),
        }
    }

    /// The sandbox it runs in. What pip fetched before is in the directory `fetched`.
    pub(super) fn spec(
        &self,
        prepared: &Prepared,
        settings: &BTreeMap<String, String>,
        fetched: &Path,
    ) -> SandboxSpec {
        let copy_on_write = |source: &Path, target: &str| Mount {
            source: source.to_owned(),
            target: target.to_owned(),
            access: Access::CopyOnWrite,
        };
        let mut spec = SandboxSpec {
            workdir: self.task.workdir.clone(),
            network: self.preparation.network,
            disk: DISK,
            mounts: vec![
                copy_on_write(&prepared.tree, &self.task.workdir),
                copy_on_write(fetched, PIP_CACHE),
            ],
            env: vec![
                ("PIP_CACHE_DIR".to_owned(), PIP_CACHE.to_owned()),
                ("TASK_VERSION".to_owned(), self.task.version.clone()),
            ],
            ..SandboxSpec::default()
        };
        for variables in [settings, &self.preparation.env] {
            spec.env.extend(variables.iter().map(|(name, value)| (name.clone(), value.clone())));
            for file in pip::files(variables) {
                programs::show(&mut spec, file);
            }
        }
        enter(&mut spec, self.recipe, &self.python);
        spec
    }

    /// Runs in a sandbox until `deadline`; what it made is put into the folder `build`, what pip fetched into the
    /// folder `fetched`.
    ///
    /// # Errors
    /// When a command fails or the time is up, with the last lines of its output.
    pub(super) async fn run(
        &self,
        guest: &Guest,
        place: &Place,
        deadline: Instant,
        build: &Path,
        fetched: &Path,
    ) -> Result<(), PrepareError> {
        guest.open_session(SESSION, &place.shell()).await?;
        let first = format!("'{}' -m venv {PLACE}", self.python.executable.display());
        let last = [
            format!("mkdir {LEFT_HERE} {FETCHED_HERE}"),
            format!("git -c safe.directory='*' ls-files --others -z | {}", copied_to(LEFT_HERE)),
            format!(
                "cd {PIP_CACHE}; find . -type f -newer {PLACE}/pyvenv.cfg -print0 | {}",
                copied_to(FETCHED_HERE)
            ),
        ];
        for command in [first].into_iter().chain(self.recipe.commands()).chain(last) {
            self.command(guest, &command, deadline).await?;
        }
        delivery::unpack(guest, PLACE, &build.join(ENVIRONMENT)).await?;
        delivery::save(guest, LEFT_HERE, &build.join(LEFT)).await?;
        // Only a help for the next environment.
        if let Err(error) = delivery::unpack(guest, FETCHED_HERE, fetched).await {
            tracing::warn!(%error, "what pip fetched was not kept");
        }
        Ok(())
    }

    async fn command(
        &self,
        guest: &Guest,
        command: &str,
        deadline: Instant,
    ) -> Result<(), PrepareError> {
        // Every command starts in the repository, and none changes what the next one finds.
        let whole = format!("(set -e -o pipefail\n{command}\n) 2>&1 </dev/null");
        let left = deadline.saturating_duration_since(Instant::now());
        // No time would mean any time.
        let limit = left.max(Duration::from_millis(1));
        let result = guest.run(SESSION, whole.as_bytes(), limit, KEEP).await?;
        let ending = match result.ending {
            Ending::Exited(0) => return Ok(()),
            Ending::Exited(status) => format!("ended with status {status}"),
            Ending::Signalled(signal) => format!("was ended by signal {signal}"),
            Ending::TimedOut => {
                format!("was not done after {} s in all", self.preparation.limit.as_secs())
            }
        };
        Err(PrepareError::Command {
            repo: self.task.repo.clone(),
            version: self.task.version.clone(),
            command: command.to_owned(),
            ending,
            lines: last_lines(&[result.head, result.tail].concat()),
        })
    }

    /// What is written beside the environment.
    ///
    /// # Errors
    /// When the time is no number.
    pub(super) fn receipt(
        &self,
        settings: BTreeMap<String, String>,
        seconds: f64,
    ) -> io::Result<Vec<u8>> {
        let receipt = Receipt {
            repo: &self.task.repo,
            version: &self.task.version,
            python: &self.python.version,
            commands: self.recipe.commands(),
            files: &self.files,
            network: self.preparation.network.name(),
            settings,
            seconds,
        };
        Ok(serde_json::to_vec_pretty(&receipt)?)
    }
}

/// Makes an environment's programs the first that are found in a sandbox.
pub(super) fn enter(spec: &mut SandboxSpec, recipe: &Recipe, python: &Python) {
    programs::show(spec, python.prefix.clone());
    spec.path.insert(0, format!("{PLACE}/bin"));
    spec.env.push(("VIRTUAL_ENV".to_owned(), PLACE.to_owned()));
    spec.env.extend(recipe.env.iter().map(|(name, value)| (name.clone(), value.clone())));
}

/// The end of a command that copies the files it is told of, with the directories they are in.
fn copied_to(folder: &str) -> String {
    format!("xargs -0 -r cp -a --parents -t {folder}")
}

/// The last lines of an output, each behind a line feed.
fn last_lines(output: &[u8]) -> String {
    let output = text::lossy(output);
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let told = &lines[lines.len().saturating_sub(TOLD)..];
    told.iter().map(|line| format!("\n    {}", text::head(line, 300).0)).collect()
}

#[cfg(test)]
mod tests {
    use crate::task::RepositorySource;

    use super::*;

    #[test]
    fn the_hash_covers_what_decides_and_nothing_else() {
        let tree = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs_err::write(tree.path().join(name), text).unwrap();
        let mut task = Task {
            id: "d__r-1".into(),
            repo: "d/r".into(),
            base_commit: "HEAD".into(),
            problem_statement: "x".into(),
            version: "1.0".into(),
            created_at: String::new(),
            image: None,
            workdir: "/testbed".into(),
            requires: Vec::new(),
            source: RepositorySource::Unknown,
        };
        let mut recipe = Recipe {
            repo: "d/r".into(),
            versions: vec!["1.0".into(), "1.1".into()],
            python: vec!["3.11".into()],
            packages: vec!["wheel".into()],
            requirements: vec!["tests.txt".into()],
            install: vec!["make".into()],
            inputs: vec!["more.txt".into()],
            env: BTreeMap::new(),
            test: "pytest".into(),
        };
        let mut python = Python {
            version: "3.11.7".into(),
            executable: "/usr/bin/python3.11".into(),
            prefix: "/usr".into(),
        };
        let mut preparation = Preparation::default();
        let hash = |task: &Task, recipe: &Recipe, python: &Python, preparation: &Preparation| {
            Installation::new(task, recipe, python.clone(), tree.path(), preparation)
                .unwrap()
                .digest()
        };
        write("setup.py", "setup()");
        let mut known = vec![hash(&task, &recipe, &python, &preparation)];
        let mut is_new = |hash: String| {
            let new = !known.contains(&hash);
            known.push(hash);
            new
        };

        write("module.py", "pass");
        task.id = "d__r-2".into();
        task.base_commit = "c0ffee".into();
        recipe.test = "pytest -rA".into();
        recipe.versions.pop();
        preparation.limit = Duration::from_secs(1);
        assert!(!is_new(hash(&task, &recipe, &python, &preparation)), "these decide nothing");

        for name in ["setup.py", "pyproject.toml", "setup.cfg", "tests.txt", "more.txt"] {
            write(name, "changed");
            assert!(is_new(hash(&task, &recipe, &python, &preparation)), "{name}");
        }
        recipe.packages.push("six".into());
        assert!(is_new(hash(&task, &recipe, &python, &preparation)));
        recipe.install.push("true".into());
        assert!(is_new(hash(&task, &recipe, &python, &preparation)));
        recipe.env.insert("A".into(), "b".into());
        assert!(is_new(hash(&task, &recipe, &python, &preparation)));
        python.version = "3.11.8".into();
        assert!(is_new(hash(&task, &recipe, &python, &preparation)));
        task.version = "1.1".into();
        assert!(is_new(hash(&task, &recipe, &python, &preparation)));
    }

    #[test]
    fn only_the_end_of_an_output_is_told() {
        let output: String = (0..100).map(|number| format!("line {number}\r\n\n")).collect();
        let told = last_lines(output.as_bytes());
        assert_eq!(told.lines().skip(1).count(), TOLD);
        assert!(told.starts_with("\n    line 88\n") && told.ends_with("\n    line 99"), "{told}");
        assert_eq!(last_lines(b"\n \n"), "");
    }
}
