//! `patchgym run`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use clap::Args;
use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::agent::play::ToolAgent;
use crate::agent::preset::Preset;
use crate::batch::attempt::Stage;
use crate::batch::folder::RunFolder;
use crate::batch::manifest::Identity;
use crate::batch::manifest::Manifest;
use crate::batch::run as play;
use crate::batch::run::Progress;
use crate::batch::summary::RunSummary;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::model;
use crate::cli::model::ModelArguments;
use crate::cli::model::Player;
use crate::cli::output;
use crate::cli::own;
use crate::cli::own::OwnArguments;
use crate::cli::settings::ConfigArguments;
use crate::cli::settings::TaskArguments;
use crate::cli::world;
use crate::cli::world::Work;
use crate::cli::world::World;
use crate::config::Config;
use crate::data::Data;
use crate::digest;
use crate::env::sandboxed::SandboxedOptions;
use crate::grade::report;
use crate::model::address::Address;
use crate::sandbox::Network;
use crate::task::Instance;
use crate::tools::set::ToolSet;

/// Arguments of `patchgym run`.
#[derive(Args, Debug, Clone)]
pub(super) struct RunArguments {
    #[command(flatten)]
    tasks: TaskArguments,
    #[command(flatten)]
    own: OwnArguments,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    config: ConfigArguments,
    /// Agent preset
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// What sandboxes can reach while the model acts
    #[arg(long, value_name = "none|full")]
    agent_network: Option<String>,
    /// Attempts at a time
    #[arg(short = 'w', long, default_value_t = 1, value_name = "COUNT")]
    workers: usize,
    /// Attempts per task
    #[arg(short = 'k', long, default_value_t = 1, value_name = "COUNT")]
    attempts: u32,
    /// Collect only; do not grade
    #[arg(long)]
    no_grade: bool,
    /// The run's folder; without it, a folder below `runs/`
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
    /// The run's name; without it, one made of tasks, model, agent and a hash of the settings
    #[arg(long, value_name = "NAME", conflicts_with = "output")]
    run_id: Option<String>,
    /// Print the summary as JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs attempts.
pub(super) async fn run(arguments: RunArguments) -> Result<ExitCode, Failure> {
    let data = Arc::new(Data::open(&Data::folders(arguments.config.data.as_deref()))?);
    let config = arguments.resolve()?;
    let own_tasks = arguments.own.repo.is_some() || arguments.tasks.tasks != world::DEMO;
    if own_tasks && arguments.model.model == model::DEMONSTRATIONS {
        return Err(Failure::usage("the recordings are of the bundled tasks only")
            .hint("name a model with `-m`, such as `-m NAME --base-url URL`"));
    }
    let preset = Arc::new(Preset::load(&data, &config.agent)?);
    let tools = Arc::new(ToolSet::load(&data, &preset.tools)?);
    let instances = match arguments.own.instance()? {
        Some(instance) => vec![instance],
        None => world::instances(&arguments.tasks, &data)?,
    };
    let work = if arguments.own.repo.is_some() { Work::Other } else { Work::of(&arguments.tasks) };
    let world = World::new(config, Arc::clone(&data), work, &arguments.tasks).await?;
    world.check(&instances.iter().map(|instance| &instance.task).collect::<Vec<_>>())?;
    let player = arguments.model.player(&world.config, &data).await?;
    let grade_network = world.grade_network(&instances);
    let manifest = arguments.manifest(&world, &instances, &player, &preset, grade_network)?;
    let folder = arguments.folder(&manifest);
    let folder = RunFolder::open(&folder, manifest)?;
    start_log(&folder)?;
    greet(&arguments, &world, &folder, &player, instances.len());

    let (stop_sender, stop) = watch::channel(false);
    let listener = tokio::spawn(listen(stop_sender));
    let stage = Stage {
        env: SandboxedOptions {
            sites: world.sites.clone(),
            tools,
            network: world.agent_network(),
            observation_chars: preset.observation_chars,
            command_limit: Duration::from_secs(world.config.limits.command),
        },
        agent: ToolAgent {
            preset,
            limits: world.config.limits,
            sampling: world.config.sampling.clone(),
            prices: Arc::new(player.prices),
            stop: stop.clone(),
        },
        cast: player.cast,
        model: player.name.clone(),
        uses_gold: player.uses_gold,
        grader: world.config.grade.enabled.then(|| world.grader(grade_network)),
    };
    let (progress, received) = mpsc::unbounded_channel();
    let bar = tokio::spawn(show_progress(
        received,
        instances.len() as u64 * u64::from(arguments.attempts),
    ));
    let attempts = arguments.attempts;
    let results = play::run(
        &folder,
        Arc::new(stage),
        &instances,
        attempts,
        arguments.workers,
        stop.clone(),
        progress,
    )
    .await;
    listener.abort();
    // The channel is closed by now.
    let _ = bar.await;
    let summary = RunSummary::new(&folder, &player.name, results?);
    let predictions = summary.write(&folder)?;
    if arguments.json {
        output::data(&serde_json::to_string_pretty(&summary)?);
    } else {
        print_table(&summary, &folder.manifest.isolation);
    }
    farewell(&arguments, &summary, &folder, &predictions);
    if let (Some(repo), Some(result)) = (&arguments.own.repo, summary.attempts.first()) {
        let patch = folder.attempt(&result.instance_id, result.attempt).join("patch.diff");
        output::data(&format!(
            "\n{}",
            crate::text::lossy(&fs_err::read(&patch)?).trim_end_matches('\n')
        ));
        if arguments.own.apply
            && result.end.terminated()
            && !result.patch.as_deref().unwrap_or_default().is_empty()
        {
            own::apply(repo, &patch)?;
        }
    }
    Ok(ExitCode::from(if *stop.borrow() {
        exit::INTERRUPTED
    } else if summary.errors.is_empty() {
        exit::DONE
    } else {
        exit::ERRORS
    }))
}

impl RunArguments {
    fn resolve(&self) -> Result<Config, Failure> {
        let mut layers = self.config.layers();
        layers.extend(self.model.layers());
        layers.extend(self.agent.as_ref().map(|name| format!("agent={name}")));
        layers.extend(self.agent_network.as_ref().map(|policy| format!("network.agent={policy}")));
        let collect = self.no_grade || !self.own.is_judged();
        layers.extend(collect.then(|| "grade.enabled=false".to_owned()));
        Ok(Config::resolve(&layers)?)
    }

