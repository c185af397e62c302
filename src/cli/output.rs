//! The only place that writes to the terminal.

use std::io::IsTerminal;
use std::io::Write;

/// Writes a line of data to standard output. A reader that went away is not an error.
pub(super) fn data(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}

/// Writes a line for the person to standard error.
pub(super) fn note(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "{text}");
}

/// Whether standard output may be coloured.
pub(super) fn color() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A table with aligned columns; the first row is its head. Columns named in `right` are set flush right.
pub(super) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut lines = Vec::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[column] - cell.chars().count());
            if column > 0 {
                line.push_str("  ");
            }
            if right.contains(&column) {
                line.push_str(&space);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&space);
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}
