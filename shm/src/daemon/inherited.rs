//! Descriptors that a service manager had stored for this process (`LISTEN_FDS`, sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;

static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Takes those whose name starts with `prefix`, once in the life of the process; they are closed on exec. The others
/// are left to the code that takes sockets.
///
/// To be called before anything else opens a descriptor: the numbers are believed.
///
/// # Errors
/// When it was called before.
pub fn claim(prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
    if CLAIMED.swap(true, Ordering::SeqCst) {
        return Err(io::Error::other("the stored descriptors were taken before"));
    }
    let variable = |name| std::env::var(name).ok();
    let numbers = numbers(variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"), prefix);
    let mut taken = Vec::new();
    for (name, number) in numbers {
        // SAFETY: the service manager opened it for this process (LISTEN_PID) and nothing took it. This function hands
        // each out once, and the code that takes the others goes by their names.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        taken.push((name, fd));
    }
    Ok(taken)
}

/// True if the service manager has handed any of that name to this process, taken or not.
#[must_use]
pub fn has(prefix: &str) -> bool {
    let variable = |name| std::env::var(name).ok();
    !numbers(variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"), prefix).is_empty()
}

/// Which numbers have such a name.
fn numbers(pid: Option<String>, count: Option<String>, names: Option<String>, prefix: &str) -> Vec<(String, RawFd)> {
    let ours = pid.and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    let count = count.and_then(|count| count.parse::<u16>().ok()).filter(|_| ours).unwrap_or(0);
    let names = names.unwrap_or_default();
    let named = names.split(':').take(count.into()).zip(FIRST..);
    named.filter(|(name, _)| name.starts_with(prefix)).map(|(name, number)| (name.to_owned(), number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ours_and_only_of_that_name() {
        let own = || Some(std::process::id().to_string());
        let text = |text: &str| Some(text.to_owned());
        let names = || text("clad.socket:ring-a:clad.socket:ring-b");
        let want = vec![("ring-a".to_owned(), 4), ("ring-b".to_owned(), 6)];
        assert_eq!(numbers(own(), text("4"), names(), "ring-"), want);
        assert_eq!(numbers(own(), text("3"), names(), "ring-"), want[..1], "no more than there are");
        assert_eq!(numbers(text("1"), text("4"), names(), "ring-"), [], "another process's");
        assert_eq!(numbers(None, text("4"), names(), "ring-"), []);
        assert_eq!(numbers(own(), None, names(), "ring-"), []);
        assert_eq!(numbers(own(), text("4"), None, "ring-"), []);
    }
}
