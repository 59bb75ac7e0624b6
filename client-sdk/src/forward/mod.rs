//! Forwarding: handing appends of one log on to another, each once.
//!
//! [`RawRecords`] is an append as a daemon gave it to a reader ([`Chunk::raw`](crate::Chunk::raw)); a [`Forwarder`] hands it
//! on under its client's checksum. The log that takes it decides by `previous`, the source offset at which what was forwarded
//! before ends: only what begins there is stored. So a forwarder needs no memory of its own. It asks ([`Forwarder::state`]),
//! goes on there, and after any error it connects and asks again.

mod error;
mod forwarder;
mod raw;

pub use error::ForwardError;
pub use forwarder::{ForwardAs, Forwarded, Forwarder, ForwarderOptions};
pub use raw::RawRecords;
