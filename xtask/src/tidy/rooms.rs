//! The way of a record, as `docs/ARCHITECTURE.md` has it: a table of rooms, each a file with its functions, and the
//! calls by which it hands the record on.
//!
//! Invariants: at most [`ROOMS_MAX`] rooms. Each function is defined in its file, and each call is made there, outside
//! of tests.

use std::path::Path;

use super::Finding;
use super::lex::{code_only, without_tests};
use super::walk::File;

const ROOMS_MAX: usize = 12;
const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const HEADING: &str = "## 1. The way of a record";

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let document = files.iter().find(|file| file.path == Path::new(DOCUMENT));
    let mut findings = Vec::new();
    let mut find = |line, what| findings.push(Finding { path: DOCUMENT.into(), line, what });
    let rooms: Vec<_> = rooms(document.map_or("", |file| &file.text)).collect();
    if rooms.is_empty() || rooms.len() > ROOMS_MAX {
        find(0, format!("the way of a record has {} rooms: 1 to {ROOMS_MAX} are named", rooms.len()));
    }
    for (line, [path, functions, calls]) in rooms {
        let path = quoted(path).next().unwrap_or_default();
        let Some(file) = files.iter().find(|file| file.path == Path::new(path)) else {
            find(line, format!("the room {path} is no file"));
            continue;
        };
        let code = without_tests(&code_only(&file.text));
        // Behind the colon stands what they do.
        let functions = functions.split(':').next().unwrap_or_default();
        for name in quoted(functions).filter(|name| !has(&code, &format!("fn {name}"))) {
            find(line, format!("{path} has no function {name}"));
        }
        for name in quoted(calls).filter(|name| !calls_it(&code, name)) {
            find(line, format!("{path} does not call {name}"));
        }
    }
    findings
}

/// Rows of the table, with their lines: path, functions, calls.
fn rooms(text: &str) -> impl Iterator<Item = (usize, [&str; 3])> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let section = lines.take_while(|(_, line)| !line.starts_with("## "));
    section.filter_map(|(at, line)| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        cells.next()?.parse::<usize>().ok()?;
        Some((at + 1, [cells.next()?, cells.next()?, cells.next()?]))
    })
}

/// Pieces between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns true if these words stand there, and not as part of others.
fn has(code: &str, words: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(words).any(|(at, _)| !code[..at].ends_with(part) && !code[at + words.len()..].starts_with(part))
}

fn calls_it(code: &str, name: &str) -> bool {
    let call = format!("{name}(");
    code.match_indices(&call)
        .any(|(at, _)| code[..at].ends_with('.') || code[..at].ends_with(' ') && !code[..at].ends_with("fn "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        let document = format!(
            "{HEADING}\n\n| | room | function | calls |\n|---|---|---|---|\n| 1 | `a/b.rs` | `take`: calls `x` | `append` |\n"
        );
        let files = [File::new(DOCUMENT, &document), File::new("a/b.rs", code)];
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_room_has_its_functions_and_its_calls() {
        assert_eq!(found("fn take() { self.append(1); }"), [""; 0]);
        assert_eq!(found("fn taken() { self.append(1); }"), ["a/b.rs has no function take"]);
        assert_eq!(found("fn take() { self.append_all(1); } fn append() {}"), ["a/b.rs does not call append"]);
        assert_eq!(found("fn take() {} // append(1)\n"), ["a/b.rs does not call append"]);
        let tests = "fn take() {}\n#[cfg(test)]\nmod tests {\n    fn t() { append(1); }\n}\n";
        assert_eq!(found(tests), ["a/b.rs does not call append"]);
    }

    #[test]
    fn rooms_are_files_and_there_are_few() {
        let row = |at| format!("| {at} | `c.rs` | `take` | |\n");
        let text = |rows| format!("{HEADING}\n{}", (1..=rows).map(row).collect::<String>());
        let of = |rows| check(&[File::new(DOCUMENT, &text(rows))]).len();
        assert_eq!((of(0), of(1), of(ROOMS_MAX), of(ROOMS_MAX + 1)), (1, 1, ROOMS_MAX, ROOMS_MAX + 2));
    }
}
