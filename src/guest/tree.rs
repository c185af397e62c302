//! What the guest's file operations are written over.
//!
//! An operation takes a [`Tree`] and the path as it was asked for; it never touches a disk itself. The tree follows
//! links, says what stands where, and replaces files as a whole.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::io::Read;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::protocol::operation::Fault;
use crate::protocol::operation::Kind;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Stat;

/// Existing paths that are named when nothing stands at the one asked for.
const MAX_SIMILAR: usize = 5;
/// Directory entries that are looked at to find them.
const MAX_LOOKED_AT: usize = 20_000;

/// Refusals of the file system that reach us without the system's error number, because a library wrapped them.
const REFUSALS: [io::ErrorKind; 4] = [
    io::ErrorKind::AlreadyExists,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::StorageFull,
];

/// A tree of files. Relative paths start at its working directory; every method but [`Tree::stat`] follows links.
///
/// ```
/// use std::path::Path;
///
/// use patchgym::guest::disk::Disk;
/// use patchgym::guest::tree::Tree;
/// use patchgym::protocol::operation::Kind;
///
/// let tree = Disk::new(std::env::temp_dir());
/// assert_eq!(tree.stat(Path::new(".")).unwrap().kind, Kind::Directory);
/// ```
pub trait Tree: Send + Sync {
    /// The absolute path without links that `path` stands for. What does not exist yet stays as it is named.
    ///
    /// # Errors
    /// When links form a ring or a directory on the way cannot be read.
    fn resolve(&self, path: &Path) -> Result<PathBuf, TreeError>;

    /// What stands at `path`, a link itself included.
    ///
    /// # Errors
    /// When nothing does, or a directory on the way cannot be read.
    fn stat(&self, path: &Path) -> Result<Stat, TreeError>;

    /// The bytes of a regular file from `offset` on. Pipes, sockets and devices are refused without being opened.
    ///
    /// # Errors
    /// When no readable regular file stands there.
    fn open(&self, path: &Path, offset: u64) -> Result<Opened, TreeError>;

    /// The names in a directory, in any order; of an enormous one only the first million.
    ///
    /// # Errors
    /// When no readable directory stands there.
    fn entries(&self, path: &Path) -> Result<Vec<(OsString, Kind)>, TreeError>;

    /// Calls `visit` for everything below `directory` but what `.git` holds, in any order and from several threads.
    /// Links are visited, not followed. Directories that cannot be read are left out.
    ///
    /// # Errors
    /// When no directory stands there.
    fn walk(&self, directory: &Path, scope: Scope, visit: &Visit<'_>) -> Result<(), TreeError>;

    /// Starts to make or replace a file. Nothing is changed before [`Replacement::commit`]. An existing file keeps its
    /// owner, and its mode unless `mode` gives one; a new one gets `mode` or 0644. The directory must exist.
    ///
    /// # Errors
    /// When something other than a writable regular file stands there, or the directory refuses a new one.
    fn replace(
        &self,
        path: &Path,
        mode: Option<u32>,
    ) -> Result<Box<dyn Replacement + '_>, TreeError>;

    /// Makes a directory and those above it; nothing happens when it exists.
    ///
    /// # Errors
    /// When something else stands on the way or the file system refuses.
    fn make_directories(&self, path: &Path) -> Result<(), TreeError>;

    /// Removes a file.
    ///
    /// # Errors
    /// When none stands there or the file system refuses.
    fn remove(&self, path: &Path) -> Result<(), TreeError>;
}

/// Called with a path relative to the walked directory; `Break` ends the walk soon.
pub type Visit<'a> = dyn Fn(&Path, Kind) -> ControlFlow<()> + Sync + 'a;

/// A file being read.
pub struct Opened {
    /// Its bytes from the asked offset on.
    pub contents: Box<dyn Read + Send>,
    /// Size of the whole file in bytes, as the tree knows it; files of `/proc` hold more than they say.
    pub size: u64,
}

/// The new contents of a file. Dropped without a commit it leaves everything as it was.
pub trait Replacement: Write {
    /// Puts the written bytes in place, all or none.
    ///
    /// # Errors
    /// When the file system refuses; the old contents stand then.
    fn commit(self: Box<Self>) -> Result<(), TreeError>;
}

/// What a walk leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Nothing.
    Everything,
    /// What `.gitignore` and `.git/info/exclude` of a git repository name.
    NotIgnored,
}

