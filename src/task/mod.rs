//! What to solve: tasks and their answer keys.
//!
//! Takes in rows of a benchmark, gives out [`Instance`]s. The two halves of an instance never travel together: the
//! environment and the agent see a [`Task`], only a grader sees an [`AnswerKey`].

pub(crate) mod cache;
mod git;
pub mod lists;
pub mod minimal;
mod plain;
mod pristine;
pub mod recipe;
pub mod repository;
pub mod rows;
pub mod select;
pub mod source;
pub mod swebench;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::task::rows::FieldError;
use crate::task::rows::Place;

/// A task with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// What the model may know.
    pub task: Task,
    /// What it must not.
    pub key: AnswerKey,
}

/// What a model may know of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The instance's id, unique in its set.
    pub id: String,
    /// The repository's name, `owner/name`.
    pub repo: String,
    /// The commit the work starts from.
    pub base_commit: String,
    /// The issue, inserted into prompts as data.
    pub problem_statement: String,
    /// The repository's version, which chooses an installation recipe; empty when the row has none.
    pub version: String,
    /// When the issue was filed, as the row writes it.
    pub created_at: String,
    /// The container image, when the row names one.
    pub image: Option<String>,
    /// Where the repository stands in the sandbox.
    pub workdir: String,
    /// Programs that must exist on the local backend.
    pub requires: Vec<String>,
    /// Where the repository comes from.
    pub source: RepositorySource,
}

/// Where a task's repository comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepositorySource {
    /// A tree embedded in the binary or data folder, committed deterministically; its folder name.
    Embedded(String),
    /// A clone or bare mirror on this machine.
    Clone(PathBuf),
    /// A plain directory; its files become one commit.
    Directory(PathBuf),
    /// Already in the image.
    Image,
    /// Not known here: the row needs `--repo-dir` or an image.
    Unknown,
}

/// What a model must not know of a task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerKey {
    /// The reference solution.
    pub gold_patch: String,
    /// The change that brings the hidden tests.
    pub test_patch: String,
    /// Tests that must fail before and pass after.
    pub fail_to_pass: Vec<String>,
    /// Tests that must pass before and after.
    pub pass_to_pass: Vec<String>,
    /// Discussion after the issue was filed.
    pub hints: String,
    /// The command that runs the hidden tests, when the row gives one.
    pub test_cmd: Option<String>,
    /// The benchmark's own script for a container, when the row gives one.
    pub eval_script: Option<String>,
    /// Name of the log parser.
    pub log_parser: String,
    /// How expected tests are compared.
    pub eval_type: EvalType,
}

/// How expected tests are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvalType {
    /// Every expected test must be seen to pass.
    #[default]
    PassAndFail,
    /// Only a test seen to fail counts against the patch.
    FailOnly,
}

/// Fields of a row that patchgym does not use, kept for exports.
pub type Extra = BTreeMap<String, serde_json::Value>;

/// Why tasks could not be loaded or chosen.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file could not be read; the inner error names it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file's name does not say what it holds.
    #[error("{}: not a .json, .jsonl or .yaml file", file.display())]
    Suffix {
        /// The file.
        file: PathBuf,
    },
    /// The text is not UTF-8.
    #[error("{place}: not UTF-8")]
    Encoding {
        /// Where.
        place: Place,
    },
    /// The text is not JSON.
    #[error("{place}: not valid JSON: {problem} (column {column})")]
    Json {
        /// Where.
        place: Place,
        /// Column of the line, from 1.
        column: usize,
        /// What the parser found.
        problem: String,
    },
    /// The text is not YAML, or not a task.
    #[error("{place}: not a valid task: {problem}")]
    Yaml {
        /// Where.
        place: Place,
        /// What the parser found.
        problem: String,
    },
    /// JSON of another shape than expected.
    #[error("{place}: expected {expected}, found {found}")]
    Shape {
        /// Where.
        place: Place,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A field is missing or unusable.
    #[error("{place}: {field}")]
    Field {
        /// Where.
        place: Place,
        /// The field and what is wrong with it.
        field: FieldError,
    },
    /// Two rows have one id.
    #[error("{place}: duplicate instance id, first on line {first}")]
    Duplicate {
        /// The second row.
        place: Place,
        /// Line of the first.
        first: usize,
    },
    /// A task file has a key that does not exist.
    #[error("{place}: unknown key `{key}`{}", nearest_known(nearest.as_deref()))]
    UnknownKey {
        /// Where.
        place: Place,
        /// The key.
        key: String,
        /// The known key it resembles.
        nearest: Option<&'static str>,
    },
    /// An id was asked for that no instance has.
    #[error("unknown instance id `{id}`{}", nearest_known(nearest.as_deref()))]
    UnknownId {
        /// The id.
        id: String,
        /// The known id it resembles.
        nearest: Option<String>,
    },
    /// A filter is not a regular expression.
    #[error("filter `{filter}`: {problem}")]
    Filter {
        /// The filter.
        filter: String,
        /// What the parser found.
        problem: String,
    },
    /// A slice is not written as Python writes it.
    #[error("slice `{slice}`: {problem}")]
    Slice {
        /// The slice.
        slice: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

fn nearest_known(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(", the nearest known is `{name}`"))
}
