//! The conversation of one episode, and every event of it on its way into the log.

use std::collections::HashSet;
use std::time::Duration;
use std::time::Instant;

use crate::agent::AgentError;
use crate::digest;
use crate::env::Env;
use crate::env::EnvError;
use crate::env::Start;
use crate::env::Stepped;
use crate::model::ModelError;
use crate::protocol::episode::Action;
use crate::protocol::message::Completion;
use crate::protocol::message::Message;
use crate::protocol::record::Bytes;
use crate::protocol::record::Event;
use crate::protocol::record::PatchReceipt;
use crate::protocol::record::Response;
use crate::task::Task;
use crate::trajectory::Recorder;

/// Records an episode.
pub(super) struct Journal<'a> {
    recorder: &'a mut dyn Recorder,
    messages: Vec<Message>,
    turn: u64,
    /// Hashes of patches whose bytes are in the log.
    stored: HashSet<String>,
    patch: Option<Vec<u8>>,
}

impl<'a> Journal<'a> {
    pub(super) fn new(recorder: &'a mut dyn Recorder) -> Self {
        Self { recorder, messages: Vec::new(), turn: 0, stored: HashSet::new(), patch: None }
    }

    pub(super) fn record(&mut self, event: Event) -> Result<(), AgentError> {
        Ok(self.recorder.record(event)?)
    }

    /// The conversation so far.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn start_turn(&mut self) {
        self.turn += 1;
    }

    pub(super) async fn reset(
        &mut self,
        env: &mut dyn Env,
        task: &Task,
    ) -> Result<Result<Start, EnvError>, AgentError> {
        let started = Instant::now();
        let start = match env.reset(task).await {
            Ok(start) => start,
            Err(error) => return Ok(Err(error)),
        };
        self.record(Event::Reset {
            start_tree: start.start_tree.clone(),
            isolation: start.isolation.to_owned(),
            network: start.network.to_owned(),
            environment: start.environment.clone(),
            seconds: started.elapsed().as_secs_f64(),
        })?;
        Ok(Ok(start))
    }

    /// Adds a message to the conversation.
    pub(super) fn say(&mut self, message: Message) -> Result<(), AgentError> {
        let id = self.messages.len() as u64;
        self.record(Event::Message { id, message: message.clone() })?;
        self.messages.push(message);
        Ok(())
    }

    /// Records a request with its answer, which joins the conversation.
    pub(super) fn answer(
        &mut self,
        completion: &Completion,
        cost: Option<f64>,
        took: Duration,
    ) -> Result<(), AgentError> {
        let id = self.messages.len() as u64;
        let exchange = &completion.exchange;
        self.record(Event::Request {
            turn: self.turn,
            messages: if id == 0 { Vec::new() } else { vec![[0, id - 1]] },
            parameters: exchange.parameters.clone(),
            sha256: exchange.request_sha256.clone(),
        })?;
        self.record(Event::Response(Box::new(Response {
            turn: self.turn,
            message: id,
            raw: Bytes::from_slice(&exchange.response),
            finish_reason: completion.finish_reason,
            usage: completion.usage,
            cost,
            seconds: took.as_secs_f64(),
            retries: exchange.retries,
            prompt_token_ids: completion.prompt_token_ids.clone(),
            completion_token_ids: completion.completion_token_ids.clone(),
            logprobs: completion.logprobs.clone(),
        })))?;
        self.say(completion.message.clone())
    }

    pub(super) fn model_failure(&mut self, error: &ModelError) -> Result<(), AgentError> {
        let (class, detail) = (error.class().to_owned(), error.to_string());
        self.record(Event::ModelFailure { turn: self.turn, class, detail })
    }

    pub(super) fn format_error(&mut self, code: &str) -> Result<(), AgentError> {
        self.record(Event::FormatError { turn: self.turn, code: code.to_owned() })
    }

    pub(super) fn action(&mut self, action: &Action) -> Result<(), AgentError> {
        self.record(Event::Action { turn: self.turn, calls: action.calls.clone() })
    }

    pub(super) fn step(&mut self, stepped: &Stepped) -> Result<(), AgentError> {
        for observation in &stepped.step.observations {
            self.record(Event::Observation { turn: self.turn, observation: observation.clone() })?;
        }
        for (call_id, command) in &stepped.commands {
            // Text that holds every byte needs no copy of them.
            let whole = [command.head.as_slice(), &command.tail].concat();
            let shown = stepped
                .step
                .observations
                .iter()
                .find(|observation| observation.call_id == *call_id);
            if shown.is_some_and(|shown| shown.text.as_bytes().starts_with(whole.trim_ascii_end()))
            {
                continue;
            }
            self.record(Event::Output {
                turn: self.turn,
                call_id: call_id.clone(),
                head: Bytes::from_slice(&command.head),
                tail: Bytes::from_slice(&command.tail),
                total: command.total,
            })?;
        }
        Ok(())
    }

    /// Takes the patch as it is now.
    pub(super) async fn patch(
        &mut self,
        env: &mut dyn Env,
    ) -> Result<Result<(), EnvError>, AgentError> {
        let patch = match env.patch().await {
            Ok(patch) => patch,
            // The episode never started, so there is none.
            Err(EnvError::NotReset) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        let sha256 = digest::sha256(&patch.bytes);
        let receipt = patch.receipt;
        let content = self.stored.insert(sha256.clone()).then(|| Bytes::from_slice(&patch.bytes));
        self.record(Event::Patch {
            turn: self.turn,
            sha256,
            content,
            receipt: PatchReceipt {
                start_tree: receipt.start_tree,
                end_tree: receipt.end_tree,
                files: receipt.files,
                binary: receipt.binary,
                omitted: receipt.omitted,
                applies: receipt.applies,
            },
        })?;
        self.patch = Some(patch.bytes);
        Ok(Ok(()))
    }

    /// The newest patch.
    pub(super) fn into_patch(self) -> Option<Vec<u8>> {
        self.patch
    }
}