/// Why a tree could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Nothing stands at the path.
    #[error("nothing stands there")]
    NotFound,
    /// A file was expected.
    #[error("a directory stands there")]
    IsDirectory,
    /// A directory was expected.
    #[error("no directory stands there")]
    NotDirectory,
    /// A pipe, socket or device.
    #[error("neither a file nor a directory stands there")]
    NotRegular,
    /// The file is too large for what was asked.
    #[error("{size} bytes are more than {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file system refused, in the system's words.
    #[error("{0}")]
    Denied(String),
    /// The machine failed.
    #[error(transparent)]
    Failed(io::Error),
}

impl From<io::Error> for TreeError {
    fn from(error: io::Error) -> Self {
        match system_error(&error) {
            Some(errno) => Self::from(errno),
            None if error.kind() == io::ErrorKind::NotFound => Self::NotFound,
            None if REFUSALS.contains(&error.kind()) => Self::Denied(error.to_string()),
            None => Self::Failed(error),
        }
    }
}

impl From<Errno> for TreeError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::NXIO | Errno::NODEV => Self::NotRegular,
            // Running out of these is the machine's trouble; everything else is what the file system has to say
            // about this path (permission, read-only, full, busy, name too long, ring of links, ...).
            Errno::IO | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSYS | Errno::BADF => {
                Self::Failed(errno.into())
            }
            refusal => Self::Denied(words(refusal)),
        }
    }
}

