//! Faults of bytes that claim to be a payload, and obstacles to making a payload.

use crate::{
    error::{ErrorCode, ErrorInfo},
    limits::MAX_NESTING_DEPTH,
};

/// Fault of one record, group or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes end too early.
    #[error("it ends inside {0}")]
    Truncated(&'static str),
    /// Longer than the limit that holds for it.
    #[error("it is {len} bytes long, the limit is {max}")]
    TooLarge {
        /// Its length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// Its length is smaller than its own header.
    #[error("it says that it is {0} bytes long, which is less than its header")]
    TooShort(u32),
    /// A LEB128 number that is not in its shortest form or does not fit.
    #[error("a number in {0} is not a LEB128 number in its shortest form, or does not fit its type")]
    Number(&'static str),
    /// Text that is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// Lists inside lists beyond [`MAX_NESTING_DEPTH`].
    #[error("its values are nested more than {MAX_NESTING_DEPTH} deep")]
    TooDeep,
    /// A value kind that this version does not know.
    #[error("value kind {0} is unknown")]
    UnknownKind(u8),
    /// Bits that must be zero are not.
    #[error("reserved bits are set")]
    ReservedBits,
    /// The tag 0, a tag below the one before it, or a second field of a tag that occurs once.
    #[error("field {0} is out of order, or there twice")]
    FieldOrder(u8),
    /// A field that must be left out when it holds its default.
    #[error("field {0} holds the value that leaving it out means")]
    DefaultField(u8),
    /// A field whose content is longer than what it says.
    #[error("field {0} has bytes left over")]
    FieldLength(u8),
    /// A resource or scope field in a group that has no resource or scope.
    #[error("field {0} belongs to a resource or scope that is not there")]
    OrphanField(u8),
    /// Bytes after the end of a value.
    #[error("bytes are left over after {0}")]
    LeftOver(&'static str),
}

/// Why the payload of an append is not taken. An append is taken or refused whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// An append has at least one record.
    #[error("an append of no records")]
    Empty,
    /// The count is above the limit.
    #[error("{count} records in one append, the limit is {max}")]
    TooManyRecords {
        /// The count given.
        count: u32,
        /// The limit.
        max: u32,
    },
    /// The group in front of the records is bad.
    #[error("the group of the append is bad: {0}")]
    Group(Fault),
    /// One record is bad.
    #[error("record {index} of the append is bad: {fault}")]
    Record {
        /// Which one, counted from 0.
        index: u32,
        /// The fault found.
        fault: Fault,
    },
    /// More bytes than the counted records.
    #[error("{bytes} bytes follow the last of the {count} counted records")]
    LeftOver {
        /// The count that was said.
        count: u32,
        /// Bytes too many.
        bytes: usize,
    },
}

impl PayloadError {
    /// The record at fault, where it is one record's.
    #[must_use]
    pub const fn record_index(&self) -> Option<u32> {
        match self {
            Self::Record { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// The limit that was passed, where it was one.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        match self {
            Self::Record { fault: Fault::TooLarge { max, .. }, .. } | Self::Group(Fault::TooLarge { max, .. }) => {
                Some(*max)
            }
            Self::TooManyRecords { max, .. } => Some(*max as u64),
            _ => None,
        }
    }

    /// The code that a refusal for this reason carries.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Record { fault: Fault::TooLarge { .. }, .. } => ErrorCode::RecordTooLarge,
            Self::TooManyRecords { .. } | Self::Group(Fault::TooLarge { .. }) => ErrorCode::AppendTooLarge,
            _ => ErrorCode::BadRecord,
        }
    }
}

impl From<PayloadError> for ErrorInfo {
    fn from(error: PayloadError) -> Self {
        Self { record_index: error.record_index(), limit: error.limit(), ..Self::new(error.code(), error.to_string()) }
    }
}

/// Why something was not added to a payload. The payload is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The record alone is too long; no append can carry it.
    #[error("the record is at least {len} bytes long, the limit is {max}")]
    RecordTooLarge {
        /// Its encoded length, or as much of it as was looked at.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// The record would fit into an append of its own; send what is there first.
    #[error("the append is full: with this record it would be {len} bytes in {records} records, the limit is {max}")]
    AppendFull {
        /// Length of the payload with it.
        len: u64,
        /// Records with it.
        records: u32,
        /// The limit that is passed: of the bytes, or else of the records.
        max: u64,
    },
    /// Resource and scope together are too long.
    #[error("resource and scope are at least {len} bytes long, the limit is {max}")]
    GroupTooLarge {
        /// Their encoded length, or as much of it as was looked at.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// Lists inside lists beyond [`MAX_NESTING_DEPTH`].
    #[error("values are nested more than {MAX_NESTING_DEPTH} deep")]
    TooDeep,
    /// Fields are written in ascending order of their tags, each at most once; an unknown field needs an unknown tag.
    #[error("field {0} is written out of order, twice, or under a tag that is not free")]
    FieldOrder(u8),
    /// The input to encode is no protobuf message of its kind. Only for input that comes as one.
    #[error("not protobuf, or not by its .proto file: {0}")]
    NotProtobuf(&'static str),
}
