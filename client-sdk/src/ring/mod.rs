//! A ring of shared memory: appends go to the daemon without a system call, in the caller's thread.
//!
//! ```text
//! submit ─▶ RingHandle::post ─▶ ring ─▶ (the daemon) ─▶ completion page ─▶ RingHandle::pump ─▶ tickets
//! ```
//! Invariants:
//! - No code of the caller runs between taking space in the ring and committing it. No lock is held meanwhile, so a
//!   thread that is stopped there holds up no other.
//! - An append of level `posted` has its receipt when it is committed. Others wait on the completion page: a poll of a
//!   ticket looks there itself. A thread of the ring handle sleeps on the page's futex only while there is a waiter.
//! - No waiter is unseen: a ticket may be polled once and never again, and that while its append is not in the ring yet
//!   or the ring is just being exchanged. So four callers want the thread. They are every poll that finds a ring, whoever
//!   posts a group, the task for what it posts, and the task for what waits in a ring when it is shown to all.
//! - A submit makes no system call, but one where the daemon sleeps, and those of the allocator. Its steps: the record
//!   is encoded into a buffer that is used again (the one copy). It is copied into the ring with a second checksum over the entry. Where an answer is due an
//!   entry is made in a row ([`completions`]). Its permit is free at once: the ring's own space bounds what is in it.
//!   An append that had to wait for room has a permit, and a channel for its ticket, until it is answered.
//! - An append longer than a quarter of the ring is refused, with the limit, where it is encoded. If it was encoded
//!   before the ring was known, its ticket refuses it. Nothing is cut, and nothing goes another way, where it would
//!   have another order.
//! - In a child of `fork` every submit reports it.
//! - The order of submits is the order in the ring: while anything waits for room, everything queues behind it.

mod answers;
mod attach;
mod completions;
mod handle;
mod ticket;
mod waiting;

#[cfg(test)]
mod completions_tests;
#[cfg(test)]
mod tests;

pub(crate) use attach::{Asked, ask};
pub(crate) use handle::{Posted, Pushing, RingHandle, Unsettled};
pub(crate) use ticket::{Pushed, RingTicket};
