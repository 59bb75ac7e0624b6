//! Ack levels and durability policies: their order, their codes on the wire, their names.

use std::{fmt, str::FromStr};

/// Safety of an acknowledged record. The order is the order of the promise.
///
/// [`AckLevel::Posted`] exists with a ring of shared memory only; no socket offers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AckLevel {
    /// No answer is sent, nothing is promised.
    None = 0,
    /// Reserved: committed in the producer's shared-memory ring, without an offset.
    Posted = 1,
    /// The daemon holds the record and has given it an offset.
    Received = 2,
    /// The kernel has completed the write; it survives the death of client and daemon.
    Written = 3,
    /// On stable storage, past any volatile cache; it survives power loss.
    Durable = 4,
}

impl AckLevel {
    /// All levels, lowest first.
    const ALL: [Self; 5] = [Self::None, Self::Posted, Self::Received, Self::Written, Self::Durable];
    /// The levels that have a watermark, lowest first.
    pub const WATERMARKS: [Self; 3] = [Self::Received, Self::Written, Self::Durable];

    /// The code on the wire and on the disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The level of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name in configuration, tools and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Posted => "posted",
            Self::Received => "received",
            Self::Written => "written",
            Self::Durable => "durable",
        }
    }
}

/// Way of a log to `durable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DurabilityPolicy {
    /// Each append is its own synced write.
    PerMessage = 1,
    /// Appends that arrive together share a write and a sync.
    GroupCommit = 2,
    /// Overwrites of prepared blocks, then `sync_file_range`.
    SyncFileRange = 3,
    /// Written at once, synced by the kernel or by a timer; the highest ack is `written`.
    FireAndForget = 4,
}

impl DurabilityPolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::PerMessage, Self::GroupCommit, Self::SyncFileRange, Self::FireAndForget];

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The policy of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.code() == code)
    }

    /// The name in configuration and tools.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerMessage => "per_message",
            Self::GroupCommit => "group_commit",
            Self::SyncFileRange => "sync_file_range",
            Self::FireAndForget => "fire_and_forget",
        }
    }
}

/// A text that names no level, policy or severity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {kind}; one of {expected} is wanted")]
pub struct ParseNameError {
    /// The text given.
    pub text: String,
    /// The kind wanted.
    pub kind: &'static str,
    /// The texts that would do.
    pub expected: &'static str,
}

impl fmt::Display for AckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for DurabilityPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AckLevel {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        Self::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| ParseNameError {
            text: text.to_owned(),
            kind: "ack level",
            expected: "none, posted, received, written, durable",
        })
    }
}

impl FromStr for DurabilityPolicy {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| ParseNameError {
            text: text.to_owned(),
            kind: "durability policy",
            expected: "per_message, group_commit, sync_file_range, fire_and_forget",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for code in 0..=255 {
            if let Some(level) = AckLevel::from_code(code) {
                assert_eq!(level.code(), code);
                assert_eq!(level.name().parse(), Ok(level));
            }
            if let Some(policy) = DurabilityPolicy::from_code(code) {
                assert_eq!(policy.code(), code);
                assert_eq!(policy.name().parse(), Ok(policy));
            }
        }
    }

    #[test]
    fn levels_are_ordered_by_their_promise() {
        use AckLevel::*;
        assert!(None < Posted && Posted < Received && Received < Written && Written < Durable);
    }
}
