//! One ring, as its drain sees it: what was taken and is not given back, and what is reported to its client.
//!
//! Invariants:
//! - Space is given back only when the level that was asked for an append is reached, and at least `written`: until
//!   then the ring has all that is needed to take it again.
//! - After a failure of the journal, what was taken and not given back is taken again, from the ring. The journal knows
//!   by its sequence what of that it has. The client gets no report: its records wait.
//! - An append that is refused for good is answered, its sequence left out, and the ring continues.
//! - An append that waits for a level that this log does not have is stored, for it is `posted`. Its client is notified
//!   that there is no such level: an earlier daemon, under another policy, had it.
//! - A refusal for now of its producer alone holds up this ring alone.
//! - An append that was posted to an earlier daemon was taken by that daemon's limits. Where no segment can hold it any
//!   more, it waits in the ring for a daemon with larger ones, and that is logged. Where it is refused for good for
//!   another reason, that is logged, too, with the amount.
//! - Where the log has lost what was `written` and given back, no FLUSH says that it is there: the next FLUSH reports
//!   it, whichever daemon answers.
//! - Where the journal takes nothing now, the completion page says why the content waits.
//! - A ring that is nonsense is cut off, and nobody else is touched.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::{Accepted, Sender, Watermarks};
use clad_proto::{AckLevel, Cursor, ErrorCode, ErrorInfo, KnownGroup, LogId};
use clad_shm::{Answer, Corrupt, Drain, Entry, Level, Peek};
use tokio::sync::oneshot;

use super::hold::Hold;
use super::in_flight::{InFlight, Stored};
use super::registry::RegisteredRing;
use crate::config::{SEGMENT_BYTES_STEP, SEGMENT_OVERHEAD_BYTES};
use crate::ingest::quota::QuotaHandle;
use crate::ingest::reactor::Bell;
use crate::ingest::{Admission, Peer, Producer, count_refusal};
use crate::ops::metrics;
use crate::read::is_there;

/// Time for which a ring is held before it is tried again: at first, and, doubling, at most.
const HOLD_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Time until a ring is tried again in which an append waits for another daemon: this daemon fails each time.
const SEGMENT_WAIT_RETRY: Duration = Duration::from_secs(3600);

/// Appends that an earlier daemon has left in a ring.
struct Posted {
    /// Behind the last append that was there.
    end: u64,
    /// Behind the last that was refused for good; the number of those, their records, and the first reason.
    refused: u64,
    appends: u64,
    records: u64,
    why: Option<String>,
}

/// Finding of a look at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    Nothing,
    /// An append that can be taken.
    Ready,
    /// An uncommitted slot with others behind it: to be looked at again soon.
    Blocked,
}

/// The ring.
pub(super) struct Ring {
    pub(super) registered: Arc<RegisteredRing>,
    pub(super) admission: Arc<Admission>,
    pub(super) peer: Peer,
    pub(super) producer: Producer,
    pub(super) known_group: KnownGroup,
    /// Its owner's quota of bytes that may be in flight.
    pub(super) inflight_quota: QuotaHandle,
    drain: Drain,
    doorbell: Bell,
    /// The client's process; its end is the end of the ring.
    process: Option<(Bell, OwnedFd)>,
    front: Front,
    /// The last of all the drain's visits that was to it.
    pub(super) visited: u64,
    /// The journal takes nothing of its producer now.
    hold: Option<Hold>,
    /// Its owner's share is used up: it is looked at again when its turn in the queue has come.
    waits_for_room: bool,
    /// Reason why the journal takes nothing of any producer now, as the completion page says.
    all_wait: Option<ErrorCode>,
    /// Time for which it is held the next time.
    pause: Duration,
    /// It was held, and one append of it is taken to see if the hold is still needed.
    tries: bool,
    /// Appends that were taken and are not given back.
    pub(super) in_flight: InFlight,
    /// The last sequence that was `written` and given back: it is in the log alone.
    in_log_alone: Option<u64>,
    /// Records that were taken when the journal failed, and not written: they lie in the ring, and no journal has taken
    /// them since.
    again: u64,
    /// The log has lost some of that, and the ring says so.
    lost: bool,
    /// The client is gone: when everything was taken and given back, the ring is released.
    leaving: bool,
    /// Deadline for its client to come back, after a restart of the daemon.
    expected: Option<Instant>,
    empty: bool,
    /// Something was taken of it since the drain rested.
    gave: bool,
    /// An append has all the answer that it asked for, with `received`.
    answered: bool,
    /// Longest append that the log takes, where an earlier daemon had given the ring out, and may have taken longer
    /// ones.
    longest: Option<usize>,
    /// Appends that the earlier daemon left in it, until they are taken.
    posted: Option<Posted>,
    /// The append that is nonsense: nothing from it on is taken, however often the drain begins again.
    nonsense: Option<u64>,
    /// Waiters for its end.
    pub(super) ended: Vec<oneshot::Sender<()>>,
    _counted: metrics::Connection,
}

