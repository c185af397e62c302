//! The configuration of a run: defaults, then YAML files and `key=value` settings in the order given, then flags.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

use crate::protocol::message::Sampling;
use crate::protocol::record::Limits;
use crate::text;

/// Everything that decides how attempts are played and graded. The resolved copy goes into the manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Agent preset: a name below `envs/agents/`.
    pub agent: String,
    /// Where attempts run: `auto`, `local` or `docker`.
    pub sandbox: String,
    /// What keeps a local sandbox apart from the machine: `auto`, `namespaces`, `landlock` or `none`.
    pub isolation: String,
    /// What sandboxes can reach.
    pub network: NetworkConfig,
    /// The Python environments of real repositories.
    pub prepare: PrepareConfig,
    /// Limits of an attempt.
    pub limits: Limits,
    /// Sampling settings of every request.
    pub sampling: Sampling,
    /// The model's server.
    pub server: ServerConfig,
    /// Grading.
    pub grade: GradeConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agent: "navigator".into(),
            sandbox: "auto".into(),
            isolation: "auto".into(),
            network: NetworkConfig::default(),
            prepare: PrepareConfig::default(),
            limits: Limits::default(),
            sampling: Sampling::default(),
            server: ServerConfig::default(),
            grade: GradeConfig::default(),
        }
    }
}

/// What sandboxes can reach, by phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// While a repository is installed: `none` or `full`.
    pub prepare: String,
    /// While the model acts: `none` or `full`.
    pub agent: String,
    /// While tests run: `none`, `full`, or `auto` (full for benchmark rows as their official graders do, else none).
    pub grade: String,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self { prepare: "full".into(), agent: "none".into(), grade: "auto".into() }
    }
}

/// How the Python environments of real repositories are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareConfig {
    /// Whether the index, certificates and proxies that this machine's pip is set to are used: `passed` or `ignored`.
    pub settings: String,
    /// Environment variables of installations, such as `PIP_INDEX_URL`; win over the machine's settings.
    pub env: BTreeMap<String, String>,
    /// Seconds an installation may take.
    pub timeout: u64,
}

impl Default for PrepareConfig {
    fn default() -> Self {
        Self { settings: "passed".into(), env: BTreeMap::new(), timeout: 1800 }
    }
}

/// How a model's server is spoken to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address of an OpenAI-compatible API; empty for offline models.
    pub base_url: String,
    /// Environment variable that holds the API key.
    pub api_key_env: String,
    /// Fields merged into every request body.
    pub extra_body: Map<String, Value>,
    /// Headers sent with every request.
    pub extra_headers: BTreeMap<String, String>,
    /// Whether the model's reasoning is sent back: `keep`, `drop` or `last`.
    pub reasoning: String,
    /// Seconds to connect.
    pub connect_timeout: u64,
    /// Seconds until the first byte of an answer.
    pub first_byte_timeout: u64,
    /// Seconds between two pieces of an answer.
    pub idle_timeout: u64,
    /// Seconds for a whole answer.
    pub total_timeout: u64,
    /// Retries of a request that failed for a passing reason.
    pub retries: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            base_url: String::new(),
            api_key_env: "OPENAI_API_KEY".into(),
            extra_body: Map::new(),
            extra_headers: BTreeMap::new(),
            reasoning: "keep".into(),
            connect_timeout: 10,
            first_byte_timeout: 600,
            idle_timeout: 120,
            total_timeout: 1200,
            retries: 8,
        }
    }
}

/// How patches are graded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GradeConfig {
    /// Grade each attempt when it ends.
    pub enabled: bool,
    /// Seconds the tests may take.
    pub timeout: u64,
}

impl Default for GradeConfig {
    fn default() -> Self {
        Self { enabled: true, timeout: 1800 }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A file is not YAML.
    #[error("read `{file}`: {problem}")]
    Syntax {
        /// The file.
        file: String,
        /// What is wrong, with its place.
        problem: String,
    },
    /// A field that does not exist.
    #[error("unknown configuration field `{field}` in {source_name}")]
    Unknown {
        /// The field with its parents.
        field: String,
        /// The file or setting it stands in.
        source_name: String,
        /// The nearest field that exists.
        nearest: Option<String>,
    },
    /// A field has a value of the wrong kind.
    #[error("set configuration field: {0}")]
    Value(String),
    /// A field has a word that is none of its words.
    #[error("configuration field `{field}` cannot be `{value}`")]
    Word {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The words it can be.
        allowed: &'static [&'static str],
    },
}

/// Fields of the configuration whose own fields are the user's.
const FREE: &[&str] = &["server.extra_body", "server.extra_headers", "prepare.env"];

impl Config {
    /// The defaults with `layers` put over them. A layer is a YAML file or `key=value` with a dotted key.
    ///
    /// # Errors
    /// When a layer cannot be read, or names a field that does not exist.
    pub fn resolve(layers: &[String]) -> Result<Self, ConfigError> {
        let mut merged = template()?;
        let known = merged.clone();
        for layer in layers {
            let (source_name, value) = read_layer(layer)?;
            check_known(&known, &value, &mut Vec::new(), &source_name)?;
            merge(&mut merged, value);
        }
        let config: Config = serde_json::from_value(without_nulls(merged))
            .map_err(|error| ConfigError::Value(error.to_string()))?;
        config.check_words()?;
        Ok(config)
    }

