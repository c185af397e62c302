//! The official rules for sympy's own runner: `test_name ok`, and the headings of failures.

use std::sync::LazyLock;

use regex::Regex;

use super::reading::Mark;
use super::reading::Reading;
use super::text::pattern;
use super::text::strip;
use super::text::words;
use crate::protocol::verdict::TestStatus;

static HEADING: LazyLock<Regex> = LazyLock::new(|| pattern("_* (.*)\\.py:(.*) _*"));

const ENDINGS: [(&str, TestStatus); 3] =
    [(" E", TestStatus::Error), (" F", TestStatus::Failed), (" ok", TestStatus::Passed)];

pub(super) fn sympy(log: &str) -> Reading {
    let mut reading = Reading::default();
    for line in log.split('\n').filter(|line| line.contains(".py:")) {
        for found in HEADING.captures_iter(line) {
            reading
                .set(&format!("{}.py:{}", &found[1], &found[2]), Mark::Status(TestStatus::Failed));
        }
    }
    for line in log.split('\n').map(strip).filter(|line| line.starts_with("test_")) {
        let ending = ENDINGS.iter().find(|(ending, _)| line.ends_with(ending));
        if let (Some((_, status)), Some(test)) = (ending, words(line).next()) {
            reading.set(test, Mark::Status(*status));
        }
    }
    reading
}
