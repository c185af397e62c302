//! Was it right: a patch is put on the pristine repository and the hidden tests are run.
//!
//! Takes in a task, its answer key and the bytes of a patch; gives out a verdict, the log of the tests and the script
//! that ran them. It must not know of models, agents or trajectories.

pub mod apply;
pub mod compare;
pub mod diff;
pub mod official;
pub mod parse;
pub mod predictions;
pub mod report;
pub mod sandboxed;
pub mod script;

use async_trait::async_trait;

use crate::protocol::verdict::Verdict;
use crate::task::AnswerKey;
use crate::task::Task;

/// Says whether a patch solves a task.
///
/// ```no_run
/// # use patchgym::grade::Grader;
/// # use patchgym::protocol::verdict::Outcome;
/// # use patchgym::task::Instance;
/// # async fn check(grader: &dyn Grader, instance: &Instance) {
/// let graded = grader.grade(&instance.task, &instance.key, instance.key.gold_patch.as_bytes()).await;
/// assert_eq!(graded.verdict.outcome, Outcome::Resolved);
/// # }
/// ```
#[async_trait]
pub trait Grader: Send + Sync {
    /// Grades one patch. Never fails: what keeps a patch from being graded is a verdict too, with
    /// [`crate::protocol::verdict::Outcome::Error`] and the reason.
    async fn grade(&self, task: &Task, key: &AnswerKey, patch: &[u8]) -> Graded;
}

/// What came of grading one patch.
#[derive(Debug, Clone, PartialEq)]
pub struct Graded {
    /// The verdict.
    pub verdict: Verdict,
    /// What the script printed, for `test_output.txt`; empty when it was not run.
    pub log: Vec<u8>,
    /// The script that ran the tests, for `eval.sh`; empty when there was none to make.
    pub script: String,
}
