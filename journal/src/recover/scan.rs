//! Reads an unsealed segment from its first block to its last byte and reports its valid content.
//!
//! Invariant: nothing is concluded here. Every intact batch (its epoch is the segment's, its checksums are valid) is
//! reported with its place, whatever lies before it. Bytes that are not zero and belong to no intact batch are
//! reported as ranges; an unreadable place is one of these. Data that was provably there before the segment (whole
//! batches and footers under the seed that the file had) is neither.

use std::io;
use std::sync::Arc;

use crate::format::ALIGN;
use crate::format::align;
use crate::format::batch::{self, BatchHeader};
use crate::format::checksum::Seed;
use crate::format::footer::{self, Footer};
use crate::format::segment::SegmentHeader;
use crate::io::File;
use crate::read::window::Window;

/// An intact batch and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its start in the file.
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
    /// True if it carries records.
    pub fn is_data(&self) -> bool {
        self.header.kind == batch::KIND_DATA && self.header.count > 0
    }
}

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Intact batches in the order of their places, control batches too.
    pub batches: Vec<Found>,
    /// Bytes that are neither zero nor part of an intact batch, as (from, to).
    pub garbage: Vec<(u64, u64)>,
    /// A valid footer, and its place: the segment was sealed and only the cut of its length is missing.
    pub footer: Option<(u64, Footer, u32)>,
    /// Bytes read.
    pub bytes_read: u64,
}

impl Scan {
    /// End of the segment by that footer.
    pub fn footer_end(&self) -> Option<u64> {
        self.footer.as_ref().map(|(_, footer, _)| footer.end_offset)
    }
}

