//! The repository a model sees: a work tree at a task's commit whose `.git` holds the past and nothing else.
//!
//! Made once for each source and commit, kept in a cache, and put into sandboxes copy-on-write.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;
use sha2::Digest;
use sha2::Sha256;

use crate::data::Data;
use crate::task::RepositorySource;
use crate::task::Task;
use crate::task::cache::Cache;
use crate::task::git::Git;
use crate::task::git::GitDirectory;
use crate::task::git::optional;
use crate::task::plain::Plain;
use crate::task::pristine;

/// How copies are made, part of their names: raised when it changes, so that old ones are not used.
const FORMAT: u32 = 1;
/// The file beside a copy's work tree that says what it is.
const RECEIPT: &str = "receipt.json";

/// The copies in a cache directory.
#[derive(Debug, Clone)]
pub struct Repositories {
    cache: PathBuf,
}

/// A copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The work tree, with `.git`; an absolute path.
    pub tree: PathBuf,
    /// The object store in it.
    pub objects: PathBuf,
    /// Full name of the commit it is at.
    pub commit: String,
    /// Objects of the commit's past that the source, a partial clone, does not have. They are never of the commit
    /// itself.
    pub missing: u64,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// There is no `git` program.
    #[error("run git: not found")]
    GitMissing,
    /// The task does not say where its repository is, or it is in an image.
    #[error("find repository `{repo}` on this machine")]
    Unknown {
        /// Its name.
        repo: String,
    },
    /// The source does not exist.
    #[error("find repository folder {}", folder.display())]
    SourceMissing {
        /// The folder.
        folder: PathBuf,
    },
    /// The source is not a clone or a bare repository.
    #[error("read repository {}: not a git repository", folder.display())]
    NotRepository {
        /// The folder.
        folder: PathBuf,
    },
    /// There are no such files in the data, or none in the directory.
    #[error("make a repository of `{name}`: no files")]
    Empty {
        /// Name or path of the source.
        name: String,
    },
    /// The source does not have the commit.
    #[error("find commit `{commit}` in {}", folder.display())]
    CommitMissing {
        /// The commit as the task names it.
        commit: String,
        /// The source.
        folder: PathBuf,
    },
    /// The source, a partial clone, does not have all of the commit's files.
    #[error("copy commit `{commit}` of {}: {missing} of its objects are missing", folder.display())]
    Incomplete {
        /// The commit.
        commit: String,
        /// The source.
        folder: PathBuf,
        /// How many objects.
        missing: usize,
    },
    /// The files are not those the task was written for.
    #[error(
        "make a repository of `{name}`: the task starts from commit {expected}, the files give {made}"
    )]
    OtherCommit {
        /// Name or path of the source.
        name: String,
        /// The task's commit.
        expected: String,
        /// The commit that was made.
        made: String,
    },
    /// The files were changed while they were copied.
    #[error("make a repository of `{name}`: its files are changing")]
    Changing {
        /// Name or path of the source.
        name: String,
    },
    /// A git command failed.
    #[error("run `{command}`: {problem}")]
    Git {
        /// The command without its arguments.
        command: String,
        /// The line that tells most.
        problem: String,
    },
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl RepositoryError {
    /// What a user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::GitMissing => Some("install git, or put its directory into PATH".into()),
            Self::Unknown { .. } => Some("name a folder of clones with `--repo-dir`".into()),
            Self::SourceMissing { .. } | Self::NotRepository { .. } => {
                Some("a source is a clone, a bare mirror or a linked worktree".into())
            }
            Self::CommitMissing { folder, .. } => {
                Some(format!("fetch it with `git -C {} fetch`", folder.display()))
            }
            Self::Incomplete { commit, folder, .. } => Some(format!(
                "the clone is partial; fetch the rest with `git -C {} archive --output=/dev/null {commit}`",
                folder.display()
            )),
            Self::OtherCommit { .. } => {
                Some("restore the files, or set the task's commit to the new one".into())
            }
            Self::Changing { .. } => Some("try again when nothing writes to them".into()),
            Self::Empty { .. } | Self::Git { .. } | Self::Io(_) => None,
        }
    }
}

/// What is written beside a copy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receipt {
    commit: String,
    missing: u64,
}

