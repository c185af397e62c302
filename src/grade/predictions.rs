//! Predictions: what one system answered to each task.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::BufWriter;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::task::TaskError;
use crate::task::lists;
use crate::task::rows;
use crate::task::rows::Place;

/// The answers of one system, by instance id.
pub type Predictions = BTreeMap<String, Prediction>;

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Who answered, in the system's own words; may be empty and hold any character.
    pub model: String,
    /// The patch, byte for byte; none when the file says null.
    pub patch: Option<String>,
}

impl Prediction {
    /// Whether there is nothing to grade: no patch, or white space only.
    pub fn is_empty(&self) -> bool {
        self.patch.as_ref().is_none_or(|patch| patch.trim().is_empty())
    }
}

/// Why predictions could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PredictionError {
    /// The file could not be read as rows.
    #[error(transparent)]
    Rows(#[from] TaskError),
    /// A row lacks a key.
    #[error("{place}: missing key {key}")]
    MissingKey {
        /// The row.
        place: Place,
        /// The key.
        key: &'static str,
    },
    /// A key's value is no text.
    #[error("{place}: key {key}: expected a text, found {found}")]
    Kind {
        /// The row.
        place: Place,
        /// The key.
        key: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// Two rows have one id.
    #[error("{place}: duplicate prediction, first on line {first}")]
    Duplicate {
        /// The second row.
        place: Place,
        /// Line of the first.
        first: usize,
    },
    /// The file could not be written.
    #[error("write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

const PATCH: &str = "model_patch";
const MODEL: &str = "model_name_or_path";

/// Reads predictions in any form the field uses: a list, a map from id, a single one, or one a line.
///
/// A row needs `instance_id` and `model_patch` (a text or null); without `model_name_or_path` the model's name is
/// empty. Other keys are ignored. Fails when the file or any row cannot be read, and when two rows have one id.
pub fn read(path: &Path) -> Result<Predictions, PredictionError> {
    let mut predictions = Predictions::new();
    let mut lines = BTreeMap::new();
    for row in rows::read(path)? {
        let row = row?;
        let text = |key| match row.fields.get(key) {
            None => Err(PredictionError::MissingKey { place: row.place(), key }),
            Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => {
                Err(PredictionError::Kind { place: row.place(), key, found: lists::kind(other) })
            }
        };
        let id = text(rows::ID)?.filter(|id| !id.is_empty());
        let id =
            id.ok_or_else(|| PredictionError::MissingKey { place: row.place(), key: rows::ID })?;
        let patch = text(PATCH)?;
        let model = if row.fields.contains_key(MODEL) {
            text(MODEL)?.unwrap_or_default()
        } else {
            String::new()
        };
        if let Some(first) = lines.insert(id.clone(), row.line) {
            return Err(PredictionError::Duplicate { place: row.place(), first });
        }
        predictions.insert(id, Prediction { model, patch });
    }
    Ok(predictions)
}

/// Writes predictions as SWE-agent's `preds.json` does: a map from id, null patches as empty text, patches unchanged.
///
/// The file is whole at every moment: it is written beside its place, synced and renamed.
pub fn write(path: &Path, predictions: &Predictions) -> Result<(), PredictionError> {
    replace(path, predictions)
        .map_err(|source| PredictionError::Write { file: path.to_owned(), source })
}

#[derive(Serialize)]
struct Written<'a> {
    model_name_or_path: &'a str,
    instance_id: &'a str,
    model_patch: &'a str,
}

fn replace(path: &Path, predictions: &Predictions) -> std::io::Result<()> {
    let map: BTreeMap<&str, Written<'_>> = predictions
        .iter()
        .map(|(id, prediction)| {
            let model_patch = prediction.patch.as_deref().unwrap_or_default();
            (
                id.as_str(),
                Written { model_name_or_path: &prediction.model, instance_id: id, model_patch },
            )
        })
        .collect();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A temporary file is private by default; predictions are as readable as any file the user makes.
    let readable = Permissions::from_mode(0o666);
    let mut file = BufWriter::new(tempfile::Builder::new().permissions(readable).tempfile_in(dir)?);
    serde_json::to_writer_pretty(&mut file, &map)?;
    file.write_all(b"\n")?;
    let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs_err::File::open(dir)?.sync_all()
}

/// The ids of a data set and of predictions for it. Every id of the data set is in exactly one of the first three lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Answered with a patch.
    pub to_grade: BTreeSet<String>,
    /// Answered with nothing.
    pub empty_patch: BTreeSet<String>,
    /// Not answered.
    pub not_submitted: BTreeSet<String>,
    /// Answers to ids that the data set does not have; they count nowhere.
    pub not_in_dataset: BTreeSet<String>,
}

