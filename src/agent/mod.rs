//! Who plays: the loop between a model and an environment. Start reading at [`play`].
//!
//! Takes in a task, an environment and a model; gives every event to a recorder; gives out how the episode ended. It
//! must not know what a sandbox is, nor what the answer is.

pub mod budget;
mod journal;
pub mod play;
pub mod preset;

use async_trait::async_trait;

use crate::env::Env;
use crate::model::Model;
use crate::protocol::episode::End;
use crate::protocol::record::Totals;
use crate::task::Task;
use crate::tools::ToolsError;
use crate::trajectory::Recorder;
use crate::trajectory::TrajectoryError;

/// Something that plays episodes.
///
/// ```no_run
/// # use patchgym::agent::{Agent, AgentError, Outcome};
/// # use patchgym::{env::Env, model::Model, task::Task, trajectory::Recorder};
/// # async fn play(agent: &dyn Agent, task: &Task, env: &mut dyn Env, model: &dyn Model, log: &mut dyn Recorder)
/// # -> Result<(), AgentError> {
/// let outcome = agent.run(task, env, model, log).await?;
/// assert!(outcome.totals.turns <= 100);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Agent: Send + Sync {
    /// Plays one episode. The patch is taken on every way out.
    ///
    /// # Errors
    /// Only when the event log cannot be written or a prompt is broken; everything else is an [`End`].
    async fn run(
        &self,
        task: &Task,
        env: &mut dyn Env,
        model: &dyn Model,
        recorder: &mut dyn Recorder,
    ) -> Result<Outcome, AgentError>;
}

/// How an episode went.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// One line about it, when there is more to say.
    pub detail: Option<String>,
    /// What it used.
    pub totals: Totals,
    /// The final patch; none when not even an attempt to take it succeeded.
    pub patch: Option<Vec<u8>>,
}

/// Why an episode could not be played at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The event log cannot be written.
    #[error(transparent)]
    Trajectory(#[from] TrajectoryError),
    /// A prompt or tool set is broken.
    #[error(transparent)]
    Tools(#[from] ToolsError),
}
