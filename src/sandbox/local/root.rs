//! Builds the file system of a sandbox out of a [`Setup`]. Runs in the sandbox's init.

use std::cell::Cell;
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

use rustix::fs::AtFlags;
use rustix::fs::CWD;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::Timespec;
use rustix::fs::Timestamps;
use rustix::mount::MountFlags;
use rustix::mount::MountPropagationFlags;
use rustix::mount::MoveMountFlags;
use rustix::mount::OpenTreeFlags;
use rustix::mount::UnmountFlags;

use crate::protocol::setup::Content;
use crate::protocol::setup::Layer;
use crate::protocol::setup::Setup;
use crate::sandbox::local::namespaces;

/// The guest's own directory in every sandbox: command files, status channels, patch objects.
pub(crate) const PRIVATE: &str = "/run/patchgym";

/// What `/proc` tells of the machine, its devices and its kernel, and programs do without.
const MACHINE: &[&str] = &[
    "acpi",
    "asound",
    "bus",
    "cmdline",
    "devices",
    "diskstats",
    "driver",
    "dynamic_debug",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "mdstat",
    "modules",
    "mtrr",
    "partitions",
    "pressure",
    "sched_debug",
    "scsi",
    "softirqs",
    "swaps",
    "sys/kernel/core_pattern",
    "sys/kernel/modprobe",
    "timer_list",
    "vmallocinfo",
];

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
                let mount = match rustix::mount::open_tree(CWD, source, flags) {
                    // A directory of the system may go at any time, when a program is removed.
                    Err(rustix::io::Errno::NOENT) if is_system(layer) => return Ok(None),
                    other => other.during(|| format!("taking hold of {}", source.display()))?,
                };
                if let Some(namespace) = user_namespace {
                    // File systems that cannot be mapped show root's files as nobody's: readable, not writable.
                    let _ = namespaces::map_ids(mount.as_fd(), namespace);
                }
                Ok(Some(mount))
            }
            Content::ReadOnly { source, .. } => {
                let source = Path::new(OsStr::from_bytes(source));
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_RECURSIVE;
                let mount = rustix::mount::open_tree(CWD, source, flags)
                    .during(|| format!("taking hold of {}", source.display()))?;
                if let Some(namespace) = user_namespace {
                    // What only root may read of it is for the sandbox's root too: it was asked for.
                    let _ = namespaces::map_ids(mount.as_fd(), namespace);
                }
                namespaces::make_read_only(mount.as_fd())
                    .during(|| format!("making {} read-only", source.display()))?;
                Ok(Some(mount))
            }
            Content::Directory(_) | Content::File(_) | Content::Symlink(_) => Ok(None),
        })
        .collect()
}

/// Whether a layer stands where it does on the machine.
fn is_system(layer: &Layer) -> bool {
    match &layer.content {
        Content::Overlay { source, .. } | Content::ReadOnly { source, .. } => {
            source == layer.target.as_bytes()
        }
        Content::Directory(_) | Content::File(_) | Content::Symlink(_) => false,
    }
}

/// Where the parts of a sandbox stand before they are put together.
struct Stage {
    directory: &'static Path,
    /// How many covers were made.
    covers: Cell<u32>,
}

/// What is seen in place of a directory that is taken away.
#[derive(Clone, Copy)]
enum Cover {
    /// A directory that stays empty.
    Nothing,
    /// A directory of the sandbox's own.
    Fresh,
}

