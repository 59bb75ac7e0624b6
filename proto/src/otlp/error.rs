//! Obstacles to making an append of an OTLP message.

use super::fields::NotProtobuf;
use crate::fault::EncodeError;

/// Why an OTLP message is not an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// An append has one resource and one scope.
    #[error("an append has exactly one ScopeLogs, not {0}")]
    ScopeCount(usize),
    /// An append has at least one record.
    #[error("an append of no records")]
    NoRecords,
    /// It is no message of this kind.
    #[error(transparent)]
    NotProtobuf(#[from] NotProtobuf),
    /// Resource or scope do not fit.
    #[error("resource or scope: {0}")]
    Group(EncodeError),
    /// A record does not fit.
    #[error("record {index}: {error}")]
    Record {
        /// Which one, counted from 0.
        index: u32,
        /// Why.
        error: EncodeError,
    },
}

impl From<OtlpError> for crate::ErrorInfo {
    fn from(error: OtlpError) -> Self {
        use crate::ErrorCode;
        let code = match &error {
            OtlpError::ScopeCount(_) | OtlpError::NoRecords | OtlpError::NotProtobuf(_) => ErrorCode::BadRecord,
            OtlpError::Group(reason) | OtlpError::Record { error: reason, .. } => match reason {
                EncodeError::RecordTooLarge { .. } => ErrorCode::RecordTooLarge,
                EncodeError::AppendFull { .. } | EncodeError::GroupTooLarge { .. } => ErrorCode::AppendTooLarge,
                EncodeError::TooDeep | EncodeError::FieldOrder(_) | EncodeError::NotProtobuf(_) => ErrorCode::BadRecord,
            },
        };
        let mut info = Self::new(code, error.to_string());
        if let OtlpError::Record { index, .. } = error {
            info.record_index = Some(index);
        }
        if let OtlpError::Group(reason) | OtlpError::Record { error: reason, .. } = error
            && let EncodeError::RecordTooLarge { max, .. }
            | EncodeError::GroupTooLarge { max, .. }
            | EncodeError::AppendFull { max, .. } = reason
        {
            info.limit = Some(max);
        }
        info
    }
}
