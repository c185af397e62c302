//! The processes of the sandbox, to end all that a command started.

use std::collections::HashSet;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;

/// The processes that exist now.
pub(crate) fn all() -> HashSet<i32> {
    let Ok(entries) = fs_err::read_dir("/proc") else { return HashSet::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Sends a signal to every process that is not in `spared`; true when there was one.
pub(crate) fn signal_others(spared: &HashSet<i32>, signal: Signal) -> bool {
    let mut some = false;
    for number in all().difference(spared) {
        if is_zombie(*number) {
            continue;
        }
        some = true;
        if let Some(pid) = Pid::from_raw(*number) {
            // It may have ended since it was listed.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
    some
}

/// Ends every process that is not in `spared`. They are stopped first, so that none can start another meanwhile.
pub(crate) fn end_others(spared: &HashSet<i32>) {
    let deadline = Instant::now() + Duration::from_secs(2);
    signal_others(spared, Signal::STOP);
    while signal_others(spared, Signal::KILL) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_zombie(number: i32) -> bool {
    // The state is the first word after the name, which stands in parentheses and may itself hold some.
    fs_err::read_to_string(format!("/proc/{number}/stat"))
        .ok()
        .and_then(|text| text.rsplit(')').next().map(|rest| rest.trim_start().starts_with('Z')))
        .unwrap_or(true)
}
