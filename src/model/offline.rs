//! What models without a server share.

use crate::model::ModelError;
use crate::protocol::message::Completion;
use crate::protocol::message::Exchange;
use crate::protocol::message::FinishReason;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Role;

/// Turns that were played before this request, by which a model without state knows what comes next.
pub(crate) fn turns_played(request: &Request) -> usize {
    request.messages.iter().filter(|message| message.role == Role::Assistant).count()
}

/// The completion of a message that no server made.
pub(crate) fn completion(message: Message) -> Result<Completion, ModelError> {
    let response =
        serde_json::to_vec(&message).map_err(|error| ModelError::BadAnswer(error.to_string()))?;
    let finish_reason =
        if message.tool_calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    Ok(Completion {
        message,
        finish_reason,
        usage: None,
        cost: None,
        prompt_token_ids: None,
        completion_token_ids: None,
        logprobs: None,
        exchange: Exchange { response, ..Exchange::default() },
    })
}
