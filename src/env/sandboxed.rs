//! The environment that really executes: a repository copy in a sandbox.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;

use crate::env::Env;
use crate::env::EnvError;
use crate::env::Patch;
use crate::env::Start;
use crate::env::Stepped;
use crate::env::site::Sites;
use crate::protocol::episode::Action;
use crate::protocol::episode::End;
use crate::protocol::episode::Observation;
use crate::protocol::episode::Outcome;
use crate::protocol::episode::Step;
use crate::protocol::message::ToolSchema;
use crate::protocol::operation::SessionStart;
use crate::sandbox::Network;
use crate::sandbox::Sandbox;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;
use crate::task::Task;
use crate::tools::set::ToolSet;
use crate::tools::workbench::PerformError;
use crate::tools::workbench::SESSION;
use crate::tools::workbench::Workbench;
use crate::tools::workbench::WorkbenchLimits;

/// What every environment of a run shares.
#[derive(Clone)]
pub struct SandboxedOptions {
    /// Makes what the sandboxes are made of.
    pub sites: Sites,
    /// The tools.
    pub tools: Arc<ToolSet>,
    /// What the sandbox can reach while the policy acts.
    pub network: Network,
    /// Characters of one observation.
    pub observation_chars: usize,
    /// Time of one command; zero = no limit.
    pub command_limit: Duration,
}

/// An environment whose tools act in a sandbox.
pub struct SandboxedEnv {
    options: SandboxedOptions,
    episode: Option<Episode>,
}

struct Episode {
    sandbox: Box<dyn Sandbox>,
    guest: Guest,
    workbench: Workbench,
    shell: SessionStart,
    workdir: String,
    start_tree: String,
    /// The patch of the last fingerprint.
    known: Option<(u64, Patch)>,
}

impl SandboxedEnv {
    /// An environment without an episode.
    pub fn new(options: SandboxedOptions) -> Self {
        Self { options, episode: None }
    }
}

#[async_trait]
impl Env for SandboxedEnv {
    fn tools(&self) -> &[ToolSchema] {
        &self.options.tools.tools
    }

    async fn reset(&mut self, task: &Task) -> Result<Start, EnvError> {
        self.close().await?;
        let site = self.options.sites.site(task, self.options.network).await?;
        let mut sandbox = self.options.sites.backend.create(&site.spec).await?;
        let guest = sandbox.connect().await?;
        site.complete(&guest).await?;
        let (shell, workdir) = (sandbox.place().shell(), sandbox.place().workdir.clone());
        guest.open_session(SESSION, &shell).await?;
        let start_tree = guest.start_tree(&workdir).await?;
        let limits = WorkbenchLimits {
            observation_chars: self.options.observation_chars,
            command: self.options.command_limit,
        };
        self.episode = Some(Episode {
            sandbox,
            guest,
            workbench: Workbench::new(Arc::clone(&self.options.tools), limits),
            shell,
            workdir: workdir.clone(),
            start_tree: start_tree.clone(),
            known: None,
        });
        let isolation = self.options.sites.backend.isolation();
        Ok(Start {
            observation: task.problem_statement.clone(),
            workdir,
            start_tree,
            isolation: isolation.name(),
            network: self.options.network.recorded(isolation),
            environment: site.environment.map(|environment| environment.digest),
        })
    }

    async fn step(&mut self, action: &Action) -> Result<Stepped, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset)?;
        let mut stepped = Stepped {
            step: Step { observations: Vec::new(), reward: None, end: None },
            commands: Vec::new(),
        };
        for call in &action.calls {
            let observation = |text: String, outcome: Outcome, seconds: f64| Observation {
                call_id: call.id.clone(),
                tool: call.tool.clone(),
                text,
                outcome,
                seconds,
            };
            if stepped.step.end.is_some() {
                let text = episode.workbench.skipped()?;
                stepped.step.observations.push(observation(text, Outcome::Skipped, 0.0));
                continue;
            }
            let started = Instant::now();
            let performed = match episode.workbench.perform(&episode.guest, call).await {
                Ok(performed) => performed,
                Err(PerformError::Guest(GuestError::Lost)) => {
                    episode.reconnect().await?;
                    episode.workbench.lost(&episode.shell.cwd)?
                }
                Err(PerformError::Guest(error)) => return Err(error.into()),
                Err(PerformError::Tools(error)) => return Err(error.into()),
            };
            if let Some(command) = performed.command {
                episode.shell.cwd.clone_from(&command.cwd);
                episode.shell.exports.clone_from(&command.exports);
                stepped.commands.push((call.id.clone(), command));
            }
            if performed.submitted {
                stepped.step.end = Some(End::Submitted);
            }
            let seconds = started.elapsed().as_secs_f64();
            stepped.step.observations.push(observation(performed.text, performed.outcome, seconds));
        }
        Ok(stepped)
    }

    async fn patch(&mut self) -> Result<Patch, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset)?;
        match episode.patch().await {
            Err(EnvError::Guest(GuestError::Lost)) => {
                episode.reconnect().await?;
                episode.patch().await
            }
            other => other,
        }
    }

    async fn close(&mut self) -> Result<(), EnvError> {
        if let Some(Episode { sandbox, guest, .. }) = self.episode.take() {
            drop(guest);
            sandbox.close().await?;
        }
        Ok(())
    }
}

impl Episode {
    /// A new guest in the same sandbox, with the shell's last known state. Background jobs and files live on.
    async fn reconnect(&mut self) -> Result<(), EnvError> {
        self.guest = self.sandbox.connect().await?;
        self.guest.open_session(SESSION, &self.shell).await?;
        Ok(())
    }

    async fn patch(&mut self) -> Result<Patch, EnvError> {
        let fingerprint = self.guest.fingerprint(&self.workdir).await?;
        if let Some((known, patch)) = &self.known
            && *known == fingerprint
        {
            return Ok(patch.clone());
        }
        let (bytes, receipt) = self.guest.patch(&self.workdir, &self.start_tree).await?;
        let patch = Patch { bytes, receipt };
        self.known = Some((fingerprint, patch.clone()));
        Ok(patch)
    }
}
