//! The next message to send.

use super::{Out, Session, Stage};
use crate::{AppendError, Receipt};
use clad_proto::{AckLevel, frame::AppendHead};
use tokio::time::Instant;

impl<W, F> Session<W, F> {
    /// The next message to send; nothing when there is nothing, or it must wait. Ask again after every answer and every
    /// timer.
    pub(crate) fn next_out(&mut self, now: Instant) -> Option<Out> {
        if let Some(out) = self.next_flush(now) {
            return Some(out);
        }
        if self.not_before.is_some_and(|time| time > now) {
            return None;
        }
        self.not_before = None;
        loop {
            let link = self.link.as_mut()?;
            if link.hold && link.in_flight > 0 {
                return None;
            }
            link.hold = false;
            while self.entries.get(self.cursor).is_some_and(|entry| entry.stage != Stage::Queued) {
                self.cursor += 1;
            }
            let at = self.cursor;
            if at >= link.window.min(self.max_in_flight) {
                return None;
            }
            let entry = self.entries.get(at)?;
            if let Some(end) = self.single_in_flight_below {
                if link.in_flight > 0 {
                    return None;
                }
                self.single_in_flight_below = (entry.index < end).then_some(end);
            }
            let append = &entry.append;
            let (len, max) = (append.payload.len() as u64, u64::from(link.max_append_bytes));
            let error = if append.level == Some(AckLevel::Posted) {
                AppendError::unreachable_level(AckLevel::Posted) // shared memory only; a socket has no word for it
            } else if len > max {
                AppendError::TooLarge { len, max } // sent, it would cost the connection and everything behind it
            } else {
                return self.send(at);
            };
            self.finish(at, Err(error));
            self.trim();
        }
    }

    fn send(&mut self, at: usize) -> Option<Out> {
        let (link, known) = (self.link.as_mut()?, self.known.as_mut()?);
        let entry = self.entries.get_mut(at)?;
        let index = if entry.was_sent { entry.index } else { entry.index - self.skipped };
        let seq = self.base.wrapping_add(index);
        if seq > link.expected && at > 0 {
            return None; // only the oldest may jump
        }
        let marked = seq > link.expected || (link.unsure_below.is_some() && at == 0);
        let end = seq.wrapping_add(entry.append.count.into());
        let again = std::mem::replace(&mut entry.was_sent, true);
        entry.index = index;
        (entry.stage, entry.marked, entry.expected) = (Stage::Sent, marked, link.expected);
        entry.level = entry.append.level.unwrap_or(link.highest);
        link.expected = link.expected.max(end);
        known.sent_end = known.sent_end.max(Some(end));
        let head = AppendHead {
            first_seq: seq,
            count: entry.append.count,
            level: entry.level,
            gap: marked,
            payload_crc: entry.append.crc,
        };
        let out = Out::Append { head, payload: entry.append.payload.clone(), again };
        self.frontier = self.frontier.max(at + 1);
        if head.level == AckLevel::None {
            link.unsure_below = Some(end);
            let receipt = Receipt {
                log_id: known.log_id,
                epoch: link.epoch,
                first_offset: None,
                count: head.count,
                level: AckLevel::None,
            };
            self.succeed(at, receipt);
            self.trim();
        } else {
            link.in_flight += 1;
        }
        Some(out)
    }

    pub(super) fn succeed(&mut self, at: usize, receipt: Receipt) {
        self.resolved += 1;
        self.unflushed = Some(self.unflushed.map_or(receipt.level, |level| level.min(receipt.level)));
        self.finish(at, Ok(receipt));
    }
}
