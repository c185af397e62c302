//! What a server says when it does not answer, and what kind of failure that is.

use serde_json::Value;

use crate::model::ModelError;
use crate::text;

/// Characters of a server's words that are kept.
const WORDS_LIMIT: usize = 1000;

/// Words by which servers say that the conversation does not fit, in lower case. Beside each: who says so.
const OVERFLOW: &[&str] = &[
    "context_length_exceeded",    // OpenAI, Groq and many others, as a code
    "maximum context length",     // OpenAI, vLLM, DeepSeek, Mistral, OpenRouter, Fireworks, SGLang
    "exceeds the context window", // OpenAI
    "string_above_max_length",    // OpenAI
    "prompt is too long",         // Anthropic, Fireworks
    "exceed context limit",       // Anthropic: input length and max_tokens together
    "request_too_large",          // Anthropic
    "longer than the maximum model length", // vLLM
    "longer than the model's context length", // SGLang
    "exceed_context_size_error",  // llama.cpp
    "exceeds the available context size", // llama.cpp
    "context size has been exceeded", // llama.cpp
    "larger than the max context size", // llama.cpp
    "input is too large to process", // llama.cpp
    "`max_new_tokens` must be <=", // TGI, Together
    "`inputs` must have less than", // TGI
    "exceeds the maximum number of tokens", // Gemini
    "input length exceeds the context length", // Ollama
    "exceeded max context length", // Ollama
    "contextwindowexceedederror", // LiteLLM
    "context window exceeds limit", // MiniMax
    "maximum prompt length",      // xAI
    "exceeded model token limit", // Moonshot
    "input token length too long", // Moonshot
    "range of input length should be", // DashScope
    "prompt exceeds max length",  // Zhipu
    "too many tokens: size limit exceeded", // Cohere
    "input is too long for requested model", // Bedrock
    "model_max_prompt_tokens_exceeded", // GitHub
    "greater than the context length", // LM Studio
    "context the overflows",      // LM Studio, as it spells it
    "exceeds maximum input length", // TensorRT-LLM
    "should not exceed max_num_tokens", // TensorRT-LLM
    "reduce the length of the messages", // OpenAI's advice, repeated by many
];

/// Words by which servers refuse credentials under another status than 401 or 403, in lower case.
const AUTH: &[&str] =
    &["insufficient_quota", "invalid_api_key", "api_key_invalid", "api key not valid"];

/// A server's refusal: its HTTP status and the words of its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status, or the one that a body under status 200 names.
    pub status: u16,
    /// The words of the body: messages, codes and parameter names, without values of the request that some servers echo.
    pub words: String,
}

impl Refusal {
    /// Reads the body of a refusal.
    pub(crate) fn read(status: u16, bytes: &[u8]) -> Self {
        let whole = text::lossy(bytes);
        let words = match serde_json::from_slice::<Value>(bytes) {
            Ok(value) => {
                let mut words = Vec::new();
                collect(&value, &mut words);
                if words.is_empty() { whole } else { words.join(" ") }
            }
            Err(_) => whole,
        };
        Self { status, words: bounded(words.trim()) }
    }

    /// The refusal of a body that came with status 200, when it is one.
    pub(crate) fn under_success(value: &Value) -> Option<Self> {
        let error = value.get("error").filter(|error| !error.is_null())?;
        let status =
            error.get("code").and_then(Value::as_u64).filter(|code| (400..600).contains(code));
        let mut words = Vec::new();
        collect(error, &mut words);
        Some(Self {
            status: status.map_or(500, |code| code as u16),
            words: bounded(&words.join(" ")),
        })
    }

    /// The refusal as an error of its class.
    pub(crate) fn error(&self, scrub: impl Fn(&str) -> String) -> ModelError {
        let lower = self.words.to_lowercase();
        let says = |list: &[&str]| list.iter().any(|phrase| lower.contains(phrase));
        let text = scrub(&format!("status {}: {}", self.status, self.words));
        match self.status {
            401..=403 => ModelError::Auth(text),
            _ if says(AUTH) => ModelError::Auth(text),
            429 => ModelError::RateLimit(text),
            413 => ModelError::ContextOverflow(text),
            _ if says(OVERFLOW) => ModelError::ContextOverflow(text),
            // The server was started without what the request needs; it will not grow it.
            501 => ModelError::BadRequest(text),
            500 if lower.contains("requires --jinja") => ModelError::BadRequest(text),
            408 | 500.. => ModelError::Server(text),
            _ => ModelError::BadRequest(text),
        }
    }

    /// Whether the words hold `name` as a whole word.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
    }

    /// Whether the words say that something is not taken.
    pub(crate) fn says_unsupported(&self) -> bool {
        const PHRASES: &[&str] = &[
            "unsupported",
            "not support",
            "deprecated",
            "unrecognized",
            "unknown",
            "unexpected",
            "not permitted",
            "not allowed",
            "extra_forbidden",
            "extra inputs",
            "additional properties",
            "invalid field",
        ];
        let lower = self.words.to_lowercase();
        PHRASES.iter().any(|phrase| lower.contains(phrase))
    }
}

