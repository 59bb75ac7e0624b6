//! The manual pages in `deploy/man` are what the programs' own parsers say.
//!
//! After a change of a command line: `CLAD_UPDATE=1 cargo test -p clad-e2e --test man` makes them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// What no parser knows.
const CLAD_MORE: &str = r#".SH FILES
.TP
\fI/etc/clad/clad.toml\fR, \fI/etc/clad/clad.d/*.toml\fR
The configuration; every key is in the first, commented out.
.TP
\fI/etc/clad/NAME.toml\fR
That of the instance clad@NAME.service.
.TP
\fI/var/lib/clad\fR, \fI/var/lib/clad\-NAME\fR
The logs.
.TP
\fI/run/clad/clad.sock\fR, \fI/run/clad/admin.sock\fR
Sockets for records and for orders.
.TP
\fI/usr/share/doc/clad/OPERATIONS.md\fR
The manual: policies, every key, metrics, alerts, backup, repair, capacity.
.SH SEE ALSO
\fBclactl\fR(1), \fBsystemctl\fR(1), \fBjournalctl\fR(1)
"#;
const CLACTL_MORE: &str = ".SH SEE ALSO\n\\fBclad\\fR(8), \\fI/usr/share/doc/clad/OPERATIONS.md\\fR\n";

/// Pages by the names of their files.
type Pages = BTreeMap<String, String>;

fn add(pages: &mut Pages, command: &Command, section: &str, more: &str) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(pages, sub, section, more);
    }
    let man = Man::new(command.clone()).section(section).manual("clad");
    let mut text = Vec::new();
    man.render(&mut text).expect("written to memory");
    pages.insert(man.get_filename(), String::from_utf8(text).expect("text") + more);
}

fn pages() -> Pages {
    let mut pages = Pages::new();
    // `help` is no page: they are the help.
    let [mut clactl, mut clad] =
        [clactl::command(), clad::cli::Cli::command()].map(|command| command.disable_help_subcommand(true));
    clactl.build();
    clad.build();
    add(&mut pages, &clactl, "1", CLACTL_MORE);
    add(&mut pages, &clad, "8", CLAD_MORE);
    pages
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/man")
}

#[test]
fn the_pages_are_what_the_parsers_say() {
    let pages = pages();
    if std::env::var_os("CLAD_UPDATE").is_some() {
        fs::create_dir_all(folder()).expect("a folder");
        for (name, text) in &pages {
            fs::write(folder().join(name), text).expect("written");
        }
    }
    let found = fs::read_dir(folder()).expect("the pages").map(|entry| {
        let entry = entry.expect("a file");
        (entry.file_name().into_string().expect("a name"), fs::read_to_string(entry.path()).expect("a page"))
    });
    let found: Pages = found.collect();
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, pages.keys().collect::<Vec<_>>());
    for (name, text) in &pages {
        assert!(text.is_ascii(), "{name} has what not every terminal and formatter knows");
        assert!(&found[name] == text, "{name} is not what is made: CLAD_UPDATE=1 cargo test -p clad-e2e --test man");
    }
}

#[test]
fn a_page_has_what_a_reader_looks_for() {
    let pages = pages();
    assert!(pages.len() >= 20 && pages.contains_key("clactl-append.1") && pages.contains_key("clad.8"));
    for (page, words) in [
        ("clad.8", &["\\-\\-config", "FILES", "reload", "78"][..]),
        ("clactl.1", &["clactl\\-query(1)", "CLAD_SERVER", "Exit codes"]),
        ("clactl-query.1", &["\\-\\-since", "\\-\\-server", "SEE ALSO"]),
    ] {
        for word in words {
            assert!(pages[page].contains(word), "{page} has no {word}:\n{}", pages[page]);
        }
    }
}
