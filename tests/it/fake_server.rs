//! A model server on loopback whose every answer a test decides, and which checks every conversation that it is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;
use tokio::io::AsyncBufReadExt;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::io::BufReader;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Counts the requests for chat completions from 0; of other pages it is the number of those before.
    pub(crate) index: usize,
    /// Method and target, such as `POST /v1/chat/completions`.
    pub(crate) target: String,
    /// Header names in lower case, with their values.
    pub(crate) headers: Vec<(String, String)>,
    /// The body's bytes.
    pub(crate) bytes: Vec<u8>,
    /// The body, or null when it is not JSON.
    pub(crate) body: Value,
    /// When it had arrived.
    pub(crate) at: Instant,
}

impl Seen {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Answers.
    Answer { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// Promises a body and closes the connection after a part of it.
    CutBody { body: Vec<u8>, sent: usize },
    /// Sends a part of the body and then nothing.
    StallBody { body: Vec<u8>, sent: usize },
    /// Closes the connection with a reset.
    Reset,
    /// Never answers.
    Hang,
}

impl Reply {
    /// A JSON body under a status.
    pub(crate) fn json(status: u16, body: Value) -> Self {
        Reply::Answer { status, headers: Vec::new(), body: body.to_string().into_bytes() }
    }

    /// An error as OpenAI writes it.
    pub(crate) fn error(status: u16, message: &str) -> Self {
        Self::json(status, json!({"error": {"message": message, "type": "error", "code": null}}))
    }

    /// The same answer with one more header.
    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        if let Reply::Answer { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// A completion with this message and some usage.
    pub(crate) fn message(message: Value) -> Self {
        let calls = message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        Self::json(
            200,
            json!({
                "id": "chatcmpl-fake",
                "object": "chat.completion",
                "choices": [{"index": 0, "message": message, "finish_reason": if calls { "tool_calls" } else { "stop" }}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }),
        )
    }

    /// A completion that is text.
    pub(crate) fn text(content: &str) -> Self {
        Self::message(json!({"role": "assistant", "content": content}))
    }

    /// A completion that calls one tool.
    pub(crate) fn call(id: &str, tool: &str, arguments: Value) -> Self {
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        let call = json!({"id": id, "type": "function", "function": function});
        Self::message(json!({"role": "assistant", "content": null, "tool_calls": [call]}))
    }
}

type Rule = dyn Fn(&Seen) -> Reply + Send + Sync;

#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    violations: Vec<String>,
}

/// The running server. A conversation against the protocol is answered with 400 and makes the test fail at the end.
pub(crate) struct FakeServer {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
    task: JoinHandle<()>,
}

impl FakeServer {
    /// Starts a server that answers by `rule`.
    pub(crate) async fn start(rule: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let rule: Arc<Rule> = Arc::new(rule);
        let shared = Arc::clone(&log);
        let task = tokio::spawn(async move {
            // Connections end with the server: the set aborts its tasks when it is dropped.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&rule), Arc::clone(&shared)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, log, task }
    }

    /// Starts a server that gives these replies in order and the last one for ever.
    pub(crate) async fn replies(replies: Vec<Reply>) -> Self {
        Self::start(move |seen| replies[seen.index.min(replies.len() - 1)].clone()).await
    }

    /// The base URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Stops the server; nothing listens on its port any more.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// The requests for chat completions so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let log = self.log.lock().unwrap();
        log.seen.iter().filter(|seen| seen.target.ends_with("/chat/completions")).cloned().collect()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
        if !std::thread::panicking() {
            assert_eq!(
                self.log.lock().unwrap().violations,
                Vec::<String>::new(),
                "the conversation is not valid"
            );
        }
    }
}

async fn serve(mut stream: TcpStream, rule: Arc<Rule>, log: Arc<Mutex<Log>>) {
    let Some(mut seen) = read_request(&mut stream).await else { return };
    let reply = {
        let mut log = log.lock().unwrap();
        let is_chat = seen.target.ends_with("/chat/completions");
        seen.index =
            log.seen.iter().filter(|earlier| earlier.target.ends_with("/chat/completions")).count();
        let violation = if is_chat { violation(&seen.body) } else { None };
        log.seen.push(seen.clone());
        violation.map(|text| {
            log.violations.push(format!("request {}: {text}", seen.index));
            Reply::error(400, &text)
        })
    };
    let reply = reply.unwrap_or_else(|| rule(&seen));
    // A client that gave up is no failure of the server.
    let _ = answer(&mut stream, reply).await;
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    let target = line.rsplit_once(' ')?.0.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or("0", |(_, value)| value.as_str());
    let mut bytes = vec![0; length.parse().ok()?];
    reader.read_exact(&mut bytes).await.ok()?;
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    Some(Seen { index: 0, target, headers, bytes, body, at: Instant::now() })
}

async fn answer(stream: &mut TcpStream, reply: Reply) -> std::io::Result<()> {
    let head = |status: u16, headers: &[(String, String)], length: usize| {
        let mut head =
            format!("HTTP/1.1 {status} Fake\r\nconnection: close\r\ncontent-length: {length}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    };
    match reply {
        Reply::Answer { status, headers, body } => {
            stream.write_all(head(status, &headers, body.len()).as_bytes()).await?;
            stream.write_all(&body).await?;
            stream.shutdown().await
        }
        Reply::CutBody { body, sent } => {
            stream.write_all(head(200, &[], body.len()).as_bytes()).await?;
            stream.write_all(&body[..sent]).await?;
            stream.shutdown().await
        }
        Reply::StallBody { body, sent } => {
            stream.write_all(head(200, &[], body.len()).as_bytes()).await?;
            stream.write_all(&body[..sent]).await?;
            stream.flush().await?;
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok(())
        }
        Reply::Reset => {
            // Closing with linger 0 sends a reset instead of an orderly end.
            stream.set_zero_linger()
        }
        Reply::Hang => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok(())
        }
    }
}

/// What is wrong with a conversation: calls and answers must match, and arguments must be JSON objects.
fn violation(body: &Value) -> Option<String> {
    if body["stream"] == true || !body["model"].is_string() {
        return Some("the request streams or names no model".to_owned());
    }
    let Some(messages) = body["messages"].as_array() else { return Some("no messages".to_owned()) };
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            match open.iter().position(|known| *known == id) {
                Some(place) => open.remove(place),
                None => return Some(format!("a tool message answers no call: {id:?}")),
            };
            continue;
        }
        if !open.is_empty() {
            return Some(format!("calls without answers: {open:?}"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap_or_default();
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            if id.is_empty() || open.contains(&id) {
                return Some(format!("a call's id is missing or repeated: {id:?}"));
            }
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                return Some(format!("arguments are no JSON object: {arguments:?}"));
            }
            open.push(id);
        }
        if message.get("tool_calls").is_some() && open.is_empty() {
            return Some("a list of calls is empty".to_owned());
        }
    }
    (!open.is_empty()).then(|| format!("calls without answers: {open:?}"))
}
