//! One attempt: played, its patch kept, graded. Its state is read off its files alone.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::agent::Agent;
use crate::agent::play::ToolAgent;
use crate::batch::RunError;
use crate::batch::cast::Cast;
use crate::batch::folder::write_whole;
use crate::env::Env;
use crate::env::sandboxed::SandboxedEnv;
use crate::env::sandboxed::SandboxedOptions;
use crate::grade::Grader;
use crate::grade::report;
use crate::protocol::episode::End;
use crate::protocol::record::Event;
use crate::protocol::record::FORMAT;
use crate::protocol::record::Header;
use crate::protocol::record::Totals;
use crate::protocol::verdict::Outcome;
use crate::protocol::verdict::Verdict;
use crate::task::Instance;
use crate::trajectory::Recorder;
use crate::trajectory::reader;
use crate::trajectory::reader::Log;
use crate::trajectory::writer::Writer;

/// Name of the event log in an attempt's folder.
pub const EVENTS: &str = "events.jsonl";

/// What all attempts of a run share.
pub struct Stage {
    /// How environments are made.
    pub env: SandboxedOptions,
    /// The agent.
    pub agent: ToolAgent,
    /// Who plays.
    pub cast: Cast,
    /// The model's name for records.
    pub model: String,
    /// Attempts measure nothing.
    pub uses_gold: bool,
    /// Grades attempts; none when they are only collected.
    pub grader: Option<Arc<dyn Grader>>,
}

/// How an attempt went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttemptResult {
    /// The task's id.
    pub instance_id: String,
    /// Attempt, from 1.
    pub attempt: u32,
    /// Why it ended.
    pub end: End,
    /// One line about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What it used.
    pub totals: Totals,
    /// What grading says; none when it was not graded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The final patch.
    #[serde(skip)]
    pub patch: Option<Vec<u8>>,
}

impl AttemptResult {
    /// Whether the official rule calls it resolved.
    pub fn resolved(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.outcome == Outcome::Resolved)
    }

    /// The cause of an infrastructure error, in playing or in grading.
    pub fn error(&self) -> Option<&'static str> {
        if self.end.is_error() {
            return Some(self.end.name());
        }
        self.verdict
            .as_ref()
            .and_then(|verdict| verdict.error)
            .map(crate::protocol::verdict::GradeError::name)
    }
}

/// What an attempt's folder says.
pub enum State {
    /// Nothing was begun.
    Absent,
    /// It was cut off, or ended for a cause that says nothing about the model: it is played again.
    Unfinished,
    /// It was played.
    Played(Box<AttemptResult>),
}

/// Reads an attempt's state off its folder.
///
/// # Errors
/// When its event log is damaged in a way that no kill explains.
pub fn state(folder: &Path, instance_id: &str, attempt: u32) -> Result<State, RunError> {
    let path = folder.join(EVENTS);
    if !path.exists() {
        return Ok(State::Absent);
    }
    let log = match reader::read(&path) {
        Ok(log) => log,
        // Killed before the first line was whole.
        Err(crate::trajectory::TrajectoryError::NoHeader { .. }) => return Ok(State::Unfinished),
        Err(error) => return Err(error.into()),
    };
    Ok(match result_of(&log, instance_id, attempt)? {
        Some(result) if !result.end.is_error() => State::Played(Box::new(result)),
        Some(_) | None => State::Unfinished,
    })
}

fn result_of(
    log: &Log,
    instance_id: &str,
    attempt: u32,
) -> Result<Option<AttemptResult>, RunError> {
    let Some(end) = log.end() else { return Ok(None) };
    Ok(Some(AttemptResult {
        instance_id: instance_id.to_owned(),
        attempt,
        end: end.reason,
        detail: end.detail.map(str::to_owned),
        totals: *end.totals,
        verdict: log.verdict().cloned(),
        patch: log.final_patch()?.map(|patch| patch.bytes),
    }))
}

