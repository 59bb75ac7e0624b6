//! A daemon of our own, in a folder that was not there before and is gone afterwards.
//!
//! Invariants: it reads no configuration of the host's and listens on Unix sockets and, where the load goes there, a free
//! port of loopback, so that no measurement ever touches a log that matters; it is asked to stop, waited for, and killed if it does not; its folder goes with it.

use std::env::consts::EXE_SUFFIX;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clad_client::Address;
use clad_journal::io::device::{DurabilityClass, Obstacle, discover};
use clad_proto::frame::Intent;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::process::{Watch, processor_time};
use super::wire::Wire;
use crate::admin::listeners;
use crate::clock;
use crate::context::Context as Process;
use crate::exit::Stop;

/// Longest wait until it answers, and until it has ended.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);
/// The magic number of tmpfs.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Way of the load to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    Unix,
    Tcp,
    Grpc,
    Shm,
}

/// A daemon that runs.
#[derive(Debug)]
pub(super) struct Spawned {
    child: Child,
    unix: Address,
    admin: PathBuf,
    folder: TempDir,
    _sockets: TempDir,
    /// Its memory.
    pub(super) memory: Watch,
}

/// Returns true if what is written to a folder never reaches a disk.
pub(super) fn is_tmpfs(folder: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(folder)?.f_type == TMPFS)
}

/// Returns true if nothing but a missing journal of its file system keeps a folder from `durable`.
fn lacks_only_a_journal(folder: &Path) -> bool {
    match discover(folder).durability_class(false) {
        DurabilityClass::Written { because } => because.iter().all(|why| matches!(why, Obstacle::NoJournal { .. })),
        DurabilityClass::Durable { .. } => false,
    }
}

impl Spawned {
    /// Starts one in a new folder below `parent`; `set` is handed through as `--set`.
    pub(super) fn start(parent: &Path, transports: &[Transport], set: &[String]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("clad-bench-").tempdir_in(parent);
        let folder = folder.with_context(|| format!("a new folder in {}", parent.display()))?;
        // The path of a socket is short by nature, that of the parent need not be.
        let sockets = tempfile::Builder::new().prefix("clad-bench-").tempdir().context("a folder for sockets")?;
        let socket = sockets.path().join("clad.sock");
        let admin = sockets.path().join("admin.sock");
        let config = folder.path().join("clad.toml");
        std::fs::write(&config, "").context("an empty configuration")?;
        let binary = binary()?;
        let mut command = Command::new(&binary);
        command.arg("run").arg("--config").arg(&config);
        let port = |wanted| if transports.contains(&wanted) { "127.0.0.1:0" } else { "" };
        for (key, value) in [
            ("journal.dir", folder.path().join("log").as_os_str()),
            ("ingest.unix.path", socket.as_os_str()),
            ("admin.path", admin.as_os_str()),
            ("ingest.tcp.listen", port(Transport::Tcp).as_ref()),
            ("ingest.grpc.listen", port(Transport::Grpc).as_ref()),
            ("metrics.listen", "".as_ref()),
        ] {
            let mut setting = std::ffi::OsString::from(format!("{key}="));
            setting.push(value);
            command.arg("--set").arg(setting);
        }
        // The log is thrown away, so nobody relies on its names: the cost of a flush is what is measured.
        let by_name = set.iter().any(|setting| setting.contains("sync_file_range"));
        if !by_name && lacks_only_a_journal(parent) {
            command.arg("--set").arg("journal.power_loss_protected=true");
        }
        for setting in set {
            command.arg("--set").arg(setting);
        }
        // Keys in our environment are meant for the host's daemon.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CLAD_")) {
            command.env_remove(name);
        }
        for name in ["NOTIFY_SOCKET", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"] {
            command.env_remove(name);
        }
        let said = File::create(folder.path().join("said")).context("a file for what the daemon says")?;
        // Ctrl-C is for us: the daemon is stopped when its answers are in.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let memory = Watch::start(child.id());
        let unix = Address::unix(socket);
        let mut spawned = Self { child, unix, admin, folder, _sockets: sockets, memory };
        spawned.wait_until_it_answers()?;
        Ok(spawned)
    }

    /// Address of its Unix socket.
    pub(super) fn unix(&self) -> &Address {
        &self.unix
    }

    /// Address of the load by this transport, one of those that it was started with.
    pub(super) fn address(&self, context: &Process, transport: Transport) -> Result<Address, Stop> {
        let scheme = match (&self.unix, transport) {
            (Address::Unix(path), Transport::Shm) => return Ok(Address::shm(path)),
            (unix, Transport::Unix | Transport::Shm) => return Ok(unix.clone()),
            (_, Transport::Tcp) => "tcp",
            (_, Transport::Grpc) => "grpc",
        };
        // The port is one that the kernel chose.
        let listeners = context.block_on(listeners(&Address::unix(&self.admin)))?;
        let listener = listeners.get(scheme).with_context(|| format!("the daemon has no listener {scheme}"))?;
        Ok(format!("{scheme}://{listener}").parse().map_err(anyhow::Error::new)?)
    }

    /// Processor time that it has used.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        processor_time(self.child.id())
    }

    /// A folder on the same file system as its log.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        let deadline = clock::now() + DAEMON_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the daemon ended at once ({status}); its output:\n{}", self.said());
            }
            let answers = Wire::connect(&self.unix, Intent { append: false, read: false });
            // The admin socket comes after that one.
            let answers = answers.and_then(|_| Ok(UnixStream::connect(&self.admin)?));
            match answers {
                Ok(_) => return Ok(()),
                Err(error) if clock::now() > deadline => {
                    return Err(error.context(format!("the daemon does not answer; its output:\n{}", self.said())));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The last lines that the daemon wrote.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n")
    }

    /// Asks it to stop and waits for that; what it said when that went wrong is the error.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(io::Error::from)?;
        let deadline = clock::now() + DAEMON_TIMEOUT;
        while clock::now() < deadline {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the daemon ended with {status}; its output:\n{}", self.said()),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(anyhow!("the daemon did not stop within {DAEMON_TIMEOUT:?}; it was killed"))
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `$CLAD_BIN`, or the `clad` beside this program.
fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("CLAD_BIN").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("where this program is")?;
    let beside = own.with_file_name(format!("clad{EXE_SUFFIX}"));
    if beside.is_file() {
        return Ok(beside);
    }
    bail!("--spawn: no daemon at {}; build it (`cargo build --release -p clad`), or set CLAD_BIN", beside.display())
}
