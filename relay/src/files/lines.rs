//! Records of a piece of a file.
//!
//! Invariants: every byte of the piece up to its last record's end is in one record, but for the ends of lines. What is longer
//! than a record may be is cut, and says how long it was.

use std::ops::Range;

use regex::bytes::Regex;

/// A record in a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Its bytes in the piece.
    pub(super) body: Range<usize>,
    /// Where the next one begins.
    pub(super) end: usize,
    /// The length that it had, where it is cut.
    pub(super) cut_from: Option<usize>,
}

/// How a piece is taken apart.
#[derive(Debug)]
pub(super) struct Rules {
    /// A line that matches begins a record.
    pub(super) begins: Option<Regex>,
    pub(super) max_record: usize,
}

impl Rules {
    /// The records of a piece, at most so many. `is_last`: nothing comes behind it for now, so a record of several lines ends
    /// with it; `is_end`: nothing ever comes, so a line without an end is one too.
    pub(super) fn split(&self, piece: &[u8], max: usize, (is_last, is_end): (bool, bool)) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        let mut at = 0;
        let mut open: Option<(usize, usize, usize)> = None;
        while at < piece.len() && found.len() < max {
            let newline = piece[at..].iter().position(|byte| *byte == b'\n').map(|length| at + length);
            let (line_end, next) = match newline {
                Some(newline) => (newline, newline + 1),
                None if is_end => (piece.len(), piece.len()),
                None => break,
            };
            let begins = self.begins.as_ref().is_none_or(|begins| begins.is_match(&piece[at..line_end]));
            match open.as_mut() {
                Some((_, end, after)) if !begins => (*end, *after) = (line_end, next),
                _ => {
                    found.extend(open.replace((at, line_end, next)).map(|record| self.record(record)));
                }
            }
            at = next;
        }
        // Where a line is a record it ends by itself; else another line may go on with the last one.
        if (self.begins.is_none() || is_last) && found.len() < max {
            found.extend(open.map(|record| self.record(record)));
        }
        found
    }

    fn record(&self, (start, end, after): (usize, usize, usize)) -> Found {
        let length = end - start;
        let cut_from = (length > self.max_record).then_some(length);
        Found { body: start..start + length.min(self.max_record), end: after, cut_from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(rules: &Rules, piece: &str, state: (bool, bool)) -> Vec<(String, usize)> {
        let found = rules.split(piece.as_bytes(), 100, state);
        found.into_iter().map(|found| (piece[found.body].to_owned(), found.end)).collect()
    }

    fn said(records: &[(&str, usize)]) -> Vec<(String, usize)> {
        records.iter().map(|(text, end)| ((*text).to_owned(), *end)).collect()
    }

    #[test]
    fn a_line_is_a_record_once_it_has_its_end() {
        let rules = Rules { begins: None, max_record: 4 };
        assert_eq!(split(&rules, "a\n\nb", (true, false)), said(&[("a", 2), ("", 3)]));
        assert_eq!(split(&rules, "a\n\nb", (true, true)), said(&[("a", 2), ("", 3), ("b", 4)]));
        let cut = rules.split(b"abcdef\n", 9, (false, false));
        assert_eq!(cut, [Found { body: 0..4, end: 7, cut_from: Some(6) }]);
        assert_eq!(rules.split(b"a\nb\nc\n", 2, (true, false)).len(), 2);
    }

    #[test]
    fn a_record_of_several_lines_ends_where_the_next_begins_or_nothing_follows() {
        let rules = Rules { begins: Some(Regex::new("^[0-9]").expect("right")), max_record: 100 };
        let text = "1 a\n at x\n at y\n2 b\n at z\n";
        assert_eq!(split(&rules, text, (false, false)), said(&[("1 a\n at x\n at y", 16)]));
        assert_eq!(split(&rules, text, (true, false)), said(&[("1 a\n at x\n at y", 16), ("2 b\n at z", 26)]));
        assert_eq!(split(&rules, " tail\n3\n", (false, false)), said(&[(" tail", 6)]));
    }
}
