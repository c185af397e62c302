//! `patchgym serve`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::agent::preset::Preset;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::settings::ConfigArguments;
use crate::cli::settings::TaskArguments;
use crate::cli::world;
use crate::cli::world::Work;
use crate::cli::world::World;
use crate::config::Config;
use crate::data::Data;
use crate::env::sandboxed::SandboxedEnv;
use crate::env::sandboxed::SandboxedOptions;
use crate::serve::stdio;
use crate::tools::set::ToolSet;

/// Arguments of `patchgym serve`.
#[derive(Args, Debug, Clone)]
pub(super) struct ServeArguments {
    /// Read requests from standard input, one JSON object per line, and answer on standard output
    #[arg(long, required = true)]
    stdio: bool,
    #[command(flatten)]
    tasks: TaskArguments,
    #[command(flatten)]
    config: ConfigArguments,
    /// Agent preset whose tools are offered
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// What the sandbox can reach
    #[arg(long, value_name = "none|full")]
    agent_network: Option<String>,
}

/// Serves one task.
pub(super) async fn serve(arguments: ServeArguments) -> Result<ExitCode, Failure> {
    let data = Arc::new(Data::open(&Data::folders(arguments.config.data.as_deref()))?);
    let mut layers = arguments.config.layers();
    layers.extend(arguments.agent.iter().map(|name| format!("agent={name}")));
    layers.extend(arguments.agent_network.iter().map(|policy| format!("network.agent={policy}")));
    let config = Config::resolve(&layers)?;
    let preset = Preset::load(&data, &config.agent)?;
    let tools = Arc::new(ToolSet::load(&data, &preset.tools)?);
    let instances = world::instances(&arguments.tasks, &data)?;
    let [instance] = instances.as_slice() else {
        return Err(Failure::usage(format!(
            "one task is served, and {} are selected",
            instances.len()
        ))
        .hint("name one with `--id ID`"));
    };
    // Whatever the task is, nobody has seen what will be done to it.
    let world = World::new(config, data, Work::Other, &arguments.tasks).await?;
    world.check(&[&instance.task])?;
    let mut env = SandboxedEnv::new(SandboxedOptions {
        sites: world.sites.clone(),
        tools,
        network: world.agent_network(),
        observation_chars: preset.observation_chars,
        command_limit: Duration::from_secs(world.config.limits.command),
    });
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    stdio::serve(&mut env, &instance.task, input, tokio::io::stdout()).await?;
    Ok(ExitCode::from(exit::DONE))
}
