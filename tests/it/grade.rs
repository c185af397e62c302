//! Grading on the local backend, with real repositories and real test runs.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use patchgym::data::Data;
use patchgym::env::environments::Environments;
use patchgym::env::environments::Preparation;
use patchgym::env::site::Sites;
use patchgym::grade::Graded;
use patchgym::grade::Grader;
use patchgym::grade::apply;
use patchgym::grade::predictions;
use patchgym::grade::sandboxed::GradeOptions;
use patchgym::grade::sandboxed::SandboxedGrader;
use patchgym::protocol::verdict::Apply;
use patchgym::protocol::verdict::GradeError;
use patchgym::protocol::verdict::Outcome;
use patchgym::protocol::verdict::Verdict;
use patchgym::sandbox::Access;
use patchgym::sandbox::Backend;
use patchgym::sandbox::Isolation;
use patchgym::sandbox::Mount;
use patchgym::sandbox::Sandbox;
use patchgym::sandbox::SandboxError;
use patchgym::sandbox::SandboxSpec;
use patchgym::sandbox::local::backend::Local;
use patchgym::sandbox::local::programs;
use patchgym::task::AnswerKey;
use patchgym::task::Instance;
use patchgym::task::RepositorySource;
use patchgym::task::Task;
use patchgym::task::recipe::Recipes;
use patchgym::task::repository::Repositories;
use patchgym::task::rows;
use patchgym::task::source;
use serde_json::Value;
use tempfile::TempDir;

/// A grader with a cache of its own.
struct Bench {
    grader: SandboxedGrader,
    repositories: Arc<Repositories>,
    data: Arc<Data>,
    _cache: TempDir,
}

impl Bench {
    fn new(timeout: u64) -> Self {
        Self::on(Arc::new(Local::new()), timeout)
    }

    fn on(backend: Arc<dyn Backend>, timeout: u64) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let repositories = Arc::new(Repositories::at(cache.path().to_owned()));
        let data = Arc::new(Data::open(&[]).unwrap());
        let options =
            GradeOptions { timeout: Duration::from_secs(timeout), ..GradeOptions::default() };
        let environments = Environments::new(
            Arc::clone(&backend),
            cache.path(),
            Recipes::default(),
            Preparation::default(),
            Arc::new(|_| {}),
        );
        let sites = Sites {
            backend,
            repositories: Arc::clone(&repositories),
            environments: Arc::new(environments),
            data: Arc::clone(&data),
        };
        let grader = SandboxedGrader::new(sites, options);
        Self { grader, repositories, data, _cache: cache }
    }

    async fn grade(&self, instance: &Instance, patch: &str) -> Graded {
        self.grader.grade(&instance.task, &instance.key, patch.as_bytes()).await
    }

    /// Applies a patch in a sandbox; gives the record and what is at `path` afterwards. The programs in `shadow` come
    /// before the machine's.
    async fn apply(
        &self,
        task: Task,
        patch: &str,
        path: &str,
        shadow: Option<&Path>,
    ) -> (Apply, Option<Vec<u8>>) {
        let prepared = self.repositories.prepare(&task, &self.data).unwrap();
        let mount = Mount {
            source: prepared.tree,
            target: task.workdir.clone(),
            access: Access::CopyOnWrite,
        };
        let mut spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
        if let Some(shadow) = shadow {
            spec.path.push("/shadow".into());
            let mount = Mount {
                source: shadow.to_owned(),
                target: "/shadow".into(),
                access: Access::ReadOnly,
            };
            spec.mounts.push(mount);
        }
        let mut sandbox = Local::new().create(&spec).await.unwrap();
        let guest = sandbox.connect().await.unwrap();
        let applied = apply::apply(&guest, sandbox.place(), patch.as_bytes()).await.unwrap();
        let after = guest.read(path, 1 << 20).await.ok();
        sandbox.close().await.unwrap();
        (applied, after)
    }
}

fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

/// A task whose repository is a directory's files.
fn task(directory: &Path) -> Task {
    Task {
        id: "toy-1".into(),
        repo: "demo/toy".into(),
        base_commit: "HEAD".into(),
        problem_statement: "It does not work.".into(),
        version: String::new(),
        created_at: String::new(),
        image: None,
        workdir: "/testbed".into(),
        requires: vec!["python3".into()],
        source: RepositorySource::Directory(directory.to_owned()),
    }
}

fn method(verdict: &Verdict) -> Option<&str> {
    verdict.apply.as_ref()?.method.as_deref()
}

const GNU_PATCH: &str = "patch --batch --forward --fuzz=5 -p1 -i";
const FIX: &str = "--- a/sums.py\n+++ b/sums.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n";