/// Where a copy is made from.
enum Source<'a> {
    Clone { folder: PathBuf, directory: GitDirectory, commit: String },
    Plain { name: String, plain: Plain<'a> },
}

impl Repositories {
    /// The copies in `cache`, which need not exist.
    pub fn at(cache: PathBuf) -> Self {
        Self { cache }
    }

    /// The copy for a task, made unless it is there. Blocks, for seconds when a large history is copied.
    ///
    /// # Errors
    /// When the source is missing, does not have the commit, or gives another one than the task names; and when git
    /// or the disk fails.
    pub fn prepare(&self, task: &Task, data: &Data) -> Result<Prepared, RepositoryError> {
        let source = Source::of(task, data)?;
        let name = source.identity()?;
        let prepared = match finished(&self.cache().place(&name))? {
            Some(prepared) => prepared,
            None => self.make(&source, &name)?,
        };
        let expected = &task.base_commit;
        match source {
            // The files of a plain source are the commit; what the task names can only be a check.
            Source::Plain { name, .. }
                if !matches!(expected.as_str(), "" | "HEAD") && *expected != prepared.commit =>
            {
                Err(RepositoryError::OtherCommit {
                    name,
                    expected: expected.clone(),
                    made: prepared.commit,
                })
            }
            Source::Plain { .. } | Source::Clone { .. } => Ok(prepared),
        }
    }

    /// Finds tasks that `prepare` would refuse because their clone or its commit is missing, without making anything:
    /// the places of those tasks, and what is wrong with each.
    pub fn refused(&self, tasks: &[&Task]) -> Vec<(usize, RepositoryError)> {
        let mut refused = Vec::new();
        let mut clones: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
        for (place, task) in tasks.iter().enumerate() {
            match &task.source {
                RepositorySource::Clone(path) => clones.entry(path).or_default().push(place),
                RepositorySource::Directory(path) => {
                    refused.extend(existing(path).err().map(|error| (place, error)));
                }
                RepositorySource::Embedded(_)
                | RepositorySource::Image
                | RepositorySource::Unknown => {}
            }
        }
        for (path, places) in clones {
            let commits: Vec<&str> =
                places.iter().map(|place| tasks[*place].base_commit.as_str()).collect();
            match missing_commits(path, &commits) {
                Ok(missing) => refused
                    .extend(places.iter().zip(missing).filter_map(|(p, error)| Some((*p, error?)))),
                // One answer is enough for a clone that cannot be read.
                Err(error) => refused.push((places[0], error)),
            }
        }
        refused.sort_unstable_by_key(|(place, _)| *place);
        refused
    }

    fn make(&self, source: &Source<'_>, name: &str) -> Result<Prepared, RepositoryError> {
        let cache = self.cache();
        let _turn = cache.turn(name)?;
        match finished(&cache.place(name))? {
            Some(prepared) => Ok(prepared),
            None => source.make(&cache, name),
        }
    }

    /// Removes what was left of copies whose making was interrupted; gives the bytes that were freed.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn clean(&self) -> Result<u64, RepositoryError> {
        Ok(self.cache().clean()?)
    }

    /// Removes every copy that is not being made; gives the bytes that were freed. No sandbox may use one.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove_all(&self) -> Result<u64, RepositoryError> {
        Ok(self.cache().remove_all()?)
    }

    fn cache(&self) -> Cache {
        Cache::at(self.cache.join("repositories"))
    }
}

impl<'a> Source<'a> {
    fn of(task: &'a Task, data: &'a Data) -> Result<Self, RepositoryError> {
        match &task.source {
            RepositorySource::Embedded(name) => {
                let plain = Plain::embedded(name, data);
                Ok(Self::Plain { name: name.clone(), plain })
            }
            RepositorySource::Directory(path) => {
                let plain = Plain::directory(&existing(path)?)?;
                Ok(Self::Plain { name: path.display().to_string(), plain })
            }
            RepositorySource::Clone(path) => {
                let (folder, directory) = clone(path)?;
                let commit = task.base_commit.clone();
                let commit =
                    if is_full(&commit) { commit } else { resolve(&directory, &folder, &commit)? };
                Ok(Self::Clone { folder, directory, commit })
            }
            RepositorySource::Image | RepositorySource::Unknown => {
                Err(RepositoryError::Unknown { repo: task.repo.clone() })
            }
        }
    }

