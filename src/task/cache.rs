//! Directories that can be made again when they are lost: each is made once, appears whole, and is shared by processes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::task::git::optional;

/// Begins the names of directories that are being made or removed.
const UNFINISHED: &str = ".unfinished-";

/// Directories of one kind below a common one, which need not exist.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    all: PathBuf,
}

/// The right to make a directory, among those who ask for it.
pub(crate) struct Turn {
    file: PathBuf,
    _held: fs_err::File,
}

impl Cache {
    /// The directories below `all`.
    pub(crate) fn at(all: PathBuf) -> Self {
        Self { all }
    }

    /// Where the directory of this name is, once it was made.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.all.join(name)
    }

    /// Waits until nobody else makes the directory of this name.
    pub(crate) fn turn(&self, name: &str) -> io::Result<Turn> {
        fs_err::create_dir_all(&self.all)?;
        let file = self.all.join(format!(".lock-{name}"));
        let held = fs_err::File::create(&file)?;
        // The lock only saves others from making the same directory again, so a file system without locks will do.
        let _ = held.file().lock();
        Ok(Turn { file, _held: held })
    }

    /// A directory to work in, whose name says which process does.
    pub(crate) fn unfinished(&self) -> io::Result<TempDir> {
        fs_err::create_dir_all(&self.all)?;
        let all = fs_err::canonicalize(&self.all)?;
        tempfile::Builder::new()
            .prefix(&format!("{UNFINISHED}{}", maker()))
            // A sandbox may look at the directory as another user.
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in(all)
    }

    /// Gives a directory that was made its name. One that somebody else made meanwhile is kept instead.
    pub(crate) fn finish(&self, made: TempDir, name: &str) -> io::Result<()> {
        let place = self.place(name);
        match fs_err::rename(made.path(), &place) {
            Ok(()) => {
                // It has a new name, so there is nothing left to remove.
                let _ = made.keep();
                Ok(())
            }
            Err(_) if place.exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes what was left of directories whose making was interrupted; gives the bytes that were freed.
    pub(crate) fn clean(&self) -> io::Result<u64> {
        let mut freed = 0;
        for path in entries(&self.all)? {
            let maker = path
                .file_name()
                .and_then(OsStr::to_str)
                .and_then(|name| name.strip_prefix(UNFINISHED));
            if maker.is_some_and(|maker| !is_alive(maker)) {
                freed += size(&path)?;
                fs_err::remove_dir_all(&path)?;
            }
        }
        Ok(freed)
    }

    /// Removes every directory that is not being made; gives the bytes that were freed. No sandbox may use one.
    pub(crate) fn remove_all(&self) -> io::Result<u64> {
        let mut freed = self.clean()?;
        for path in entries(&self.all)? {
            let hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
            if !hidden {
                freed += size(&path)?;
                // What is half removed must not have the name of something whole.
                let doomed = self.unfinished()?;
                fs_err::rename(&path, doomed.path().join("doomed"))?;
                doomed.close()?;
            }
        }
        Ok(freed)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Whoever waits holds the file already; a leftover does no harm.
        let _ = fs_err::remove_file(&self.file);
    }
}

/// The calling process as it stands at the beginning of names: `<process>-<start>-`.
pub(crate) fn maker() -> String {
    let process = std::process::id();
    format!("{process}-{}-", started(process).unwrap_or_default())
}

/// Whether the process of `<process>-<start>-…` is running.
pub(crate) fn is_alive(maker: &str) -> bool {
    let mut parts = maker.split('-').map(|part| part.parse().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(process), Some(start)) => {
            u32::try_from(process).ok().and_then(started) == Some(start)
        }
        _ => false,
    }
}

/// When a process started, in clock ticks since boot. Process numbers are used again, so the number alone does not
/// name a process.
fn started(process: u32) -> Option<u64> {
    let stat = fs_err::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; start time is the 20th field after it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// What stands in a folder; nothing when it is not there.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = optional(fs_err::read_dir(folder))?;
    entries.into_iter().flatten().map(|entry| Ok(entry?.path())).collect()
}

/// Bytes of the files below a path.
pub(crate) fn size(path: &Path) -> io::Result<u64> {
    let metadata = fs_err::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    entries(path)?.iter().map(|path| size(path)).sum()
}
