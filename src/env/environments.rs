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

use serde::Deserialize;
use serde::Serialize;

use crate::digest;
use crate::env::delivery;
use crate::protocol::wire::Ending;
use crate::protocol::wire::SessionStart;
use crate::sandbox::Access;
use crate::sandbox::Backend;
use crate::sandbox::Isolation;
use crate::sandbox::Mount;
use crate::sandbox::Network;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxSpec;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;
use crate::sandbox::local::pip;
use crate::sandbox::local::programs;
use crate::sandbox::local::programs::Python;
use crate::task::Task;
use crate::task::cache::Cache;
use crate::task::recipe::Recipe;
use crate::task::recipe::Recipes;
use crate::task::repository::Prepared;
use crate::text;

/// Where an environment stands in a sandbox. Its programs name this place, so it cannot stand elsewhere.
const PLACE: &str = "/opt/environment";
/// Where pip keeps what it fetched.
const PIP_CACHE: &str = "/var/cache/pip";
/// Where what is to be taken out of the sandbox is gathered.
const LEFT: &str = "/var/tmp/left";
const FETCHED: &str = "/var/tmp/fetched";
/// The shell that prepares.
const SESSION: &str = "prepare";
/// How environments are made, part of their hash: raised when it changes, so that old ones are not used.
const FORMAT: u32 = 1;
/// Bytes of the sandbox's disk: an environment, what it is built from, and what pip fetched.
const DISK: u64 = 12 << 30;
/// Bytes kept of the end of a command's output, and the lines of it that are told.
const KEEP: u32 = 16 << 10;
const TOLD: usize = 12;

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

/// What is written beside an environment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receipt {
    repo: String,
    version: String,
    python: String,
    commands: Vec<String>,
    files: BTreeMap<String, Option<String>>,
    network: String,
    settings: BTreeMap<String, String>,
    seconds: f64,
}

/// What an environment is made of.
struct Plan<'a> {
    task: &'a Task,
    recipe: &'a Recipe,
    python: Python,
    /// SHA-256 of the repository's files that decide; none where there is no such file.
    files: BTreeMap<String, Option<String>>,
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
        let plan = Plan { task, recipe, files: files(recipe, &prepared.tree)?, python };
        let digest = plan.digest();
        let place = self.cache.place(&digest);
        if !is_finished(&place) {
            let (cache, name) = (self.cache.clone(), digest.clone());
            let turn = tokio::task::spawn_blocking(move || cache.turn(&name));
            let _turn = turn.await.map_err(std::io::Error::other)??;
            if !is_finished(&place) {
                self.make(&plan, prepared, &digest).await?;
            }
        }
        let place = fs_err::canonicalize(&place)?;
        Ok(Some(Environment {
            digest,
            recipe: recipe.clone(),
            left: place.join("left.tar"),
            directory: place.join("environment"),
            python: plan.python,
        }))
    }

    async fn make(
        &self,
        plan: &Plan<'_>,
        prepared: &Prepared,
        digest: &str,
    ) -> Result<(), PrepareError> {
        let (repo, version) = (plan.task.repo.as_str(), plan.task.version.as_str());
        (self.watcher)(Progress::Started { repo, version });
        let started = Instant::now();
        let settings = self.settings(&plan.python)?;
        let fetched = self.fetched.join(repo.replace('/', "__"));
        fs_err::create_dir_all(&fetched)?;
        let build = self.cache.unfinished()?;
        let spec = self.spec(plan, prepared, &settings, &fetched);
        let mut sandbox = self.backend.create(&spec).await?;
        let made = match sandbox.connect().await {
            Ok(guest) => {
                let deadline = started + self.preparation.limit;
                self.install(plan, &guest, &spec, deadline, build.path(), &fetched).await
            }
            Err(error) => Err(error.into()),
        };
        // What was made stands, whether or not the sandbox could be cleared away.
        if let Err(error) = sandbox.close().await {
            tracing::warn!(%error, "a sandbox was not cleared away");
        }
        made?;
        let seconds = started.elapsed().as_secs_f64();
        let receipt = Receipt {
            repo: repo.to_owned(),
            version: version.to_owned(),
            python: plan.python.version.clone(),
            commands: plan.recipe.commands(),
            files: plan.files.clone(),
            network: self.preparation.network.name().to_owned(),
            settings,
            seconds,
        };
        let receipt = serde_json::to_vec_pretty(&receipt).map_err(std::io::Error::from)?;
        fs_err::write(build.path().join("receipt.json"), receipt)?;
        self.cache.finish(build, digest)?;
        (self.watcher)(Progress::Finished { repo, version, seconds });
        Ok(())
    }

    fn settings(&self, python: &Python) -> Result<BTreeMap<String, String>, PrepareError> {
        match self.preparation.settings {
            MachineSettings::Passed => {
                let mut settings =
                    pip::settings(&python.executable).map_err(PrepareError::Password)?;
                settings.retain(|name, _| !self.preparation.env.contains_key(name));
                Ok(settings)
            }
            MachineSettings::Ignored => Ok(BTreeMap::new()),
        }
    }

    fn spec(
        &self,
        plan: &Plan<'_>,
        prepared: &Prepared,
        settings: &BTreeMap<String, String>,
        fetched: &Path,
    ) -> SandboxSpec {
        let copy_on_write = |source: &Path, target: &str| Mount {
            source: source.to_owned(),
            target: target.to_owned(),
            access: Access::CopyOnWrite,
        };
        let mut spec = SandboxSpec {
            workdir: plan.task.workdir.clone(),
            network: self.preparation.network,
            disk: DISK,
            mounts: vec![
                copy_on_write(&prepared.tree, &plan.task.workdir),
                copy_on_write(fetched, PIP_CACHE),
            ],
            env: vec![
                ("PIP_CACHE_DIR".to_owned(), PIP_CACHE.to_owned()),
                ("VERSION".to_owned(), plan.task.version.clone()),
            ],
            ..SandboxSpec::default()
        };
        let env = settings.iter().chain(&self.preparation.env);
        spec.env.extend(env.map(|(name, value)| (name.clone(), value.clone())));
        for file in pip::files(settings) {
            programs::show(&mut spec, file);
        }
        enter(&mut spec, plan.recipe, &plan.python);
        spec
    }

    /// Makes the environment in a sandbox and takes it out into the folder `build`.
    async fn install(
        &self,
        plan: &Plan<'_>,
        guest: &Guest,
        spec: &SandboxSpec,
        deadline: Instant,
        build: &Path,
        fetched: &Path,
    ) -> Result<(), PrepareError> {
        let env = spec.environment();
        let start = SessionStart { cwd: spec.workdir.clone(), env, exports: Vec::new() };
        guest.open_session(SESSION, &start).await?;
        let workdir = &spec.workdir;
        let first = format!("'{}' -m venv {PLACE}", plan.python.executable.display());
        let last = [
            format!(
                "mkdir {LEFT} {FETCHED} && git -c safe.directory='*' ls-files --others -z | \
                 xargs -0 -r cp -a --parents -t {LEFT}"
            ),
            format!(
                "cd {PIP_CACHE} && find . -type f -newer {PLACE}/pyvenv.cfg -print0 | \
                 xargs -0 -r cp -a --parents -t {FETCHED}"
            ),
        ];
        for command in [first].into_iter().chain(plan.recipe.commands()).chain(last) {
            // Every command starts in the repository, and none changes what the next one finds.
            let whole = format!("(set -e -o pipefail; cd {workdir}; {command}\n) 2>&1 </dev/null");
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = left.max(Duration::from_millis(1));
            let result = guest.run(SESSION, whole.as_bytes(), limit, KEEP).await?;
            if result.ending != Ending::Exited(0) {
                return Err(PrepareError::Command {
                    repo: plan.task.repo.clone(),
                    version: plan.task.version.clone(),
                    command,
                    ending: ended(result.ending, self.preparation.limit),
                    lines: last_lines(&[result.head, result.tail].concat()),
                });
            }
        }
        delivery::unpack(guest, PLACE, &build.join("environment")).await?;
        delivery::save(guest, LEFT, &build.join("left.tar")).await?;
        // Only a help for the next environment.
        if let Err(error) = delivery::unpack(guest, FETCHED, fetched).await {
            tracing::warn!(%error, "what pip fetched was not kept");
        }
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
        enter(spec, &self.recipe, &self.python);
    }
}

