//! Life of a ring's client.
//!
//! Invariant: a client counts as gone only where the kernel says so. Where the kernel cannot be asked (no `pidfd_open`,
//! a filter, no descriptors left, another PID namespace), its ring ends with its connection. After a restart of the
//! daemon it ends when the client has not come back in time.

use std::os::fd::OwnedFd;
use std::sync::Once;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fdstore::Note;

/// State of the process, as far as it is known.
#[derive(Debug)]
pub(super) enum Process {
    /// It has ended; also where another process has its number by now.
    Gone,
    /// Readable when it ends.
    Lives(OwnedFd),
    Unknown,
}

impl Process {
    pub(super) fn of(note: &Note) -> Self {
        match i32::try_from(note.pid).ok().and_then(Pid::from_raw) {
            Some(pid) => {
                Self::judge(pidfd_open(pid, PidfdFlags::empty()), crate::ingest::start_time(note.pid), note.pid_start)
            }
            None => Self::Unknown,
        }
    }

    /// Judges from what the kernel says of the number: a descriptor of the process that has it, and its start time (if
    /// that can be seen). Ours started at `ours` (0: not known).
    fn judge(opened: Result<OwnedFd, Errno>, started: Option<u64>, ours: u64) -> Self {
        let is_another = ours != 0 && started.is_some_and(|started| started != ours);
        match opened {
            _ if is_another => Self::Gone,
            Ok(process) => Self::Lives(process),
            // No process has the number, or a thread has it.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Self::Gone,
            Err(error) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    tracing::warn!(%error, "clients' processes cannot be watched (pidfd_open): rings end with connections");
                });
                Self::Unknown
            }
        }
    }

    /// Descriptor to wait for.
    pub(super) fn watched(self) -> Option<OwnedFd> {
        match self {
            Self::Lives(process) => Some(process),
            Self::Gone | Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Result<OwnedFd, Errno> {
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn a_client_is_gone_only_where_the_kernel_says_so() {
        assert!(matches!(Process::judge(opened(), Some(7), 7), Process::Lives(_)));
        assert!(matches!(Process::judge(opened(), Some(7), 0), Process::Lives(_)), "its start is not known");
        assert!(matches!(Process::judge(opened(), None, 7), Process::Lives(_)), "/proc does not show it");
        assert!(matches!(Process::judge(opened(), Some(8), 7), Process::Gone), "another has its number");
        for gone in [Errno::SRCH, Errno::INVAL, Errno::NOENT] {
            assert!(matches!(Process::judge(Err(gone), None, 7), Process::Gone), "{gone}");
        }
        let cannot_say =
            [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NODEV];
        for error in cannot_say {
            for started in [None, Some(7)] {
                assert!(matches!(Process::judge(Err(error), started, 7), Process::Unknown), "{error}");
            }
            assert!(matches!(Process::judge(Err(error), Some(8), 7), Process::Gone), "{error}: another has its number");
        }
    }

    #[test]
    fn of_real_processes() {
        let of = |pid: u32, pid_start| Process::of(&Note { pid, pid_start, ..Note::default() });
        let own = std::process::id();
        let start = crate::ingest::start_time(own).unwrap();
        assert!(matches!(of(own, start), Process::Lives(_)));
        assert!(matches!(of(own, start + 1), Process::Gone));
        assert!(matches!(of(0, 0), Process::Unknown));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (pid, start) = (child.id(), crate::ingest::start_time(child.id()).unwrap());
        child.wait().unwrap();
        assert!(matches!(of(pid, start), Process::Gone));
    }
}
