//! The kernel's report on the synchronisation of the wall clock.
#![allow(unsafe_code)] // a system call that no wrapper has

/// Asks, and changes nothing. No answer from the kernel (a seccomp filter) counts as not synchronised.
pub(crate) fn is_synchronised() -> bool {
    // SAFETY: all zeroes are a valid `timex`, whose fields are numbers.
    let mut asked: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: it is valid for a write, and `modes` is 0: nothing is set.
    let state = unsafe { libc::adjtimex(&raw mut asked) };
    state >= 0 && state != libc::TIME_ERROR && asked.status & libc::STA_UNSYNC == 0
}
