//! The changelog: of each kind one section a release, of the kinds that there are, and no entry twice.

use std::collections::HashMap;
use std::path::Path;

use super::Finding;
use super::walk::File;

/// Those of Keep a Changelog.
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    if file.path != Path::new("CHANGELOG.md") {
        return Vec::new();
    }
    let (mut findings, mut kinds, mut entries) = (Vec::new(), HashMap::new(), HashMap::new());
    for (line, text) in (1..).zip(file.text.lines()) {
        let mut find = |what: String| findings.push(Finding { path: file.path.clone(), line, what });
        if text.starts_with("## ") {
            kinds.clear();
        } else if let Some(kind) = text.strip_prefix("### ") {
            if !KINDS.contains(&kind) {
                find(format!("{kind} is no kind of change: {}", KINDS.join(", ")));
            }
            if let Some(before) = kinds.insert(kind, line) {
                find(format!("a second section {kind} in this release: the first is in line {before}"));
            }
        } else if text.starts_with("- ")
            && let Some(before) = entries.insert(text, line)
        {
            find(format!("this entry is there already, in line {before}"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&File::new("CHANGELOG.md", text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_kind_twice_or_unknown_and_an_entry_twice() {
        let good = "# Changelog\n## [Unreleased]\n### Added\n- a\n### Fixed\n- b\n## [0.1.0]\n### Added\n- c\n";
        assert_eq!(lines(good), [] as [usize; 0]);
        assert_eq!(lines(&good.replace("Fixed", "Added")), [5]);
        assert_eq!(lines(&good.replace("Fixed", "Mended")), [5]);
        assert_eq!(lines(&good.replace("- c", "- a")), [9]);
        assert!(check(&File::new("docs/x.md", "### Added\n### Added\n")).is_empty());
    }
}
