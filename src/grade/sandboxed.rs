//! Grades in a fresh sandbox: apply the patch, run the tests, compare their log with what was expected.

use std::error::Error;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;

use crate::env::EnvError;
use crate::env::environments::PrepareError;
use crate::env::site::Site;
use crate::env::site::Sites;
use crate::grade::Graded;
use crate::grade::Grader;
use crate::grade::apply;
use crate::grade::compare;
use crate::grade::compare::Expectation;
use crate::grade::official;
use crate::grade::official::ForeignScript;
use crate::grade::report;
use crate::grade::script;
use crate::grade::script::Tests;
use crate::protocol::operation::Ending;
use crate::protocol::operation::Op;
use crate::protocol::operation::Reply;
use crate::protocol::verdict::GradeError;
use crate::protocol::verdict::Outcome;
use crate::protocol::verdict::Split;
use crate::protocol::verdict::TestMap;
use crate::protocol::verdict::Times;
use crate::protocol::verdict::Verdict;
use crate::sandbox::Cause;
use crate::sandbox::Network;
use crate::sandbox::Place;
use crate::sandbox::SandboxError;
use crate::sandbox::client::Guest;
use crate::sandbox::client::GuestError;
use crate::task::AnswerKey;
use crate::task::Task;
use crate::text;

/// The shell that runs the tests.
const SESSION: &str = "test";
/// Bytes of the log that are taken from each of its ends; 64 MiB in all.
const LOG_END: u64 = 32 << 20;
/// Longest time for taking the log.
const LOG_LIMIT: Duration = Duration::from_secs(300);
/// Sandboxes that are tried before the machine is to blame.
const SANDBOXES: u32 = 2;

/// How to grade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GradeOptions {
    /// What the tests can reach.
    pub network: Network,
    /// Time the test script gets, whole seconds; the harness's default is 1800.
    pub timeout: Duration,
}

impl Default for GradeOptions {
    fn default() -> Self {
        Self { network: Network::None, timeout: Duration::from_secs(1800) }
    }
}

/// Grades each patch in a sandbox of its own.
pub struct SandboxedGrader {
    sites: Sites,
    options: GradeOptions,
}

/// One grading, all that does not change from one sandbox to the next.
struct Job<'a> {
    site: Site,
    patch: &'a [u8],
    key: &'a AnswerKey,
    expectation: Expectation<'a>,
    tests: HiddenTests<'a>,
}

/// What runs the hidden tests of a task.
enum HiddenTests<'a> {
    /// The benchmark's own script, made for its image.
    Official(&'a str),
    /// A command.
    Command(String),
}

/// Where a grading's files are in its sandbox. The private directory has room when the tests have filled the disk.
struct Files {
    test_patch: String,
    script: String,
    log: String,
}

impl Files {
    fn of(place: &Place) -> Self {
        let at = |name: &str| format!("{}/{name}", place.private);
        Self { test_patch: at("test.patch"), script: at("eval.sh"), log: at("test_output.txt") }
    }

    /// Runs the script. Its output goes through a pipe, because a test that opens `/dev/stderr` anew would empty a
    /// file. The pipe's reader outlives an interrupt, so that what tests say about it is kept. It is waited for until
    /// it has taken everything, and for two seconds at most: a process that the tests left behind may hold the pipe
    /// for ever.
    fn command(&self) -> String {
        let (script, log) = (script::word(&self.script), script::word(&self.log));
        format!(
            "/bin/bash {script} > >(trap '' INT; exec cat >{log}) 2>&1
for _ in {{1..100}}; do kill -0 $! 2>/dev/null || break; sleep 0.02; done
"
        )
    }
}

impl SandboxedGrader {
    /// A grader whose sandboxes are made of what `sites` gives.
    pub fn new(sites: Sites, options: GradeOptions) -> Self {
        Self { sites, options }
    }

    async fn graded(&self, task: &Task, key: &AnswerKey, patch: &[u8]) -> Graded {
        if std::str::from_utf8(patch).is_ok_and(|patch| patch.trim().is_empty()) {
            return unrun(verdict(Outcome::EmptyPatch));
        }
        let expectation = match Expectation::new(key) {
            Ok(expectation) => expectation,
            Err(error) => return unrun(failure(GradeError::Task, error.to_string())),
        };
        let site = match self.sites.site(task, self.options.network).await {
            Ok(site) => site,
            Err(error) => return unrun(failure(blame(&error), one_line(&error))),
        };
        let tests = match HiddenTests::of(key, &site) {
            Ok(tests) => tests,
            Err(problem) => return unrun(failure(GradeError::Task, problem.into())),
        };
        let job = Job { site, patch, key, expectation, tests };
        let mut problem = String::new();
        for _ in 0..SANDBOXES {
            match self.attempt(&job).await {
                Ok(graded) => return graded,
                Err(error) => {
                    tracing::warn!(task = task.id, %error, "grading failed");
                    problem = error.to_string();
                }
            }
        }
        unrun(failure(GradeError::Sandbox, problem))
    }

