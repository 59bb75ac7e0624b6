//! A reader of clad's files, written from docs/FORMAT.md alone: it uses nothing of clad's own code, so that the
//! document, the files and the code are held against each other.
//!
//! Invariants: no length is used before a checksum has held over it; every part that the document calls an error
//! is a `String` here, and nothing panics on bytes that are not ours.

/// CRC-32C, bit by bit: polynomial 0x1EDC6F41 reflected, all ones before and after.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

/// Little-endian, as everything is; beyond the end it is zero, which no check lets pass.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let field = bytes.get(at..at + width).unwrap_or(&[]);
    field.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
fn u16_at(b: &[u8], at: usize) -> u16 {
    number(b, at, 2) as u16
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    number(b, at, 4) as u32
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    number(b, at, 8)
}
fn i64_at(b: &[u8], at: usize) -> i64 {
    number(b, at, 8) as i64
}
fn id_at(b: &[u8], at: usize) -> [u8; 16] {
    b[at..at + 16].try_into().expect("16 bytes")
}

/// What seeds every checksum of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) salt: u64,
    pub(crate) log_id: [u8; 16],
    pub(crate) segment: u64,
}

impl Seed {
    /// The 40 bytes that stand before the bytes at `position`.
    pub(crate) fn prefix(&self, position: u64) -> [u8; 40] {
        let mut p = [0; 40];
        p[..8].copy_from_slice(&self.salt.to_le_bytes());
        p[8..24].copy_from_slice(&self.log_id);
        p[24..32].copy_from_slice(&self.segment.to_le_bytes());
        p[32..].copy_from_slice(&position.to_le_bytes());
        p
    }

    fn sum(&self, position: usize, parts: &[&[u8]]) -> u32 {
        let prefix = self.prefix(position as u64);
        let mut all: Vec<&[u8]> = vec![&prefix];
        all.extend(parts);
        crc32c(&all)
    }
}

/// `clad.meta`, the slot that counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) generation: u64,
    pub(crate) log_id: [u8; 16],
    pub(crate) clean: bool,
    pub(crate) latched: bool,
    pub(crate) lowest_segment: u64,
    pub(crate) lowest_offset: u64,
    pub(crate) highest_segment: Option<u64>,
    pub(crate) created_ns: i64,
    pub(crate) epochs: Vec<(u32, u64)>,
    /// From, to.
    pub(crate) lost: Vec<(u64, u64)>,
    /// `durable`, `written`, boot id.
    pub(crate) proof: Option<(u64, u64, [u8; 16])>,
}

pub(crate) fn meta(file: &[u8]) -> Result<Meta, String> {
    let slots = file.chunks(32 * 1024).take(2).map(slot).collect::<Result<Vec<_>, _>>()?;
    slots.into_iter().flatten().max_by_key(|m| m.generation).ok_or("neither slot holds".into())
}

