//! Open batches: accepted appends that were not yet submitted to the disk.
//!
//! Invariant: an append lies whole in one batch; batches leave in offset order. The permits of an append (the bytes
//! that admission counted for it) stay with its batch until the journal releases its memory. Appends that come
//! together bring one permit for all of them ([`BurstPermits`]): it is split where a batch ends, not for each append.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Moment;
use crate::format::batch;
use crate::format::chunk::{Chunk, ChunkError, ChunkHeader, chunks};
use crate::io::body::Body;
use crate::write::buffer_pool::BufferPool;
use crate::write::owner_bytes::OwnerBytes;
use crate::write::permits::Permit;

/// A batch's content, wherever it lies on the disk.
#[derive(Debug, Default)]
pub struct Batch {
    /// Epoch that its offsets were given in.
    pub epoch: u32,
    /// Offset of the first record.
    pub first_offset: u64,
    /// Records.
    pub count: u32,
    /// Real time at which its first append was taken.
    pub append_real_ns: i64,
    /// Least record time.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// Counted while the batch was open.
    pub(crate) payload_bytes: Option<u64>,
    /// Stored bytes by owner, counted while the batch was open: one entry for appends of one owner in a row.
    pub(crate) owners: Vec<(u64, u64)>,
    /// The chunks.
    pub body: Body,
}

impl Batch {
    /// One past the last offset.
    pub fn end_offset(&self) -> u64 {
        self.first_offset + u64::from(self.count)
    }

    /// Bytes of its payloads, without the journal's own data around them. For a batch that was read they are counted
    /// now: a reader that only passes over it does not pay for that.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes.unwrap_or_else(|| chunks(&self.body).flatten().map(|chunk| chunk.payload.len() as u64).sum())
    }

    /// Adds its bytes to those of their owners. Of a batch that was read they are counted now.
    pub(crate) fn add_owners(&self, owners: &mut OwnerBytes) {
        match self.payload_bytes {
            Some(_) => owners.add_all(self.owners.iter().copied()),
            None => owners.add_body(&self.body),
        }
    }

    /// Bytes that it takes in a file, header included.
    pub fn stored_len(&self) -> u64 {
        (batch::LEN + self.body.len()) as u64
    }

    /// Its appends with the offset of each.
    pub fn chunks(&self) -> impl Iterator<Item = Result<(u64, Chunk<'_>), ChunkError>> {
        let mut next = self.first_offset;
        chunks(&self.body).map(move |chunk| {
            let chunk = chunk?;
            let first = next;
            next += u64::from(chunk.header.count);
            Ok((first, chunk))
        })
    }
}

/// Appends of one producer that follow each other in sequence and in offset, as if they were one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Producer and first sequence; `count` is that of all records, the checksum that of the first append.
    pub(crate) header: ChunkHeader,
    /// Offset of the first record.
    pub(crate) first_offset: u64,
}

impl Row {
    /// True if an append at this offset would continue this row.
    pub(crate) fn follows(&self, next: &ChunkHeader, first_offset: u64) -> bool {
        let h = &self.header;
        h.first_sequence.checked_add(h.count.into()) == Some(next.first_sequence)
            && self.first_offset + u64::from(h.count) == first_offset
            && (h.producer, h.owner, h.producer_epoch) == (next.producer, next.owner, next.producer_epoch)
            && h.count.checked_add(next.count).is_some()
    }

    /// Takes an append in that follows.
    pub(crate) fn extend(&mut self, next: &ChunkHeader) {
        self.header.count += next.count;
    }
}

/// The permit that appends brought along together. The pending part belongs to the accepted appends; the rest is
/// released when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct BurstPermits {
    permit: Option<Permit>,
    claimed: usize,
}

impl BurstPermits {
    pub(crate) fn new(permit: Option<Permit>) -> Self {
        Self { permit, claimed: 0 }
    }

    fn pay(&mut self) -> Option<Permit> {
        let claimed = std::mem::take(&mut self.claimed);
        match &mut self.permit {
            Some(permit) if claimed < permit.num_permits() => permit.split(claimed),
            _ => self.permit.take(),
        }
    }
}

/// A batch that waits, with state that only matters until it is stored.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    pub(crate) batch: Arc<Batch>,
    pub(crate) wants_written: bool,
    pub(crate) since_boot_ns: u64,
    pub(crate) permit: Option<Permit>,
}

#[derive(Debug, Default)]
struct OpenBatch {
    /// Without its body.
    batch: Batch,
    body: Vec<u8>,
    wants_written: bool,
    since_boot_ns: u64,
    permit: Option<Permit>,
}

impl OpenBatch {
    fn close(self) -> PendingBatch {
        PendingBatch {
            batch: Arc::new(Batch { body: self.body.into(), ..self.batch }),
            wants_written: self.wants_written,
            since_boot_ns: self.since_boot_ns,
            permit: self.permit,
        }
    }

