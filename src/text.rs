//! Bounded text: nothing unbounded reaches a model or a disk.

/// Text from bytes; what is not UTF-8 becomes U+FFFD, one per invalid sequence.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first `limit` characters of `text` and how many characters were left out.
pub fn head(text: &str, limit: usize) -> (&str, usize) {
    match text.char_indices().nth(limit) {
        Some((cut, _)) => (&text[..cut], text[cut..].chars().count()),
        None => (text, 0),
    }
}

/// A text cut in the middle: its beginning, its end, and the number of characters left out between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadTail {
    /// The beginning.
    pub head: String,
    /// Characters left out.
    pub elided: u64,
    /// The end; empty when nothing was left out.
    pub tail: String,
}

/// Cuts `text` to `limit` characters, half from each end, when it is longer.
pub fn head_tail(text: &str, limit: usize) -> HeadTail {
    let total = text.chars().count();
    if total <= limit {
        return HeadTail { head: text.to_owned(), elided: 0, tail: String::new() };
    }
    let first = limit.div_ceil(2);
    let last = limit - first;
    let cut = |count: usize| text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    HeadTail {
        head: text[..cut(first)].to_owned(),
        elided: (total - limit) as u64,
        tail: text[cut(total - last)..].to_owned(),
    }
}

/// Terminal output as a person would see it in the end: no escape sequences, and of a line that was overwritten with
/// carriage returns only what stood there last.
pub fn plain(text: &str) -> String {
    let text = strip_escapes(text);
    if !text.contains(['\r', '\u{8}']) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = match line.strip_suffix('\n') {
            Some(body) => (body, "\n"),
            None => (line, ""),
        };
        let body = body.trim_end_matches('\r');
        let last = body.rsplit('\r').next().unwrap_or(body);
        if last.contains('\u{8}') {
            let mut kept = String::new();
            for character in last.chars() {
                if character == '\u{8}' {
                    kept.pop();
                } else {
                    kept.push(character);
                }
            }
            out.push_str(&kept);
        } else {
            out.push_str(last);
        }
        out.push_str(end);
    }
    out
}

/// Removes ANSI escape sequences (CSI, OSC and two-character ones) and control characters other than tab, line feed,
/// carriage return and backspace.
fn strip_escapes(text: &str) -> String {
    if !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r' | '\u{8}')) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '\u{1b}' {
            if !character.is_control() || matches!(character, '\n' | '\t' | '\r' | '\u{8}') {
                out.push(character);
            }
            continue;
        }
        match rest.peek() {
            Some('[') => {
                rest.next();
                // Parameters and intermediates stand before one final byte; anything else means a broken sequence.
                while let Some(next) = rest.peek() {
                    let next = *next;
                    if !(' '..='~').contains(&next) {
                        break;
                    }
                    rest.next();
                    if ('@'..='~').contains(&next) {
                        break;
                    }
                }
            }
            Some(']' | 'P' | '^' | '_') => {
                rest.next();
                // A string sequence ends with BEL or ESC \; an unfinished one hides at most its own line.
                while let Some(next) = rest.peek() {
                    let next = *next;
                    if next == '\n' {
                        break;
                    }
                    rest.next();
                    if next == '\u{7}' {
                        break;
                    }
                    if next == '\u{1b}' {
                        if rest.peek() == Some(&'\\') {
                            rest.next();
                        }
                        break;
                    }
                }
            }
            Some(' '..='~') => {
                rest.next();
            }
            _ => {}
        }
    }
    out
}

/// The known name nearest to `name`, when one is near enough to be meant.
#[cfg(feature = "host")]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(name.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_and_progress_bars_are_cleaned() {
        assert_eq!(plain("\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}plain\n"), "red plain\n");
        assert_eq!(plain("10%\r50%\r100%\ndone\n"), "100%\ndone\n");
        assert_eq!(plain("a\r\nb\r\n"), "a\nb\n");
        assert_eq!(plain("ab\u{8}c"), "ac");
        assert_eq!(plain("a\0b"), "ab");
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        assert_eq!(nearest("turnz", ["turns", "tokens"]), Some("turns"));
        assert_eq!(nearest("zebra", ["turns", "tokens"]), None);
    }

    proptest! {
        #[test]
        fn a_cut_text_counts_every_character(text in "\\PC{0,200}", limit in 0usize..150) {
            let cut = head_tail(&text, limit);
            let kept = cut.head.chars().count() + cut.tail.chars().count();
            prop_assert_eq!(kept as u64 + cut.elided, text.chars().count() as u64);
            prop_assert!(text.starts_with(&cut.head));
            prop_assert!(text.ends_with(&cut.tail));
            prop_assert!(kept <= limit.max(text.chars().count().min(limit)));
        }

        #[test]
        fn cleaning_never_fails_and_never_keeps_an_escape(text in any::<String>()) {
            prop_assert!(!plain(&text).contains('\u{1b}'), "escape kept");
        }
    }
}