fn slot(b: &[u8]) -> Result<Option<Meta>, String> {
    if !b.starts_with(b"CLADMETA") {
        return Ok(None);
    }
    match u16_at(b, 8) {
        1..=3 => {}
        newer => return Err(format!("version {newer}")),
    }
    let (len, epochs) = (u32_at(b, 12) as usize, u32_at(b, 72) as usize);
    let flags = u16_at(b, 10);
    let losses = 80 + 12 * epochs;
    let ranges = if flags & 8 != 0 { u32_at(b, losses) as usize } else { 0 };
    let proof = losses + if flags & 8 != 0 { 4 + 16 * ranges } else { 0 };
    let more = if flags & 4 != 0 { 32 } else { 0 };
    if epochs == 0 || len != proof + more + 4 || len > b.len() {
        return Ok(None);
    }
    if crc32c(&[&b[..len - 4]]) != u32_at(b, len - 4) {
        return Ok(None);
    }
    Ok(Some(Meta {
        generation: u64_at(b, 16),
        log_id: id_at(b, 24),
        clean: flags & 1 != 0,
        latched: flags & 2 != 0,
        lowest_segment: u64_at(b, 40),
        lowest_offset: u64_at(b, 48),
        highest_segment: Some(u64_at(b, 56)).filter(|n| *n != u64::MAX),
        created_ns: i64_at(b, 64),
        lost: b[losses..proof].get(4..).unwrap_or(&[]).chunks(16).map(|r| (u64_at(r, 0), u64_at(r, 8))).collect(),
        epochs: b[80..losses].chunks(12).map(|e| (u32_at(e, 0), u64_at(e, 4))).collect(),
        proof: (more > 0).then(|| (u64_at(b, proof), u64_at(b, proof + 8), id_at(b, proof + 16))),
    }))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) seed: Seed,
    pub(crate) block: usize,
    pub(crate) epoch: u32,
    pub(crate) boot_id: [u8; 16],
    pub(crate) created_ns: i64,
    pub(crate) capacity: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) position: usize,
    pub(crate) end: usize,
    pub(crate) kind: u8,
    pub(crate) first_offset: u64,
    pub(crate) count: u32,
    pub(crate) previous: u32,
    pub(crate) checksum: u32,
    pub(crate) written: u64,
    pub(crate) durable: u64,
    pub(crate) append_real_ns: i64,
    pub(crate) append_boot_ns: u64,
    pub(crate) times: (i64, i64),
    pub(crate) chunks: Vec<Chunk>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) first_offset: u64,
    pub(crate) count: u32,
    pub(crate) payload_checksum: u32,
    pub(crate) producer: [u8; 16],
    pub(crate) owner: u64,
    pub(crate) first_sequence: u64,
    pub(crate) producer_epoch: u32,
    pub(crate) peer_meta: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) position: usize,
    pub(crate) head_checksum: u32,
    pub(crate) segment: u64,
    pub(crate) epoch: u32,
    pub(crate) last_batch: u32,
    pub(crate) offsets: (u64, u64),
    pub(crate) data_end: usize,
    pub(crate) times: (i64, i64),
    pub(crate) max_append_ns: i64,
    pub(crate) payload_bytes: u64,
    pub(crate) index: Vec<(u64, u64, i64, i64)>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) owners: Vec<(u64, u64)>,
    pub(crate) resends: Vec<Resend>,
    pub(crate) damage: Vec<(u64, u64)>,
    pub(crate) before: Option<(u64, u32, u32)>,
    pub(crate) supersedes_from: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resend {
    pub(crate) identity: u64,
    pub(crate) digest: [u8; 16],
    pub(crate) first_offset: u64,
    pub(crate) count: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Producer {
    pub(crate) id: [u8; 16],
    pub(crate) owner: u64,
    pub(crate) last_active_ns: i64,
    pub(crate) epoch: u32,
    pub(crate) ranges: Vec<(u64, u64, u32)>,
}

/// One segment: what its footer proves, or, without one, every intact batch and every place that is neither.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) footer: Option<Footer>,
    pub(crate) batches: Vec<Batch>,
    /// Bytes that are neither zero nor in an intact batch.
    pub(crate) bad: Vec<(usize, usize)>,
}

pub(crate) fn segment(file: &[u8]) -> Result<Segment, String> {
    let header = header(file)?;
    let footer = footer(file, &header);
    let end = footer.as_ref().map_or(file.len(), |f| f.data_end);
    let (batches, bad) = walk(file, &header, end)?;
    Ok(Segment { header, footer, batches, bad })
}

fn header(b: &[u8]) -> Result<Header, String> {
    if b.len() < 128 || !b.starts_with(b"CLADSEG\0") {
        return Err("no segment".into());
    }
    if !matches!(u16_at(b, 8), 1 | 2) {
        return Err(format!("version {}", u16_at(b, 8)));
    }
    let seed = Seed { salt: u64_at(b, 72), log_id: id_at(b, 40), segment: u64_at(b, 56) };
    let block = u32_at(b, 12) as usize;
    if u16_at(b, 10) != 128 || !block.is_power_of_two() || !(512..=1 << 20).contains(&block) {
        return Err("no header that could be".into());
    }
    if seed.sum(0, &[&b[..124]]) != u32_at(b, 124) {
        return Err("the header fails its checksum".into());
    }
    if u64_at(b, 32) != 0 {
        return Err("features that everybody must know".into());
    }
    Ok(Header {
        seed,
        block,
        epoch: u32_at(b, 64),
        boot_id: id_at(b, 80),
        created_ns: i64_at(b, 96),
        capacity: u64_at(b, 104),
    })
}

type Walked = (Vec<Batch>, Vec<(usize, usize)>);

