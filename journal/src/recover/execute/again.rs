//! Rewrite of preserved data that was not proven to be on the disk.
//!
//! Invariant: an intact batch keeps its bytes and its place, so that a power cut in the middle leaves each as it was.
//! Where no batch is, zeroes are written: the former bytes are quarantined. Nothing is written that could not be read.

use std::io;

use super::{PIECE, PlanExecutor, Work, kept, kept_end, records_end};
use crate::io::{Durability, IoBuf};
use crate::read::window::Window;
use crate::recover::plan::Plan;
use crate::recover::scan::Found;

impl PlanExecutor<'_> {
    /// Rewrites the data that is not proven to be on the disk, and then syncs everything.
    pub(super) fn write_kept_again(&mut self, w: &Work, plan: &Plan) -> io::Result<()> {
        let block = u64::from(w.header.block_size);
        if w.headless {
            crate::write::prepare::write_header(w.file.as_ref(), &w.header)?;
        }
        // Below a limit everything was durable before the later segment was sealed, or the later epoch began.
        let is_unproven = |b: &&Found| w.seen.limit.is_none() && b.header.end_offset() > plan.proven_durable;
        let first = kept(w).find(is_unproven).map(|first| first.pos);
        if let Some(first) = first {
            let unproven = kept(w).filter(|b| b.pos >= first);
            self.report.rewritten_records += unproven.map(|b| u64::from(b.header.count)).sum::<u64>();
        }
        // No watermark proves tombstones behind the last record: their write may have failed, and the page cache shows
        // them all the same.
        let (records, end) = (records_end(w), kept_end(w));
        if let Some(from) = first.or((end > records).then_some(records)) {
            self.write_again(w, from / block * block, end)?;
        }
        w.file.sync_all()
    }

    /// Writes the same bytes at the same place; zeroes between batches, and from the end of the last preserved batch
    /// to the end of its block. The rest of a block may not have reached the disk with its batch. On a reused segment
    /// other bytes lie there, which every later scan would report as damage.
    fn write_again(&mut self, w: &Work, from: u64, data_end: u64) -> io::Result<()> {
        let block = u64::from(w.header.block_size);
        let (to, records) = (data_end.next_multiple_of(block), records_end(w));
        let mut window = Window::new(w.file.clone(), w.header.block_size)?;
        for at in (from..to).step_by(PIECE as usize) {
            let end = to.min(at + PIECE);
            let mut piece = IoBuf::copy_of(window.get(at, (end - at) as usize)?);
            // Damage in between is already lost, named and quarantined; its place may be overwritten.
            let first = w.kept.batches.partition_point(|i| w.seen.scan.batches[*i].end <= at);
            let mut ours = kept(w).skip(first).take_while(|b| b.pos < end);
            ours.try_for_each(|b| window.was_read(b.pos.max(at), b.end.min(end)))?;
            if end > records && data_end > records {
                window.was_read(records.max(at), end.min(data_end))?;
            }
            // A file that was cut short may end within the last alignment unit.
            let ours = piece.len().min((end.min(data_end) - at) as usize);
            clear_between(&mut piece[..ours], at, &w.seen.scan.batches);
            if w.tail_end.is_none() {
                piece.set_len(ours);
            }
            piece.pad_to(block as usize);
            w.file.write_at(piece, at, Durability::Written).1?;
            self.report.rewritten_bytes += end - at;
        }
        Ok(())
    }
}

/// Zeroes the bytes from `at` on that belong to none of the batches.
fn clear_between(bytes: &mut [u8], at: u64, batches: &[Found]) {
    let end = at + bytes.len() as u64;
    let mut pos = at;
    for b in &batches[batches.partition_point(|b| b.end <= at)..] {
        let from = b.pos.clamp(pos, end);
        bytes[(pos - at) as usize..(from - at) as usize].fill(0);
        pos = pos.max(b.end);
        if pos >= end {
            return;
        }
    }
    bytes[(pos - at) as usize..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::super::copies::tests::found;
    use super::*;

    /// For every part of the file, and wherever batches begin and end in it.
    #[test]
    fn zeroes_come_where_no_batch_is_and_nowhere_else() {
        const FILE: [u8; 40] = [7; 40];
        for (first, second, third) in
            [((3, 9), (9, 20), (31, 36)), ((0, 1), (14, 15), (15, 40)), ((5, 6), (8, 30), (30, 31))]
        {
            let batches = [first, second, third].map(|(pos, end)| Found { end, ..found(pos) });
            for from in 0..FILE.len() {
                for to in from + 1..=FILE.len() {
                    let mut bytes = FILE[from..to].to_vec();
                    clear_between(&mut bytes, from as u64, &batches);
                    let is_in_one = |at: u64| batches.iter().any(|b| b.pos <= at && at < b.end);
                    let want: Vec<u8> = (from..to).map(|at| if is_in_one(at as u64) { 7 } else { 0 }).collect();
                    assert_eq!(bytes, want, "{from} to {to} of {first:?}, {second:?}, {third:?}");
                }
            }
        }
    }
}
