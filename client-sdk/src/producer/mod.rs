//! The producer: handles outside, one task inside.
//!
//! ```text
//!  handles ──submit──▶ inbox ──drain──▶ task ── session (decides) ── connection ──▶ daemon
//!     ▲                (mutex, wake)                 │
//!     └───────────── tickets, permits ◀──────────────┘
//! ```
//! * `shared`: what handles and task share: the inbox, the budget, the counters.
//! * `overload`: the calls that wait or drop by a rule where there is no room.
//! * `task`: the shell around [`crate::session`]: reads, writes, timers, connects. It decides nothing.
//! * Room is bounded by a semaphore of bytes. Its permits travel inside the append until its receipt, so memory stays
//!   bounded when callers go away.
//! * The order is fixed where the inbox is locked: the first to submit is stored first.

mod batch;
mod builder;
mod call;
mod dial;
mod handle;
#[cfg(feature = "models")]
mod model_socket;
mod options;
mod overload;
mod reservation;
mod ring_task;
mod serve_ring;
mod shared;
mod task;
mod ticket;

pub use batch::Batch;
pub use builder::ProducerBuilder;
pub use call::{Call, Overload};
pub use handle::Producer;
#[cfg(feature = "models")]
pub use model_socket::{SocketTask, socket_client};
pub use reservation::Reservation;
#[cfg(any(test, feature = "models"))]
pub(crate) use shared::Shared;
pub use ticket::Ticket;
#[cfg(feature = "models")]
pub(crate) use {ring_task::RingTask, shared::Life};
