//! Reads the body of a chat completion.

use std::collections::HashSet;

use serde_json::Value;

use crate::model::body::ReasoningField;
use crate::model::body::is_object;
use crate::model::refusal::Refusal;
use crate::protocol::message::FinishReason;
use crate::protocol::message::Message;
use crate::protocol::message::Role;
use crate::protocol::message::ToolCall;
use crate::protocol::message::Usage;

/// What a body holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The first choice.
    pub message: Message,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token counts.
    pub usage: Option<Usage>,
    /// Dollars as billed.
    pub cost: Option<f64>,
    /// Ids of the prompt's tokens.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Ids of the sampled tokens.
    pub completion_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the sampled tokens.
    pub logprobs: Option<Vec<f64>>,
    /// Where the reasoning stood, when there is any and it has a field of its own kind.
    pub reasoning_field: Option<ReasoningField>,
}

/// Why a body under a status of success is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The JSON ends too early.
    #[error("the body ends in the middle")]
    Cut,
    /// There is no choice, or it holds nothing and no token was counted.
    #[error("the reply is empty")]
    Empty,
    /// It is an error.
    #[error("the body is an error: {}", .0.words)]
    Refused(Refusal),
    /// It is something else.
    #[error("the body is no chat completion: {0}")]
    Foreign(String),
}

/// Reads a body. `conversation` is what was asked, so that call ids do not occur twice in it; `limit` is the request's
/// limit on generated tokens, by which a call that was cut off is recognised whatever reason the server gives.
///
/// # Errors
/// When the body is no answer.
pub fn read(
    bytes: &[u8],
    conversation: &[Message],
    limit: Option<u64>,
) -> Result<Answer, Unusable> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Unusable::Empty);
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof => Unusable::Cut,
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Data => Unusable::Foreign(error.to_string()),
    })?;
    if let Some(refusal) = Refusal::under_success(&value) {
        return Err(Unusable::Refused(refusal));
    }
    let choices = value
        .get("choices")
        .ok_or_else(|| Unusable::Foreign("it has no field `choices`".to_owned()))?;
    let choice = choices.get(0).ok_or(Unusable::Empty)?;
    if let Some(refusal) = Refusal::under_success(choice) {
        return Err(Unusable::Refused(refusal));
    }
    let said = &choice["message"];
    let (message, reasoning_field) = message(said, conversation);
    let usage = usage(&value["usage"]);
    let generated = usage.map_or(0, |usage| usage.completion_tokens);
    let mut finish_reason = finish_reason(choice["finish_reason"].as_str());
    let cut_call = message.tool_calls.iter().any(|call| !is_object(&call.arguments));
    if cut_call && limit.is_some_and(|limit| generated >= limit) {
        finish_reason = FinishReason::Length;
    }
    let silent =
        message.content.is_empty() && message.reasoning.is_none() && message.tool_calls.is_empty();
    let explained = matches!(finish_reason, FinishReason::Length | FinishReason::ContentFilter);
    if silent && generated == 0 && !explained {
        return Err(Unusable::Empty);
    }
    let tokens = &choice["logprobs"]["content"];
    Ok(Answer {
        message,
        finish_reason,
        usage,
        cost: value["usage"]["cost"].as_f64(),
        prompt_token_ids: ids(&value["prompt_token_ids"])
            .or_else(|| ids(&choice["prompt_token_ids"]))
            .or_else(|| ids(&said["prompt_token_ids"])),
        completion_token_ids: ids(&choice["token_ids"])
            .or_else(|| ids(&said["generation_token_ids"]))
            .or_else(|| tokens.as_array().and_then(|tokens| some(tokens.iter().map(token_id)))),
        logprobs: tokens
            .as_array()
            .and_then(|tokens| some(tokens.iter().map(|token| token["logprob"].as_f64())))
            .or_else(|| {
                said["generation_log_probs"]
                    .as_array()
                    .and_then(|all| some(all.iter().map(Value::as_f64)))
            }),
        reasoning_field,
    })
}