/// A small task: `sums.add` is wrong; the test patch changes one file of tests and brings another, whose name wants
/// quotes.
fn sums() -> (TempDir, Instance) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs_err::write(root.join("sums.py"), "def add(a, b):\n    return a - b\n").unwrap();
    fs_err::write(root.join("test_old.py"), old_test("0, 0")).unwrap();
    let test_patch = "diff --git a/test_old.py b/test_old.py\n--- a/test_old.py\n+++ b/test_old.py\n@@ -4,4 +4,4 @@\n \
        class Old(unittest.TestCase):\n     def test_old(self):\n-        self.assertEqual(sums.add(0, 0), 0)\n+        \
        self.assertEqual(sums.add(5, 0), 5)\n \ndiff --git \"a/it's \\\"new\\\".py\" \"b/it's \\\"new\\\".py\"\nnew file mode 100644\n\
        --- /dev/null\n+++ \"b/it's \\\"new\\\".py\"\n@@ -0,0 +1,6 @@\n+import unittest\n+import sums\n+\n+class New(unittest.TestCase):\n\
        +    def test_new(self):\n+        self.assertEqual(sums.add(1, 2), 3)\n";
    let key = AnswerKey {
        gold_patch: FIX.into(),
        test_patch: test_patch.into(),
        fail_to_pass: vec!["test_new.New.test_new".into()],
        pass_to_pass: vec!["test_old.Old.test_old".into()],
        test_cmd: Some(
            "cp \"it's \\\"new\\\".py\" test_new.py; python3 -m unittest -v test_old test_new"
                .into(),
        ),
        log_parser: "unittest".into(),
        ..AnswerKey::default()
    };
    let task = task(root);
    (directory, Instance { task, key })
}

fn old_test(arguments: &str) -> String {
    format!(
        "import unittest\nimport sums\n\nclass Old(unittest.TestCase):\n    def test_old(self):\n        \
        self.assertEqual(sums.add({arguments}), 0)\n\n"
    )
}

/// The same task with another test command and, if any, only that command's output to judge by.
fn with_command(command: &str) -> (TempDir, Instance) {
    let (directory, mut instance) = sums();
    let quiet = "python3 -m unittest -v test_old 2>&1";
    instance.key.test_cmd = Some(command.replace("TESTS", quiet));
    instance.key.fail_to_pass = vec!["test_old.Old.test_old".into()];
    instance.key.pass_to_pass = Vec::new();
    (directory, instance)
}

#[tokio::test]
async fn demo_tasks_are_resolved_by_their_solution_only() {
    let bench = Bench::new(300);
    let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("envs/demo/rows");
    let mut paths: Vec<PathBuf> =
        fs_err::read_dir(rows).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let mut instance = source::load(&path).unwrap().instances.pop().unwrap();
        let Task { id, repo, requires, .. } = &instance.task;
        let missing = programs::missing(requires);
        if !missing.is_empty() {
            println!("skipped {id}: no {}", missing.join(", "));
            continue;
        }
        instance.task.source =
            RepositorySource::Embedded(repo.rsplit('/').next().unwrap().to_owned());
        let id = &instance.task.id;
        let graded = bench.grade(&instance, &instance.key.gold_patch).await;
        let log = String::from_utf8_lossy(&graded.log).into_owned();
        assert_eq!(graded.verdict.outcome, Outcome::Resolved, "{id}: {:?}\n{log}", graded.verdict);
        assert_eq!(method(&graded.verdict), Some("git apply --verbose"), "{id}");
        assert_eq!(graded.verdict.fail_to_pass.success, instance.key.fail_to_pass, "{id}");
        assert!(
            graded.verdict.times.total >= graded.verdict.times.test
                && graded.verdict.times.test > 0.0,
            "{id}"
        );
        assert!(log.contains("\n>>>>> Test Exit Code: 0\n"), "{id}\n{log}");

        let empty = bench.grade(&instance, "").await;
        assert_eq!(
            (empty.verdict.outcome, empty.verdict.error),
            (Outcome::EmptyPatch, None),
            "{id}"
        );
        assert_eq!((empty.log.len(), empty.script.len()), (0, 0), "{id}");

        let wrong = "--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+nothing\n";
        let graded = bench.grade(&instance, wrong).await;
        assert_eq!(graded.verdict.outcome, Outcome::Unresolved, "{id}: {:?}", graded.verdict);
        assert!(!graded.verdict.fail_to_pass.failure.is_empty(), "{id}");
        assert_eq!(graded.verdict.pass_to_pass.success, instance.key.pass_to_pass, "{id}");
    }
}