    fn manifest(
        &self,
        world: &World,
        instances: &[Instance],
        player: &Player,
        preset: &Preset,
        grade_network: Network,
    ) -> Result<Manifest, Failure> {
        let mut prompts = preset.hashes.clone();
        let tools = format!("tools/{}.yaml", preset.tools);
        prompts.insert(tools.clone(), digest::sha256(world.data.text(&tools)?.as_bytes()));
        let mut config = world.config.public();
        // An address may hold a password; its display form leaves it out.
        if let Ok(address) = world.config.server.base_url.parse::<Address>() {
            config["server"]["base_url"] = address.to_string().into();
        }
        let identity = Identity {
            tasks: match &self.own.repo {
                Some(repo) => repo.display().to_string(),
                None => self.tasks.tasks.clone(),
            },
            instances: instances.iter().map(|instance| instance.task.id.clone()).collect(),
            tasks_sha256: digest::sha256(format!("{instances:?}").as_bytes()),
            model: self.model.model.clone(),
            attempts: self.attempts,
            prompts,
            config,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run_id = self.run_name(&identity, now);
        let uname = rustix::system::uname();
        let isolation = world.sites.backend.isolation();
        Ok(Manifest {
            patchgym: env!("CARGO_PKG_VERSION").to_owned(),
            run_id,
            started: now.as_secs_f64(),
            uses_gold: player.uses_gold,
            isolation: isolation.name().to_owned(),
            network: BTreeMap::from([
                ("prepare".to_owned(), world.config.network.prepare.clone()),
                ("agent".to_owned(), world.agent_network().recorded(isolation).to_owned()),
                ("grade".to_owned(), grade_network.recorded(isolation).to_owned()),
            ]),
            machine: format!(
                "Linux {} {}",
                uname.release().to_string_lossy(),
                uname.machine().to_string_lossy()
            ),
            identity,
        })
    }

    fn run_name(&self, identity: &Identity, now: Duration) -> String {
        if let Some(name) = &self.run_id {
            return name.clone();
        }
        if let Some(name) = self.output.as_ref().and_then(|path| path.file_name()) {
            return name.to_string_lossy().into_owned();
        }
        let word = |text: &str| -> String {
            let base = text.rsplit('/').next().unwrap_or(text);
            base.chars()
                .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
                .collect()
        };
        let tasks = word(
            identity
                .tasks
                .trim_end_matches('/')
                .trim_end_matches(".jsonl")
                .trim_end_matches(".json"),
        );
        // The demo is for looking at, and one's own repository changes: each time is a new run.
        let demo = identity.tasks == world::DEMO && self.model.model == model::DEMONSTRATIONS;
        if demo || self.own.repo.is_some() {
            return format!("{tasks}-{}-{:04x}", now.as_secs(), fastrand::u16(..));
        }
        let agent = identity.config["agent"].as_str().unwrap_or_default();
        format!("{tasks}-{}-{}-{}", word(&self.model.model), word(agent), identity.short_hash())
    }

    fn folder(&self, manifest: &Manifest) -> PathBuf {
        match &self.output {
            Some(path) => path.clone(),
            None => PathBuf::from("runs").join(report::instance_folder(&manifest.run_id)),
        }
    }
}

/// Sends the program's own messages to `patchgym.log` in the run folder.
fn start_log(folder: &RunFolder) -> Result<(), Failure> {
    let file = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.path().join("patchgym.log"))?;
    let (file, _) = file.into_parts();
    let log =
        tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(file)).with_target(false);
    // A second run in one process keeps the first one's log.
    let _ = log.try_init();
    Ok(())
}

