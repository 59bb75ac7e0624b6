//! A model of the daemon: logs that take each other's place, one producer that matters, and noise of others between its
//! records.
//!
//! It does what docs/PROTOCOL.md says. A failure in the process has the effects of the daemon's
//! (`daemon/src/ingest/session.rs`, `journal/src/write/committer`). Every waiter, a FLUSH included, is refused when it fails;
//! nothing is taken until it has recovered. Then a new epoch begins, and where something `written` was lost, the next
//! FLUSH of each connection reports it.

use crate::session::Out;
use bytes::Bytes;
use clad_proto::{
    AckLevel, DurabilityPolicy, ErrorCode, ErrorInfo, LogId, ProducerId,
    frame::{Accepted, AppendHead, EpochStart, Forwarding, LastStored, Refused, Watermark, Welcome},
};
use std::collections::VecDeque;

/// One record: whose append (nothing: of another producer, or it is lost), its sequence, and by which connection it
/// came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) append: Option<u64>,
    pub(super) seq: u64,
    pub(super) connection: u64,
}

const NOISE: Stored = Stored { append: None, seq: 0, connection: 0 };

#[derive(Debug)]
pub(super) enum Answer {
    Accepted(Accepted),
    Watermark(Watermark),
    Refused(Refused),
    FlushRefused(u32, ErrorInfo),
}

/// Content of the folder.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) id: LogId,
    pub(super) records: Vec<Stored>,
    pub(super) epoch: u32,
    epoch_first: u64,
    earlier: Vec<EpochStart>,
    pub(super) written: u64,
    pub(super) durable: u64,
    /// Whose the records below this are is forgotten.
    forgotten: u64,
    /// Everything from here on was abandoned once.
    pub(super) lowest_cut: u64,
}

/// An append of ours, as the daemon remembers it.
struct Ours {
    append: u64,
    seq: u64,
    first: u64,
    count: u32,
}

impl Log {
    fn new(id: u8, noise: u64) -> Self {
        let records = vec![NOISE; noise as usize];
        let (id, earlier) = (LogId::from_bytes([id; 16]), Vec::new());
        Self {
            id,
            records,
            epoch: 1,
            epoch_first: 0,
            earlier,
            written: noise,
            durable: noise,
            forgotten: 0,
            lowest_cut: u64::MAX,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.records.len() as u64
    }

    pub(super) fn reached(&self, level: AckLevel) -> u64 {
        match level {
            AckLevel::Durable => self.durable,
            AckLevel::Written => self.written,
            _ => self.end(),
        }
    }

    /// Oldest first.
    fn ours(&self) -> Vec<Ours> {
        let mut ours: Vec<Ours> = Vec::new();
        for (first, stored) in (0..).zip(&self.records).skip(self.forgotten as usize) {
            match (stored.append, ours.last_mut()) {
                (Some(append), Some(last)) if last.append == append => last.count += 1,
                (Some(append), _) => ours.push(Ours { append, seq: stored.seq, first, count: 1 }),
                (None, _) => {}
            }
        }
        ours
    }

    /// True if all of an append lies at a place.
    pub(super) fn has(&self, append: u64, first: u64, count: u32) -> bool {
        let of = |stored: &Stored| stored.append == Some(append);
        (first..first + u64::from(count)).all(|at| self.records.get(at as usize).is_some_and(of))
    }

    /// An append is one chunk: it is written, stored and lost whole or not at all.
    fn boundary(&self, at: u64) -> u64 {
        let mut at = (at as usize).min(self.records.len());
        let inside = |at: usize| {
            let (before, here) = (self.records[at - 1], self.records[at]);
            here.append.is_some() && here.append == before.append
        };
        while at > 0 && at < self.records.len() && inside(at) {
            at -= 1;
        }
        at as u64
    }

    /// The log is cut at `keep` and a new epoch begins.
    pub(super) fn cut(&mut self, keep: u64, epochs: u32) {
        let before = EpochStart { epoch: self.epoch, first_offset: self.epoch_first };
        self.earlier.extend(Some(before).filter(|_| self.end() > self.epoch_first));
        self.records.truncate(self.boundary(keep) as usize);
        let end = self.end();
        self.earlier.retain(|earlier| earlier.first_offset < end);
        self.epoch += epochs;
        (self.epoch_first, self.written, self.durable) = (end, end, end);
        (self.forgotten, self.lowest_cut) = (self.forgotten.min(end), self.lowest_cut.min(end));
    }

    /// Makes what lies there unreadable; returns whose appends that were.
    fn lose(&mut self, from: u64, to: u64) -> Vec<u64> {
        let (from, to) = (self.boundary(from) as usize, self.boundary(to) as usize);
        let lost = self.records[from..to].iter_mut().map(|stored| std::mem::replace(stored, NOISE));
        lost.filter_map(|stored| stored.append).collect()
    }

    pub(super) fn knows_us(&self) -> bool {
        !self.ours().is_empty()
    }

    pub(super) fn forget(&mut self) {
        self.forgotten = self.end();
    }
}

/// Limits of a daemon: they change when it is started again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) window: u32,
    pub(super) max_append: u32,
    pub(super) max_record: u32,
    pub(super) highest: AckLevel,
}

