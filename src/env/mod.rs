//! The gym: an environment a policy can be put into.
//!
//! Takes in a task and actions, gives out observations and, at any time, the patch. It must not know who acts, nor what
//! the answer is.

mod delivery;
pub mod environments;
mod installation;
pub mod sandboxed;
pub mod site;

use async_trait::async_trait;

use crate::protocol::episode::Action;
use crate::protocol::episode::Step;
use crate::protocol::message::ToolSchema;
use crate::protocol::operation::CommandResult;
use crate::protocol::operation::Receipt;
use crate::task::Task;

/// An environment. A turn is one action; dropping a step's future cancels what runs and leaves the environment usable.
///
/// ```no_run
/// # use patchgym::env::{Env, EnvError};
/// # use patchgym::protocol::episode::{Action, Call};
/// # use patchgym::task::Task;
/// # async fn play(env: &mut dyn Env, task: &Task) -> Result<Vec<u8>, EnvError> {
/// env.reset(task).await?;
/// let arguments = serde_json::json!({"command": "ls"}).as_object().cloned().unwrap_or_default();
/// let call = Call { id: "1".into(), tool: "run".into(), arguments };
/// let step = env.step(&Action { calls: vec![call] }).await?;
/// assert!(step.step.end.is_none());
/// let patch = env.patch().await?;
/// env.close().await?;
/// # Ok(patch.bytes)
/// # }
/// ```
#[async_trait]
pub trait Env: Send {
    /// The tools a policy may call.
    fn tools(&self) -> &[ToolSchema];

    /// Starts an episode; a second reset gives the same tree and observation, byte for byte.
    ///
    /// # Errors
    /// When the repository or the sandbox cannot be made: an infrastructure or user error, never the policy's.
    async fn reset(&mut self, task: &Task) -> Result<Start, EnvError>;

    /// Plays one turn.
    ///
    /// # Errors
    /// When the sandbox is lost for good.
    async fn step(&mut self, action: &Action) -> Result<Stepped, EnvError>;

    /// The difference between the pristine tree and the tree now.
    ///
    /// # Errors
    /// When the sandbox is lost for good.
    async fn patch(&mut self) -> Result<Patch, EnvError>;

    /// Ends the episode and removes the sandbox.
    ///
    /// # Errors
    /// When something could not be removed.
    async fn close(&mut self) -> Result<(), EnvError>;
}

/// A started episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The first observation: the issue.
    pub observation: String,
    /// Where the repository stands.
    pub workdir: String,
    /// Git's name of the pristine tree.
    pub start_tree: String,
    /// What keeps the sandbox apart from the machine.
    pub isolation: &'static str,
    /// What the sandbox can reach.
    pub network: &'static str,
    /// The hash of what its environment was made of, when that was made from a recipe.
    pub environment: Option<String>,
}

/// A played turn, with what the log keeps besides.
#[derive(Debug, Clone, PartialEq)]
pub struct Stepped {
    /// The turn.
    pub step: Step,
    /// Results of commands by call id.
    pub commands: Vec<(String, CommandResult)>,
}

/// A patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The patch; UTF-8, since files that are not stand as binary hunks.
    pub bytes: Vec<u8>,
    /// What is known about it.
    pub receipt: Receipt,
}

/// Why an environment cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The repository cannot be prepared.
    #[error(transparent)]
    Repository(#[from] crate::task::repository::RepositoryError),
    /// The Python environment cannot be prepared.
    #[error(transparent)]
    Environment(#[from] crate::env::environments::PrepareError),
    /// The sandbox cannot be made, or is gone.
    #[error(transparent)]
    Sandbox(#[from] crate::sandbox::SandboxError),
    /// The guest cannot work.
    #[error(transparent)]
    Guest(#[from] crate::sandbox::client::GuestError),
    /// The tool set lacks a sentence.
    #[error(transparent)]
    Tools(#[from] crate::tools::ToolsError),
    /// There is no episode.
    #[error("play a turn: the environment was not reset")]
    NotReset,
    /// The data for the preparation is missing.
    #[error("prepare the task: {0}")]
    Preparation(String),
}
