//! The official rules for pytest logs: lines that begin with a status word, wherever they stand.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::reading::Mark;
use super::reading::Reading;
use super::text::pattern;
use super::text::words;
use crate::protocol::verdict::TestStatus;

/// The words the official rules know; XPASS is not among them.
const WORDS: [(&str, TestStatus); 5] = [
    ("FAILED", TestStatus::Failed),
    ("PASSED", TestStatus::Passed),
    ("SKIPPED", TestStatus::Skipped),
    ("ERROR", TestStatus::Error),
    ("XFAIL", TestStatus::Xfail),
];

static COUNT: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\[\d+\]$"));
static COLOUR: LazyLock<Regex> = LazyLock::new(|| pattern(r"\[\d+m"));

fn mark(word: &str) -> Mark {
    let known = WORDS.iter().find(|(name, _)| *name == word);
    known.map_or(Mark::Unknown, |(_, status)| Mark::Status(*status))
}

fn begins_with_status(line: &str) -> bool {
    WORDS.iter().any(|(word, _)| line.starts_with(word))
}

/// `SKIPPED [2] file:line: reason` names no test. `PASSED [100%]` does not either, but two instances expect it.
fn is_skip_summary(word: &str, test: &str) -> bool {
    word == "SKIPPED" && COUNT.is_match(test)
}

/// The status word and the test of one line.
fn result(line: &str) -> Option<(&str, &str)> {
    if !begins_with_status(line) {
        return None;
    }
    let word = words(line).next()?;
    // In the line of a failure " - " only separates, so that the dash is never the test.
    let test = if line.starts_with("FAILED") {
        line.split(" - ").flat_map(words).nth(1)?
    } else {
        words(line).nth(1)?
    };
    (!is_skip_summary(word, test)).then_some((word, test))
}

pub(super) fn pytest(log: &str) -> Reading {
    let mut reading = Reading::default();
    for (word, test) in log.split('\n').filter_map(result) {
        reading.set(test, mark(word));
    }
    reading
}

/// Of a parameter that is an absolute path only the last component counts: temporary folders differ between runs.
pub(super) fn options(log: &str) -> Reading {
    let mut reading = Reading::default();
    for (word, test) in log.split('\n').filter_map(result) {
        reading.set(&short_option(test), mark(word));
    }
    reading
}

fn short_option(test: &str) -> Cow<'_, str> {
    let (Some(open), Some(close)) = (test.find('['), test.rfind(']')) else {
        return Cow::Borrowed(test);
    };
    if close < open {
        return Cow::Borrowed(test);
    }
    let option = &test[open + 1..close];
    let is_path = option.starts_with('/') && !option.starts_with("//") && !option.contains('*');
    match option.rsplit_once('/') {
        Some((_, last)) if is_path => Cow::Owned(format!("{}[/{last}]", &test[..open])),
        _ => Cow::Borrowed(&test[..=close]),
    }
}

pub(super) fn matplotlib(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in log.split('\n') {
        let line = if line.contains("MouseButton.") {
            Cow::Owned(line.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))
        } else {
            Cow::Borrowed(line)
        };
        if let Some((word, test)) = result(&line) {
            reading.set(test, mark(word));
        }
    }
    reading
}

fn is_control(character: char) -> bool {
    matches!(character, '\u{1}'..='\u{1f}')
}

/// Keeps spaces in names, drops colours, and reads older versions' `test STATUS` lines too.
pub(super) fn v2(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in log.split('\n') {
        let mut line = COLOUR.replace_all(line, "");
        if line.contains(is_control) {
            line = Cow::Owned(line.replace(is_control, ""));
        }
        if begins_with_status(&line) {
            let line = match line.split_once(" - ") {
                Some((before, _)) if line.starts_with("FAILED") => before,
                _ => &line,
            };
            let words: Vec<&str> = words(line).collect();
            if let [word, test, ..] = words[..]
                && !is_skip_summary(word, test)
            {
                reading.set(&words[1..].join(" "), mark(word));
            }
        } else if WORDS.iter().any(|(word, _)| line.ends_with(word)) {
            let words: Vec<&str> = words(&line).collect();
            if let [test @ .., word] = &words[..]
                && !test.is_empty()
            {
                reading.set(&test.join(" "), mark(word));
            }
        }
    }
    reading
}

pub(super) fn seaborn(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in log.split('\n') {
        let mut words = words(line);
        let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
        if line.starts_with("FAILED") {
            reading.set(second, Mark::Status(TestStatus::Failed));
        } else if line.contains(" PASSED ") {
            if second == "PASSED" {
                reading.set(first, Mark::Status(TestStatus::Passed));
            }
        } else if line.starts_with("PASSED") {
            reading.set(second, Mark::Status(TestStatus::Passed));
        }
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parser: fn(&str) -> Reading, log: &str) -> Vec<(String, Mark)> {
        parser(log).iter().map(|(test, mark)| (test.to_owned(), mark)).collect()
    }

    #[test]
    fn a_dash_is_never_the_test_of_a_failure_but_may_be_of_an_error() {
        let expected = [
            ("t.py::a".to_owned(), Mark::Status(TestStatus::Failed)),
            ("-".to_owned(), Mark::Status(TestStatus::Error)),
        ];
        assert_eq!(read(pytest, "FAILED - t.py::a - E\nERROR - t.py::b\nFAILED\nPASSED"), expected);
    }

    #[test]
    fn version_2_removes_colours_and_control_characters_and_looks_at_both_ends() {
        let log = "\u{1b}[32mPASSED\u{1b}[0m\u{1} t.py::a[x  y]\nt.py::b c XPASSED\nFAILED t.py::d - e - f";
        let expected = [
            ("t.py::a[x y]".to_owned(), Mark::Status(TestStatus::Passed)),
            ("t.py::b c".to_owned(), Mark::Unknown),
            ("t.py::d".to_owned(), Mark::Status(TestStatus::Failed)),
        ];
        assert_eq!(read(v2, log), expected);
    }
}
