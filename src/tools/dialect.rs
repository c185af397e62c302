//! How calls are written in a reply, and how observations go back.

use serde::Deserialize;
use serde_json::Map;
use serde_json::Value;

use crate::protocol::episode::Action;
use crate::protocol::episode::Call;
use crate::protocol::episode::Observation;
use crate::protocol::message::Completion;
use crate::protocol::message::FinishReason;
use crate::protocol::message::Message;
use crate::protocol::message::Role;

/// Deepest nesting of arguments that is taken: deeper JSON cannot be kept in an event log and read again.
const MAX_DEPTH: usize = 64;

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Native tool calls with JSON arguments.
    ToolCalls,
    /// One fenced bash block, which is a call of `run`; the word `submit` in it is a call of `submit`.
    BashBlock,
}

/// How many calls a reply may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallsPerTurn {
    /// Exactly one.
    One,
    /// One or more, run in order.
    Many,
}

/// A reply that cannot be read as calls. Nothing of it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError {
    /// `missing`, `multiple`, `truncated` or `unreadable`.
    pub code: &'static str,
    /// More about it; empty when the code says all.
    pub detail: String,
}

impl Dialect {
    /// The stable word for it.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::ToolCalls => "tool-calls",
            Dialect::BashBlock => "bash-block",
        }
    }

    /// Whether tools are given to the server as schemas.
    pub fn is_native(self) -> bool {
        self == Dialect::ToolCalls
    }

    /// Reads a reply. `max_tokens` is the limit of the request, when it had one.
    ///
    /// # Errors
    /// When the reply holds no call, too many, or one that is cut off or not readable.
    pub fn read(
        self,
        completion: &Completion,
        calls: CallsPerTurn,
        max_tokens: Option<u64>,
    ) -> Result<Action, FormatError> {
        let action = match self {
            Dialect::ToolCalls => native(completion, cut_off(completion, max_tokens)),
            Dialect::BashBlock => {
                bash_block(&completion.message.content, cut_off(completion, max_tokens))
            }
        }?;
        if action.calls.len() > 1 && calls == CallsPerTurn::One {
            return Err(FormatError { code: "multiple", detail: String::new() });
        }
        Ok(action)
    }

    /// The messages that answer a reply's calls.
    pub fn answers(self, observations: &[Observation]) -> Vec<Message> {
        observations
            .iter()
            .map(|observation| match self {
                Dialect::ToolCalls => Message::tool(&observation.call_id, &observation.text),
                Dialect::BashBlock => Message::text(Role::User, &observation.text),
            })
            .collect()
    }

    /// The messages that answer a reply which could not be read: native calls need an answer each.
    pub fn correction(self, reply: &Message, text: &str) -> Vec<Message> {
        match self {
            Dialect::ToolCalls if !reply.tool_calls.is_empty() => {
                reply.tool_calls.iter().map(|call| Message::tool(&call.id, text)).collect()
            }
            Dialect::ToolCalls | Dialect::BashBlock => vec![Message::text(Role::User, text)],
        }
    }
}

/// Some servers report another reason although the limit cut the reply; its token count gives it away.
fn cut_off(completion: &Completion, max_tokens: Option<u64>) -> bool {
    let used = completion.usage.map(|usage| usage.completion_tokens);
    completion.finish_reason == FinishReason::Length
        || matches!((used, max_tokens), (Some(used), Some(limit)) if limit > 0 && used >= limit)
}

fn native(completion: &Completion, cut: bool) -> Result<Action, FormatError> {
    let mut calls = Vec::new();
    for call in &completion.message.tool_calls {
        let unreadable = |detail: String| {
            let code = if cut { "truncated" } else { "unreadable" };
            FormatError { code, detail }
        };
        let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let arguments = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(_) => {
                return Err(unreadable(format!(
                    "the arguments of {} are not a JSON object",
                    call.name
                )));
            }
            Err(error) => {
                return Err(unreadable(format!(
                    "the arguments of {} are not valid JSON: {error}",
                    call.name
                )));
            }
        };
        if depth(&arguments) > MAX_DEPTH {
            return Err(unreadable(format!(
                "the arguments of {} are nested too deeply",
                call.name
            )));
        }
        calls.push(Call { id: call.id.clone(), tool: call.name.clone(), arguments });
    }
    if calls.is_empty() {
        return Err(FormatError {
            code: if cut { "truncated" } else { "missing" },
            detail: String::new(),
        });
    }
    // The last call is whole, but the reply was to go on: nobody knows with what.
    if completion.finish_reason == FinishReason::Length {
        return Err(FormatError { code: "truncated", detail: String::new() });
    }
    Ok(Action { calls })
}

fn depth(object: &Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(of).max().unwrap_or(0),
            Value::Object(fields) => 1 + fields.values().map(of).max().unwrap_or(0),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        }
    }
    1 + object.values().map(of).max().unwrap_or(0)
}

