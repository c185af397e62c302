//! What a run is made of, written once into `manifest.json`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use crate::digest;

/// What a run is made of. Everything in `identity` must be the same for the run to be resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of patchgym that started the run.
    pub patchgym: String,
    /// The run's name.
    pub run_id: String,
    /// When it was started, seconds since the Unix epoch.
    pub started: f64,
    /// Attempts measure nothing, because the model is shown the answers.
    pub uses_gold: bool,
    /// What keeps sandboxes apart from the machine.
    pub isolation: String,
    /// The network policy of each phase.
    pub network: BTreeMap<String, String>,
    /// Kernel and architecture.
    pub machine: String,
    /// What decides the results.
    pub identity: Identity,
}

/// What decides the results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Where the tasks come from.
    pub tasks: String,
    /// The tasks' ids, in order.
    pub instances: Vec<String>,
    /// SHA-256 over the tasks with their answers.
    pub tasks_sha256: String,
    /// The model as it was named.
    pub model: String,
    /// Attempts per task.
    pub attempts: u32,
    /// SHA-256 of each prompt template and of the tool set.
    pub prompts: BTreeMap<String, String>,
    /// The resolved configuration.
    pub config: Value,
}

impl Identity {
    /// Eight hexadecimal digits that tell identities apart in names.
    pub fn short_hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        digest::sha256(&text)[..8].to_owned()
    }

    /// One line per difference: what, before, now.
    pub fn differences(&self, now: &Identity) -> Vec<String> {
        let value = |identity: &Identity| serde_json::to_value(identity).unwrap_or_default();
        let mut lines = Vec::new();
        compare(&value(self), &value(now), "", &mut lines);
        lines
    }
}

fn compare(before: &Value, now: &Value, path: &str, lines: &mut Vec<String>) {
    if before == now {
        return;
    }
    if let (Value::Object(before), Value::Object(now)) = (before, now) {
        let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let of = |fields: &serde_json::Map<String, Value>| {
                fields.get(name).cloned().unwrap_or(Value::Null)
            };
            compare(&of(before), &of(now), &path, lines);
        }
        return;
    }
    let short = |value: &Value| {
        value
            .as_array()
            .map_or_else(|| value.to_string(), |items| format!("{} entries", items.len()))
    };
    lines.push(format!("  {path}: {} then, {} now", short(before), short(now)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_each_setting() {
        let identity = Identity {
            tasks: "demo".into(),
            instances: vec!["a".into()],
            tasks_sha256: "0".into(),
            model: "m".into(),
            attempts: 1,
            prompts: BTreeMap::new(),
            config: json!({"limits": {"turns": 100}}),
        };
        let mut other = identity.clone();
        other.config = json!({"limits": {"turns": 50}});
        other.model = "n".into();
        assert_eq!(
            identity.differences(&other),
            ["  config.limits.turns: 100 then, 50 now", "  model: \"m\" then, \"n\" now"]
        );
        assert_ne!(identity.short_hash(), other.short_hash());
    }
}