fn message(said: &Value, conversation: &[Message]) -> (Message, Option<ReasoningField>) {
    let (mut content, mut thoughts) = (String::new(), String::new());
    match said["content"].as_array() {
        Some(parts) => {
            for part in parts {
                match part["type"].as_str() {
                    Some("thinking") => thoughts.push_str(&text_of(&part["thinking"])),
                    Some(_) | None => content.push_str(&text_of(part)),
                }
            }
        }
        None => content = text_of(&said["content"]),
    }
    if content.is_empty() {
        content = text_of(&said["refusal"]);
    }
    let named = [
        ("reasoning_content", ReasoningField::ReasoningContent),
        ("reasoning", ReasoningField::Reasoning),
    ]
    .into_iter()
    .find_map(|(name, field)| {
        said[name].as_str().filter(|text| !text.is_empty()).map(|text| (text, field))
    });
    let (reasoning, field) = match named {
        Some((text, field)) => (Some(text.to_owned()), Some(field)),
        None if !thoughts.is_empty() => (Some(thoughts), None),
        None => match split_inline(&content) {
            Some((reasoning, rest)) => {
                let split = (Some(reasoning.to_owned()), Some(ReasoningField::Inline));
                content = rest.to_owned();
                split
            }
            None => (None, None),
        },
    };
    let message = Message {
        role: Role::Assistant,
        content,
        reasoning,
        tool_calls: calls(said, conversation),
        tool_call_id: None,
    };
    (message, field)
}

/// The text of a string, of an object with a field `text`, or of a list of them.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text_of).collect(),
        Value::Object(fields) => fields.get("text").map(text_of).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Splits reasoning from the content that follows it. The block may lack its opening tag, which some chat templates put
/// into the prompt, or its closing tag, when the token limit cut it off. It ends with the last closing tag: a draft of a
/// call must never be taken for the call.
fn split_inline(content: &str) -> Option<(&str, &str)> {
    const OPEN: &str = "<think>";
    const CLOSE: &str = "</think>";
    let opened = content.trim_start().strip_prefix(OPEN);
    match (opened, opened.unwrap_or(content).rsplit_once(CLOSE)) {
        (_, Some(split)) => Some(split),
        (Some(unfinished), None) => Some((unfinished, "")),
        (None, None) => None,
    }
}

/// The calls with ids that are unique in the conversation.
fn calls(said: &Value, conversation: &[Message]) -> Vec<ToolCall> {
    let mut taken: HashSet<&str> = conversation
        .iter()
        .flat_map(|message| &message.tool_calls)
        .map(|call| call.id.as_str())
        .collect();
    let mut next = taken.len();
    let legacy = said.get("function_call").filter(|call| call.is_object());
    let modern = said["tool_calls"].as_array();
    let entries: Vec<(Option<&str>, &Value)> = match modern {
        Some(calls) if !calls.is_empty() => {
            calls.iter().map(|call| (call["id"].as_str(), &call["function"])).collect()
        }
        Some(_) | None => legacy.map(|call| (None, call)).into_iter().collect(),
    };
    let mut made = Vec::new();
    for (id, function) in entries {
        let id = match id.filter(|id| !id.is_empty() && !taken.contains(id)) {
            Some(id) => {
                taken.insert(id);
                id.to_owned()
            }
            None => loop {
                let id = format!("call_{next}");
                next += 1;
                if !taken.contains(id.as_str()) && !made.iter().any(|call: &ToolCall| call.id == id)
                {
                    break id;
                }
            },
        };
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            value @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                value.to_string()
            }
        };
        made.push(ToolCall {
            id,
            name: function["name"].as_str().unwrap_or_default().to_owned(),
            arguments,
        });
    }
    made
}

fn finish_reason(word: Option<&str>) -> FinishReason {
    match word {
        Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => FinishReason::Stop,
        Some("tool_calls" | "function_call" | "tool_use") => FinishReason::ToolCalls,
        Some("length" | "max_tokens" | "model_length") => FinishReason::Length,
        Some("content_filter" | "safety" | "refusal") => FinishReason::ContentFilter,
        Some(_) | None => FinishReason::Other,
    }
}

