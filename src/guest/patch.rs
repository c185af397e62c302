//! Takes the difference between the pristine work tree and what the model left, byte for byte.
//!
//! Git does the comparing, with a repository directory of the guest's own: its index, objects, configuration and
//! attributes. The model's index, HEAD and configuration are neither read nor touched, and its `.git` may be gone.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use memchr::memmem;

use crate::guest::cancel::Cancel;
use crate::guest::disk::TEMPORARY;
use crate::guest::git::Git;
use crate::guest::git::GitError;
use crate::guest::written;
use crate::guest::written::Written;
use crate::protocol::operation::Fault;
use crate::protocol::operation::Receipt;
use crate::protocol::wire::CHUNK;

/// Where the pristine objects stand, when the backend keeps them out of the model's reach.
const PRISTINE: &str = "pristine";
/// Largest file that goes into a patch, and most bytes of all written files that do.
const MAX_FILE: u64 = 32 << 20;
const MAX_FILES: u64 = 96 << 20;
/// How often the work tree is looked at again when its files change meanwhile.
const ATTEMPTS: usize = 3;
/// Paths that are given to one command.
const PATHS: usize = 500;

/// Configuration of the guest's repository directory.
const CONFIG: &str = "\tbare = false
\tfileMode = true
\tsymlinks = true
\tautocrlf = false
\tsafecrlf = false
\tquotePath = false
\texcludesFile = /dev/null
\tattributesFile = /dev/null
\thooksPath = /dev/null
\tfsmonitor = false
\tuntrackedCache = false
\tsplitIndex = false
[advice]
\taddEmbeddedRepo = false
[gc]
\tauto = 0
[index]
\tthreads = 1
";

/// For an index that another machine wrote: owner, inode and change time differ in the sandbox, so that comparing them
/// would mean to read every file. Of what was written since, nothing in the index is believed.
const FOREIGN: &str = "\tcheckStat = minimal\n\ttrustCtime = false\n";

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
    /// Holds what was written in it, when the backend keeps that apart.
    pub(crate) written: Option<BorrowedFd<'a>>,
    /// Stops long commands.
    pub(crate) cancel: &'a Cancel,
}

