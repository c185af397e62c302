//! A change to the bytes of a file: which span goes, what comes.

use std::borrow::Cow;

use memchr::memchr;
use memchr::memchr_iter;
use memchr::memmem;
use memchr::memrchr;

use crate::guest::nearest;
use crate::protocol::operation::Edited;
use crate::protocol::operation::Refusal;

/// Most occurrences that are named when there is more than one.
const MAX_NAMED: usize = 1000;
/// A byte order mark stays the first thing in its file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A span of a file's bytes and what takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: Vec<u8>,
}

impl Change {
    pub(super) fn apply(&self, before: &[u8]) -> Vec<u8> {
        [&before[..self.start], &self.text, &before[self.end..]].concat()
    }

    /// The change that takes this one back.
    pub(super) fn inverse(&self, before: &[u8]) -> Self {
        Self {
            start: self.start,
            end: self.start + self.text.len(),
            text: before[self.start..self.end].to_vec(),
        }
    }
}

/// Replaces the one occurrence of `old` by `new`.
///
/// A line end in `old` stands for LF as well as CR LF, and one in `new` becomes what the place has, so that line ends
/// never change. Where `old` and `new` begin or end alike the file is not touched.
pub(super) fn replace(path: &str, before: &[u8], old: &str, new: &str) -> Result<Change, Refusal> {
    if old.is_empty() {
        return Err(Refusal::EmptyOld);
    }
    let flat = without_returns(before);
    let flat_old = without_returns(old.as_bytes());
    let flat_new = without_returns(new.as_bytes());
    if flat_old == flat_new {
        return Err(Refusal::NoChange { path: path.to_owned() });
    }
    match occurrences(&flat, &flat_old).as_slice() {
        [] => {}
        [only] => {
            let (head, tail) = common_ends(&flat_old, &flat_new);
            let start = with_returns(before, only + head);
            let end = with_returns(before, only + flat_old.len() - tail);
            let text =
                with_line_ends(&flat_new[head..flat_new.len() - tail], line_end(before, start));
            return Ok(Change { start, end, text });
        }
        several => {
            return Err(Refusal::ManyMatches {
                path: path.to_owned(),
                lines: line_numbers(&flat, several),
            });
        }
    }
    // Only text with a CR at its very end, before an LF of the file, can still be found byte for byte.
    match occurrences(before, old.as_bytes()).as_slice() {
        [] => Err(Refusal::NoMatch {
            path: path.to_owned(),
            whitespace_differs_at: nearest::ignoring_whitespace(&flat, &flat_old),
            nearest: nearest::most_similar(&flat, &flat_old),
        }),
        [only] => Ok(Change {
            start: *only,
            end: only + old.len(),
            text: with_line_ends(&flat_new, line_end(before, *only)),
        }),
        several => Err(Refusal::ManyMatches {
            path: path.to_owned(),
            lines: line_numbers(before, several),
        }),
    }
}

/// Puts whole lines after line `after`. A file whose last line has no end keeps it that way.
pub(super) fn insert(path: &str, before: &[u8], after: u64, text: &str) -> Result<Change, Refusal> {
    let total = count_lines(before);
    if after > total {
        return Err(Refusal::NoLine { path: path.to_owned(), line: after, total });
    }
    if text.is_empty() {
        return Err(Refusal::NoChange { path: path.to_owned() });
    }
    let mut lines = without_returns(text.as_bytes()).into_owned();
    if !lines.ends_with(b"\n") {
        lines.push(b'\n');
    }
    let start = match after {
        0 if before.starts_with(BYTE_ORDER_MARK) => BYTE_ORDER_MARK.len(),
        0 => 0,
        _ => {
            let ends = usize::try_from(after - 1).unwrap_or(usize::MAX);
            memchr_iter(b'\n', before).nth(ends).map_or(before.len(), |end| end + 1)
        }
    };
    if after > 0 && after == total && !before.ends_with(b"\n") {
        lines.insert(0, b'\n');
        // An empty last line would vanish without its end.
        if !lines.ends_with(b"\n\n") {
            lines.pop();
        }
    }
    Ok(Change { start, end: start, text: with_line_ends(&lines, line_end(before, start)) })
}

