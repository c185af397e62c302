//! Serves the frames of one stream: each operation on a thread of its own, shell commands on their session's.

use std::collections::HashMap;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::Duration;

use crate::guest::archive;
use crate::guest::cancel::Cancel;
use crate::guest::disk::Disk;
use crate::guest::edit;
use crate::guest::edit::Edits;
use crate::guest::files;
use crate::guest::patch::Extraction;
use crate::guest::processes::Descendants;
use crate::guest::search;
use crate::guest::shell::Job;
use crate::guest::shell::Session;
use crate::guest::written;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Op;
use crate::protocol::operation::Reply;
use crate::protocol::operation::SessionStart;
use crate::protocol::wire;
use crate::protocol::wire::FromGuest;
use crate::protocol::wire::ToGuest;
use crate::protocol::wire::WireError;

/// Where a guest works.
pub struct Place {
    /// Directory that relative paths start from.
    pub workdir: String,
    /// The guest's own directory.
    pub private: PathBuf,
    /// Holds what is written below the working directory, when the backend keeps that apart.
    pub written: Option<OwnedFd>,
    /// The sandbox's processes.
    pub(crate) processes: Descendants,
}

/// Pieces of content a host may send ahead of the thread that takes them.
const PIECES_AHEAD: usize = 16;

/// Serves a socket until the host closes it.
///
/// # Errors
/// When the stream fails or does not hold frames.
pub fn serve(stream: UnixStream, place: &Place) -> Result<(), WireError> {
    let writer = stream.try_clone()?;
    serve_stream(stream, writer, place)
}

/// Serves a pair of streams until the first one ends.
///
/// # Errors
/// When the stream fails or does not hold frames.
pub fn serve_stream(
    mut reader: impl Read,
    writer: impl Write + Send + 'static,
    place: &Place,
) -> Result<(), WireError> {
    let written = match &place.written {
        Some(directory) => Some(directory.try_clone()?),
        None => None,
    };
    let guest = Arc::new(Guest {
        writer: Mutex::new(Box::new(writer)),
        running: Mutex::default(),
        sessions: Mutex::default(),
        tree: Disk::new(&place.workdir),
        edits: Edits::default(),
        private: place.private.clone(),
        written,
        processes: place.processes,
        extracting: Mutex::default(),
    });
    guest.send(&FromGuest::Hello { version: wire::VERSION })?;
    while let Some(frame) = wire::read_frame(&mut reader)? {
        guest.receive(frame)?;
    }
    Ok(())
}

struct Guest {
    writer: Mutex<Box<dyn Write + Send>>,
    running: Mutex<HashMap<u64, Running>>,
    sessions: Mutex<HashMap<String, Handle>>,
    tree: Disk,
    edits: Edits,
    private: PathBuf,
    written: Option<OwnedFd>,
    processes: Descendants,
    /// Held while git works, of which there must be one at a time: one that was cancelled may not have ended yet.
    extracting: Mutex<()>,
}

/// An operation under way.
struct Running {
    cancel: Cancel,
    /// Where its content goes; none when it takes none, or has had it all.
    content: Option<mpsc::SyncSender<Vec<u8>>>,
    /// Made readable to interrupt the session that runs it.
    wake: Option<Arc<OwnedFd>>,
}

/// How a session's thread is reached.
struct Handle {
    jobs: mpsc::Sender<(u64, Job, Cancel)>,
    wake: Arc<OwnedFd>,
}

impl Guest {
    fn send(&self, frame: &FromGuest) -> Result<(), WireError> {
        wire::write_frame(&mut *lock(&self.writer), frame)
    }

    fn done(&self, id: u64, result: Result<Reply, Fault>) -> Result<(), WireError> {
        match self.send(&FromGuest::Done { id, result }) {
            // Without an answer the host would give up the guest.
            Err(error @ WireError::TooLong(_)) => {
                let result = Err(Fault::Failed(error.to_string()));
                self.send(&FromGuest::Done { id, result })
            }
            other => other,
        }
    }

