//! Who decides: models behind one trait.
//!
//! Takes in a conversation and tool schemas, gives out one completion with the raw bytes of the exchange. It must not
//! know of tasks, sandboxes or tools' meaning. Offline models stand beside the network client and need no server.

pub mod address;
pub mod answer;
pub mod body;
pub mod connection;
pub mod learned;
pub mod null;
mod offline;
pub mod openai;
pub mod price;
pub mod probe;
pub mod recorded;
pub mod refusal;
pub mod retry;
pub mod script;
pub mod secret;
pub mod spec;
pub mod store;

use async_trait::async_trait;

use crate::protocol::message::Completion;
use crate::protocol::message::Request;

/// Something that answers a conversation.
///
/// ```no_run
/// # use patchgym::model::Model;
/// # use patchgym::protocol::message::{Message, Request, Role, Sampling};
/// # async fn ask(model: &dyn Model) -> Result<String, patchgym::model::ModelError> {
/// let request = Request {
///     messages: vec![Message::text(Role::User, "hello")],
///     tools: Vec::new(),
///     sampling: Sampling::default(),
/// };
/// Ok(model.complete(&request).await?.message.content)
/// # }
/// ```
#[async_trait]
pub trait Model: Send + Sync {
    /// The name for reports and predictions.
    fn name(&self) -> &str;

    /// Answers the conversation. A model keeps no state between requests: what it answers depends on the request.
    ///
    /// # Errors
    /// When there is no usable answer, after the retries that the error's class allows.
    async fn complete(&self, request: &Request) -> Result<Completion, ModelError>;
}

/// Why a model gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The server limits the rate; retries are used up.
    #[error("model server keeps limiting the rate: {0}")]
    RateLimit(String),
    /// The conversation does not fit the context.
    #[error("conversation does not fit the model's context: {0}")]
    ContextOverflow(String),
    /// The credentials are refused.
    #[error("model server refuses the credentials: {0}")]
    Auth(String),
    /// The request is refused for another reason; the same request would be refused again.
    #[error("model server refuses the request: {0}")]
    BadRequest(String),
    /// The server fails; retries are used up.
    #[error("model server fails: {0}")]
    Server(String),
    /// The server cannot be reached, or a deadline passed; retries are used up.
    #[error("model server does not answer: {0}")]
    Unreachable(String),
    /// The answer is not a completion.
    #[error("model server's answer cannot be read: {0}")]
    BadAnswer(String),
    /// A scripted or recorded model has no further turn.
    #[error("the script has no turn {0}")]
    ScriptEnded(usize),
    /// A store of recorded answers has none for this request.
    #[error("no answer is recorded for the request {0}")]
    NotRecorded(String),
    /// An option, or a file that the model is made of, is wrong.
    #[error("model is not set up: {0}")]
    Setup(String),
}

impl ModelError {
    /// The stable word for its class, as in the event log.
    pub fn class(&self) -> &'static str {
        match self {
            ModelError::RateLimit(_) => "rate_limit",
            ModelError::ContextOverflow(_) => "context_overflow",
            ModelError::Auth(_) => "auth",
            ModelError::BadRequest(_) => "bad_request",
            ModelError::Server(_) => "server",
            ModelError::Unreachable(_) => "unreachable",
            ModelError::BadAnswer(_) => "bad_answer",
            ModelError::ScriptEnded(_) => "script_ended",
            ModelError::NotRecorded(_) => "not_recorded",
            ModelError::Setup(_) => "setup",
        }
    }
}
