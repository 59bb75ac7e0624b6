//! Errors that a program can distinguish.

use std::{fmt, io};

use crate::format::origin::ForwardedAppend;

/// Reason why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another clad has it.
    #[error("the log in {dir} is in use by another clad (its clad.lock is held)")]
    Locked {
        /// The folder.
        dir: String,
    },
    /// The folder contains a file that is not part of a log.
    #[error("{dir} holds `{name}`, which is no part of a log: give clad a folder of its own, or see `clactl repair`")]
    Foreign {
        /// The folder.
        dir: String,
        /// The first name found.
        name: String,
    },
    /// A segment of another log.
    #[error("segment {segment} belongs to another log ({found}, this one is {expected}): see `clactl repair`")]
    ForeignSegment {
        /// Its number.
        segment: u64,
        /// The log that it names.
        found: String,
        /// This log.
        expected: String,
    },
    /// Segments without a `clad.meta`, or with one that cannot be read in either slot.
    #[error("{}", meta_lost(dir, *.segments))]
    MetaLost {
        /// The folder.
        dir: String,
        /// Number of segments.
        segments: usize,
    },
    /// No segment and no `clad.meta` that can be read, but quarantined parts of a log, or half of a segment.
    #[error(
        "{dir} holds no clad.meta that can be read and no segment, but what is left of a log (`quarantine/`, `.clog.tmp`): \
         nothing was touched; restore the log from a backup, or move these away to begin a new one"
    )]
    Remains {
        /// The folder.
        dir: String,
    },
    /// The device does not give a segment's header, with which all of its records would be lost. Nothing was changed.
    #[error(
        "the header of segment {segment} cannot be read ({source}): nothing was touched; if it remains so, let `clactl repair` move that file away, and the rest of the log stays in use"
    )]
    Unreadable {
        /// Its number.
        segment: u64,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The format of a file is newer than this version.
    #[error("{0}")]
    Newer(String),
    /// The settings cannot work.
    #[error("{0}")]
    Config(String),
    /// The disk said no.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

fn meta_lost(dir: &str, segments: usize) -> String {
    match segments {
        0 => format!("{dir} holds no log: neither clad.meta nor a segment can be read there"),
        n => format!(
            "{dir} holds {n} segments but no readable clad.meta: nothing was touched; restore clad.meta, or let `clactl repair` rebuild it from the segments, or move them away to start a new log"
        ),
    }
}

/// Reason why a named cursor is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The name cannot be one, or the note is too long.
    #[error(
        "a cursor's name is 1 to 64 letters, digits, '.', '_' or '-', with no dot at its beginning; its note at most 256 bytes"
    )]
    BadName,
    /// Another owner made it.
    #[error("this cursor was made by another user")]
    NotOwner,
    /// No room for a further one.
    #[error(
        "there are as many cursors as there may be ([limits] max_cursors = {max}), or this user has a share of them: `clactl cursors drop NAME` makes room"
    )]
    TooMany {
        /// Cursors that there may be.
        max: usize,
    },
    /// There is no cursor of this name.
    #[error("there is no cursor of this name")]
    NotThere,
}

