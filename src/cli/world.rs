//! Builds what commands work with out of arguments and the configuration.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::settings::TaskArguments;
use crate::config::Config;
use crate::data::Data;
use crate::grade::Grader;
use crate::grade::sandboxed::GradeOptions;
use crate::grade::sandboxed::SandboxedGrader;
use crate::sandbox::Backend;
use crate::sandbox::Network;
use crate::sandbox::local::backend::Local;
use crate::sandbox::local::programs;
use crate::task::Instance;
use crate::task::RepositorySource;
use crate::task::repository::Repositories;
use crate::task::rows;
use crate::task::select;
use crate::task::select::Selection;
use crate::task::source;
use crate::task::source::Loaded;

/// The word for the bundled tasks.
pub(super) const DEMO: &str = "demo";

/// What commands work with.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) data: Arc<Data>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) repositories: Arc<Repositories>,
}

impl World {
    pub(super) fn new(config: Config, data: Arc<Data>) -> Result<Self, Failure> {
        if config.sandbox == "docker" {
            return Err(Failure::usage("the docker sandbox is not part of this version")
                .hint("use `--sandbox local`, which runs on this machine's kernel"));
        }
        if programs::missing(&["git".to_owned()]).len() == 1 {
            return Err(
                Failure::machine("git is not on this machine").hint("install git, then try again")
            );
        }
        let repositories = Arc::new(Repositories::at(cache_folder()?));
        Ok(Self { config, data, backend: Arc::new(Local::new()), repositories })
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
        let (backend, repositories) = (Arc::clone(&self.backend), Arc::clone(&self.repositories));
        Arc::new(SandboxedGrader::new(backend, repositories, Arc::clone(&self.data), options))
    }
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
        if instance.task.source == RepositorySource::Unknown
            && let Some(folder) = &arguments.repo_dir
        {
            let found = source::repository_in(folder, &instance.task.repo).ok_or_else(|| {
                let repo = &instance.task.repo;
                Failure::usage(format!("no clone of `{repo}` in {}", folder.display()))
                    .hint(format!("git clone --mirror the repository into {}", folder.display()))
            })?;
            instance.task.source = RepositorySource::Clone(found);
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
