//! Our rules for `python -m unittest -v` and Django's runner, which prints the same: a name, perhaps the docstring on
//! a second line, ` ... `, whatever the test itself prints, and the result.

use std::sync::LazyLock;

use regex::Regex;

use super::reading::Reading;
use super::text::pattern;
use crate::protocol::verdict::TestStatus;
use crate::text::plain;

const WORDS: [(&str, TestStatus); 5] = [
    ("ok", TestStatus::Passed),
    ("FAIL", TestStatus::Failed),
    ("ERROR", TestStatus::Error),
    ("expected failure", TestStatus::Xfail),
    ("unexpected success", TestStatus::Xpass),
];

/// `test_x (mod.Class)` of older Pythons, `test_x (mod.Class.test_x)` since 3.11.
static TEST: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\A([\p{Alphabetic}_]\w*) \(([\w.<>-]+)\)"));
static HEADING: LazyLock<Regex> =
    LazyLock::new(|| pattern("^(FAIL|ERROR|UNEXPECTED SUCCESS): (.*)$"));
static RAN: LazyLock<Regex> = LazyLock::new(|| pattern(r"^Ran (\d+) tests? in \d"));

/// A test as the runner names it.
#[derive(Debug, Clone, Copy)]
struct Test<'a> {
    /// Name and class as they are printed.
    printed: &'a str,
    name: &'a str,
    path: &'a str,
    /// Whether it is a subtest, which is printed within its test.
    part: bool,
}

impl Test<'_> {
    /// Whether it is no test but the set-up or tear-down around several.
    fn is_fixture(&self) -> bool {
        matches!(self.name, "setUpClass" | "tearDownClass" | "setUpModule" | "tearDownModule")
    }

    /// The name in either version's format.
    fn full_name(&self) -> String {
        match self.path.strip_suffix(self.name) {
            Some(class) if class.is_empty() || class.ends_with('.') => self.path.to_owned(),
            Some(_) | None => format!("{}.{}", self.path, self.name),
        }
    }
}

/// A test that began and whose result was not seen yet.
#[derive(Debug)]
struct Open<'a> {
    test: Test<'a>,
    docstring: Option<&'a str>,
    /// The last line it printed.
    printed: &'a str,
}

/// One result in a log.
#[derive(Debug)]
struct Found<'a> {
    test: Test<'a>,
    docstring: Option<&'a str>,
    status: TestStatus,
}

/// Reads a log line by line.
#[derive(Debug, Default)]
struct Lines<'a> {
    previous: &'a str,
    open: Option<Open<'a>>,
    /// The test that the previous line names without ` ... `: the docstring should follow.
    named: Option<Test<'a>>,
    found: Vec<Found<'a>>,
    /// Sum of the `Ran N tests` lines.
    ran: Option<usize>,
}

pub(super) fn unittest(log: &str) -> Reading {
    let mut reading = Reading::default();
    let log = plain(log);
    for found in read(&log, &mut reading) {
        if !found.test.is_fixture() {
            reading.worsen(&found.test.full_name(), found.status);
        }
    }
    reading
}

/// Keeps names as they are printed, since expectations were made so: a docstring is a second name of its test.
pub(super) fn django(log: &str) -> Reading {
    let mut reading = Reading::default();
    let log = plain(log);
    for found in read(&log, &mut reading) {
        reading.worsen(found.test.printed, found.status);
        if let Some(docstring) = found.docstring {
            reading.worsen(docstring, found.status);
        }
    }
    reading
}

/// The results of a log; what they say beside single tests goes to `reading`.
fn read<'a>(log: &'a str, reading: &mut Reading) -> Vec<Found<'a>> {
    let mut lines = Lines::default();
    for line in log.lines().map(str::trim_end) {
        lines.read(line);
        lines.previous = line;
    }
    let is_failure = |status| matches!(status, TestStatus::Failed | TestStatus::Error);
    reading.failed_outside =
        lines.found.iter().any(|found| found.test.is_fixture() && is_failure(found.status));
    let mut names: Vec<String> = lines
        .found
        .iter()
        .filter(|found| !found.test.is_fixture())
        .map(|found| found.test.full_name())
        .collect();
    names.sort_unstable();
    names.dedup();
    if let Some(ran) = lines.ran.filter(|ran| *ran != names.len()) {
        reading.warnings.push(format!(
            "the runner says it ran {ran} tests, the log has results of {}",
            names.len()
        ));
    }
    lines.found
}

