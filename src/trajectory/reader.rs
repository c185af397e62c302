//! The reader: a log from a file, whatever moment its writer was killed at.

use std::collections::HashMap;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;

use crate::protocol::episode::End;
use crate::protocol::message::Message;
use crate::protocol::record::Event;
use crate::protocol::record::FORMAT;
use crate::protocol::record::Header;
use crate::protocol::record::PatchReceipt;
use crate::protocol::record::Record;
use crate::protocol::record::Totals;
use crate::protocol::verdict::Verdict;
use crate::trajectory::TrajectoryError;
use crate::trajectory::turn;
use crate::trajectory::turn::Turn;

/// Bytes read from the file at a time.
const BUFFER: usize = 1 << 20;
/// How every record starts.
const RECORD_START: &[u8] = b"{\"time\":";

/// An event log in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    /// Every whole record, in order.
    pub records: Vec<Record>,
    /// The last line, when its writer was killed within it; its bytes are no record.
    pub torn: Option<Torn>,
}

/// A last line that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    /// The line, from 1.
    pub line: u64,
    /// Where it starts in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended<'a> {
    /// Why.
    pub reason: End,
    /// One line about it, when there is more to say.
    pub detail: Option<&'a str>,
    /// What it used.
    pub totals: &'a Totals,
}

/// A patch with the bytes its hash stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedPatch {
    /// The turn after which it was taken; 0 is the state after reset.
    pub turn: u64,
    /// SHA-256 of the bytes in hexadecimal.
    pub sha256: String,
    /// The patch.
    pub bytes: Vec<u8>,
    /// What is known about it besides.
    pub receipt: PatchReceipt,
}

/// Reads a log. The last line may be torn; a file that was cut off within its header gives a log without records.
///
/// # Errors
/// When the file cannot be read, is not a log, has an unknown format, or a line before the last is not a record.
pub fn read(path: impl AsRef<Path>) -> Result<Log, TrajectoryError> {
    let path = path.as_ref();
    let mut file = BufReader::with_capacity(BUFFER, fs_err::File::open(path)?);
    let mut log = Log::default();
    let (mut number, mut offset) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let bytes = file.read_until(b'\n', &mut line)? as u64;
        if bytes == 0 {
            return Ok(log);
        }
        number += 1;
        let unfinished = line.last() != Some(&b'\n');
        let torn = Torn { line: number, offset, bytes };
        offset += bytes;
        if number == 1 {
            match first_line(&line, path) {
                Err(TrajectoryError::NoHeader { .. }) if unfinished && begins_record(&line) => {
                    log.torn = Some(torn);
                    return Ok(log);
                }
                checked => checked?,
            }
        }
        match serde_json::from_slice(&line) {
            Ok(record) => log.records.push(record),
            Err(_) if unfinished => {
                log.torn = Some(torn);
                return Ok(log);
            }
            Err(source) => {
                return Err(TrajectoryError::BadLine {
                    path: path.to_owned(),
                    line: number,
                    source,
                });
            }
        }
    }
}

/// The part of a header that every format has in common.
#[derive(Deserialize)]
struct AnyFormat {
    event: AnyHeader,
}

/// See [`AnyFormat`].
#[derive(Deserialize)]
struct AnyHeader {
    r#type: String,
    format: u64,
}

/// Looks at the first line before it is read strictly: a later format may have fields that the strict reading refuses
/// with a message that helps nobody.
fn first_line(line: &[u8], path: &Path) -> Result<(), TrajectoryError> {
    match serde_json::from_slice::<AnyFormat>(line) {
        Ok(AnyFormat { event }) if event.r#type == "header" => {
            if event.format == u64::from(FORMAT) {
                return Ok(());
            }
            Err(TrajectoryError::UnknownFormat {
                path: path.to_owned(),
                found: event.format,
                known: FORMAT,
            })
        }
        Ok(_) | Err(_) => Err(TrajectoryError::NoHeader { path: path.to_owned() }),
    }
}

