//! A tree of plain files, made into one commit whose name depends on the files alone.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use fs_err::os::unix::fs::symlink;
use sha2::Digest;
use sha2::Sha256;

use crate::data::Data;
use crate::task::git::Git;
use crate::task::repository::RepositoryError;

/// When the commit is said to have been made.
const DATE: &str = "2026-01-01T00:00:00+0000";

/// Files and who commits them.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    files: Vec<PlainFile<'a>>,
    name: &'static str,
    mail: &'static str,
    message: String,
}

#[derive(Debug)]
struct PlainFile<'a> {
    /// Relative to the tree.
    path: PathBuf,
    content: Content<'a>,
}

#[derive(Debug)]
enum Content<'a> {
    Bytes { bytes: &'a [u8], executable: bool },
    Disk { path: PathBuf, executable: bool },
    Link(PathBuf),
}

impl<'a> Plain<'a> {
    /// The files of an embedded demo repository, without any `.git`; none when there is no such repository.
    pub(crate) fn embedded(name: &str, data: &'a Data) -> Self {
        let files = data
            .below("envs/demo/repos")
            .filter_map(|(path, file)| {
                let path = path.strip_prefix(name)?.strip_prefix('/')?;
                if path.split('/').any(|part| part == ".git") {
                    return None;
                }
                let content = Content::Bytes { bytes: &file.bytes, executable: file.executable };
                Some(PlainFile { path: path.into(), content })
            })
            .collect();
        let message = format!("{name}: initial import");
        Self { files, name: "patchgym demo", mail: "demo@patchgym.invalid", message }
    }

    /// The files of a directory, without any `.git` in it. Neither where it stands nor its times are part of them.
    pub(crate) fn directory(root: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(folder) = pending.pop() {
            for entry in fs_err::read_dir(root.join(&folder))? {
                let entry = entry?;
                if entry.file_name() == ".git" {
                    continue;
                }
                let path = folder.join(entry.file_name());
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    pending.push(path);
                } else if kind.is_symlink() {
                    let target = fs_err::read_link(entry.path())?;
                    files.push(PlainFile { path, content: Content::Link(target) });
                } else if kind.is_file() {
                    let executable = entry.metadata()?.permissions().mode() & 0o111 != 0;
                    files.push(PlainFile {
                        path,
                        content: Content::Disk { path: entry.path(), executable },
                    });
                }
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self {
            files,
            name: "patchgym",
            mail: "patchgym@patchgym.invalid",
            message: "initial import".into(),
        })
    }

    /// Whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The message of their commit.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// A name for the files: paths, kinds and contents.
    pub(crate) fn digest(&self) -> io::Result<String> {
        let mut all = Sha256::new();
        for file in &self.files {
            let (kind, content) = match &file.content {
                Content::Bytes { bytes, executable } => (kind(*executable), Sha256::digest(bytes)),
                Content::Disk { path, executable } => {
                    let mut content = Sha256::new();
                    io::copy(&mut fs_err::File::open(path)?, &mut content)?;
                    (kind(*executable), content.finalize())
                }
                Content::Link(target) => ('l', Sha256::digest(target.as_os_str().as_bytes())),
            };
            all.update(file.path.as_os_str().as_bytes());
            all.update(format!("\0{kind}{content:x}\n"));
        }
        Ok(format!("{:x}", all.finalize()))
    }

    /// Writes the files to `scratch`, which does not exist, and commits them there; gives the commit.
    pub(crate) fn commit(&self, scratch: &Path) -> Result<String, RepositoryError> {
        fs_err::create_dir_all(scratch)?;
        for file in &self.files {
            let to = scratch.join(&file.path);
            if let Some(folder) = to.parent() {
                fs_err::create_dir_all(folder)?;
            }
            match &file.content {
                Content::Bytes { bytes, executable } => {
                    fs_err::write(&to, bytes)?;
                    set_mode(&to, *executable)?;
                }
                Content::Disk { path, executable } => {
                    fs_err::copy(path, &to)?;
                    set_mode(&to, *executable)?;
                }
                Content::Link(target) => symlink(target, &to)?,
            }
        }
        let git = Git::create(
            &scratch.join(".git"),
            "[core]\n\trepositoryFormatVersion = 0\n\tfileMode = true\n",
        )?
        .over(scratch)
        .with("GIT_AUTHOR_NAME", self.name)
        .with("GIT_AUTHOR_EMAIL", self.mail)
        .with("GIT_AUTHOR_DATE", DATE)
        .with("GIT_COMMITTER_NAME", self.name)
        .with("GIT_COMMITTER_EMAIL", self.mail)
        .with("GIT_COMMITTER_DATE", DATE);
        git.run(&["add", "--all", "--force"])?;
        let tree = git.run(&["write-tree"])?;
        git.run(&["commit-tree", "-m", &self.message, &tree])
    }
}

fn kind(executable: bool) -> char {
    if executable { 'x' } else { 'f' }
}

fn set_mode(path: &Path, executable: bool) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