impl<'a> Lines<'a> {
    fn read(&mut self, line: &'a str) {
        if is_bar(self.previous)
            && let Some((test, status)) = heading(line)
        {
            self.close();
            self.named = None;
            self.found.push(Found { test, docstring: None, status });
        } else if let Some((test, rest)) = test(line.trim_start()) {
            self.read_test(test, rest);
        } else if let Some((test, (docstring, rest))) = self.named.take().zip(behind_dots(line)) {
            if let Some((next, rest)) = self.begin(test, Some(docstring.trim()), rest) {
                self.read_test(next, rest);
            }
        } else if let Some(ran) = RAN.captures(line) {
            self.close();
            self.ran = Some(self.ran.unwrap_or(0).saturating_add(ran[1].parse().unwrap_or(0)));
        } else if let Some(open) = self.open.take() {
            match result(line.trim()) {
                Some(status) => {
                    self.found.push(Found { test: open.test, docstring: open.docstring, status })
                }
                None if line.is_empty() => self.open = Some(open),
                None => self.open = Some(Open { printed: line, ..open }),
            }
        }
    }

    /// `rest` is what stands behind the name.
    fn read_test(&mut self, mut test: Test<'a>, mut rest: &'a str) {
        self.named = None;
        while let Some(begun) = rest.strip_prefix(" ...") {
            match self.begin(test, None, begun) {
                Some(next) => (test, rest) = next,
                None => return,
            }
        }
        match behind_dots(rest) {
            // Only subtests that do not pass are printed, and then their test gets no result of its own.
            Some((_, rest)) => self.found_part(test, rest),
            None => self.named = Some(Test { part: !rest.is_empty(), ..test }),
        }
    }

    fn found_part(&mut self, test: Test<'a>, rest: &str) {
        self.found.extend(result(rest.trim()).map(|status| Found {
            test,
            docstring: None,
            status,
        }));
    }

    /// `rest` is what stands behind ` ...` of the line that begins the test. Gives the test that stands there: before
    /// Python 3.11 a test with failing subtests has no result here, and the next one follows at once.
    fn begin(
        &mut self,
        begun: Test<'a>,
        docstring: Option<&'a str>,
        rest: &'a str,
    ) -> Option<(Test<'a>, &'a str)> {
        let rest = rest.trim();
        if begun.part {
            self.found_part(begun, rest);
            return None;
        }
        self.close();
        if let Some(status) = result(rest) {
            self.found.push(Found { test: begun, docstring, status });
            return None;
        }
        let next = test(rest);
        if next.is_none() {
            self.open = Some(Open { test: begun, docstring, printed: rest });
        }
        next
    }

    /// The runner went on, so the result of the open test can only stand behind text without a line end.
    fn close(&mut self) {
        if let Some(Open { test, docstring, printed }) = self.open.take()
            && let Some((_, status)) = WORDS.iter().find(|(word, _)| printed.ends_with(word))
        {
            self.found.push(Found { test, docstring, status: *status });
        }
    }
}

fn result(text: &str) -> Option<TestStatus> {
    if text.starts_with("skipped '") || text.starts_with("skipped \"") {
        return Some(TestStatus::Skipped);
    }
    WORDS.iter().find(|(word, _)| *word == text).map(|(_, status)| *status)
}

/// The test that a line begins with, and what stands behind its name.
fn test(line: &str) -> Option<(Test<'_>, &str)> {
    let found = TEST.captures(line)?;
    let (printed, name, path) =
        (found.get(0)?.as_str(), found.get(1)?.as_str(), found.get(2)?.as_str());
    let rest = &line[printed.len()..];
    // A subtest is described in brackets; anything else is a sentence.
    let is_test =
        rest.is_empty() || [" ...", " (", " ["].iter().any(|start| rest.starts_with(start));
    is_test.then_some((Test { printed, name, path, part: false }, rest))
}

fn is_bar(line: &str) -> bool {
    line.len() >= 70 && line.bytes().all(|byte| byte == b'=')
}

/// A heading among the reports at the end.
fn heading(line: &str) -> Option<(Test<'_>, TestStatus)> {
    let found = HEADING.captures(line)?;
    let (test, _) = test(found.get(2)?.as_str())?;
    let status = match &found[1] {
        "FAIL" => TestStatus::Failed,
        "ERROR" => TestStatus::Error,
        _ => TestStatus::Xpass,
    };
    Some((test, status))
}

