//! `patchgym clean`.

use std::process::ExitCode;

use clap::Args;

use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::world;
use crate::env::environments;
use crate::sandbox::local::backend::Local;
use crate::task::repository::Repositories;

/// Arguments of `patchgym clean`.
#[derive(Args, Debug, Clone)]
pub(super) struct CleanArguments {
    /// Remove the cached repositories and environments as well; they are made again when needed
    #[arg(long)]
    all: bool,
}

/// Removes what killed processes left behind. The processes of a sandbox end with the one that made it, so only files
/// remain.
pub(super) fn clean(arguments: CleanArguments) -> Result<ExitCode, Failure> {
    let cache = world::cache_folder()?;
    let repositories = Repositories::at(cache.clone());
    let freed = if arguments.all {
        repositories.remove_all()? + environments::remove_all(&cache)?
    } else {
        repositories.clean()? + environments::clean(&cache)?
    };
    let freed = freed + Local::clean(&cache.join(world::SANDBOXES))?;
    output::data(&format!("{freed} bytes freed"));
    Ok(ExitCode::from(exit::DONE))
}
