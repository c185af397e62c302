//! The copy of a repository that holds a commit, its past and nothing else.

use std::collections::HashSet;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::BufWriter;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use rustix::fs::AtFlags;
use rustix::fs::CWD;
use rustix::fs::Timespec;
use rustix::fs::Timestamps;

use crate::task::git::Git;
use crate::task::git::GitDirectory;
use crate::task::git::optional;
use crate::task::repository::RepositoryError;

/// Owner, inode and change time differ between the machine that writes the index and a sandbox that reads it; if they
/// counted, the first `git status` would read every file. A collection that starts by itself would cost a model's
/// command its time.
const CONFIG: &str = "\tfileMode = true
\tbare = false
\tlogAllRefUpdates = true
\tcheckStat = minimal
\ttrustCtime = false
[gc]
\tauto = 0
";

/// Attributes under which every file is the bytes that are stored.
const RAW: &str = "* -text -ident -filter !working-tree-encoding\n";

/// The time of files whose commit has no usable date: 2000-01-01. Zip files cannot hold a time before 1980.
const FALLBACK: i64 = 946_684_800;
const EARLIEST: i64 = 315_619_200;

/// Makes `tree` a work tree with a repository of its own at `commit`, a full name in the repository `source`; gives
/// the number of objects of the commit's past that the source does not have. `scratch` is a folder for lists.
pub(crate) fn copy(
    source: &GitDirectory,
    commit: &str,
    tree: &Path,
    scratch: &Path,
) -> Result<u64, RepositoryError> {
    let directory = tree.join(".git");
    fs_err::create_dir_all(&directory)?;
    let git = Git::create(&directory, &config(commit, 0))?;
    let missing = objects(&git, source, commit, &directory, scratch)?;
    fs_err::write(directory.join("config"), config(commit, missing))?;
    checkout(&git, commit, tree)?;
    Ok(missing)
}

/// The copy's configuration.
fn config(commit: &str, missing: u64) -> String {
    let mut extensions = String::new();
    if commit.len() == 64 {
        extensions.push_str("\tobjectFormat = sha256\n");
    }
    if missing > 0 {
        // Makes git take objects that are not here for those of a remote that was not asked yet, so that the copy of
        // a partial clone passes `git fsck`. There is no such remote.
        extensions.push_str("\tpartialClone = not-in-this-copy\n");
    }
    if extensions.is_empty() {
        return format!("[core]\n\trepositoryFormatVersion = 0\n{CONFIG}");
    }
    format!("[core]\n\trepositoryFormatVersion = 1\n{CONFIG}[extensions]\n{extensions}")
}

/// Copies what the commit reaches.
fn objects(
    git: &Git,
    source: &GitDirectory,
    commit: &str,
    directory: &Path,
    scratch: &Path,
) -> Result<u64, RepositoryError> {
    // The copy does the walk and reads the source's object store: so the source's configuration, replacements, grafts
    // and remotes have no say, and what a partial clone lacks is not fetched.
    let git = git.borrowing(&source.objects());
    let boundary = source.shallow()?;
    let shallow = directory.join("shallow");
    if !boundary.is_empty() {
        fs_err::write(&shallow, &boundary)?;
    }
    let reached = scratch.join("reached");
    let list = fs_err::File::create(&reached)?.into_file();
    git.between(Stdio::null(), list.into(), &["rev-list", "--objects", "--missing=print", commit])?;

    let wanted = scratch.join("wanted");
    let mut boundary: HashSet<&[u8]> = boundary.lines().map(str::as_bytes).collect();
    let mut kept = Vec::new();
    let mut missing = 0;
    let mut list = BufWriter::new(fs_err::File::create(&wanted)?);
    for line in BufReader::new(fs_err::File::open(&reached)?).split(b'\n') {
        let line = line?;
        if line.starts_with(b"?") {
            missing += 1;
            continue;
        }
        if let Some(name) = boundary.take(line.as_slice()) {
            kept.extend_from_slice(name);
            kept.push(b'\n');
        }
        list.write_all(&line)?;
        list.write_all(b"\n")?;
    }
    list.into_inner().map_err(io::IntoInnerError::into_error)?;
    if kept.is_empty() {
        optional(fs_err::remove_file(&shallow))?;
    } else {
        fs_err::write(&shallow, kept)?;
    }
    if missing > 0 {
        complete(&git, source, commit)?;
    }

    // Written as a pack of the copy's own, not through `index-pack`, which would unpack and hash every object again:
    // four times the time for a large history. Deltas are taken over as they are, and their checksums are compared.
    let base = directory.join("objects/pack/pack");
    let base = base.to_str().ok_or_else(|| not_text(&base))?;
    let list = fs_err::File::open(&wanted)?.into_file();
    let name = git.between(
        list.into(),
        Stdio::piped(),
        &["pack-objects", "-q", "--delta-base-offset", base],
    )?;
    if missing > 0 {
        fs_err::write(format!("{base}-{name}.promisor"), "")?;
    }
    fs_err::remove_file(&reached)?;
    fs_err::remove_file(&wanted)?;
    Ok(missing)
}

