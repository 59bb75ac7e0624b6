//! Columns: names beside values, and rows under heads.

use std::fmt::Write;

/// Names, right-aligned, beside values; a value of several lines goes on below itself.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    rows: Vec<(String, String)>,
}

impl Sheet {
    /// Adds a row; an empty value adds none.
    pub(crate) fn row(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        let value = value.into();
        if !value.is_empty() {
            self.rows.push((name.to_owned(), value));
        }
        self
    }

    /// The rows, a newline after each; lines longer than `columns` go on below themselves, as far as there are words.
    pub(crate) fn show(&self, columns: usize) -> String {
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let room = columns.saturating_sub(width + 2).max(20);
        let mut out = String::new();
        for (name, value) in &self.rows {
            for (at, line) in value.lines().flat_map(|line| wrapped(line, room)).enumerate() {
                let name = if at == 0 { name.as_str() } else { "" };
                let _ = writeln!(out, "{}", format!("{name:>width$}  {line}").trim_end());
            }
        }
        out
    }
}

/// A line in pieces of at most `room` characters, cut between words; a longer word stays whole.
pub(crate) fn wrapped(line: &str, room: usize) -> Vec<String> {
    if line.chars().count() <= room {
        return vec![line.to_owned()];
    }
    // What stands under each other stays there: what follows is indented as the line was.
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let mut pieces = vec![indent.clone()];
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let last = pieces.last_mut().expect("never empty");
        let used = last.chars().count();
        let gap = usize::from(used > indent.len());
        if gap == 1 && used + 1 + word.chars().count() > room {
            pieces.push(format!("{indent}{word}"));
        } else {
            last.push_str(if gap == 1 { " " } else { "" });
            last.push_str(word);
        }
    }
    pieces
}

/// Rows under heads, each column as wide as its widest; `>` before a head aligns its column to the right.
pub(crate) fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let name = |head: &str| head.trim_start_matches('>').to_owned();
    let mut widths: Vec<usize> = heads.iter().map(|head| name(head).chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let heading: Vec<String> = heads.iter().map(|head| name(head)).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for ((cell, head), &width) in row.iter().zip(heads).zip(&widths) {
            let _ = match head.starts_with('>') {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:width$}  "),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_lines_up() {
        let mut sheet = Sheet::default();
        sheet.row("log", "ab").row("epoch", "3").row("nothing", "").row("notes", "one\ntwo");
        assert_eq!(sheet.show(80), "  log  ab\nepoch  3\nnotes  one\n       two\n");
    }

    #[test]
    fn a_sheet_keeps_to_its_columns() {
        let mut sheet = Sheet::default();
        sheet.row("x", "the quick brown fox jumps over the lazy dog").row("y", "averyveryverylongwordindeed");
        let text = sheet.show(23);
        assert_eq!(text, "x  the quick brown fox\n   jumps over the lazy\n   dog\ny  averyveryverylongwordindeed\n");
        assert_eq!(sheet.show(usize::MAX).lines().count(), 2);
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["1".to_owned(), "sealed".to_owned()], vec!["100".to_owned(), "active".to_owned()]];
        assert_eq!(columns(&[">number", "state"], &rows), "number  state\n     1  sealed\n   100  active\n");
    }
}
