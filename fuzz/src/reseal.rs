//! Checksums made right again, so that a mutation reaches what lies behind them.
//!
//! The places are those of PROTOCOL.md and FORMAT.md. Lengths are taken as they stand where they fit, and cut to the
//! input where they do not: half of the inputs then get past the framing.

use clad_journal::format::checksum::{Seed, plain};
use clad_journal::format::{ALIGN, batch, footer, segment};
use clad_proto::crc32c;
use clad_proto::frame::{FrameHeader, FrameType};
use clad_proto::limits::{APPEND_HEADER_BYTES, FRAME_HEADER_BYTES, MAX_CONTROL_BODY_BYTES, RECORDS_FIXED_BYTES};

/// What stands before a footer's section: type, length, checksum.
const SECTION_HEAD: usize = 12;

/// A stream of frames with right checksums.
pub(crate) fn frames(data: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), data);
    while rest.len() > FRAME_HEADER_BYTES {
        let kind = FrameType::from_code(rest[1]).unwrap_or(FrameType::Append);
        let wanted = u32_at(rest, 4) as usize;
        let request_id = u32_at(rest, 8);
        let body = &rest[FRAME_HEADER_BYTES..];
        let (body, after) = body.split_at(wanted.min(body.len()));
        out.extend(framed(kind, request_id, body.to_vec()));
        rest = after;
    }
    out.extend_from_slice(rest);
    out
}

/// A control frame of that type around these fields.
pub(crate) fn control(kind: FrameType, fields: &[u8]) -> Vec<u8> {
    let mut body = fields[..fields.len().min(MAX_CONTROL_BODY_BYTES as usize - 4)].to_vec();
    body.extend_from_slice(&[0; 4]);
    framed(kind, 1, body)
}

fn framed(kind: FrameType, request_id: u32, mut body: Vec<u8>) -> Vec<u8> {
    match kind {
        FrameType::Append => seal_append(&mut body),
        FrameType::Records => seal_records(&mut body),
        _ => seal_end(&mut body),
    }
    let body_len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut frame = FrameHeader { kind, body_len, request_id }.encode().to_vec();
    frame.extend(body);
    frame
}

fn seal_end(body: &mut [u8]) {
    if let Some((fields, crc)) = body.split_last_chunk_mut::<4>() {
        *crc = crc32c(fields).to_le_bytes();
    }
}

fn seal_append(body: &mut [u8]) {
    if body.len() >= APPEND_HEADER_BYTES {
        let payload = crc32c(&body[APPEND_HEADER_BYTES..]).to_le_bytes();
        body[16..20].copy_from_slice(&payload);
        let head = crc32c(&body[..20]).to_le_bytes();
        body[20..24].copy_from_slice(&head);
    }
}

fn seal_records(body: &mut [u8]) {
    if body.len() >= RECORDS_FIXED_BYTES {
        let peer_meta = usize::from(u16::from_le_bytes([body[64], body[65]]));
        let end = RECORDS_FIXED_BYTES + peer_meta;
        if body.len() >= end + 4 {
            let crc = crc32c(&body[..end]).to_le_bytes();
            body[end..end + 4].copy_from_slice(&crc);
        }
    }
}

/// A slot of `clad.meta`.
pub(crate) fn meta(slot: &mut [u8]) {
    if slot.len() < 16 {
        return;
    }
    let len = (u32_at(slot, 12) as usize).clamp(16, slot.len());
    let crc = plain(&slot[..len - 4]);
    slot[len - 4..len].copy_from_slice(&crc.to_le_bytes());
}

/// A whole segment: its header, then each batch and footer that begins where one may begin.
pub(crate) fn segment(file: &mut [u8]) {
    if file.len() < segment::LEN {
        return;
    }
    let mut log_id = [0; 16];
    log_id.copy_from_slice(&file[40..56]);
    let seed = Seed::new(u64_at(file, 72), &log_id, u64_at(file, 56));
    let crc = seed.sum(0, &[&file[..segment::LEN - 4]]);
    put(file, segment::LEN - 4, crc);
    let mut pos = 512;
    while pos + batch::LEN <= file.len() {
        if file[pos..].starts_with(&batch::MAGIC) {
            pos = (pos + seal_batch(&mut file[pos..], &seed, pos as u64)).next_multiple_of(ALIGN as usize);
        } else {
            if file[pos..].starts_with(&footer::MAGIC) {
                seal_footer(&mut file[pos..], &seed, pos as u64);
            }
            pos += ALIGN as usize;
        }
    }
}

fn seal_batch(b: &mut [u8], seed: &Seed, pos: u64) -> usize {
    let header_len = usize::from(u16::from_le_bytes([b[4], b[5]]));
    let header_len = if (batch::LEN..=b.len()).contains(&header_len) { header_len } else { batch::LEN };
    let stored = (u32_at(b, 28) as usize).min(b.len() - header_len);
    let body = seed.sum(pos + header_len as u64, &[&b[header_len..header_len + stored]]);
    put(b, 88, body);
    let crc = seed.sum(pos, &[&b[..batch::LEN - 4], &b[batch::LEN..header_len]]);
    put(b, batch::LEN - 4, crc);
    header_len + stored
}

/// A footer that starts at `pos`: its sections, its head, its trailer.
pub(crate) fn seal_footer(b: &mut [u8], seed: &Seed, pos: u64) {
    if b.len() < footer::HEAD + footer::TRAILER {
        return;
    }
    let len = (u32_at(b, 8) as usize).clamp(footer::HEAD + footer::TRAILER, b.len());
    let mut at = footer::HEAD;
    for _ in 0..u16::from_le_bytes([b[12], b[13]]) {
        if at + SECTION_HEAD > len {
            break;
        }
        let size = u32_at(b, at + 4) as usize;
        let end = (at + SECTION_HEAD).saturating_add(size).min(len);
        let crc = seed.sum(pos + at as u64, &[&b[at..at + 8], &b[at + SECTION_HEAD..end]]);
        put(b, at + 8, crc);
        at = end.next_multiple_of(8);
    }
    let head = seed.sum(pos, &[&b[..92]]);
    put(b, 92, head);
    let at = len - footer::TRAILER;
    put(b, at + 12, head);
    let crc = seed.sum(pos + at as u64, &[&b[at..at + 20]]);
    put(b, at + 20, crc);
}

fn put(b: &mut [u8], at: usize, crc: u32) {
    b[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}
