//! Copies of dropped data to `quarantine/`, before anything is written over it.
//!
//! Invariant: each copy is synced, and its name too, when this returns. A start that is cut and repeated makes the
//! same copies under the same names. The work is one pass over the batches, and the copied bytes.
//!
//! On a full disk a start still succeeds. Where a copy finds no room, the prepared segments are removed: they hold
//! nothing. If that is not enough, a tail stays in its segment: the footer then stands behind it, and says that the
//! data ends before it. Damage never stays so: its place may be overwritten.

use std::io;

use super::{PIECE, PlanExecutor, Work, kept_end};
use crate::format::{QUARANTINE, checksum};
use crate::io::{Access, Durability, IoBuf, if_there};
use crate::read::window::Window;
use crate::recover::clear_above;
use crate::recover::scan::Found;
use crate::write::metafile::MetaFile;

/// Damaged places of one segment that are quarantined one by one; more are copied as one piece, from the first to the
/// last.
const COPIES: usize = 64;

impl PlanExecutor<'_> {
    /// Copies the dropped data to `quarantine/`: damage below the proven end, and everything behind the cut.
    pub(super) fn quarantine(&mut self, w: &mut Work) -> io::Result<()> {
        let (damaged, tail) = not_kept(w);
        for (from, to) in damaged {
            self.copy_or_free(w, from, to, "damaged")?;
        }
        let Some((from, to)) = tail else { return Ok(()) };
        match self.copy_or_free(w, from, to, "tail") {
            Err(e) if e.kind() == io::ErrorKind::StorageFull && !w.headless => {
                w.tail_end = Some(to);
                self.report.quarantined_bytes += to - from;
                self.report.left_in_place.push((w.number, to - from));
                Ok(())
            }
            done => done,
        }
    }

    /// Copies a range. On a full disk, the prepared segments are removed first, and the copy is tried once more.
    fn copy_or_free(&mut self, w: &Work, from: u64, to: u64, kind: &str) -> io::Result<()> {
        match self.copy_out(w, from, to, kind) {
            Err(e) if e.kind() == io::ErrorKind::StorageFull && self.free_prepared()? => {
                self.copy_out(w, from, to, kind)
            }
            done => done,
        }
    }

    /// Removes the prepared segments, and returns true if there were any. Recovery in the process uses them itself.
    fn free_prepared(&mut self) -> io::Result<bool> {
        let Some(meta) = self.meta.map(MetaFile::get) else { return Ok(false) };
        let next = meta.next_segment();
        let names = || Ok::<_, io::Error>(self.storage.list("")?.len());
        let before = names()?;
        let quarantined = clear_above(self.storage, &meta, next, None, self.observer)?;
        let freed = names()? < before;
        self.report.unknown(quarantined);
        Ok(freed)
    }

    fn copy_out(&mut self, w: &Work, from: u64, to: u64, kind: &str) -> io::Result<()> {
        let mut window = Window::new(w.file.clone(), w.header.block_size)?;
        let to = to.min(window.len());
        let mut sum = 0;
        for at in (from..to).step_by(PIECE as usize) {
            let piece = window.get(at, (to - at).min(PIECE) as usize)?;
            sum ^= checksum::plain(piece).rotate_left((at / PIECE % 32) as u32);
        }
        self.storage.create_dir(QUARANTINE)?;
        let name = format!("{QUARANTINE}/{:020}.{from}-{to}.{sum:08x}.{kind}", w.number);
        if_there(self.storage.remove(&name))?; // a start that was cut had begun the same copy
        let copy = self.storage.create(&name, Access::WriteCached)?;
        let mut copied = || {
            for at in (from..to).step_by(PIECE as usize) {
                let piece = IoBuf::copy_of(window.get(at, (to - at).min(PIECE) as usize)?);
                copy.write_at(piece, at - from, Durability::Written).1?;
            }
            copy.sync_all()
        };
        if let Err(e) = copied() {
            let _ = self.storage.remove(&name); // a partial copy is useless, and takes the room
            return Err(e);
        }
        self.storage.sync_dir(QUARANTINE)?;
        self.storage.sync_dir("")?;
        self.report.quarantined_bytes += to - from;
        self.report.quarantined.push(name);
        Ok(())
    }
}

/// Ranges of the file.
type Ranges = Vec<(u64, u64)>;

/// Dropped data: damage, range by range, and the tail.
fn not_kept(w: &Work) -> (Ranges, Option<(u64, u64)>) {
    let data_end = kept_end(w);
    let lost = w.seen.scan.garbage.iter().filter(|g| w.headless || g.0 < data_end);
    let mut damaged: Ranges = lost.chain(&w.lost).copied().collect();
    damaged.sort_unstable();
    if let (Some(first), Some(last)) = (damaged.first().copied(), damaged.last().copied())
        && damaged.len() > COPIES
    {
        damaged = vec![(first.0, last.1)]; // each copy costs syncs, and one more name in the folder
    }
    let behind_garbage = w.seen.scan.garbage.iter().filter(|g| !w.headless && g.0 >= data_end).copied();
    // Data that a later segment repeats is no loss; data that ended with its epoch was quarantined then.
    let behind_batches = left_out(&w.seen.scan.batches, &w.kept.batches).filter(|b| {
        let ended = w.seen.limit.is_some_and(|l| b.header.first_offset >= l);
        b.is_data() && !ended && w.lost.binary_search(&(b.pos, b.end)).is_err()
    });
    let behind: Ranges = behind_garbage.chain(behind_batches.map(|b| (b.pos, b.end))).collect();
    let ends = (behind.iter().map(|r| r.0).min(), behind.iter().map(|r| r.1).max());
    (damaged, ends.0.zip(ends.1))
}

/// The batches that are dropped. Both lists are read once: there may be a million.
fn left_out<'a>(all: &'a [Found], kept: impl IntoIterator<Item = &'a usize>) -> impl Iterator<Item = &'a Found> {
    let mut kept = kept.into_iter().peekable();
    all.iter().enumerate().filter(move |(at, _)| kept.next_if(|kept| *kept == at).is_none()).map(|(_, batch)| batch)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::format::batch::{BatchHeader, KIND_DATA};

    pub(in super::super) fn found(pos: u64) -> Found {
        let header = BatchHeader {
            kind: KIND_DATA,
            codec: 0,
            flags: 0,
            epoch: 1,
            first_offset: pos,
            count: 1,
            stored_len: 0,
            plain_len: 0,
            previous: 0,
            written: 0,
            durable: 0,
            append_real_ns: 0,
            append_boot_ns: 0,
            min_time_ns: 0,
            max_time_ns: 0,
            body_checksum: 0,
        };
        Found { pos, end: pos + 1, header_len: 96, header, checksum: 0 }
    }

    /// A segment of small batches holds hundreds of thousands: each is read once, however many are preserved.
    #[test]
    fn what_is_left_out_is_found_in_one_pass() {
        const BATCHES: usize = 300_000;
        let all: Vec<Found> = (0..BATCHES as u64).map(found).collect();
        for (every, left) in [(1, 0), (2, BATCHES / 2), (BATCHES, BATCHES - 1)] {
            let kept: Vec<usize> = (0..BATCHES).step_by(every).collect();
            let looks = Cell::new(0);
            let looked_at = kept.iter().inspect(|_| looks.set(looks.get() + 1));
            let out: Vec<u64> = left_out(&all, looked_at).map(|batch| batch.pos).collect();
            assert_eq!((out.len(), looks.get()), (left, kept.len()));
            assert!(out.iter().all(|pos| !(*pos as usize).is_multiple_of(every)), "one that is kept is left out");
        }
    }
}
