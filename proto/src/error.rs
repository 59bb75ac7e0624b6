//! Errors that cross the wire: a code, and the two answers every sender needs.
//!
//! * `retryable`: the same append, unchanged, may be sent again and can succeed. (For `sequence_gap` after what is
//!   missing was sent.)
//! * `maybe_written`: a reader may find the records although the sender got an error. False means that they are
//!   certainly not in the log by this append.
//!
//! Both travel beside the code, so that a client acts right on a code that it does not know.

use crate::ids::Cursor;
use std::fmt;

/// Error code. A code that this version does not know is preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// No version of the protocol is common to both.
    UnsupportedVersion,
    /// A frame that breaks the protocol, or came when it may not.
    MalformedFrame,
    /// A checksum does not fit its bytes.
    BadChecksum,
    /// A frame longer than its type allows.
    FrameTooLarge,
    /// A record longer than `max_record_bytes`.
    RecordTooLarge,
    /// An append longer than `max_append_bytes`, or of too many records.
    AppendTooLarge,
    /// A record or group that is not in the encoding.
    BadRecord,
    /// This log cannot reach the level that was asked for.
    LevelUnreachable,
    /// The sequence jumps ahead and the gap mark is not set.
    SequenceGap,
    /// An append that is stored in part.
    SequenceOverlap,
    /// Stored, but so long ago that its offset is not known any more.
    SequenceTooOld,
    /// A newer epoch of this producer exists.
    ProducerFenced,
    /// The producer id is bound to another uid or secret.
    ProducerNotYours,
    /// The daemon keeps as many producers as it may.
    TooManyProducers,
    /// More unacknowledged appends than the window allows.
    WindowExceeded,
    /// The daemon has as much in flight as it may.
    Busy,
    /// No space for it now.
    NoSpace,
    /// A write or sync failed; the journal recovers by itself.
    JournalFailed,
    /// The daemon is going down.
    ShuttingDown,
    /// Not allowed for this peer.
    PermissionDenied,
    /// The cursor belongs to a history that was abandoned; `cursor` says where they part.
    CursorAbandoned,
    /// The cursor is of another log, or of a place that this log never had.
    CursorUnknown,
    /// No HELLO in time.
    HandshakeTimeout,
    /// Nothing came for too long.
    IdleTimeout,
    /// The daemon has as many connections as it may.
    TooManyConnections,
    /// A defect of the daemon.
    Internal,
    /// No ring of shared memory for this client: what it has to say goes over the socket.
    RingUnavailable,
    /// The sender's owner has as much in the stored log as one may have; retention makes room.
    QuotaExceeded,
    /// The filter of a READ is not one that this daemon evaluates: the reader filters by itself.
    FilterUnsupported,
    /// A named cursor's name or note that cannot be one.
    CursorInvalid,
    /// The named cursor was made by another owner.
    CursorNotYours,
    /// The daemon keeps as many named cursors as it may.
    TooManyCursors,
    /// A forwarded append is of another history than what is stored of its origin.
    HistoryParted,
    /// The log has nothing of that origin, and the append does not say that it begins.
    OriginUnknown,
    /// The log takes as many origins as it may.
    TooManyOrigins,
    /// A forwarded append has come through this log already, or through too many.
    ForwardLoop,
    /// A code of a newer version.
    Other(u16),
}

