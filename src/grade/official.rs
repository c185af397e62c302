//! A benchmark's own test script, made for its image, as it runs where the environment was made from a recipe.

use crate::grade::compare;
use crate::task::swebench::WORKDIR;

/// Beginnings of the lines that choose the image's environment.
const ACTIVATIONS: [&str; 2] = ["source /opt/miniconda3/bin/activate", "conda activate "];
/// Beginnings of the lines that follow the installation: the hidden tests are put in place.
const AFTER_INSTALLATION: [&str; 3] = ["git checkout ", "rm -f ", "git apply "];
/// Says in the script what is missing from it.
const LEFT_OUT: &str = "# left out, done when the environment was prepared: ";

/// Why a script cannot be used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForeignScript {
    /// It does not choose an environment.
    #[error("its script does not activate a conda environment")]
    NoActivation,
    /// Nothing follows the installation.
    #[error("its script does not put hidden tests in place")]
    NoTests,
    /// The marks of the harness are missing.
    #[error("its script does not print the marks of the harness")]
    NoMarks,
}

/// The script `official` without the image's environment and without the installation, in `workdir`, and with the lines
/// that the harness 5.0.2 adds when it runs it: they print the exit status of the tests.
///
/// A patch that changes how the repository is installed is not installed anew.
///
/// # Errors
/// When the script is not composed as the scripts of SWE-bench are.
pub fn adapted(official: &str, workdir: &str) -> Result<String, ForeignScript> {
    let lines = classified(official);
    let is_activation =
        |line: &str| ACTIVATIONS.iter().any(|beginning| line.starts_with(beginning));
    let own = |(line, own): &(&str, bool), wanted: &dyn Fn(&str) -> bool| *own && wanted(line);
    let activated = lines
        .iter()
        .rposition(|line| own(line, &is_activation))
        .ok_or(ForeignScript::NoActivation)?;
    let is_after = |line: &str| AFTER_INSTALLATION.iter().any(|b| line.starts_with(b));
    let installed = lines[activated..]
        .iter()
        .position(|line| own(line, &is_after))
        .ok_or(ForeignScript::NoTests)?
        + activated;
    let end = lines
        .iter()
        .rposition(|line| own(line, &|line| line.contains(compare::END)))
        .filter(|end| *end > installed)
        .ok_or(ForeignScript::NoMarks)?;
    let mut script = String::new();
    for (number, (line, own)) in lines.iter().enumerate() {
        let line = if *own { moved(line, workdir) } else { (*line).to_owned() };
        if *own && is_activation(&line) {
            continue;
        }
        if (activated..installed).contains(&number) {
            script.push_str(LEFT_OUT);
        }
        if number == end {
            script.push_str("SWEBENCH_TEST_EXIT_CODE=$?\n");
        }
        script.push_str(&line);
        script.push('\n');
        if number == end {
            script
                .push_str(&format!("echo \"{}: $SWEBENCH_TEST_EXIT_CODE\"\n", compare::EXIT_CODE));
        }
    }
    Ok(script)
}

/// The lines of a script, and whether each is the script's own: not the text of a here-document.
fn classified(script: &str) -> Vec<(&str, bool)> {
    let mut end = None;
    let classify = |line| match end {
        Some(word) => {
            if line == word {
                end = None;
            }
            (line, false)
        }
        None => {
            end = document_end(line);
            (line, true)
        }
    };
    script.lines().map(classify).collect()
}

/// The word that ends the here-document which a line begins.
fn document_end(line: &str) -> Option<&str> {
    let rest = line.split_once("<<")?.1.trim_start_matches('-').trim_start();
    let word = match rest.chars().next()? {
        quote @ ('\'' | '"') => rest[1..].split(quote).next()?,
        '<' => return None,
        _ => rest.split(|c: char| c.is_whitespace() || ";|&>".contains(c)).next()?,
    };
    (!word.is_empty()).then_some(word)
}

/// A line with the repository where it is here. Longer names that begin in the same way are others.
fn moved(line: &str, workdir: &str) -> String {
    if workdir == WORKDIR {
        return line.to_owned();
    }
    let mut pieces = line.split(WORKDIR);
    let mut moved = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let longer = piece.starts_with(|c: char| c.is_alphanumeric() || "_-.".contains(c));
        moved.push_str(if longer { WORKDIR } else { workdir });
        moved.push_str(piece);
    }
    moved
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::task::source;

    use super::*;

    const SCRIPT: &str = "#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git diff c0ffee
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
make /testbed-tools
git checkout c0ffee t.py
git apply -v - <<'EOF_1'
+cd /testbed
+conda activate testbed
conda activate testbed
: '>>>>> End Test Output'
EOF_1
: '>>>>> Start Test Output'
pytest -rA t.py
: '>>>>> End Test Output'
git checkout c0ffee t.py
";

    #[test]
    fn environment_and_installation_are_left_out_and_the_status_is_printed() {
        let expected = "#!/bin/bash
set -uxo pipefail
cd /elsewhere
git diff c0ffee
# left out, done when the environment was prepared: python -m pip install -e .
# left out, done when the environment was prepared: make /testbed-tools
git checkout c0ffee t.py
git apply -v - <<'EOF_1'
+cd /testbed
+conda activate testbed
conda activate testbed
: '>>>>> End Test Output'
EOF_1
: '>>>>> Start Test Output'
pytest -rA t.py
SWEBENCH_TEST_EXIT_CODE=$?
: '>>>>> End Test Output'
echo \">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE\"
git checkout c0ffee t.py
";
        assert_eq!(adapted(SCRIPT, "/elsewhere").unwrap(), expected);
        let there = expected.replace("/elsewhere", "/testbed");
        assert_eq!(adapted(SCRIPT, "/testbed").unwrap(), there);
    }

    #[test]
    fn scripts_of_another_kind_are_refused() {
        assert_eq!(
            adapted("make test\n: '>>>>> End Test Output'\n", "/testbed"),
            Err(ForeignScript::NoActivation)
        );
        assert_eq!(adapted("conda activate testbed\nmake\n", "/"), Err(ForeignScript::NoTests));
        assert_eq!(
            adapted("conda activate testbed\ngit apply x\n", "/"),
            Err(ForeignScript::NoMarks)
        );
    }

    #[test]
    fn every_real_script_is_adapted() {
        let rows = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../shared/data/swebench/instances/core_python.jsonl");
        if !rows.exists() {
            println!("skipped: {} is not there", rows.display());
            return;
        }
        let instances = source::load(&rows).unwrap().instances;
        assert!(instances.len() > 50);
        for instance in instances {
            let official = instance.key.eval_script.unwrap();
            let script = adapted(&official, WORKDIR).unwrap();
            for (line, own) in classified(&script) {
                assert!(!own || !line.contains("conda"), "{}: {line}", instance.task.id);
                assert!(!own || !line.starts_with("python"), "{}: {line}", instance.task.id);
            }
            let left_out = script.lines().filter(|line| line.starts_with(LEFT_OUT)).count();
            assert_eq!(left_out, 1, "{}", instance.task.id);
            // Two activations of two lines go, and two lines about the exit status come.
            let (before, after) = (official.lines().count(), script.lines().count());
            assert_eq!(before - 4 + 2, after, "{}", instance.task.id);
            assert!(script.contains(&instance.key.test_patch), "{}", instance.task.id);
        }
    }
}
