//! The host's side of the local backend.

use std::io;
use std::io::IoSlice;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
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
use crate::sandbox::Place;
use crate::sandbox::Sandbox;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::Guest;
use crate::sandbox::client::read_frame;
use crate::sandbox::local::PRIVATE;
use crate::sandbox::local::copies;
use crate::sandbox::local::copies::Folder;
use crate::sandbox::local::layers;
use crate::sandbox::local::namespaces;

/// The guest, compiled by the build script.
static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/patchgym-guest"));
/// Bytes of the guest's private directory at most.
const PRIVATE_BYTES: u64 = 1 << 30;
/// How long building a sandbox may take on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);
/// First id of the range that sandboxes of real root live in: beyond what people, services and containers get.
const FIRST_ID: u32 = 0x6000_0000;
/// How many ranges of 65536 ids follow it.
const RANGES: u32 = 0x8000;

/// First version of Landlock's interface that confines signals.
const LANDLOCK: i64 = 6;

/// Makes sandboxes on this machine's kernel.
#[derive(Debug, Clone)]
pub struct Local {
    isolation: Isolation,
    folders: PathBuf,
    hidden: Vec<PathBuf>,
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl Local {
    /// The backend whose sandboxes are namespaces and overlays.
    pub fn new() -> Self {
        Self::with(Isolation::Namespaces, PathBuf::new())
    }

    /// The backend of this isolation. Sandboxes without namespaces are folders below `folders`.
    pub fn with(isolation: Isolation, folders: PathBuf) -> Self {
        Self { isolation, folders, hidden: Vec::new() }
    }

    /// Takes files and directories of the machine away from sandboxes that show the system's directories: where tasks
    /// with their answers, repositories with their future and results of runs are.
    #[must_use]
    pub fn hiding(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden.extend(paths.into_iter().filter_map(|path| fs_err::canonicalize(path).ok()));
        self
    }

    /// Makes a sandbox and removes it.
    ///
    /// # Errors
    /// When this machine refuses sandboxes of this isolation.
    pub async fn probe(&self) -> Result<(), SandboxError> {
        let mut sandbox = self.create(&SandboxSpec::default()).await?;
        let connected = sandbox.connect().await;
        sandbox.close().await?;
        connected.map(|_| ())
    }

    /// Removes the folders of sandboxes whose processes are gone; gives the bytes that were freed.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn clean(folders: &Path) -> io::Result<u64> {
        copies::clean(folders)
    }

