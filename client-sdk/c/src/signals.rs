//! Signals of the program: none of its handlers runs in a thread of this library, and no write of the library ends it.
//!
//! A C program has SIGPIPE at its default, which ends it: Rust's own start, which ignores it, has not run. A socket is
//! written to by `writev`, which raises it, in the thread that writes.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::thread;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, sigset_t};

/// Signals of a fault of the thread itself: blocked, they would end the program without its handler.
const FAULTS: [libc::c_int; 4] = [SIGBUS, SIGFPE, SIGILL, SIGSEGV];

/// The thread's mask as it was; dropped, it is that again.
struct Mask(sigset_t);

impl Mask {
    /// Blocks more signals in this thread.
    fn block(more: &sigset_t) -> Self {
        let mut before = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: both sets are there. It fails only for an unknown first argument.
        unsafe {
            libc::pthread_sigmask(SIG_BLOCK, more, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the set is there.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

fn set(fill: impl FnOnce(*mut sigset_t)) -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the set is there; it is made empty, then `fill` adds to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        fill(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Runs `make` in a thread that takes no signals: neither do the threads that it starts. This thread waits for it, and
/// takes its own meanwhile.
pub(crate) fn without_signals<T: Send>(make: impl FnOnce() -> T + Send) -> io::Result<T> {
    let all = set(|set| {
        // SAFETY: the set is there.
        unsafe { libc::sigfillset(set) };
        for fault in FAULTS {
            // SAFETY: likewise.
            unsafe { libc::sigdelset(set, fault) };
        }
    });
    thread::scope(|scope| {
        let mask = Mask::block(&all);
        let maker = thread::Builder::new().name("clad-connect".to_owned()).spawn_scoped(scope, make)?;
        drop(mask);
        maker.join().map_err(|_| io::Error::other("a thread of libclad has panicked"))
    })
}

/// Runs `call`, whose writes to a closed socket raise no SIGPIPE in the end.
pub(crate) fn without_sigpipe<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the set is there.
    let pipe = set(|set| unsafe {
        libc::sigaddset(set, SIGPIPE);
    });
    let was_pending = is_pending();
    let mask = Mask::block(&pipe);
    let answer = call();
    if !was_pending && is_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are there. It takes the signal, which is blocked.
        unsafe { libc::sigtimedwait(&raw const pipe, null_mut(), &raw const now) };
    }
    drop(mask);
    answer
}

fn is_pending() -> bool {
    // SAFETY: the set is there.
    let pending = set(|set| unsafe {
        libc::sigpending(set);
    });
    // SAFETY: likewise.
    unsafe { libc::sigismember(&raw const pending, SIGPIPE) == 1 }
}