    fn add_permits(&mut self, more: Option<Permit>) {
        match (&mut self.permit, more) {
            (Some(held), Some(more)) => held.merge(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
    }
}

/// The queue between the sequencer and the disk.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    closed: VecDeque<PendingBatch>,
    open: Option<OpenBatch>,
    bytes: usize,
    max_bytes: usize,
    /// Room for the next batch from the start, by the one before: growing would copy it again and again.
    expected: usize,
    /// Memory of batches that are gone.
    pool: BufferPool,
}

/// One append as it enters the queue.
pub(crate) struct PendingAppend<'a> {
    pub(crate) header: &'a ChunkHeader,
    pub(crate) peer_meta: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) min_time_ns: i64,
    pub(crate) max_time_ns: i64,
    pub(crate) wants_written: bool,
    /// Its part of the burst's permits.
    pub(crate) share: usize,
}

impl BatchBuilder {
    /// A queue whose batches close at `max_bytes`; 0 makes each append a batch.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { closed: VecDeque::new(), open: None, bytes: 0, max_bytes, expected: 0, pool: BufferPool::default() }
    }

    /// Closes batches at another size from now on.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.open.is_none()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Batches that wait.
    pub(crate) fn batches(&self) -> usize {
        self.closed.len() + usize::from(self.open.is_some())
    }

    /// The next batch's size, its start of waiting, and true if a caller waits for `written`.
    pub(crate) fn front(&self) -> Option<(usize, u64, bool)> {
        match (self.closed.front(), &self.open) {
            (Some(b), _) => Some((b.batch.body.len(), b.since_boot_ns, b.wants_written)),
            (None, Some(o)) => Some((o.body.len(), o.since_boot_ns, o.wants_written)),
            (None, None) => None,
        }
    }

    /// Adds an append at its offset. Returns the bytes that it takes in the file, with the header of its batch where
    /// it is the first. [`Self::settle`] follows after the last append of a burst.
    pub(crate) fn push(
        &mut self,
        e: PendingAppend<'_>,
        epoch: u32,
        first_offset: u64,
        now: Moment,
        permits: &mut BurstPermits,
    ) -> u64 {
        let len = ChunkHeader::encoded_len(e.peer_meta.len(), e.payload.len());
        if self.open.as_ref().is_some_and(|o| o.body.len() + len > self.max_bytes || o.batch.epoch != epoch) {
            self.settle(permits);
            self.close_open();
        }
        let stored = (len + if self.open.is_none() { batch::LEN } else { 0 }) as u64;
        let (pool, expected) = (&mut self.pool, self.expected);
        let open = self.open.get_or_insert_with(|| OpenBatch {
            batch: Batch {
                epoch,
                first_offset,
                append_real_ns: now.real_ns,
                min_time_ns: i64::MAX,
                max_time_ns: i64::MIN,
                ..Batch::default()
            },
            body: pool.take(expected),
            since_boot_ns: now.boot_ns,
            ..OpenBatch::default()
        });
        assert!(
            open.batch.end_offset() == first_offset,
            "offset {first_offset} goes into the batch that ends at {}: records between would be lost",
            open.batch.end_offset()
        );
        pool.grow(&mut open.body, len, self.max_bytes);
        e.header.encode_into(&mut open.body, e.peer_meta, e.payload);
        open.batch.count += e.header.count;
        *open.batch.payload_bytes.get_or_insert(0) += e.payload.len() as u64;
        match open.batch.owners.last_mut() {
            Some((owner, bytes)) if *owner == e.header.owner => *bytes += stored,
            _ => open.batch.owners.push((e.header.owner, stored)),
        }
        open.batch.min_time_ns = open.batch.min_time_ns.min(e.min_time_ns);
        open.batch.max_time_ns = open.batch.max_time_ns.max(e.max_time_ns);
        open.wants_written |= e.wants_written;
        permits.claimed += e.share;
        self.bytes += len;
        stored
    }

    /// Moves the pending permits of its appends to the open batch.
    pub(crate) fn settle(&mut self, permits: &mut BurstPermits) {
        if permits.claimed > 0
            && let Some(open) = &mut self.open
        {
            open.add_permits(permits.pay());
        }
    }

    /// Releases a batch; its memory is reused if there is no other reference.
    pub(crate) fn recycle(&mut self, batch: Arc<Batch>) {
        if let Some(body) = Arc::into_inner(batch).and_then(|batch| batch.body.into_own()) {
            self.pool.give(body);
        }
    }

    /// Number of requests to the allocator for a batch's memory.
    #[cfg(test)]
    pub(crate) fn allocations(&self) -> usize {
        self.pool.allocations()
    }

    /// Handles an idle log: retains only as much memory as small batches take.
    pub(crate) fn idle(&mut self) {
        self.pool.idle();
    }

    fn close_open(&mut self) {
        self.closed.extend(self.open.take().map(OpenBatch::close));
    }

    /// Takes the next batch out.
    pub(crate) fn pop(&mut self) -> Option<PendingBatch> {
        let next = self.closed.pop_front().or_else(|| self.open.take().map(OpenBatch::close))?;
        let len = next.batch.body.len();
        assert!(len <= self.bytes, "{len} bytes leave of {}: the bound on memory would be lost", self.bytes);
        self.bytes -= len;
        self.expected = len.min(self.max_bytes);
        Some(next)
    }
}
