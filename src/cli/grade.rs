//! `patchgym grade`.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::batch::folder::write_whole;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::model;
use crate::cli::output;
use crate::cli::settings::ConfigArguments;
use crate::cli::settings::TaskArguments;
use crate::cli::world;
use crate::cli::world::Work;
use crate::cli::world::World;
use crate::config::Config;
use crate::data::Data;
use crate::grade::Graded;
use crate::grade::predictions;
use crate::grade::predictions::Coverage;
use crate::grade::predictions::Prediction;
use crate::grade::predictions::Predictions;
use crate::grade::report;
use crate::grade::report::Entry;
use crate::protocol::verdict::Outcome;
use crate::task::Instance;

/// Arguments of `patchgym grade`.
#[derive(Args, Debug, Clone)]
pub(super) struct GradeArguments {
    #[command(flatten)]
    tasks: TaskArguments,
    #[command(flatten)]
    config: ConfigArguments,
    /// Predictions (.json or .jsonl), or `gold`, or `empty`
    #[arg(short = 'p', long, value_name = "FILE|gold|empty", required_unless_present = "gold")]
    predictions: Option<String>,
    /// The same as `-p gold`
    #[arg(long, conflicts_with = "predictions")]
    gold: bool,
    /// Gradings at a time
    #[arg(short = 'w', long, default_value_t = 1, value_name = "COUNT")]
    workers: usize,
    /// Keep logs and reports in this folder
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Seconds the tests may take
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Grades predictions.
pub(super) async fn grade(arguments: GradeArguments) -> Result<ExitCode, Failure> {
    let data = Arc::new(Data::open(&Data::folders(arguments.config.data.as_deref()))?);
    let mut layers = arguments.config.layers();
    layers.extend(arguments.timeout.map(|seconds| format!("grade.timeout={seconds}")));
    let config = Config::resolve(&layers)?;
    let instances = world::instances(&arguments.tasks, &data)?;
    let predictions = arguments.predictions(&instances)?;
    let coverage =
        Coverage::new(&predictions, instances.iter().map(|instance| instance.task.id.as_str()));
    for id in &coverage.not_in_dataset {
        output::note(&format!("note: {id} is not among the tasks and counts nowhere"));
    }
    let world = World::new(config, data, Work::of(&arguments.tasks), &arguments.tasks).await?;
    let is_graded = |instance: &&Instance| predictions.contains_key(&instance.task.id);
    let graded_tasks = instances.iter().filter(is_graded).map(|instance| &instance.task);
    world.check(&graded_tasks.collect::<Vec<_>>())?;
    let network = world.grade_network(&instances);
    output::note(&format!(
        "isolation {}, network {}",
        world.sites.backend.isolation().name(),
        network.recorded(world.sites.backend.isolation())
    ));
    if arguments.tasks.repo_dir.is_some() {
        output::note(world::NOT_COMPARABLE);
    }
    let grader = world.grader(network);
    let places = Arc::new(Semaphore::new(arguments.workers.max(1)));
    let mut gradings = JoinSet::new();
    for instance in instances.iter().cloned() {
        let Some(prediction) = predictions.get(&instance.task.id) else { continue };
        let patch = prediction.patch.clone().unwrap_or_default();
        let (grader, places) = (Arc::clone(&grader), Arc::clone(&places));
        gradings.spawn(async move {
            let _place = places.acquire_owned().await;
            let graded = grader.grade(&instance.task, &instance.key, patch.as_bytes()).await;
            (instance.task.id, graded)
        });
    }
    let mut graded = BTreeMap::new();
    while let Some(joined) = gradings.join_next().await {
        let (id, result) = joined.map_err(|error| Failure::machine(error.to_string()))?;
        graded.insert(id, result);
    }
    if let Some(folder) = &arguments.output {
        keep(folder, &instances, &predictions, &graded)?;
    }
    arguments.print(&instances, &graded, world.sites.backend.isolation().name())?;
    let errors = graded.values().any(|graded| graded.verdict.outcome == Outcome::Error);
    Ok(ExitCode::from(if errors { exit::ERRORS } else { exit::DONE }))
}

impl GradeArguments {
    fn predictions(&self, instances: &[Instance]) -> Result<Predictions, Failure> {
        let word = if self.gold { "gold" } else { self.predictions.as_deref().unwrap_or("gold") };
        let made = |patch: &dyn Fn(&Instance) -> String| {
            instances
                .iter()
                .map(|instance| {
                    let prediction =
                        Prediction { model: word.to_owned(), patch: Some(patch(instance)) };
                    (instance.task.id.clone(), prediction)
                })
                .collect()
        };
        Ok(match word {
            "gold" => made(&|instance| instance.key.gold_patch.clone()),
            "empty" => made(&|_| String::new()),
            path => predictions::read(Path::new(path))?,
        })
    }

