//! Builds the file system of a sandbox out of a [`Setup`]. Runs in the sandbox's init.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::mount::MountFlags;
use rustix::mount::MountPropagationFlags;
use rustix::mount::MoveMountFlags;
use rustix::mount::OpenTreeFlags;
use rustix::mount::UnmountFlags;

use crate::protocol::setup::Content;
use crate::protocol::setup::Setup;
use crate::sandbox::local::namespaces;

/// The guest's own directory in every sandbox: command files, status channels, patch objects.
pub(crate) const PRIVATE: &str = "/run/patchgym";

/// What went wrong while a sandbox was built.
pub(crate) struct BuildError {
    /// What was being done.
    pub(crate) what: String,
    /// The system's answer.
    pub(crate) source: io::Error,
}

/// Adds what was being done to an I/O error.
pub(crate) trait During<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, BuildError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, BuildError> {
        self.map_err(|source| BuildError { what: what(), source: source.into() })
    }
}

/// Takes hold of the machine's directories before anything is mounted over them: one detached mount per layer that
/// has a source.
///
/// `user_namespace` is given by real root: overlays then show root's files as the sandbox root's own.
pub(crate) fn open_sources(
    setup: &Setup,
    user_namespace: Option<BorrowedFd<'_>>,
) -> Result<Vec<Option<OwnedFd>>, BuildError> {
    setup
        .layers
        .iter()
        .map(|layer| match &layer.content {
            Content::Overlay { source, .. } => {
                let source = Path::new(OsStr::from_bytes(source));
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let mount = rustix::mount::open_tree(CWD, source, flags)
                    .during(|| format!("taking hold of {}", source.display()))?;
                if let Some(namespace) = user_namespace {
                    // File systems that cannot be mapped show root's files as nobody's: readable, not writable.
                    let _ = namespaces::map_ids(mount.as_fd(), namespace);
                }
                Ok(Some(mount))
            }
            Content::ReadOnly { source } => {
                let source = Path::new(OsStr::from_bytes(source));
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_RECURSIVE;
                let mount = rustix::mount::open_tree(CWD, source, flags)
                    .during(|| format!("taking hold of {}", source.display()))?;
                namespaces::make_read_only(mount.as_fd())
                    .during(|| format!("making {} read-only", source.display()))?;
                Ok(Some(mount))
            }
            Content::Directory(_) | Content::File(_) | Content::Symlink(_) => Ok(None),
        })
        .collect()
}

/// Builds the file system, makes it the root of this mount namespace, and gives out the directory that holds what
/// is written below the working directory, when that is an overlay of its own.
pub(crate) fn build(
    setup: &Setup,
    sources: Vec<Option<OwnedFd>>,
) -> Result<Option<OwnedFd>, BuildError> {
    let stage = Path::new("/tmp");
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .during(|| "separating mounts".into())?;
    mount_tmpfs(stage, setup.disk, "755")?;
    let root = stage.join("root");
    for name in ["root", "layers", "lower", "nothing"] {
        make_directories(&stage.join(name), 0o755)?;
    }
    rustix::mount::mount_bind(&root, &root).during(|| "mounting the new root".into())?;
    let mut written = None;
    for (index, (layer, source)) in setup.layers.iter().zip(sources).enumerate() {
        let target = inside(&root, &layer.target);
        if let Some(parent) = target.parent() {
            make_directories(parent, 0o755)?;
        }
        if layer.target == PRIVATE {
            // A file system of its own, so that a full disk does not keep a patch from being taken.
            make_directories(&target, 0o700)?;
            mount_tmpfs(&target, setup.private, "700")?;
            continue;
        }
        match (&layer.content, source) {
            (Content::Overlay { hide, .. }, Some(source)) => {
                let upper = mount_overlay(stage, index, source, &target)?;
                for path in hide {
                    hide_path(&inside(&target, OsStr::from_bytes(path)), stage)?;
                }
                if layer.target == setup.workdir {
                    written = Some(open_directory(&upper)?);
                }
            }
            (Content::ReadOnly { .. }, Some(source)) => {
                let what = || format!("mounting {}", layer.target);
                let metadata = rustix::fs::fstat(&source).during(what)?;
                if rustix::fs::FileType::from_raw_mode(metadata.st_mode)
                    == rustix::fs::FileType::Directory
                {
                    make_directories(&target, 0o755)?;
                } else {
                    fs_err::write(&target, b"").during(what)?;
                }
                attach(source.as_fd(), &target).during(what)?;
            }
            (Content::Directory(mode), _) => {
                make_directories(&target, *mode)?;
                set_mode(&target, *mode)?;
            }
            (Content::File(bytes), _) => {
                fs_err::write(&target, bytes).during(|| format!("writing {}", layer.target))?;
            }
            (Content::Symlink(to), _) => {
                rustix::fs::symlink(OsStr::from_bytes(to), &target)
                    .during(|| format!("linking {}", layer.target))?;
            }
            (Content::Overlay { .. } | Content::ReadOnly { .. }, None) => {
                return Err(BuildError {
                    what: format!("mounting {}", layer.target),
                    source: io::ErrorKind::NotFound.into(),
                });
            }
        }
    }
    mount_devices(&root, stage)?;
    mount_processes(&root, stage)?;
    rustix::process::chdir(&root).during(|| "entering the new root".into())?;
    rustix::process::pivot_root(".", ".").during(|| "changing the root".into())?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).during(|| "leaving the old root".into())?;
    rustix::process::chdir("/").during(|| "entering the new root".into())?;
    Ok(written)
}

