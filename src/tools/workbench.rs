//! What each tool does: a call goes to the guest, its answer becomes an observation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use crate::protocol::episode;
use crate::protocol::episode::Call;
use crate::protocol::episode::Outcome;
use crate::protocol::operation::CommandResult;
use crate::protocol::operation::Edit;
use crate::protocol::operation::Ending;
use crate::protocol::operation::Line;
use crate::protocol::operation::Op;
use crate::protocol::operation::Reply;
use crate::protocol::operation::Window;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;
use crate::text;
use crate::tools::ToolsError;
use crate::tools::arguments;
use crate::tools::arguments::Arguments;
use crate::tools::refusal;
use crate::tools::set::ToolSet;
use crate::tools::shown::Shown;

/// Name of the shell session that `run` uses.
pub const SESSION: &str = "main";
/// Lines two neighbouring windows share.
const OVERLAP: u64 = 2;
/// Lines shown before and after a change.
const AROUND: u64 = 4;
/// Lines shown of a whole file.
const WHOLE: u64 = 2000;
/// Files and lines a search shows.
const SEARCH_FILES: u32 = 50;
const SEARCH_LINES: u32 = 200;
/// Paths `find_file` shows.
const FIND_PATHS: u32 = 100;
/// Characters shown of what background jobs printed.
const LATE: usize = 2000;
/// Limit of one file operation.
const SHORT: Duration = Duration::from_secs(60);

/// The tools of one episode and what they remember.
pub struct Workbench {
    set: Arc<ToolSet>,
    limits: WorkbenchLimits,
    current: Option<Current>,
}

/// Bounds of what tools do.
#[derive(Debug, Clone, Copy)]
pub struct WorkbenchLimits {
    /// Characters of one observation.
    pub observation_chars: usize,
    /// Time of one command; zero = no limit.
    pub command: Duration,
}

/// The file that was opened last, and its window.
struct Current {
    path: String,
    first: u64,
    lines: u64,
}

/// What came of a call.
#[derive(Debug)]
pub struct Performed {
    /// What the model reads.
    pub text: String,
    /// What happened.
    pub outcome: Outcome,
    /// The command's result, when the call ran one.
    pub command: Option<CommandResult>,
    /// The model ended the work.
    pub submitted: bool,
}

/// Why a call has no observation.
#[derive(Debug, thiserror::Error)]
pub enum PerformError {
    /// The guest is lost or cannot work: an infrastructure error.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The tool set lacks a sentence.
    #[error(transparent)]
    Tools(#[from] ToolsError),
}

impl Workbench {
    /// A workbench with nothing open.
    pub fn new(set: Arc<ToolSet>, limits: WorkbenchLimits) -> Self {
        Self { set, limits, current: None }
    }

    /// Performs a call.
    ///
    /// # Errors
    /// Only for faults of the sandbox or the tool set; what the model does wrong is an observation.
    pub async fn perform(&mut self, guest: &Guest, call: &Call) -> Result<Performed, PerformError> {
        let Some(schema) = self.set.tool(&call.tool) else {
            let names: Vec<&str> = self.set.tools.iter().map(|tool| tool.name.as_str()).collect();
            let nearest = text::nearest(&call.tool, names.iter().copied());
            return self.mistake(
                "unknown_tool",
                json!({"tool": call.tool, "nearest": nearest, "tools": names}),
            );
        };
        let arguments = match arguments::check(schema, &call.arguments) {
            Ok(arguments) => arguments,
            Err(mistake) => return self.mistake(mistake.code, &mistake),
        };
        let performed = match call.tool.as_str() {
            "open_file" => self.open_file(guest, &arguments).await,
            "goto_line" => self.goto_line(guest, arguments.number("line_number")).await,
            "scroll_up" => self.scroll(guest, Direction::Up).await,
            "scroll_down" => self.scroll(guest, Direction::Down).await,
            "search_dir" => self.search_dir(guest, &arguments).await,
            "search_file" => self.search_file(guest, &arguments).await,
            "find_file" => self.find_file(guest, &arguments).await,
            "edit" => self.edit(guest, &arguments).await,
            "run" => self.run(guest, &arguments).await,
            "submit" => {
                let text = self.set.say("submitted", json!({}))?;
                Ok(Performed { text, outcome: Outcome::Ok, command: None, submitted: true })
            }
            other => {
                let reason = format!("no tool does {other}");
                self.mistake("failed", json!({"reason": reason}))
            }
        };
        match performed {
            Err(PerformError::Guest(GuestError::Refused(refusal))) => {
                let (code, values) = refusal::message(&refusal);
                self.mistake(code, values)
            }
            Err(PerformError::Guest(GuestError::Failed(reason))) => {
                self.mistake("failed", json!({"reason": reason}))
            }
            Err(PerformError::Guest(GuestError::TimedOut)) => {
                let reason = format!("it took longer than {} seconds", SHORT.as_secs());
                self.mistake("failed", json!({"reason": reason}))
            }
            other => other,
        }
    }

