//! What the load generator appends: payloads that are encoded once and then only stamped.
//!
//! What must hold: every record has a body of exactly the size that was asked for, begins with the id of its connection
//! and its number there (16 hex digits), and goes on with a fixed filling; so a record that is read back says by itself
//! where it belongs, and any changed byte shows.

use clad_proto::frame::{AppendHead, append_prefix};
use clad_proto::limits::RECORD_HEADER_BYTES;
use clad_proto::{AckLevel, Body, EncodeError, Group, PayloadBuilder, Severity, payload_checksum};

/// Length of an id: the least that a body can have.
pub(super) const ID: usize = 16;
/// Digits of the connection's number in it.
const CONNECTION: usize = 4;
/// Where the time stands in a record.
const TIME_AT: usize = 8;

/// Which record it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    /// Number of the connection.
    pub(super) connection: u16,
    /// Number of the record there: its sequence.
    pub(super) record: u64,
}

/// An append that wants only its stamps.
#[derive(Debug, Clone)]
pub(super) struct Template {
    payload: Vec<u8>,
    group: usize,
    size: usize,
    records: u32,
}

impl Template {
    /// Appends of `records` records with bodies of `size` bytes.
    pub(super) fn new(size: usize, records: u32, max_append: u32, max_record: u32) -> Result<Self, EncodeError> {
        let mut builder = PayloadBuilder::with_limits(&Group::component_named("clactl-bench"), max_append, max_record)?;
        let group = builder.len();
        let body = filling(size);
        for _ in 0..records {
            builder.push_body(0, 0, Severity::INFO.0, Body::Text(&body))?;
        }
        Ok(Self { payload: builder.finish().bytes.to_vec(), group, size, records })
    }

    /// Adds an APPEND frame whose first record has this id.
    pub(super) fn stamp(&self, out: &mut Vec<u8>, first: Id, level: AckLevel, now: u64) {
        let prefix_at = out.len();
        let blank = AppendHead { first_seq: 0, count: 0, level, gap: false, payload_crc: 0 };
        out.extend_from_slice(&append_prefix(&blank, 0));
        let payload_at = out.len();
        out.extend_from_slice(&self.payload);
        let payload = out.get_mut(payload_at..).unwrap_or_default();
        let records = payload.get_mut(self.group..).unwrap_or_default();
        for (number, record) in (first.record..).zip(records.chunks_exact_mut(RECORD_HEADER_BYTES + self.size)) {
            put(record, TIME_AT, &now.to_le_bytes());
            put(record, RECORD_HEADER_BYTES, &Id { record: number, ..first }.digits());
        }
        let head = AppendHead {
            first_seq: first.record,
            count: self.records,
            level,
            // A load generator goes on after a refusal; what was refused is counted, not sent again.
            gap: true,
            payload_crc: payload_checksum(payload),
        };
        let prefix = append_prefix(&head, self.payload.len() as u32);
        put(out, prefix_at, &prefix);
    }
}

fn put(place: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = place.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// A body whose id is not stamped yet.
pub(super) fn filling(size: usize) -> String {
    ('!'..='~').cycle().take(size).collect()
}

impl Id {
    fn digits(self) -> [u8; ID] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let value = u64::from(self.connection) << 48 | (self.record & 0xFFFF_FFFF_FFFF);
        std::array::from_fn(|at| DIGITS[(value >> (60 - 4 * at) & 0xF) as usize])
    }

    /// The id of a body, when the rest of the body is the filling.
    pub(super) fn of_body(body: &[u8], filling: &[u8]) -> Option<Self> {
        if body.len() != filling.len() || body.get(ID..) != filling.get(ID..) {
            return None;
        }
        let text = std::str::from_utf8(body.get(..ID)?).ok()?;
        let (connection, record) = text.split_at_checked(CONNECTION)?;
        let id = Self {
            connection: u16::from_str_radix(connection, 16).ok()?,
            record: u64::from_str_radix(record, 16).ok()?,
        };
        (id.digits() == text.as_bytes()).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use clad_proto::PayloadView;
    use clad_proto::frame::{Frame, peek};

    use super::*;

    #[test]
    fn a_stamped_append_is_what_a_daemon_takes() {
        let template = Template::new(128, 3, 1 << 20, 1 << 20).expect("small");
        let mut out = b"before".to_vec();
        template.stamp(&mut out, Id { connection: 5, record: 900 }, AckLevel::Durable, 77);
        let raw = peek(&out[6..], 1 << 20).expect("a frame").expect("a whole one");
        assert_eq!(raw.total_len(), out.len() - 6);
        let Ok(Frame::Append(append)) = raw.decode() else { panic!("an append") };
        assert!(append.checksum_holds() && append.head.gap);
        assert_eq!((append.head.first_seq, append.head.count, append.head.level), (900, 3, AckLevel::Durable));
        let view = PayloadView::parse(&append.payload, 3).expect("in the encoding");
        assert_eq!(view.group().component(), Some("clactl-bench"));
        let filling = filling(128);
        for (number, record) in (900..).zip(view.records()) {
            let body = record.body_bytes().expect("a text");
            assert_eq!(Id::of_body(body, filling.as_bytes()), Some(Id { connection: 5, record: number }));
            assert_eq!((record.time_unix_nano(), body.len()), (77, 128));
        }
    }

    #[test]
    fn a_changed_byte_shows() {
        let filling = filling(32);
        let mut body = filling.clone().into_bytes();
        put(&mut body, 0, &Id { connection: 0xABCD, record: 0xFFFF_FFFF_FFFF }.digits());
        assert!(Id::of_body(&body, filling.as_bytes()).is_some());
        for at in 0..body.len() {
            let mut bad = body.clone();
            bad[at] = b'~' + 1;
            assert_eq!(Id::of_body(&bad, filling.as_bytes()), None, "{at}");
        }
        assert_eq!(Id::of_body(&body[..31], filling.as_bytes()), None);
        assert_eq!(Id::of_body(b"+000000000000000", &filling.as_bytes()[..ID]), None);
    }
}
