//! Files in memory, seals, wake-ups.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::futex;

use crate::error::{OpenError, WaitError};

/// Seals of every file of ours.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A file in memory of `bytes` zeroes, not yet sealed.
pub(crate) fn file(name: &str, bytes: usize) -> Result<OwnedFd, OpenError> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(OpenError::os("make a file in memory"))?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(OpenError::os("size a file in memory"))?;
    Ok(file)
}

/// Seals a ring: its size is fixed.
pub(crate) fn seal_ring(file: impl AsFd) -> Result<(), OpenError> {
    rustix::fs::fcntl_add_seals(file, FIXED).map_err(OpenError::os("seal a ring"))
}

/// Seals a completion page: its size is fixed, and no process gets write access that does not have it already.
pub(crate) fn seal_completion_page(file: impl AsFd) -> Result<(), OpenError> {
    rustix::fs::fcntl_add_seals(file, FIXED | SealFlags::FUTURE_WRITE).map_err(OpenError::os("seal a completion page"))
}

/// The size of a file that can neither shrink nor grow.
pub(crate) fn sealed_size(file: impl AsFd) -> Result<u64, OpenError> {
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| OpenError::Seals)?;
    if !seals.contains(FIXED) {
        return Err(OpenError::Seals);
    }
    let stat = rustix::fs::fstat(file).map_err(OpenError::os("look at a ring"))?;
    Ok(stat.st_size as u64)
}

/// A descriptor that wakes a sleeping drain.
pub(crate) fn waker() -> Result<OwnedFd, OpenError> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(OpenError::os("make an eventfd"))
}

/// Wakes the process that polls the descriptor. A full counter has woken already.
pub(crate) fn wake(waker: impl AsFd) {
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

/// Takes the wake-ups that have come, if any. Never blocks: that the descriptor does not is a flag of what the client
/// holds too, and may clear (`F_SETFL`), so each call says it of itself. An eventfd allows that since Linux 5.8.
pub(crate) fn take_wakes(waker: impl AsFd) {
    let mut count = [0; 8];
    let whole = &mut [IoSliceMut::new(&mut count)];
    let _ = rustix::io::preadv2(waker, whole, u64::MAX, ReadWriteFlags::NOWAIT);
}

/// Waits until the word is not `seen`, a wake-up, a signal, or the deadline; the caller looks which.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, deadline_ns: u64) -> Result<(), WaitError> {
    let left = deadline_ns.saturating_sub(crate::clock::now());
    if left == 0 {
        return Err(WaitError::Deadline);
    }
    let timeout = futex::Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
    match futex::wait(word, futex::Flags::empty(), seen, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(Errno::TIMEDOUT) => Err(WaitError::Deadline),
        Err(error) => Err(WaitError::Os(error)),
    }
}

/// Wakes all threads that wait on the word, in all processes.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
