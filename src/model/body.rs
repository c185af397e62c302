//! The bytes of a request, built from what the event log keeps.

use serde::Deserialize;
use serde::Serialize;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::protocol::message::Message;
use crate::protocol::message::Role;
use crate::protocol::message::ToolCall;

/// Which assistant messages are sent back with their reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reasoning {
    /// All of them.
    #[default]
    Keep,
    /// None.
    Drop,
    /// The last assistant message only.
    Last,
}

/// Where reasoning stands in an assistant message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// In the field `reasoning_content`.
    #[default]
    ReasoningContent,
    /// In the field `reasoning`.
    Reasoning,
    /// Between `<think>` and `</think>` at the beginning of the content.
    Inline,
}

/// The role under which standing instructions are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemRole {
    /// `system`.
    #[default]
    System,
    /// `developer`.
    Developer,
}

/// How messages are written into a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wire {
    /// Which assistant messages keep their reasoning.
    pub reasoning: Reasoning,
    /// Where it stands.
    pub reasoning_field: ReasoningField,
    /// The role of standing instructions.
    pub system_role: SystemRole,
}

/// The body of a chat completion request. `parameters` is `{"body": {…}, "wire": {…}}`: every field but the messages, and
/// a [`Wire`]; missing parts count as empty. Nothing else decides the bytes, so they can be built again from an event log.
///
/// What is sent is always valid: arguments that are no JSON object are sent as `{}`, calls without an answer and answers
/// without a call are left out.
pub fn body(parameters: &Value, messages: &[Message]) -> Vec<u8> {
    let mut fields = parameters.get("body").and_then(Value::as_object).cloned().unwrap_or_default();
    let wire =
        parameters.get("wire").and_then(|wire| Wire::deserialize(wire).ok()).unwrap_or_default();
    fields.insert("messages".to_owned(), written(wire, messages));
    Value::Object(fields).to_string().into_bytes()
}

fn written(wire: Wire, messages: &[Message]) -> Value {
    let last = messages.iter().rposition(|message| message.role == Role::Assistant);
    let mut out = Vec::with_capacity(messages.len());
    let mut answers = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        match message.role {
            Role::System => {
                let role = match wire.system_role {
                    SystemRole::System => "system",
                    SystemRole::Developer => "developer",
                };
                out.push(json!({"role": role, "content": message.content}));
            }
            Role::User => out.push(json!({"role": "user", "content": message.content})),
            Role::Assistant => {
                let reasoning = message.reasoning.as_deref().filter(|_| match wire.reasoning {
                    Reasoning::Keep => true,
                    Reasoning::Drop => false,
                    Reasoning::Last => last == Some(at),
                });
                let follow = messages[at + 1..].iter().take_while(|next| next.role == Role::Tool);
                answers = follow.filter_map(|next| next.tool_call_id.as_deref()).collect();
                let mut calls: Vec<&ToolCall> = Vec::new();
                for call in &message.tool_calls {
                    let repeated = calls.iter().any(|earlier| earlier.id == call.id);
                    if answers.contains(&call.id.as_str()) && !repeated {
                        calls.push(call);
                    }
                }
                answers.retain(|id| calls.iter().any(|call| call.id == *id));
                out.push(assistant(wire, message, reasoning, &calls));
            }
            Role::Tool => {
                // An answer is used up, so that a second one to the same call is left out.
                let Some(id) = message.tool_call_id.as_deref() else { continue };
                if answers.contains(&id) {
                    answers.retain(|answer| *answer != id);
                    out.push(
                        json!({"role": "tool", "tool_call_id": id, "content": message.content}),
                    );
                }
            }
        }
    }
    Value::Array(out)
}

fn assistant(wire: Wire, message: &Message, reasoning: Option<&str>, calls: &[&ToolCall]) -> Value {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), json!("assistant"));
    let content = match (reasoning, wire.reasoning_field) {
        (Some(reasoning), ReasoningField::Inline) => {
            format!("<think>{reasoning}</think>{}", message.content)
        }
        (
            _,
            ReasoningField::ReasoningContent | ReasoningField::Reasoning | ReasoningField::Inline,
        ) => message.content.clone(),
    };
    let silent = content.is_empty() && !calls.is_empty();
    fields.insert("content".to_owned(), if silent { Value::Null } else { Value::String(content) });
    if let Some(reasoning) = reasoning {
        match wire.reasoning_field {
            ReasoningField::ReasoningContent => {
                fields.insert("reasoning_content".to_owned(), json!(reasoning))
            }
            ReasoningField::Reasoning => fields.insert("reasoning".to_owned(), json!(reasoning)),
            ReasoningField::Inline => None,
        };
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let arguments = if is_object(&call.arguments) { call.arguments.as_str() } else { "{}" };
            let function = json!({"name": sendable_name(&call.name), "arguments": arguments});
            json!({"id": call.id, "type": "function", "function": function})
        });
        fields.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(fields)
}

