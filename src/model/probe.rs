//! Asks a server what it can do, before a run depends on it.

use std::time::Duration;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;
use tokio::time::Instant;
use tokio::time::timeout_at;

use crate::model::Model;
use crate::model::ModelError;
use crate::model::openai::OpenAi;
use crate::protocol::message::Completion;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Role;
use crate::protocol::message::Sampling;
use crate::protocol::message::ToolCall;
use crate::protocol::message::ToolSchema;
use crate::text;

/// The time of a whole probe.
const TIME: Duration = Duration::from_secs(5);

/// What the user can do when tools do not work, by the words of the server.
const TOOL_HINTS: &[(&str, &str)] = &[
    (
        "auto-tool-choice",
        "start vLLM with `--enable-auto-tool-choice --tool-call-parser NAME` (the parser that fits the model), or choose the \
         agent `bash-only`, which needs no tool support",
    ),
    (
        "jinja",
        "start llama-server with `--jinja` and a chat template that renders tools (`--chat-template-file FILE`), or choose \
         the agent `bash-only`, which needs no tool support",
    ),
    (
        "",
        "this model or its chat template takes no tools: choose the agent `bash-only`, which needs no tool support; vLLM \
         needs `--enable-auto-tool-choice --tool-call-parser NAME`, llama-server needs `--jinja` and a chat template that \
         renders tools",
    ),
];

/// One thing that was asked, with the server's words or what they were read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It works.
    Yes(String),
    /// It does not.
    No(String),
    /// It cannot be known.
    Unknown(String),
}

/// What a server can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The server answers at all.
    pub reachable: Finding,
    /// The server lists the model.
    pub listed: Finding,
    /// Tokens of context of one conversation, when the server says so.
    pub context: Option<u64>,
    /// A request is answered.
    pub completion: Finding,
    /// Tools reach the model.
    pub tools: Finding,
    /// A conversation with a call and its answer is taken.
    pub tool_results: Finding,
    /// A JSON schema for the reply is taken.
    pub response_format: Finding,
    /// Log-probabilities are given.
    pub logprobs: Finding,
    /// Token ids are given.
    pub token_ids: Finding,
    /// What the user can do about it, one line each.
    pub hints: Vec<String>,
}

