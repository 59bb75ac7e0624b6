//! `clad reload PID`: sends HUP to a daemon, waits until it has taken or refused the new configuration, and says which.
//!
//! It is the unit's `ExecReload=`: `systemctl reload` is to return when the reload is over and to fail where it was
//! refused. The service manager's own way for that, `Type=notify-reload`, came with systemd 253; a bare `kill -HUP`
//! returns before anything has happened.
//!
//! A daemon that serves leaves a file in its runtime folder, with its process and the outcome of its last reload.
//! Invariants:
//! - HUP ends most programs: it is sent to the very process that left the file (pid and start time, held by a pidfd
//!   meanwhile), and to no other.
//! - The reported outcome is that of a reload that began after the signal. The file is replaced whole; a daemon that
//!   ends meanwhile is no success; no wait is longer than [`RELOAD_TIMEOUT`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit::Exit;
use crate::ingest::start_time;

/// File in the runtime folder: its owner, the number of its reloads so far, the outcome of the last one, and its words.
const FILE: &str = "reload";
/// Longest that the daemon may take: a reload reads files and waits for no disk.
pub(crate) const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
const RELOAD_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Outcome of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The new configuration is in force.
    Taken(String),
    /// The old one stays in force.
    Refused(String),
}

/// A process for ever: the kernel reuses a pid, but not the two together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    start: u64,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start: start_time(pid)? })
    }
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    daemon: Process,
    count: u64,
    /// `None` before the first reload.
    last: Option<Outcome>,
}

impl Left {
    fn encode(&self) -> String {
        let (word, text) = match &self.last {
            None => ("serves", ""),
            Some(Outcome::Taken(text)) => ("taken", text.as_str()),
            Some(Outcome::Refused(text)) => ("refused", text.as_str()),
        };
        format!("{} {} {} {word}\n{text}\n", self.daemon.pid, self.daemon.start, self.count)
    }

    fn decode(text: &str) -> Option<Self> {
        let (head, text) = text.split_once('\n')?;
        let mut words = head.split(' ');
        let daemon = Process { pid: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? };
        let (count, text) = (words.next()?.parse().ok()?, text.trim_end().to_owned());
        let last = match words.next()? {
            "serves" => None,
            "taken" => Some(Outcome::Taken(text)),
            "refused" => Some(Outcome::Refused(text)),
            _ => return None,
        };
        Some(Self { daemon, count, last })
    }

    fn read(path: &Path) -> io::Result<Self> {
        Self::decode(&std::fs::read_to_string(path)?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it was left by a clad of another version"))
    }
}

/// Place where the daemon leaves the outcomes; none without a runtime folder.
#[derive(Debug)]
pub(crate) struct Outcomes {
    path: Option<PathBuf>,
    left: Option<Left>,
}

impl Outcomes {
    /// Outcomes in this runtime folder (the first, where several are listed), which says from now on that this process
    /// takes HUP. The process has the lock of its log, so that no other daemon uses the folder.
    pub(crate) fn of(runtime: Option<&OsStr>) -> Self {
        let daemon = Process::of(std::process::id());
        let outcomes = Self { path: file(runtime), left: daemon.map(|daemon| Left { daemon, count: 0, last: None }) };
        outcomes.write();
        outcomes
    }

    /// Leaves the outcome of one more reload.
    pub(crate) fn leave(&mut self, outcome: Outcome) {
        if let Some(left) = &mut self.left {
            left.count += 1;
            left.last = Some(outcome);
        }
        self.write();
    }

    /// A file that nobody can read is no reason to fail: the outcome is in the messages too.
    fn write(&self) {
        let (Some(path), Some(left)) = (&self.path, &self.left) else { return };
        let new = path.with_extension("new");
        let written = std::fs::write(&new, left.encode());
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, path)) {
            tracing::warn!(%error, path = %path.display(), "the outcome of reloads could not be left for `clad reload`");
        }
    }
}

