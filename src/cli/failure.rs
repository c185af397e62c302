//! What a user is told when something cannot be done: one line, what caused it, and a hint.

use std::error::Error;
use std::process::ExitCode;

use crate::batch::RunError;
use crate::cli::exit;
use crate::cli::output;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::env::EnvError;
use crate::env::environments::PrepareError;
use crate::model::ModelError;
use crate::sandbox::SandboxError;
use crate::task::TaskError;
use crate::task::recipe::RecipeError;
use crate::task::repository::RepositoryError;
use crate::tools::ToolsError;
use crate::trajectory::TrajectoryError;

/// A failure of a command.
#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// The user's input or a setting is wrong.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), causes: Vec::new(), hint: None, code: exit::USAGE }
    }

    /// The machine lacks something or refuses it.
    pub(super) fn machine(message: impl Into<String>) -> Self {
        Self { code: exit::MACHINE, ..Self::usage(message) }
    }

    /// Adds what may help.
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Prints it and gives the exit code.
    pub(super) fn report(self) -> ExitCode {
        output::note(&format!("error: {}", self.message));
        for cause in &self.causes {
            output::note(&format!("  caused by: {cause}"));
        }
        if let Some(hint) = &self.hint {
            output::note(&format!("\nhint: {hint}"));
        }
        ExitCode::from(self.code)
    }

    fn of(error: &(dyn Error + 'static), code: u8) -> Self {
        let mut message = error.to_string();
        // Errors of the library are fragments that fit after "failed to".
        if message.starts_with(|first: char| first.is_ascii_lowercase())
            && !message.starts_with("failed to")
        {
            let first = message.split([' ', '`']).next().unwrap_or_default();
            if VERBS.contains(&first) {
                message = format!("failed to {message}");
            }
        }
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                causes.push(text);
            }
            cause = error.source();
        }
        Self { message, causes, hint: None, code }
    }
}

/// First words of error messages that say what was being done.
const VERBS: &[&str] = &[
    "read", "write", "find", "create", "use", "resume", "run", "render", "rebuild", "prepare",
    "copy", "take", "play", "set", "decode", "start", "load", "pass",
];

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let hint = match &error {
            ConfigError::Unknown { nearest: Some(nearest), .. } => {
                Some(format!("did you mean `{nearest}`?"))
            }
            ConfigError::Word { allowed, .. } => Some(format!("it can be {}", allowed.join(", "))),
            ConfigError::Unknown { nearest: None, .. }
            | ConfigError::Io(_)
            | ConfigError::Syntax { .. }
            | ConfigError::Value(_) => None,
        };
        Self { hint, ..Self::of(&error, exit::USAGE) }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let hint = match &error {
            DataError::Missing { nearest: Some(nearest), .. } => {
                Some(format!("did you mean `{nearest}`?"))
            }
            DataError::Missing { nearest: None, .. } | DataError::Io(_) | DataError::NotText(_) => {
                None
            }
        };
        Self { hint, ..Self::of(&error, exit::USAGE) }
    }
}

impl From<ToolsError> for Failure {
    fn from(error: ToolsError) -> Self {
        match error {
            ToolsError::Data(error) => error.into(),
            error @ (ToolsError::Form { .. } | ToolsError::Template { .. }) => {
                Self::of(&error, exit::USAGE)
            }
        }
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        Self::of(&error, exit::USAGE)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::of(&error, exit::USAGE)
    }
}

impl From<TrajectoryError> for Failure {
    fn from(error: TrajectoryError) -> Self {
        Self::of(&error, exit::USAGE)
    }
}

impl From<RepositoryError> for Failure {
    fn from(error: RepositoryError) -> Self {
        let code =
            if matches!(error, RepositoryError::GitMissing) { exit::MACHINE } else { exit::USAGE };
        Self { hint: error.hint(), ..Self::of(&error, code) }
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        let failure = Self::of(&error, exit::MACHINE);
        failure.hint("run `patchgym doctor` to see what this machine allows")
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        if let PrepareError::Sandbox(error) = error {
            return error.into();
        }
        Self { hint: error.hint(), ..Self::of(&error, exit::MACHINE) }
    }
}

impl From<RecipeError> for Failure {
    fn from(error: RecipeError) -> Self {
        match error {
            RecipeError::Data(error) => error.into(),
            error @ (RecipeError::Form(_) | RecipeError::Twice { .. }) => {
                Self::of(&error, exit::USAGE)
            }
        }
    }
}

impl From<EnvError> for Failure {
    fn from(error: EnvError) -> Self {
        match error {
            EnvError::Repository(error) => error.into(),
            EnvError::Environment(error) => error.into(),
            EnvError::Sandbox(error) => error.into(),
            EnvError::Tools(error) => error.into(),
            error @ (EnvError::Guest(_) | EnvError::NotReset | EnvError::Preparation(_)) => {
                Self::of(&error, exit::MACHINE)
            }
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let (code, hint) = match &error {
            RunError::Busy(_) => {
                (exit::CONFLICT, Some("wait for it, or give another folder with `-o`"))
            }
            RunError::Different { .. } => (
                exit::CONFLICT,
                Some("use the same settings to resume, or another `--run-id` for a new run"),
            ),
            RunError::Io(_) | RunError::Manifest { .. } => (exit::USAGE, None),
            RunError::Trajectory(_)
            | RunError::Tools(_)
            | RunError::Predictions(_)
            | RunError::Model(_)
            | RunError::Json(_)
            | RunError::Task(_) => (exit::USAGE, None),
        };
        Self { hint: hint.map(str::to_owned), ..Self::of(&error, code) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::of(&error, exit::USAGE)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::of(&error, exit::USAGE)
    }
}

impl From<crate::grade::predictions::PredictionError> for Failure {
    fn from(error: crate::grade::predictions::PredictionError) -> Self {
        Self::of(&error, exit::USAGE)
    }
}