/// Which lines differ between two versions of a file, line ends not compared.
pub(super) fn edited(before: &[u8], after: &[u8]) -> Edited {
    let total = count_lines(after);
    let before_total = count_lines(before);
    let head = split(before).zip(split(after)).take_while(|(old, new)| old == new).count() as u64;
    let shared = before_total.min(total) - head;
    let tail =
        split(before).rev().zip(split(after).rev()).take_while(|(old, new)| old == new).count()
            as u64;
    Edited {
        first: (head + 1).min(total.max(1)),
        lines: total - head - tail.min(shared),
        total,
        removed: false,
    }
}

fn split(bytes: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|line| match line.strip_suffix(b"\n") {
        Some(text) => text.strip_suffix(b"\r").unwrap_or(text),
        None => line,
    })
}

/// Lines of a file; a last one without an end counts.
pub(super) fn count_lines(bytes: &[u8]) -> u64 {
    let unfinished = !bytes.is_empty() && !bytes.ends_with(b"\n");
    memchr_iter(b'\n', bytes).count() as u64 + u64::from(unfinished)
}

/// `bytes` with every CR LF as LF.
fn without_returns(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut flat = Vec::new();
    let mut done = 0;
    for at in memmem::find_iter(bytes, b"\r\n") {
        flat.extend_from_slice(&bytes[done..at]);
        done = at + 1;
    }
    if done == 0 {
        return Cow::Borrowed(bytes);
    }
    flat.extend_from_slice(&bytes[done..]);
    Cow::Owned(flat)
}

/// Where position `at` of the text without returns lies in `bytes`; before a line end means before its CR.
fn with_returns(bytes: &[u8], at: usize) -> usize {
    let passed = memmem::find_iter(bytes, b"\r\n")
        .enumerate()
        .take_while(|(index, place)| place - index < at)
        .count();
    at + passed
}

/// The line end used at a place: that of its own line, or of the line before when it has none.
fn line_end(bytes: &[u8], at: usize) -> &'static [u8] {
    let end = memchr(b'\n', &bytes[at..])
        .map(|found| at + found)
        .or_else(|| memrchr(b'\n', &bytes[..at]));
    match end {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' => b"\r\n",
        _ => b"\n",
    }
}

fn with_line_ends(flat: &[u8], end: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(flat.len());
    for (index, line) in flat.split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            text.extend_from_slice(end);
        }
        text.extend_from_slice(line);
    }
    text
}

/// Start of every occurrence, overlapping ones included, up to [`MAX_NAMED`].
fn occurrences(text: &[u8], wanted: &[u8]) -> Vec<usize> {
    let finder = memmem::Finder::new(wanted);
    let mut found: Vec<usize> = Vec::new();
    while found.len() < MAX_NAMED {
        let from = found.last().map_or(0, |last| last + 1);
        match finder.find(&text[from..]) {
            Some(at) => found.push(from + at),
            None => break,
        }
    }
    found
}

/// The line of each position; the positions ascend.
fn line_numbers(text: &[u8], positions: &[usize]) -> Vec<u64> {
    let mut line = 1;
    let mut from = 0;
    let mut numbers = Vec::with_capacity(positions.len());
    for at in positions {
        line += memchr_iter(b'\n', &text[from..*at]).count() as u64;
        from = *at;
        numbers.push(line);
    }
    numbers
}