/// The system's words for an error, without its number.
pub(super) fn words(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The system's error inside `error`; libraries wrap it to add the path.
pub(super) fn system_error(error: &io::Error) -> Option<Errno> {
    if let Some(errno) = Errno::from_io_error(error) {
        return Some(errno);
    }
    let mut inner: Option<&(dyn Error + 'static)> = error.get_ref().map(|inner| inner as _);
    while let Some(cause) = inner {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return system_error(error);
        }
        inner = cause.source();
    }
    None
}

/// The fault that tells of `error` at `path`, as it was asked for.
pub(super) fn fault(tree: &dyn Tree, path: &str, error: TreeError) -> Fault {
    let name = path.to_owned();
    Fault::Refused(match error {
        TreeError::NotFound => {
            Refusal::NotFound { path: name, similar: similar(tree, Path::new(path)) }
        }
        TreeError::IsDirectory => Refusal::IsDirectory { path: name },
        TreeError::NotDirectory => Refusal::NotDirectory { path: name },
        TreeError::NotRegular => Refusal::NotRegular { path: name },
        TreeError::TooLarge { size, limit } => Refusal::TooLarge { path: name, size, limit },
        TreeError::Denied(reason) => Refusal::Denied { path: name, reason },
        TreeError::Failed(error) => return Fault::Failed(format!("{path}: {error}")),
    })
}

/// Existing paths with the file name of `path`, the shallowest first: what was probably meant.
fn similar(tree: &dyn Tree, path: &Path) -> Vec<String> {
    let Some(wanted) = path.file_name() else { return Vec::new() };
    let Ok(root) = tree.resolve(Path::new("")) else { return Vec::new() };
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut waiting = VecDeque::from([PathBuf::new()]);
    while let Some(directory) = waiting.pop_front() {
        let Ok(mut entries) = tree.entries(&root.join(&directory)) else { continue };
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (name, kind) in entries {
            looked_at += 1;
            if found.len() == MAX_SIMILAR || looked_at > MAX_LOOKED_AT {
                return found;
            }
            let place = directory.join(&name);
            if name.eq_ignore_ascii_case(wanted) {
                let shown = if path.is_absolute() { root.join(&place) } else { place.clone() };
                found.push(shown.to_string_lossy().into_owned());
            }
            if kind == Kind::Directory && name != ".git" {
                waiting.push_back(place);
            }
        }
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    /// Files in memory below `/`: proof that the operations need no disk.
    #[derive(Default)]
    pub(crate) struct Memory(Mutex<BTreeMap<PathBuf, (Vec<u8>, u32)>>);

    impl Memory {
        pub(crate) fn with(files: &[(&str, &[u8])]) -> Self {
            let tree = Self::default();
            for (path, bytes) in files {
                tree.0.lock().unwrap().insert(Path::new("/").join(path), (bytes.to_vec(), 0o644));
            }
            tree
        }

        pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
            self.0.lock().unwrap().get(&Path::new("/").join(path)).map(|(bytes, _)| bytes.clone())
        }
    }

    impl Tree for Memory {
        fn resolve(&self, path: &Path) -> Result<PathBuf, TreeError> {
            Ok(Path::new("/").join(path).components().collect())
        }

        fn stat(&self, path: &Path) -> Result<Stat, TreeError> {
            let path = self.resolve(path)?;
            let files = self.0.lock().unwrap();
            match files.get(&path) {
                Some((bytes, mode)) => {
                    Ok(Stat { kind: Kind::File, size: bytes.len() as u64, mode: *mode })
                }
                None if path == Path::new("/")
                    || files.keys().any(|file| file.starts_with(&path)) =>
                {
                    Ok(Stat { kind: Kind::Directory, size: 0, mode: 0o755 })
                }
                None => Err(TreeError::NotFound),
            }
        }

        fn open(&self, path: &Path, offset: u64) -> Result<Opened, TreeError> {
            let stat = self.stat(path)?;
            if stat.kind == Kind::Directory {
                return Err(TreeError::IsDirectory);
            }
            let bytes = self.0.lock().unwrap()[&self.resolve(path)?].0.clone();
            let from = usize::try_from(offset).unwrap().min(bytes.len());
            Ok(Opened {
                contents: Box::new(io::Cursor::new(bytes[from..].to_vec())),
                size: stat.size,
            })
        }

        fn entries(&self, path: &Path) -> Result<Vec<(OsString, Kind)>, TreeError> {
            let root = self.resolve(path)?;
            if self.stat(path)?.kind != Kind::Directory {
                return Err(TreeError::NotDirectory);
            }
            let mut names = BTreeMap::new();
            for file in self.0.lock().unwrap().keys() {
                let Ok(below) = file.strip_prefix(&root) else { continue };
                let mut parts = below.components();
                let Some(name) = parts.next() else { continue };
                let kind = if parts.next().is_some() { Kind::Directory } else { Kind::File };
                names.insert(name.as_os_str().to_owned(), kind);
            }
            Ok(names.into_iter().collect())
        }

        fn walk(
            &self,
            directory: &Path,
            _scope: Scope,
            visit: &Visit<'_>,
        ) -> Result<(), TreeError> {
            let root = self.resolve(directory)?;
            let files: Vec<PathBuf> = self.0.lock().unwrap().keys().cloned().collect();
            for file in files {
                if let Ok(below) = file.strip_prefix(&root)
                    && visit(below, Kind::File).is_break()
                {
                    break;
                }
            }
            Ok(())
        }

        fn replace(
            &self,
            path: &Path,
            mode: Option<u32>,
        ) -> Result<Box<dyn Replacement + '_>, TreeError> {
            let path = self.resolve(path)?;
            let old = self.0.lock().unwrap().get(&path).map(|(_, mode)| *mode);
            Ok(Box::new(Pending {
                tree: self,
                path,
                bytes: Vec::new(),
                mode: mode.or(old).unwrap_or(0o644),
            }))
        }

        fn make_directories(&self, _path: &Path) -> Result<(), TreeError> {
            Ok(())
        }

        fn remove(&self, path: &Path) -> Result<(), TreeError> {
            let path = self.resolve(path)?;
            self.0.lock().unwrap().remove(&path).map(|_| ()).ok_or(TreeError::NotFound)
        }
    }

    struct Pending<'a> {
        tree: &'a Memory,
        path: PathBuf,
        bytes: Vec<u8>,
        mode: u32,
    }

    impl Write for Pending<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Replacement for Pending<'_> {
        fn commit(self: Box<Self>) -> Result<(), TreeError> {
            self.tree.0.lock().unwrap().insert(self.path, (self.bytes, self.mode));
            Ok(())
        }
    }

    #[test]
    fn a_missing_path_names_existing_ones_of_the_same_name() {
        let tree =
            Memory::with(&[("src/deep/setup.py", b""), ("lib/Setup.py", b""), ("other.py", b"")]);
        let similar = |path: &str| {
            let Fault::Refused(Refusal::NotFound { similar, .. }) =
                fault(&tree, path, TreeError::NotFound)
            else {
                panic!("{path} is there");
            };
            similar
        };
        assert_eq!(similar("setup.py"), ["lib/Setup.py", "src/deep/setup.py"]);
        assert_eq!(similar("/nowhere/other.py"), ["/other.py"]);
        assert!(similar("none.py").is_empty());
    }

    #[test]
    fn a_wrapped_system_error_is_told_in_the_systems_words() {
        let wrapped = io::Error::other(io::Error::from(Errno::NOSPC));
        let TreeError::Denied(reason) = TreeError::from(wrapped) else { panic!() };
        assert_eq!(reason, "No space left on device");
        assert!(matches!(TreeError::from(io::Error::from(Errno::IO)), TreeError::Failed(_)));
    }
}
