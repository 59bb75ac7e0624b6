//! Whether a range sync (`sync_file_range`) makes overwrites durable on what was found.
//!
//! | found | `sync_file_range` |
//! |---|---|
//! | another file system than ext4 and xfs | never: an overwrite goes to new blocks, or the answer is unknown |
//! | ext4 with `data=journal` | never: data goes through the journal, which a range sync does not commit |
//! | `durable` is not honest here at all (`durability_class.rs`) | never |
//! | a device down to the last that does not report write through, or a loop file | on the operator's word |
//! | every device down to the last reports write through | yes |
//!
//! A device can change its mind while the daemon runs (`queue/write_cache` can be written to): this looks once.

use std::fmt;

use super::{DurabilityClass, Substrate};

/// What a range sync's worth rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeGrounds {
    /// Every device down to the last says so.
    WriteThrough,
    /// The operator says so.
    Stated,
}

impl fmt::Display for RangeGrounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteThrough => "every device reports write through",
            Self::Stated => "power_loss_protected is stated by the operator",
        })
    }
}

/// Why a range sync makes nothing durable here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeRefusal {
    /// Another file system.
    #[error("sync_file_range is for ext4 and xfs alone, this is {filesystem}: use group_commit")]
    Filesystem {
        /// Its type.
        filesystem: String,
    },
    /// Data goes through the file system's journal.
    #[error("sync_file_range does not commit the journal that data=journal puts data into: use group_commit")]
    DataJournal,
    /// Nothing is durable here.
    #[error("sync_file_range is for `durable`, and the highest ack level here is {durability_class}")]
    Unreachable {
        /// How far acks may go, and why.
        durability_class: DurabilityClass,
    },
    /// A cache that a power cut empties, as far as one can see.
    #[error(
        "sync_file_range flushes no disk cache, and {cache}: use group_commit, or set journal.power_loss_protected = true if every disk below keeps what it has taken through a power cut"
    )]
    VolatileCache {
        /// The first device that was found wanting.
        cache: String,
    },
}

impl Substrate {
    /// Whether a range sync makes overwrites of written space durable here, and on what grounds.
    ///
    /// # Errors
    /// Why not.
    pub fn range_sync(&self, power_loss_protected: bool) -> Result<RangeGrounds, RangeRefusal> {
        if !matches!(self.filesystem.as_str(), "ext4" | "xfs") {
            return Err(RangeRefusal::Filesystem { filesystem: self.filesystem.clone() });
        }
        if self.mount_options.iter().any(|option| option == "data=journal") {
            return Err(RangeRefusal::DataJournal);
        }
        let durability_class = self.durability_class(power_loss_protected);
        // What only the word would help against is told as such.
        if !durability_class.is_durable() && !self.durability_class(true).is_durable() {
            return Err(RangeRefusal::Unreachable { durability_class });
        }
        match self.volatile_cache() {
            None if !durability_class.is_durable() => Err(RangeRefusal::Unreachable { durability_class }),
            None => Ok(RangeGrounds::WriteThrough),
            Some(_) if power_loss_protected => Ok(RangeGrounds::Stated),
            Some(cache) => Err(RangeRefusal::VolatileCache { cache }),
        }
    }
}
