//! The first process of a local sandbox: builds it, holds its namespaces, starts guests, reaps processes.
//!
//! Takes a [`Setup`] and requests from the host over the control socket, which is its standard input. When the socket
//! closes, for whatever reason, init exits, and with it every process and mount of the sandbox. Without namespaces it
//! ends the processes that descend from it and removes the sandbox's folder first.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitOptions;
use rustix::thread::CapabilitySet;
use rustix::thread::UnshareFlags;

use crate::guest::processes::Descendants;
use crate::guest::processes::Spared;
use crate::guest::server;
use crate::guest::server::Place;
use crate::protocol::setup::FromInit;
use crate::protocol::setup::Ids;
use crate::protocol::setup::Reach;
use crate::protocol::setup::Setup;
use crate::protocol::setup::ToInit;
use crate::protocol::setup::Walls;
use crate::protocol::wire;
use crate::sandbox::local::cage;
use crate::sandbox::local::cage::Besides;
use crate::sandbox::local::fence;
use crate::sandbox::local::fence::Fence;
use crate::sandbox::local::namespaces;
use crate::sandbox::local::namespaces::Fork;
use crate::sandbox::local::removal;
use crate::sandbox::local::root;
use crate::sandbox::local::root::BuildError;
use crate::sandbox::local::root::During;

/// What is put around a guest when it starts.
enum Cage {
    /// The filter of system calls; init's namespaces hold the guest already.
    Namespaces(Reach),
    /// Landlock's rules and the filter.
    Landlock(Fence, Reach),
    /// Nothing.
    Open,
}

/// Runs the stages of init; returns the exit code.
pub(crate) fn main() -> i32 {
    let Ok(control) = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3) else { return 1 };
    let mut control = UnixStream::from(control);
    // Nothing of the caller is kept: not its terminal, not its open files. Standard streams become harmless.
    let _ = rustix::process::setsid();
    // What is made in the sandbox is the same whatever the caller's mask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let setup: Setup = match wire::read_frame(&mut control) {
        Ok(Some(setup)) => setup,
        Ok(None) | Err(_) => return 1,
    };
    match enter(&setup, &control) {
        Ok(code) => code,
        Err(BuildError { what, source }) => {
            let errno = source.raw_os_error().unwrap_or_default();
            let what = if errno == 0 { format!("{what}: {source}") } else { what };
            let _ = wire::write_frame(&mut control, &FromInit::Failed { what, errno });
            1
        }
    }
}

fn enter(setup: &Setup, control: &UnixStream) -> Result<i32, BuildError> {
    let null = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .during(|| "opening /dev/null".into())?;
    for stream in 0..3 {
        namespaces::place(&null, stream).during(|| "closing standard streams".into())?;
    }
    let control_number = std::os::fd::AsRawFd::as_raw_fd(control);
    let null_number = std::os::fd::AsRawFd::as_raw_fd(&null);
    let first_free = control_number.max(null_number).unsigned_abs() + 1;
    namespaces::close_from(first_free).during(|| "closing inherited files".into())?;
    match &setup.walls {
        &Walls::Namespaces { ids, network } => {
            let sources = enter_namespaces(setup, ids, network)?;
            // A process moves into a new process namespace only by its children, the first of which is its init.
            match namespaces::fork().during(|| "starting init".into())? {
                Fork::Parent(child) => Ok(wait_for(child)),
                Fork::Child => {
                    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                        .during(|| "tying init to its parent".into())?;
                    rustix::system::sethostname(b"sandbox").during(|| "naming the host".into())?;
                    if network == Reach::Nothing {
                        namespaces::loopback_up().during(|| "bringing up loopback".into())?;
                    }
                    let written = root::build(setup, sources)?;
                    let place = Place {
                        workdir: setup.workdir.clone(),
                        private: root::PRIVATE.into(),
                        written,
                        processes: Descendants::of_this_process(),
                    };
                    serve(control, &place, &Cage::Namespaces(network))
                }
            }
        }
        Walls::Landlock { folder, readable, network } => {
            let fence = Fence::new(Path::new(folder), readable)
                .during(|| "making the rules of Landlock".into())?;
            serve_in(Path::new(folder), setup, control, &Cage::Landlock(fence, *network))
        }
        Walls::None { folder } => serve_in(Path::new(folder), setup, control, &Cage::Open),
    }
}