    /// The observation of a call during which the guest was lost.
    ///
    /// # Errors
    /// When the tool set lacks a sentence.
    pub fn lost(&self, cwd: &str) -> Result<Performed, ToolsError> {
        let values = json!({"late": "", "output": "", "ending": "guest_lost", "code": 0, "elided": 0, "unit": "",
            "tail": "", "restarted": false, "cwd": cwd, "signal": 0, "limit": 0});
        let outcome = Outcome::Command {
            ending: episode::Ending::GuestLost,
            bytes: 0,
            shell_restarted: true,
        };
        Ok(Performed {
            text: self.set.say("command", values)?,
            outcome,
            command: None,
            submitted: false,
        })
    }

    /// The text for a call that was not run because an earlier one ended the episode.
    ///
    /// # Errors
    /// When the tool set lacks a sentence.
    pub fn skipped(&self) -> Result<String, ToolsError> {
        self.set.say("skipped", json!({}))
    }

    fn said(&self, name: &str, values: impl serde::Serialize) -> Result<Performed, PerformError> {
        let text = self.bounded(self.set.say(name, values)?)?;
        Ok(Performed { text, outcome: Outcome::Ok, command: None, submitted: false })
    }

    fn mistake(
        &self,
        code: &str,
        values: impl serde::Serialize,
    ) -> Result<Performed, PerformError> {
        let outcome = Outcome::Mistake { code: code.to_owned() };
        Ok(Performed { outcome, ..self.said(code, values)? })
    }

    fn bounded(&self, text: String) -> Result<String, ToolsError> {
        let cut = text::head_tail(&text, self.limits.observation_chars);
        if cut.elided == 0 {
            return Ok(text);
        }
        self.set.say("cut", json!({"head": cut.head, "elided": cut.elided, "tail": cut.tail}))
    }

    async fn open_file(
        &mut self,
        guest: &Guest,
        arguments: &Arguments,
    ) -> Result<Performed, PerformError> {
        let path = arguments.text("path").to_owned();
        if arguments.is("is_all") {
            return self.show(guest, path, 1, WHOLE, Extent::Whole).await;
        }
        let (line, lines) = (arguments.number("line_number"), arguments.number("context_lines"));
        self.show(guest, path, line, lines, Extent::Around).await
    }

    async fn goto_line(&mut self, guest: &Guest, line: u64) -> Result<Performed, PerformError> {
        let Some(Current { path, lines, .. }) = &self.current else {
            return self.mistake("no_open_file", json!({}));
        };
        let (path, lines) = (path.clone(), *lines);
        self.show(guest, path, line, lines, Extent::Around).await
    }

    async fn scroll(
        &mut self,
        guest: &Guest,
        direction: Direction,
    ) -> Result<Performed, PerformError> {
        let Some(Current { path, first, lines }) = &self.current else {
            return self.mistake("no_open_file", json!({}));
        };
        let step = lines.saturating_sub(OVERLAP).max(1);
        let first = match direction {
            Direction::Up => first.saturating_sub(step).max(1),
            Direction::Down => first + step,
        };
        let (path, lines) = (path.clone(), *lines);
        self.show(guest, path, first, lines, Extent::From).await
    }

