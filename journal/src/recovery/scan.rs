//! Reads an unsealed segment from its first block to its last byte and says what holds in it.
//!
//! What must hold: nothing is concluded here. Every batch that is intact (its epoch is the segment's, its checksums
//! hold) is reported with its place, whatever lies before it; bytes that belong to no intact batch and are not zero
//! are reported as ranges; a place that cannot be read is one of these.

use std::io;
use std::sync::Arc;

use crate::faults::{Fault, Faults};
use crate::format::ALIGN;
use crate::format::align;
use crate::format::batch::{self, BatchHeader};
use crate::format::checksum::Seed;
use crate::format::footer::{self, Footer};
use crate::format::segment::SegmentHeader;
use crate::io::File;
use crate::window::Window;

/// An intact batch and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it starts in the file.
    pub pos: u64,
    /// One past its last byte.
    pub end: u64,
    /// Bytes of its header.
    pub header_len: u32,
    /// Its header.
    pub header: BatchHeader,
    /// Its checksum, for the chain.
    pub checksum: u32,
}

impl Found {
    /// Whether it carries records.
    pub fn is_data(&self) -> bool {
        self.header.kind == batch::KIND_DATA && self.header.count > 0
    }
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Intact batches in the order of their places, control batches too.
    pub batches: Vec<Found>,
    /// Bytes that are neither zero nor part of an intact batch, as (from, to).
    pub garbage: Vec<(u64, u64)>,
    /// A footer that holds, and where: the segment was sealed and only the cut of its length is missing.
    pub footer: Option<(u64, Footer, u32)>,
    /// Bytes read.
    pub bytes_read: u64,
}

/// Scans a file whose header holds.
///
/// # Errors
/// Only for want of memory: a place that cannot be read is garbage.
pub fn scan(file: Arc<dyn File>, header: &SegmentHeader) -> io::Result<Scan> {
    scan_with(file, header, Faults::default())
}

pub(super) fn scan_with(file: Arc<dyn File>, header: &SegmentHeader, faults: Faults) -> io::Result<Scan> {
    let seed = header.seed();
    let block = u64::from(header.block_size);
    let mut window = Window::new(file, header.block_size)?;
    let mut found = Scan::default();
    let mut pos = block;
    while pos < window.len() {
        if let Some(batch) = intact(&mut window, &seed, header.epoch, pos, faults)? {
            pos = align(batch.end);
            found.batches.push(batch);
        } else if let Some(sealed) = whole_footer(&mut window, &seed, block, pos)? {
            pos = sealed.0 + u64::from(Footer::peek_len(window.get(pos, footer::HEAD)?, &seed, pos).unwrap_or(0));
            found.footer = Some(sealed);
        } else {
            pos = step(&mut window, pos, block, &mut found.garbage)?;
        }
    }
    for bad in std::mem::take(&mut window.bad) {
        note(&mut found.garbage, bad.0, bad.1);
    }
    found.garbage.sort_unstable();
    found.bytes_read = window.bytes_read;
    Ok(found)
}

/// Over one alignment unit, or over as many zeroes as there are up to the block's end.
fn step(window: &mut Window, pos: u64, block: u64, garbage: &mut Vec<(u64, u64)>) -> io::Result<u64> {
    let to_block_end = (block - pos % block) as usize;
    let rest = window.get(pos, to_block_end)?;
    if rest.is_empty() {
        return Ok(pos + ALIGN);
    }
    if rest.iter().all(|b| *b == 0) {
        return Ok(pos + to_block_end as u64);
    }
    if rest[..rest.len().min(ALIGN as usize)].iter().any(|b| *b != 0) {
        note(garbage, pos, pos + ALIGN);
    }
    Ok(pos + ALIGN)
}

fn note(garbage: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    match garbage.last_mut() {
        Some((_, end)) if *end == from => *end = to,
        _ => garbage.push((from, to)),
    }
}

fn intact(window: &mut Window, seed: &Seed, epoch: u32, pos: u64, faults: Faults) -> io::Result<Option<Found>> {
    let Some(decoded) = BatchHeader::decode(window.get(pos, batch::LEN)?, seed, pos) else {
        return long_header(window, seed, epoch, pos, faults);
    };
    body(window, seed, epoch, pos, decoded, faults)
}

/// A header that a later version made longer is believed as well, if its own checksum holds.
fn long_header(window: &mut Window, seed: &Seed, epoch: u32, pos: u64, faults: Faults) -> io::Result<Option<Found>> {
    if window.get(pos, 4)? != batch::MAGIC {
        return Ok(None);
    }
    match BatchHeader::decode(window.get(pos, 4096)?, seed, pos) {
        Some(decoded) => body(window, seed, epoch, pos, decoded, faults),
        None => Ok(None),
    }
}

fn body(
    window: &mut Window,
    seed: &Seed,
    epoch: u32,
    pos: u64,
    decoded: batch::Decoded,
    faults: Faults,
) -> io::Result<Option<Found>> {
    let end = pos + decoded.total_len();
    if decoded.header.epoch != epoch || end > window.len() {
        return Ok(None);
    }
    let bytes = window.get(pos + decoded.header_len as u64, decoded.header.stored_len as usize)?;
    if !decoded.body_holds(seed, pos, bytes) && !faults.has(Fault::ChecksumNotChecked) {
        return Ok(None);
    }
    let header_len = decoded.header_len as u32;
    Ok(Some(Found { pos, end, header_len, checksum: decoded.checksum, header: decoded.header }))
}

fn whole_footer(window: &mut Window, seed: &Seed, block: u64, pos: u64) -> io::Result<Option<(u64, Footer, u32)>> {
    if !pos.is_multiple_of(block) {
        return Ok(None);
    }
    let Some(len) = Footer::peek_len(window.get(pos, footer::HEAD)?, seed, pos) else { return Ok(None) };
    if pos + u64::from(len) > window.len() {
        return Ok(None);
    }
    let bytes = window.get(pos, len as usize)?;
    Ok(Footer::decode(bytes, seed, pos).map(|(footer, head)| (pos, footer, head)))
}
