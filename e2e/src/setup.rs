//! How a daemon of a test is set up.
//!
//! Invariants: it reads nothing of the host's configuration; its listeners are on the loopback, on ports that it
//! finds itself, or, where it is to be killed and started again, on fixed ones below those that the kernel gives to
//! clients: else a client that knocks on a dead daemon's port may be given that very port and talk to itself.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use clad_journal::io::device::{DurabilityClass, Obstacle, discover};

use crate::fd_store::FD_STORE_PLACES_DEFAULT;
use crate::tool::Running;
use crate::{Daemon, FdStore, Scratch, TEST_TIMEOUT, binary};

/// How a daemon is to be set up.
#[derive(Debug)]
pub struct Setup {
    scratch: Scratch,
    dir: PathBuf,
    config: PathBuf,
    sets: Vec<(String, String)>,
    arguments: Vec<String>,
    wrap: Vec<String>,
    fd_store: Option<FdStore>,
}

/// How a daemon ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; nothing when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stderr.
    pub said: String,
    /// What it wrote to stdout.
    pub printed: String,
}

impl Ended {
    pub(crate) fn of(process: &Running) -> Self {
        Self { code: process.code(), said: process.said(), printed: process.printed() }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// Small segments, nothing of the host's, listeners on free ports.
    #[must_use]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let dir = scratch.data().join("log");
        Self::over(scratch, dir)
    }

    /// With the log in a given folder.
    #[must_use]
    pub fn in_folder(dir: &Path) -> Self {
        Self::over(Scratch::new(), dir.to_owned())
    }

    fn over(scratch: Scratch, dir: PathBuf) -> Self {
        let config = scratch.data().join("clad.toml");
        std::fs::write(&config, "").expect("an empty configuration");
        let socket = |name: &str| scratch.sockets().join(name).display().to_string();
        let sets = [
            ("ingest.unix.path", socket("clad.sock")),
            ("admin.path", socket("admin.sock")),
            ("journal.dir", dir.display().to_string()),
            ("ingest.tcp.listen", "127.0.0.1:0".to_owned()),
            ("ingest.grpc.listen", "127.0.0.1:0".to_owned()),
            ("metrics.listen", "127.0.0.1:0".to_owned()),
            ("journal.segment_bytes", "4MiB".to_owned()),
            ("limits.max_append_bytes", "2MiB".to_owned()),
            ("journal.max_record_bytes", "2MiB".to_owned()),
            ("journal.reserve_free", "1MiB".to_owned()),
            ("log.format", "text".to_owned()),
        ];
        let sets = sets.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Self { scratch, dir, config, sets, arguments: Vec::new(), wrap: Vec::new(), fd_store: None }
    }

    /// Sets a key, over what it was.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.change(key, value);
        self
    }

    /// Leaves a key to the configuration file, or to its default.
    #[must_use]
    pub fn unset(mut self, key: &str) -> Self {
        self.sets.retain(|(known, _)| known != key);
        self
    }

    /// Ports that stay the same from one start to the next.
    #[must_use]
    pub fn fixed_ports(mut self) -> Self {
        for key in ["ingest.tcp.listen", "ingest.grpc.listen", "metrics.listen"] {
            self = self.set(key, &format!("127.0.0.1:{}", fixed_port()));
        }
        self
    }

    /// Sets a key from the next start on.
    pub(crate) fn change(&mut self, key: &str, value: &str) {
        self.sets.retain(|(known, _)| known != key);
        self.sets.push((key.to_owned(), value.to_owned()));
    }

    /// Another command than `run`, or arguments behind it.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// Another program before `clad`, which runs it.
    #[must_use]
    pub fn under(mut self, program: &[&str]) -> Self {
        self.wrap = program.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// A service manager whose descriptor store outlives each daemon of this setup.
    #[must_use]
    pub fn with_fd_store(self) -> Self {
        self.over_fd_store(FdStore::new(FD_STORE_PLACES_DEFAULT, true))
    }

    /// This service manager.
    #[must_use]
    pub fn over_fd_store(mut self, fd_store: FdStore) -> Self {
        self.fd_store = Some(fd_store);
        self
    }

    /// The service manager that it is started over.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub const fn fd_store(&self) -> &FdStore {
        self.fd_store.as_ref().expect("it was set up with one")
    }

    pub(crate) const fn service_manager(&self) -> Option<&FdStore> {
        self.fd_store.as_ref()
    }

    /// Its data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its configuration file, empty at first.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The call that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut words = self.wrap.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
        words.push(binary("clad").into_os_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        match self.arguments.is_empty() {
            true => command.arg("run"),
            false => command.args(&self.arguments),
        };
        command.arg("--config").arg(&self.config);
        for (key, value) in &self.sets {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        without_surroundings(&mut command);
        // A flag of the test's own goes before it; of a range sync the word says more.
        let of_ranges = self.sets.iter().any(|(_, value)| value == "sync_file_range");
        if !of_ranges && needs_word(&self.dir) {
            command.env("CLAD_JOURNAL__POWER_LOSS_PROTECTED", "true");
        }
        command.current_dir(self.scratch.data());
        command
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it does not get ready.
    #[must_use]
    pub fn start(self) -> Daemon {
        Daemon::of(self)
    }

    /// Starts it and waits until it is ready, or has ended because it does not want to.
    ///
    /// # Errors
    /// How it ended.
    ///
    /// # Panics
    /// When it does neither.
    pub fn try_start(self) -> Result<Daemon, Ended> {
        Daemon::try_of(self)
    }

    /// Starts what is expected to end by itself, and waits for that.
    ///
    /// # Panics
    /// When it goes on.
    #[must_use]
    pub fn run_to_end(&self) -> Ended {
        let process = self.spawn();
        process.wait_end(TEST_TIMEOUT).unwrap_or_else(|| panic!("it runs on:\n{}", process.said()));
        Ended::of(&process)
    }

    pub(crate) fn spawn(&self) -> Running {
        match &self.fd_store {
            Some(fd_store) => fd_store.start(&self.command()),
            None => Running::start(self.command().stdin(Stdio::null())),
        }
    }

    /// The path of its socket for records.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.sockets().join("clad.sock")
    }

    /// The path of its admin socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.scratch.sockets().join("admin.sock")
    }
}

/// Whether `durable` is offered in a folder on the operator's word alone, because its ext4 has no journal, as on some build
/// machines. The power does not fail in tests: they give the word there.
#[must_use]
pub fn needs_word(dir: &Path) -> bool {
    match discover(dir).durability_class(false) {
        DurabilityClass::Written { because } => because.iter().all(|why| matches!(why, Obstacle::NoJournal { .. })),
        DurabilityClass::Durable { .. } => false,
    }
}

/// Variables by which a program knows its service manager, and what that hands over.
const OF_A_SERVICE: [&str; 6] =
    ["NOTIFY_SOCKET", "INVOCATION_ID", "FDSTORE", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Removes the variables by which the surroundings could change a clad.
pub(crate) fn without_surroundings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CLAD_")) {
        command.env_remove(name);
    }
    for name in ["STATE_DIRECTORY", "RUNTIME_DIRECTORY", "WATCHDOG_USEC", "JOURNAL_STREAM"].iter().chain(&OF_A_SERVICE)
    {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
}

/// A port of the loopback that is free, and that the kernel gives to nobody who asks for any.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn fixed_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let low: u16 = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32768);
    let (first, end) = if low > 12000 { (10000, low) } else { (61000, 65000) };
    let start = (std::process::id() as u16).wrapping_mul(37);
    for _ in 0..end - first {
        let port = first + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (end - first);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {first} to {end}");
}
