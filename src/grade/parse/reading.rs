//! What a parser read from a log.

use std::collections::HashMap;

use crate::protocol::verdict::TestMap;
use crate::protocol::verdict::TestStatus;

/// How a log marks a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// With a status.
    Status(TestStatus),
    /// With a word that is no status, such as `ERROR:` or `PASSEDX`. The official rules count such a test neither as
    /// passed nor as failed.
    Unknown,
}

/// The tests of a log in the order they were first named, as the official rules need it.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    entries: Vec<(String, Mark)>,
    places: HashMap<String, usize>,
    /// Something that is no test failed, such as the build of a package or the set-up of a class.
    pub failed_outside: bool,
    /// What a person should know about the log, one line each.
    pub warnings: Vec<String>,
}

impl Reading {
    /// Marks a test; a later mark replaces an earlier one but not its place.
    pub(super) fn set(&mut self, test: &str, mark: Mark) {
        match self.places.get(test) {
            Some(place) => self.entries[*place].1 = mark,
            None => {
                self.places.insert(test.to_owned(), self.entries.len());
                self.entries.push((test.to_owned(), mark));
            }
        }
    }

    /// Marks a test unless it already has a worse status.
    pub(super) fn worsen(&mut self, test: &str, status: TestStatus) {
        match self.get(test) {
            Some(Mark::Status(known)) if badness(known) >= badness(status) => {}
            Some(Mark::Status(_) | Mark::Unknown) | None => self.set(test, Mark::Status(status)),
        }
    }

    /// How `test` is marked.
    pub fn get(&self, test: &str) -> Option<Mark> {
        self.places.get(test).map(|place| self.entries[*place].1)
    }

    /// Every test and its mark, in the order they were first named.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Mark)> {
        self.entries.iter().map(|(test, mark)| (test.as_str(), *mark))
    }

    /// Whether no test is named.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The tests that have a status.
    pub fn tests(&self) -> TestMap {
        self.iter()
            .filter_map(|(test, mark)| match mark {
                Mark::Status(status) => Some((test.to_owned(), status)),
                Mark::Unknown => None,
            })
            .collect()
    }
}

fn badness(status: TestStatus) -> u8 {
    match status {
        TestStatus::Passed => 0,
        TestStatus::Xfail => 1,
        TestStatus::Skipped => 2,
        TestStatus::Xpass => 3,
        TestStatus::Failed => 4,
        TestStatus::Error => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_mark_keeps_the_place_and_a_better_one_does_not_worsen() {
        let mut reading = Reading::default();
        reading.set("b", Mark::Status(TestStatus::Failed));
        reading.set("a", Mark::Status(TestStatus::Passed));
        reading.set("b", Mark::Unknown);
        reading.worsen("a", TestStatus::Skipped);
        reading.worsen("a", TestStatus::Passed);
        let read: Vec<_> = reading.iter().collect();
        assert_eq!(read, [("b", Mark::Unknown), ("a", Mark::Status(TestStatus::Skipped))]);
        assert_eq!(reading.tests(), TestMap::from([("a".to_owned(), TestStatus::Skipped)]));
    }
}