    fn print(
        &self,
        instances: &[Instance],
        graded: &BTreeMap<String, Graded>,
        isolation: &str,
    ) -> Result<(), Failure> {
        let resolved =
            graded.values().filter(|graded| graded.verdict.outcome == Outcome::Resolved).count();
        if self.json {
            let verdicts: BTreeMap<&String, _> =
                graded.iter().map(|(id, graded)| (id, &graded.verdict)).collect();
            output::data(&serde_json::to_string_pretty(&verdicts)?);
        } else {
            let head = [
                "task",
                "verdict",
                "fail to pass",
                "pass to pass",
                "applied by",
                "isolation",
                "seconds",
            ];
            let mut rows = vec![head.map(str::to_owned).to_vec()];
            for instance in instances {
                let id = &instance.task.id;
                let Some(Graded { verdict, .. }) = graded.get(id) else {
                    rows.push(vec![id.clone(), "not submitted".into()]);
                    continue;
                };
                let of = |split: &crate::protocol::verdict::Split| {
                    format!("{}/{}", split.success.len(), split.success.len() + split.failure.len())
                };
                let applied = verdict
                    .apply
                    .as_ref()
                    .and_then(|apply| apply.method.clone())
                    .unwrap_or_default();
                rows.push(vec![
                    id.clone(),
                    verdict.error.map_or_else(
                        || verdict.outcome.name().to_owned(),
                        |e| format!("error: {}", e.name()),
                    ),
                    of(&verdict.fail_to_pass),
                    of(&verdict.pass_to_pass),
                    applied,
                    isolation.to_owned(),
                    format!("{:.1}", verdict.times.total),
                ]);
            }
            output::data(&output::table(&rows, &[2, 3, 6]));
        }
        let line = format!("\nresolved {resolved} of {}", instances.len());
        if self.json {
            output::note(&line)
        } else {
            output::data(&line)
        }
        for (id, graded) in graded {
            if let Some(detail) = &graded.verdict.detail {
                output::note(&format!("{id}: {detail}"));
            }
        }
        Ok(())
    }
}

/// Keeps what the official harness keeps, in its layout below `folder`.
fn keep(
    folder: &Path,
    instances: &[Instance],
    predictions: &Predictions,
    graded: &BTreeMap<String, Graded>,
) -> Result<(), Failure> {
    let mut entries = BTreeMap::new();
    let mut name = "model".to_owned();
    for (id, graded) in graded {
        let prediction = &predictions[id];
        name.clone_from(&prediction.model);
        let place =
            folder.join(report::model_folder(&prediction.model)).join(report::instance_folder(id));
        fs_err::create_dir_all(&place)?;
        let log = crate::text::lossy(&graded.log);
        write_whole(
            &place.join("patch.diff"),
            prediction.patch.as_deref().unwrap_or_default().as_bytes(),
        )?;
        write_whole(&place.join("eval.sh"), graded.script.as_bytes())?;
        write_whole(&place.join("test_output.txt"), &graded.log)?;
        if let Some(report) = report::instance(id, &graded.verdict, &log) {
            write_whole(&place.join("report.json"), report::json(&report)?.as_bytes())?;
        }
        entries.insert(id.clone(), Entry::new(&graded.verdict, &log));
    }
    let summary =
        report::summary(instances.iter().map(|instance| instance.task.id.as_str()), &entries);
    let run_id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    write_whole(
        &folder.join(report::summary_file(&name, &run_id)),
        report::json(&summary)?.as_bytes(),
    )?;
    output::note(&format!("kept in {}", model::shown(folder)));
    Ok(())
}
