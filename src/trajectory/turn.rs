//! The turn: the records of one model reply, brought together.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::protocol::episode::Call;
use crate::protocol::episode::Observation;
use crate::protocol::message::Message;
use crate::protocol::record::Bytes;
use crate::protocol::record::Event;
use crate::protocol::record::PatchReceipt;
use crate::protocol::record::Response;
use crate::trajectory::reader::Log;

/// One turn. What is absent did not happen, or was not reached before the log ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Turn<'a> {
    /// Its number, from 1.
    pub turn: u64,
    /// What was sent.
    pub request: Option<Request<'a>>,
    /// What arrived.
    pub response: Option<&'a Response>,
    /// The answer as it entered the conversation.
    pub message: Option<&'a Message>,
    /// Why no answer arrived.
    pub failure: Option<Failure<'a>>,
    /// The calls that the answer was read as.
    pub calls: &'a [Call],
    /// Why the answer could not be read as calls.
    pub format_error: Option<&'a str>,
    /// What came of the calls.
    pub observations: Vec<&'a Observation>,
    /// Outputs that the observations do not hold whole.
    pub outputs: Vec<Output<'a>>,
    /// The patch after it.
    pub patch: Option<Patch<'a>>,
    /// What an operator should know, from this turn's first record to the next turn's.
    pub warnings: Vec<&'a str>,
}

/// What was sent in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Request<'a> {
    /// Seconds since the Unix epoch when it was recorded.
    pub time: f64,
    /// The conversation as ranges of message ids, first and last of each.
    pub messages: &'a [[u64; 2]],
    /// The request body without its messages.
    pub parameters: &'a serde_json::Value,
    /// SHA-256 of the bytes sent, in hexadecimal; empty for offline models.
    pub sha256: &'a str,
}

/// Why no answer arrived in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Failure<'a> {
    /// Class of the failure, such as `rate_limit`.
    pub class: &'a str,
    /// The server's or system's words.
    pub detail: &'a str,
}

/// A command's output as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Output<'a> {
    /// The call it belongs to.
    pub call_id: &'a str,
    /// Its first bytes.
    pub head: &'a Bytes,
    /// Its last bytes.
    pub tail: &'a Bytes,
    /// Bytes in all.
    pub total: u64,
}

/// The patch after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Patch<'a> {
    /// Whether it differs from the one before it.
    pub changed: bool,
    /// SHA-256 of the patch in hexadecimal; [`Log::patch_at`] gives its bytes.
    pub sha256: &'a str,
    /// What is known about it.
    pub receipt: &'a PatchReceipt,
}

/// Brings the records of every turn together, in order of turns.
pub(crate) fn group(log: &Log) -> Vec<Turn<'_>> {
    let messages = log.messages();
    let mut turns: BTreeMap<u64, Turn<'_>> = BTreeMap::new();
    let mut patch_before: Option<&str> = None;
    let mut current = 0;
    for record in &log.records {
        current = number(&record.event).unwrap_or(current);
        if current == 0 {
            if let Event::Patch { sha256, .. } = &record.event {
                patch_before = Some(sha256);
            }
            continue;
        }
        let turn =
            turns.entry(current).or_insert_with(|| Turn { turn: current, ..Turn::default() });
        match &record.event {
            Event::Request { messages, parameters, sha256, .. } => {
                turn.request = Some(Request { time: record.time, messages, parameters, sha256 });
            }
            Event::Response(response) => {
                turn.response = Some(response);
                turn.message = messages.get(&response.message).copied();
            }
            Event::ModelFailure { class, detail, .. } => {
                turn.failure = Some(Failure { class, detail })
            }
            Event::Action { calls, .. } => turn.calls = calls,
            Event::FormatError { code, .. } => turn.format_error = Some(code),
            Event::Observation { observation, .. } => turn.observations.push(observation),
            Event::Output { call_id, head, tail, total, .. } => {
                turn.outputs.push(Output { call_id, head, tail, total: *total });
            }
            Event::Patch { sha256, receipt, .. } => {
                // The patch may be taken again when the episode ends, in the turn that made the change.
                let earlier = turn.patch.is_some_and(|patch| patch.changed);
                let differs =
                    patch_before.map_or(!receipt.files.is_empty(), |before| before != sha256);
                turn.patch = Some(Patch { changed: earlier || differs, sha256, receipt });
                patch_before = Some(sha256);
            }
            Event::Warning { text } => turn.warnings.push(text),
            Event::Header(_)
            | Event::Reset { .. }
            | Event::Message { .. }
            | Event::End { .. }
            | Event::Verdict { .. } => {}
        }
    }
    turns.into_values().collect()
}

/// The turn that an event names; 0 before the first.
fn number(event: &Event) -> Option<u64> {
    match event {
        Event::Request { turn, .. }
        | Event::ModelFailure { turn, .. }
        | Event::Action { turn, .. }
        | Event::FormatError { turn, .. }
        | Event::Observation { turn, .. }
        | Event::Output { turn, .. }
        | Event::Patch { turn, .. } => Some(*turn),
        Event::Response(response) => Some(response.turn),
        Event::Header(_)
        | Event::Reset { .. }
        | Event::Message { .. }
        | Event::Warning { .. }
        | Event::End { .. }
        | Event::Verdict { .. } => None,
    }
}
