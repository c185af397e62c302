//! `patchgym clean`.

use std::process::ExitCode;

use clap::Args;

use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::world;
use crate::task::repository::Repositories;

/// Arguments of `patchgym clean`.
#[derive(Args, Debug, Clone)]
pub(super) struct CleanArguments {
    /// Remove the cached repositories as well; they are made again when needed
    #[arg(long)]
    all: bool,
}

/// Removes what killed processes left behind. Sandboxes end with the process that made them, so only files remain.
pub(super) fn clean(arguments: CleanArguments) -> Result<ExitCode, Failure> {
    let repositories = Repositories::at(world::cache_folder()?);
    let freed = if arguments.all { repositories.remove_all() } else { repositories.clean() }?;
    output::data(&format!("{freed} bytes freed"));
    Ok(ExitCode::from(exit::DONE))
}
