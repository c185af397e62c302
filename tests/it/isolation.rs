//! Sandboxes of the levels below namespaces: what they keep from the machine, and that they end nothing of it.

use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use patchgym::protocol::operation::Ending;
use patchgym::protocol::record::Event;
use patchgym::sandbox::Access;
use patchgym::sandbox::Backend;
use patchgym::sandbox::Isolation;
use patchgym::sandbox::Mount;
use patchgym::sandbox::Network;
use patchgym::sandbox::Sandbox;
use patchgym::sandbox::SandboxError;
use patchgym::sandbox::SandboxSpec;
use patchgym::sandbox::client::Guest;
use patchgym::sandbox::local::backend::Local;
use patchgym::trajectory::reader;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::cli::out;
use crate::killed::wait_until;

const WEAKER: [Isolation; 2] = [Isolation::Landlock, Isolation::Nothing];
/// Longer than any test, so that only being ended ends it.
const LONG: &str = "300";

/// A folder of sandboxes and a repository to put into them.
struct Ground {
    top: TempDir,
    isolation: Isolation,
}

/// A sandbox with a shell.
struct Room {
    sandbox: Box<dyn Sandbox>,
    guest: Guest,
}

/// A process of the machine that no sandbox may end.
struct Bystander(Child);

impl Ground {
    /// None, said, where the kernel lacks what the level takes.
    async fn new(isolation: Isolation) -> Option<Self> {
        let top = tempfile::tempdir().unwrap();
        fs_err::create_dir(top.path().join("repository")).unwrap();
        fs_err::write(top.path().join("repository/file"), "pristine\n").unwrap();
        let ground = Self { top, isolation };
        match ground.backend().probe().await {
            Ok(()) => Some(ground),
            Err(error @ (SandboxError::NoLandlock(_) | SandboxError::SignalsUnconfined(_))) => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn folders(&self) -> PathBuf {
        self.top.path().join("a folder's sandboxes")
    }

    fn backend(&self) -> Local {
        Local::with(self.isolation, self.folders())
    }

    fn spec(&self) -> SandboxSpec {
        let mount = Mount {
            source: self.top.path().join("repository"),
            target: "/testbed".into(),
            access: Access::CopyOnWrite,
        };
        SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() }
    }

    async fn room(&self, spec: &SandboxSpec) -> Room {
        let mut sandbox = self.backend().create(spec).await.unwrap();
        let guest = sandbox.connect().await.unwrap();
        guest.open_session("main", &sandbox.place().shell()).await.unwrap();
        Room { sandbox, guest }
    }

    fn count(&self) -> usize {
        fs_err::read_dir(self.folders()).unwrap().count()
    }
}

impl Room {
    async fn run_for(&self, command: &str, limit: Duration) -> (Ending, String) {
        let result = self.guest.run("main", command.as_bytes(), limit, 1 << 16).await.unwrap();
        (result.ending, String::from_utf8_lossy(&result.head).into_owned())
    }

    /// Whether the command succeeds, and what it prints.
    async fn run(&self, command: &str) -> (bool, String) {
        let (ending, output) = self.run_for(command, Duration::from_secs(60)).await;
        (ending == Ending::Exited(0), output)
    }

    async fn refuses(&self, command: &str) {
        let (succeeded, output) = self.run(command).await;
        // Not because a program is missing.
        let reasons = ["ermission denied", "not permitted", "cross-device"];
        let refused = reasons.iter().any(|reason| output.contains(reason));
        assert!(!succeeded && refused, "{command}: {output}");
    }

