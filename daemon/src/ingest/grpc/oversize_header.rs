//! Header fields of an append that is too long to be taken: read while its bytes come and go, none of which is stored.
//!
//! Invariants: memory and work do not grow with its content. Where it is no append, or not protobuf, that is known at
//! the end, and then the refusal cannot say which append it was.

use clad_proto::AckLevel;
use clad_proto::grpc::v1;

/// Header fields, known when all of it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OversizeHeader {
    pub(super) first_seq: u64,
    /// Nothing where it is not stated or not known.
    pub(super) level: Option<AckLevel>,
    pub(super) records: u32,
}

/// The messages that are looked into, from the outside in.
const REQUEST: usize = 0;
const APPEND: usize = 1;
const SCOPE: usize = 3;

/// Field of each that holds the next: the append in a request, its logs in that, then a scope, then a record.
const INNER: [u64; 4] = [2, 4, 2, 2];

/// Part that the next byte belongs to.
#[derive(Clone, Copy)]
enum At {
    Key,
    Varint { field: u64 },
    Len { field: u64 },
    Skip(u64),
}

/// Reads an encoded `AppendRequest` in whatever pieces it comes.
pub(super) struct OversizeHeaderParser {
    at: At,
    /// The number that is being read, and how many bits of it are there.
    number: u64,
    bits: u32,
    /// Number of bytes that have come, and where each message that is open ends.
    position: u64,
    ends: [u64; 4],
    depth: usize,
    /// It is no protobuf, or not of those that are looked into.
    lost: bool,
    /// The field of the request that came last: a oneof, of which the last counts.
    kind: u64,
    found: OversizeHeader,
}

impl OversizeHeaderParser {
    /// A parser for a message of this length.
    pub(super) const fn new(len: u64) -> Self {
        let found = OversizeHeader { first_seq: 0, level: None, records: 0 };
        Self {
            at: At::Key,
            number: 0,
            bits: 0,
            position: 0,
            ends: [len; 4],
            depth: REQUEST,
            lost: false,
            kind: 0,
            found,
        }
    }

    /// Number of bytes still to come.
    pub(super) const fn left(&self) -> u64 {
        self.ends[REQUEST] - self.position
    }

    /// The next bytes; never more than are [left](Self::left).
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let step = match self.at {
                _ if self.lost => bytes.len(),
                At::Skip(left) => bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)),
                _ => {
                    self.position += 1;
                    bytes = rest;
                    self.number(byte);
                    self.close();
                    continue;
                }
            };
            self.position += step as u64;
            bytes = bytes.get(step..).unwrap_or_default();
            if let At::Skip(left) = &mut self.at {
                *left = left.saturating_sub(step as u64);
                if *left == 0 {
                    self.at = At::Key;
                }
            }
            self.close();
        }
    }

    /// Its header fields; nothing where it is no append.
    pub(super) fn found(&self) -> Option<OversizeHeader> {
        let whole = self.left() == 0 && self.bits == 0 && matches!(self.at, At::Key);
        (self.kind == INNER[REQUEST] && !self.lost && whole).then_some(self.found)
    }

    /// Leaves the messages that end here.
    fn close(&mut self) {
        while self.depth > REQUEST && self.position >= self.ends[self.depth] {
            self.lost |= self.position > self.ends[self.depth] || !matches!(self.at, At::Key) || self.bits > 0;
            self.depth -= 1;
        }
    }

    fn number(&mut self, byte: u8) {
        if self.bits > 63 {
            self.lost = true;
            return;
        }
        self.number |= u64::from(byte & 0x7F) << self.bits;
        self.bits += 7;
        if byte & 0x80 == 0 {
            let number = std::mem::take(&mut self.number);
            self.bits = 0;
            self.at = self.field(number);
        }
    }

    /// State after a number that is whole.
    fn field(&mut self, number: u64) -> At {
        match self.at {
            At::Key => match (number >> 3, number & 7) {
                (field, 0) => At::Varint { field },
                (_, 1) => At::Skip(8),
                (field, 2) => At::Len { field },
                (_, 5) => At::Skip(4),
                _ => {
                    self.lost = true; // groups are of an older protobuf
                    At::Key
                }
            },
            At::Varint { field } => {
                match (self.depth, field) {
                    (APPEND, 1) => self.found.first_seq = number,
                    (APPEND, 2) => {
                        let level = v1::AckLevel::try_from(number as i32);
                        self.found.level = level.ok().and_then(v1::AckLevel::level);
                    }
                    _ => {}
                }
                At::Key
            }
            At::Len { field } => self.message(field, number),
            At::Skip(_) => At::Key,
        }
    }

    fn message(&mut self, field: u64, len: u64) -> At {
        let Some(end) = self.position.checked_add(len).filter(|end| *end <= self.ends[self.depth]) else {
            self.lost = true;
            return At::Key;
        };
        if self.depth == REQUEST && (1..=4).contains(&field) && field != self.kind {
            // It continues one of its own kind; after another it is a new one.
            self.kind = field;
            self.found = OversizeHeader::default();
        }
        if self.depth == SCOPE && field == INNER[SCOPE] {
            self.found.records = self.found.records.saturating_add(1);
        } else if field == INNER[self.depth] {
            self.depth += 1;
            self.ends[self.depth] = end;
            return At::Key;
        }
        if len == 0 { At::Key } else { At::Skip(len) }
    }
}

