//! Builds what commands work with out of arguments and the configuration.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::settings::TaskArguments;
use crate::config::Config;
use crate::data::Data;
use crate::env::environments::Environments;
use crate::env::environments::MachineSettings;
use crate::env::environments::Preparation;
use crate::env::environments::Progress;
use crate::env::site::Sites;
use crate::grade::Grader;
use crate::grade::sandboxed::GradeOptions;
use crate::grade::sandboxed::SandboxedGrader;
use crate::sandbox::Backend;
use crate::sandbox::Isolation;
use crate::sandbox::Network;
use crate::sandbox::local::backend::Local;
use crate::sandbox::local::programs;
use crate::sandbox::local::refusal;
use crate::task::Instance;
use crate::task::RepositorySource;
use crate::task::Task;
use crate::task::recipe::Recipes;
use crate::task::repository::Repositories;
use crate::task::rows;
use crate::task::select;
use crate::task::select::Selection;
use crate::task::source;
use crate::task::source::Loaded;

/// The folder of sandboxes without namespaces, in the cache folder.
pub(super) const SANDBOXES: &str = "sandboxes";

/// The word for the bundled tasks.
pub(super) const DEMO: &str = "demo";

/// Said of tasks that others measure in containers.
pub(super) const NOT_COMPARABLE: &str =
    "note: a local run of benchmark rows is not comparable with published numbers";

/// What is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The bundled tasks.
    Demo,
    /// Anything else.
    Other,
}

impl Work {
    /// What these arguments ask for.
    pub(super) fn of(tasks: &TaskArguments) -> Self {
        if tasks.tasks == DEMO { Work::Demo } else { Work::Other }
    }
}

/// What commands work with.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) data: Arc<Data>,
    pub(super) sites: Sites,
}

impl World {
    /// What commands that work on these tasks work with.
    pub(super) async fn new(
        config: Config,
        data: Arc<Data>,
        work: Work,
        tasks: &TaskArguments,
    ) -> Result<Self, Failure> {
        if config.sandbox == "docker" {
            return Err(Failure::usage("the docker sandbox is not part of this version")
                .hint("use `--sandbox local`, which runs on this machine's kernel"));
        }
        if programs::missing(&["git".to_owned()]).len() == 1 {
            return Err(
                Failure::machine("git is not on this machine").hint("install git, then try again")
            );
        }
        let cache = cache_folder()?;
        let backend: Arc<dyn Backend> =
            Arc::new(backend(&config, work, &cache).await?.hiding(answers(tasks, &cache)));
        let environments = Environments::new(
            Arc::clone(&backend),
            &cache,
            Recipes::load(&data)?,
            preparation(&config),
            Arc::new(tell),
        );
        let sites = Sites {
            backend,
            repositories: Arc::new(Repositories::at(cache)),
            environments: Arc::new(environments),
            data: Arc::clone(&data),
        };
        Ok(Self { config, data, sites })
    }

    /// Refuses tasks whose repository or environment is known to be missing, before anything is begun.
    pub(super) fn check(&self, tasks: &[&Task]) -> Result<(), Failure> {
        if self.config.sandbox != "local"
            && let Some(task) = tasks.iter().find(|task| task.image.is_some())
        {
            return Err(Failure::usage(format!(
                "{} is in a container image, and containers are not part of this version",
                task.id
            ))
            .hint("`--sandbox local --repo-dir DIR` takes a clone of its repository and prepares its environment on this machine"));
        }
        let is_missing = |task: &&&Task| {
            matches!(task.source, RepositorySource::Image | RepositorySource::Unknown)
        };
        if let Some(Task { id, repo, .. }) = tasks.iter().find(is_missing) {
            return Err(Failure::usage(format!("no clone of `{repo}` was found, which {id} needs"))
                .hint("`git clone --mirror` the repository into a folder, and name the folder with `--repo-dir DIR`"));
        }
        let refused = self.sites.repositories.refused(tasks);
        let told = refused.iter().map(|(place, error)| (&tasks[*place].id, error, error.hint()));
        refuse("found", tasks.len(), told)?;
        let mut known = BTreeMap::new();
        let mut failed = Vec::new();
        for task in tasks {
            // Each answer takes the start of an interpreter.
            let kind = (&task.repo, &task.version, task.image.is_some());
            let answer =
                known.entry(kind).or_insert_with(|| self.sites.environments.check(task).err());
            failed.extend(answer.as_ref().map(|error| (&task.id, error.to_string(), error.hint())));
        }
        refuse("prepared", tasks.len(), failed.into_iter())
    }

