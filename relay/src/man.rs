//! The manual pages in `relay/man` are what the parser says. After a change of the command line, in `relay/`:
//! `CLAD_UPDATE=1 cargo test man` makes them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// What no parser knows.
const MORE: &str = r#".SH FILES
.TP
\fI/etc/clad/relay.d/NAME.toml\fR
What the relay clad\-relay@NAME.service brings, and to which log.
.TP
\fI/var/lib/clad\-relay\fR
What a relay must know beside the log; where it stands is in the log.
.TP
\fI/usr/share/doc/clad\-relay/SENDERS.md\fR
The manual of what comes in: every key, what is stored, what is promised.
.TP
\fI/usr/share/doc/clad\-relay/FORWARDING.md\fR
The manual of what goes out: to another log, and to OTLP.
.TP
\fI/usr/share/doc/clad\-relay/ARCHIVE.md\fR
The manual of an archive in object storage.
.SH ENVIRONMENT
.TP
STATE_DIRECTORY
The folder where \fB\-\-state\fR is not given; systemd sets it.
.TP
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and others
Keys and region of an archive where its file names none.
.SH EXIT STATUS
0 at the end that was asked for; 1 where the relay cannot go on, or an archive is not right, and says why; 2 for a wrong command line.
.SH SEE ALSO
\fBclad\fR(8), \fBclactl\fR(1), \fBjournalctl\fR(1), \fBlogrotate\fR(8)
"#;

/// Pages by the names of their files.
type Pages = BTreeMap<String, String>;

fn add(pages: &mut Pages, command: &Command) {
    for sub in command.get_subcommands() {
        add(pages, sub);
    }
    let man = Man::new(command.clone()).section("8").manual("clad");
    let mut text = Vec::new();
    man.render(&mut text).expect("written to memory");
    pages.insert(man.get_filename(), String::from_utf8(text).expect("text") + MORE);
}

fn pages() -> Pages {
    let mut pages = Pages::new();
    // `help` is no page: they are the help.
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    add(&mut pages, &command);
    pages
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("man")
}

#[test]
fn the_manual_pages_are_what_the_parser_says() {
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
    assert_eq!(found.keys().collect::<Vec<_>>(), pages.keys().collect::<Vec<_>>());
    for (name, text) in &pages {
        assert!(text.is_ascii(), "{name} has what not every terminal and formatter knows");
        assert!(&found[name] == text, "{name} is not what is made: CLAD_UPDATE=1 cargo test man");
    }
}

#[test]
fn a_page_has_what_a_reader_looks_for() {
    let pages = pages();
    for word in ["clad\\-relay\\-status(8)", "clad\\-relay\\-verify(8)", "FILES", "EXIT STATUS", "relay.d"] {
        assert!(pages["clad-relay.8"].contains(word), "no {word}:\n{}", pages["clad-relay.8"]);
    }
    for word in ["\\-\\-state", "STATE_DIRECTORY", "relay.d/NAME.toml"] {
        assert!(pages["clad-relay-run.8"].contains(word), "no {word}:\n{}", pages["clad-relay-run.8"]);
    }
}
