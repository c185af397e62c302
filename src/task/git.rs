//! Git, run with nothing of the machine: no configuration but the repository's own, no hooks, no network.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::io;
use std::io::Seek;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use crate::task::repository::RepositoryError;
use crate::text;

/// Longest line of git's that goes into an error, in characters.
const LINE: usize = 300;

/// A repository directory that git is run on.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    directory: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Git {
    /// A repository directory that exists.
    pub(crate) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), environment: Vec::new() }
    }

    /// Makes an empty repository with HEAD on the branch `main`.
    ///
    /// Written by hand, because `git init` takes its template, branch and formats from the machine.
    pub(crate) fn create(directory: &Path, config: &str) -> io::Result<Self> {
        for name in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "info"] {
            fs_err::create_dir_all(directory.join(name))?;
        }
        fs_err::write(directory.join("HEAD"), "ref: refs/heads/main\n")?;
        fs_err::write(directory.join("config"), config)?;
        Ok(Self::at(directory))
    }

    /// The same repository with the work tree `tree`.
    pub(crate) fn over(&self, tree: &Path) -> Self {
        self.with("GIT_WORK_TREE", tree)
    }

    /// The same repository, which also reads the object store `objects`.
    pub(crate) fn borrowing(&self, objects: &Path) -> Self {
        // The variable is a list of paths between colons; a quoted path may hold one.
        let mut quoted = b"\"".to_vec();
        for byte in objects.as_os_str().as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                quoted.push(b'\\');
            }
            quoted.push(*byte);
        }
        quoted.push(b'"');
        self.with("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsString::from_vec(quoted))
    }

    /// The same repository with one more variable.
    pub(crate) fn with(&self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        let mut git = self.clone();
        git.environment.push((name, value.as_ref().to_owned()));
        git
    }

    /// Runs a command and gives its output without the last line end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, RepositoryError> {
        self.between(Stdio::null(), Stdio::piped(), arguments)
    }

    /// Runs a command that reads from `input` and writes to `output`; gives its output when that is a pipe.
    pub(crate) fn between(
        &self,
        input: Stdio,
        output: Stdio,
        arguments: &[&str],
    ) -> Result<String, RepositoryError> {
        self.attempt(input, output, arguments)?.map_err(|failure| RepositoryError::Git {
            command: format!("git {}", arguments.first().unwrap_or(&"")),
            problem: failure.problem,
        })
    }

    /// The full name of the commit that `revision` names, if it names one that is here.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>, RepositoryError> {
        if revision.is_empty() || revision.starts_with('-') {
            return Ok(None);
        }
        let arguments = ["rev-parse", "--quiet", "--verify", &format!("{revision}^{{commit}}")];
        match self.attempt(Stdio::null(), Stdio::piped(), &arguments)? {
            Ok(name) => Ok(Some(name)),
            Err(failure) if failure.code == Some(1) => Ok(None),
            Err(failure) => Err(RepositoryError::Git {
                command: "git rev-parse".into(),
                problem: failure.problem,
            }),
        }
    }

    /// Which of these revisions name a commit that is here, asked of one process.
    pub(crate) fn has_commits(&self, revisions: &[&str]) -> Result<Vec<bool>, RepositoryError> {
        let mut questions = tempfile::tempfile()?;
        for revision in revisions {
            // One line each, whatever a row says.
            let revision = if revision.contains(char::is_control) { "" } else { revision };
            writeln!(questions, "{revision}^{{commit}}")?;
        }
        questions.rewind()?;
        let arguments = ["cat-file", "--batch-check=%(objecttype)"];
        let answers = self.between(questions.into(), Stdio::piped(), &arguments)?;
        let mut answers = answers.lines();
        Ok(revisions.iter().map(|_| answers.next() == Some("commit")).collect())
    }

    fn attempt(
        &self,
        input: Stdio,
        output: Stdio,
        arguments: &[&str],
    ) -> Result<Result<String, Failure>, RepositoryError> {
        let mut command = Command::new("git");
        for (name, _) in std::env::vars_os() {
            // GIT_EXEC_PATH tells where a git that was moved keeps its programs.
            if name.as_bytes().starts_with(b"GIT_") && name != "GIT_EXEC_PATH" {
                command.env_remove(name);
            }
        }
        // Without a home there are no global settings, attributes and exclusions, in old versions of git too.
        command.env_remove("HOME").env_remove("XDG_CONFIG_HOME");
        command.envs([
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_GRAFT_FILE", "/dev/null"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            // Versions of git that do not know the variable before would fetch, but not over this protocol.
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_TERMINAL_PROMPT", "0"),
        ]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // A repository directory that is named is used whoever owns it, without `safe.directory`.
        command.arg("--no-pager").arg("--git-dir").arg(&self.directory);
        // A commit-graph file may tell of other parents than the commits do.
        command.args(["-c", "core.commitGraph=false"]).args(arguments);
        let child = command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn();
        let done = match child {
            Ok(child) => child.wait_with_output()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RepositoryError::GitMissing);
            }
            Err(error) => return Err(error.into()),
        };
        if done.status.success() {
            return Ok(Ok(text::lossy(done.stdout.trim_ascii_end())));
        }
        let said = text::lossy(&done.stderr);
        let cause = said
            .lines()
            .find_map(|line| line.strip_prefix("fatal: ").or(line.strip_prefix("error: ")));
        let problem = match cause.or(said.lines().next()) {
            Some(line) => text::head(line, LINE).0.to_owned(),
            None => done.status.to_string(),
        };
        Ok(Err(Failure { code: done.status.code(), problem }))
    }
}

/// A command of git's that did not succeed.
struct Failure {
    code: Option<i32>,
    problem: String,
}

/// Where a clone, bare mirror or linked worktree keeps what.
#[derive(Debug, Clone)]
pub(crate) struct GitDirectory {
    /// Its own directory, with HEAD.
    pub(crate) own: PathBuf,
    /// The directory that all worktrees of the repository have in common, with objects.
    pub(crate) common: PathBuf,
}

impl GitDirectory {
    /// The repository directory of `folder`, which is a work tree or itself a repository directory.
    pub(crate) fn of(folder: &Path) -> io::Result<Option<Self>> {
        let inner = folder.join(".git");
        let own = if inner.is_file() {
            let link = fs_err::read(&inner)?;
            let Some(target) = link.strip_prefix(b"gitdir: ") else { return Ok(None) };
            folder.join(OsStr::from_bytes(target.trim_ascii_end()))
        } else if inner.is_dir() {
            inner
        } else {
            folder.to_owned()
        };
        let common = match optional(fs_err::read(own.join("commondir")))? {
            Some(target) => own.join(OsStr::from_bytes(target.trim_ascii_end())),
            None => own.clone(),
        };
        let complete = own.join("HEAD").exists() && common.join("objects").is_dir();
        Ok(complete.then_some(Self { own, common }))
    }

    /// The object store.
    pub(crate) fn objects(&self) -> PathBuf {
        self.common.join("objects")
    }

    /// The commits whose parents a shallow clone leaves out, one a line; empty for a full clone.
    pub(crate) fn shallow(&self) -> io::Result<String> {
        Ok(optional(fs_err::read_to_string(self.common.join("shallow")))?.unwrap_or_default())
    }
}

/// What was there, if anything was.
pub(crate) fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