/// Fails when the commit's own tree lacks objects, or its past lacks commits.
fn complete(git: &Git, source: &GitDirectory, commit: &str) -> Result<(), RepositoryError> {
    let listed = git.run(&["rev-list", "--objects", "--missing=print", "--no-walk", commit])?;
    let missing = listed.lines().filter(|line| line.starts_with('?')).count();
    if missing > 0 {
        let folder = source.own.clone();
        return Err(RepositoryError::Incomplete { commit: commit.to_owned(), folder, missing });
    }
    git.run(&["rev-list", "--count", commit])?;
    Ok(())
}

/// Puts the commit's files into the work tree, as a checkout without any settings of a user does.
fn checkout(git: &Git, commit: &str, tree: &Path) -> Result<(), RepositoryError> {
    let directory = tree.join(".git");
    git.run(&["-c", "core.logAllRefUpdates=false", "update-ref", "refs/heads/main", commit])?;
    let git = git.over(tree);
    git.run(&["read-tree", "--reset", "-u", commit])?;
    let dated = git.run(&["rev-list", "--timestamp", "--max-count=1", commit])?;
    stamp(tree, usable(dated.split_once(' ').and_then(|(date, _)| date.parse().ok())))?;
    git.run(&["update-index", "-q", "--refresh"])?;
    // A file that is stored otherwise than its attributes say counts as changed once it is compared. After an ordinary
    // checkout it is not compared, so it must not show here either.
    let attributes = directory.join("info/attributes");
    fs_err::write(&attributes, RAW)?;
    git.run(&["update-index", "-q", "--refresh"])?;
    fs_err::remove_file(&attributes)?;
    Ok(())
}

/// A time that every later edit is seen to be newer than.
fn usable(date: Option<i64>) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let latest = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(60);
    date.filter(|date| (EARLIEST..latest).contains(date)).unwrap_or(FALLBACK)
}

/// Gives everything below a folder one time, and permissions that do not depend on the machine's umask.
fn stamp(folder: &Path, time: i64) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                // The repository directory of the work tree is not part of it; no other can be in a commit.
                if entry.file_name() != ".git" {
                    folders.push(entry.path());
                }
                continue;
            }
            if kind.is_file() {
                let executable = entry.metadata()?.permissions().mode() & 0o100 != 0;
                set_mode(&entry.path(), if executable { 0o755 } else { 0o644 })?;
            }
            set_time(&entry.path(), time)?;
        }
    }
    for folder in folders {
        set_mode(&folder, 0o755)?;
        set_time(&folder, time)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn set_time(path: &Path, time: i64) -> io::Result<()> {
    let time = Timespec { tv_sec: time, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn not_text(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidFilename, format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_date_that_edits_come_after_is_used() {
        let now =
            i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        assert_eq!(usable(Some(1_600_000_000)), 1_600_000_000);
        for date in [None, Some(0), Some(now), Some(now + 86_400)] {
            assert_eq!(usable(date), FALLBACK, "{date:?}");
        }
    }
}
