//! Small types from and to their gRPC messages. Large ones are written out where they are used.

use super::generated::v1;
use crate::{
    error::{ErrorCode, ErrorInfo},
    frame::{
        Accepted, EpochStart, FirstOrigin, GapReason, LastStored, Path, PeerMeta, Refused, StreamName, Transport,
        Watermark,
    },
    ids::{Cursor, LogId, ProducerId},
    level::{AckLevel, DurabilityPolicy},
};
use bytes::Bytes;

impl From<AckLevel> for v1::AckLevel {
    fn from(level: AckLevel) -> Self {
        match level {
            // Shared memory's level has no gRPC form; what cannot be said is not rounded up.
            AckLevel::None | AckLevel::Posted => Self::None,
            AckLevel::Received => Self::Received,
            AckLevel::Written => Self::Written,
            AckLevel::Durable => Self::Durable,
        }
    }
}

impl v1::AckLevel {
    /// The level; nothing for the value that is not stated.
    #[must_use]
    pub const fn level(self) -> Option<AckLevel> {
        Some(match self {
            Self::Unspecified => return None,
            Self::None => AckLevel::None,
            Self::Received => AckLevel::Received,
            Self::Written => AckLevel::Written,
            Self::Durable => AckLevel::Durable,
        })
    }
}

impl From<DurabilityPolicy> for v1::DurabilityPolicy {
    fn from(policy: DurabilityPolicy) -> Self {
        match policy {
            DurabilityPolicy::PerMessage => Self::PerMessage,
            DurabilityPolicy::GroupCommit => Self::GroupCommit,
            DurabilityPolicy::SyncFileRange => Self::SyncFileRange,
            DurabilityPolicy::FireAndForget => Self::FireAndForget,
        }
    }
}

impl v1::DurabilityPolicy {
    /// The policy; nothing for the value that is not stated.
    #[must_use]
    pub fn policy(self) -> Option<DurabilityPolicy> {
        u8::try_from(self as i32).ok().and_then(DurabilityPolicy::from_code)
    }
}

impl From<Cursor> for v1::Cursor {
    fn from(cursor: Cursor) -> Self {
        Self { log_id: Bytes::copy_from_slice(cursor.log_id.as_bytes()), epoch: cursor.epoch, offset: cursor.offset }
    }
}

impl v1::Cursor {
    /// The cursor; nothing when its log id is not 16 bytes.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        let log_id: [u8; 16] = self.log_id.as_ref().try_into().ok()?;
        Some(Cursor { log_id: LogId::from_bytes(log_id), epoch: self.epoch, offset: self.offset })
    }
}

impl From<ErrorInfo> for v1::Error {
    fn from(error: ErrorInfo) -> Self {
        Self {
            code: error.code.number().into(),
            retryable: error.retryable,
            maybe_written: error.maybe_written,
            text: error.text,
            expected_sequence: error.expected_sequence,
            record_index: error.record_index,
            limit: error.limit,
            cursor: error.cursor.map(Into::into),
            retry_after_ms: error.retry_after_ms,
        }
    }
}

impl From<v1::Error> for ErrorInfo {
    fn from(error: v1::Error) -> Self {
        Self {
            // A number that no code can have is as good as an unknown one.
            code: ErrorCode::from_number(u16::try_from(error.code).unwrap_or(u16::MAX)),
            retryable: error.retryable,
            maybe_written: error.maybe_written,
            text: error.text,
            expected_sequence: error.expected_sequence,
            record_index: error.record_index,
            limit: error.limit,
            cursor: error.cursor.and_then(|cursor| cursor.cursor()),
            retry_after_ms: error.retry_after_ms,
        }
    }
}

/// Conversions in both directions of types whose fields are the same.
macro_rules! same_fields {
    ($name:ident: $($field:ident),+) => {
        impl From<$name> for v1::$name {
            fn from(it: $name) -> Self {
                Self { $($field: it.$field),+ }
            }
        }

        impl From<v1::$name> for $name {
            fn from(it: v1::$name) -> Self {
                Self { $($field: it.$field),+ }
            }
        }
    };
}

