//! Puts a patch on a pristine work tree, as the SWE-bench harness 5.0.2 does.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use crate::grade::diff;
use crate::grade::script;
use crate::protocol::operation::Ending;
use crate::protocol::verdict::Apply;
use crate::sandbox::Place;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;
use crate::text;

/// The shell that applies; the tests get one that this left no trace in.
const SESSION: &str = "apply";
/// The harness's commands, in its order.
const METHODS: [&str; 4] = [
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
];
/// What the harness does before every command but the first, whatever comes of it.
const RESET: &str = "git checkout -- . ; git clean -fd";
/// To the harness a patch that could be taken back is applied, although no command said so.
const REVERSE: &str = "git apply --check --reverse";
/// Ours: for a last hunk that lost blank context.
const RECOUNT: &str = "git apply --recount";
/// What a failed `--3way` leaves in the index survives the harness's own reset.
const HARD_RESET: &str = "git reset --hard --quiet ; git clean -fd";
/// Longest time of one command.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes kept of each end of a command's output.
const KEEP: u32 = 8 << 10;

/// Applies `patch` in the working directory of a sandbox. That no command could is no error.
///
/// # Errors
/// See [`GuestError`].
pub async fn apply(guest: &Guest, place: &Place, patch: &[u8]) -> Result<Apply, GuestError> {
    let mut start = place.shell();
    // The repository may belong to somebody else, and settings of the machine must not decide about a patch.
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "*"),
    ] {
        start.env.push((name.to_owned(), value.to_owned()));
    }
    guest.open_session(SESSION, &start).await?;
    let file = format!("{}/patch.diff", place.private);
    guest.write(&file, None, &with_final_newline(patch)).await?;
    let mut commands = Commands { guest, file: script::word(&file), log: String::new() };
    let method = commands.first_success(patch).await?;
    Ok(Apply { method: method.map(str::to_owned), log: commands.log })
}

/// A patch as it can be applied: one that does not end a line gets the line feed that is missing.
pub fn with_final_newline(patch: &[u8]) -> Cow<'_, [u8]> {
    if patch.is_empty() || patch.ends_with(b"\n") {
        Cow::Borrowed(patch)
    } else {
        Cow::Owned([patch, b"\n"].concat())
    }
}

struct Commands<'a> {
    guest: &'a Guest,
    /// What is applied, as one word.
    file: String,
    log: String,
}

impl Commands<'_> {
    async fn first_success(&mut self, patch: &[u8]) -> Result<Option<&'static str>, GuestError> {
        let file = self.file.clone();
        for (tried, method) in METHODS.into_iter().enumerate() {
            if tried > 0 {
                self.run(RESET).await?;
            }
            if self.run(&format!("{method} {file}")).await? {
                return Ok(Some(method));
            }
        }
        if self.run(&format!("{REVERSE} {file}")).await? {
            return Ok(Some(REVERSE));
        }
        if diff::lost_context(patch) {
            self.run(HARD_RESET).await?;
            if self.run(&format!("{RECOUNT} {file}")).await? {
                return Ok(Some(RECOUNT));
            }
        }
        Ok(None)
    }

    /// Runs a command, logs it, and says whether it succeeded.
    async fn run(&mut self, command: &str) -> Result<bool, GuestError> {
        let result = self.guest.run(SESSION, command.as_bytes(), LIMIT, KEEP).await?;
        let _ = writeln!(self.log, "$ {command}");
        self.log += &text::lossy(&result.head);
        let elided = result.total - (result.head.len() + result.tail.len()) as u64;
        if elided > 0 {
            let _ = writeln!(self.log, "\n[{elided} bytes left out]");
        }
        self.log += &text::lossy(&result.tail);
        if !self.log.ends_with('\n') {
            self.log.push('\n');
        }
        let _ = match result.ending {
            Ending::Exited(0) => Ok(()),
            Ending::Exited(status) => writeln!(self.log, "[exit status {status}]"),
            Ending::Signalled(signal) => writeln!(self.log, "[signal {signal}]"),
            Ending::TimedOut => writeln!(self.log, "[not done after {} s]", LIMIT.as_secs()),
        };
        Ok(result.ending == Ending::Exited(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_line_feed_is_put_back() {
        assert_eq!(*with_final_newline(b"+a"), *b"+a\n");
        assert_eq!(*with_final_newline(b"+a\n \n"), *b"+a\n \n");
        assert_eq!(*with_final_newline(b""), *b"");
    }
}
