//! Commands that try to break the shell. Cases are shared with other implementations.

use std::time::Duration;
use std::time::Instant;

use patchgym::protocol::operation::CommandResult;
use patchgym::protocol::operation::Ending;
use patchgym::protocol::operation::SessionStart;
use patchgym::sandbox::SandboxSpec;
use serde_json::Value;

use crate::world::KEEP;
use crate::world::LIMIT;
use crate::world::Opened;
use crate::world::case;
use crate::world::text_of;

async fn plain() -> Opened {
    Opened::new(&SandboxSpec::default()).await
}

/// Runs the steps of a case in one session.
async fn play(name: &str) {
    let Some(folder) = case(name) else { return };
    let steps: Vec<Value> =
        serde_json::from_slice(&fs_err::read(folder.join("steps.json")).unwrap()).unwrap();
    let opened = plain().await;
    for step in &steps {
        let limit = Duration::from_secs(step["timeout_s"].as_u64().unwrap_or(30));
        let started = Instant::now();
        let result = opened.result(step["run"].as_str().unwrap(), limit).await;
        check(step, &result, started.elapsed());
        // The cases look at what their background jobs have just begun to do.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    opened.close().await;
}

fn check(step: &Value, result: &CommandResult, took: Duration) {
    let (expect, text) = (&step["expect"], text_of(result));
    let place = format!("{step}\ngave {:?} {text:?} in {took:?}", result.ending);
    if expect["timed_out"] == true {
        assert_eq!(result.ending, Ending::TimedOut, "{place}");
    }
    let allowed = match &expect["exit_code"] {
        Value::Array(codes) => codes.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    if !allowed.is_empty() {
        let code = match result.ending {
            Ending::Exited(code) => code,
            Ending::Signalled(signal) => 128 + signal,
            Ending::TimedOut => -1,
        };
        assert!(allowed.contains(&code.into()), "{place}");
    }
    if let Some(output) = expect["output"].as_str() {
        assert_eq!(text, output, "{place}");
    }
    let words = |key: &str| {
        let words = expect[key].as_array().cloned().unwrap_or_default();
        words.into_iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(words("contains").iter().all(|word| text.contains(word)), "{place}");
    assert!(!words("lacks").iter().any(|word| text.contains(word)), "{place}");
    if let Some(seconds) = expect["max_seconds"].as_f64() {
        assert!(took.as_secs_f64() <= seconds, "{place}");
    }
    if let Some(count) = expect["fffd"].as_u64() {
        assert_eq!(text.matches('\u{fffd}').count() as u64, count, "{place}");
    }
    if let Some(count) = expect["chars_total"].as_u64() {
        assert_eq!(text.chars().count() as u64, count, "{}", &place[..200]);
    }
}

#[tokio::test]
async fn o14_a_time_out_ends_the_whole_tree() {
    play("o14-timeout-kills-tree").await;
}

#[tokio::test]
async fn o15_a_command_may_end_or_change_the_shell() {
    play("o15-exit-and-errexit").await;
}

#[tokio::test]
async fn o16_a_background_job_keeps_the_output_open() {
    play("o16-background-keeps-output-open").await;
}

#[tokio::test]
async fn o17_output_is_bytes() {
    play("o17-output-bytes").await;
}

#[tokio::test]
async fn every_end_of_a_command_is_told_and_the_next_one_works() {
    let opened = plain().await;
    opened.ok("export KEPT='a\n\"b\"$c'; cd /var").await;
    let here = "cat <<'END' >/dev/null\n$(exit 3)\nEND\ncat <<-X\n\tin a document\n\tX";
    for (command, ending, text) in [
        (here, Ending::Exited(0), "in a document"),
        ("cat <<END\nwithout end", Ending::Exited(0), "without end"),
        ("echo 'open quote", Ending::Exited(1), "unexpected EOF"),
        ("if true; then", Ending::Exited(1), "syntax error"),
        ("return 7", Ending::Exited(7), ""),
        ("false", Ending::Exited(1), ""),
        ("break; continue; shift 9; echo on", Ending::Exited(0), "on"),
        ("exec ls /run", Ending::Exited(0), "patchgym"),
        ("exec bash", Ending::Exited(0), ""),
        ("exec /nowhere", Ending::Exited(127), "nowhere"),
        ("kill -9 $$", Ending::Signalled(9), ""),
        ("kill -9 $BASHPID; echo no", Ending::Signalled(9), ""),
        ("set -e; set -o pipefail; false | true; echo no", Ending::Exited(1), ""),
        ("exit", Ending::Exited(0), ""),
        ("true; exit 300", Ending::Exited(44), ""),
        ("trap 'echo bye' EXIT; exit 2", Ending::Exited(2), "bye"),
        ("cat; read line; echo \"[$line]\"", Ending::Exited(0), "[]"),
        (
            "ls / | head -1; yes | head -2 | tail -1; echo ${PIPESTATUS[0]}",
            Ending::Exited(0),
            "141",
        ),
        ("\0", Ending::Exited(0), ""),
        ("", Ending::Exited(0), ""),
        ("# nothing", Ending::Exited(0), ""),
        ("exec 0<&- 1>&- 2>&-", Ending::Exited(0), ""),
        (
            "for number in $(seq 0 30); do eval \"exec $number>&-\"; done 2>/dev/null",
            Ending::Exited(0),
            "",
        ),
        (
            "unset -f $(compgen -A function); unset ${!__*} ${!PI*}; PATH=/usr/bin:/bin",
            Ending::Exited(0),
            "",
        ),
        // A shell that cannot report is replaced.
        ("rm -rf /run/patchgym/* 2>/dev/null; true", Ending::Signalled(9), ""),
        ("command() { :; }", Ending::Signalled(9), ""),
        ("set -n", Ending::Signalled(9), ""),
        (
            "su -c id; sudo -n id; man ls | head -1; git log; less /etc/passwd | head -1; true",
            Ending::Exited(0),
            "root",
        ),
        ("printf 'no line end'", Ending::Exited(0), "no line end"),
    ] {
        let started = Instant::now();
        let (ended, said) = opened.run(command).await;
        assert!(started.elapsed() < Duration::from_secs(5), "{command}");
        let place = format!("{command}: {ended:?} {said}");
        assert!(said.contains(text) && (!text.is_empty() || !said.contains("no")), "{place}");
        match ending {
            Ending::Exited(1) => assert!(matches!(ended, Ending::Exited(1 | 2)), "{place}"),
            ending => assert_eq!(ended, ending, "{place}"),
        }
        // Its status is what the next one may ask for, unless that has a new shell.
        let (again, status) = opened.run("echo $?").await;
        assert_eq!(again, Ending::Exited(0), "after {command}");
        let lost = matches!(ended, Ending::Signalled(_))
            || command.contains("exit")
            || command.contains("exec ");
        assert!(
            ended == Ending::Exited(status.parse().unwrap()) || lost || status == "0",
            "after {command}: {status}"
        );
        let (ended, said) = opened.run("echo \"$KEPT $(pwd)\"").await;
        assert_eq!(
            (ended, said.as_str()),
            (Ending::Exited(0), "a\n\"b\"$c /var"),
            "after {command}"
        );
    }
    opened.close().await;
}

#[tokio::test]
async fn a_shell_without_input_does_not_take_the_next_command_with_it() {
    let opened = plain().await;
    for number in 0..30 {
        let close = "for fd in 0 1 2 3 8 9 10 11 12 13 14 255; do eval \"exec $fd>&-\"; done";
        opened.run(close).await;
        let (ending, text) = opened.run(&format!("echo {number} >>/tmp/ran; (exit 7)")).await;
        assert_eq!((ending, text.as_str()), (Ending::Exited(7), ""), "{number}");
    }
    assert_eq!(opened.ok("wc -l </tmp/ran").await, "30");
    // A shell that cannot even start is told, not tried for ever.
    let (ending, _) = opened.run("cp /bin/false /tmp/bash && cp /tmp/bash /bin/bash; exit 3").await;
    assert_eq!(ending, Ending::Exited(3));
    let broken = opened.result("echo x", LIMIT).await;
    assert!(broken.shell_lost == (broken.ending == Ending::Exited(1)), "{broken:?}");
    opened.close().await;
}

#[tokio::test]
async fn output_that_looks_like_a_report_is_output() {
    let opened = plain().await;
    let before = opened
        .ok("printf '12 0\\n/\\n\\0declare -x A=1\\n\\00012\\n'; cat /run/patchgym/sh0/*/report")
        .await;
    assert!(before.starts_with("12 0\n/\n\0declare") && before.contains("export -p"), "{before}");
    // Whoever writes to the pipe of the reports gets nowhere, neither now nor while another command runs.
    let flood = "for i in $(seq 200); do head -c 100000 /dev/zero; printf '7\\n'; done >$(echo /run/patchgym/sh0/*/status)";
    let (ending, _) = opened.run(&format!("({flood}) & sleep 0.2; false")).await;
    assert_eq!(ending, Ending::Exited(1));
    let started = Instant::now();
    let result = opened.result("sleep 0.3; cd /tmp; (exit 5)", LIMIT).await;
    assert_eq!((result.ending, result.cwd.as_str()), (Ending::Exited(5), "/tmp"));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    opened.close().await;
}

#[tokio::test]
async fn sizes_are_no_matter() {
    let opened = plain().await;
    let started = Instant::now();
    let result = opened
        .guest
        .run("main", b"head -c 100M /dev/zero | tr '\\0' x; echo end", LIMIT, 1000)
        .await
        .unwrap();
    assert_eq!((result.total, result.head.len(), result.tail.len()), ((100 << 20) + 4, 1000, 1000));
    assert!(result.tail.ends_with(b"xend\n") && started.elapsed() < Duration::from_secs(10));

    let long = format!(": '{}'\necho ${{#1}}", "y".repeat(1 << 20));
    assert_eq!(opened.ok(&format!("set -- abc\n{long}")).await, "3");
    let (ending, _) = opened.run(&"echo -n\n".repeat(100_000)).await;
    assert_eq!(ending, Ending::Exited(0));
    let too_long = vec![b' '; 5 << 20];
    assert!(opened.guest.run("main", &too_long, LIMIT, KEEP).await.is_err());

    // An environment of 200 kB, then one that cannot be passed on to a program.
    opened
        .ok("for i in $(seq 50); do export BIG_$i=$(head -c 4000 /dev/zero | tr '\\0' z); done")
        .await;
    assert_eq!(
        opened.ok("env | wc -c").await.parse::<u32>().map(|count| count > 200_000),
        Ok(true)
    );
    assert_eq!(opened.run("exit 0").await.0, Ending::Exited(0));
    assert_eq!(opened.ok("echo ${#BIG_50}").await, "4000");
    opened.ok("printf -v HUGE '%6000000s' x; export HUGE; SMALL=1; export SMALL; true").await;
    assert_eq!(opened.ok("echo ${#HUGE} $SMALL").await, "6000000 1");
    // The shell that ends takes with it what is too large to be handed on.
    opened.run("exit 0").await;
    assert_eq!(opened.ok("echo ${#HUGE} ${#BIG_50}").await, "0 4000");
    opened.close().await;
}

#[tokio::test]
async fn exports_survive_whatever_they_hold() {
    let opened = plain().await;
    opened
        .ok("export EMPTY= QUOTES=\"a'b\\\"c\" LINES2=$'one\\ntwo\\n' BYTES=$'\\xff\\x01' DOLLAR='$(exit 9)`x`' UNICODE=\u{e9}\u{20ac}
             export -n HOME; unset TZ; readonly FIXED=1; export FIXED; declare -ix NUMBER=3; export SHELLOPTS BASHOPTS
             greet() { echo \"hi $1\"; }; export -f greet; own() { :; }; LOCAL=1; mkdir -p '/tmp/a b'$'\\n'c; cd '/tmp/a b'$'\\n'c")
        .await;
    let look = "printf '%s|' \"$EMPTY\" \"$QUOTES\" \"$LINES2\" \"$DOLLAR\" \"$UNICODE\" \"${HOME-no home}\" \"${TZ-no zone}\" \"$FIXED\" \"$NUMBER\"; printf %s \"$BYTES\" | od -An -tx1; bash -c 'greet you'; pwd; echo ${FIXED@a} ${NUMBER@a}";
    let expected = "|a'b\"c|one\ntwo\n|$(exit 9)`x`|\u{e9}\u{20ac}|no home|no zone|1|3| ff 01\nhi you\n/tmp/a b\nc\nrx ix";
    assert_eq!(opened.ok(look).await.replace("/root", "no home"), expected);
    for end in ["exit 1", "kill -9 $$", "set -u; echo $NOPE"] {
        opened.run(end).await;
        assert_eq!(opened.ok(look).await, expected, "{end}");
    }
    assert_eq!(opened.ok("type own 2>/dev/null; echo \"[$LOCAL]\"").await, "[]");
    // A directory that is gone is still where the shell is, but a new one starts above it.
    opened.ok("mkdir -p /tmp/x/y && cd /tmp/x/y && rm -rf /tmp/x/y").await;
    assert_eq!(opened.ok("pwd").await, "/tmp/x/y");
    opened.run("exit 1").await;
    assert_eq!(opened.ok("pwd").await, "/tmp/x");
    opened.close().await;
}

#[tokio::test]
async fn background_jobs_print_later_and_are_never_in_the_way() {
    let opened = plain().await;
    opened.ok("(sleep 0.3; echo later) & true").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let result = opened.result("echo now", LIMIT).await;
    assert_eq!((result.late.as_slice(), text_of(&result).as_str()), (&b"later\n"[..], "now"));
    // A flood neither delays the next command, nor its end, nor what a command that ends the shell tells.
    opened.ok("yes & echo started").await;
    for (command, ending) in [
        ("true", Ending::Exited(0)),
        ("exit 4", Ending::Exited(4)),
        ("kill -9 $$", Ending::Signalled(9)),
    ] {
        let started = Instant::now();
        assert_eq!(opened.run(command).await.0, ending, "{command}");
        assert!(started.elapsed() < Duration::from_secs(3), "{command} {:?}", started.elapsed());
    }
    let result = opened.result("pkill yes; sleep 0.1; echo quiet", LIMIT).await;
    assert!(result.late.len() <= 16 << 10 && text_of(&result).ends_with("quiet"));
    assert_eq!(opened.ok("echo alone").await, "alone");
    opened.close().await;
}

#[tokio::test]
async fn a_time_out_keeps_what_was_there_before_and_what_was_printed() {
    let opened = plain().await;
    opened.ok("sleep 4712 & cd /var; export A=1; f() { echo f; }").await;
    let slow = "python3 -c 'import time\nprint(1, flush=True)\ntime.sleep(100)' || perl -e '$| = 1; print \"1\\nKeyboardInterrupt\"; sleep 100'; echo after";
    let result = opened.result(slow, Duration::from_millis(700)).await;
    let text = text_of(&result);
    assert_eq!((result.ending, result.shell_lost), (Ending::TimedOut, true));
    assert!(
        text.starts_with("1\n") && text.contains("KeyboardInterrupt") && !text.contains("after"),
        "{text}"
    );
    // Jobs of earlier commands live on; the shell does not, but its state does.
    assert_eq!(opened.ok("pgrep -fc 'sleep 4712'; pwd; echo $A").await, "1\n/var\n1");
    let pipes = "cd /run/patchgym/sh0/*/; for i in bash report state options exports; do rm -f $i; mkfifo $i; done";
    assert_eq!(opened.result(pipes, Duration::from_secs(1)).await.ending, Ending::TimedOut);
    assert_eq!(opened.ok("pwd").await, "/var");
    let started = Instant::now();
    let stopped = opened.result("kill -STOP $$", Duration::from_secs(1)).await;
    assert_eq!(stopped.ending, Ending::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(3));
    opened.close().await;
}

#[tokio::test]
async fn a_command_whose_future_is_dropped_is_cancelled() {
    let opened = plain().await;
    for _ in 0..3 {
        let long = opened.result("cd /tmp; sleep 4713", Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_millis(200), long).await.is_err());
    }
    let started = Instant::now();
    assert_eq!(opened.ok("pgrep -fc 'sleep 4713' || true; pwd").await, "0\n/testbed");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    opened.close().await;
}

#[tokio::test]
async fn a_shell_that_is_not_bash_does_as_well() {
    let opened = plain().await;
    let (ending, text) = opened.run("rm /bin/bash /usr/bin/bash 2>&1; ls /bin/sh").await;
    if ending != Ending::Exited(0) || !text.ends_with("/bin/sh") {
        // An ordinary user's sandbox cannot remove a program.
        opened.close().await;
        return;
    }
    let start = SessionStart { cwd: "/tmp".into(), ..opened.sandbox.place().shell() };
    opened.guest.open_session("plain", &start).await.unwrap();
    let run = async |command: &str| {
        let result = opened.guest.run("plain", command.as_bytes(), LIMIT, KEEP).await.unwrap();
        (result.ending, text_of(&result))
    };
    assert_eq!(
        run("export A='b c'; cd /var; echo $0").await,
        (Ending::Exited(0), "/bin/sh".into())
    );
    for (command, ending) in [
        ("set -eu; false", Ending::Exited(1)),
        ("exit 5", Ending::Exited(5)),
        ("kill -9 $$", Ending::Signalled(9)),
        ("if true; then", Ending::Exited(2)),
        ("sleep 9 & (exit 3)", Ending::Exited(3)),
    ] {
        assert_eq!(run(command).await.0, ending, "{command}");
        assert_eq!(
            run("echo \"$A $(pwd)\"").await,
            (Ending::Exited(0), "b c /var".into()),
            "{command}"
        );
    }
    opened.close().await;
}
