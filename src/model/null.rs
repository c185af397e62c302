//! A model that submits at once: the baseline that changes nothing.

use async_trait::async_trait;

use crate::model::Model;
use crate::model::ModelError;
use crate::model::offline;
use crate::protocol::message::Completion;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Role;
use crate::protocol::message::ToolCall;

/// Calls `submit` in every turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Null;

#[async_trait]
impl Model for Null {
    fn name(&self) -> &str {
        "null"
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let id = format!("call_{}_1", offline::turns_played(request) + 1);
        let submit = ToolCall { id, name: "submit".to_owned(), arguments: "{}".to_owned() };
        offline::completion(Message {
            tool_calls: vec![submit],
            ..Message::text(Role::Assistant, "")
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::message::FinishReason;
    use crate::protocol::message::Sampling;

    use super::*;

    #[tokio::test]
    async fn it_submits() {
        let request = Request { messages: vec![], tools: vec![], sampling: Sampling::default() };
        let completion = Null.complete(&request).await.unwrap();
        assert_eq!(completion.message.tool_calls[0].name, "submit");
        assert_eq!(completion.message.tool_calls[0].id, "call_1_1");
        assert_eq!(completion.finish_reason, FinishReason::ToolCalls);
    }
}
