//! What a message takes in memory once it is decoded, found out before it is.
//!
//! What must hold: the answer is never below what prost allocates for it, so that a short message of countless empty
//! parts (two bytes each on the wire, hundreds in memory) is refused in time; what prost would skip is skipped as prost
//! does it, so that nothing hides behind a field that nobody knows.

use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Messages in each other; prost goes no deeper.
const DEPTH: u32 = 100;

/// The messages that hold others.
#[derive(Clone, Copy)]
enum Kind {
    Request,
    Append,
    ResourceLogs,
    Resource,
    ScopeLogs,
    Scope,
    Record,
    Pair,
    Value,
    Array,
    List,
    Entity,
    /// An element of a list of texts.
    Text,
}

impl Kind {
    /// What a length-delimited field is, if it is something that counts beside its bytes.
    fn of(self, field: u32) -> Option<Self> {
        Some(match (self, field) {
            (Self::Request, 2) => Self::Append,
            (Self::Append, 4) => Self::ResourceLogs,
            (Self::ResourceLogs, 1) => Self::Resource,
            (Self::ResourceLogs, 2) => Self::ScopeLogs,
            (Self::Resource, 3) => Self::Entity,
            (Self::Entity, 3 | 4) => Self::Text,
            (Self::ScopeLogs, 1) => Self::Scope,
            (Self::ScopeLogs, 2) => Self::Record,
            (Self::Record, 5) | (Self::Pair, 2) | (Self::Array, 1) => Self::Value,
            (Self::Resource, 1) | (Self::Scope, 3) | (Self::Record, 6) | (Self::List, 1) => Self::Pair,
            (Self::Value, 5) => Self::Array,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }

    /// Bytes of one in a list. A list that grows has room for as many again.
    fn size(self) -> usize {
        2 * match self {
            Self::ScopeLogs => size_of::<logs::ScopeLogs>(),
            Self::Record => size_of::<logs::LogRecord>(),
            Self::Pair => size_of::<common::KeyValue>(),
            Self::Value => size_of::<common::AnyValue>(),
            Self::Entity => size_of::<common::EntityRef>(),
            Self::Text => size_of::<String>(),
            // There once, or inside of what is counted.
            _ => 0,
        }
    }
}

/// Bytes of memory that an encoded `AppendRequest` takes when it is decoded, as far as it can be.
pub(super) fn weight(message: &[u8]) -> usize {
    let mut sum = message.len();
    add(Kind::Request, message, DEPTH, &mut sum);
    sum
}

/// Nothing where prost would stop, too.
fn add(kind: Kind, mut rest: &[u8], depth: u32, sum: &mut usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    while !rest.is_empty() {
        let (field, wire_type) = decode_key(&mut rest).ok()?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, field, &mut rest, DecodeContext::default()).ok()?;
            continue;
        }
        let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let (content, after) = rest.split_at_checked(len)?;
        rest = after;
        if let Some(inner) = kind.of(field) {
            *sum += inner.size();
            if !matches!(inner, Kind::Text) {
                add(inner, content, depth, sum)?;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use clad_proto::grpc::v1;
    use clad_proto::limits::RECORD_HEADER_BYTES;
    use prost::Message;

    use super::*;
    use crate::grpc::WEIGHT;

    fn request(log_records: Vec<logs::LogRecord>) -> Vec<u8> {
        let scope_logs = vec![logs::ScopeLogs { log_records, ..Default::default() }];
        let resource_logs = Some(logs::ResourceLogs { scope_logs, ..Default::default() });
        let append = v1::Append { resource_logs, ..Default::default() };
        v1::AppendRequest { message: Some(v1::append_request::Message::Append(append)) }.encode_to_vec()
    }

    #[test]
    fn every_empty_part_counts() {
        let pair = common::KeyValue::default();
        let list = common::any_value::Value::KvlistValue(common::KeyValueList { values: vec![pair.clone(); 10] });
        let body = Some(common::AnyValue { value: Some(list) });
        let record = logs::LogRecord { body, attributes: vec![pair; 100], ..Default::default() };
        let bytes = request(vec![record; 10]);
        let pairs = 2 * 1100 * size_of::<common::KeyValue>();
        let records = 2 * 10 * size_of::<logs::LogRecord>();
        assert!(weight(&bytes) >= pairs + records + bytes.len());
        assert!(weight(&bytes) < 2 * (pairs + records + bytes.len()));
    }

    #[test]
    fn nothing_hides_behind_what_nobody_knows() {
        let plain = request(vec![logs::LogRecord::default(); 1000]);
        // Field 15: a group with a varint in it, then a number, then the message.
        let mut hidden = vec![0x7B, 0x08, 0x01, 0x7C, 0x78, 0x05];
        hidden.extend(&plain);
        assert!(weight(&hidden) >= weight(&plain));
        assert!(weight(&plain[..plain.len() - 1]) < weight(&plain), "a cut message is weighed as far as it goes");
    }

    #[test]
    fn the_smallest_records_weigh_no_more_than_is_allowed() {
        assert!(Kind::Record.size() + 8 <= WEIGHT * RECORD_HEADER_BYTES, "{}", Kind::Record.size());
    }
}