/// Reason why an append was refused. No refusal leaves a trace in the log: no offset was assigned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A newer session of the same producer exists.
    #[error("a newer session of this producer (epoch {current}) is in force")]
    Fenced {
        /// The epoch in force.
        current: u32,
    },
    /// The producer id belongs to another owner.
    #[error("this producer id was first used by another user")]
    NotOwner,
    /// The sequence jumps ahead without the gap mark.
    #[error("the sequence jumps ahead: {expected} is next")]
    Gap {
        /// The sequence that is next.
        expected: u64,
    },
    /// Partly stored.
    #[error("only a part of this append is stored, or several parts are stored apart: {expected} is next")]
    Overlap {
        /// The sequence that is next.
        expected: u64,
    },
    /// Older than what is remembered.
    #[error("this append is older than what the log remembers of the producer: it was stored, its offset is forgotten")]
    TooOld,
    /// In a gap of the sequence: not stored.
    #[error("the sequence has gone past this append, which is not stored: {expected} is next")]
    Skipped {
        /// The sequence that is next.
        expected: u64,
    },
    /// An origin that the log does not know, without the mark that it begins.
    #[error("this log has nothing of that origin, and the append does not say that it begins")]
    UnknownOrigin,
    /// Too many origins at once.
    #[error("this log takes {limit} origins and has as many: drop one (`clactl origins drop`), or raise max_origins")]
    TooManyOrigins {
        /// Most that it takes.
        limit: usize,
    },
    /// The source is no longer the log whose appends are stored here.
    #[error("{0}")]
    Parted(Box<Parting>),
    /// Sequences that no number has.
    #[error("the sequences of this append go past the largest, 2^64 - 2")]
    PastTheLast,
    /// Too many producers at once.
    #[error("the log remembers as many producers as it may")]
    TooManyProducers,
    /// An earlier life of the producer was forgotten, and the log does not say so durably yet.
    #[error("this producer was forgotten a moment ago, and the log does not say so yet: come again")]
    Forgetting,
    /// No records, or more bytes than an append may have.
    #[error("an append has 1 or more records and at most {limit} bytes of payload")]
    Size {
        /// Most payload bytes.
        limit: u32,
    },
    /// No space for a further segment.
    #[error("the disk has no space for another segment")]
    NoSpace,
    /// Its owner has the most bytes in the stored log that one may have; retention makes room.
    #[error(
        "this user's records fill their share of the log, {limit} bytes ([retention] per_owner_bytes): there is room once retention \
         has removed some of them"
    )]
    OwnerQuota {
        /// Most bytes of one owner.
        limit: u64,
    },
    /// The next segment cannot be opened, for another reason than want of room; it is tried again.
    #[error("no further segment can be opened: {reason}")]
    NoSegment {
        /// Error of the kernel.
        reason: String,
    },
    /// A write or sync failed; the journal recovers by itself.
    #[error("the journal failed and is recovering: {reason}")]
    Failed {
        /// The failure.
        reason: String,
    },
    /// It is closing.
    #[error("the journal is closing")]
    Closing,
}

impl AppendError {
    /// True if the journal takes nothing now, or only small appends: the fault is not in this append or its sender.
    #[must_use]
    pub const fn is_for_all(&self) -> bool {
        matches!(self, Self::NoSpace | Self::NoSegment { .. } | Self::Failed { .. } | Self::Closing)
    }

    /// True if it is refused for now, because of the present state of the journal or of its sender's share, and not
    /// because of the append itself: the same one may be taken later.
    #[must_use]
    pub const fn is_for_now(&self) -> bool {
        self.is_for_all() || matches!(self, Self::TooManyProducers | Self::Forgetting | Self::OwnerQuota { .. })
    }
}

/// Where the history of an origin parts: what is stored of it, and what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Parting {
    /// The last append of it in the log.
    pub stored: ForwardedAppend,
    /// The append that was sent, without an offset here.
    pub sent: ForwardedAppend,
    /// This log has lost appends of the origin, and does not know from which source offset on.
    pub is_lost: bool,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let append = |a: &ForwardedAppend| {
            let (epoch, first, end, crc) = (a.epoch, a.first, a.end(), a.payload_checksum);
            format!("source epoch {epoch}, source offsets {first} to {end}, CRC {crc:08x}")
        };
        let (stored, sent) = (append(&self.stored), append(&self.sent));
        match self.is_lost {
            false => write!(f, "the histories part: the last append here has {stored}; what was sent has {sent}"),
            true => write!(
                f,
                "this log has lost appends of that origin and does not know from where on; it knows of {stored}; what was                  sent has {sent}: drop the origin, and begin it again where its records end here"
            ),
        }
    }
}

/// Reason why a read fails.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// These offsets are not there any more: retention removed them, or they are damaged.
    #[error("offsets {from} to {to} cannot be read: {}", if *.damaged { "damaged" } else { "removed by retention" })]
    Gap {
        /// First that is missing.
        from: u64,
        /// One past the last.
        to: u64,
        /// Damaged, or removed by rule.
        damaged: bool,
    },
    /// The disk said no.
    #[error("segment {segment}: {source}")]
    Io {
        /// The segment.
        segment: u64,
        /// Error of the kernel.
        source: io::Error,
    },
}