/// Serves the control socket for a sandbox that is a folder of the machine, and leaves nothing of it.
fn serve_in(
    folder: &Path,
    setup: &Setup,
    control: &UnixStream,
    cage: &Cage,
) -> Result<i32, BuildError> {
    // Orphans become children of init, so that whatever the sandbox starts goes on descending from it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .during(|| "taking in orphans".into())?;
    let place = Place {
        workdir: setup.workdir.clone(),
        private: folder.join("run"),
        written: None,
        processes: Descendants::of_this_process(),
    };
    let served = serve(control, &place, cage);
    place.processes.end_others(&Spared::default());
    removal::remove(folder).during(|| format!("removing {}", folder.display()))?;
    served
}

fn enter_namespaces(
    setup: &Setup,
    ids: Ids,
    network: Reach,
) -> Result<Vec<Option<OwnedFd>>, BuildError> {
    let mut flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if network == Reach::Nothing {
        flags |= UnshareFlags::NEWNET;
    }
    match ids {
        Ids::Caller => {
            let (user, group) =
                (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            namespaces::unshare(UnshareFlags::NEWUSER | flags)
                .during(|| "making namespaces".into())?;
            for (file, text) in [
                ("setgroups", "deny".to_owned()),
                ("uid_map", format!("0 {user} 1")),
                ("gid_map", format!("0 {group} 1")),
            ] {
                fs_err::write(format!("/proc/self/{file}"), text)
                    .during(|| format!("writing {file}"))?;
            }
            root::open_sources(setup, None)
        }
        Ids::Range(first) => {
            let user_namespace = mapped_user_namespace(first)?;
            let sources = root::open_sources(setup, Some(user_namespace.as_fd()))?;
            rustix::thread::move_into_link_name_space(user_namespace.as_fd(), None)
                .during(|| "entering the user namespace".into())?;
            namespaces::unshare(flags).during(|| "making namespaces".into())?;
            namespaces::become_root().during(|| "becoming the sandbox's root".into())?;
            Ok(sources)
        }
    }
}

/// A user namespace whose ids 0 to 65535 are those of the machine from `first` on. A short-lived process makes it,
/// because only a process outside can write its mappings.
fn mapped_user_namespace(first: u32) -> Result<OwnedFd, BuildError> {
    let (mut ours, mut theirs) = UnixStream::pair().during(|| "making a socket".into())?;
    match namespaces::fork().during(|| "starting a process".into())? {
        Fork::Child => {
            let made = namespaces::unshare(UnshareFlags::NEWUSER);
            let errno =
                made.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EPERM), |()| 0);
            let _ = io::Write::write_all(&mut theirs, &errno.to_ne_bytes());
            drop(ours);
            // Waits until the parent has taken the namespace and closes the socket.
            let _ = io::Read::read(&mut theirs, &mut [0]);
            finish(0)
        }
        Fork::Parent(child) => {
            drop(theirs);
            let mut errno = [0; 4];
            io::Read::read_exact(&mut ours, &mut errno)
                .during(|| "making a user namespace".into())?;
            let result = match i32::from_ne_bytes(errno) {
                0 => take_user_namespace(child, first),
                errno => Err(io::Error::from_raw_os_error(errno))
                    .during(|| "making a user namespace".into()),
            };
            drop(ours);
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            result
        }
    }
}

