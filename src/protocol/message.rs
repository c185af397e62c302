//! What is said between the agent and a model, in the terms of OpenAI's chat completions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Standing instructions.
    System,
    /// The task, corrections, and observations in text dialects.
    User,
    /// The model.
    Assistant,
    /// The observation of one tool call.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The visible text; empty when the model only called tools.
    pub content: String,
    /// The model's reasoning, when the server gives it apart from the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that is only text.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// The observation that answers the tool call `id`.
    pub fn tool(id: impl Into<String>, content: impl Into<String>) -> Self {
        Self { tool_call_id: Some(id.into()), ..Self::text(Role::Tool, content) }
    }
}

/// A tool call as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The server's id of the call.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments exactly as emitted: JSON text that may be invalid.
    pub arguments: String,
}

/// A tool as it is described to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSchema {
    /// The tool's name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments object.
    pub parameters: serde_json::Value,
}

/// Sampling settings of one request. They belong to the request: a model keeps no state between requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Softmax temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Most tokens to generate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Seed of the sampler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Choices to sample; the first one acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Ask for log-probabilities of the sampled tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Strings that end the reply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// One request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The tools the model may call natively; empty in text dialects.
    pub tools: Vec<ToolSchema>,
    /// Sampling settings.
    pub sampling: Sampling,
}

/// Token counts of one completion as the server gave them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens generated, reasoning included.
    pub completion_tokens: u64,
    /// Prompt tokens the server took from its cache.
    pub cached_tokens: u64,
    /// Generated tokens spent on reasoning.
    pub reasoning_tokens: u64,
}

/// Why a model stopped, normalised from the server's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its reply.
    Stop,
    /// The model ended its reply with tool calls.
    ToolCalls,
    /// The token limit cut the reply off.
    Length,
    /// The server withheld content.
    ContentFilter,
    /// The server gave another word, or none.
    Other,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The first choice as a message.
    pub message: Message,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token counts, when the server gave any.
    pub usage: Option<Usage>,
    /// Dollars as the server billed them, when it says so.
    pub cost: Option<f64>,
    /// Ids of the prompt's tokens, when the server gave them.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Ids of the sampled tokens, when the server gave them.
    pub completion_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the sampled tokens (natural logarithm), when the server gave them.
    pub logprobs: Option<Vec<f64>>,
    /// What was sent and received, for the record.
    pub exchange: Exchange,
}

/// The bytes of one request and its answer, in the form the event log stores them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exchange {
    /// The request body without its messages, and how messages are written into it.
    pub parameters: serde_json::Value,
    /// SHA-256 of the request body's bytes, in hexadecimal; empty for offline models.
    pub request_sha256: String,
    /// The answer's body exactly as received.
    pub response: Vec<u8>,
    /// Retries before this answer.
    pub retries: u32,
}
