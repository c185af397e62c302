//! Logs of `go test -v`.

use std::collections::BTreeSet;
use std::mem;
use std::sync::LazyLock;

use regex::Regex;

use super::reading::Mark;
use super::reading::Reading;
use super::text::pattern;
use super::text::strip;
use crate::protocol::verdict::TestStatus;
use crate::text::plain;

static OFFICIAL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^--- (PASS|FAIL|SKIP): (.+) \(.+\)$"));
static RUN: LazyLock<Regex> = LazyLock::new(|| pattern(r"=== RUN\s+(\S+)$"));
static RESULT: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"--- (PASS|FAIL|SKIP): (\S+) \(\d[\d.]*s\)$"));
static PACKAGE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^(?:ok  |FAIL|\?   )\t(\S+)(?: \[(build|setup) failed\])?"));

fn status(word: &str) -> TestStatus {
    match word {
        "PASS" => TestStatus::Passed,
        "SKIP" => TestStatus::Skipped,
        _ => TestStatus::Failed,
    }
}

/// The official rules: every line that is a result.
pub(super) fn gotest(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in log.split('\n').map(strip) {
        if let Some(found) = OFFICIAL.captures(line) {
            reading.set(&found[2], Mark::Status(status(&found[1])));
        }
    }
    reading
}

/// Our rules: a result counts once for a test that was started, also after text without a line end; a test without
/// one failed; of the same name in two packages the worse counts.
pub(super) fn go(log: &str) -> Reading {
    let log = plain(log);
    let mut reading = Reading::default();
    let mut running = BTreeSet::new();
    for line in log.lines().map(str::trim_end) {
        if let Some(found) = RUN.captures(line).and_then(|found| found.get(1)) {
            running.insert(found.as_str());
        } else if let Some(found) = RESULT.captures(line) {
            if running.remove(&found[2]) {
                reading.worsen(&found[2], status(&found[1]));
            }
        } else if let Some(found) = PACKAGE.captures(line) {
            fail(&mut reading, &mut running);
            if let Some(step) = found.get(2) {
                reading.failed_outside = true;
                reading.warnings.push(format!("{} of package {} failed", step.as_str(), &found[1]));
            }
        }
    }
    fail(&mut reading, &mut running);
    reading
}

fn fail(reading: &mut Reading, running: &mut BTreeSet<&str>) {
    for test in mem::take(running) {
        reading.worsen(test, TestStatus::Failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_still_ran_when_the_log_ended_failed() {
        let log =
            "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\ntext=== RUN   TestB/sub\n";
        let tests: Vec<_> = go(log).tests().into_iter().collect();
        let expected = [
            ("TestA", TestStatus::Passed),
            ("TestB", TestStatus::Failed),
            ("TestB/sub", TestStatus::Failed),
        ];
        assert_eq!(tests, expected.map(|(test, status)| (test.to_owned(), status)));
        assert!(!go(log).failed_outside);
    }
}
