//! Failures, as types. Every error of an append answers two questions: may I try again, may it be written.
//!
//! * [`AppendError::is_retryable`]: the same records, handed over again, can succeed.
//! * [`AppendError::maybe_written`]: a reader may find the records although their sender got an error. False means that
//!   they are certainly not in the log. Another try after a "maybe written" hands over new records: they can then be
//!   there twice. The producer has already abandoned the sequence under which the daemon would know them.

use crate::{Address, DropReason};
use clad_proto::{AckLevel, EncodeError, ErrorCode, ErrorInfo, LogId, filter::FilterError};
use std::{io, sync::Arc, time::Duration};

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refuses: no listener, no such socket, not allowed.
    #[error("cannot reach {address}: {error}")]
    Io {
        /// Whom.
        address: Address,
        /// The error of the system.
        error: Arc<io::Error>,
    },
    /// No connection and no answer to the greeting in time.
    #[error("no answer from {address} within {timeout:?}")]
    Timeout {
        /// Whom.
        address: Address,
        /// The time waited.
        timeout: Duration,
    },
    /// The daemon answers and does not want us.
    #[error("{address} refuses: {error}")]
    Refused {
        /// The address of the daemon.
        address: Address,
        /// Why.
        error: Box<ErrorInfo>,
    },
    /// The peer does not speak the protocol, or not correctly.
    #[error("{address} does not keep to the protocol: {what}")]
    Protocol {
        /// The address of the peer.
        address: Address,
        /// Which rule.
        what: String,
    },
    /// Resource and scope are longer than an append may be; no connection was tried.
    #[error("resource and scope: {0}")]
    Group(EncodeError),
    /// It was there and went away.
    #[error("{address} closed the connection")]
    Closed {
        /// The address of the daemon.
        address: Address,
    },
    /// The daemon has more of this producer than this producer has sent: another process uses its id.
    #[error(
        "producer {producer} is used by somebody else too: {address} has its sequence {stored}, which was never sent"
    )]
    ProducerShared {
        /// The address of the daemon that reports it.
        address: Address,
        /// The producer.
        producer: clad_proto::ProducerId,
        /// The last sequence that is stored.
        stored: u64,
    },
}

impl ConnectError {
    /// True if another try, without any change, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { error, .. } => {
                !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput)
            }
            Self::Refused { error, .. } => error.retryable,
            Self::Timeout { .. } | Self::Closed { .. } => true,
            Self::Protocol { .. } | Self::ProducerShared { .. } | Self::Group(_) => false,
        }
    }

    /// The daemon's code, if the daemon refused.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { error, .. } => Some(error.code),
            _ => None,
        }
    }

    /// The error that ended an existing connection, if it is, or can be, the fault of one append and not of its sender.
    pub(crate) fn of_an_append(&self) -> Option<&ErrorInfo> {
        let Self::Refused { error, .. } = self else { return None };
        let of_one = matches!(
            error.code,
            ErrorCode::FrameTooLarge
                | ErrorCode::RecordTooLarge
                | ErrorCode::AppendTooLarge
                | ErrorCode::BadRecord
                | ErrorCode::LevelUnreachable
                | ErrorCode::SequenceOverlap
                | ErrorCode::SequenceTooOld
        );
        (of_one && !error.retryable).then_some(error)
    }

    /// True if the error is final whatever the client does: the daemon has refused this client for good.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::ProducerShared { .. }) || matches!(self, Self::Refused { error, .. } if !error.retryable)
    }
}

