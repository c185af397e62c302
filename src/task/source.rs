//! Where instances and their repositories are found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::path::PathBuf;

use crate::task::Instance;
use crate::task::TaskError;
use crate::task::minimal;
use crate::task::rows;
use crate::task::rows::Row;
use crate::task::swebench;

/// What a path holds.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The instances, in the order of the file.
    pub instances: Vec<Instance>,
    /// What makes the other rows unusable, in the order of the file.
    pub errors: Vec<TaskError>,
}

/// Loads the instances of a file of rows (see [`rows::read`]), of a task file, or of a directory with a `task.yaml`.
///
/// A row that cannot be used does not keep the others from loading. Fails when the path cannot be read as a whole and
/// when two rows have one id.
pub fn load(path: &Path) -> Result<Loaded, TaskError> {
    if path.is_dir() {
        return load(&path.join(minimal::FILE));
    }
    if path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml") {
        return Ok(Loaded { instances: vec![minimal::load(path)?], errors: Vec::new() });
    }
    from_rows(rows::read(path)?)
}

/// Makes instances of rows. Fails when two have one id.
pub fn from_rows(rows: Vec<Result<Row, TaskError>>) -> Result<Loaded, TaskError> {
    let mut loaded = Loaded::default();
    let mut lines = HashMap::new();
    for row in rows {
        let read = row.and_then(|row| {
            let instance = swebench::instance(&row.fields);
            Ok((instance.map_err(|field| TaskError::Field { place: row.place(), field })?, row))
        });
        match read {
            Err(error) => loaded.errors.push(error),
            Ok((instance, row)) => {
                match lines.entry(instance.task.id.clone()) {
                    Entry::Vacant(free) => free.insert(row.line),
                    Entry::Occupied(first) => {
                        return Err(TaskError::Duplicate {
                            place: row.place(),
                            first: *first.get(),
                        });
                    }
                };
                loaded.instances.push(instance);
            }
        }
    }
    Ok(loaded)
}

/// The clone or bare mirror of `owner/name` somewhere in `dir`.
///
/// Tried in this order, so that one with the owner in its name is preferred: `owner/name`, `owner__name` and `name`,
/// each also with `.git`, then `owner+name` and the git directories in it.
pub fn repository_in(dir: &Path, repo: &str) -> Option<PathBuf> {
    // The name is a row's, and must not lead out of the directory.
    if repo.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return None;
    }
    let name = repo.rsplit('/').next().unwrap_or(repo);
    let nested = dir.join(repo.replace('/', "+"));
    let mut inside: Vec<PathBuf> = fs_err::read_dir(&nested)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    inside.sort();
    [repo, &repo.replace('/', "__"), name]
        .into_iter()
        .flat_map(|name| [dir.join(name), dir.join(format!("{name}.git"))])
        .chain([nested])
        .chain(inside)
        .find(|candidate| is_git(candidate))
}

