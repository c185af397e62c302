//! Takes the difference between the pristine work tree and what the model left, byte for byte.
//!
//! Git does the comparing, with a repository directory of the guest's own: its index, objects, configuration and
//! attributes. The model's index, HEAD and configuration are neither read nor touched, and its `.git` may be gone.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hash;
use std::hash::Hasher;
use std::io;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::fs::Mode;
use rustix::fs::OFlags;

use crate::guest::cancel::Cancel;
use crate::guest::disk::TEMPORARY;
use crate::protocol::wire::CHUNK;
use crate::protocol::wire::Fault;
use crate::protocol::wire::Receipt;

/// Where the pristine objects stand, when the backend keeps them out of the model's reach.
const PRISTINE: &str = "pristine";
/// Largest patch that is taken, in bytes.
const MAX_PATCH: u64 = 256 << 20;

/// Configuration of the guest's repository directory. Modification times are enough to see a change, because the
/// pristine tree's are long past; owner and inode differ between the machine that wrote the index and the sandbox.
const CONFIG: &str = "[core]
\trepositoryformatversion = 0
\tbare = false
\tfileMode = true
\tsymlinks = true
\tcheckStat = minimal
\ttrustCtime = false
\tautocrlf = false
\tsafecrlf = false
\tquotePath = false
\texcludesFile = /dev/null
\tattributesFile = /dev/null
\thooksPath = /dev/null
\tfsmonitor = false
\tuntrackedCache = false
[advice]
\taddEmbeddedRepo = false
[gc]
\tauto = 0
[index]
\tthreads = 1
";

/// These come before every `.gitattributes`: contents are taken as they are, and one driver decides about text.
const ATTRIBUTES: &str = "* -text !eol -filter -ident !working-tree-encoding diff=patchgym\n";

/// Untracked files that running tests leaves behind and nobody means to submit.
const EXCLUDED: &str = "\n__pycache__/\n*.pyc\n.pytest_cache/\n";

/// The guest's repository directory for one work tree.
pub(crate) struct Extraction<'a> {
    /// The guest's private directory.
    pub(crate) private: &'a Path,
    /// The work tree.
    pub(crate) root: &'a Path,
    /// Stops long commands.
    pub(crate) cancel: &'a Cancel,
}

