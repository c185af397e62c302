//! Values that no output may show.

use std::fmt;
use std::path::Path;

use crate::model::ModelError;

/// What stands in the place of a secret.
const MASK: &str = "[secret]";

/// Shorter values are not searched for in texts: they would match by accident.
const SHORTEST_SCRUBBED: usize = 8;

/// An API key or another credential; `Debug` and `Display` never show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret from its text, without the white space around it that copying tends to add.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The secret of the environment variable `name`, else of the line `name=…` in `.env` of the current folder. The
    /// process environment is not changed. An empty value counts as none.
    ///
    /// # Errors
    /// [`ModelError::Setup`] when `.env` exists and cannot be read; the message shows nothing of its contents.
    pub fn find(name: &str) -> Result<Option<Self>, ModelError> {
        match std::env::var(name) {
            Ok(text) if !text.trim().is_empty() => Ok(Some(Self::new(&text))),
            Ok(_) | Err(_) => Self::in_file(name, Path::new(".env")),
        }
    }

    fn in_file(name: &str, path: &Path) -> Result<Option<Self>, ModelError> {
        let file = match fs_err::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ModelError::Setup(error.to_string())),
        };
        let mut found = None;
        for (entry, number) in dotenvy::from_read_iter(file).zip(1..) {
            // The error itself quotes the line, which may hold a key.
            let (key, value) = entry.map_err(|_| {
                ModelError::Setup(format!("entry {number} of {} is not NAME=VALUE", path.display()))
            })?;
            if key == name {
                found = Some(value);
            }
        }
        Ok(found.filter(|text| !text.trim().is_empty()).map(|text| Self::new(&text)))
    }

    /// The secret itself, for the request that needs it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without the secret, should a server have echoed it.
    pub fn scrub(&self, text: &str) -> String {
        if self.0.len() < SHORTEST_SCRUBBED {
            return text.to_owned();
        }
        text.replace(&self.0, MASK)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "sk-canary-77aa";

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new(&format!(" {CANARY}\n"));
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "[secret] [secret] Some([secret])"
        );
        assert_eq!(secret.scrub(&format!("bad key {CANARY}!")), "bad key [secret]!");
        assert_eq!(secret.expose(), CANARY);
        assert_eq!(Secret::new("1").scrub("10 of 11"), "10 of 11");
    }

    #[test]
    fn the_file_gives_a_key_and_its_errors_show_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".env");
        assert_eq!(Secret::in_file("KEY", &path).unwrap(), None);
        fs_err::write(&path, format!("# mine\nOTHER=1\nexport KEY=\"{CANARY}\"\nEMPTY=\n"))
            .unwrap();
        assert_eq!(Secret::in_file("KEY", &path).unwrap(), Some(Secret::new(CANARY)));
        assert_eq!(Secret::in_file("EMPTY", &path).unwrap(), None);
        assert_eq!(std::env::var_os("KEY"), None);
        fs_err::write(&path, format!("A=1\nKEY: '{CANARY}\n")).unwrap();
        let error = Secret::in_file("KEY", &path).unwrap_err();
        assert!(error.to_string().contains("entry 2 of"), "{error}");
        assert!(!format!("{error} {error:?}").contains(CANARY));
    }
}
