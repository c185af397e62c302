//! What was written in a work tree, told without git.
//!
//! Where the backend keeps what was written in a directory of its own, that directory is looked at and few files stand
//! in it; else the work tree itself. The top-level `.git` does not count.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use rustix::fs::AtFlags;
use rustix::fs::FileType;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::Stat;

use crate::guest::cancel::Cancel;
use crate::protocol::operation::Fault;

/// Directories that are descended into, one in the other.
const MOST_LEVELS: u32 = 256;

/// A value that changes whenever a file below `directory` is written, made, removed, moved or given another mode.
pub(crate) fn fingerprint(directory: BorrowedFd<'_>, cancel: &Cancel) -> Result<u64, Fault> {
    let mut hasher = DefaultHasher::new();
    walk(directory, cancel, &mut |path, stat| {
        path.hash(&mut hasher);
        (stat.st_mode, stat.st_ino, stat.st_rdev).hash(&mut hasher);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
                .hash(&mut hasher);
        }
    })?;
    Ok(hasher.finish())
}

/// A file or link below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// From the directory on.
    pub(crate) path: Vec<u8>,
    /// Bytes in it.
    pub(crate) size: u64,
}

/// The files and links below `directory`.
pub(crate) fn files(directory: BorrowedFd<'_>, cancel: &Cancel) -> Result<Vec<Written>, Fault> {
    let mut files = Vec::new();
    walk(directory, cancel, &mut |path, stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if matches!(kind, FileType::RegularFile | FileType::Symlink) {
            let size = u64::try_from(stat.st_size).unwrap_or_default();
            files.push(Written { path: path.to_vec(), size });
        }
    })?;
    Ok(files)
}

/// Shows `visit` everything below a directory, in the order of names.
fn walk(
    directory: BorrowedFd<'_>,
    cancel: &Cancel,
    visit: &mut dyn FnMut(&[u8], &Stat),
) -> Result<(), Fault> {
    descend(directory, &mut Vec::new(), MOST_LEVELS, cancel, visit)
        .map_err(|error| Fault::Failed(error.to_string()))?;
    cancel.check()
}

fn descend(
    directory: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    levels: u32,
    cancel: &Cancel,
    visit: &mut dyn FnMut(&[u8], &Stat),
) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        let is_top_git = path.is_empty() && name.to_bytes() == b".git";
        if !matches!(name.to_bytes(), b"." | b"..") && !is_top_git {
            names.push(name);
        }
    }
    names.sort_unstable();
    for name in names {
        if cancel.check().is_err() {
            return Ok(());
        }
        let stat = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        visit(path, &stat);
        if levels > 0 && FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = rustix::fs::openat(directory, &name, flags, Mode::empty()) {
                descend(inner.as_fd(), path, levels - 1, cancel, visit)?;
            }
        }
        path.truncate(length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn looked_at(top: &Path) -> (u64, Vec<Written>) {
        let directory = fs_err::File::open(top).unwrap();
        let cancel = Cancel::after(None);
        (
            fingerprint(directory.as_fd(), &cancel).unwrap(),
            files(directory.as_fd(), &cancel).unwrap(),
        )
    }

    #[test]
    fn every_change_shows_and_the_repository_does_not_count() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path();
        fs_err::create_dir_all(root.join("a/.git")).unwrap();
        fs_err::create_dir_all(root.join(".git")).unwrap();
        fs_err::create_dir_all(root.join("b")).unwrap();
        fs_err::write(root.join("a/f"), "12").unwrap();
        let (first, found) = looked_at(root);
        assert_eq!(found, [Written { path: b"a/f".to_vec(), size: 2 }]);
        fs_err::write(root.join(".git/index"), "").unwrap();
        assert_eq!(looked_at(root).0, first);
        let mut seen = vec![first];
        let mut changed = |what: &str| {
            let (now, _) = looked_at(root);
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };
        fs_err::write(root.join("a/.git/index"), "").unwrap();
        changed("a file of an inner repository");
        fs_err::rename(root.join("a/f"), root.join("b/f")).unwrap();
        changed("a move");
        fs_err::set_permissions(
            root.join("b/f"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        changed("a mode");
        fs_err::remove_file(root.join("b/f")).unwrap();
        changed("a removal");
    }
}