#[cfg(test)]
mod tests {
    use clad_proto::grpc::{Asked, opentelemetry::proto::logs::v1 as logs};
    use prost::Message;
    use v1::append_request::Message as Request;

    use super::*;

    fn request(message: Request) -> Vec<u8> {
        v1::AppendRequest { message: Some(message) }.encode_to_vec()
    }

    fn append(first_seq: u64, level: i32, records: usize) -> Vec<u8> {
        let record = logs::LogRecord { time_unix_nano: 9, flags: 3, event_name: "x".repeat(200), ..Default::default() };
        let scope =
            logs::ScopeLogs { log_records: vec![record; records], schema_url: "u".into(), ..Default::default() };
        let resource = Some(Default::default());
        let resource_logs = Some(logs::ResourceLogs { scope_logs: vec![scope], resource, ..Default::default() });
        request(Request::Append(v1::Append { first_seq, level, gap: true, resource_logs }))
    }

    fn oversize_header(bytes: &[u8], piece: usize) -> Option<OversizeHeader> {
        let mut oversize_header = OversizeHeaderParser::new(bytes.len() as u64);
        bytes.chunks(piece).for_each(|piece| oversize_header.read(piece));
        oversize_header.found()
    }

    /// Header fields of an append that is not too long.
    fn asked(bytes: &[u8]) -> OversizeHeader {
        let Ok(Some(Asked::Append(append))) = Asked::parse(bytes) else { panic!("an append") };
        OversizeHeader { first_seq: append.first_seq, level: append.level, records: append.logs.count() }
    }

    #[test]
    fn an_append_says_who_it_is_however_it_comes() {
        for (first_seq, level, records) in [(0, 5, 3), (u64::MAX - 9, 1, 1), (1 << 40, 0, 100), (7, 77, 0)] {
            let bytes = append(first_seq, level, records);
            let level = v1::AckLevel::try_from(level).ok().and_then(v1::AckLevel::level);
            let right = OversizeHeader { first_seq, level, records: records as u32 };
            for piece in [1, 2, 3, 7, 64, 1000, bytes.len()] {
                assert_eq!(oversize_header(&bytes, piece), Some(right), "in pieces of {piece}");
            }
            // Fields in another order, and an unknown one.
            let late = request(Request::Append(v1::Append { first_seq: 5, ..Default::default() }));
            let both = [&bytes[..], &[0x7A, 2, 1, 1], &late].concat();
            assert_eq!(oversize_header(&both, 11), Some(OversizeHeader { first_seq: 5, ..right }));
        }
    }

    #[test]
    fn what_is_none_is_known_at_the_end() {
        let hello = request(Request::Hello(v1::Hello { name: "n".repeat(300), ..Default::default() }));
        let one = append(1, 5, 2);
        assert_eq!(oversize_header(&hello, 10), None);
        assert_eq!(oversize_header(&[&one[..], &hello].concat(), 10), None, "what came last counts");
        assert_eq!(oversize_header(&[&hello[..], &one].concat(), 10).map(|found| found.records), Some(2));
        // As `Asked` has it: what was overwritten is gone, also where one of the same kind comes again.
        let bare = request(Request::Append(v1::Append::default()));
        let flush = request(Request::Flush(v1::Flush { id: 9, level: 5 }));
        for between in [&hello, &flush, &request(Request::Bye(v1::Bye {}))] {
            let again = [&one[..], between, &bare].concat();
            let right = asked(&again);
            assert_eq!(right, OversizeHeader::default());
            assert_eq!(oversize_header(&again, 7), Some(right));
        }
        let late = append(u64::MAX, 1, 4);
        for parts in [[&one[..], &flush, &late].concat(), [&one[..], &late, &bare].concat()] {
            assert_eq!(oversize_header(&parts, 7), Some(asked(&parts)));
        }
        assert_eq!(oversize_header(&one[..one.len() - 1], 10), None, "cut short");
        assert_eq!(oversize_header(&[0xFF; 100], 10), None);
        assert_eq!(oversize_header(&[0x13, 0x14], 10), None);
        for at in 0..one.len() {
            for byte in [0, 0x0C, 0x7F, 0x80, 0xFF] {
                let mut bad = one.clone();
                bad[at] = byte;
                let whole = oversize_header(&bad, bad.len());
                assert_eq!(oversize_header(&bad, 3), whole);
            }
        }
    }
}
