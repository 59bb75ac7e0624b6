//! What another user does, in a thread of the test.
//!
//! Invariants: the credentials of a thread are its own in Linux, and what it begins inherits them. A Unix socket shows its
//! peer those of the thread that connected it, a TCP socket has those of the thread that made it; both keep them, whoever uses
//! the socket later. The thread ends with the work, so that no other work has its credentials.

use std::panic::resume_unwind;
use std::thread;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Does something as this user, and in the group of the same number.
///
/// # Panics
/// When the test does not run as root, and when the work panics.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user(uid).expect("only root can be somebody else");
            work()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn become_user(uid: u32) -> rustix::io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}
