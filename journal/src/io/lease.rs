//! Proof that nobody else has a file open: a write lease.
//!
//! Invariants: a lease is given only while no other open file leads to the inode, mappings included, in any process.
//! While it is held, another opener of the file waits, and a signal notifies the holder. That signal is set to one that
//! is ignored by default, because the usual one (SIGIO) ends the process.
#![allow(unsafe_code)] // fcntl commands that no wrapper has

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `F_SETSIG`, which the crate does not name on every libc.
const F_SETSIG: libc::c_int = 10;

/// Result of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// No other open file.
    Held,
    /// Another open file exists.
    Busy,
    /// This file system gives none, or not to this user.
    Unknown,
}

/// Takes a write lease. It ends with the descriptor.
pub(super) fn take(fd: &OwnedFd) -> io::Result<Lease> {
    control(fd, F_SETSIG, libc::SIGURG)?;
    match control(fd, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(_) => Ok(Lease::Held),
        Err(e) => match e.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY) => Ok(Lease::Busy),
            Some(libc::EINVAL | libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::ENOLCK) => Ok(Lease::Unknown),
            _ => Err(e),
        },
    }
}

/// Returns true if the lease is whole: no open of the file was tried since it was taken.
pub(super) fn is_whole(fd: &OwnedFd) -> io::Result<bool> {
    Ok(control(fd, libc::F_GETLEASE, 0)? == libc::F_WRLCK)
}

fn control(fd: &OwnedFd, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: these commands take an integer and touch no memory of ours; the descriptor is open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::time::Duration;

    use super::*;

    #[test]
    fn another_descriptor_is_in_the_way_and_one_that_comes_later_is_noticed() {
        let dir = crate::io::real_folder();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let open = || -> OwnedFd { OpenOptions::new().read(true).write(true).open(&path).unwrap().into() };
        let fd = open();
        let reader = File::open(&path).unwrap();
        assert_eq!(take(&fd).unwrap(), Lease::Busy, "a reader of this very process counts");
        drop(reader);
        assert_eq!(take(&fd).unwrap(), Lease::Held);
        assert!(is_whole(&fd).unwrap());
        // An opener now waits for the end of the lease; the signal must not end this process.
        let late = std::thread::spawn({
            let path = path.clone();
            move || File::open(path).map(drop)
        });
        let mut polls_left = 2000;
        while is_whole(&fd).unwrap() {
            polls_left -= 1;
            assert!(polls_left > 0, "the open is not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(fd);
        late.join().unwrap().unwrap();
    }
}