pub(super) const FULL: Limits = Limits { window: 8, max_append: 1000, max_record: 1000, highest: AckLevel::Durable };

/// Part that a recovery in the process keeps.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kept {
    /// Everything below this; offsets from there on are given again.
    Below(u64),
    /// All but what lies there.
    But(u64, u64),
}

#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) log: Log,
    /// Those that were in its place before.
    pub(super) shelf: Vec<Log>,
    pub(super) limits: Limits,
    /// A write has failed, and the journal has not recovered.
    pub(super) failed: bool,
    losses: u32,
    pub(super) connected: bool,
    pub(super) connection: u64,
    /// Losses that the connection knows of.
    losses_reported: u32,
    /// Messages that a client has sent and the daemon not read.
    pub(super) inbound: VecDeque<Out>,
    /// Messages that the daemon has sent and the client not read.
    pub(super) outbound: VecDeque<Answer>,
    /// Accepted on this connection above `received` and not covered.
    waiting: Vec<(AppendHead, u64)>,
    flushes: Vec<(u32, AckLevel, u64)>,
}

impl Daemon {
    pub(super) fn new(window: u32) -> Self {
        Self {
            log: Log::new(1, 0),
            shelf: Vec::new(),
            limits: Limits { window, ..FULL },
            failed: false,
            losses: 0,
            connected: false,
            connection: 0,
            losses_reported: 0,
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            waiting: Vec::new(),
            flushes: Vec::new(),
        }
    }

    /// HELLO and WELCOME.
    pub(super) fn welcome(&mut self) -> Welcome {
        self.connected = true;
        (self.connection, self.losses_reported) = (self.connection + 1, self.losses);
        let log = &self.log;
        let at = |offset: u64| match offset {
            offset if offset < log.durable => AckLevel::Durable,
            offset if offset < log.written => AckLevel::Written,
            _ => AckLevel::Received,
        };
        let last = log.ours().pop().map(|last| {
            let more = u64::from(last.count) - 1;
            let (sequence, offset) = (last.seq + more, last.first + more);
            LastStored { sequence, offset, level: at(offset) }
        });
        Welcome {
            version: 1,
            policy: DurabilityPolicy::GroupCommit,
            highest_ack: self.limits.highest,
            may_read: true,
            log_id: log.id,
            epoch: log.epoch,
            epoch_first_offset: log.epoch_first,
            producer_id: ProducerId::from_bytes([9; 16]),
            producer_epoch: 0,
            secret: Vec::new(),
            last,
            window: self.limits.window,
            max_append_bytes: self.limits.max_append,
            max_record_bytes: self.limits.max_record,
            received: log.end(),
            written: log.written,
            durable: log.durable,
            earlier: log.earlier.clone(),
            forwarding: Forwarding::No,
        }
    }

    pub(super) fn noise(&mut self) {
        if !self.failed {
            self.log.records.push(NOISE);
        }
    }

    /// The number of the append that is read next, where it is one.
    pub(super) fn next(&self) -> Option<u64> {
        let Some(Out::Append { payload, .. }) = self.inbound.front() else { return None };
        Some(number(payload))
    }

    /// Appends of this connection that wait for an answer: not more than the window.
    pub(super) fn unanswered(&self) -> usize {
        let asks = |out: &&Out| matches!(out, Out::Append { head, .. } if head.level > AckLevel::None);
        self.waiting.len() + self.inbound.iter().filter(asks).count()
    }