    fn receive(self: &Arc<Self>, frame: ToGuest) -> Result<(), WireError> {
        match frame {
            ToGuest::Request { id, op, deadline_ms } => self.start(id, op, deadline_ms)?,
            ToGuest::Data { id, bytes } => {
                let content =
                    lock(&self.running).get(&id).and_then(|running| running.content.clone());
                if let Some(content) = content {
                    // The operation may have failed already; its content is of no use then.
                    let _ = content.send(bytes);
                }
            }
            ToGuest::EndOfData { id } => {
                if let Some(running) = lock(&self.running).get_mut(&id) {
                    running.content = None;
                }
            }
            ToGuest::Cancel { id } => {
                if let Some(running) = lock(&self.running).get_mut(&id) {
                    running.cancel.cancel();
                    // An upload that waits for content must notice.
                    running.content = None;
                    if let Some(wake) = &running.wake {
                        signal(wake)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn start(self: &Arc<Self>, id: u64, op: Op, deadline_ms: u64) -> Result<(), WireError> {
        let cancel = Cancel::after((deadline_ms > 0).then(|| Duration::from_millis(deadline_ms)));
        let mut running = Running { cancel: cancel.clone(), content: None, wake: None };
        if let Op::Run { session, command, limit_ms, keep } = op {
            let job = Job {
                command,
                limit: (limit_ms > 0).then(|| Duration::from_millis(limit_ms)),
                keep: usize::try_from(keep).unwrap_or(usize::MAX).min(wire::MAX_FRAME / 4),
            };
            let sessions = lock(&self.sessions);
            let Some(handle) = sessions.get(&session) else {
                return self.send(&FromGuest::Done {
                    id,
                    result: Err(Fault::Failed(format!("no session {session}"))),
                });
            };
            running.wake = Some(Arc::clone(&handle.wake));
            lock(&self.running).insert(id, running);
            if handle.jobs.send((id, job, cancel)).is_err() {
                lock(&self.running).remove(&id);
                return self.send(&FromGuest::Done {
                    id,
                    result: Err(Fault::Failed("session ended".into())),
                });
            }
            signal(&handle.wake)?;
            return Ok(());
        }
        // Where an operation takes no content, its sender is gone at once.
        let (sender, content) = mpsc::sync_channel(PIECES_AHEAD);
        running.content = matches!(op, Op::Write { .. } | Op::PutTar { .. }).then_some(sender);
        lock(&self.running).insert(id, running);
        let guest = Arc::clone(self);
        std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
            let result = guest.perform(id, op, &content, &cancel);
            drop(content);
            lock(&guest.running).remove(&id);
            // A stream that cannot be written ends the reading loop as well.
            let _ = guest.done(id, result);
        })?;
        Ok(())
    }

    fn perform(
        self: &Arc<Self>,
        id: u64,
        op: Op,
        content: &mpsc::Receiver<Vec<u8>>,
        cancel: &Cancel,
    ) -> Result<Reply, Fault> {
        let mut send = |bytes: Vec<u8>| {
            if cancel.check().is_err() {
                return Err(Fault::Cancelled);
            }
            self.send(&FromGuest::Data { id, bytes })
                .map_err(|error| Fault::Failed(error.to_string()))
        };
        let mut receive = || {
            if cancel.check().is_err() { Err(Fault::Cancelled) } else { Ok(content.recv().ok()) }
        };
        let tree = &self.tree;
        match op {
            Op::OpenSession { session, start } => self.open_session(&session, start),
            Op::Run { .. } => Err(Fault::Failed("a command runs in its session".into())),
            Op::Lines { path, first, count } => files::lines(tree, &path, first, count, cancel),
            Op::Read { path, offset, limit } => {
                files::read(tree, &path, offset, limit, cancel, &mut send)
            }
            Op::Write { path, mode } => files::write(tree, &path, mode, cancel, &mut receive),
            Op::Stat { path } => files::stat(tree, &path),
            Op::List { path, depth, limit } => files::list(tree, &path, depth, limit, cancel),
            Op::Edit { path, edit } => edit::edit(tree, &self.edits, &path, &edit, cancel),
            Op::Search { term, path, max_files, max_lines } => {
                search::search(tree, &term, &path, max_files, max_lines, cancel)
            }
            Op::Find { pattern, path, limit } => search::find(tree, &pattern, &path, limit, cancel),
            Op::StartTree { root } => {
                let _alone = lock(&self.extracting);
                let tree = self.extraction(Path::new(&root), cancel).start()?;
                Ok(Reply::StartTree { tree })
            }
            Op::Fingerprint { root } => {
                let value = match &self.written {
                    Some(directory) => written::fingerprint(directory.as_fd(), cancel)?,
                    None => {
                        let directory = fs_err::File::open(&root)
                            .map_err(|error| Fault::Failed(error.to_string()))?;
                        written::fingerprint(directory.as_fd(), cancel)?
                    }
                };
                Ok(Reply::Fingerprint { value })
            }
            Op::Patch { root, start_tree } => {
                let _alone = lock(&self.extracting);
                let extraction = self.extraction(Path::new(&root), cancel);
                extraction.extract(&start_tree, &mut send).map(Reply::Patch)
            }
            Op::PutTar { path } => archive::put(tree, &path, cancel, &mut receive),
            Op::GetTar { path } => archive::get(tree, &path, cancel, &mut send),
        }
    }

    fn extraction<'a>(&'a self, root: &'a Path, cancel: &'a Cancel) -> Extraction<'a> {
        Extraction {
            private: &self.private,
            root,
            written: self.written.as_ref().map(AsFd::as_fd),
            cancel,
        }
    }

    fn open_session(self: &Arc<Self>, name: &str, start: SessionStart) -> Result<Reply, Fault> {
        let failed = |error: io::Error| Fault::Failed(format!("session {name}: {error}"));
        let mut sessions = lock(&self.sessions);
        // The number keeps names of any form out of paths.
        let directory = self.private.join(format!("sh{}", sessions.len()));
        let mut session = Session::open(&directory, start, self.processes).map_err(failed)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake =
            Arc::new(rustix::event::eventfd(0, flags).map_err(io::Error::from).map_err(failed)?);
        let (jobs, received) = mpsc::channel::<(u64, Job, Cancel)>();
        sessions.insert(name.to_owned(), Handle { jobs, wake: Arc::clone(&wake) });
        drop(sessions);
        let guest = Arc::clone(self);
        std::thread::Builder::new()
            .stack_size(1 << 20)
            .spawn(move || {
                loop {
                    let (id, job, cancel) = match received.try_recv() {
                        Ok(next) => next,
                        Err(mpsc::TryRecvError::Disconnected) => return,
                        Err(mpsc::TryRecvError::Empty) => {
                            if session.idle(&wake).is_err() {
                                return;
                            }
                            clear(&wake);
                            continue;
                        }
                    };
                    // The wake-up for this very job must not interrupt it.
                    clear(&wake);
                    let result = if cancel.check().is_err() {
                        Err(Fault::Cancelled)
                    } else {
                        session
                            .run(&job, &cancel, &wake)
                            .map(Reply::Run)
                            .map_err(|error| Fault::Failed(error.to_string()))
                    };
                    lock(&guest.running).remove(&id);
                    if guest.done(id, result).is_err() {
                        return;
                    }
                }
            })
            .map_err(failed)?;
        Ok(Reply::Done)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(wake: &OwnedFd) -> io::Result<()> {
    match rustix::io::write(wake, &1u64.to_ne_bytes()) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn clear(wake: &OwnedFd) {
    let _ = rustix::io::read(wake, &mut [0; 8]);
}
