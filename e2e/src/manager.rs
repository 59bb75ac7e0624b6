//! A service manager played by hand: the notifications of a daemon, and how often its watchdog hears.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::TEST_TIMEOUT;
use crate::tool::Running;

/// Where a daemon's words to its manager arrive.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    /// With a socket of its own.
    ///
    /// # Panics
    /// When there can be none.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes a socket: no value is a default")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        Self { socket, folder }
    }

    /// Starts a program that notifies it of its state.
    pub fn start(&self, command: &mut Command) -> Running {
        Running::start(command.env("NOTIFY_SOCKET", self.folder.path().join("notify")))
    }

    /// The next message.
    ///
    /// # Panics
    /// When none comes.
    pub fn recv(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("the daemon says something");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    }

    /// Takes everything that has come.
    ///
    /// # Panics
    /// When the socket cannot be set.
    pub fn forget(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        self.socket.set_nonblocking(true).expect("set");
        let mut all = Vec::new();
        while let Ok(length) = self.socket.recv(&mut bytes) {
            all.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        self.socket.set_nonblocking(false).expect("set");
        all
    }

    /// Everything up to the message that holds this text.
    ///
    /// # Panics
    /// When it never comes.
    pub fn recv_until(&self, text: &str) -> Vec<String> {
        let mut all = vec![self.recv()];
        while !all.last().is_some_and(|last| last.contains(text)) {
            all.push(self.recv());
        }
        all
    }

    /// Number of notifications to the watchdog in so long a time, from now on.
    ///
    /// # Panics
    /// When that is too long.
    pub fn barks_within(&self, time: Duration) -> usize {
        self.barks_until(|since| since >= time)
    }

    /// Number of notifications to the watchdog until something holds; that is asked after each one and every few moments.
    ///
    /// # Panics
    /// When it never does.
    pub fn barks_until(&self, mut holds: impl FnMut(Duration) -> bool) -> usize {
        let began = Instant::now();
        // What was said before is not counted.
        self.socket.set_nonblocking(true).expect("a socket that does not wait");
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).expect("a socket that waits");
        self.socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a bound");
        let (mut barks, mut bytes) = (0, [0; 4096]);
        while !holds(began.elapsed()) {
            assert!(began.elapsed() < TEST_TIMEOUT, "it never came, and the watchdog was notified {barks} times");
            if let Ok(length) = self.socket.recv(&mut bytes) {
                barks += usize::from(bytes[..length].starts_with(b"WATCHDOG=1"));
            }
        }
        self.socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        barks
    }
}
