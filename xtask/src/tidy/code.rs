//! Rules on Rust code: where system calls, `unsafe`, memory mappings and clocks may stand.

use super::Finding;
use super::lex::{code_only, without_tests, words};
use super::walk::File;

/// Only the storage layer touches files: everything above it runs in the simulation too.
const STORAGE: &str = "journal/src/io/";
/// Rings in shared memory: the other crate with `unsafe`, and the only one with mappings. No file of a log is there.
const RINGS: &str = "shm/";
/// The library for C: its exported names, what C points to, masks of signals.
const FOR_C: &str = "client-sdk/c/src/";
/// What reaches the file system or the kernel.
const SYSTEM: [&str; 7] = ["std::fs", "unix::fs", "rustix::fs", "rustix::io", "libc::", "nix::", "io_uring"];
/// Crates whose code must run on a clock that is passed in, and why.
const CLOCKED: [(&str, &str); 3] = [
    ("journal/", "the simulation turns it"),
    ("shm/", "the models turn it"),
    ("sim/", "the same seed must give the same bytes"),
];
/// What reads the time.
const CLOCKS: [&str; 3] = ["SystemTime::now", "Instant::now", "clock_gettime"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    if !file.ends_with(&[".rs"]) {
        return Vec::new();
    }
    let path = file.path.to_string_lossy().into_owned();
    let all = code_only(&file.text);
    let shipped = if is_test(file) { String::new() } else { without_tests(&all) };

    let mut found = Vec::new();
    if !path.starts_with(STORAGE) {
        let bound = if path.starts_with(RINGS) || path.starts_with(FOR_C) { "" } else { all.as_str() };
        found.extend(lines_of_word(bound, "unsafe").map(|line| (line, format!("unsafe outside {STORAGE}"))));
        if path.starts_with("journal/src/") {
            let reach = SYSTEM.iter().flat_map(|name| lines_with(&shipped, name).map(move |line| (line, *name)));
            let grouped = grouped_fs(&shipped).map(|line| (line, "a group with fs"));
            found.extend(reach.chain(grouped).map(|(line, name)| (line, format!("{name} outside {STORAGE}"))));
        }
    }
    found.extend(
        words(if path.starts_with(RINGS) { "" } else { &all })
            .filter(|(_, word)| is_mapping(word))
            .map(|(line, word)| (line, format!("{word}: nothing in a data folder is ever memory-mapped"))),
    );
    for (_, why) in CLOCKED.iter().filter(|(folder, _)| path.starts_with(folder)) {
        if file.name() != "clock.rs" {
            let reads = CLOCKS.iter().flat_map(|name| lines_with(&shipped, name).map(move |line| (line, *name)));
            found
                .extend(reads.map(|(line, name)| (line, format!("{name} outside clock.rs: time is passed in, {why}"))));
        }
    }
    found.into_iter().map(|(line, what)| Finding { path: file.path.clone(), line, what }).collect()
}

/// Files that hold tests as a whole.
pub(super) fn is_test(file: &File) -> bool {
    let in_folder = file.path.iter().any(|part| part == "tests" || part == "benches" || part == "examples");
    in_folder || file.name() == "tests.rs" || file.ends_with(&["_test.rs", "_tests.rs"])
}

fn is_mapping(word: &str) -> bool {
    word.to_ascii_lowercase().contains(concat!("mm", "ap"))
}

fn lines_with<'a>(code: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.lines().enumerate().filter(move |(_, line)| line.contains(what)).map(|(number, _)| number + 1)
}

fn lines_of_word<'a>(code: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    words(code).filter(move |(_, word)| *word == what).map(|(line, _)| line)
}

/// `use std::{fs, …}`, which the plain search does not see.
fn grouped_fs(code: &str) -> impl Iterator<Item = usize> {
    let groups = ["std::{", "rustix::{"].into_iter().flat_map(|open| code.match_indices(open));
    groups.filter_map(|(at, _)| {
        let group = code[at..].split(';').next()?;
        let line = code[..at].matches('\n').count() + 1;
        words(group).any(|(_, word)| word == "fs").then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(&File::new(path, text));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_file_system_is_for_the_storage_layer() {
        for text in [
            "use std::fs;",
            "use std::{fs, io};",
            "use rustix::{fs, io};",
            "use rustix::fs::fsync;",
            "fn f() { libc::close(1); }",
        ] {
            assert_eq!(found("journal/src/commit.rs", text).len(), 1, "{text}");
            assert!(found("journal/src/io/blocking.rs", text).is_empty(), "{text}");
            assert!(found("daemon/src/config/layers.rs", text).is_empty(), "{text}");
            assert!(found("journal/tests/recovery.rs", text).is_empty(), "{text}");
            let inline = format!("#[cfg(test)]\nmod tests {{ {text} }}\n");
            assert!(found("journal/src/commit.rs", &inline).is_empty(), "{text}");
        }
        assert!(found("journal/src/commit.rs", "//! Never std::fs.\n").is_empty());
        assert_eq!(
            found("journal/src/commit.rs", "\nuse std::fs;"),
            ["journal/src/commit.rs:2: std::fs outside journal/src/io/"]
        );
    }

    #[test]
    fn unsafe_is_for_the_storage_layer_even_in_tests() {
        let text = "#[cfg(test)]\nmod tests { fn f() { unsafe {} } }\n";
        assert_eq!(found("daemon/src/x.rs", text), ["daemon/src/x.rs:2: unsafe outside journal/src/io/"]);
        assert!(found("journal/src/io/x.rs", text).is_empty());
        assert!(found("shm/src/mapped.rs", text).is_empty());
        assert!(found("client-sdk/c/src/pointers.rs", text).is_empty());
        assert!(found("daemon/src/x.rs", "// unsafe\nlet s = \"unsafe to retry\"; #![forbid(unsafe_code)]").is_empty());
    }

    #[test]
    fn mappings_are_for_rings_alone() {
        let text = format!("let x = Mm{}::open();", "ap");
        assert_eq!(found("journal/src/io/x.rs", &text).len(), 1);
        assert_eq!(found("cli/src/x.rs", &text).len(), 1);
        assert!(found("shm/src/mapped.rs", &text).is_empty());
    }

    #[test]
    fn clocks_are_read_in_one_file() {
        let text = "let now = Instant::now();";
        assert_eq!(
            found("sim/src/disk.rs", text),
            [
                "sim/src/disk.rs:1: Instant::now outside clock.rs: time is passed in, the same seed must give the same bytes"
            ]
        );
        assert_eq!(found("journal/src/io/blocking.rs", text).len(), 1);
        assert!(found("journal/src/clock.rs", text).is_empty());
        assert!(found("daemon/src/life/run.rs", text).is_empty());
        assert!(found("sim/tests/seeds.rs", text).is_empty());
    }
}
