//! The threads of a journal, what they share, and what they carry out.

pub(crate) mod background;
pub(crate) mod deferred;
pub(crate) mod executor;
pub(crate) mod live_threads;
pub(crate) mod presence;
pub(crate) mod shared;
pub(crate) mod waiters;
pub(crate) mod watch;
pub(crate) mod workers;
