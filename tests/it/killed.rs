//! Runs that are killed at random moments: nothing is left, nothing finished is lost, the same command goes on.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use patchgym::trajectory::TrajectoryError;
use patchgym::trajectory::reader;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::cli::out;

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes whose environment names `mark`, and the guests, whose environment is empty, that are not children of a
/// living harness.
fn left_over(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let read = |name: &str| fs_err::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if String::from_utf8_lossy(&read("environ")).contains(mark) {
            found.push(format!("{pid} {}", String::from_utf8_lossy(&read("cmdline"))));
        }
    }
    found
}

fn logs_below(folder: &Path) -> Vec<PathBuf> {
    let mut logs = Vec::new();
    let Ok(entries) = fs_err::read_dir(folder) else { return logs };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            logs.extend(logs_below(&path));
        } else if path.file_name().is_some_and(|name| name == "events.jsonl") {
            logs.push(path);
        }
    }
    logs
}

#[test]
fn a_killed_run_leaves_nothing_and_goes_on() {
    let kills: u32 =
        std::env::var("PATCHGYM_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let desk = Desk::new();
    let mark = format!("PATCHGYM_MARK={}", desk.folder.path().display());
    let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap();
    let arguments = ["run", "-m", "recorded:demo", "-w", "4", "-o", "mine"];
    let command = || {
        let mut command = desk.command(&arguments);
        command.env("PATCHGYM_MARK", desk.folder.path()).stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        command
    };
    let mut finished: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for _ in 0..kills {
        let mut child = command().spawn().unwrap();
        std::thread::sleep(Duration::from_millis(fastrand::u64(20..2500)));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("processes to end", || left_over(&mark).is_empty());
        assert_eq!(fs_err::read_to_string("/proc/self/mountinfo").unwrap(), mounts);
        for (path, before) in &finished {
            assert_eq!(
                &fs_err::read(path).unwrap(),
                before,
                "{} was finished and has changed",
                path.display()
            );
        }
        for path in logs_below(&desk.path("mine")) {
            match reader::read(&path) {
                Ok(log) if log.verdict().is_some() && log.torn.is_none() => {
                    finished.insert(path.clone(), fs_err::read(&path).unwrap());
                }
                Ok(_) | Err(TrajectoryError::NoHeader { .. }) => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        let cleaned = desk.run(&["clean"]);
        assert_eq!(code(&cleaned), 0, "{}", err(&cleaned));
    }
    let last = desk.run(&arguments);
    assert_eq!(code(&last), 0, "{}{}", out(&last), err(&last));
    let table = out(&last);
    let rows = table.lines().filter(|line| line.starts_with("demo__")).count();
    assert!(table.contains(&format!("resolved {rows} of {rows}; errors: none")), "{table}");
    for (path, before) in &finished {
        assert_eq!(&fs_err::read(path).unwrap(), before, "{} was played twice", path.display());
    }
    println!("{kills} kills, {} attempts were finished before the last run", finished.len());
}
