//! The client against servers that answer as real ones do on bad days.

use std::time::Duration;
use std::time::Instant;

use patchgym::model::Model;
use patchgym::model::ModelError;
use patchgym::model::body::Reasoning;
use patchgym::model::body::body;
use patchgym::model::connection::Deadlines;
use patchgym::model::openai::OpenAi;
use patchgym::model::openai::Options;
use patchgym::model::probe::Finding;
use patchgym::model::probe::probe;
use patchgym::model::retry::Retry;
use patchgym::model::secret::Secret;
use patchgym::model::store::Recording;
use patchgym::model::store::Store;
use patchgym::protocol::message::Completion;
use patchgym::protocol::message::FinishReason;
use patchgym::protocol::message::Message;
use patchgym::protocol::message::Request;
use patchgym::protocol::message::Role;
use patchgym::protocol::message::Sampling;
use patchgym::protocol::message::ToolSchema;
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;

use crate::fake_server::FakeServer;
use crate::fake_server::Reply;
use crate::fake_server::Seen;

const CANARY: &str = "sk-canary-5f2e9d";

fn options(server: &FakeServer) -> Options {
    let mut options = Options::new(server.url().parse().unwrap(), "fake");
    options.key = Some(Secret::new(CANARY));
    options.retry = Retry {
        count: 3,
        first: Duration::from_millis(20),
        longest: Duration::from_millis(100),
        total: Duration::from_secs(20),
    };
    options
}

fn model(server: &FakeServer) -> OpenAi {
    OpenAi::new(options(server)).unwrap()
}

fn request() -> Request {
    let parameters = json!({"type": "object", "properties": {"command": {"type": "string"}}});
    Request {
        messages: vec![
            Message::text(Role::System, "be brief"),
            Message::text(Role::User, "fix it"),
        ],
        tools: vec![ToolSchema { name: "run".into(), description: "runs".into(), parameters }],
        sampling: Sampling { temperature: Some(0.7), max_tokens: Some(300), ..Sampling::default() },
    }
}

async fn after(replies: Vec<Reply>) -> (Result<Completion, ModelError>, Vec<Seen>) {
    let server = FakeServer::replies(replies).await;
    let answer = model(&server).complete(&request()).await;
    let seen = server.seen();
    if let Err(error) = &answer {
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error}");
    }
    (answer, seen)
}

#[tokio::test]
async fn a_call_is_read_and_answered_and_the_log_gives_the_bytes_back() {
    let server = FakeServer::start(|seen| match seen.index {
        0 => Reply::call("call_a", "run", json!({"command": "ls"})),
        _ => Reply::text("done"),
    })
    .await;
    let model = model(&server);
    let mut request = request();
    let first = model.complete(&request).await.unwrap();
    assert_eq!(first.finish_reason, FinishReason::ToolCalls);
    assert_eq!(first.message.tool_calls[0].arguments, "{\"command\":\"ls\"}");
    assert_eq!(first.usage.unwrap().prompt_tokens, 10);
    request.messages.push(first.message.clone());
    request.messages.push(Message::tool("call_a", "setup.py"));
    let second = model.complete(&request).await.unwrap();
    assert_eq!(second.message.content, "done");
    let seen = server.seen();
    assert_eq!(seen[0].header("authorization"), Some("Bearer sk-canary-5f2e9d"));
    assert_eq!(seen[0].body["tools"][0]["function"]["name"], "run");
    for (completion, seen, count) in [(&first, &seen[0], 2), (&second, &seen[1], 4)] {
        let rebuilt = body(&completion.exchange.parameters, &request.messages[..count]);
        assert_eq!(rebuilt, seen.bytes);
        assert_eq!(
            completion.exchange.request_sha256,
            format!("{:x}", Sha256::digest(&seen.bytes))
        );
        assert!(!completion.exchange.parameters.to_string().contains(CANARY));
    }
    let Reply::Answer { body, .. } = Reply::text("done") else { unreachable!() };
    assert_eq!(second.exchange.response, body);
}

