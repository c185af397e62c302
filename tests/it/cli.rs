//! The program as a user runs it: what it prints, what it leaves, how it ends.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_patchgym");

/// A folder to work in, with a cache of its own.
pub(crate) struct Desk {
    pub(crate) folder: TempDir,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", cache())
            .env_remove("OPENAI_API_KEY")
            .env_remove("PATCHGYM_HOME");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

/// Repository copies are the same for every test.
fn cache() -> PathBuf {
    std::env::temp_dir()
        .join(format!("patchgym-test-cache-{}", rustix::process::geteuid().as_raw()))
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn only_folder_in(path: &Path) -> PathBuf {
    let folders: Vec<_> =
        fs_err::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders.into_iter().next().unwrap()
}

#[test]
fn run_without_arguments_plays_and_grades_the_demo() {
    let desk = Desk::new();
    let output = desk.run(&["run", "-w", "2"]);
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    let table = out(&output);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("demo__")).collect();
    assert!(rows.len() >= 8 || !err(&output).contains("is skipped") || rows.len() >= 6, "{table}");
    for row in &rows {
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!((cells[1], cells[3]), ("submitted", "yes"), "{row}");
    }
    assert!(
        table.contains(&format!("resolved {0} of {0}; errors: none; dollars: 0.00", rows.len())),
        "{table}"
    );

    let folder = only_folder_in(&desk.path("runs"));
    for name in ["manifest.json", "summary.json", "preds.json", "patchgym.log"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    let run_id = json(&folder.join("manifest.json"))["run_id"].as_str().unwrap().to_owned();
    let official = json(&folder.join(format!("recorded.{run_id}.json")));
    assert_eq!(official["resolved_instances"], rows.len());
    let attempt = folder.join("attempts/demo__spanset-1/1");
    for name in ["events.jsonl", "patch.diff", "test_output.txt", "eval.sh", "report.json"] {
        assert!(attempt.join(name).is_file(), "{name}");
    }
    assert_eq!(json(&attempt.join("report.json"))["demo__spanset-1"]["resolved"], true);
    let predictions = json(&folder.join("preds.json"));
    let patch = fs_err::read_to_string(attempt.join("patch.diff")).unwrap();
    assert_eq!(predictions["demo__spanset-1"]["model_patch"], patch.as_str());

    // What the run leaves is what the next commands take.
    let predictions = folder.join("preds.json");
    let graded = desk.run(&["grade", "-i", "demo__spanset-1", "-p", predictions.to_str().unwrap()]);
    assert!(out(&graded).contains("resolved 1 of 1"), "{}", out(&graded));
    let shown = desk.run(&["show", attempt.to_str().unwrap()]);
    assert!(out(&shown).contains("demo__spanset-1, attempt 1"), "{}", out(&shown));
    let turn = desk.run(&["show", attempt.to_str().unwrap(), "--turn", "2"]);
    assert!(out(&turn).contains("turn 2:") && !out(&turn).contains("turn 3:"), "{}", out(&turn));
    let replayed = desk.run(&["replay", attempt.to_str().unwrap()]);
    assert_eq!(code(&replayed), 0, "{}{}", out(&replayed), err(&replayed));
}

#[test]
fn the_demo_runs_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the tests already run as an ordinary user");
        return;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: setpriv is not on this machine");
        return;
    }
    // The toolchain may lie in a closed home, and so may the program.
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let program = folder.path().join("patchgym");
    fs_err::copy(PROGRAM, &program).unwrap();
    let desk = folder.path().join("desk");
    fs_err::create_dir(&desk).unwrap();
    std::os::unix::fs::chown(&desk, Some(65534), Some(65534)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["run", "-w", "2"])
        .current_dir(&desk)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &desk)
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    let table = out(&output);
    let rows = table.lines().filter(|line| line.starts_with("demo__")).count();
    assert!(
        rows >= 6 && table.contains(&format!("resolved {rows} of {rows}")),
        "{table}{}",
        err(&output)
    );
}

#[test]
fn failing_demonstrations_are_not_resolved() {
    let desk = Desk::new();
    let ids = ["demo__leasecache-1", "demo__taskorder-1", "demo__verpick-1"];
    let mut arguments = vec!["run", "-m", "recorded:demo.fail", "-w", "2", "-o", "failing"];
    arguments.extend(ids.iter().flat_map(|id| ["-i", id]));
    let output = desk.run(&arguments);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).contains("resolved 0 of 3; errors: none"), "{}", out(&output));
}

