//! What this machine's pip is set to, so that pip in a sandbox finds packages as pip outside does.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// Settings of pip that say where packages are and how they are reached; others are a user's own taste.
const SETTINGS: [&str; 10] = [
    "index-url",
    "extra-index-url",
    "no-index",
    "find-links",
    "trusted-host",
    "cert",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
];
/// Variables that say how any program reaches the network.
const VARIABLES: [&str; 7] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
];

/// The settings of the pip of the interpreter `python`, as environment variables: its configuration files, then its
/// variables, and the proxies of this machine; only those whose variable is `wanted`. A machine without pip has only
/// the variables.
///
/// # Errors
/// The name of a setting that holds a password. The code that is installed could read it, so it is not passed on.
pub fn settings(
    python: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, String> {
    let listed = Command::new(python).args(["-m", "pip", "config", "list"]).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let mut settings = of_list(&String::from_utf8_lossy(&listed));
    for setting in SETTINGS {
        let name = variable(setting);
        if let Ok(value) = std::env::var(&name) {
            settings.insert(name, value);
        }
    }
    settings.extend(
        VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))),
    );
    settings.retain(|name, _| wanted(name));
    match settings.iter().find(|(_, value)| value.split_whitespace().any(has_password)) {
        Some((name, _)) => Err(name.clone()),
        None => Ok(settings),
    }
}

/// Files and directories of this machine that the settings name.
pub fn files(settings: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let words = settings.values().flat_map(|value| value.split_whitespace());
    words.map(PathBuf::from).filter(|path| path.is_absolute() && path.exists()).collect()
}

/// Reads what `pip config list` prints: `section.setting='value'`, where a value is written as Python writes it. What
/// is set for `install` counts more than what is set for all commands, in whatever order they are listed.
fn of_list(list: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for wanted in ["global", "install"] {
        for line in list.lines() {
            if let Some((key, value)) = line.split_once('=')
                && let Some((section, setting)) = key.split_once('.')
                && section == wanted
                && SETTINGS.contains(&setting)
            {
                settings.insert(variable(setting), unquoted(value));
            }
        }
    }
    settings
}

/// The variable that means the same as a setting.
fn variable(setting: &str) -> String {
    format!("PIP_{}", setting.replace('-', "_").to_ascii_uppercase())
}

/// The text that Python writes as `written`. Several values stand on lines of their own and become one line of words.
fn unquoted(written: &str) -> String {
    let inner = written.get(1..written.len().saturating_sub(1)).unwrap_or_default();
    let text = inner.replace("\\n", " ").replace("\\'", "'").replace("\\\\", "\\");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether an address holds a name and a password, or a token, before its host.
fn has_password(address: &str) -> bool {
    let Some((_, rest)) = address.split_once("://") else { return false };
    rest.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_pip_is_read() {
        let list = ":env:.timeout='3'\nglobal.extra-index-url='\\nhttps://a.invalid/x\\nhttps://b.invalid'\n\
            global.index-url='https://c.invalid/simple'\nglobal.target='/nowhere'\n\
            install.index-url='https://d.invalid/it\\'s'\nfreeze.timeout='9'\n";
        let expected = [
            ("PIP_EXTRA_INDEX_URL", "https://a.invalid/x https://b.invalid"),
            ("PIP_INDEX_URL", "https://d.invalid/it's"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(of_list(list), BTreeMap::from(expected));
        assert_eq!(of_list("no list\n=\n.=\nglobal.cert=\n")["PIP_CERT"], "");
    }

    #[test]
    fn passwords_are_seen() {
        for address in ["https://me:secret@host/simple", "http://token@host"] {
            assert!(has_password(address), "{address}");
        }
        for address in ["https://host/simple/@scope", "/a@b", "host:8080", "https://host?x=@"] {
            assert!(!has_password(address), "{address}");
        }
    }

    #[test]
    fn only_what_is_there_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let settings = BTreeMap::from([
            ("PIP_FIND_LINKS".to_owned(), format!("{path} {path}/missing https://a.invalid")),
            ("PIP_TIMEOUT".to_owned(), "5".to_owned()),
        ]);
        assert_eq!(files(&settings), [folder.path()]);
    }
}