    async fn allows(&self, command: &str) -> String {
        let (succeeded, output) = self.run(command).await;
        assert!(succeeded, "{command}: {output}");
        output
    }
}

impl Bystander {
    fn new() -> Self {
        Self(Command::new("sleep").arg(LONG).spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes whose environment names a folder: those that a sandbox in it started.
fn inhabitants(folder: &Path) -> Vec<String> {
    let mark = format!("{}/", folder.display());
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| fs_err::read(entry.path().join(name)).unwrap_or_default();
        if String::from_utf8_lossy(&read("environ")).contains(&mark) {
            found.push(String::from_utf8_lossy(&read("cmdline")).into_owned());
        }
    }
    found
}

#[tokio::test]
async fn a_sandbox_without_namespaces_is_a_copy_that_leaves_nothing() {
    for isolation in WEAKER {
        let Some(ground) = Ground::new(isolation).await else { continue };
        let room = ground.room(&ground.spec()).await;
        let place = room.sandbox.place().clone();
        assert!(place.workdir.starts_with(ground.folders().to_str().unwrap()), "{place:?}");
        let printed =
            room.allows("pwd; echo changed >file; echo $HOME; echo $TMPDIR; mktemp").await;
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[0], place.workdir);
        for line in &lines[1..] {
            assert!(line.starts_with(ground.folders().to_str().unwrap()), "{line}");
        }
        // Directories that cannot be entered, and processes that leave their session.
        room.allows(&format!("mkdir -p a/b; chmod 0 a; (setsid sleep {LONG} &) ; sleep {LONG} &"))
            .await;
        assert!(inhabitants(&ground.folders()).len() >= 3);
        assert_eq!(ground.count(), 1);
        drop(room.guest);
        room.sandbox.close().await.unwrap();
        assert_eq!(ground.count(), 0);
        assert_eq!(inhabitants(&ground.folders()), Vec::<String>::new());
        let repository = ground.top.path().join("repository/file");
        assert_eq!(fs_err::read_to_string(repository).unwrap(), "pristine\n");
    }
}

#[tokio::test]
async fn landlock_keeps_a_sandbox_from_the_machines_files() {
    let Some(ground) = Ground::new(Isolation::Landlock).await else { return };
    let room = ground.room(&ground.spec()).await;
    let other = ground.room(&ground.spec()).await;
    let outside = ground.top.path().join("outside");
    fs_err::write(&outside, "secret\n").unwrap();
    let at = |path: &Path| format!("'{}'", path.display());
    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    let (outside_word, neighbour) = (at(&outside), other.sandbox.place().workdir.clone());
    for command in [
        format!("cat {outside_word}"),
        format!("echo x >{outside_word}"),
        format!("echo x >>{outside_word}"),
        format!("truncate -s 0 {outside_word}"),
        format!("rm -f {outside_word}"),
        format!("mv file {outside_word}"),
        format!("ln {outside_word} link"),
        format!("ls {}", at(&home)),
        format!("touch {}", at(&home.join("patchgym-was-here"))),
        format!("cat \"{neighbour}/file\""),
        format!("echo x >\"{neighbour}/file\""),
        "cat /etc/shadow".into(),
        "ls /root".into(),
        "touch /tmp/patchgym-was-here /usr/patchgym-was-here /dev/shm/patchgym-was-here".into(),
        "mknod device b 8 0".into(),
        format!("cat /proc/{}/environ", std::process::id()),
        format!("cat /proc/{}/root/etc/passwd", std::process::id()),
        "now=$(cat /proc/sys/vm/swappiness) && echo $now >/proc/sys/vm/swappiness".into(),
    ] {
        room.refuses(&command).await;
    }
    assert_eq!(fs_err::read_to_string(&outside).unwrap(), "secret\n");
    // A link leads out as little as a path does.
    room.refuses(&format!("ln -s {outside_word} link && cat link")).await;
    room.allows("cat /etc/passwd /proc/self/status /proc/meminfo >/dev/null").await;
    room.allows("cat <(echo one) | (cat; echo two >&2) 2>&1 | grep -c . | grep 2").await;
    room.allows("printf '#!/bin/sh\\necho ran\\n' >p && chmod +x p && ./p && mkdir d && mv p d/q")
        .await;
    room.sandbox.close().await.unwrap();
    other.sandbox.close().await.unwrap();
}

#[tokio::test]
async fn landlock_keeps_a_sandbox_from_the_machines_processes() {
    let Some(ground) = Ground::new(Isolation::Landlock).await else { return };
    let room = ground.room(&ground.spec()).await;
    let other = ground.room(&ground.spec()).await;
    let mut bystander = Bystander::new();
    let (bystander_id, harness) = (bystander.0.id(), std::process::id());
    for command in [
        format!("kill -9 {bystander_id}"),
        format!("kill -0 {harness}"),
        // Its own init is outside as well.
        "kill -9 $(awk '/^PPid:/ {print $2}' /proc/$PPID/status)".into(),
        "kill -9 -1".into(),
        "kill -STOP -1".into(),
        format!("prlimit --pid {harness} --cpu=1:1"),
        "ipcmk -M 100".into(),
        "unshare -Ur true".into(),
    ] {
        room.refuses(&command).await;
    }
    let (_, refused) = room.run("kill -9 -1 2>&1").await;
    assert!(refused.contains("not permitted"), "{refused}");
    assert!(bystander.is_alive() && !room.guest.is_lost() && !other.guest.is_lost());
    room.allows("sleep 100 & kill $! && kill -0 $$ && kill -0 $PPID").await;
    other.allows("true").await;
    room.sandbox.close().await.unwrap();
    other.sandbox.close().await.unwrap();
}

#[tokio::test]
async fn landlock_keeps_a_sandbox_from_the_network() {
    let Some(ground) = Ground::new(Isolation::Landlock).await else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let path = ground.top.path().join("socket");
    let _local = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let connect = |family: &str, address: &str| {
        format!("python3 -c 'import socket as s; s.socket({family}).connect({address})'")
    };
    let inet = connect(
        "s.AF_INET",
        &format!("(\"127.0.0.1\", {})", listener.local_addr().unwrap().port()),
    );
    let unix = connect("s.AF_UNIX", &format!("\"{}\"", path.display()));
    let datagram = "python3 -c 'import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM)'";
    let mut spec = ground.spec();
    patchgym::sandbox::local::programs::require(&mut spec, &["python3".into()]).unwrap();
    let room = ground.room(&spec).await;
    for command in [&inet, &unix, datagram] {
        room.refuses(command).await;
    }
    room.allows(
        "python3 -c 'import socket; a, b = socket.socketpair(); a.send(b\"x\"); b.recv(1)'",
    )
    .await;
    room.sandbox.close().await.unwrap();
    spec.network = Network::Full;
    let room = ground.room(&spec).await;
    room.allows(&inet).await;
    room.refuses(&unix).await;
    room.sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_timeout_ends_what_the_command_started_and_nothing_else() {
    for isolation in WEAKER {
        let Some(ground) = Ground::new(isolation).await else { continue };
        let mut bystander = Bystander::new();
        let room = ground.room(&ground.spec()).await;
        let other = ground.room(&ground.spec()).await;
        other.allows(&format!("sleep {LONG} & echo $! >pid")).await;
        room.allows(&format!("sleep {LONG} & echo $! >pid")).await;
        let command = format!(
            "trap '' INT TERM; (setsid sleep {LONG} & echo $! >left) ; ((sleep {LONG} & echo $! >>left) &) ; sleep {LONG}"
        );
        let started = Instant::now();
        let (ending, _) = room.run_for(&command, Duration::from_secs(1)).await;
        assert_eq!(ending, Ending::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(10));
        let alive = "for p in $(cat left); do [ -e /proc/$p ] && grep -q '^State:.[^Z]' /proc/$p/status && echo $p; done; true";
        assert_eq!(room.allows(alive).await, "");
        assert_eq!(room.allows("wc -l <left").await.trim(), "2");
        for room in [&room, &other] {
            room.allows("kill -0 $(cat pid)").await;
        }
        assert!(bystander.is_alive() && !other.guest.is_lost());
        other.sandbox.close().await.unwrap();
        room.allows("kill -0 $(cat pid)").await;
        room.sandbox.close().await.unwrap();
        assert!(bystander.is_alive());
    }
}

#[tokio::test]
async fn a_lost_guest_is_replaced_and_what_it_left_still_ends() {
    for isolation in WEAKER {
        let Some(ground) = Ground::new(isolation).await else { continue };
        let mut room = ground.room(&ground.spec()).await;
        room.allows(&format!("sleep {LONG} & echo $! >pid")).await;
        let killed =
            room.guest.run("main", b"kill -9 $PPID; sleep 5", Duration::from_secs(9), 10).await;
        assert!(killed.is_err());
        room.guest = room.sandbox.connect().await.unwrap();
        room.guest.open_session("main", &room.sandbox.place().shell()).await.unwrap();
        room.allows("[ -e /proc/$(cat pid) ]").await;
        room.sandbox.close().await.unwrap();
        assert_eq!(inhabitants(&ground.folders()), Vec::<String>::new());
        assert_eq!(ground.count(), 0);
    }
}

#[test]
fn demo_tasks_are_played_and_graded_and_the_level_is_recorded() {
    for isolation in WEAKER {
        let desk = Desk::new();
        let level = isolation.name();
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("trajectories/demos/scripts/demo__verpick-1.yaml");
        let model = format!("script:{}", script.display());
        let arguments =
            ["run", "-i", "demo__verpick-1", "-m", &model, "--isolation", level, "-o", "mine"];
        let output = desk.run(&arguments);
        if code(&output) == 3 && err(&output).contains("Landlock") {
            println!("skipped: {}", err(&output));
            continue;
        }
        assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
        let row = out(&output).lines().nth(1).unwrap().to_owned();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!((words[3], words[4]), ("yes", level), "{row}");
        let network = Network::None.recorded(isolation);
        let manifest: Value =
            serde_json::from_slice(&fs_err::read(desk.path("mine/manifest.json")).unwrap())
                .unwrap();
        assert_eq!(manifest["isolation"], level);
        assert_eq!(manifest["network"]["agent"], network);
        assert_eq!(manifest["network"]["grade"], network);
        let log = desk.path("mine/attempts/demo__verpick-1/1/events.jsonl");
        let recorded = reader::read(&log).unwrap().records.iter().find_map(|record| {
            let Event::Reset { isolation, network, .. } = &record.event else { return None };
            Some((isolation.clone(), network.clone()))
        });
        assert_eq!(recorded, Some((level.to_owned(), network.to_owned())));
        let replayed = desk.run(&["replay", log.to_str().unwrap(), "--isolation", level]);
        assert_eq!(code(&replayed), 0, "{}{}", out(&replayed), err(&replayed));
        let elsewhere = desk.run(&[
            "run",
            "-i",
            "demo__verpick-1",
            "-m",
            &model,
            "-c",
            "isolation=namespaces",
            "-o",
            "mine",
        ]);
        assert_ne!(code(&elsewhere), 0, "{}", out(&elsewhere));
    }
}

/// Children of a process, by `/proc`.
fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs_err::read(entry.path().join("stat")).unwrap_or_default();
        let text = String::from_utf8_lossy(&stat).into_owned();
        let of =
            text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if of == Some(parent) {
            found.push(number);
        }
    }
    found
}

fn kill(signal: &str, process: u32) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A run whose model waits in a command, in a sandbox below the desk's own cache.
fn waiting_run(desk: &Desk, isolation: Isolation, seconds: u32) -> (Child, PathBuf) {
    let script = desk.path("wait.yaml");
    fs_err::write(
        &script,
        format!("turns:\n- calls:\n  - {{tool: run, arguments: {{command: \"touch started; sleep {seconds}\"}}}}\n- calls: [{{tool: submit}}]\n"),
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let arguments = ["run", "-i", "demo__verpick-1", "-m", &model, "--isolation", isolation.name()];
    let child = desk
        .command(&arguments)
        .env("XDG_CACHE_HOME", desk.path("cache"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let folders = desk.path("cache/patchgym/sandboxes");
    let is_started = |folder: &Path| folder.join("testbed/started").exists();
    wait_until("the command to run", || {
        fs_err::read_dir(&folders)
            .is_ok_and(|mut entries| entries.any(|entry| is_started(&entry.unwrap().path())))
    });
    (child, folders)
}

fn is_empty(folder: &Path) -> bool {
    fs_err::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_killed_harness_leaves_neither_processes_nor_folders() {
    let (mut child, folders, _desk) = {
        let desk = Desk::new();
        let (child, folders) = waiting_run(&desk, Isolation::Nothing, 300);
        (child, folders, desk)
    };
    assert!(!inhabitants(&folders).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the sandbox to end", || is_empty(&folders) && inhabitants(&folders).is_empty());
}

#[test]
fn what_a_killed_init_leaves_is_cleaned_and_a_living_sandbox_is_not() {
    let desk = Desk::new();
    // The orphaned command ends by itself.
    let (mut child, folders) = waiting_run(&desk, Isolation::Nothing, 6);
    kill("-STOP", child.id());
    for init in children(child.id()) {
        kill("-KILL", init);
    }
    let clean = || {
        let output =
            desk.command(&["clean"]).env("XDG_CACHE_HOME", desk.path("cache")).output().unwrap();
        assert_eq!(code(&output), 0, "{}", err(&output));
    };
    clean();
    assert!(!is_empty(&folders), "the harness still lives");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_empty(&folders));
    clean();
    assert!(is_empty(&folders));
    wait_until("the command to end", || inhabitants(&folders).is_empty());
}

/// Runs the program where no further namespaces can be made; none where that cannot be arranged.
fn without_namespaces(desk: &Desk, arguments: &[&str]) -> Option<std::process::Output> {
    let program = desk.command(&[]).get_program().to_owned();
    let mut command = Command::new("unshare");
    command
        .args([
            "-Ur",
            "sh",
            "-c",
            "echo 0 >/proc/sys/user/max_user_namespaces || exit 99; exec \"$@\"",
            "sh",
        ])
        .arg(program)
        .args(arguments)
        .current_dir(desk.folder.path())
        .env("XDG_CACHE_HOME", desk.path("cache"));
    match command.output() {
        Ok(output) if code(&output) != 99 && !err(&output).starts_with("unshare:") => Some(output),
        Ok(_) | Err(_) => {
            println!("skipped: namespaces cannot be taken away here");
            None
        }
    }
}

#[test]
fn a_weaker_level_is_taken_by_itself_for_the_demo_only() {
    let desk = Desk::new();
    let gold = ["run", "-i", "demo__verpick-1", "-m", "gold", "-o", "demo"];
    let Some(output) = without_namespaces(&desk, &gold) else { return };
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    assert!(err(&output).contains("note: this machine refuses namespaces"), "{}", err(&output));
    let manifest: Value =
        serde_json::from_slice(&fs_err::read(desk.path("demo/manifest.json")).unwrap()).unwrap();
    assert_ne!(manifest["isolation"], "namespaces");

    fs_err::create_dir(desk.path("code")).unwrap();
    fs_err::write(desk.path("code/file"), "").unwrap();
    fs_err::write(desk.path("issue"), "It is broken.").unwrap();
    let own = ["run", "--repo", "code", "--issue", "issue", "-m", "null"];
    let server = ["run", "-m", "m", "--base-url", "http://127.0.0.1:1/v1"];
    let asked = ["run", "-m", "gold", "--isolation", "namespaces"];
    for arguments in [&own[..], &server[..], &asked[..]] {
        let refused = without_namespaces(&desk, arguments).unwrap();
        let words = err(&refused);
        assert_eq!(code(&refused), 3, "{words}");
        assert!(words.contains("isolation namespaces is refused"), "{words}");
        assert!(words.contains("--isolation none"), "{words}");
        assert!(words.contains("sysctl -w user.max_user_namespaces=10000"), "{words}");
    }
    let given = [&own[..], &["--isolation", "none"]].concat();
    let output = without_namespaces(&desk, &given).unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));

    let doctor = without_namespaces(&desk, &["doctor"]).unwrap();
    assert!(out(&doctor).contains("isolation namespaces  refused"), "{}", out(&doctor));
    assert!(out(&doctor).contains("sysctl -w user.max_user_namespaces=10000"), "{}", out(&doctor));
}
