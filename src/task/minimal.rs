//! The smallest way to write a task: a YAML file beside a repository.

use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::MessageFormatter;
use serde_saphyr::UserMessageFormatter;

use crate::task::AnswerKey;
use crate::task::EvalType;
use crate::task::Instance;
use crate::task::RepositorySource;
use crate::task::Task;
use crate::task::TaskError;
use crate::task::rows::FieldError;
use crate::task::rows::Place;
use crate::task::source;
use crate::task::swebench::WORKDIR;
use crate::text;

/// The name of a task file in its directory.
pub const FILE: &str = "task.yaml";

/// A task file. Paths are relative to it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskFile {
    /// The instance's id.
    id: String,
    /// A git clone, a bare mirror, or a plain directory.
    repo: PathBuf,
    /// The commit to start from; HEAD of a clone otherwise.
    commit: Option<String>,
    /// The issue,
    issue: Option<String>,
    /// or the file that holds it.
    issue_file: Option<PathBuf>,
    /// Where the repository stands in the sandbox.
    workdir: Option<String>,
    /// The command that runs the hidden tests.
    test_cmd: Option<String>,
    /// Name of the log parser.
    parser: Option<String>,
    /// Tests that must fail before and pass after.
    #[serde(default)]
    fail_to_pass: Vec<String>,
    /// Tests that must pass before and after.
    #[serde(default)]
    pass_to_pass: Vec<String>,
    /// The change that brings the hidden tests.
    test_patch_file: Option<PathBuf>,
    /// The reference solution.
    gold_patch_file: Option<PathBuf>,
    /// Programs that must exist on the local backend.
    #[serde(default)]
    requires: Vec<String>,
}

/// Loads a task file.
///
/// Fails on an unknown key, when there is not exactly one of `issue` and `issue_file`, when the repository is not
/// there, when `commit` is given for a plain directory, when a plain directory holds the task file, and when a named
/// file cannot be read.
pub fn load(path: &Path) -> Result<Instance, TaskError> {
    let text = fs_err::read_to_string(path)?;
    let file: TaskFile =
        serde_saphyr::from_str(&text).map_err(|error| yaml_error(error.without_snippet(), path))?;
    let wrong = |field, problem| {
        let place = Place { file: path.to_owned(), line: None, id: Some(file.id.clone()) };
        TaskError::Field { place, field: FieldError { field, problem } }
    };
    let beside = path.parent().unwrap_or(Path::new(""));
    let read = |name: &Option<PathBuf>| match name {
        Some(name) => fs_err::read_to_string(beside.join(name)),
        None => Ok(String::new()),
    };
    let issue = match (&file.issue, &file.issue_file) {
        (Some(issue), None) => issue.clone(),
        (None, Some(_)) => read(&file.issue_file)?,
        (Some(_), Some(_)) => {
            return Err(wrong("issue", "given together with issue_file".to_owned()));
        }
        (None, None) => return Err(wrong("issue", "missing, as is issue_file".to_owned())),
    };
    let repo = beside.join(&file.repo);
    if !repo.is_dir() {
        return Err(wrong("repo", format!("no directory {}", repo.display())));
    }
    // Links and dots are resolved: the repository's name is the last part of its real path.
    let repo = fs_err::canonicalize(repo)?;
    let name =
        repo.file_name().map(|name| text::lossy(name.as_encoded_bytes())).unwrap_or_default();
    let (source, base_commit) = match (source::is_git(&repo), &file.commit) {
        (true, commit) => {
            (RepositorySource::Clone(repo), commit.clone().unwrap_or_else(|| "HEAD".to_owned()))
        }
        (false, None) if fs_err::canonicalize(path)?.starts_with(&repo) => {
            return Err(wrong(
                "repo",
                "the directory holds the task file, so the model would see the answer".to_owned(),
            ));
        }
        (false, None) => (RepositorySource::Directory(repo), String::new()),
        (false, Some(_)) => {
            return Err(wrong("commit", format!("{} is not a git clone", repo.display())));
        }
    };
    let key = AnswerKey {
        gold_patch: read(&file.gold_patch_file)?,
        test_patch: read(&file.test_patch_file)?,
        fail_to_pass: file.fail_to_pass,
        pass_to_pass: file.pass_to_pass,
        hints: String::new(),
        test_cmd: file.test_cmd,
        eval_script: None,
        log_parser: file.parser.unwrap_or_default(),
        eval_type: EvalType::PassAndFail,
    };
    let task = Task {
        id: file.id,
        repo: name.trim_end_matches(".git").to_owned(),
        base_commit,
        problem_statement: issue,
        version: String::new(),
        created_at: String::new(),
        image: None,
        workdir: file.workdir.unwrap_or_else(|| WORKDIR.to_owned()),
        requires: file.requires,
        source,
    };
    Ok(Instance { task, key })
}

