//! The writer: one append-only file per attempt, one write per record.

use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use fs_err::File;
use fs_err::OpenOptions;

use crate::protocol::record::Event;
use crate::protocol::record::Record;
use crate::trajectory::Recorder;
use crate::trajectory::TrajectoryError;
use crate::trajectory::reader;

/// An event log that is being written. The file is locked, so that no other [`Writer`] can cut it.
///
/// Records reach the system as they are written and survive a kill of this process; [`Writer::finish`] makes them
/// survive a loss of power too.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// Bytes of whole records.
    length: u64,
    /// The last write failed and may have left a part of its record behind `length`.
    torn: bool,
}

impl Writer {
    /// Starts the log of an attempt. Its folder has to exist.
    ///
    /// # Errors
    /// When the file exists, so that no log is ever overwritten, or cannot be made.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, TrajectoryError> {
        let file = OpenOptions::new().append(true).create_new(true).open(path.as_ref())?;
        lock(&file)?;
        Ok(Self { file, length: 0, torn: false })
    }

    /// Opens a log to add to it, such as a verdict after the attempt ended. A torn last line, which a kill leaves
    /// behind, is dropped from the file first; everything else stays as it is.
    ///
    /// # Errors
    /// When the file is not a log that [`reader::read`] reads, lacks its header, or is being written.
    pub fn append_to(path: impl AsRef<Path>) -> Result<Self, TrajectoryError> {
        let path = path.as_ref();
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        lock(&file)?;
        let log = reader::read(path)?;
        if log.header().is_none() {
            return Err(TrajectoryError::NoHeader { path: path.to_owned() });
        }
        if let Some(torn) = log.torn {
            file.set_len(torn.offset)?;
        }
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
        let length = file.metadata()?.len();
        Ok(Self { file, length, torn: false })
    }

    /// Waits until the log is on the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn finish(self) -> Result<(), TrajectoryError> {
        Ok(self.file.sync_all()?)
    }
}

impl Recorder for Writer {
    fn record(&mut self, event: Event) -> Result<(), TrajectoryError> {
        // A part of a record in the middle of the file would make all of it unreadable.
        if self.torn {
            self.file.set_len(self.length)?;
            self.torn = false;
        }
        let mut line =
            serde_json::to_vec(&Record { time: now(), event }).map_err(TrajectoryError::Encode)?;
        // A number that is not finite or JSON that is nested too deeply can be written but not read, and one such record
        // would make all of the log unreadable.
        serde_json::from_slice::<Record>(&line).map_err(TrajectoryError::Encode)?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            self.torn = true;
            return Err(error.into());
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// Locks the file until it is closed, or says that another process has.
fn lock(file: &File) -> Result<(), TrajectoryError> {
    match file.file().try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(TrajectoryError::Busy { path: file.path().to_owned() })
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Seconds since the Unix epoch in whole microseconds, which a double can hold for centuries to come.
fn now() -> f64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    elapsed.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(text: &str) -> Event {
        Event::Warning { text: text.to_owned() }
    }

    #[test]
    fn a_record_after_a_failed_write_starts_on_a_clean_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut writer = Writer::create(&path).unwrap();
        writer.record(warning("first")).unwrap();
        // What a full disk leaves behind: the beginning of a record, and an error that the caller saw.
        writer.file.write_all(b"{\"time\":1.5,\"ev").unwrap();
        writer.torn = true;
        writer.record(warning("second")).unwrap();
        let texts: Vec<Event> = fs_err::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<Record>(line).unwrap().event)
            .collect();
        assert_eq!(texts, [warning("first"), warning("second")]);
    }

    #[test]
    fn what_could_not_be_read_again_is_refused_and_leaves_the_log_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut writer = Writer::create(&path).unwrap();
        let mut parameters = serde_json::Value::Null;
        for _ in 0..126 {
            parameters = serde_json::Value::Array(vec![parameters]);
        }
        let deep =
            Event::Request { turn: 1, messages: Vec::new(), parameters, sha256: String::new() };
        assert!(matches!(writer.record(deep), Err(TrajectoryError::Encode(_))));
        let (start_tree, isolation, network) = (String::new(), String::new(), String::new());
        let endless = Event::Reset {
            start_tree,
            isolation,
            network,
            environment: None,
            seconds: f64::INFINITY,
        };
        assert!(matches!(writer.record(endless), Err(TrajectoryError::Encode(_))));
        assert_eq!(fs_err::read(&path).unwrap(), b"");
    }

    #[test]
    fn an_existing_file_is_never_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        fs_err::write(&path, "precious").unwrap();
        assert!(matches!(Writer::create(&path), Err(TrajectoryError::Io(_))));
        assert!(matches!(Writer::append_to(&path), Err(TrajectoryError::NoHeader { .. })));
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn two_writers_exclude_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let _writer = Writer::create(&path).unwrap();
        assert!(matches!(Writer::append_to(&path), Err(TrajectoryError::Busy { .. })));
    }

    #[test]
    fn every_record_is_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut writer = Writer::create(&path).unwrap();
        let before = writes();
        writer.record(warning(&"long\n".repeat(100_000))).unwrap();
        assert_eq!(writes() - before, 1);
    }

    /// Writes of this thread so far, as the system counts them.
    fn writes() -> u64 {
        let io = fs_err::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
    }
}