    /// The resolved configuration as JSON.
    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The resolved configuration for manifests, without header values, which may be credentials.
    pub fn public(&self) -> Value {
        let mut value = self.to_json();
        for (part, field) in [("server", "extra_headers"), ("prepare", "env")] {
            if let Some(fields) = value[part][field].as_object_mut() {
                fields.values_mut().for_each(|value| *value = Value::from("(not kept)"));
            }
        }
        value
    }

    fn check_words(&self) -> Result<(), ConfigError> {
        let fields: [(&'static str, &str, &'static [&'static str]); 7] = [
            ("sandbox", &self.sandbox, &["auto", "local", "docker"]),
            ("isolation", &self.isolation, &["auto", "namespaces", "landlock", "none"]),
            ("network.prepare", &self.network.prepare, &["none", "full"]),
            ("prepare.settings", &self.prepare.settings, &["passed", "ignored"]),
            ("network.agent", &self.network.agent, &["none", "full"]),
            ("network.grade", &self.network.grade, &["auto", "none", "full"]),
            ("server.reasoning", &self.server.reasoning, &["keep", "drop", "last"]),
        ];
        for (field, value, allowed) in fields {
            if !allowed.contains(&value) {
                return Err(ConfigError::Word { field, value: value.to_owned(), allowed });
            }
        }
        Ok(())
    }
}

/// The defaults as JSON, with every optional field present, so that all names are known.
fn template() -> Result<Value, ConfigError> {
    let mut template = Config::default().to_json();
    let sampling = ["temperature", "top_p", "max_tokens", "seed", "n", "logprobs", "stop"];
    template["sampling"] =
        Value::Object(sampling.map(|name| (name.to_owned(), Value::Null)).into_iter().collect());
    Ok(template)
}

fn read_layer(layer: &str) -> Result<(String, Value), ConfigError> {
    let is_file = Path::new(layer).exists() || layer.ends_with(".yaml") || layer.ends_with(".yml");
    match layer.split_once('=') {
        Some((key, text)) if !is_file => {
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            let value = key.rsplit('.').fold(value, |value, name| {
                Value::Object(Map::from_iter([(name.to_owned(), value)]))
            });
            Ok((format!("`{layer}`"), value))
        }
        Some(_) | None => {
            let text = fs_err::read_to_string(layer)?;
            let syntax = |problem: String| ConfigError::Syntax { file: layer.to_owned(), problem };
            let value: Value =
                serde_saphyr::from_str(&text).map_err(|error| syntax(error.to_string()))?;
            // An empty file sets nothing.
            let value = if value.is_null() { Value::Object(Map::new()) } else { value };
            if value.is_object() {
                Ok((format!("`{layer}`"), value))
            } else {
                Err(syntax("a mapping is expected".into()))
            }
        }
    }
}

fn check_known(
    known: &Value,
    given: &Value,
    path: &mut Vec<String>,
    source_name: &str,
) -> Result<(), ConfigError> {
    let (Value::Object(known), Value::Object(given)) = (known, given) else { return Ok(()) };
    if FREE.contains(&path.join(".").as_str()) {
        return Ok(());
    }
    for (name, value) in given {
        path.push(name.clone());
        let Some(inner) = known.get(name) else {
            return Err(ConfigError::Unknown {
                field: path.join("."),
                source_name: source_name.to_owned(),
                nearest: text::nearest(name, known.keys().map(String::as_str)).map(str::to_owned),
            });
        };
        check_known(inner, value, path, source_name)?;
        path.pop();
    }
    Ok(())
}

fn merge(base: &mut Value, layer: Value) {
    match (base, layer) {
        (Value::Object(base), Value::Object(layer)) => {
            for (name, value) in layer {
                merge(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, value) => *base = value,
    }
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        let kept = std::mem::take(fields).into_iter().filter(|(_, value)| !value.is_null());
        *fields = kept.map(|(name, value)| (name, without_nulls(value))).collect();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(layers: &[&str]) -> Result<Config, ConfigError> {
        Config::resolve(&layers.iter().map(|layer| (*layer).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn later_layers_win_and_leave_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.yaml");
        fs_err::write(&file, "limits:\n  turns: 7\n  cost: 0\nsampling: {temperature: 0.5}\n")
            .unwrap();
        let config =
            resolve(&[file.to_str().unwrap(), "limits.turns=9", "server.extra_body.min_p=0.1"])
                .unwrap();
        assert_eq!(config.limits, Limits { turns: 9, cost: 0.0, ..Limits::default() });
        assert_eq!(config.sampling.temperature, Some(0.5));
        assert_eq!(config.server.extra_body["min_p"], 0.1);
        assert_eq!(config.agent, "navigator");
    }

    #[test]
    fn unknown_fields_name_the_nearest() {
        let error = resolve(&["limits.turnz=3"]).unwrap_err();
        let ConfigError::Unknown { field, nearest, .. } = error else { panic!("{error}") };
        assert_eq!((field.as_str(), nearest.as_deref()), ("limits.turnz", Some("turns")));
        assert!(matches!(resolve(&["sampling.temperatur=1"]), Err(ConfigError::Unknown { .. })));
    }

    #[test]
    fn wrong_values_are_refused() {
        assert!(matches!(resolve(&["limits.turns=many"]), Err(ConfigError::Value(_))));
        assert!(matches!(
            resolve(&["sandbox=moon"]),
            Err(ConfigError::Word { field: "sandbox", .. })
        ));
        assert!(matches!(resolve(&["/nowhere/run.yaml"]), Err(ConfigError::Io(_))));
    }
}
