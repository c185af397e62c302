//! A log as a person reads it in a terminal: what was tried, turn by turn, and how it ended.

use crate::protocol::episode::Call;
use crate::protocol::episode::Ending;
use crate::protocol::episode::Observation;
use crate::protocol::episode::Outcome;
use crate::protocol::message::FinishReason;
use crate::protocol::record::Event;
use crate::protocol::record::Header;
use crate::protocol::record::Limits;
use crate::protocol::record::Totals;
use crate::protocol::verdict;
use crate::protocol::verdict::Verdict;
use crate::text;
use crate::trajectory::TrajectoryError;
use crate::trajectory::page::Color;
use crate::trajectory::page::Detail;
use crate::trajectory::page::Long;
use crate::trajectory::page::Page;
use crate::trajectory::page::Style;
use crate::trajectory::reader::Ended;
use crate::trajectory::reader::Log;
use crate::trajectory::turn::Turn;

/// Lines of a thought or answer that [`Detail::Bounded`] shows.
const PROSE_LINES: usize = 12;
/// Lines of an issue that [`Detail::Bounded`] shows.
const ISSUE_LINES: usize = 3;
/// Lines of a call's arguments that [`Detail::Bounded`] shows.
const CALL_LINES: usize = 4;
/// Lines of an observation that [`Detail::Bounded`] shows.
const OBSERVATION_LINES: usize = 10;
/// Names, of failed tests or changed files, that [`Detail::Bounded`] shows.
const NAMES: usize = 8;
/// Characters of a hash that are shown.
const HASH: usize = 12;

/// How a log is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShowOptions {
    /// Only this turn, without the lines about the attempt.
    pub turn: Option<u64>,
    /// Columns of the terminal.
    pub width: usize,
    /// Whether colours help.
    pub color: Color,
    /// How much of long texts.
    pub detail: Detail,
}

impl Default for ShowOptions {
    fn default() -> Self {
        Self { turn: None, width: 100, color: Color::Off, detail: Detail::Bounded }
    }
}

/// The turns that are shown: all, or the one asked for. Serialised they are what `--json` prints.
///
/// # Errors
/// When the log does not hold the turn asked for.
pub fn turns(log: &Log, turn: Option<u64>) -> Result<Vec<Turn<'_>>, TrajectoryError> {
    let mut turns = log.turns();
    let Some(wanted) = turn else { return Ok(turns) };
    let count = turns.len();
    turns.retain(|turn| turn.turn == wanted);
    if turns.is_empty() {
        return Err(TrajectoryError::NoTurn { turn: wanted, turns: count });
    }
    Ok(turns)
}

/// The log as lines, without line ends.
///
/// # Errors
/// When the log does not hold the turn asked for.
pub fn lines(log: &Log, options: &ShowOptions) -> Result<Vec<String>, TrajectoryError> {
    let turns = turns(log, options.turn)?;
    let mut page = Page::new(options.width, options.color, options.detail);
    if options.turn.is_none() {
        show_setup(&mut page, log);
    }
    for turn in &turns {
        show_turn(&mut page, turn);
    }
    if options.turn.is_none() {
        show_outcome(&mut page, log);
    }
    Ok(page.into_lines())
}

/// What the attempt was made of.
fn show_setup(page: &mut Page, log: &Log) {
    match log.header() {
        Some(header) => show_header(page, header),
        None => page.line(
            0,
            Style::Bad,
            "no header: the log was cut off before its first line was whole",
        ),
    }
    for record in &log.records {
        match &record.event {
            Event::Reset { isolation, network, seconds, .. } => {
                show_field(
                    page,
                    "sandbox",
                    &format!("{isolation}, network {network}, ready in {seconds:.2} s"),
                );
            }
            Event::Warning { text } => show_field(page, "warning", text),
            Event::Request { .. } => break,
            Event::Header(_)
            | Event::Message { .. }
            | Event::Response(_)
            | Event::ModelFailure { .. }
            | Event::Action { .. }
            | Event::FormatError { .. }
            | Event::Observation { .. }
            | Event::Output { .. }
            | Event::Patch { .. }
            | Event::End { .. }
            | Event::Verdict { .. } => {}
        }
    }
}

