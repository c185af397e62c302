//! What a run came to: `summary.json`, the official run summary and the predictions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::batch::RunError;
use crate::batch::attempt::AttemptResult;
use crate::batch::folder::RunFolder;
use crate::batch::folder::write_whole;
use crate::grade::predictions;
use crate::grade::predictions::Prediction;
use crate::grade::predictions::Predictions;
use crate::grade::report;
use crate::grade::report::Entry;
use crate::protocol::verdict::Outcome;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    /// The run's name.
    pub run_id: String,
    /// The model's name.
    pub model: String,
    /// Attempts that were planned: tasks times attempts per task. The headline divides by it.
    pub total: usize,
    /// Attempts that ended.
    pub ended: usize,
    /// Attempts that the official rule calls resolved.
    pub resolved: usize,
    /// Attempts by verdict; `not_graded` where there is none.
    pub verdicts: BTreeMap<&'static str, usize>,
    /// Attempts by end reason.
    pub ends: BTreeMap<&'static str, usize>,
    /// Attempts that an infrastructure or model server error ended or kept from being graded, by cause.
    pub errors: BTreeMap<&'static str, usize>,
    /// Dollars; none when some price is not known.
    pub cost: Option<f64>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Completion tokens.
    pub completion_tokens: u64,
    /// Attempts measure nothing, because the model is shown the answers.
    pub uses_gold: bool,
    /// Every attempt.
    pub attempts: Vec<AttemptResult>,
}

impl RunSummary {
    /// Sums up the attempts of a run.
    pub fn new(folder: &RunFolder, model: &str, results: Vec<AttemptResult>) -> Self {
        let manifest = &folder.manifest;
        let mut summary = Self {
            run_id: manifest.run_id.clone(),
            model: model.to_owned(),
            total: manifest.identity.instances.len() * manifest.identity.attempts as usize,
            ended: results.len(),
            resolved: results.iter().filter(|result| result.resolved()).count(),
            verdicts: BTreeMap::new(),
            ends: BTreeMap::new(),
            errors: BTreeMap::new(),
            cost: Some(0.0),
            prompt_tokens: 0,
            completion_tokens: 0,
            uses_gold: manifest.uses_gold,
            attempts: Vec::new(),
        };
        for result in &results {
            let verdict =
                result.verdict.as_ref().map_or("not_graded", |verdict| verdict.outcome.name());
            *summary.verdicts.entry(verdict).or_default() += 1;
            *summary.ends.entry(result.end.name()).or_default() += 1;
            if let Some(cause) = result.error() {
                *summary.errors.entry(cause).or_default() += 1;
            }
            summary.cost = summary.cost.zip(result.totals.cost).map(|(sum, cost)| sum + cost);
            summary.prompt_tokens += result.totals.prompt_tokens;
            summary.completion_tokens += result.totals.completion_tokens;
        }
        summary.attempts = results;
        summary
    }

    /// Writes the summary, the predictions and, with one attempt per task, the official run summary; gives the paths
    /// of the predictions.
    ///
    /// # Errors
    /// When the run folder cannot be written.
    pub fn write(&self, folder: &RunFolder) -> Result<Vec<PathBuf>, RunError> {
        write_whole(&folder.path().join("summary.json"), report::json(self)?.as_bytes())?;
        let attempts = folder.manifest.identity.attempts;
        let mut written = Vec::new();
        for attempt in 1..=attempts {
            let of_this = || self.attempts.iter().filter(|result| result.attempt == attempt);
            let predictions: Predictions = of_this()
                .map(|result| {
                    let patch = result.patch.as_deref().map(crate::text::lossy);
                    (result.instance_id.clone(), Prediction { model: self.model.clone(), patch })
                })
                .collect();
            let (name, run_id) = if attempts == 1 {
                ("preds.json".to_owned(), self.run_id.clone())
            } else {
                (
                    format!("preds.attempt-{attempt}.json"),
                    format!("{}.attempt-{attempt}", self.run_id),
                )
            };
            let path = folder.path().join(name);
            predictions::write(&path, &predictions)?;
            written.push(path);
            let entries: BTreeMap<String, Entry> = of_this()
                .filter_map(|result| Some((result.instance_id.clone(), entry(folder, result)?)))
                .collect();
            let official = report::summary(
                folder.manifest.identity.instances.iter().map(String::as_str),
                &entries,
            );
            let path = folder.path().join(report::summary_file(&self.model, &run_id));
            write_whole(&path, report::json(&official)?.as_bytes())?;
        }
        Ok(written)
    }
}

/// An attempt in the official summary. One that was not graded is not in it.
fn entry(folder: &RunFolder, result: &AttemptResult) -> Option<Entry> {
    let verdict = result.verdict.as_ref()?;
    let log = match verdict.outcome {
        Outcome::Resolved | Outcome::EmptyPatch => String::new(),
        Outcome::Unresolved | Outcome::Error => {
            let path = folder.attempt(&result.instance_id, result.attempt).join("test_output.txt");
            fs_err::read(path).map(|bytes| crate::text::lossy(&bytes)).unwrap_or_default()
        }
    };
    Some(Entry::new(verdict, &log))
}