/// Why an append did not reach its level.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The daemon does not take it, or took it and cannot keep it; tried again as long as that made sense.
    #[error("refused: {error}{}", perhaps(*.maybe_written))]
    Refused {
        /// The daemon's error, with its code.
        error: Box<ErrorInfo>,
        /// It may be in the log all the same.
        maybe_written: bool,
    },
    /// No daemon for longer than `delivery_timeout`, or one that takes nothing.
    #[error("given up after {waited:?} ({reason}){}", perhaps(*.maybe_written))]
    DeliveryTimeout {
        /// The time waited.
        waited: Duration,
        /// The result of the last try: the newest reason received.
        reason: String,
        /// It may be in the log all the same.
        maybe_written: bool,
    },
    /// Longer than this daemon takes; it was not sent.
    #[error("the append is {len} bytes long, the daemon takes {max}")]
    TooLarge {
        /// Length of its payload.
        len: u64,
        /// The longest that the daemon takes.
        max: u64,
    },
    /// The daemon does not know this producer any more, so it cannot say whether the append is stored.
    #[error("the daemon has forgotten this producer and cannot say whether the append is stored; it may be written")]
    Forgotten,
    /// Another log answers at this address now; the append was sent to the one before.
    #[error("log {now} answers where log {before} was, to which the append was sent; it may be written there")]
    LogChanged {
        /// The log that it was sent to.
        before: LogId,
        /// The log that is there now.
        now: LogId,
    },
    /// Records that had reached a lower level are gone. The cause is a crash that this level does not cover, or another
    /// log in the place of theirs. Only a flush ends with this: an append that asked for that level has what it
    /// promises. Other records that were submitted before the flush are there.
    #[error(
        "records that were acknowledged at a lower level did not survive a crash of the host or daemon, or are gone with \
         their log"
    )]
    Lost,
    /// The daemon does not want this producer any more, or never did.
    #[error("the producer has failed: {error}{}", perhaps(*.maybe_written))]
    Failed {
        /// Why.
        error: Box<ConnectError>,
        /// It may be in the log all the same.
        maybe_written: bool,
    },
    /// This process is a fork of the one that made the producer, which continues there. The original process gets the
    /// outcome of all that was handed over before the fork.
    #[error("this process was forked from that of the producer, which reports its outcome; it may be written")]
    Forked,
    /// It was dropped before it was sent, to make room for newer records ([`Overload`](crate::Overload)).
    #[error("dropped before it was sent ({}); it is not written", .reason.name())]
    Dropped {
        /// Why.
        reason: DropReason,
    },
    /// The producer was closed or dropped first.
    #[error("the producer ended before the append reached its level{}", perhaps(*.maybe_written))]
    Closed {
        /// It may be in the log all the same.
        maybe_written: bool,
    },
}

fn perhaps(maybe_written: bool) -> &'static str {
    if maybe_written { "; it may be written" } else { "; it is not written" }
}

impl AppendError {
    /// The log does not offer this level.
    pub(crate) fn unreachable_level(level: AckLevel) -> Self {
        let text = match level {
            AckLevel::Posted => "`posted` is offered only by a ring that is stored".to_owned(),
            _ => format!("this log does not offer the level {}", level.name()),
        };
        Self::Refused { error: Box::new(ErrorInfo::new(ErrorCode::LevelUnreachable, text)), maybe_written: false }
    }

    /// True if the same records, handed over again, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { error, .. } => error.retryable,
            Self::DeliveryTimeout { .. }
            | Self::Forgotten
            | Self::LogChanged { .. }
            | Self::Lost
            | Self::Dropped { .. } => true,
            Self::TooLarge { .. } | Self::Failed { .. } | Self::Forked | Self::Closed { .. } => false,
        }
    }

    /// True if a reader may find the records. False means that they are certainly not in the log. If a flush fails by
    /// itself, and not because of a record, the records are all that were submitted before: then it is true.
    #[must_use]
    pub const fn maybe_written(&self) -> bool {
        match self {
            Self::Refused { maybe_written, .. }
            | Self::DeliveryTimeout { maybe_written, .. }
            | Self::Failed { maybe_written, .. }
            | Self::Closed { maybe_written } => *maybe_written,
            Self::Forgotten | Self::LogChanged { .. } | Self::Forked => true,
            Self::TooLarge { .. } | Self::Lost | Self::Dropped { .. } => false,
        }
    }

    /// The daemon's code, if the daemon refused.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { error, .. } => Some(error.code),
            Self::Failed { error, .. } => error.code(),
            Self::TooLarge { .. } => Some(ErrorCode::AppendTooLarge),
            _ => None,
        }
    }

    pub(crate) fn with_maybe_written(mut self, maybe: bool) -> Self {
        match &mut self {
            // It was sent when the daemon took more.
            Self::TooLarge { len, max } if maybe => {
                let text = format!("the append is {len} bytes long and was sent; the daemon takes {max} by now");
                let error = Box::new(ErrorInfo::new(ErrorCode::AppendTooLarge, text));
                return Self::Refused { error, maybe_written: true };
            }
            Self::Refused { maybe_written, .. }
            | Self::DeliveryTimeout { maybe_written, .. }
            | Self::Failed { maybe_written, .. }
            | Self::Closed { maybe_written } => *maybe_written |= maybe,
            _ => {}
        }
        self
    }
}

/// Why no room was reserved.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// More than there is in all.
    #[error("{bytes} bytes cannot be reserved, {max} is all there is (max_buffered_bytes)")]
    TooLarge {
        /// The number of bytes asked for.
        bytes: usize,
        /// The most that one append can have.
        max: usize,
    },
    /// There is no room now. Only [`Producer::try_reserve`](crate::Producer::try_reserve) says so.
    #[error("no room for {bytes} bytes now")]
    Full {
        /// The number of bytes asked for.
        bytes: usize,
    },
    /// This process is a fork of the one that made the producer: it needs a producer of its own.
    #[error("this process was forked from the one that made the producer; make another one here")]
    Forked,
    /// The producer has ended.
    #[error(transparent)]
    Ended(AppendError),
}

