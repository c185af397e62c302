//! The command line: the only code that prints. One file per command; none holds logic of its own.
//!
//! Data goes to standard output, everything else to standard error.

mod clean;
mod doctor;
mod exit;
mod failure;
mod grade;
mod model;
mod output;
mod own;
mod replay;
mod run;
mod serve;
mod settings;
mod show;
mod tasks;
mod world;

use std::process::ExitCode;

use clap::Parser;
use clap::Subcommand;

use crate::cli::failure::Failure;

/// A multi-turn software-engineering gym: tasks, sandboxes, agents, trajectories and verdicts.
#[derive(Parser)]
#[command(name = "patchgym", version, max_term_width = 110, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Let a model work on tasks; without arguments, recorded models on the bundled demo
    Run(Box<run::RunArguments>),
    /// Grade patches with the tasks' hidden tests
    Grade(grade::GradeArguments),
    /// List tasks, show one, or start a task of your own
    Tasks(tasks::TasksArguments),
    /// Show an attempt's event log
    Show(show::ShowArguments),
    /// Execute an attempt's actions again in a fresh sandbox and name the first difference
    Replay(replay::ReplayArguments),
    /// Offer a task as an environment to a program in any language
    Serve(serve::ServeArguments),
    /// Say what this machine, a sandbox or a model server can do
    Doctor(doctor::DoctorArguments),
    /// Remove what killed processes left behind
    Clean(clean::CleanArguments),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::machine(format!("cannot start: {error}")).report(),
    };
    let result = runtime.block_on(async {
        match arguments.command {
            Command::Run(arguments) => run::run(*arguments).await,
            Command::Grade(arguments) => grade::grade(arguments).await,
            Command::Tasks(arguments) => tasks::tasks(arguments),
            Command::Show(arguments) => show::show(&arguments),
            Command::Replay(arguments) => replay::replay(arguments).await,
            Command::Serve(arguments) => serve::serve(arguments).await,
            Command::Doctor(arguments) => doctor::doctor(arguments).await,
            Command::Clean(arguments) => clean::clean(arguments),
        }
    });
    // Reading standard input cannot be interrupted; nothing waits for it.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
