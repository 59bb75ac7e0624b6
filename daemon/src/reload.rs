//! `clad reload PID`: sends HUP to a daemon, waits until it has taken or refused the new configuration, and says which.
//!
//! It is the unit's `ExecReload=`: `systemctl reload` is to return when the reload is over and to fail where it was
//! refused. The service manager's own way for that, `Type=notify-reload`, came with systemd 253; a bare `kill -HUP`
//! returns before anything has happened.
//!
//! What must hold: an outcome is told of a reload that was begun after the signal; the file that carries it is replaced
//! whole; a daemon that ends meanwhile is no success.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::exit::Exit;

/// In the runtime folder: the number of reloads so far, how the last one ended, and its words.
const FILE: &str = "reload";
/// Longest that the daemon may take: a reload reads files and waits for no disk, but recovery comes first.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// How a reload ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The new configuration is in force.
    Taken(String),
    /// The old one goes on.
    Refused(String),
}

/// Where the daemon leaves the outcomes; nowhere without a runtime folder.
#[derive(Debug)]
pub(crate) struct Outcomes {
    path: Option<PathBuf>,
    count: u64,
}

impl Outcomes {
    /// In this runtime folder (the first, where several are listed).
    pub(crate) fn of(runtime: Option<&OsStr>) -> Self {
        let mut outcomes = Self { path: file(runtime), count: 0 };
        // One that an earlier daemon left is not ours, and its number may be any.
        let last = outcomes.path.as_deref().and_then(read).map_or(0, |(count, _)| count);
        outcomes.count = last;
        outcomes
    }

    /// Leaves the outcome of one more reload. That nobody can read it is no reason to fail: it is in the messages too.
    pub(crate) fn leave(&mut self, outcome: &Outcome) {
        self.count += 1;
        let Some(path) = &self.path else { return };
        let (word, text) = match outcome {
            Outcome::Taken(text) => ("taken", text),
            Outcome::Refused(text) => ("refused", text),
        };
        let new = path.with_extension("new");
        let written = std::fs::write(&new, format!("{}\n{word}\n{text}\n", self.count));
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, path)) {
            tracing::warn!(%error, path = %path.display(), "the outcome of the reload could not be left");
        }
    }
}

fn file(runtime: Option<&OsStr>) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let first = runtime?.as_bytes().split(|byte| *byte == b':').next()?;
    (!first.is_empty()).then(|| Path::new(OsStr::from_bytes(first)).join(FILE))
}

fn read(path: &Path) -> Option<(u64, Outcome)> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut parts = text.splitn(3, '\n');
    let (count, word, text) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?.trim_end().to_owned());
    match word {
        "taken" => Some((count, Outcome::Taken(text))),
        "refused" => Some((count, Outcome::Refused(text))),
        _ => None,
    }
}

/// The command. The answer is what to print, and the exit code: 0 taken, 78 refused, 1 where nobody told.
#[must_use]
pub fn reload(pid: u32, runtime: Option<&OsStr>) -> (String, Exit) {
    match ask(pid, runtime, PATIENCE) {
        Ok(Outcome::Taken(text)) => (text, Exit::Done),
        Ok(Outcome::Refused(text)) => (text, Exit::Config),
        Err(error) => (format!("reload of process {pid}: {error}"), Exit::Failed),
    }
}

fn ask(pid: u32, runtime: Option<&OsStr>, patience: Duration) -> io::Result<Outcome> {
    let path = file(runtime)
        .ok_or_else(|| io::Error::other("$RUNTIME_DIRECTORY is not set; without a service manager, send HUP"))?;
    let pid = Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?);
    let before = read(&path).map_or(0, |(count, _)| count);
    kill(pid, Signal::SIGHUP)?;
    let until = Instant::now() + patience;
    loop {
        if let Some((count, outcome)) = read(&path)
            && count > before
        {
            return Ok(outcome);
        }
        if kill(pid, None) == Err(Errno::ESRCH) {
            return Err(io::Error::other("it ended before it had reloaded"));
        }
        if Instant::now() >= until {
            return Err(io::Error::other(format!("no outcome within {patience:?}")));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_left_and_read_whole_and_numbers_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let list = format!("{}:/nowhere", folder.path().display());
        let runtime = Some(OsStr::new(&list));
        let mut outcomes = Outcomes::of(runtime);
        let refused = Outcome::Refused("a restart is needed for x\nand for y".to_owned());
        outcomes.leave(&refused);
        assert_eq!(read(&folder.path().join(FILE)), Some((1, refused)));
        Outcomes::of(runtime).leave(&Outcome::Taken("2 changes".to_owned()));
        assert_eq!(read(&folder.path().join(FILE)), Some((2, Outcome::Taken("2 changes".to_owned()))));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        Outcomes::of(None).leave(&Outcome::Taken(String::new()));
    }

    #[test]
    fn nobody_to_ask_and_nowhere_to_read_are_failures() {
        let folder = tempfile::tempdir().unwrap();
        let (text, exit) = reload(std::process::id(), None);
        assert_eq!(exit, Exit::Failed);
        assert!(text.contains("$RUNTIME_DIRECTORY"), "{text}");
        // A process that has ended and was waited for is not there.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(reload(pid, Some(folder.path().as_os_str())).1, Exit::Failed);
    }
}
