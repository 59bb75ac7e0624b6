//! Errors as gRPC has them: a status whose code any client understands, and our own error in its metadata.

use super::generated::v1;
use crate::error::{ErrorCode, ErrorInfo};
use prost::Message;
use tonic::{Code, Status, metadata::MetadataValue};

/// Binary metadata of a status that holds an encoded `clad.v1.Error`.
pub const ERROR_METADATA: &str = "clad-error-bin";

/// The status for an error.
#[must_use]
pub fn to_status(error: &ErrorInfo) -> Status {
    let mut status = Status::new(grpc_code(error.code), error.to_string());
    let encoded = v1::Error::from(error.clone()).encode_to_vec();
    status.metadata_mut().insert_bin(ERROR_METADATA, MetadataValue::from_bytes(&encoded));
    status
}

/// The error in a status, if it is one of ours.
#[must_use]
pub fn from_status(status: &Status) -> Option<ErrorInfo> {
    let encoded = status.metadata().get_bin(ERROR_METADATA)?.to_bytes().ok()?;
    v1::Error::decode(encoded).ok().map(ErrorInfo::from)
}

fn grpc_code(code: ErrorCode) -> Code {
    match code {
        ErrorCode::MalformedFrame
        | ErrorCode::FrameTooLarge
        | ErrorCode::RecordTooLarge
        | ErrorCode::AppendTooLarge
        | ErrorCode::BadRecord
        | ErrorCode::CursorInvalid => Code::InvalidArgument,
        ErrorCode::BadChecksum => Code::DataLoss,
        ErrorCode::UnsupportedVersion
        | ErrorCode::LevelUnreachable
        | ErrorCode::RingUnavailable
        | ErrorCode::FilterUnsupported
        | ErrorCode::HistoryParted
        | ErrorCode::OriginUnknown
        | ErrorCode::ForwardLoop => Code::FailedPrecondition,
        ErrorCode::SequenceGap | ErrorCode::SequenceOverlap | ErrorCode::SequenceTooOld => Code::OutOfRange,
        ErrorCode::ProducerFenced => Code::Aborted,
        ErrorCode::ProducerNotYours | ErrorCode::PermissionDenied | ErrorCode::CursorNotYours => Code::PermissionDenied,
        ErrorCode::TooManyProducers
        | ErrorCode::TooManyCursors
        | ErrorCode::TooManyOrigins
        | ErrorCode::WindowExceeded
        | ErrorCode::Busy
        | ErrorCode::NoSpace
        | ErrorCode::QuotaExceeded
        | ErrorCode::TooManyConnections => Code::ResourceExhausted,
        ErrorCode::JournalFailed | ErrorCode::ShuttingDown => Code::Unavailable,
        ErrorCode::CursorAbandoned => Code::OutOfRange,
        ErrorCode::CursorUnknown => Code::NotFound,
        ErrorCode::HandshakeTimeout | ErrorCode::IdleTimeout => Code::DeadlineExceeded,
        ErrorCode::Internal => Code::Internal,
        ErrorCode::Other(_) => Code::Unknown,
    }
}
