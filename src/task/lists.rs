//! Lists of texts in a row, in every form data sets publish them.

use std::str::Chars;

use serde_json::Value;

use crate::text;

/// Characters of an unusable text that its error shows.
const SHOWN: usize = 60;

/// Why a value is not a list of texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Another kind of value.
    #[error("expected a list, found {0}")]
    Kind(&'static str),
    /// A text that holds no list.
    #[error("expected a list, found the text `{0}`")]
    Text(String),
    /// A list with something else than texts in it.
    #[error("item {item} of the list is {kind}, not a text")]
    Item {
        /// Its number, from 1.
        item: usize,
        /// What it is.
        kind: &'static str,
    },
    /// A list in Python's notation that breaks off or has something odd in it.
    #[error("not a list in JSON or Python notation: {problem} at item {item}")]
    Notation {
        /// Number of the item, from 1.
        item: usize,
        /// What is wrong there.
        problem: &'static str,
    },
}

/// What a JSON value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The texts of a list that is a list, JSON text (also JSON text in JSON text) or the text of a Python list.
///
/// Null and blank text are the empty list. Python notation is read as data and never evaluated. Fails on anything else
/// and on an item that is not a text.
pub fn texts(value: &Value) -> Result<Vec<String>, ListError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => items
            .iter()
            .zip(1..)
            .map(|(value, item)| match value {
                Value::String(text) => Ok(text.clone()),
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_) => Err(ListError::Item { item, kind: kind(value) }),
            })
            .collect(),
        Value::String(text) if text.trim().is_empty() => Ok(Vec::new()),
        // Every decoding unwraps one level of quotes, so the recursion ends.
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner) => texts(&inner),
            Err(_) => python_list(text),
        },
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(ListError::Kind(kind(value))),
    }
}

/// Reads `['a', "b"]`.
fn python_list(text: &str) -> Result<Vec<String>, ListError> {
    let Some(mut rest) = text.trim().strip_prefix('[') else {
        let (shown, left_out) = text::head(text, SHOWN);
        return Err(ListError::Text(format!("{shown}{}", if left_out == 0 { "" } else { "…" })));
    };
    let mut items = Vec::new();
    loop {
        let problem = |problem| ListError::Notation { item: items.len() + 1, problem };
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(']') {
            return if after.is_empty() { Ok(items) } else { Err(problem("text after the list")) };
        }
        let (item, after) = python_text(rest).map_err(problem)?;
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with(']') => {}
            None if rest.is_empty() => return Err(problem("no closing bracket")),
            None => return Err(problem("no comma")),
        }
        items.push(item);
    }
}

/// Reads one quoted text with Python's escapes and gives what follows it.
fn python_text(text: &str) -> Result<(String, &str), &'static str> {
    let quote =
        text.chars().next().filter(|first| matches!(first, '\'' | '"')).ok_or("no quoted text")?;
    let mut rest = text[1..].chars();
    let mut out = String::new();
    while let Some(character) = rest.next() {
        match character {
            '\\' => escape(&mut rest, &mut out)?,
            '\n' => break,
            _ if character == quote => return Ok((out, rest.as_str())),
            _ => out.push(character),
        }
    }
    Err("no closing quote")
}

/// Reads what follows a backslash. These are the escapes Python prints; others are refused, not guessed.
fn escape(rest: &mut Chars<'_>, out: &mut String) -> Result<(), &'static str> {
    out.push(match rest.next() {
        Some(character @ ('\\' | '\'' | '"')) => character,
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('x') => code_point(rest, 2)?,
        Some('u') => code_point(rest, 4)?,
        Some('U') => code_point(rest, 8)?,
        Some(_) => return Err("an unknown escape"),
        None => return Err("no closing quote"),
    });
    Ok(())
}

/// The character that `count` hexadecimal digits name.
fn code_point(rest: &mut Chars<'_>, count: usize) -> Result<char, &'static str> {
    let mut value = 0;
    for _ in 0..count {
        let digit = rest.next().and_then(|digit| digit.to_digit(16)).ok_or("a broken escape")?;
        value = value * 16 + digit;
    }
    char::from_u32(value).ok_or("an escape that is no character")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn said(value: Value) -> String {
        texts(&value).unwrap_err().to_string()
    }

    #[test]
    fn every_encoding_gives_the_same_list() {
        let expected = vec!["says \"hi\" [x], it's".to_owned(), "C:\\new\\t\u{e9}".to_owned()];
        let encoded = json!(expected).to_string();
        let python = r#" ['says "hi" [x], it\'s', "C:\\new\\t\xe9",] "#;
        for value in
            [json!(expected), json!(encoded), json!(json!(encoded).to_string()), json!(python)]
        {
            assert_eq!(texts(&value).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn nothing_is_the_empty_list() {
        for value in [
            json!(null),
            json!(""),
            json!(" \n"),
            json!("[]"),
            json!("[ ]"),
            json!([]),
            json!("null"),
        ] {
            assert_eq!(texts(&value).unwrap(), Vec::<String>::new(), "{value}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        assert_eq!(said(json!(7)), "expected a list, found a number");
        assert_eq!(said(json!({"a": 1})), "expected a list, found an object");
        assert_eq!(said(json!(["a", [40]])), "item 2 of the list is a list, not a text");
        assert_eq!(said(json!("[1]")), "item 1 of the list is a number, not a text");
        assert_eq!(
            said(json!("[None]")),
            "not a list in JSON or Python notation: no quoted text at item 1"
        );
        assert_eq!(
            said(json!("['a' 'b']")),
            "not a list in JSON or Python notation: no comma at item 1"
        );
        assert_eq!(
            said(json!("['a', 'b")),
            "not a list in JSON or Python notation: no closing quote at item 2"
        );
        assert_eq!(
            said(json!("['a\nb']")),
            "not a list in JSON or Python notation: no closing quote at item 1"
        );
        assert_eq!(
            said(json!("['a'")),
            "not a list in JSON or Python notation: no closing bracket at item 1"
        );
        assert_eq!(
            said(json!("['a'] + x")),
            "not a list in JSON or Python notation: text after the list at item 2"
        );
        assert_eq!(
            said(json!("['\\x4g']")),
            "not a list in JSON or Python notation: a broken escape at item 1"
        );
        assert_eq!(
            said(json!("__import__('os').getcwd()")),
            "expected a list, found the text `__import__('os').getcwd()`"
        );
        assert_eq!(
            said(json!("x".repeat(61))),
            format!("expected a list, found the text `{}…`", "x".repeat(60))
        );
    }

    #[test]
    fn what_python_prints_is_read_back() {
        let names = json!([
            "a'b",
            "a\"b",
            "a'b\"c",
            "\\",
            "tab\t nl\n cr\r",
            "\u{0}\u{7f}\u{a0}",
            "é→\u{1f980}\u{e000}",
            ""
        ]);
        let script = "import json, sys; print(json.loads(sys.argv[1]))";
        let Ok(printed) = Command::new("python3")
            .args(["-c", script, &names.to_string()])
            .env("PYTHONUTF8", "1")
            .output()
        else {
            println!("skipped: no python3");
            return;
        };
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(json!(texts(&json!(printed)).unwrap()), names);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"\[?['"\\,\[\] xuN0-9a-zé\n]{0,40}"#) {
            let _ = texts(&json!(text));
        }
    }
}