#[test]
fn gold_resolves_every_demo_task_and_nothing_resolves_none() {
    let desk = Desk::new();
    let gold = desk.run(&["grade", "--tasks", "demo", "-p", "gold", "-w", "2", "--json"]);
    let verdicts: Value = serde_json::from_slice(&gold.stdout).unwrap();
    let verdicts = verdicts.as_object().unwrap();
    assert!(verdicts.len() >= 6);
    for (id, verdict) in verdicts {
        assert_eq!(verdict["outcome"], "resolved", "{id}: {verdict}");
        assert_eq!(verdict["apply"]["method"], "git apply --verbose", "{id}");
    }
    let empty = desk.run(&["grade", "-p", "empty", "-o", "kept"]);
    assert_eq!(code(&empty), 0);
    assert!(out(&empty).contains(&format!("resolved 0 of {}", verdicts.len())), "{}", out(&empty));
    let summary = json(&desk.path("kept/empty.kept.json"));
    assert_eq!(summary["empty_patch_instances"], verdicts.len());
    let alias = desk.run(&["grade", "--gold", "-i", "demo__globtrail-1"]);
    assert!(out(&alias).contains("resolved 1 of 1"));
}

#[test]
fn the_same_command_goes_on_and_another_one_is_refused() {
    let desk = Desk::new();
    let arguments = ["run", "-i", "demo__globtrail-1", "-i", "demo__spanset-1", "-o", "mine"];
    let first = desk.run(&arguments);
    assert_eq!(code(&first), 0, "{}", err(&first));
    let log = desk.path("mine/attempts/demo__spanset-1/1/events.jsonl");
    let before = fs_err::read(&log).unwrap();
    // The other attempt loses its end, as by a kill.
    let other = desk.path("mine/attempts/demo__globtrail-1/1/events.jsonl");
    let text = fs_err::read(&other).unwrap();
    fs_err::write(&other, &text[..text.len() / 2]).unwrap();

    let second = desk.run(&arguments);
    assert_eq!(code(&second), 0, "{}", err(&second));
    assert!(err(&second).contains("resuming mine"), "{}", err(&second));
    assert!(out(&second).contains("resolved 2 of 2"), "{}", out(&second));
    assert_eq!(fs_err::read(&log).unwrap(), before, "a finished attempt was touched");
    assert!(desk.path("mine/attempts/demo__globtrail-1/1.unfinished-1/events.jsonl").is_file());

    let third = desk.run(&["run", "-i", "demo__spanset-1", "-o", "mine", "-c", "limits.turns=7"]);
    assert_eq!(code(&third), 4, "{}", err(&third));
    assert!(err(&third).contains("config.limits.turns: 100 then, 7 now"), "{}", err(&third));
    assert!(
        err(&third).contains("identity")
            || err(&third).contains("instances: 2 entries then, 1 entries now")
    );
}

#[test]
fn a_second_process_is_refused() {
    let desk = Desk::new();
    fs_err::write(
        desk.path("slow.yaml"),
        "turns:\n  - calls: [{tool: run, arguments: {command: sleep 20}}]\n  - calls: [{tool: submit}]\n",
    )
    .unwrap();
    let arguments = ["run", "-m", "script:slow.yaml", "-i", "demo__spanset-1", "-o", "mine"];
    let mut first = desk.command(&arguments).spawn().unwrap();
    let log = desk.path("mine/attempts/demo__spanset-1/1/events.jsonl");
    crate::killed::wait_until("the first turn", || {
        fs_err::read_to_string(&log).is_ok_and(|text| text.contains("\"action\""))
    });
    let second = desk.run(&arguments);
    assert_eq!(code(&second), 4, "{}", err(&second));
    assert!(err(&second).contains("another process is working on it"), "{}", err(&second));

    // A signal ends the attempt with what it has, and keeps it.
    let pid = rustix::process::Pid::from_raw(i32::try_from(first.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(130));
    let text = fs_err::read_to_string(&log).unwrap();
    assert!(text.lines().last().unwrap().contains("interrupted"), "{text}");
}

#[test]
fn several_attempts_have_predictions_each() {
    let desk = Desk::new();
    let output = desk.run(&[
        "run",
        "-m",
        "gold",
        "-i",
        "demo__spanset-1",
        "-k",
        "2",
        "-w",
        "2",
        "-o",
        "twice",
    ]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).contains("resolved 2 of 2"), "{}", out(&output));
    assert!(err(&output).contains("measures nothing"), "{}", err(&output));
    assert_eq!(json(&desk.path("twice/manifest.json"))["uses_gold"], true);
    for name in ["preds.attempt-1.json", "preds.attempt-2.json"] {
        assert!(desk.path("twice").join(name).is_file(), "{name}");
    }
    assert!(!desk.path("twice/preds.json").exists());
}