impl Extraction<'_> {
    /// Records the work tree as it is now; gives git's name of the tree.
    pub(crate) fn start(&self) -> Result<String, Fault> {
        let git = self.directory();
        let made = (|| {
            optional(fs_err::remove_dir_all(&git))?;
            for name in ["objects/info", "refs", "info"] {
                fs_err::create_dir_all(git.join(name))?;
            }
            fs_err::write(git.join("HEAD"), "ref: refs/heads/none\n")?;
            fs_err::write(git.join("config"), CONFIG)?;
            fs_err::write(git.join("info/attributes"), ATTRIBUTES)?;
            let own = self.root.join(".git");
            let mut alternates = Vec::new();
            for objects in [self.private.join(PRISTINE), own.join("objects")] {
                if objects.is_dir() {
                    alternates.extend_from_slice(objects.as_os_str().as_bytes());
                    alternates.push(b'\n');
                }
            }
            fs_err::write(git.join("objects/info/alternates"), alternates)?;
            let excluded = optional(fs_err::read(own.join("info/exclude")))?.unwrap_or_default();
            fs_err::write(
                git.join("info/exclude"),
                [&excluded, EXCLUDED.as_bytes(), TEMPORARY.as_bytes(), b"*\n"].concat(),
            )?;
            optional(fs_err::copy(own.join("index"), git.join("index")))?;
            Ok(())
        })();
        made.map_err(|error: io::Error| Fault::Failed(error.to_string()))?;
        self.tree()
    }

    /// Sends the patch from `start_tree` to the work tree in pieces.
    pub(crate) fn extract(
        &self,
        start_tree: &str,
        send: &mut dyn FnMut(Vec<u8>) -> Result<(), Fault>,
    ) -> Result<Receipt, Fault> {
        if !start_tree.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Fault::Failed("the start tree is not an object name".into()));
        }
        let end_tree = self.tree()?;
        let mut receipt = Receipt {
            start_tree: start_tree.to_owned(),
            end_tree: end_tree.clone(),
            applies: true,
            ..Receipt::default()
        };
        if start_tree == end_tree {
            return Ok(receipt);
        }
        let raw = self
            .git(&["diff-tree", "-r", "-z", "--raw", "--no-renames", start_tree, &end_tree], &[])?;
        let changes = parse_raw(&raw);
        receipt.files = changes
            .iter()
            .filter(|change| !change.nested)
            .map(|change| change.path.clone())
            .collect();
        receipt.omitted = changes
            .iter()
            .filter(|change| change.nested)
            .map(|change| change.path.clone())
            .collect();
        if receipt.files.is_empty() {
            return Ok(receipt);
        }
        // Without paths all files are meant, whatever bytes their names hold.
        let paths: &[String] = if receipt.omitted.is_empty() { &[] } else { &receipt.files };
        let whole = self.diff(start_tree, &end_tree, Text::Detected, paths)?;
        let mut pieces = split_patch(&whole);
        let mut forced = Vec::new();
        for (piece, path) in pieces.iter().zip(&receipt.files) {
            if std::str::from_utf8(piece).is_err() {
                forced.push(path.clone());
                receipt.binary.push(path.clone());
            } else if piece.windows(17).any(|window| window == b"\nGIT binary patch") {
                receipt.binary.push(path.clone());
            }
        }
        let binary = if forced.is_empty() {
            Vec::new()
        } else {
            self.diff(start_tree, &end_tree, Text::Never, &forced)?
        };
        if !forced.is_empty() {
            let mut replacements = split_patch(&binary).into_iter();
            for piece in &mut pieces {
                if std::str::from_utf8(piece).is_err()
                    && let Some(replacement) = replacements.next()
                {
                    *piece = replacement;
                }
            }
        }
        let patch = pieces.concat();
        receipt.applies =
            self.applies(start_tree, &end_tree, &patch, receipt.omitted.is_empty())?;
        for piece in patch.chunks(CHUNK) {
            send(piece.to_vec())?;
        }
        Ok(receipt)
    }

    /// The work tree as a tree object.
    fn tree(&self) -> Result<String, Fault> {
        if let Err(error) = self.git(&["add", "--all"], &[]) {
            // A nested repository without a commit stops `git add`; it is left out, and the receipt names the others.
            let nested = nested_repositories(self.root);
            if nested.is_empty() {
                return Err(error);
            }
            let mut arguments = vec!["add".to_owned(), "--all".into(), "--".into(), ".".into()];
            arguments.extend(nested.iter().map(|path| format!(":(exclude,top,literal){path}")));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.git(&arguments, &[])?;
        }
        let tree = self.git(&["write-tree"], &[])?;
        Ok(String::from_utf8_lossy(&tree).trim().to_owned())
    }

    fn diff(&self, start: &str, end: &str, text: Text, paths: &[String]) -> Result<Vec<u8>, Fault> {
        let mut arguments = match text {
            Text::Detected => Vec::new(),
            Text::Never => vec!["-c", "diff.patchgym.binary=true"],
        };
        arguments.extend([
            "--literal-pathspecs",
            "diff-tree",
            "-r",
            "-p",
            "--binary",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            start,
            end,
            "--",
        ]);
        arguments.extend(paths.iter().map(String::as_str));
        self.git(&arguments, &[])
    }

    /// Applies the patch to the start tree in an index of its own and compares the result.
    fn applies(&self, start: &str, end: &str, patch: &[u8], complete: bool) -> Result<bool, Fault> {
        let index = self.private.join("check-index");
        let file = self.private.join("check.patch");
        fs_err::write(&file, patch).map_err(|error| Fault::Failed(error.to_string()))?;
        let index_variable = [("GIT_INDEX_FILE", index.as_path())];
        self.git(&["read-tree", start], &index_variable)?;
        let path = file.to_string_lossy();
        let applied =
            self.git(&["apply", "--cached", "--whitespace=nowarn", &path], &index_variable);
        let same = match applied {
            Ok(_) => {
                let tree = self.git(&["write-tree"], &index_variable)?;
                !complete || String::from_utf8_lossy(&tree).trim() == end
            }
            Err(Fault::Failed(_)) => false,
            Err(other) => return Err(other),
        };
        for path in [&index, &file] {
            let _ = fs_err::remove_file(path);
        }
        Ok(same)
    }

    fn directory(&self) -> PathBuf {
        self.private.join("git")
    }

    /// Runs git on the guest's repository directory; gives what it printed.
    fn git(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> Result<Vec<u8>, Fault> {
        let failed = |error: io::Error| Fault::Failed(format!("git {}: {error}", arguments[0]));
        let mut output = temporary(self.private).map_err(failed)?;
        let mut errors = temporary(self.private).map_err(failed)?;
        let mut child = Command::new("git")
            .args(arguments)
            .current_dir(self.root)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| SEARCH_PATH.into()))
            .env("GIT_DIR", self.directory())
            .env("GIT_WORK_TREE", self.root)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("LC_ALL", "C")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(errors.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let mut pause = Duration::from_micros(200);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if self.cancel.check().is_err() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Fault::Cancelled);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        if !status.success() {
            let text = read_back(&mut errors, 2000).map_err(failed)?;
            return Err(Fault::Failed(format!(
                "git {}: {}",
                arguments[0],
                String::from_utf8_lossy(&text).trim()
            )));
        }
        read_back(&mut output, MAX_PATCH).map_err(failed)
    }
}

