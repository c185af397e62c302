//! The script that runs a task's hidden tests, for rows that bring a test command and no script of their own.

use crate::grade::compare;
use crate::grade::diff;

/// Where the script expects the change that brings the hidden tests.
pub const TEST_PATCH: &str = "/run/patchgym/test.patch";

/// What a script is made of.
#[derive(Debug, Clone, Copy)]
pub struct Tests<'a> {
    /// The work tree.
    pub workdir: &'a str,
    /// The commit that the files of the test patch are put back to.
    pub base_commit: &'a str,
    /// The change that brings the hidden tests.
    pub test_patch: &'a str,
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
        lines.push(format!("git apply --verbose {TEST_PATCH}"));
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
    fn checkout_never_runs_without_paths() {
        let added = "diff --git a/t/new.py b/t/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/t/new.py\n\
            @@ -0,0 +1 @@\n+x\n";
        let tests = Tests {
            workdir: "/testbed",
            base_commit: "c0ffee",
            test_patch: added,
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