fn show_header(page: &mut Page, header: &Header) {
    page.line(0, Style::Strong, &format!("{}, attempt {}", header.instance_id, header.attempt));
    let commit = text::head(&header.base_commit, HASH).0;
    show_field(page, "repo", &format!("{} at {commit}", header.repo));
    let gold =
        if header.uses_gold { " (knows the answer: the attempt measures nothing)" } else { "" };
    show_field(page, "model", &format!("{}{gold}", header.model));
    let tools: Vec<&str> = header.tools.iter().map(|tool| tool.name.as_str()).collect();
    show_field(page, "agent", &format!("{}, {} calls", header.agent, header.dialect));
    show_field(page, "tools", &tools.join(" "));
    show_field(page, "limits", &limits(&header.limits));
    page.line(2, Style::Faint, "issue");
    page.block(4, Style::Plain, &header.problem_statement, ISSUE_LINES, Long::Wrapped);
}

fn show_turn(page: &mut Page, turn: &Turn<'_>) {
    page.space();
    page.line(0, Style::Strong, &heading(turn));
    if let Some(message) = turn.message {
        if let Some(reasoning) = &message.reasoning {
            page.line(2, Style::Faint, "reasoning");
            page.block(4, Style::Faint, reasoning, PROSE_LINES, Long::Wrapped);
        }
        page.block(2, Style::Plain, &message.content, PROSE_LINES, Long::Wrapped);
    }
    if let Some(failure) = turn.failure {
        page.line(2, Style::Bad, &format!("model failure: {}", failure.class));
        page.block(4, Style::Plain, failure.detail, PROSE_LINES, Long::Wrapped);
    }
    if let Some(code) = turn.format_error {
        page.line(2, Style::Bad, &format!("format error: {code}"));
        // What could not be read is in no action, so it is shown as the model wrote it.
        for call in turn.message.into_iter().flat_map(|message| &message.tool_calls) {
            let written = format!("! {} {}", call.name, call.arguments);
            page.block(2, Style::Plain, &written, CALL_LINES, Long::Wrapped);
        }
    }
    // Observations stand below their calls. Ids tie them together, but a model may use one id twice.
    let mut left: Vec<&Observation> = turn.observations.clone();
    for call in turn.calls {
        show_call(page, call);
        if let Some(at) = left.iter().position(|observation| observation.call_id == call.id) {
            let observation = left.remove(at);
            show_observation(page, observation);
        }
    }
    for observation in left {
        page.line(2, Style::Plain, &format!("? {}", observation.tool));
        show_observation(page, observation);
    }
    if let Some(patch) = turn.patch.filter(|patch| patch.changed) {
        let empty = if patch.receipt.files.is_empty() { ", now empty" } else { "" };
        let applies = if patch.receipt.applies { "" } else { ", does not apply" };
        let hash = text::head(patch.sha256, HASH).0;
        page.line(2, Style::Strong, &format!("* patch changed: {hash}{empty}{applies}"));
        show_names(page, &patch.receipt.files);
    }
    for warning in &turn.warnings {
        show_field(page, "warning", warning);
    }
}

fn show_call(page: &mut Page, call: &Call) {
    let arguments = serde_json::Value::Object(call.arguments.clone());
    page.block(
        2,
        Style::Strong,
        &format!("> {} {arguments}", call.tool),
        CALL_LINES,
        Long::Wrapped,
    );
}

fn show_observation(page: &mut Page, observation: &Observation) {
    page.block(4, Style::Plain, &observation.text, OBSERVATION_LINES, Long::Cut);
    let (style, words) = ending(&observation.outcome);
    page.line(4, style, &format!("= {words}, {:.2} s", observation.seconds));
}

/// How the attempt ended and what it is worth.
fn show_outcome(page: &mut Page, log: &Log) {
    page.space();
    match log.end() {
        Some(Ended { reason, detail, totals }) => {
            let style = if reason.terminated() { Style::Good } else { Style::Bad };
            page.line(0, style, &format!("end: {}", reason.name()));
            if let Some(detail) = detail {
                page.block(2, Style::Plain, detail, PROSE_LINES, Long::Wrapped);
            }
            page.line(2, Style::Plain, &used(totals));
        }
        None => page.line(0, Style::Bad, "no end: the attempt is still running or was killed"),
    }
    if let Some(torn) = log.torn {
        let words = format!(
            "torn: line {} was cut off after {} bytes and is left out",
            torn.line, torn.bytes
        );
        page.line(0, Style::Bad, &words);
    }
    match log.verdict() {
        Some(verdict) => show_verdict(page, verdict),
        None => page.line(0, Style::Plain, "verdict: none, not graded"),
    }
}

