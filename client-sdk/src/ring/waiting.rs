//! Waiters for the appends of a ring.

use std::collections::VecDeque;

use clad_proto::AckLevel;
use clad_shm::Watermarks;

use crate::{AppendError, waiters::Claim};

/// An append whose answer is due.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) append: u64,
    pub(super) count: u32,
    pub(super) level: AckLevel,
    pub(super) claim: Claim,
}

/// Those of all levels, each in the order of the ring.
#[derive(Debug, Default)]
pub(super) struct Queues {
    received: VecDeque<Waiting>,
    written: VecDeque<Waiting>,
    durable: VecDeque<Waiting>,
    /// The reason why nothing waits here any more.
    ended: Option<AppendError>,
}

impl Queues {
    pub(super) fn len(&self) -> usize {
        self.received.len() + self.written.len() + self.durable.len()
    }

    /// The lowest append that has no answer.
    pub(super) fn oldest(&self) -> Option<u64> {
        [&self.received, &self.written, &self.durable].into_iter().filter_map(|q| q.front()).map(|w| w.append).min()
    }

    pub(super) fn insert(&mut self, waiting: Waiting) {
        let queue = match waiting.level {
            AckLevel::Durable => &mut self.durable,
            AckLevel::Written => &mut self.written,
            _ => &mut self.received,
        };
        // Threads come here in another order than to the ring, but not by far.
        let at = queue.iter().rposition(|before| before.append < waiting.append).map_or(0, |at| at + 1);
        queue.insert(at, waiting);
    }

    /// Takes out those that the watermarks cover.
    pub(super) fn covered(&mut self, watermarks: &Watermarks, into: &mut Vec<Waiting>) {
        let queues = [
            (&mut self.received, watermarks.received),
            (&mut self.written, watermarks.written),
            (&mut self.durable, watermarks.durable),
        ];
        for (queue, watermark) in queues {
            while queue.front().is_some_and(|waiting| waiting.append < watermark) {
                into.extend(queue.pop_front());
            }
        }
    }

    /// Takes out those of these appends that were refused.
    pub(super) fn refused(
        &mut self,
        appends: std::ops::Range<u64>,
        is_refused: impl Fn(u64) -> bool,
        into: &mut Vec<Waiting>,
    ) {
        for queue in [&mut self.received, &mut self.written, &mut self.durable] {
            let mut at = queue.partition_point(|waiting| waiting.append < appends.start);
            while queue.get(at).is_some_and(|waiting| waiting.append < appends.end) {
                match is_refused(queue[at].append) {
                    true => into.extend(queue.remove(at)),
                    false => at += 1,
                }
            }
        }
    }

    /// The reason why nothing can wait here any more.
    pub(super) const fn ended(&self) -> Option<&AppendError> {
        self.ended.as_ref()
    }

    /// Gives all that wait; from now on nothing does.
    pub(super) fn end(&mut self, error: &AppendError) -> Vec<Waiting> {
        self.ended.get_or_insert_with(|| error.clone());
        let mut all: Vec<Waiting> = self.received.drain(..).collect();
        all.extend(self.written.drain(..));
        all.extend(self.durable.drain(..));
        all
    }
}