/// Collects the words of an error body: OpenAI's `error` object, FastAPI's `detail`, and plain `message` or `error` texts.
fn collect(value: &Value, words: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) => words.push(value.to_string()),
        Value::String(text) => words.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, words)),
        Value::Object(fields) => {
            // The echo of the request that some servers add (`input`) is not among these.
            const KEYS: &[&str] = &[
                "error",
                "errors",
                "message",
                "msg",
                "detail",
                "loc",
                "type",
                "error_type",
                "code",
                "status",
                "param",
            ];
            for key in KEYS {
                if let Some(field) = fields.get(*key) {
                    collect(field, words);
                }
            }
            if let Some(raw) = fields.get("metadata").and_then(|metadata| metadata.get("raw")) {
                collect(raw, words);
            }
        }
    }
}

fn bounded(words: &str) -> String {
    match text::head(words, WORDS_LIMIT) {
        (head, 0) => head.to_owned(),
        (head, more) => format!("{head} … ({more} more characters)"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(status: u16, body: &str) -> &'static str {
        Refusal::read(status, body.as_bytes()).error(str::to_owned).class()
    }

    #[test]
    fn overflow_is_recognised_in_every_wording() {
        let bodies = [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            ),
            (
                400,
                r#"{"error":{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model."}}"#,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}}"#,
            ),
            (
                413,
                r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
            ),
            (
                400,
                r#"{"object":"error","message":"'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has 90 input tokens","type":"BadRequestError","param":null,"code":400}"#,
            ),
            (
                400,
                r#"{"error":{"message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096."}}"#,
            ),
            (
                400,
                r#"{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (8192 tokens)."}"#,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}"#,
            ),
            (
                500,
                r#"{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}"#,
            ),
            (
                422,
                r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`","error_type":"validation"}"#,
            ),
            (
                422,
                r#"{"error":"Input validation error: `inputs` must have less than 1024 tokens. Given: 2000","error_type":"validation"}"#,
            ),
            (
                400,
                r#"[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
            ),
            (500, r#"{"error":"input length exceeds the context length"}"#),
            (
                400,
                r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: ...","code":"400"}}"#,
            ),
            (
                400,
                r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"prompt is too long: 9 tokens > 8 maximum\"}}"}}}"#,
            ),
            (
                400,
                r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192","type":"invalid_request_error"}}"#,
            ),
            (
                400,
                r#"{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"}"#,
            ),
            (
                400,
                "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
            ),
        ];
        for (status, body) in bodies {
            assert_eq!(class(status, body), "context_overflow", "{body}");
        }
    }

    #[test]
    fn the_other_classes_are_told_apart() {
        let cases = [
            (
                429,
                r#"{"error":{"message":"Rate limit reached: maximum context length"}}"#,
                "rate_limit",
            ),
            (
                429,
                r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#,
                "auth",
            ),
            (401, "", "auth"),
            (402, "Insufficient Balance", "auth"),
            (403, "no", "auth"),
            (
                400,
                r#"{"error":{"message":"API key not valid. Please pass a valid API key."}}"#,
                "auth",
            ),
            (400, r#"{"error":{"message":"messages must not be empty"}}"#, "bad_request"),
            (404, r#"{"error":{"message":"model does not exist"}}"#, "bad_request"),
            (308, "", "bad_request"),
            (408, "", "server"),
            (500, "oops", "server"),
            (503, r#"{"error":{"type":"unavailable_error","message":"Loading model"}}"#, "server"),
            (529, "overloaded", "server"),
            (500, r#"{"error":{"message":"tools param requires --jinja flag"}}"#, "bad_request"),
        ];
        for (status, body, want) in cases {
            assert_eq!(class(status, body), want, "{status} {body}");
        }
    }

    #[test]
    fn words_leave_the_echo_of_the_request_out() {
        let body = r#"{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted","input":{"temperature":1}}]}"#;
        let refusal = Refusal::read(422, body.as_bytes());
        assert!(refusal.names("seed") && refusal.says_unsupported(), "{refusal:?}");
        assert!(!refusal.names("temperature"), "{refusal:?}");
        assert!(!Refusal { status: 400, words: "seeds exceeded".into() }.names("seed"));
    }

    #[test]
    fn an_error_under_status_200_has_its_own_code() {
        let value = json!({"error": {"code": 429, "message": "slow down"}});
        assert_eq!(
            Refusal::under_success(&value),
            Some(Refusal { status: 429, words: "slow down 429".into() })
        );
        assert_eq!(Refusal::under_success(&json!({"error": "x"})).unwrap().status, 500);
        assert_eq!(Refusal::under_success(&json!({"error": null, "choices": []})), None);
    }

    #[test]
    fn long_words_are_cut() {
        let refusal = Refusal::read(500, "x".repeat(5000).as_bytes());
        assert!(refusal.words.ends_with("… (4000 more characters)") && refusal.words.len() < 1100);
    }
}
