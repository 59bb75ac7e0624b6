//! A stored ring that is not resumed, and the reason.

use std::sync::Arc;

use clad_journal::AppendError;
use clad_shm::OpenError;
use rustix::io::Errno;

use super::registry::RegisteredRing;
use crate::fdstore::StoredRing;
use crate::ingest::Producer;

/// Reason why a stored ring is not resumed.
#[derive(Debug)]
pub(super) enum AttachError {
    /// It is broken: no daemon can ever resume it.
    Broken(OpenError),
    /// The kernel, or another version of the layout.
    Open(OpenError),
    /// The log takes nothing of its producer.
    Session(AppendError),
}

impl AttachError {
    pub(super) fn of(error: OpenError) -> Self {
        match error.is_for_good() {
            true => Self::Broken(error),
            false => Self::Open(error),
        }
    }

    /// Returns true if it may pass by itself, or by what an operator does to this process and the host.
    pub(super) const fn may_pass(&self) -> bool {
        match self {
            Self::Broken(_) | Self::Open(OpenError::Version(_)) => false,
            Self::Open(_) | Self::Session(_) => true,
        }
    }

    /// Remedy that would let the ring resume.
    fn way_out(&self) -> &'static str {
        let number = match self {
            Self::Open(OpenError::Os { error, .. }) => error.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        };
        match (self, number) {
            (_, Some(Errno::MFILE)) => "it needs more open files: raise LimitNOFILE= in the unit (ulimit -n)",
            (_, Some(Errno::NFILE)) => "it needs more open files on this host: raise the sysctl fs.file-max",
            (_, Some(Errno::NOMEM | Errno::NOSPC)) => {
                "it needs more memory: see MemoryMax= in the unit, and the sysctls vm.overcommit_memory and vm.max_map_count"
            }
            (Self::Open(OpenError::Version(_)), _) => "the version of clad that gave it out can resume it",
            (Self::Session(_), _) => {
                "another log is in the folder than when it was given out, or the log has forgotten it"
            }
            _ => "mend that",
        }
    }

    fn cause(&self) -> &dyn std::fmt::Display {
        match self {
            Self::Broken(error) | Self::Open(error) => error,
            Self::Session(error) => error,
        }
    }
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.cause(), self.way_out())
    }
}

/// A stalled ring.
pub(super) struct StalledRing {
    /// Not there while it is tried again.
    pub(super) stored: Option<StoredRing>,
    pub(super) why: AttachError,
    /// Holds its producer's place meanwhile.
    pub(super) registered: Arc<RegisteredRing>,
    /// As long as there is one, the log does not forget which of its records it has.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(super) session: Option<Producer>,
}

impl StalledRing {
    #[cfg(test)]
    pub(super) fn fds(&mut self) -> &mut Vec<std::os::fd::OwnedFd> {
        &mut self.stored.as_mut().expect("it is not tried just now").fds
    }

    #[cfg(test)]
    pub(super) const fn is_tried(&self) -> bool {
        self.stored.is_none()
    }
}
