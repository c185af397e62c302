//! Plays the recorded actions of an attempt again and looks for the first difference.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::digest;
use crate::env::Env;
use crate::env::EnvError;
use crate::protocol::episode::Action;
use crate::task::Task;
use crate::trajectory::reader::Log;

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// Every observation and patch was the same.
    Same {
        /// Turns with actions.
        turns: u64,
    },
    /// Something differs.
    Differs {
        /// The turn.
        turn: u64,
        /// What differs.
        what: String,
        /// As recorded.
        recorded: String,
        /// As it is now.
        now: String,
    },
}

/// Plays the actions of `log` in a fresh episode of `env`, which is closed afterwards.
///
/// Durations, addresses and names of temporary files differ from one execution to the next and are not compared.
///
/// # Errors
/// When the environment fails.
pub async fn replay(log: &Log, task: &Task, env: &mut dyn Env) -> Result<Replayed, EnvError> {
    let replayed = compare(log, task, env).await;
    env.close().await?;
    replayed
}

async fn compare(log: &Log, task: &Task, env: &mut dyn Env) -> Result<Replayed, EnvError> {
    env.reset(task).await?;
    let mut turns = 0;
    for turn in log.turns() {
        if turn.calls.is_empty() {
            continue;
        }
        turns += 1;
        let differs = |what: String, recorded: &str, now: &str| Replayed::Differs {
            turn: turn.turn,
            what,
            recorded: recorded.to_owned(),
            now: now.to_owned(),
        };
        let stepped = env.step(&Action { calls: turn.calls.to_vec() }).await?;
        // An attempt that was cut off may lack the last observations.
        for (recorded, now) in turn.observations.iter().zip(&stepped.step.observations) {
            if lasting(&recorded.text) != lasting(&now.text) {
                let what = format!("the observation of {} ({})", recorded.tool, recorded.call_id);
                return Ok(differs(what, &recorded.text, &now.text));
            }
        }
        if let Some(recorded) = &turn.patch {
            let patch = env.patch().await?;
            let sha256 = digest::sha256(&patch.bytes);
            if sha256 != recorded.sha256 {
                return Ok(differs("the patch".into(), recorded.sha256, &sha256));
            }
        }
    }
    Ok(Replayed::Same { turns })
}

/// A text without what differs from one execution to the next.
fn lasting(text: &str) -> Cow<'_, str> {
    static FLEETING: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"\d+(\.\d+)? ?(ms|s|secs?|seconds)\b|duration_ms:? [\d.]+|0x[0-9a-fA-F]{6,}|/tmp/[A-Za-z0-9._-]+|/sandboxes/\d+-\d+-\d+").ok()
    });
    FLEETING.as_ref().map_or(Cow::Borrowed(text), |fleeting| fleeting.replace_all(text, "~"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_is_compared() {
        assert_eq!(
            lasting("Ran 3 tests in 0.002s at 0x7f00aa11"),
            lasting("Ran 3 tests in 0.004s at 0x7f00bb22")
        );
        assert_ne!(lasting("Ran 3 tests in 0.002s"), lasting("Ran 4 tests in 0.002s"));
        // Without namespaces a sandbox is a folder that has another name every time.
        assert_eq!(
            lasting("/home/a/.cache/patchgym/sandboxes/71-993-0/testbed/x.py"),
            lasting("/home/a/.cache/patchgym/sandboxes/80-1201-3/testbed/x.py")
        );
    }
}
