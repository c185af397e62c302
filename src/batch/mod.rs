//! Many attempts: who plays what, in which folder, resumed from what is there.
//!
//! Takes in instances and a configuration; gives out a run folder and a [`summary::RunSummary`]. It is the one place
//! where tasks and answer keys, players and graders meet; it hands each only its half.

pub mod attempt;
pub mod cast;
pub mod folder;
pub mod manifest;
pub mod run;
pub mod summary;

use std::path::PathBuf;

/// Why a run cannot be made or kept.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run folder cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Another process works on the run.
    #[error("use run folder `{path}`: another process is working on it", path = .0.display())]
    Busy(PathBuf),
    /// The folder holds a run of another configuration.
    #[error("resume `{path}`: it was started with other settings:\n{list}", path = path.display(), list = .differences.join("\n"))]
    Different {
        /// The run folder.
        path: PathBuf,
        /// One line per setting: name, then, now.
        differences: Vec<String>,
    },
    /// The folder's manifest cannot be read.
    #[error("read `{path}`: {problem}", path = path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An event log cannot be written or read.
    #[error(transparent)]
    Trajectory(#[from] crate::trajectory::TrajectoryError),
    /// A prompt or tool set is broken.
    #[error(transparent)]
    Tools(#[from] crate::tools::ToolsError),
    /// The predictions cannot be written.
    #[error(transparent)]
    Predictions(#[from] crate::grade::predictions::PredictionError),
    /// A model for an instance cannot be made.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// A value cannot be written as JSON.
    #[error("write JSON")]
    Json(#[from] serde_json::Error),
    /// A task of the runtime ended unexpectedly.
    #[error("play an attempt: {0}")]
    Task(String),
}