fn take_user_namespace(child: Pid, first: u32) -> Result<OwnedFd, BuildError> {
    let child = child.as_raw_pid();
    for file in ["uid_map", "gid_map"] {
        fs_err::write(format!("/proc/{child}/{file}"), format!("0 {first} 65536"))
            .during(|| format!("writing {file}"))?;
    }
    let file = fs_err::File::open(format!("/proc/{child}/ns/user"))
        .during(|| "opening the user namespace".into())?;
    Ok(file.into_parts().0.into())
}

/// Serves the control socket until it closes.
fn serve(control: &UnixStream, place: &Place, cage: &Cage) -> Result<i32, BuildError> {
    cage::hide_from_tracing().during(|| "hiding init".into())?;
    let children = namespaces::child_signal().during(|| "watching children".into())?;
    let mut guest: Option<Pid> = None;
    let mut number = 0;
    let mut stream = control;
    wire::write_frame(&mut stream, &FromInit::Ready)
        .map_err(io::Error::other)
        .during(|| "reporting".into())?;
    loop {
        let mut ready =
            [PollFd::new(&control, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(BuildError { what: "waiting".into(), source: error.into() }),
        }
        if !ready[1].revents().is_empty() {
            let _ = rustix::io::read(&children, &mut [0; 128]);
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                if guest == Some(pid) {
                    guest = None;
                    let signal = status.terminating_signal().unwrap_or_default();
                    let _ =
                        wire::write_frame(&mut stream, &FromInit::GuestEnded { number, signal });
                }
            }
        }
        if !ready[0].revents().is_empty() {
            match wire::read_frame::<ToInit>(&mut stream) {
                Ok(Some(ToInit::StartGuest)) => {}
                // The host is gone, or not making sense.
                Ok(None) | Err(_) => return Ok(0),
            }
            let Ok(Some(socket)) = receive_descriptor(control) else { return Ok(1) };
            if let Some(old) = guest.take() {
                let _ = rustix::process::kill_process(old, Signal::KILL);
            }
            match namespaces::fork().during(|| "starting a guest".into())? {
                Fork::Parent(pid) => {
                    guest = Some(pid);
                    number += 1;
                }
                Fork::Child => finish(run_guest(UnixStream::from(socket), place, cage)),
            }
        }
    }
}

impl Cage {
    /// Puts the calling process and all it starts into the cage.
    fn close(&self) -> io::Result<()> {
        match self {
            Cage::Namespaces(network) => {
                if *network == Reach::Machine {
                    fence::confine_sockets()?;
                }
                cage::limit_processes()?;
                cage::forbid_core_dumps()?;
                cage::drop_capabilities(cage::container_capabilities())?;
                cage::forbid_system_calls(Besides::Namespaces)
            }
            Cage::Landlock(fence, network) => {
                cage::forbid_core_dumps()?;
                cage::drop_capabilities(CapabilitySet::empty())?;
                fence.close()?;
                cage::forbid_system_calls(Besides::Landlock { network: *network })
            }
            Cage::Open => Ok(()),
        }
    }
}

fn run_guest(stream: UnixStream, place: &Place, cage: &Cage) -> i32 {
    let prepared = cage::hide_from_tracing()
        .and_then(|()| namespaces::unblock_signals())
        // A guest whose init is gone would no longer know which processes are the sandbox's.
        .and_then(|()| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?))
        .and_then(|()| cage.close());
    if prepared.is_err() {
        return 1;
    }
    match server::serve(stream, place) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn receive_descriptor(control: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        control,
        &mut [IoSliceMut::new(&mut [0])],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    Ok(ancillary.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else { return None };
        descriptors.next()
    }))
}

fn wait_for(child: Pid) -> i32 {
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return status.exit_status().unwrap_or(1),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return 1,
        }
    }
}

/// Ends a forked process without running what its parent registered to run at exit.
#[expect(clippy::exit, reason = "a forked process has nothing to return to")]
fn finish(code: i32) -> ! {
    std::process::exit(code)
}
