//! Shared-memory rings: a program hands an append to the daemon by writing it to memory that both have mapped.
//!
//! One ring belongs to one producer. The daemon makes it ([`Drain::create`]) and gives three descriptors to the client
//! ([`Producer::attach`]). Bytes in, bytes out: what a payload means is not known here.
//!
//! Invariants:
//! 1. **`posted`**: when [`Producer::push`] has returned, the append survives the death of both ends, in any order, for
//!    as long as some process holds the ring's descriptor. It is taken exactly as it was pushed.
//! 2. **No shared fault.** A writer that dies, or is stopped, at any instruction costs its own append at most.
//! 3. **Nothing is believed** by the daemon's end: [`Drain`] stays whole whatever the client does to the ring.
//! 4. **Order**: each ring's appends in the order of reservation; between rings, what ended before another began has
//!    the smaller time.
//! 5. **No system call** per append while the daemon is awake.
//! 6. **Space is given back only on request**, and a new daemon finds what was not.
//!
//! ```text
//!  client: reserve ─▶ fill ─▶ commit      daemon: peek ─▶ take ─▶ … written … ─▶ release
//!            head      data     slot                slot    data                 tail
//!            ▲                                                                    │
//!            └────────────────────────────── space ◀──────────────────────────────┘
//! ```
//! Where it lies: `layout/`. The steps and why they hold: `client/writer.rs`, `daemon/reader.rs`. A pass over all rings, sleeping,
//! restarts: [`drain`].

#[cfg(not(target_os = "linux"))]
compile_error!("clad runs on Linux: it needs sealed memory files, eventfd and futex as Linux has them");

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("the words of a ring are 64 bits and little-endian, as the machine has them");
#[cfg(all(feature = "stop-points", not(debug_assertions)))]
compile_error!("the feature stop-points is for tests: a release must not have it");

mod checksum;
mod client;
pub mod clock;
mod daemon;
mod error;
mod layout;
mod mapped;
mod memory;
mod os;
#[cfg(feature = "stop-points")]
pub mod stop;
mod wake;

#[cfg(test)]
mod tests;

pub use client::{Look, Producer};
pub use daemon::{
    ClientFds, Drain, Entry, PEEK_SLOTS_MAX, Peek, StallBudget, StallLimits, Stored, TimestampSource, Usage, Watch,
    drain, inherited,
};
pub use error::{Corrupt, NotAdopted, OpenError, PushError, ShapeError, WaitError};
pub use layout::completion_page::{Answer, Level, Watermarks};
pub use layout::entry::TRAILER;
pub use layout::{ABANDONED_REGIONS_MAX, Shape, VERSION};
pub use mapped::ForkMark;
