//! What grading says about a patch.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of one test, in the words of the SWE-bench harness.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum TestStatus {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It was skipped.
    Skipped,
    /// It could not run.
    Error,
    /// It failed as expected.
    Xfail,
    /// It passed although a failure was expected.
    Xpass,
}

/// Test name to status, as a parser read it from a log.
pub type TestMap = BTreeMap<String, TestStatus>;

/// The four verdicts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every test that must pass does.
    Resolved,
    /// Some test that must pass does not.
    Unresolved,
    /// There was nothing to grade.
    EmptyPatch,
    /// The patch could not be graded; says nothing about it.
    Error,
}

impl Outcome {
    /// The stable word for it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Resolved => "resolved",
            Outcome::Unresolved => "unresolved",
            Outcome::EmptyPatch => "empty_patch",
            Outcome::Error => "error",
        }
    }
}

/// Expected tests split by what happened to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// Tests that count as passed.
    pub success: Vec<String>,
    /// Tests that do not.
    pub failure: Vec<String>,
}

/// How a patch was applied, or that it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The command of the fallback chain that succeeded, such as `git apply --verbose`; none when all failed.
    pub method: Option<String>,
    /// What the commands printed.
    pub log: String,
}

/// Seconds spent in each part of grading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Making the sandbox.
    pub sandbox: f64,
    /// Applying the patch.
    pub apply: f64,
    /// Running the tests.
    pub test: f64,
    /// All of it.
    pub total: f64,
}

/// Why an attempt could not be graded.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum GradeError {
    /// No command of the chain could apply the patch.
    ApplyFailed,
    /// The tests did not end in time.
    TestTimeout,
    /// The log holds no results.
    NoResults,
    /// The sandbox failed.
    Sandbox,
    /// The task cannot be graded: it has no test to pass, or names an unknown parser.
    Task,
}

impl GradeError {
    /// The stable word for it.
    pub fn name(self) -> &'static str {
        match self {
            GradeError::ApplyFailed => "apply_failed",
            GradeError::TestTimeout => "test_timeout",
            GradeError::NoResults => "no_results",
            GradeError::Sandbox => "sandbox",
            GradeError::Task => "task",
        }
    }
}

/// What grading says about one patch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The benchmark's official rule.
    pub outcome: Outcome,
    /// Why there is no verdict, when `outcome` is `error`.
    pub error: Option<GradeError>,
    /// One line about the error.
    pub detail: Option<String>,
    /// How the patch was applied.
    pub apply: Option<Apply>,
    /// FAIL_TO_PASS by result.
    pub fail_to_pass: Split,
    /// PASS_TO_PASS by result.
    pub pass_to_pass: Split,
    /// Every test the log names.
    pub tests: TestMap,
    /// Where the seconds went.
    pub times: Times,
}
