//! The host's side of the guest's stream: one type for every backend.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWrite;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinHandle;

use crate::protocol::operation::CommandResult;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Op;
use crate::protocol::operation::Receipt;
use crate::protocol::operation::Refusal;
use crate::protocol::operation::Reply;
use crate::protocol::operation::SessionStart;
use crate::protocol::wire;
use crate::protocol::wire::FromGuest;
use crate::protocol::wire::ToGuest;
use crate::protocol::wire::WireError;

/// How much longer than the guest the host waits before it gives the guest up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit of operations that should take no time.
const SHORT: Duration = Duration::from_secs(30);
/// Limit of operations over a whole work tree.
const LONG: Duration = Duration::from_secs(300);

/// A connected guest. Cheap to clone; requests of all clones share the stream.
#[derive(Clone)]
pub struct Guest {
    shared: Arc<Shared>,
}

struct Shared {
    frames: mpsc::Sender<Vec<u8>>,
    waiting: Mutex<Waiting>,
    next: AtomicU64,
    tasks: [JoinHandle<()>; 2],
}

/// Requests under way; none once the stream has ended.
type Waiting = Option<HashMap<u64, mpsc::Sender<FromGuest>>>;

/// Why an operation gave no reply.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A mistake of whoever asked; goes to the model.
    #[error("operation refused: {0:?}")]
    Refused(Refusal),
    /// The guest could not do it.
    #[error("operation failed in the sandbox: {0}")]
    Failed(String),
    /// The guest was cancelled or its time was up.
    #[error("operation ran out of time")]
    TimedOut,
    /// The stream ended, or the guest did not answer in time.
    #[error("guest lost")]
    Lost,
}

impl Guest {
    /// Takes over a stream and checks that a guest of this version is at its other end.
    ///
    /// # Errors
    /// When the stream ends, or another version answers.
    pub async fn connect(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, GuestError> {
        let hello = tokio::time::timeout(SHORT, read_frame::<FromGuest>(&mut reader)).await;
        match hello {
            Ok(Ok(Some(FromGuest::Hello { version }))) if version == wire::VERSION => {}
            Ok(Ok(Some(FromGuest::Hello { version }))) => {
                return Err(GuestError::Failed(format!(
                    "guest speaks version {version}, not {}",
                    wire::VERSION
                )));
            }
            Ok(Ok(Some(_) | None) | Err(_)) | Err(_) => return Err(GuestError::Lost),
        }
        let (frames, mut outgoing) = mpsc::channel::<Vec<u8>>(64);
        let write = tokio::spawn(async move {
            while let Some(frame) = outgoing.recv().await {
                if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
                    return;
                }
            }
        });
        let shared = Arc::new_cyclic(|shared: &std::sync::Weak<Shared>| {
            let shared = shared.clone();
            let read = tokio::spawn(async move {
                while let Ok(Some(frame)) = read_frame::<FromGuest>(&mut reader).await {
                    let (FromGuest::Data { id, .. } | FromGuest::Done { id, .. }) = &frame else {
                        break;
                    };
                    let Some(shared) = shared.upgrade() else { return };
                    let receiver =
                        lock(&shared.waiting).as_ref().and_then(|waiting| waiting.get(id).cloned());
                    // Nobody waits any more when the caller gave up.
                    if let Some(receiver) = receiver {
                        let _ = receiver.send(frame).await;
                    }
                }
                if let Some(shared) = shared.upgrade() {
                    *lock(&shared.waiting) = None;
                }
            });
            Shared {
                frames,
                waiting: Mutex::new(Some(HashMap::new())),
                next: AtomicU64::new(1),
                tasks: [read, write],
            }
        });
        Ok(Self { shared })
    }

    /// True once the stream has ended.
    pub fn is_lost(&self) -> bool {
        lock(&self.shared.waiting).is_none()
    }

