//! Which sentence of a tool set tells a refusal of the guest, and what it speaks of.

use serde_json::Value;
use serde_json::json;

use crate::protocol::operation::Refusal;

/// The message's name and its values.
pub(super) fn message(refusal: &Refusal) -> (&'static str, Value) {
    match refusal {
        Refusal::NotFound { path, similar } => {
            ("not_found", json!({"path": path, "similar": similar}))
        }
        Refusal::IsDirectory { path } => ("is_directory", json!({"path": path})),
        Refusal::NotDirectory { path } => ("not_directory", json!({"path": path})),
        Refusal::NotRegular { path } => ("not_regular", json!({"path": path})),
        Refusal::Binary { path } => ("binary", json!({"path": path})),
        Refusal::TooLarge { path, size, limit } => {
            ("too_large", json!({"path": path, "size": size, "limit": limit}))
        }
        Refusal::Denied { path, reason } => ("denied", json!({"path": path, "reason": reason})),
        Refusal::EmptyOld => ("empty_old", json!({})),
        Refusal::NoMatch { path, whitespace_differs_at, nearest } => {
            let nearest = nearest.as_ref().map(|(line, text)| json!({"line": line, "text": text}));
            (
                "no_match",
                json!({"path": path, "whitespace_differs_at": whitespace_differs_at, "nearest": nearest}),
            )
        }
        Refusal::ManyMatches { path, lines } => {
            ("many_matches", json!({"path": path, "lines": lines}))
        }
        Refusal::NoChange { path } => ("no_change", json!({"path": path})),
        Refusal::Exists { path } => ("exists", json!({"path": path})),
        Refusal::NoLine { path, line, total } => {
            ("no_line", json!({"path": path, "line": line, "total": total}))
        }
        Refusal::NoUndo { path } => ("no_undo", json!({"path": path})),
        Refusal::BadPattern { pattern, reason } => {
            ("bad_pattern", json!({"pattern": pattern, "reason": reason}))
        }
    }
}
