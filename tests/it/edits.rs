//! Edits of real files, driven by the cases that other harnesses get wrong.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use patchgym::guest::cancel::Cancel;
use patchgym::guest::disk::Disk;
use patchgym::guest::edit;
use patchgym::guest::edit::Edits;
use patchgym::guest::files;
use patchgym::protocol::operation::Edit;
use patchgym::protocol::operation::Fault;
use patchgym::protocol::operation::Refusal;
use patchgym::protocol::operation::Reply;

/// A case's folder; none where the cases are not at hand.
fn case(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases").join(name);
    if !folder.is_dir() {
        println!("skipped: no case {name}");
        return None;
    }
    Some(folder)
}

/// A git work tree with the files of `before/`, committed.
fn work_tree(case: &Path) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(case.join("before")).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
    }
    git(place.path(), &["init", "--quiet"]);
    git(place.path(), &["add", "."]);
    git(
        place.path(),
        &[
            "-c",
            "user.name=demo",
            "-c",
            "user.email=demo@example.com",
            "commit",
            "--quiet",
            "-m",
            "before",
        ],
    );
    place
}

fn git(place: &Path, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.args(["-c", "core.autocrlf=false"]).args(arguments).current_dir(place);
    let output = command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Plays the calls of a case and gives what came of each.
fn play(case: &Path, place: &Path) -> Vec<Result<Reply, Fault>> {
    let calls: serde_json::Value =
        serde_json::from_slice(&fs_err::read(case.join("calls.json")).unwrap()).unwrap();
    let (disk, edits) = (Disk::new(place), Edits::default());
    let text =
        |call: &serde_json::Value, name: &str| call["arguments"][name].as_str().unwrap().to_owned();
    let apply = |call: &serde_json::Value| {
        let edit = Edit::Replace { old: text(call, "old_str"), new: text(call, "new_str") };
        edit::edit(&disk, &edits, &text(call, "path"), &edit, &Cancel::after(None))
    };
    calls.as_array().unwrap().iter().map(apply).collect()
}

fn same(case: &Path, place: &Path, folder: &str, file: &str) {
    assert_eq!(
        fs_err::read(place.join(file)).unwrap(),
        fs_err::read(case.join(folder).join(file)).unwrap(),
        "{file}"
    );
}

#[test]
fn an_edit_keeps_tabs() {
    let Some(case) = case("o12-edit-keeps-tabs") else { return };
    let place = work_tree(&case);
    let outcomes = play(&case, place.path());
    assert!(
        matches!(&outcomes[0], Ok(Reply::Edited(edited)) if edited.first == 6 && edited.lines == 1)
    );
    let Err(Fault::Refused(Refusal::NoMatch { whitespace_differs_at, nearest, .. })) = &outcomes[1]
    else {
        panic!("{:?}", outcomes[1]);
    };
    assert_eq!(*whitespace_differs_at, Some(10));
    assert_eq!(*nearest, Some((10, "\trm -f tool".to_owned())));
    assert!(matches!(&outcomes[2], Ok(Reply::Edited(_))));
    same(&case, place.path(), "after", "Makefile");
    same(&case, place.path(), "after", "table.tsv");
    let Ok(Reply::Lines(window)) =
        files::lines(&Disk::new(place.path()), "Makefile", 6, 1, &Cancel::after(None))
    else {
        panic!("no lines");
    };
    assert_eq!(window.lines[0].text, b"\t$(CC) -O2 -o tool main.c");
}

#[test]
fn an_edit_keeps_line_ends() {
    let Some(case) = case("o13-edit-keeps-crlf") else { return };
    let place = work_tree(&case);
    let outcomes = play(&case, place.path());
    assert!(
        matches!(&outcomes[0], Ok(Reply::Edited(edited)) if edited.first == 3 && edited.lines == 2)
    );
    assert!(
        matches!(&outcomes[1], Err(Fault::Refused(Refusal::NoChange { .. }))),
        "{:?}",
        outcomes[1]
    );
    same(&case, place.path(), "after", "config.ini");
    assert_eq!(git(place.path(), &["diff", "--numstat"]), b"2\t1\tconfig.ini\n");
    let patch = place.path().join("change.patch");
    fs_err::write(&patch, git(place.path(), &["diff"])).unwrap();
    let fresh = work_tree(&case);
    git(fresh.path(), &["apply", patch.to_str().unwrap()]);
    same(&case, fresh.path(), "after", "config.ini");
}