    /// Performs an operation that sends no content.
    ///
    /// Dropping the future cancels the operation in the guest.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn call(&self, op: Op, limit: Duration) -> Result<Reply, GuestError> {
        self.start(op, limit).await?.finish(limit, Content::Refused).await
    }

    /// Performs an operation whose reply has content of any size, which is passed on as it comes.
    ///
    /// # Errors
    /// See [`GuestError`]; a receiver that is gone is a failure.
    pub async fn receive(
        &self,
        op: Op,
        limit: Duration,
        pieces: mpsc::Sender<Vec<u8>>,
    ) -> Result<Reply, GuestError> {
        self.start(op, limit).await?.finish(limit, Content::Passed(pieces)).await
    }

    /// Performs an operation whose reply has content of at most `most` bytes.
    ///
    /// # Errors
    /// See [`GuestError`]; more content is a failure.
    pub async fn fetch(
        &self,
        op: Op,
        limit: Duration,
        most: usize,
    ) -> Result<(Reply, Vec<u8>), GuestError> {
        let mut content = Vec::new();
        let kept = Content::Kept { content: &mut content, most };
        let reply = self.start(op, limit).await?.finish(limit, kept).await?;
        Ok((reply, content))
    }

    /// Performs an operation that takes content.
    ///
    /// # Errors
    /// See [`GuestError`]; an unreadable `content` is a failure.
    pub async fn send(
        &self,
        op: Op,
        mut content: impl AsyncRead + Unpin,
        limit: Duration,
    ) -> Result<Reply, GuestError> {
        let pending = self.start(op, limit).await?;
        loop {
            let mut bytes = Vec::with_capacity(wire::CHUNK);
            let count = (&mut content)
                .take(wire::CHUNK as u64)
                .read_to_end(&mut bytes)
                .await
                .map_err(|error| GuestError::Failed(error.to_string()))?;
            if count == 0 {
                break;
            }
            self.frame(&ToGuest::Data { id: pending.id, bytes }).await?;
        }
        self.frame(&ToGuest::EndOfData { id: pending.id }).await?;
        pending.finish(limit, Content::Refused).await
    }

    /// Opens a shell session.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn open_session(
        &self,
        session: &str,
        start: &SessionStart,
    ) -> Result<(), GuestError> {
        let op = Op::OpenSession { session: session.to_owned(), start: start.clone() };
        self.call(op, SHORT).await.map(|_| ())
    }

    /// Runs a command in a session; `keep` bytes of each end of its output are given.
    ///
    /// # Errors
    /// See [`GuestError`]; a command that fails or runs out of time is not an error.
    pub async fn run(
        &self,
        session: &str,
        command: &[u8],
        limit: Duration,
        keep: u32,
    ) -> Result<CommandResult, GuestError> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let op = Op::Run { session: session.to_owned(), command: command.to_vec(), limit_ms, keep };
        // The guest's own limit ends the command and keeps its output; the deadline is only for a guest that hangs.
        let deadline = if limit.is_zero() { Duration::ZERO } else { limit + PATIENCE };
        let Reply::Run(result) = self.call(op, deadline).await? else {
            return Err(unexpected());
        };
        Ok(result)
    }

    /// Writes a file, making missing parent directories.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write(
        &self,
        path: &str,
        mode: Option<u32>,
        content: &[u8],
    ) -> Result<(), GuestError> {
        self.send(Op::Write { path: path.to_owned(), mode }, content, LONG).await.map(|_| ())
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, GuestError> {
        let op = Op::Read { path: path.to_owned(), offset: 0, limit: most as u64 };
        self.fetch(op, LONG, most).await.map(|(_, content)| content)
    }

    /// Records the pristine tree of a work tree.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn start_tree(&self, root: &str) -> Result<String, GuestError> {
        let Reply::StartTree { tree } =
            self.call(Op::StartTree { root: root.to_owned() }, LONG).await?
        else {
            return Err(unexpected());
        };
        Ok(tree)
    }

    /// A value that changes whenever the work tree may have changed.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn fingerprint(&self, root: &str) -> Result<u64, GuestError> {
        let Reply::Fingerprint { value } =
            self.call(Op::Fingerprint { root: root.to_owned() }, LONG).await?
        else {
            return Err(unexpected());
        };
        Ok(value)
    }

    /// The patch from the start tree to the work tree.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn patch(
        &self,
        root: &str,
        start_tree: &str,
    ) -> Result<(Vec<u8>, Receipt), GuestError> {
        let op = Op::Patch { root: root.to_owned(), start_tree: start_tree.to_owned() };
        let (Reply::Patch(receipt), patch) = self.fetch(op, LONG, 256 << 20).await? else {
            return Err(unexpected());
        };
        Ok((patch, receipt))
    }

    async fn start(&self, op: Op, limit: Duration) -> Result<Pending, GuestError> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::channel(64);
        match lock(&self.shared.waiting).as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(GuestError::Lost),
        };
        let pending = Pending { id, shared: Arc::clone(&self.shared), answers, done: false };
        let deadline_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.frame(&ToGuest::Request { id, op, deadline_ms }).await?;
        Ok(pending)
    }

    async fn frame(&self, frame: &ToGuest) -> Result<(), GuestError> {
        let bytes = wire::encode(frame).map_err(|error| GuestError::Failed(error.to_string()))?;
        self.shared.frames.send(bytes).await.map_err(|_| GuestError::Lost)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A request under way; dropping it cancels it.
struct Pending {
    id: u64,
    shared: Arc<Shared>,
    answers: mpsc::Receiver<FromGuest>,
    done: bool,
}

/// What is done with the content of a reply.
enum Content<'a> {
    /// There must be none.
    Refused,
    /// It is kept, `most` bytes of it.
    Kept { content: &'a mut Vec<u8>, most: usize },
    /// It is passed on.
    Passed(mpsc::Sender<Vec<u8>>),
}

impl Content<'_> {
    async fn take(&mut self, bytes: Vec<u8>) -> Result<(), GuestError> {
        match self {
            Content::Refused if bytes.is_empty() => Ok(()),
            Content::Refused => Err(GuestError::Failed("unexpected content".into())),
            Content::Kept { content, most } => {
                if content.len() + bytes.len() > *most {
                    return Err(GuestError::Failed(format!("more than {most} bytes")));
                }
                content.extend_from_slice(&bytes);
                Ok(())
            }
            Content::Passed(pieces) => pieces
                .send(bytes)
                .await
                .map_err(|_| GuestError::Failed("nobody takes the content".into())),
        }
    }
}

