//! The host's side of the local backend.

use std::io;
use std::io::IoSlice;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::MemfdFlags;
use rustix::fs::SealFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use tokio::io::AsyncWriteExt;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::process::Command;
use tokio::time::timeout;

use crate::protocol::setup::FromInit;
use crate::protocol::setup::Ids;
use crate::protocol::setup::Reach;
use crate::protocol::setup::Setup;
use crate::protocol::setup::ToInit;
use crate::protocol::setup::Walls;
use crate::protocol::wire;
use crate::sandbox::Backend;
use crate::sandbox::Cause;
use crate::sandbox::Isolation;
use crate::sandbox::Network;
use crate::sandbox::Sandbox;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::Guest;
use crate::sandbox::client::read_frame;
use crate::sandbox::local::layers;

/// The guest, compiled by the build script.
static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/patchgym-guest"));
/// Bytes of the guest's private directory at most.
const PRIVATE_BYTES: u64 = 1 << 30;
/// How long building a sandbox may take on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);
/// First id of the range that sandboxes of real root live in: beyond what people, services and containers get.
const FIRST_ID: u32 = 0x6000_0000;

/// Makes sandboxes out of namespaces and overlays.
#[derive(Debug, Clone, Default)]
pub struct Local {}

impl Local {
    /// The backend.
    pub fn new() -> Self {
        Self {}
    }
}

#[async_trait]
impl Backend for Local {
    fn isolation(&self) -> Isolation {
        Isolation::Namespaces
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        let ids = if rustix::process::geteuid().is_root() {
            Ids::Range(free_range())
        } else {
            Ids::Caller
        };
        let network = match spec.network {
            Network::None => Reach::Nothing,
            Network::Full => Reach::Machine,
        };
        let setup = Setup {
            walls: Walls::Namespaces { ids, network },
            layers: layers::layers(spec)?,
            disk: spec.disk,
            private: PRIVATE_BYTES,
            workdir: spec.workdir.clone(),
        };
        let create = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| SandboxError::Create { what, source }
        };
        let program = guest_program().map_err(create("preparing the guest program"))?;
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(create("making a socket"))?;
        ours.set_nonblocking(true).map_err(create("making a socket"))?;
        let mut control = UnixStream::from_std(ours).map_err(create("making a socket"))?;
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg("init")
            // Whatever the caller's environment holds must not be found in the sandbox's `/proc`.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(create("starting the guest program"))?;
        let frame = wire::encode(&setup).map_err(|error| SandboxError::Guest(error.to_string()))?;
        control.write_all(&frame).await.map_err(create("sending the setup"))?;
        match timeout(PATIENCE, read_frame::<FromInit>(&mut control)).await {
            Ok(Ok(Some(FromInit::Ready))) => Ok(Box::new(LocalSandbox { control, child })),
            Ok(Ok(Some(FromInit::Failed { what, errno }))) => {
                let source = if errno == 0 {
                    io::Error::other("refused")
                } else {
                    io::Error::from_raw_os_error(errno)
                };
                Err(SandboxError::Create { what, source })
            }
            Ok(Ok(Some(FromInit::GuestEnded { .. }) | None) | Err(_)) => Err(SandboxError::Gone),
            Err(_) => Err(SandboxError::Guest(format!("not ready after {} s", PATIENCE.as_secs()))),
        }
    }
}

/// One local sandbox: its init, and the socket that keeps it alive.
struct LocalSandbox {
    control: UnixStream,
    child: Child,
}

#[async_trait]
impl Sandbox for LocalSandbox {
    async fn connect(&mut self) -> Result<Guest, SandboxError> {
        let gone = |_| SandboxError::Gone;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(gone)?;
        ours.set_nonblocking(true).map_err(gone)?;
        let frame = wire::encode(&ToInit::StartGuest)
            .map_err(|error| SandboxError::Guest(error.to_string()))?;
        self.control.write_all(&frame).await.map_err(gone)?;
        let sent =
            self.control.async_io(Interest::WRITABLE, || send_descriptor(&self.control, &theirs));
        sent.await.map_err(gone)?;
        drop(theirs);
        let (reader, writer) = UnixStream::from_std(ours).map_err(gone)?.into_split();
        Guest::connect(reader, writer).await.map_err(|error| SandboxError::Guest(error.to_string()))
    }

    async fn post_mortem(&mut self) -> Cause {
        match timeout(Duration::from_secs(2), read_frame::<FromInit>(&mut self.control)).await {
            Ok(Ok(Some(FromInit::GuestEnded { signal: 0 }))) => Cause::GuestExited,
            Ok(Ok(Some(FromInit::GuestEnded { signal }))) => Cause::GuestSignalled(signal),
            Ok(Ok(Some(FromInit::Ready | FromInit::Failed { .. }))) | Err(_) => Cause::GuestExited,
            Ok(Ok(None) | Err(_)) => Cause::SandboxGone,
        }
    }

    async fn close(self: Box<Self>) -> Result<(), SandboxError> {
        let LocalSandbox { control, mut child } = *self;
        // Init ends with its socket, and everything in its namespaces with it.
        drop(control);
        let failed = |error: io::Error| SandboxError::Guest(format!("closing it: {error}"));
        if let Ok(ended) = timeout(Duration::from_secs(5), child.wait()).await {
            ended.map_err(failed)?;
        } else {
            child.kill().await.map_err(failed)?;
        }
        Ok(())
    }
}

fn send_descriptor(
    socket: &UnixStream,
    descriptor: &std::os::unix::net::UnixStream,
) -> io::Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A range of ids that another sandbox is unlikely to have at the same time.
fn free_range() -> u32 {
    FIRST_ID + fastrand::u32(0..0x1000) * 0x1_0000
}

/// The guest as a file of this process that nobody can change, not even a sandbox's root through `/proc`.
fn guest_program() -> io::Result<&'static OwnedFd> {
    static PROGRAM: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let descriptor = rustix::fs::memfd_create(
        "patchgym-guest",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    let mut file = std::fs::File::from(descriptor);
    file.write_all(GUEST)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(PROGRAM.get_or_init(|| file.into()))
}
