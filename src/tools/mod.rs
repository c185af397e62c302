//! What a model can call: tool sets from data, argument checks, dialects, and what each tool does through the guest.
//!
//! Takes in a model's reply, gives out calls; takes in a call and a guest, gives out an observation. It must not know
//! of answer keys, agents or models. Every sentence a model reads stands in `tools/*.yaml`.

pub mod arguments;
pub mod dialect;
mod refusal;
pub mod set;
mod shown;
pub mod workbench;

/// Why a tool set or agent file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// The data file is missing or unreadable.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    /// The file is not of the expected form.
    #[error("read `{path}`: {problem}")]
    Form {
        /// The data file.
        path: String,
        /// What is wrong, with its place.
        problem: String,
    },
    /// A message template fails.
    #[error("render the message `{name}` of tool set `{set}`")]
    Template {
        /// The tool set.
        set: String,
        /// The message.
        name: String,
        /// Why.
        source: minijinja::Error,
    },
}
