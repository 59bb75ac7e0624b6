//! The footer: it proves a segment, and saves a start from reading it.
//!
//! Written only after the segment's data is synced, under every policy, and synced before `durable` passes into the
//! next segment. So a valid footer proves every batch it covers. It starts on a block, ends the file, and the last 32
//! bytes of the file lead back to it:
//!
//! ```text
//! head (96 bytes)   0 magic "CLADFTR\0"   8 length u32 (all of it)   12 sections u16   14 flags u16
//!                  16 segment u64   24 epoch u32   28 checksum of the last batch u32
//!                  32 first offset u64   40 end offset u64   48 end of data u64
//!                  56 least, 64 greatest record time i64   72 greatest append time i64 (real)
//!                  80 payload bytes u64   88 reserved u32   92 checksum u32 (bytes 0..92)
//! sections         type u16, flags u16, length u32, checksum u32 (of the 8 bytes before and the bytes after),
//!                  then the bytes, then zeroes up to 8
//! zeroes           up to the block
//! trailer          position of the footer u64, its length u32, checksum of the head u32, zero u32,
//!                  checksum u32 (of the 20 bytes before), magic "CLADEND\0"
//! ```
//! Sections: 1 index, 2 producers, 3 damage, 4 the segment before, 5 supersedes, 6 forgotten, 7 bytes by owner, 8
//! appends that may be sent again, 9 origins. An unknown one is skipped.

use super::batch::BatchHeader;
use super::bytes::{get, i64_at, put, u16_at, u32_at, u64_at};
use super::checksum::Seed;
use super::origin::{ENTRY_BYTES as ORIGIN_ENTRY, OriginEntry};
use super::resend::{ResendEntry, ResendKey};

/// Owners of which a footer says how much they hold: the largest.
pub(crate) const FOOTER_OWNERS_MAX: usize = 256;

/// Bytes of data between two entries of the sparse index.
pub(crate) const INDEX_EVERY: u64 = 64 * 1024;

/// First bytes of a footer.
pub const MAGIC: [u8; 8] = *b"CLADFTR\0";
/// Last bytes of a sealed segment.
pub const TRAILER_MAGIC: [u8; 8] = *b"CLADEND\0";
/// Bytes of the head.
pub const HEAD: usize = 96;
/// Bytes of the trailer.
pub const TRAILER: usize = 32;
const SECTION_HEAD: usize = 12;
const INDEX: u16 = 1;
const PRODUCERS: u16 = 2;
const DAMAGE: u16 = 3;
const BEFORE: u16 = 4;
const SUPERSEDES: u16 = 5;
const FORGOTTEN: u16 = 6;
const OWNERS: u16 = 7;
/// Bytes of an entry of section 7.
const OWNER_ENTRY: usize = 16;
const RESENDS: u16 = 8;
/// Bytes of an entry of section 8.
const RESEND_ENTRY: usize = 36;
const ORIGINS: u16 = 9;

/// One step of the sparse index: from here to the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// First offset of the batch at `position`.
    pub first_offset: u64,
    /// Position of that batch in the file.
    pub position: u64,
    /// Least record time up to the next entry.
    pub min_time_ns: i64,
    /// Greatest record time up to the next entry.
    pub max_time_ns: i64,
}

/// State of one producer in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// The producer's id.
    pub id: [u8; 16],
    /// Owner that may use it.
    pub owner: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Time of its last append, real time.
    pub last_active_ns: i64,
    /// Its last appends, oldest first.
    pub appends: Vec<StoredRange>,
    /// Sequences below it were stored, or skipped, so long ago that nothing more is known of them. A sequence that is
    /// missing from there on is not in the log.
    pub forgotten_below: u64,
}

impl ProducerEntry {
    /// Value of `forgotten_below` where a footer has none.
    fn usually_forgotten_below(appends: &[StoredRange]) -> u64 {
        appends.first().map_or(0, |r| r.first_sequence)
    }
}

/// Consecutive sequences at consecutive offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRange {
    /// First sequence.
    pub first_sequence: u64,
    /// First offset.
    pub first_offset: u64,
    /// Records.
    pub count: u32,
}

/// Offsets that cannot be read any more, `from` to `to` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// First lost offset.
    pub from: u64,
    /// One past the last.
    pub to: u64,
}