/// Whether a call's arguments are what servers take back: the text of a JSON object.
pub(crate) fn is_object(arguments: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

/// A tool's name that servers take back (`^[a-zA-Z0-9_-]{1,64}$`, OpenAI): a name that the model made up with other
/// characters would have every later request refused.
fn sendable_name(name: &str) -> String {
    let allowed =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let name: String = name.chars().take(64).map(|c| if allowed(c) { c } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "run".into(), arguments: arguments.into() }
    }

    fn turn(content: &str, reasoning: Option<&str>, tool_calls: Vec<ToolCall>) -> Message {
        Message {
            reasoning: reasoning.map(str::to_owned),
            tool_calls,
            ..Message::text(Role::Assistant, content)
        }
    }

    fn sent(wire: Wire, messages: &[Message]) -> Value {
        let bytes = body(&json!({"body": {"model": "m"}, "wire": wire}), messages);
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["model"], "m");
        value["messages"].clone()
    }

    #[test]
    fn history_is_made_valid() {
        let mut odd = call("d", "[1]");
        odd.name = "no such.tool!".into();
        let messages = [
            Message::text(Role::System, "s"),
            Message::text(Role::User, "u"),
            Message::tool("x", "an answer to nothing"),
            turn(
                "",
                None,
                vec![
                    call("a", "{\"command\": \"ls"),
                    call("b", "{ \"x\":1 }"),
                    call("c", "{}"),
                    odd,
                    call("a", "{}"),
                ],
            ),
            Message::tool("b", "two"),
            Message::tool("a", "one"),
            Message::tool("a", "one again"),
            Message::tool("d", "four"),
            turn("only text", None, vec![call("e", "{}")]),
            Message::text(Role::User, "go on"),
            Message::tool("e", "too late"),
        ];
        let want = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "run", "arguments": "{ \"x\":1 }"}},
                {"id": "d", "type": "function", "function": {"name": "no_such_tool_", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "b", "content": "two"},
            {"role": "tool", "tool_call_id": "a", "content": "one"},
            {"role": "tool", "tool_call_id": "d", "content": "four"},
            {"role": "assistant", "content": "only text"},
            {"role": "user", "content": "go on"},
        ]);
        assert_eq!(sent(Wire::default(), &messages), want);
    }

    #[test]
    fn reasoning_goes_back_as_asked() {
        let messages = [
            turn("a", Some("r1"), vec![]),
            Message::text(Role::User, "u"),
            turn("b", Some("r2"), vec![]),
        ];
        let with = |reasoning, reasoning_field| {
            let value = sent(Wire { reasoning, reasoning_field, ..Wire::default() }, &messages);
            (value[0].clone(), value[2].clone())
        };
        assert_eq!(
            with(Reasoning::Keep, ReasoningField::ReasoningContent),
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "r1"}),
                json!({"role": "assistant", "content": "b", "reasoning_content": "r2"})
            )
        );
        assert_eq!(
            with(Reasoning::Last, ReasoningField::Reasoning),
            (
                json!({"role": "assistant", "content": "a"}),
                json!({"role": "assistant", "content": "b", "reasoning": "r2"})
            )
        );
        assert_eq!(
            with(Reasoning::Keep, ReasoningField::Inline),
            (
                json!({"role": "assistant", "content": "<think>r1</think>a"}),
                json!({"role": "assistant", "content": "<think>r2</think>b"})
            )
        );
        assert_eq!(
            with(Reasoning::Drop, ReasoningField::Inline),
            (
                json!({"role": "assistant", "content": "a"}),
                json!({"role": "assistant", "content": "b"})
            )
        );
    }

    #[test]
    fn the_developer_role_takes_the_place_of_system() {
        let wire = Wire { system_role: SystemRole::Developer, ..Wire::default() };
        assert_eq!(sent(wire, &[Message::text(Role::System, "s")])[0]["role"], "developer");
    }

    #[test]
    fn bytes_are_pinned() {
        let parameters = json!({
            "body": {"model": "m", "temperature": 0.7, "max_tokens": 16, "zeta": 1, "alpha": [null, "é"]},
            "wire": {"reasoning": "keep", "reasoning_field": "reasoning", "system_role": "system"},
        });
        let bytes = body(
            &parameters,
            &[Message::text(Role::User, "hi\u{2028}\n"), turn("", Some("r"), vec![])],
        );
        let want = "{\"model\":\"m\",\"temperature\":0.7,\"max_tokens\":16,\"zeta\":1,\"alpha\":[null,\"é\"],\
            \"messages\":[{\"role\":\"user\",\"content\":\"hi\u{2028}\\n\"},\
            {\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\"}]}";
        assert_eq!(String::from_utf8(bytes).unwrap(), want);
    }
}