/// Bad input: arguments, exit code, and what the message must hold.
#[test]
fn bad_input_gets_one_line_with_place_and_hint() {
    let desk = Desk::new();
    let good = r#"{"instance_id": "x__y-1", "repo": "x/y", "base_commit": "abc", "problem_statement": "p", "patch": "", "test_patch": "", "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": []}"#;
    let rows: Vec<String> =
        (1..=16).map(|number| good.replace("y-1", &format!("y-{number}"))).collect();
    fs_err::write(desk.path("bad17.jsonl"), format!("{}\n{{\"instance_id\": \n", rows.join("\n")))
        .unwrap();
    fs_err::write(desk.path("noid.jsonl"), good.replace("instance_id", "instance")).unwrap();
    fs_err::write(desk.path("good.jsonl"), good).unwrap();
    fs_err::create_dir(desk.path("clones")).unwrap();
    fs_err::create_dir_all(desk.path("with/y/.git")).unwrap();
    let git = |arguments: &[&str]| {
        let ran =
            Command::new("git").args(arguments).current_dir(desk.path("with/y")).output().unwrap();
        assert!(ran.status.success(), "{}", err(&ran));
    };
    git(&["init", "-q", "."]);
    git(&[
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "x",
    ]);
    fs_err::write(desk.path("file"), "").unwrap();

    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["run", "--tasks", "missing.jsonl", "-m", "null"], 2, &["missing.jsonl"]),
        (
            &["grade", "--tasks", "bad17.jsonl", "-p", "missing.json"],
            2,
            &["bad17.jsonl line 17", "missing.json"],
        ),
        (
            &["run", "-c", "limits.turnz=3"],
            2,
            &["unknown configuration field `limits.turnz`", "hint: did you mean `turns`?"],
        ),
        (
            &["run", "--agent", "navigater"],
            2,
            &["envs/agents/navigater.yaml", "hint: did you mean `envs/agents/navigator.yaml`?"],
        ),
        (&["run", "--tasks", "noid.jsonl", "-m", "null"], 2, &["noid.jsonl line 1", "instance_id"]),
        (
            &["run", "--tasks", "good.jsonl", "-m", "null", "--repo-dir", "clones"],
            2,
            &["no clone of `x/y`", "hint:"],
        ),
        (
            &["run", "--tasks", "good.jsonl", "-m", "null", "--repo-dir", "with", "-o", "r1"],
            2,
            &[
                "1 of 1 tasks cannot be found on this machine, the first is x__y-1: cannot find commit `abc` in ",
                "hint: fetch it with `git -C ",
            ],
        ),
        (&["run", "-o", "file/below"], 2, &["file/below"]),
        (&["run", "-m", "some-model"], 2, &["no server is given", "hint: add `--base-url URL`"]),
        (&["run", "-m", "script:nowhere.yaml"], 2, &["nowhere.yaml"]),
        (&["run", "-i", "demo__spanset-2"], 2, &["demo__spanset-2", "demo__spanset-1"]),
        (&["run", "--sandbox", "docker"], 2, &["docker"]),
        (
            &["run", "--tasks", "good.jsonl"],
            2,
            &["the recordings are of the bundled tasks only", "hint: name a model"],
        ),
        (&["show", "nowhere.jsonl"], 2, &["nowhere.jsonl"]),
        (&["grade", "-p", "nowhere.json"], 2, &["nowhere.json"]),
    ];
    for (arguments, expected, parts) in cases {
        let output = desk.run(arguments);
        let text = err(&output);
        assert_eq!(code(&output), *expected, "{arguments:?}: {text}{}", out(&output));
        for part in *parts {
            assert!(text.contains(part), "{arguments:?} does not say {part:?}:\n{text}");
        }
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
    for folder in ["runs", "r1"] {
        assert!(!desk.path(folder).exists(), "{folder} was begun");
    }
}