impl Damage {
    /// Returns true if any of these offsets is in it.
    pub fn hits(&self, from: u64, to: u64) -> bool {
        self.from < to && from < self.to
    }
}

/// Names the segment before, in its state when this one was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its number.
    pub number: u64,
    /// Checksum of its footer's head.
    pub footer_checksum: u32,
    /// Checksum of its last batch.
    pub last_batch_checksum: u32,
}

/// A footer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The segment's number.
    pub segment: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Checksum of its last batch, 0 when it holds none.
    pub last_batch_checksum: u32,
    /// Offset of its first record.
    pub first_offset: u64,
    /// One past its last; equal to the first when it holds none.
    pub end_offset: u64,
    /// End of its batches in the file.
    pub data_end: u64,
    /// Least record time; greater than the greatest when it holds none.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// Greatest append time, real.
    pub max_append_ns: i64,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// Bytes of batches by owner, in the order of the owners; empty where the footer predates this section.
    pub owners: Vec<(u64, u64)>,
    /// Appends that are remembered by a resend key, in the order of their offsets.
    pub resends: Vec<ResendEntry>,
    /// Origins that forward to this log, in the order of owner and producer id.
    pub origins: Vec<OriginEntry>,
    /// Sparse index.
    pub index: Vec<IndexEntry>,
    /// Live producers at its end.
    pub producers: Vec<ProducerEntry>,
    /// Offsets that could not be read when it was sealed.
    pub damage: Vec<Damage>,
    /// The segment before.
    pub before: Option<Before>,
    /// Set when this segment repeats, and supersedes, the content of earlier ones from this offset on.
    pub supersedes_from: Option<u64>,
}

impl Footer {
    /// The footer of a segment that holds no batch yet.
    pub(crate) fn new(segment: u64, epoch: u32, first_offset: u64, before: Option<Before>) -> Self {
        let (min_time_ns, max_time_ns, max_append_ns) = (i64::MAX, i64::MIN, i64::MIN);
        let end_offset = first_offset;
        Self {
            segment,
            epoch,
            first_offset,
            end_offset,
            min_time_ns,
            max_time_ns,
            max_append_ns,
            before,
            ..Self::default()
        }
    }

    /// Adds a batch of records, behind all others.
    pub(crate) fn add(&mut self, h: &BatchHeader, position: u64, checksum: u32) {
        (self.last_batch_checksum, self.end_offset) = (checksum, h.end_offset());
        let (min_time_ns, max_time_ns) = (h.min_time_ns, h.max_time_ns);
        self.min_time_ns = self.min_time_ns.min(min_time_ns);
        self.max_time_ns = self.max_time_ns.max(max_time_ns);
        self.max_append_ns = self.max_append_ns.max(h.append_real_ns);
        match self.index.last_mut() {
            Some(e) if position - e.position < INDEX_EVERY => {
                e.min_time_ns = e.min_time_ns.min(min_time_ns);
                e.max_time_ns = e.max_time_ns.max(max_time_ns);
            }
            _ => self.index.push(IndexEntry { first_offset: h.first_offset, position, min_time_ns, max_time_ns }),
        }
    }

    /// The name of this segment in the footer of the next.
    pub(crate) fn as_before(&self, footer_checksum: u32) -> Before {
        Before { number: self.segment, footer_checksum, last_batch_checksum: self.last_batch_checksum }
    }

    /// Lost offsets, without those lost in missing earlier segments (unless it `follows` on the one before): these come
    /// back when their files are put back, which is allowed.
    pub fn lost_here(&self, follows: bool) -> impl Iterator<Item = Damage> {
        self.damage.iter().copied().filter(move |lost| follows || lost.from != self.first_offset)
    }

    /// The same, by its own record of the segment before it: if that one was there when it was sealed.
    pub fn lost_of_its_own(&self) -> impl Iterator<Item = Damage> {
        self.lost_here(self.before.map_or(self.segment == 0, |before| before.number + 1 == self.segment))
    }