#[tokio::test]
async fn a_patch_that_lost_its_end_applies() {
    let Some(case) = shared("cases/o01-patch-final-newline") else { return };
    let bench = Bench::new(60);
    let shadow = tempfile::tempdir().unwrap();
    let expected = fs_err::read(case.join("expected_after/meter.py")).unwrap();
    // GNU patch takes missing lines at the end for blank ones; not every image has it.
    let absent = shadow.path().join("patch");
    fs_err::write(&absent, "#!/bin/sh\nexit 127\n").unwrap();
    fs_err::set_permissions(&absent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (shadow, second) in [(None, GNU_PATCH), (Some(shadow.path()), "git apply --recount")] {
        let methods = ["git apply --verbose", second, "git apply --verbose"];
        for (row, method) in
            rows::read(&case.join("predictions.jsonl")).unwrap().into_iter().zip(methods)
        {
            let row = row.unwrap();
            let patch = row.fields["model_patch"].as_str().unwrap();
            let task = task(&case.join("base"));
            let (applied, after) = bench.apply(task, patch, "/testbed/meter.py", shadow).await;
            assert_eq!(applied.method.as_deref(), Some(method), "{}", applied.log);
            assert_eq!(after.as_ref(), Some(&expected));
        }
    }
}

#[tokio::test]
async fn the_chain_of_the_harness_is_tried_in_its_order() {
    let bench = Bench::new(60);
    let directory = tempfile::tempdir().unwrap();
    let lines =
        |range: std::ops::Range<u32>| range.map(|line| format!("{line}\n")).collect::<String>();
    fs_err::write(directory.path().join("numbers"), lines(1..21)).unwrap();
    let change = |context: &str| {
        format!(
            "--- a/numbers\n+++ b/numbers\n@@ -4,7 +4,7 @@\n {context}\n 5\n 6\n-7\n+seven\n 8\n 9\n 10\n"
        )
    };
    let changed = lines(1..21).replace("\n7\n", "\nseven\n").into_bytes();
    let untouched = lines(1..21).into_bytes();
    let reject = [change("4"), "--- a/absent\n+++ b/absent\n@@ -1 +1 @@\n-x\n+y\n".into()].concat();
    let absent = "--- a/absent\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
    let cases = [
        (change("4"), Some("git apply --verbose"), &changed),
        // Context that does not match is only taken with fuzz.
        (change("four"), Some(GNU_PATCH), &changed),
        // What is deleted already could be taken back.
        (absent.to_owned(), Some("git apply --check --reverse"), &untouched),
        // The half that applies leaves nothing behind for the next command, but the last one's half stays.
        (reject, None, &changed),
        ("no patch at all".to_owned(), None, &untouched),
        // Cut in the middle of a change, not only of context.
        (change("4").split_once("+seven").unwrap().0.to_owned(), None, &untouched),
    ];
    for (patch, expected, after) in cases {
        let (applied, content) =
            bench.apply(task(directory.path()), &patch, "/testbed/numbers", None).await;
        assert_eq!(applied.method.as_deref(), expected, "{patch}\n{}", applied.log);
        assert_eq!(content.as_ref(), Some(after), "{patch}\n{}", applied.log);
    }
}

#[tokio::test]
async fn a_patch_for_an_earlier_commit_is_merged() {
    let bench = Bench::new(60);
    let directory = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@t.invalid"]).args(arguments);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let write = |text: &str| {
        fs_err::write(directory.path().join("words"), text.replace(' ', "\n")).unwrap()
    };
    git(&["init", "-q"]);
    write("a b c d e f g h ");
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    write("a b c d e F g h ");
    let patch = git(&["diff"]);
    write("a b C C C d e f g h ");
    git(&["commit", "-qam", "two"]);
    let source = RepositorySource::Clone(directory.path().to_owned());
    let task = Task {
        source,
        base_commit: git(&["rev-parse", "HEAD"]).trim().to_owned(),
        ..task(directory.path())
    };
    let (applied, after) = bench.apply(task, &patch, "/testbed/words", None).await;
    assert_eq!(applied.method.as_deref(), Some("git apply --verbose --3way"), "{}", applied.log);
    assert_eq!(after.unwrap(), b"a\nb\nC\nC\nC\nd\ne\nF\ng\nh\n");
}

