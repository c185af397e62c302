//! The tree that is a disk.
//!
//! Uses `std::fs` directly: errors of `fs_err` hide the system's error number, which decides what is told, and the
//! operation adds the path as it was asked for.

use std::ffi::OsString;
use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use ignore::WalkBuilder;
use ignore::WalkState;
use rustix::fs::Access;
use rustix::fs::FileType as RawType;
use rustix::fs::Gid;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::Stat as RawStat;
use rustix::fs::Uid;
use rustix::io::Errno;

use crate::guest::tree::Opened;
use crate::guest::tree::Replacement;
use crate::guest::tree::Scope;
use crate::guest::tree::Tree;
use crate::guest::tree::TreeError;
use crate::guest::tree::Visit;
use crate::guest::tree::system_error;
use crate::protocol::operation::Kind;
use crate::protocol::operation::Stat;

/// Beginning of the names of files that are being written; each disappears when its operation ends.
pub const TEMPORARY: &str = ".patchgym-write-";
/// Most threads of one walk: thousands of sandboxes may share a machine.
const WALKERS: usize = 4;
/// Most names that are read of one directory.
const MAX_ENTRIES: usize = 1_000_000;
/// Largest contents, old or new, where a file has to be overwritten in place.
const MAX_IN_PLACE: u64 = 64 << 20;
/// Links that are followed before they count as a ring, as in Linux.
const MAX_LINKS: u32 = 40;
/// Permission bits of a new file.
const NEW_FILE: u32 = 0o644;

/// The real file system.
#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
}

impl Disk {
    /// A disk on which relative paths start at `root`, an absolute path.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `path` from the root directory on; links are not looked at.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }
}

