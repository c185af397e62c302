//! The client of servers that speak OpenAI's chat completions, without streaming.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::digest::sha256;
use crate::model::Model;
use crate::model::ModelError;
use crate::model::address::Address;
use crate::model::answer;
use crate::model::answer::Unusable;
use crate::model::body::Reasoning;
use crate::model::body::ReasoningField;
use crate::model::body::SystemRole;
use crate::model::body::body;
use crate::model::connection::Connection;
use crate::model::connection::Deadlines;
use crate::model::learned::Learned;
use crate::model::learned::TokenLimit;
use crate::model::refusal::Refusal;
use crate::model::retry::Retry;
use crate::model::secret::Secret;
use crate::protocol::message::Completion;
use crate::protocol::message::Exchange;
use crate::protocol::message::Request;
use crate::protocol::message::Sampling;
use crate::protocol::message::ToolSchema;

/// Fields that are the client's own and cannot be among the extra ones.
const OWN_FIELDS: &[&str] = &["messages", "stream", "stream_options"];

/// How to reach and ask a model.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the API begins.
    pub address: Address,
    /// The model's name on the server.
    pub model: String,
    /// The API key, sent as a bearer token.
    pub key: Option<Secret>,
    /// More headers; their values are never shown.
    pub headers: Vec<(String, Secret)>,
    /// Fields that are merged over the request's body; null takes a field out.
    pub extra: Map<String, Value>,
    /// How the limit on generated tokens is spelled.
    pub token_limit: TokenLimit,
    /// Which assistant messages are sent back with their reasoning.
    pub reasoning: Reasoning,
    /// Where it stands in them; none means where the server put it last.
    pub reasoning_field: Option<ReasoningField>,
    /// The role of standing instructions at first; it changes to the developer's when the server asks for it.
    pub system_role: SystemRole,
    /// Longest waits of one request.
    pub deadlines: Deadlines,
    /// Bounds of the retries.
    pub retry: Retry,
}

impl Options {
    /// Default options for a model of a server.
    pub fn new(address: Address, model: impl Into<String>) -> Self {
        Self {
            address,
            model: model.into(),
            key: None,
            headers: Vec::new(),
            extra: Map::new(),
            token_limit: TokenLimit::default(),
            reasoning: Reasoning::default(),
            reasoning_field: None,
            system_role: SystemRole::default(),
            deadlines: Deadlines::default(),
            retry: Retry::default(),
        }
    }
}

/// A model of a server that speaks chat completions.
pub struct OpenAi {
    options: Options,
    connection: Connection,
    learned: Mutex<Learned>,
}

/// A failed attempt.
struct Failure {
    error: ModelError,
    retry_after: Option<Duration>,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self { error, retry_after: None }
    }
}

impl OpenAi {
    /// Prepares the client; nothing is sent yet.
    ///
    /// # Errors
    /// [`ModelError::Setup`] when an option cannot be used.
    pub fn new(options: Options) -> Result<Self, ModelError> {
        if let Some(name) = OWN_FIELDS.iter().find(|name| options.extra.contains_key(**name)) {
            return Err(ModelError::Setup(format!("the extra body field `{name}` cannot be set")));
        }
        let connection = Connection::new(
            options.address.clone(),
            options.key.as_ref(),
            &options.headers,
            options.deadlines,
        )?;
        let learned = Mutex::new(Learned::new(options.token_limit, options.system_role));
        Ok(Self { options, connection, learned })
    }

    /// The way to the server, for other questions to it.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Asks once, without retries but as often as the server's refusals teach how to ask. `extra` is merged over the body
    /// last.
    pub(crate) async fn ask_once(
        &self,
        request: &Request,
        extra: &Map<String, Value>,
    ) -> Result<Completion, ModelError> {
        self.attempt(request, extra, &mut 0).await.map_err(|failure| failure.error)
    }

    async fn attempt(
        &self,
        request: &Request,
        extra: &Map<String, Value>,
        sent: &mut u32,
    ) -> Result<Completion, Failure> {
        loop {
            let fields = fields(&self.options.model, request, [&self.options.extra, extra]);
            let parameters = self.learned(|learned| {
                learned.parameters(fields, self.options.reasoning, self.options.reasoning_field)
            });
            let bytes = body(&parameters, &request.messages);
            let request_sha256 = sha256(&bytes);
            *sent += 1;
            let reply = self.connection.post(bytes).await?;
            let refusal = if (200..300).contains(&reply.status) {
                let limit = ["max_tokens", "max_completion_tokens"]
                    .iter()
                    .find_map(|name| parameters["body"][*name].as_u64());
                match answer::read(&reply.body, &request.messages, limit) {
                    Ok(answer) => {
                        self.learned(|learned| learned.saw_reasoning(answer.reasoning_field));
                        let retries = *sent - 1;
                        let exchange =
                            Exchange { parameters, request_sha256, response: reply.body, retries };
                        return Ok(completion(answer, exchange));
                    }
                    Err(Unusable::Refused(refusal)) => refusal,
                    Err(unusable @ (Unusable::Cut | Unusable::Empty)) => {
                        return Err(ModelError::Server(unusable.to_string()).into());
                    }
                    Err(unusable @ Unusable::Foreign(_)) => {
                        return Err(ModelError::BadAnswer(unusable.to_string()).into());
                    }
                }
            } else {
                Refusal::read(reply.status, &reply.body)
            };
            let error = refusal.error(|text| self.connection.scrub(text));
            if matches!(error, ModelError::BadRequest(_))
                && self.learned(|learned| learned.adapts(&refusal, &parameters))
            {
                tracing::info!("asking again in another way: {error}");
                continue;
            }
            return Err(Failure { error, retry_after: reply.retry_after });
        }
    }

