//! Holder of a log's lock: the process that has the log.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process that has the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockHolder {
    /// `None` for a process in another namespace.
    pub(crate) pid: Option<u32>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Process that has the log's lock, as the kernel lists it: taking the lock to find out could be in the way of a start.
/// `None` where that cannot be known.
pub(crate) fn lock_holder(dir: &Path) -> Option<LockHolder> {
    let lock = std::fs::metadata(dir.join("clad.lock")).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let file = (nix::sys::stat::major(lock.dev()), nix::sys::stat::minor(lock.dev()), lock.ino());
    locks.lines().find_map(|line| holder_in(line, file))
}

/// Of a line `1: FLOCK  ADVISORY  WRITE PID MAJOR:MINOR:INODE 0 EOF`, the numbers of the device in hexadecimal.
fn holder_in(line: &str, file: (u64, u64, u64)) -> Option<LockHolder> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == "FLOCK")?;
    let (pid, place) = (words.nth(2)?, words.next()?);
    let mut numbers = place.split(':');
    let mut device = || u64::from_str_radix(numbers.next()?, 16).ok();
    let (major, minor) = (device()?, device()?);
    let inode: u64 = numbers.next()?.parse().ok()?;
    ((major, minor, inode) == file).then(|| LockHolder { pid: pid.parse().ok().filter(|pid| *pid > 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_folder_is_read_from_the_kernels_list() {
        let file = (8, 0x1a, 12_345);
        let line = "7: FLOCK  ADVISORY  WRITE 4711 08:1a:12345 0 EOF";
        let said = |line: &str| holder_in(line, file).map(|holder| holder.to_string());
        assert_eq!(said(line).as_deref(), Some("pid 4711"));
        assert_eq!(said(&line.replace("4711", "0")).as_deref(), Some("another process"));
        for other in
            [line.replace("12345", "12346"), line.replace("1a", "1b"), line.replace("FLOCK ", "POSIX "), "7:".into()]
        {
            assert_eq!(said(&other), None, "{other}");
        }
    }
}
