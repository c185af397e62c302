//! A command's output as a model reads it.

use crate::protocol::operation::CommandResult;
use crate::text;
use crate::text::HeadTail;

/// Output cut in the middle.
pub(super) struct Shown {
    /// The text.
    pub(super) text: HeadTail,
    /// What the number of what was left out counts.
    pub(super) unit: &'static str,
}

impl Shown {
    /// As a person would see it on a terminal, cut in the middle.
    pub(super) fn of(result: &CommandResult, limit: usize) -> Self {
        let kept = (result.head.len() + result.tail.len()) as u64;
        if result.total <= kept {
            let whole = text::plain(&text::lossy(&[result.head.as_slice(), &result.tail].concat()));
            return Self {
                text: text::head_tail(whole.trim_end_matches('\n'), limit),
                unit: "characters",
            };
        }
        let head = text::plain(&text::lossy(whole_characters_before(&result.head)));
        let tail = text::plain(&text::lossy(whole_characters_after(&result.tail)));
        let (head, _) = text::head(&head, limit / 2);
        let skip = tail.chars().count().saturating_sub(limit / 2);
        let tail: String = tail.trim_end_matches('\n').chars().skip(skip).collect();
        let elided = result.total.saturating_sub((head.len() + tail.len()) as u64);
        Self { text: HeadTail { head: head.to_owned(), elided, tail }, unit: "bytes" }
    }
}

/// `bytes` without a character that is cut off at its end.
fn whole_characters_before(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        Ok(_) | Err(_) => bytes,
    }
}

/// `bytes` without the rest of a character that began before them.
fn whole_characters_after(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    &bytes[rest..]
}