/// A code's number, its name, whether it is retryable and whether it may be written, unless the sender says otherwise.
type Row = (ErrorCode, u16, &'static str, bool, bool);

const ROWS: [Row; 36] = {
    use ErrorCode::*;
    [
        (UnsupportedVersion, 1, "unsupported_version", false, false),
        (MalformedFrame, 2, "malformed_frame", false, false),
        (BadChecksum, 3, "bad_checksum", true, false),
        (FrameTooLarge, 4, "frame_too_large", false, false),
        (RecordTooLarge, 5, "record_too_large", false, false),
        (AppendTooLarge, 6, "append_too_large", false, false),
        (BadRecord, 7, "bad_record", false, false),
        (LevelUnreachable, 8, "level_unreachable", false, false),
        (SequenceGap, 9, "sequence_gap", true, false),
        (SequenceOverlap, 10, "sequence_overlap", false, true),
        (SequenceTooOld, 11, "sequence_too_old", false, true),
        (ProducerFenced, 12, "producer_fenced", false, false),
        (ProducerNotYours, 13, "producer_not_yours", false, false),
        (TooManyProducers, 14, "too_many_producers", true, false),
        (WindowExceeded, 15, "window_exceeded", true, false),
        (Busy, 16, "busy", true, false),
        (NoSpace, 17, "no_space", true, false),
        (JournalFailed, 18, "journal_failed", true, true),
        (ShuttingDown, 19, "shutting_down", true, false),
        (PermissionDenied, 20, "permission_denied", false, false),
        (CursorAbandoned, 21, "cursor_abandoned", false, false),
        (CursorUnknown, 22, "cursor_unknown", false, false),
        (HandshakeTimeout, 23, "handshake_timeout", true, false),
        (IdleTimeout, 24, "idle_timeout", true, false),
        (TooManyConnections, 25, "too_many_connections", true, false),
        (Internal, 26, "internal", true, true),
        (RingUnavailable, 27, "ring_unavailable", false, false),
        (QuotaExceeded, 28, "quota_exceeded", true, false),
        (FilterUnsupported, 29, "filter_unsupported", false, false),
        (CursorInvalid, 30, "cursor_invalid", false, false),
        (CursorNotYours, 31, "cursor_not_yours", false, false),
        (TooManyCursors, 32, "too_many_cursors", true, false),
        (HistoryParted, 34, "history_parted", false, false),
        (OriginUnknown, 35, "origin_unknown", false, false),
        (TooManyOrigins, 36, "too_many_origins", false, false),
        (ForwardLoop, 37, "forward_loop", false, false),
    ]
};

impl ErrorCode {
    /// All codes that this version knows.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ROWS.iter().map(|row| row.0)
    }

    fn row(self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.0 == self)
    }

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Other(number) => number,
            known => known.row().map_or(0, |row| row.1),
        }
    }

    /// The code of a number.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        ROWS.iter().find(|row| row.1 == number).map_or(Self::Other(number), |row| row.0)
    }

    /// The name in logs, metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("other", |row| row.2)
    }

    /// True if it is retryable by default.
    #[must_use]
    pub fn retryable(self) -> bool {
        self.row().is_some_and(|row| row.3)
    }

    /// True if it may be written by default.
    #[must_use]
    pub fn maybe_written(self) -> bool {
        self.row().is_none_or(|row| row.4)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(number) => write!(f, "error_{number}"),
            known => f.pad(known.name()),
        }
    }
}

/// An error as it crosses the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct ErrorInfo {
    /// The error's code.
    pub code: ErrorCode,
    /// The same append may be sent again and can succeed.
    pub retryable: bool,
    /// The records may be in the log all the same.
    pub maybe_written: bool,
    /// For a person.
    pub text: String,
    /// The sequence that the next append must start with.
    pub expected_sequence: Option<u64>,
    /// The record at fault, counted from 0 in its append.
    pub record_index: Option<u32>,
    /// The limit that was passed.
    pub limit: Option<u64>,
    /// Where histories part: the first place that the cursor's history does not share with the log.
    pub cursor: Option<Cursor>,
    /// Time to wait before another try, in milliseconds.
    pub retry_after_ms: Option<u32>,
}

impl ErrorInfo {
    /// An error with the flags that its code implies.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self {
            code,
            retryable: code.retryable(),
            maybe_written: code.maybe_written(),
            text: text.into(),
            expected_sequence: None,
            record_index: None,
            limit: None,
            cursor: None,
            retry_after_ms: None,
        }
    }

    /// Adds the sequence that the next append must start with.
    #[must_use]
    pub fn expecting(mut self, sequence: u64) -> Self {
        self.expected_sequence = Some(sequence);
        self
    }

    /// Adds the limit that was passed.
    #[must_use]
    pub fn limited_to(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Adds the place where histories part.
    #[must_use]
    pub fn parting_at(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// Adds how long to wait.
    #[must_use]
    pub fn retry_after_ms(mut self, milliseconds: u32) -> Self {
        self.retry_after_ms = Some(milliseconds);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_and_names_are_one_to_one() {
        let numbers: HashSet<u16> = ErrorCode::all().map(ErrorCode::number).collect();
        let names: HashSet<&str> = ErrorCode::all().map(ErrorCode::name).collect();
        assert_eq!((numbers.len(), names.len()), (ROWS.len(), ROWS.len()));
        assert!((0..=u16::MAX).all(|number| ErrorCode::from_number(number).number() == number));
    }

    #[test]
    fn a_code_that_is_not_known_promises_nothing() {
        let code = ErrorCode::from_number(999);
        assert_eq!(code.to_string(), "error_999");
        assert!(code.maybe_written() && !code.retryable());
    }
}