    /// Grades in one sandbox.
    async fn attempt(&self, job: &Job<'_>) -> Result<Graded, SandboxError> {
        let started = Instant::now();
        let mut sandbox = self.sites.backend.create(&job.site.spec).await?;
        let graded = match sandbox.connect().await {
            Ok(guest) => match self.grade_with(&guest, sandbox.place(), job, started).await {
                Ok(graded) => Ok(graded),
                Err(EnvError::Guest(GuestError::Lost)) => {
                    Err(SandboxError::Guest(loss(&sandbox.post_mortem().await)))
                }
                Err(error) => Err(SandboxError::Guest(one_line(&error))),
            },
            Err(error) => Err(error),
        };
        // What was found out stands, whether or not the sandbox could be cleared away.
        if let Err(error) = sandbox.close().await {
            tracing::warn!(%error, "a sandbox was not cleared away");
        }
        graded
    }

    async fn grade_with(
        &self,
        guest: &Guest,
        place: &Place,
        job: &Job<'_>,
        started: Instant,
    ) -> Result<Graded, EnvError> {
        let files = Files::of(place);
        let script = match job.script(place, &files) {
            Ok(script) => script,
            Err(error) => return Ok(unrun(failure(GradeError::Task, error.to_string()))),
        };
        job.site.complete(guest).await?;
        let mut times = Times { sandbox: started.elapsed().as_secs_f64(), ..Times::default() };
        let applying = Instant::now();
        let apply = apply::apply(guest, place, job.patch).await?;
        times.apply = applying.elapsed().as_secs_f64();
        let (verdict, log) = if apply.method.is_some() {
            let testing = Instant::now();
            let (ending, log) = self.run_tests(guest, place, &files, &script, job).await?;
            times.test = testing.elapsed().as_secs_f64();
            self.judge(job, ending, log)
        } else {
            (
                failure(GradeError::ApplyFailed, "no command could apply the patch".into()),
                Vec::new(),
            )
        };
        let verdict = Verdict { apply: Some(apply), times, ..verdict };
        Ok(Graded { verdict, log, script })
    }

    /// Runs the script; gives how it ended, and what it printed.
    async fn run_tests(
        &self,
        guest: &Guest,
        place: &Place,
        files: &Files,
        script: &str,
        job: &Job<'_>,
    ) -> Result<(Ending, Vec<u8>), GuestError> {
        let test_patch = apply::with_final_newline(job.key.test_patch.as_bytes());
        guest.write(&files.test_patch, None, &test_patch).await?;
        guest.write(&files.script, None, script.as_bytes()).await?;
        guest.open_session(SESSION, &place.shell()).await?;
        let command = files.command();
        let result = guest.run(SESSION, command.as_bytes(), self.options.timeout, 0).await?;
        Ok((result.ending, both_ends(guest, &files.log, LOG_END).await?))
    }

    /// What the log of a script that ended this way says, and the log as it is to be kept.
    fn judge(&self, job: &Job<'_>, ending: Ending, mut log: Vec<u8>) -> (Verdict, Vec<u8>) {
        if ending == Ending::TimedOut {
            let seconds = self.options.timeout.as_secs();
            // The harness's words, which its report looks for.
            log.extend_from_slice(
                format!("\n\nTimeout error: {seconds} seconds exceeded.").as_bytes(),
            );
            return (
                failure(
                    GradeError::TestTimeout,
                    format!("the tests were not done after {seconds} s"),
                ),
                log,
            );
        }
        let text = text::lossy(&log);
        let results = compare::results(&text, &job.expectation);
        if !results.found {
            let reason =
                report::reason(&text).map_or(String::new(), |reason| format!(": {}", reason.name));
            return (
                failure(GradeError::NoResults, format!("the log holds no test results{reason}")),
                log,
            );
        }
        let outcome = if results.resolved { Outcome::Resolved } else { Outcome::Unresolved };
        let verdict = Verdict {
            fail_to_pass: results.fail_to_pass,
            pass_to_pass: results.pass_to_pass,
            tests: results.tests,
            ..verdict(outcome)
        };
        (verdict, log)
    }
}

#[async_trait]
impl Grader for SandboxedGrader {
    async fn grade(&self, task: &Task, key: &AnswerKey, patch: &[u8]) -> Graded {
        let started = Instant::now();
        let mut graded = self.graded(task, key, patch).await;
        graded.verdict.times.total = started.elapsed().as_secs_f64();
        graded
    }
}

