//! Decides if a range sync (`sync_file_range`) makes overwrites durable on the found devices.
//!
//! | found | `sync_file_range` |
//! |---|---|
//! | another file system than ext4 and xfs | never: an overwrite goes to new blocks, or the answer is unknown |
//! | ext4 with `data=journal` | never: data goes through the journal, which a range sync does not commit |
//! | `durable` is not honest here at all (`durability_class.rs`) | never |
//! | a device down to the last that does not report write through, or a loop file | on the operator's word |
//! | every device down to the last reports write through | yes |
//!
//! A device can change its report while the daemon runs (`queue/write_cache` can be written to): this looks once.

use std::fmt;

use super::durability_class::DurabilityClass;
use super::substrate::Substrate;

/// Grounds on which a range sync is worth something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeGrounds {
    /// Every device down to the last reports it.
    WriteThrough,
    /// The operator states it.
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

/// The reason why a range sync makes nothing durable here.
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
        /// The highest ack level, and why.
        durability_class: DurabilityClass,
    },
    /// A cache that a power cut empties, as far as one can see.
    #[error(
        "sync_file_range flushes no disk cache, and {cache}: use group_commit, or set journal.power_loss_protected = true if every disk below keeps what it has taken through a power cut"
    )]
    VolatileCache {
        /// The first unsuitable device.
        cache: String,
    },
}

impl Substrate {
    /// The grounds on which a range sync makes overwrites of written space durable here.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn range_sync(&self, power_loss_protected: bool) -> Result<RangeGrounds, RangeRefusal> {
        if !matches!(self.filesystem.as_str(), "ext4" | "xfs") {
            return Err(RangeRefusal::Filesystem { filesystem: self.filesystem.clone() });
        }
        if self.mount_options.iter().any(|option| option == "data=journal") {
            return Err(RangeRefusal::DataJournal);
        }
        let durability_class = self.durability_class(power_loss_protected);
        // An obstacle that only the operator's word removes is reported as such.
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
