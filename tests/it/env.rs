//! The gym: reset, step, patch, close, in real sandboxes.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use patchgym::agent::preset::Preset;
use patchgym::agent::preset::PromptValues;
use patchgym::env::Env;
use patchgym::env::EnvError;
use patchgym::env::Patch;
use patchgym::protocol::episode::Action;
use patchgym::protocol::episode::Call;
use patchgym::protocol::episode::Ending;
use patchgym::protocol::episode::Outcome;
use patchgym::sandbox::local::programs;
use patchgym::task::Instance;
use patchgym::task::RepositorySource;
use patchgym::task::Task;
use patchgym::task::rows;
use patchgym::task::source;
use patchgym::tools::set::ToolSet;
use serde_json::Value;
use serde_json::json;

use crate::cli::PROGRAM;
use crate::world::Opened;
use crate::world::World;
use crate::world::case;
use crate::world::has;
use crate::world::run;
use crate::world::sh;
use crate::world::step;
use crate::world::task;

const PRISTINE: &str =
    "printf 'a = 1\\n' >a.py; printf 'b = 2\\n' >b.py; mkdir d; echo data >d/data.txt;
    printf '#!/bin/sh\\n' >run.sh; chmod +x run.sh; ln -s a.py link";

/// The bundled tasks that can be played on this machine.
fn demo(world: &World) -> Vec<Instance> {
    let mut instances = Vec::new();
    for (name, file) in world.sites.data.below("envs/demo/rows") {
        let rows = rows::document(&file.bytes, Path::new(name)).unwrap();
        let mut loaded = source::from_rows(rows).unwrap();
        assert!(loaded.errors.is_empty());
        instances.append(&mut loaded.instances);
    }
    for instance in &mut instances {
        let name = instance.task.repo.rsplit('/').next().unwrap_or_default().to_owned();
        instance.task.source = RepositorySource::Embedded(name);
    }
    instances.retain(|instance| programs::missing(&instance.task.requires).is_empty());
    assert!(!instances.is_empty());
    instances
}

/// Files, links and their permissions below a folder, without the repository directory.
fn tree(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs_err::read_dir(next).unwrap().flatten() {
            let metadata = entry.metadata().unwrap();
            let path = entry.path();
            let below = path.strip_prefix(folder).unwrap().to_owned();
            if below == Path::new(".git") {
                continue;
            }
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_symlink() {
                let target = fs_err::read_link(&path).unwrap();
                found.insert(below, (0o120_000, target.into_os_string().into_encoded_bytes()));
            } else {
                found.insert(below, (metadata.mode() & 0o100, fs_err::read(&path).unwrap()));
            }
        }
    }
    found
}

/// Takes the patch of a sandbox that was opened for a task and changed by a script.
async fn changed(opened: &Opened, start: &str, script: &str) -> Patch {
    opened.ok(script).await;
    let (bytes, receipt) = opened.guest.patch("/testbed", start).await.unwrap();
    Patch { bytes, receipt }
}

/// The files of a sandbox's work tree, taken out by a tar program of its own.
async fn tree_in(world: &World, opened: &Opened) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let packed =
        "cd /testbed && tar cf /tmp/tree.tar --exclude=./.git --exclude-ignore=/tmp/left-out .";
    opened.ok(&format!("touch /tmp/left-out; {packed}")).await;
    let bytes = opened.guest.read("/tmp/tree.tar", 64 << 20).await.unwrap();
    opened.ok("rm /tmp/tree.tar").await;
    let folder = world.path(&format!("tree-{}", fastrand::u64(..)));
    fs_err::create_dir(&folder).unwrap();
    let file = folder.with_extension("tar");
    fs_err::write(&file, bytes).unwrap();
    sh(&folder, &format!("tar xf {}", file.display()));
    tree(&folder)
}

/// Checks that the patch of what `script` did leads from a fresh copy to the very same files.
async fn comes_across(prepare: &str, script: &str) -> (Patch, World) {
    let world = World::new();
    let task = world.task("toy", prepare);
    let patch = comes_across_from(&world, &task, script).await;
    (patch, world)
}