fn mount_overlay(
    stage: &Path,
    index: usize,
    source: OwnedFd,
    target: &Path,
) -> Result<PathBuf, BuildError> {
    let what = || format!("mounting an overlay on {}", target.display());
    let lower = stage.join(format!("lower/{index}"));
    let layer = stage.join(format!("layers/{index}"));
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    for directory in [&lower, &upper, &work] {
        make_directories(directory, 0o755)?;
    }
    // An overlay's root shows the permission bits of its upper directory.
    let metadata = rustix::fs::fstat(&source).during(what)?;
    set_mode(&upper, metadata.st_mode & 0o7777)?;
    make_directories(target, 0o755)?;
    attach(source.as_fd(), &lower).during(what)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr,volatile",
        lower.display(),
        upper.display(),
        work.display()
    );
    let options = std::ffi::CString::new(options).map_err(io::Error::from).during(what)?;
    rustix::mount::mount(
        "overlay",
        target,
        "overlay",
        MountFlags::NOSUID | MountFlags::NODEV,
        options.as_c_str(),
    )
    .during(what)?;
    // The overlay holds its own reference to the lower directory.
    rustix::mount::unmount(&lower, UnmountFlags::DETACH).during(what)?;
    Ok(upper)
}

/// A device directory with the harmless devices of the machine, a terminal multiplexer of its own, and shared memory
/// that counts against the disk limit.
fn mount_devices(root: &Path, stage: &Path) -> Result<(), BuildError> {
    let devices = root.join("dev");
    make_directories(&devices, 0o755)?;
    mount_tmpfs(&devices, 1 << 20, "755")?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let what = || format!("mounting /dev/{name}");
        let target = devices.join(name);
        fs_err::write(&target, b"").during(what)?;
        rustix::mount::mount_bind(Path::new("/dev").join(name), &target).during(what)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlink(to, devices.join(name)).during(|| format!("linking /dev/{name}"))?;
    }
    let terminals = devices.join("pts");
    make_directories(&terminals, 0o755)?;
    rustix::mount::mount(
        "devpts",
        &terminals,
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=0620",
    )
    .during(|| "mounting /dev/pts".into())?;
    rustix::fs::symlink("pts/ptmx", devices.join("ptmx")).during(|| "linking /dev/ptmx".into())?;
    let (shared, target) = (stage.join("shm"), devices.join("shm"));
    make_directories(&shared, 0o755)?;
    set_mode(&shared, 0o1777)?;
    make_directories(&target, 0o755)?;
    rustix::mount::mount_bind(&shared, &target).during(|| "mounting /dev/shm".into())
}

/// The sandbox's own processes, with what concerns the machine taken away or read-only.
fn mount_processes(root: &Path, stage: &Path) -> Result<(), BuildError> {
    let processes = root.join("proc");
    make_directories(&processes, 0o555)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", &processes, "proc", flags, None)
        .during(|| "mounting /proc".into())?;
    for name in ["sys", "sysrq-trigger", "irq", "bus", "fs"] {
        let path = processes.join(name);
        if path.exists() {
            let what = || format!("protecting /proc/{name}");
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = rustix::mount::open_tree(CWD, &path, flags).during(what)?;
            namespaces::make_read_only(mount.as_fd()).during(what)?;
            attach(mount.as_fd(), &path).during(what)?;
        }
    }
    for name in [
        "acpi",
        "driver",
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "kpagecount",
        "latency_stats",
        "sched_debug",
        "scsi",
        "timer_list",
    ] {
        hide_path(&processes.join(name), stage)?;
    }
    let system = root.join("sys");
    make_directories(&system, 0o555)
}

fn mount_tmpfs(target: &Path, size: u64, mode: &str) -> Result<(), BuildError> {
    let what = || format!("mounting a tmpfs on {}", target.display());
    let options = std::ffi::CString::new(format!("size={size},mode={mode}"))
        .map_err(io::Error::from)
        .during(what)?;
    rustix::mount::mount(
        "tmpfs",
        target,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        options.as_c_str(),
    )
    .during(what)
}

fn attach(mount: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    rustix::mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(io::Error::from)
}

fn open_directory(path: &Path) -> Result<OwnedFd, BuildError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .during(|| format!("opening {}", path.display()))
}

fn make_directories(path: &Path, mode: u32) -> Result<(), BuildError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .during(|| format!("making the directory {}", path.display()))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), BuildError> {
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .during(|| format!("setting the mode of {}", path.display()))
}

/// Covers a path with nothing, so that it can neither be read nor uncovered.
fn hide_path(path: &Path, stage: &Path) -> Result<(), BuildError> {
    let what = || format!("hiding {}", path.display());
    let cover = match fs_err::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => stage.join("nothing"),
        Ok(_) => PathBuf::from("/dev/null"),
        // What this process may not see, no process of the sandbox will.
        Err(_) => return Ok(()),
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let cover = rustix::mount::open_tree(CWD, &cover, flags).during(what)?;
    namespaces::make_read_only(cover.as_fd()).during(what)?;
    attach(cover.as_fd(), path).during(what)
}

/// `path`, absolute or not, taken as a path below `root`.
fn inside(root: &Path, path: impl AsRef<OsStr>) -> PathBuf {
    let path = Path::new(path.as_ref());
    root.join(path.strip_prefix("/").unwrap_or(path))
}