    /// Reads the next message; `refuse` is what it says to a new append instead of storing it.
    pub(super) fn read(&mut self, refuse: Option<ErrorInfo>) {
        match self.inbound.pop_front() {
            Some(Out::Append { head, payload, .. }) => {
                assert!(self.waiting.len() < self.limits.window as usize, "the window is kept");
                match self.append(&head, &payload, refuse) {
                    _ if head.level == AckLevel::None => {}
                    Ok(accepted) => {
                        if head.level > AckLevel::Received {
                            self.waiting.push((head, accepted.first_offset + u64::from(accepted.count)));
                        }
                        self.say(Answer::Accepted(accepted));
                        // A level may have been reached long ago: say so again.
                        self.watermarks();
                    }
                    Err(error) => self.refuse(&head, error),
                }
            }
            Some(Out::Flush { id, level }) => {
                if let Err(error) = self.flush(id, level) {
                    self.say(Answer::FlushRefused(id, error));
                }
            }
            None => {}
        }
    }

    fn flush(&mut self, id: u32, level: AckLevel) -> Result<(), ErrorInfo> {
        if level > self.limits.highest {
            return Err(ErrorInfo::new(ErrorCode::LevelUnreachable, ""));
        }
        if self.waiting.len() + self.flushes.len() >= 2 * self.limits.window as usize {
            return Err(ErrorInfo::new(ErrorCode::Busy, ""));
        }
        let end = self.log.end();
        if level == AckLevel::Received {
            self.watermark(id, level, end);
            return Ok(());
        }
        self.lost_since()?;
        self.flushes.push((id, level, end));
        self.watermarks();
        Ok(())
    }

    /// Report for the next FLUSH of a connection, once.
    fn lost_since(&mut self) -> Result<(), ErrorInfo> {
        if std::mem::replace(&mut self.losses_reported, self.losses) == self.losses {
            return Ok(());
        }
        Err(ErrorInfo { retryable: false, maybe_written: true, ..ErrorInfo::new(ErrorCode::JournalFailed, "a loss") })
    }

    fn say(&mut self, answer: Answer) {
        if self.connected {
            self.outbound.push_back(answer);
        }
    }

    fn refuse(&mut self, head: &AppendHead, error: ErrorInfo) {
        self.say(Answer::Refused(Refused { first_seq: head.first_seq, count: head.count, error }));
    }

    fn append(&mut self, head: &AppendHead, payload: &Bytes, refuse: Option<ErrorInfo>) -> Result<Accepted, ErrorInfo> {
        let not_written = |code| ErrorInfo { maybe_written: false, ..ErrorInfo::new(code, "") };
        assert!(payload.len() <= self.limits.max_append as usize, "that would end the connection");
        if payload.len() > self.limits.max_record as usize {
            return Err(not_written(ErrorCode::RecordTooLarge));
        }
        if head.level > self.limits.highest {
            return Err(not_written(ErrorCode::LevelUnreachable));
        }
        if self.failed {
            return Err(not_written(ErrorCode::JournalFailed));
        }
        let ours = self.log.ours();
        let expected = ours.last().map_or(0, |last| last.seq + u64::from(last.count));
        let accepted = |first_offset, duplicate| Accepted {
            first_seq: head.first_seq,
            first_offset,
            count: head.count,
            epoch: self.log.epoch,
            duplicate,
        };
        if head.first_seq < expected {
            let remembered = ours.len().saturating_sub(self.limits.window as usize);
            let at = ours.iter().position(|ours| ours.seq == head.first_seq);
            return match at {
                Some(at) if at >= remembered => {
                    let ours = &ours[at];
                    let same = (ours.append, ours.count) == (number(payload), head.count);
                    assert!(same, "one append was taken for the resend of another");
                    Ok(accepted(ours.first, true))
                }
                None if ours.get(remembered).is_some_and(|oldest| head.first_seq >= oldest.seq) || remembered == 0 => {
                    Err(not_written(ErrorCode::SequenceOverlap).expecting(expected)) // in a gap
                }
                _ => Err(ErrorInfo::new(ErrorCode::SequenceTooOld, "")),
            };
        }
        if head.first_seq > expected && !head.gap {
            return Err(ErrorInfo::new(ErrorCode::SequenceGap, "").expecting(expected));
        }
        if let Some(error) = refuse {
            return Err(error);
        }
        let accepted = accepted(self.log.end(), false);
        let seqs = head.first_seq..head.first_seq + u64::from(head.count);
        let (append, connection) = (Some(number(payload)), self.connection);
        self.log.records.extend(seqs.map(|seq| Stored { append, seq, connection }));
        Ok(accepted)
    }

