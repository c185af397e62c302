//! Logs in the Test Anything Protocol, nested tests included.

use std::sync::LazyLock;

use regex::Regex;

use super::reading::Reading;
use super::text::pattern;
use crate::protocol::verdict::TestStatus;
use crate::text::plain;

/// A number or a dash must stand behind `ok`: prose begins with that word too.
static POINT: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^\s*(not )?ok(?:\s+\d+(?:\s+-)?|\s+-)\s+(\S.*)$"));
static DIRECTIVE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\A#\s*(skip|todo)"));

pub(super) fn tap(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in plain(log).lines() {
        let Some(point) = POINT.captures(line) else { continue };
        let (description, comment) = split(&point[2]);
        let directive = DIRECTIVE.captures(comment).map(|found| found[1].to_lowercase());
        let status = match (point.get(1), directive.as_deref()) {
            (_, Some("skip")) => TestStatus::Skipped,
            (Some(_), Some(_)) => TestStatus::Xfail,
            (Some(_), None) => TestStatus::Failed,
            (None, _) => TestStatus::Passed,
        };
        if !description.is_empty() {
            reading.worsen(&description, status);
        }
    }
    reading
}

/// The description without escapes, and what follows it from the first `#` that begins a comment: one that is not
/// escaped, stands at the beginning or after a space, and has a space or a directive behind it (`fixes #12` has not).
fn split(text: &str) -> (String, &str) {
    let mut description = String::new();
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let begins = description.is_empty() || description.ends_with(char::is_whitespace);
        let rest = &text[at..];
        if character == '#' && begins && (rest.starts_with("# ") || DIRECTIVE.is_match(rest)) {
            return (description.trim_end().to_owned(), rest);
        }
        match characters.next_if(|(_, next)| character == '\\' && matches!(next, '#' | '\\')) {
            Some((_, escaped)) => description.push(escaped),
            None => description.push(character),
        }
    }
    (description.trim_end().to_owned(), "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::verdict::TestMap;

    #[test]
    fn points_directives_escapes_and_nesting_are_read() {
        let log = "TAP version 14\n1..9\nok 1 - plain\nnot ok 2 - broken # time=3ms\nok 3 - later # SKIP no network\n\
                   not ok 4 - known # todo someday\nok 5 - bonus # TODO\n    # Subtest: parent\n    ok 1 - child\n\
                   \u{20}       not ok 1 - grandchild\n    not ok 2 child without dash #SKIP\n    1..2\n\
                   ok 6 - has \\# hash and \\\\ slash # Skipped: x\nok 7 - fixes #12\nok 8\nok then, said the test\n\
                   \u{1b}[32mok\u{1b}[0m 9 - coloured\nok - plain\nnot ok - plain\n";
        let expected = [
            ("plain", TestStatus::Failed),
            ("broken", TestStatus::Failed),
            ("later", TestStatus::Skipped),
            ("known", TestStatus::Xfail),
            ("bonus", TestStatus::Passed),
            ("child", TestStatus::Passed),
            ("grandchild", TestStatus::Failed),
            ("child without dash", TestStatus::Skipped),
            ("has # hash and \\ slash", TestStatus::Skipped),
            ("fixes #12", TestStatus::Passed),
            ("coloured", TestStatus::Passed),
        ];
        assert_eq!(
            tap(log).tests(),
            TestMap::from(expected.map(|(test, status)| (test.to_owned(), status)))
        );
    }
}