impl<'a> HiddenTests<'a> {
    /// Those of a task at a site, or why there are none.
    fn of(key: &'a AnswerKey, site: &Site) -> Result<Self, &'static str> {
        match (&key.eval_script, &site.environment, &key.test_cmd) {
            (Some(official), Some(_), _) => Ok(Self::Official(official)),
            (_, _, Some(test_cmd)) => Ok(Self::Command(test_cmd.clone())),
            (None, Some(environment), None) => Ok(Self::Command(script::with_test_files(
                &environment.recipe.test,
                &key.test_patch,
            ))),
            (Some(_), None, None) => Err("its script is for an image"),
            (None, None, None) => Err("the task has no test command"),
        }
    }
}

impl Job<'_> {
    /// The script that runs the hidden tests in a sandbox.
    fn script(&self, place: &Place, files: &Files) -> Result<String, ForeignScript> {
        match &self.tests {
            HiddenTests::Official(official) => official::adapted(official, &place.workdir),
            HiddenTests::Command(test_cmd) => Ok(script::script(&Tests {
                workdir: &place.workdir,
                base_commit: &self.site.commit,
                test_patch: &self.key.test_patch,
                test_patch_file: &files.test_patch,
                test_cmd,
            })),
        }
    }
}

/// Whose fault it is that there is nothing to grade in.
fn blame(error: &EnvError) -> GradeError {
    match error {
        EnvError::Environment(PrepareError::NoRecipe { .. } | PrepareError::NoPython { .. }) => {
            GradeError::Task
        }
        EnvError::Environment(_)
        | EnvError::Repository(_)
        | EnvError::Sandbox(_)
        | EnvError::Guest(_)
        | EnvError::Tools(_)
        | EnvError::NotReset
        | EnvError::Preparation(_) => GradeError::Sandbox,
    }
}

/// A file; of one longer than two `ends` only these, and how much is missing between them.
async fn both_ends(guest: &Guest, path: &str, end: u64) -> Result<Vec<u8>, GuestError> {
    let (size, mut bytes) = piece(guest, path, 0, end).await?;
    let taken = bytes.len() as u64;
    if size > taken {
        let rest = taken.max(size.saturating_sub(end));
        if rest > taken {
            bytes.extend_from_slice(format!("\n[{} bytes left out]\n", rest - taken).as_bytes());
        }
        bytes.extend(piece(guest, path, rest, end).await?.1);
    }
    Ok(bytes)
}

/// A file's size, and what it holds from `offset` on, at most `limit` bytes.
async fn piece(
    guest: &Guest,
    path: &str,
    offset: u64,
    limit: u64,
) -> Result<(u64, Vec<u8>), GuestError> {
    let op = Op::Read { path: path.to_owned(), offset, limit };
    match guest.fetch(op, LOG_LIMIT, usize::try_from(limit).unwrap_or(usize::MAX)).await? {
        (Reply::Sent { size }, bytes) => Ok((size, bytes)),
        (other, _) => Err(GuestError::Failed(format!("unexpected reply {other:?}"))),
    }
}

/// A verdict that says nothing but its outcome.
fn verdict(outcome: Outcome) -> Verdict {
    Verdict {
        outcome,
        error: None,
        detail: None,
        apply: None,
        fail_to_pass: Split::default(),
        pass_to_pass: Split::default(),
        tests: TestMap::new(),
        times: Times::default(),
    }
}

fn failure(error: GradeError, detail: String) -> Verdict {
    Verdict { error: Some(error), detail: Some(detail), ..verdict(Outcome::Error) }
}

fn unrun(verdict: Verdict) -> Graded {
    Graded { verdict, log: Vec::new(), script: String::new() }
}

fn loss(cause: &Cause) -> String {
    match cause {
        Cause::GuestSignalled(signal) => format!("its guest was ended by signal {signal}"),
        Cause::GuestExited => "its guest ended".to_owned(),
        Cause::SandboxGone => "it is gone".to_owned(),
    }
}

/// An error and what caused it.
fn one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_line = cause.to_string();
        // Some errors already say what their cause says.
        if !line.ends_with(&cause_line) {
            line = format!("{line}: {cause_line}");
        }
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use crate::sandbox::local::backend::Local;

    use super::*;
    use crate::sandbox::Backend;
    use crate::sandbox::SandboxSpec;

    #[tokio::test]
    async fn a_long_file_keeps_its_ends_and_a_short_one_everything() {
        let mut sandbox = Local::new().create(&SandboxSpec::default()).await.unwrap();
        let guest = sandbox.connect().await.unwrap();
        let log = Files::of(sandbox.place()).log;
        guest.write(&log, None, b"0123456789").await.unwrap();
        for (end, expected) in [
            (10, "0123456789"),
            (20, "0123456789"),
            (5, "0123456789"),
            (8, "0123456789"),
            (4, "0123\n[2 bytes left out]\n6789"),
        ] {
            assert_eq!(text::lossy(&both_ends(&guest, &log, end).await.unwrap()), expected);
        }
        sandbox.close().await.unwrap();
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = std::io::Error::other("no space");
        let create = SandboxError::Create { what: "mounting".into(), source: inner };
        assert_eq!(one_line(&create), "create sandbox: mounting: no space");
    }
}
