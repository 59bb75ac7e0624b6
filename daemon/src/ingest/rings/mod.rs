//! Rings of shared memory: given out on the Unix socket, drained by one task of the ingest threads, stored over the death
//! of both ends.
//!
//! ```text
//!  client ─ RING ─▶ framed connection ─▶ Rings::give ─▶ FdStore               client: push ─▶ ring
//!         ◀ fds ──                          │                                                │
//!                                           ▼                                                ▼
//!                                    orders ─▶ drain task: cycle over all rings, a run of each in turn
//!                                                   │ Journal::append                 ▲ watermarks
//!                                                   └──────────▶ completion pages ◀──┘ space back when `written`
//! ```
//! Invariants: a ring belongs to one producer of one process. `posted` is offered only where it is stored. It ends with its
//! client's process, or with the last connection that held it ([`RingRef`]). Then it is closed, drained up to where
//! that was, and released when all of it is written, whatever a surviving process writes there. Anything that a client
//! does to its ring costs that client alone.
//!
//! Nothing is promised between what is only `posted` in a ring and what comes by any other way. A producer has one way
//! at a time: its ring is closed and drained to its closing head before its next HELLO, RING or APPEND is taken
//! ([`Rings::meet`]). A FLUSH covers what was reserved in its own ring before it came ([`RingRef::drained`]).
//!
//! After a restart the stored rings are drained again from where space was given back; the journal knows by their
//! sequences what it has. Their clients continue to log meanwhile, and come back to name their ring. A client whose ring
//! the daemon does not have hands it back, and it goes on in the same way ([`hand_back`]).

mod bells;
mod busy;
mod cycle;
mod drainage;
mod give;
mod given;
mod hand_back;
mod handle;
mod hold;
mod in_flight;
mod process;
mod registry;
mod resume;
mod ring;
mod shared;
mod stalled;
mod task;

#[cfg(test)]
mod tests;

pub(crate) use give::Asker;
pub(crate) use given::{Given, borrowed};
pub(crate) use handle::{RingRef, Rings, not_drained};
pub(crate) use shared::Settings;
