//! How a user names a model.

use std::path::PathBuf;

/// A model as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// `NAME`: a model of a server.
    Server(String),
    /// `script:FILE`: the turns of a YAML file.
    Script(PathBuf),
    /// `recorded:FILE` or `recorded:DIR`: the answers of an event log or of a store.
    Recorded(PathBuf),
    /// `gold`: the reference solution.
    Gold,
    /// `null`: submits at once.
    Null,
}

/// Reads a model's name. Whatever is none of the known words is the name of a server's model, colons included.
pub fn parse_spec(text: &str) -> Spec {
    let text = text.trim();
    match text.split_once(':') {
        Some(("script", path)) => Spec::Script(PathBuf::from(path)),
        Some(("recorded", path)) => Spec::Recorded(PathBuf::from(path)),
        Some(_) => Spec::Server(text.to_owned()),
        None => match text {
            "gold" => Spec::Gold,
            "null" => Spec::Null,
            _ => Spec::Server(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!(parse_spec("gold"), Spec::Gold);
        assert_eq!(parse_spec("null"), Spec::Null);
        assert_eq!(parse_spec("script:a/b.yaml"), Spec::Script(PathBuf::from("a/b.yaml")));
        assert_eq!(parse_spec("recorded:runs/x:1"), Spec::Recorded(PathBuf::from("runs/x:1")));
        assert_eq!(parse_spec("qwen3:8b"), Spec::Server("qwen3:8b".into()));
    }
}