    /// Shows a window of a file and makes the file the current one.
    async fn show(
        &mut self,
        guest: &Guest,
        path: String,
        line: u64,
        lines: u64,
        extent: Extent,
    ) -> Result<Performed, PerformError> {
        // The line asked for stands a sixth down the window: what precedes it is seldom as telling as what follows.
        let wanted =
            if extent == Extent::Around { line.saturating_sub(lines / 6).max(1) } else { line };
        let mut window = lines_of(guest, &path, wanted, lines).await?;
        if window.total == 0 {
            self.current = Some(Current { path: path.clone(), first: 1, lines });
            return self.said("empty_file", json!({"path": path}));
        }
        if extent == Extent::Around && line > window.total {
            return self
                .mistake("no_line", json!({"path": path, "line": line, "total": window.total}));
        }
        // At the end of the file the window still has its full length.
        let last_first = window.total.saturating_sub(lines) + 1;
        if window.first > last_first {
            window = lines_of(guest, &path, last_first, lines).await?;
        }
        let lines = if extent == Extent::Whole { 100 } else { lines };
        self.current = Some(Current { path: path.clone(), first: window.first, lines });
        let above = window.first - 1;
        let below = window.total.saturating_sub(above + window.lines.len() as u64);
        let whole = extent == Extent::Whole;
        self.said(
            "window",
            json!({
                "path": path,
                "total": window.total,
                "above": above,
                "below": if whole { 0 } else { below },
                "left_out": if whole { below } else { 0 },
                "lines": numbered(&window),
            }),
        )
    }

    async fn search_dir(
        &self,
        guest: &Guest,
        arguments: &Arguments,
    ) -> Result<Performed, PerformError> {
        let (term, dir) = (arguments.text("search_term"), arguments.text("dir"));
        let op = Op::Search {
            term: term.to_owned(),
            path: dir.to_owned(),
            max_files: SEARCH_FILES,
            max_lines: SEARCH_LINES,
        };
        let Reply::Search(result) = guest.call(op, SHORT).await? else { return Err(unexpected()) };
        if result.total_lines == 0 {
            return self.said("nothing_found", json!({"term": term, "where": dir}));
        }
        let files: Vec<Value> = result
            .files
            .iter()
            .map(|file| json!({"path": file.path, "total": file.total, "lines": hits(&file.lines)}))
            .collect();
        self.said(
            "found_in_dir",
            json!({
                "term": term,
                "dir": dir,
                "total_lines": result.total_lines,
                "total_files": result.total_files,
                "files": files,
            }),
        )
    }

    async fn search_file(
        &self,
        guest: &Guest,
        arguments: &Arguments,
    ) -> Result<Performed, PerformError> {
        let term = arguments.text("search_term");
        let path = match (arguments.given("path").and_then(Value::as_str), &self.current) {
            (Some(path), _) => path,
            (None, Some(current)) => &current.path,
            (None, None) => return self.mistake("no_open_file", json!({})),
        };
        let stat = guest.call(Op::Stat { path: path.to_owned() }, SHORT).await?;
        if matches!(stat, Reply::Stat(stat) if stat.kind == crate::protocol::operation::Kind::Directory)
        {
            return self.mistake("is_directory", json!({"path": path}));
        }
        let op = Op::Search {
            term: term.to_owned(),
            path: path.to_owned(),
            max_files: 1,
            max_lines: SEARCH_LINES,
        };
        let Reply::Search(result) = guest.call(op, SHORT).await? else { return Err(unexpected()) };
        match result.files.first() {
            None => self.said("nothing_found", json!({"term": term, "where": path})),
            Some(file) => self.said(
                "found_in_file",
                json!({"term": term, "path": path, "total_lines": file.total, "lines": hits(&file.lines)}),
            ),
        }
    }

    async fn find_file(
        &self,
        guest: &Guest,
        arguments: &Arguments,
    ) -> Result<Performed, PerformError> {
        let (pattern, dir) = (arguments.text("file_name"), arguments.text("dir"));
        let op = Op::Find { pattern: pattern.to_owned(), path: dir.to_owned(), limit: FIND_PATHS };
        let Reply::Find { paths, total } = guest.call(op, SHORT).await? else {
            return Err(unexpected());
        };
        if paths.is_empty() {
            return self.said("no_files", json!({"pattern": pattern, "dir": dir}));
        }
        self.said(
            "found_files",
            json!({"pattern": pattern, "dir": dir, "total": total, "paths": paths}),
        )
    }

