//! The daemon's end of a ring: it believes nothing that the other end writes.

pub(crate) mod abandoned_regions;
pub mod drain;
pub mod inherited;
pub(crate) mod reader;
pub(crate) mod stall_budget;
pub(crate) mod tail;
mod watch;

pub use drain::{ClientFds, Drain};
pub use reader::{Entry, PEEK_SLOTS_MAX, Peek, TimestampSource};
pub use stall_budget::{StallBudget, StallLimits};
pub use tail::Stored;
pub use watch::{Usage, Watch};
