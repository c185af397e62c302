//! What happens in an episode: calls, observations, and how it ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One tool call after its dialect was parsed and before its arguments were checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Ties the observation to the call; the model's own id where it gave one.
    #[serde(default)]
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments object.
    #[serde(default)]
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// What a model does in one turn: one or more calls, run in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The calls in order.
    pub calls: Vec<Call>,
}

/// What came of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The call it answers.
    pub call_id: String,
    /// The tool that was called.
    pub tool: String,
    /// What the model reads.
    pub text: String,
    /// What happened, for programs.
    pub outcome: Outcome,
    /// Wall time of the call in seconds.
    pub seconds: f64,
}

/// What happened in a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The tool did what was asked.
    Ok,
    /// The model's mistake: unknown tool, wrong arguments, no match. `code` is a stable word.
    Mistake {
        /// A stable word for the mistake, such as `no_match`.
        code: String,
    },
    /// A command ran.
    Command {
        /// How it ended.
        ending: Ending,
        /// Bytes the command printed in all, of which the text may show only head and tail.
        bytes: u64,
        /// The shell had to be started again; working directory and exports were restored.
        shell_restarted: bool,
    },
    /// Not run, because an earlier call of the same turn ended the episode.
    Skipped,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ending {
    /// It exited.
    Exited {
        /// The exit status.
        code: i32,
    },
    /// A signal ended the shell that ran it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// The limit passed; everything it started was ended.
    TimedOut {
        /// The limit in seconds.
        limit: u64,
    },
    /// The guest was lost while it ran.
    GuestLost,
}

/// Why an episode ended.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The model called `submit`.
    Submitted,
    /// The turn limit.
    TurnLimit,
    /// The token limit.
    TokenLimit,
    /// The dollar limit.
    CostLimit,
    /// The limit on the seconds all commands took together.
    CommandTimeLimit,
    /// The wall clock limit.
    TimeLimit,
    /// The conversation no longer fits the model's context.
    ContextLimit,
    /// Too many replies in a row that could not be read as a call.
    FormatErrors,
    /// The model answered nothing that can be used, after retries.
    ModelError,
    /// The server refused the credentials.
    ModelAuth,
    /// The sandbox failed: an infrastructure error, never the model's fault.
    SandboxError,
    /// A person or a signal stopped the run.
    Interrupted,
    /// A scripted or recorded model has no further turn.
    ScriptEnded,
}

impl End {
    /// Every end, in the order tables show them.
    pub const ALL: [End; 13] = [
        End::Submitted,
        End::TurnLimit,
        End::TokenLimit,
        End::CostLimit,
        End::CommandTimeLimit,
        End::TimeLimit,
        End::ContextLimit,
        End::FormatErrors,
        End::ModelError,
        End::ModelAuth,
        End::SandboxError,
        End::Interrupted,
        End::ScriptEnded,
    ];

    /// The stable word for it, as in the event log.
    pub fn name(self) -> &'static str {
        match self {
            End::Submitted => "submitted",
            End::TurnLimit => "turn_limit",
            End::TokenLimit => "token_limit",
            End::CostLimit => "cost_limit",
            End::CommandTimeLimit => "command_time_limit",
            End::TimeLimit => "time_limit",
            End::ContextLimit => "context_limit",
            End::FormatErrors => "format_errors",
            End::ModelError => "model_error",
            End::ModelAuth => "model_auth",
            End::SandboxError => "sandbox_error",
            End::Interrupted => "interrupted",
            End::ScriptEnded => "script_ended",
        }
    }

    /// SWE-agent's `exit_status` for it.
    pub fn swe_agent(self) -> &'static str {
        match self {
            End::Submitted => "submitted",
            End::TurnLimit | End::TokenLimit | End::CostLimit => "submitted (exit_cost)",
            End::CommandTimeLimit | End::TimeLimit => "submitted (exit_total_execution_time)",
            End::ContextLimit => "submitted (exit_context)",
            End::FormatErrors => "submitted (exit_format)",
            End::ModelError | End::ModelAuth => "submitted (exit_api)",
            End::SandboxError => "exit_environment_error",
            End::Interrupted | End::ScriptEnded => "early_exit",
        }
    }

    /// mini-swe-agent's `exit_status` for it.
    pub fn mini_swe_agent(self) -> &'static str {
        match self {
            End::Submitted => "Submitted",
            End::TurnLimit | End::TokenLimit | End::CostLimit => "LimitsExceeded",
            End::CommandTimeLimit | End::TimeLimit => "TimeExceeded",
            End::ContextLimit => "ContextWindowExceededError",
            End::FormatErrors => "RepeatedFormatError",
            End::ModelError => "APIError",
            End::ModelAuth => "AuthenticationError",
            End::SandboxError => "EnvironmentError",
            End::Interrupted => "KeyboardInterrupt",
            End::ScriptEnded => "IndexError",
        }
    }

    /// The task's own end, as opposed to a limit or failure that cut the episode short.
    pub fn terminated(self) -> bool {
        self == End::Submitted
    }

    /// An infrastructure or operator cause: the attempt says nothing about the model, so it is played again.
    pub fn is_error(self) -> bool {
        matches!(self, End::ModelError | End::ModelAuth | End::SandboxError | End::Interrupted)
    }
}

/// What one turn did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// One observation per call, in order.
    pub observations: Vec<Observation>,
    /// The reward, when this environment gives one.
    pub reward: Option<f64>,
    /// Set when the episode is over.
    pub end: Option<End>,
}
