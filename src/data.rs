//! The data folders `tools/`, `envs/` and `trajectories/demos/`: embedded in the binary, overridden by folders on disk.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

/// The folders as they were when the binary was built.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/data.tar"));

/// A data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

/// The data files by path, such as `tools/navigator.yaml`.
#[derive(Debug, Clone)]
pub struct Data {
    files: BTreeMap<String, DataFile>,
}

/// Why data could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A folder on disk cannot be read.
    #[error("read data folder")]
    Io(#[from] std::io::Error),
    /// No such file, embedded or on disk.
    #[error("find data file `{path}`")]
    Missing {
        /// The path that was asked for.
        path: String,
        /// The nearest path that exists.
        nearest: Option<String>,
    },
    /// The file is not UTF-8.
    #[error("read data file `{0}`: it is not UTF-8")]
    NotText(String),
}

impl Data {
    /// The embedded files, with those of `folders` put over them; a later folder wins.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn open(folders: &[PathBuf]) -> Result<Self, DataError> {
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(EMBEDDED);
        for entry in archive.entries()? {
            let mut entry = entry?;
            if entry.header().entry_type().is_file() {
                let path = entry.path()?.to_string_lossy().into_owned();
                let executable = entry.header().mode()? & 0o111 != 0;
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                files.insert(path, DataFile { bytes, executable });
            }
        }
        for folder in folders {
            for part in ["tools", "envs", "trajectories/demos"] {
                collect(folder, Path::new(part), &mut files)?;
            }
        }
        Ok(Self { files })
    }

    /// The folders a user's own data is looked for: `~/.config/patchgym`, then `PATCHGYM_HOME`, then what was named.
    pub fn folders(named: Option<&Path>) -> Vec<PathBuf> {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
        let settings = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
        let mut folders: Vec<PathBuf> =
            settings.map(|path| path.join("patchgym")).into_iter().collect();
        folders.extend(std::env::var_os("PATCHGYM_HOME").map(PathBuf::from));
        folders.retain(|folder| folder.is_dir());
        folders.extend(named.map(Path::to_owned));
        folders
    }

    /// A file.
    ///
    /// # Errors
    /// When there is none at this path.
    pub fn file(&self, path: &str) -> Result<&DataFile, DataError> {
        self.files.get(path).ok_or_else(|| DataError::Missing {
            path: path.to_owned(),
            nearest: crate::text::nearest(path, self.files.keys().map(String::as_str))
                .map(str::to_owned),
        })
    }

    /// A file's text.
    ///
    /// # Errors
    /// When there is none at this path, or it is not UTF-8.
    pub fn text(&self, path: &str) -> Result<&str, DataError> {
        std::str::from_utf8(&self.file(path)?.bytes)
            .map_err(|_| DataError::NotText(path.to_owned()))
    }

    /// The files below a folder, with paths relative to it, sorted.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a DataFile)> {
        self.files.iter().filter_map(move |(path, file)| {
            Some((path.strip_prefix(folder)?.strip_prefix('/')?, file))
        })
    }
}

fn collect(
    folder: &Path,
    part: &Path,
    files: &mut BTreeMap<String, DataFile>,
) -> std::io::Result<()> {
    let directory = folder.join(part);
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in fs_err::read_dir(&directory)? {
        let entry = entry?;
        let part = part.join(entry.file_name());
        let metadata = fs_err::metadata(entry.path())?;
        if metadata.is_dir() {
            collect(folder, &part, files)?;
        } else {
            let file = DataFile {
                bytes: fs_err::read(entry.path())?,
                executable: metadata.permissions().mode() & 0o111 != 0,
            };
            files.insert(part.to_string_lossy().into_owned(), file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_files_keep_their_permission_bits() {
        let data = Data::open(&[]).unwrap();
        assert!(data.file("envs/demo/repos/rotlog/bin/rotlog").unwrap().executable);
        assert!(!data.file("envs/demo/rows/demo__rotlog-1.json").unwrap().executable);
    }

    #[test]
    fn a_folder_on_disk_wins_and_a_missing_file_names_its_neighbour() {
        let folder = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(folder.path().join("tools")).unwrap();
        fs_err::write(folder.path().join("tools/navigator.yaml"), "mine").unwrap();
        let data = Data::open(&[folder.path().to_owned()]).unwrap();
        assert_eq!(data.text("tools/navigator.yaml").unwrap(), "mine");
        let error = data.file("tools/navigater.yaml").unwrap_err();
        assert!(
            matches!(error, DataError::Missing { nearest: Some(name), .. } if name == "tools/navigator.yaml")
        );
    }
}
