//! Environments of real repositories: made once from recipes, shared, kept apart from the answer.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use patchgym::data::Data;
use patchgym::env::Env;
use patchgym::env::EnvError;
use patchgym::env::environments::Environments;
use patchgym::env::environments::MachineSettings;
use patchgym::env::environments::Preparation;
use patchgym::env::environments::PrepareError;
use patchgym::env::environments::Progress;
use patchgym::grade::Grader;
use patchgym::grade::sandboxed::GradeOptions;
use patchgym::grade::sandboxed::SandboxedGrader;
use patchgym::protocol::verdict::GradeError;
use patchgym::protocol::verdict::Outcome;
use patchgym::sandbox::Isolation;
use patchgym::sandbox::Network;
use patchgym::sandbox::local::backend::Local;
use patchgym::task::AnswerKey;
use patchgym::task::RepositorySource;
use patchgym::task::Task;
use patchgym::task::recipe::Recipes;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::world::World;
use crate::world::run;
use crate::world::sh;
use crate::world::task;

const REPOSITORY: &str = "echo 'VALUE = 1' >toy.py; echo '*.made' >.gitignore; echo dep >needs.txt
cat >check.py <<'CODE'
import os, dep, toy
print('PASSED' if dep.ANSWER == 42 and os.environ['TOY'] == 'yes' else 'FAILED', 'check.py::test_before')
print('PASSED' if toy.VALUE == 2 else 'FAILED', 'check.py::test_value')
CODE
";
const RECIPE: &str = r#"
recipes:
  - repo: toy/toy
    versions: ["1.0"]
    python: ["PYTHON"]
    packages: [dep==1.0]
    install:
      - python -c 'import dep; print(dep.ANSWER)' >built.txt
      - echo ignored >ignored.made; echo changed >>toy.py
      - mkdir -p $PIP_CACHE_DIR/wheels; echo fetched >$PIP_CACHE_DIR/wheels/kept
      - test "$TASK_VERSION" = 1.0
    inputs: [needs.txt]
    env: {TOY: "yes"}
    test: python
"#;
const SOLUTION: &str = "--- a/toy.py\n+++ b/toy.py\n@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 2\n";
const NOTHING: &str = "--- /dev/null\n+++ b/note.txt\n@@ -0,0 +1 @@\n+nothing\n";

/// A world with a recipe for its toy, whose installations fetch from a folder and have no network.
struct Toy {
    world: World,
    /// Installations that were begun.
    begun: Arc<AtomicU32>,
}