/// How many bytes two different texts have in common at their beginning and, of the rest, at their end.
fn common_ends(a: &[u8], b: &[u8]) -> (usize, usize) {
    let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let tail =
        a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    (head, tail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn replaced(before: &str, old: &str, new: &str) -> Result<String, Refusal> {
        let change = replace("f", before.as_bytes(), old, new)?;
        Ok(String::from_utf8(change.apply(before.as_bytes())).unwrap())
    }

    fn inserted(before: &str, after: u64, text: &str) -> Result<String, Refusal> {
        let change = insert("f", before.as_bytes(), after, text)?;
        Ok(String::from_utf8(change.apply(before.as_bytes())).unwrap())
    }

    #[test]
    fn line_feeds_match_and_become_what_the_place_has() {
        let windows = "[a]\r\nx = 1\r\ny = 2\r\n";
        assert_eq!(
            replaced(windows, "x = 1\ny = 2", "x = 1\nz = 3\ny = 2").unwrap(),
            "[a]\r\nx = 1\r\nz = 3\r\ny = 2\r\n"
        );
        assert_eq!(
            replaced(windows, "x = 1", "x = 1\nw = 0").unwrap(),
            "[a]\r\nx = 1\r\nw = 0\r\ny = 2\r\n"
        );
        assert_eq!(replaced(windows, "\nx = 1", "").unwrap(), "[a]\r\ny = 2\r\n");
        assert_eq!(replaced(windows, "x = 1\r\n", "").unwrap(), "[a]\r\ny = 2\r\n");
        assert_eq!(replaced("a\nb\n", "a\r\nb", "a\r\nc\r\nd").unwrap(), "a\nc\nd\n");
        assert_eq!(replaced("a\r\nlast", "last", "last\nmore").unwrap(), "a\r\nlast\r\nmore");
        assert_eq!(replaced("one", "one", "one\ntwo").unwrap(), "one\ntwo");
    }

    #[test]
    fn in_a_mixed_file_untouched_lines_keep_their_ends() {
        assert_eq!(replaced("a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc").unwrap(), "a\r\nB\nc\r\n");
        assert_eq!(replaced("a\r\nb\nc\r\n", "b", "b\nb2").unwrap(), "a\r\nb\nb2\nc\r\n");
        assert_eq!(replaced("a\rb\nc\n", "a\rb", "a\rB").unwrap(), "a\rB\nc\n");
        assert_eq!(replaced("x\r\ny\n", "x\r", "z\r").unwrap(), "z\r\ny\n");
    }

    #[test]
    fn line_ends_alone_are_no_change() {
        let refused = Err(Refusal::NoChange { path: "f".into() });
        for text in ["a\r\nb", "a\nb"] {
            assert_eq!(replaced(text, "a\r\nb", "a\nb"), refused);
            assert_eq!(replaced(text, "a\nb", "a\r\nb"), refused);
        }
        assert_eq!(replaced("a", "a", "a"), refused);
        assert_eq!(replaced("a", "", "a"), Err(Refusal::EmptyOld));
    }

    #[test]
    fn several_places_are_named_with_their_lines() {
        let many = |lines: Vec<u64>| Err(Refusal::ManyMatches { path: "f".into(), lines });
        assert_eq!(replaced("x\nab\r\nab\nab\n", "ab\n", "c"), many(vec![2, 3, 4]));
        assert_eq!(replaced("x\naaa\n", "aa", "b"), many(vec![2, 2]));
        assert_eq!(replaced("a\r\nb\na\nb\n", "a\nb", "c"), many(vec![1, 3]));
    }

    #[test]
    fn a_miss_tells_of_blanks_and_of_the_nearest_place() {
        let text = "all: tool\n\ntool: main.c\n\t$(CC) -o tool main.c\n";
        let Err(Refusal::NoMatch { whitespace_differs_at, nearest, .. }) =
            replaced(text, "    $(CC) -o tool main.c", "x")
        else {
            panic!("a tab is no four spaces");
        };
        assert_eq!(whitespace_differs_at, Some(4));
        assert_eq!(nearest, Some((4, "\t$(CC) -o tool main.c".to_owned())));
    }

    #[test]
    fn inserted_lines_are_never_glued_and_keep_the_files_habits() {
        assert_eq!(inserted("x\ny", 2, "z").unwrap(), "x\ny\nz");
        assert_eq!(inserted("x\ny", 2, "z\n").unwrap(), "x\ny\nz");
        assert_eq!(inserted("x\r\ny", 2, "z\n").unwrap(), "x\r\ny\r\nz");
        assert_eq!(inserted("x\ny", 2, "\n").unwrap(), "x\ny\n\n");
        assert_eq!(inserted("x\ny\n", 2, "z").unwrap(), "x\ny\nz\n");
        assert_eq!(inserted("x\ny\n", 0, "w\n").unwrap(), "w\nx\ny\n");
        assert_eq!(inserted("x\r\ny\r\n", 1, "w\nv").unwrap(), "x\r\nw\r\nv\r\ny\r\n");
        assert_eq!(inserted("\u{feff}x\n", 0, "w").unwrap(), "\u{feff}w\nx\n");
        assert_eq!(inserted("", 0, "w").unwrap(), "w\n");
        assert_eq!(inserted("x\n", 1, "\n").unwrap(), "x\n\n");
        assert_eq!(
            inserted("x\n", 2, "y"),
            Err(Refusal::NoLine { path: "f".into(), line: 2, total: 1 })
        );
        assert_eq!(inserted("x\n", 1, ""), Err(Refusal::NoChange { path: "f".into() }));
    }

    #[test]
    fn changed_lines_are_told() {
        let told = |before: &str, after: &str| {
            let Edited { first, lines, total, .. } = edited(before.as_bytes(), after.as_bytes());
            (first, lines, total)
        };
        assert_eq!(told("a\nb\nc\n", "a\nB\nc\n"), (2, 1, 3));
        assert_eq!(told("a\nb\nc\n", "a\nc\n"), (2, 0, 2));
        assert_eq!(told("a\nb\n", "a\n"), (1, 0, 1));
        assert_eq!(told("x\ny", "x\ny\nz"), (3, 1, 3));
        assert_eq!(told("a\na\n", "a\na\na\n"), (3, 1, 3));
        assert_eq!(told("", "a\nb\n"), (1, 2, 2));
        assert_eq!(told("a\n", ""), (1, 0, 0));
    }

    proptest! {
        #[test]
        fn a_mixed_file_is_edited_as_if_all_its_lines_ended_alike(
            lines in proptest::collection::vec(("[ab]{0,2}", any::<bool>()), 0..8),
            old in "[ab\\n]{1,4}",
            new in "[ab\\n]{0,4}",
        ) {
            let end = |windows: &bool| if *windows { "\r\n" } else { "\n" };
            let before: String = lines.iter().map(|(line, windows)| format!("{line}{}", end(windows))).collect();
            let flat = before.replace("\r\n", "\n");
            let places: Vec<usize> = (0..flat.len()).filter(|at| flat[*at..].starts_with(&old)).collect();
            match replaced(&before, &old, &new) {
                Ok(after) => {
                    prop_assert_eq!(places.len(), 1);
                    prop_assert_eq!(after.replace("\r\n", "\n"), flat.replacen(&old, &new, 1));
                    let kept = flat[..places[0]].matches('\n').count();
                    prop_assert!(after.split_inclusive('\n').zip(before.split_inclusive('\n')).take(kept).all(|(a, b)| a == b));
                }
                Err(Refusal::NoChange { .. }) => prop_assert_eq!(&old, &new),
                Err(Refusal::ManyMatches { lines, .. }) => {
                    let numbers: Vec<u64> = places.iter().map(|at| flat[..*at].matches('\n').count() as u64 + 1).collect();
                    prop_assert_eq!(lines, numbers);
                    prop_assert!(places.len() > 1);
                }
                Err(Refusal::NoMatch { .. }) => prop_assert!(places.is_empty()),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn a_change_and_its_inverse_give_the_same_bytes(before in "[ab\\r\\n]{0,12}", old in "[ab\\r\\n]{1,3}", new in "[ab\\r\\n]{0,3}") {
            if let Ok(change) = replace("f", before.as_bytes(), &old, &new) {
                let after = change.apply(before.as_bytes());
                prop_assert_ne!(after.as_slice(), before.as_bytes());
                prop_assert_eq!(change.inverse(before.as_bytes()).apply(&after), before.as_bytes());
            }
        }
    }
}
