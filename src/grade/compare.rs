//! Comparing what a log says with what was expected, by the rules of the SWE-bench harness 5.0.2.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use crate::grade::parse;
use crate::grade::parse::Mark;
use crate::grade::parse::Parser;
use crate::grade::parse::Reading;
use crate::grade::parse::pattern;
use crate::protocol::verdict::Split;
use crate::protocol::verdict::TestMap;
use crate::protocol::verdict::TestStatus;
use crate::task::AnswerKey;
use crate::task::EvalType;

/// What a script prints before the tests' output.
pub const START: &str = ">>>>> Start Test Output";
/// What a script prints behind the tests' output.
pub const END: &str = ">>>>> End Test Output";
/// What stands before `: N`, the exit status of the test command.
pub const EXIT_CODE: &str = ">>>>> Test Exit Code";

/// A log that holds one of these says nothing about the tests.
const FAILURES: [&str; 4] = [
    ">>>>> Patch Apply Failed",
    ">>>>> Reset Failed",
    ">>>>> Tests Errored",
    ">>>>> Tests Timed Out",
];

static STATUS: LazyLock<Regex> = LazyLock::new(|| pattern(&format!(r"{EXIT_CODE}:\s*(-?\d+)")));

/// Signs that a runner ran at least one test: parsers that only see failures give no test of a suite that passed.
static SUITE_RAN: LazyLock<Regex> = LazyLock::new(|| {
    let signs = [
        r"Executed [1-9]\d* of \d+",
        r"TOTAL: [1-9]\d* (?:SUCCESS|FAILED)",
        r"[1-9]\d* passing",
        r"Tests:\s+[1-9]\d*",
        r"Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total",
        r"^# tests [1-9]\d*",
        r"[1-9]\d* specs?, \d+ failures?",
        r"': ok$",
    ];
    pattern(&signs.join("|"))
});

/// Why an answer key cannot be compared with anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// No test shows that the task is solved, so every patch would.
    #[error("no test is expected to go from failing to passing")]
    NoTestToPass,
    /// The key names a log parser that does not exist.
    #[error("unknown log parser `{name}`")]
    UnknownParser {
        /// The name.
        name: String,
    },
}

/// What a log is compared with.
#[derive(Debug, Clone, Copy)]
pub struct Expectation<'a> {
    parser: Parser,
    key: &'a AnswerKey,
}

impl<'a> Expectation<'a> {
    /// Of a task's answer key; fails when nothing could be graded with it.
    pub fn new(key: &'a AnswerKey) -> Result<Expectation<'a>, CompareError> {
        if key.fail_to_pass.is_empty() {
            return Err(CompareError::NoTestToPass);
        }
        match parse::parser(&key.log_parser) {
            Some(parser) => Ok(Expectation { parser, key }),
            None => Err(CompareError::UnknownParser { name: key.log_parser.clone() }),
        }
    }
}

/// What a log says about the expected tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// Whether the log holds the results of a run; the harness calls this `patch_successfully_applied`. Without it no
    /// expected test passed.
    pub found: bool,
    /// Every test the log names.
    pub tests: TestMap,
    /// FAIL_TO_PASS by result.
    pub fail_to_pass: Split,
    /// PASS_TO_PASS by result.
    pub pass_to_pass: Split,
    /// Whether every expected test counts as passed.
    pub resolved: bool,
    /// What a person should know about the log, one line each.
    pub warnings: Vec<String>,
}

/// Finds the tests' output in the log of a whole script, parses and compares it.
pub fn results(log: &str, expectation: &Expectation<'_>) -> Results {
    match reading(&line_feeds(log), expectation.parser) {
        Some(reading) => compare(&reading, expectation),
        None => {
            let failed = |tests: &[String]| Split { success: Vec::new(), failure: tests.to_vec() };
            let key = expectation.key;
            let (fail_to_pass, pass_to_pass) =
                (failed(&key.fail_to_pass), failed(&key.pass_to_pass));
            Results { fail_to_pass, pass_to_pass, ..Results::default() }
        }
    }
}

/// Compares what a parser read with what was expected.
pub fn compare(reading: &Reading, expectation: &Expectation<'_>) -> Results {
    let key = expectation.key;
    let fail_to_pass = split(&key.fail_to_pass, |test| match key.eval_type {
        EvalType::PassAndFail => must_pass(reading, test),
        EvalType::FailOnly => must_not_fail(reading, test),
    });
    let pass_to_pass = split(&key.pass_to_pass, |test| match key.eval_type {
        EvalType::PassAndFail => must_go_on_passing(reading, test),
        EvalType::FailOnly => must_not_fail(reading, test),
    });
    Results {
        found: true,
        tests: reading.tests(),
        resolved: fail_to_pass.failure.is_empty() && pass_to_pass.failure.is_empty(),
        fail_to_pass,
        pass_to_pass,
        warnings: reading.warnings.clone(),
    }
}

