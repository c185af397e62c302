//! A model that answers as an event log says.

use std::collections::HashMap;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;

use async_trait::async_trait;

use crate::model::Model;
use crate::model::ModelError;
use crate::model::offline;
use crate::protocol::message::Completion;
use crate::protocol::message::Exchange;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::record::Event;
use crate::protocol::record::Record;
use crate::protocol::record::Response;

/// The answers of one attempt, one after the other. Which one is next is read off the conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    name: String,
    turns: Vec<Completion>,
}

impl Recorded {
    /// Reads an event log. A last line without its end is left out, as a kill may leave it.
    ///
    /// # Errors
    /// [`ModelError::Setup`] with the file's path and the line.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let file =
            fs_err::File::open(path).map_err(|error| ModelError::Setup(error.to_string()))?;
        Self::from_lines(&path.display().to_string(), BufReader::new(file))
    }

    /// Reads the lines of an event log; `source` stands in errors.
    ///
    /// # Errors
    /// [`ModelError::Setup`] with the source and the line.
    pub fn from_lines(source: &str, mut lines: impl BufRead) -> Result<Self, ModelError> {
        let setup = |error: std::io::Error| ModelError::Setup(error.to_string());
        let mut name = "recorded".to_owned();
        let mut messages: HashMap<u64, Message> = HashMap::new();
        let mut responses = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            let wrong = |what: &str| ModelError::Setup(format!("{source}, line {number}: {what}"));
            line.clear();
            if lines.read_until(b'\n', &mut line).map_err(setup)? == 0 {
                break;
            }
            let record: Record = match serde_json::from_slice(&line) {
                Ok(record) => record,
                Err(_) if !line.ends_with(b"\n") => break,
                Err(error) => return Err(wrong(&error.to_string())),
            };
            // Only what the model was and said matters here.
            if let Event::Header(header) = record.event {
                name = header.model;
            } else if let Event::Message { id, message } = record.event {
                messages.insert(id, message);
            } else if let Event::Response(response) = record.event {
                responses.push((number, response));
            }
        }
        let mut turns = Vec::with_capacity(responses.len());
        for (number, response) in responses {
            let wrong = |what: &str| ModelError::Setup(format!("{source}, line {number}: {what}"));
            // The message is written after its answer, so a log that was cut off may lack the last one.
            let Some(message) = messages.remove(&response.message) else { break };
            let raw = response.raw.to_vec().map_err(|error| wrong(&error.to_string()))?;
            turns.push(completion(*response, message, raw));
        }
        Ok(Self { name, turns })
    }
}

fn completion(response: Response, message: Message, raw: Vec<u8>) -> Completion {
    Completion {
        message,
        finish_reason: response.finish_reason,
        usage: response.usage,
        cost: response.cost,
        prompt_token_ids: response.prompt_token_ids,
        completion_token_ids: response.completion_token_ids,
        logprobs: response.logprobs,
        exchange: Exchange { response: raw, ..Exchange::default() },
    }
}

#[async_trait]
impl Model for Recorded {
    fn name(&self) -> &str {
        &self.name
    }

    async fn complete(&self, request: &Request) -> Result<Completion, ModelError> {
        let played = offline::turns_played(request);
        self.turns.get(played).cloned().ok_or(ModelError::ScriptEnded(played + 1))
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::message::FinishReason;
    use crate::protocol::message::Role;
    use crate::protocol::message::Sampling;
    use crate::protocol::message::ToolCall;
    use crate::protocol::message::Usage;
    use crate::protocol::record::Bytes;

    use super::*;

    fn log() -> String {
        let said = |text: &str| Message {
            tool_calls: vec![ToolCall {
                id: "call_0".into(),
                name: "run".into(),
                arguments: "{".into(),
            }],
            ..Message::text(Role::Assistant, text)
        };
        let response = |turn: u64, message: u64| {
            Event::Response(Box::new(Response {
                turn,
                message,
                raw: Bytes::Text(format!("raw {turn}")),
                finish_reason: FinishReason::ToolCalls,
                usage: Some(Usage { prompt_tokens: 9, ..Usage::default() }),
                cost: Some(0.25),
                seconds: 1.0,
                retries: 2,
                prompt_token_ids: None,
                completion_token_ids: Some(vec![5]),
                logprobs: None,
            }))
        };
        let demonstration =
            Event::Message { id: 0, message: Message::text(Role::Assistant, "not an answer") };
        let events = [
            demonstration,
            response(1, 1),
            Event::Message { id: 1, message: said("one") },
            Event::Warning { text: "w".into() },
            Event::Message { id: 2, message: said("two") },
            response(2, 2),
        ];
        let lines =
            events.map(|event| serde_json::to_string(&Record { time: 1.5, event }).unwrap() + "\n");
        lines.concat()
    }

    fn read(text: &str) -> Result<Recorded, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        fs_err::write(&path, text).unwrap();
        Recorded::read(&path)
    }

    #[tokio::test]
    async fn answers_come_in_order_and_whole() {
        let model = read(&(log() + "{\"time\": 1.5, \"ev")).unwrap();
        let mut request =
            Request { messages: vec![], tools: vec![], sampling: Sampling::default() };
        for want in ["one", "two"] {
            let completion = model.complete(&request).await.unwrap();
            assert_eq!(completion.message.content, want);
            assert_eq!(completion.message.tool_calls[0].arguments, "{");
            assert_eq!(
                (completion.cost, completion.completion_token_ids),
                (Some(0.25), Some(vec![5]))
            );
            request.messages.push(completion.message);
        }
        assert!(matches!(model.complete(&request).await, Err(ModelError::ScriptEnded(3))));
    }

    #[test]
    fn any_cut_at_the_end_loads_and_damage_inside_does_not() {
        let log = log();
        for cut in 0..log.len() {
            read(&log[..cut]).unwrap();
        }
        let error = read(&log.replacen("\"raw\"", "\"rau\"", 1)).unwrap_err().to_string();
        assert!(error.contains("log.jsonl, line 2"), "{error}");
    }
}