impl Stage {
    /// Brings an attempt to its end: plays it unless it was played, grades it unless it was graded.
    ///
    /// # Errors
    /// When its files cannot be read or written.
    pub async fn finish(
        &self,
        folder: &Path,
        instance: &Instance,
        attempt: u32,
    ) -> Result<AttemptResult, RunError> {
        let id = &instance.task.id;
        let result = match state(folder, id, attempt)? {
            State::Played(result) => *result,
            State::Absent => self.play(folder, instance, attempt).await?,
            State::Unfinished => {
                set_aside(folder)?;
                self.play(folder, instance, attempt).await?
            }
        };
        let graded =
            result.verdict.as_ref().is_some_and(|verdict| verdict.outcome != Outcome::Error);
        if graded || result.end.is_error() {
            return Ok(result);
        }
        self.grade(folder, instance, result).await
    }

    async fn play(
        &self,
        folder: &Path,
        instance: &Instance,
        attempt: u32,
    ) -> Result<AttemptResult, RunError> {
        let task = &instance.task;
        fs_err::create_dir_all(folder)?;
        let mut log = Writer::create(folder.join(EVENTS))?;
        let preset = &self.agent.preset;
        log.record(Event::Header(Box::new(Header {
            format: FORMAT,
            patchgym: env!("CARGO_PKG_VERSION").to_owned(),
            instance_id: task.id.clone(),
            attempt,
            repo: task.repo.clone(),
            base_commit: task.base_commit.clone(),
            problem_statement: task.problem_statement.clone(),
            agent: preset.name.clone(),
            model: self.model.clone(),
            uses_gold: self.uses_gold,
            dialect: preset.dialect.name().to_owned(),
            prompts: preset.hashes.clone(),
            tools: self.env.tools.tools.clone(),
            limits: self.agent.limits,
            seed: self.agent.sampling.seed,
            policy_version: None,
            training_step: None,
        })))?;
        let model = self.cast.model_for(instance)?;
        let mut env = SandboxedEnv::new(self.env.clone());
        let played = self.agent.run(task, &mut env, model.as_ref(), &mut log).await;
        if let Err(error) = env.close().await {
            tracing::warn!(instance = task.id, "closing the sandbox: {error}");
        }
        let outcome = played.map_err(|error| match error {
            crate::agent::AgentError::Trajectory(error) => RunError::from(error),
            crate::agent::AgentError::Tools(error) => RunError::from(error),
        })?;
        log.finish()?;
        let patch = outcome.patch.clone().unwrap_or_default();
        write_whole(&folder.join("patch.diff"), &patch)?;
        Ok(AttemptResult {
            instance_id: task.id.clone(),
            attempt,
            end: outcome.end,
            detail: outcome.detail,
            totals: outcome.totals,
            verdict: None,
            patch: outcome.patch,
        })
    }

    async fn grade(
        &self,
        folder: &Path,
        instance: &Instance,
        mut result: AttemptResult,
    ) -> Result<AttemptResult, RunError> {
        let Some(grader) = &self.grader else { return Ok(result) };
        let patch = result.patch.clone().unwrap_or_default();
        let graded = grader.grade(&instance.task, &instance.key, &patch).await;
        write_whole(&folder.join("test_output.txt"), &graded.log)?;
        write_whole(&folder.join("eval.sh"), graded.script.as_bytes())?;
        let log = crate::text::lossy(&graded.log);
        if let Some(report) = report::instance(&instance.task.id, &graded.verdict, &log) {
            write_whole(&folder.join("report.json"), report::json(&report)?.as_bytes())?;
        }
        let mut events = Writer::append_to(folder.join(EVENTS))?;
        events.record(Event::Verdict { verdict: Box::new(graded.verdict.clone()) })?;
        events.finish()?;
        result.verdict = Some(graded.verdict);
        Ok(result)
    }
}

/// Moves what an unfinished attempt left out of the way, so that nothing of it is lost.
fn set_aside(folder: &Path) -> Result<(), RunError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = (1..)
        .map(|number| folder.with_file_name(format!("{name}.unfinished-{number}")))
        .find(|path| !path.exists());
    if let Some(free) = free {
        fs_err::rename(folder, free)?;
    }
    Ok(())
}