impl Ring {
    pub(super) fn new(
        registered: Arc<RegisteredRing>,
        drain: Drain,
        admission: Arc<Admission>,
        peer: Peer,
        producer: Producer,
        (doorbell, process): (Bell, Option<(Bell, OwnedFd)>),
    ) -> Self {
        // Where nothing was ever refused for good, the sequence before the tail's is that of the last record given
        // back.
        let given_back = drain.released() > 0 && !drain.has_refused();
        let in_log_alone = if given_back { drain.released_sequence().checked_sub(1) } else { None };
        let inflight_quota = admission.budget.handle(peer.quota_owner());
        Self {
            registered,
            inflight_quota,
            admission,
            peer,
            producer,
            known_group: KnownGroup::default(),
            drain,
            doorbell,
            process,
            front: Front::Nothing,
            visited: 0,
            hold: None,
            waits_for_room: false,
            all_wait: None,
            pause: HOLD_PAUSE.0,
            tries: false,
            in_flight: InFlight::default(),
            in_log_alone,
            again: 0,
            lost: false,
            leaving: false,
            expected: None,
            empty: false,
            gave: false,
            answered: false,
            longest: None,
            posted: None,
            nonsense: None,
            ended: Vec::new(),
            _counted: metrics::Connection::open(metrics::Transport::Shm),
        }
    }

    /// Notes that it was given out by an earlier daemon, which has left in it what is there now.
    pub(super) fn is_adopted(&mut self) {
        let (end, refused) = (self.drain.next() + self.registered.usage().waiting, 0);
        self.longest = Some(self.admission.journal.max_append_bytes() as usize);
        self.posted = Some(Posted { end, refused, appends: 0, records: 0, why: None });
    }

    #[cfg(test)]
    pub(super) fn set_process(&mut self, process: Option<(Bell, OwnedFd)>) {
        self.process = process;
    }

