//! Which model plays which instance.

use std::sync::Arc;

use serde_json::json;

use crate::data::Data;
use crate::model::Model;
use crate::model::ModelError;
use crate::model::recorded::Recorded;
use crate::model::script::Script;
use crate::task::Instance;

/// Who plays.
#[derive(Clone)]
pub enum Cast {
    /// The same model everywhere.
    One(Arc<dyn Model>),
    /// The answer key is applied: for checking tasks, never for measuring.
    Gold,
    /// The recorded demonstration of each bundled task; a name with `.fail` added where it is a failing one.
    Demonstrations {
        /// Where the recordings are.
        data: Arc<Data>,
        /// Added to the instance's id.
        suffix: &'static str,
    },
}

impl Cast {
    /// The model for an instance.
    ///
    /// # Errors
    /// When there is no recording for it.
    pub fn model_for(&self, instance: &Instance) -> Result<Arc<dyn Model>, ModelError> {
        match self {
            Cast::One(model) => Ok(Arc::clone(model)),
            Cast::Gold => Ok(Arc::new(gold(&instance.key.gold_patch)?)),
            Cast::Demonstrations { data, suffix } => {
                let path = format!("trajectories/demos/{}{suffix}.jsonl", instance.task.id);
                let file =
                    data.file(&path).map_err(|error| ModelError::Setup(error.to_string()))?;
                Ok(Arc::new(Recorded::from_lines(&path, file.bytes.as_slice())?))
            }
        }
    }
}

/// A model that applies a patch and submits. The patch travels as base64, whose letters mean nothing to a shell.
fn gold(patch: &str) -> Result<Script, ModelError> {
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, patch);
    let command = format!("base64 -d <<'END' | git apply --whitespace=nowarn -\n{encoded}\nEND\n");
    let turns = json!({"turns": [
        {"thought": "Apply the reference patch.", "calls": [{"tool": "run", "arguments": {"command": command}}]},
        {"thought": "Done.", "calls": [{"tool": "submit"}]},
    ]});
    Script::parse("gold", &turns.to_string())
}
