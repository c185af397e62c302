//! Whole runs against model servers on loopback.

use std::path::Path;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use patchgym::digest;
use patchgym::model::body::body;
use patchgym::protocol::record::Event;
use patchgym::trajectory::reader;
use serde_json::Value;
use serde_json::json;

use crate::cli::Desk;
use crate::cli::code;
use crate::cli::err;
use crate::cli::out;
use crate::fake_server::FakeServer;
use crate::fake_server::Reply;
use crate::fake_server::Seen;

const CANARY: &str = "sk-canary-7c1f0b";
const TASK: &str = "demo__spanset-1";
/// Prints everything a sandbox could know of the machine's secrets.
const LOOK: &str = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; find /run/patchgym /root /tmp -type f -exec cat {} + 2>/dev/null; echo looked";

/// The request of an agent's turn, as opposed to those of the probe: it has the navigator's tools.
fn turn_of(seen: &Seen) -> Option<usize> {
    let is_turn = seen.body["tools"].to_string().contains("open_file");
    let messages = seen.body["messages"].as_array()?;
    is_turn.then(|| messages.iter().filter(|message| message["role"] == "assistant").count())
}

/// Answers the probe like a server that can do everything, and an agent's turns with `turns`.
fn able(
    turn: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Seen) -> Reply + Send + Sync {
    move |seen| {
        if seen.target.ends_with("/models") {
            return Reply::json(200, json!({"data": [{"id": "small", "max_model_len": 32768}]}));
        }
        match turn_of(seen) {
            Some(number) => turn(number, seen),
            // Tools lengthen the prompt of a server that shows them to its model.
            None if seen.body.get("tools").is_some() => Reply::json(
                200,
                json!({
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ready"}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 90, "completion_tokens": 1, "total_tokens": 91},
                }),
            ),
            None => Reply::text("ready"),
        }
    }
}

/// A call with reasoning under `field`.
fn thinking(field: &str, id: &str, tool: &str, arguments: &Value) -> Reply {
    Reply::message(json!({
        "role": "assistant",
        "content": null,
        field: format!("I think about {id}"),
        "tool_calls": [{"id": id, "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}}],
    }))
}

async fn run(desk: &Arc<Desk>, server: &FakeServer, more: &[&str]) -> Output {
    let url = server.url();
    let mut arguments = vec![
        "run",
        "-m",
        "small",
        "--base-url",
        &url,
        "-i",
        TASK,
        "-o",
        "mine",
        "-c",
        "server.retries=1",
    ];
    arguments.extend(more);
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let desk = Arc::clone(desk);
    tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        desk.command(&arguments).env("OPENAI_API_KEY", CANARY).output().unwrap()
    })
    .await
    .unwrap()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

async fn reasoning_is_kept(field: &'static str) {
    let server = FakeServer::start(able(move |number, seen| {
        // Some servers refuse a conversation whose earlier reasoning is missing.
        let earlier = seen.body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|message| message["role"] == "assistant");
        if earlier
            .clone()
            .any(|message| message[field].as_str().is_none_or(|text| !text.starts_with("I think")))
        {
            return Reply::error(400, "reasoning of earlier turns is required");
        }
        match number {
            0 => thinking(field, "a", "run", &json!({"command": LOOK})),
            1 => thinking(
                field,
                "b",
                "edit",
                &json!({"command": "create", "path": "x.txt", "file_text": "x\n"}),
            ),
            _ => thinking(field, "c", "submit", &json!({})),
        }
    }))
    .await;
    let desk = Arc::new(Desk::new());
    let output = run(&desk, &server, &[]).await;
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("submitted      3  no"), "{}", out(&output));

    // The key reached the server and nothing else.
    let seen = server.seen();
    assert!(
        seen.iter()
            .all(|request| request.header("authorization") == Some(&format!("Bearer {CANARY}")))
    );
    assert!(!format!("{}{}", out(&output), err(&output)).contains(CANARY));
    for path in files_below(&desk.path("mine")) {
        let bytes = fs_err::read(&path).unwrap();
        assert!(
            !bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()),
            "{}",
            path.display()
        );
    }

    // The log holds what was sent, byte for byte.
    let log = reader::read(desk.path("mine/attempts").join(TASK).join("1/events.jsonl")).unwrap();
    let turns: Vec<&Seen> = seen.iter().filter(|request| turn_of(request).is_some()).collect();
    let mut compared = 0;
    for record in &log.records {
        if let Event::Request { turn, parameters, sha256, .. } = &record.event {
            let rebuilt = body(parameters, &log.request_messages(*turn).unwrap());
            assert_eq!(digest::sha256(&rebuilt), *sha256, "turn {turn}");
            assert_eq!(rebuilt, turns[compared].bytes, "turn {turn}");
            compared += 1;
        }
    }
    assert_eq!(compared, 3);
    let looked = log.turns()[0].observations[0].text.clone();
    assert!(looked.contains("looked") && looked.contains("PAGER=cat"), "{looked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_reasoning_gets_it_and_the_key_goes_nowhere_else() {
    reasoning_is_kept("reasoning_content").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_under_the_other_name_is_sent_back_under_it() {
    reasoning_is_kept("reasoning").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tools_is_refused_with_what_helps() {
    let server = FakeServer::start(|seen| {
        if seen.target.ends_with("/models") {
            return Reply::json(200, json!({"data": [{"id": "small"}]}));
        }
        if seen.body.get("tools").is_some() {
            return Reply::error(
                400,
                "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser",
            );
        }
        Reply::text("```bash\nsubmit\n```")
    })
    .await;
    let desk = Arc::new(Desk::new());
    let output = run(&desk, &server, &[]).await;
    assert_eq!(code(&output), 3, "{}", err(&output));
    assert!(
        err(&output).contains("error: the model server takes no tool calls"),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("--enable-auto-tool-choice"), "{}", err(&output));
    assert!(!desk.path("mine").exists(), "something was begun");
    // The text dialect needs no tool support.
    let output = run(&desk, &server, &["--agent", "bash-only"]).await;
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).contains("no (empty patch)"), "{}", out(&output));
}

