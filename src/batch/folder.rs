//! The folder of a run: one process at a time, names that are safe for any id, files whole or absent.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::FlockOperation;

use crate::batch::RunError;
use crate::batch::manifest::Manifest;
use crate::grade::report;

/// A run folder that this process holds.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The manifest: the one that was there, or the new one.
    pub manifest: Manifest,
    /// Whether the run was there before.
    pub resumed: bool,
    _lock: File,
}

impl RunFolder {
    /// Makes the folder of a run, or takes it up again when it was started with the same settings.
    ///
    /// # Errors
    /// When another process holds it, it was started with other settings, or it cannot be written.
    pub fn open(path: &Path, manifest: Manifest) -> Result<Self, RunError> {
        fs_err::create_dir_all(path)?;
        let lock = fs_err::OpenOptions::new().create(true).append(true).open(path.join(".lock"))?;
        let (lock, _) = lock.into_parts();
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(RunError::Busy(path.to_owned()));
        }
        let file = path.join("manifest.json");
        let (manifest, resumed) = match fs_err::read(&file) {
            Ok(bytes) => {
                let before: Manifest = serde_json::from_slice(&bytes).map_err(|error| {
                    RunError::Manifest { path: file.clone(), problem: error.to_string() }
                })?;
                let mut differences = before.identity.differences(&manifest.identity);
                // What `auto` comes to depends on the machine.
                if before.isolation != manifest.isolation {
                    let (then, now) = (&before.isolation, &manifest.isolation);
                    differences.push(format!("  isolation: {then} then, {now} now"));
                }
                if !differences.is_empty() {
                    return Err(RunError::Different { path: path.to_owned(), differences });
                }
                (before, true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                write_whole(&file, report::json(&manifest)?.as_bytes())?;
                (manifest, false)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path: path.to_owned(), manifest, resumed, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of one attempt, from 1.
    pub fn attempt(&self, instance_id: &str, attempt: u32) -> PathBuf {
        self.path
            .join("attempts")
            .join(report::instance_folder(instance_id))
            .join(attempt.to_string())
    }
}

/// Writes a file so that it is whole or absent, whatever happens meanwhile.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".part-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_data()?;
    // A temporary file is for its owner only; a report is for whoever may read the folder.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(mode)?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
