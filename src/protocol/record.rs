//! The event log: one record per line, in the order things happened.
//!
//! The log is the truth about an attempt; predictions, reports, other projects' trajectories and training rows are
//! projections of it. See `trajectories/README.md` for the format in prose.

use std::collections::BTreeMap;

use base64::DecodeError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::episode::Call;
use crate::protocol::episode::End;
use crate::protocol::episode::Observation;
use crate::protocol::message::FinishReason;
use crate::protocol::message::Message;
use crate::protocol::message::ToolSchema;
use crate::protocol::message::Usage;
use crate::protocol::verdict::Verdict;

/// The format's number. 0 promises nothing yet.
pub const FORMAT: u32 = 0;

/// One line of an event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Seconds since the Unix epoch when it was written.
    pub time: f64,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The first record.
    Header(Box<Header>),
    /// The environment is ready.
    Reset {
        /// Git's name of the pristine tree that patches start from.
        start_tree: String,
        /// Isolation level of the sandbox.
        isolation: String,
        /// Network policy while the model acts.
        network: String,
        /// SHA-256 of what the environment was made of, when that was made from a recipe.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<String>,
        /// Seconds it took.
        seconds: f64,
    },
    /// A message entered the conversation.
    Message {
        /// Counts from 0; requests refer to it.
        id: u64,
        /// The message.
        message: Message,
    },
    /// A request was sent.
    Request {
        /// Turn, from 1.
        turn: u64,
        /// The conversation: ranges of message ids in order, first and last of each.
        messages: Vec<[u64; 2]>,
        /// The request body without its messages, and how messages are written into it.
        parameters: serde_json::Value,
        /// SHA-256 of the bytes sent, in hexadecimal; empty for offline models.
        sha256: String,
    },
    /// An answer arrived.
    Response(Box<Response>),
    /// A request failed for good.
    ModelFailure {
        /// Turn, from 1.
        turn: u64,
        /// Class of the failure, such as `rate_limit`.
        class: String,
        /// The server's or system's words, without credentials.
        detail: String,
    },
    /// The reply was read as calls.
    Action {
        /// Turn, from 1.
        turn: u64,
        /// The calls in order.
        calls: Vec<Call>,
    },
    /// The reply could not be read as calls; the model is asked again.
    FormatError {
        /// Turn, from 1.
        turn: u64,
        /// A stable word, such as `missing` or `truncated`.
        code: String,
    },
    /// A call was answered.
    Observation {
        /// Turn, from 1.
        turn: u64,
        /// The observation.
        observation: Observation,
    },
    /// A command's output as bytes, when the text the model read does not hold all of them.
    Output {
        /// Turn, from 1.
        turn: u64,
        /// The call it belongs to.
        call_id: String,
        /// Its first bytes.
        head: Bytes,
        /// Its last bytes, when there were more than fit the head.
        tail: Bytes,
        /// Bytes in all.
        total: u64,
    },
    /// The patch after a turn.
    Patch {
        /// Turn, from 1; 0 is the state after reset.
        turn: u64,
        /// SHA-256 of the patch in hexadecimal.
        sha256: String,
        /// The patch, the first time this hash occurs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Bytes>,
        /// What is known about it.
        receipt: PatchReceipt,
    },
    /// Something an operator should know.
    Warning {
        /// One line.
        text: String,
    },
    /// The episode is over.
    End {
        /// Why.
        reason: End,
        /// One line about it, when there is more to say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// What it used.
        totals: Totals,
    },
    /// The patch was graded.
    Verdict {
        /// What grading says.
        verdict: Box<Verdict>,
    },
}

/// What an attempt was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of patchgym.
    pub patchgym: String,
    /// The task's id.
    pub instance_id: String,
    /// Attempt, from 1.
    pub attempt: u32,
    /// The repository's name.
    pub repo: String,
    /// The commit the task starts from.
    pub base_commit: String,
    /// The issue.
    pub problem_statement: String,
    /// Agent preset.
    pub agent: String,
    /// Model as it was named by the user.
    pub model: String,
    /// The model cheats by design, so the attempt measures nothing.
    pub uses_gold: bool,
    /// How calls are written.
    pub dialect: String,
    /// SHA-256 of each prompt template by name.
    pub prompts: BTreeMap<String, String>,
    /// The tools as the model was told of them.
    pub tools: Vec<ToolSchema>,
    /// The limits.
    pub limits: Limits,
    /// Seed of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Version of the policy that is trained, when a trainer says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<String>,
    /// Training step, when a trainer says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_step: Option<u64>,
}

/// Limits of an attempt; 0 turns a limit off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Model replies.
    pub turns: u64,
    /// Prompt and completion tokens together.
    pub tokens: u64,
    /// Dollars.
    pub cost: f64,
    /// Seconds of one command.
    pub command: u64,
    /// Seconds of all commands together.
    pub commands: u64,
    /// Seconds of the whole attempt.
    pub wall: u64,
    /// Replies in a row that cannot be read as a call.
    pub format_errors: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns: 100,
            tokens: 0,
            cost: 3.0,
            command: 60,
            commands: 1800,
            wall: 0,
            format_errors: 3,
        }
    }
}

/// An answer of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// Turn, from 1.
    pub turn: u64,
    /// Id under which its message entered the conversation.
    pub message: u64,
    /// The body exactly as received.
    pub raw: Bytes,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Dollars; none when the price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Seconds from sending to the last byte.
    pub seconds: f64,
    /// Retries before it.
    pub retries: u32,
    /// Ids of the prompt's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Ids of the sampled tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the sampled tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
}

/// What is known about a patch besides its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchReceipt {
    /// Git's name of the tree it starts from.
    pub start_tree: String,
    /// Git's name of the tree it leads to.
    pub end_tree: String,
    /// Paths it changes.
    pub files: Vec<String>,
    /// Those that stand as binary hunks.
    pub binary: Vec<String>,
    /// Nested repositories whose contents it cannot hold.
    pub omitted: Vec<String>,
    /// `git apply --check` accepted it on the start tree.
    pub applies: bool,
}

/// What an attempt used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Turns played.
    pub turns: u64,
    /// Requests that were answered.
    pub calls: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Completion tokens.
    pub completion_tokens: u64,
    /// Dollars; none when some price is not known.
    pub cost: Option<f64>,
    /// Seconds of all commands.
    pub command_seconds: f64,
    /// Seconds of the whole attempt.
    pub seconds: f64,
}

/// Bytes in JSON: text where they are UTF-8, else base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bytes {
    /// UTF-8 text.
    Text(String),
    /// Standard base64 with padding.
    Base64(String),
}

impl Bytes {
    /// Any bytes in the form that reads best.
    pub fn from_slice(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text.to_owned()),
            Err(_) => Bytes::Base64(STANDARD.encode(bytes)),
        }
    }

    /// The bytes it stands for.
    ///
    /// # Errors
    /// When it claims to be base64 and is not.
    pub fn to_vec(&self) -> Result<Vec<u8>, DecodeError> {
        match self {
            Bytes::Text(text) => Ok(text.clone().into_bytes()),
            Bytes::Base64(text) => STANDARD.decode(text),
        }
    }
}
