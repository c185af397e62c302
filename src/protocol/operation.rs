//! What the guest can do, and what it answers. Carried by the frames of [`crate::protocol::wire`].

use serde::Deserialize;
use serde::Serialize;

/// What the guest can do. Paths are absolute or relative to the operation's working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Make sure the shell session `session` exists, with this state.
    OpenSession {
        /// Its name.
        session: String,
        /// Working directory, environment and shell.
        start: SessionStart,
    },
    /// Run a command in the session.
    Run {
        /// The session's name.
        session: String,
        /// Shell source, byte for byte.
        command: Vec<u8>,
        /// Everything the command started is ended after this many milliseconds; 0 = never.
        limit_ms: u64,
        /// Keep at most this many bytes of the output's beginning, and as many of its end.
        keep: u32,
    },
    /// A window of lines of a file.
    Lines {
        /// The file.
        path: String,
        /// First line, counted from 1.
        first: u64,
        /// Most lines to give.
        count: u64,
    },
    /// A file's bytes, as `Data`.
    Read {
        /// The file.
        path: String,
        /// First byte.
        offset: u64,
        /// Most bytes to give.
        limit: u64,
    },
    /// Make or replace a file with the `Data` that follows, atomically.
    Write {
        /// The file; missing parent directories are made.
        path: String,
        /// Permission bits; none keeps those of an existing file, or 0644.
        mode: Option<u32>,
    },
    /// What stands at a path, links not followed.
    Stat {
        /// The path.
        path: String,
    },
    /// The entries of a directory.
    List {
        /// The directory.
        path: String,
        /// Levels to descend; 1 = its own entries.
        depth: u32,
        /// Most entries to give.
        limit: u32,
    },
    /// Change a file.
    Edit {
        /// The file.
        path: String,
        /// The change.
        edit: Edit,
    },
    /// Lines that contain a literal text.
    Search {
        /// The text.
        term: String,
        /// A directory or a file.
        path: String,
        /// Most files to list.
        max_files: u32,
        /// Most lines to list, over all files.
        max_lines: u32,
    },
    /// Files whose name matches a glob.
    Find {
        /// The glob, matched against the name, or the relative path when it holds a `/`.
        pattern: String,
        /// The directory to look in.
        path: String,
        /// Most paths to list.
        limit: u32,
    },
    /// Record the pristine tree of a work tree as the reference of later patches.
    StartTree {
        /// The work tree's root, which holds `.git`.
        root: String,
    },
    /// A value that changes whenever the work tree may have changed.
    Fingerprint {
        /// The work tree's root.
        root: String,
    },
    /// The difference between the start tree and the work tree, as `Data`.
    Patch {
        /// The work tree's root.
        root: String,
        /// The tree that [`Op::StartTree`] named.
        start_tree: String,
    },
    /// Unpack the tar stream in `Data` below a directory.
    PutTar {
        /// The directory; made when missing.
        path: String,
    },
    /// A tar stream of a file or directory, as `Data`.
    GetTar {
        /// What to pack.
        path: String,
    },
}

/// State a shell session starts from, or is restored to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStart {
    /// Working directory.
    pub cwd: String,
    /// Environment variables of the first shell.
    pub env: Vec<(String, String)>,
    /// Shell source that restores exports, as an earlier [`CommandResult`] gave it; empty for none.
    pub exports: Vec<u8>,
}

/// A change to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// Replace the one occurrence of `old` by `new`.
    Replace {
        /// Text that occurs exactly once.
        old: String,
        /// What stands there afterwards.
        new: String,
    },
    /// Put whole lines after line `after`; 0 = before the first line.
    Insert {
        /// Line number, 0 to the number of lines.
        after: u64,
        /// The lines.
        text: String,
    },
    /// Make a file that does not exist yet.
    Create {
        /// Its contents.
        text: String,
    },
    /// Take back the last change made to this file by an edit.
    Undo,
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing to say.
    Done,
    /// Of [`Op::Run`].
    Run(CommandResult),
    /// Of [`Op::Lines`].
    Lines(Window),
    /// Of [`Op::Read`] and [`Op::GetTar`]: the bytes were sent as `Data`.
    Sent {
        /// Size of the whole file.
        size: u64,
    },
    /// Of [`Op::Stat`].
    Stat(Stat),
    /// Of [`Op::List`].
    List {
        /// Sorted by path.
        entries: Vec<Entry>,
        /// More than the limit exist.
        more: bool,
    },
    /// Of [`Op::Edit`].
    Edited(Edited),
    /// Of [`Op::Search`].
    Search(SearchResult),
    /// Of [`Op::Find`].
    Find {
        /// Relative to the searched directory, sorted.
        paths: Vec<String>,
        /// How many match in all.
        total: u64,
    },
    /// Of [`Op::StartTree`].
    StartTree {
        /// Git's name of the tree.
        tree: String,
    },
    /// Of [`Op::Fingerprint`].
    Fingerprint {
        /// Equal values mean an unchanged work tree.
        value: u64,
    },
    /// Of [`Op::Patch`]: the patch was sent as `Data`.
    Patch(Receipt),
}

