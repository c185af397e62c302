//! What happened: event logs, written as an attempt goes on and read ever after.
//!
//! Takes in [`Event`]s and gives out one JSONL file per attempt, or takes in such a file and gives out its records, its
//! turns and its patches. It must not know where events come from, nor what is made of them later.

pub mod page;
pub mod reader;
pub mod replay;
pub mod schema;
pub mod show;
pub mod turn;
pub mod writer;

use std::path::PathBuf;

use crate::protocol::record::Event;

/// Something that keeps events in the order they are given.
///
/// ```no_run
/// # use patchgym::protocol::record::Event;
/// # use patchgym::trajectory::{Recorder, TrajectoryError, writer::Writer};
/// # fn keep() -> Result<(), TrajectoryError> {
/// let mut log = Writer::create("attempt.jsonl")?;
/// let recorder: &mut dyn Recorder = &mut log;
/// recorder.record(Event::Warning { text: "the disk is nearly full".to_owned() })?;
/// log.finish()
/// # }
/// ```
pub trait Recorder: Send {
    /// Keeps one event, with the time it was given.
    ///
    /// # Errors
    /// When it could not be kept. What was kept before stays whole, and the next event may be tried.
    fn record(&mut self, event: Event) -> Result<(), TrajectoryError>;
}

/// Why an event log could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TrajectoryError {
    /// The system's error; it names the path.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// An event has no JSON form that could be read again.
    #[error("write an event as JSON")]
    Encode(#[source] serde_json::Error),
    /// Another process is writing the log.
    #[error("write `{path}`: another process is writing it", path = path.display())]
    Busy {
        /// The log.
        path: PathBuf,
    },
    /// The first line is no header, so the file is something else, or was cut off within its first line.
    #[error("read `{path}` as an event log: its first line is not a header", path = path.display())]
    NoHeader {
        /// The file.
        path: PathBuf,
    },
    /// The log has a format that this version does not know.
    #[error("read `{path}`: its format is {found}, this version of patchgym reads {known}", path = path.display())]
    UnknownFormat {
        /// The log.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The format that can be read.
        known: u32,
    },
    /// A line before the last one is not a record.
    #[error("read `{path}`: line {line} is not a record", path = path.display())]
    BadLine {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The log holds no such turn, or the turn has no request.
    #[error("find turn {turn}: the log has {turns} turns")]
    NoTurn {
        /// The turn that was asked for.
        turn: u64,
        /// Turns in the log.
        turns: usize,
    },
    /// A request refers to a message that the log does not hold.
    #[error("rebuild the request of turn {turn}: message {id} is not in the log")]
    NoMessage {
        /// The request's turn.
        turn: u64,
        /// The message.
        id: u64,
    },
    /// The log names a patch whose bytes it does not hold.
    #[error("read the patch of turn {turn}: no content with SHA-256 `{sha256}` in the log")]
    NoPatchContent {
        /// The patch's turn.
        turn: u64,
        /// Its hash.
        sha256: String,
    },
    /// A patch's bytes are not the ones its hash was made from.
    #[error("read the patch of turn {turn}: its content does not have the SHA-256 `{sha256}`")]
    DamagedPatch {
        /// The patch's turn.
        turn: u64,
        /// The hash in the log.
        sha256: String,
    },
    /// Bytes that claim to be base64 are not.
    #[error("decode bytes of the log")]
    Base64(#[from] base64::DecodeError),
}
