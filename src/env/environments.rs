//! Phase *prepare*: the Python environments of real repositories, each made once and shared copy-on-write.
//!
//! An installation runs the repository's own code, so it runs in a sandbox; what it made is taken out of it and kept
//! under the hash of everything it depends on.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::env::installation;
use crate::env::installation::ENVIRONMENT;
use crate::env::installation::Installation;
use crate::env::installation::LEFT;
use crate::env::installation::PLACE;
use crate::sandbox::Access;
use crate::sandbox::Backend;
use crate::sandbox::Isolation;
use crate::sandbox::Mount;
use crate::sandbox::Network;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::GuestError;
use crate::sandbox::local::programs;
use crate::sandbox::local::programs::Python;
use crate::task::Task;
use crate::task::cache::Cache;
use crate::task::recipe::Recipe;
use crate::task::recipe::Recipes;
use crate::task::repository::Prepared;

/// The file beside an environment that says what it was made of.
const RECEIPT: &str = "receipt.json";

/// How environments are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preparation {
    /// What an installation can reach.
    pub network: Network,
    /// Time it may take.
    pub limit: Duration,
    /// Whether this machine's pip says where packages are.
    pub settings: MachineSettings,
    /// Environment of the installation; wins over everything else.
    pub env: BTreeMap<String, String>,
}

/// Whether what this machine's pip is set to reaches an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineSettings {
    /// Index, certificates and proxies do, unless they hold a password.
    Passed,
    /// Nothing does.
    Ignored,
}

impl Default for Preparation {
    fn default() -> Self {
        Self {
            network: Network::Full,
            limit: Duration::from_secs(1800),
            settings: MachineSettings::Passed,
            env: BTreeMap::new(),
        }
    }
}

/// What happens while an environment is made.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress<'a> {
    /// It is not there and will be made.
    Started {
        /// The repository.
        repo: &'a str,
        /// Its version.
        version: &'a str,
    },
    /// It was made.
    Finished {
        /// The repository.
        repo: &'a str,
        /// Its version.
        version: &'a str,
        /// Seconds it took.
        seconds: f64,
    },
}

/// Is told what happens.
pub type Watcher = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

/// The environments in a cache directory.
#[derive(Clone)]
pub struct Environments {
    backend: Arc<dyn Backend>,
    cache: Cache,
    /// What pip fetched, one folder per repository: installed code can write here, and must not reach others.
    fetched: PathBuf,
    recipes: Recipes,
    preparation: Preparation,
    watcher: Watcher,
}

/// An environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The hash of everything it depends on.
    pub digest: String,
    /// Its recipe.
    pub recipe: Recipe,
    /// A tar file of what the installation left in the repository.
    pub left: PathBuf,
    directory: PathBuf,
    python: Python,
}

/// Why there is no environment. Says nothing about a model or a patch.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is no recipe, and the task needs one.
    #[error("find a recipe for {repo} {version}")]
    NoRecipe {
        /// The repository.
        repo: String,
        /// Its version.
        version: String,
        /// The versions there are recipes for.
        known: Vec<String>,
    },
    /// This machine has no Python that the recipe works with.
    #[error("find Python {} on this machine, which {repo} {version} needs", wanted.join(" or "))]
    NoPython {
        /// The repository.
        repo: String,
        /// Its version.
        version: String,
        /// The versions of Python it works with.
        wanted: Vec<String>,
    },
    /// The environment's place is only free in a sandbox with a file system of its own.
    #[error("prepare an environment with isolation {}: it needs namespaces", .0.name())]
    Isolation(Isolation),
    /// A setting of this machine's pip holds a password.
    #[error("pass `{0}` on to an installation: it holds a password")]
    Password(String),
    /// A command failed.
    #[error("prepare {repo} {version}: `{command}` {ending}{lines}")]
    Command {
        /// The repository.
        repo: String,
        /// Its version.
        version: String,
        /// The command.
        command: String,
        /// How it ended.
        ending: String,
        /// The last lines it printed, each after a line feed.
        lines: String,
    },
    /// The sandbox cannot be made.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The guest cannot work.
    #[error("prepare an environment: {0}")]
    Guest(#[from] GuestError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl PrepareError {
    /// What a user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoRecipe { known, .. } if !known.is_empty() => Some(format!(
                "there are recipes for {}; `--data DIR` adds those of DIR/envs/python/recipes.yaml",
                known.join(", ")
            )),
            Self::NoRecipe { .. } => Some(
                "`--data DIR` uses the recipes of DIR/envs/python/recipes.yaml instead of the built-in ones".into(),
            ),
            Self::NoPython { .. } => Some("install one of them so that `python3` or `python3.N` finds it".into()),
            Self::Isolation(_) => Some("use `--isolation namespaces`".into()),
            Self::Password(name) => Some(format!(
                "pass it knowingly with `-c prepare.env.{name}=VALUE`, or nothing with `-c prepare.settings=ignored`"
            )),
            Self::Command { .. } => {
                Some("see that packages can be fetched; `-c prepare.env.NAME=VALUE` sets what pip reads".into())
            }
            Self::Sandbox(_) | Self::Guest(_) | Self::Io(_) => None,
        }
    }
}

