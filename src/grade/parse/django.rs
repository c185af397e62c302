//! The official rules for logs of Django's runner, in which the result may stand lines after the name.

use std::sync::LazyLock;

use regex::Regex;

use super::reading::Mark;
use super::reading::Reading;
use super::text::pattern;
use super::text::strip;
use super::text::words;
use crate::protocol::verdict::TestStatus;

/// The docstring of a test whose own output always splits its line.
const VERSION: &str = "--version is equivalent to version";
/// The output that stands before the name in django-7188.
const MIGRATION: &str = "Applying sites.0002_alter_domain_unique...test_no_migrations";
const PASSED: [&str; 3] = [" ... ok", " ... OK", " ...  OK"];

/// Three pieces of output that interrupt a name and its `ok`, each with a text that must occur for it to match.
static INTERRUPTED: LazyLock<[(&str, Regex); 3]> = LazyLock::new(|| {
    [
        (
            "Testing against Django installed in ",
            pattern(
                r"^(.*?)\s\.\.\.\sTesting against Django installed in (?s:.*?) silenced\)\.\nok$",
            ),
        ),
        ("Internal Server Error: /", pattern(r"^(.*?)\s\.\.\.\sInternal Server Error: /.*/\nok$")),
        (
            "System check identified no issues (0 silenced)\nok",
            pattern(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$"),
        ),
    ]
});

pub(super) fn django(log: &str) -> Reading {
    let mut reading = Reading::default();
    let mut open = None;
    for line in log.split('\n') {
        read_line(&mut reading, &mut open, strip(line));
    }
    for (needle, interrupted) in INTERRUPTED.iter() {
        if log.contains(needle) {
            for found in interrupted.captures_iter(log) {
                reading.set(&found[1], Mark::Status(TestStatus::Passed));
            }
        }
    }
    reading
}

/// Reads one line; `open` is the name last seen before ` ... `, which a later line that begins with `ok` passes.
fn read_line<'a>(reading: &mut Reading, open: &mut Option<&'a str>, mut line: &'a str) {
    let mut set = |test: &str, status| reading.set(test, Mark::Status(status));
    if line.contains(VERSION) {
        set(VERSION, TestStatus::Passed);
    }
    if let Some((test, _)) = line.split_once(" ... ") {
        *open = Some(test);
    }
    if let Some(passed) = PASSED.into_iter().find(|passed| line.ends_with(passed)) {
        if line.starts_with(MIGRATION) {
            line = line.split_once("...").map_or(line, |(_, rest)| strip(rest));
        }
        set(line.strip_suffix(passed).unwrap_or(line), TestStatus::Passed);
    }
    if let Some((test, _)) = line.split_once(" ... skipped") {
        set(test, TestStatus::Skipped);
    }
    for (ending, heading, status) in
        [(" ... FAIL", "FAIL:", TestStatus::Failed), (" ... ERROR", "ERROR:", TestStatus::Error)]
    {
        if line.ends_with(ending)
            && let Some((test, _)) = line.split_once(ending)
        {
            set(test, status);
        }
        // The official rules end with an exception on a heading without a name.
        if line.starts_with(heading)
            && let Some(test) = words(line).nth(1)
        {
            set(test, status);
        }
    }
    if line.starts_with("ok")
        && let Some(test) = *open
    {
        set(test, TestStatus::Passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_prefixes_and_interruptions_are_read_and_a_bare_heading_is_passed_over() {
        let log = "test_a (m.C) ...  OK\nERROR:\n\
                   Applying sites.0002_alter_domain_unique...test_no_migrations (m.C) ... ok\n\
                   test_b (m.C) ... Testing against Django installed in '/x'\nwith (0 silenced).\nok\n\
                   test_c (m.C) ... Internal Server Error: /a/\nok";
        let tests: Vec<String> = django(log).tests().into_keys().collect();
        let first = ["test_a (m.C)", "test_b (m.C)", "test_c (m.C)", "test_no_migrations (m.C)"];
        assert_eq!(tests, first);
        // A line gives the name before its first ` ... `, a multi-line pattern the one before its last.
        let lost = "x ... y ... System check identified no issues (0 silenced)\nok";
        let tests: Vec<String> = django(lost).tests().into_keys().collect();
        assert_eq!(tests, ["x", "x ... y"]);
    }
}