impl Tree for Disk {
    fn resolve(&self, path: &Path) -> Result<PathBuf, TreeError> {
        let mut wanted = self.absolute(path);
        for _ in 0..MAX_LINKS {
            let (real, rest) = existing(&wanted)?;
            let Some(name) = rest.iter().next() else { return Ok(real) };
            // What is missing may be the target of a link.
            match fs::read_link(real.join(name)) {
                Ok(target) => {
                    wanted = real.join(target).join(rest.iter().skip(1).collect::<PathBuf>())
                }
                Err(_) => return Ok(real.join(rest)),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn stat(&self, path: &Path) -> Result<Stat, TreeError> {
        let found = rustix::fs::lstat(self.absolute(path)).map_err(reading)?;
        Ok(stat_of(&found))
    }

    fn open(&self, path: &Path, offset: u64) -> Result<Opened, TreeError> {
        let path = self.absolute(path);
        regular(&rustix::fs::stat(&path).map_err(reading)?)?;
        // A pipe that takes the file's place between these two calls does not block either.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let size = regular(&rustix::fs::fstat(&file)?)?.size;
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok(Opened { contents: Box::new(file), size })
    }

    fn entries(&self, path: &Path) -> Result<Vec<(OsString, Kind)>, TreeError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.absolute(path))?.take(MAX_ENTRIES) {
            let entry = entry?;
            entries.push((entry.file_name(), entry.file_type().map_or(Kind::Other, kind_of)));
        }
        Ok(entries)
    }

    fn walk(&self, directory: &Path, scope: Scope, visit: &Visit<'_>) -> Result<(), TreeError> {
        let root = self.absolute(directory);
        let stat = rustix::fs::stat(&root).map_err(reading)?;
        if stat_of(&stat).kind != Kind::Directory {
            return Err(TreeError::NotDirectory);
        }
        let mut walk = WalkBuilder::new(&root);
        walk.standard_filters(false)
            .threads(WALKERS)
            .filter_entry(|entry| entry.file_name() != ".git");
        if scope == Scope::NotIgnored {
            walk.parents(true).git_ignore(true).git_exclude(true).require_git(true);
        }
        walk.build_parallel().run(|| {
            Box::new(|found| {
                let Ok(entry) = found else { return WalkState::Continue };
                let Ok(below) = entry.path().strip_prefix(&root) else {
                    return WalkState::Continue;
                };
                let Some(kind) = entry.file_type().map(kind_of) else { return WalkState::Continue };
                if below.as_os_str().is_empty() {
                    return WalkState::Continue;
                }
                match visit(below, kind) {
                    ControlFlow::Continue(()) => WalkState::Continue,
                    ControlFlow::Break(()) => WalkState::Quit,
                }
            })
        });
        Ok(())
    }

    fn replace(
        &self,
        path: &Path,
        mode: Option<u32>,
    ) -> Result<Box<dyn Replacement + '_>, TreeError> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(TreeError::IsDirectory);
        }
        let target = self.resolve(path)?;
        let old = match rustix::fs::lstat(&target) {
            Ok(found) => {
                let stat = regular(&found)?;
                // A rename would get past the file's own permission.
                rustix::fs::access(&target, Access::WRITE_OK)?;
                Some(Old { mode: stat.mode, owner: found.st_uid, group: found.st_gid })
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let spool = match Temporary::beside(&target) {
            Ok(temporary) => Spool::Beside(temporary),
            Err(error) if old.is_some() && stays_in_place(&error) => Spool::Memory(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        Ok(Box::new(DiskReplacement { target, old, mode, spool }))
    }

    fn make_directories(&self, path: &Path) -> Result<(), TreeError> {
        match DirBuilder::new().recursive(true).create(self.absolute(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(TreeError::NotDirectory)
            }
            other => Ok(other?),
        }
    }

    fn remove(&self, path: &Path) -> Result<(), TreeError> {
        Ok(fs::remove_file(self.resolve(path)?)?)
    }
}

/// The longest beginning of a path that exists, without links, and the rest.
fn existing(path: &Path) -> Result<(PathBuf, PathBuf), TreeError> {
    for beginning in path.ancestors() {
        match fs::canonicalize(beginning).map_err(TreeError::from) {
            Ok(real) => {
                let rest = path.strip_prefix(beginning).unwrap_or(Path::new(""));
                return Ok((real, rest.to_path_buf()));
            }
            Err(TreeError::NotFound | TreeError::NotDirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NotFound)
}

/// What an existing file keeps when it is replaced.
#[derive(Debug, Clone, Copy)]
struct Old {
    mode: u32,
    owner: u32,
    group: u32,
}

struct DiskReplacement {
    target: PathBuf,
    old: Option<Old>,
    mode: Option<u32>,
    spool: Spool,
}

/// Where new contents wait.
enum Spool {
    /// In the target's directory, to be renamed.
    Beside(Temporary),
    /// The directory takes no new file, so the target has to be overwritten.
    Memory(Vec<u8>),
}

impl Write for DiskReplacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.spool {
            Spool::Beside(temporary) => temporary.file.write(bytes),
            Spool::Memory(held) if (held.len() + bytes.len()) as u64 > MAX_IN_PLACE => {
                Err(io::Error::from(Errno::FBIG))
            }
            Spool::Memory(held) => held.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Replacement for DiskReplacement {
    fn commit(self: Box<Self>) -> Result<(), TreeError> {
        match self.spool {
            Spool::Memory(bytes) => overwrite(&self.target, &mut bytes.as_slice(), self.mode),
            Spool::Beside(mut temporary) => {
                match temporary.rename(&self.target, self.old, self.mode) {
                    Err(error) if self.old.is_some() && stays_in_place(&error) => {
                        temporary.file.seek(SeekFrom::Start(0))?;
                        overwrite(&self.target, &mut temporary.file, self.mode)
                    }
                    other => Ok(other?),
                }
            }
        }
    }
}

/// Errors of making a file beside the target, giving it the owner or renaming it, after which overwriting the target
/// may still work: a directory without write permission or with the sticky bit, a file that is a mount point.
fn stays_in_place(error: &io::Error) -> bool {
    matches!(
        system_error(error),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::BUSY | Errno::XDEV)
    )
}

/// A file that is removed again unless it was renamed.
struct Temporary {
    file: File,
    path: Option<PathBuf>,
}

impl Temporary {
    fn beside(target: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{TEMPORARY}{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = target.with_file_name(name);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path: Some(path) })
    }

    fn rename(&mut self, target: &Path, old: Option<Old>, mode: Option<u32>) -> io::Result<()> {
        if let Some(old) = old {
            let made = rustix::fs::fstat(&self.file)?;
            let owner = (made.st_uid != old.owner).then(|| Uid::from_raw(old.owner));
            let group = (made.st_gid != old.group).then(|| Gid::from_raw(old.group));
            if owner.is_some() || group.is_some() {
                rustix::fs::fchown(&self.file, owner, group)?;
            }
        }
        // After the owner, because changing that clears the set-user-id bit.
        set_mode(&self.file, mode.or(old.map(|old| old.mode)).unwrap_or(NEW_FILE))?;
        self.file.sync_all()?;
        if let Some(path) = &self.path {
            fs::rename(path, target)?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777))?)
}

/// Overwrites a file where it is. The old bytes stay in memory and come back when anything fails.
fn overwrite(target: &Path, new: &mut dyn Read, mode: Option<u32>) -> Result<(), TreeError> {
    let mut file = OpenOptions::new().read(true).write(true).open(target)?;
    let size = rustix::fs::fstat(&file)?.st_size.cast_unsigned();
    if size > MAX_IN_PLACE {
        return Err(TreeError::TooLarge { size, limit: MAX_IN_PLACE });
    }
    let mut old = Vec::new();
    file.read_to_end(&mut old)?;
    let outcome =
        fill(&mut file, new).and_then(|()| mode.map_or(Ok(()), |mode| set_mode(&file, mode)));
    if outcome.is_err() {
        fill(&mut file, &mut old.as_slice())?;
    }
    Ok(outcome?)
}

/// Makes `bytes` the contents of the file. It is shortened last: as long as the old blocks stay allocated the old
/// contents can be written back on a full disk.
fn fill(file: &mut File, bytes: &mut dyn Read) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let written = io::copy(bytes, file)?;
    file.set_len(written)?;
    file.sync_all()
}

/// A component on the way that is a file means that nothing stands behind it.
fn reading(errno: Errno) -> TreeError {
    if errno == Errno::NOTDIR { TreeError::NotFound } else { errno.into() }
}

fn regular(found: &RawStat) -> Result<Stat, TreeError> {
    let stat = stat_of(found);
    match stat.kind {
        Kind::File => Ok(stat),
        Kind::Directory => Err(TreeError::IsDirectory),
        Kind::Symlink | Kind::Other => Err(TreeError::NotRegular),
    }
}

fn stat_of(found: &RawStat) -> Stat {
    let file_type = RawType::from_raw_mode(found.st_mode);
    let kind = if file_type.is_file() {
        Kind::File
    } else if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_symlink() {
        Kind::Symlink
    } else {
        Kind::Other
    };
    Stat { kind, size: found.st_size.cast_unsigned(), mode: found.st_mode & 0o7777 }
}

fn kind_of(file_type: fs::FileType) -> Kind {
    if file_type.is_file() {
        Kind::File
    } else if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_symlink() {
        Kind::Symlink
    } else {
        Kind::Other
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    fn write(disk: &Disk, path: &str, bytes: &[u8]) -> Result<(), TreeError> {
        let mut replacement = disk.replace(Path::new(path), None)?;
        replacement.write_all(bytes)?;
        replacement.commit()
    }

    fn names(place: &Path) -> Vec<String> {
        let name =
            |entry: io::Result<fs_err::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs_err::read_dir(place).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_replaced_file_keeps_mode_and_link_and_a_dropped_replacement_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        fs_err::write(place.path().join("real"), "old").unwrap();
        fs_err::set_permissions(place.path().join("real"), PermissionsExt::from_mode(0o4751))
            .unwrap();
        fs_err::os::unix::fs::symlink("real", place.path().join("link")).unwrap();
        let mut dropped = disk.replace(Path::new("link"), None).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(names(place.path()), ["link", "real"]);
        assert_eq!(fs_err::read(place.path().join("real")).unwrap(), b"old");
        write(&disk, "link", b"new").unwrap();
        assert_eq!(names(place.path()), ["link", "real"]);
        assert_eq!(fs_err::read(place.path().join("real")).unwrap(), b"new");
        assert_eq!(disk.stat(Path::new("real")).unwrap().mode, 0o4751);
        assert_eq!(disk.stat(Path::new("link")).unwrap().kind, Kind::Symlink);
        write(&disk, "fresh", b"").unwrap();
        assert_eq!(disk.stat(Path::new("fresh")).unwrap().mode, NEW_FILE);
    }

    #[test]
    fn a_link_to_nowhere_is_written_through_and_a_ring_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        fs_err::create_dir(place.path().join("sub")).unwrap();
        fs_err::os::unix::fs::symlink("sub/target", place.path().join("link")).unwrap();
        write(&disk, "link", b"x").unwrap();
        assert_eq!(fs_err::read(place.path().join("sub/target")).unwrap(), b"x");
        fs_err::os::unix::fs::symlink("b", place.path().join("a")).unwrap();
        fs_err::os::unix::fs::symlink("a", place.path().join("b")).unwrap();
        assert!(matches!(write(&disk, "a", b"x"), Err(TreeError::Denied(_))));
        assert!(matches!(disk.open(Path::new("a"), 0), Err(TreeError::Denied(_))));
        let real = fs_err::canonicalize(place.path()).unwrap();
        fs_err::os::unix::fs::symlink("missing/./way", place.path().join("gone")).unwrap();
        assert_eq!(disk.resolve(Path::new("gone/on")).unwrap(), real.join("missing/way/on"));
        let deep = "a/".repeat(2000);
        assert!(disk.resolve(Path::new("none").join(&deep).as_path()).unwrap().ends_with(&deep));
    }

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, RawType::Fifo, 0o600.into(), 0).unwrap();
        for path in ["pipe", "/dev/zero"] {
            assert!(matches!(disk.open(Path::new(path), 0), Err(TreeError::NotRegular)));
            assert!(matches!(write(&disk, path, b"x"), Err(TreeError::NotRegular)));
        }
        assert!(matches!(disk.open(Path::new("."), 0), Err(TreeError::IsDirectory)));
        assert!(matches!(write(&disk, "sub/", b"x"), Err(TreeError::IsDirectory)));
        assert!(matches!(disk.open(Path::new("a\0b"), 0), Err(TreeError::Denied(_))));
        assert!(matches!(disk.open(Path::new("pipe/x"), 0), Err(TreeError::NotFound)));
        assert_eq!(names(place.path()), ["pipe"]);
    }