impl Environments {
    /// The environments in `cache`, which need not exist, made in sandboxes of `backend`.
    pub fn new(
        backend: Arc<dyn Backend>,
        cache: &Path,
        recipes: Recipes,
        preparation: Preparation,
        watcher: Watcher,
    ) -> Self {
        let fetched = cache.join("pip");
        Self { backend, cache: cache_in(cache), fetched, recipes, preparation, watcher }
    }

    /// Whether a task needs an environment, and this machine can make one.
    ///
    /// # Errors
    /// When there is no recipe for a task that names an image, no Python for the recipe, or not enough isolation.
    pub fn check(&self, task: &Task) -> Result<Option<(&Recipe, Python)>, PrepareError> {
        let (repo, version) = (task.repo.clone(), task.version.clone());
        let Some(recipe) = self.recipes.find(&repo, &version) else {
            // Everything that is not in an image is in the task.
            return if task.image.is_none() {
                Ok(None)
            } else {
                let known = self.recipes.versions(&repo).into_iter();
                let known = known.map(|version| format!("{repo} {version}")).collect();
                Err(PrepareError::NoRecipe { repo, version, known })
            };
        };
        let isolation = self.backend.isolation();
        if isolation != Isolation::Namespaces {
            return Err(PrepareError::Isolation(isolation));
        }
        match programs::python(&recipe.python) {
            Some(python) => Ok(Some((recipe, python))),
            None => Err(PrepareError::NoPython { repo, version, wanted: recipe.python.clone() }),
        }
    }

    /// The environment of a task whose repository is `prepared`, made unless it is there; none when it needs none.
    ///
    /// Several callers that need the same one wait for the first. What fails is not kept.
    ///
    /// # Errors
    /// See [`PrepareError`].
    pub async fn prepare(
        &self,
        task: &Task,
        prepared: &Prepared,
    ) -> Result<Option<Environment>, PrepareError> {
        let Some((recipe, python)) = self.check(task)? else { return Ok(None) };
        let installation =
            Installation::new(task, recipe, python, &prepared.tree, &self.preparation)?;
        let digest = installation.digest();
        let folder = self.cache.place(&digest);
        if !is_finished(&folder) {
            let (cache, name) = (self.cache.clone(), digest.clone());
            let turn = tokio::task::spawn_blocking(move || cache.turn(&name));
            let _turn = turn.await.map_err(std::io::Error::other)??;
            if !is_finished(&folder) {
                self.make(&installation, prepared, &digest).await?;
            }
        }
        let folder = fs_err::canonicalize(&folder)?;
        Ok(Some(Environment {
            digest,
            recipe: recipe.clone(),
            left: folder.join(LEFT),
            directory: folder.join(ENVIRONMENT),
            python: installation.python,
        }))
    }

    async fn make(
        &self,
        installation: &Installation<'_>,
        prepared: &Prepared,
        digest: &str,
    ) -> Result<(), PrepareError> {
        let (repo, version) = installation.of();
        (self.watcher)(Progress::Started { repo, version });
        let started = Instant::now();
        let fetched = self.fetched.join(repo.replace('/', "__"));
        fs_err::create_dir_all(&fetched)?;
        let build = self.cache.unfinished()?;
        let settings = installation.settings()?;
        let spec = installation.spec(prepared, &settings, &fetched);
        let mut sandbox = self.backend.create(&spec).await?;
        let made = match sandbox.connect().await {
            Ok(guest) => {
                let deadline = started + self.preparation.limit;
                installation.run(&guest, sandbox.place(), deadline, build.path(), &fetched).await
            }
            Err(error) => Err(error.into()),
        };
        // What was made stands, whether or not the sandbox could be cleared away.
        if let Err(error) = sandbox.close().await {
            tracing::warn!(%error, "a sandbox was not cleared away");
        }
        made?;
        let seconds = started.elapsed().as_secs_f64();
        fs_err::write(build.path().join(RECEIPT), installation.receipt(settings, seconds)?)?;
        self.cache.finish(build, digest)?;
        (self.watcher)(Progress::Finished { repo, version, seconds });
        Ok(())
    }
}

impl Environment {
    /// Puts the environment into a sandbox that is to be made.
    pub fn mount(&self, spec: &mut SandboxSpec) {
        spec.mounts.push(Mount {
            source: self.directory.clone(),
            target: PLACE.to_owned(),
            access: Access::CopyOnWrite,
        });
        installation::enter(spec, &self.recipe, &self.python);
    }
}

/// Removes what was left of environments whose making was interrupted; gives the bytes that were freed.
///
/// # Errors
/// When something cannot be removed.
pub fn clean(cache: &Path) -> std::io::Result<u64> {
    cache_in(cache).clean()
}

/// Removes every environment that is not being made, and what pip fetched; gives the bytes that were freed. No sandbox
/// may use one.
///
/// # Errors
/// When something cannot be removed.
pub fn remove_all(cache: &Path) -> std::io::Result<u64> {
    Ok(cache_in(cache).remove_all()? + Cache::at(cache.join("pip")).remove_all()?)
}

fn cache_in(cache: &Path) -> Cache {
    Cache::at(cache.join("environments"))
}

/// Whether an environment is whole: its receipt is written last.
fn is_finished(folder: &Path) -> bool {
    folder.join(RECEIPT).exists()
}