    fn learned<T>(&self, then: impl FnOnce(&mut Learned) -> T) -> T {
        then(&mut self.learned.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.options.model
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let begun = Instant::now();
        let mut sent = 0;
        let mut retries = 0;
        loop {
            let Failure { error, retry_after } =
                match self.attempt(request, &Map::new(), &mut sent).await {
                    Ok(completion) => return Ok(completion),
                    Err(failure) => failure,
                };
            let passing = match error {
                ModelError::RateLimit(_) | ModelError::Server(_) | ModelError::Unreachable(_) => {
                    true
                }
                ModelError::ContextOverflow(_)
                | ModelError::Auth(_)
                | ModelError::BadRequest(_)
                | ModelError::BadAnswer(_)
                | ModelError::ScriptEnded(_)
                | ModelError::NotRecorded(_)
                | ModelError::Setup(_) => false,
            };
            let wait = self.options.retry.wait(retries, retry_after, begun.elapsed());
            let Some(wait) = wait.filter(|_| passing) else { return Err(error) };
            tracing::warn!("{error}; asking again in {:.1} s", wait.as_secs_f64());
            tokio::time::sleep(wait).await;
            retries += 1;
        }
    }
}

/// Every field of the body but the messages.
fn fields(model: &str, request: &Request, extras: [&Map<String, Value>; 2]) -> Map<String, Value> {
    // Exhaustive, so that a new setting cannot be forgotten here.
    let Sampling { temperature, top_p, max_tokens, seed, n, logprobs, stop } = &request.sampling;
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    set("model", Some(json!(model)));
    set("temperature", temperature.map(Value::from));
    set("top_p", top_p.map(Value::from));
    set("max_tokens", max_tokens.map(Value::from));
    set("seed", seed.map(Value::from));
    set("n", n.map(Value::from));
    set("stop", (!stop.is_empty()).then(|| json!(stop)));
    set("logprobs", logprobs.map(Value::from));
    // Without a number llama.cpp sends twenty alternatives per token, and with 0 none at all.
    set("top_logprobs", (*logprobs == Some(true)).then(|| json!(1)));
    set("tools", (!request.tools.is_empty()).then(|| request.tools.iter().map(tool).collect()));
    for (name, value) in extras.into_iter().flatten() {
        if value.is_null() {
            fields.shift_remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    fields
}

fn tool(tool: &ToolSchema) -> Value {
    let ToolSchema { name, description, parameters } = tool;
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

fn completion(answer: answer::Answer, exchange: Exchange) -> Completion {
    Completion {
        message: answer.message,
        finish_reason: answer.finish_reason,
        usage: answer.usage,
        cost: answer.cost,
        prompt_token_ids: answer.prompt_token_ids,
        completion_token_ids: answer.completion_token_ids,
        logprobs: answer.logprobs,
        exchange,
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::message::Message;
    use crate::protocol::message::Role;
    use crate::protocol::record::Event;
    use crate::protocol::record::Record;

    use super::*;

    #[test]
    fn the_log_gives_the_bytes_back() {
        let request = Request {
            messages: vec![Message::text(Role::System, "s"), Message::text(Role::User, "\u{0}é\"")],
            tools: vec![ToolSchema {
                name: "run".into(),
                description: "d".into(),
                parameters: json!({"type": "object", "properties": {"z": {}, "a": {"minimum": 1e-7}}}),
            }],
            sampling: Sampling {
                // A number that comes back as another one unless serde_json reads floats exactly.
                temperature: Some(0.987_220_450_537_311_1),
                top_p: Some(1.0),
                max_tokens: Some(u64::MAX),
                logprobs: Some(true),
                stop: vec!["x".into()],
                ..Sampling::default()
            },
        };
        let extra = json!({"top_logprobs": 0, "top_p": null, "chat_template_kwargs": {"b": 1, "a": [1.5e300]}});
        let fields = fields("m", &request, [extra.as_object().unwrap(), &Map::new()]);
        assert_eq!((fields.get("top_p"), &fields["top_logprobs"]), (None, &json!(0)));
        let parameters = Learned::default().parameters(fields, Reasoning::Keep, None);
        let bytes = body(&parameters, &request.messages);
        let sent = serde_json::from_slice::<Value>(&bytes).unwrap();
        assert_eq!(sent["temperature"].as_f64(), Some(0.987_220_450_537_311_1));
        let event =
            Event::Request { turn: 1, messages: vec![[0, 1]], parameters, sha256: String::new() };
        let line = serde_json::to_string(&Record { time: 0.0, event }).unwrap();
        let Event::Request { parameters, .. } =
            serde_json::from_str::<Record>(&line).unwrap().event
        else {
            panic!()
        };
        assert_eq!(body(&parameters, &request.messages), bytes);
    }

    #[test]
    fn fields_of_the_client_cannot_be_taken_over() {
        let mut options = Options::new("localhost:1".parse().unwrap(), "m");
        options.extra.insert("stream".into(), json!(true));
        assert!(matches!(OpenAi::new(options.clone()), Err(ModelError::Setup(_))));
        options.extra.clear();
        options.key = Some(Secret::new("bad\nkey-canary"));
        let error = OpenAi::new(options).err().unwrap();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    }
}