impl Extraction<'_> {
    /// Records the work tree as it is now; gives git's name of the tree.
    pub(crate) fn start(&self) -> Result<String, Fault> {
        let own = self.root.join(".git");
        self.make(&own).map_err(|error| Fault::Failed(error.to_string()))?;
        if self.written.is_some() {
            let copied =
                optional(fs_err::copy(own.join("index"), self.git().directory.join("index")));
            copied.map_err(|error| Fault::Failed(error.to_string()))?;
        }
        self.disbelieve(&self.written()?)?;
        self.tree(&mut Vec::new())
    }

    fn written(&self) -> Result<Vec<Written>, Fault> {
        self.written
            .map_or_else(|| Ok(Vec::new()), |directory| written::files(directory, self.cancel))
    }

    /// Makes the guest's repository directory beside the work tree's own.
    fn make(&self, own: &Path) -> io::Result<()> {
        let git = self.git().directory;
        optional(fs_err::remove_dir_all(&git))?;
        for name in ["objects/info", "refs", "info"] {
            fs_err::create_dir_all(git.join(name))?;
        }
        fs_err::write(git.join("HEAD"), "ref: refs/heads/none\n")?;
        let theirs = optional(fs_err::read_to_string(own.join("config")))?.unwrap_or_default();
        let (version, extensions) = if has_long_names(&theirs) {
            (1, "[extensions]\n\tobjectFormat = sha256\n")
        } else {
            (0, "")
        };
        let compared = if self.written.is_some() { FOREIGN } else { "" };
        fs_err::write(
            git.join("config"),
            format!(
                "[core]\n\trepositoryFormatVersion = {version}\n{compared}{CONFIG}{extensions}"
            ),
        )?;
        fs_err::write(git.join("info/attributes"), ATTRIBUTES)?;
        let pristine = self.private.join(PRISTINE);
        let objects = if pristine.is_dir() { pristine } else { own.join("objects") };
        fs_err::write(
            git.join("objects/info/alternates"),
            [objects.as_os_str().as_bytes(), b"\n"].concat(),
        )?;
        let excluded = optional(fs_err::read(own.join("info/exclude")))?.unwrap_or_default();
        fs_err::write(
            git.join("info/exclude"),
            [&excluded, EXCLUDED.as_bytes(), TEMPORARY.as_bytes(), b"*\n"].concat(),
        )
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
        if !self.git().directory.join("HEAD").exists() {
            // The model cleared the directory. Without an index every file is read once more.
            self.make(&self.root.join(".git")).map_err(|error| Fault::Failed(error.to_string()))?;
            self.git().run(["read-tree", start_tree])?;
        }
        let written = self.written()?;
        self.disbelieve(&written)?;
        let mut left_out = self.too_large(written)?;
        let end_tree = self.tree(&mut left_out)?;
        let mut receipt = Receipt {
            start_tree: start_tree.to_owned(),
            end_tree: end_tree.clone(),
            omitted: left_out.iter().map(|path| text(path)).collect(),
            applies: true,
            ..Receipt::default()
        };
        if start_tree == end_tree {
            return Ok(receipt);
        }
        let patch = self.difference(start_tree, &end_tree, &mut receipt)?;
        let whole = receipt.omitted.len() == left_out.len();
        receipt.applies = self.applies(start_tree, &end_tree, &patch, whole)?;
        for piece in patch.chunks(CHUNK) {
            send(piece.to_vec())?;
        }
        Ok(receipt)
    }

    /// The patch between two trees, without nested repositories, and with binary hunks for what is not UTF-8. Names
    /// what it holds in the receipt.
    fn difference(&self, start: &str, end: &str, receipt: &mut Receipt) -> Result<Vec<u8>, Fault> {
        let raw = self.git().run(["diff-tree", "-r", "-z", "--raw", "--no-renames", start, end])?;
        let whole = self.git().run(diff(start, end, Text::Detected))?;
        let mut pieces = split_patch(&whole).into_iter();
        let mut kept: Vec<(Change, Vec<&[u8]>)> = Vec::new();
        for change in parse_raw(&raw) {
            let own: Vec<&[u8]> = pieces.by_ref().take(change.pieces).collect();
            if own.len() < change.pieces {
                return Err(Fault::Failed("git diff-tree: fewer files than it lists".into()));
            }
            if change.nested {
                receipt.omitted.push(text(&change.path));
            } else {
                receipt.files.push(text(&change.path));
                kept.push((change, own));
            }
        }
        let is_text =
            |pieces: &[&[u8]]| pieces.iter().all(|piece| std::str::from_utf8(piece).is_ok());
        let other: Vec<&Change> =
            kept.iter().filter(|(_, own)| !is_text(own)).map(|(change, _)| change).collect();
        let mut binary = self.binary(start, end, &other)?.into_iter();
        let mut patch = Vec::new();
        for (change, own) in &kept {
            if !is_text(own) {
                receipt.binary.push(text(&change.path));
                patch.extend(binary.next().unwrap_or_default());
                continue;
            }
            if own.iter().any(|piece| memmem::find(piece, BINARY).is_some()) {
                receipt.binary.push(text(&change.path));
            }
            patch.extend(own.concat());
        }
        Ok(patch)
    }

    /// The pieces of these changes with binary hunks.
    fn binary(&self, start: &str, end: &str, changes: &[&Change]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut all = Vec::new();
        for some in changes.chunks(PATHS) {
            let mut arguments = diff(start, end, Text::Never);
            arguments.extend(some.iter().map(|change| OsString::from_vec(change.path.clone())));
            let whole = self.git().run(arguments)?;
            let mut pieces = split_patch(&whole).into_iter();
            all.extend(
                some.iter()
                    .map(|change| pieces.by_ref().take(change.pieces).collect::<Vec<_>>().concat()),
            );
        }
        Ok(all)
    }

    /// Takes what the index says of written files out of it: a file of the same size and time, as a move or a copy
    /// that keeps times leaves, would pass for the old one.
    fn disbelieve(&self, written: &[Written]) -> Result<(), Fault> {
        if written.is_empty() {
            return Ok(());
        }
        let paths: HashSet<&[u8]> = written.iter().map(|file| file.path.as_slice()).collect();
        let listed = self.git().run(["ls-files", "--stage", "-z"])?;
        let mut entries = Vec::new();
        for entry in listed.split_inclusive(|byte| *byte == 0) {
            let path = entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default();
            if paths.contains(path.strip_suffix(b"\0").unwrap_or(path)) {
                entries.extend_from_slice(entry);
            }
        }
        if !entries.is_empty() {
            self.git().run_with(["update-index", "-z", "--index-info"], &entries)?;
        }
        Ok(())
    }

    /// The written files that a patch cannot hold, largest first.
    fn too_large(&self, mut written: Vec<Written>) -> Result<Vec<Vec<u8>>, Fault> {
        let all = |written: &[Written]| written.iter().map(|file| file.size).sum::<u64>();
        written.sort_by(|one, other| {
            other.size.cmp(&one.size).then_with(|| one.path.cmp(&other.path))
        });
        let is_too_large = |written: &[Written]| {
            all(written) > MAX_FILES || written.first().is_some_and(|file| file.size > MAX_FILE)
        };
        if !is_too_large(&written) {
            return Ok(Vec::new());
        }
        // What is in a nested repository or ignored does not go into the patch anyway.
        for nested in nested_repositories(self.root) {
            let inside = [nested.as_slice(), b"/"].concat();
            written.retain(|file| !file.path.starts_with(&inside));
        }
        let listed: Vec<u8> =
            written.iter().flat_map(|file| [file.path.as_slice(), b"\0"].concat()).collect();
        let ignored = match self.git().run_with(["check-ignore", "-z", "--stdin"], &listed) {
            Err(GitError::Status(1, _)) => Vec::new(),
            other => other?,
        };
        let ignored: HashSet<&[u8]> = ignored.split(|byte| *byte == 0).collect();
        written.retain(|file| !ignored.contains(file.path.as_slice()));
        let mut rest = written.as_slice();
        let mut large = Vec::new();
        while let Some((first, later)) = rest.split_first()
            && is_too_large(rest)
        {
            large.push(first.path.clone());
            rest = later;
        }
        Ok(large)
    }

    /// The work tree as a tree object, except for the files `left_out`, to which repositories are added that git can
    /// neither take in nor name.
    fn tree(&self, left_out: &mut Vec<Vec<u8>>) -> Result<String, Fault> {
        let mut attempt = 1;
        let mut options = vec!["add", "--all"];
        loop {
            let mut arguments: Vec<OsString> = options.iter().map(Into::into).collect();
            arguments.extend(["--", "."].map(Into::into));
            arguments.extend(left_out.iter().map(|path| excluding(path)));
            match self.git().run(&arguments) {
                Ok(_) => break,
                Err(GitError::Status(_, said)) if left_out.len() < PATHS => {
                    if let Some(nested) = without_commit(&said) {
                        left_out.push(nested);
                    } else if attempt < ATTEMPTS {
                        // A background job may remove a file while it is read.
                        attempt += 1;
                    } else if options.len() == 2 {
                        options.push("--ignore-errors");
                    } else if said.contains("unable to index file") {
                        break;
                    } else {
                        return Err(Fault::Failed(said));
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
        let tree = self.git().run(["write-tree"])?;
        Ok(String::from_utf8_lossy(&tree).trim().to_owned())
    }

    /// Applies the patch to the start tree in an index of its own and compares the result.
    fn applies(&self, start: &str, end: &str, patch: &[u8], complete: bool) -> Result<bool, Fault> {
        let index = self.private.join("check-index");
        let git = self.git().with_index(&index);
        let checked = (|| {
            git.run(["read-tree", start])?;
            match git.run_with(["apply", "--cached", "--whitespace=nowarn", "-"], patch) {
                Ok(_) => {
                    let tree = git.run(["write-tree"])?;
                    Ok(!complete || String::from_utf8_lossy(&tree).trim() == end)
                }
                Err(GitError::Status(..)) => Ok(false),
                Err(other) => Err(other),
            }
        })();
        let _ = fs_err::remove_file(&index);
        Ok(checked?)
    }

    fn git(&self) -> Git<'_> {
        Git::new(self.private, self.root, self.cancel)
    }
}

/// How every piece of a patch that holds a binary hunk has it.
const BINARY: &[u8] = b"\nGIT binary patch\n";

fn diff(start: &str, end: &str, text: Text) -> Vec<OsString> {
    // A name that is not UTF-8 has to be quoted, so that the piece it stands in is.
    let settings: &[&str] = match text {
        Text::Detected => &[],
        Text::Never => &["-c", "diff.patchgym.binary=true", "-c", "core.quotePath=true"],
    };
    let arguments = [
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
    ];
    settings.iter().chain(&arguments).map(Into::into).collect()
}

/// A pathspec that leaves out one path.
fn excluding(path: &[u8]) -> OsString {
    OsString::from_vec([b":(exclude,top,literal)", path].concat())
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The nested repository that git complains of because it has no commit.
fn without_commit(said: &str) -> Option<Vec<u8>> {
    let (before, _) = said.split_once("/' does not have a commit checked out")?;
    Some(before.rsplit_once('\'')?.1.as_bytes().to_vec())
}

/// Whether a repository's configuration says that its object names are SHA-256.
fn has_long_names(config: &str) -> bool {
    config.lines().any(|line| {
        let line: String = line.split_whitespace().collect();
        line.eq_ignore_ascii_case("objectFormat=sha256")
    })
}

/// Whether files are compared as text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Detected,
    Never,
}

/// A changed path of a raw difference.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    path: Vec<u8>,
    nested: bool,
    /// How many pieces of a patch it makes.
    pieces: usize,
}

/// Reads `:MODE MODE NAME NAME STATUS\0PATH\0` for every path.
fn parse_raw(raw: &[u8]) -> Vec<Change> {
    let mut fields = raw.split(|byte| *byte == 0);
    let mut changes = Vec::new();
    while let (Some(header), Some(path)) = (fields.next(), fields.next()) {
        let header = String::from_utf8_lossy(header);
        let words: Vec<&str> = header.trim_start_matches(':').split(' ').collect();
        let nested = words.iter().take(2).any(|mode| *mode == "160000");
        // A file that became a link is removed and made.
        let pieces = if words.last() == Some(&"T") { 2 } else { 1 };
        changes.push(Change { path: path.to_vec(), nested, pieces });
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
fn nested_repositories(root: &Path) -> Vec<Vec<u8>> {
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
            found.push(OsStr::as_bytes(path.as_os_str()).to_vec());
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
    fn kinds_of_changes_are_told_apart() {
        let change = |path: &[u8], nested, pieces| Change { path: path.to_vec(), nested, pieces };
        assert_eq!(
            parse_raw(
                b":000000 100644 0 1 A\0new\xff file\0:000000 160000 0 1 A\0inner\0:100644 120000 1 2 T\0link\0"
            ),
            [change(b"new\xff file", false, 1), change(b"inner", true, 1), change(b"link", false, 2)]
        );
    }

    #[test]
    fn a_repository_without_a_commit_is_found_in_the_complaint() {
        let said = "git: error: 'a/new one/' does not have a commit checked out\nfatal: adding files failed";
        assert_eq!(without_commit(said), Some(b"a/new one".to_vec()));
        assert_eq!(without_commit("git: fatal: adding files failed"), None);
    }

    #[test]
    fn long_names_are_read_off_the_configuration() {
        assert!(has_long_names("[core]\n\tx = 1\n[extensions]\n\tobjectformat = sha256\n"));
        assert!(!has_long_names("[core]\n\tx = objectFormat\n[extensions]\n\tobjectFormat=sha1\n"));
    }
}