/// Why an append was not handed over. It has no sequence, and it is certainly not written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A record does not go in.
    #[error("record {index}: {error}")]
    Record {
        /// Which one, counted from 0.
        index: u32,
        /// Why.
        error: EncodeError,
    },
    /// An append has at least one record.
    #[error("an append of no records")]
    Empty,
    /// It needs more room than was reserved, and no more is free.
    #[error("the append needs {needed} bytes, {reserved} were reserved and no more are free")]
    ReservationTooSmall {
        /// The bytes needed; reserve as much and submit again.
        needed: usize,
        /// The bytes reserved.
        reserved: usize,
    },
    /// There is no room in the ring, and the producer is set to drop records that find none
    /// ([`drop_when_full`](crate::ProducerBuilder::drop_when_full)). The record is counted
    /// ([`Stats::dropped`](crate::Stats)).
    #[error("the ring is full; the record is dropped")]
    RingFull,
    /// There was no room, and by the rule for that ([`Overload`](crate::Overload)) the records were dropped. They are
    /// counted ([`Stats::dropped_by`](crate::Stats)).
    #[error("the records were dropped ({})", .0.name())]
    Dropped(DropReason),
    /// This process is a fork of the one that made the producer: it needs a producer of its own.
    #[error("this process was forked from the one that made the producer; make another one here")]
    Forked,
    /// The producer has ended.
    #[error(transparent)]
    Ended(AppendError),
}

/// Why a convenience call ([`Producer::append`](crate::Producer::append)) has no receipt.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No room, and there never will be.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// It was not handed over.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It was handed over and did not reach its level.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl SendError {
    /// True if the same records, handed over again, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Append(error) => error.is_retryable(),
            Self::Reserve(ReserveError::Full { .. })
            | Self::Submit(SubmitError::ReservationTooSmall { .. } | SubmitError::RingFull) => true,
            Self::Submit(SubmitError::Dropped(reason)) => reason.is_for_room(),
            _ => false,
        }
    }

    /// True if a reader may find the records. False means that they are certainly not in the log.
    #[must_use]
    pub const fn maybe_written(&self) -> bool {
        matches!(self, Self::Append(error) if error.maybe_written())
    }

    /// The daemon's code, if the daemon refused.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Append(error) => error.code(),
            _ => None,
        }
    }
}

/// Why a read ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no connection, or none any more.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon does not serve this read, or no longer.
    #[error("refused: {0}")]
    Refused(Box<ErrorInfo>),
    /// The cursor's place is in a history that was abandoned after a loss. Nothing was skipped: resume from `parting`
    /// with a new reader. Records that were read from there on are not in the log.
    #[error("the cursor {cursor} belongs to an abandoned history{}", parting_text(.parting))]
    CursorAbandoned {
        /// The place that was asked for.
        cursor: clad_proto::Cursor,
        /// The first place that the cursor's history does not share with the log.
        parting: Option<clad_proto::Cursor>,
    },
    /// The cursor is of another log, or of a place that this log never had.
    #[error("the cursor {cursor} is not of this log: {text}")]
    CursorUnknown {
        /// The place that was asked for.
        cursor: clad_proto::Cursor,
        /// The text of the daemon.
        text: String,
    },
    /// The records came damaged.
    #[error("the {count} records from offset {offset} on came damaged: {what}")]
    Damaged {
        /// The first of them.
        offset: u64,
        /// The number of records.
        count: u32,
        /// The damage found.
        what: String,
    },
    /// The reader's filter is none.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

fn parting_text(parting: &Option<clad_proto::Cursor>) -> String {
    parting.as_ref().map_or_else(String::new, |cursor| format!("; the log goes on from {cursor}"))
}

impl ReadError {
    /// True if the same read, started again at its cursor, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_retryable(),
            Self::Refused(error) => error.retryable,
            Self::Damaged { .. } => true,
            Self::CursorAbandoned { .. } | Self::CursorUnknown { .. } | Self::Filter(_) => false,
        }
    }

    /// The daemon's code, if the daemon refused.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Connect(error) => error.code(),
            Self::Refused(error) => Some(error.code),
            Self::CursorAbandoned { .. } => Some(ErrorCode::CursorAbandoned),
            Self::CursorUnknown { .. } => Some(ErrorCode::CursorUnknown),
            Self::Damaged { .. } | Self::Filter(_) => None,
        }
    }
}