    /// The footer's bytes for a file where it starts at `pos`, a multiple of `block`; and the head's checksum.
    pub fn encode(&self, seed: &Seed, pos: u64, block: usize) -> (Vec<u8>, u32) {
        let mut b = vec![0; HEAD];
        let mut sections = 0u16;
        let mut push = |kind: u16, bytes: Vec<u8>| {
            let at = b.len();
            b.extend_from_slice(&kind.to_le_bytes());
            b.extend_from_slice(&0u16.to_le_bytes());
            b.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            let crc = seed.sum(pos + at as u64, &[&b[at..], &bytes]);
            b.extend_from_slice(&crc.to_le_bytes());
            b.extend_from_slice(&bytes);
            b.resize(b.len().next_multiple_of(8), 0);
            sections += 1;
        };
        push(INDEX, encode_index(&self.index));
        push(PRODUCERS, encode_producers(&self.producers));
        if !self.damage.is_empty() {
            push(
                DAMAGE,
                self.damage.iter().flat_map(|d| [d.from.to_le_bytes(), d.to.to_le_bytes()]).flatten().collect(),
            );
        }
        if let Some(before) = self.before {
            let mut s = before.number.to_le_bytes().to_vec();
            s.extend_from_slice(&before.footer_checksum.to_le_bytes());
            s.extend_from_slice(&before.last_batch_checksum.to_le_bytes());
            push(BEFORE, s);
        }
        if let Some(from) = self.supersedes_from {
            push(SUPERSEDES, from.to_le_bytes().to_vec());
        }
        let forgotten = encode_forgotten(&self.producers);
        if !forgotten.is_empty() {
            push(FORGOTTEN, forgotten);
        }
        if !self.owners.is_empty() {
            let entry = |(owner, bytes): &(u64, u64)| [owner.to_le_bytes(), bytes.to_le_bytes()];
            push(OWNERS, self.owners.iter().flat_map(entry).flatten().collect());
        }
        if !self.resends.is_empty() {
            push(RESENDS, encode_resends(&self.resends));
        }
        if !self.origins.is_empty() {
            let mut s = Vec::with_capacity(self.origins.len() * ORIGIN_ENTRY);
            self.origins.iter().for_each(|origin| origin.encode(&mut s));
            push(ORIGINS, s);
        }
        let len = (b.len() + TRAILER).next_multiple_of(block);
        b.resize(len, 0);
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, (len as u32).to_le_bytes());
        put(&mut b, 12, sections.to_le_bytes());
        put(&mut b, 16, self.segment.to_le_bytes());
        put(&mut b, 24, self.epoch.to_le_bytes());
        put(&mut b, 28, self.last_batch_checksum.to_le_bytes());
        put(&mut b, 32, self.first_offset.to_le_bytes());
        put(&mut b, 40, self.end_offset.to_le_bytes());
        put(&mut b, 48, self.data_end.to_le_bytes());
        put(&mut b, 56, self.min_time_ns.to_le_bytes());
        put(&mut b, 64, self.max_time_ns.to_le_bytes());
        put(&mut b, 72, self.max_append_ns.to_le_bytes());
        put(&mut b, 80, self.payload_bytes.to_le_bytes());
        let head = seed.sum(pos, &[&b[..92]]);
        put(&mut b, 92, head.to_le_bytes());
        let at = len - TRAILER;
        put(&mut b, at, pos.to_le_bytes());
        put(&mut b, at + 8, (len as u32).to_le_bytes());
        put(&mut b, at + 12, head.to_le_bytes());
        let crc = seed.sum(pos + at as u64, &[&b[at..at + 20]]);
        put(&mut b, at + 20, crc.to_le_bytes());
        put(&mut b, at + 24, TRAILER_MAGIC);
        (b, head)
    }

    /// Position and length of the footer, from the last bytes of a file of `file_len` bytes.
    pub fn locate(tail: &[u8], file_len: u64, seed: &Seed) -> Option<(u64, u32)> {
        let at = tail.len().checked_sub(TRAILER)?;
        let t = &tail[at..];
        let start_of_trailer = file_len.checked_sub(TRAILER as u64)?;
        if t[24..] != TRAILER_MAGIC || seed.sum(start_of_trailer, &[&t[..20]]) != u32_at(t, 20) {
            return None;
        }
        let (pos, len) = (u64_at(t, 0), u32_at(t, 8));
        (pos.checked_add(u64::from(len)) == Some(file_len)).then_some((pos, len))
    }

    /// The length of the footer whose head is at `pos`; `None` where no valid one is there.
    pub fn peek_len(head: &[u8], seed: &Seed, pos: u64) -> Option<u32> {
        if head.len() < HEAD || head[..8] != MAGIC || seed.sum(pos, &[&head[..92]]) != u32_at(head, 92) {
            return None;
        }
        Some(u32_at(head, 8))
    }

    /// Reads a whole footer at `pos`, with the checksum of its head. `None` when any part of it fails.
    pub fn decode(b: &[u8], seed: &Seed, pos: u64) -> Option<(Self, u32)> {
        let len = Self::peek_len(b, seed, pos)? as usize;
        if b.len() < len || len < HEAD + TRAILER {
            return None;
        }
        let mut footer = Self {
            segment: u64_at(b, 16),
            epoch: u32_at(b, 24),
            last_batch_checksum: u32_at(b, 28),
            first_offset: u64_at(b, 32),
            end_offset: u64_at(b, 40),
            data_end: u64_at(b, 48),
            min_time_ns: i64_at(b, 56),
            max_time_ns: i64_at(b, 64),
            max_append_ns: i64_at(b, 72),
            payload_bytes: u64_at(b, 80),
            ..Self::default()
        };
        let mut at = HEAD;
        for _ in 0..u16_at(b, 12) {
            let head = b.get(at..at + SECTION_HEAD)?;
            let (kind, size, crc) = (u16_at(head, 0), u32_at(head, 4) as usize, u32_at(head, 8));
            let bytes = b[..len - TRAILER].get(at + SECTION_HEAD..)?.get(..size)?;
            if seed.sum(pos + at as u64, &[&head[..8], bytes]) != crc {
                return None;
            }
            footer.take_section(kind, bytes)?;
            at = (at + SECTION_HEAD + size).next_multiple_of(8);
        }
        Some((footer, u32_at(b, 92)))
    }

    fn take_section(&mut self, kind: u16, s: &[u8]) -> Option<()> {
        match kind {
            INDEX => self.index = decode_index(s)?,
            PRODUCERS => self.producers = decode_producers(s)?,
            DAMAGE => {
                let pairs = s.chunks_exact(16);
                self.damage = pairs.map(|d| Damage { from: u64_at(d, 0), to: u64_at(d, 8) }).collect();
            }
            BEFORE if s.len() == 16 => {
                self.before = Some(Before {
                    number: u64_at(s, 0),
                    footer_checksum: u32_at(s, 8),
                    last_batch_checksum: u32_at(s, 12),
                });
            }
            SUPERSEDES if s.len() == 8 => self.supersedes_from = Some(u64_at(s, 0)),
            OWNERS => {
                let entries = s.chunks_exact(OWNER_ENTRY);
                self.owners = entries.map(|e| (u64_at(e, 0), u64_at(e, 8))).collect();
            }
            FORGOTTEN => take_forgotten(&mut self.producers, s),
            RESENDS => self.resends = decode_resends(s)?,
            ORIGINS if s.len().is_multiple_of(ORIGIN_ENTRY) => {
                self.origins = s.chunks_exact(ORIGIN_ENTRY).map(OriginEntry::decode).collect::<Option<_>>()?;
            }
            BEFORE | SUPERSEDES | ORIGINS => return None,
            _ => {}
        }
        Some(())
    }

    /// Most bytes that a footer takes for so many index entries, and so many other entries.
    pub(crate) fn max_len(index: usize, entries: &FooterEntries, block: usize) -> u64 {
        let owners = entries.owners.min(FOOTER_OWNERS_MAX + 1) * OWNER_ENTRY;
        // Without any it has no such section.
        let optional = |entries: usize, bytes: usize| if entries > 0 { SECTION_HEAD + 8 + entries * bytes } else { 0 };
        let resends = optional(entries.resends, RESEND_ENTRY);
        let origins = optional(entries.origins, ORIGIN_ENTRY);
        let sections = 7 * (SECTION_HEAD + 8) + 64 + owners + resends + origins;
        let producers = entries.producers * (PRODUCER_HEAD + FORGOTTEN_ENTRY);
        let bytes = HEAD + sections + index * 32 + producers + entries.ranges * RANGE + TRAILER;
        bytes.next_multiple_of(block) as u64
    }
}