/// A line cut at its first ` ... ` with a result or a test behind it, else at its first.
fn behind_dots(line: &str) -> Option<(&str, &str)> {
    let cuts =
        || line.match_indices(" ... ").map(|(at, dots)| (&line[..at], &line[at + dots.len()..]));
    cuts()
        .find(|(_, rest)| result(rest.trim()).is_some() || test(rest).is_some())
        .or_else(|| cuts().next())
        .or_else(|| line.strip_suffix(" ...").map(|before| (before, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_read(log: &str, expected: &[(&str, TestStatus)]) -> Reading {
        let reading = unittest(log);
        let read: Vec<_> = reading.tests().into_iter().collect();
        let expected: Vec<_> =
            expected.iter().map(|(test, status)| ((*test).to_owned(), *status)).collect();
        assert_eq!(read, expected);
        reading
    }

    /// The results of one file of tests that both versions must give.
    const RESULTS: [(&str, TestStatus); 13] = [
        ("test_m.A.test_doc", TestStatus::Passed),
        ("test_m.A.test_err", TestStatus::Error),
        ("test_m.A.test_fail", TestStatus::Failed),
        ("test_m.A.test_glued", TestStatus::Passed),
        ("test_m.A.test_print", TestStatus::Passed),
        ("test_m.A.test_skip", TestStatus::Skipped),
        ("test_m.A.test_sub", TestStatus::Failed),
        ("test_m.A.test_sub_doc", TestStatus::Failed),
        ("test_m.A.test_sub_ok", TestStatus::Passed),
        ("test_m.A.test_sub_skip", TestStatus::Skipped),
        ("test_m.A.test_xf", TestStatus::Xfail),
        ("test_m.A.test_xp", TestStatus::Xpass),
        ("unittest.loader._FailedTest.gone", TestStatus::Error),
    ];

    #[test]
    fn output_since_python_3_11_is_read() {
        let log = format!(
            "test_doc (test_m.A.test_doc)\nOne line. ... and more ... ok\n\
             test_err (test_m.A.test_err) ... ERROR\n\
             test_fail (test_m.A.test_fail) ... x ... ok\nFAIL\n\
             test_glued (test_m.A.test_glued) ... hellook\n\
             test_print (test_m.A.test_print) ... hello\nvalue (of.x)\n\nok\n\
             test_skip (test_m.A.test_skip) ... skipped \"it's ... ok\"\n\
             test_sub (test_m.A.test_sub) ... \n  test_sub (test_m.A.test_sub) (i=1) ... FAIL\n\
             test_sub_doc (test_m.A.test_sub_doc)\nWith a line. ... \n\
             \u{20} test_sub_doc (test_m.A.test_sub_doc) [msg] (i=1)\nWith a line. ... FAIL\n\
             test_sub_ok (test_m.A.test_sub_ok) ... ok\n\
             test_sub_skip (test_m.A.test_sub_skip) ... \n\
             \u{20} test_sub_skip (test_m.A.test_sub_skip) (i=1) ... skipped 'no'\n\
             test_xf (test_m.A.test_xf) ... expected failure\n\
             test_xp (test_m.A.test_xp) ... unexpected success\n\
             setUpClass (test_m.B) ... ERROR\nsetUpClass (test_m.C) ... skipped 'no'\n\
             gone (unittest.loader._FailedTest.gone) ... ERROR\n\n{bar}\n\
             FAIL: test_sub (test_m.A.test_sub) (i=1)\n\nRan 13 tests in 0.002s\n",
            bar = "=".repeat(70)
        );
        let reading = assert_read(&log, &RESULTS);
        assert!(reading.failed_outside);
        assert!(reading.warnings.is_empty());
    }

    #[test]
    fn output_before_python_3_11_is_read() {
        let log = format!(
            "test_doc (test_m.A)\nOne line. ... and more ... ok\n\
             test_err (test_m.A) ... ERROR\n\
             test_fail (test_m.A) ... x ... ok\nFAIL\n\
             test_glued (test_m.A) ... hellook\n\
             test_print (test_m.A) ... hello\nok\n\
             test_skip (test_m.A) ... skipped 'no'\n\
             test_sub (test_m.A) ... test_sub_doc (test_m.A)\nWith a line. ... test_sub_ok (test_m.A) ... ok\n\
             test_sub_skip (test_m.A) ... skipped 'no'\n\
             test_xf (test_m.A) ... expected failure\n\
             test_xp (test_m.A) ... unexpected success\nERROR\nskipped 'no'\n\
             gone (unittest.loader._FailedTest) ... ERROR\n\n\
             {bar}\nERROR: setUpClass (test_m.B)\n{bar}\nFAIL: test_sub (test_m.A) (i=1)\n\
             {bar}\nFAIL: test_sub_doc (test_m.A) [msg] (i=1)\nWith a line.\n\nRan 14 tests in 0.002s\n",
            bar = "=".repeat(70)
        );
        let reading = assert_read(&log, &RESULTS);
        assert!(reading.failed_outside);
        assert_eq!(
            reading.warnings,
            ["the runner says it ran 14 tests, the log has results of 13"]
        );
    }

    #[test]
    fn a_line_of_many_names_is_read_in_linear_time_and_bounded_stack() {
        let log =
            "test_a (m.A) ... ".repeat(100_000) + "\n" + &"test_b (m.A)\nx ... y".repeat(50_000);
        assert_read(&log, &[]);
    }

    #[test]
    fn a_test_that_never_ended_has_no_result() {
        let log = "test_a (m.A.test_a) ... ok\ntest_b (m.A.test_b) ... it took\nKilled\nlook\n";
        assert_read(log, &[("m.A.test_a", TestStatus::Passed)]);
    }
}