fn file(runtime: Option<&OsStr>) -> Option<PathBuf> {
    let first = runtime?.as_bytes().split(|byte| *byte == b':').next()?;
    (!first.is_empty()).then(|| Path::new(OsStr::from_bytes(first)).join(FILE))
}

/// Runs the command. Returns what to print, and the exit code: 0 taken, 78 refused, 1 where no outcome was reported.
#[must_use]
pub fn reload(pid: u32, runtime: Option<&OsStr>) -> (String, Exit) {
    match ask(pid, runtime, RELOAD_TIMEOUT) {
        Ok(Outcome::Taken(text)) => (format!("reloaded: {text}"), Exit::Done),
        Ok(Outcome::Refused(text)) => (format!("the reload was refused: {text}"), Exit::Config),
        Err(error) => (format!("reload of process {pid}: {error}"), Exit::Failed),
    }
}

fn ask(pid: u32, runtime: Option<&OsStr>, timeout: Duration) -> io::Result<Outcome> {
    let (handle, process) = open(pid)?;
    let environment = || runtime_of(pid);
    let path = runtime.map(OsStr::to_owned).or_else(environment).and_then(|runtime| file(Some(&runtime)));
    let path = path.ok_or_else(|| {
        io::Error::other(
            "nothing was sent: $RUNTIME_DIRECTORY is set neither here nor there. Without a service manager, send HUP and \
             look at the messages",
        )
    })?;
    let before = Left::read(&path).and_then(|left| match left.daemon == process {
        true => Ok(left.count),
        false => Err(io::Error::other(format!("it was left by process {}", left.daemon.pid))),
    });
    let before = before.map_err(|error| {
        let text = format!("nothing was sent: this is not a serving clad, by {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    })?;
    pidfd_send_signal(&handle, Signal::HUP)?;
    let until = Instant::now() + timeout;
    loop {
        let over = ended(&handle)?;
        match Left::read(&path) {
            Ok(Left { daemon, count, last: Some(outcome) }) if daemon == process && count > before => {
                return Ok(outcome);
            }
            _ if over => return Err(io::Error::other("it ended before it had reloaded")),
            _ if Instant::now() >= until => {
                let text = format!("it got the signal, and reported no result within {timeout:?}: see its messages");
                return Err(io::Error::other(text));
            }
            _ => {}
        }
    }
}

/// Opens the process: as long as the handle is there no other process is meant by it.
fn open(pid: u32) -> io::Result<(OwnedFd, Process)> {
    let gone = || io::Error::other("there is no such process");
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let handle = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| match error {
        rustix::io::Errno::SRCH => gone(),
        error => error.into(),
    })?;
    // Read while the handle is there; a process that has ended meanwhile gets no signal through it.
    let process = Process::of(pid).ok_or_else(gone)?;
    Ok((handle, process))
}

/// Returns true if the process has ended; waits a moment for that.
fn ended(handle: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    match poll(&mut polled, Some(&RELOAD_POLL_INTERVAL)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The runtime folder that the process was started with, where we may look: its own user and root may.
fn runtime_of(pid: u32) -> Option<OsString> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|line| line.strip_prefix(b"RUNTIME_DIRECTORY="))?;
    Some(OsString::from_vec(value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that HUP ends.
    struct Other(std::process::Child);

    impl Other {
        fn start(runtime: Option<&Path>) -> Self {
            // The caller of the tests may ignore HUP (nohup does), and the tests inherit that.
            let mut command = std::process::Command::new("env");
            command.args(["--default-signal=HUP", "sleep", "1000"]).env_remove("RUNTIME_DIRECTORY");
            command.envs(runtime.map(|folder| ("RUNTIME_DIRECTORY", folder)));
            let other = Self(command.spawn().unwrap());
            // HUP has its default only once `env` has become `sleep`, and the kernel shows the environment from then on.
            while !std::fs::read(format!("/proc/{}/cmdline", other.0.id())).unwrap().starts_with(b"sleep\0") {
                std::thread::yield_now();
            }
            other
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn an_outcome_is_left_and_read_whole_and_numbers_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let list = format!("{}:/nowhere", folder.path().display());
        let mut outcomes = Outcomes::of(Some(OsStr::new(&list)));
        let read = || Left::read(&folder.path().join(FILE)).unwrap();
        let first = read();
        assert_eq!((Some(first.daemon), first.count, first.last), (Process::of(std::process::id()), 0, None));
        let refused = Outcome::Refused("a restart is needed for x\nand for y".to_owned());
        outcomes.leave(refused.clone());
        assert_eq!((read().count, read().last), (1, Some(refused)));
        let taken = Outcome::Taken("2 keys changed: a, b".to_owned());
        outcomes.leave(taken.clone());
        assert_eq!((read().count, read().last), (2, Some(taken)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        Outcomes::of(None).leave(Outcome::Taken(String::new()));
    }

    #[test]
    fn no_process_that_is_no_daemon_gets_a_signal() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut other = Other::start(Some(folder.path()));
        let pid = other.0.id();
        let mut refuses = |runtime: Option<&Path>, word: &str| {
            let (text, exit) = reload(pid, runtime.map(Path::as_os_str));
            assert_eq!(exit, Exit::Failed, "{text}");
            assert!(text.contains("nothing was sent") && text.contains(word), "{text}");
            assert!(other.0.try_wait().unwrap().is_none(), "it was ended: {text}");
        };
        refuses(Some(folder.path()), "No such file");
        std::fs::write(&file, "7\ntaken\n2 changes\n").unwrap();
        refuses(Some(folder.path()), "another version");
        // Of this very process, of another life of that pid, and found by what the process was started with.
        drop(Outcomes::of(Some(folder.path().as_os_str())));
        refuses(Some(folder.path()), &format!("left by process {}", std::process::id()));
        refuses(None, &format!("left by process {}", std::process::id()));
        let daemon = Process { start: start_time(pid).unwrap() + 1, pid };
        std::fs::write(&file, Left { daemon, count: 0, last: None }.encode()).unwrap();
        refuses(Some(folder.path()), &format!("left by process {pid}"));
    }

    #[test]
    fn nobody_to_ask_and_nowhere_to_read_are_failures() {
        let folder = tempfile::tempdir().unwrap();
        let other = Other::start(None);
        let (text, exit) = reload(other.0.id(), None);
        assert_eq!(exit, Exit::Failed);
        assert!(text.contains("$RUNTIME_DIRECTORY"), "{text}");
        // A process that has ended and was waited for is not there; 0 would be everybody in our process group.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        for pid in [pid, 0, u32::MAX] {
            let (text, exit) = reload(pid, Some(folder.path().as_os_str()));
            assert!(exit == Exit::Failed && text.contains("no such process"), "{text}");
        }
    }

    #[test]
    fn who_ends_or_says_nothing_is_no_success() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Some(folder.path().as_os_str());
        let left = |pid: u32| Left { daemon: Process::of(pid).unwrap(), count: 3, last: None };
        // It says that it is a daemon, and HUP ends it.
        let other = Other::start(None);
        std::fs::write(folder.path().join(FILE), left(other.0.id()).encode()).unwrap();
        let error = ask(other.0.id(), runtime, RELOAD_TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("ended before"), "{error}");
        // It says that it is one, and says no more: a shell that takes HUP without a word.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' HUP; echo .; exec sleep 1000"]).stdout(std::process::Stdio::piped());
        let mut silent = Other(shell.spawn().unwrap());
        let mut dot = [0; 1];
        io::Read::read_exact(silent.0.stdout.as_mut().unwrap(), &mut dot).unwrap();
        std::fs::write(folder.path().join(FILE), left(silent.0.id()).encode()).unwrap();
        let error = ask(silent.0.id(), runtime, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("within 50ms"), "{error}");
        assert!(silent.0.try_wait().unwrap().is_none());
    }
}