same_fields!(Accepted: first_seq, first_offset, count, epoch, duplicate);
same_fields!(EpochStart: epoch, first_offset);

impl From<Watermark> for v1::Watermark {
    fn from(mark: Watermark) -> Self {
        Self {
            epoch: mark.epoch,
            epoch_first_offset: mark.epoch_first_offset,
            level: v1::AckLevel::from(mark.level).into(),
            offset: mark.offset,
            flush_id: mark.request_id,
        }
    }
}

impl v1::Watermark {
    /// The watermark; nothing when its level is not one that has a watermark.
    #[must_use]
    pub fn watermark(&self) -> Option<Watermark> {
        let level = self.level().level().filter(|level| *level >= AckLevel::Received)?;
        Some(Watermark {
            request_id: self.flush_id,
            epoch: self.epoch,
            epoch_first_offset: self.epoch_first_offset,
            level,
            offset: self.offset,
        })
    }
}

impl From<Refused> for v1::Refused {
    fn from(refused: Refused) -> Self {
        Self { first_seq: refused.first_seq, count: refused.count, error: Some(refused.error.into()) }
    }
}

impl From<v1::Refused> for Refused {
    fn from(refused: v1::Refused) -> Self {
        let error = refused.error.map_or_else(|| ErrorInfo::new(ErrorCode::Other(0), ""), Into::into);
        Self { first_seq: refused.first_seq, count: refused.count, error }
    }
}

impl From<LastStored> for v1::LastStored {
    fn from(last: LastStored) -> Self {
        Self { sequence: last.sequence, offset: last.offset, level: v1::AckLevel::from(last.level).into() }
    }
}

impl From<&PeerMeta> for v1::PeerMeta {
    fn from(peer_meta: &PeerMeta) -> Self {
        Self {
            transport: peer_meta.transport.map(Transport::code),
            pid: peer_meta.pid,
            pid_start: peer_meta.pid_start,
            uid: peer_meta.uid,
            gid: peer_meta.gid,
            address: peer_meta.address.map(|address| address.to_string()),
            identity: peer_meta.identity.clone(),
            forwarded: peer_meta.path.as_ref().zip(peer_meta.origin.as_ref()).map(Into::into),
        }
    }
}

impl From<(&Path, &FirstOrigin)> for v1::ForwardedFrom {
    fn from((path, origin): (&Path, &FirstOrigin)) -> Self {
        Self {
            path: path.logs.iter().map(|id| Bytes::copy_from_slice(id.as_bytes())).collect(),
            stream: path.stream.as_str().to_owned(),
            log_id: Bytes::copy_from_slice(origin.log_id.as_bytes()),
            epoch: origin.epoch,
            first_offset: origin.first_offset,
            append_time: origin.append_time,
            producer_id: Bytes::copy_from_slice(origin.producer_id.as_bytes()),
            producer_epoch: origin.producer_epoch,
            first_seq: origin.first_seq,
            peer_meta: Bytes::copy_from_slice(&origin.peer_meta),
        }
    }
}

impl v1::ForwardedFrom {
    /// The way and the first origin; nothing where they are none.
    #[must_use]
    pub fn parts(&self) -> Option<(Path, FirstOrigin)> {
        let id = |bytes: &Bytes| <[u8; 16]>::try_from(&bytes[..]).ok();
        let logs: Option<Vec<LogId>> = self.path.iter().map(|log| id(log).map(LogId::from_bytes)).collect();
        let path = Path { logs: logs?, stream: StreamName::new(&self.stream)? };
        let origin = FirstOrigin {
            log_id: LogId::from_bytes(id(&self.log_id)?),
            epoch: self.epoch,
            first_offset: self.first_offset,
            append_time: self.append_time,
            producer_id: ProducerId::from_bytes(id(&self.producer_id)?),
            producer_epoch: self.producer_epoch,
            first_seq: self.first_seq,
            peer_meta: self.peer_meta.to_vec(),
        };
        Some((path, origin))
    }
}

impl From<GapReason> for v1::GapReason {
    fn from(reason: GapReason) -> Self {
        match reason {
            GapReason::Retention => Self::Retention,
            GapReason::Damage => Self::Damage,
        }
    }
}
