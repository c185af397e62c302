//! Real logs and official maps and verdicts: parsers, comparison and reports give what the harness 5.0.2 gave.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::LazyLock;

use patchgym::grade::compare;
use patchgym::grade::compare::CompareError;
use patchgym::grade::compare::Expectation;
use patchgym::grade::compare::Results;
use patchgym::grade::parse;
use patchgym::grade::report;
use patchgym::grade::report::Entry;
use patchgym::protocol::verdict::GradeError;
use patchgym::protocol::verdict::Outcome;
use patchgym::protocol::verdict::TestMap;
use patchgym::protocol::verdict::Times;
use patchgym::protocol::verdict::Verdict;
use patchgym::task::AnswerKey;
use patchgym::task::EvalType;
use serde_json::Value;
use serde_json::json;

/// The folder beside the checkout with real data and cases; tests without it do nothing and say so.
fn shared(part: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared").join(part);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

fn unpacked(part: &str) -> Option<impl Read + use<>> {
    Some(zstd::Decoder::new(fs_err::File::open(shared(part)?).unwrap()).unwrap())
}

fn rows(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn unpacked_rows(part: &str) -> Option<Vec<Value>> {
    let mut text = String::new();
    unpacked(part)?.read_to_string(&mut text).unwrap();
    Some(rows(&text).collect())
}

/// Every file of an archive, by path.
fn archive(name: &str) -> HashMap<String, String> {
    let mut files = HashMap::new();
    let mut archive =
        tar::Archive::new(unpacked(&format!("data/swebench/logs/{name}.tar.zst")).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let path = entry.path().unwrap().to_string_lossy().trim_start_matches("./").to_owned();
        files.insert(path, String::from_utf8_lossy(&bytes).into_owned());
    }
    files
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(text).collect()
}

fn key(parser: &str, row: &Value) -> AnswerKey {
    AnswerKey {
        fail_to_pass: texts(&row["FAIL_TO_PASS"]),
        pass_to_pass: texts(&row["PASS_TO_PASS"]),
        log_parser: parser.to_owned(),
        eval_type: match row["eval_type"].as_str() {
            Some("fail_only") => EvalType::FailOnly,
            _ => EvalType::PassAndFail,
        },
        ..AnswerKey::default()
    }
}

/// A map as JSON without the words that are no status.
fn known(map: &Value) -> Value {
    let words = ["PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL", "XPASS"];
    let entries =
        map.as_object().unwrap().iter().filter(|(_, word)| words.contains(&word.as_str().unwrap()));
    Value::Object(entries.map(|(test, word)| (test.clone(), word.clone())).collect())
}

fn as_json(tests: &TestMap) -> Value {
    serde_json::to_value(tests).unwrap()
}

fn verdict(results: &Results) -> Verdict {
    Verdict {
        outcome: match (results.found, results.resolved) {
            (true, true) => Outcome::Resolved,
            (true, false) => Outcome::Unresolved,
            (false, _) => Outcome::Error,
        },
        error: (!results.found).then_some(GradeError::NoResults),
        detail: None,
        apply: None,
        fail_to_pass: results.fail_to_pass.clone(),
        pass_to_pass: results.pass_to_pass.clone(),
        tests: results.tests.clone(),
        times: Times::default(),
    }
}

/// The official maps by log id, the expected tests by instance id, and the list of logs.
struct Official {
    maps: HashMap<String, Value>,
    expected: HashMap<String, Value>,
    index: Vec<Value>,
}

static OFFICIAL: LazyLock<Option<Official>> = LazyLock::new(|| {
    let by = |part: &str, field: &'static str| -> Option<HashMap<String, Value>> {
        Some(unpacked_rows(part)?.into_iter().map(|row| (text(&row[field]), row)).collect())
    };
    let index = fs_err::read_to_string(shared("data/swebench/logs/index.jsonl")?).unwrap();
    Some(Official {
        maps: by("data/swebench/logs/status_maps.jsonl.zst", "id")?,
        expected: by("data/swebench/instances/grading_index.jsonl.zst", "instance_id")?,
        index: rows(&index).collect(),
    })
});

fn official() -> Option<&'static Official> {
    shared("data/swebench/logs")?;
    OFFICIAL.as_ref()
}