/// The log as the harness reads it, from a file in text mode: every kind of line end is a line feed.
fn line_feeds(log: &str) -> Cow<'_, str> {
    if log.contains('\r') {
        Cow::Owned(log.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(log)
    }
}

/// What the log says, when it holds the results of a run.
fn reading(log: &str, parser: Parser) -> Option<Reading> {
    if FAILURES.iter().any(|failure| log.contains(failure)) {
        return None;
    }
    let mut reading = parser.read(&log[test_output(log)?]);
    if reading.is_empty() {
        // Streams that are not in order may put the results outside the marks.
        reading = parser.read(log);
    }
    if reading.is_empty() && !reading.failed_outside && !SUITE_RAN.is_match(log) {
        return None;
    }
    // A run that failed while no test did is not the run that the log shows: something printed results.
    let forged = !reading.is_empty() && failed(log) && !names_failure(&reading);
    (!forged).then_some(reading)
}

/// From the first start mark to the next mark of either kind, when both kinds occur at all.
fn test_output(log: &str) -> Option<Range<usize>> {
    log.contains(END).then_some(())?;
    let start = log.find(START)? + START.len();
    let rest = &log[start..];
    let end = [START, END].iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
    Some(start..start + end)
}

/// Whether the first exit status in the log is one of failure.
fn failed(log: &str) -> bool {
    STATUS
        .captures(log)
        .is_some_and(|found| found[1].chars().any(|digit| digit != '0' && digit != '-'))
}

fn names_failure(reading: &Reading) -> bool {
    let is_failure = |mark| match mark {
        Mark::Status(TestStatus::Failed | TestStatus::Error | TestStatus::Xpass) => true,
        Mark::Status(TestStatus::Passed | TestStatus::Skipped | TestStatus::Xfail)
        | Mark::Unknown => false,
    };
    reading.failed_outside || reading.iter().any(|(_, mark)| is_failure(mark))
}

/// Whether a test counts as passed; none when it counts neither way.
type Judgement = Option<bool>;

fn split(tests: &[String], judge: impl Fn(&str) -> Judgement) -> Split {
    let mut split = Split::default();
    for test in tests {
        match judge(test) {
            Some(true) => split.success.push(test.clone()),
            Some(false) => split.failure.push(test.clone()),
            None => {}
        }
    }
    split
}

fn must_pass(reading: &Reading, test: &str) -> Judgement {
    match lookup(reading, test) {
        Some(Mark::Status(status)) => Some(is_pass(status)),
        Some(Mark::Unknown) => None,
        None => Some(false),
    }
}

/// A skipped test is no regression.
fn must_go_on_passing(reading: &Reading, test: &str) -> Judgement {
    match lookup(reading, test) {
        Some(Mark::Status(TestStatus::Skipped)) => Some(true),
        Some(Mark::Status(status)) => Some(is_pass(status)),
        Some(Mark::Unknown) => None,
        None => Some(false),
    }
}

/// For parsers that only see failures: a missing test passed.
fn must_not_fail(reading: &Reading, test: &str) -> Judgement {
    Some(reading.get(test) != Some(Mark::Status(TestStatus::Failed)))
}

fn is_pass(status: TestStatus) -> bool {
    match status {
        TestStatus::Passed | TestStatus::Xfail => true,
        TestStatus::Failed | TestStatus::Skipped | TestStatus::Error | TestStatus::Xpass => false,
    }
}