/// Whether a line that ends too soon may be the beginning of a record, as opposed to some other file.
fn begins_record(line: &[u8]) -> bool {
    line.starts_with(RECORD_START) || RECORD_START.starts_with(line)
}

impl Log {
    /// What the attempt was made of; none when the file was cut off within its first line.
    pub fn header(&self) -> Option<&Header> {
        let Event::Header(header) = &self.records.first()?.event else { return None };
        Some(header)
    }

    /// Every message of the conversation by its id.
    pub fn messages(&self) -> HashMap<u64, &Message> {
        let records = self.records.iter().filter_map(|record| {
            let Event::Message { id, message } = &record.event else { return None };
            Some((*id, message))
        });
        records.collect()
    }

    /// The turns in order.
    pub fn turns(&self) -> Vec<Turn<'_>> {
        turn::group(self)
    }

    /// The conversation that was sent in a turn.
    ///
    /// # Errors
    /// When the turn has no request, or the request refers to a message that is not in the log.
    pub fn request_messages(&self, turn: u64) -> Result<Vec<Message>, TrajectoryError> {
        let ranges = self.records.iter().rev().find_map(|record| {
            let Event::Request { turn: at, messages, .. } = &record.event else { return None };
            (*at == turn).then_some(messages)
        });
        let ranges =
            ranges.ok_or_else(|| TrajectoryError::NoTurn { turn, turns: self.turns().len() })?;
        let messages = self.messages();
        let message = |id: u64| {
            let message = messages.get(&id).ok_or(TrajectoryError::NoMessage { turn, id })?;
            Ok((*message).clone())
        };
        // The first number that is missing ends the walk, however far a damaged range goes.
        ranges.iter().flat_map(|[first, last]| *first..=*last).map(message).collect()
    }

    /// The last patch of the log; none when none was taken.
    ///
    /// # Errors
    /// When its bytes are missing or are not the ones that were hashed.
    pub fn final_patch(&self) -> Result<Option<RecordedPatch>, TrajectoryError> {
        self.patch_at(u64::MAX)
    }

    /// The patch as it was after a turn: the last one taken in it or before it; none when none was.
    ///
    /// # Errors
    /// When its bytes are missing or are not the ones that were hashed.
    pub fn patch_at(&self, turn: u64) -> Result<Option<RecordedPatch>, TrajectoryError> {
        let last = self.records.iter().rev().find_map(|record| {
            let Event::Patch { turn: at, sha256, receipt, .. } = &record.event else { return None };
            (*at <= turn).then_some((*at, sha256, receipt))
        });
        let Some((turn, sha256, receipt)) = last else { return Ok(None) };
        let content = self.records.iter().find_map(|record| {
            let Event::Patch { sha256: of, content: Some(content), .. } = &record.event else {
                return None;
            };
            (of == sha256).then_some(content)
        });
        let content = content
            .ok_or_else(|| TrajectoryError::NoPatchContent { turn, sha256: sha256.clone() })?;
        let bytes = content.to_vec()?;
        if crate::digest::sha256(&bytes) != *sha256 {
            return Err(TrajectoryError::DamagedPatch { turn, sha256: sha256.clone() });
        }
        Ok(Some(RecordedPatch { turn, sha256: sha256.clone(), bytes, receipt: receipt.clone() }))
    }

    /// How the attempt ended; none when it was cut off before it could say so.
    pub fn end(&self) -> Option<Ended<'_>> {
        self.records.iter().rev().find_map(|record| {
            let Event::End { reason, detail, totals } = &record.event else { return None };
            Some(Ended { reason: *reason, detail: detail.as_deref(), totals })
        })
    }

    /// The newest verdict; none when the attempt was not graded.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.records.iter().rev().find_map(|record| {
            let Event::Verdict { verdict } = &record.event else { return None };
            Some(&**verdict)
        })
    }
}