#[test]
fn a_server_that_is_not_there_is_told_before_anything_is_begun() {
    let desk = Desk::new();
    let output = desk.run(&[
        "run",
        "-m",
        "small",
        "--base-url",
        "http://127.0.0.1:9",
        "-o",
        "mine",
        "-c",
        "server.retries=0",
    ]);
    assert_eq!(code(&output), 3, "{}", err(&output));
    assert!(err(&output).contains("error: the model server cannot be reached"), "{}", err(&output));
    assert!(err(&output).contains("127.0.0.1:9"), "{}", err(&output));
    assert!(!desk.path("mine").exists());
}

/// A real server with a small model: see CONTRIBUTING.md for the commands that start one.
#[test]
#[ignore = "needs a server: PATCHGYM_TEST_SERVER=URL PATCHGYM_TEST_MODEL=NAME cargo test --test it real_server -- --ignored"]
fn real_server_run_completes() {
    let (Ok(url), Ok(model)) =
        (std::env::var("PATCHGYM_TEST_SERVER"), std::env::var("PATCHGYM_TEST_MODEL"))
    else {
        panic!("PATCHGYM_TEST_SERVER and PATCHGYM_TEST_MODEL name the server");
    };
    let desk = Desk::new();
    let output = desk.run(&[
        "run",
        "-m",
        &model,
        "--base-url",
        &url,
        "-i",
        TASK,
        "-o",
        "mine",
        "--max-tokens",
        "64",
        "-c",
        "limits.turns=3",
        "-c",
        "sampling.logprobs=true",
    ]);
    assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    let log = reader::read(desk.path("mine/attempts").join(TASK).join("1/events.jsonl")).unwrap();
    let responses: Vec<_> = log.turns().into_iter().filter_map(|turn| turn.response).collect();
    assert!(!responses.is_empty());
    for response in &responses {
        assert!(response.usage.unwrap().completion_tokens > 0);
        let raw: Value = serde_json::from_slice(&response.raw.to_vec().unwrap()).unwrap();
        assert!(raw["choices"][0]["message"].is_object());
    }
    println!("{} turns, {:?}", responses.len(), log.end().unwrap().reason);
}
