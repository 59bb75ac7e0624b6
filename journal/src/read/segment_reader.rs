//! Reads the batches of one segment in order, through their checksums.
//!
//! Invariant: only a batch with valid checksums is returned. In a sealed segment the reader skips a bad place to the
//! next valid batch (the caller sees the offsets jump, which is how damage shows). It also skips data that the footer
//! calls damaged. That was reported lost and may be stored again since, so it never comes back, even if it can be read
//! now (from a page that the disk never got, or a block that gave errors for a while). In the active segment the first
//! place that holds no batch is the end for now. After a failed checksum the place is read once more from the disk:
//! the block may have been rewritten during the read, unchanged bytes and all.

use std::io;
use std::sync::Arc;

use crate::format::align;
use crate::format::batch::{self, BatchHeader};
use crate::format::checksum::Seed;
use crate::format::footer::Damage;
use crate::format::segment::SegmentHeader;
use crate::io::File;
use crate::read::window::Window;
use crate::write::batch::Batch;

/// The reader.
pub(crate) struct SegmentReader {
    window: Window,
    seed: Seed,
    epoch: u32,
    block: u64,
    pos: u64,
    /// End of the batches, in a sealed segment.
    end: Option<u64>,
    /// Offsets that its footer names as lost.
    damage: Vec<Damage>,
    /// Checksum of the batch that was returned last, for a caller that checks the chain.
    pub(crate) last_checksum: u32,
    /// The header of that batch.
    pub(crate) last_header: Option<BatchHeader>,
    /// Bytes that were stepped over because they were neither zero nor a batch.
    pub(crate) bad_bytes: u64,
}

impl SegmentReader {
    /// Reads from `start` (a batch's place, from an index) or the first batch; up to `end`, or as far as there are any.
    pub(crate) fn new(
        file: Arc<dyn File>,
        header: &SegmentHeader,
        start: Option<u64>,
        end: Option<u64>,
    ) -> io::Result<Self> {
        let block = u64::from(header.block_size);
        Ok(Self {
            window: Window::new(file, header.block_size)?,
            seed: header.seed(),
            epoch: header.epoch,
            block,
            pos: start.unwrap_or(block),
            end,
            damage: Vec::new(),
            last_checksum: 0,
            last_header: None,
            bad_bytes: 0,
        })
    }

    /// Skips the data that the segment's footer calls damaged.
    pub(crate) fn without(self, damage: &[Damage]) -> Self {
        Self { damage: damage.to_vec(), ..self }
    }

    /// The place of the next batch, or of the end.
    pub(crate) fn pos(&self) -> u64 {
        self.pos
    }

    /// The next batch; `None` at the end, which in an active segment is the end for now.
    pub(crate) fn next_batch(&mut self) -> io::Result<Option<Batch>> {
        loop {
            let end = self.end.unwrap_or(u64::MAX).min(self.window.len());
            if self.pos >= end {
                return Ok(None);
            }
            if let Some((batch, next)) = self.look_twice(self.pos)? {
                self.pos = next;
                match batch {
                    Some(batch) => return Ok(Some(batch)),
                    None => continue, // a control batch
                }
            }
            if self.end.is_none() {
                return self.in_next_block();
            }
            self.step()?;
        }
    }

    /// In the active segment a batch starts here or in the following block, or there is none yet.
    fn in_next_block(&mut self) -> io::Result<Option<Batch>> {
        let next_block = self.pos.next_multiple_of(self.block);
        if next_block == self.pos || next_block >= self.window.len() {
            return Ok(None);
        }
        let Some((Some(batch), next)) = self.look_twice(next_block)? else { return Ok(None) };
        self.pos = next;
        Ok(Some(batch))
    }

    fn look_twice(&mut self, pos: u64) -> io::Result<Option<(Option<Batch>, u64)>> {
        if let Some(found) = self.look(pos)? {
            return Ok(Some(found));
        }
        let nothing = self.end.is_some() && self.window.get(pos, 4)? != batch::MAGIC;
        if nothing {
            return Ok(None);
        }
        self.window.invalidate();
        self.look(pos)
    }

    fn look(&mut self, pos: u64) -> io::Result<Option<(Option<Batch>, u64)>> {
        let head = self.window.get(pos, 4096)?;
        let Some(decoded) = BatchHeader::decode(head, &self.seed, pos) else { return Ok(None) };
        let h = decoded.header.clone();
        let end = pos + decoded.total_len();
        if h.epoch != self.epoch || end > self.window.len() {
            return Ok(None);
        }
        let (body_pos, stored_len) = (pos + decoded.header_len as u64, h.stored_len as usize);
        let body = self.window.get(body_pos, stored_len)?;
        if !decoded.body_holds(&self.seed, pos, body) {
            return Ok(None);
        }
        if h.codec != 0 {
            let text = format!("a batch at {pos} is stored by method {}, which this clad does not know", h.codec);
            return Err(io::Error::other(text));
        }
        let abandoned = self.damage.iter().any(|d| d.from < h.end_offset() && h.first_offset < d.to);
        let batch = (h.kind == batch::KIND_DATA && h.count > 0 && !abandoned).then(|| Batch {
            epoch: h.epoch,
            first_offset: h.first_offset,
            count: h.count,
            append_real_ns: h.append_real_ns,
            min_time_ns: h.min_time_ns,
            max_time_ns: h.max_time_ns,
            payload_bytes: None,
            owners: Vec::new(),
            body: self.window.share(body_pos, stored_len),
        });
        // The next batch overwrites a commit marker: in an active segment it must be searched at the same place.
        if batch.is_none() && self.end.is_none() {
            return Ok(None);
        }
        if batch.is_some() {
            self.last_checksum = decoded.checksum;
            self.last_header = Some(h);
        }
        Ok(Some((batch, align(end))))
    }

    fn step(&mut self) -> io::Result<()> {
        let to_block_end = (self.block - self.pos % self.block) as usize;
        let rest = self.window.get(self.pos, to_block_end)?;
        if rest.iter().all(|b| *b == 0) {
            self.pos += to_block_end as u64;
        } else {
            self.bad_bytes += rest.iter().take(64).filter(|b| **b != 0).count() as u64;
            self.pos += 64;
        }
        Ok(())
    }
}
