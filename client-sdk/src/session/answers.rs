//! Answers of the daemon.

use super::{Broken, Known, Link, Session, Stage};
use crate::{AppendError, Receipt};
use clad_proto::{
    AckLevel, ErrorCode,
    frame::{Accepted, Refused, Watermark, Welcome},
};
use tokio::time::Instant;

/// The place of a level in `Link::watermarks`; nothing for a level without a watermark.
pub(super) fn slot(level: AckLevel) -> Option<usize> {
    AckLevel::WATERMARKS.iter().position(|known| *known == level)
}

impl Link {
    /// True if everything below `end` in the link's epoch has reached a level.
    fn covers(&self, level: AckLevel, end: u64) -> bool {
        // Accepted is received.
        level <= AckLevel::Received
            || slot(level).and_then(|slot| self.watermarks.get(slot)).is_some_and(|watermark| end <= *watermark)
    }
}

impl Known {
    /// Abandons offsets from `from` on; returns true if some of them have receipts. What lies below may still be lost,
    /// later.
    fn receipts_cut(&mut self, from: u64) -> bool {
        let cut = self.receipts_end.is_some_and(|(_, end)| end > from);
        if cut {
            self.receipts_end = Some((0, from));
        }
        cut
    }
}

impl<W, F> Session<W, F> {
    /// An append has its offsets.
    pub(crate) fn accepted(&mut self, answer: &Accepted, now: Instant) -> Result<(), Broken> {
        let end = answer.first_offset.checked_add(answer.count.into()).ok_or("an offset beyond 64 bits")?;
        if self.link.as_ref().is_some_and(|link| link.epoch < answer.epoch) {
            self.epoch_rose(answer.epoch, None);
        }
        // An append that was abandoned in the meantime has no entry any more.
        let Some(at) = self.find(answer.first_seq) else { return Ok(()) };
        let (Some(link), Some(known), Some(entry)) = (&mut self.link, &mut self.known, self.entries.get_mut(at)) else {
            return Ok(());
        };
        if entry.append.count != answer.count {
            return Err("ACCEPTED counts other records than were sent");
        }
        if entry.stage == Stage::Sent {
            link.in_flight -= 1;
        }
        if answer.epoch < link.epoch && link.epoch_first.is_some_and(|first| end > first) {
            // Given in an epoch that was cut below it since: as good as not answered.
            self.requeue(at, true);
            self.retry(now, None, "an offset of an abandoned history");
            return Ok(());
        }
        if link.unsure_below.is_some_and(|below| answer.first_seq >= below) {
            link.unsure_below = None;
        }
        entry.stage = Stage::Accepted { epoch: answer.epoch, first_offset: answer.first_offset };
        entry.refusal = None;
        known.first_place.get_or_insert((link.epoch, answer.first_offset));
        known.places_end = known.places_end.max(end);
        self.trouble = None;
        self.backoff.reset();
        self.release(at, at + 1);
        Ok(())
    }

    /// All offsets below a watermark have reached a level.
    pub(crate) fn watermark(&mut self, watermark: &Watermark, now: Instant) {
        let Some(link) = &self.link else { return };
        if watermark.epoch > link.epoch {
            self.epoch_rose(watermark.epoch, Some(watermark.epoch_first_offset));
        }
        if let Some(link) = self.link.as_mut().filter(|link| link.epoch == watermark.epoch) {
            if link.epoch_first.replace(watermark.epoch_first_offset).is_none()
                && let Some(known) = &mut self.known
            {
                known.places_end = known.places_end.min(watermark.epoch_first_offset);
            }
            let slots = slot(watermark.level).map_or(0, |slot| slot + 1);
            // What has reached a level has reached those below it.
            for known in link.watermarks.iter_mut().take(slots) {
                *known = watermark.offset.max(*known);
            }
            self.release(0, self.frontier);
        }
        if watermark.request_id != 0 {
            self.flush_answered(watermark, now);
        }
    }

    /// Gives receipts to what is covered, from `from` to `to`.
    pub(super) fn release(&mut self, from: usize, to: usize) {
        for at in from..to.min(self.entries.len()) {
            let (Some(link), Some(known), Some(entry)) = (&self.link, &mut self.known, self.entries.get(at)) else {
                return;
            };
            let Stage::Accepted { epoch, first_offset } = entry.stage else { continue };
            let end = first_offset + u64::from(entry.append.count);
            if link.covers(entry.level, end) {
                let receipt = Receipt {
                    log_id: known.log_id,
                    epoch,
                    first_offset: Some(first_offset),
                    count: entry.append.count,
                    level: entry.level,
                };
                let end_seq = self.base.wrapping_add(entry.index).wrapping_add(entry.append.count.into());
                known.receipts_end = known.receipts_end.max(Some((end_seq, end)));
                self.succeed(at, receipt);
            } else if !link.covers(AckLevel::Written, end) {
                break; // offsets ascend with sequences, and `durable` is never ahead of `written`
            }
        }
        self.trim();
    }

