//! The loop: ask the model, read its calls, step the environment, say what came of it, until something ends it.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::agent::Agent;
use crate::agent::AgentError;
use crate::agent::Outcome;
use crate::agent::budget::Budget;
use crate::agent::journal::Journal;
use crate::agent::preset::Preset;
use crate::agent::preset::PromptValues;
use crate::env::Env;
use crate::env::Start;
use crate::model::Model;
use crate::model::ModelError;
use crate::model::price::Prices;
use crate::protocol::episode::End;
use crate::protocol::message::Message;
use crate::protocol::message::Request;
use crate::protocol::message::Role;
use crate::protocol::message::Sampling;
use crate::protocol::record::Event;
use crate::protocol::record::Limits;
use crate::task::Task;
use crate::trajectory::Recorder;

/// The agent of this project: prompts, tools and dialect from a preset.
pub struct ToolAgent {
    /// Prompts and dialect.
    pub preset: Arc<Preset>,
    /// Limits of an attempt.
    pub limits: Limits,
    /// Sampling settings of every request.
    pub sampling: Sampling,
    /// What tokens cost where the server does not say.
    pub prices: Arc<Prices>,
    /// Becomes true when a person wants the run to stop.
    pub stop: watch::Receiver<bool>,
}

/// Why an episode ended, and one line about it when there is more to say.
type Ended = (End, Option<String>);

#[async_trait]
impl Agent for ToolAgent {
    async fn run(
        &self,
        task: &Task,
        env: &mut dyn Env,
        model: &dyn Model,
        recorder: &mut dyn Recorder,
    ) -> Result<Outcome, AgentError> {
        let mut budget = Budget::new(self.limits);
        let mut journal = Journal::new(recorder);
        let (end, detail) = self.play(task, env, model, &mut budget, &mut journal).await?;
        // Whatever ended the episode, what was done so far is the answer.
        if let Err(error) = journal.patch(env).await? {
            journal.record(Event::Warning {
                text: format!("the final patch could not be taken: {error}"),
            })?;
        }
        let totals = budget.totals();
        journal.record(Event::End { reason: end, detail: detail.clone(), totals })?;
        Ok(Outcome { end, detail, totals, patch: journal.into_patch() })
    }
}

impl ToolAgent {
    async fn play(
        &self,
        task: &Task,
        env: &mut dyn Env,
        model: &dyn Model,
        budget: &mut Budget,
        journal: &mut Journal<'_>,
    ) -> Result<Ended, AgentError> {
        let start = tokio::select! {
            start = journal.reset(env, task) => start?,
            () = stopped(&self.stop) => return Ok((End::Interrupted, None)),
        };
        let start = match start {
            Ok(start) => start,
            Err(error) => return Ok((End::SandboxError, Some(error.to_string()))),
        };
        self.greet(task, &start, journal)?;
        let dialect = self.preset.dialect;
        let tools = if dialect.is_native() { env.tools().to_vec() } else { Vec::new() };
        loop {
            if let Some(end) = budget.spent() {
                return Ok((end, None));
            }
            budget.start_turn();
            journal.start_turn();
            let request = Request {
                messages: journal.messages().to_vec(),
                tools: tools.clone(),
                sampling: self.sampling.clone(),
            };
            let asked = Instant::now();
            let answer = tokio::select! {
                answer = model.complete(&request) => answer,
                () = stopped(&self.stop) => return Ok((End::Interrupted, None)),
                () = budget.wall_clock() => return Ok((End::TimeLimit, None)),
            };
            let completion = match answer {
                Ok(completion) => completion,
                Err(error) => {
                    journal.model_failure(&error)?;
                    return Ok((end_of(&error), Some(error.to_string())));
                }
            };
            let cost = completion
                .cost
                .or_else(|| self.prices.cost(model.name(), completion.usage.as_ref()?));
            if budget.charge(completion.usage, cost) {
                let text = format!(
                    "the price of `{}` is not known, so dollars are not counted",
                    model.name()
                );
                journal.record(Event::Warning { text })?;
            }
            journal.answer(&completion, cost, asked.elapsed())?;
            let action = match dialect.read(
                &completion,
                self.preset.calls_per_turn,
                self.sampling.max_tokens,
            ) {
                Ok(action) => action,
                Err(error) => {
                    let text = self.preset.format_error(&error)?;
                    journal.format_error(error.code)?;
                    for message in dialect.correction(&completion.message, &text) {
                        journal.say(message)?;
                    }
                    if budget.format_error() {
                        return Ok((End::FormatErrors, Some(error.code.to_owned())));
                    }
                    continue;
                }
            };
            budget.well_formed();
            journal.action(&action)?;
            let stepped = tokio::select! {
                stepped = env.step(&action) => stepped,
                () = stopped(&self.stop) => return Ok((End::Interrupted, None)),
                () = budget.wall_clock() => return Ok((End::TimeLimit, None)),
            };
            let stepped = match stepped {
                Ok(stepped) => stepped,
                Err(error) => return Ok((End::SandboxError, Some(error.to_string()))),
            };
            budget.ran(&stepped);
            journal.step(&stepped)?;
            for message in dialect.answers(&stepped.step.observations) {
                journal.say(message)?;
            }
            if let Some(end) = stepped.step.end {
                return Ok((end, None));
            }
            if let Err(error) = journal.patch(env).await? {
                return Ok((End::SandboxError, Some(error.to_string())));
            }
        }
    }

    fn greet(
        &self,
        task: &Task,
        start: &Start,
        journal: &mut Journal<'_>,
    ) -> Result<(), AgentError> {
        let values = PromptValues {
            issue: task.problem_statement.trim_end(),
            repo: &task.repo,
            workdir: &start.workdir,
            network: start.network,
            command_limit: self.limits.command,
        };
        journal.say(Message::text(Role::System, self.preset.system(&values)?))?;
        journal.say(Message::text(Role::User, self.preset.task(&values)?))
    }
}

fn end_of(error: &ModelError) -> End {
    match error {
        ModelError::ContextOverflow(_) => End::ContextLimit,
        ModelError::Auth(_) => End::ModelAuth,
        ModelError::ScriptEnded(_) => End::ScriptEnded,
        ModelError::RateLimit(_)
        | ModelError::BadRequest(_)
        | ModelError::Server(_)
        | ModelError::Unreachable(_)
        | ModelError::BadAnswer(_)
        | ModelError::NotRecorded(_)
        | ModelError::Setup(_) => End::ModelError,
    }
}

/// Resolves when a person wants the run to stop.
async fn stopped(stop: &watch::Receiver<bool>) {
    let mut stop = stop.clone();
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Whoever could stop the run is gone, so nobody will.
        std::future::pending::<()>().await;
    }
}
