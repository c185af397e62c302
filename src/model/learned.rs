//! What a server takes and does not take, learned from its answers.

use std::collections::BTreeSet;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::model::body::Reasoning;
use crate::model::body::ReasoningField;
use crate::model::body::SystemRole;
use crate::model::body::Wire;
use crate::model::refusal::Refusal;

/// How a request spells the limit on generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenLimit {
    /// `max_tokens`, and the other when the server asks for it.
    #[default]
    Auto,
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// Fields that can be left out without changing what is asked of the model. The temperature needs only be named: servers
/// refuse it in many words.
const OPTIONAL: &[&str] = &["top_p", "seed", "top_logprobs", "logprobs", "return_token_ids"];

/// What was learned. It says how to write a request to this server and nothing of any conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learned {
    /// How the token limit is spelled.
    limit: TokenLimit,
    /// Fields that the server refused.
    refused: BTreeSet<&'static str>,
    /// The role of standing instructions.
    system_role: SystemRole,
    /// Where the server puts reasoning; none before it gave any.
    reasoning_field: Option<ReasoningField>,
    /// The server takes no reasoning back.
    refuses_reasoning: bool,
}

impl Learned {
    /// The start: nothing learned, settings as the user gave them.
    pub(crate) fn new(limit: TokenLimit, system_role: SystemRole) -> Self {
        Self { limit, system_role, ..Self::default() }
    }

    /// Notes where the server put the reasoning of an answer.
    pub(crate) fn saw_reasoning(&mut self, field: Option<ReasoningField>) {
        self.reasoning_field = field.or(self.reasoning_field);
    }

    /// The request's parameters as the server takes them.
    pub(crate) fn parameters(
        &self,
        mut fields: Map<String, Value>,
        reasoning: Reasoning,
        reasoning_field: Option<ReasoningField>,
    ) -> Value {
        fields.retain(|name, _| !self.refused.contains(name.as_str()));
        if self.limit == TokenLimit::MaxCompletionTokens
            && let Some(limit) = fields.shift_remove("max_tokens")
        {
            fields.insert("max_completion_tokens".to_owned(), limit);
        }
        let wire = Wire {
            reasoning: if self.refuses_reasoning { Reasoning::Drop } else { reasoning },
            reasoning_field: reasoning_field.or(self.reasoning_field).unwrap_or_default(),
            system_role: self.system_role,
        };
        json!({"body": fields, "wire": wire})
    }

    /// Learns from a refused request. True when the request, written anew, is another one and may be sent.
    pub(crate) fn adapts(&mut self, refusal: &Refusal, parameters: &Value) -> bool {
        let sent = |name: &str| parameters["body"].get(name).is_some();
        let wire: Wire = serde_json::from_value(parameters["wire"].clone()).unwrap_or_default();
        let unsupported = refusal.says_unsupported();
        let other_limit =
            refusal.names("max_completion_tokens") || (refusal.names("max_tokens") && unsupported);
        if sent("max_tokens") && self.limit != TokenLimit::MaxTokens && other_limit {
            self.limit = TokenLimit::MaxCompletionTokens;
            return true;
        }
        if sent("temperature") && refusal.names("temperature") {
            self.refused.insert("temperature");
            return true;
        }
        if let Some(name) =
            OPTIONAL.iter().find(|name| unsupported && sent(name) && refusal.names(name))
        {
            self.refused.insert(name);
            if *name == "logprobs" {
                self.refused.insert("top_logprobs");
            }
            return true;
        }
        let role = refusal.names("role") && refusal.names("system") && unsupported;
        if wire.system_role == SystemRole::System && (role || refusal.names("developer")) {
            self.system_role = SystemRole::Developer;
            return true;
        }
        let field = match wire.reasoning_field {
            ReasoningField::ReasoningContent => "reasoning_content",
            ReasoningField::Reasoning => "reasoning",
            ReasoningField::Inline => return false,
        };
        if wire.reasoning != Reasoning::Drop && refusal.names(field) && unsupported {
            self.refuses_reasoning = true;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Map<String, Value> {
        json!({"max_tokens": 9, "temperature": 0, "logprobs": true, "top_logprobs": 1})
            .as_object()
            .unwrap()
            .clone()
    }

    fn says(learned: &mut Learned, words: &str) -> Option<Value> {
        let sent = learned.parameters(fields(), Reasoning::Keep, None);
        let refusal = Refusal { status: 400, words: words.into() };
        learned.adapts(&refusal, &sent).then(|| learned.parameters(fields(), Reasoning::Keep, None))
    }

    #[test]
    fn each_refusal_changes_the_request_once() {
        let mut learned = Learned::default();
        let words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.";
        let next = says(&mut learned, words).unwrap();
        assert_eq!(
            (next["body"].get("max_tokens"), &next["body"]["max_completion_tokens"]),
            (None, &json!(9))
        );
        assert_eq!(says(&mut learned, words), None);
        let words = "invalid temperature: only 1 is allowed for this model";
        assert_eq!(says(&mut learned, words).unwrap()["body"].get("temperature"), None);
        assert_eq!(says(&mut learned, words), None);
        let next = says(&mut learned, "logprobs is not supported").unwrap();
        assert_eq!(next["body"], json!({"max_completion_tokens": 9}));
        let words =
            "Unsupported value: 'messages[0].role' does not support 'system' with this model.";
        assert_eq!(says(&mut learned, words).unwrap()["wire"]["system_role"], "developer");
        assert_eq!(says(&mut learned, words), None);
        let next = says(&mut learned, "property 'reasoning_content' is unsupported").unwrap();
        assert_eq!(next["wire"]["reasoning"], "drop");
    }

    #[test]
    fn other_refusals_change_nothing() {
        for words in
            ["messages must not be empty", "seed is unsupported", "logprobs must be a boolean"]
        {
            assert_eq!(says(&mut Learned::default(), words), None, "{words}");
        }
        let mut fixed = Learned::new(TokenLimit::MaxTokens, SystemRole::System);
        assert_eq!(says(&mut fixed, "use max_completion_tokens"), None);
    }
}