    /// An append is not taken, or not stored.
    pub(crate) fn refused(&mut self, answer: Refused, now: Instant) {
        let Some(at) = self.find(answer.first_seq) else { return };
        let (Some(link), Some(entry)) = (&mut self.link, self.entries.get_mut(at)) else { return };
        let error = answer.error;
        if entry.stage == Stage::Sent {
            link.in_flight -= 1;
        }
        link.hold = true;
        link.expected = link.expected.min(entry.expected);
        entry.lost |= error.maybe_written || matches!(entry.stage, Stage::Accepted { .. });
        let (marked, lost) = (entry.marked, entry.lost);
        entry.stage = Stage::Queued;
        self.cursor = self.cursor.min(at);
        if !error.retryable {
            self.finish(at, Err(AppendError::Refused { error: Box::new(error), maybe_written: lost }));
            self.trim();
            return;
        }
        let text = error.to_string();
        let wait = error.retry_after_ms;
        let gap = error.code == ErrorCode::SequenceGap;
        let expected = error.expected_sequence;
        let refusal = Box::new(error);
        // The appends behind a refused one are refused for its sake, and have its reason.
        let before = at.checked_sub(1).filter(|_| gap && !marked).and_then(|at| self.entries.get(at)?.refusal.clone());
        if let Some(entry) = self.entries.get_mut(at) {
            entry.refusal = Some(before.unwrap_or(refusal));
        }
        if gap {
            self.daemon_expects(expected.unwrap_or(0));
        }
        // A gap that was not marked comes from the refusal of what was before, which has its own wait.
        if !gap || marked {
            self.retry(now, wait, &text);
        }
    }

    /// The daemon says what it expects: whatever of ours is from there on is not stored, also if it once was.
    fn daemon_expects(&mut self, expected: u64) {
        if let Some(link) = &mut self.link {
            link.expected = expected;
        }
        for at in 0..self.frontier.min(self.entries.len()) {
            let gone = self.entries.get(at).is_some_and(|entry| {
                matches!(entry.stage, Stage::Accepted { .. }) && self.seq(entry.index) >= expected
            });
            if gone {
                self.requeue(at, true);
            }
        }
        self.check_receipts(expected);
    }

    /// Checks that everything that has a receipt is still there.
    pub(super) fn check_receipts(&mut self, expected: u64) {
        if let Some(known) = &mut self.known
            && let Some((_, place)) = known.receipts_end.filter(|(end, _)| *end > expected)
        {
            known.receipts_end = Some((expected, place));
            self.lost = true;
        }
    }

    /// The same by their places: the sequence alone says nothing where a gap mark has passed over what is gone.
    pub(super) fn check_places(&mut self, welcome: &Welcome) {
        if let Some(known) = &mut self.known
            && let Some(from) = welcome.abandoned_since(known.epoch)
        {
            self.lost |= known.receipts_cut(from);
        }
    }

    /// The journal has recovered while we are connected: offsets from `first` on were abandoned and are given again.
    fn epoch_rose(&mut self, epoch: u32, first: Option<u64>) {
        let (Some(link), Some(known)) = (&mut self.link, &mut self.known) else { return };
        // Only the epoch that follows directly says where the one before was cut.
        let cut = first.filter(|_| link.epoch.checked_add(1) == Some(epoch)).unwrap_or(0);
        (link.epoch, link.epoch_first, link.watermarks) = (epoch, first, [0; 3]);
        known.epoch = epoch;
        if let Some(first) = first {
            known.places_end = known.places_end.min(first);
            self.lost |= known.receipts_cut(first);
        }
        for at in 0..self.frontier.min(self.entries.len()) {
            let gone = self.entries.get(at).is_some_and(|entry| match entry.stage {
                Stage::Accepted { first_offset, .. } => first_offset + u64::from(entry.append.count) > cut,
                _ => false,
            });
            if gone {
                self.requeue(at, true);
            }
        }
    }

    /// Waits before the next sending.
    pub(super) fn retry(&mut self, now: Instant, wait_ms: Option<u32>, why: &str) {
        let wait = self.backoff.next().max(std::time::Duration::from_millis(wait_ms.unwrap_or(0).into()));
        self.not_before = self.not_before.max(Some(now + wait));
        self.is_in_trouble(now, why);
    }
}
