//! The system calls a sandbox is made of that have no safe interface. The only file with `unsafe` code.
#![expect(
    unsafe_code,
    reason = "fork, id changes, idmapped mounts and signalfd have no safe interface"
)]

use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Which side of a [`fork`] this is.
pub(crate) enum Fork {
    /// The child.
    Child,
    /// The parent, with the child's process id.
    Parent(Pid),
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks. The calling process must have one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the callers are init and its stages, which have one thread, so the child may use the allocator.
    let child = check(i64::from(unsafe { libc::fork() }))?;
    match i32::try_from(child).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(Fork::Parent(pid)),
        None => Ok(Fork::Child),
    }
}

/// Moves the calling process, which must have one thread, into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the file descriptor table is not unshared, which is what makes the general call unsafe.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Becomes user and group 0 of the user namespace, with no further groups.
pub(crate) fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls on the calling process.
    unsafe {
        check(i64::from(libc::setgroups(0, std::ptr::null())))?;
        check(i64::from(libc::setresgid(0, 0, 0)))?;
        check(i64::from(libc::setresuid(0, 0, 0)))?;
    }
    Ok(())
}

/// Shows the ids of files below a detached mount, and mounts below it, through the mapping of a user namespace.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = u64::try_from(user_namespace.as_raw_fd()).unwrap_or(u64::MAX);
    set_attributes(mount, libc::MOUNT_ATTR_IDMAP, userns_fd, libc::AT_RECURSIVE)
}

/// Makes a mount and those below it read-only, without devices and set-user-id programs.
pub(crate) fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    set_attributes(mount, attributes, 0, libc::AT_RECURSIVE)
}

/// Keeps a device's owner, permissions and times as they are; what is written to the device still reaches it.
pub(crate) fn protect_device(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    set_attributes(mount, attributes, 0, 0)
}

fn set_attributes(
    mount: BorrowedFd<'_>,
    attr_set: u64,
    userns_fd: u64,
    flags: i32,
) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd };
    // SAFETY: the structure outlives the call and its size is passed along.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(|_| ())
}

/// A file descriptor that is readable when a child has ended. All signals are blocked, so that none but the one that
/// nothing withstands ends this process before it has cleared away.
pub(crate) fn child_signal() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by `sigfillset` or `sigemptyset` before it is read; the new descriptor is owned by
    // nobody else.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        check(i64::from(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())))?;
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(i64::from(fd))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Lets the signals through again that [`child_signal`] blocked, for a process that becomes something else.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by `sigemptyset` before it is read.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        check(i64::from(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const set,
            std::ptr::null_mut(),
        )))?;
    }
    Ok(())
}

/// The version of the kernel's Landlock interface.
#[cfg(feature = "host")]
pub(crate) fn landlock_version() -> io::Result<i64> {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel takes no attributes and makes nothing.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    })
}

/// Brings up the loopback device of the calling process's network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: an all-zero `ifreq` is valid; the name fits with its final zero; the kernel reads and writes only it.
    unsafe {
        let mut request = std::mem::zeroed::<libc::ifreq>();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = libc::c_char::from_ne_bytes([*from]);
        }
        check(i64::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request)))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(i64::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request)))?;
    }
    Ok(())
}

/// Closes every file descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the callers hold no owned descriptor in this range that they use afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(|_| ())
}

/// Makes `fd` the file descriptor with number `number`, inherited by programs.
pub(crate) fn place(fd: impl AsFd, number: i32) -> io::Result<()> {
    // SAFETY: the number is one of the standard streams, which no Rust value owns.
    check(i64::from(unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) })).map(|_| ())
}