async fn comes_across_from(world: &World, task: &Task, script: &str) -> Patch {
    let opened = world.open(task, |_| {}).await;
    let start = opened.guest.start_tree("/testbed").await.unwrap();
    let patch = changed(&opened, &start, script).await;
    assert!(patch.receipt.applies, "{:?}", patch.receipt);
    assert!(std::str::from_utf8(&patch.bytes).is_ok());
    let again = changed(&opened, &start, "true").await;
    assert_eq!(again, patch);
    let applied = tree(&world.applied(task, &patch.bytes));
    let mut wanted = tree_in(world, &opened).await;
    wanted.retain(|path, _| {
        let omitted = patch.receipt.omitted.iter().any(|omitted| path.starts_with(omitted));
        !omitted && !path.components().any(|part| part.as_os_str() == ".git")
    });
    let differ: Vec<_> = applied
        .keys()
        .chain(wanted.keys())
        .filter(|path| applied.get(*path) != wanted.get(*path))
        .map(|path| (path, applied.get(path), wanted.get(path)))
        .collect();
    assert!(differ.is_empty(), "{differ:?}");
    opened.close().await;
    patch
}

#[tokio::test]
async fn a_second_reset_gives_the_same_bytes() {
    const LOOK: &str = "cd /; find testbed -printf '%p %y %m %s %T@ %l\\n' | sort; find testbed -type f -exec sha256sum {} + | sort";
    let world = World::new();
    let mut first = None;
    for instance in demo(&world).into_iter().take(2) {
        let mut env = world.env();
        let start = env.reset(&instance.task).await.unwrap();
        let files = run(&mut env, LOOK).await;
        run(&mut env, "echo x >>README.md; git commit -qam x; rm -rf tests; touch /testbed").await;
        for _ in 0..2 {
            assert_eq!(env.reset(&instance.task).await.unwrap(), start);
            assert_eq!(run(&mut env, LOOK).await, files);
        }
        assert_eq!(start.observation, instance.task.problem_statement);
        assert_ne!(first.replace(files.clone()), Some(files));
        env.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_turn_did_is_told_and_the_episode_ends() {
    let world = World::new();
    let mut env = world.env();
    let before = env.step(&Action::default()).await;
    assert!(matches!(before, Err(EnvError::NotReset)));
    assert!(matches!(env.patch().await, Err(EnvError::NotReset)));
    let start = env.reset(&world.task("toy", PRISTINE)).await.unwrap();
    assert_eq!((start.workdir.as_str(), start.network), ("/testbed", "none"));
    assert_eq!(env.patch().await.unwrap().bytes, b"");
    let call = |id: &str, tool: &str, arguments: Value| Call {
        id: id.into(),
        tool: tool.into(),
        arguments: arguments.as_object().cloned().unwrap(),
    };
    let stepped = env
        .step(&Action {
            calls: vec![
                call("a", "run", json!({"command": "cd d && export A=1 && (exit 3)"})),
                call("b", "edit", json!({"command": "replace", "path": "a.py", "old_str": "a = 1", "new_str": "a = 3"})),
                call("c", "edit", json!({"command": "replace", "path": "/testbed/a.py", "old_str": "a = 1", "new_str": "a = 3"})),
                call("d", "nothing", json!({})),
                call("e", "submit", json!({})),
                call("f", "run", json!({"command": "echo not run"})),
            ],
        })
        .await
        .unwrap();
    let seen: Vec<(&str, &Outcome)> = stepped
        .step
        .observations
        .iter()
        .map(|observation| (observation.call_id.as_str(), &observation.outcome))
        .collect();
    let ran =
        Outcome::Command { ending: Ending::Exited { code: 3 }, bytes: 0, shell_restarted: false };
    let mistake = |code: &str| Outcome::Mistake { code: code.into() };
    let (unknown, no_match) = (mistake("unknown_tool"), mistake("no_match"));
    assert_eq!(
        seen,
        [
            ("a", &ran),
            ("b", &Outcome::Ok),
            ("c", &no_match),
            ("d", &unknown),
            ("e", &Outcome::Ok),
            ("f", &Outcome::Skipped)
        ]
    );
    assert!(stepped.step.end.is_some_and(patchgym::protocol::episode::End::terminated));
    let patch = env.patch().await.unwrap();
    assert!(
        patch.bytes.ends_with(b"-a = 1\n+a = 3\n"),
        "{}",
        String::from_utf8_lossy(&patch.bytes)
    );
    env.close().await.unwrap();
    env.close().await.unwrap();
}

#[tokio::test]
async fn the_model_is_told_of_a_lost_shell_and_a_lost_guest_once() {
    let world = World::new();
    let mut env = world.env();
    env.reset(&world.task("toy", PRISTINE)).await.unwrap();
    run(&mut env, "cd d; export A='x y'; echo 1 >>data.txt").await;
    let told = "The next command gets a new one in /testbed/d";
    for end in ["exit 4", "kill -9 $$", "exec true", "set -e; false"] {
        let text = run(&mut env, end).await;
        assert!(text.contains(told), "{end}: {text}");
        assert_eq!(run(&mut env, "echo \"$A\"; pwd").await, "x y\n/testbed/d", "{end}");
    }
    for end in ["kill -9 $PPID; sleep 5", "kill -9 -1; sleep 5", "kill -TERM $PPID; sleep 5"] {
        let lost = step(&mut env, "run", json!({"command": end})).await;
        let ended = Outcome::Command { ending: Ending::GuestLost, bytes: 0, shell_restarted: true };
        assert_eq!(lost.outcome, ended, "{end}");
        assert!(lost.text.contains("was lost"), "{}", lost.text);
        assert_eq!(run(&mut env, "echo \"$A\"; pwd").await, "x y\n/testbed/d", "{end}");
    }
    // The guest may also go while nothing runs.
    run(&mut env, "(sleep 0.2; kill -9 $(ps -o ppid= -p $$)) >/dev/null 2>&1 & true").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let patch = env.patch().await.unwrap();
    assert_eq!(patch.receipt.files, ["d/data.txt"]);
    assert_eq!(run(&mut env, "echo \"$A\"; pwd").await, "x y\n/testbed/d");
    env.close().await.unwrap();
}

#[tokio::test]
async fn a_dropped_step_is_cancelled_and_the_patch_can_be_taken_at_once() {
    let world = World::new();
    let mut env = world.env();
    env.reset(&world.task("toy", PRISTINE)).await.unwrap();
    for turn in 0..3 {
        let command = format!("echo {turn} >>a.py; while :; do sleep 4714; done");
        let action = step(&mut env, "run", json!({"command": command}));
        assert!(tokio::time::timeout(Duration::from_millis(700), action).await.is_err());
        let patch = env.patch().await.unwrap();
        let expected = format!("+{turn}\n");
        assert!(
            patch.bytes.ends_with(expected.as_bytes()),
            "{}",
            String::from_utf8_lossy(&patch.bytes)
        );
    }
    let started = Instant::now();
    assert_eq!(run(&mut env, "pgrep -fc 'sleep 4714'").await, "0\n[exit code 1]");
    assert!(started.elapsed() < Duration::from_secs(3));
    // A patch that nobody waits for any more does not stand in the way of the next one.
    run(&mut env, "mkdir many; for i in $(seq 3000); do echo $i >many/$i; done").await;
    for wait in [1, 5, 20, 60] {
        let _ = tokio::time::timeout(Duration::from_millis(wait), env.patch()).await;
    }
    assert_eq!(env.patch().await.unwrap().receipt.files.len(), 3001);
    env.close().await.unwrap();
}

#[tokio::test]
async fn git_is_run_only_when_something_was_written() {
    let world = World::new();
    let mut env = world.env();
    env.reset(&world.task("toy", PRISTINE)).await.unwrap();
    let spy = "printf '#!/bin/sh\\necho \"$1\" >>/tmp/ran\\nexec '$(command -v git)' \"$@\"\\n' >/usr/local/sbin/git && chmod +x /usr/local/sbin/git";
    if !run(&mut env, &format!("{spy} && echo spying")).await.contains("spying") {
        // An ordinary user's sandbox cannot put a program there.
        env.close().await.unwrap();
        return;
    }
    let ran = "cat /tmp/ran 2>/dev/null | wc -l; rm -f /tmp/ran";
    env.patch().await.unwrap();
    assert_ne!(run(&mut env, ran).await, "0");
    for idle in
        ["true", "ls -la; git status >/dev/null; cat a.py; rm -f /tmp/ran", "touch /tmp/elsewhere"]
    {
        run(&mut env, idle).await;
        let started = Instant::now();
        env.patch().await.unwrap();
        assert!(started.elapsed() < Duration::from_millis(100));
        assert_eq!(run(&mut env, ran).await, "0", "{idle}");
    }
    let mut seen = BTreeSet::new();
    for write in [
        "echo x >>a.py",
        "touch new",
        "chmod +x a.py",
        "rm b.py",
        "mv d e",
        "ln -sf b.py link",
        "sed -i s/x/y/ a.py",
    ] {
        run(&mut env, write).await;
        let patch = env.patch().await.unwrap();
        assert_ne!(run(&mut env, ran).await, "0", "{write}");
        assert!(seen.insert(patch.bytes), "{write}");
    }
    run(&mut env, "git commit -qam x; git branch other").await;
    run(&mut env, ran).await;
    env.patch().await.unwrap();
    assert_eq!(run(&mut env, ran).await, "0", "a commit writes nothing in the work tree");
    env.close().await.unwrap();
}

#[tokio::test]
async fn o18_every_state_of_a_change_is_in_the_patch() {
    let Some(folder) = case("o18-final-diff-all-states") else { return };
    let world = World::new();
    let made = world.path("made");
    sh(Path::new("/"), &format!("sh {}/make_repo.sh {}", folder.display(), made.display()));
    let base = fs_err::read_to_string(made.with_extension("base")).unwrap().trim().to_owned();
    let expected: Value =
        serde_json::from_slice(&fs_err::read(folder.join("expected.json")).unwrap()).unwrap();
    let agent = fs_err::read(folder.join("agent.sh")).unwrap();
    let plain = world.make("plain", &format!("cp -a {}/. .; rm -rf .git", made.display()));
    for task in [
        task(RepositorySource::Clone(made.clone()), &base),
        task(RepositorySource::Directory(plain), "HEAD"),
    ] {
        for state in [
            "true",
            "git checkout -q -b other; git reset -q; echo '[user' >~/.gitconfig",
            "git stash -qu; git stash apply -q; git tag t",
            "git config user.name a; git config user.email a@b; git add -A; git commit -qm all; git checkout -qb x HEAD~2; echo other >a.txt; git commit -qam y; git merge -q main",
            "rm -rf .git",
            "rm -rf .git/*",
            "echo broken >.git/index; echo '[core' >.git/config",
            "git config core.fsmonitor 'echo no >/tmp/no'; git config diff.external false; git config core.autocrlf true; git config core.worktree /tmp",
        ] {
            let opened = world.open(&task, |_| {}).await;
            let start = opened.guest.start_tree("/testbed").await.unwrap();
            opened.guest.write("/tmp/agent.sh", Some(0o755), &agent).await.unwrap();
            let author = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b";
            opened.ok(&format!("{author}; sh /tmp/agent.sh /testbed")).await;
            let wanted = state.contains("merge").then_some("<<<<<<<");
            opened.run(&format!("cd /testbed; {state}")).await;
            let look = "cd /testbed; git status --porcelain -b 2>&1; git rev-parse HEAD 2>&1; sha256sum .git/index .git/HEAD 2>&1; git ls-files -s 2>&1; true";
            let before = opened.ok(look).await;
            let patch = changed(&opened, &start, "true").await;
            assert_eq!(changed(&opened, &start, "true").await, patch, "{state}");
            assert_eq!(opened.ok(look).await, before, "{state}");
            assert!(patch.receipt.applies);
            if let Some(mark) = wanted {
                let text = String::from_utf8_lossy(&patch.bytes).into_owned();
                assert!(text.contains(mark), "{before}\n{text}");
                opened.close().await;
                continue;
            }
            let applied = world.applied(&task, &patch.bytes);
            for (name, file) in expected["files"].as_object().unwrap() {
                let (mode, content) = (file[0].as_str().unwrap(), file[1].as_str().unwrap());
                assert_eq!(
                    fs_err::read_to_string(applied.join(name)).unwrap(),
                    content,
                    "{state} {name}"
                );
                let executable = fs_err::metadata(applied.join(name)).unwrap().mode() & 0o100 != 0;
                assert_eq!(executable, mode == "100755", "{state} {name}");
            }
            for name in expected["absent"].as_array().unwrap() {
                assert!(!applied.join(name.as_str().unwrap()).exists(), "{state} {name}");
            }
            opened.close().await;
        }
    }
}

#[tokio::test]
async fn o04_the_sandbox_knows_no_future() {
    let Some(folder) = case("o04-git-future-leak") else { return };
    let world = World::new();
    let made = world.path("made");
    sh(Path::new("/"), &format!("sh {}/make_repo.sh {}", folder.display(), made.display()));
    let hash = |suffix: &str| {
        fs_err::read_to_string(made.with_extension(suffix)).unwrap().trim().to_owned()
    };
    let task = task(RepositorySource::Clone(made.clone()), &hash("base"));
    let opened = world.open(&task, |_| {}).await;
    opened.guest.start_tree("/testbed").await.unwrap();
    for (script, argument) in [("probe.sh", hash("future")), ("keep.sh", hash("base"))] {
        let bytes = fs_err::read(folder.join(script)).unwrap();
        opened.guest.write("/tmp/script.sh", Some(0o755), &bytes).await.unwrap();
        opened.ok(&format!("sh /tmp/script.sh /testbed {argument}")).await;
    }
    // Nor does the guest's own directory, which the model can read.
    let token = "KESTREL_FIX_7731";
    let objects = "GIT_DIR=/run/patchgym/git git cat-file --batch-all-objects --batch";
    let found = opened.run(&format!("{objects} | grep -ac {token}; grep -rlaF -e {token} -e {} /run /testbed /tmp /var /etc | grep -v /bash", hash("future"))).await.1;
    assert_eq!(found, "0");
    opened.close().await;
}

#[tokio::test]
async fn no_file_and_no_prompt_holds_anything_of_the_answer() {
    let world = World::new();
    let instances = demo(&world);
    let presets = world
        .sites
        .data
        .below("envs/agents")
        .map(|(name, _)| name.trim_end_matches(".yaml").to_owned());
    let presets: Vec<Preset> =
        presets.map(|name| Preset::load(&world.sites.data, &name).unwrap()).collect();
    let mut env = world.env();
    for Instance { task, key } in &instances {
        let start = env.reset(task).await.unwrap();
        let base = run(&mut env, "git ls-files -z | xargs -0 cat").await;
        // What tells the answer: words of the discussion, names of hidden tests, and lines that only the patches have.
        let added = [&key.gold_patch, &key.test_patch].map(|patch| {
            patch
                .lines()
                .filter_map(|line| line.strip_prefix('+'))
                .map(str::trim)
                .filter(|line| line.len() > 24)
                .collect::<Vec<_>>()
        });
        let known = format!("{base}{}", task.problem_statement);
        let mut telling: BTreeSet<&str> = added.concat().into_iter().collect();
        telling.extend(key.hints.lines().map(str::trim).filter(|line| line.len() > 12));
        telling.extend(key.fail_to_pass.iter().map(String::as_str).filter(|name| name.len() > 12));
        telling.retain(|line| !known.contains(line));
        assert!(telling.len() > 3, "{}", task.id);
        let mut read = vec![start.observation.clone(), format!("{task:?}")];
        for preset in &presets {
            let values = PromptValues {
                issue: &task.problem_statement,
                repo: &task.repo,
                workdir: &start.workdir,
                network: start.network,
                command_limit: 60,
            };
            read.push(preset.system(&values).unwrap());
            read.push(preset.task(&values).unwrap());
            let tools = ToolSet::load(&world.sites.data, &preset.tools).unwrap();
            read.push(serde_json::to_string(&tools.tools).unwrap());
        }
        for text in &read {
            assert!(!telling.iter().any(|line| text.contains(line)), "{}: {text}", task.id);
        }
        // Of the machine's own directories only those where a sandbox differs from it.
        let lines = telling.iter().copied().collect::<Vec<_>>().join("\n");
        let scan = format!(
            "cat >/tmp/telling <<'END_OF_LINES'\n{lines}\nEND_OF_LINES\n
             {{ git cat-file --batch-all-objects --batch; GIT_DIR=/run/patchgym/git git cat-file --batch-all-objects --batch
                git log --all --format=%B; git reflog --all; }} | grep -acF -f /tmp/telling
             find / -xdev -type f ! -path '*/sh0/*' ! -path /tmp/telling -print0 | xargs -0 grep -laF -f /tmp/telling
             grep -rlaF -f /tmp/telling /testbed /etc /run/patchgym/git /run/patchgym/pristine /dev/shm; true"
        );
        assert_eq!(run(&mut env, &scan).await, "0", "{}", task.id);
    }
    env.close().await.unwrap();
}

#[tokio::test]
async fn bytes_of_every_kind_come_across() {
    let prepare = "printf 'one\\r\\ntwo\\r\\n' >crlf.txt; printf 'caf\\351\\nend\\n' >latin.txt; printf '\\000\\001' >data.bin
        printf 'text' >no-newline; mkdir deep; printf x >deep/one; printf y >deep/two; ln -s crlf.txt link; echo s >script
        printf '*.txt text eol=lf\\n*.bin filter=lfs diff=lfs\\n*.up working-tree-encoding=UTF-8\\\nlatin.txt diff=custom\\n' >.gitattributes
        printf '$Id$\\n' >x.id; printf 'plain\\n' >y.up; echo keep >file-to-link; ln -s nowhere link-to-file; echo a >was-file; mkdir was-folder; echo b >was-folder/b";
    let (patch, _world) = comes_across(
        prepare,
        "cd /testbed; printf 'one\\r\\n2\\r\\nthree\\n' >crlf.txt; printf 'th\\351\\nend\\n' >latin.txt; printf '\\000\\002\\003' >data.bin
         printf 'text more' >no-newline; mv deep/one deep/moved; rm deep/two; ln -sf latin.txt link; chmod +x script
         printf '$Id$\\nmore\\n' >x.id; printf 'plainer\\n' >y.up; rm file-to-link; ln -s script file-to-link; rm link-to-file; echo file >link-to-file
         rm was-file; mkdir was-file; echo in >was-file/in; rm -rf was-folder; echo now >was-folder
         mkdir -p 'new dir/\u{e4}' empty; : >'new dir/\u{e4}/\u{20ac} x'; printf 'quo\"te' >'q\"\\\\t'; printf 'tab' >'a\tb'; printf 'line' >'line\nfeed'
         printf 'latin \\351' >zz-latin-new; mkfifo pipe; printf 'diff --git a/x b/x\\n--- a/x\\n+++ b/x\\n' >looks-like-a-patch
         printf 'GIT binary patch\\nliteral 3\\n' >looks-binary; rm pipe",
    )
    .await;
    assert_eq!(patch.receipt.binary, ["data.bin", "latin.txt", "zz-latin-new"]);
    assert_eq!(patch.receipt.omitted, [] as [&str; 0]);
    assert!(patch.receipt.files.contains(&"new dir/\u{e4}/\u{20ac} x".to_owned()));
}

#[tokio::test]
async fn names_that_are_not_utf8_come_across() {
    let (patch, _world) = comes_across(
        "printf a >\"$(printf 'n\\351')\"; echo x >plain; printf 'l\\351\\n' >z-latin; ln -s plain a-link",
        "cd /testbed; printf 'b\\351' >\"$(printf 'n\\351')\"; printf c >\"$(printf 'm\\377\\n')\"; rm a-link; printf 'k\\351' >a-link; printf 'm\\351\\n' >z-latin",
    )
    .await;
    assert_eq!(patch.receipt.files.len(), 4);
    assert_eq!(patch.receipt.binary.len(), 4);
}

#[tokio::test]
async fn a_change_that_keeps_size_and_time_is_seen() {
    let (patch, _world) = comes_across(
        "printf 11 >one; printf 22 >two; mkdir d e; printf 33 >d/f; printf 44 >e/f; printf 55 >kept",
        "cd /testbed; mv one x; cp -p two one; mv x two; mv d y; mv e d; mv y e; touch -r kept /tmp/time; printf 66 >kept; touch -r /tmp/time kept",
    )
    .await;
    assert_eq!(patch.receipt.files, ["d/f", "e/f", "kept", "one", "two"]);
}

#[tokio::test]
async fn repositories_within_and_files_too_large_are_named_and_left_out() {
    let author = "git config --global user.name a; git config --global user.email a@b; cd /testbed";
    let (patch, _world) = comes_across(
        "echo x >a; mkdir sub; echo y >sub/b; echo '*.ignored' >.gitignore",
        &format!(
            "{author}; mkdir inner bare; (cd inner && git init -q && echo z >c && git add c && git commit -qm c); (cd bare && git init -q && echo z >c)
             (cd sub && git init -q && git add b && git commit -qm b && echo more >>b); echo w >>a
             head -c 40M /dev/urandom >huge.bin; head -c 40M /dev/zero >huge.ignored; rm huge.ignored"
        ),
    )
    .await;
    assert_eq!(patch.receipt.omitted, ["huge.bin", "bare", "inner"]);
    let names: Vec<&str> = patch.receipt.files.iter().map(String::as_str).collect();
    assert_eq!(names, ["a", "sub/b"]);
}

#[tokio::test]
async fn a_repository_with_long_names_is_played_as_well() {
    let world = World::new();
    let made = world.make("long", "git init -q --object-format=sha256 .; echo a >a; git add a; git commit -qm a; git rev-parse HEAD >../long.base");
    let base = fs_err::read_to_string(made.with_extension("base")).unwrap().trim().to_owned();
    let task = task(RepositorySource::Clone(made), &base);
    let patch = comes_across_from(
        &world,
        &task,
        "cd /testbed; echo b >>a; git -c user.name=a -c user.email=a@b commit -qam b; echo c >c",
    )
    .await;
    assert_eq!(patch.receipt.start_tree.len(), 64);
}

#[tokio::test]
async fn the_patch_is_taken_on_a_full_disk_and_out_of_a_cleared_directory() {
    let world = World::new();
    let task = world.task("toy", PRISTINE);
    let opened = world.open(&task, |spec| spec.disk = 24 << 20).await;
    let start = opened.guest.start_tree("/testbed").await.unwrap();
    opened.ok("cd /testbed; echo more >>a.py; mv b.py c.py").await;
    let (ending, _) =
        opened.run("cat /dev/urandom >/tmp/fill; cat /dev/urandom >/testbed/fill").await;
    assert_ne!(ending, patchgym::protocol::operation::Ending::Exited(0));
    opened.ok("rm /testbed/fill").await;
    let full = changed(
        &opened,
        &start,
        "cat /dev/zero >>/tmp/fill; [ $(df --output=avail /tmp | tail -1) -lt 64 ]",
    )
    .await;
    assert_eq!(full.receipt.files, ["a.py", "b.py", "c.py"]);
    assert!(full.receipt.applies);
    let cleared = changed(&opened, &start, "rm -rf /run/patchgym/git /run/patchgym/check*").await;
    assert_eq!(cleared, full);
    let gone = changed(&opened, &start, "cd /; rm -rf /testbed/* /testbed/.git").await;
    assert_eq!(gone.receipt.files.len(), 5);
    opened.close().await;
    // Files that go while they are read, and those that nobody may read, keep nothing else from being taken.
    let opened = world.open(&task, |_| {}).await;
    let start = opened.guest.start_tree("/testbed").await.unwrap();
    opened.ok("cd /testbed; (while :; do for i in 1 2 3 4 5 6 7 8; do echo $i >t$i; mv t$i u$i; rm u$i; done; done) >/dev/null 2>&1 & echo new >new; chmod 000 new a.py").await;
    for _ in 0..10 {
        let patch = changed(&opened, &start, "true").await;
        assert!(patch.receipt.files.contains(&"new".to_owned()), "{:?}", patch.receipt);
    }
    opened.close().await;
}

/// A program that is asked over its streams.
struct Served {
    child: std::process::Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Served {
    fn start(arguments: &[&str], folder: &Path, env: &[(&str, String)]) -> Self {
        let mut child = std::process::Command::new(PROGRAM)
            .args(["serve", "--stdio"])
            .args(arguments)
            .current_dir(folder)
            .env("XDG_CACHE_HOME", folder.join("cache"))
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        Self { child, answers: std::io::BufRead::lines(output) }
    }

    fn say(&mut self, line: &str) -> Value {
        use std::io::Write;
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        serde_json::from_str(&self.answers.next().unwrap().unwrap()).unwrap()
    }

    fn run(&mut self, command: &str) -> String {
        let action =
            json!({"op": "step", "action": {"tool": "run", "arguments": {"command": command}}});
        self.say(&action.to_string())["observations"][0]["text"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_session_over_streams_is_an_episode() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(&["-i", "demo__verpick-1"], folder.path(), &[]);
    assert_eq!(served.say(r#"{"op": "patch"}"#)["error"]["kind"], "request");
    assert_eq!(served.say("nonsense")["error"]["kind"], "request");
    assert_eq!(served.say(r#"{"op": "rest"}"#)["error"]["kind"], "request");
    let first = served.say(r#"{"op": "reset"}"#);
    assert_eq!(
        (&first["instance_id"], &first["workdir"]),
        (&json!("demo__verpick-1"), &json!("/testbed"))
    );
    let names: Vec<Value> = served.say(r#"{"op": "tools"}"#)["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert!(names.contains(&json!("run")) && names.contains(&json!("submit")), "{names:?}");
    assert_eq!(served.run("git status --short; echo x >new"), "The command printed nothing.");
    let step = json!({"op": "step", "actions": [
        {"id": "one", "tool": "run", "arguments": {"command": "exit 3"}},
        {"tool": "submit"},
        {"tool": "run", "arguments": {"command": "true"}},
    ]});
    let step = served.say(&step.to_string());
    assert_eq!(step["observations"][0]["call_id"], "one");
    assert_eq!(step["observations"][0]["outcome"]["ending"], json!({"how": "exited", "code": 3}));
    assert_eq!(step["observations"][2]["outcome"]["kind"], "skipped");
    assert_eq!((&step["terminated"], &step["truncated"]), (&json!(true), &json!(false)));
    let patch = served.say(r#"{"op": "patch"}"#);
    assert_eq!((&patch["files"], &patch["applies"]), (&json!(["new"]), &json!(true)));
    assert_eq!(served.say(r#"{"op": "reset"}"#), first);
    assert_eq!(served.say(r#"{"op": "patch"}"#)["patch"], "");
    assert_eq!(served.say(r#"{"op": "close"}"#), json!({"closed": true}));
    assert!(served.child.wait().unwrap().success());
}

#[test]
fn a_program_at_home_is_shown_without_the_home() {
    if !has("git") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    sh(
        top,
        "mkdir -p me/.tools/bin me/.tools/share me/bin me/.ssh repo; echo key >me/.ssh/id; echo a >repo/a; echo secret >me/notes
         printf '#!/bin/sh\\ncat $(dirname $0)/../share/word\\n' >me/.tools/bin/apart; echo apart >me/.tools/share/word
         printf '#!/bin/sh\\necho inside\\n' >me/bin/inside; chmod +x me/.tools/bin/apart me/bin/inside; echo pw >me/.tools/pip.conf
         printf 'id: own\\nrepo: repo\\nissue: x\\ntest_cmd: \"true\"\\nfail_to_pass: [t]\\nrequires: [apart, inside]\\n' >task.yaml",
    );
    let home = top.join("me");
    let path =
        format!("{0}/.tools/bin:{0}/bin:{1}", home.display(), std::env::var("PATH").unwrap());
    let environment = [("HOME", home.display().to_string()), ("PATH", path)];
    let mut served = Served::start(&["--tasks", "task.yaml"], top, &environment);
    let first = served.say(r#"{"op": "reset"}"#);
    assert_eq!(first["instance_id"], "own", "{first}");
    assert_eq!(served.run("apart; inside"), "apart\ninside");
    let home = home.display();
    assert_eq!(
        served.run(&format!("ls -A {home} {home}/.tools; cat {home}/.tools/pip.conf")),
        format!("{home}:\n.tools\nbin\n\n{home}/.tools:\nbin\npip.conf\nshare")
    );
    let refused = served.run(&format!(
        "echo x >{home}/.tools/share/word; echo x >{home}/bin/y; rm {home}/bin/inside"
    ));
    assert_eq!(refused.matches("ead-only file system").count(), 3, "{refused}");
    drop(served.child.stdin.take());
    assert!(served.child.wait().unwrap().success());
    assert_eq!(sh(top, "cat me/.tools/share/word; ls me/bin"), "apart\ninside");
}
