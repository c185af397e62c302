//! Rows of a JSON or JSON-lines file, each with the line it begins on.

use std::fmt;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::MapAccess;
use serde::de::SeqAccess;
use serde::de::Visitor;
use serde_json::Map;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::task::TaskError;
use crate::task::lists;

/// The field that names a row.
pub const ID: &str = "instance_id";

/// Where something stands, as error messages name it: `tasks.jsonl line 3 (demo__a-1)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as the user wrote it.
    pub file: PathBuf,
    /// The line, from 1; none when the whole file is meant.
    pub line: Option<usize>,
    /// The instance, when it is known.
    pub id: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(formatter, " line {line}")?;
        }
        if let Some(id) = &self.id {
            write!(formatter, " ({id})")?;
        }
        Ok(())
    }
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The file and the line it begins on.
    pub file: PathBuf,
    /// The line it begins on, from 1.
    pub line: usize,
    /// Its fields; in a map from id to row, the id is one of them.
    pub fields: Map<String, Value>,
}

impl Row {
    /// Where it stands.
    pub fn place(&self) -> Place {
        let id = self.fields.get(ID).and_then(Value::as_str).map(ToOwned::to_owned);
        Place { file: self.file.clone(), line: Some(self.line), id }
    }
}

/// What is wrong with a field of a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {problem}")]
pub struct FieldError {
    /// The field, as the benchmark spells it.
    pub field: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// The rows of a file, or for each what makes it unreadable.
///
/// `.jsonl` and `.ndjson` hold a row a line (blank lines do not count); `.json` holds a list of rows, a map from id to
/// row, or one row. A byte order mark is skipped. Fails when the file cannot be read or a `.json` file is not JSON.
pub fn read(path: &Path) -> Result<Vec<Result<Row, TaskError>>, TaskError> {
    let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
    match suffix {
        "jsonl" | "ndjson" => Ok(lines(&fs_err::read(path)?, path)),
        "json" => document(&fs_err::read(path)?, path),
        _ => Err(TaskError::Suffix { file: path.to_owned() }),
    }
}

fn lines(bytes: &[u8], file: &Path) -> Vec<Result<Row, TaskError>> {
    without_mark(bytes)
        .split(|byte| *byte == b'\n')
        .zip(1..)
        .filter(|(bytes, _)| !bytes.trim_ascii().is_empty())
        .map(|(bytes, line)| match str::from_utf8(bytes) {
            Ok(text) => row(text, None, file, line),
            Err(_) => Err(TaskError::Encoding { place: at(file, line) }),
        })
        .collect()
}

/// The rows of a JSON text; `file` is the name it has in errors.
pub fn document(bytes: &[u8], file: &Path) -> Result<Vec<Result<Row, TaskError>>, TaskError> {
    let bytes = without_mark(bytes);
    let text = str::from_utf8(bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        TaskError::Encoding { place: at(file, before + 1) }
    })?;
    let Document(parts) =
        serde_json::from_str(text).map_err(|error| json_error(&error, file, 1))?;
    let mut line = 1;
    let mut counted = 0;
    if parts.iter().any(|(key, _)| key.as_deref() == Some(ID)) {
        let blank = text.len() - text.trim_start().len();
        return Ok(vec![row(text.trim(), None, file, 1 + text[..blank].matches('\n').count())]);
    }
    let rows = parts.into_iter().map(|(key, raw)| {
        // A raw value borrows from `text`, so its address tells where it stands.
        let start = raw.get().as_ptr().addr() - text.as_ptr().addr();
        line += text[counted..start].matches('\n').count();
        counted = start;
        row(raw.get(), key, file, line)
    });
    Ok(rows.collect())
}

fn row(text: &str, key: Option<String>, file: &Path, line: usize) -> Result<Row, TaskError> {
    let value = serde_json::from_str(text).map_err(|error| json_error(&error, file, line))?;
    let Value::Object(mut fields) = value else {
        let place = Place { id: key, ..at(file, line) };
        return Err(TaskError::Shape { place, expected: "an object", found: lists::kind(&value) });
    };
    if let Some(key) = key {
        match fields.get(ID) {
            None => {
                fields.insert(ID.to_owned(), Value::String(key));
            }
            Some(id) if id.as_str() == Some(&key) => {}
            Some(_) => {
                let place = Place { id: Some(key), ..at(file, line) };
                let field =
                    FieldError { field: ID, problem: "differs from the key of the row".to_owned() };
                return Err(TaskError::Field { place, field });
            }
        }
    }
    Ok(Row { file: file.to_owned(), line, fields })
}

fn at(file: &Path, line: usize) -> Place {
    Place { file: file.to_owned(), line: Some(line), id: None }
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// An error of a text that begins on line `first` of the file.
fn json_error(error: &serde_json::Error, file: &Path, first: usize) -> TaskError {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    TaskError::Json {
        place: at(file, first + error.line().saturating_sub(1)),
        column: error.column(),
        problem: message.strip_suffix(&position).unwrap_or(&message).to_owned(),
    }
}

/// The unread values of a list or a map; a map keeps keys that occur twice.
struct Document<'a>(Vec<(Option<String>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Document<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;

        impl<'de> Visitor<'de> for Parts {
            type Value = Document<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of rows or a map from id to row")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(value) = list.next_element()? {
                    parts.push((None, value));
                }
                Ok(Document(parts))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some((key, value)) = map.next_entry()? {
                    parts.push((Some(key), value));
                }
                Ok(Document(parts))
            }
        }

        deserializer.deserialize_any(Parts)
    }
}
