//! Dropping appends that were never sent, to make room for newer ones.
//!
//! Invariants: an append that was sent is never dropped here, so that no record ends both stored and dropped. The
//! sequences of those behind move up, and stay dense. Unsent appends lie together at the end: they are sent in order.

use super::{Entry, Session};
use bytes::Bytes;

/// An append that was dropped: its records and its waiter.
pub(crate) type Dropped<W> = (u32, W);

impl<W, F> Session<W, F> {
    /// Takes out unsent appends, oldest first, until their waiters hold `bytes` or more by `size`; where a severity is
    /// given, only those of which every record is below it. Their room is free when the waiters are gone.
    pub(crate) fn drop_unsent(
        &mut self,
        bytes: usize,
        below: Option<i32>,
        size: impl Fn(&W) -> usize,
    ) -> Vec<Dropped<W>> {
        let from = self.entries.partition_point(|entry| !entry.is_unsent());
        let (mut freed, mut dropped) = (0, Vec::new());
        let mut take = |entry: &mut Entry<W>| {
            freed += entry.waiter().map_or(0, &size);
            dropped.extend(entry.finish().map(|waiter| (entry.append.count, waiter)));
            freed >= bytes
        };
        match below {
            None => {
                let enough = self.entries.iter_mut().skip(from).position(&mut take);
                let to = enough.map_or(self.entries.len(), |at| from + at + 1);
                let gone: u64 = self.entries.drain(from..to).map(|entry| u64::from(entry.append.count)).sum();
                self.skipped += gone;
            }
            Some(severity) => {
                let (mut at, mut gone, mut enough) = (0, 0, false);
                self.entries.retain_mut(|entry| {
                    at += 1;
                    if at <= from {
                        return true;
                    }
                    if !enough && entry.append.severity < severity {
                        enough = take(entry);
                        gone += u64::from(entry.append.count);
                        return false;
                    }
                    if !enough && !entry.copied {
                        // It shares memory with those around it that go.
                        entry.append.payload = Bytes::copy_from_slice(&entry.append.payload);
                        entry.copied = true;
                    }
                    entry.index -= gone;
                    true
                });
                self.next_index -= gone;
            }
        }
        self.trim();
        dropped
    }
}