#[tokio::test]
async fn history_that_the_model_broke_is_sent_valid() {
    let cut = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{\"command\": \"ls"}},
        {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}},
        {"type": "function", "function": {"name": "run", "arguments": null}},
    ]});
    let server = FakeServer::replies(vec![Reply::message(cut), Reply::text("ok")]).await;
    let model = model(&server);
    let mut request = request();
    let answer = model.complete(&request).await.unwrap().message;
    let ids: Vec<String> = answer.tool_calls.iter().map(|call| call.id.clone()).collect();
    assert_eq!(ids, ["a", "call_0", "call_1"]);
    request.messages.push(answer);
    request.messages.push(Message::tool("a", "cut off"));
    request.messages.push(Message::tool("call_1", "missing argument"));
    model.complete(&request).await.unwrap();
    assert_eq!(server.seen()[1].body["messages"][2]["tool_calls"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_rate_limit_is_waited_for_as_the_server_asks() {
    let limited = Reply::error(429, "slow down").with_header("Retry-After", "1");
    let (answer, seen) = after(vec![limited, Reply::text("ok")]).await;
    assert_eq!(answer.unwrap().exchange.retries, 1);
    let waited = seen[1].at - seen[0].at;
    assert!((1.0..3.0).contains(&waited.as_secs_f64()), "{waited:?}");
    assert_eq!(seen[0].bytes, seen[1].bytes);
}

#[tokio::test]
async fn a_wait_longer_than_the_bound_ends_at_once() {
    let begun = Instant::now();
    let limited = Reply::error(429, "come back tomorrow").with_header("Retry-After", "86400");
    let (answer, seen) = after(vec![limited]).await;
    assert!(matches!(answer, Err(ModelError::RateLimit(_))), "{answer:?}");
    assert_eq!(seen.len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn passing_failures_are_retried() {
    let whole = br#"{"choices": [{"message": {"content": "ok"}}]}"#.to_vec();
    let empty = json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]});
    let failures = [
        ("server error", Reply::error(500, "oops")),
        ("loading", Reply::error(503, "Loading model")),
        ("reset", Reply::Reset),
        ("cut body", Reply::CutBody { body: whole.clone(), sent: 20 }),
        ("cut JSON", Reply::Answer { status: 200, headers: vec![], body: whole[..20].to_vec() }),
        ("no body", Reply::Answer { status: 200, headers: vec![], body: vec![] }),
        ("empty reply", Reply::json(200, empty)),
        (
            "error under 200",
            Reply::json(200, json!({"error": {"message": "upstream", "code": 502}})),
        ),
    ];
    for (name, failure) in failures {
        let (answer, seen) = after(vec![failure.clone(), failure.clone(), Reply::text("ok")]).await;
        let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (answer.message.content.as_str(), answer.exchange.retries, seen.len()),
            ("ok", 2, 3),
            "{name}"
        );
        let (answer, seen) = after(vec![failure]).await;
        let error = answer.unwrap_err();
        assert!(matches!(error, ModelError::Server(_)), "{name}: {error}");
        assert_eq!(seen.len(), 4, "{name}: one request and three retries");
    }
}

#[tokio::test]
async fn lasting_failures_are_never_sent_again() {
    let too_long =
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens";
    let cases = [
        (Reply::error(400, too_long), "context_overflow"),
        (Reply::error(401, &format!("Incorrect API key provided: {CANARY}")), "auth"),
        (Reply::error(403, "forbidden"), "auth"),
        (Reply::error(400, "messages: bad"), "bad_request"),
        (Reply::error(404, "no such model"), "bad_request"),
        (Reply::error(308, "").with_header("location", "http://elsewhere/"), "bad_request"),
        (Reply::Answer { status: 200, headers: vec![], body: b"<html>".to_vec() }, "bad_answer"),
    ];
    for (reply, class) in cases {
        let (answer, seen) = after(vec![reply, Reply::text("ok")]).await;
        assert_eq!((answer.unwrap_err().class(), seen.len()), (class, 1));
    }
}