    /// What the tests of these tasks can reach.
    pub(super) fn grade_network(&self, instances: &[Instance]) -> Network {
        match self.config.network.grade.as_str() {
            "none" => Network::None,
            "full" => Network::Full,
            // Tasks that bring their own test command were made to run without; official graders have the network.
            _ if instances.iter().all(|instance| instance.key.test_cmd.is_some()) => Network::None,
            _ => Network::Full,
        }
    }

    pub(super) fn agent_network(&self) -> Network {
        if self.config.network.agent == "full" { Network::Full } else { Network::None }
    }

    pub(super) fn grader(&self, network: Network) -> Arc<dyn Grader> {
        let options =
            GradeOptions { network, timeout: Duration::from_secs(self.config.grade.timeout) };
        Arc::new(SandboxedGrader::new(self.sites.clone(), options))
    }
}

/// One line about tasks that cannot be worked on, when there are any: how many, and the first.
fn refuse<'a>(
    done: &str,
    tasks: usize,
    mut refused: impl ExactSizeIterator<Item = (&'a String, impl Display, Option<String>)>,
) -> Result<(), Failure> {
    let count = refused.len();
    let Some((id, problem, hint)) = refused.next() else { return Ok(()) };
    let failure = Failure::usage(format!(
        "{count} of {tasks} tasks cannot be {done} on this machine, the first is {id}: cannot {problem}"
    ));
    Err(match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// The backend of the isolation that was asked for. Unless one was, a weaker one than namespaces is taken for the
/// bundled tasks only, and not for a model on a server, whose commands nobody has seen.
async fn backend(config: &Config, work: Work, cache: &Path) -> Result<Local, Failure> {
    let folders = cache.join(SANDBOXES);
    // What killed processes left would fill the disk.
    if let Err(error) = Local::clean(&folders) {
        output::note(&format!("note: what an ended process left stays: {error}"));
    }
    let asked = match config.isolation.as_str() {
        "namespaces" => Some(Isolation::Namespaces),
        "landlock" => Some(Isolation::Landlock),
        "none" => Some(Isolation::Nothing),
        _ => None,
    };
    let wanted = Local::with(asked.unwrap_or(Isolation::Namespaces), folders.clone());
    let Err(error) = wanted.probe().await else { return Ok(wanted) };
    let name = wanted.isolation().name();
    let failure = Failure::machine(format!("isolation {name} is refused: {error}"));
    if wanted.isolation() != Isolation::Namespaces {
        return Err(failure.hint("run `patchgym doctor` to see what this machine allows"));
    }
    let mut weaker = Vec::new();
    for isolation in [Isolation::Landlock, Isolation::Nothing] {
        let local = Local::with(isolation, folders.clone());
        if local.probe().await.is_ok() {
            weaker.push(local);
        }
    }
    let is_known = work == Work::Demo && config.server.base_url.is_empty();
    if asked.is_none() && is_known && !weaker.is_empty() {
        let local = weaker.remove(0);
        let name = local.isolation().name();
        output::note(&format!(
            "note: this machine refuses namespaces, so the demo has isolation {name}; `patchgym doctor` says what to change"
        ));
        return Ok(local);
    }
    let mut hints = refusal::advice();
    let levels = weaker.iter().map(|local| format!("`--isolation {}`", local.isolation().name()));
    let levels = levels.collect::<Vec<_>>().join(" or ");
    if !levels.is_empty() {
        hints.push(format!("a weaker level must be asked for, here {levels}"));
    }
    Err(if hints.is_empty() { failure } else { failure.hint(hints.join("\n      ")) })
}

/// Where on this machine answers and keys may be, in case it is among the directories that sandboxes show: tasks with
/// their solutions, repositories with their future, earlier results.
fn answers(tasks: &TaskArguments, cache: &Path) -> Vec<PathBuf> {
    let mut paths = vec![cache.to_owned(), PathBuf::from(&tasks.tasks)];
    paths.extend(tasks.repo_dir.clone());
    paths.extend(["runs", ".env"].map(PathBuf::from));
    paths
}

fn preparation(config: &Config) -> Preparation {
    Preparation {
        network: if config.network.prepare == "none" { Network::None } else { Network::Full },
        limit: Duration::from_secs(config.prepare.timeout),
        settings: match config.prepare.settings.as_str() {
            "ignored" => MachineSettings::Ignored,
            _ => MachineSettings::Passed,
        },
        env: config.prepare.env.clone(),
    }
}

fn tell(progress: Progress<'_>) {
    output::note(&match progress {
        Progress::Started { repo, version } => {
            format!("preparing the environment of {repo} {version}")
        }
        Progress::Finished { repo, version, seconds } => {
            format!("prepared the environment of {repo} {version} in {seconds:.1} s")
        }
    });
}

/// The folder for what can be made again: `XDG_CACHE_HOME`, `~/.cache`, or a folder of this user's below `/tmp`.
pub(super) fn cache_folder() -> Result<PathBuf, Failure> {
    let candidates = [
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")),
        Some(
            std::env::temp_dir()
                .join(format!("patchgym-cache-{}", rustix::process::geteuid().as_raw())),
        ),
    ];
    for folder in candidates.into_iter().flatten().filter(|folder| folder.is_absolute()) {
        let folder = folder.join("patchgym");
        if fs_err::create_dir_all(&folder).is_ok()
            && rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK).is_ok()
        {
            return Ok(folder);
        }
    }
    Err(Failure::machine("no folder for cached repositories can be written")
        .hint("set XDG_CACHE_HOME"))
}

/// Loads and selects tasks. Rows that cannot be used are told, one line each.
pub(super) fn instances(arguments: &TaskArguments, data: &Data) -> Result<Vec<Instance>, Failure> {
    let is_demo = arguments.tasks == DEMO;
    let loaded = if is_demo { demo(data)? } else { source::load(Path::new(&arguments.tasks))? };
    for error in &loaded.errors {
        output::note(&format!("warning: {error}; the row is left out"));
    }
    if loaded.instances.is_empty()
        && let Some(error) = loaded.errors.into_iter().next()
    {
        return Err(error.into());
    }
    let selection = Selection {
        ids: (!arguments.ids.is_empty()).then(|| arguments.ids.clone()),
        shuffle: arguments.shuffle,
        filter: arguments.filter.clone(),
        slice: arguments.slice.clone(),
    };
    let mut instances = select::select(loaded.instances, &selection)?;
    if instances.is_empty() {
        return Err(Failure::usage("no task is left after filter and slice"));
    }
    for instance in &mut instances {
        // Without a folder an image's own repository is meant.
        if matches!(instance.task.source, RepositorySource::Unknown | RepositorySource::Image)
            && let Some(folder) = &arguments.repo_dir
        {
            let found = source::repository_in(folder, &instance.task.repo);
            // Not every task of a file has to be worked on, so a missing clone is told only when it is needed.
            instance.task.source = found.map_or(RepositorySource::Unknown, RepositorySource::Clone);
        }
    }
    if is_demo { runnable(instances) } else { Ok(instances) }
}

fn demo(data: &Data) -> Result<Loaded, Failure> {
    let mut rows_read = Vec::new();
    for (name, file) in data.below("envs/demo/rows") {
        rows_read.extend(rows::document(&file.bytes, Path::new(name))?);
    }
    let mut loaded = source::from_rows(rows_read)?;
    for instance in &mut loaded.instances {
        let name = instance.task.repo.rsplit('/').next().unwrap_or_default().to_owned();
        instance.task.source = RepositorySource::Embedded(name);
    }
    Ok(loaded)
}

/// Leaves out demo tasks whose language is not on this machine; Python is needed by most and must be.
fn runnable(instances: Vec<Instance>) -> Result<Vec<Instance>, Failure> {
    let mut kept = Vec::new();
    for instance in instances {
        let missing = programs::missing(&instance.task.requires);
        if missing.iter().any(|program| program == "python3") {
            return Err(Failure::machine("python3 is not on this machine; the demo needs it")
                .hint("install Python 3.9 or later, then try again"));
        }
        if missing.is_empty() {
            kept.push(instance);
        } else {
            output::note(&format!(
                "{} is skipped: it needs {}",
                instance.task.id,
                missing.join(" and ")
            ));
        }
    }
    Ok(kept)
}
