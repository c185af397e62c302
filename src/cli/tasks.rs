//! `patchgym tasks`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::Subcommand;

use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::settings::TaskArguments;
use crate::cli::world;
use crate::data::Data;
use crate::task::Instance;
use crate::task::minimal;

/// Arguments of `patchgym tasks`.
#[derive(Args, Debug, Clone)]
pub(super) struct TasksArguments {
    #[command(subcommand)]
    command: TasksCommand,
}

#[derive(Subcommand, Debug, Clone)]
enum TasksCommand {
    /// One line per task
    List {
        #[command(flatten)]
        tasks: TaskArguments,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// What a model is told of a task, and how many tests judge it
    Show {
        #[command(flatten)]
        tasks: TaskArguments,
    },
    /// Write a task.yaml to fill in
    New {
        /// The folder to make
        folder: PathBuf,
    },
}

/// Lists, shows or starts tasks.
pub(super) fn tasks(arguments: TasksArguments) -> Result<ExitCode, Failure> {
    let data = Data::open(&Data::folders(None))?;
    match arguments.command {
        TasksCommand::List { tasks, json } => list(&world::instances(&tasks, &data)?, json)?,
        TasksCommand::Show { tasks } => {
            for instance in world::instances(&tasks, &data)? {
                show(&instance);
            }
        }
        TasksCommand::New { folder } => {
            let file = folder.join(minimal::FILE);
            if file.exists() {
                return Err(Failure::usage(format!("{} exists already", file.display())));
            }
            fs_err::create_dir_all(&folder)?;
            fs_err::write(&file, data.text("envs/new-task.yaml")?)?;
            output::data(&file.display().to_string());
            output::note(&format!(
                "fill it in, then: patchgym run --tasks {} -m MODEL --base-url URL",
                folder.display()
            ));
        }
    }
    Ok(ExitCode::from(exit::DONE))
}

fn list(instances: &[Instance], json: bool) -> Result<(), Failure> {
    if json {
        let tasks: Vec<_> = instances
            .iter()
            .map(|Instance { task, key }| {
                serde_json::json!({
                    "instance_id": task.id,
                    "repo": task.repo,
                    "base_commit": task.base_commit,
                    "image": task.image,
                    "requires": task.requires,
                    "fail_to_pass": key.fail_to_pass.len(),
                    "pass_to_pass": key.pass_to_pass.len(),
                })
            })
            .collect();
        output::data(&serde_json::to_string_pretty(&tasks)?);
        return Ok(());
    }
    let mut rows = vec![
        ["task", "repository", "fail to pass", "pass to pass", "title"].map(str::to_owned).to_vec(),
    ];
    for Instance { task, key } in instances {
        let title =
            task.problem_statement.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        rows.push(vec![
            task.id.clone(),
            task.repo.clone(),
            key.fail_to_pass.len().to_string(),
            key.pass_to_pass.len().to_string(),
            crate::text::head(title.trim_start_matches('#').trim(), 60).0.to_owned(),
        ]);
    }
    output::data(&output::table(&rows, &[2, 3]));
    Ok(())
}

fn show(Instance { task, key }: &Instance) {
    output::data(&format!(
        "{}\nrepository {} at {}\n{} tests must start to pass, {} must go on passing\n\n{}\n",
        task.id,
        task.repo,
        task.base_commit,
        key.fail_to_pass.len(),
        key.pass_to_pass.len(),
        task.problem_statement.trim_end()
    ));
}