fn greet(
    arguments: &RunArguments,
    world: &World,
    folder: &RunFolder,
    player: &Player,
    tasks: usize,
) {
    let manifest = &folder.manifest;
    let verb = if folder.resumed { "resuming" } else { "starting" };
    output::note(&format!("{verb} {} in {}", manifest.run_id, model::shown(folder.path())));
    output::note(&format!(
        "{tasks} tasks x {} attempts, model {}, agent {}, {} at a time; isolation {}, network {} while the model acts, {} while tests run",
        arguments.attempts,
        player.name,
        world.config.agent,
        arguments.workers,
        manifest.isolation,
        manifest.network["agent"],
        manifest.network["grade"],
    ));
    if manifest.network["grade"] == "full" || arguments.tasks.repo_dir.is_some() {
        output::note(world::NOT_COMPARABLE);
    }
    tracing::info!(run = manifest.run_id, resumed = folder.resumed, "run");
}

/// The first signal asks attempts to end with what they have; the second ends the process.
async fn listen(stop: watch::Sender<bool>) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if *stop.borrow() {
            output::note("stopping now");
            leave();
        }
        output::note(
            "stopping: attempts under way end with what they have; interrupt again to stop now",
        );
        if stop.send(true).is_err() {
            return;
        }
    }
}

#[expect(clippy::exit, reason = "the second interrupt asks for just this")]
fn leave() -> ! {
    std::process::exit(i32::from(exit::INTERRUPTED))
}

async fn show_progress(mut progress: mpsc::UnboundedReceiver<Progress>, total: u64) {
    // Nothing is drawn where standard error is no terminal.
    let bar = ProgressBar::new(total);
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    let (mut resolved, mut running) = (0, Vec::new());
    while let Some(event) = progress.recv().await {
        match event {
            Progress::Started { instance_id, attempt } => {
                tracing::info!(instance = instance_id, attempt, "started");
                running.push(instance_id);
            }
            Progress::Finished(result) => {
                tracing::info!(
                    instance = result.instance_id,
                    attempt = result.attempt,
                    end = result.end.name(),
                    resolved = result.resolved(),
                    "finished"
                );
                if let Some(at) = running.iter().position(|id| *id == result.instance_id) {
                    running.remove(at);
                }
                resolved += u64::from(result.resolved());
                bar.inc(1);
            }
        }
        bar.set_message(format!("resolved {resolved}  {}", running.join(" ")));
    }
    bar.finish_and_clear();
}

