//! The daemon's end of a ring: it believes nothing that the other end writes.

pub(crate) mod abandoned_regions;
pub mod drain;
pub mod inherited;
pub(crate) mod reader;
pub(crate) mod tail;
mod watch;

pub use drain::{ClientFds, Drain};
pub use reader::{COMMIT_TIMEOUT_NS, Entry, PEEK_SLOTS_MAX, Peek};
pub use tail::Stored;
pub use watch::{Usage, Watch};
