//! Why an append was not forwarded.

use crate::{Address, ConnectError};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

/// Why an append was not forwarded, or a forwarder is at its end. After any but [`ForwardError::TooLarge`] and
/// [`ForwardError::Level`] the forwarder takes nothing more: connect again, and go on where the log says.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// There is no connection, or not any more. A refusal of the stream itself is in it, with its code.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon is older and does not forward.
    #[error("the clad at {address} takes no appends of other logs: it is older than this client")]
    NotSupported {
        /// The daemon's address.
        address: Address,
    },
    /// Longer than the log takes; it was not sent. It can only be skipped, which the next append states.
    #[error("an append with {len} bytes in one piece, the log that takes it allows {max}: it can only be skipped")]
    TooLarge {
        /// Bytes of the payload, or of its longest record.
        len: u64,
        /// The most that the log takes.
        max: u64,
    },
    /// The log does not offer the level, or it has no answer.
    #[error("an append cannot be forwarded at the level {}", .level.name())]
    Level {
        /// The level.
        level: AckLevel,
    },
    /// The log expects another source offset: something was refused before, or somebody else forwards the stream too.
    #[error("the log expects source offset {expected}: {error}")]
    Gap {
        /// The source offset that it expects.
        expected: u64,
        /// The daemon's error.
        error: Box<ErrorInfo>,
    },
    /// The source is no longer what it was: a copy was restored, or its history parted. Only a person can decide.
    #[error("the source and the log that takes it have parted: {error}")]
    Parted {
        /// The daemon's error; it names both sides.
        error: Box<ErrorInfo>,
    },
    /// The log has nothing of the stream, and the append did not say that it begins.
    #[error("the log has nothing of this stream: {error}")]
    Unknown {
        /// The daemon's error.
        error: Box<ErrorInfo>,
    },
    /// The log takes no further stream.
    #[error("the log takes no further stream: {error}")]
    TooManyOrigins {
        /// The daemon's error.
        error: Box<ErrorInfo>,
    },
    /// The append has come through that log already, or through too many.
    #[error("forwarding goes in a circle, or too far: {error}")]
    Loop {
        /// The daemon's error.
        error: Box<ErrorInfo>,
    },
    /// Refused for another reason: its code says which, and whether to try again.
    #[error("refused: {0}")]
    Refused(Box<ErrorInfo>),
}

impl ForwardError {
    /// As what the daemon refused it.
    pub(super) fn refused(error: ErrorInfo) -> Self {
        let boxed = Box::new(error);
        match (boxed.code, boxed.expected_sequence) {
            (ErrorCode::SequenceGap, Some(expected)) => Self::Gap { expected, error: boxed },
            (ErrorCode::HistoryParted, _) => Self::Parted { error: boxed },
            (ErrorCode::OriginUnknown, _) => Self::Unknown { error: boxed },
            (ErrorCode::TooManyOrigins, _) => Self::TooManyOrigins { error: boxed },
            (ErrorCode::ForwardLoop, _) => Self::Loop { error: boxed },
            _ => Self::Refused(boxed),
        }
    }

    /// The same, where HELLO was refused.
    pub(super) fn of_hello(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused { error, .. }
                if matches!(error.code, ErrorCode::HistoryParted | ErrorCode::ForwardLoop) =>
            {
                Self::refused(*error)
            }
            other => Self::Connect(other),
        }
    }

    /// True if another connection, and the place that the log names then, can succeed without anybody's doing.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_retryable(),
            Self::Gap { .. } => true,
            Self::Refused(error) => error.retryable,
            Self::NotSupported { .. }
            | Self::TooLarge { .. }
            | Self::Level { .. }
            | Self::Parted { .. }
            | Self::Unknown { .. }
            | Self::TooManyOrigins { .. }
            | Self::Loop { .. } => false,
        }
    }

    /// The daemon's code, if the daemon refused.
    #[must_use]
    pub const fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Connect(error) => error.code(),
            Self::Gap { error, .. }
            | Self::Parted { error }
            | Self::Unknown { error }
            | Self::TooManyOrigins { error }
            | Self::Loop { error }
            | Self::Refused(error) => Some(error.code),
            Self::NotSupported { .. } | Self::TooLarge { .. } | Self::Level { .. } => None,
        }
    }
}
