//! An object of whole appends, as their clients encoded them: nothing is left out, and `clactl import` gives them back.
//!
//! Invariants:
//! - The object is a raw export (docs/FORMAT.md, section 10) within zstd frames of about [`BLOCK_BYTES`] each. So a reader holds one
//!   append and one zstd frame, and `zstd -d` gives the export.
//! - What the object says of itself is its last zstd frame, a skippable one: lines `KEY: VALUE`, their length, and `clad`.
//! - Each checksum of a client comes through: it is compared when the object is looked through, and where it is read back.

use std::io::{self, BufReader, Read, Write};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use clad_client::{GapReason, LogId, RawRecords};
use clad_proto::frame::{FrameHeader, FrameType, Gap, RecordsView};
use clad_proto::limits::{FRAME_HEADER_BYTES, MAX_APPEND_BYTES};
use clad_proto::raw_export::{self, HEAD_BYTES};
use object_store::PutPayload;
use sha2::{Digest, Sha256};

use super::object::Described;
use super::pieces::{Pieces, hex};

/// Bytes of appends beyond which a zstd frame ends.
const BLOCK_BYTES: usize = 1 << 20;
/// zstd's own default.
const ZSTD_LEVEL: i32 = 3;
/// A frame that decoders pass over (RFC 8878, section 3.1.2).
const SKIPPABLE: u32 = 0x184D_2A50;
/// Ends an object, behind the length of what it says of itself.
const MARK: [u8; 4] = *b"clad";
/// Bytes of the length and the mark.
pub(super) const TAIL_BYTES: usize = 8;
/// Bytes of the magic number and the length of a skippable frame.
const SKIPPABLE_HEADER_BYTES: usize = 8;
/// Bytes that are not compressed yet count as this part of its size.
const COMPRESSED_PART: u64 = 4;

/// An object that is being built.
pub(super) struct Export {
    to: Pieces,
    block: Vec<u8>,
    zstd: zstd::bulk::Compressor<'static>,
}

impl Export {
    pub(super) fn new(log_id: LogId) -> io::Result<Self> {
        let mut zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        zstd.include_checksum(true)?;
        Ok(Self { to: Pieces::default(), block: raw_export::head(log_id).to_vec(), zstd })
    }

    /// Bytes that it will have, about.
    pub(super) fn bytes(&self) -> u64 {
        self.to.bytes() + self.block.len() as u64 / COMPRESSED_PART
    }

    /// Adds an append.
    pub(super) fn push(&mut self, raw: &RawRecords) -> Result<()> {
        let body = raw.to_bytes();
        let body_len = u32::try_from(body.len()).context("an append is too long for a frame")?;
        self.block.extend_from_slice(&FrameHeader { kind: FrameType::Records, body_len, request_id: 0 }.encode());
        self.block.extend_from_slice(&body);
        if self.block.len() >= BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    /// Adds offsets that the log does not have.
    pub(super) fn push_gap(&mut self, from: u64, to: u64, reason: GapReason) {
        let mut frame = BytesMut::new();
        Gap { request_id: 0, from, to, epoch: 0, reason }.encode(&mut frame);
        self.block.extend_from_slice(&frame);
    }

    fn end_block(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.to.write_all(&self.zstd.compress(&self.block)?)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Ends it with what it says of itself.
    pub(super) fn finish(mut self, mut described: Described) -> Result<(Described, PutPayload)> {
        self.end_block()?;
        (described.data_bytes, described.data) = self.to.sum();
        let mut text: Vec<u8> = Vec::new();
        for (key, value) in described.pairs() {
            writeln!(text, "{key}: {value}")?;
        }
        let length = u32::try_from(text.len())?;
        self.to.write_all(&SKIPPABLE.to_le_bytes())?;
        self.to.write_all(&(length + TAIL_BYTES as u32).to_le_bytes())?;
        self.to.write_all(&text)?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(&MARK)?;
        Ok((described, self.to.into_payload()))
    }
}

/// The number of bytes of what an object says of itself, from its last [`TAIL_BYTES`]; nothing where it is none.
pub(super) fn length_of_words(tail: &[u8]) -> Option<u64> {
    let (length, mark) = tail.split_first_chunk::<4>()?;
    (mark == MARK).then(|| u64::from(u32::from_le_bytes(*length)))
}

/// From what an object says of itself.
pub(super) fn described(text: &[u8]) -> Result<Option<Described>> {
    let text = std::str::from_utf8(text).context("what it says of itself is no text")?;
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    Described::of(|key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1.to_owned()))
}

/// From a whole object.
pub(super) fn of_file(bytes: &Bytes) -> Result<Option<Described>> {
    let end = bytes.len().checked_sub(TAIL_BYTES).context("it is too short")?;
    let length = length_of_words(&bytes[end..]).context("it does not end as an object of a raw archive does")?;
    let start = usize::try_from(length).ok().and_then(|length| end.checked_sub(length)).context("it is too short")?;
    let described = described(&bytes[start..end])?;
    if let Some(described) = &described {
        let is_behind = described.data_bytes == (start.saturating_sub(SKIPPABLE_HEADER_BYTES)) as u64;
        ensure!(is_behind, "it says that it has {} bytes, and has others", described.data_bytes);
    }
    Ok(described)
}

/// Each append is there, whole and in order, and fits its client's checksum.
pub(super) fn check(bytes: &Bytes, described: &Described) -> Result<()> {
    let mut stream = BufReader::new(zstd::stream::read::Decoder::new(&bytes[..])?);
    let (mut expected, mut payloads) = (described.first, Sha256::new());
    let mut body = vec![0; HEAD_BYTES];
    stream.read_exact(&mut body)?;
    ensure!(
        body == raw_export::head(described.log_id),
        "it does not begin as a raw export of log {}",
        described.log_id
    );
    let mut header = [0; FRAME_HEADER_BYTES];
    while has_more(&mut stream)? {
        stream.read_exact(&mut header)?;
        let FrameHeader { kind, body_len, .. } = FrameHeader::decode(&header, MAX_APPEND_BYTES)?;
        body.resize(body_len as usize, 0);
        stream.read_exact(&mut body)?;
        if kind == FrameType::Gap && described.gap.is_some() {
            continue;
        }
        ensure!(kind == FrameType::Records, "a frame {kind:?} stands where offset {expected} belongs");
        let append = RecordsView::parse(&body)?;
        let first = append.head.first_offset;
        ensure!(first == expected, "offset {first} stands where {expected} belongs");
        ensure!(append.checksum_holds(), "the append of offset {first} does not fit its client's checksum");
        payloads.update(append.payload);
        expected += u64::from(append.head.count);
    }
    let end = if described.gap.is_some() { described.first } else { described.end };
    ensure!(expected == end, "it ends at offset {expected}, and says {end}");
    let found = hex(payloads);
    ensure!(found == described.payloads, "its payloads have sha256 {found}, and it says {}", described.payloads);
    Ok(())
}

fn has_more(stream: &mut impl io::BufRead) -> io::Result<bool> {
    Ok(!stream.fill_buf()?.is_empty())
}