/// What follows the application of the patch in a log of the harness 1.x, between today's marks.
fn marked(log: &str) -> String {
    let tests = log.rsplit(">>>>> Applied Patch (pred)").next().unwrap();
    format!("{}{tests}\n{}\n", compare::START, compare::END)
}

/// Compares every log of one set with the official map and numbers; gives how many were compared.
fn compare_set(set: &str) -> Option<usize> {
    let official = official()?;
    let files = archive(set);
    let mut compared = 0;
    let mut differences = Vec::new();
    for row in official.index.iter().filter(|row| row["set"] == set && !row["ref"].is_null()) {
        let id = text(&row["id"]);
        let reference = &row["ref"]["5.0.2"];
        let log = &files[row["path"].as_str().unwrap()];
        let log = if set == "v1_docker" { marked(log) } else { log.clone() };
        let key = key(
            row["log_parser"].as_str().unwrap(),
            &official.expected[row["instance_id"].as_str().unwrap()],
        );
        let results = compare::results(&log, &Expectation::new(&key).unwrap());
        compared += 1;
        if as_json(&results.tests) != known(&official.maps[&id]["5.0.2"]) {
            differences.push(format!("{id}: map"));
        }
        let counts = |split: &patchgym::protocol::verdict::Split| {
            json!([split.success.len(), split.failure.len()])
        };
        let ours = json!({
            "found": results.found,
            "f2p": counts(&results.fail_to_pass),
            "p2p": counts(&results.pass_to_pass),
            "resolved": results.resolved,
        });
        for (name, value) in ours.as_object().unwrap() {
            if *value != reference[name] {
                differences.push(format!("{id}: {name} {value}, official {}", reference[name]));
            }
        }
    }
    println!("{set}: {compared} logs compared");
    assert_eq!(differences, [""; 0]);
    Some(compared)
}

#[test]
fn logs_of_the_harness_4_give_the_official_results() {
    assert!(matches!(compare_set("v4_mini"), None | Some(143)));
}

#[test]
fn logs_of_the_harness_1_give_the_official_results() {
    assert!(matches!(compare_set("v1_docker"), None | Some(1608)));
}

#[test]
fn logs_of_crafted_patches_give_the_official_results() {
    assert!(matches!(compare_set("official_5_0_2"), None | Some(22)));
}

#[test]
fn logs_of_native_runs_give_the_official_results() {
    assert!(matches!(compare_set("native_py311"), None | Some(6)));
}

/// A case's files: its log, and what is expected of it.
fn case(name: &str) -> Option<(String, Value)> {
    let folder = shared("cases")?.join(name);
    let read = |file| fs_err::read_to_string(folder.join(file)).unwrap();
    Some((read("log.txt"), serde_json::from_str(&read("expected.json")).unwrap()))
}

#[test]
fn parser_cases_give_the_official_results() {
    let Some(cases) = unpacked_rows("data/swebench/parser_cases.jsonl.zst") else { return };
    let mut compared = 0;
    let mut empty = 0;
    let mut differences = Vec::new();
    for row in cases {
        let parser = text(&row["parser"]);
        if !parse::names().any(|name| name == parser) {
            continue;
        }
        let id = text(&row["id"]);
        let log = row["log"].as_str().unwrap();
        let expect = &row["expect"]["5.0.2"];
        let key = key(&parser, &row);
        let expectation = match Expectation::new(&key) {
            Ok(expectation) => expectation,
            // The harness calls a task without a test to pass resolved; it is an error here.
            Err(error) => {
                assert_eq!(error, CompareError::NoTestToPass);
                assert_eq!(row["FAIL_TO_PASS"], json!([]));
                empty += 1;
                continue;
            }
        };
        compared += 1;
        let results = compare::results(log, &expectation);
        let ours = json!({
            "found": results.found,
            "status_map": results.tests,
            "FAIL_TO_PASS": results.fail_to_pass,
            "PASS_TO_PASS": results.pass_to_pass,
            "resolved": results.resolved,
        });
        for (name, value) in ours.as_object().unwrap() {
            let official =
                if name == "status_map" { known(&expect[name]) } else { expect[name].clone() };
            if *value != official {
                differences.push(format!("{id}: {name} {value}, official {official}"));
            }
        }
    }
    println!("{compared} parser cases compared, {empty} without a test to pass");
    assert_eq!(differences, [""; 0]);
    assert_eq!((compared, empty), (305, 2));
}

