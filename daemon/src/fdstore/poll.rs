//! Waits for descriptors, and the errors that say nothing of them.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Returns true if the other end of a pipe or socket is closed everywhere, now or within some time.
pub(super) fn has_hung_up(pipe: impl AsFd, within: Duration) -> io::Result<bool> {
    Ok(wait(pipe, PollFlags::IN, within)?.contains(PollFlags::HUP))
}

/// Waits until a descriptor has one of these, within some time.
pub(super) fn wait(fd: impl AsFd, flags: PollFlags, within: Duration) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(&fd, flags)];
    let within = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&within))?;
    Ok(fds[0].revents())
}

/// Returns true if this process, or the machine, lacks what it takes to be given rings.
pub(super) fn is_want(why: &io::Error) -> bool {
    let errno = why.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
}