fn bash_block(content: &str, cut: bool) -> Result<Action, FormatError> {
    let error = |code| FormatError { code, detail: String::new() };
    let mut blocks = Vec::new();
    let mut open: Option<(String, Vec<&str>)> = None;
    for line in content.lines() {
        let fence = line.trim_end();
        match &mut open {
            None => {
                let ticks = fence.len() - fence.trim_start_matches('`').len();
                let language = fence[ticks..].trim();
                if ticks >= 3 && matches!(language, "bash" | "sh" | "shell") {
                    open = Some((fence[..ticks].to_owned(), Vec::new()));
                }
            }
            Some((ticks, lines)) => {
                if fence == ticks {
                    blocks.push(lines.join("\n"));
                    open = None;
                } else {
                    lines.push(line);
                }
            }
        }
    }
    // A block without its end is a command without its end.
    if open.is_some() {
        return Err(error(if cut { "truncated" } else { "missing" }));
    }
    match blocks.as_slice() {
        [] => Err(error(if cut { "truncated" } else { "missing" })),
        [command] => {
            let call = if command.trim() == "submit" {
                Call { id: String::new(), tool: "submit".into(), arguments: Map::new() }
            } else {
                let arguments =
                    Map::from_iter([("command".to_owned(), Value::from(command.as_str()))]);
                Call { id: String::new(), tool: "run".into(), arguments }
            };
            Ok(Action { calls: vec![call] })
        }
        [_, _, ..] => Err(error("multiple")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::message::Exchange;
    use crate::protocol::message::ToolCall;
    use crate::protocol::message::Usage;

    fn reply(content: &str, calls: &[&str], finish_reason: FinishReason, used: u64) -> Completion {
        let mut message = Message::text(Role::Assistant, content);
        message.tool_calls = calls
            .iter()
            .enumerate()
            .map(|(number, arguments)| ToolCall {
                id: format!("call_{number}"),
                name: "run".into(),
                arguments: (*arguments).to_owned(),
            })
            .collect();
        Completion {
            message,
            finish_reason,
            usage: Some(Usage { completion_tokens: used, ..Usage::default() }),
            cost: None,
            prompt_token_ids: None,
            completion_token_ids: None,
            logprobs: None,
            exchange: Exchange::default(),
        }
    }

    fn code(completion: &Completion) -> Result<usize, &'static str> {
        let read = Dialect::ToolCalls.read(completion, CallsPerTurn::Many, Some(300));
        read.map(|action| action.calls.len()).map_err(|error| error.code)
    }

    #[test]
    fn native_calls_are_read_whole_or_not_at_all() {
        let whole = r#"{"command": "ls"}"#;
        let half = r#"{"command": "l"#;
        assert_eq!(code(&reply("", &[whole, ""], FinishReason::ToolCalls, 41)), Ok(2));
        assert_eq!(code(&reply("", &[half], FinishReason::Length, 300)), Err("truncated"));
        assert_eq!(code(&reply("", &[half], FinishReason::ToolCalls, 300)), Err("truncated"));
        assert_eq!(code(&reply("", &[half], FinishReason::ToolCalls, 41)), Err("unreadable"));
        assert_eq!(code(&reply("", &["[1]"], FinishReason::ToolCalls, 41)), Err("unreadable"));
        assert_eq!(code(&reply("thinking", &[], FinishReason::Length, 300)), Err("truncated"));
        assert_eq!(code(&reply("done", &[], FinishReason::Stop, 3)), Err("missing"));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
        assert_eq!(code(&reply("", &[&deep], FinishReason::ToolCalls, 41)), Err("unreadable"));
    }

    #[test]
    fn one_call_per_turn_refuses_two() {
        let two = reply("", &["{}", "{}"], FinishReason::ToolCalls, 1);
        let error = Dialect::ToolCalls.read(&two, CallsPerTurn::One, None).unwrap_err();
        assert_eq!(error.code, "multiple");
    }

    #[test]
    fn a_bash_block_is_a_command() {
        let read = |text: &str| {
            let action = Dialect::BashBlock.read(
                &reply(text, &[], FinishReason::Stop, 1),
                CallsPerTurn::One,
                None,
            );
            action
                .map(|action| (action.calls[0].tool.clone(), action.calls[0].arguments.clone()))
                .map_err(|e| e.code)
        };
        let (tool, arguments) = read("I look.\n```bash\ncat <<'E'\n```x\nE\n```\n").unwrap();
        assert_eq!(
            (tool.as_str(), json!(arguments)),
            ("run", json!({"command": "cat <<'E'\n```x\nE"}))
        );
        assert_eq!(read("```bash\n submit\n```").unwrap().0, "submit");
        assert_eq!(read("no block"), Err("missing"));
        assert_eq!(read("```bash\nls"), Err("missing"));
        assert_eq!(read("```python\nls\n```"), Err("missing"));
        assert_eq!(read("```bash\nls\n```\n```bash\nls\n```"), Err("multiple"));
    }
}