/// Builds the file system, makes it the root of this mount namespace, and gives out the directory that holds what
/// is written below the working directory, when that is an overlay of its own.
pub(crate) fn build(
    setup: &Setup,
    sources: Vec<Option<OwnedFd>>,
) -> Result<Option<OwnedFd>, BuildError> {
    let stage = &Stage { directory: Path::new("/tmp"), covers: Cell::new(0) };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .during(|| "separating mounts".into())?;
    mount_tmpfs(stage.directory, setup.disk, "755")?;
    let root = stage.directory.join("root");
    for name in ["root", "layers", "lower", "covers", "nothing"] {
        make_directories(&stage.directory.join(name), 0o755)?;
    }
    fs_err::write(stage.directory.join("empty"), b"").during(|| "making an empty file".into())?;
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
                let upper = mount_overlay(stage, index, source, &target, layer)?;
                hide_below(&target, hide, stage)?;
                if layer.target == setup.workdir
                    && let Some(upper) = upper
                {
                    written = Some(open_directory(&upper)?);
                }
            }
            (Content::ReadOnly { hide, .. }, Some(source)) => {
                mount_read_only(stage, index, source, &target)?;
                hide_below(&target, hide, stage)?;
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
            // It was there when the sandbox was planned, and is not any more.
            (Content::Overlay { .. } | Content::ReadOnly { .. }, None) => {}
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

/// Gives out the directory that holds what is written; none when a file system of the machine that cannot be under an
/// overlay is shown as it is.
fn mount_overlay(
    stage: &Stage,
    index: usize,
    source: OwnedFd,
    target: &Path,
    described: &Layer,
) -> Result<Option<PathBuf>, BuildError> {
    let what = || format!("mounting an overlay on {}", target.display());
    let lower = stage.directory.join(format!("lower/{index}"));
    let layer = stage.directory.join(format!("layers/{index}"));
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    for directory in [&lower, &upper, &work] {
        make_directories(directory, 0o755)?;
    }
    // An overlay's root shows the permission bits and times of its upper directory.
    let metadata = rustix::fs::fstat(&source).during(what)?;
    set_mode(&upper, metadata.st_mode & 0o7777)?;
    let times = Timestamps {
        last_access: time(metadata.st_atime, metadata.st_atime_nsec),
        last_modification: time(metadata.st_mtime, metadata.st_mtime_nsec),
    };
    rustix::fs::utimensat(CWD, &upper, &times, AtFlags::empty()).during(what)?;
    make_directories(target, 0o755)?;
    attach(source.as_fd(), &lower).during(what)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr,volatile",
        lower.display(),
        upper.display(),
        work.display()
    );
    match overlay(target, &options, MountFlags::empty()) {
        // The overlay holds its own reference to the lower directory.
        Ok(()) => {
            rustix::mount::unmount(&lower, UnmountFlags::DETACH).during(what)?;
            Ok(Some(upper))
        }
        Err(_) if is_system(described) => {
            namespaces::make_read_only(source.as_fd()).during(what)?;
            move_mount(&lower, target).during(what)?;
            Ok(None)
        }
        Err(error) => Err(error).during(what),
    }
}

/// A directory goes below an overlay too: its locks and the place it has on the machine are not the sandbox's.
fn mount_read_only(
    stage: &Stage,
    index: usize,
    source: OwnedFd,
    target: &Path,
) -> Result<(), BuildError> {
    let what = || format!("mounting {}", target.display());
    let metadata = rustix::fs::fstat(&source).during(what)?;
    let kind = rustix::fs::FileType::from_raw_mode(metadata.st_mode);
    if kind != rustix::fs::FileType::Directory {
        fs_err::write(target, b"").during(what)?;
        return attach(source.as_fd(), target).during(what);
    }
    let lower = stage.directory.join(format!("lower/{index}"));
    make_directories(&lower, 0o755)?;
    make_directories(target, 0o755)?;
    attach(source.as_fd(), &lower).during(what)?;
    let nothing = stage.directory.join("nothing");
    let options = format!("lowerdir={}:{},userxattr", lower.display(), nothing.display());
    if overlay(target, &options, MountFlags::RDONLY).is_ok() {
        rustix::mount::unmount(&lower, UnmountFlags::DETACH).during(what)
    } else {
        move_mount(&lower, target).during(what)
    }
}

