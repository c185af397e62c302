//! Tool sets: what a model is told of each tool, and the sentences tools answer with.

use std::collections::BTreeMap;

use minijinja::Environment;
use minijinja::UndefinedBehavior;
use serde::Deserialize;
use serde::Serialize;

use crate::data::Data;
use crate::protocol::message::ToolSchema;
use crate::tools::ToolsError;

/// A tool set from `tools/NAME.yaml`.
#[derive(Debug)]
pub struct ToolSet {
    /// Its name.
    pub name: String,
    /// Its tools, in the order the model is told of them.
    pub tools: Vec<ToolSchema>,
    messages: Environment<'static>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetFile {
    name: String,
    tools: Vec<ToolSchema>,
    messages: BTreeMap<String, String>,
}

impl ToolSet {
    /// Reads the set `name`.
    ///
    /// # Errors
    /// When there is no such set, or its file is not of the expected form.
    pub fn load(data: &Data, name: &str) -> Result<Self, ToolsError> {
        let path = format!("tools/{name}.yaml");
        let form = |problem: String| ToolsError::Form { path: path.clone(), problem };
        let file: SetFile =
            serde_saphyr::from_str(data.text(&path)?).map_err(|error| form(error.to_string()))?;
        let mut messages = Environment::new();
        messages.set_undefined_behavior(UndefinedBehavior::Strict);
        for (name, template) in file.messages {
            messages.add_template_owned(name, template).map_err(|error| form(error.to_string()))?;
        }
        Ok(Self { name: file.name, tools: file.tools, messages })
    }

    /// The tool `name`.
    pub fn tool(&self, name: &str) -> Option<&ToolSchema> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Renders the message `name`.
    ///
    /// # Errors
    /// When the set has no such message or the template uses a variable that `values` lacks: a fault of the set.
    pub fn say(&self, name: &str, values: impl Serialize) -> Result<String, ToolsError> {
        self.messages
            .get_template(name)
            .and_then(|template| {
                template.render(minijinja::Value::from(minijinja::value::Serde(&values)))
            })
            .map_err(|source| ToolsError::Template {
                set: self.name.clone(),
                name: name.to_owned(),
                source,
            })
    }
}
