//! `clad-relay` against a real daemon: from files, and from systemd's journal. `cargo xtask ci relay` builds it, calls these
//! tests one by one, and nobody else does.
//!
//! Invariants: what a record must be is made from its number alone; a kill comes by how far the log is, not by a time.
//!
//! `CLAD_RELAY` is the program. `CLAD_JOURNALD_PROGRAMS` is the folder with systemd's, unpacked; `CLAD_RELAY_KILLS` and
//! `CLAD_RELAY_ENTRIES` set the kills, and the entries of the journal.

mod backup;
mod bucket;
#[path = "../tls/certs.rs"]
#[expect(dead_code, reason = "the tests of TLS use the rest")]
mod certs;
mod collector;
mod damage;
mod endpoint;
mod files;
mod fleet;
mod forward;
mod gateway;
mod journal;
mod json;
mod kafka;
mod kafka_commits;
mod links;
mod nats;
mod nats_identity;
mod objects;
mod out;
mod outage;
mod query;
mod rotation;
mod speed;
mod tls;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clad_e2e::readback::Stored;
use clad_e2e::tool::Running;
use clad_e2e::{Daemon, Scratch, Setup, TEST_TIMEOUT};

/// A relay of its own: its file, its state, its process.
struct Relay {
    scratch: Scratch,
    child: Option<Child>,
}

/// A daemon whose sockets are the same after each start.
fn daemon() -> Daemon {
    Setup::new().fixed_ports().start()
}

fn number(name: &str) -> u64 {
    let text = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: call `cargo xtask ci relay`"));
    text.parse().expect("a number")
}

impl Relay {
    /// Of a daemon, with the lines of `[from.…]`. In them `FOLDER` is a folder of the relay's.
    fn new(daemon: &Daemon, from: &str) -> Self {
        let relay = Self { scratch: Scratch::new(), child: None };
        std::fs::create_dir(relay.folder()).expect("a folder");
        let from = from.replace("FOLDER", &relay.folder().display().to_string());
        let socket = daemon.socket();
        let text = format!("name = \"test\"\n{from}\n[to.clad]\nserver = \"unix://{}\"\n", socket.display());
        std::fs::write(relay.file(), text).expect("written");
        relay
    }

    fn folder(&self) -> PathBuf {
        self.scratch.data().join("logs")
    }

    fn file(&self) -> PathBuf {
        self.scratch.data().join("relay.toml")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn command(&self, command: &str) -> Command {
        let program = std::env::var("CLAD_RELAY").expect("call `cargo xtask ci relay`");
        let mut relay = Command::new(program);
        relay.arg(command).arg(self.file()).arg("--state").arg(self.scratch.data().join("state"));
        relay.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        relay
    }

    fn start(&mut self) {
        let said = std::fs::OpenOptions::new().create(true).append(true).open(self.said_path()).expect("a file");
        let mut command = self.command("run");
        command.stdout(Stdio::null()).stderr(said);
        self.child = Some(command.spawn().expect("it starts"));
    }

    fn said_path(&self) -> PathBuf {
        self.scratch.data().join("said")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.said_path()).unwrap_or_default()
    }

    fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it as a manager does; true if it ended well.
    fn term(&mut self) -> bool {
        let child = self.child.as_ref().expect("it runs");
        nix::sys::signal::kill(pid(child), nix::sys::signal::Signal::SIGTERM).expect("signalled");
        self.wait()
    }

    fn wait(&mut self) -> bool {
        let mut child = self.child.take().expect("it runs");
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                return status.success();
            }
            if Instant::now() > until {
                let _ = child.kill();
                panic!("it does not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts it again if it has ended, as a manager does.
    fn keep(&mut self) {
        if self.child.as_mut().is_none_or(|child| child.try_wait().expect("a child").is_some()) {
            self.start();
        }
    }

    /// The relay is killed, every other time the daemon; both run again.
    fn or_daemon_is_killed(&mut self, daemon: &mut Daemon, kill: u64) {
        if kill.is_multiple_of(2) {
            self.kill9();
        } else {
            daemon.kill9();
            daemon.restart();
        }
        self.keep();
    }

    /// What a command says.
    fn say(&self, command: &str) -> String {
        let running = Running::start(&mut self.command(command));
        if running.wait_end(TEST_TIMEOUT).is_none() {
            running.kill();
            panic!("`{command}` does not end: {}", running.said());
        }
        running.printed() + &running.said()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("---- what the relay said ----\n{}", self.said());
        }
    }
}

/// Waits until something holds.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid(child: &Child) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

/// Bodies of the records that are no notes of the relay's own.
fn bodies(stored: &[Stored]) -> Vec<String> {
    let bodies = stored.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned());
    bodies.filter(|body| !is_note(body)).collect()
}

fn is_note(body: &str) -> bool {
    body.starts_with("places of ")
        || body.starts_with("this relay begins")
        || body.starts_with("the journal ")
        || body.starts_with('/')
        || body.starts_with("entries were left out")
}

/// Waits until the log has so many records that are no notes: their bodies.
fn wait_for(daemon: &Daemon, relay: &mut Relay, count: usize) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        relay.keep();
        let stored = runtime.block_on(clad_e2e::readback::served(&daemon.address("unix")));
        let bodies = bodies(&stored);
        if bodies.len() >= count {
            return bodies;
        }
        assert!(Instant::now() < until, "{} of {count} are there: {:?}", bodies.len(), bodies.last());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All records in the files of a killed daemon, those of the relay's own too.
fn left_behind(daemon: &mut Daemon) -> Vec<String> {
    daemon.kill9();
    let stored = clad_e2e::readback::files(daemon.dir());
    stored.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect()
}

/// A copy of a log as it was at a clean end.
struct Backup(tempfile::TempDir);

impl Backup {
    /// The daemon ends for it, and runs again.
    fn of(daemon: &mut Daemon) -> Self {
        assert_eq!(daemon.term(), Some(0));
        let folder = tempfile::tempdir().expect("a folder");
        copied(daemon.dir(), &folder.path().join("log"));
        daemon.restart();
        Self(folder)
    }

    /// The daemon's log is the copy again.
    fn is_put_back(&self, daemon: &mut Daemon) {
        assert_eq!(daemon.term(), Some(0));
        std::fs::remove_dir_all(daemon.dir()).expect("removed");
        copied(&self.0.path().join("log"), daemon.dir());
        daemon.restart();
    }
}

fn copied(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(done.success());
}

fn append(path: &Path, text: &str) {
    use std::io::Write;
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
}
