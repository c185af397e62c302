//! The program installed from a clone, away from its sources.

use std::path::Path;
use std::process::Command;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::cli::out;

/// Flags from the environment replace those of a project's own settings; the guest must be static all the same.
#[test]
#[ignore = "builds everything anew, some minutes: cargo test --test it installs -- --ignored"]
fn installs_from_a_clone_and_runs_elsewhere() {
    let desk = Desk::new();
    let clone = desk.path("clone");
    let git = |arguments: &[&str]| {
        let ran = Command::new("git").args(arguments).output().unwrap();
        assert!(ran.status.success(), "{}", err(&ran));
    };
    git(&["clone", "-q", env!("CARGO_MANIFEST_DIR"), clone.to_str().unwrap()]);
    let installed = Command::new(env!("CARGO"))
        .args(["install", "--quiet", "--git", &format!("file://{}", clone.display()), "--root"])
        .arg(desk.path("root"))
        .arg("--target-dir")
        .arg(desk.path("target"))
        .env("RUSTFLAGS", "-Cdebuginfo=0")
        .current_dir("/")
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", err(&installed));
    for name in ["clone", "target"] {
        fs_err::remove_dir_all(desk.path(name)).unwrap();
    }
    let program = desk.path("root/bin/patchgym");
    let mut command = desk.command(&["run", "-w", "2"]);
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = {
        let mut installed = Command::new(&program);
        installed.args(arguments).current_dir(Path::new(command.get_current_dir().unwrap()));
        installed
    };
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("errors: none"), "{}", out(&output));
}