/// Numbers of entries that a footer may have to hold, besides its index.
pub(crate) struct FooterEntries {
    pub(crate) producers: usize,
    /// Stored ranges of all producers.
    pub(crate) ranges: usize,
    /// Owners of payload.
    pub(crate) owners: usize,
    /// Appends that may be sent again.
    pub(crate) resends: usize,
    pub(crate) origins: usize,
}

fn encode_index(index: &[IndexEntry]) -> Vec<u8> {
    let mut s = Vec::with_capacity(index.len() * 32);
    for e in index {
        s.extend_from_slice(&e.first_offset.to_le_bytes());
        s.extend_from_slice(&e.position.to_le_bytes());
        s.extend_from_slice(&e.min_time_ns.to_le_bytes());
        s.extend_from_slice(&e.max_time_ns.to_le_bytes());
    }
    s
}

fn decode_index(s: &[u8]) -> Option<Vec<IndexEntry>> {
    let entry = |e: &[u8]| IndexEntry {
        first_offset: u64_at(e, 0),
        position: u64_at(e, 8),
        min_time_ns: i64_at(e, 16),
        max_time_ns: i64_at(e, 24),
    };
    s.len().is_multiple_of(32).then(|| s.chunks_exact(32).map(entry).collect())
}

fn encode_resends(resends: &[ResendEntry]) -> Vec<u8> {
    let mut s = Vec::with_capacity(resends.len() * RESEND_ENTRY);
    for e in resends {
        e.key.put(&mut s);
        s.extend_from_slice(&e.first_offset.to_le_bytes());
        s.extend_from_slice(&e.count.to_le_bytes());
    }
    s
}

