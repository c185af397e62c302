//! Runs git on the guest's own repository directory, with nothing of the sandbox's settings.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Stdio;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::fs::MemfdFlags;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::process::Pid;
use rustix::process::PidfdFlags;

use crate::guest::cancel::Cancel;
use crate::protocol::operation::Fault;

/// Where git is looked for when the guest has no `PATH` of its own.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Most bytes that a command may print: a patch is the longest.
const MAX_OUTPUT: u64 = 256 << 20;
/// Bytes of a command's error text that are told.
const MAX_ERROR: usize = 2000;
/// How often a running command's operation is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Git for one work tree. The same as the machine's, of its own directory, index and configuration.
pub(crate) struct Git<'a> {
    /// The repository directory.
    pub(crate) directory: PathBuf,
    private: &'a Path,
    root: &'a Path,
    index: PathBuf,
    cancel: &'a Cancel,
}

/// Why a command gave nothing.
#[derive(Debug)]
pub(crate) enum GitError {
    /// It ended with this status, and these are its last words.
    Status(i32, String),
    /// It could not be run, or what it printed not be read.
    Io(String),
    /// The operation was cancelled.
    Cancelled,
}

impl From<GitError> for Fault {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Status(_, what) | GitError::Io(what) => Fault::Failed(what),
            GitError::Cancelled => Fault::Cancelled,
        }
    }
}

impl<'a> Git<'a> {
    /// Git for the work tree `root`, with its directory in the guest's `private` one.
    pub(crate) fn new(private: &'a Path, root: &'a Path, cancel: &'a Cancel) -> Self {
        let directory = private.join("git");
        let index = directory.join("index");
        Self { directory, private, root, index, cancel }
    }

    /// The same with another index.
    pub(crate) fn with_index(&self, index: &Path) -> Self {
        Self { directory: self.directory.clone(), index: index.to_owned(), ..*self }
    }

    /// Runs a command; gives what it printed.
    pub(crate) fn run<I: IntoIterator<Item: AsRef<OsStr>>>(
        &self,
        arguments: I,
    ) -> Result<Vec<u8>, GitError> {
        self.run_with(arguments, b"")
    }

    /// Runs a command that reads `input`.
    pub(crate) fn run_with<I: IntoIterator<Item: AsRef<OsStr>>>(
        &self,
        arguments: I,
        input: &[u8],
    ) -> Result<Vec<u8>, GitError> {
        let failed = |error: io::Error| GitError::Io(format!("git: {error}"));
        // A command that was killed leaves its lock behind.
        let _ = fs_err::remove_file(self.index.with_extension("lock"));
        let mut output = temporary(self.private).map_err(failed)?;
        let mut errors = temporary(self.private).map_err(failed)?;
        let stdin = if input.is_empty() {
            Stdio::null()
        } else {
            let mut file = temporary(self.private).map_err(failed)?;
            file.write_all(input).and_then(|()| file.rewind()).map_err(failed)?;
            file.into()
        };
        let mut child = Command::new("git")
            .args(arguments)
            .current_dir(self.root)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| SEARCH_PATH.into()))
            .env("GIT_DIR", &self.directory)
            .env("GIT_WORK_TREE", self.root)
            .env("GIT_INDEX_FILE", &self.index)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .stdin(stdin)
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(errors.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let status = self.wait(&mut child).map_err(failed)?.ok_or(GitError::Cancelled)?;
        if !status.success() {
            let text = read_back(&mut errors).map_err(failed)?;
            let last = &text[text.len().saturating_sub(MAX_ERROR)..];
            let text = format!("git: {}", String::from_utf8_lossy(last).trim());
            return Err(GitError::Status(status.code().unwrap_or(-1), text));
        }
        read_back(&mut output).map_err(failed)
    }
}

impl Git<'_> {
    /// Waits until a command ends; none when it was ended because the operation is cancelled.
    fn wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        let ended = rustix::process::pidfd_open(number, PidfdFlags::empty())?;
        let look = Timespec::try_from(LOOK).map_err(io::Error::other)?;
        loop {
            let mut polled = [PollFd::new(&ended, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&look)) {
                Ok(1..) => return child.wait().map(Some),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.cancel.check().is_err() {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
        }
    }
}

fn temporary(directory: &Path) -> io::Result<File> {
    rustix::fs::open(
        directory,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    // Not every file system has files without a name: overlays of older kernels have none.
    .or_else(|_| rustix::fs::memfd_create("patchgym-git", MemfdFlags::CLOEXEC))
    .map(File::from)
    .map_err(io::Error::from)
}

fn read_back(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_OUTPUT {
        return Err(io::Error::other(format!("more than {MAX_OUTPUT} bytes")));
    }
    Ok(bytes)
}
