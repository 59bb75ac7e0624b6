//! Checks if this process may set up io_uring, and if not, why.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::process::Resource;

/// Findings about io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uring {
    /// A ring could be set up, and it knows the operations that are needed.
    pub permitted: bool,
    /// The reasons against it, or other obstacles; one sentence each.
    pub notes: Vec<String>,
    /// The kernel's release.
    pub kernel: String,
    /// `kernel.io_uring_disabled`, where the kernel has it: 0 open, 1 for a group, 2 for nobody.
    pub disabled: Option<u32>,
    /// Bytes that this process may lock (`RLIMIT_MEMLOCK`); `None` is no limit. Registered buffers count.
    pub memlock_bytes: Option<u64>,
}

/// Tries to set up a ring.
pub fn uring() -> Uring {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let disabled = disabled.and_then(|text| text.trim().parse().ok());
    let mut found = Uring {
        permitted: false,
        notes: Vec::new(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        disabled,
        memlock_bytes: rustix::process::getrlimit(Resource::Memlock).current,
    };
    match set_up() {
        Ok(missing) if missing.is_empty() => found.permitted = true,
        Ok(missing) => found.notes.push(format!("this kernel's io_uring lacks {}", missing.join(", "))),
        Err(e) => found.notes.push(why(&e, disabled, filtered())),
    }
    found
}

/// The operations that this kernel does not know.
fn set_up() -> io::Result<Vec<&'static str>> {
    let ring = IoUring::new(8)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        (opcode::Write::CODE, "write"),
        (opcode::WriteFixed::CODE, "write from registered buffers"),
        (opcode::Fsync::CODE, "fsync"),
        (opcode::SyncFileRange::CODE, "sync_file_range"),
    ];
    Ok(needed.into_iter().filter(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| name).collect())
}

/// Returns true if a seccomp filter is in force, which is the way that containers refuse it.
fn filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

fn why(error: &io::Error, disabled: Option<u32>, filtered: bool) -> String {
    use rustix::io::Errno;
    let code = error.raw_os_error().unwrap_or(0);
    let is = |errno: Errno| code == errno.raw_os_error();
    match disabled {
        Some(2) => format!("switched off for everybody by sysctl kernel.io_uring_disabled = 2: {error}"),
        Some(1) if is(Errno::PERM) => {
            format!("reserved for a group by sysctl kernel.io_uring_disabled = 1 (see kernel.io_uring_group): {error}")
        }
        _ if is(Errno::NOSYS) && !filtered => format!("this kernel has no io_uring: {error}"),
        _ if filtered && (is(Errno::PERM) || is(Errno::NOSYS) || is(Errno::ACCESS)) => {
            format!("refused by a seccomp filter (a container's default, or SystemCallFilter= of a unit): {error}")
        }
        _ if is(Errno::NOMEM) => format!("not enough memory may be locked (RLIMIT_MEMLOCK): {error}"),
        _ => format!("refused: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why() {
        let of = |code, disabled, filtered| why(&io::Error::from_raw_os_error(code), disabled, filtered);
        assert!(of(1, Some(2), false).contains("io_uring_disabled = 2"));
        assert!(of(1, Some(1), false).contains("io_uring_group"));
        assert!(of(1, Some(0), true).contains("seccomp"));
        assert!(of(38, None, false).contains("no io_uring"));
        assert!(of(38, None, true).contains("seccomp"));
        assert!(of(12, Some(0), false).contains("RLIMIT_MEMLOCK"));
        assert!(of(24, Some(0), false).contains("Too many open files"));
    }
}
