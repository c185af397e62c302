//! Checks a call's arguments against the tool's schema. Conversions are exact or not made.

use serde::Serialize;
use serde_json::Map;
use serde_json::Value;

use crate::protocol::message::ToolSchema;
use crate::text;

/// A mistake of the model in calling a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArgumentMistake {
    /// Which message of the tool set tells it: `missing_argument`, `unknown_argument` or `wrong_argument`.
    #[serde(skip)]
    pub code: &'static str,
    /// The tool.
    pub tool: String,
    /// The argument.
    pub argument: String,
    /// What the argument must be.
    pub expected: String,
    /// The nearest argument that exists.
    pub nearest: Option<String>,
}

/// Arguments that were checked against the tool's schema, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Arguments(Map<String, Value>);

impl Arguments {
    /// An argument, when it was given or has a default.
    pub fn given(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A text; empty when it was not given.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A whole number; 0 when it was not given.
    pub fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or_default()
    }

    /// A truth value; false when it was not given.
    pub fn is(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }
}

/// The arguments of a call with defaults filled in, or the first mistake.
///
/// Numbers and truth values written as text (`"12"`, `"true"`) are taken for what they are where the schema asks for
/// them; `null` is an argument not given.
///
/// # Errors
/// When an argument is missing, unknown or of the wrong kind.
pub fn check(
    schema: &ToolSchema,
    arguments: &Map<String, Value>,
) -> Result<Arguments, ArgumentMistake> {
    let no_properties = Map::new();
    let properties = schema.parameters["properties"].as_object().unwrap_or(&no_properties);
    let mistake = |code, argument: &str| ArgumentMistake {
        code,
        tool: schema.name.clone(),
        argument: argument.to_owned(),
        expected: String::new(),
        nearest: None,
    };
    if let Some(unknown) = arguments.keys().find(|name| !properties.contains_key(*name)) {
        let nearest =
            text::nearest(unknown, properties.keys().map(String::as_str)).map(str::to_owned);
        return Err(ArgumentMistake { nearest, ..mistake("unknown_argument", unknown) });
    }
    let required: Vec<&str> = schema.parameters["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut checked = Map::new();
    for (name, property) in properties {
        let given = arguments.get(name).filter(|value| !value.is_null());
        let Some(value) = given else {
            if required.contains(&name.as_str()) {
                return Err(mistake("missing_argument", name));
            }
            if let Some(default) = property.get("default") {
                checked.insert(name.clone(), default.clone());
            }
            continue;
        };
        match convert(property, value) {
            Ok(value) => checked.insert(name.clone(), value),
            Err(expected) => {
                return Err(ArgumentMistake { expected, ..mistake("wrong_argument", name) });
            }
        };
    }
    Ok(Arguments(checked))
}

fn convert(property: &Value, value: &Value) -> Result<Value, String> {
    match property["type"].as_str() {
        Some("integer") => {
            let number = match value {
                Value::Number(number) => number.as_i64().or_else(|| {
                    // Some servers write whole numbers as 3.0.
                    number
                        .as_f64()
                        .filter(|float| float.fract() == 0.0 && float.abs() < 9e15)
                        .map(|float| float as i64)
                }),
                Value::String(text) => text.trim().parse().ok(),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
            };
            let (least, most) = (property["minimum"].as_i64(), property["maximum"].as_i64());
            match number {
                Some(number)
                    if least.is_none_or(|least| number >= least)
                        && most.is_none_or(|most| number <= most) =>
                {
                    Ok(Value::from(number))
                }
                Some(_) | None => Err(match (least, most) {
                    (Some(least), Some(most)) => format!("a whole number from {least} to {most}"),
                    (Some(least), None) => format!("a whole number of at least {least}"),
                    (None, _) => "a whole number".into(),
                }),
            }
        }
        Some("boolean") => {
            let written = value.as_str().and_then(|text| text.to_ascii_lowercase().parse().ok());
            value.as_bool().or(written).map(Value::Bool).ok_or_else(|| "true or false".into())
        }
        Some("string") => match (value, property["enum"].as_array()) {
            (Value::String(_), None) => Ok(value.clone()),
            (Value::String(_), Some(allowed)) if allowed.contains(value) => Ok(value.clone()),
            (_, Some(allowed)) => {
                let words: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
                Err(format!("one of {}", words.join(", ")))
            }
            (_, None) => Err("text".into()),
        },
        _ => Ok(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> ToolSchema {
        ToolSchema {
            name: "look".into(),
            description: String::new(),
            parameters: json!({"type": "object", "required": ["path"], "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
                "all": {"type": "boolean", "default": false},
                "how": {"type": "string", "enum": ["fast", "slow"]}
            }}),
        }
    }

    fn checked(arguments: Value) -> Result<Value, (&'static str, String)> {
        check(&schema(), arguments.as_object().unwrap())
            .map(|arguments| Value::Object(arguments.0))
            .map_err(|mistake| (mistake.code, mistake.argument))
    }

    #[test]
    fn exact_conversions_are_made_and_defaults_filled_in() {
        assert_eq!(
            checked(json!({"path": "a"})),
            Ok(json!({"path": "a", "line": 1, "all": false}))
        );
        assert_eq!(
            checked(json!({"path": "a", "line": "7", "all": "True", "how": null})),
            Ok(json!({"path": "a", "line": 7, "all": true}))
        );
        assert_eq!(checked(json!({"path": "a", "line": 3.0})).unwrap()["line"], json!(3));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(checked(json!({})), Err(("missing_argument", "path".into())));
        assert_eq!(
            checked(json!({"path": "a", "lin": 1})),
            Err(("unknown_argument", "lin".into()))
        );
        for wrong in [json!("x"), json!(0), json!(101), json!(1.5), json!(true), json!([1])] {
            assert_eq!(
                checked(json!({"path": "a", "line": wrong})),
                Err(("wrong_argument", "line".into()))
            );
        }
        assert_eq!(checked(json!({"path": 3})), Err(("wrong_argument", "path".into())));
        assert_eq!(
            checked(json!({"path": "a", "how": "medium"})),
            Err(("wrong_argument", "how".into()))
        );
        let mistake =
            check(&schema(), json!({"path": "a", "lin": 1}).as_object().unwrap()).unwrap_err();
        assert_eq!(mistake.nearest.as_deref(), Some("line"));
    }
}
