//! The page: lines for a terminal, indented, cut or wrapped to its width, and coloured where colours help.

use crate::text;

/// Fewest columns that lines are cut to.
const LEAST_WIDTH: usize = 40;
/// Columns kept free on a line that is cut, for the number of characters left out.
const CUT_NOTE: usize = 12;

/// Whether lines carry ANSI colours. They only repeat what the words say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Text only.
    Off,
    /// With escape sequences.
    On,
}

/// How much of long texts is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Their beginnings and ends, with counts of what was left out.
    Bounded,
    /// All of them.
    Full,
}

/// What a colour stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
}

impl Style {
    /// The sequence that turns it on.
    fn sequence(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Strong => "\u{1b}[1m",
            Style::Faint => "\u{1b}[2m",
            Style::Good => "\u{1b}[32m",
            Style::Bad => "\u{1b}[31m",
        }
    }
}

/// What becomes of a line that is longer than the page is wide.
#[derive(Debug, Clone, Copy)]
pub(super) enum Long {
    /// It goes on in the next line.
    Wrapped,
    /// It ends with the number of characters left out; [`Detail::Full`] leaves it as it is.
    Cut,
}

/// Lines for a terminal.
#[derive(Debug)]
pub(super) struct Page {
    width: usize,
    color: Color,
    detail: Detail,
    lines: Vec<String>,
}

impl Page {
    /// An empty page, `width` columns wide.
    pub(super) fn new(width: usize, color: Color, detail: Detail) -> Self {
        Self { width: width.max(LEAST_WIDTH), color, detail, lines: Vec::new() }
    }

    /// Its lines, without line ends.
    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines
    }

    /// An empty line.
    pub(super) fn space(&mut self) {
        self.lines.push(String::new());
    }

    /// One line.
    pub(super) fn line(&mut self, indent: usize, style: Style, words: &str) {
        self.block(indent, style, words, 1, Long::Cut);
    }

    /// A text of many lines, of which [`Detail::Bounded`] shows `limit`: the first ones and the last ones. Escape
    /// sequences in the text never reach the terminal.
    pub(super) fn block(
        &mut self,
        indent: usize,
        style: Style,
        words: &str,
        limit: usize,
        long: Long,
    ) {
        let room = self.width - indent;
        let words = text::plain(words).replace('\t', "    ");
        let lines = words.trim_end().lines();
        let rows: Vec<String> = match (long, self.detail) {
            (Long::Wrapped, Detail::Bounded | Detail::Full) => {
                lines.flat_map(|line| wrap(line, room)).collect()
            }
            (Long::Cut, Detail::Bounded) => lines.map(|line| cut(line, room)).collect(),
            (Long::Cut, Detail::Full) => lines.map(str::to_owned).collect(),
        };
        let (first, last) = match self.detail {
            Detail::Bounded if rows.len() > limit => (limit.div_ceil(2), limit / 2),
            Detail::Bounded | Detail::Full => (rows.len(), 0),
        };
        for row in &rows[..first] {
            self.push(indent, style, row);
        }
        match rows.len() - first - last {
            0 => {}
            1 => self.push(indent, Style::Faint, "[1 line left out]"),
            left => self.push(indent, Style::Faint, &format!("[{left} lines left out]")),
        }
        for row in &rows[rows.len() - last..] {
            self.push(indent, style, row);
        }
    }

    fn push(&mut self, indent: usize, style: Style, row: &str) {
        let row = row.trim_end();
        let indent = if row.is_empty() { 0 } else { indent };
        self.lines.push(match (self.color, style.sequence()) {
            (Color::Off, _) | (Color::On, "") => format!("{:indent$}{row}", ""),
            (Color::On, sequence) => format!("{:indent$}{sequence}{row}\u{1b}[0m", ""),
        });
    }
}

/// A line, cut to `room` characters, the number of those left out among them.
fn cut(line: &str, room: usize) -> String {
    if text::head(line, room).1 == 0 {
        return line.to_owned();
    }
    let (head, left) = text::head(line, room - CUT_NOTE);
    format!("{head} [+{left}]")
}

/// A line in pieces of at most `room` characters, broken at spaces where there are some.
fn wrap(line: &str, room: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while let Some((end, _)) = rest.char_indices().nth(room) {
        let spaces = rest[..end].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
        // A word that just fits is followed by a space that is a place to break too.
        let space = if rest[end..].starts_with(' ') { None } else { spaces };
        let (piece, after) = rest.split_at(space.unwrap_or(end));
        pieces.push(piece.to_owned());
        rest = after.trim_start();
    }
    pieces.push(rest.to_owned());
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(detail: Detail, words: &str, limit: usize, long: Long) -> Vec<String> {
        let mut page = Page::new(40, Color::Off, detail);
        page.block(2, Style::Bad, words, limit, long);
        page.into_lines()
    }

    #[test]
    fn long_texts_lose_their_middle_and_say_how_much() {
        let words = "one\ntwo\nthree\nfour\nfive\n";
        assert_eq!(
            page(Detail::Bounded, words, 3, Long::Cut),
            ["  one", "  two", "  [2 lines left out]", "  five"]
        );
        assert_eq!(
            page(Detail::Full, words, 3, Long::Cut),
            ["  one", "  two", "  three", "  four", "  five"]
        );
    }

    #[test]
    fn long_lines_are_cut_or_wrapped() {
        let words = "a line of words that is longer than the page is wide";
        assert_eq!(
            page(Detail::Bounded, words, 9, Long::Cut),
            ["  a line of words that is lo [+26]"]
        );
        assert_eq!(
            page(Detail::Bounded, words, 9, Long::Wrapped),
            ["  a line of words that is longer than", "  the page is wide"]
        );
    }

    #[test]
    fn escapes_of_a_text_never_reach_the_terminal_and_colours_do_when_asked_for() {
        let mut page = Page::new(80, Color::On, Detail::Bounded);
        page.line(0, Style::Bad, "\u{1b}[2Jgone\u{9b}1m");
        page.line(0, Style::Plain, "as it is");
        assert_eq!(page.into_lines(), ["\u{1b}[31mgone1m\u{1b}[0m", "as it is"]);
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_word_and_the_width(line in "[a-zäß漢 ]{0,200}", room in 1usize..60) {
            let pieces = wrap(&line, room);
            prop_assert!(pieces.iter().all(|piece| piece.chars().count() <= room));
            let letters = |text: &str| text.chars().filter(|letter| *letter != ' ').collect::<String>();
            prop_assert_eq!(letters(&pieces.concat()), letters(&line));
        }
    }
}