fn print_table(summary: &RunSummary, isolation: &str) {
    let several = summary.attempts.iter().any(|result| result.attempt > 1);
    let mut head = vec!["task", "end", "turns", "resolved", "isolation", "seconds", "dollars"];
    if several {
        head.insert(1, "attempt");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for result in &summary.attempts {
        let verdict = match &result.verdict {
            None => "-".to_owned(),
            Some(_) if result.resolved() => "yes".to_owned(),
            Some(verdict) => match verdict.error {
                Some(error) => format!("error: {}", error.name()),
                None if verdict.outcome == crate::protocol::verdict::Outcome::EmptyPatch => {
                    "no (empty patch)".into()
                }
                None => "no".into(),
            },
        };
        let graded = result.verdict.as_ref().map_or(0.0, |verdict| verdict.times.total);
        let mut row = vec![
            result.instance_id.clone(),
            result.end.name().to_owned(),
            result.totals.turns.to_string(),
            verdict,
            isolation.to_owned(),
            format!("{:.1}", result.totals.seconds + graded),
            dollars(result.totals.cost),
        ];
        if several {
            row.insert(1, result.attempt.to_string());
        }
        rows.push(row);
    }
    let right: &[usize] = if several { &[1, 3, 6, 7] } else { &[2, 5, 6] };
    output::data(&output::table(&rows, right));
}

fn dollars(cost: Option<f64>) -> String {
    cost.map_or_else(|| "?".to_owned(), |cost| format!("{cost:.2}"))
}

fn farewell(
    arguments: &RunArguments,
    summary: &RunSummary,
    folder: &RunFolder,
    predictions: &[PathBuf],
) {
    let list = |counts: &BTreeMap<&'static str, usize>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let errors = if summary.errors.is_empty() { "none".to_owned() } else { list(&summary.errors) };
    let line = format!(
        "\nresolved {} of {}; errors: {errors}; dollars: {}; {}",
        summary.resolved,
        summary.total,
        dollars(summary.cost),
        model::shown(folder.path())
    );
    if arguments.json {
        output::note(&line)
    } else {
        output::data(&line)
    }
    if summary.uses_gold {
        output::note("note: the model was given the answers; this run measures nothing");
    }
    for result in &summary.attempts {
        if let (true, Some(detail)) = (result.end.is_error(), &result.detail) {
            output::note(&format!("{}: {}: {detail}", result.instance_id, result.end.name()));
        }
        if let Some(detail) = result.verdict.as_ref().and_then(|verdict| verdict.detail.as_ref()) {
            output::note(&format!("{}: grading: {detail}", result.instance_id));
        }
    }
    if summary.ended < summary.total {
        output::note("the run is not finished; the same command goes on with it");
    }
    if let Some(first) =
        summary.attempts.iter().find(|result| !result.resolved()).or(summary.attempts.first())
    {
        let log = folder.attempt(&first.instance_id, first.attempt).join("events.jsonl");
        output::note(&format!("\nnext: patchgym show {}", model::shown(&log)));
    }
    if let (Some(predictions), None) = (predictions.first(), &arguments.own.repo) {
        let mut again = format!("patchgym grade --tasks {}", arguments.tasks.tasks);
        if let Some(folder) = &arguments.tasks.repo_dir {
            again.push_str(&format!(" --repo-dir {}", model::shown(folder)));
        }
        if let Some(sandbox) = &arguments.config.sandbox {
            again.push_str(&format!(" --sandbox {sandbox}"));
        }
        output::note(&format!("      {again} -p {}", model::shown(predictions)));
    }
}
