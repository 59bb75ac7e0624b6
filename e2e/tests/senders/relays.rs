//! `clad-relay` from files and from systemd's journal, as a sender: its program is killed, its connection is cut, and
//! journalctl is killed under it.
//!
//! `CLAD_RELAY` is the program, `CLAD_JOURNALD_PROGRAMS` the folder with systemd's, unpacked.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clad_e2e::{Rng, Scratch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use clad_e2e::proxy::{Place, Proxy};

use crate::check::{Promise, Said, text};

/// Lines that are written at once, at most, and the time between.
const LINES_MAX: u64 = 20;
const LINES_PAUSE: Duration = Duration::from_millis(8);
/// Entries of the journal that are written at once, and the time between: each time is a call of a program.
const ENTRIES: u64 = 150;
const ENTRIES_PAUSE: Duration = Duration::from_millis(120);

const FROM_FILES: &str = "[from.files]\nstart = \"beginning\"\npaths = [\"FOLDER/*.log\"]";

/// Whether a text is a note of a relay's own.
pub(crate) fn is_note(text: &str) -> bool {
    ["places of ", "this relay begins", "the journal ", "entries were left out"]
        .iter()
        .any(|note| text.starts_with(note))
}

/// A relay at work, and who writes what it brings.
pub(crate) struct Relay {
    pub(crate) kind: &'static str,
    scratch: Scratch,
    program: PathBuf,
    child: Child,
    proxy: Proxy,
    stopped: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

impl Relay {
    /// From a file to which lines are appended.
    pub(crate) fn of_files(program: &Path, daemon: &Place, mut rng: Rng) -> Self {
        let mut relay = Self::new("files", FROM_FILES, program, daemon, Rng::new(rng.number()));
        let path = relay.folder().join("a.log");
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
        relay.write(move |written| {
            let end = written + 1 + rng.below(LINES_MAX);
            let lines: String = (written..end).map(|number| text("files.0", number) + "\n").collect();
            // Not always whole lines at a time.
            let half = rng.index(lines.len());
            for part in [&lines[..half], &lines[half..]] {
                file.write_all(part.as_bytes()).expect("written");
            }
            thread::sleep(LINES_PAUSE);
            end
        });
        relay
    }

    /// From a file that has all of its lines.
    pub(crate) fn of_a_file(program: &Path, daemon: &Place, lines: &[u8]) -> Self {
        let relay = Self::new("files", FROM_FILES, program, daemon, Rng::new(0));
        fs::write(relay.folder().join("a.log"), lines).expect("written");
        relay
    }

    /// From a journal that `systemd-journal-remote` writes.
    pub(crate) fn of_the_journal(program: &Path, systemd: &Path, daemon: &Place, rng: Rng) -> Self {
        let from = "[from.journal]\nstart = \"beginning\"\ndirectory = \"FOLDER\"";
        let mut relay = Self::new("journal", from, program, daemon, rng);
        let (source, journal) = (relay.scratch.data().join("source"), relay.folder().join("all.journal"));
        let systemd = systemd.to_owned();
        relay.write(move |written| {
            let entry = |number: u64| {
                let time = 1_700_000_000_000_000 + number;
                let text = text("journal.0", number);
                format!(
                    "__REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={number}\n\
                     _BOOT_ID=000102030405060708090a0b0c0d0e0f\nPRIORITY=6\nSYSLOG_IDENTIFIER=app\nMESSAGE={text}\n\n"
                )
            };
            fs::write(&source, (written..written + ENTRIES).map(entry).collect::<String>()).expect("written");
            let mut remote = Command::new(systemd.join("lib/systemd/systemd-journal-remote"));
            remote
                .env("LD_LIBRARY_PATH", systemd.join("usr/lib/x86_64-linux-gnu"))
                .arg("-o")
                .arg(&journal)
                .arg(&source);
            let output = remote.output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            thread::sleep(ENTRIES_PAUSE);
            written + ENTRIES
        });
        relay
    }

    fn new(kind: &'static str, from: &str, program: &Path, daemon: &Place, rng: Rng) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.data().join("source.d");
        fs::create_dir(&folder).expect("a folder");
        let place = Place::Unix(scratch.sockets().join("proxy.sock"));
        let from = from.replace("FOLDER", &folder.display().to_string());
        let text = format!("name = \"{kind}\"\n{from}\n[to.clad]\nserver = \"{place}\"\n");
        fs::write(scratch.data().join("relay.toml"), text).expect("written");
        let proxy = Proxy::between(&place, daemon.clone(), rng);
        let child = start(program, &scratch);
        let (stopped, written) = (Arc::default(), Arc::default());
        Self { kind, scratch, program: program.to_owned(), child, proxy, stopped, written, writer: None }
    }

    fn folder(&self) -> PathBuf {
        self.scratch.data().join("source.d")
    }

    /// Has a thread write until the relay is stopped.
    fn write(&mut self, mut more: impl FnMut(u64) -> u64 + Send + 'static) {
        let (stopped, written) = (self.stopped.clone(), self.written.clone());
        self.writer = Some(thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                written.store(more(written.load(Ordering::Relaxed)), Ordering::Relaxed);
            }
        }));
    }

    /// Starts it where it has ended by itself, as a manager does.
    pub(crate) fn keep(&mut self) {
        if self.child.try_wait().expect("a child").is_some() {
            self.child = start(&self.program, &self.scratch);
        }
    }

    pub(crate) fn die(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = start(&self.program, &self.scratch);
    }

    /// Ends its connection, and its journalctl.
    pub(crate) fn cut(&self) {
        self.proxy.cut();
        let relay = self.child.id();
        let children = fs::read_to_string(format!("/proc/{relay}/task/{relay}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
    }

    pub(crate) const fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Ends what it brings: the number of that.
    pub(crate) fn stop(&mut self) -> u64 {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            writer.join().expect("the writer ends");
        }
        self.written.load(Ordering::Relaxed)
    }

    /// All of it must be there in the end.
    pub(crate) fn said(&self) -> Said {
        let written = self.written.load(Ordering::Relaxed);
        Said { sent: written, answered: written, ..Said::new(self.kind, 0, Promise::ExactlyOnce) }
    }

    /// Its own words.
    pub(crate) fn words(&self) -> String {
        fs::read_to_string(self.scratch.data().join("said")).unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- what the relay of {} said ----\n{}", self.kind, self.words());
        }
    }
}

fn start(program: &Path, scratch: &Scratch) -> Child {
    let said = OpenOptions::new().create(true).append(true).open(scratch.data().join("said")).expect("a file");
    let mut relay = Command::new(program);
    relay.arg("run").arg(scratch.data().join("relay.toml")).arg("--state").arg(scratch.data().join("state"));
    relay.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    relay.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}