#[tokio::test]
async fn every_wait_has_its_deadline() {
    let whole = br#"{"choices": [{"message": {"content": "ok"}}]}"#.to_vec();
    let short = Duration::from_millis(150);
    let long = Duration::from_secs(60);
    let stall = Reply::StallBody { body: whole, sent: 10 };
    let cases = [
        (
            Reply::Hang,
            Deadlines { connect: short, first_byte: short, idle: long, total: long },
            "no first byte",
        ),
        (
            stall.clone(),
            Deadlines { connect: long, first_byte: long, idle: short, total: long },
            "no next byte",
        ),
        (
            stall,
            Deadlines { connect: long, first_byte: long, idle: long, total: short },
            "no whole answer",
        ),
    ];
    for (reply, deadlines, want) in cases {
        let server = FakeServer::replies(vec![reply.clone(), Reply::text("ok")]).await;
        let mut options = options(&server);
        options.deadlines = deadlines;
        let answer = OpenAi::new(options.clone()).unwrap().complete(&request()).await.unwrap();
        assert_eq!((answer.message.content.as_str(), answer.exchange.retries), ("ok", 1), "{want}");
        options.retry.count = 0;
        let server = FakeServer::replies(vec![reply]).await;
        options.address = server.url().parse().unwrap();
        let error = OpenAi::new(options).unwrap().complete(&request()).await.unwrap_err();
        assert!(matches!(&error, ModelError::Unreachable(text) if text.contains(want)), "{error}");
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable_and_no_credential_is_shown() {
    let server = FakeServer::replies(vec![Reply::Hang]).await;
    let mut options = options(&server);
    let port = options.address.to_string();
    server.stop().await;
    options.address = port.replace("http://", "http://me:canary-password@").parse().unwrap();
    options.headers = vec![("x-api-key".into(), Secret::new("canary-header"))];
    options.retry.count = 1;
    let shown = format!("{options:?}");
    let error = OpenAi::new(options).unwrap().complete(&request()).await.unwrap_err();
    assert!(matches!(&error, ModelError::Unreachable(text) if text.contains(&port)), "{error}");
    assert!(!format!("{shown} {error} {error:?}").contains("canary"), "{shown} {error}");
}

#[tokio::test]
async fn refused_parameters_are_learned_once() {
    let server = FakeServer::start(|seen| {
        if seen.body.get("max_tokens").is_some() {
            return Reply::error(
                400,
                "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            );
        }
        if seen.body.get("temperature").is_some() {
            return Reply::error(
                400,
                "Unsupported value: 'temperature' does not support 0.7 with this model.",
            );
        }
        if seen.body["messages"][0]["role"] == "system" {
            return Reply::error(
                400,
                "Unsupported value: 'messages[0].role' does not support 'system'.",
            );
        }
        assert_eq!(seen.body["max_completion_tokens"], 300);
        Reply::text("ok")
    })
    .await;
    let model = model(&server);
    assert_eq!(model.complete(&request()).await.unwrap().exchange.retries, 3);
    let again = model.complete(&request()).await.unwrap();
    assert_eq!((again.exchange.retries, server.seen().len()), (0, 5));
    assert_eq!(again.exchange.parameters["body"].get("temperature"), None);
    assert_eq!(server.seen()[4].body["messages"][0]["role"], "developer");
}

#[tokio::test]
async fn reasoning_is_sent_back_where_it_came_from() {
    for field in ["reasoning_content", "reasoning"] {
        let server = FakeServer::start(move |seen| {
            let messages = seen.body["messages"].as_array().unwrap();
            let said: Vec<_> =
                messages.iter().filter(|message| message["role"] == "assistant").collect();
            if said.iter().any(|message| message[field] != "because") {
                return Reply::error(400, &format!("{field} is missing in an assistant message"));
            }
            Reply::message(json!({"role": "assistant", "content": "so", field: "because"}))
        })
        .await;
        let ask = async |reasoning| {
            let model = OpenAi::new(Options { reasoning, ..options(&server) }).unwrap();
            let mut request = request();
            for _ in 0..3 {
                let answer = model.complete(&request).await?;
                assert_eq!(answer.message.reasoning.as_deref(), Some("because"));
                request.messages.extend([answer.message, Message::text(Role::User, "go on")]);
            }
            Ok::<(), ModelError>(())
        };
        ask(Reasoning::Keep).await.unwrap();
        assert!(matches!(ask(Reasoning::Drop).await, Err(ModelError::BadRequest(_))));
    }
}

#[tokio::test]
async fn inline_reasoning_is_restored_byte_for_byte() {
    let content = "<think>\nfirst this\n</think>\n\nThen that.";
    let server = FakeServer::replies(vec![Reply::text(content), Reply::text("ok")]).await;
    let model = model(&server);
    let mut request = request();
    let answer = model.complete(&request).await.unwrap().message;
    assert_eq!(
        (answer.content.as_str(), answer.reasoning.as_deref()),
        ("\n\nThen that.", Some("\nfirst this\n"))
    );
    request.messages.extend([answer, Message::text(Role::User, "go on")]);
    model.complete(&request).await.unwrap();
    assert_eq!(server.seen()[1].body["messages"][2]["content"], content);
}

#[tokio::test]
async fn a_dropped_request_is_cancelled() {
    let server = FakeServer::replies(vec![Reply::Hang, Reply::text("ok")]).await;
    let model = model(&server);
    let request = request();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), model.complete(&request)).await.is_err()
    );
    assert_eq!(model.complete(&request).await.unwrap().message.content, "ok");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn an_exchange_with_a_server_is_stored_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        FakeServer::replies(vec![Reply::call("c", "run", json!({})), Reply::text("other")]).await;
    let recording = Recording::new(Box::new(model(&server)), folder.path()).unwrap();
    let live = recording.complete(&request()).await.unwrap();
    assert_eq!(recording.complete(&request()).await.unwrap().message.content, "other");
    let store = Store::open(folder.path()).unwrap();
    assert_eq!((store.name(), store.complete(&request()).await.unwrap()), ("fake", live));
}

