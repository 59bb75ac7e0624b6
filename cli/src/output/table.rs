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

    /// The rows, a newline after each.
    pub(crate) fn show(&self) -> String {
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, value) in &self.rows {
            for (at, line) in value.lines().enumerate() {
                let name = if at == 0 { name.as_str() } else { "" };
                let _ = writeln!(out, "{name:>width$}  {line}");
            }
        }
        out
    }
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
        assert_eq!(sheet.show(), "  log  ab\nepoch  3\nnotes  one\n       two\n");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["1".to_owned(), "sealed".to_owned()], vec!["100".to_owned(), "active".to_owned()]];
        assert_eq!(columns(&[">number", "state"], &rows), "number  state\n     1  sealed\n   100  active\n");
    }
}