/// Where git is looked for when the guest has no `PATH` of its own.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether files are compared as text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Detected,
    Never,
}

/// A changed path of a raw difference.
struct Change {
    path: String,
    nested: bool,
}

fn parse_raw(raw: &[u8]) -> Vec<Change> {
    let mut fields = raw.split(|byte| *byte == 0);
    let mut changes = Vec::new();
    while let (Some(header), Some(path)) = (fields.next(), fields.next()) {
        let header = String::from_utf8_lossy(header);
        let mut modes = header.trim_start_matches(':').split(' ');
        let nested = modes.next() == Some("160000") || modes.next() == Some("160000");
        changes.push(Change { path: String::from_utf8_lossy(path).into_owned(), nested });
    }
    changes
}

/// Splits a patch into the pieces of its files. No line of a hunk starts as the header of a file does.
fn split_patch(patch: &[u8]) -> Vec<&[u8]> {
    const HEADER: &[u8] = b"\ndiff --git ";
    let mut pieces = Vec::new();
    let mut rest = patch;
    while !rest.is_empty() {
        let end = rest
            .windows(HEADER.len())
            .position(|window| window == HEADER)
            .map_or(rest.len(), |at| at + 1);
        let (piece, later) = rest.split_at(end);
        pieces.push(piece);
        rest = later;
    }
    pieces
}

/// Directories below `root`, `root` itself excepted, that are repositories of their own.
fn nested_repositories(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut walk = ignore::WalkBuilder::new(root);
    walk.standard_filters(false)
        .follow_links(false)
        .filter_entry(|entry| entry.file_name() != ".git");
    for entry in walk.build().flatten() {
        if entry.depth() > 0
            && entry.path().join(".git").exists()
            && let Ok(path) = entry.path().strip_prefix(root)
        {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found
}

/// `None` for what does not exist.
fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn temporary(directory: &Path) -> io::Result<File> {
    rustix::fs::open(
        directory,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .map(File::from)
    .map_err(io::Error::from)
}

fn read_back(file: &mut File, limit: u64) -> io::Result<Vec<u8>> {
    io::Seek::rewind(file)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("more than {limit} bytes")));
    }
    Ok(bytes)
}

/// A value that changes whenever a file below `directory` is written, made, removed, moved or given another mode.
///
/// Where the backend keeps what was written in a directory of its own, that directory is given and few files stand
/// in it; else the work tree itself. The top-level `.git` does not count.
pub(crate) fn fingerprint(directory: BorrowedFd<'_>, cancel: &Cancel) -> Result<u64, Fault> {
    let mut hasher = DefaultHasher::new();
    let mut budget = 64;
    hash_directory(directory, &mut hasher, cancel, &mut budget)
        .map_err(|error| Fault::Failed(error.to_string()))?;
    if cancel.check().is_err() { Err(Fault::Cancelled) } else { Ok(hasher.finish()) }
}

fn hash_directory(
    directory: BorrowedFd<'_>,
    hasher: &mut DefaultHasher,
    cancel: &Cancel,
    depth: &mut u32,
) -> io::Result<()> {
    let top = *depth == 64;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") && !(top && name.to_bytes() == b".git") {
            names.push(name);
        }
    }
    names.sort_unstable();
    for name in names {
        if cancel.check().is_err() {
            return Ok(());
        }
        let stat = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        name.to_bytes().hash(hasher);
        (stat.st_mode, stat.st_ino, stat.st_rdev).hash(hasher);
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory {
            if *depth > 0 {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Ok(inner) = rustix::fs::openat(directory, &name, flags, Mode::empty()) {
                    *depth -= 1;
                    hash_directory(inner.as_fd(), hasher, cancel, depth)?;
                    *depth += 1;
                }
            }
        } else {
            (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
                .hash(hasher);
        }
    }
    // Marks the end of a directory, so that moving a file between directories shows.
    0xffu8.hash(hasher);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_split_at_its_files_only() {
        let patch = b"diff --git a/x b/x\n+diff --git a/y b/y\ndiff --git a/z b/z\n-1\n";
        let pieces = split_patch(patch);
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces.concat(), patch);
    }

    #[test]
    fn nested_repositories_are_told_from_files() {
        let changes = parse_raw(b":000000 100644 0 1 A\0new file\0:000000 160000 0 1 A\0inner\0");
        let seen: Vec<_> =
            changes.iter().map(|change| (change.path.as_str(), change.nested)).collect();
        assert_eq!(seen, [("new file", false), ("inner", true)]);
    }
}