fn models(seen: &Seen, fields: serde_json::Value) -> Option<Reply> {
    let entry = json!({"id": "fake", "object": "model", "meta": fields, "max_model_len": fields["max_model_len"]});
    match seen.target.as_str() {
        "GET /v1/models" => Some(Reply::json(200, json!({"object": "list", "data": [entry]}))),
        target if target.starts_with("GET ") => Some(Reply::error(404, "not found")),
        _ => None,
    }
}

#[tokio::test]
async fn a_probe_names_the_flag_that_is_missing() {
    let refusals = [
        (
            400,
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
            "--tool-call-parser",
        ),
        (500, "tools param requires --jinja flag", "--jinja"),
        (400, "registry.example/tiny does not support tools", "bash-only"),
    ];
    for (status, words, want) in refusals {
        let server = FakeServer::start(move |seen| {
            models(seen, json!({"max_model_len": 8192})).unwrap_or_else(|| {
                match seen.body.get("tools") {
                    Some(_) => Reply::error(status, words),
                    None => Reply::text("x"),
                }
            })
        })
        .await;
        let probe = probe(&model(&server)).await;
        assert_eq!(probe.listed, Finding::Yes(String::new()));
        assert_eq!(probe.context, Some(8192));
        assert!(
            matches!(&probe.tools, Finding::No(text) if text.contains(words)),
            "{:?}",
            probe.tools
        );
        assert!(matches!(&probe.tool_results, Finding::No(_)), "{:?}", probe.tool_results);
        assert!(matches!(&probe.completion, Finding::Yes(_)));
        assert!(matches!(&probe.logprobs, Finding::No(_)));
        assert_eq!(probe.hints.len(), 1, "{:?}", probe.hints);
        assert!(
            probe.hints[0].contains(want) && probe.hints[0].contains("bash-only"),
            "{:?}",
            probe.hints
        );
    }
}

#[tokio::test]
async fn a_probe_sees_tools_in_the_prompt_or_misses_them() {
    for (with, want) in [(90, "Yes"), (10, "No"), (0, "Unknown")] {
        let server = FakeServer::start(move |seen| {
            if seen.target == "GET /props" {
                return Reply::json(200, json!({"default_generation_settings": {"n_ctx": 4096}}));
            }
            models(seen, json!({"n_ctx_train": 32768})).unwrap_or_else(|| {
                let tokens = if seen.body.get("tools").is_some() { with } else { 10 };
                let mut body = json!({
                    "choices": [{"message": {"content": "x"}, "finish_reason": "length", "logprobs": null}],
                    "usage": {"prompt_tokens": tokens, "completion_tokens": 1},
                });
                if with == 0 {
                    body["usage"] = serde_json::Value::Null;
                }
                if seen.body.get("return_token_ids").is_some() {
                    body["choices"][0]["token_ids"] = json!([7]);
                }
                if seen.body.get("logprobs").is_some() {
                    body["choices"][0]["logprobs"] = json!({"content": [{"token": "x", "logprob": -1.0}]});
                }
                Reply::json(200, body)
            })
        })
        .await;
        let probe = probe(&model(&server)).await;
        let tools = format!("{:?}", probe.tools);
        assert!(tools.starts_with(want), "{tools}");
        assert_eq!(probe.context, Some(4096));
        assert_eq!(probe.hints.is_empty(), want != "No");
        for finding in
            [&probe.tool_results, &probe.response_format, &probe.logprobs, &probe.token_ids]
        {
            assert!(matches!(finding, Finding::Yes(_)), "{finding:?}");
        }
    }
}

#[tokio::test]
async fn a_probe_ends_in_time_and_says_what_it_could_not_ask() {
    let server = FakeServer::start(|seen| models(seen, json!({})).unwrap_or(Reply::Hang)).await;
    let begun = Instant::now();
    let found = probe(&model(&server)).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(matches!(found.reachable, Finding::Yes(_)));
    assert!(
        matches!(&found.tools, Finding::Unknown(text) if text.contains("within 5 s")),
        "{:?}",
        found.tools
    );
    let closed = FakeServer::replies(vec![Reply::Hang]).await;
    let unreachable = model(&closed);
    closed.stop().await;
    let found = probe(&unreachable).await;
    assert!(matches!(found.reachable, Finding::No(_)) && found.hints.len() == 1, "{found:?}");
    let misspelled = OpenAi::new(Options { model: "fakes".into(), ..options(&server) }).unwrap();
    let found = probe(&misspelled).await;
    assert!(matches!(found.listed, Finding::No(_)));
    assert!(found.hints[0].contains("it lists `fake`"), "{:?}", found.hints);
}