fn yaml_error(error: &serde_saphyr::Error, file: &Path) -> TaskError {
    let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
    let place = Place { file: file.to_owned(), line, id: None };
    if let serde_saphyr::Error::SerdeUnknownField { field, expected, .. } = error {
        let nearest = text::nearest(field, expected.iter().copied());
        return TaskError::UnknownKey { place, key: field.clone(), nearest };
    }
    if let serde_saphyr::Error::SerdeMissingField { field, .. } = error {
        // What is missing stands on no line.
        let place = Place { line: None, ..place };
        return TaskError::Field {
            place,
            field: FieldError { field, problem: "missing".to_owned() },
        };
    }
    TaskError::Yaml { place, problem: UserMessageFormatter.format_message(error).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads `text` beside a directory `tree`, a clone `clone`, and files; paths in errors become relative.
    fn loaded(text: &str) -> Result<Instance, String> {
        let dir = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(dir.path()).unwrap();
        fs_err::create_dir_all(root.join("tree")).unwrap();
        fs_err::create_dir_all(root.join("clone/.git")).unwrap();
        fs_err::write(root.join("issue.md"), "It fails.\r\n").unwrap();
        fs_err::write(root.join("test.patch"), "diff test\n").unwrap();
        fs_err::write(root.join("gold.patch"), "diff gold\n").unwrap();
        fs_err::write(root.join(FILE), text).unwrap();
        let prefix = format!("{}/", root.display());
        let mut instance =
            load(&root.join(FILE)).map_err(|error| error.to_string().replace(&prefix, ""))?;
        if let RepositorySource::Clone(path) | RepositorySource::Directory(path) =
            &mut instance.task.source
        {
            *path = path.strip_prefix(&root).unwrap().to_owned();
        }
        Ok(instance)
    }

    #[test]
    fn every_key_has_its_place() {
        let text = "id: demo__a-1\nrepo: ./clone\ncommit: 1234567\nissue_file: issue.md\nworkdir: /src\n\
            test_cmd: make test\nparser: pytest\nfail_to_pass: ['t::a[x]']\npass_to_pass:\n- t::b\n\
            test_patch_file: test.patch\ngold_patch_file: gold.patch\nrequires: [python3]\n";
        let expected = Instance {
            task: Task {
                id: "demo__a-1".to_owned(),
                repo: "clone".to_owned(),
                base_commit: "1234567".to_owned(),
                problem_statement: "It fails.\r\n".to_owned(),
                version: String::new(),
                created_at: String::new(),
                image: None,
                workdir: "/src".to_owned(),
                requires: vec!["python3".to_owned()],
                source: RepositorySource::Clone(PathBuf::from("clone")),
            },
            key: AnswerKey {
                gold_patch: "diff gold\n".to_owned(),
                test_patch: "diff test\n".to_owned(),
                fail_to_pass: vec!["t::a[x]".to_owned()],
                pass_to_pass: vec!["t::b".to_owned()],
                hints: String::new(),
                test_cmd: Some("make test".to_owned()),
                eval_script: None,
                log_parser: "pytest".to_owned(),
                eval_type: EvalType::PassAndFail,
            },
        };
        assert_eq!(loaded(text).unwrap(), expected);
    }

    #[test]
    fn three_keys_are_enough() {
        let plain = loaded("id: a\nrepo: tree\nissue: |\n  It fails.\n").unwrap();
        assert_eq!(plain.task.source, RepositorySource::Directory(PathBuf::from("tree")));
        assert_eq!(plain.task.base_commit, "");
        assert_eq!(plain.task.workdir, "/testbed");
        assert_eq!(plain.task.problem_statement, "It fails.\n");
        assert_eq!(plain.key, AnswerKey::default());
        assert_eq!(loaded("id: a\nrepo: clone\nissue: x\n").unwrap().task.base_commit, "HEAD");
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        let said = |text| loaded(text).unwrap_err();
        assert_eq!(
            said("id: a\nrepo: tree\nisue: x\n"),
            "task.yaml line 3: unknown key `isue`, the nearest known is `issue`"
        );
        assert_eq!(
            said("id: a\nrepo: tree\ncolour: x\nissue: y\n"),
            "task.yaml line 3: unknown key `colour`"
        );
        assert_eq!(
            said("id: a\nrepo: tree\n"),
            "task.yaml (a): field issue: missing, as is issue_file"
        );
        assert_eq!(
            said("id: a\nrepo: tree\nissue: x\nissue_file: issue.md\n"),
            "task.yaml (a): field issue: given together with issue_file"
        );
        assert_eq!(
            said("id: a\nrepo: nowhere\nissue: x\n"),
            "task.yaml (a): field repo: no directory nowhere"
        );
        assert_eq!(
            said("id: a\nrepo: tree\ncommit: abc\nissue: x\n"),
            "task.yaml (a): field commit: tree is not a git clone"
        );
        assert_eq!(
            said("id: a\nrepo: .\nissue: x\n"),
            "task.yaml (a): field repo: the directory holds the task file, so the model would see the answer"
        );
        let missing = said("id: a\nrepo: tree\nissue_file: other.md\n");
        assert!(missing.contains("`other.md`"), "{missing}");
        assert_eq!(said("repo: tree\nissue: x\n"), "task.yaml: field id: missing");
        for (text, problem) in [
            ("id: a\nid: b\n", "line 2: not a valid task: duplicate"),
            ("id: [\n", "line 1: not a valid task: "),
            ("id: a\nrepo: tree\nfail_to_pass: t\n", "line 3: not a valid task: "),
            ("id: a\nissue: a: b\n", "line 2: not a valid task: "),
            ("", "line 1: not a valid task: "),
        ] {
            let said = said(text);
            assert!(
                said.starts_with(&format!("task.yaml {problem}")) && !said.contains('\n'),
                "{said}"
            );
        }
    }
}