#[test]
fn reports_of_crafted_patches_are_the_official_ones() {
    let Some(official) = official() else { return };
    let files = archive("official_5_0_2");
    let mut reports = 0;
    let mut summaries = 0;
    for row in official.index.iter().filter(|row| row["set"] == "official_5_0_2") {
        let id = text(&row["instance_id"]);
        let folder = text(&row["id"])
            .rsplit('/')
            .find(|part| *part != "test_output.txt")
            .unwrap()
            .to_owned();
        let file = |name: &str| files.get(&format!("{folder}/{name}"));
        let key = key("parse_log_pytest", &official.expected[&id]);
        let log = file("test_output.txt").cloned().unwrap_or_default();
        let mut verdict = verdict(&compare::results(&log, &Expectation::new(&key).unwrap()));
        match row["official"]["outcome"].as_str().unwrap() {
            "error" => verdict.error = Some(GradeError::ApplyFailed),
            "empty_patch" => (verdict.outcome, verdict.error) = (Outcome::EmptyPatch, None),
            _ => {}
        }
        let report = report::instance(&id, &verdict, &log);
        let theirs: Option<Value> =
            file("report.json").map(|text| serde_json::from_str(text).unwrap());
        assert_eq!(report.as_ref().map(|report| json!(report)), theirs, "{folder}");
        reports += usize::from(theirs.is_some());

        let logged = log + "\n" + file("run_instance.log").map_or("", String::as_str);
        let submitted = BTreeMap::from([(id.clone(), Entry::new(&verdict, &logged))]);
        let ours = report::json(&report::summary([id.as_str()], &submitted)).unwrap();
        let mut theirs: Value = serde_json::from_str(file("run_summary.json").unwrap()).unwrap();
        for key in ["unstopped_instances", "unstopped_containers", "unremoved_images"] {
            theirs.as_object_mut().unwrap().shift_remove(key);
        }
        assert_eq!(ours, report::json(&theirs).unwrap(), "{folder}");
        summaries += 1;
    }
    assert_eq!((reports, summaries), (21, 27));
}

#[test]
fn reports_published_by_the_harness_4_are_reproduced() {
    let Some(official) = official() else { return };
    let files = archive("v4_mini");
    let mut without_results = 0;
    for row in official.index.iter().filter(|row| row["set"] == "v4_mini") {
        let id = text(&row["instance_id"]);
        let path = text(&row["path"]);
        let key = key(row["log_parser"].as_str().unwrap(), &official.expected[&id]);
        let log = &files[&path];
        let verdict = verdict(&compare::results(log, &Expectation::new(&key).unwrap()));
        let ours = json!(report::instance(&id, &verdict, log));
        let theirs: Value =
            serde_json::from_str(&files[&path.replace("test_output.txt", "report.json")]).unwrap();
        assert_eq!(ours[&id]["resolved"], theirs[&id]["resolved"], "{path}");
        // Since 5.0 a log without any result is no run; 4.x listed every test as failed.
        if verdict.error == Some(GradeError::NoResults) {
            without_results += 1;
            assert_eq!(theirs[&id]["tests_status"]["FAIL_TO_PASS"], json!(verdict.fail_to_pass));
            assert_eq!(theirs[&id]["tests_status"]["PASS_TO_PASS"], json!(verdict.pass_to_pass));
        } else {
            assert_eq!(ours[&id]["tests_status"], theirs[&id]["tests_status"], "{path}");
        }
    }
    assert_eq!(without_results, 14);
}

#[test]
fn our_own_parsers_read_what_the_runner_meant() {
    for (name, warnings) in [
        ("o05-pytest-ansi-and-captured-lines", vec![]),
        ("o06-pytest-ids-with-spaces", vec![]),
        ("o07-django-split-status", vec![]),
        ("o08-go-skip-package-timeout", vec!["build of package example.org/kiln/broke failed"]),
    ] {
        let Some((log, expected)) = case(name) else { return };
        let reading = parse::parser(expected["parser"].as_str().unwrap()).unwrap().read(&log);
        assert_eq!(as_json(&reading.tests()), sorted(&expected["status"]), "{name}");
        assert_eq!(reading.warnings, warnings, "{name}");
    }
}