fn decode_resends(s: &[u8]) -> Option<Vec<ResendEntry>> {
    let entry = |e: &[u8]| ResendEntry { key: ResendKey::get(e), first_offset: u64_at(e, 24), count: u32_at(e, 32) };
    s.len().is_multiple_of(RESEND_ENTRY).then(|| s.chunks_exact(RESEND_ENTRY).map(entry).collect())
}

const PRODUCER_HEAD: usize = 40;
const FORGOTTEN_ENTRY: usize = 24;

/// Encodes the bounds that the first range does not show, in the order of the producers.
fn encode_forgotten(producers: &[ProducerEntry]) -> Vec<u8> {
    let mut s = Vec::new();
    for p in producers.iter().filter(|p| p.forgotten_below != ProducerEntry::usually_forgotten_below(&p.appends)) {
        s.extend_from_slice(&p.id);
        s.extend_from_slice(&p.forgotten_below.to_le_bytes());
    }
    s
}

fn take_forgotten(producers: &mut [ProducerEntry], s: &[u8]) {
    let mut entries = s.chunks_exact(FORGOTTEN_ENTRY).peekable();
    for p in producers {
        if let Some(entry) = entries.next_if(|entry| entry[..16] == p.id) {
            p.forgotten_below = u64_at(entry, 16);
        }
    }
}
const RANGE: usize = 20;

fn encode_producers(producers: &[ProducerEntry]) -> Vec<u8> {
    let mut s = Vec::new();
    for p in producers {
        s.extend_from_slice(&p.id);
        s.extend_from_slice(&p.owner.to_le_bytes());
        s.extend_from_slice(&p.last_active_ns.to_le_bytes());
        s.extend_from_slice(&p.epoch.to_le_bytes());
        s.extend_from_slice(&(p.appends.len() as u32).to_le_bytes());
        for r in &p.appends {
            s.extend_from_slice(&r.first_sequence.to_le_bytes());
            s.extend_from_slice(&r.first_offset.to_le_bytes());
            s.extend_from_slice(&r.count.to_le_bytes());
        }
    }
    s
}

