//! One ring, as its drain sees it: what was taken and is not given back, and what its client is told.
//!
//! What must hold:
//! - Space is given back only when what was asked for an append is reached, and at least `written`: until then the ring
//!   has all that is needed to take it again.
//! - After a failure of the journal, what was taken and not given back is taken anew, from the ring; the journal knows
//!   by its sequence what of that it has. The client is told nothing of it: its records wait.
//! - An append that is refused for good is answered, its sequence left out, and the ring goes on.
//! - What the journal refuses of its producer alone, for now, holds up this ring alone.
//! - Where the log has lost what was `written` and given back, no FLUSH says that it is there: the next one is told.
//! - A ring that is nonsense is cut off, and nobody else is touched.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::{Accepted, Marks, Sender};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, KnownGroup};
use clad_shm::{Allowance, Answer, Corrupt, Drain, Entry, Level, Peek};
use tokio::sync::oneshot;

use super::pass::Hold;
use super::roll::Member;
use crate::ingest::{Door, Peer, Producer, count_refusal};
use crate::metrics;

/// Appends that were taken together and are not given back.
struct Out {
    /// One past the last of them.
    upto: u64,
    /// One past their last offset; 0 where all were refused.
    end: u64,
    /// The last sequence of theirs that was taken.
    last: Option<u64>,
    /// How often the journal had failed when they were taken.
    failures: u32,
    since: Instant,
    /// One of them asked for `durable`.
    wants_durable: bool,
    /// Appends and records that were taken and asked for `written`, and for `durable`.
    written: (u64, u64),
    durable: (u64, u64),
}

/// How long a ring is held before it is tried again: at first, and, doubling, at most.
const HOLD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The ring.
pub(super) struct Ring {
    pub(super) member: Arc<Member>,
    pub(super) door: Arc<Door>,
    pub(super) peer: Peer,
    pub(super) producer: Producer,
    pub(super) known_group: KnownGroup,
    drain: Drain,
    /// The client's process; its end is the end of the ring.
    process: Option<OwnedFd>,
    /// Its time, if the front of the ring is older than this pass.
    pub(super) front: Option<u64>,
    /// The journal takes nothing of its producer's now.
    hold: Option<Hold>,
    /// How long it is held the next time.
    pause: Duration,
    /// It was held, and one append of it is taken to see whether it still must be.
    tries: bool,
    /// In the order of the ring: `outs[..written]` have reached `written`, and so on.
    outs: VecDeque<Out>,
    told_written: usize,
    told_durable: usize,
    given_back: usize,
    /// The last sequence that was `written` and given back: it is in the log alone.
    in_log_alone: Option<u64>,
    /// The client is gone: when everything was taken and given back, so is the ring.
    leaving: bool,
    /// Until when its client must have come back, after a restart of the daemon.
    expected: Option<Instant>,
    empty: bool,
    /// Its doorbell wakes who stands by.
    watched: bool,
    /// The append that is nonsense: nothing from it on is taken, however often it is begun anew.
    nonsense: Option<u64>,
    /// Who waits for its end.
    pub(super) ended: Vec<oneshot::Sender<()>>,
    _counted: metrics::Connection,
}

impl Ring {
    pub(super) fn new(
        member: Arc<Member>,
        drain: Drain,
        door: Arc<Door>,
        peer: Peer,
        producer: Producer,
        process: Option<OwnedFd>,
    ) -> Self {
        // Where nothing was ever refused for good, the sequence before the tail's is that of the last record given back.
        let given_back = drain.released() > 0 && !drain.has_refused();
        let in_log_alone = if given_back { drain.released_sequence().checked_sub(1) } else { None };
        Self {
            member,
            door,
            peer,
            producer,
            known_group: KnownGroup::default(),
            drain,
            process,
            front: None,
            hold: None,
            pause: HOLD.0,
            tries: false,
            outs: VecDeque::new(),
            told_written: 0,
            told_durable: 0,
            given_back: 0,
            in_log_alone,
            leaving: false,
            expected: None,
            empty: false,
            watched: false,
            nonsense: None,
            ended: Vec::new(),
            _counted: metrics::Connection::open(metrics::Transport::Shm),
        }
    }