#[test]
fn missing_programs_are_named() {
    let desk = Desk::new();
    let folder = desk.path("bin");
    fs_err::create_dir(&folder).unwrap();
    let run = |path: &Path| desk.command(&["run"]).env("PATH", path).output().unwrap();
    let output = run(&folder);
    assert_eq!(code(&output), 3, "{}", err(&output));
    assert!(err(&output).contains("python3 is not on this machine"), "{}", err(&output));
    std::os::unix::fs::symlink("/usr/bin/true", folder.join("python3")).unwrap();
    let output = run(&folder);
    assert_eq!(code(&output), 3, "{}", err(&output));
    assert!(err(&output).contains("git is not on this machine"), "{}", err(&output));
    assert!(err(&output).contains("hint: install git"), "{}", err(&output));
}

#[test]
fn a_task_of_ones_own_is_played() {
    let desk = Desk::new();
    fs_err::create_dir(desk.path("code")).unwrap();
    fs_err::write(desk.path("code/hello.sh"), "echo helo\n").unwrap();
    let made = desk.run(&["tasks", "new", "mine"]);
    assert_eq!(code(&made), 0, "{}", err(&made));
    let template = fs_err::read_to_string(desk.path("mine/task.yaml")).unwrap();
    fs_err::write(desk.path("mine/task.yaml"), template.replace("../my-repository", "../code"))
        .unwrap();
    fs_err::write(
        desk.path("s.yaml"),
        "turns:\n  - calls:\n      - {tool: edit, arguments: {path: hello.sh, old_str: helo, new_str: hello}}\n      - {tool: submit}\n",
    )
    .unwrap();
    let output =
        desk.run(&["run", "--tasks", "mine", "-m", "script:s.yaml", "--no-grade", "-o", "r"]);
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    let patch = fs_err::read_to_string(desk.path("r/attempts/my-task/1/patch.diff")).unwrap();
    assert!(patch.contains("-echo helo\n+echo hello\n"), "{patch}");
    assert_eq!(fs_err::read_to_string(desk.path("code/hello.sh")).unwrap(), "echo helo\n");
}

#[test]
fn a_repository_of_ones_own_is_worked_on_in_a_copy() {
    let desk = Desk::new();
    fs_err::create_dir(desk.path("code")).unwrap();
    fs_err::write(desk.path("code/hello.sh"), "echo helo\n").unwrap();
    let git = |arguments: &[&str]| {
        let ran =
            Command::new("git").args(arguments).current_dir(desk.path("code")).output().unwrap();
        assert!(ran.status.success(), "{}", err(&ran));
    };
    git(&["init", "-q", "."]);
    git(&["add", "-A"]);
    git(&["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "x"]);
    fs_err::write(desk.path("issue.md"), "It greets with helo.\n").unwrap();
    fs_err::write(
        desk.path("s.yaml"),
        "turns:\n  - calls:\n      - {tool: edit, arguments: {path: hello.sh, old_str: helo, new_str: hello}}\n      - {tool: submit}\n",
    )
    .unwrap();
    let test = "sh hello.sh | grep -qx hello";
    let arguments =
        ["run", "--repo", "code", "--issue", "issue.md", "-m", "script:s.yaml", "--test-cmd", test];
    let hello = || fs_err::read_to_string(desk.path("code/hello.sh")).unwrap();

    let output = desk.run(&arguments);
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("resolved 1 of 1"), "{}", out(&output));
    assert!(out(&output).contains("-echo helo\n+echo hello"), "{}", out(&output));
    assert_eq!(hello(), "echo helo\n", "the repository itself was changed");

    let output = desk.run(&[&arguments[..], &["--apply"]].concat());
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    assert_eq!(hello(), "echo hello\n");

    // Now it no longer applies: nothing is changed, and the patch is kept.
    let output = desk.run(&[&arguments[..], &["--apply"]].concat());
    assert_eq!(code(&output), 2, "{}{}", out(&output), err(&output));
    assert!(err(&output).contains("uncommitted changes in"), "{}", err(&output));
    assert!(err(&output).contains("the patch does not apply to code"), "{}", err(&output));
    assert!(err(&output).contains("the patch is kept in runs/"), "{}", err(&output));
    assert_eq!(hello(), "echo hello\n");
}
