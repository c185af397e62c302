//! Tasks and predictions as the field publishes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use patchgym::grade::predictions;
use patchgym::grade::predictions::Coverage;
use patchgym::task::EvalType;
use patchgym::task::RepositorySource;
use patchgym::task::rows;
use patchgym::task::source;
use patchgym::task::swebench;
use serde_json::Value;

/// A path in the shared test data, when that is there.
fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn published_rows_load_whole() {
    for (file, count) in
        [("core_python.jsonl", 52), ("multilingual.jsonl", 29), ("multimodal_dev.jsonl", 5)]
    {
        let Some(path) = shared(&format!("data/swebench/instances/{file}")) else { return };
        let loaded = source::load(&path).unwrap();
        assert_eq!(
            loaded.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            Vec::<String>::new()
        );
        assert_eq!(loaded.instances.len(), count, "{file}");
        for (instance, row) in loaded.instances.iter().zip(rows::read(&path).unwrap()) {
            let row = row.unwrap().fields;
            let (task, key) = (&instance.task, &instance.key);
            let id = &task.id;
            for (field, value) in [
                ("instance_id", &task.id),
                ("repo", &task.repo),
                ("base_commit", &task.base_commit),
                ("problem_statement", &task.problem_statement),
                ("version", &task.version),
                ("created_at", &task.created_at),
                ("image", task.image.as_ref().unwrap()),
                ("patch", &key.gold_patch),
                ("test_patch", &key.test_patch),
                ("hints_text", &key.hints),
                ("eval_script", key.eval_script.as_ref().unwrap()),
                ("log_parser", &key.log_parser),
            ] {
                assert_eq!(row[field].as_str(), Some(value.as_str()), "{id} {field}");
            }
            for (field, list) in
                [("FAIL_TO_PASS", &key.fail_to_pass), ("PASS_TO_PASS", &key.pass_to_pass)]
            {
                let expected = match row[field].as_str() {
                    Some(text) => serde_json::from_str(text).unwrap(),
                    None => strings(&row[field]),
                };
                assert_eq!(list, &expected, "{id} {field}");
            }
            assert_eq!(
                key.eval_type == EvalType::FailOnly,
                row["eval_type"] == "fail_only",
                "{id}"
            );
            assert_eq!(
                (task.workdir.as_str(), &task.source),
                ("/testbed", &RepositorySource::Image),
                "{id}"
            );
            assert_eq!((&key.test_cmd, task.requires.len()), (&None, 0), "{id}");
        }
    }
}

#[test]
fn rows_without_the_newer_fields_get_their_parser_from_the_repository() {
    let Some(path) = shared("data/swebench/instances/core_python.jsonl") else { return };
    for row in rows::read(&path).unwrap() {
        let mut row = row.unwrap().fields;
        let expected = row.remove("log_parser").unwrap();
        row.remove("image");
        let instance = swebench::instance(&row).unwrap();
        assert_eq!(expected, *instance.key.log_parser);
        assert_eq!((instance.task.image, instance.task.source), (None, RepositorySource::Unknown));
    }
}

#[test]
fn rows_with_a_test_command_of_their_own_load() {
    let Some(path) = shared("cases/o02-patch-edits-test-file/instances.jsonl") else { return };
    let loaded = source::load(&path).unwrap();
    assert!(loaded.errors.is_empty());
    assert_eq!(loaded.instances.len(), 3);
    for instance in loaded.instances {
        assert_eq!(
            instance.key.test_cmd.as_deref(),
            Some("python3 -m pytest -rA tests/test_ratio.py")
        );
        assert_eq!(instance.key.log_parser, "pytest");
    }
}

#[test]
fn o20_test_lists_in_every_encoding() {
    let Some(case) = shared("cases/o20-test-list-encodings") else { return };
    let expected = json(&case.join("expected.json"));
    let file = case.join("instances.jsonl");
    let loaded = source::load(&file).unwrap();
    let mut errors = loaded.errors.iter();
    let mut instances = loaded.instances.iter();
    for (line, (id, expected)) in (1..).zip(expected.as_object().unwrap()) {
        if let Some(field) = expected.get("error_field").and_then(Value::as_str) {
            let error = errors.next().unwrap().to_string();
            let begin = format!("{} line {line} ({id}): field {field}: ", file.display());
            assert!(error.starts_with(&begin), "{error}");
        } else {
            // Text in text is read as the list, the first of the answers the case allows.
            let expected = expected.get("one_of").map_or(expected, |answers| &answers[0]);
            let instance = instances.next().unwrap();
            assert_eq!(&instance.task.id, id);
            assert_eq!(instance.key.fail_to_pass, strings(&expected["FAIL_TO_PASS"]), "{id}");
            assert_eq!(instance.key.pass_to_pass, strings(&expected["PASS_TO_PASS"]), "{id}");
        }
    }
    assert!(errors.next().is_none() && instances.next().is_none());
}

#[test]
fn o19_predictions_in_every_shape() {
    let Some(case) = shared("cases/o19-predictions-file-shapes") else { return };
    let dataset = source::load(&case.join("dataset.jsonl")).unwrap();
    assert!(dataset.errors.is_empty());
    let ids: Vec<&str> =
        dataset.instances.iter().map(|instance| instance.task.id.as_str()).collect();
    let summary = json(&case.join("expected.json"))["summary"].take();
    let list = |field: &str| strings(&summary[field]).into_iter().collect::<BTreeSet<String>>();
    let first = predictions::read(&case.join("preds_list.json")).unwrap();
    let rows = json(&case.join("preds_list.json"));
    for row in rows.as_array().unwrap() {
        let prediction = &first[row["instance_id"].as_str().unwrap()];
        assert_eq!(prediction.model, "org/demo-model v1");
        assert_eq!(prediction.patch.as_deref(), row["model_patch"].as_str());
    }
    assert_eq!(first.len(), 5);
    for file in ["preds_list.json", "preds_map.json", "preds.jsonl"] {
        let predictions = predictions::read(&case.join(file)).unwrap();
        assert_eq!(predictions, first, "{file}");
        let coverage = Coverage::new(&predictions, ids.iter().copied());
        let expected = Coverage {
            to_grade: list("to_grade"),
            empty_patch: list("empty_patch"),
            not_submitted: list("not_submitted"),
            not_in_dataset: list("not_in_dataset"),
        };
        assert_eq!(coverage, expected, "{file}");
        assert_eq!(summary["total"], coverage.total());
        assert_eq!(summary["submitted"], coverage.submitted());
    }
    let said = |file: &str| {
        let path = case.join(file);
        predictions::read(&path).unwrap_err().to_string().replace(&path.display().to_string(), file)
    };
    assert_eq!(
        said("dup.jsonl"),
        "dup.jsonl line 2 (demo__a-1): duplicate prediction, first on line 1"
    );
    assert_eq!(said("oldkeys.jsonl"), "oldkeys.jsonl line 1 (demo__a-1): missing key model_patch");
}
