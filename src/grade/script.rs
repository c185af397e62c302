//! The script that runs a task's hidden tests, for rows that bring a test command and no script of their own.

use crate::grade::compare;
use crate::grade::diff;

/// Endings of files that are not given to a test command, as in the harness 4.x.
const NO_TESTS: [&[u8]; 11] = [
    b".json", b".png", b".csv", b".txt", b".md", b".jpg", b".jpeg", b".pkl", b".yml", b".yaml",
    b".toml",
];

/// What a script is made of.
#[derive(Debug, Clone, Copy)]
pub struct Tests<'a> {
    /// The work tree.
    pub workdir: &'a str,
    /// The commit that the files of the test patch are put back to.
    pub base_commit: &'a str,
    /// The change that brings the hidden tests.
    pub test_patch: &'a str,
    /// Where a copy of it stands.
    pub test_patch_file: &'a str,
    /// The command that runs them.
    pub test_cmd: &'a str,
}

/// The script, for bash. In the work tree it puts back what the test patch names, applies the test patch, runs the
/// test command between the harness's marks, prints its exit status, and puts the files back once more.
///
/// Only the test command goes into it as it is; every other text of the row is quoted.
pub fn script(tests: &Tests<'_>) -> String {
    let workdir = quoted(tests.workdir.as_bytes());
    let restore = restore(tests);
    let mut lines = vec![
        "#!/bin/bash".to_owned(),
        // No -e: the files must be put back whatever the tests do.
        "set -uxo pipefail".to_owned(),
        format!("cd {workdir}"),
        format!("git config --global --add safe.directory {workdir}"),
    ];
    lines.extend(restore.iter().cloned());
    if !tests.test_patch.trim().is_empty() {
        lines.push(format!("git apply --verbose {}", word(tests.test_patch_file)));
    }
    lines.extend([
        format!(": '{}'", compare::START),
        tests.test_cmd.to_owned(),
        "SWEBENCH_TEST_EXIT_CODE=$?".to_owned(),
        format!(": '{}'", compare::END),
        format!("echo \"{}: $SWEBENCH_TEST_EXIT_CODE\"", compare::EXIT_CODE),
    ]);
    // The test command may have gone elsewhere.
    lines.push(format!("cd {workdir}"));
    lines.extend(restore);
    lines.join("\n") + "\n"
}

/// Commands that bring the files of the test patch to the state it was made for. What it adds is removed first, so
/// that nothing stands in the way; `git checkout` without paths would reset the whole tree, so it always has some.
fn restore(tests: &Tests<'_>) -> Vec<String> {
    let files = diff::files(tests.test_patch.as_bytes());
    let list =
        |paths: &[Vec<u8>]| paths.iter().map(|path| quoted(path)).collect::<Vec<_>>().join(" ");
    let mut commands = Vec::new();
    if !files.added.is_empty() {
        commands.push(format!("rm -rf -- {}", list(&files.added)));
    }
    if !files.present.is_empty() {
        let commit = quoted(tests.base_commit.as_bytes());
        commands
            .push(format!("git --literal-pathspecs checkout {commit} -- {}", list(&files.present)));
    }
    commands
}

/// `command` with the files of a test patch that can be tests behind it.
pub fn with_test_files(command: &str, test_patch: &str) -> String {
    let files = diff::files(test_patch.as_bytes());
    let is_test = |path: &&Vec<u8>| !NO_TESTS.iter().any(|suffix| path.ends_with(suffix));
    let mut paths: Vec<&Vec<u8>> =
        files.present.iter().chain(&files.added).filter(is_test).collect();
    paths.sort_unstable();
    let words = paths.into_iter().map(|path| quoted(path));
    [command.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// A path as one word of bash, as it is where nothing in it means anything to bash.
pub(crate) fn word(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if !path.is_empty() && path.bytes().all(is_plain) {
        path.to_owned()
    } else {
        quoted(path.as_bytes())
    }
}

/// Bytes as one word of bash.
fn quoted(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        Ok(_) | Err(_) => {
            let octal: String = word.iter().map(|byte| format!("\\{byte:03o}")).collect();
            format!("$'{octal}'")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn bash_reads_a_quoted_word_as_it_was() {
        let words: [&[u8]; 7] = [
            b"plain",
            b"it's $HOME `id` \\",
            b"two\nlines\t",
            b"\xff\xfe",
            b"",
            b"-n * ~",
            "\u{e9}'".as_bytes(),
        ];
        for word in words {
            let output = Command::new("bash")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(word)))
                .output()
                .unwrap();
            assert_eq!(output.stdout, word);
        }
    }

    #[test]
    fn only_files_that_can_be_tests_are_given_to_a_command() {
        let of = |path: &str, added: &str| {
            format!(
                "diff --git a/{path} b/{path}\n{added}--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"
            )
        };
        let patch = of("t/test_b.py", "")
            + &of("t/a.json", "")
            + &of("t/it's.py", "new file mode 100644\n");
        assert_eq!(
            with_test_files("pytest -rA", &patch),
            "pytest -rA 't/it'\\''s.py' 't/test_b.py'"
        );
        assert_eq!(with_test_files("pytest -rA", ""), "pytest -rA");
    }

    #[test]
    fn a_path_is_quoted_where_it_has_to_be() {
        assert_eq!(word("/run/patchgym/eval.sh"), "/run/patchgym/eval.sh");
        assert_eq!(word("/home/a b/it's"), r"'/home/a b/it'\''s'");
    }

    #[test]
    fn checkout_never_runs_without_paths() {
        let added = "diff --git a/t/new.py b/t/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/t/new.py\n\
            @@ -0,0 +1 @@\n+x\n";
        let tests = Tests {
            workdir: "/testbed",
            base_commit: "c0ffee",
            test_patch: added,
            test_patch_file: "/run/patchgym/test.patch",
            test_cmd: "pytest -rA t/new.py",
        };
        let expected = "#!/bin/bash\nset -uxo pipefail\ncd '/testbed'\n\
            git config --global --add safe.directory '/testbed'\nrm -rf -- 't/new.py'\n\
            git apply --verbose /run/patchgym/test.patch\n: '>>>>> Start Test Output'\npytest -rA t/new.py\n\
            SWEBENCH_TEST_EXIT_CODE=$?\n: '>>>>> End Test Output'\n\
            echo \">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE\"\ncd '/testbed'\nrm -rf -- 't/new.py'\n";
        assert_eq!(script(&tests), expected);
        let none = script(&Tests { test_patch: "", ..tests });
        assert!(
            !none.contains("checkout") && !none.contains("git apply") && !none.contains("rm "),
            "{none}"
        );
    }
}