fn walk(file: &[u8], header: &Header, end: usize) -> Result<Walked, String> {
    let (mut batches, mut bad) = (Vec::new(), Vec::<(usize, usize)>::new());
    let mut at = header.block;
    while at < end {
        if let Some(batch) = batch(file, header, at)? {
            at = batch.end.next_multiple_of(64);
            batches.push(batch);
            continue;
        }
        let next_block = (at + 1).next_multiple_of(header.block).min(end);
        if file[at..next_block].iter().all(|b| *b == 0) {
            at = next_block;
            continue;
        }
        let to = (at + 64).min(end);
        if file[at..to].iter().any(|b| *b != 0) {
            match bad.last_mut() {
                Some((_, end)) if *end == at => *end = to,
                _ => bad.push((at, to)),
            }
        }
        at = to;
    }
    Ok((batches, bad))
}

fn batch(file: &[u8], header: &Header, at: usize) -> Result<Option<Batch>, String> {
    let Some(b) = file.get(at..).filter(|b| b.len() >= 96 && b.starts_with(b"CLBT")) else { return Ok(None) };
    let head = u16_at(b, 4) as usize;
    if !(96..=4096).contains(&head) || head > b.len() {
        return Ok(None);
    }
    let checksum = u32_at(b, 92);
    if header.seed.sum(at, &[&b[..92], &b[96..head]]) != checksum || u32_at(b, 12) != header.epoch {
        return Ok(None);
    }
    let Some(body) = b.get(head..head + u32_at(b, 28) as usize) else { return Ok(None) };
    if header.seed.sum(at + head, &[body]) != u32_at(b, 88) {
        return Ok(None);
    }
    let (kind, count) = (b[6], u32_at(b, 24));
    let is_data = kind == 0 && count > 0;
    if is_data && b[7] != 0 {
        return Err(format!("codec {} is not known", b[7]));
    }
    let first_offset = u64_at(b, 16);
    Ok(Some(Batch {
        position: at,
        end: at + head + body.len(),
        kind,
        first_offset,
        count,
        previous: u32_at(b, 36),
        checksum,
        written: u64_at(b, 40),
        durable: u64_at(b, 48),
        append_real_ns: i64_at(b, 56),
        append_boot_ns: u64_at(b, 64),
        times: (i64_at(b, 72), i64_at(b, 80)),
        chunks: if is_data { chunks(body, first_offset)? } else { Vec::new() },
    }))
}

fn chunks(mut body: &[u8], mut offset: u64) -> Result<Vec<Chunk>, String> {
    let mut all = Vec::new();
    while !body.is_empty() {
        let (len, head) = (u32_at(body, 0) as usize, u16_at(body, 4) as usize);
        if head < 52 || len < head || len > body.len() {
            return Err("a chunk's lengths do not fit its batch".into());
        }
        let count = u32_at(body, 8);
        all.push(Chunk {
            first_offset: offset,
            count,
            payload_checksum: u32_at(body, 12),
            producer: id_at(body, 16),
            owner: u64_at(body, 32),
            first_sequence: u64_at(body, 40),
            producer_epoch: u32_at(body, 48),
            peer_meta: body[52..head].to_vec(),
            payload: body[head..len].to_vec(),
        });
        offset += u64::from(count);
        body = &body[len..];
    }
    Ok(all)
}

/// From the end of the file; `None` when there is none that holds in every part.
fn footer(file: &[u8], header: &Header) -> Option<Footer> {
    let at = file.len().checked_sub(32)?;
    let t = &file[at..];
    if &t[24..] != b"CLADEND\0" || header.seed.sum(at, &[&t[..20]]) != u32_at(t, 20) {
        return None;
    }
    let (position, len) = (u64_at(t, 0) as usize, u32_at(t, 8) as usize);
    if position.checked_add(len)? != file.len() || position % header.block != 0 || len < 128 {
        return None;
    }
    let b = &file[position..];
    let head_checksum = u32_at(b, 92);
    if !b.starts_with(b"CLADFTR\0")
        || header.seed.sum(position, &[&b[..92]]) != head_checksum
        || head_checksum != u32_at(t, 12)
        || u32_at(b, 8) as usize != len
    {
        return None;
    }
    let mut f = Footer {
        position,
        head_checksum,
        segment: u64_at(b, 16),
        epoch: u32_at(b, 24),
        last_batch: u32_at(b, 28),
        offsets: (u64_at(b, 32), u64_at(b, 40)),
        data_end: u64_at(b, 48) as usize,
        times: (i64_at(b, 56), i64_at(b, 64)),
        max_append_ns: i64_at(b, 72),
        payload_bytes: u64_at(b, 80),
        ..Footer::default()
    };
    let mut s = 96;
    for _ in 0..u16_at(b, 12) {
        let size = u32_at(b, s + 4) as usize;
        let content = b[..len - 32].get(s + 12..)?.get(..size)?;
        if header.seed.sum(position + s, &[&b[s..s + 8], content]) != u32_at(b, s + 8) {
            return None;
        }
        section(&mut f, u16_at(b, s), content);
        s = (s + 12 + size).next_multiple_of(8);
    }
    Some(f)
}