    /// Returns true if its client's process has ended since the last call.
    pub(super) fn has_process_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|(bell, _)| bell.take_rang())
    }

    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Announces that the drain is about to sleep; `false` when there is something to do. A ring that has said so all the
    /// time needs no look: whatever came has rung. Once it has rung, it says so again, with another word: its client may
    /// be about to take the old one back, and a record behind that would not ring.
    pub(super) fn sleep(&mut self) -> bool {
        self.gave = false;
        let rang = self.doorbell.take_rang();
        if rang {
            metrics::ring_wakeup();
        }
        self.is_at_nonsense() || !rang && self.drain.is_asleep() || self.drain.sleep()
    }

    /// The drain looks again by itself: where something was taken, its client need not ring.
    pub(super) fn stay_up(&mut self) {
        if std::mem::take(&mut self.gave) {
            self.drain.wake_up();
        }
    }

    /// Returns true if it is drained to its end, and all was given back.
    pub(super) fn is_over(&self) -> bool {
        self.leaving && self.empty && self.in_flight.is_empty()
    }

    /// The client is gone, or its ring is wanted back: nothing new comes in, what was not committed is abandoned.
    pub(super) fn leave(&mut self, forget: bool) {
        if forget {
            self.producer.forget();
        }
        if !self.leaving {
            self.drain.close();
            self.drain.client_gone();
            (self.leaving, self.process) = (true, None);
            self.registered.leave();
        }
    }

    /// Sets the time until which its client must come back, or the ring is closed.
    pub(super) fn is_expected_by(&mut self, until: Instant) {
        self.expected = Some(until);
    }

    pub(super) fn came_back(&mut self) {
        self.expected = None;
    }

    /// Time until which its client is waited for.
    pub(super) fn expected(&self) -> Option<Instant> {
        self.expected.filter(|_| !self.leaving)
    }

    /// Looks at its front.
    pub(super) fn look(&mut self, now: u64) {
        self.front = Front::Nothing;
        self.empty = self.is_at_nonsense();
        let held = self.hold.as_ref().is_some_and(|hold| self.tries || Instant::now() < hold.until);
        if self.empty || self.waits_for_room || held {
            return;
        }
        match self.drain.peek(now) {
            Ok(Peek::Ready) => self.front = Front::Ready,
            Ok(Peek::Empty) => self.empty = true,
            Ok(Peek::Blocked | Peek::More) => self.front = Front::Blocked,
            Err(corrupt) => self.cut_off(corrupt),
        }
    }

    /// Returns true if the last look has found an append that can be taken.
    pub(super) fn is_ready(&self) -> bool {
        self.front == Front::Ready
    }

    /// Returns true if the last look has found that the next one must come soon.
    pub(super) fn is_blocked(&self) -> bool {
        self.front == Front::Blocked
    }

    /// Returns true if all appends below this one were taken, or abandoned.
    pub(super) fn has_reached(&self, append: u64) -> bool {
        self.drain.next() >= append
    }

    /// Returns true if the last look has found nothing that is committed.
    pub(super) fn is_empty(&self) -> bool {
        self.empty
    }

    /// Takes nothing of it for a while.
    pub(super) fn hold(&mut self, why: ErrorInfo) {
        tracing::debug!(peer = self.peer.name, ring = %self.registered.note.id, %why, "a ring waits");
        self.hold = Some(Hold { until: Instant::now() + self.pause, why });
        self.pause = (self.pause * 2).min(HOLD_PAUSE.1);
        self.say_why();
    }

    /// Returns true if an append of so many bytes, posted to an earlier daemon, is longer than any that the log takes.
    #[inline]
    pub(super) fn is_beyond_segments(&self, len: usize) -> bool {
        self.longest.is_some_and(|longest| len > longest)
    }

    /// Returns true if the log has an append of it: an earlier daemon had taken it, and has not given its space back.
    pub(super) fn is_stored(&self, entry: &Entry) -> bool {
        let Producer { id, owner, .. } = &self.producer;
        self.admission.journal.is_stored(id.as_bytes(), *owner, entry.sequence) == Some(true)
    }

    /// Makes such an append wait, and all behind it, for a daemon with larger segments.
    pub(super) fn wait_for_segments(&mut self, entry: &Entry, len: usize) {
        self.put_back(entry);
        let limit = self.longest.unwrap_or_default();
        let note = &self.registered.note;
        let least = (len as u64 + SEGMENT_OVERHEAD_BYTES).next_multiple_of(SEGMENT_BYTES_STEP);
        let why = format!(
            "an append of {len} bytes, posted by process {} (uid {}) to a daemon before this one, is longer than a segment of \
             this log takes ({limit}): start clad with [journal] segment_bytes = {least} or more",
            note.pid, note.uid
        );
        if self.registered.is_stuck(&why) {
            tracing::error!(ring = %note.id, producer = %note.producer, "a ring waits, and stays stored: {why}");
        }
        self.say_refused(true);
        self.hold(ErrorInfo { retryable: true, ..ErrorInfo::new(ErrorCode::AppendTooLarge, why) });
        if let Some(hold) = &mut self.hold {
            hold.until = Instant::now() + SEGMENT_WAIT_RETRY;
        }
    }

    fn resumed(&mut self) {
        if self.hold.take().is_some() {
            (self.pause, self.tries) = (HOLD_PAUSE.0, false);
            self.say_why();
        }
    }

    /// Notes that the journal takes nothing of any producer for this reason, or takes again.
    pub(super) fn all_wait(&mut self, why: Option<ErrorCode>) {
        self.all_wait = why;
        self.say_why();
    }

    /// Shows the client why its content waits.
    fn say_why(&mut self) {
        let why = self.hold.as_ref().map(|hold| hold.why.code).or(self.all_wait);
        self.drain.set_waits(why.map_or(0, |code| code.number().into()));
    }

    /// Puts back an append that was refused for now, and all behind it: they are in the ring as before.
    pub(super) fn put_back(&mut self, entry: &Entry) {
        self.drain.rewind_to(entry.append);
        (self.front, self.empty, self.tries) = (Front::Nothing, false, false);
    }

    /// Takes nothing of it, from this append on, until its owner has room: nobody else waits for it.
    pub(super) fn wait_for_room(&mut self, entry: &Entry) {
        self.put_back(entry);
        self.waits_for_room = true;
    }

    /// Resumes the ring: its owner has room.
    pub(super) fn has_room(&mut self) {
        self.waits_for_room = false;
    }

    pub(super) fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// Time until which it is held, and why, if it is.
    pub(super) fn held(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Takes its front; the payload is appended to `bytes`.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>) -> Option<Entry> {
        (self.tries, self.gave) = (self.hold.is_some(), true); // one is enough to see
        match self.drain.take(bytes) {
            Ok(entry) => entry,
            Err(corrupt) => {
                self.cut_off(corrupt);
                None
            }
        }
    }

    /// Releases a ring that is nonsense, as it is. What was taken of it before is whole.
    fn cut_off(&mut self, why: Corrupt) {
        if !self.leaving {
            metrics::ring_cut_off();
            tracing::warn!(peer = self.peer.name, ring = %self.registered.note.id, %why, "a ring was cut off");
        }
        self.drain.cut_off(ErrorCode::BadRecord.number().into());
        self.drain.client_gone();
        (self.leaving, self.empty, self.process, self.front) = (true, true, None, Front::Nothing);
        self.nonsense = Some(self.drain.next());
        self.resumed();
        self.registered.leave();
    }

    fn is_at_nonsense(&self) -> bool {
        self.nonsense.is_some_and(|append| append <= self.drain.next())
    }

    /// Sender that the journal sees for its appends.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            producer: *self.producer.id.as_bytes(),
            owner: self.producer.owner,
            producer_epoch: self.producer.epoch,
            peer_meta: &self.peer.meta,
            resend: None,
            forward: None,
        }
    }

    /// The last append that was handed over has its answer: the client may see it. Its threads are woken where they
    /// wait for no later level.
    pub(super) fn announce(&mut self) {
        self.drain.raise(Level::Received, self.drain.next());
        self.registered.handed_over(self.drain.next());
        if std::mem::take(&mut self.answered) {
            self.drain.announce();
        }
        if self.posted.is_some() {
            self.say_refused(false);
        }
    }

    /// Reports what was refused for good of what an earlier daemon had left in it: once all of that was taken, or as
    /// far as it comes (`now`).
    pub(super) fn say_refused(&mut self, now: bool) {
        let Some(posted) = self.posted.take_if(|posted| now || posted.end <= self.drain.next()) else { return };
        let Posted { appends, records, why: Some(why), .. } = posted else { return };
        let note = &self.registered.note;
        tracing::error!(
            ring = %note.id, producer = %note.producer, uid = note.uid, pid = note.pid, records, appends, first = why,
            "records that were posted to a daemon before this one are refused for good, and lost"
        );
    }

    /// Returns true if `posted` was more than this ring could promise when the append was pushed. An earlier daemon may
    /// have offered it, as far as it left the append.
    fn offers_no_posted(&self, entry: &Entry) -> bool {
        !self.registered.is_stored() && self.posted.as_ref().is_none_or(|posted| entry.append >= posted.end)
    }

    /// Notes that the journal has taken an append.
    pub(super) fn accepted(&mut self, entry: &Entry, level: AckLevel, accepted: &Accepted, since: Instant) {
        let (wanted, level) = (level, level.min(self.admission.highest));
        self.answered |= level == AckLevel::Received;
        if wanted > level || wanted == AckLevel::Posted && self.offers_no_posted(entry) {
            // It is stored, but not as safe as was asked for: that is never lowered in silence.
            let code = ErrorCode::LevelUnreachable;
            count_refusal(if wanted < AckLevel::Received { AckLevel::None } else { wanted }, code, entry.records);
            let code = code.number().into();
            self.answered = true;
            self.drain.refuse(entry.append, Answer { first_offset: 0, epoch: 0, code, detail: 0 });
        } else if level >= AckLevel::Received {
            let answer = Answer {
                first_offset: accepted.first_offset,
                epoch: accepted.epoch,
                code: 0,
                detail: accepted.count.into(),
            };
            self.drain.answer(entry.append, answer);
        }
        self.resumed();
        self.again = 0; // counted again as it is taken again
        self.in_flight.push(entry, level, Some(Stored::of(entry, accepted)), accepted.failures, since);
    }

    /// Notes that an append was refused for good.
    pub(super) fn refused(&mut self, entry: &Entry, level: AckLevel, error: &ErrorInfo, failures: u32, since: Instant) {
        let wanted = if level < AckLevel::Received { AckLevel::None } else { level };
        count_refusal(wanted, error.code, entry.records);
        if level >= AckLevel::Received {
            self.answered = true;
            let detail = error.record_index.map_or_else(|| error.limit.unwrap_or_default(), u64::from);
            let code = error.code.number().into();
            let answer = Answer { first_offset: 0, epoch: 0, code, detail };
            match error.code {
                // It is stored, by an earlier daemon; only its offset is not known any more.
                ErrorCode::SequenceTooOld => self.drain.answer(entry.append, answer),
                _ => self.drain.refuse(entry.append, answer),
            }
        }
        if let Some(posted) = &mut self.posted
            && (posted.refused..posted.end).contains(&entry.append)
            && error.code != ErrorCode::SequenceTooOld
        {
            posted.refused = entry.append + 1; // taken again, it is refused again
            (posted.appends, posted.records) = (posted.appends + 1, posted.records + u64::from(entry.records));
            posted.why.get_or_insert_with(|| error.text.clone());
        }
        self.resumed();
        // Its space and its answer stay until the watermark that it may wait for has passed it.
        self.in_flight.push(entry, level.min(self.admission.highest), None, failures, since);
    }

    /// Announces the watermarks to the client, and gives space back. Returns true if there was anything to announce;
    /// `None`: the journal has failed under what was taken.
    pub(super) fn release(&mut self, watermarks: &Watermarks) -> Option<bool> {
        // Where the log has no `durable`, or the client is gone, nobody waits for it.
        let tracks_durable = self.admission.highest >= AckLevel::Durable && !self.leaving;
        let moved = self.in_flight.advance(watermarks, tracks_durable);
        for (level, upto) in [(Level::Written, moved.written), (Level::Durable, moved.durable)] {
            if let Some(upto) = upto {
                self.drain.raise(level, upto);
            }
        }
        if let Some(upto) = moved.given_back {
            if let Some(stored) = moved.stored {
                self.is_in_log_alone(&stored);
            }
            self.drain.release(upto);
        }
        if moved.answered {
            self.drain.announce();
        }
        (!moved.failed).then_some(moved.written.is_some() || moved.durable.is_some())
    }

    /// Notes that only the log has this from now on.
    fn is_in_log_alone(&mut self, stored: &Stored) {
        if self.lost && !self.registered.has_unreported_loss() {
            self.lost = false;
            self.drain.set_lost(false);
        }
        self.in_log_alone = Some(stored.last);
        self.drain.stored_below(stored.end);
    }

    /// Number of records that were taken, that the log has not `written` up to this watermark, and that the ring still
    /// has.
    pub(super) fn unwritten_from(&self, written: u64) -> u64 {
        self.again + self.in_flight.records_from(written)
    }

    /// Begins again at what was not given back; the journal had failed when this much was written.
    pub(super) fn rewind(&mut self, written: u64) {
        self.again = self.unwritten_from(written);
        self.in_flight.clear();
        self.drain.rewind();
        (self.front, self.empty) = (Front::Nothing, false);
        self.resumed();
        // The taken appends come again: until they are handed over, a FLUSH waits for them.
        self.registered.handed_over(self.drain.next());
    }

    /// Notes that the journal has recovered.
    pub(super) fn set_epoch(&mut self, epoch: u32) {
        self.drain.set_epoch(epoch);
        // A connected client learns it from its session.
        if self.expected().is_some() {
            self.look_for_loss();
        }
    }

    /// Checks that the log still has what was `written` and given back: no other copy exists. If not, the client's next
    /// FLUSH reports it.
    pub(super) fn look_for_loss(&mut self) {
        if self.lost || !(self.drain.has_lost() || self.is_lost()) {
            return;
        }
        let note = &self.registered.note;
        tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, "what a ring had given back as written is not in the log");
        self.lost = true;
        self.drain.set_lost(true);
        self.registered.has_lost();
    }

    /// Decides by its place in the history of the log, and by what the log knows of its producer. A producer that the
    /// log does not remember may have been silent for long, and proves nothing.
    fn is_lost(&self) -> bool {
        let journal = &self.admission.journal;
        let by_place = self.drain.stored().and_then(|stored| {
            let (log_id, epoch) = (LogId::from_bytes(stored.log_id), stored.epoch);
            let damaged = journal.report().damage.iter().any(|lost| (lost.from..lost.to).contains(&(stored.end - 1)));
            let cursor = Cursor { log_id, epoch, offset: stored.end };
            if damaged { Some(false) } else { is_there(&journal.meta(), journal.watermarks().written, cursor) }
        });
        let producer = self.registered.note.producer;
        let by_sequence =
            self.in_log_alone.and_then(|last| journal.is_stored(producer.as_bytes(), self.producer.owner, last));
        by_place == Some(false) || by_sequence == Some(false)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A client holds the same doorbell, so that closing ours would not take it out.
        self.doorbell.unwatch(self.drain.waker());
    }
}