/// Token counts. Cached ones stand under three names: OpenAI's details, DeepSeek's and Moonshot's.
fn usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64();
    let prompt_tokens = count(&usage["prompt_tokens"])?;
    Some(Usage {
        prompt_tokens,
        completion_tokens: count(&usage["completion_tokens"]).unwrap_or(0),
        cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"])
            .or_else(|| count(&usage["prompt_cache_hit_tokens"]))
            .or_else(|| count(&usage["cached_tokens"]))
            .unwrap_or(0),
        reasoning_tokens: count(&usage["completion_tokens_details"]["reasoning_tokens"])
            .unwrap_or(0),
    })
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    some(value.as_array()?.iter().map(id))
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// The id of a token in a list of log-probabilities: llama.cpp's field, or vLLM's `token_id:N` in place of the text.
fn token_id(token: &Value) -> Option<u32> {
    id(&token["id"]).or_else(|| token["token"].as_str()?.strip_prefix("token_id:")?.parse().ok())
}

/// All of the values, or none when one is missing or there are none: half a list would be attributed to wrong tokens.
fn some<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    values.collect::<Option<Vec<T>>>().filter(|values| !values.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    fn answer(message: Value) -> Answer {
        let body = json!({"choices": [{"finish_reason": "stop", "message": message}]});
        read(body.to_string().as_bytes(), &[], None).unwrap()
    }

    #[test]
    fn ids_become_unique_in_the_conversation() {
        let call = |id: Value| json!({"id": id, "type": "function", "function": {"name": "run", "arguments": "{}"}});
        let before = Message {
            tool_calls: vec![ToolCall {
                id: "call_1".into(),
                name: "run".into(),
                arguments: "{}".into(),
            }],
            ..Message::text(Role::Assistant, "")
        };
        let calls = [
            call(json!("call_1")),
            call(Value::Null),
            call(json!("x")),
            call(json!("x")),
            call(json!("")),
        ];
        let body =
            json!({"choices": [{"message": {"content": null, "tool_calls": calls}}]}).to_string();
        let answer = read(body.as_bytes(), &[before], None).unwrap();
        let ids: Vec<&str> =
            answer.message.tool_calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call_2", "call_3", "x", "call_4", "call_5"]);
    }

    #[test]
    fn odd_shapes_of_content_and_calls_are_read() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]);
        assert_eq!(answer(json!({"content": parts})).message.content, "ab");
        let thinking = json!([{"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}, {"type": "text", "text": "b"}]);
        let read = answer(json!({"content": thinking}));
        assert_eq!(
            (read.message.content.as_str(), read.message.reasoning.as_deref()),
            ("b", Some("r"))
        );
        assert_eq!(answer(json!({"content": null, "refusal": "no"})).message.content, "no");
        let legacy = answer(
            json!({"content": null, "function_call": {"name": "run", "arguments": {"a": 1}}}),
        );
        let want =
            ToolCall { id: "call_0".into(), name: "run".into(), arguments: "{\"a\":1}".into() };
        assert_eq!(legacy.message.tool_calls, [want]);
        assert_eq!(answer(json!({"content": "x", "tool_calls": null})).message.tool_calls, []);
    }

    #[test]
    fn reasoning_is_kept_apart_under_every_name() {
        let cases = [
            (
                json!({"content": "c", "reasoning_content": "r"}),
                "c",
                Some("r"),
                Some(ReasoningField::ReasoningContent),
            ),
            (
                json!({"content": "c", "reasoning": "r"}),
                "c",
                Some("r"),
                Some(ReasoningField::Reasoning),
            ),
            (
                json!({"content": "<think>\nr\n</think>\n\nc"}),
                "\n\nc",
                Some("\nr\n"),
                Some(ReasoningField::Inline),
            ),
            (json!({"content": "r</think>c"}), "c", Some("r"), Some(ReasoningField::Inline)),
            (
                json!({"content": "<think>a</think>b</think>c"}),
                "c",
                Some("a</think>b"),
                Some(ReasoningField::Inline),
            ),
            (
                json!({"content": "<think>never ends"}),
                "",
                Some("never ends"),
                Some(ReasoningField::Inline),
            ),
            (json!({"content": "about <think> tags"}), "about <think> tags", None, None),
            (
                json!({"content": "<think>x</think>c", "reasoning": "r"}),
                "<think>x</think>c",
                Some("r"),
                Some(ReasoningField::Reasoning),
            ),
        ];
        for (said, content, reasoning, field) in cases {
            let read = answer(said.clone());
            assert_eq!(
                (
                    read.message.content.as_str(),
                    read.message.reasoning.as_deref(),
                    read.reasoning_field
                ),
                (content, reasoning, field),
                "{said}"
            );
        }
    }

    #[test]
    fn vllm_and_llama_cpp_tokens_are_read() {
        let vllm = json!({
            "prompt_token_ids": [1, 2],
            "choices": [{"finish_reason": "length", "message": {"content": "x"}, "token_ids": [3],
                "logprobs": {"content": [{"token": "x", "logprob": -0.25}]}}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1, "cost": 0.5, "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1}},
        });
        let read_vllm = read(vllm.to_string().as_bytes(), &[], None).unwrap();
        assert_eq!(read_vllm.prompt_token_ids, Some(vec![1, 2]));
        assert_eq!(read_vllm.completion_token_ids, Some(vec![3]));
        assert_eq!(read_vllm.logprobs, Some(vec![-0.25]));
        assert_eq!(read_vllm.cost, Some(0.5));
        assert_eq!(read_vllm.finish_reason, FinishReason::Length);
        let usage =
            Usage { prompt_tokens: 2, completion_tokens: 1, cached_tokens: 1, reasoning_tokens: 1 };
        assert_eq!(read_vllm.usage, Some(usage));
        let llama = |token: Value| json!({"choices": [{"message": {"content": "x"}, "logprobs": {"content": [token]}}]});
        for token in [
            json!({"id": 7, "token": "x", "logprob": -1.5}),
            json!({"token": "token_id:7", "logprob": -1.5}),
        ] {
            let answer = read(llama(token).to_string().as_bytes(), &[], None).unwrap();
            assert_eq!(
                (answer.completion_token_ids, answer.logprobs),
                (Some(vec![7]), Some(vec![-1.5]))
            );
        }
        let half =
            json!({"choices": [{"message": {"content": "x"}, "token_ids": [1, null]}]}).to_string();
        assert_eq!(read(half.as_bytes(), &[], None).unwrap().completion_token_ids, None);
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        let fails = |body: &str| read(body.as_bytes(), &[], None).unwrap_err();
        assert_eq!(fails(" \n"), Unusable::Empty);
        assert_eq!(fails("{\"choices\": [{\"message\""), Unusable::Cut);
        assert_eq!(fails("{\"choices\": []}"), Unusable::Empty);
        assert_eq!(
            fails(
                "{\"choices\": [{\"message\": {\"content\": \"\"}, \"finish_reason\": \"stop\"}]}"
            ),
            Unusable::Empty
        );
        assert!(matches!(fails("<html>"), Unusable::Foreign(_)));
        assert!(matches!(fails("{\"object\": \"list\"}"), Unusable::Foreign(_)));
        assert!(matches!(fails("{\"error\": {\"message\": \"x\"}}"), Unusable::Refused(_)));
        let upstream = "{\"choices\": [{\"message\": {\"content\": \"half\"}, \"error\": {\"code\": 502, \"message\": \"x\"}}]}";
        assert!(matches!(fails(upstream), Unusable::Refused(Refusal { status: 502, .. })));
        let silent = "{\"choices\": [{\"message\": {\"content\": \"\"}, \"finish_reason\": \"stop\"}],\
            \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 1}}";
        assert_eq!(read(silent.as_bytes(), &[], None).unwrap().finish_reason, FinishReason::Stop);
    }

    #[test]
    fn calls_cut_by_the_limit_and_drafts_in_thoughts_are_recognised() {
        let cases = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/cases");
        if !cases.is_dir() {
            eprintln!("skipped: no {}", cases.display());
            return;
        }
        let file = |name: &str| fs_err::read(cases.join(name)).unwrap();
        for (name, want) in [
            ("a", FinishReason::Length),
            ("b", FinishReason::Length),
            ("c", FinishReason::ToolCalls),
        ] {
            let answer =
                read(&file(&format!("o11-call-cut-by-token-limit/{name}.json")), &[], Some(300))
                    .unwrap();
            assert_eq!(answer.finish_reason, want, "{name}");
        }
        for name in ["a", "b", "c", "d"] {
            let answer =
                read(&file(&format!("o10-call-inside-think/{name}.json")), &[], None).unwrap();
            assert!(answer.message.reasoning.is_some(), "{name}");
            assert!(!answer.message.content.contains("think>"), "{name}");
            assert!(!answer.message.content.contains("rm -rf"), "{name}");
        }
    }
}
