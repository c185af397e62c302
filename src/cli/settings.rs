//! Arguments that several commands share.

use std::path::PathBuf;

use clap::Args;

/// Which tasks.
#[derive(Args, Debug, Clone)]
pub(super) struct TaskArguments {
    /// `demo`, a file of rows (.json, .jsonl), or a task.yaml or its folder
    #[arg(long, default_value = "demo", value_name = "NAME|FILE")]
    pub(super) tasks: String,
    /// Only this task; repeatable
    #[arg(short = 'i', long = "id", value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Only tasks whose id matches this regular expression from its beginning
    #[arg(long, value_name = "REGEX")]
    pub(super) filter: Option<String>,
    /// Only a slice of the tasks, as in Python: `:10`, `5:20`, `-3:`
    #[arg(long, value_name = "A:B")]
    pub(super) slice: Option<String>,
    /// Shuffle the tasks (Python's order for seed 42), before filter and slice
    #[arg(long)]
    pub(super) shuffle: bool,
    /// Folder of clones or bare mirrors of the tasks' repositories
    #[arg(long, value_name = "DIR")]
    pub(super) repo_dir: Option<PathBuf>,
}

/// Settings.
#[derive(Args, Debug, Clone)]
pub(super) struct ConfigArguments {
    /// A YAML file or `key=value`, put over the defaults in the order given; repeatable
    #[arg(short = 'c', long = "config", value_name = "FILE|KEY=VALUE")]
    pub(super) config: Vec<String>,
    /// Where attempts run
    #[arg(long, value_name = "auto|local|docker")]
    pub(super) sandbox: Option<String>,
    /// What keeps a local sandbox apart from the machine
    #[arg(long, value_name = "auto|namespaces|landlock|none")]
    pub(super) isolation: Option<String>,
    /// What the tests can reach: `auto` is full for benchmark rows, none else
    #[arg(long, value_name = "auto|none|full")]
    pub(super) grade_network: Option<String>,
    /// A folder whose tools/ and envs/ are used over the built-in ones
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
}

impl ConfigArguments {
    /// The layers of the configuration: what `-c` names, then the flags.
    pub(super) fn layers(&self) -> Vec<String> {
        let flags = [
            ("sandbox", &self.sandbox),
            ("isolation", &self.isolation),
            ("network.grade", &self.grade_network),
        ];
        let mut layers = self.config.clone();
        layers.extend(
            flags.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?))),
        );
        layers
    }
}