/// Whether a directory is a clone or a bare repository.
pub fn is_git(dir: &Path) -> bool {
    dir.join(".git").exists() || (dir.join("HEAD").is_file() && dir.join("objects").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instance ids and error texts of a file with this name and content, or why it does not load.
    fn loaded(name: &str, content: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs_err::write(&path, content).unwrap();
        let text = |error: &TaskError| {
            error.to_string().replace(&format!("{}/", dir.path().display()), "")
        };
        let loaded = load(&path).map_err(|error| text(&error))?;
        let ids = loaded.instances.into_iter().map(|instance| instance.task.id).collect();
        Ok((ids, loaded.errors.iter().map(text).collect()))
    }

    fn row(id: &str) -> String {
        format!(
            r#"{{"instance_id": "{id}", "repo": "d/r", "base_commit": "0", "problem_statement": "x", "FAIL_TO_PASS": ["t"]}}"#
        )
    }

    #[test]
    fn lines_lists_maps_and_single_rows_load() {
        let both = (vec!["b".to_owned(), "a".to_owned()], Vec::new());
        let (a, b) = (row("a"), row("b"));
        let lines = format!("\u{feff}{b}\r\n\r\n  \n{a}");
        assert_eq!(loaded("t.jsonl", lines.as_bytes()).unwrap(), both);
        assert_eq!(loaded("t.json", format!("\u{feff}[{b},\n{a}]").as_bytes()).unwrap(), both);
        let without_id = a.replace("\"instance_id\": \"a\", ", "");
        assert_eq!(
            loaded("t.json", format!("{{\"b\": {b}, \"a\": {without_id}}}").as_bytes()).unwrap(),
            both
        );
        assert_eq!(loaded("t.json", b.as_bytes()).unwrap().0, ["b"]);
        assert_eq!(loaded("t.jsonl", b"").unwrap(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn bad_rows_are_named_and_the_others_load() {
        let (a, b) = (row("a"), row("b"));
        let bad_list = a.replace("[\"t\"]", "[1]").replace("\"a\"", "\"demo__a-1\"");
        let lines = format!("{a}\n{{\"instance_id\": \"x\",}}\n{bad_list}\n[]\n{{}}\n{b}\n");
        let mut bytes = lines.into_bytes();
        bytes.extend(b"{\"instance_id\": \"\xff\"}");
        let (ids, errors) = loaded("tasks.jsonl", &bytes).unwrap();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(
            errors,
            [
                "tasks.jsonl line 2: not valid JSON: trailing comma (column 21)",
                "tasks.jsonl line 3 (demo__a-1): field FAIL_TO_PASS: item 1 of the list is a number, not a text",
                "tasks.jsonl line 4: expected an object, found a list",
                "tasks.jsonl line 5: field instance_id: missing",
                "tasks.jsonl line 7: not UTF-8",
            ]
        );
    }

    #[test]
    fn every_field_is_checked() {
        let (_, errors) = loaded(
            "t.jsonl",
            [
                row("a").replace("\"repo\": \"d/r\", ", ""),
                row("b").replace("\"0\"", "\"\""),
                row("c").replace("\"x\"", "null"),
                row("d").replace("\"x\"", "\"x\", \"eval_type\": \"all\""),
                row("e").replace("\"x\"", "\"x\", \"patch\": {}"),
                row("f").replace("\"x\"", "\"x\", \"requires\": \"python3\""),
                row("g").replace("[\"t\"]", "\"[]\""),
            ]
            .join("\n")
            .as_bytes(),
        )
        .unwrap();
        assert_eq!(
            errors,
            [
                "t.jsonl line 1 (a): field repo: missing",
                "t.jsonl line 2 (b): field base_commit: empty",
                "t.jsonl line 3 (c): field problem_statement: missing",
                "t.jsonl line 4 (d): field eval_type: expected pass_and_fail or fail_only, found `all`",
                "t.jsonl line 5 (e): field patch: expected a text, found an object",
                "t.jsonl line 6 (f): field requires: expected a list, found the text `python3`",
                "t.jsonl line 7 (g): field FAIL_TO_PASS: names no test",
            ]
        );
    }

    #[test]
    fn a_document_names_lines_of_the_file() {
        let (a, b) = (row("a"), row("b"));
        let (ids, errors) = loaded(
            "t.json",
            format!("[\n{a},\n\n 7,\n{{\"instance_id\":\n\"\\ud800\"}}]").as_bytes(),
        )
        .unwrap();
        assert_eq!(ids, ["a"]);
        assert_eq!(
            errors,
            [
                "t.json line 4: expected an object, found a number",
                "t.json line 6: not valid JSON: unexpected end of hex escape (column 8)",
            ]
        );
        assert_eq!(
            loaded("t.json", format!("{{\n\"z\": {b}}}").as_bytes()).unwrap().1,
            ["t.json line 2 (z): field instance_id: differs from the key of the row"]
        );
        let said = |content: &[u8]| loaded("t.json", content).unwrap_err();
        assert_eq!(
            said(b"[1,\n 2"),
            "t.json line 2: not valid JSON: EOF while parsing a list (column 2)"
        );
        assert_eq!(
            said(b"\n7"),
            "t.json line 2: not valid JSON: invalid type: integer `7`, expected a list of rows or a map from id to row (column 1)"
        );
        assert_eq!(said(b"[\n\"\xff\"]"), "t.json line 2: not UTF-8");
    }

    #[test]
    fn duplicates_are_refused_in_every_form() {
        let a = row("a");
        let expected = "t.jsonl line 3 (a): duplicate instance id, first on line 1";
        assert_eq!(loaded("t.jsonl", format!("{a}\n\n{a}").as_bytes()).unwrap_err(), expected);
        let expected = "t.json line 2 (a): duplicate instance id, first on line 1";
        assert_eq!(
            loaded("t.json", format!("{{\"a\": {a},\n\"a\": {a}}}").as_bytes()).unwrap_err(),
            expected
        );
    }

    #[test]
    fn other_paths_are_refused_by_name() {
        assert_eq!(loaded("t.csv", b"").unwrap_err(), "t.csv: not a .json, .jsonl or .yaml file");
        let dir = tempfile::tempdir().unwrap();
        let said = load(dir.path()).unwrap_err().to_string();
        assert!(said.contains(&format!("`{}`", dir.path().join("task.yaml").display())), "{said}");
        fs_err::create_dir(dir.path().join("tree")).unwrap();
        fs_err::create_dir(dir.path().join("demo")).unwrap();
        fs_err::write(dir.path().join("demo/task.yaml"), "id: a\nrepo: ../tree\nissue: x\n")
            .unwrap();
        assert_eq!(load(&dir.path().join("demo")).unwrap().instances[0].task.id, "a");
    }

    #[test]
    fn repositories_are_found_under_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let bare = |name: &str| {
            let path = root.join(name);
            fs_err::create_dir_all(path.join("objects")).unwrap();
            fs_err::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
            path
        };
        assert_eq!(repository_in(root, "psf/requests"), None);
        // From the least to the most preferred; each is found although the ones before are still there.
        for name in [
            "psf+requests/1/bare",
            "psf+requests/2",
            "requests.git",
            "requests",
            "psf__requests.git",
            "psf__requests",
            "psf/requests.git",
            "psf/requests",
        ] {
            let path = bare(name);
            let expected = if name == "psf+requests/1/bare" { None } else { Some(path) };
            assert_eq!(repository_in(root, "psf/requests"), expected, "{name}");
        }
        fs_err::create_dir_all(root.join("pallets/flask/.git")).unwrap();
        assert_eq!(repository_in(root, "pallets/flask"), Some(root.join("pallets/flask")));
        assert_eq!(repository_in(root, "other/flask"), None);
        let inner = root.join("inner");
        fs_err::create_dir(&inner).unwrap();
        for outside in ["../requests", "a/../../requests", "/requests", "", ".", "requests/"] {
            assert_eq!(repository_in(&inner, outside), None, "{outside}");
        }
    }
}
