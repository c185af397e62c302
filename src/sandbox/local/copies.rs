//! Sandboxes without namespaces: a folder of the machine that holds a copy of the repository.
//!
//! `testbed` is the copy, `run` the guest's own directory, `home` and `tmp` what their names say. The folder's name says
//! which process made it, and that process keeps it locked: a process of another container cannot be looked for.

use std::fs::TryLockError;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use rustix::fs::AtFlags;
use rustix::fs::CWD;
use rustix::fs::Timespec;
use rustix::fs::Timestamps;

use crate::sandbox::Access;
use crate::sandbox::Mount;
use crate::sandbox::Network;
use crate::sandbox::Place;
use crate::sandbox::Root;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::local::PRIVATE;
use crate::sandbox::local::layers;
use crate::sandbox::local::removal;
use crate::task::cache;

/// The folder of a sandbox.
#[derive(Debug)]
pub(super) struct Folder {
    /// Its path.
    pub(super) path: String,
    _lock: fs_err::File,
}

impl Folder {
    /// Makes a folder below `all` for a sandbox. Blocks while the repository is copied.
    ///
    /// # Errors
    /// When it cannot be made, or the spec asks for what a folder cannot be.
    pub(super) fn make(all: &Path, spec: &SandboxSpec) -> Result<Self, SandboxError> {
        let folder = Self::empty(all).map_err(|source| failed("making its folder", source))?;
        match folder.fill(spec) {
            Ok(()) => Ok(folder),
            Err(error) => {
                let _ = folder.remove();
                Err(error)
            }
        }
    }

