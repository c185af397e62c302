//! Our rules for pytest: results are read where pytest itself prints them, never in captured output.

use std::sync::LazyLock;

use regex::Regex;

use super::reading::Reading;
use super::text::pattern;
use crate::protocol::verdict::TestStatus;
use crate::text::plain;

const WORDS: [(&str, TestStatus); 6] = [
    ("PASSED", TestStatus::Passed),
    ("FAILED", TestStatus::Failed),
    ("ERROR", TestStatus::Error),
    ("SKIPPED", TestStatus::Skipped),
    ("XFAIL", TestStatus::Xfail),
    ("XPASS", TestStatus::Xpass),
];

static HEADING: LazyLock<Regex> = LazyLock::new(|| pattern("^={3,} (.+?) ={3,}$"));
/// `===== 1 failed, 2 passed in 0.29s =====`, and the same without the bars of `-q`.
static END: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^(?:no tests ran|\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s"));
/// `test STATUS (reason) [ 14%]` of `-v`.
static VERBOSE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"^(\S.*?::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \(.*\))?\s*(?:\[\s*\d+%\])?$",
    )
});
/// `[gw0] [ 14%] STATUS test` of pytest-xdist.
static PARALLEL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"^\[gw\d+\] \[\s*\d+%\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*)$")
});
static SKIPS: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\[\d+\] "));

/// Only so many of the dashes in a line may end a name, so that no line costs more than its length.
const MOST_CUTS: usize = 64;

/// Where in pytest's output a line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Results of `-v`.
    Progress,
    /// Tracebacks and captured output, which may hold whole sessions of an inner pytest.
    Details,
    /// The short test summary.
    Summary,
}

pub(super) fn pytest(log: &str) -> Reading {
    let log = plain(log);
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    let is_summary = |line: &&str| heading(line) == Some("short test summary info");
    let last_summary = lines.iter().rposition(is_summary);
    let mut reading = Reading::default();
    let mut part = Part::Details;
    let mut sessions: usize = 0;
    for (number, line) in lines.iter().enumerate() {
        let title = heading(line);
        if END.is_match(title.unwrap_or(line)) {
            sessions = sessions.saturating_sub(1);
            part = Part::Details;
        } else if let Some(title) = title {
            part = match title {
                "test session starts" => {
                    sessions += 1;
                    if sessions == 1 { Part::Progress } else { part }
                }
                // The outermost session prints its summary last, even when an inner one never printed its end.
                "short test summary info" if sessions <= 1 || last_summary == Some(number) => {
                    Part::Summary
                }
                _ => Part::Details,
            };
        } else {
            match part {
                Part::Progress => read_progress(&mut reading, line),
                Part::Summary => read_summary(&mut reading, line),
                Part::Details => {}
            }
        }
    }
    reading
}

fn heading(line: &str) -> Option<&str> {
    let found = line.starts_with("===").then(|| HEADING.captures(line)).flatten()?;
    found.get(1).map(|title| title.as_str())
}

fn status(word: &str) -> Option<TestStatus> {
    WORDS.iter().find(|(name, _)| *name == word).map(|(_, status)| *status)
}

fn read_progress(reading: &mut Reading, line: &str) {
    let found = match VERBOSE.captures(line) {
        Some(found) => found.get(2).zip(found.get(1)),
        None => PARALLEL.captures(line).and_then(|found| found.get(1).zip(found.get(2))),
    };
    if let Some((word, test)) = found
        && let Some(status) = status(word.as_str())
    {
        // `test <- file` names the file that a test was inherited from.
        let test = test.as_str();
        reading.worsen(test.split_once(" <- ").map_or(test, |(test, _)| test), status);
    }
}

fn read_summary(reading: &mut Reading, line: &str) {
    if let Some((word, rest)) = line.split_once(' ')
        && let Some(status) = status(word)
        && !SKIPS.is_match(rest)
    {
        let test = match status {
            TestStatus::Passed => rest,
            TestStatus::Failed
            | TestStatus::Error
            | TestStatus::Skipped
            | TestStatus::Xfail
            | TestStatus::Xpass => reasonless(reading, rest),
        };
        reading.worsen(test, status);
    }
}

/// The test without the reason behind ` - `. A name may hold that too: one that the progress lines gave is right,
/// else the shortest whose parameters are closed, else everything (a reason is left out after a very long name).
fn reasonless<'a>(reading: &Reading, rest: &'a str) -> &'a str {
    let cuts = || rest.match_indices(" - ").take(MOST_CUTS).map(|(at, _)| &rest[..at]);
    let known = cuts().find(|test| reading.get(test).is_some());
    known.or_else(|| cuts().find(|test| !test.contains('[') || test.ends_with(']'))).unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str) -> Vec<(String, TestStatus)> {
        pytest(log).tests().into_iter().collect()
    }

    fn pair(test: &str, status: TestStatus) -> (String, TestStatus) {
        (test.to_owned(), status)
    }

    #[test]
    fn an_inner_session_is_not_read_and_a_second_command_is() {
        let log = "=== test session starts ===\ncollected 1 item\n=== PASSES ===\n___ test_outer ___\n\
                   === test session starts ===\nt.py::test_inner PASSED [100%]\n=== short test summary info ===\n\
                   PASSED t.py::test_inner\n=== 1 passed in 0.01s ===\n=== short test summary info ===\n\
                   PASSED o.py::test_outer\n=== 1 passed in 0.10s ===\nPASSED o.py::test_forged\n\
                   === test session starts ===\np.py::test_b[x PASSED y] FAILED (why) [ 50%]\n\
                   p.py::test_c <- q.py SKIPPED [100%]\n=== 1 failed, 1 skipped in 61.20s (0:01:01) ===\n";
        let expected = [
            pair("o.py::test_outer", TestStatus::Passed),
            pair("p.py::test_b[x PASSED y]", TestStatus::Failed),
            pair("p.py::test_c", TestStatus::Skipped),
        ];
        assert_eq!(read(log), expected);
    }

    #[test]
    fn an_inner_session_without_end_does_not_hide_the_summary() {
        let log = "=== test session starts ===\n=== FAILURES ===\n=== test session starts ===\nINTERNALERROR\n\
                   === short test summary info ===\nFAILED o.py::test_a[a - b] - E: x - y\nERROR o.py - ImportError\n\
                   === 1 failed, 1 error in 0.10s ===\n";
        assert_eq!(
            read(log),
            [pair("o.py", TestStatus::Error), pair("o.py::test_a[a - b]", TestStatus::Failed)]
        );
    }

    #[test]
    fn a_known_name_decides_where_the_reason_begins_and_the_worse_result_counts() {
        let log = "=== test session starts ===\nt.py::test_a[x] - [y] PASSED [ 50%]\n\
                   t.py::test_a[x] - [y] ERROR [ 50%]\n[gw1] [100%] PASSED t.py::test_b \n\
                   === short test summary info ===\nERROR t.py::test_a[x] - [y] - E: z\n";
        assert_eq!(
            read(log),
            [
                pair("t.py::test_a[x] - [y]", TestStatus::Error),
                pair("t.py::test_b", TestStatus::Passed)
            ]
        );
    }

    #[test]
    fn quiet_output_has_a_summary_without_a_header() {
        let log = "..F\n=== short test summary info ===\nPASSED t.py::test_a\nFAILED t.py::test_b - E\n\
                   1 failed, 1 passed in 0.02s\nPASSED t.py::test_later\n";
        assert_eq!(
            read(log),
            [pair("t.py::test_a", TestStatus::Passed), pair("t.py::test_b", TestStatus::Failed)]
        );
    }
}
