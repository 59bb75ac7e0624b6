//! Named cursors of a journal.

use std::io;
use std::sync::Arc;

use super::Journal;
use crate::error::{CursorError, ReadError};
use crate::format::cursors::NamedCursor;
use crate::read::catalog::Sealed;
use crate::sync::atomic::Ordering;
use crate::write::cursor_table::{CursorChange, unread_from};
use crate::write::watermarks::Level;

impl Journal {
    /// The named cursors that are on the disk, by name.
    pub fn cursors(&self) -> Arc<Vec<NamedCursor>> {
        self.shared.cursors.all()
    }

    /// Changes cursors, in one synced write. Blocks for the disk. `max`: cursors that there may be.
    ///
    /// # Errors
    /// Error of the kernel: no change counts, though a start may find those that were asked for. One of the answers, in
    /// the order of the changes: [`CursorError`].
    pub fn change_cursors(&self, changes: &[CursorChange], max: usize) -> io::Result<Vec<Result<(), CursorError>>> {
        self.shared.cursors.change(self.shared.storage().as_ref(), changes, max, self.now())
    }

    /// The first offset that a cursor has not read in this history of the log.
    pub fn unread_from(&self, cursor: &NamedCursor) -> u64 {
        unread_from(&self.meta(), cursor)
    }

    /// Bytes of the segments with records from an offset on. It may read footers.
    pub fn bytes_from(&self, offset: u64) -> u64 {
        let shared = &self.shared;
        let active = shared
            .active_extent()
            .map_or(0, |(_, first, pos)| if shared.watermarks().written > first.max(offset) { pos } else { 0 });
        let sealed = shared.catalog().all();
        // A segment whose footer cannot be read is damaged, and holds nothing that can be read.
        let end = |s: &Sealed| s.summary(shared.storage().as_ref()).ok().flatten().map(|summary| summary.end_offset);
        let unread = sealed.iter().rev().take_while(|s| end(s).is_none_or(|end| end > offset));
        active + unread.map(|s| s.bytes).sum::<u64>()
    }

    /// The append time of the first record from an offset on, real. It reads a batch.
    pub fn oldest_append_time(&self, offset: u64) -> Option<i64> {
        let mut reader = self.reader(offset, Level::Written);
        let batch = match reader.next_batch() {
            Err(ReadError::Gap { .. }) => reader.next_batch(),
            read => read,
        };
        batch.ok().flatten().map(|batch| batch.append_real_ns)
    }

    /// Bytes that the rules of retention would have removed, and that stay because a cursor holds them, as last seen.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }
}
