//! Real SWE-bench rows, in clones of the real repositories, in environments made on this machine.
//!
//! `PATCHGYM_TEST_REPOS` names the folder of clones. Packages are fetched the first time.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::cli::out;

/// Rows whose recipes are tried, each of another repository; the first one is also played.
const ROWS: [&str; 4] = [
    "pallets__flask-5014",
    "psf__requests-6028",
    "pylint-dev__pylint-4970",
    "pytest-dev__pytest-10356",
];
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pallets__flask-5014.yaml");
/// Changes nothing, but is no empty patch, which would not be tried at all.
const NOTHING: &str = "diff --git a/note.txt b/note.txt\nnew file mode 100644\n--- /dev/null\n+++ b/note.txt\n@@ -0,0 +1 @@\n+nothing\n";

/// The rows and the folder of clones.
struct Real {
    rows: PathBuf,
    clones: PathBuf,
}

impl Real {
    /// None, and said why, where something is missing.
    fn find() -> Option<Self> {
        let rows = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../shared/data/swebench/instances/core_python.jsonl");
        let clones = std::env::var_os("PATCHGYM_TEST_REPOS").map(PathBuf::from);
        let folder = tempfile::tempdir().unwrap();
        let fetched = || {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "wheel", "--dest"]);
            pip.arg(folder.path()).output().is_ok_and(|output| output.status.success())
        };
        let missing = match &clones {
            _ if !rows.exists() => format!("{} is not there", rows.display()),
            None => "PATCHGYM_TEST_REPOS names no folder of clones".to_owned(),
            Some(clones) if !clones.is_dir() => format!("{} is no folder", clones.display()),
            Some(_) if !fetched() => "pip cannot fetch packages".to_owned(),
            Some(_) => return clones.map(|clones| Self { rows, clones }),
        };
        println!("skipped: {missing}");
        None
    }

    /// The arguments that every command has.
    fn arguments<'a>(&'a self, command: &'a str, ids: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![command, "--tasks", self.rows.to_str().unwrap(), "--repo-dir"];
        arguments.extend([self.clones.to_str().unwrap(), "--sandbox", "local", "--json"]);
        arguments.extend(ids.iter().flat_map(|id| ["-i", *id]));
        arguments
    }
}

#[test]
fn the_reference_patch_resolves_a_real_row_and_nothing_does_not() {
    let Some(real) = Real::find() else { return };
    let desk = Desk::new();
    let nothing: Vec<Value> = ROWS
        .iter()
        .map(|id| {
            serde_json::json!({"instance_id": id, "model_name_or_path": "nothing", "model_patch": NOTHING})
        })
        .collect();
    fs_err::write(desk.path("nothing.json"), serde_json::to_vec(&nothing).unwrap()).unwrap();
    for (patches, outcome) in
        [("gold", "resolved"), ("nothing.json", "unresolved"), ("empty", "empty_patch")]
    {
        let mut arguments = real.arguments("grade", &ROWS);
        arguments.extend(["-p", patches]);
        let output = desk.run(&arguments);
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert!(err(&output).contains("not comparable with published numbers"), "{}", err(&output));
        let verdicts: Value = serde_json::from_slice(&output.stdout).unwrap();
        for id in ROWS {
            let verdict = &verdicts[id];
            println!("{patches} {id}: {} in {} s", verdict["outcome"], verdict["times"]["total"]);
            assert_eq!(verdict["outcome"], outcome, "{id}: {verdict}");
            assert!(
                outcome == "resolved"
                    || verdict["fail_to_pass"]["success"] == serde_json::json!([])
            );
        }
    }
}

#[test]
fn a_scripted_agent_resolves_a_real_row() {
    let Some(real) = Real::find() else { return };
    let desk = Desk::new();
    let model = format!("script:{SCRIPT}");
    let mut arguments = real.arguments("run", &ROWS[..1]);
    arguments.extend(["-m", &model, "-o", "run"]);
    let output = desk.run(&arguments);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (summary["resolved"].as_u64(), summary["total"].as_u64()),
        (Some(1), Some(1)),
        "{}",
        out(&output)
    );
    assert_eq!(summary["ends"]["submitted"], 1);
    let folder = desk.path("run/attempts").join(ROWS[0]).join("1");
    let patch = fs_err::read_to_string(folder.join("patch.diff")).unwrap();
    assert_eq!(patch.matches("diff --git").count(), 1, "only the source is in the patch: {patch}");
    let log = fs_err::read_to_string(folder.join("events.jsonl")).unwrap();
    assert!(log.contains("\"environment\":\""), "the log names the environment");
}
