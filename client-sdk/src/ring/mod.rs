//! A ring of shared memory: appends go to the daemon without a system call, in the caller's thread.
//!
//! ```text
//! submit ─▶ RingHandle::post ─▶ ring ─▶ (the daemon) ─▶ board ─▶ RingHandle::pump ─▶ tickets
//! ```
//! What must hold:
//! - Nothing of the caller's runs between taking space in the ring and committing it; no lock is held meanwhile, so a
//!   thread that is stopped there holds up no other.
//! - An append of level `posted` has its receipt when it is committed. Others wait on the board: whoever polls a ticket
//!   looks there himself; a thread of the port sleeps on the board's futex only while somebody waits.
//! - Nobody waits unseen: a ticket may be polled once and never again, and that while its append is not in the ring yet
//!   or the ring is just being exchanged. So the thread is wanted by whoever polls and finds a ring, and by the task for
//!   whatever it posts, and for whatever waits in a ring when it is shown to all.
//! - A submit makes no system call, but one where the daemon sleeps, and what the allocator asks for. What it does: the
//!   record is encoded into a buffer that is used again (the one copy), its checksum is taken behind the clock's read,
//!   which costs nothing there, it is copied into the ring with a second checksum over the entry, and where an answer is due an entry is made in a row ([`completions`]). Its permit is
//!   free at once: the ring's own space bounds what is in it. What had to wait for room has a permit, and a channel for
//!   its ticket, until it is answered.
//! - What is longer than a quarter of the ring is refused where it is encoded or, encoded before the ring was known, by its
//!   ticket, with the limit; nothing is cut, and nothing goes another way, where it would have another order.
//! - A child of `fork` is told so by every submit.
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
pub(crate) use handle::{Posted, Pushed, Pushing, RingHandle, Unsettled};
pub(crate) use ticket::RingTicket;
