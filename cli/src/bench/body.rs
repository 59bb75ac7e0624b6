//! Payloads of the load generator: they are encoded once, and then only get their timestamp.
//!
//! Invariants: every record has a body of exactly the size that was asked for, begins with the id of its connection
//! and its number there (16 hex digits), and goes on with a fixed filling; so a record that is read back says by itself
//! where it belongs, and any changed byte shows.

use clad_proto::frame::{AppendHead, append_prefix};
use clad_proto::limits::{APPEND_HEADER_BYTES, FRAME_HEADER_BYTES, RECORD_HEADER_BYTES};
use clad_proto::{AckLevel, Body, EncodeError, Group, PayloadBuilder, Severity, payload_checksum};

/// Length of an id: the least that a body can have.
pub(super) const ID: usize = 16;
/// Digits of the connection's number in it.
const CONNECTION: usize = 4;
/// Where the payload stands in a frame.
const PAYLOAD_AT: usize = FRAME_HEADER_BYTES + APPEND_HEADER_BYTES;
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
    /// The whole frame, with its header; the fixed part of its body is blank.
    frame: Vec<u8>,
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
        let payload = builder.finish().bytes;
        let blank = AppendHead { first_seq: 0, count: 0, level: AckLevel::None, gap: false, payload_crc: 0 };
        let mut frame = append_prefix(&blank, payload.len() as u32).to_vec();
        frame.extend_from_slice(&payload);
        Ok(Self { frame, group, size, records })
    }

    /// Adds so many APPEND frames, the first record of the first of them with this id, the others following.
    pub(super) fn write_timestamped(&self, out: &mut Vec<u8>, first: Id, appends: usize, level: AckLevel, now: u64) {
        let begin = out.len();
        out.reserve(appends * self.frame.len());
        for _ in 0..appends {
            out.extend_from_slice(&self.frame);
        }
        let frames = out.get_mut(begin..).unwrap_or_default();
        let mut number = first.record;
        for frame in frames.chunks_exact_mut(self.frame.len()) {
            let records = frame.get_mut(PAYLOAD_AT + self.group..).unwrap_or_default();
            for record in records.chunks_exact_mut(RECORD_HEADER_BYTES + self.size) {
                put(record, TIME_AT, &now.to_le_bytes());
                put(record, RECORD_HEADER_BYTES, &Id { record: number, ..first }.digits());
                number += 1;
            }
        }
        // In a second pass: a checksum over what was written just now would wait for it to arrive in the cache.
        let mut first_seq = first.record;
        for frame in frames.chunks_exact_mut(self.frame.len()) {
            let head = AppendHead {
                first_seq,
                count: self.records,
                level,
                // A load generator goes on after a refusal; what was refused is counted, not sent again.
                gap: true,
                payload_crc: payload_checksum(frame.get(PAYLOAD_AT..).unwrap_or_default()),
            };
            if let Some(place) = frame.get_mut(FRAME_HEADER_BYTES..).and_then(|body| body.first_chunk_mut()) {
                head.put(place);
            }
            first_seq += u64::from(self.records);
        }
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

/// Eight hex digits, all at once: there is an id in every record, and byte by byte it would be a good part of the work.
fn hex(value: u32) -> [u8; 8] {
    // One digit a byte, the lowest in the lowest byte.
    let mut x = u64::from(value);
    x = (x & 0xFFFF) | (x & 0xFFFF_0000) << 16;
    x = (x & 0x0000_00FF_0000_00FF) | (x & 0x0000_FF00_0000_FF00) << 8;
    x = (x & 0x000F_000F_000F_000F) | (x & 0x00F0_00F0_00F0_00F0) << 4;
    let letters = ((x + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    let letter = u64::from(b'a' - b'0' - 10);
    (x + 0x3030_3030_3030_3030 + letters * letter).to_be_bytes()
}

impl Id {
    fn digits(self) -> [u8; ID] {
        let value = u64::from(self.connection) << 48 | (self.record & 0xFFFF_FFFF_FFFF);
        let mut digits = [0; ID];
        digits[..8].copy_from_slice(&hex((value >> 32) as u32));
        digits[8..].copy_from_slice(&hex(value as u32));
        digits
    }

    /// Puts it at the beginning of a body.
    pub(super) fn write_to(self, body: &mut String) {
        let digits = self.digits();
        if let Ok(digits) = std::str::from_utf8(&digits) {
            body.replace_range(..ID, digits);
        }
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
    fn a_timestamped_append_is_what_a_daemon_takes() {
        let template = Template::new(128, 3, 1 << 20, 1 << 20).expect("small");
        let mut out = b"before".to_vec();
        template.write_timestamped(&mut out, Id { connection: 5, record: 900 }, 2, AckLevel::Durable, 77);
        let filling = filling(128);
        let mut rest = &out[6..];
        for first in [900, 903] {
            let raw = peek(rest, 1 << 20).expect("a frame").expect("a whole one");
            rest = &rest[raw.total_len()..];
            let Ok(Frame::Append(append)) = raw.decode() else { panic!("an append") };
            assert!(append.checksum_holds() && append.head.gap);
            let head = append.head;
            assert_eq!((head.first_seq, head.count, head.level), (first, 3, AckLevel::Durable));
            let view = PayloadView::parse(&append.payload, 3).expect("in the encoding");
            assert_eq!(view.group().component(), Some("clactl-bench"));
            for (number, record) in (first..).zip(view.records()) {
                let body = record.body_bytes().expect("a text");
                assert_eq!(Id::of_body(body, filling.as_bytes()), Some(Id { connection: 5, record: number }));
                assert_eq!((record.time_unix_nano(), body.len()), (77, 128));
            }
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn hex_digits_are_those_of_the_standard_library() {
        for shift in 0..32 {
            for value in [1u32 << shift, u32::MAX >> shift, 0x0123_4567_u32.rotate_left(shift), 0x89AB_CDEF >> shift] {
                assert_eq!(hex(value), format!("{value:08x}").as_bytes(), "{value}");
            }
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
