//! The kernel's word on whether something synchronises the wall clock.
#![allow(unsafe_code)] // a system call that no wrapper has

/// Asks, and changes nothing. A kernel that does not answer (a seccomp filter) has not said that it is.
pub(crate) fn is_synchronised() -> bool {
    // SAFETY: all zeroes are a valid `timex`, whose fields are numbers.
    let mut asked: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: it is valid for a write, and `modes` is 0: nothing is set.
    let state = unsafe { libc::adjtimex(&raw mut asked) };
    state >= 0 && state != libc::TIME_ERROR && asked.status & libc::STA_UNSYNC == 0
}
