//! The active segment: the place of the next batch, and the content of its footer.
//!
//! Invariants:
//! - Every write covers whole blocks. Writes in flight never share one: a batch that follows one still in flight
//!   starts in a fresh block, and every write fills its last block with zeroes.
//! - With nothing in flight the next batch continues in the last block: the write repeats the acknowledged bytes of
//!   that block unchanged. That assumes a device that does not lose bytes which are overwritten with themselves.
//! - Until such a write is done, the batches that lie in that block are held in memory ([`Placed::shares`]): when it
//!   fails they may be gone from the disk and are written again elsewhere.
//! - The chain runs over data batches only; the next batch overwrites a commit marker, tombstones stay.

use std::sync::Arc;

use crate::clock::Moment;
use crate::format::batch::{self, BatchHeader};
use crate::format::checksum::Seed;
use crate::format::footer::{Before, Footer};
use crate::format::segment::SegmentHeader;
use crate::format::{ALIGN, align};
use crate::io::{File, IoBuf};
use crate::write::batch::Batch;
use crate::write::owner_bytes::OwnerBytes;
use crate::write::watermarks::Watermarks;

/// A segment that batches are appended to.
pub(crate) struct Active {
    pub(crate) header: SegmentHeader,
    pub(crate) seed: Seed,
    /// All of its space is written and its own: an overwrite changes no metadata.
    pub(crate) in_place: bool,
    /// One open file description for each write in flight, and the last one for syncs.
    pub(crate) files: Vec<Arc<dyn File>>,
    pub(crate) pos: u64,
    /// The footer so far, without the owners and the producers.
    pub(crate) content: Footer,
    /// Time at which the first batch was submitted.
    pub(crate) first_append_boot_ns: Option<u64>,
    /// The watermarks that the newest header in the file stores.
    pub(crate) stored_watermarks: (u64, u64),
    /// Data in the block that the next batch may continue in.
    tail: Shares,
    owners: OwnerBytes,
}

/// A batch with bytes in a block that is not full.
#[derive(Clone)]
struct Share {
    start: u64,
    header: [u8; batch::LEN],
    batch: Arc<Batch>,
}

impl Share {
    fn body_at(&self) -> u64 {
        self.start + batch::LEN as u64
    }

    fn end(&self) -> u64 {
        self.start + self.batch.stored_len()
    }
}

/// The batches with bytes in one block, in order. Their bytes are not copied until they are written again.
#[derive(Clone, Default)]
pub(crate) struct Shares(Option<Arc<Vec<Share>>>);

impl Shares {
    fn all(&self) -> &[Share] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The batches.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &Arc<Batch>> {
        self.all().iter().map(|share| &share.batch)
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<&Arc<Batch>> {
        self.batches().next()
    }

    /// Adds one, and releases those that end before a place.
    fn extend(&mut self, share: Share, block_start: u64) {
        // Rebuilt each time: the write that repeats the old data has it.
        let stay = |share: &&Share| share.end() > block_start;
        let mut all = Vec::with_capacity(self.all().iter().filter(stay).count() + 1);
        all.extend(self.all().iter().filter(stay).cloned());
        all.extend(Some(share).filter(|share| stay(&share)));
        self.0 = (!all.is_empty()).then(|| Arc::new(all));
    }

    /// Appends their bytes from `block_start` on, each at its place, zeroes between them and up to `len`.
    fn encode(&self, buf: &mut IoBuf, block_start: u64, len: usize) {
        for share in self.all() {
            for (at, piece) in [(share.start, &share.header[..]), (share.body_at(), &share.batch.body)] {
                let from = at.max(block_start);
                if from < at + piece.len() as u64 {
                    buf.zero_to((from - block_start) as usize);
                    buf.extend_from_slice(&piece[(from - at) as usize..]);
                }
            }
        }
        buf.zero_to(len);
    }
}

/// One write, ready to be made.
pub(crate) struct Placed {
    /// Position in the file, a multiple of the block.
    pub(crate) pos: u64,
    /// Bytes of the first block that were there before.
    repeated: usize,
    header: [u8; batch::LEN],
    batch: Option<Arc<Batch>>,
    block: usize,
    /// Batches with bytes in the block that this write repeats.
    pub(crate) shares: Shares,
}

impl Placed {
    /// Records that it carries; 0 for a commit marker.
    pub(crate) fn records(&self) -> u32 {
        self.batch.as_ref().map_or(0, |b| b.count)
    }

    /// Bytes of the write: whole blocks.
    pub(crate) fn len(&self) -> usize {
        let body = self.batch.as_ref().map_or(0, |b| b.body.len());
        (self.repeated + self.header.len() + body).next_multiple_of(self.block)
    }

    /// Bytes of the file that it covers.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.pos, self.pos + self.len() as u64)
    }

    /// Fills a buffer with whole blocks.
    pub(crate) fn encode(&self, mut buf: IoBuf) -> IoBuf {
        buf.clear();
        self.shares.encode(&mut buf, self.pos, self.repeated);
        buf.extend_from_slice(&self.header);
        if let Some(batch) = &self.batch {
            buf.extend_from_slice(&batch.body);
        }
        buf.pad_to(self.block);
        buf
    }
}

impl Active {
    pub(crate) fn new(header: SegmentHeader, files: Vec<Arc<dyn File>>, next: u64, before: Option<Before>) -> Self {
        Self {
            in_place: false,
            content: Footer::new(header.number, header.epoch, next, before),
            seed: header.seed(),
            pos: u64::from(header.block_size),
            header,
            files,
            first_append_boot_ns: None,
            stored_watermarks: (0, 0),
            tail: Shares::default(),
            owners: OwnerBytes::default(),
        }
    }