    fn watermarks(&mut self) {
        if self.failed {
            return; // what was not released when it failed is not released
        }
        self.watermark(0, AckLevel::Written, self.log.written);
        self.watermark(0, AckLevel::Durable, self.log.durable);
        for (id, level, end) in std::mem::take(&mut self.flushes) {
            let reached = self.log.reached(level);
            if reached >= end {
                self.watermark(id, level, reached);
            } else {
                self.flushes.push((id, level, end));
            }
        }
    }

    fn watermark(&mut self, request_id: u32, level: AckLevel, offset: u64) {
        self.waiting.retain(|(head, end)| head.level > level || *end > offset);
        let (epoch, epoch_first_offset) = (self.log.epoch, self.log.epoch_first);
        self.say(Answer::Watermark(Watermark { request_id, epoch, epoch_first_offset, level, offset }));
    }

    /// The disk has completed writes and perhaps syncs.
    pub(super) fn advance(&mut self, written: u64, durable: u64) {
        if !self.failed {
            let log = &mut self.log;
            log.written = log.written.max(log.boundary(written));
            log.durable = log.durable.max(log.boundary(durable).min(log.written));
            self.watermarks();
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.connected = false;
        self.inbound.clear();
        self.outbound.clear();
        self.waiting.clear();
        self.flushes.clear();
    }

    /// A write has failed. Every waiter is notified, whatever becomes of what it waits for.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        for (head, _) in std::mem::take(&mut self.waiting) {
            self.refuse(&head, ErrorInfo::new(ErrorCode::JournalFailed, ""));
        }
        self.fail_flushes(&ErrorInfo::new(ErrorCode::JournalFailed, ""));
    }

    fn fail_flushes(&mut self, error: &ErrorInfo) {
        let flushes = std::mem::take(&mut self.flushes).into_iter();
        flushes.for_each(|(id, ..)| self.say(Answer::FlushRefused(id, error.clone())));
    }

    /// The journal has recovered in the process. Which appends it has lost out of the midst of the log.
    pub(super) fn recover(&mut self, kept: Kept) -> Vec<u64> {
        let written = self.log.written;
        let log = &mut self.log;
        let mut lost_appends = Vec::new();
        let lost = match kept {
            Kept::Below(keep) => {
                log.cut(keep, 1);
                // A later watermark says all that the one before said, so a daemon need not send both.
                self.outbound
                    .retain(|answer| !matches!(answer, Answer::Watermark(watermark) if watermark.request_id == 0));
                log.end() < written
            }
            Kept::But(from, to) => {
                lost_appends = log.lose(from, to);
                log.cut(log.end(), 1);
                from < to
            }
        };
        self.losses += u32::from(lost);
        self.failed = false;
        // A request made while it had failed waits for a place that may be void now, or for what is lost.
        if !self.flushes.is_empty() {
            let error = self.lost_since().err();
            let void = self.flushes.iter().any(|(_, _, end)| *end > self.log.end());
            if let Some(error) = error.or_else(|| void.then(|| ErrorInfo::new(ErrorCode::JournalFailed, ""))) {
                self.fail_flushes(&error);
            }
        }
        // It says where the epoch begins before it gives offsets in it. (The daemon gives none again after such a
        // recovery.)
        self.watermarks();
        lost_appends
    }

    /// Started again after it has ended: it knows of no loss that one before it has reported.
    pub(super) fn restart(&mut self) {
        self.hang_up();
        (self.failed, self.losses) = (false, 0);
    }

    /// Another log is put into the place of this one: a new one, or one that was there before.
    pub(super) fn replace(&mut self, from_shelf: Option<usize>, noise: u64) {
        let next = match from_shelf {
            Some(at) => self.shelf.remove(at),
            None => Log::new(self.shelf.len() as u8 + 2, noise),
        };
        self.shelf.push(std::mem::replace(&mut self.log, next));
    }

    /// All logs that there ever were.
    pub(super) fn logs(&self) -> impl Iterator<Item = &Log> {
        self.shelf.iter().chain([&self.log])
    }
}

fn number(payload: &Bytes) -> u64 {
    let (number, _) = payload.split_first_chunk().expect("a number");
    u64::from_le_bytes(*number)
}