    struct Breaks(usize);

    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::from(Errno::NOSPC));
            }
            let read = buffer.len().min(self.0);
            buffer[..read].fill(b'n');
            self.0 -= read;
            Ok(read)
        }
    }

    #[test]
    fn a_file_that_cannot_be_overwritten_to_the_end_gets_its_old_bytes_back() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("file");
        fs_err::write(&target, "old contents").unwrap();
        let inode = fs_err::metadata(&target).unwrap().ino();
        for broken in [5, 100_000] {
            assert!(matches!(
                overwrite(&target, &mut Breaks(broken), None),
                Err(TreeError::Denied(_))
            ));
            assert_eq!(fs_err::read(&target).unwrap(), b"old contents");
        }
        overwrite(&target, &mut &b"new"[..], None).unwrap();
        assert_eq!(fs_err::read(&target).unwrap(), b"new");
        assert_eq!(fs_err::metadata(&target).unwrap().ino(), inode);
    }

    /// Permissions do not bind root, so as root this test runs itself again as another user.
    #[test]
    fn permissions_of_file_and_directory_decide() {
        if rustix::process::geteuid().is_root() {
            let test = "guest::disk::tests::permissions_of_file_and_directory_decide";
            let this = std::env::current_exe().unwrap();
            let copy = tempfile::Builder::new()
                .permissions(PermissionsExt::from_mode(0o755))
                .tempdir()
                .unwrap();
            fs_err::copy(this, copy.path().join("test")).unwrap();
            let mut again = Command::new(copy.path().join("test"));
            again
                .args(["--exact", test])
                .current_dir("/")
                .env("TMPDIR", "/tmp")
                .gid(65534)
                .uid(65534);
            let output = again.output().unwrap();
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::new(place.path());
        let path = |name: &str| place.path().join(name);
        for (name, mode) in [("plain", 0o644), ("locked", 0o444)] {
            fs_err::write(path(name), "old").unwrap();
            fs_err::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        let inode = fs_err::metadata(path("plain")).unwrap().ino();
        let denied = |outcome: Result<(), TreeError>| matches!(outcome, Err(TreeError::Denied(reason)) if reason == "Permission denied");
        assert!(denied(write(&disk, "locked", b"new")));
        fs_err::set_permissions(place.path(), PermissionsExt::from_mode(0o555)).unwrap();
        assert!(denied(write(&disk, "fresh", b"new")));
        write(&disk, "plain", b"new").unwrap();
        assert_eq!(fs_err::read(path("plain")).unwrap(), b"new");
        assert_eq!(fs_err::metadata(path("plain")).unwrap().ino(), inode);
        let kept = fs_err::read(path("locked")).unwrap();
        fs_err::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(kept, b"old");
        assert_eq!(names(place.path()), ["locked", "plain"]);
    }
}