impl Toy {
    /// None where this machine's Python cannot make an environment.
    fn new(recipe: &str, limit: Duration) -> Option<Self> {
        let mut world = World::new();
        let made = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            println!("skipped: python3 with its module venv is not on this machine");
            return None;
        }
        let version = sh(
            world.folder.path(),
            "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'",
        );
        world.make("data/envs/python", "true");
        let recipe = recipe.replace("PYTHON", &version);
        fs_err::write(world.path("data/envs/python/recipes.yaml"), recipe).unwrap();
        let wheels = world.make(
            "wheels",
            "python3 -c '
import zipfile
with zipfile.ZipFile(\"dep-1.0-py3-none-any.whl\", \"w\") as wheel:
    wheel.writestr(\"dep.py\", \"ANSWER = 42\\n\")
    info = \"dep-1.0.dist-info/\"
    wheel.writestr(info + \"METADATA\", \"Metadata-Version: 2.1\\nName: dep\\nVersion: 1.0\\n\")
    wheel.writestr(info + \"WHEEL\", \"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n\")
    wheel.writestr(info + \"RECORD\", \"dep.py,,\\n\")
'",
        );
        let begun = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&begun);
        let count = move |progress: Progress<'_>| {
            if matches!(progress, Progress::Started { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        };
        let preparation = Preparation {
            network: Network::None,
            limit,
            settings: MachineSettings::Ignored,
            env: BTreeMap::from([
                ("PIP_NO_INDEX".to_owned(), "1".to_owned()),
                ("PIP_FIND_LINKS".to_owned(), wheels.display().to_string()),
            ]),
        };
        let data = Data::open(&[world.path("data")]).unwrap();
        world.sites.environments = Arc::new(Environments::new(
            Arc::clone(&world.sites.backend),
            &world.path("cache"),
            Recipes::load(&data).unwrap(),
            preparation,
            Arc::new(count),
        ));
        Some(Self { world, begun })
    }

    fn task(&self) -> Task {
        Task { version: "1.0".into(), ..self.world.task("toy", REPOSITORY) }
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }

    fn grader(&self) -> SandboxedGrader {
        SandboxedGrader::new(self.world.sites.clone(), GradeOptions::default())
    }

    /// Names of what is in the cache of environments.
    fn environments(&self) -> Vec<String> {
        let entries = fs_err::read_dir(self.world.path("cache/environments")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn key() -> AnswerKey {
    AnswerKey {
        fail_to_pass: vec!["check.py::test_value".into()],
        pass_to_pass: vec!["check.py::test_before".into()],
        log_parser: "parse_log_pytest".into(),
        ..AnswerKey::default()
    }
}

#[tokio::test]
async fn an_environment_is_made_once_shared_and_not_part_of_the_answer() {
    let Some(toy) = Toy::new(RECIPE, Duration::from_secs(300)) else { return };
    let task = toy.task();
    let (mut first, mut second) = (toy.world.env(), toy.world.env());
    let (one, two) = tokio::join!(first.reset(&task), second.reset(&task));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((toy.begun(), &one), (1, &two));
    assert_eq!(toy.environments(), [one.environment.unwrap()]);

    let seen = run(
        &mut first,
        "python -c 'import dep; print(dep.ANSWER, dep.__file__)'; echo $TOY $VIRTUAL_ENV; cat built.txt ignored.made toy.py",
    )
    .await;
    for expected in ["42 /opt/environment/", "yes /opt/environment\n42\nignored\nVALUE = 1"] {
        assert!(seen.contains(expected), "{seen}");
    }
    assert!(!seen.contains("changed"), "a tracked file was changed by the installation: {seen}");
    assert_eq!(first.patch().await.unwrap().bytes, b"");

    // What one attempt does to its environment, no other sees.
    run(&mut first, "python -m pip uninstall -y dep; echo 'VALUE = 2' >toy.py").await;
    let seen = run(&mut second, "python -c 'import dep; print(dep.ANSWER)'").await;
    assert!(seen.starts_with("42"), "{seen}");
    let patch = first.patch().await.unwrap();
    assert_eq!(patch.receipt.files, ["toy.py"]);

    let kept = fs_err::read_to_string(toy.world.path("cache/pip/toy__toy/wheels/kept")).unwrap();
    assert_eq!(kept, "fetched\n");
    for env in [&mut first, &mut second] {
        env.close().await.unwrap();
    }

    // A file that the environment depends on makes another one; any other file does not.
    let changed = |name: &str, script: &str| Task {
        version: "1.0".into(),
        ..toy.world.task(name, &format!("{REPOSITORY}{script}"))
    };
    let site = toy.world.sites.site(&changed("same", "echo x >other.txt"), Network::None).await;
    assert_eq!((site.unwrap().environment.is_some(), toy.begun()), (true, 1));
    let site = toy.world.sites.site(&changed("new", "echo more >needs.txt"), Network::None).await;
    assert_eq!((site.unwrap().environment.is_some(), toy.begun()), (true, 2));
}

#[tokio::test]
async fn a_failed_installation_tells_its_last_lines_and_is_not_kept() {
    let failing = RECIPE.replace("test \"$TASK_VERSION\" = 1.0", "echo last words; false; true");
    let Some(toy) = Toy::new(&failing, Duration::from_secs(300)) else { return };
    let task = toy.task();
    for attempt in 1..=2 {
        let error = toy.world.sites.site(&task, Network::None).await.unwrap_err();
        let EnvError::Environment(PrepareError::Command { command, ending, lines, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!(command, "echo last words; false; true");
        assert_eq!((ending.as_str(), lines.as_str()), ("ended with status 1", "\n    last words"));
        assert_eq!((toy.begun(), toy.environments().len()), (attempt, 0));
    }
    let graded = toy.grader().grade(&task, &key(), SOLUTION.as_bytes()).await.verdict;
    assert_eq!((graded.outcome, graded.error), (Outcome::Error, Some(GradeError::Sandbox)));
    assert!(graded.detail.unwrap().ends_with("last words"));

    let Some(toy) = Toy::new(RECIPE, Duration::from_millis(200)) else { return };
    let error = toy.world.sites.site(&toy.task(), Network::None).await.unwrap_err().to_string();
    assert!(error.contains("-m venv /opt/environment` was not done after 0 s in all"), "{error}");
    assert_eq!(toy.environments().len(), 0);
}

#[tokio::test]
async fn patches_are_graded_in_the_environment_by_either_kind_of_script() {
    let Some(toy) = Toy::new(RECIPE, Duration::from_secs(300)) else { return };
    let test_patch = "--- a/check.py\n+++ b/check.py\n@@ -1,2 +1,2 @@\n-import os, dep, toy\n+import dep, os, toy\n \
        print('PASSED' if dep.ANSWER == 42 and os.environ['TOY'] == 'yes' else 'FAILED', 'check.py::test_before')\n";
    let official = format!(
        "#!/bin/bash\nset -uxo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n\
         python -m pip install no-such-package && exit 9\n\
         git checkout HEAD check.py\ngit apply -v - <<'EOF_1'\n{test_patch}\nEOF_1\n\
         : '>>>>> Start Test Output'\npython check.py\n: '>>>>> End Test Output'\ngit checkout HEAD check.py\n"
    );
    let by_recipe = AnswerKey { test_patch: test_patch.into(), ..key() };
    let by_script = AnswerKey { eval_script: Some(official), ..key() };
    for (kind, key) in [("recipe", by_recipe), ("script", by_script)] {
        for (patch, outcome) in [(SOLUTION, Outcome::Resolved), (NOTHING, Outcome::Unresolved)] {
            let graded = toy.grader().grade(&toy.task(), &key, patch.as_bytes()).await;
            let log = String::from_utf8_lossy(&graded.log).into_owned();
            assert_eq!(graded.verdict.outcome, outcome, "{kind}: {:?} {log}", graded.verdict);
            assert_eq!(graded.verdict.pass_to_pass.success.len(), 1, "{kind}: {log}");
            assert!(log.contains(">>>>> Test Exit Code: 0"), "{kind}: {log}");
            assert!(!log.contains("no-such-package"), "{kind}: {log}");
        }
    }
    assert_eq!(toy.begun(), 1);

    let other = Task { version: "2.0".into(), image: Some("toy".into()), ..toy.task() };
    let graded = toy.grader().grade(&other, &key(), SOLUTION.as_bytes()).await.verdict;
    assert_eq!((graded.outcome, graded.error), (Outcome::Error, Some(GradeError::Task)));
    assert_eq!(graded.detail.unwrap(), "find a recipe for toy/toy 2.0");
}

#[test]
fn an_environment_needs_namespaces() {
    let world = World::new();
    let folder = world.path("sandboxes");
    let recipes = Recipes::load(&Data::open(&[]).unwrap()).unwrap();
    let environments = Environments::new(
        Arc::new(Local::with(Isolation::Nothing, folder)),
        &world.path("cache"),
        recipes,
        Preparation::default(),
        Arc::new(|_| {}),
    );
    let flask = Task {
        repo: "pallets/flask".into(),
        version: "2.3".into(),
        ..task(RepositorySource::Unknown, "HEAD")
    };
    let error = environments.check(&flask).unwrap_err();
    assert!(matches!(error, PrepareError::Isolation(Isolation::Nothing)), "{error}");
    assert!(environments.check(&Task { repo: "toy/toy".into(), ..flask }).unwrap().is_none());
}

#[test]
fn rows_that_cannot_be_prepared_are_told_before_anything_is_begun() {
    let desk = Desk::new();
    let row = |id: &str, repo: &str, version: &str| {
        format!(
            r#"{{"instance_id": "{id}", "repo": "{repo}", "version": "{version}", "base_commit": "HEAD", "image": "i",
            "problem_statement": "x", "FAIL_TO_PASS": ["t"], "patch": "p", "eval_script": "true"}}"#
        )
        .replace('\n', " ")
    };
    let rows = [row("a-1", "pallets/flask", "2.3"), row("a-2", "pallets/flask", "0.1")].join("\n");
    fs_err::write(desk.path("rows.jsonl"), rows).unwrap();
    for name in ["pallets/flask", "toy/toy"] {
        let folder = desk.path(&format!("clones/{name}"));
        fs_err::create_dir_all(&folder).unwrap();
        sh(&folder, "git init -q; git commit -q --allow-empty -m first");
    }
    let grade = |arguments: &[&str]| {
        let all = [&["grade", "--tasks", "rows.jsonl", "-p", "gold"][..], arguments].concat();
        let output = desk.run(&all);
        (code(&output), err(&output))
    };
    for command in ["grade", "run"] {
        let players: &[&str] = if command == "grade" { &["-p", "gold"] } else { &["-m", "null"] };
        let output = desk.run(&[&[command, "--tasks", "rows.jsonl"], players].concat());
        let said = err(&output);
        assert_eq!(code(&output), 2, "{said}");
        assert!(said.starts_with("error: a-1 is in a container image"), "{said}");
        assert!(said.contains("hint: `--sandbox local --repo-dir DIR`"), "{said}");
    }
    let (ended, said) = grade(&["--sandbox", "local"]);
    assert_eq!((ended, said.contains("`--repo-dir DIR`")), (2, true), "{said}");
    let (ended, said) = grade(&["--sandbox", "local", "--repo-dir", "clones"]);
    assert_eq!(ended, 2, "{said}");
    assert!(said.contains("1 of 2 tasks cannot be prepared"), "{said}");
    assert!(said.contains("a-2: cannot find a recipe for pallets/flask 0.1"), "{said}");
    assert!(said.contains("pallets/flask 2.3"), "the hint names what there is: {said}");
    fs_err::write(desk.path("other.json"), r#"[{"instance_id": "a-3", "model_patch": "x"}]"#)
        .unwrap();
    let output =
        desk.run(&["grade", "--tasks", "rows.jsonl", "--sandbox", "local", "-p", "other.json"]);
    assert_eq!(code(&output), 0, "only what is graded has to be prepared: {}", err(&output));
}

#[test]
fn a_password_of_this_machine_is_not_passed_on() {
    if Toy::new(RECIPE, Duration::ZERO).is_none() {
        return;
    }
    let desk = Desk::new();
    let version =
        sh(desk.folder.path(), "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'");
    fs_err::create_dir_all(desk.path("data/envs/python")).unwrap();
    fs_err::write(
        desk.path("data/envs/python/recipes.yaml"),
        format!("recipes: [{{repo: toy/toy, versions: ['1'], python: ['{version}'], install: ['true'], test: 'true'}}]"),
    )
    .unwrap();
    fs_err::create_dir_all(desk.path("clones/toy")).unwrap();
    sh(&desk.path("clones/toy"), "git init -q; git commit -q --allow-empty -m first");
    fs_err::write(
        desk.path("rows.jsonl"),
        r#"{"instance_id": "a", "repo": "toy/toy", "version": "1", "base_commit": "HEAD", "problem_statement": "x",
            "FAIL_TO_PASS": ["t"], "patch": "diff", "test_cmd": "true", "log_parser": "parse_log_pytest"}"#
            .replace('\n', " "),
    )
    .unwrap();
    let output = desk
        .command(&[
            "grade",
            "--tasks",
            "rows.jsonl",
            "--repo-dir",
            "clones",
            "-p",
            "gold",
            "--data",
            "data",
        ])
        .env("PIP_INDEX_URL", "https://me:secret@index.invalid/simple")
        .output()
        .unwrap();
    let said = err(&output);
    assert_eq!(code(&output), 1, "{said}");
    assert!(said.contains("`PIP_INDEX_URL`") && !said.contains("secret"), "{said}");
}