/// How a command went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// How it ended.
    pub ending: Ending,
    /// The first bytes of its output (standard output and error in the order written).
    pub head: Vec<u8>,
    /// The last bytes, when there were more than fit `head`.
    pub tail: Vec<u8>,
    /// Bytes in all.
    pub total: u64,
    /// What background jobs printed since the command before, its last bytes.
    pub late: Vec<u8>,
    /// The shell that ran it is gone; the next command gets a new one with the last known state.
    pub shell_lost: bool,
    /// Working directory afterwards.
    pub cwd: String,
    /// Shell source that restores the exported variables.
    pub exports: Vec<u8>,
    /// Wall time in microseconds.
    pub micros: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The exit status.
    Exited(i32),
    /// The signal that ended the shell.
    Signalled(i32),
    /// The limit passed or the host cancelled; every process it started was ended.
    TimedOut,
}

/// Lines of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Number of the first line given, from 1; clamped to the file.
    pub first: u64,
    /// The lines without their ends; long ones are cut.
    pub lines: Vec<Line>,
    /// Lines of the whole file.
    pub total: u64,
    /// Size of the whole file in bytes.
    pub size: u64,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its bytes, without line end, at most [`MAX_LINE`].
    pub text: Vec<u8>,
    /// Bytes left out at its end.
    pub cut: u64,
}

/// Bytes of a line that are given at most.
pub const MAX_LINE: usize = 4096;

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// File, directory, link or something else.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path relative to the listed directory.
    pub path: String,
    /// What it is.
    pub stat: Stat,
}

/// What an edit did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edited {
    /// First changed line afterwards, from 1.
    pub first: u64,
    /// Changed lines afterwards; 0 when lines were only removed.
    pub lines: u64,
    /// Lines of the file afterwards.
    pub total: u64,
    /// The file is gone (an undone creation).
    pub removed: bool,
}

/// Hits of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchResult {
    /// Sorted by path; at most the asked number of files and lines.
    pub files: Vec<FileHits>,
    /// Files that have a hit.
    pub total_files: u64,
    /// Lines that are a hit.
    pub total_lines: u64,
}

/// Hits in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHits {
    /// Path relative to the searched directory, or its name when a file was searched.
    pub path: String,
    /// Lines that are a hit.
    pub total: u64,
    /// Line numbers, from 1, and the lines.
    pub lines: Vec<(u64, Line)>,
}

/// What is known about a patch besides its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The tree the patch starts from.
    pub start_tree: String,
    /// The tree it leads to.
    pub end_tree: String,
    /// Paths it changes.
    pub files: Vec<String>,
    /// Those of them that are binary, or whose difference is not UTF-8, and stand as binary hunks.
    pub binary: Vec<String>,
    /// Nested repositories, whose contents a patch cannot hold.
    pub omitted: Vec<String>,
    /// `git apply --check` accepted it on the start tree.
    pub applies: bool,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A mistake of whoever asked; goes to the model.
    Refused(Refusal),
    /// The guest could not do it; an infrastructure error.
    Failed(String),
    /// The host cancelled it, or its deadline passed.
    Cancelled,
}

/// Mistakes that an operation names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Nothing stands at the path.
    NotFound {
        /// The path.
        path: String,
        /// Existing paths of the same name.
        similar: Vec<String>,
    },
    /// A file was expected.
    IsDirectory {
        /// The path.
        path: String,
    },
    /// A directory was expected.
    NotDirectory {
        /// The path.
        path: String,
    },
    /// The path is not a regular file or directory.
    NotRegular {
        /// The path.
        path: String,
    },
    /// The file holds NUL bytes.
    Binary {
        /// The path.
        path: String,
    },
    /// The file is larger than the operation takes.
    TooLarge {
        /// The path.
        path: String,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file system refused.
    Denied {
        /// The path.
        path: String,
        /// The system's words.
        reason: String,
    },
    /// `old` was empty.
    EmptyOld,
    /// `old` does not occur.
    NoMatch {
        /// The path.
        path: String,
        /// It occurs when tabs, spaces and line ends are not compared: first line of that place.
        whitespace_differs_at: Option<u64>,
        /// The most similar place: first line and its text.
        nearest: Option<(u64, String)>,
    },
    /// `old` occurs more than once.
    ManyMatches {
        /// The path.
        path: String,
        /// First line of each occurrence.
        lines: Vec<u64>,
    },
    /// The change would change nothing.
    NoChange {
        /// The path.
        path: String,
    },
    /// The file to create exists.
    Exists {
        /// The path.
        path: String,
    },
    /// No such line.
    NoLine {
        /// The path.
        path: String,
        /// The line that was asked for.
        line: u64,
        /// Lines of the file.
        total: u64,
    },
    /// No edit of this file is left to undo.
    NoUndo {
        /// The path.
        path: String,
    },
    /// The pattern cannot be read.
    BadPattern {
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
}