    async fn create_in_folder(
        &self,
        spec: &SandboxSpec,
        walls: impl FnOnce(String) -> Walls,
    ) -> Result<LocalSandbox, SandboxError> {
        let (all, wanted) = (self.folders.clone(), spec.clone());
        let made = tokio::task::spawn_blocking(move || Folder::make(&all, &wanted)).await;
        let folder = made.map_err(|error| SandboxError::Guest(error.to_string()))??;
        let place = folder.place(spec);
        let setup = Setup {
            walls: walls(folder.path.clone()),
            layers: Vec::new(),
            disk: 0,
            private: 0,
            workdir: place.workdir.clone(),
        };
        match start(&setup).await {
            Ok((control, child)) => {
                Ok(LocalSandbox { control, child, place, folder: Some(folder), guests: 0 })
            }
            Err(error) => {
                let _ = folder.remove();
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Backend for Local {
    fn isolation(&self) -> Isolation {
        self.isolation
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        let network = match spec.network {
            Network::None => Reach::Nothing,
            Network::Full => Reach::Machine,
        };
        Ok(Box::new(match self.isolation {
            Isolation::Namespaces => {
                let ids = if is_real_root() { Ids::Range(free_range()) } else { Ids::Caller };
                let setup = Setup {
                    walls: Walls::Namespaces { ids, network },
                    layers: layers::layers(spec, &self.hidden)?,
                    disk: spec.disk,
                    private: PRIVATE_BYTES,
                    workdir: spec.workdir.clone(),
                };
                let (control, child) = start(&setup).await?;
                let place = Place {
                    workdir: spec.workdir.clone(),
                    private: PRIVATE.into(),
                    env: spec.environment(),
                };
                LocalSandbox { control, child, place, folder: None, guests: 0 }
            }
            Isolation::Landlock => {
                match namespaces::landlock_version() {
                    Ok(LANDLOCK..) => {}
                    Ok(version) => return Err(SandboxError::SignalsUnconfined(version)),
                    Err(error) => return Err(SandboxError::NoLandlock(error)),
                }
                let readable = copies::readable(spec, &self.hidden);
                self.create_in_folder(spec, |folder| Walls::Landlock { folder, readable, network })
                    .await?
            }
            Isolation::Nothing => {
                self.create_in_folder(spec, |folder| Walls::None { folder }).await?
            }
        }))
    }
}

/// Starts the guest program as the init of a sandbox that it builds.
async fn start(setup: &Setup) -> Result<(UnixStream, Child), SandboxError> {
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
        // Without namespaces init must live to end what descends from it, which it does when the socket closes.
        .kill_on_drop(matches!(setup.walls, Walls::Namespaces { .. }))
        .spawn()
        .map_err(create("starting the guest program"))?;
    let frame = wire::encode(setup).map_err(|error| SandboxError::Guest(error.to_string()))?;
    control.write_all(&frame).await.map_err(create("sending the setup"))?;
    match timeout(PATIENCE, read_frame::<FromInit>(&mut control)).await {
        Ok(Ok(Some(FromInit::Ready))) => Ok((control, child)),
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

/// One local sandbox: its init, and the socket that keeps it alive.
struct LocalSandbox {
    control: UnixStream,
    child: Child,
    place: Place,
    /// Where it is, without namespaces.
    folder: Option<Folder>,
    /// How many guests were started.
    guests: u64,
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn place(&self) -> &Place {
        &self.place
    }

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
        self.guests += 1;
        drop(theirs);
        let (reader, writer) = UnixStream::from_std(ours).map_err(gone)?.into_split();
        Guest::connect(reader, writer).await.map_err(|error| SandboxError::Guest(error.to_string()))
    }

    async fn post_mortem(&mut self) -> Cause {
        let last = async {
            loop {
                match read_frame::<FromInit>(&mut self.control).await {
                    Ok(Some(FromInit::GuestEnded { number, signal })) if number == self.guests => {
                        return match signal {
                            0 => Cause::GuestExited,
                            signal => Cause::GuestSignalled(signal),
                        };
                    }
                    // Of an earlier guest, whose end nobody asked about.
                    Ok(Some(FromInit::GuestEnded { .. } | FromInit::Ready)) => {}
                    Ok(Some(FromInit::Failed { .. }) | None) | Err(_) => return Cause::SandboxGone,
                }
            }
        };
        timeout(Duration::from_secs(2), last).await.unwrap_or(Cause::GuestExited)
    }

    async fn close(self: Box<Self>) -> Result<(), SandboxError> {
        let LocalSandbox { control, mut child, folder, .. } = *self;
        // Init ends with its socket, and everything of the sandbox with it.
        drop(control);
        let failed = |error: io::Error| SandboxError::Guest(format!("closing it: {error}"));
        let patience = if folder.is_some() { PATIENCE } else { Duration::from_secs(5) };
        if let Ok(ended) = timeout(patience, child.wait()).await {
            ended.map_err(failed)?;
        } else {
            child.kill().await.map_err(failed)?;
        }
        // Init has removed it, unless something ended init.
        folder.map_or(Ok(()), Folder::remove)
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

/// Whether this process may give any ids to a sandbox: root of a container has only those of the container.
fn is_real_root() -> bool {
    let mapped = fs_err::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root()
        && mapped.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// A range of ids that another sandbox is unlikely to have at the same time, and none of this process has.
fn free_range() -> u32 {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(fastrand::u32(0..RANGES)));
    FIRST_ID + next.fetch_add(1, Ordering::Relaxed) % RANGES * 0x1_0000
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