impl Coverage {
    /// Compares predictions with the ids of a data set.
    pub fn new<'a>(predictions: &Predictions, dataset: impl IntoIterator<Item = &'a str>) -> Self {
        let mut coverage = Coverage::default();
        for id in dataset {
            let list = match predictions.get(id) {
                Some(prediction) if prediction.is_empty() => &mut coverage.empty_patch,
                Some(_) => &mut coverage.to_grade,
                None => &mut coverage.not_submitted,
            };
            list.insert(id.to_owned());
        }
        let known = |id: &String| {
            [&coverage.to_grade, &coverage.empty_patch].iter().any(|list| list.contains(id))
        };
        coverage.not_in_dataset = predictions.keys().filter(|id| !known(id)).cloned().collect();
        coverage
    }

    /// Instances of the data set that were answered.
    pub fn submitted(&self) -> usize {
        self.to_grade.len() + self.empty_patch.len()
    }

    /// Instances of the data set: what a headline divides by.
    pub fn total(&self) -> usize {
        self.submitted() + self.not_submitted.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Predictions, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs_err::write(&path, text).unwrap();
        read(&path)
            .map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
    }

    #[test]
    fn errors_name_the_row_and_the_key() {
        let said = |name, text| read_text(name, text).unwrap_err();
        assert_eq!(
            said("p.jsonl", "\n{\"model_patch\": \"\"}"),
            "p.jsonl line 2: missing key instance_id"
        );
        assert_eq!(
            said("p.jsonl", "{\"instance_id\": \"a\"}"),
            "p.jsonl line 1 (a): missing key model_patch"
        );
        assert_eq!(
            said("p.json", "{\n \"a\": {\"model_patch\": [\"x\"]}}"),
            "p.json line 2 (a): key model_patch: expected a text, found a list"
        );
        assert_eq!(
            said("p.json", "{\"a\": \"diff\"}"),
            "p.json line 1 (a): expected an object, found a text"
        );
        assert_eq!(
            said("p.json", "{\"a\": {\"model_patch\": \"1\"},\n \"a\": {\"model_patch\": \"2\"}}"),
            "p.json line 2 (a): duplicate prediction, first on line 1"
        );
        assert_eq!(said("p.txt", "[]"), "p.txt: not a .json, .jsonl or .yaml file");
    }

    #[test]
    fn a_row_needs_no_model_name_and_may_stand_alone() {
        let expected =
            Predictions::from([("a".to_owned(), Prediction { model: String::new(), patch: None })]);
        assert_eq!(
            read_text("p.json", "\n{\"instance_id\": \"a\", \"model_patch\": null}").unwrap(),
            expected
        );
        assert_eq!(read_text("p.json", "{\"a\": {\"model_patch\": null}}").unwrap(), expected);
    }

    #[test]
    fn a_written_file_has_the_form_of_swe_agent_and_usual_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("preds.json");
        let umask_applied = fs_err::File::create(dir.path().join("other"))
            .unwrap()
            .metadata()
            .unwrap()
            .permissions();
        let patch =
            |patch: &str| Prediction { model: "org/m".to_owned(), patch: Some(patch.to_owned()) };
        write(&path, &Predictions::from([("b-2".to_owned(), patch("old"))])).unwrap();
        let none = Prediction { model: String::new(), patch: None };
        write(
            &path,
            &Predictions::from([
                ("b-2".to_owned(), none),
                ("a-1".to_owned(), patch(" \n-x\r\n \n")),
            ]),
        )
        .unwrap();
        let expected = r#"{
  "a-1": {
    "model_name_or_path": "org/m",
    "instance_id": "a-1",
    "model_patch": " \n-x\r\n \n"
  },
  "b-2": {
    "model_name_or_path": "",
    "instance_id": "b-2",
    "model_patch": ""
  }
}
"#;
        assert_eq!(fs_err::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs_err::metadata(&path).unwrap().permissions(), umask_applied);
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 2, "a temporary file was left");
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing").join("preds.json");
        let error = write(&path, &Predictions::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("write {}", path.display()));
        assert!(std::error::Error::source(&error).is_some());
    }

    proptest! {
        #[test]
        fn patches_come_back_byte_for_byte(patch in any::<String>(), model in any::<String>(), id in "[a-z]{1,5}") {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("preds.json");
            let predictions = Predictions::from([(id, Prediction { model, patch: Some(patch) })]);
            write(&path, &predictions).unwrap();
            prop_assert_eq!(read(&path).unwrap(), predictions);
        }
    }
}