    fn block(&self) -> u64 {
        u64::from(self.header.block_size)
    }

    /// True if it holds a batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.first_append_boot_ns.is_none()
    }

    /// Index entries so far, for the bound on the footer.
    pub(crate) fn index_len(&self) -> usize {
        self.content.index.len()
    }

    fn start(&self, fresh: bool) -> u64 {
        if fresh { self.pos.next_multiple_of(self.block()) } else { self.pos }
    }

    /// True if so many bytes of batches (each in a fresh block, at worst) and a footer still fit.
    pub(crate) fn has_room(&self, stored: u64, batches: u64, footer: u64) -> bool {
        let worst = self.pos.next_multiple_of(self.block()) + stored + batches * self.block();
        worst.next_multiple_of(self.block()) + footer <= self.header.capacity
    }

    /// True if one batch and a footer fit.
    pub(crate) fn fits(&self, stored: u64, fresh: bool, footer: u64) -> bool {
        (self.start(fresh) + stored).next_multiple_of(self.block()) + footer <= self.header.capacity
    }

    /// Gives a batch its place: of records, or without records of tombstones. `fresh`: a write is in flight, so that it
    /// may not share a block.
    pub(crate) fn place(&mut self, batch: &Arc<Batch>, fresh: bool, watermarks: &Watermarks, now: Moment) -> Placed {
        let (start, is_data) = (self.start(fresh), batch.count > 0);
        let kind = if is_data { batch::KIND_DATA } else { batch::KIND_TOMBSTONES };
        let header = self.batch_header(kind, batch, start, watermarks, now);
        let (bytes, checksum) = header.encode(&self.seed, start);
        let placed = self.placed(start, fresh, bytes, Some(batch.clone()));
        self.first_append_boot_ns.get_or_insert(now.boot_ns);
        if is_data {
            self.content.add(&header, start, checksum);
            self.content.payload_bytes += batch.payload_bytes();
            batch.add_owners(&mut self.owners);
        }
        self.stored_watermarks = (watermarks.written, watermarks.durable);
        self.keep_tail(Share { start, header: bytes, batch: batch.clone() });
        placed
    }

    /// Places an empty batch with the watermarks (a commit marker); the next batch overwrites it. Only with nothing in
    /// flight.
    pub(crate) fn place_commit_marker(&mut self, watermarks: &Watermarks, now: Moment) -> Placed {
        let (first_offset, append_real_ns) = (self.content.end_offset, now.real_ns);
        let marker = Batch { first_offset, append_real_ns, ..Batch::default() };
        let header = self.batch_header(batch::KIND_COMMIT_MARKER, &marker, self.pos, watermarks, now);
        let (bytes, _) = header.encode(&self.seed, self.pos);
        self.stored_watermarks = (watermarks.written, watermarks.durable);
        self.placed(self.pos, false, bytes, None)
    }

    fn batch_header(&self, kind: u8, batch: &Batch, start: u64, watermarks: &Watermarks, now: Moment) -> BatchHeader {
        BatchHeader {
            kind,
            codec: 0,
            flags: 0,
            epoch: self.header.epoch,
            first_offset: batch.first_offset,
            count: batch.count,
            stored_len: batch.body.len() as u32,
            plain_len: batch.body.len() as u32,
            previous: self.content.last_batch_checksum,
            written: watermarks.written,
            durable: watermarks.durable,
            append_real_ns: batch.append_real_ns,
            append_boot_ns: now.boot_ns,
            min_time_ns: batch.min_time_ns,
            max_time_ns: batch.max_time_ns,
            body_checksum: BatchHeader::body_checksum(&self.seed, start, &batch.body),
        }
    }

    fn placed(&self, start: u64, fresh: bool, header: [u8; batch::LEN], batch: Option<Arc<Batch>>) -> Placed {
        let shares = if fresh { Shares::default() } else { self.tail.clone() };
        let pos = start - start % self.block();
        Placed { pos, repeated: (start - pos) as usize, header, batch, block: self.block() as usize, shares }
    }

    /// Remembers the data in the block that the next batch may continue in.
    fn keep_tail(&mut self, share: Share) {
        self.pos = align(share.end());
        let block_start = self.pos - self.pos % self.block();
        self.tail.extend(share, block_start);
        debug_assert_eq!(self.pos % ALIGN, 0);
    }

    /// The batches in the block that the next one continues in.
    pub(crate) fn last_block(&self) -> impl Iterator<Item = &Arc<Batch>> {
        self.tail.batches()
    }

    /// Position of a footer: the first block that holds no batch.
    pub(crate) fn footer_pos(&self) -> u64 {
        self.pos.next_multiple_of(self.block())
    }

    /// Content of the footer, without the producers.
    pub(crate) fn footer(&self) -> Footer {
        Footer { data_end: self.pos, owners: self.owners.for_footer(), ..self.content.clone() }
    }

    /// Bytes of payload by owner, so far.
    pub(crate) fn owners(&self) -> &OwnerBytes {
        &self.owners
    }

    /// The last index entry at or before an offset: where a reader starts to look for it.
    pub(crate) fn seek(&self, offset: u64) -> Option<u64> {
        let index = &self.content.index;
        let after = index.partition_point(|e| e.first_offset <= offset);
        after.checked_sub(1).map(|i| index[i].position)
    }
}
