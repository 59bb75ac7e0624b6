//! `clactl top` on a terminal (a pseudo-terminal of our own), and where there is none: it shows, it ends when asked to,
//! and the terminal is as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::clactl;
use clad_e2e::{Daemon, TEST_TIMEOUT};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::{append_numbers, ok};

/// What takes the terminal, and what gives it back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// A terminal with somebody who looks at it.
struct Tty {
    ours: File,
    theirs: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tty {
    fn new() -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let (ours, seen) = (File::from(pty.master), Arc::<Mutex<Vec<u8>>>::default());
        let (mut from, into) = (ours.try_clone().expect("a descriptor"), seen.clone());
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                into.lock().expect("no panic").extend(&piece[..read]);
            }
        });
        Self { ours, theirs: pty.slave, seen }
    }

    fn run(&self, command: &mut Command) -> Child {
        let end = || Stdio::from(self.theirs.try_clone().expect("a descriptor"));
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().expect("clactl runs")
    }

    /// Gives it another size, and signals the program that draws on it.
    fn resize(&self, child: &Child, rows: u16, columns: u16) {
        let end = Stdio::from(self.theirs.try_clone().expect("a descriptor"));
        let size = ["rows", &rows.to_string(), "cols", &columns.to_string()].map(str::to_owned);
        assert!(Command::new("stty").args(size).stdin(end).status().expect("stty runs").success());
        kill(Pid::from_raw(child.id() as i32), Signal::SIGWINCH).expect("sent");
    }

    fn type_in(&self, keys: &[u8]) {
        (&self.ours).write_all(keys).expect("typed");
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("no panic")).into_owned()
    }

    fn wait_for(&self, text: &str) {
        self.wait_until(text, |seen| seen.contains(text));
    }

    fn wait_until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        let began = Instant::now();
        while !holds(&self.seen()) {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what:?} never came:\n{}", self.seen().escape_debug());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lines are edited and keys are shown, as a shell wants it.
    fn is_plain(&self) -> bool {
        let flags = tcgetattr(self.theirs.as_fd()).expect("a terminal").local_flags;
        flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }
}

/// What was drawn, without the orders between it, and without spaces: those are gone over, not drawn.
fn visible(seen: &str) -> String {
    let mut pieces = seen.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    let rest = pieces.map(|piece| piece.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, text)| text));
    rest.fold(first, |all, text| all + text).replace(' ', "")
}

fn end(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if began.elapsed() > TEST_TIMEOUT {
            let _ = child.kill();
            panic!("top does not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn top(daemon: &Daemon, more: &[&str]) -> Command {
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    clactl(&[&["top", "--interval", "0.1", "--admin", &admin], more].concat())
}

fn ends_by(what: impl FnOnce(&Tty, &Child)) {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..7);
    let tty = Tty::new();
    assert!(tty.is_plain());
    let mut child = tty.run(&mut top(&daemon, &[]));
    tty.wait_for(ENTER);
    tty.wait_for("taking appends");
    tty.wait_for("attention");
    assert!(!tty.is_plain(), "keys would wait for a line");
    what(&tty, &child);
    assert_eq!(end(&mut child), Some(0), "{}", tty.seen().escape_debug());
    tty.wait_for(LEAVE);
    let seen = tty.seen();
    let left = seen.rfind(LEAVE).expect("left");
    assert!(seen[left..].contains(SHOW_CURSOR) || seen[..left].ends_with(SHOW_CURSOR), "{}", seen.escape_debug());
    assert!(tty.is_plain(), "the terminal is not as it was");
}

#[test]
fn a_key_ends_top_and_the_terminal_is_as_it_was() {
    ends_by(|tty, _| tty.type_in(b"q"));
}

#[test]
fn a_signal_ends_top_and_the_terminal_is_as_it_was() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        ends_by(|_, child| kill(Pid::from_raw(child.id() as i32), signal).expect("sent"));
    }
}

#[test]
fn top_stays_when_the_daemon_goes_and_comes_back() {
    let mut daemon = Daemon::start();
    let tty = Tty::new();
    let mut child = tty.run(&mut top(&daemon, &[]));
    tty.wait_for("taking appends");
    daemon.kill9();
    tty.wait_for("asked again");
    daemon.restart();
    append_numbers(&daemon, 0..123);
    // Only cells that have changed are drawn again, but for a terminal of another size.
    let mut columns = 80;
    tty.wait_until("the new numbers", |seen| {
        columns = if columns == 80 { 100 } else { 80 };
        tty.resize(&child, 24, columns);
        visible(seen).contains("123received,123written,")
    });
    // A key in the very moment of a change of size may be seen with the next key only: mio reports both once, and
    // crossterm looks at one. So a person types again.
    tty.wait_until("the end", |_| {
        tty.type_in(b"\x03");
        child.try_wait().expect("a child").is_some()
    });
    assert_eq!(end(&mut child), Some(0));
    assert!(tty.is_plain());
}

#[test]
fn without_a_terminal_top_writes_pages() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..7);
    let pages = ok(&daemon, &["top", "--interval", "0.1", "-n", "3"]);
    let pages = String::from_utf8(pages).expect("text");
    assert_eq!(pages.matches("7 received, 7 written").count(), 3, "{pages}");
    assert_eq!(pages.matches("attention").count(), 3, "{pages}");
    assert!(!pages.contains('\x1b'), "{}", pages.escape_debug());
}
