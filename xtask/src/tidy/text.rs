//! Rules on any text: sizes, and places that only one machine has.

use std::path::{Path, PathBuf};

use super::Finding;
use super::walk::File;

/// Above this a file is refused.
const FILE_LINES_MAX: usize = 1000;
/// Above this it is listed.
const FILE_LINES_LISTED: usize = 400;
/// What a person writes by hand, as opposed to tables, locks and golden files.
const WRITTEN: [&str; 4] = [".rs", ".proto", ".sh", ".py"];

/// Paths of one machine, or of whoever worked there: in pieces, so that this file is not found by itself.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!(".libr", "ary")];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX && file.ends_with(&WRITTEN) {
        findings.push(Finding {
            path: file.path.clone(),
            line: 0,
            what: format!("{lines} lines: split it, {FILE_LINES_MAX} is the limit"),
        });
    }
    for (number, line) in file.text.lines().enumerate() {
        for place in MACHINE_PATHS.iter().filter(|place| line.contains(**place)) {
            findings.push(Finding {
                path: file.path.clone(),
                line: number + 1,
                what: format!("{place} is a place on one machine: name it by what it is"),
            });
        }
    }
    findings
}

/// Files that are getting long.
pub(super) fn long(files: &[File]) -> impl Iterator<Item = (&Path, usize)> {
    files
        .iter()
        .filter(|file| file.ends_with(&WRITTEN))
        .map(|file| (PathBuf::as_path(&file.path), file.text.lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES_LISTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_found_and_a_long_table_is_not() {
        let text = "x\n".repeat(FILE_LINES_MAX + 1);
        let code = File::new("a/b.rs", &text);
        assert_eq!(check(&code)[0].to_string(), "a/b.rs: 1001 lines: split it, 1000 is the limit");
        assert!(check(&File::new("Cargo.lock", &text)).is_empty());
        let files = [code, File::new("c.rs", "")];
        assert_eq!(long(&files).collect::<Vec<_>>(), [(Path::new("a/b.rs"), 1001)]);
    }

    #[test]
    fn a_place_on_one_machine_is_found_in_any_text() {
        for place in MACHINE_PATHS {
            let found = check(&File::new("docs/x.md", &format!("one\nsee {place}x\n")));
            assert_eq!((found.len(), found[0].line), (1, 2), "{place}");
        }
        assert!(check(&File::new("docs/x.md", "the workshop; root/x; library\n")).is_empty());
    }
}
