//! A `clad` of our own.
//!
//! Invariants: it is ready when it says so; what it said stands in the message of a test that fails; it is dead when
//! the test is over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clad_proto::grpc::v1::StatusResponse;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::admin::Admin;
use crate::tool::{OutputStream, Running};
use crate::{Ended, FdStore, Setup, TEST_TIMEOUT};

/// What it prints when it serves.
const READY: &str = "clad is ready";

/// A daemon that runs, or ran.
#[derive(Debug)]
pub struct Daemon {
    // Before its folders, which can be removed only when nobody writes there.
    process: Running,
    setup: Setup,
    listeners: HashMap<String, String>,
}

impl Daemon {
    /// One with this setup, ready.
    pub(crate) fn of(setup: Setup) -> Self {
        Self::try_of(setup).unwrap_or_else(|ended| panic!("the daemon did not get ready:\n{}", ended.said))
    }

    /// One with this setup, ready, or what it said when it ended instead.
    pub(crate) fn try_of(setup: Setup) -> Result<Self, Ended> {
        let process = setup.spawn();
        let mut daemon = Self { setup, process, listeners: HashMap::new() };
        daemon.ready_or_ended().map(|()| daemon)
    }

    fn ready_or_ended(&mut self) -> Result<(), Ended> {
        if self.gets_ready() || self.process.is_running() {
            self.wait_ready();
            return Ok(());
        }
        Err(Ended::of(&self.process))
    }

    /// One with the plainest setup.
    #[must_use]
    pub fn start() -> Self {
        Setup::new().start()
    }

    /// Waits until it says that it is ready: to its service manager, or to who started it by hand. False where it ends, or
    /// does not get there.
    fn gets_ready(&self) -> bool {
        match self.setup.service_manager() {
            Some(fd_store) => fd_store.wait_ready(&self.process),
            None => self.process.wait_for(OutputStream::Stdout, READY, TEST_TIMEOUT),
        }
    }

    fn wait_ready(&mut self) {
        assert!(self.gets_ready(), "the daemon did not get ready:\n{}", self.process.said());
        let status = self.admin().status().unwrap_or_else(|e| panic!("no status: {e}\n{}", self.process.said()));
        self.listeners = status.listeners;
    }

    /// How it was set up.
    #[must_use]
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The service manager that it was started over.
    #[must_use]
    pub const fn fd_store(&self) -> &FdStore {
        self.setup.fd_store()
    }

    /// Its data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.setup.dir()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The socket for records.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.setup.socket()
    }

    /// Where it listens for `tcp`, `grpc` or `metrics`.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn port(&self, what: &str) -> SocketAddr {
        let address = self.listeners.get(what).unwrap_or_else(|| panic!("{what} is not in {:?}", self.listeners));
        address.parse().expect("an address")
    }

    /// The address of a transport, as clients take it: `unix`, `tcp` or `grpc`.
    #[must_use]
    pub fn address(&self, transport: &str) -> String {
        match transport {
            "unix" | "shm" => format!("{transport}://{}", self.socket().display()),
            other => format!("{other}://{}", self.port(other)),
        }
    }

    /// Its admin socket.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::at(&self.setup.admin_socket())
    }

    /// A metric, by its name and labels as the page shows them; 0 where it is not there.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        crate::web::metrics(self.port("metrics")).get(name).copied().unwrap_or_default()
    }

    /// Waits until there are so many rings of shared memory.
    ///
    /// # Panics
    /// When that does not come to be.
    pub fn wait_for_rings(&self, rings: u32) {
        let until = Instant::now() + TEST_TIMEOUT;
        while self.metric("clad_shm_rings") != f64::from(rings) {
            assert!(Instant::now() < until, "{rings} rings were waited for\n{}", self.process.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `Admin.Status`.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn status(&self) -> StatusResponse {
        self.admin().status().unwrap_or_else(|e| panic!("no status: {e}\n{}", self.process.said()))
    }

    /// Sends a signal. After SIGSTOP all its threads have stopped: the kernel stops each at its next entry, and until
    /// then one may still take and answer an append.
    ///
    /// # Panics
    /// When there is nobody to send it to.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("the daemon is there");
        let until = Instant::now() + TEST_TIMEOUT;
        while signal == Signal::SIGSTOP && !self.is_stopped() {
            assert!(Instant::now() < until, "it does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the daemon is there");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with(['T', 't', 'Z', 'X']))
        })
    }

    /// What it has written to stderr so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.process.said()
    }

    /// Waits until it has written a text to stderr.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_said(&self, text: &str) {
        let logged = self.process.wait_for(OutputStream::Stderr, text, TEST_TIMEOUT);
        assert!(logged, "it never said {text:?}:\n{}", self.process.said());
    }

    /// Kills it as nothing can be caught, and waits until it is gone.
    ///
    /// # Panics
    /// When it had ended before.
    pub fn kill9(&mut self) {
        assert!(self.process.is_running(), "it had ended by itself:\n{}", self.process.said());
        self.process.kill();
        assert_eq!(self.process.signal(), Some(Signal::SIGKILL as i32), "{}", self.process.said());
    }

    /// Asks it to stop and waits for its exit code.
    ///
    /// # Panics
    /// When it does not end.
    pub fn term(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait_end()
    }

    /// Waits for its end and gives its exit code.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_end(&mut self) -> Option<i32> {
        self.process.wait_end(TEST_TIMEOUT).unwrap_or_else(|| panic!("it does not stop:\n{}", self.process.said()));
        self.process.code()
    }

    /// Starts it again, with the same setup, and waits until it is ready.
    ///
    /// # Panics
    /// When it still runs, or does not get ready.
    pub fn restart(&mut self) {
        assert!(!self.process.is_running(), "it still runs");
        self.process = self.setup.spawn();
        self.wait_ready();
    }

    /// Starts it again, with the same setup, and waits until it is ready, or has ended because it does not want to.
    ///
    /// # Errors
    /// How it ended.
    ///
    /// # Panics
    /// When it still runs, or does neither.
    pub fn try_restart(&mut self) -> Result<(), Ended> {
        assert!(!self.process.is_running(), "it still runs");
        self.process = self.setup.spawn();
        self.ready_or_ended()
    }

    /// Starts it again and kills it at its first word, when recovery has hardly begun.
    ///
    /// # Panics
    /// When it still runs, or says nothing.
    pub fn start_and_kill9(&mut self) {
        assert!(!self.process.is_running(), "it still runs");
        self.process = self.setup.spawn();
        assert!(self.process.wait_for(OutputStream::Stderr, "\n", TEST_TIMEOUT), "it says nothing");
        self.kill9();
    }

    /// Starts it again with other settings.
    ///
    /// # Panics
    /// As [`Self::restart`].
    pub fn restart_with(&mut self, key: &str, value: &str) {
        self.setup.change(key, value);
        self.restart();
    }

    /// Waits until something holds that no event announces; it is looked at again and again, but not for ever.
    ///
    /// # Panics
    /// When it never holds.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut(&StatusResponse) -> bool) -> StatusResponse {
        let began = Instant::now();
        loop {
            let status = self.status();
            if holds(&status) {
                return status;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came: {status:?}\n{}", self.process.said());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("---- what clad said ----\n{}", self.process.said());
        }
    }
}