/// The mark of an expected test. Data sets hold names that were cut at a space within their parameters, so one with an
/// open bracket stands for the first of all tests that begin with it, if these agree.
fn lookup(reading: &Reading, test: &str) -> Option<Mark> {
    let exact = reading.get(test);
    let is_cut = test.matches('[').count() > test.matches(']').count();
    if exact.is_some() || !is_cut {
        return exact;
    }
    let mut candidates =
        reading.iter().filter(|(name, _)| name.starts_with(test)).map(|(_, mark)| mark);
    let passes = |mark: Mark| matches!(mark, Mark::Status(status) if is_pass(status));
    let first = candidates.next()?;
    candidates.all(|mark| passes(mark) == passes(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parser: &str, fail_to_pass: &[&str], pass_to_pass: &[&str]) -> AnswerKey {
        let owned = |tests: &[&str]| tests.iter().map(|test| (*test).to_owned()).collect();
        AnswerKey {
            fail_to_pass: owned(fail_to_pass),
            pass_to_pass: owned(pass_to_pass),
            log_parser: parser.to_owned(),
            ..AnswerKey::default()
        }
    }

    fn run(body: &str, key: &AnswerKey) -> Results {
        let log = format!("+ : '{START}'\n{body}\n+ : '{END}'\n");
        results(&log, &Expectation::new(key).unwrap())
    }

    #[test]
    fn a_key_that_every_patch_would_meet_is_refused() {
        let none = key("parse_log_pytest", &[], &["t.py::test_a"]);
        assert_eq!(Expectation::new(&none).unwrap_err(), CompareError::NoTestToPass);
        let unknown = key("nose", &["t"], &[]);
        let error = Expectation::new(&unknown).unwrap_err();
        assert_eq!(error, CompareError::UnknownParser { name: "nose".to_owned() });
    }

    #[test]
    fn a_test_with_an_unknown_word_counts_neither_way() {
        let key = key("parse_log_pytest", &["t.py::a", "t.py::b"], &["t.py::c"]);
        let results = run("PASSED t.py::a\nPASSEDX t.py::b\nERROR: t.py::c", &key);
        assert_eq!(results.fail_to_pass.success, ["t.py::a"]);
        assert_eq!(
            (results.fail_to_pass.failure.len(), results.pass_to_pass, results.resolved),
            (0, Split::default(), true)
        );
        assert_eq!(results.tests.len(), 1);
    }

    #[test]
    fn the_first_named_of_several_tests_stands_for_a_cut_name() {
        let key = key("parse_log_pytest_v2", &["t.py::f"], &["t.py::a["]);
        let first_skipped =
            run("PASSED t.py::f\nSKIPPED t.py::a[x y]\nFAILED t.py::a[b c] - E", &key);
        assert_eq!(first_skipped.pass_to_pass.success, ["t.py::a["]);
        let first_failed =
            run("PASSED t.py::f\nFAILED t.py::a[b c] - E\nSKIPPED t.py::a[x y]", &key);
        assert_eq!(first_failed.pass_to_pass.failure, ["t.py::a["]);
    }

    #[test]
    fn a_carriage_return_ends_a_line() {
        let key = key("parse_log_pytest", &["t.py::a"], &[]);
        assert!(run("50%\rPASSED t.py::a\r\n", &key).resolved);
    }

    #[test]
    fn the_output_ends_at_the_next_mark_of_either_kind() {
        let key = key("parse_log_pytest", &["t.py::a"], &[]);
        let twice = run(&format!("PASSED t.py::a\n{START}\nFAILED t.py::a"), &key);
        assert!(twice.resolved);
    }

    #[test]
    fn a_suite_that_ran_without_a_named_test_is_found_when_only_failures_are_named() {
        let mut key = key("parse_log_sympy", &["test_a"], &[]);
        key.eval_type = EvalType::FailOnly;
        assert!(run(&format!("12 passing\n{EXIT_CODE}: 1"), &key).resolved);
        assert!(!run("0 passing", &key).found);
        assert_eq!(run("0 passing", &key).fail_to_pass.failure, ["test_a"]);
    }

    #[test]
    fn only_a_failed_run_without_any_failure_is_forged() {
        let unittest = key("unittest", &["m.C.test_a"], &[]);
        let body = "test_a (m.C.test_a) ... ok\nsetUpClass (m.D) ... ERROR";
        let log = |body: &str, code| format!("{START}\n{body}\n{END}\n{EXIT_CODE}: {code}\n");
        let grade = |log: String| results(&log, &Expectation::new(&unittest).unwrap());
        assert!(grade(log(body, 1)).resolved);
        assert!(!grade(log("test_a (m.C.test_a) ... ok", 1)).found);
        assert!(grade(log("test_a (m.C.test_a) ... ok", 0)).resolved);
        let unbuilt = key("go", &["TestA"], &[]);
        let results =
            results(&log("FAIL\tx.org/a [build failed]", 1), &Expectation::new(&unbuilt).unwrap());
        assert_eq!((results.found, results.resolved), (true, false));
        assert_eq!(results.warnings, ["build of package x.org/a failed"]);
    }
}
