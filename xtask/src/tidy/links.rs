//! Links in the documents: each leads to a file or folder that is there, and to a heading that it has.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::walk::File;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let known: HashSet<&Path> = files.iter().flat_map(|file| file.path.ancestors()).collect();
    let documents = files.iter().filter(|file| file.ends_with(&[".md"]));
    let headings: BTreeMap<&Path, BTreeSet<String>> =
        documents.clone().map(|file| (file.path.as_path(), headings(&file.text))).collect();
    let mut findings = Vec::new();
    for file in documents {
        for (line, to) in links(&file.text) {
            let (path, heading) = to.split_once('#').map_or((to, None), |(path, heading)| (path, Some(heading)));
            let target = match path {
                "" => file.path.clone(),
                path => plain(&file.path.parent().unwrap_or(Path::new("")).join(path)),
            };
            let what = if !known.contains(target.as_path()) {
                format!("the link to {to} leads nowhere")
            } else if heading.is_some_and(|heading| {
                headings.get(target.as_path()).is_some_and(|headings| !headings.contains(heading))
            }) {
                format!("the link to {to} leads to no heading")
            } else {
                continue;
            };
            findings.push(Finding { path: file.path.clone(), line, what });
        }
    }
    findings
}

/// Lines that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((at + 1, line))
    })
}

/// What links within the repository lead to.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every other piece stands between backticks.
        for piece in line.split('`').step_by(2) {
            let targets = piece.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            found.extend(targets.map(|(to, _)| (number, to)).filter(|(_, to)| !to.contains("://")));
        }
    }
    found
}

/// The names of the headings, as they are linked to; of equal ones the later have a number.
fn headings(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let name: String = line.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let names = std::iter::once(name.clone()).chain((1..).map(|n| format!("{name}-{n}")));
        all.extend(names.into_iter().find(|name| !all.contains(name)));
    }
    all
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let found = |text: &str| -> Vec<String> {
            let files = [
                File::new("docs/a.md", text),
                File::new("docs/b.md", "# What a `log` is\n## Twice\n## Twice\n```\n# no heading\n```\n"),
                File::new("LICENSE", ""),
            ];
            check(&files).iter().map(ToString::to_string).collect()
        };
        for good in [
            "# Here\n[a](b.md#what-a-log-is) [b](../LICENSE) [c](https://example.org/x) [d](#here) [e](../docs/)",
            "`[a](nowhere.md)`\n```\n[b](nowhere.md)\n```\n[c](b.md#twice-1)",
        ] {
            assert_eq!(found(good), [""; 0], "{good}");
        }
        assert_eq!(found("x\n[a](c.md)"), ["docs/a.md:2: the link to c.md leads nowhere"]);
        for bad in ["b.md#twice-2", "b.md#no-heading", "#there"] {
            let what = format!("docs/a.md:1: the link to {bad} leads to no heading");
            assert_eq!(found(&format!("[a]({bad})")), [what]);
        }
    }
}
