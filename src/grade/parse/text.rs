//! How parsers cut text: white space as Python sees it, since the official rules are written in it, and patterns.

use regex::Regex;

/// Python's white space: Unicode's and the four separator control characters.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// The words of `line`, as `str.split()` gives them.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(is_space).filter(|word| !word.is_empty())
}

/// `line` without white space at its ends, as `str.strip()` gives it.
pub(super) fn strip(line: &str) -> &str {
    line.trim_matches(is_space)
}

/// Compiles a pattern that is written in the source; `^` and `$` match at line ends.
#[expect(
    clippy::expect_used,
    reason = "every pattern is a constant, and the tests of its parser compile it"
)]
pub(in crate::grade) fn pattern(text: &str) -> Regex {
    regex::RegexBuilder::new(text).multi_line(true).build().expect("a constant pattern")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_pythons() {
        assert_eq!(words("\u{1f}a\u{1c}b \u{a0}c\u{85}").collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(strip("\u{1d} a b\t\r\n"), "a b");
        assert_eq!(words("a\u{200b}b").count(), 1);
    }
}
