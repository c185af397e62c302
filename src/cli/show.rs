//! `patchgym show`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::trajectory::page::Color;
use crate::trajectory::page::Detail;
use crate::trajectory::reader;
use crate::trajectory::show;
use crate::trajectory::show::ShowOptions;

/// Arguments of `patchgym show`.
#[derive(Args, Debug, Clone)]
pub(super) struct ShowArguments {
    /// An event log, or the folder of an attempt
    file: PathBuf,
    /// Only this turn
    #[arg(long, value_name = "NUMBER")]
    turn: Option<u64>,
    /// Nothing left out of long texts
    #[arg(long)]
    full: bool,
    /// Print the turns as JSON
    #[arg(long)]
    json: bool,
}

/// Shows an event log.
pub(super) fn show(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let log = reader::read(log_in(&arguments.file))?;
    if arguments.json {
        output::data(&serde_json::to_string_pretty(&show::turns(&log, arguments.turn)?)?);
    } else {
        let width = rustix::termios::tcgetwinsize(std::io::stdout())
            .map_or(100, |size| usize::from(size.ws_col));
        let options = ShowOptions {
            turn: arguments.turn,
            width: width.clamp(40, 160),
            color: if output::color() { Color::On } else { Color::Off },
            detail: if arguments.full { Detail::Full } else { Detail::Bounded },
        };
        output::data(&show::lines(&log, &options)?.join("\n"));
    }
    if let Some(torn) = &log.torn {
        output::note(&format!(
            "note: the last line, {} bytes, was cut off and is left out",
            torn.bytes
        ));
    }
    Ok(ExitCode::from(exit::DONE))
}

/// The event log that a path means.
pub(super) fn log_in(path: &std::path::Path) -> PathBuf {
    if path.is_dir() { path.join(crate::batch::attempt::EVENTS) } else { path.to_owned() }
}
