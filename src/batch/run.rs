//! Plays the attempts of a run, several at a time.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::batch::RunError;
use crate::batch::attempt::AttemptResult;
use crate::batch::attempt::Stage;
use crate::batch::folder::RunFolder;
use crate::task::Instance;

/// What happens in a run while it goes on.
#[derive(Debug)]
pub enum Progress {
    /// An attempt was begun.
    Started {
        /// The task's id.
        instance_id: String,
        /// Attempt, from 1.
        attempt: u32,
    },
    /// An attempt came to its end.
    Finished(Box<AttemptResult>),
}

/// Brings every attempt of a run to its end; gives the results in the order of the instances.
///
/// When `stop` becomes true no further attempt is begun, and those under way end with what they have.
///
/// # Errors
/// When files of the run cannot be read or written. Attempts that ended before are kept.
pub async fn run(
    folder: &RunFolder,
    stage: Arc<Stage>,
    instances: &[Instance],
    attempts: u32,
    workers: usize,
    stop: watch::Receiver<bool>,
    progress: mpsc::UnboundedSender<Progress>,
) -> Result<Vec<AttemptResult>, RunError> {
    let places = Arc::new(Semaphore::new(workers.max(1)));
    let mut tasks = JoinSet::new();
    let mut number = 0;
    for attempt in 1..=attempts {
        for instance in instances {
            let job = Job {
                number,
                folder: folder.attempt(&instance.task.id, attempt),
                instance: instance.clone(),
                attempt,
            };
            number += 1;
            let (stage, places) = (Arc::clone(&stage), Arc::clone(&places));
            let (stop, progress) = (stop.clone(), progress.clone());
            tasks.spawn(async move {
                let Ok(_place) = places.acquire_owned().await else { return Ok(None) };
                if *stop.borrow() {
                    return Ok(None);
                }
                job.play(&stage, &progress).await.map(|result| Some((job.number, result)))
            });
        }
    }
    let mut results = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(Ok(Some(result))) => results.push(result),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(error),
            Err(error) => return Err(RunError::Task(error.to_string())),
        }
    }
    results.sort_unstable_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

struct Job {
    number: usize,
    folder: PathBuf,
    instance: Instance,
    attempt: u32,
}

impl Job {
    async fn play(
        &self,
        stage: &Stage,
        progress: &mpsc::UnboundedSender<Progress>,
    ) -> Result<AttemptResult, RunError> {
        let started =
            Progress::Started { instance_id: self.instance.task.id.clone(), attempt: self.attempt };
        // Nobody may be looking.
        let _ = progress.send(started);
        let result = stage.finish(&self.folder, &self.instance, self.attempt).await?;
        let _ = progress.send(Progress::Finished(Box::new(result.clone())));
        Ok(result)
    }
}