fn overlay(target: &Path, options: &str, flags: MountFlags) -> io::Result<()> {
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | flags;
    Ok(rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str())?)
}

fn move_mount(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::mount::move_mount(CWD, from, CWD, to, MoveMountFlags::empty())?)
}

/// A device directory with the harmless devices of the machine, a terminal multiplexer of its own, and shared memory
/// that counts against the disk limit.
fn mount_devices(root: &Path, stage: &Stage) -> Result<(), BuildError> {
    let devices = root.join("dev");
    make_directories(&devices, 0o755)?;
    mount_tmpfs(&devices, 1 << 20, "755")?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let what = || format!("mounting /dev/{name}");
        let target = devices.join(name);
        fs_err::write(&target, b"").during(what)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount =
            rustix::mount::open_tree(CWD, Path::new("/dev").join(name), flags).during(what)?;
        namespaces::protect_device(mount.as_fd()).during(what)?;
        attach(mount.as_fd(), &target).during(what)?;
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
    let (shared, target) = (stage.directory.join("shm"), devices.join("shm"));
    make_directories(&shared, 0o755)?;
    set_mode(&shared, 0o1777)?;
    make_directories(&target, 0o755)?;
    rustix::mount::mount_bind(&shared, &target).during(|| "mounting /dev/shm".into())
}

/// The sandbox's own processes, with what concerns the machine taken away or read-only.
fn mount_processes(root: &Path, stage: &Stage) -> Result<(), BuildError> {
    let processes = root.join("proc");
    make_directories(&processes, 0o555)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", &processes, "proc", flags, None)
        .during(|| "mounting /proc".into())?;
    for name in ["sys", "sysrq-trigger", "irq", "fs"] {
        let path = processes.join(name);
        if path.exists() {
            let what = || format!("protecting /proc/{name}");
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = rustix::mount::open_tree(CWD, &path, flags).during(what)?;
            namespaces::make_read_only(mount.as_fd()).during(what)?;
            attach(mount.as_fd(), &path).during(what)?;
        }
    }
    for name in MACHINE {
        hide_path(&processes.join(name), stage, Cover::Nothing)?;
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

fn hide_below(directory: &Path, hide: &[Vec<u8>], stage: &Stage) -> Result<(), BuildError> {
    hide.iter().try_for_each(|path| {
        hide_path(&inside(directory, OsStr::from_bytes(path)), stage, Cover::Fresh)
    })
}

/// Covers a path with nothing, so that it can neither be read nor uncovered.
fn hide_path(path: &Path, stage: &Stage, cover: Cover) -> Result<(), BuildError> {
    let what = || format!("hiding {}", path.display());
    let is_directory = match fs_err::symlink_metadata(path) {
        Ok(metadata) => metadata.is_dir(),
        // What this process may not see, no process of the sandbox will.
        Err(_) => return Ok(()),
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let open = |name: &str| rustix::mount::open_tree(CWD, stage.directory.join(name), flags);
    let mount = match (is_directory, cover) {
        (true, Cover::Fresh) => {
            let name = format!("covers/{}", stage.covers.replace(stage.covers.get() + 1));
            make_directories(&stage.directory.join(&name), 0o755)?;
            open(&name).during(what)?
        }
        (true, Cover::Nothing) | (false, _) => {
            let mount = open(if is_directory { "nothing" } else { "empty" }).during(what)?;
            namespaces::make_read_only(mount.as_fd()).during(what)?;
            mount
        }
    };
    attach(mount.as_fd(), path).during(what)
}

fn time(seconds: i64, nanoseconds: u64) -> Timespec {
    // A file system that gives more than a billion nanoseconds does not exist.
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds.try_into().unwrap_or_default() }
}

/// `path`, absolute or not, taken as a path below `root`.
fn inside(root: &Path, path: impl AsRef<OsStr>) -> PathBuf {
    let path = Path::new(path.as_ref());
    root.join(path.strip_prefix("/").unwrap_or(path))
}