fn sorted(map: &Value) -> Value {
    let map: BTreeMap<String, Value> = serde_json::from_value(map.clone()).unwrap();
    json!(map)
}

#[test]
fn cut_names_are_graded_by_all_tests_they_stand_for() {
    let Some((log, expected)) = case("o06-pytest-ids-with-spaces") else { return };
    let instance = shared("cases/o06-pytest-ids-with-spaces/instance.json").unwrap();
    let instance: Value = serde_json::from_str(&fs_err::read_to_string(instance).unwrap()).unwrap();
    let key = key("pytest", &instance);
    let reading = parse::parser("pytest").unwrap().read(&log);
    let results = compare::compare(&reading, &Expectation::new(&key).unwrap());
    let mut graded = BTreeMap::new();
    for split in [&results.fail_to_pass, &results.pass_to_pass] {
        graded.extend(split.success.iter().map(|test| (test, "success")));
        graded.extend(split.failure.iter().map(|test| (test, "failure")));
    }
    assert_eq!(json!(graded), sorted(&expected["graded"]));
    assert_eq!(json!(results.resolved), expected["resolved"]);
}

#[test]
fn every_id_of_a_data_set_is_in_one_list_of_the_summary() {
    let Some(folder) = shared("cases/o19-predictions-file-shapes") else { return };
    let read = |file| fs_err::read_to_string(folder.join(file)).unwrap();
    let expected: Value = serde_json::from_str(&read("expected.json")).unwrap();
    let dataset: Vec<String> =
        rows(&read("dataset.jsonl")).map(|row| text(&row["instance_id"])).collect();
    let verdict = |patch: &Value| Verdict {
        outcome: if patch.as_str().is_none_or(|patch| patch.trim().is_empty()) {
            Outcome::EmptyPatch
        } else {
            Outcome::Resolved
        },
        ..verdict(&Results::default())
    };
    let predictions: Vec<Value> = serde_json::from_str(&read("preds_list.json")).unwrap();
    let submitted = predictions
        .iter()
        .map(|row| {
            let graded = Verdict { error: None, ..verdict(&row["model_patch"]) };
            (text(&row["instance_id"]), Entry::new(&graded, ""))
        })
        .collect();
    let summary = report::summary(dataset.iter().map(String::as_str), &submitted);
    let ours = json!({
        "total": summary.total_instances,
        "submitted": summary.submitted_instances,
        "to_grade": summary.completed_ids,
        "empty_patch": summary.empty_patch_ids,
        "not_submitted": summary.incomplete_ids,
        "not_in_dataset": summary.unknown_ids,
    });
    assert_eq!(ours, expected["summary"]);
    let lists = [
        &summary.resolved_ids,
        &summary.unresolved_ids,
        &summary.empty_patch_ids,
        &summary.error_ids,
        &summary.incomplete_ids,
    ];
    let mut all: Vec<&String> = lists.into_iter().flatten().collect();
    all.sort();
    assert_eq!(all, dataset.iter().collect::<Vec<_>>());
}

#[test]
fn every_name_has_a_folder_of_its_own() {
    let Some(names) = shared("cases/o19-predictions-file-shapes/names.json") else { return };
    let names: Vec<String> = serde_json::from_str(&fs_err::read_to_string(names).unwrap()).unwrap();
    for folder_of in [report::model_folder, report::instance_folder] {
        let mut owners = BTreeMap::new();
        for name in &names {
            let folder = folder_of(name);
            assert!(!folder.is_empty() && folder != "." && folder != ".." && folder.len() <= 200);
            assert!(!folder.contains(['/', '\0', '\n']), "{folder:?}");
            assert_eq!(owners.insert(folder, name), None);
        }
    }
    assert_eq!(report::model_folder("org/demo-model"), "org__demo-model");
    assert_eq!(report::model_folder("org demo-model"), "org demo-model");
}