    /// Name of the copy: everything it depends on.
    fn identity(&self) -> Result<String, RepositoryError> {
        let mut identity = Sha256::new();
        match self {
            Self::Clone { folder, directory, commit } => {
                // A shallow clone that was deepened gives a longer past.
                let shallow = directory.shallow()?;
                identity.update(format!("{FORMAT}\nclone\n{commit}\n{shallow}\n"));
                identity.update(folder.as_os_str().as_bytes());
            }
            Self::Plain { name, plain } => {
                if plain.is_empty() {
                    return Err(RepositoryError::Empty { name: name.clone() });
                }
                let (message, files) = (plain.message(), plain.digest()?);
                identity.update(format!("{FORMAT}\nplain\n{message}\n{files}\n"));
            }
        }
        Ok(format!("{:x}", identity.finalize()))
    }

    /// Makes the copy in a folder of its own, which then gets its name, unless another process was faster.
    fn make(&self, cache: &Cache, name: &str) -> Result<Prepared, RepositoryError> {
        let build = cache.unfinished()?;
        let scratch = build.path().join("scratch");
        let (directory, commit) = match self {
            Self::Clone { folder, directory, commit } => {
                fs_err::create_dir(&scratch)?;
                (directory.clone(), resolve(directory, folder, commit)?)
            }
            Self::Plain { name, plain } => {
                let made = plain.commit(&scratch)?;
                if Plain::directory(&scratch)?.digest()? != plain.digest()? {
                    return Err(RepositoryError::Changing { name: name.clone() });
                }
                let directory = scratch.join(".git");
                (GitDirectory { own: directory.clone(), common: directory }, made)
            }
        };
        let missing = pristine::copy(&directory, &commit, &build.path().join("tree"), &scratch)?;
        fs_err::remove_dir_all(&scratch)?;
        let receipt = serde_json::to_vec(&Receipt { commit, missing }).map_err(io::Error::from)?;
        fs_err::write(build.path().join(RECEIPT), receipt)?;
        cache.finish(build, name)?;
        finished(&cache.place(name))?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }
}

/// The copy at `folder`, if it is there.
fn finished(folder: &Path) -> io::Result<Option<Prepared>> {
    let path = folder.join(RECEIPT);
    let Some(receipt) = optional(fs_err::read(&path))? else { return Ok(None) };
    let Receipt { commit, missing } = serde_json::from_slice(&receipt)
        .map_err(|error| io::Error::other(format!("read {}: {error}", path.display())))?;
    let tree = fs_err::canonicalize(folder.join("tree"))?;
    Ok(Some(Prepared { objects: tree.join(".git/objects"), tree, commit, missing }))
}

/// What is wrong with each of these commits of a clone.
fn missing_commits(
    path: &Path,
    commits: &[&str],
) -> Result<Vec<Option<RepositoryError>>, RepositoryError> {
    let (folder, directory) = clone(path)?;
    let found = Git::at(&directory.own).has_commits(commits)?;
    let missing = |(commit, is_there): (&&str, bool)| {
        (!is_there).then(|| RepositoryError::CommitMissing {
            commit: (*commit).to_owned(),
            folder: folder.clone(),
        })
    };
    Ok(commits.iter().zip(found).map(missing).collect())
}

fn clone(path: &Path) -> Result<(PathBuf, GitDirectory), RepositoryError> {
    let folder = existing(path)?;
    match GitDirectory::of(&folder)? {
        Some(directory) => Ok((folder, directory)),
        None => Err(RepositoryError::NotRepository { folder }),
    }
}

fn resolve(
    directory: &GitDirectory,
    folder: &Path,
    commit: &str,
) -> Result<String, RepositoryError> {
    let missing =
        || RepositoryError::CommitMissing { commit: commit.to_owned(), folder: folder.to_owned() };
    Git::at(&directory.own).commit(commit)?.ok_or_else(missing)
}

fn is_full(commit: &str) -> bool {
    matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn existing(folder: &Path) -> Result<PathBuf, RepositoryError> {
    if !folder.is_dir() {
        return Err(RepositoryError::SourceMissing { folder: folder.to_owned() });
    }
    Ok(fs_err::canonicalize(folder)?)
}
