//! Actions of a repair, done or planned, in words and for programs.

use std::fmt;

use crate::format::footer::Damage;
use crate::format::{META_NAME, QUARANTINE, segment_name};

/// An action that was done, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A name that is no part of a log was moved to `quarantine/`.
    QuarantinedForeign {
        /// The name.
        name: String,
    },
    /// A segment of another log was moved to `quarantine/`.
    QuarantinedOtherLog {
        /// The number in its name.
        segment: u64,
        /// The id of the log that it belongs to.
        log_id: [u8; 16],
    },
    /// A copy of one segment, under the name of another, was moved to `quarantine/`.
    QuarantinedCopy {
        /// The number in its name.
        segment: u64,
        /// The number in its header.
        of: u64,
    },
    /// A segment without a valid header was moved to `quarantine/`: another file is that segment, whole.
    QuarantinedNoHeader {
        /// The number in its name.
        segment: u64,
    },
    /// A segment whose header the device cannot read was moved to `quarantine/`: a start refuses to resume beside it.
    QuarantinedUnreadable {
        /// The number in its name.
        segment: u64,
    },
    /// A segment under a wrong name was put back under its own.
    PutBack {
        /// The number that was in its name.
        segment: u64,
        /// Its number.
        to: u64,
    },
    /// One byte of a segment's header was wrong; with it corrected the header's checksum holds.
    CorrectedHeader {
        /// The segment.
        segment: u64,
        /// Position of the byte in the file.
        byte: usize,
    },
    /// A `clad.meta` of another log than all segments was moved to `quarantine/`.
    QuarantinedOtherMeta {
        /// The id of the log that it belongs to.
        log_id: [u8; 16],
    },
    /// One of the two slots of `clad.meta` was not valid. It was written again from the other, with the segments that
    /// are in use and that the other did not name yet.
    RewroteSlot,
    /// Segments above the highest one in a whole `clad.meta` are in use: it names them now.
    NamedSegments {
        /// The highest that it named; `None` where it named none.
        said: Option<u64>,
        /// The highest that is in use.
        highest: u64,
    },
    /// `clad.meta` was made again from the segments.
    RebuiltMeta {
        /// Lowest and highest segment.
        segments: (u64, u64),
        /// The lowest offset.
        lowest_offset: u64,
        /// The newest epoch that a segment names.
        epoch: u32,
    },
    /// Segments in a row that had lost their footers got new ones.
    Resealed {
        /// The first and the last.
        segments: (u64, u64),
        /// Offsets that cannot be found in them, in a dry run too.
        lost: Vec<Damage>,
    },
}

/// A loss that cannot be repaired: the records in it are lost, unless a backup has the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The segment's file is not there.
    Missing(u64),
    /// The segment's header cannot be read; its salt, and with it all its checksums, are lost.
    NoHeader(u64),
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The log.
    pub log_id: [u8; 16],
    /// Nothing was written.
    pub dry_run: bool,
    /// Actions that were done, in this order.
    pub actions: Vec<Action>,
    /// Losses that cannot be repaired.
    pub left: Vec<Left>,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuarantinedForeign { name } => write!(f, "`{name}` is no part of a log: moved to {QUARANTINE}/"),
            Self::QuarantinedOtherLog { segment, log_id } => {
                let id: String = log_id.iter().map(|b| format!("{b:02x}")).collect();
                write!(f, "segment {segment} belongs to the log {id}: moved to {QUARANTINE}/")
            }
            Self::QuarantinedOtherMeta { log_id } => {
                let id: String = log_id.iter().map(|b| format!("{b:02x}")).collect();
                write!(f, "{META_NAME} belongs to the log {id}, and all segments to another: moved to {QUARANTINE}/")
            }
            Self::RewroteSlot => {
                write!(f, "one of the two copies in {META_NAME} was invalid: rewritten from the other")
            }
            Self::NamedSegments { said, highest } => {
                match said {
                    Some(said) => write!(f, "{META_NAME} named no segment above {said}")?,
                    None => write!(f, "{META_NAME} named no segment")?,
                }
                write!(f, ", and they are in use up to segment {highest}: they count")
            }
            Self::QuarantinedCopy { segment, of } => {
                write!(f, "segment {segment} is a copy of segment {of}: moved to {QUARANTINE}/")
            }
            Self::QuarantinedNoHeader { segment } => {
                write!(f, "segment {segment} has no valid header, and is elsewhere too: moved to {QUARANTINE}/")
            }
            Self::QuarantinedUnreadable { segment } => write!(
                f,
                "the header of segment {segment} cannot be read, and so none of its records: moved to {QUARANTINE}/; if the device can read it again, move it back"
            ),
            Self::PutBack { segment, to } => {
                write!(f, "segment {to} had the name of segment {segment}: renamed")
            }
            Self::CorrectedHeader { segment, byte } => {
                write!(f, "segment {segment} had a wrong byte in its header, at {byte}: corrected")
            }
            Self::RebuiltMeta { segments: (low, high), lowest_offset, epoch } => write!(
                f,
                "{META_NAME} was lost: rebuilt from segments {low} to {high}, from offset {lowest_offset} on, epoch {epoch}"
            ),
            Self::Resealed { segments: (first, last), lost } => {
                match first == last {
                    true => write!(f, "segment {first} had lost its footer: sealed again")?,
                    false => write!(f, "segments {first} to {last} had lost their footers: sealed again")?,
                }
                for (i, d) in lost.iter().enumerate() {
                    let before = if i == 0 { ", without offsets" } else { "," };
                    write!(f, "{before} {} to {}", d.from, d.to.saturating_sub(1))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(n) => write!(f, "segment {n} is missing: only a backup of {} can help", segment_name(*n)),
            Self::NoHeader(n) => write!(f, "segment {n} has no valid header: its records are lost"),
        }
    }
}