/// Scans a file whose header is valid.
///
/// # Errors
/// Only for want of memory: a place that cannot be read is garbage.
pub fn scan(file: Arc<dyn File>, header: &SegmentHeader) -> io::Result<Scan> {
    let (seed, former) = (header.seed(), header.former_seed());
    let block = u64::from(header.block_size);
    let mut window = Window::new(file, header.block_size)?;
    let mut found = Scan::default();
    let mut pos = block;
    while pos < window.len() {
        if let Some(batch) = intact(&mut window, &seed, Some(header.epoch), pos)? {
            pos = align(batch.end);
            found.batches.push(batch);
        } else if let Some(sealed) = whole_footer(&mut window, &seed, block, pos)? {
            pos = sealed.0 + u64::from(Footer::peek_len(window.get(pos, footer::HEAD)?, &seed, pos).unwrap_or(0));
            found.footer = Some(sealed);
        } else if let Some(end) = former.map(|f| stale(&mut window, &f, block, pos)).transpose()?.flatten() {
            pos = end;
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

/// The end of a batch or a footer that the file held before, if one is still whole here.
fn stale(window: &mut Window, former: &Seed, block: u64, pos: u64) -> io::Result<Option<u64>> {
    if let Some(batch) = intact(window, former, None, pos)? {
        return Ok(Some(align(batch.end)));
    }
    if whole_footer(window, former, block, pos)?.is_none() {
        return Ok(None);
    }
    let len = Footer::peek_len(window.get(pos, footer::HEAD)?, former, pos);
    Ok(len.map(|len| pos + u64::from(len)))
}

/// Steps over one alignment unit, or over as many zeroes as there are up to the block's end.
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

fn intact(window: &mut Window, seed: &Seed, epoch: Option<u32>, pos: u64) -> io::Result<Option<Found>> {
    let Some(decoded) = BatchHeader::decode(window.get(pos, batch::LEN)?, seed, pos) else {
        return long_header(window, seed, epoch, pos);
    };
    body(window, seed, epoch, pos, decoded)
}

/// A header that a later version made longer is also accepted, if its own checksum is valid.
fn long_header(window: &mut Window, seed: &Seed, epoch: Option<u32>, pos: u64) -> io::Result<Option<Found>> {
    if window.get(pos, 4)? != batch::MAGIC {
        return Ok(None);
    }
    match BatchHeader::decode(window.get(pos, 4096)?, seed, pos) {
        Some(decoded) => body(window, seed, epoch, pos, decoded),
        None => Ok(None),
    }
}

fn body(
    window: &mut Window,
    seed: &Seed,
    epoch: Option<u32>,
    pos: u64,
    decoded: batch::Decoded,
) -> io::Result<Option<Found>> {
    let end = pos + decoded.total_len();
    if epoch.is_some_and(|e| e != decoded.header.epoch) || end > window.len() {
        return Ok(None);
    }
    let bytes = window.get(pos + decoded.header_len as u64, decoded.header.stored_len as usize)?;
    if !decoded.body_holds(seed, pos, bytes) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::format::segment::{Former, example};
    use crate::io::{Access, Durability, IoBuf, OsStorage, Storage};
    use crate::recover::plan::{Said, Unsealed, plan};
    use crate::write::active::Active;
    use crate::write::batch::Batch;
    use crate::write::watermarks::Watermarks;

    const CAPACITY: usize = 256 << 10;

    /// Writes batches of one record each from `first` on into an image, as an active segment does; with its footer
    /// where it is sealed.
    fn fill(image: &mut [u8], header: &SegmentHeader, first: u64, sizes: &[usize], sealed: bool) {
        image[..4096].fill(0);
        image[..header.encode().len()].copy_from_slice(&header.encode());
        let mut active = Active::new(header.clone(), Vec::new(), first, None);
        for (offset, size) in (first..).zip(sizes) {
            let body: Vec<u8> = (0..*size).map(|i| (i as u64 * 31 + offset) as u8 | 1).collect();
            let body = body.into();
            let batch =
                Arc::new(Batch { epoch: header.epoch, first_offset: offset, count: 1, body, ..Batch::default() });
            let watermarks = Watermarks { written: offset, durable: offset, ..Watermarks::default() };
            let placed = active.place(&batch, false, &watermarks, Moment::default());
            let bytes = placed.encode(IoBuf::with_capacity(0));
            image[placed.pos as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        if sealed {
            let pos = active.footer_pos();
            let (bytes, _) = active.footer().encode(&header.seed(), pos, 4096);
            image[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn scanned(image: &[u8], header: &SegmentHeader) -> Scan {
        let dir = crate::io::real_folder();
        let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
        let file = storage.create("image", Access::WriteCached).unwrap();
        file.write_at(IoBuf::copy_of(image), 0, Durability::Written).1.unwrap();
        scan(file, header).unwrap()
    }

    fn offsets(scan: &Scan) -> Vec<u64> {
        scan.batches.iter().map(|b| b.header.first_offset).collect()
    }

    fn old() -> SegmentHeader {
        SegmentHeader { number: 3, salt: 0x0123_4567_89AB_CDEF, capacity: CAPACITY as u64, ..example() }
    }

    /// A file of 60 old batches and their footer, with two batches of a new segment over its beginning.
    fn used_again(header: &SegmentHeader) -> Vec<u8> {
        let mut image = vec![0; CAPACITY];
        let sizes: Vec<usize> = (0..60).map(|i| 500 + i * 97 % 3000).collect();
        fill(&mut image, &old(), 100, &sizes, true);
        fill(&mut image, header, 5000, &[3000, 3500], false);
        image
    }

    #[test]
    fn what_a_file_held_before_is_neither_a_batch_nor_a_tail() {
        let former = Some(Former { number: 3, salt: old().salt });
        let header = SegmentHeader { number: 9, salt: 0xFEDC, former, ..old() };
        let image = used_again(&header);
        let found = scanned(&image, &header);
        assert_eq!(offsets(&found), [5000, 5001], "only what was written since");
        assert_eq!(found.footer, None);
        // Rest of the batch that the last write cut in two; it cannot be distinguished from a torn write.
        let end = found.batches[1].end.next_multiple_of(4096);
        assert!(matches!(found.garbage[..], [(from, to)] if from == end && to - from < 4096), "{:?}", found.garbage);

        // Bytes of this segment behind its end are still a tail.
        let mut torn = image.clone();
        let at = end as usize + (64 << 10);
        torn[at..at + 1000].fill(0x55);
        let torn = scanned(&torn, &header);
        assert_eq!(offsets(&torn), [5000, 5001]);
        let covers = |g: &(u64, u64)| g.0 <= at as u64 && g.1 >= at as u64 + 1000;
        assert!(torn.garbage.iter().any(covers), "{:?}", torn.garbage);

        // A reader without this knowledge calls all of it a tail, and takes none of it for a batch.
        let unaware = SegmentHeader { former: None, ..header };
        let unaware = scanned(&used_again(&unaware), &unaware);
        assert_eq!(offsets(&unaware), [5000, 5001]);
        assert!(unaware.garbage.iter().map(|g| g.1 - g.0).sum::<u64>() > 50_000);
    }

    /// Only the seed separates old content from new: with the same seed the old passes as new.
    #[test]
    fn it_is_the_seed_that_keeps_them_apart() {
        // The number alone would do, and so would the salt.
        for header in [SegmentHeader { number: 9, ..old() }, SegmentHeader { salt: 1, ..old() }] {
            assert_eq!(offsets(&scanned(&used_again(&header), &header)), [5000, 5001]);
        }
        let same = SegmentHeader { created_ns: 1, ..old() };
        let found = scanned(&used_again(&same), &same);
        assert!(offsets(&found).len() > 40 && found.footer.is_some(), "the old batches pass: {:?}", offsets(&found));
        // Even then no record results, nor a watermark: their offsets lie below, and so do the watermarks in them.
        let scan = Scan { footer: None, ..found };
        let seen = Unsealed { scan, same_boot: true, limit: None, lost: Arc::default() };
        let plan = plan(5000, Said::default(), &[&seen], false);
        assert_eq!((plan.kept[0].batches.as_slice(), plan.next_offset), (&[0, 1][..], 5002));
        assert!(plan.proven_durable <= 5001 && plan.kept[0].damage.is_empty());
    }
}
