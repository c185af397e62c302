//! Agent presets: which tools, which dialect, which prompts. All of it is data below `envs/`.

use std::collections::BTreeMap;

use minijinja::Environment;
use minijinja::UndefinedBehavior;
use minijinja::context;
use serde::Deserialize;
use serde::Serialize;

use crate::data::Data;
use crate::digest;
use crate::tools::ToolsError;
use crate::tools::dialect::CallsPerTurn;
use crate::tools::dialect::Dialect;
use crate::tools::dialect::FormatError;

/// An agent from `envs/agents/NAME.yaml`.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: String,
    /// The tool set.
    pub tools: String,
    /// How calls are written.
    pub dialect: Dialect,
    /// How many calls a reply may hold.
    pub calls_per_turn: CallsPerTurn,
    /// Characters of one observation.
    pub observation_chars: usize,
    /// SHA-256 of each prompt template by name.
    pub hashes: BTreeMap<String, String>,
    prompts: Environment<'static>,
}

/// What prompts may speak of. Text from a task or a tool is inserted, never rendered.
#[derive(Debug, Clone, Serialize)]
pub struct PromptValues<'a> {
    /// The issue.
    pub issue: &'a str,
    /// The repository's name.
    pub repo: &'a str,
    /// Where the repository stands.
    pub workdir: &'a str,
    /// What the sandbox can reach.
    pub network: &'a str,
    /// Seconds of one command.
    pub command_limit: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetFile {
    name: String,
    tools: String,
    dialect: Dialect,
    calls_per_turn: CallsPerTurn,
    observation_chars: usize,
    prompts: PromptFiles,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptFiles {
    system: String,
    task: String,
    format_error: String,
}

impl Preset {
    /// Reads the preset `name`.
    ///
    /// # Errors
    /// When there is no such preset, or one of its files is not of the expected form.
    pub fn load(data: &Data, name: &str) -> Result<Self, ToolsError> {
        let path = format!("envs/agents/{name}.yaml");
        let form =
            |path: &str, problem: String| ToolsError::Form { path: path.to_owned(), problem };
        let file: PresetFile = serde_saphyr::from_str(data.text(&path)?)
            .map_err(|error| form(&path, error.to_string()))?;
        let mut prompts = Environment::new();
        prompts.set_undefined_behavior(UndefinedBehavior::Strict);
        let mut hashes = BTreeMap::new();
        let files = file.prompts;
        for (name, relative) in
            [("system", files.system), ("task", files.task), ("format_error", files.format_error)]
        {
            let path = format!("envs/{relative}");
            let text = data.text(&path)?;
            hashes.insert(name.to_owned(), digest::sha256(text.as_bytes()));
            prompts
                .add_template_owned(name.to_owned(), text.trim_end().to_owned())
                .map_err(|error| form(&path, error.to_string()))?;
        }
        Ok(Self {
            name: file.name,
            tools: file.tools,
            dialect: file.dialect,
            calls_per_turn: file.calls_per_turn,
            observation_chars: file.observation_chars,
            hashes,
            prompts,
        })
    }

    /// The system prompt.
    ///
    /// # Errors
    /// When the template fails.
    pub fn system(&self, values: &PromptValues<'_>) -> Result<String, ToolsError> {
        self.render("system", minijinja::Value::from(minijinja::value::Serde(values)))
    }

    /// The first message of the user.
    ///
    /// # Errors
    /// When the template fails.
    pub fn task(&self, values: &PromptValues<'_>) -> Result<String, ToolsError> {
        self.render("task", minijinja::Value::from(minijinja::value::Serde(values)))
    }

    /// What a model is told about a reply that could not be read.
    ///
    /// # Errors
    /// When the template fails.
    pub fn format_error(&self, error: &FormatError) -> Result<String, ToolsError> {
        self.render(
            "format_error",
            context! { code => error.code, detail => error.detail.as_str() },
        )
    }

    fn render(&self, name: &str, values: minijinja::Value) -> Result<String, ToolsError> {
        self.prompts.get_template(name).and_then(|template| template.render(values)).map_err(
            |source| ToolsError::Template { set: self.name.clone(), name: name.to_owned(), source },
        )
    }
}
