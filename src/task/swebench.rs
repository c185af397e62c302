//! Rows of the SWE-bench family.

use serde_json::Map;
use serde_json::Value;

use crate::task::AnswerKey;
use crate::task::EvalType;
use crate::task::Instance;
use crate::task::RepositorySource;
use crate::task::Task;
use crate::task::lists;
use crate::task::rows;
use crate::task::rows::FieldError;

/// Where the repository stands in the images of the SWE-bench family.
pub const WORKDIR: &str = "/testbed";

/// Log parsers of the repositories whose older rows name none.
const PARSERS: [(&str, &str); 18] = [
    ("astropy/astropy", "parse_log_astropy"),
    ("django/django", "parse_log_django"),
    ("marshmallow-code/marshmallow", "parse_log_marshmallow"),
    ("matplotlib/matplotlib", "parse_log_matplotlib"),
    ("mwaskom/seaborn", "parse_log_seaborn"),
    ("pallets/flask", "parse_log_flask"),
    ("psf/requests", "parse_log_requests"),
    ("pvlib/pvlib-python", "parse_log_pvlib"),
    ("pydata/xarray", "parse_log_xarray"),
    ("pydicom/pydicom", "parse_log_pydicom"),
    ("pylint-dev/astroid", "parse_log_astroid"),
    ("pylint-dev/pylint", "parse_log_pylint"),
    ("pytest-dev/pytest", "parse_log_pytest"),
    ("pyvista/pyvista", "parse_log_pyvista"),
    ("scikit-learn/scikit-learn", "parse_log_scikit"),
    ("sphinx-doc/sphinx", "parse_log_sphinx"),
    ("sqlfluff/sqlfluff", "parse_log_sqlfluff"),
    ("sympy/sympy", "parse_log_sympy"),
];

/// Reads a row.
///
/// A field's name may be written in small letters, and null counts as absent. Fails when one of `instance_id`, `repo`,
/// `base_commit`, `problem_statement` and `FAIL_TO_PASS` is missing or empty, or a field has the wrong type.
/// Fields that are not used are ignored.
pub fn instance(row: &Map<String, Value>) -> Result<Instance, FieldError> {
    let row = Fields(row);
    let id = row.required(rows::ID)?;
    let repo = row.required("repo")?;
    let image = row.text("image")?.filter(|image| !image.is_empty());
    let log_parser = row.text("log_parser")?.filter(|name| !name.is_empty());
    let fail_to_pass = row.list("FAIL_TO_PASS")?;
    if fail_to_pass.is_empty() {
        return Err(FieldError { field: "FAIL_TO_PASS", problem: "names no test".to_owned() });
    }
    let key = AnswerKey {
        gold_patch: row.text("patch")?.unwrap_or_default(),
        test_patch: row.text("test_patch")?.unwrap_or_default(),
        fail_to_pass,
        pass_to_pass: row.list("PASS_TO_PASS")?,
        hints: row.text("hints_text")?.unwrap_or_default(),
        test_cmd: row.text("test_cmd")?,
        eval_script: row.text("eval_script")?,
        log_parser: log_parser.unwrap_or_else(|| parser_of(&repo).to_owned()),
        eval_type: row.eval_type()?,
    };
    let task = Task {
        id,
        base_commit: row.required("base_commit")?,
        problem_statement: row.required("problem_statement")?,
        version: row.text_or_number("version")?,
        created_at: row.text_or_number("created_at")?,
        workdir: row.text("workdir")?.unwrap_or_else(|| WORKDIR.to_owned()),
        requires: row.list("requires")?,
        source: if image.is_some() { RepositorySource::Image } else { RepositorySource::Unknown },
        image,
        repo,
    };
    Ok(Instance { task, key })
}

/// The log parser of a repository; empty for one that SWE-bench does not have.
fn parser_of(repo: &str) -> &'static str {
    PARSERS.iter().find(|(name, _)| *name == repo).map_or("", |(_, parser)| parser)
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn value(&self, field: &str) -> Option<&'a Value> {
        [field, &field.to_ascii_lowercase()]
            .iter()
            .find_map(|name| self.0.get(*name).filter(|value| !value.is_null()))
    }

    fn text(&self, field: &'static str) -> Result<Option<String>, FieldError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(FieldError {
                field,
                problem: format!("expected a text, found {}", lists::kind(other)),
            }),
        }
    }

    fn required(&self, field: &'static str) -> Result<String, FieldError> {
        let text =
            self.text(field)?.ok_or_else(|| FieldError { field, problem: "missing".to_owned() })?;
        if text.trim().is_empty() {
            return Err(FieldError { field, problem: "empty".to_owned() });
        }
        Ok(text)
    }

    /// Some data sets write versions and dates as numbers.
    fn text_or_number(&self, field: &'static str) -> Result<String, FieldError> {
        match self.value(field) {
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => Ok(self.text(field)?.unwrap_or_default()),
        }
    }

    fn list(&self, field: &'static str) -> Result<Vec<String>, FieldError> {
        let value = self.value(field).unwrap_or(&Value::Null);
        lists::texts(value).map_err(|error| FieldError { field, problem: error.to_string() })
    }

    fn eval_type(&self) -> Result<EvalType, FieldError> {
        match self.text("eval_type")?.as_deref() {
            None | Some("pass_and_fail") => Ok(EvalType::PassAndFail),
            Some("fail_only") => Ok(EvalType::FailOnly),
            Some(other) => {
                let problem = format!("expected pass_and_fail or fail_only, found `{other}`");
                Err(FieldError { field: "eval_type", problem })
            }
        }
    }
}