fn decode_producers(mut s: &[u8]) -> Option<Vec<ProducerEntry>> {
    let mut all = Vec::new();
    while !s.is_empty() {
        let head = s.get(..PRODUCER_HEAD)?;
        let count = u32_at(head, 36) as usize;
        let ranges = s.get(PRODUCER_HEAD..)?.get(..count.checked_mul(RANGE)?)?;
        let appends = ranges.chunks_exact(RANGE).map(|r| StoredRange {
            first_sequence: u64_at(r, 0),
            first_offset: u64_at(r, 8),
            count: u32_at(r, 16),
        });
        let appends: Vec<_> = appends.collect();
        all.push(ProducerEntry {
            id: get(head, 0),
            owner: u64_at(head, 16),
            last_active_ns: i64_at(head, 24),
            epoch: u32_at(head, 32),
            forgotten_below: ProducerEntry::usually_forgotten_below(&appends),
            appends,
        });
        s = &s[PRODUCER_HEAD + count * RANGE..];
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Footer {
        Footer {
            segment: 7,
            epoch: 2,
            last_batch_checksum: 5,
            first_offset: 10,
            end_offset: 30,
            data_end: 8000,
            min_time_ns: -1,
            max_time_ns: 99,
            max_append_ns: 100,
            payload_bytes: 1234,
            owners: vec![(1000, 1200), (1 << 63, 34)],
            resends: vec![
                ResendEntry { key: ResendKey { identity: 6, digest: [1; 16] }, first_offset: 15, count: 5 },
                ResendEntry { key: ResendKey { identity: u64::MAX, digest: [2; 16] }, first_offset: 22, count: 8 },
            ],
            origins: vec![crate::format::origin::tests::example(1), crate::format::origin::tests::example(2)],
            index: vec![IndexEntry { first_offset: 10, position: 4096, min_time_ns: -1, max_time_ns: 99 }],
            producers: vec![
                ProducerEntry {
                    id: [3; 16],
                    owner: 1000,
                    epoch: 4,
                    last_active_ns: 77,
                    appends: vec![
                        StoredRange { first_sequence: 0, first_offset: 10, count: 5 },
                        StoredRange { first_sequence: 5, first_offset: 20, count: 1 },
                    ],
                    forgotten_below: 0,
                },
                ProducerEntry {
                    id: [4; 16],
                    owner: 1000,
                    epoch: 1,
                    last_active_ns: 78,
                    appends: vec![StoredRange { first_sequence: 9, first_offset: 21, count: 1 }],
                    forgotten_below: 7,
                },
                ProducerEntry {
                    id: [5; 16],
                    owner: 1000,
                    epoch: 1,
                    last_active_ns: 78,
                    appends: Vec::new(),
                    forgotten_below: 3,
                },
            ],
            damage: vec![Damage { from: 12, to: 14 }],
            before: Some(Before { number: 6, footer_checksum: 1, last_batch_checksum: 2 }),
            supersedes_from: Some(10),
        }
    }

    #[test]
    fn comes_back_from_the_end_of_the_file_and_no_flipped_byte_passes() {
        let seed = Seed::new(1, &[2; 16], 7);
        let (bytes, head) = example().encode(&seed, 8192, 4096);
        assert_eq!(bytes.len() % 4096, 0);
        let file_len = 8192 + bytes.len() as u64;
        assert_eq!(Footer::locate(&bytes, file_len, &seed), Some((8192, bytes.len() as u32)));
        assert_eq!(Footer::decode(&bytes, &seed, 8192), Some((example(), head)));
        let used = 92 + 4 + 7 * 20 + 672;
        for at in 0..used.min(bytes.len() - TRAILER) {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            if bad[at..] != bytes[at..] && Footer::decode(&bad, &seed, 8192).is_some_and(|f| f.0 != example()) {
                panic!("byte {at} changed the footer unseen");
            }
        }
        for cut in [0, 50, HEAD, bytes.len() - 1] {
            assert_eq!(Footer::decode(&bytes[..cut], &seed, 8192), None);
        }
        assert_eq!(Footer::decode(&bytes, &seed, 4096), None, "a copy elsewhere proves nothing");
    }

    #[test]
    fn the_bound_on_its_length_holds() {
        let fits = |f: &Footer| {
            let entries = FooterEntries {
                producers: f.producers.len(),
                ranges: f.producers.iter().map(|p| p.appends.len()).sum(),
                owners: f.owners.len(),
                resends: f.resends.len(),
                origins: f.origins.len(),
            };
            let (bytes, _) = f.encode(&Seed::new(1, &[2; 16], 7), 0, 64);
            assert!(bytes.len() as u64 <= Footer::max_len(f.index.len(), &entries, 64));
        };
        let f = example();
        fits(&f);
        let f = Footer { owners: (0..=FOOTER_OWNERS_MAX as u64).map(|owner| (owner, 1)).collect(), ..f };
        fits(&f);
        let entry = |at| ResendEntry { key: ResendKey { identity: at, digest: [3; 16] }, first_offset: at, count: 1 };
        let f = Footer { resends: (0..1000).map(entry).collect(), ..f };
        fits(&f);
        let f = Footer { origins: vec![crate::format::origin::tests::example(1); 1024], ..f };
        fits(&f);
        let f = Footer { resends: Vec::new(), ..f };
        fits(&f);
        fits(&Footer { origins: Vec::new(), ..f });
    }
}