fn show_verdict(page: &mut Page, verdict: &Verdict) {
    let style = match verdict.outcome {
        verdict::Outcome::Resolved => Style::Good,
        verdict::Outcome::Unresolved | verdict::Outcome::EmptyPatch | verdict::Outcome::Error => {
            Style::Bad
        }
    };
    let error = verdict.error.map(|error| format!(", {}", error.name())).unwrap_or_default();
    page.line(0, style, &format!("verdict: {}{error}", verdict.outcome.name()));
    if let Some(detail) = &verdict.detail {
        page.block(2, Style::Plain, detail, PROSE_LINES, Long::Wrapped);
    }
    for (name, split) in
        [("fail_to_pass", &verdict.fail_to_pass), ("pass_to_pass", &verdict.pass_to_pass)]
    {
        let passed = split.success.len();
        page.line(
            2,
            Style::Plain,
            &format!("{name}: {passed} of {}", passed + split.failure.len()),
        );
        show_names(page, &split.failure);
    }
}

/// A named value on one line.
fn show_field(page: &mut Page, name: &str, value: &str) {
    page.line(2, Style::Plain, &format!("{name:<8} {value}"));
}

/// Names, one on a line.
fn show_names(page: &mut Page, names: &[String]) {
    page.block(4, Style::Plain, &names.join("\n"), NAMES, Long::Cut);
}

/// What a turn is and what it cost, on one line.
fn heading(turn: &Turn<'_>) -> String {
    let mut parts = Vec::new();
    if let Some(response) = turn.response {
        parts.push(format!("model {:.2} s", response.seconds));
        if let Some(usage) = response.usage {
            parts.push(format!("{} + {} tokens", usage.prompt_tokens, usage.completion_tokens));
        }
        parts.extend(response.cost.map(|cost| format!("${cost:.4}")));
        match response.retries {
            0 => {}
            1 => parts.push("1 retry".to_owned()),
            retries => parts.push(format!("{retries} retries")),
        }
        match response.finish_reason {
            FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other => {}
            FinishReason::Length => parts.push("cut by the token limit".to_owned()),
            FinishReason::ContentFilter => parts.push("content withheld".to_owned()),
        }
    }
    if !turn.observations.is_empty() {
        let seconds: f64 = turn.observations.iter().map(|observation| observation.seconds).sum();
        parts.push(format!("tools {seconds:.2} s"));
    }
    let colon = if parts.is_empty() { "" } else { ": " };
    format!("turn {}{colon}{}", turn.turn, parts.join(", "))
}

/// How a call went, in words and whether that is good.
fn ending(outcome: &Outcome) -> (Style, String) {
    match outcome {
        Outcome::Ok => (Style::Good, "ok".to_owned()),
        Outcome::Mistake { code } => (Style::Bad, format!("mistake: {code}")),
        Outcome::Command { ending, bytes, shell_restarted } => {
            let (style, words) = match ending {
                Ending::Exited { code: 0 } => (Style::Good, "exit 0".to_owned()),
                Ending::Exited { code } => (Style::Bad, format!("exit {code}")),
                Ending::Signalled { signal } => (Style::Bad, format!("signal {signal}")),
                Ending::TimedOut { limit } => (Style::Bad, format!("timed out after {limit} s")),
                Ending::GuestLost => (Style::Bad, "sandbox lost".to_owned()),
            };
            let restarted = if *shell_restarted { ", shell restarted" } else { "" };
            (style, format!("{words}, {bytes} bytes{restarted}"))
        }
        Outcome::Skipped => (Style::Faint, "skipped".to_owned()),
    }
}

/// The limits that are on.
fn limits(limits: &Limits) -> String {
    let counts = [
        (limits.turns, "turns"),
        (limits.tokens, "tokens"),
        (limits.command, "s a command"),
        (limits.commands, "s of commands"),
        (limits.wall, "s in all"),
        (limits.format_errors, "format errors in a row"),
    ];
    let counts = counts
        .into_iter()
        .filter(|(limit, _)| *limit > 0)
        .map(|(limit, unit)| format!("{limit} {unit}"));
    let cost = (limits.cost > 0.0).then(|| format!("${:.2}", limits.cost));
    let parts: Vec<String> = counts.chain(cost).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// What an attempt used.
fn used(totals: &Totals) -> String {
    format!(
        "{} turns, {} answers, {} + {} tokens, {}, commands {:.2} s, {:.2} s in all",
        totals.turns,
        totals.calls,
        totals.prompt_tokens,
        totals.completion_tokens,
        totals.cost.map_or("cost unknown".to_owned(), |cost| format!("${cost:.4}")),
        totals.command_seconds,
        totals.seconds,
    )
}
