//! Where in a file a text nearly occurs. It only locates: what is written is never taken from here.

use memchr::memchr_iter;
use memchr::memmem;

/// Bytes of a file that are compared, from its beginning.
const MAX_COMPARED: usize = 8 << 20;
/// Lines of the wanted text that are compared, those that say most.
const MAX_SAMPLED: usize = 16;
/// Comparisons of two lines in all: a few milliseconds.
const MAX_COMPARISONS: usize = 1 << 18;
/// Share of common trigrams below which a place is no help.
const LEAST_SIMILARITY: f64 = 0.5;
/// Bytes of the similar place that are given.
const MAX_TEXT: usize = 4096;

/// The first line where `wanted` occurs when blanks and line ends are not compared.
pub(super) fn ignoring_whitespace(text: &[u8], wanted: &[u8]) -> Option<u64> {
    let dense = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().copied().filter(|byte| !is_blank(*byte)).collect()
    };
    let wanted = dense(wanted);
    if wanted.is_empty() {
        return None;
    }
    let skipped = memmem::find(&dense(text), &wanted)?;
    let (at, _) = text.iter().enumerate().filter(|(_, byte)| !is_blank(**byte)).nth(skipped)?;
    Some(1 + memchr_iter(b'\n', &text[..at]).count() as u64)
}

/// The place of as many lines as `wanted` has that is most like it: its first line, from 1, and its text.
///
/// Two places are alike when their lines, one by one, have the same trigrams of characters other than blanks.
pub(super) fn most_similar(text: &[u8], wanted: &[u8]) -> Option<(u64, String)> {
    let compared = &text[..text.len().min(MAX_COMPARED)];
    let lines: Vec<Trigrams> = split(compared).map(Trigrams::of).collect();
    let wanted: Vec<Trigrams> = split(wanted).map(Trigrams::of).collect();
    let height = wanted.len().min(lines.len());
    if height == 0 {
        return None;
    }
    let mut sample: Vec<usize> = (0..height).filter(|index| wanted[*index].count > 0).collect();
    sample.sort_by_key(|index| std::cmp::Reverse(wanted[*index].count));
    sample.truncate((MAX_COMPARISONS / lines.len()).clamp(1, MAX_SAMPLED));
    let mut best = (LEAST_SIMILARITY, None);
    for start in 0..=lines.len() - height {
        let (mut common, mut all) = (0, 0);
        for index in &sample {
            let (theirs, ours) = (&lines[start + index], &wanted[*index]);
            let both = (theirs.set & ours.set).count_ones();
            common += both;
            all += theirs.count + ours.count - both;
        }
        let similarity = f64::from(common) / f64::from(all.max(1));
        if similarity > best.0 {
            best = (similarity, Some(start));
        }
    }
    let first = best.1?;
    let place: Vec<&[u8]> = split(compared).skip(first).take(height).collect();
    let mut shown = String::from_utf8_lossy(&place.join(&b'\n')).into_owned();
    shown.truncate(shown.floor_char_boundary(MAX_TEXT));
    Some((first as u64 + 1, shown))
}

/// The trigrams of a line, as a set of hashes.
struct Trigrams {
    set: u128,
    count: u32,
}

impl Trigrams {
    fn of(line: &[u8]) -> Self {
        let mut set = 0;
        let mut last = 0_u32;
        for byte in line.iter().filter(|byte| !is_blank(**byte)) {
            last = (last << 8 | u32::from(*byte)) & 0x00ff_ffff;
            set |= 1_u128 << (last.wrapping_mul(0x9e37_79b1) >> 25);
        }
        Self { set, count: set.count_ones() }
    }
}

fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const TEXT: &str =
        "def area(w, h):\n\treturn w * h\n\n\ndef perimeter(w, h):\n\treturn 2 * (w + h)\n";

    #[test]
    fn a_place_that_differs_in_blanks_is_found_by_its_line() {
        assert_eq!(ignoring_whitespace(TEXT.as_bytes(), b"        return 2*(w + h)"), Some(6));
        assert_eq!(
            ignoring_whitespace(TEXT.as_bytes(), b"def area(w,h):\n    return w*h\n"),
            Some(1)
        );
        assert_eq!(ignoring_whitespace(TEXT.as_bytes(), b"return w + h"), None);
        assert_eq!(ignoring_whitespace(TEXT.as_bytes(), b" \n "), None);
    }

    #[test]
    fn the_most_similar_place_has_the_height_of_the_wanted_text() {
        let wanted = b"def perimeter(width, h):\n    return 2 * (width + h)\n";
        let expected = "def perimeter(w, h):\n\treturn 2 * (w + h)";
        assert_eq!(most_similar(TEXT.as_bytes(), wanted), Some((5, expected.to_owned())));
        assert_eq!(most_similar(TEXT.as_bytes(), b"import numpy as np"), None);
        assert_eq!(most_similar(b"", b"a"), None);
        assert_eq!(most_similar(b"one line", b"one line\nof two\n").map(|(line, _)| line), Some(1));
    }

    #[test]
    fn a_long_file_is_compared_in_bounded_time() {
        let mut text = String::new();
        for number in 0..50_000 {
            text.push_str(&format!(
                "    value_{number} = compute(value_{}, {number})\n",
                number / 2
            ));
        }
        let wanted: String = text
            .lines()
            .skip(40_000)
            .take(40)
            .map(|line| line.replace("compute", "compile") + "\n")
            .collect();
        let started = Instant::now();
        let found = most_similar(text.as_bytes(), wanted.as_bytes());
        let took = started.elapsed();
        assert_eq!(found.map(|(line, _)| line), Some(40_001));
        assert!(took.as_millis() < 2000, "took {took:?}");
    }
}
