//! The beginning and the end of a connection.
//!
//! WELCOME is compared with what was known:
//!
//! | what it says | what it means | appends that may be written | the others |
//! |---|---|---|---|
//! | nothing was ever sent to this log | first connection, or resumed id | | sequences start where the log has them |
//! | the same log knows us | a crash or a cut, or nothing at all | sent again, answered or stored | sent |
//! | the same log knows nothing of us; a new epoch abandoned all that we know of | a crash | sent again | sent |
//! | the same log knows nothing of us, but must still have some | we were forgotten | error, maybe written | sent, with jumps where needed |
//! | another log | the folder was replaced | error, maybe written | sent, from that log's own sequence on |
//! | more than was ever sent | another process uses our id | the producer ends | the producer ends |
//!
//! Forgotten means that the daemon cannot distinguish a resend from something new: to send what may be stored could
//! store it twice.

use super::{Entry, Known, Link, Session, Stage};
use crate::AppendError;
use clad_proto::{ErrorInfo, LogId, frame::Welcome};
use tokio::time::Instant;

/// Why things wait once there is a daemon again, until it answers.
const REASON_UNANSWERED: &str = "the daemon is there again, and has answered nothing yet";

/// The daemon has more of this producer than was ever sent: up to this sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedProducer(pub(crate) u64);

impl<W, F> Session<W, F> {
    /// A connection is there.
    pub(crate) fn connected(&mut self, welcome: &Welcome) -> Result<(), SharedProducer> {
        let expected = welcome.last.map_or(0, |last| last.sequence.saturating_add(1));
        self.compare_log(welcome);
        self.compare_sequences(welcome, expected)?;
        let same_epoch = self.known.is_some_and(|known| known.epoch == welcome.epoch);
        let known = self.known.get_or_insert(Known {
            log_id: welcome.log_id,
            epoch: welcome.epoch,
            highest: welcome.highest_ack,
            first_place: None,
            receipts_end: None,
            places_end: 0,
            sent_end: None,
        });
        (known.epoch, known.highest) = (welcome.epoch, welcome.highest_ack);
        if !same_epoch {
            known.places_end = known.places_end.min(welcome.epoch_first_offset);
        }
        self.link = Some(Link {
            epoch: welcome.epoch,
            epoch_first: Some(welcome.epoch_first_offset),
            highest: welcome.highest_ack,
            window: welcome.window.max(1) as usize,
            max_append_bytes: welcome.max_append_bytes,
            expected,
            unsure_below: None,
            in_flight: 0,
            hold: false,
            watermarks: [welcome.received, welcome.written, welcome.durable],
        });
        if same_epoch {
            self.release(0, self.frontier);
        }
        for at in 0..self.frontier.min(self.entries.len()) {
            if self.entries.get(at).is_some_and(|entry| matches!(entry.stage, Stage::Accepted { .. })) {
                self.requeue(at, true);
            }
        }
        (self.cursor, self.frontier, self.not_before) = (0, 0, None);
        if let Some((_, why)) = &mut self.trouble {
            // Nothing went forward, so it lasts: but what the tries before this one ended with is over.
            REASON_UNANSWERED.clone_into(why);
        }
        Ok(())
    }

    /// Another log: what may be in the one before stays with it.
    fn compare_log(&mut self, welcome: &Welcome) {
        let Some(known) = self.known.filter(|known| known.log_id != welcome.log_id) else { return };
        let (before, now): (LogId, LogId) = (known.log_id, welcome.log_id);
        self.fail_maybe_written(&AppendError::LogChanged { before, now });
        // Receipts were given for the other log; nothing of them can be lost in this one, and nothing of them gets any
        // safer.
        self.known = None;
        self.leave_behind();
    }

    /// Leaves the appends that have a receipt: no further progress of them can be reported.
    fn leave_behind(&mut self) {
        if let Some(level) = self.unflushed.take() {
            self.left_behind = Some(self.left_behind.map_or(level, |before| before.min(level)));
        }
    }

    fn compare_sequences(&mut self, welcome: &Welcome, expected: u64) -> Result<(), SharedProducer> {
        let Some(Known { sent_end: Some(sent_end), first_place, epoch, .. }) = self.known else {
            // Nothing of ours was ever sent to this log: resume where it has this producer.
            let unsent = self.next_index - self.skipped;
            let first = self.entries.front().map_or(unsent, |entry| match entry.is_unsent() {
                true => entry.index - self.skipped,
                false => entry.index,
            });
            self.base = expected.wrapping_sub(first);
            return Ok(());
        };
        match welcome.last {
            Some(last) if last.sequence >= sent_end => return Err(SharedProducer(last.sequence)),
            Some(_) => {
                self.check_places(welcome);
                self.check_receipts(expected);
            }
            None => {
                self.check_places(welcome);
                if let Some((first_epoch, first_offset)) = first_place {
                    let given_up = welcome.abandoned_since(epoch.max(first_epoch));
                    if given_up.is_some_and(|from| first_offset >= from) {
                        self.check_receipts(expected);
                    } else {
                        self.fail_maybe_written(&AppendError::Forgotten);
                        if given_up.is_some() {
                            self.leave_behind(); // in epochs that are not all reported, and the log does not know us
                        }
                    }
                }
                if let Some(known) = &mut self.known {
                    known.first_place = None;
                    // The daemon's expected sequence says nothing of them any more; their places do, should those be
                    // abandoned.
                    known.receipts_end = known.receipts_end.map(|(_, place)| (0, place));
                }
            }
        }
        Ok(())
    }

    fn fail_maybe_written(&mut self, error: &AppendError) {
        for at in 0..self.entries.len() {
            if self.entries.get(at).is_some_and(|entry| entry.stage != Stage::Done && entry.maybe_written()) {
                self.finish(at, Err(error.clone()));
            }
        }
        self.trim();
    }

    /// The connection ends for the sake of an append; [`Self::disconnected`] is still to be called.
    pub(crate) fn ended_by_append(&mut self, error: &ErrorInfo) {
        let Some(link) = &self.link else { return };
        let is_sent = |(_, entry): &(usize, &Entry<W>)| entry.stage == Stage::Sent;
        let mut sent = self.entries.iter().enumerate().take(self.frontier).filter(is_sent);
        match (sent.next(), sent.last()) {
            (Some((at, _)), None) if link.unsure_below.is_none() => {
                let Some(entry) = self.entries.get_mut(at) else { return };
                (entry.stage, entry.lost) = (Stage::Queued, entry.lost || error.maybe_written);
                let error = AppendError::Refused { error: Box::new(error.clone()), maybe_written: error.maybe_written };
                self.finish(at, Err(error));
                self.trim();
            }
            (first, last) => {
                let end = last.or(first).map(|(_, entry)| entry.index + 1);
                self.single_in_flight_below = self.single_in_flight_below.max(end);
            }
        }
    }

    /// The connection is gone, or there is still none.
    pub(crate) fn disconnected(&mut self, now: Instant, why: &str) {
        for at in 0..self.frontier.min(self.entries.len()) {
            // What was accepted may turn out to be covered when we come back.
            if self.entries.get(at).is_some_and(|entry| entry.stage == Stage::Sent) {
                self.requeue(at, true);
            }
        }
        self.link = None;
        self.flushes.iter_mut().for_each(super::FlushWait::unsend);
        if self.is_idle() {
            self.trouble = None;
        } else {
            self.is_in_trouble(now, why);
        }
    }
}