fn section(f: &mut Footer, kind: u16, c: &[u8]) {
    match kind {
        1 => {
            f.index = c.chunks_exact(32).map(|e| (u64_at(e, 0), u64_at(e, 8), i64_at(e, 16), i64_at(e, 24))).collect();
        }
        2 => f.producers = producers(c),
        3 => f.damage = c.chunks_exact(16).map(|d| (u64_at(d, 0), u64_at(d, 8))).collect(),
        4 => f.before = Some((u64_at(c, 0), u32_at(c, 8), u32_at(c, 12))),
        5 => f.supersedes_from = Some(u64_at(c, 0)),
        7 => f.owners = c.chunks_exact(16).map(|e| (u64_at(e, 0), u64_at(e, 8))).collect(),
        8 => {
            let resend = |e: &[u8]| Resend {
                identity: u64_at(e, 0),
                digest: id_at(e, 8),
                first_offset: u64_at(e, 24),
                count: u32_at(e, 32),
            };
            f.resends = c.chunks_exact(36).map(resend).collect();
        }
        _ => {}
    }
}

fn producers(mut c: &[u8]) -> Vec<Producer> {
    let mut all = Vec::new();
    while c.len() >= 40 {
        let count = u32_at(c, 36) as usize;
        let ranges = c[40..].chunks_exact(20).take(count);
        all.push(Producer {
            id: id_at(c, 0),
            owner: u64_at(c, 16),
            last_active_ns: i64_at(c, 24),
            epoch: u32_at(c, 32),
            ranges: ranges.map(|r| (u64_at(r, 0), u64_at(r, 8), u32_at(r, 16))).collect(),
        });
        c = &c[(40 + 20 * count).min(c.len())..];
    }
    all
}

/// What is known of the log around a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around<'a> {
    /// The end of the segment before.
    pub(crate) start: u64,
    /// Those of `clad.meta`, with their first offsets.
    pub(crate) epochs: &'a [(u32, u64)],
    pub(crate) same_boot: bool,
    pub(crate) latched: bool,
    /// `durable` of its proof; and `written`, if that is of this boot.
    pub(crate) proof: (u64, u64),
    /// What `clad.meta` says was lost.
    pub(crate) lost: &'a [(u64, u64)],
}

/// What of the last, unsealed segment is in the log, by the rules of the document: the indices of the batches that are
/// kept, the offset where the log goes on, and the offsets that are lost.
pub(crate) fn believe(s: &Segment, around: Around<'_>) -> (Vec<usize>, u64, Vec<(u64, u64)>) {
    let Around { start, epochs, same_boot, latched, proof, lost: reported_lost } = around;
    let begun = epochs.last().map_or(0, |e| e.1);
    let limit = epochs.iter().filter(|e| e.0 > s.header.epoch).map(|e| e.1).min().unwrap_or(u64::MAX);
    let durable = s.batches.iter().map(|b| b.durable).max().unwrap_or(0).max(start).max(begun).max(proof.0);
    let written = s.batches.iter().filter(|_| same_boot).map(|b| b.written).max().unwrap_or(0).max(proof.1);
    let proven = if latched { durable } else { durable.max(written) };
    let (mut expected, mut chain, mut kept, mut lost) = (start, 0, Vec::new(), Vec::new());
    for (i, b) in s.batches.iter().enumerate().filter(|(_, b)| b.kind == 0 && b.count > 0) {
        let end = b.first_offset + u64::from(b.count);
        if end > limit || reported_lost.iter().any(|(from, to)| b.first_offset < *to && *from < end) {
            continue;
        }
        let continues = b.first_offset == expected && b.previous == chain;
        if !continues {
            if end <= expected {
                chain = b.checksum;
                continue;
            }
            if expected >= proven {
                break; // the cut
            }
            if b.first_offset < expected {
                continue;
            }
            if b.first_offset > expected {
                let to = b.first_offset.min(proven);
                lost.push((expected, to));
                expected = to;
            }
            if b.first_offset > expected {
                break;
            }
        }
        chain = b.checksum;
        kept.push(i);
        expected = end;
    }
    if expected < proven {
        lost.push((expected, proven));
        expected = proven;
    }
    (kept, expected, lost)
}