#[tokio::test]
async fn files_of_the_test_patch_are_put_back_before_it_is_applied() {
    let bench = Bench::new(60);
    let (_directory, instance) = sums();
    let weaker = "--- a/test_old.py\n+++ b/test_old.py\n@@ -4,3 +4,4 @@\n class Old(unittest.TestCase):\n     \
        def test_old(self):\n+        return\n         self.assertEqual(sums.add(0, 0), 0)\n";
    let deleted = "diff --git a/test_old.py b/test_old.py\ndeleted file mode 100644\n--- a/test_old.py\n+++ /dev/null\n\
        @@ -1,7 +0,0 @@\n-import unittest\n-import sums\n-\n-class Old(unittest.TestCase):\n-    def test_old(self):\n\
        -        self.assertEqual(sums.add(0, 0), 0)\n-\n";
    let taken = "--- /dev/null\n+++ \"b/it's \\\"new\\\".py\"\n@@ -0,0 +1,4 @@\n+import unittest\n\
        +class New(unittest.TestCase):\n+    def test_new(self):\n+        pass\n";
    let in_the_way = "--- /dev/null\n+++ \"b/it's \\\"new\\\".py/x\"\n@@ -0,0 +1 @@\n+x\n";
    for (with, expected) in [
        ([FIX, ""], Outcome::Resolved),
        ([FIX, weaker], Outcome::Resolved),
        ([FIX, deleted], Outcome::Resolved),
        ([FIX, taken], Outcome::Resolved),
        ([FIX, in_the_way], Outcome::Resolved),
        (["", weaker], Outcome::Unresolved),
        (["", taken], Outcome::Unresolved),
    ] {
        let patch = with.concat();
        let graded = bench.grade(&instance, &patch).await;
        let log = String::from_utf8_lossy(&graded.log);
        assert_eq!(graded.verdict.outcome, expected, "{patch}\n{:?}\n{log}", graded.verdict);
        if expected == Outcome::Unresolved {
            assert_eq!(
                graded.verdict.fail_to_pass.failure, instance.key.fail_to_pass,
                "{patch}\n{log}"
            );
        }
    }
}

