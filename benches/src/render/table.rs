//! Tables of Markdown.

use crate::stats::Spread;

/// A table with its head.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    line(&head) + &rule + &rows.iter().map(|row| line(row)).collect::<String>()
}

/// A number with commas, and no more digits than mean something.
pub(super) fn count(value: f64) -> String {
    if value.abs() < 100.0 {
        let digits = if value.abs() < 10.0 { 2 } else { 1 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{:.0}", value.abs());
    let first = digits.len() % 3;
    let mut parts: Vec<&str> = if first > 0 { vec![&digits[..first]] } else { Vec::new() };
    parts.extend((first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]));
    let sign = if value < 0.0 { "-" } else { "" };
    sign.to_owned() + &parts.join(",")
}

/// The median, and the least and the greatest.
pub(super) fn spread(spread: &Spread) -> String {
    format!("{} ({}–{})", count(spread.median), count(spread.min), count(spread.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        let table = [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (45.67, "45.7"),
            (123.4, "123"),
            (1234.0, "1,234"),
            (1_234_567.0, "1,234,567"),
        ];
        for (value, text) in table {
            assert_eq!(count(value), text);
        }
        assert_eq!(spread(&Spread { median: 2.0, min: 1.0, max: 3000.0 }), "2.00 (1.00–3,000)");
    }

    #[test]
    fn a_table() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "| x | y |\n|---|---|\n| a | 1 |\n");
    }
}
