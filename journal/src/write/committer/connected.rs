//! Sessions of producers.

/// The sessions of a producer. It may have stored nothing yet, and be in no table: then its owner is known from here.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) owner: u64,
    /// The owner whose share it counts in.
    pub(super) counted: u64,
    pub(super) sessions: usize,
    /// The highest epoch of the sessions.
    pub(super) epoch: u32,
}