#[tokio::test]
async fn the_official_rule_decides_about_the_pytest_cases() {
    let mut pytest = Command::new("python3");
    pytest.args(["-m", "pytest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !pytest.status().is_ok_and(|status| status.success()) {
        println!("skipped: no pytest");
        return;
    }
    let bench = Bench::new(120);
    for case in ["cases/o02-patch-edits-test-file", "cases/o03-conftest-only-patch"] {
        let Some(case) = shared(case) else { continue };
        let expected: Value =
            serde_json::from_slice(&fs_err::read(case.join("expected.json")).unwrap()).unwrap();
        let predictions = predictions::read(&case.join("predictions.jsonl")).unwrap();
        for mut instance in source::load(&case.join("instances.jsonl")).unwrap().instances {
            instance.task.base_commit = "HEAD".into();
            instance.task.source = RepositorySource::Directory(case.join("base"));
            instance.task.requires = vec!["python3".into()];
            let id = &instance.task.id;
            // A conftest.py that forges results deceives the official rule: the exit status is 0 as well.
            let resolved = expected["resolved"][id].as_bool().unwrap() || id == "demo__slug-a";
            let patch = predictions[id].patch.as_ref().unwrap();
            let graded = bench.grade(&instance, patch).await;
            let log = String::from_utf8_lossy(&graded.log);
            let outcome = if resolved { Outcome::Resolved } else { Outcome::Unresolved };
            assert_eq!(graded.verdict.outcome, outcome, "{id}: {:?}\n{log}", graded.verdict);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_graded_is_an_error_and_no_verdict() {
    let bench = Bench::new(60);
    let (_directory, instance) = sums();
    let error = |graded: Graded| {
        assert_eq!(graded.verdict.outcome, Outcome::Error);
        (graded.verdict.error.unwrap(), graded.verdict.detail.unwrap())
    };
    let graded = bench.grade(&instance, "not a patch").await;
    let applied = graded.verdict.apply.clone().unwrap();
    assert!(
        applied.method.is_none() && applied.log.contains("$ patch --batch --forward"),
        "{}",
        applied.log
    );
    assert_eq!(error(graded), (GradeError::ApplyFailed, "no command could apply the patch".into()));

    let key = AnswerKey { fail_to_pass: Vec::new(), ..instance.key.clone() };
    let no_test = Instance { key, ..instance.clone() };
    assert_eq!(error(bench.grade(&no_test, FIX).await).0, GradeError::Task);
    let key = AnswerKey { log_parser: "nose".into(), ..instance.key.clone() };
    let no_parser = Instance { key, ..instance.clone() };
    let expected = (GradeError::Task, "unknown log parser `nose`".into());
    assert_eq!(error(bench.grade(&no_parser, FIX).await), expected);
    let key = AnswerKey { test_cmd: None, ..instance.key.clone() };
    let no_command = Instance { key, ..instance.clone() };
    assert_eq!(error(bench.grade(&no_command, FIX).await).0, GradeError::Task);

    let (_directory, silent) = with_command("ls /absent");
    let graded = bench.grade(&silent, FIX).await;
    assert!(String::from_utf8_lossy(&graded.log).contains(">>>>> Test Exit Code: 2"));
    assert_eq!(error(graded), (GradeError::NoResults, "the log holds no test results".into()));
}

#[tokio::test]
async fn a_broken_machine_is_an_error_and_no_verdict() {
    let bench = Bench::new(60);
    let (_directory, instance) = sums();
    let detail = |graded: Graded| {
        assert_eq!(graded.verdict.error, Some(GradeError::Sandbox), "{:?}", graded.verdict);
        graded.verdict.detail.unwrap()
    };
    let mut impossible = instance.clone();
    impossible.task.workdir = "/etc/passwd/testbed".into();
    let detail_of_impossible = detail(bench.grade(&impossible, FIX).await);
    assert!(detail_of_impossible.starts_with("create sandbox: "), "{detail_of_impossible}");
    let mut lacking = instance.clone();
    lacking.task.requires = vec!["no-such-program".into()];
    assert_eq!(detail(bench.grade(&lacking, FIX).await), "find `no-such-program` on this machine");
    let mut homeless = instance.clone();
    homeless.task.source = RepositorySource::Unknown;
    assert_eq!(
        detail(bench.grade(&homeless, FIX).await),
        "find repository `demo/toy` on this machine"
    );
    let (_directory, killer) = with_command("kill -KILL -1");
    assert_eq!(
        detail(bench.grade(&killer, FIX).await),
        "use sandbox: its guest was ended by signal 9"
    );
}

/// The local backend on a machine that refuses the first `refusals` sandboxes.
#[derive(Default)]
struct Refusing {
    local: Local,
    refusals: u32,
    asked: AtomicU32,
}

#[async_trait]
impl Backend for Refusing {
    fn isolation(&self) -> Isolation {
        self.local.isolation()
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < self.refusals {
            return Err(SandboxError::Gone);
        }
        self.local.create(spec).await
    }
}

#[tokio::test]
async fn a_second_sandbox_is_tried_and_no_third() {
    let (_directory, instance) = sums();
    for (refusals, expected) in [(1, Outcome::Resolved), (2, Outcome::Error)] {
        let backend = Arc::new(Refusing { refusals, ..Refusing::default() });
        let bench = Bench::on(Arc::clone(&backend) as Arc<dyn Backend>, 60);
        let graded = bench.grade(&instance, FIX).await;
        assert_eq!(graded.verdict.outcome, expected, "{:?}", graded.verdict);
        assert_eq!(backend.asked.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test]
async fn tests_that_do_not_end_are_ended_and_their_log_is_kept() {
    let bench = Bench::new(2);
    let python = "import sys, time\nprint(\"waiting\", flush=True)\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print(\"told\")";
    let (_directory, instance) =
        with_command(&format!("TESTS; setsid sleep 600 & python3 -c '{python}'"));
    let started = Instant::now();
    let graded = bench.grade(&instance, FIX).await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(graded.verdict.error, Some(GradeError::TestTimeout));
    let log = String::from_utf8_lossy(&graded.log);
    assert!(log.contains("\nwaiting\ntold\n"), "{log}");
    assert!(log.ends_with("\n\nTimeout error: 2 seconds exceeded."), "{log}");
    assert_eq!(graded.verdict.fail_to_pass.success, Vec::<String>::new());
}

#[tokio::test]
async fn no_way_of_printing_spoils_the_log() {
    let bench = Bench::new(60);
    for command in [
        // A process that stays behind holds the output open.
        "sleep 600 & TESTS",
        "TESTS; setsid sh -c 'while :; do echo noise; sleep 0.01; done' &",
        // Opening the output by name must not empty it.
        "TESTS; echo late > /dev/stderr; echo later > /dev/stdout",
        "printf '\\377\\376\\0\\r\\n'; TESTS",
        "TESTS; cd /; set -e",
        "dd if=/dev/zero of=filler bs=1M status=none; TESTS",
    ] {
        let (_directory, instance) = with_command(command);
        let started = Instant::now();
        let graded = bench.grade(&instance, FIX).await;
        let log = String::from_utf8_lossy(&graded.log);
        assert_eq!(
            graded.verdict.outcome,
            Outcome::Resolved,
            "{command}: {:?}\n{log}",
            graded.verdict
        );
        assert!(started.elapsed() < Duration::from_secs(30), "{command}: {:?}", started.elapsed());
    }
}