    /// For how long holes in it may hold others up, together with other rings.
    pub(super) fn set_allowance(&mut self, allowance: Allowance) {
        self.drain.set_allowance(allowance);
    }

    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.drain.waker()
    }

    pub(super) fn set_watched(&mut self, watched: bool) {
        self.watched = watched;
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }

    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Announces that the drain is about to sleep; `false` when there is something to do.
    pub(super) fn sleep(&mut self) -> bool {
        self.is_at_nonsense() || self.drain.sleep()
    }

    pub(super) fn awake(&mut self) {
        self.drain.awake();
    }

    /// Whether answers or space are still due.
    pub(super) fn waits(&self) -> bool {
        !self.outs.is_empty()
    }

    /// Whether it is drained to its end, and all was given back.
    pub(super) fn is_over(&self) -> bool {
        self.leaving && self.empty && self.outs.is_empty()
    }

    /// The client is gone, or its ring is wanted back: nothing new comes in, what was not committed is given up.
    pub(super) fn leave(&mut self, forget: bool) {
        if forget {
            self.producer.forget();
        }
        if !self.leaving {
            self.drain.close();
            self.drain.client_gone();
            (self.leaving, self.process) = (true, None);
            self.member.leave();
        }
    }

    /// Its client must come back until then, or the ring is closed.
    pub(super) fn is_expected_by(&mut self, until: Instant) {
        self.expected = Some(until);
    }

    pub(super) fn came_back(&mut self) {
        self.expected = None;
    }

    /// Until when its client is waited for.
    pub(super) fn expected(&self) -> Option<Instant> {
        self.expected.filter(|_| !self.leaving)
    }

    /// Looks at its front; says up to which time others may be taken.
    pub(super) fn look(&mut self, before: u64) -> u64 {
        self.empty = self.is_at_nonsense();
        if self.empty {
            self.front = None;
            return before;
        }
        if self.hold.as_ref().is_some_and(|hold| self.tries || Instant::now() < hold.until) {
            self.front = None;
            return before;
        }
        let seen = self.drain.peek(before);
        self.front = None;
        match seen {
            Ok(Peek::Ready { time }) => self.front = Some(time),
            Ok(Peek::Later { .. }) => {}
            Ok(Peek::Empty) => self.empty = true,
            Ok(Peek::Held { bound }) => return bound,
            Err(corrupt) => self.cut_off(corrupt),
        }
        before
    }

    /// Takes nothing of it for a while: nobody waits for it.
    pub(super) fn hold(&mut self, why: ErrorInfo) {
        tracing::debug!(peer = self.peer.name, ring = %self.member.note.id, %why, "a ring waits");
        self.hold = Some(Hold { until: Instant::now() + self.pause, why });
        self.pause = (self.pause * 2).min(HOLD.1);
        self.member.set_held(true);
    }

    fn goes_on(&mut self) {
        if self.hold.take().is_some() {
            (self.pause, self.tries) = (HOLD.0, false);
            self.member.set_held(false);
        }
    }

    /// An append was refused for now, and all behind it: they are in the ring as before.
    pub(super) fn put_back(&mut self, entry: &Entry) {
        self.drain.rewind_to(entry.append);
        (self.front, self.empty, self.tries) = (None, false, false);
    }

    /// Until when, and why, if it is held.
    pub(super) fn held(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Takes its front; the payload is appended to `bytes`.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>) -> Option<Entry> {
        self.tries = self.hold.is_some(); // one is enough to see
        match self.drain.take(bytes) {
            Ok(entry) => entry,
            Err(corrupt) => {
                self.cut_off(corrupt);
                None
            }
        }
    }

    /// The ring is nonsense: it is let go as it is. What was taken of it before is whole.
    fn cut_off(&mut self, why: Corrupt) {
        if !self.leaving {
            metrics::ring_cut_off();
            tracing::warn!(peer = self.peer.name, ring = %self.member.note.id, %why, "a ring was cut off");
        }
        self.drain.cut_off(ErrorCode::BadRecord.number().into());
        self.drain.client_gone();
        (self.leaving, self.empty, self.process, self.front) = (true, true, None, None);
        self.nonsense = Some(self.drain.next());
        self.goes_on();
        // Its client is told by its end; nobody else waits for what is never taken.
        self.member.set_held(true);
        self.member.leave();
    }

    fn is_at_nonsense(&self) -> bool {
        self.nonsense.is_some_and(|append| append <= self.drain.next())
    }

    /// As whom the journal takes its appends.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            producer: *self.producer.id.as_bytes(),
            owner: self.producer.owner,
            producer_epoch: self.producer.epoch,
            vouch: &self.peer.vouch,
        }
    }

    /// The last of what was handed over has its answer: the client may see it.
    pub(super) fn announce(&mut self) {
        self.drain.raise(Level::Received, self.drain.next());
        self.member.passed(self.drain.next());
        self.drain.announce();
    }

    /// An append was taken by the journal.
    pub(super) fn accepted(&mut self, entry: &Entry, level: AckLevel, accepted: &Accepted, since: Instant) {
        if level >= AckLevel::Received {
            let answer = Answer {
                first_offset: accepted.first_offset,
                epoch: accepted.epoch,
                code: 0,
                detail: accepted.count.into(),
            };
            self.drain.answer(entry.append, answer);
        }
        self.goes_on();
        let end = accepted.first_offset + u64::from(accepted.count);
        self.out(entry, level, Some(end), accepted.failures, since);
    }

    /// An append was refused for good.
    pub(super) fn refused(&mut self, entry: &Entry, level: AckLevel, error: &ErrorInfo, failures: u32, since: Instant) {
        let wanted = if level < AckLevel::Received { AckLevel::None } else { level };
        count_refusal(wanted, error.code, entry.records);
        if level >= AckLevel::Received {
            let detail = error.record_index.map_or_else(|| error.limit.unwrap_or_default(), u64::from);
            let code = error.code.number().into();
            let answer = Answer { first_offset: 0, epoch: 0, code, detail };
            match error.code {
                // It is stored, by a daemon before this one; only its offset is not known any more.
                ErrorCode::SequenceTooOld => self.drain.answer(entry.append, answer),
                _ => self.drain.refuse(entry.append, answer),
            }
        }
        self.goes_on();
        // Its space, and with it its answer, stays until the mark that it may wait for has passed it.
        self.out(entry, level.min(self.door.highest), None, failures, since);
    }

    /// Notes an append that was taken, up to the offset `end`, or was refused.
    fn out(&mut self, entry: &Entry, level: AckLevel, end: Option<u64>, failures: u32, since: Instant) {
        let one = |wanted| if level == wanted && end.is_some() { (1, u64::from(entry.records)) } else { (0, 0) };
        let (written, durable) = (one(AckLevel::Written), one(AckLevel::Durable));
        let last = end.map(|_| entry.sequence.saturating_add(u64::from(entry.records)).saturating_sub(1));
        let (upto, end, wants_durable) = (entry.append + 1, end.unwrap_or_default(), level == AckLevel::Durable);
        match self.outs.back_mut() {
            // Taken together, and wanted at the same level: one entry for all of them.
            Some(out) if (out.since, out.failures, out.wants_durable) == (since, failures, wants_durable) => {
                (out.upto, out.end, out.last) = (upto, out.end.max(end), last.or(out.last));
                out.written = (out.written.0 + written.0, out.written.1 + written.1);
                out.durable = (out.durable.0 + durable.0, out.durable.1 + durable.1);
            }
            _ => self.outs.push_back(Out { upto, end, last, failures, since, wants_durable, written, durable }),
        }
    }

    /// Tells the client what the marks say, and gives space back. Says whether there was anything to tell; `None`: the
    /// journal has failed under what was taken.
    pub(super) fn release(&mut self, marks: &Marks) -> Option<bool> {
        if self.outs.is_empty() {
            return Some(false);
        }
        let (mut told, mut failed) = (false, false);
        while let Some(out) = self.outs.get(self.told_written) {
            failed = out.failures != marks.failures;
            if failed || out.end > marks.written {
                break;
            }
            self.drain.raise(Level::Written, out.upto);
            count(metrics::Level::Written, out.written, out.since);
            (self.told_written, told) = (self.told_written + 1, true);
        }
        while let Some(out) = self.outs.get(self.told_durable) {
            failed |= out.failures != marks.failures;
            if failed || out.end > marks.durable {
                break;
            }
            self.drain.raise(Level::Durable, out.upto);
            count(metrics::Level::Durable, out.durable, out.since);
            (self.told_durable, told) = (self.told_durable + 1, true);
        }
        let mut upto = None;
        while let Some(out) = self.outs.get(self.given_back) {
            if self.given_back >= if out.wants_durable { self.told_durable } else { self.told_written } {
                break;
            }
            upto = Some(out.upto);
            self.in_log_alone = out.last.or(self.in_log_alone);
            self.given_back += 1;
        }
        if let Some(upto) = upto {
            self.drain.release(upto);
        }
        self.forget_told();
        if told {
            self.drain.announce();
        }
        (!failed).then_some(told)
    }

    /// Lets go of what everything was said about. Where the log has no `durable`, nobody waits for it.
    fn forget_told(&mut self) {
        let tracks = self.door.highest >= AckLevel::Durable && !self.leaving;
        let done = if tracks { self.given_back.min(self.told_durable) } else { self.given_back };
        self.outs.drain(..done);
        self.given_back -= done;
        self.told_written -= done;
        self.told_durable = self.told_durable.saturating_sub(done);
    }

    /// Begins anew at what was not given back.
    pub(super) fn rewind(&mut self) {
        self.outs.clear();
        (self.told_written, self.told_durable, self.given_back) = (0, 0, 0);
        self.drain.rewind();
        (self.front, self.empty) = (None, false);
        self.goes_on();
        // What was taken comes anew: until it is handed over, whoever comes by a socket waits for it.
        self.member.passed(self.drain.next());
    }

    /// The journal has recovered.
    pub(super) fn set_epoch(&mut self, epoch: u32) {
        self.drain.set_epoch(epoch);
        // A client that is there hears it from its session.
        if self.expected().is_some() {
            self.look_for_loss();
        }
    }

    /// Sees whether the log still has what was `written` and given back: that comes from nowhere else. If not, the client's
    /// next FLUSH is told.
    pub(super) fn look_for_loss(&mut self) {
        let Some(last) = self.in_log_alone else { return };
        let note = &self.member.note;
        if self.door.journal.is_stored(note.producer.as_bytes(), self.producer.owner, last) == Some(false) {
            self.in_log_alone = None; // said once
            tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, "what a ring had given back as written is not in the log");
            self.member.has_lost();
        }
    }
}

fn count(level: metrics::Level, (appends, records): (u64, u64), since: Instant) {
    if appends > 0 {
        metrics::acked(level, appends, records, since.elapsed());
    }
}
