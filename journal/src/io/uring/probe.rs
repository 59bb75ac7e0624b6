//! Checks if io_uring is available here: asks the kernel, and tries it.
//!
//! Invariants: only features that were seen to work count. A kernel may refuse the set-up (a sysctl, a seccomp filter,
//! a security module), grant it and refuse to submit, or lack an operation. Each is found here, before a ring is relied
//! on, and named with its remedy. `SIGSYS` from a filter that kills cannot be caught.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, Probe, opcode, types};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::state::SyncStyle;
use crate::io::IoBuf;
use crate::io::engine::{Fallback, FallbackReason, Fallbacks};

/// Operations that the journal's ring needs from the kernel.
const NEEDED: [(u8, &str); 3] =
    [(opcode::Write::CODE, "WRITE"), (opcode::Fsync::CODE, "FSYNC"), (opcode::SyncFileRange::CODE, "SYNC_FILE_RANGE")];
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// The reason why there is no ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) Fallback);

impl Refused {
    /// Reads it from an error of the kernel.
    pub(crate) fn from_error(what: &str, error: &io::Error) -> Self {
        let code = error.raw_os_error().map(Errno::from_raw_os_error);
        let disabled = fs::read_to_string(SYSCTL).ok();
        Self(refusal(what, code, error, disabled.as_deref().map(str::trim)))
    }
}

fn refusal(what: &str, code: Option<Errno>, error: &io::Error, sysctl: Option<&str>) -> Fallback {
    let (reason, remedy) = match (code, sysctl) {
        (Some(Errno::PERM | Errno::ACCESS), Some(value @ ("1" | "2"))) => {
            (FallbackReason::UringDenied, format!("the sysctl kernel.io_uring_disabled is {value}; 0 would permit it"))
        }
        (Some(Errno::PERM | Errno::ACCESS), _) => (
            FallbackReason::UringDenied,
            "a seccomp filter or a security module forbids it; SystemCallFilter=@aio would permit it under systemd"
                .to_owned(),
        ),
        (Some(Errno::NOMEM), _) => (
            FallbackReason::Memlock,
            "too little memory may be locked; a larger LimitMEMLOCK= (ulimit -l) helps".to_owned(),
        ),
        _ => (FallbackReason::UringUnsupported, "a kernel from 5.10 on, built with io_uring, has it".to_owned()),
    };
    Fallback::new(reason, format!("{what}: {error}: threads write instead; {remedy}"))
}

/// Sets up a small ring that knows all operations of the journal's.
///
/// # Errors
/// The refused or missing feature, with its remedy.
pub(in crate::io) fn set_up() -> Result<IoUring, Refused> {
    let ring = IoUring::new(4).map_err(|e| Refused::from_error("io_uring cannot be set up", &e))?;
    let mut probe = Probe::new();
    let answer = ring.submitter().register_probe(&mut probe);
    answer.map_err(|e| Refused::from_error("io_uring does not say what it can", &e))?;
    match NEEDED.iter().find(|(code, _)| !probe.is_supported(*code)) {
        None => Ok(ring),
        Some((_, name)) => {
            let text = format!("io_uring has no {name} here: threads write instead; a newer kernel has it");
            Err(Refused(Fallback::new(FallbackReason::UringUnsupported, text)))
        }
    }
}

/// Tries all operations of the journal's ring, on a file without a name in `dir`, and returns the best way to sync
/// writes there.
///
/// # Errors
/// The refused or missing feature, with its remedy.
pub(crate) fn available(dir: &OwnedFd, direct: bool, block: u32, fallbacks: &Fallbacks) -> Result<SyncStyle, Refused> {
    let refused = |e: io::Error| Refused::from_error("io_uring cannot be used", &e);
    let mut ring = set_up()?;
    let through = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | through;
    // Without files that have no name there is no trial; the writes themselves will show it.
    let Ok(file) = rustix::fs::openat(dir, ".", flags, Mode::from_raw_mode(0o600)) else {
        return Ok(SyncStyle::PerWrite);
    };
    let tried = write_one(&mut ring, &file, block, libc::RWF_DSYNC).map_err(refused)?;
    let (style, done) = match tried {
        _ if !direct => (SyncStyle::Behind, write_one(&mut ring, &file, block, 0)),
        Err(e @ (Errno::OPNOTSUPP | Errno::INVAL)) => {
            fallbacks.add(Fallback::write_sync_refused(&e.into()));
            (SyncStyle::Behind, write_one(&mut ring, &file, block, 0))
        }
        done => (SyncStyle::PerWrite, Ok(done)),
    };
    match done.map_err(refused)? {
        Ok(()) => Ok(style),
        Err(e) => Err(Refused::from_error("a write through io_uring failed", &e.into())),
    }
}

/// One write of zeroes; the outer error is the ring's, the inner one the write's.
#[allow(unsafe_code)] // what is given to the kernel must live until it is done
fn write_one(ring: &mut IoUring, file: &OwnedFd, block: u32, flags: i32) -> io::Result<Result<(), Errno>> {
    let bytes = IoBuf::zeroed(block as usize);
    let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), block).rw_flags(flags).build();
    // SAFETY: buffer and file outlive the operation: this waits for its completion, and where waiting fails for another
    // reason than a signal the buffer is leaked.
    let pushed = unsafe { ring.submission().push(&entry) };
    pushed.map_err(|_| io::Error::other("its queue is full"))?;
    loop {
        match ring.submit_and_wait(1) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                let _leaked = std::mem::ManuallyDrop::new(bytes);
                return Err(e);
            }
            Ok(_) => break,
        }
    }
    let result = ring.completion().next().map_or(0, |done| done.result());
    Ok(match result {
        n if n == block as i32 => Ok(()),
        n if n < 0 => Err(Errno::from_raw_os_error(-n)),
        _ => Err(Errno::IO),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_cause_and_what_helps() {
        let table = [
            (Some(Errno::PERM), Some("2"), FallbackReason::UringDenied, "kernel.io_uring_disabled is 2"),
            (Some(Errno::PERM), Some("0"), FallbackReason::UringDenied, "SystemCallFilter="),
            (Some(Errno::ACCESS), None, FallbackReason::UringDenied, "SystemCallFilter="),
            (Some(Errno::NOMEM), Some("0"), FallbackReason::Memlock, "LimitMEMLOCK="),
            (Some(Errno::NOSYS), None, FallbackReason::UringUnsupported, "5.10"),
            (None, None, FallbackReason::UringUnsupported, "5.10"),
        ];
        for (code, sysctl, reason, says) in table {
            let found = refusal("it", code, &io::Error::other("why"), sysctl);
            assert_eq!(found.reason, reason, "{code:?}");
            assert!(found.text.contains(says), "{code:?}: {}", found.text);
        }
    }
}
