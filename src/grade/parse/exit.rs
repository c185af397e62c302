//! One test for a whole run: whether the test command succeeded. For tasks that name no tests.

use super::reading::Reading;
use crate::protocol::verdict::TestStatus;

/// The name of the only test.
pub const EXIT_STATUS: &str = "exit status";
/// Stands before the exit status in a graded log; see [`crate::grade::compare`].
const MARK: &str = ">>>>> Test Exit Code: ";

pub(super) fn exit(log: &str) -> Reading {
    let mut reading = Reading::default();
    // The line is the script's own and comes last; a test may print one before.
    let status = log
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(MARK))
        .and_then(|text| text.trim().parse().ok());
    match status {
        Some(0) => reading.worsen(EXIT_STATUS, TestStatus::Passed),
        Some(1_i32..) => reading.worsen(EXIT_STATUS, TestStatus::Failed),
        Some(_) | None => {}
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_status_counts() {
        let status = |log: &str| exit(log).tests().get(EXIT_STATUS).copied();
        assert_eq!(
            status(">>>>> Test Exit Code: 0\nx\n>>>>> Test Exit Code: 2\n"),
            Some(TestStatus::Failed)
        );
        assert_eq!(status("x\n>>>>> Test Exit Code: 0\n"), Some(TestStatus::Passed));
        assert_eq!(status("no status"), None);
    }
}
