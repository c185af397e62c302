//! The processes of the sandbox, to end all that a command started.
//!
//! A process belongs to the sandbox when it descends from its init, which takes in orphans. Nothing else is ever
//! signalled: without a process namespace the machine's other processes stand in the same list.

use std::collections::HashMap;
use std::collections::HashSet;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::Signal;

/// Most ancestors that are looked at to find init.
const MOST_GENERATIONS: usize = 10_000;
/// How long processes that go on starting others are chased.
const LONGEST: Duration = Duration::from_secs(5);

/// The processes that descend from an init, itself excepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descendants {
    init: i32,
}

/// Processes that are left alone. By default there are none.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// Numbers, which are used again, with the time the process started.
    known: HashSet<(i32, u64)>,
    /// Whose children are left alone too.
    parent: Option<i32>,
}

/// What `/proc` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    is_zombie: bool,
    parent: i32,
    /// Clock ticks since boot.
    started: u64,
}

impl Descendants {
    /// Those of the calling process.
    pub(crate) fn of_this_process() -> Self {
        Self { init: rustix::process::getpid().as_raw_pid() }
    }

    /// Those that exist now, and what the calling process starts by itself from now on.
    pub(crate) fn spare(self) -> Spared {
        let known = self.all().into_iter().map(|(number, status)| (number, status.started));
        Spared { known: known.collect(), parent: Some(rustix::process::getpid().as_raw_pid()) }
    }

    /// Those that exist now. None to any process but init and its children: when init is gone, its number may be
    /// another process's.
    fn all(self) -> HashMap<i32, Status> {
        let this = rustix::process::getpid().as_raw_pid();
        let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
        let Ok(entries) = fs_err::read_dir("/proc") else { return HashMap::new() };
        if self.init != this && self.init != parent {
            return HashMap::new();
        }
        let all: HashMap<i32, Status> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|number| Some((number, status(number)?)))
            .collect();
        let status_of = |number: i32| all.get(&number).copied();
        let included = all.iter().filter(|(number, _)| self.include(**number, status_of));
        included.map(|(number, status)| (*number, *status)).collect()
    }

    /// Sends a signal to each that is not in `spared`, nor the calling process; true when there was one.
    pub(crate) fn signal_others(self, spared: &Spared, signal: Signal) -> bool {
        let this = rustix::process::getpid();
        let mut some = false;
        for pid in self.all().into_keys().filter_map(Pid::from_raw) {
            // The descriptor stays with its process; the number may be another's by the time it is looked at again.
            let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            let number = pid.as_raw_pid();
            let Some(found) = status(number) else { continue };
            let is_spared = spared.known.contains(&(number, found.started))
                || spared.parent == Some(found.parent);
            if pid != this && !found.is_zombie && !is_spared && self.include(number, status) {
                some = true;
                // It may have ended by itself.
                let _ = rustix::process::pidfd_send_signal(&process, signal);
            }
        }
        some
    }

    /// Ends each that is not in `spared`. They are stopped first, so that none can start another meanwhile.
    pub(crate) fn end_others(self, spared: &Spared) {
        let deadline = Instant::now() + LONGEST;
        let mut quiet = 0;
        // While parents end, a child cannot be told from a stranger for a moment.
        while quiet < 2 && Instant::now() < deadline {
            if self.signal_others(spared, Signal::STOP) {
                self.signal_others(spared, Signal::KILL);
                quiet = 0;
            } else {
                quiet += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn include(self, number: i32, status: impl Fn(i32) -> Option<Status>) -> bool {
        let (mut at, mut born) = (number, u64::MAX);
        for _ in 0..MOST_GENERATIONS {
            match status(at) {
                // A parent that is younger than its child has the number of one that ended.
                Some(status) if status.started <= born && status.parent != self.init => {
                    (at, born) = (status.parent, status.started);
                }
                Some(status) => return status.started <= born,
                None => return false,
            }
        }
        false
    }
}

/// None when there is no such process.
fn status(number: i32) -> Option<Status> {
    parse(&fs_err::read(format!("/proc/{number}/stat")).ok()?)
}

fn parse(stat: &[u8]) -> Option<Status> {
    // The name stands in parentheses and may hold any bytes, parentheses too; what follows it is ASCII.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Status {
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn one(parent: i32, started: u64) -> Status {
        Status { is_zombie: false, parent, started }
    }

    #[test]
    fn a_name_cannot_hide_a_process() {
        let stat = b"7 (a) Z 1 (\xff) S 5 7 7 0 -1 4194560 1 2 0 0 0 0 0 0 20 0 1 0 421 0 0";
        assert_eq!(parse(stat), Some(one(5, 421)));
        assert_eq!(parse(b"7 (a"), None);
    }

    #[test]
    fn only_what_descends_from_init_is_included() {
        let family = Descendants { init: 10 };
        let processes = HashMap::from([
            (1, one(0, 1)),
            (10, one(1, 50)),
            (11, one(10, 60)),
            (12, one(11, 60)),
            // A stranger whose parent had the number of one of init's, which started later.
            (13, one(11, 20)),
            (20, one(1, 70)),
            (21, one(20, 71)),
            // A ring, as reading while numbers change hands may show.
            (30, one(31, 80)),
            (31, one(30, 80)),
        ]);
        let mut included: Vec<i32> = processes
            .keys()
            .copied()
            .filter(|number| family.include(*number, |number| processes.get(&number).copied()))
            .collect();
        included.sort_unstable();
        assert_eq!(included, [11, 12]);
    }

    #[test]
    fn a_process_that_is_neither_init_nor_its_child_sees_none() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        assert!(Descendants::of_this_process().all().contains_key(&number));
        assert_eq!(Descendants { init: number }.all().len(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
