//! Several operations in flight from one thread: an io_uring, driven by tokio-uring.
//!
//! Invariants:
//! - **One thread, and nothing else on it.** tokio-uring hands operations to the kernel only when its thread parks;
//!   beside a task that keeps the thread busy a write would wait for seconds. So nothing on it blocks, and it sleeps
//!   whenever there is nothing to begin. An operation that ended, [`Ring::wake`], or the time that its [`Source`] named
//!   wakes it. It never polls in a loop; [`Ring::wakes`] counts.
//! - **The kernel owns the memory and file of an operation.** Buffer and file belong to the operation until its
//!   completion was seen, even if its caller is gone.
//! - **The same promises as a blocking call**: a short write continues, zero bytes is an error, an empty write syncs
//!   nothing, and a failure goes through the file's latch. [`Operation`]'s `done` is called exactly once, also when the
//!   thread is gone.
//! - **Bounded**: [`MAX_IN_FLIGHT`] operations in flight, and `INBOX` that wait. Memory of earlier writes is retained
//!   for later ones up to `RING_POOL_BYTES_MAX`.
//!
//! A synced direct write uses `RWF_DSYNC`, each by itself. Through the page cache the kernel makes one such write per
//! file at a time, so there a plain write is made, and an `fdatasync` after it is complete. The same holds where the
//! flag is refused. (The sync is not linked: the kernel does not always take both of a pair at once.)

#[cfg(feature = "models")]
mod model;
mod operation;
mod pool;
mod probe;
mod ring;
mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use operation::{Operation, Ticket};
pub(super) use probe::{Refused, available, set_up};
pub use ring::Ring;
pub(super) use state::Setup;
pub use state::{MAX_IN_FLIGHT, Next, Source};
