//! The gym over JSON lines: one request per line, one reply per line.

use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use tokio::io::AsyncBufRead;
use tokio::io::AsyncBufReadExt;
use tokio::io::AsyncWrite;
use tokio::io::AsyncWriteExt;

use crate::env::Env;
use crate::env::EnvError;
use crate::protocol::episode::Action;
use crate::protocol::episode::Call;
use crate::task::Task;

/// A request.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Start an episode.
    Reset,
    /// Play a turn: one call, or several.
    Step {
        #[serde(default)]
        action: Option<Call>,
        #[serde(default)]
        actions: Vec<Call>,
    },
    /// The patch as it is now.
    Patch,
    /// The tools as a model would be told of them.
    Tools,
    /// End the episode and the session.
    Close,
}

/// Longest line that is read, in bytes.
const MAX_LINE: u64 = 64 << 20;

/// Serves one environment until `close` or the end of the input.
///
/// # Errors
/// When the streams fail. What goes wrong with a request is its reply: `{"error": …}`.
pub async fn serve(
    env: &mut dyn Env,
    task: &Task,
    mut input: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut input, MAX_LINE);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (reply, last) = match serde_json::from_slice::<Request>(&line) {
            Ok(Request::Close) => (json!({"closed": true}), true),
            Ok(request) => {
                let reply = answer(env, task, request).await;
                (reply.unwrap_or_else(|error| json!({"error": {"kind": kind(&error), "message": error.to_string()}})), false)
            }
            Err(error) => {
                (json!({"error": {"kind": "request", "message": error.to_string()}}), false)
            }
        };
        if last {
            env.close().await.map_err(std::io::Error::other)?;
        }
        let mut bytes = serde_json::to_vec(&reply)?;
        bytes.push(b'\n');
        output.write_all(&bytes).await?;
        output.flush().await?;
        if last {
            return Ok(());
        }
    }
    env.close().await.map_err(std::io::Error::other)
}

async fn answer(env: &mut dyn Env, task: &Task, request: Request) -> Result<Value, EnvError> {
    Ok(match request {
        Request::Reset => {
            let start = env.reset(task).await?;
            json!({
                "instance_id": task.id,
                "observation": start.observation,
                "workdir": start.workdir,
                "start_tree": start.start_tree,
                "isolation": start.isolation,
                "network": start.network,
                "environment": start.environment,
            })
        }
        Request::Step { action, actions } => {
            let mut calls: Vec<Call> = action.into_iter().chain(actions).collect();
            for (number, call) in calls.iter_mut().enumerate() {
                if call.id.is_empty() {
                    call.id = format!("call_{}", number + 1);
                }
            }
            let step = env.step(&Action { calls }).await?.step;
            json!({
                "observations": step.observations,
                "reward": step.reward,
                "terminated": step.end.is_some_and(crate::protocol::episode::End::terminated),
                "truncated": step.end.is_some_and(|end| !end.terminated()),
                "end": step.end,
            })
        }
        Request::Patch => {
            let patch = env.patch().await?;
            let receipt = patch.receipt;
            json!({
                "patch": crate::text::lossy(&patch.bytes),
                "files": receipt.files,
                "binary": receipt.binary,
                "omitted": receipt.omitted,
                "applies": receipt.applies,
            })
        }
        Request::Tools => json!({"tools": env.tools()}),
        Request::Close => json!({"closed": true}),
    })
}

/// Whose error it is: `request` where the caller can mend it, `infrastructure` where the caller cannot.
fn kind(error: &EnvError) -> &'static str {
    match error {
        EnvError::NotReset => "request",
        EnvError::Repository(_)
        | EnvError::Environment(_)
        | EnvError::Sandbox(_)
        | EnvError::Guest(_)
        | EnvError::Tools(_)
        | EnvError::Preparation(_) => "infrastructure",
    }
}
