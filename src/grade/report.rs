//! The report files of the SWE-bench harness: one per instance, one per run.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::Serialize;
use sha2::Digest;
use sha2::Sha256;

use crate::grade::parse::pattern;
use crate::protocol::verdict::GradeError;
use crate::protocol::verdict::Outcome;
use crate::protocol::verdict::Split;
use crate::protocol::verdict::Verdict;

/// The longest folder name, in bytes; most file systems take 255.
const LONGEST_NAME: usize = 200;

/// What a log that did not end well shows; a hint for people that changes no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The harness's word for it.
    pub name: &'static str,
    /// Whether a patch of the repository could cause it.
    pub blame: Blame,
}

/// Who may have caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Only the environment.
    Environment,
    /// The environment or the patch.
    Unclear,
}

/// In the order in which they are looked for.
static REASONS: LazyLock<[(Reason, Regex); 8]> = LazyLock::new(|| {
    let environment = |name, signs| (Reason { name, blame: Blame::Environment }, pattern(signs));
    let unclear = |name, signs| (Reason { name, blame: Blame::Unclear }, pattern(signs));
    [
        environment("browser_launch_failed", "Failed to launch|Failed to connect to the bus"),
        environment(
            "display_unavailable",
            "cannot open display|Missing X server|unable to open X display",
        ),
        environment("out_of_memory", "Cannot allocate memory|OutOfMemoryError|^Killed$"),
        environment(
            "container_unavailable",
            "Error response from daemon|Cannot connect to the Docker daemon",
        ),
        environment(
            "network_unreachable",
            "Could not resolve host|Temporary failure in name resolution",
        ),
        unclear("missing_module", "Cannot find module|MODULE_NOT_FOUND|ModuleNotFoundError"),
        unclear("no_tests_collected", "no tests ran|collected 0 items"),
        unclear("tests_timed_out", r"Timeout error: \d+ seconds exceeded"),
    ]
});

/// The first known reason that shows in a log.
pub fn reason(log: &str) -> Option<Reason> {
    REASONS.iter().find(|(_, signs)| signs.is_match(log)).map(|(reason, _)| *reason)
}

/// The `report.json` of one instance, keyed by its id.
pub type InstanceReport = BTreeMap<String, InstanceStatus>;

/// What `report.json` says about an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceStatus {
    /// Whether the prediction had no patch.
    #[serde(rename = "patch_is_None")]
    pub patch_is_none: bool,
    /// Whether it had one.
    pub patch_exists: bool,
    /// Whether the log held results.
    pub patch_successfully_applied: bool,
    /// The verdict.
    pub resolved: bool,
    /// Whether the environment is to blame that there are no results.
    pub infra_failure: bool,
    /// What there is instead of results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra_failure_reason: Option<&'static str>,
    /// The expected tests; none without results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests_status: Option<TestsStatus>,
}

/// Expected tests by what was expected and what happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub struct TestsStatus {
    /// Tests that the patch must repair.
    pub fail_to_pass: Split,
    /// Tests that it must not break.
    pub pass_to_pass: Split,
    /// Always empty; readers expect the key.
    pub fail_to_fail: Split,
    /// Always empty; readers expect the key.
    pub pass_to_fail: Split,
}

/// The report of one graded instance, `log` being what its tests printed. None when the harness writes none: for an
/// empty patch, and when there was no run to look at.
pub fn instance(id: &str, verdict: &Verdict, log: &str) -> Option<InstanceReport> {
    let (resolved, found) = match standing(verdict) {
        Outcome::Resolved => (true, true),
        Outcome::Unresolved => (false, verdict.error.is_none()),
        Outcome::EmptyPatch | Outcome::Error => return None,
    };
    let reason = if found { None } else { reason(log) };
    let status = InstanceStatus {
        patch_is_none: false,
        patch_exists: true,
        patch_successfully_applied: found,
        resolved,
        infra_failure: reason.is_some_and(|reason| reason.blame == Blame::Environment),
        infra_failure_reason: reason.map(|reason| reason.name),
        tests_status: found.then(|| TestsStatus {
            fail_to_pass: verdict.fail_to_pass.clone(),
            pass_to_pass: verdict.pass_to_pass.clone(),
            ..TestsStatus::default()
        }),
    };
    Some(InstanceReport::from([(id.to_owned(), status)]))
}

/// The harness's list for a verdict: to it a run without results is unresolved, whatever the reason.
fn standing(verdict: &Verdict) -> Outcome {
    match verdict.error {
        Some(GradeError::NoResults) => Outcome::Unresolved,
        Some(
            GradeError::ApplyFailed
            | GradeError::TestTimeout
            | GradeError::Sandbox
            | GradeError::Task,
        )
        | None => verdict.outcome,
    }
}

/// One line of a run summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    outcome: Outcome,
    reason: Option<Reason>,
}

impl Entry {
    /// Of a graded instance, `log` being all that was logged about it.
    pub fn new(verdict: &Verdict, log: &str) -> Entry {
        let outcome = standing(verdict);
        let reason = match outcome {
            Outcome::Unresolved | Outcome::Error => reason(log),
            Outcome::Resolved | Outcome::EmptyPatch => None,
        };
        Entry { outcome, reason }
    }

    /// Of an instance that was submitted but, for whatever reason, not graded.
    pub fn ungraded() -> Entry {
        Entry { outcome: Outcome::Error, reason: None }
    }
}