    fn empty(all: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(all)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = fs_err::canonicalize(all)?.join(format!("{}{number}", cache::maker()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = fs_err::File::open(&path)?;
        // On a file system without locks the name has to do.
        let _ = lock.file().try_lock();
        let path = path
            .into_os_string()
            .into_string()
            .map_err(|path| io::Error::other(format!("{} is not UTF-8", path.display())))?;
        Ok(Self { path, _lock: lock })
    }

    fn fill(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        if let Root::Directory(root) = &spec.root {
            return Err(SandboxError::NeedsNamespaces(format!("the root {}", root.display())));
        }
        for name in ["run", "home", "tmp"] {
            let made = std::fs::DirBuilder::new().mode(0o700).create(self.at(name));
            made.map_err(|source| failed("making its folder", source))?;
        }
        let workdir = self.at("testbed");
        for mount in &spec.mounts {
            let Mount { source, target, access } = mount;
            if !source.exists() {
                return Err(SandboxError::MissingSource(source.clone()));
            }
            let below_private = Path::new(target).strip_prefix(PRIVATE).ok();
            match (access, below_private) {
                (Access::CopyOnWrite, _) if *target == spec.workdir => copy(source, &workdir)
                    .map_err(|error| failed("copying the repository", error))?,
                // Landlock keeps what is linked from being written.
                (Access::ReadOnly, Some(below)) => {
                    let link = self.at("run").join(below);
                    fs_err::os::unix::fs::symlink(source, link)
                        .map_err(|error| failed("linking objects", error))?;
                }
                (Access::ReadOnly, None) if Path::new(target) == source => {}
                (Access::CopyOnWrite | Access::ReadOnly, _) => {
                    return Err(SandboxError::NeedsNamespaces(format!("a directory at {target}")));
                }
            }
        }
        if !workdir.exists() {
            fs_err::create_dir(&workdir).map_err(|source| failed("making its folder", source))?;
        }
        Ok(())
    }

    fn at(&self, name: &str) -> PathBuf {
        Path::new(&self.path).join(name)
    }

    /// Where things are in the sandbox.
    pub(super) fn place(&self, spec: &SandboxSpec) -> Place {
        let mut env = spec.environment();
        let own = [
            ("HOME", format!("{}/home", self.path)),
            ("TMPDIR", format!("{}/tmp", self.path)),
            // A repository whose `.git` is gone is none; without this, one that the folder lies in would be found.
            ("GIT_CEILING_DIRECTORIES", self.path.clone()),
        ];
        env.retain(|(name, _)| !own.iter().any(|(own, _)| own == name));
        env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        Place {
            workdir: format!("{}/testbed", self.path),
            private: format!("{}/run", self.path),
            env,
        }
    }

    /// Removes the folder, if it is still there. No process may be working in it.
    pub(super) fn remove(self) -> Result<(), SandboxError> {
        removal::remove(Path::new(&self.path)).map_err(SandboxError::Remove)
    }
}

/// Removes the folders below `all` whose processes are gone; gives the bytes that were freed.
///
/// # Errors
/// When one cannot be removed.
pub(super) fn clean(all: &Path) -> io::Result<u64> {
    let mut freed = 0;
    for path in cache::entries(all)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // It may just have been removed by its init.
        let Ok(folder) = fs_err::File::open(&path) else { continue };
        let is_locked = matches!(folder.file().try_lock(), Err(TryLockError::WouldBlock));
        if !is_locked && !cache::is_alive(&name) {
            freed += cache::size(&path).unwrap_or_default();
            removal::remove(&path)?;
        }
    }
    Ok(freed)
}

/// What of the machine a sandbox may read besides its folder.
pub(super) fn readable(spec: &SandboxSpec, hidden: &[PathBuf]) -> Vec<Vec<u8>> {
    let mut paths = layers::readable(hidden);
    paths.extend(
        spec.mounts
            .iter()
            .filter(|mount| mount.access == Access::ReadOnly)
            .map(|mount| mount.source.clone()),
    );
    if spec.network == Network::Full {
        // Often a link to where a service keeps it.
        paths.extend(fs_err::canonicalize("/etc/resolv.conf").ok());
    }
    paths.into_iter().map(|path| path.into_os_string().into_vec()).collect()
}

/// Copies a tree with its permissions and times; file systems that can share blocks do.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs_err::symlink_metadata(from)?;
    if metadata.is_dir() {
        fs_err::create_dir(to)?;
        for entry in fs_err::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        fs_err::set_permissions(to, metadata.permissions())?;
    } else if metadata.is_symlink() {
        fs_err::os::unix::fs::symlink(fs_err::read_link(from)?, to)?;
    } else {
        fs_err::copy(from, to)?;
    }
    // Git's index knows files by their times.
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    };
    rustix::fs::utimensat(CWD, to.as_os_str().as_bytes(), &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn failed(what: &str, source: io::Error) -> SandboxError {
    SandboxError::Create { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_copy_is_the_same_tree() {
        let top = tempfile::tempdir().unwrap();
        let from = top.path().join("from");
        fs_err::create_dir_all(from.join("d/e")).unwrap();
        fs_err::write(from.join("d/run"), "#!/bin/sh\n").unwrap();
        fs_err::set_permissions(from.join("d/run"), PermissionsExt::from_mode(0o555)).unwrap();
        fs_err::os::unix::fs::symlink("nowhere", from.join("link")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let to = top.path().join("to");
        copy(&from, &to).unwrap();
        for below in ["", "d", "d/e", "d/run", "link"] {
            let of = |root: &Path| {
                let metadata = fs_err::symlink_metadata(root.join(below)).unwrap();
                (metadata.mode(), metadata.mtime(), metadata.mtime_nsec())
            };
            assert_eq!(of(&from), of(&to), "{below}");
        }
        assert_eq!(fs_err::read(to.join("d/run")).unwrap(), b"#!/bin/sh\n");
        assert_eq!(fs_err::read_link(to.join("link")).unwrap(), Path::new("nowhere"));
    }

    #[test]
    fn only_folders_of_ended_processes_are_cleaned() {
        let top = tempfile::tempdir().unwrap();
        let all = top.path().join("sandboxes");
        let living = Folder::make(&all, &SandboxSpec::default()).unwrap();
        for name in ["999999999-1-0", "4-1-0"] {
            fs_err::create_dir_all(all.join(name).join("testbed")).unwrap();
        }
        fs_err::write(all.join("4-1-0/testbed/file"), "12345").unwrap();
        // Of a process in another container, as far as this one can see.
        let locked = fs_err::File::open(all.join("999999999-1-0")).unwrap();
        locked.file().lock().unwrap();
        assert_eq!(clean(&all).unwrap(), 5);
        assert!(Path::new(&living.path).exists() && all.join("999999999-1-0").exists());
        drop(locked);
        clean(&all).unwrap();
        assert_eq!(cache::entries(&all).unwrap(), [PathBuf::from(&living.path)]);
        living.remove().unwrap();
        assert!(cache::entries(&all).unwrap().is_empty());
    }

    #[test]
    fn what_only_namespaces_can_do_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let mount = |target: &str, access| Mount {
            source: top.path().to_owned(),
            target: target.into(),
            access,
        };
        for mount in
            [mount("/elsewhere", Access::ReadOnly), mount("/elsewhere", Access::CopyOnWrite)]
        {
            let spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
            let all = top.path().join("sandboxes");
            let error = Folder::make(&all, &spec).unwrap_err();
            assert!(matches!(error, SandboxError::NeedsNamespaces(_)), "{error}");
            assert!(cache::entries(&all).unwrap().is_empty());
        }
    }
}
