//! Where a task is played and graded: its repository, its environment, its programs.

use std::sync::Arc;
use std::time::Duration;

use crate::data::Data;
use crate::env::EnvError;
use crate::env::environments::Environment;
use crate::env::environments::Environments;
use crate::env::environments::PrepareError;
use crate::protocol::operation::Op;
use crate::sandbox::Access;
use crate::sandbox::Backend;
use crate::sandbox::Mount;
use crate::sandbox::Network;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::Guest;
use crate::sandbox::local::PRIVATE;
use crate::sandbox::local::programs;
use crate::task::Task;
use crate::task::repository::Repositories;

/// Longest time for putting files into a repository.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes sites. Cheap to clone.
#[derive(Clone)]
pub struct Sites {
    /// Makes the sandboxes.
    pub backend: Arc<dyn Backend>,
    /// Makes the repository copies.
    pub repositories: Arc<Repositories>,
    /// Makes the environments.
    pub environments: Arc<Environments>,
    /// The data files.
    pub data: Arc<Data>,
}

/// What a sandbox for a task is made of.
#[derive(Debug, Clone)]
pub struct Site {
    /// The sandbox.
    pub spec: SandboxSpec,
    /// Full name of the commit its repository is at.
    pub commit: String,
    /// Its environment, when it was made from a recipe.
    pub environment: Option<Environment>,
}

impl Sites {
    /// The site of a task. Takes minutes when its environment has to be made.
    ///
    /// # Errors
    /// When the repository or the environment cannot be prepared, or a program is missing.
    pub async fn site(&self, task: &Task, network: Network) -> Result<Site, EnvError> {
        let (repositories, data) = (Arc::clone(&self.repositories), Arc::clone(&self.data));
        let wanted = task.clone();
        let prepared = tokio::task::spawn_blocking(move || repositories.prepare(&wanted, &data))
            .await
            .map_err(|error| EnvError::Preparation(error.to_string()))??;
        let environment = self.environments.prepare(task, &prepared).await?;
        let mut spec =
            SandboxSpec { workdir: task.workdir.clone(), network, ..SandboxSpec::default() };
        spec.mounts.push(Mount {
            source: prepared.tree,
            target: task.workdir.clone(),
            access: Access::CopyOnWrite,
        });
        spec.mounts.push(Mount {
            source: prepared.objects,
            target: format!("{PRIVATE}/pristine"),
            access: Access::ReadOnly,
        });
        programs::require(&mut spec, &task.requires)?;
        if let Some(environment) = &environment {
            environment.mount(&mut spec);
        }
        Ok(Site { spec, commit: prepared.commit, environment })
    }
}

impl Site {
    /// Puts what the installation left in the repository into that of a new sandbox.
    ///
    /// # Errors
    /// When it cannot be read, or the guest fails.
    pub async fn complete(&self, guest: &Guest) -> Result<(), EnvError> {
        if let Some(environment) = &self.environment {
            let left = tokio::fs::File::open(&environment.left).await.map_err(PrepareError::Io)?;
            let op = Op::PutTar { path: self.spec.workdir.clone() };
            guest.send(op, left, LIMIT).await?;
        }
        Ok(())
    }
}
