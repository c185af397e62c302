//! A model that follows a script: demos and tests without a server.

use std::path::Path;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use crate::model::Model;
use crate::model::ModelError;
use crate::model::offline;
use crate::protocol::message::Completion;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Role;
use crate::protocol::message::ToolCall;

/// The turns of a YAML file, one after the other. Which one is next is read off the conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    turns: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    turns: Vec<Turn>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    thought: Option<String>,
    #[serde(default)]
    calls: Vec<ScriptCall>,
    reply: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptCall {
    tool: String,
    #[serde(default)]
    arguments: Value,
}

impl Script {
    /// Reads a script: `turns`, each with a `thought` and `calls` of `tool` and `arguments`, or with a `reply` that is
    /// the raw text. Arguments are a mapping, or a text that is emitted as it stands, valid or not.
    ///
    /// # Errors
    /// [`ModelError::Setup`] with the file's path and the place in it.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text =
            fs_err::read_to_string(path).map_err(|error| ModelError::Setup(error.to_string()))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads the text of a script; `name` stands in errors.
    ///
    /// # Errors
    /// [`ModelError::Setup`] with the name and the place in the text.
    pub fn parse(name: &str, text: &str) -> Result<Self, ModelError> {
        let wrong = |what: String| ModelError::Setup(format!("script {name}: {what}"));
        let file: ScriptFile =
            serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let turns = file
            .turns
            .into_iter()
            .zip(1..)
            .map(|(turn, number)| message(turn, number).map_err(&wrong));
        Ok(Self { turns: turns.collect::<Result<_, _>>()? })
    }
}

fn message(turn: Turn, number: usize) -> Result<Message, String> {
    if let Some(reply) = turn.reply {
        if turn.thought.is_some() || !turn.calls.is_empty() {
            return Err(format!("turn {number} has a reply and also a thought or calls"));
        }
        return Ok(Message::text(Role::Assistant, reply));
    }
    if turn.thought.is_none() && turn.calls.is_empty() {
        return Err(format!("turn {number} is empty"));
    }
    let mut tool_calls = Vec::with_capacity(turn.calls.len());
    for (call, place) in turn.calls.into_iter().zip(1..) {
        let arguments = match call.arguments {
            Value::Null => "{}".to_owned(),
            Value::String(text) => text,
            object @ Value::Object(_) => object.to_string(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(format!(
                    "turn {number}, call {place}: arguments are neither a mapping nor a text"
                ));
            }
        };
        tool_calls.push(ToolCall {
            id: format!("call_{number}_{place}"),
            name: call.tool,
            arguments,
        });
    }
    Ok(Message { tool_calls, ..Message::text(Role::Assistant, turn.thought.unwrap_or_default()) })
}

#[async_trait]
impl Model for Script {
    fn name(&self) -> &str {
        "script"
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let played = offline::turns_played(request);
        let message = self.turns.get(played).ok_or(ModelError::ScriptEnded(played + 1))?;
        offline::completion(message.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::message::FinishReason;
    use crate::protocol::message::Sampling;

    use super::*;

    fn script(text: &str) -> Result<Script, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.yaml");
        fs_err::write(&path, text).unwrap();
        Script::read(&path)
    }

    #[tokio::test]
    async fn turns_follow_the_conversation() {
        let script = script(
            "turns:\n  - thought: look\n    calls:\n      - tool: run\n        arguments: {command: \"ls\", limit: 3}\n      \
             - tool: submit\n      - {tool: run, arguments: '{\"command'}\n  - reply: \"raw <b>\"\n",
        )
        .unwrap();
        let mut request =
            Request { messages: vec![], tools: vec![], sampling: Sampling::default() };
        let first = script.complete(&request).await.unwrap();
        assert_eq!(first, script.complete(&request).await.unwrap());
        assert_eq!(
            (first.message.content.as_str(), first.finish_reason),
            ("look", FinishReason::ToolCalls)
        );
        let calls: Vec<(&str, &str)> = first
            .message
            .tool_calls
            .iter()
            .map(|call| (call.id.as_str(), call.arguments.as_str()))
            .collect();
        let want = [
            ("call_1_1", "{\"command\":\"ls\",\"limit\":3}"),
            ("call_1_2", "{}"),
            ("call_1_3", "{\"command"),
        ];
        assert_eq!(calls, want);
        assert_eq!(
            serde_json::from_slice::<Message>(&first.exchange.response).unwrap(),
            first.message
        );
        assert_eq!((first.usage, first.exchange.request_sha256.as_str()), (None, ""));
        request.messages.push(first.message);
        let second = script.complete(&request).await.unwrap();
        assert_eq!(
            (second.message.content.as_str(), second.finish_reason),
            ("raw <b>", FinishReason::Stop)
        );
        request.messages.push(second.message);
        assert!(matches!(script.complete(&request).await, Err(ModelError::ScriptEnded(3))));
    }

    #[test]
    fn wrong_scripts_are_refused_with_their_place() {
        let error = script("turns:\n  - thought: a\n    cals: []\n").unwrap_err().to_string();
        assert!(
            error.contains("s.yaml") && error.contains("cals") && error.contains("line 3"),
            "{error}"
        );
        for (text, want) in [
            ("turns:\n  - reply: a\n    thought: b\n", "turn 1 has a reply"),
            ("turns:\n  - thought: a\n  - {}\n", "turn 2 is empty"),
            ("turns:\n  - calls: [{tool: run, arguments: 3}]\n", "turn 1, call 1"),
        ] {
            let error = script(text).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_demonstrations_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("trajectories/demos/scripts");
        if !folder.is_dir() {
            eprintln!("skipped: no {}", folder.display());
            return;
        }
        for entry in fs_err::read_dir(folder).unwrap() {
            Script::read(&entry.unwrap().path()).unwrap();
        }
    }
}