    async fn edit(&self, guest: &Guest, arguments: &Arguments) -> Result<Performed, PerformError> {
        let path = arguments.text("path");
        let command = arguments.text("command");
        let needed: &[&str] = match command {
            "replace" => &["old_str", "new_str"],
            "insert" => &["insert_line", "new_str"],
            "create" => &["file_text"],
            _ => &[],
        };
        if let Some(missing) = needed.iter().find(|name| arguments.given(name).is_none()) {
            let tool = format!("edit {command}");
            return self.mistake("missing_argument", json!({"tool": tool, "argument": missing}));
        }
        let text = |name| arguments.text(name).to_owned();
        let edit = match command {
            "replace" => Edit::Replace { old: text("old_str"), new: text("new_str") },
            "insert" => {
                Edit::Insert { after: arguments.number("insert_line"), text: text("new_str") }
            }
            "create" => Edit::Create { text: text("file_text") },
            _ => Edit::Undo,
        };
        let Reply::Edited(edited) =
            guest.call(Op::Edit { path: path.to_owned(), edit }, SHORT).await?
        else {
            return Err(unexpected());
        };
        match command {
            _ if edited.removed => self.said("removed", json!({"path": path})),
            "create" => self.said("created", json!({"path": path, "total": edited.total})),
            "undo" => self.said("undone", json!({"path": path})),
            _ => {
                let first = edited.first.saturating_sub(AROUND).max(1);
                let last = (edited.first + edited.lines + AROUND).saturating_sub(1);
                let window = lines_of(guest, path, first, (last + 1 - first).min(WHOLE)).await?;
                self.said("edited", json!({"path": path, "lines": numbered(&window)}))
            }
        }
    }

    async fn run(&self, guest: &Guest, arguments: &Arguments) -> Result<Performed, PerformError> {
        let mut limit = self.limits.command;
        if let Some(seconds) = arguments.given("timeout").and_then(Value::as_u64) {
            let asked = Duration::from_secs(seconds);
            limit = if limit.is_zero() { asked } else { limit.min(asked) };
        }
        let keep =
            u32::try_from(self.limits.observation_chars * 4).unwrap_or(u32::MAX).max(64 << 10);
        let result = guest.run(SESSION, arguments.text("command").as_bytes(), limit, keep).await?;
        let shown = Shown::of(&result, self.limits.observation_chars);
        let (ending, code, signal) = match result.ending {
            Ending::Exited(code) => ("exited", code, 0),
            Ending::Signalled(signal) => ("signalled", 0, signal),
            Ending::TimedOut => ("timed_out", 0, 0),
        };
        let late = text::plain(&text::lossy(&result.late));
        let text = self.set.say(
            "command",
            json!({
                "late": text::head(late.trim_end(), LATE).0,
                "output": shown.text.head,
                "elided": shown.text.elided,
                "unit": shown.unit,
                "tail": shown.text.tail,
                "ending": ending,
                "code": code,
                "signal": signal,
                "limit": limit.as_secs(),
                "restarted": result.shell_lost,
                "cwd": result.cwd,
            }),
        )?;
        let ending = match result.ending {
            Ending::Exited(code) => episode::Ending::Exited { code },
            Ending::Signalled(signal) => episode::Ending::Signalled { signal },
            Ending::TimedOut => episode::Ending::TimedOut { limit: limit.as_secs() },
        };
        let outcome =
            Outcome::Command { ending, bytes: result.total, shell_restarted: result.shell_lost };
        Ok(Performed { text, outcome, command: Some(result), submitted: false })
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// Which part of a file is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A window around a line.
    Around,
    /// A window from a line on.
    From,
    /// All of it.
    Whole,
}

async fn lines_of(
    guest: &Guest,
    path: &str,
    first: u64,
    count: u64,
) -> Result<Window, PerformError> {
    let op = Op::Lines { path: path.to_owned(), first, count };
    let Reply::Lines(window) = guest.call(op, SHORT).await? else { return Err(unexpected()) };
    Ok(window)
}

fn numbered(window: &Window) -> Vec<Value> {
    window.lines.iter().zip(window.first..).map(|(line, number)| line_value(number, line)).collect()
}

fn hits(lines: &[(u64, Line)]) -> Vec<Value> {
    lines.iter().map(|(number, line)| line_value(*number, line)).collect()
}

fn line_value(number: u64, line: &Line) -> Value {
    json!({"number": number, "text": text::lossy(&line.text), "cut": line.cut})
}

fn unexpected() -> PerformError {
    GuestError::Failed("the guest gave another operation's reply".into()).into()
}
