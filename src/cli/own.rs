//! `patchgym run --repo`: an issue about a repository of the user's own.

use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use clap::Args;

use crate::cli::failure::Failure;
use crate::cli::output;
use crate::grade::parse::EXIT_STATUS;
use crate::task::AnswerKey;
use crate::task::Instance;
use crate::task::RepositorySource;
use crate::task::Task;
use crate::task::source;
use crate::task::swebench::WORKDIR;

/// A repository and an issue in place of tasks.
#[derive(Args, Debug, Clone)]
pub(super) struct OwnArguments {
    /// Work on a copy of this repository instead of tasks
    #[arg(long, value_name = "DIR", requires = "issue", conflicts_with_all = ["tasks", "ids", "attempts"])]
    pub(super) repo: Option<PathBuf>,
    /// The issue: a file, or `-` for standard input
    #[arg(long, value_name = "FILE|-", requires = "repo")]
    issue: Option<PathBuf>,
    /// Command that runs the repository's tests; the patch is judged by its exit status
    #[arg(long, value_name = "COMMAND", requires = "repo")]
    test_cmd: Option<String>,
    /// Programs that the sandbox must have; repeatable
    #[arg(long, value_name = "PROGRAM", requires = "repo")]
    require: Vec<String>,
    /// Apply the patch to the repository when the model has submitted one
    #[arg(long, requires = "repo")]
    pub(super) apply: bool,
}

impl OwnArguments {
    /// The repository and the issue as a task; none when tasks were asked for.
    pub(super) fn instance(&self) -> Result<Option<Instance>, Failure> {
        let (Some(repo), Some(issue)) = (&self.repo, &self.issue) else { return Ok(None) };
        let repo = fs_err::canonicalize(repo)?;
        let problem_statement = read_issue(issue)?;
        if problem_statement.trim().is_empty() {
            return Err(Failure::usage(format!("the issue in {} is empty", issue.display())));
        }
        let is_clone = source::is_git(&repo);
        if is_clone && has_changes(&repo) {
            let folder = repo.display();
            output::note(&format!(
                "note: uncommitted changes in {folder} are not in the copy the model works on"
            ));
        }
        let name = repo.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let judged = self.test_cmd.is_some();
        Ok(Some(Instance {
            task: Task {
                id: name.clone(),
                repo: name,
                base_commit: if is_clone { "HEAD".into() } else { String::new() },
                problem_statement,
                version: String::new(),
                created_at: String::new(),
                image: None,
                workdir: WORKDIR.into(),
                requires: self.require.clone(),
                source: if is_clone {
                    RepositorySource::Clone(repo)
                } else {
                    RepositorySource::Directory(repo)
                },
            },
            key: AnswerKey {
                test_cmd: self.test_cmd.clone(),
                log_parser: "exit".into(),
                fail_to_pass: if judged { vec![EXIT_STATUS.into()] } else { Vec::new() },
                ..AnswerKey::default()
            },
        }))
    }

    /// Whether there is something to judge a patch by.
    pub(super) fn is_judged(&self) -> bool {
        self.repo.is_none() || self.test_cmd.is_some()
    }
}

/// Applies a patch to the user's repository: all of it or nothing.
pub(super) fn apply(repo: &Path, patch: &Path) -> Result<(), Failure> {
    let patch_file = fs_err::File::open(patch)?;
    let applied = Command::new("git")
        .args(["apply", "--whitespace=nowarn", "-"])
        .current_dir(repo)
        .stdin(Stdio::from(patch_file.into_parts().0))
        .output()?;
    if applied.status.success() {
        output::note(&format!("the patch was applied to {}", repo.display()));
        return Ok(());
    }
    let words = String::from_utf8_lossy(&applied.stderr).trim().replace('\n', "; ");
    Err(Failure::usage(format!("the patch does not apply to {}: {words}", repo.display()))
        .hint(format!("nothing was changed; the patch is kept in {}", patch.display())))
}

fn read_issue(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        return Ok(text);
    }
    Ok(fs_err::read_to_string(path)?)
}

fn has_changes(repo: &Path) -> bool {
    let status = Command::new("git").args(["status", "--porcelain"]).current_dir(repo).output();
    status.is_ok_and(|status| status.status.success() && !status.stdout.is_empty())
}