impl Plan<'_> {
    fn digest(&self) -> String {
        let Self { task, recipe, python, files } = self;
        let platform = (std::env::consts::ARCH, &python.version, &python.executable);
        let made = (recipe.commands(), &recipe.env, PLACE);
        let all = format!(
            "{FORMAT} {:?} {:?} {:?} {platform:?} {made:?} {files:?}",
            task.repo, task.version, task.workdir
        );
        digest::sha256(all.as_bytes())
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

fn is_finished(place: &Path) -> bool {
    place.join("receipt.json").exists()
}

/// Makes the environment's programs the first that are found.
fn enter(spec: &mut SandboxSpec, recipe: &Recipe, python: &Python) {
    programs::show(spec, python.prefix.clone());
    spec.path.insert(0, format!("{PLACE}/bin"));
    spec.env.push(("VIRTUAL_ENV".to_owned(), PLACE.to_owned()));
    spec.env.extend(recipe.env.iter().map(|(name, value)| (name.clone(), value.clone())));
}

fn files(recipe: &Recipe, tree: &Path) -> std::io::Result<BTreeMap<String, Option<String>>> {
    recipe
        .files()
        .map(|name| {
            let hash = match fs_err::read(tree.join(name)) {
                Ok(bytes) => Some(digest::sha256(&bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            Ok((name.to_owned(), hash))
        })
        .collect()
}

fn ended(ending: Ending, limit: Duration) -> String {
    match ending {
        Ending::Exited(status) => format!("ended with status {status}"),
        Ending::Signalled(signal) => format!("was ended by signal {signal}"),
        Ending::TimedOut => format!("was not done after {} s in all", limit.as_secs()),
    }
}

/// The last lines of an output, each behind a line feed.
fn last_lines(output: &[u8]) -> String {
    let output = text::lossy(output);
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let told = &lines[lines.len().saturating_sub(TOLD)..];
    told.iter().map(|line| format!("\n    {}", text::head(line, 300).0)).collect()
}