/// The summary of a run. Every id of the data set is in exactly one of `resolved_ids`, `unresolved_ids`,
/// `empty_patch_ids`, `error_ids` and `incomplete_ids` (not submitted).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the format; each list is sorted and has its count")]
pub struct Summary {
    pub total_instances: usize,
    pub submitted_instances: usize,
    pub completed_instances: usize,
    pub resolved_instances: usize,
    pub unresolved_instances: usize,
    pub infra_failure_instances: usize,
    pub ambiguous_failure_instances: usize,
    pub empty_patch_instances: usize,
    pub error_instances: usize,
    pub completed_ids: Vec<String>,
    pub incomplete_ids: Vec<String>,
    pub empty_patch_ids: Vec<String>,
    pub submitted_ids: Vec<String>,
    pub resolved_ids: Vec<String>,
    pub unresolved_ids: Vec<String>,
    pub infra_failure_ids: Vec<String>,
    pub ambiguous_failure_ids: Vec<String>,
    pub failure_reasons: BTreeMap<String, &'static str>,
    pub error_ids: Vec<String>,
    pub schema_version: u32,
    /// Submitted ids that the data set does not have; they count nowhere. The harness stops at such an id, so the key
    /// is only there when there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_ids: Vec<String>,
}

/// The summary of what was submitted for a data set.
pub fn summary<'a>(
    dataset: impl IntoIterator<Item = &'a str>,
    submitted: &BTreeMap<String, Entry>,
) -> Summary {
    let dataset: BTreeSet<&str> = dataset.into_iter().collect();
    let mut summary =
        Summary { schema_version: 2, total_instances: dataset.len(), ..Summary::default() };
    for id in &dataset {
        let id = (*id).to_owned();
        let Some(entry) = submitted.get(&id) else {
            summary.incomplete_ids.push(id);
            continue;
        };
        summary.submitted_ids.push(id.clone());
        if let Some(reason) = entry.reason {
            summary.failure_reasons.insert(id.clone(), reason.name);
            match reason.blame {
                Blame::Environment => summary.infra_failure_ids.push(id.clone()),
                Blame::Unclear => summary.ambiguous_failure_ids.push(id.clone()),
            }
        }
        match entry.outcome {
            Outcome::Resolved => {
                summary.completed_ids.push(id.clone());
                summary.resolved_ids.push(id);
            }
            Outcome::Unresolved => {
                summary.completed_ids.push(id.clone());
                summary.unresolved_ids.push(id);
            }
            Outcome::EmptyPatch => summary.empty_patch_ids.push(id),
            Outcome::Error => summary.error_ids.push(id),
        }
    }
    summary.unknown_ids =
        submitted.keys().filter(|id| !dataset.contains(id.as_str())).cloned().collect();
    summary.submitted_instances = summary.submitted_ids.len();
    summary.completed_instances = summary.completed_ids.len();
    summary.resolved_instances = summary.resolved_ids.len();
    summary.unresolved_instances = summary.unresolved_ids.len();
    summary.infra_failure_instances = summary.infra_failure_ids.len();
    summary.ambiguous_failure_instances = summary.ambiguous_failure_ids.len();
    summary.empty_patch_instances = summary.empty_patch_ids.len();
    summary.error_instances = summary.error_ids.len();
    summary
}

/// A report as the harness writes it, indented by four spaces. Fails only when a value cannot be JSON.
pub fn json(report: &impl Serialize) -> serde_json::Result<String> {
    let mut text = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    report.serialize(&mut serde_json::Serializer::with_formatter(&mut text, indent))?;
    Ok(crate::text::lossy(&text))
}

/// The folder of a model: its name with `/` as `__`. See [`instance_folder`] for names that are no ordinary ones; a
/// name with `__` of its own is none either, since it could be another's with `/`.
pub fn model_folder(model: &str) -> String {
    let folder = model.replace('/', "__");
    if folder.replace("__", "/") == model { component(&folder, model) } else { odd(&folder, model) }
}

/// The folder of an instance: its id. When that cannot be one path component that is safe everywhere, what can stays
/// and `~` with a hash of the name follows, so that two names never share a folder.
pub fn instance_folder(id: &str) -> String {
    component(id, id)
}

/// The file name of a run's summary.
pub fn summary_file(model: &str, run_id: &str) -> String {
    format!(
        "{}.json",
        component(&format!("{}.{run_id}", model_folder(model)), &format!("{model}\0{run_id}"))
    )
}

fn is_ordinary(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-+@:=, ".contains(character)
}

fn component(folder: &str, name: &str) -> String {
    let ordinary = folder.len() <= LONGEST_NAME
        && folder.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && !folder.ends_with(' ')
        && folder.chars().all(is_ordinary);
    if ordinary { folder.to_owned() } else { odd(folder, name) }
}

fn odd(folder: &str, name: &str) -> String {
    let kept: String = folder
        .chars()
        .map(|character| if is_ordinary(character) { character } else { '-' })
        .collect();
    let kept = kept.trim_start_matches(['.', '-', ' ']);
    let kept = if kept.is_empty() { "unnamed" } else { &kept[..kept.len().min(LONGEST_NAME - 17)] };
    let hash = Sha256::digest(name);
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{kept}~{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_stay_and_odd_ones_get_a_hash() {
        assert_eq!(model_folder("org/demo-model v1"), "org__demo-model v1");
        assert_eq!(model_folder("ollama:llama3.1:8b"), "ollama:llama3.1:8b");
        assert_eq!(instance_folder("django__django-11099"), "django__django-11099");
        assert_eq!(summary_file("org/model", "run.1"), "org__model.run.1.json");
        for (one, other) in
            [("a_/b", "a/_b"), ("a__b", "a/b"), ("a/b", "a~b"), ("", "unnamed"), ("x\ny", "x-y")]
        {
            assert_ne!(model_folder(one), model_folder(other));
        }
        assert!(instance_folder("../../etc/passwd").starts_with("etc-passwd~"));
        assert!(instance_folder("").starts_with("unnamed~"));
        assert!(summary_file(&"m".repeat(300), "r").len() <= 255);
    }
}
