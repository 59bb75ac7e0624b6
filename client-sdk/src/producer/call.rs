//! Settings of a call that hands over records, and the rules for a lack of room.

use clad_proto::{AckLevel, Severity};
use std::time::Duration;

/// Rule for a record that finds no room, which is
/// [`max_buffered_bytes`](crate::ProducerBuilder::max_buffered_bytes).
///
/// A record that was sent is never dropped. Over `shm://` the same holds for what is in the ring, which takes none of the room:
/// only what waits for a place in the ring is dropped for newer records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overload {
    /// It is dropped. The call never waits.
    #[default]
    DropNewest,
    /// The calling thread waits for room for at most so long; then it is dropped. In a runtime of one thread nothing
    /// makes room meanwhile, unless the producer runs in another one ([`blocking`](crate::blocking)).
    Wait(Duration),
    /// Appends that were never sent make room for it, oldest first. Their tickets end with
    /// [`AppendError::Dropped`](crate::AppendError::Dropped). Where that is not enough it is dropped itself. The call never
    /// waits.
    DropOldest,
    /// Below the severity it is dropped. Else appends that were never sent, and have only records below the severity,
    /// make room for it, a sixteenth of the room at a time; where that is not enough it waits for at most so long. A
    /// record without a severity (0) is below all.
    DropBelow {
        /// Records from this one on are kept.
        severity: Severity,
        /// The longest wait of a record that is kept.
        wait: Duration,
    },
}

/// Settings of one call ([`Producer::offer`](crate::Producer::offer)): the producer's own where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "it is given to a call"]
pub struct Call {
    pub(super) level: Option<AckLevel>,
    pub(super) overload: Option<Overload>,
}

impl Call {
    /// The producer's own settings.
    pub const fn new() -> Self {
        Self { level: None, overload: None }
    }

    /// Asks for this level.
    pub const fn at(mut self, level: AckLevel) -> Self {
        self.level = Some(level);
        self
    }

    /// Follows this rule where there is no room.
    pub const fn on_overload(mut self, overload: Overload) -> Self {
        self.overload = Some(overload);
        self
    }
}
