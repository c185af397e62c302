//! `patchgym replay`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::agent::preset::Preset;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::settings::ConfigArguments;
use crate::cli::settings::TaskArguments;
use crate::cli::show;
use crate::cli::world;
use crate::cli::world::Work;
use crate::cli::world::World;
use crate::config::Config;
use crate::data::Data;
use crate::env::sandboxed::SandboxedEnv;
use crate::env::sandboxed::SandboxedOptions;
use crate::tools::set::ToolSet;
use crate::trajectory::reader;
use crate::trajectory::replay;
use crate::trajectory::replay::Replayed;

/// Arguments of `patchgym replay`.
#[derive(Args, Debug, Clone)]
pub(super) struct ReplayArguments {
    /// An event log, or the folder of an attempt
    file: PathBuf,
    #[command(flatten)]
    tasks: TaskArguments,
    #[command(flatten)]
    config: ConfigArguments,
}

/// Executes a log's actions again.
pub(super) async fn replay(arguments: ReplayArguments) -> Result<ExitCode, Failure> {
    let log = reader::read(show::log_in(&arguments.file))?;
    let Some(header) = log.header() else { return Err(Failure::usage("the log has no header")) };
    let data = Arc::new(Data::open(&Data::folders(arguments.config.data.as_deref()))?);
    let config = Config::resolve(&arguments.config.layers())?;
    let selected = TaskArguments { ids: vec![header.instance_id.clone()], ..arguments.tasks };
    let instances = world::instances(&selected, &data)?;
    let Some(instance) = instances.into_iter().next() else {
        return Err(Failure::usage("the task is not there"));
    };
    let preset = Preset::load(&data, &header.agent)?;
    let tools = Arc::new(ToolSet::load(&data, &preset.tools)?);
    let world = World::new(config, data, Work::of(&selected), &selected).await?;
    world.check(&[&instance.task])?;
    let mut env = SandboxedEnv::new(SandboxedOptions {
        sites: world.sites.clone(),
        tools,
        network: world.agent_network(),
        observation_chars: preset.observation_chars,
        command_limit: Duration::from_secs(header.limits.command),
    });
    let replayed = replay::replay(&log, &instance.task, &mut env).await?;
    Ok(match replayed {
        Replayed::Same { turns } => {
            output::data(&format!(
                "{turns} turns replayed; every observation and the final patch are the same"
            ));
            ExitCode::from(exit::DONE)
        }
        Replayed::Differs { turn, what, recorded, now } => {
            output::data(&format!(
                "turn {turn}: {what} differs\n--- recorded\n{recorded}\n--- now\n{now}"
            ));
            ExitCode::from(exit::ERRORS)
        }
    })
}