impl Pending {
    async fn finish(
        mut self,
        limit: Duration,
        mut content: Content<'_>,
    ) -> Result<Reply, GuestError> {
        let answer = async {
            loop {
                match self.answers.recv().await {
                    None | Some(FromGuest::Hello { .. }) => return Err(GuestError::Lost),
                    Some(FromGuest::Data { bytes, .. }) => content.take(bytes).await?,
                    Some(FromGuest::Done { result, .. }) => {
                        self.done = true;
                        return result.map_err(|fault| match fault {
                            Fault::Refused(refusal) => GuestError::Refused(refusal),
                            Fault::Failed(what) => GuestError::Failed(what),
                            Fault::Cancelled => GuestError::TimedOut,
                        });
                    }
                }
            }
        };
        if limit.is_zero() {
            answer.await
        } else {
            tokio::time::timeout(limit + PATIENCE, answer).await.unwrap_or(Err(GuestError::Lost))
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.shared.waiting).as_mut() {
            waiting.remove(&self.id);
        }
        if !self.done
            && let Ok(frame) = wire::encode(&ToGuest::Cancel { id: self.id })
        {
            // It must come after what is queued, or an operation would be cancelled before it is asked for.
            if let Err(TrySendError::Full(frame)) = self.shared.frames.try_send(frame)
                && let Ok(runtime) = tokio::runtime::Handle::try_current()
            {
                let frames = self.shared.frames.clone();
                // Ends as soon as there is room, or the stream has ended.
                drop(runtime.spawn(async move { frames.send(frame).await }));
            }
        }
    }
}

fn unexpected() -> GuestError {
    GuestError::Failed("the guest gave another operation's reply".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one frame; `None` when the stream ended between frames. Memory grows with what arrives.
///
/// # Errors
/// When the stream fails or holds something else.
pub(crate) async fn read_frame<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, WireError> {
    let mut header = [0; 4];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    let length = wire::frame_length(header)?;
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    wire::decode(&body).map(Some)
}
