//! Imports point one way, files stay small, and each half of an instance stays where it belongs.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;

use regex::Regex;

/// Modules in the order data flows; a module uses those before it.
const ORDER: &[&[&str]] = &[
    &["text", "digest", "protocol"],
    &["data", "config"],
    &["task"],
    &["sandbox"],
    &["guest"],
    &["tools"],
    &["env"],
    &["trajectory"],
    &["model"],
    &["agent"],
    &["store"],
    &["grade"],
    &["workflow"],
    &["batch"],
    &["export"],
    &["serve"],
    &["view"],
    &["cli"],
];

/// What a module must not name.
const FORBIDDEN: &[(&str, &str)] = &[
    ("tools", "AnswerKey"),
    ("env", "AnswerKey"),
    ("agent", "AnswerKey"),
    ("agent", "sandbox::"),
    ("grade", "model::"),
    ("model", "task::"),
    ("model", "sandbox::"),
];

const MOST_LINES: usize = 500;

fn sources() -> BTreeMap<PathBuf, String> {
    fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, String>) {
        for entry in fs_err::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // Tests may use what they need.
                let text = fs_err::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned();
                files.insert(path, code);
            }
        }
    }
    let mut files = BTreeMap::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 50, "the sources were not found");
    files
}

fn module_of(path: &Path) -> Option<String> {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next()?.as_os_str().to_str()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(module, "lib" | "main" | "bin")).then(|| module.to_owned())
}

fn rank(module: &str) -> usize {
    let found = ORDER.iter().position(|names| names.contains(&module));
    found.unwrap_or_else(|| panic!("{module} has no place in the order of tests/it/layers.rs"))
}

/// Code without its comments, whose examples may name anything.
fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_point_one_way() {
    let named = Regex::new(r"\bcrate::([a-z_]+)").unwrap();
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        let Some(module) = module_of(&path) else { continue };
        for found in named.captures_iter(&without_comments(&code)) {
            let used = &found[1];
            if used != module && rank(used) >= rank(&module) {
                wrong.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_half_of_an_instance_stays_where_it_belongs() {
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        let Some(module) = module_of(&path) else { continue };
        let code = without_comments(&code);
        for (_, name) in FORBIDDEN.iter().filter(|(of, _)| *of == module) {
            if code.contains(&format!("crate::{name}"))
                || (*name == "AnswerKey" && code.contains(name))
            {
                wrong.push(format!("{} names {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_stay_small() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|(_, code)| code.lines().count() > MOST_LINES)
        .map(|(path, code)| format!("{} has {} lines", path.display(), code.lines().count()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