impl Probe {
    /// The findings with their names, in the order of asking.
    pub fn findings(&self) -> [(&'static str, &Finding); 8] {
        [
            ("reachable", &self.reachable),
            ("model listed", &self.listed),
            ("completion", &self.completion),
            ("tools", &self.tools),
            ("tool results", &self.tool_results),
            ("response_format", &self.response_format),
            ("logprobs", &self.logprobs),
            ("token ids", &self.token_ids),
        ]
    }
}

/// Asks the server of `model`, for at most five seconds in all.
pub async fn probe(model: &OpenAi) -> Probe {
    let deadline = Instant::now() + TIME;
    let not_asked = || Finding::Unknown("not asked".to_owned());
    let mut probe = Probe {
        reachable: not_asked(),
        listed: not_asked(),
        context: None,
        completion: not_asked(),
        tools: not_asked(),
        tool_results: not_asked(),
        response_format: not_asked(),
        logprobs: not_asked(),
        token_ids: not_asked(),
        hints: Vec::new(),
    };
    let connection = model.connection();
    let models =
        timeout_at(deadline, connection.get(connection.address().endpoint(&["models"]))).await;
    let reply = match models.unwrap_or_else(|_| Err(ModelError::Unreachable(late()))) {
        Ok(reply) => reply,
        Err(error) => {
            probe.reachable = Finding::No(error.to_string());
            probe.hints.push(format!(
                "check that the server runs and that {} is its address",
                connection.address()
            ));
            return probe;
        }
    };
    probe.reachable = Finding::Yes(format!("status {} at {}", reply.status, connection.address()));
    if matches!(reply.status, 401 | 403) {
        probe.hints.push(
            "the server wants an API key: set the environment variable that the model names"
                .to_owned(),
        );
    }
    let entries = serde_json::from_slice::<Value>(&reply.body).ok();
    list(&mut probe, model.name(), entries.as_ref().and_then(|value| value["data"].as_array()));
    ask(&mut probe, model, deadline).await;
    probe
}

fn late() -> String {
    format!("no answer within {} s", TIME.as_secs())
}

/// Reads the list of models.
fn list(probe: &mut Probe, name: &str, entries: Option<&Vec<Value>>) {
    let Some(entries) = entries else {
        probe.listed = Finding::Unknown("the server gives no list of models".to_owned());
        return;
    };
    let names = || entries.iter().filter_map(|entry| entry["id"].as_str());
    let Some(entry) = entries.iter().find(|entry| entry["id"] == name) else {
        probe.listed =
            Finding::No(format!("it is none of the {} that the server lists", entries.len()));
        if let Some(near) = text::nearest(name, names()).or_else(|| names().next()) {
            probe.hints.push(format!("the server does not list `{name}`; it lists `{near}`"));
        }
        return;
    };
    probe.listed = Finding::Yes(String::new());
    // vLLM and SGLang; OpenRouter; Groq; Mistral and LM Studio; llama.cpp.
    probe.context = ["max_model_len", "context_length", "context_window", "max_context_length"]
        .iter()
        .map(|field| &entry[*field])
        .chain([&entry["meta"]["n_ctx"], &entry["meta"]["n_ctx_train"]])
        .find_map(Value::as_u64);
}

/// Sends the small requests, all at once.
async fn ask(probe: &mut Probe, model: &OpenAi, deadline: Instant) {
    let plain = request(Vec::new(), Vec::new());
    let with_tool = request(Vec::new(), vec![tool()]);
    let call =
        ToolCall { id: "call00000".to_owned(), name: tool().name, arguments: "{}".to_owned() };
    let said = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
    let with_result = request(vec![said, Message::tool("call00000", "pong")], vec![tool()]);
    let mut with_logprobs = plain.clone();
    with_logprobs.sampling.logprobs = Some(true);
    let schema = json!({"name": "probe", "schema": {"type": "object", "properties": {}, "additionalProperties": false}});
    let send = async |request: &Request, extra: Value| {
        let extra = extra.as_object().cloned().unwrap_or_default();
        let answer = timeout_at(deadline, Box::pin(model.ask_once(request, &extra))).await;
        answer.unwrap_or_else(|_| Err(ModelError::Unreachable(late())))
    };
    let (context, plain, tools, results, format, tokens) = tokio::join!(
        slot_context(model, deadline),
        send(&plain, json!({})),
        send(&with_tool, json!({})),
        send(&with_result, json!({})),
        send(&plain, json!({"response_format": {"type": "json_schema", "json_schema": schema}})),
        // A server that refuses one of the two is asked again without it.
        send(&with_logprobs, json!({"return_token_ids": true})),
    );
    probe.context = context.or(probe.context);
    probe.tools = rendered(&plain, &tools);
    probe.tool_results = taken(&results, &["tool", "function", "role", "jinja"]);
    probe.response_format =
        taken(&format, &["response_format", "json_schema", "schema", "grammar", "guided"]);
    probe.logprobs = given(&tokens, "log-probabilities", |answer| answer.logprobs.is_some());
    probe.token_ids = given(&tokens, "token ids", |answer| answer.completion_token_ids.is_some());
    probe.completion = match plain {
        Ok(_) => Finding::Yes(String::new()),
        Err(ModelError::Unreachable(words)) => Finding::Unknown(words),
        Err(error) => Finding::No(error.to_string()),
    };
    if let Finding::No(words) = &probe.tools {
        let words = words.to_lowercase();
        let hint = TOOL_HINTS.iter().find(|(word, _)| words.contains(word));
        probe.hints.extend(hint.map(|(_, hint)| (*hint).to_owned()));
    }
}

fn request(more: Vec<Message>, tools: Vec<ToolSchema>) -> Request {
    let mut messages = vec![Message::text(Role::User, "ping")];
    messages.extend(more);
    Request { messages, tools, sampling: Sampling { max_tokens: Some(1), ..Sampling::default() } }
}

fn tool() -> ToolSchema {
    let parameters = json!({"type": "object", "properties": {}});
    ToolSchema { name: "ping".to_owned(), description: "ping".to_owned(), parameters }
}

/// The context of one slot, which llama.cpp tells beside the API: it divides the context among its slots.
async fn slot_context(model: &OpenAi, deadline: Instant) -> Option<u64> {
    let connection = model.connection();
    let reply = timeout_at(deadline, connection.get(connection.address().beside("props")))
        .await
        .ok()?
        .ok()?;
    let value: Map<String, Value> = serde_json::from_slice(&reply.body).ok()?;
    value.get("default_generation_settings")?.get("n_ctx")?.as_u64()
}

/// Whether tools reach the model. A server that takes them may still leave them out of the prompt; its count of prompt
/// tokens then is the same as without them.
fn rendered(
    plain: &Result<Completion, ModelError>,
    tools: &Result<Completion, ModelError>,
) -> Finding {
    let Ok(answer) = tools else { return taken(tools, &["tool", "function", "jinja"]) };
    if !answer.message.tool_calls.is_empty() {
        return Finding::Yes("the model called one".to_owned());
    }
    let tokens = |answer: &Completion| answer.usage.map(|usage| usage.prompt_tokens);
    match (plain.as_ref().ok().and_then(tokens), tokens(answer)) {
        (Some(without), Some(with)) if with > without => {
            Finding::Yes(format!("they add {} tokens to the prompt", with - without))
        }
        (Some(without), Some(with)) if with == without => {
            Finding::No("the server takes them and leaves them out of the prompt".to_owned())
        }
        (_, _) => Finding::Unknown(
            "the server takes them; whether the model sees them is not known".to_owned(),
        ),
    }
}

/// Whether a request was taken; a refusal counts when it speaks of the matter.
fn taken(answer: &Result<Completion, ModelError>, matter: &[&str]) -> Finding {
    match answer {
        Ok(_) => Finding::Yes("the server takes it".to_owned()),
        Err(error) => {
            let words = error.to_string();
            let lower = words.to_lowercase();
            let about = matter.iter().any(|word| lower.contains(word));
            let refused = matches!(error, ModelError::BadRequest(_) | ModelError::Server(_));
            if refused && about { Finding::No(words) } else { Finding::Unknown(words) }
        }
    }
}

fn given(
    answer: &Result<Completion, ModelError>,
    what: &str,
    has: fn(&Completion) -> bool,
) -> Finding {
    match answer {
        Ok(answer) if has(answer) => Finding::Yes(String::new()),
        Ok(_) => Finding::No(format!("the answer has no {what}")),
        Err(ModelError::BadRequest(words)) => Finding::No(words.clone()),
        Err(error) => Finding::Unknown(error.to_string()),
    }
}
