//! One producer connection's unanswered requests. Pure: watermarks in, answers out.
//!
//! Invariants:
//! - An answer at a level is released only when the watermark of that level has passed the append's end. No failure of
//!   the journal may lie between the append and the watermark.
//! - After a failure every unanswered append is answered "maybe written", once.
//! - Levels do not wait for each other: each has its own queue, in offset order.
//! - The bytes that this connection holds in the journal are known, so that one connection cannot hold all of them.
//!   Those of a burst are released together, when the last of them is written.
//!
//! Appends of one burst that follow each other are one entry of a queue: a flood is hundreds of appends at a time. Work
//! for each of them would be work for all connections together.

use std::collections::VecDeque;
use std::time::Instant;

use clad_journal::{Accepting, Level, Wants, Watermarks};
use clad_proto::frame::{Refused, Watermark};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

/// The next answer of the connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Watermark(Watermark),
    Refused(Refused),
    /// The FLUSH of this id cannot be answered by a watermark any more.
    FlushFailed(u32, ErrorInfo),
}

/// Appends in a row, of as many records each.
#[derive(Clone, Copy)]
struct Waiting {
    first_seq: u64,
    /// Records of each append; 0 for a FLUSH.
    count: u32,
    appends: u32,
    /// One past the last offset of the last of them.
    end: u64,
    failures: u32,
    since: Instant,
    /// The FLUSH that it stands for; 0 for an append.
    flush: u32,
}

impl Waiting {
    fn records(&self) -> u64 {
        u64::from(self.count) * u64::from(self.appends)
    }

    /// One past the last offset of the first of its appends.
    fn first_end(&self) -> u64 {
        self.end - self.records() + u64::from(self.count)
    }

    /// Number of its appends that end at or below an offset.
    fn covered(&self, mark: u64) -> u32 {
        match mark {
            _ if mark >= self.end => self.appends,
            _ if self.count == 0 => 0,
            // Less than `appends`, as the watermark is below the end.
            _ => (mark.saturating_sub(self.end - self.records()) / u64::from(self.count)) as u32,
        }
    }

    /// Takes so many appends off the front.
    fn split(&mut self, appends: u32) -> Self {
        let records = u64::from(appends) * u64::from(self.count);
        let front = Self { appends, end: self.end - self.records() + records, ..*self };
        self.first_seq += records;
        self.appends -= appends;
        front
    }

    /// Returns true if the next append continues where this ends.
    fn follows(&self, next: &Self) -> bool {
        let same = (self.count, self.failures, self.since) == (next.count, next.failures, next.since);
        same && self.flush == 0
            && self.end + u64::from(next.count) == next.end
            && self.first_seq.checked_add(self.records()) == Some(next.first_seq)
    }
}

/// Bytes in the journal, until everything below `end` is written.
struct UnwrittenBytes {
    end: u64,
    bytes: usize,
    since: Instant,
}

/// The unanswered requests.
#[derive(Default)]
pub(crate) struct Session {
    written: VecDeque<Waiting>,
    durable: VecDeque<Waiting>,
    unanswered: usize,
    unwritten: VecDeque<UnwrittenBytes>,
    unwritten_bytes: usize,
    /// Losses of the journal that the peer knows of: those before it came, and those that were reported to it.
    losses: u32,
}

impl Session {
    /// Returns true if the watermarks must be watched.
    pub(crate) fn waits(&self) -> bool {
        !self.written.is_empty() || !self.durable.is_empty() || !self.unwritten.is_empty()
    }

    /// Watermarks at which the next answer is due, or memory is released; above those that [`Session::release`] saw.
    pub(crate) fn wants(&self) -> Wants {
        let first = |queue: &VecDeque<Waiting>| queue.front().map_or(u64::MAX, Waiting::first_end);
        let unwritten = self.unwritten.front().map_or(u64::MAX, |unwritten| unwritten.end);
        Wants { written: first(&self.written).min(unwritten), durable: first(&self.durable) }
    }

    /// Appends whose answer is still due.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Bytes that this connection holds in the journal.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    /// Notes an append that was taken. A flush is noted with `count` 0 and its id.
    pub(crate) fn given(
        &mut self,
        first_seq: u64,
        accepted: &clad_journal::Accepted,
        level: AckLevel,
        bytes: usize,
        since: Instant,
    ) {
        let end = accepted.first_offset + u64::from(accepted.count);
        let (count, failures) = (accepted.count, accepted.failures);
        if bytes > 0 && !accepted.duplicate {
            match self.unwritten.back_mut() {
                Some(burst) if burst.since == since => {
                    burst.end = burst.end.max(end);
                    burst.bytes += bytes;
                }
                _ => self.unwritten.push_back(UnwrittenBytes { end, bytes, since }),
            }
            self.unwritten_bytes += bytes;
        }
        let waiting = Waiting { first_seq, count, appends: 1, end, failures, since, flush: 0 };
        match level {
            AckLevel::Written => self.wait(Level::Written, waiting),
            AckLevel::Durable => self.wait(Level::Durable, waiting),
            _ => {}
        }
    }

    fn wait(&mut self, level: Level, waiting: Waiting) {
        let queue = if level == Level::Durable { &mut self.durable } else { &mut self.written };
        insert(queue, waiting);
        self.unanswered += 1;
    }

    /// A session that begins at these watermarks.
    pub(crate) fn begin(watermarks: &Watermarks) -> Self {
        Self { losses: watermarks.losses, ..Self::default() }
    }

    /// Error for a FLUSH after a loss of the journal: once, as the loss may be of this peer, and was answered.
    pub(super) fn lost_since(&mut self, watermarks: &Watermarks) -> Option<ErrorInfo> {
        if watermarks.losses == std::mem::replace(&mut self.losses, watermarks.losses) {
            return None;
        }
        let text = "the disk failed and records that were `written` could not be read back: some of what was sent before \
                    may be lost (`clactl status`, and gaps when it is read); a further FLUSH speaks of the rest";
        let mut error = ErrorInfo::new(ErrorCode::JournalFailed, text);
        (error.retryable, error.maybe_written) = (false, true);
        Some(error)
    }

    /// Notes a flush of everything below `end`.
    pub(super) fn flush(&mut self, id: u32, end: u64, level: Level, failures: u32) {
        let since = Instant::now();
        self.wait(level, Waiting { first_seq: 0, count: 0, appends: 1, end, failures, since, flush: id });
    }

    /// Releases what the watermarks cover. Where the journal has lost something since, no waiting FLUSH is answered by
    /// a watermark: it is past the loss.
    pub(crate) fn release(&mut self, m: &Watermarks, answers: &mut Vec<Answer>) {
        let waits = self.written.iter().chain(&self.durable).any(|w| w.flush != 0);
        if waits && let Some(error) = self.lost_since(m) {
            self.fail_flushes(&error, answers);
        }
        while let Some(unwritten) = self.unwritten.front()
            && (unwritten.end <= m.written || m.accepting == Accepting::Failed)
        {
            let held = self.unwritten_bytes;
            assert!(unwritten.bytes <= held, "more bytes are released than are held: the connection's share is lost");
            self.unwritten_bytes -= unwritten.bytes;
            self.unwritten.pop_front();
        }
        for (queue, level, mark) in
            [(&mut self.written, AckLevel::Written, m.written), (&mut self.durable, AckLevel::Durable, m.durable)]
        {
            let mut released = false;
            while let Some(w) = queue.front_mut() {
                let failed = w.failures < m.failures;
                let done = if failed { w.appends } else { w.covered(mark) };
                if done == 0 {
                    break;
                }
                let done = w.split(done);
                if w.appends == 0 {
                    queue.pop_front();
                }
                let appends = done.appends as usize;
                assert!(appends <= self.unanswered, "more is answered than was asked: the window is lost");
                self.unanswered -= appends;
                match done.flush {
                    _ if failed => maybe_written(done, answers),
                    0 => {
                        released = true;
                        let (appends, records) = (done.appends.into(), done.records());
                        super::metrics::acked(level_label(level), appends, records, done.since.elapsed());
                    }
                    flush => answers.push(Answer::Watermark(watermark(m, level, mark, flush))),
                }
            }
            if released {
                answers.push(Answer::Watermark(watermark(m, level, mark, 0)));
            }
        }
    }

    fn fail_flushes(&mut self, error: &ErrorInfo, answers: &mut Vec<Answer>) {
        for queue in [&mut self.written, &mut self.durable] {
            let waited = queue.len();
            answers.extend(queue.iter().filter(|w| w.flush != 0).map(|w| Answer::FlushFailed(w.flush, error.clone())));
            queue.retain(|w| w.flush == 0);
            self.unanswered -= waited - queue.len();
        }
    }
}

/// Keeps the queue in offset order: a resend may be answered at a lower offset than what was given last.
fn insert(queue: &mut VecDeque<Waiting>, w: Waiting) {
    match queue.back_mut() {
        Some(last) if last.follows(&w) => {
            last.appends += 1;
            last.end = w.end;
            return;
        }
        Some(last) if last.end > w.end => {}
        _ => return queue.push_back(w),
    }
    let at = queue.partition_point(|other| other.end <= w.end);
    queue.insert(at, w);
    // It may end within a row: what ends before it must not wait for it.
    if let Some(row) = queue.get_mut(at + 1)
        && let before @ 1.. = row.covered(w.end)
    {
        let before = row.split(before);
        queue.insert(at, before);
    }
}

pub(super) fn watermark(m: &Watermarks, level: AckLevel, offset: u64, request_id: u32) -> Watermark {
    Watermark { request_id, epoch: m.epoch, epoch_first_offset: m.epoch_first, level, offset }
}

fn maybe_written(mut row: Waiting, answers: &mut Vec<Answer>) {
    let text = "a write to the disk failed while this was under way; it may be stored, a resend is safe";
    let error = || ErrorInfo::new(ErrorCode::JournalFailed, text).retry_after_ms(1000);
    while row.appends > 0 {
        let w = row.split(1);
        answers.push(match w.flush {
            0 => Answer::Refused(Refused { first_seq: w.first_seq, count: w.count, error: error() }),
            id => Answer::FlushFailed(id, error()),
        });
    }
}

/// The metric label of a level.
pub(crate) fn level_label(level: AckLevel) -> super::metrics::Level {
    match level {
        AckLevel::None | AckLevel::Posted => super::metrics::Level::None,
        AckLevel::Received => super::metrics::Level::Received,
        AckLevel::Written => super::metrics::Level::Written,
        AckLevel::Durable => super::metrics::Level::Durable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(s: &mut Session, seq: u64, offset: u64, level: AckLevel) {
        let a = clad_journal::Accepted { first_offset: offset, count: 1, epoch: 1, failures: 0, duplicate: false };
        s.given(seq, &a, level, 100, Instant::now());
    }

    fn watermarks(written: u64, durable: u64, failures: u32) -> Watermarks {
        Watermarks { epoch: 1, received: 100, written, durable, failures, ..Watermarks::default() }
    }

    fn said(s: &mut Session, m: Watermarks) -> Vec<String> {
        let mut answers = Vec::new();
        s.release(&m, &mut answers);
        let describe = |a: &Answer| match a {
            Answer::Watermark(w) => format!("{} {}", w.level, w.offset),
            Answer::Refused(r) => format!("refused {} {}", r.first_seq, r.error.code),
            Answer::FlushFailed(id, e) => format!("flush {id} {}", e.code),
        };
        answers.iter().map(describe).collect()
    }

    #[test]
    fn levels_do_not_wait_for_each_other_and_nothing_runs_ahead() {
        let mut s = Session::default();
        given(&mut s, 0, 10, AckLevel::Durable);
        given(&mut s, 1, 11, AckLevel::Written);
        given(&mut s, 2, 12, AckLevel::Received);
        assert_eq!(s.unwritten_bytes(), 300);
        assert_eq!(said(&mut s, watermarks(11, 0, 0)), [""; 0]);
        assert_eq!(said(&mut s, watermarks(12, 10, 0)), ["written 12"]);
        assert_eq!(said(&mut s, watermarks(13, 11, 0)), ["durable 11"]);
        assert!(!s.waits());
        assert_eq!(s.unwritten_bytes(), 0);
    }

    #[test]
    fn a_failure_answers_everything_once_even_when_the_mark_has_passed_since() {
        let mut s = Session::default();
        given(&mut s, 0, 10, AckLevel::Durable);
        given(&mut s, 1, 11, AckLevel::Durable);
        s.flush(7, 12, Level::Durable, 0);
        let want = ["refused 0 journal_failed", "refused 1 journal_failed", "flush 7 journal_failed"];
        assert_eq!(said(&mut s, watermarks(50, 50, 1)), want);
        assert_eq!(said(&mut s, watermarks(60, 60, 1)), [""; 0]);
    }

    #[test]
    fn a_resend_is_answered_at_its_own_offset() {
        let mut s = Session::default();
        given(&mut s, 5, 20, AckLevel::Durable);
        given(&mut s, 0, 3, AckLevel::Durable);
        assert_eq!(said(&mut s, watermarks(4, 4, 0)), ["durable 4"]);
        assert_eq!(s.unanswered(), 1);
    }

    /// So many appends of two records each that came together.
    fn burst(s: &mut Session, seq: u64, offset: u64, appends: u64, since: Instant) {
        for n in 0..appends {
            let first_offset = offset + 2 * n;
            let a = clad_journal::Accepted { first_offset, count: 2, epoch: 1, failures: 0, duplicate: false };
            s.given(seq + 2 * n, &a, AckLevel::Written, 100, since);
        }
    }

    #[test]
    fn a_burst_is_one_entry_and_still_answered_append_by_append() {
        let mut s = Session::default();
        burst(&mut s, 0, 10, 100, Instant::now());
        assert_eq!((s.written.len(), s.unwritten.len(), s.unanswered(), s.unwritten_bytes()), (1, 1, 100, 10_000));
        assert_eq!(said(&mut s, watermarks(11, 0, 0)), [""; 0], "half an append is none");
        assert_eq!(s.unanswered(), 100);
        assert_eq!(said(&mut s, watermarks(15, 0, 0)), ["written 15"]);
        assert_eq!((s.unanswered(), s.unwritten_bytes()), (98, 10_000), "its bytes are let go together");
        assert_eq!(said(&mut s, watermarks(206, 0, 0)), ["written 206"]);
        assert_eq!(s.unanswered(), 2);
        let want = ["refused 196 journal_failed", "refused 198 journal_failed"];
        assert_eq!(said(&mut s, watermarks(300, 0, 1)), want, "each append is named");
        assert_eq!((s.unanswered(), s.unwritten_bytes(), s.waits()), (0, 0, false));
    }

    #[test]
    fn only_what_follows_is_one_entry() {
        let mut s = Session::default();
        let (now, later) = (Instant::now(), Instant::now() + std::time::Duration::from_micros(1));
        burst(&mut s, 0, 10, 3, now);
        burst(&mut s, 6, 16, 3, later); // another time
        burst(&mut s, 12, 50, 3, later); // another producer's offsets between
        burst(&mut s, 80, 56, 3, later); // a jump ahead
        assert_eq!((s.written.len(), s.unanswered()), (4, 12));
        assert_eq!(said(&mut s, watermarks(62, 0, 0)), ["written 62"]);
        assert_eq!(s.unanswered(), 0);
    }

    #[test]
    fn a_resend_within_a_row_holds_up_nothing_before_it() {
        let mut s = Session::default();
        burst(&mut s, 0, 10, 10, Instant::now());
        let a = clad_journal::Accepted { first_offset: 18, count: 2, epoch: 1, failures: 0, duplicate: true };
        s.given(8, &a, AckLevel::Written, 100, Instant::now());
        assert_eq!(s.unanswered(), 11);
        assert_eq!(said(&mut s, watermarks(18, 0, 0)), ["written 18"]);
        assert_eq!(s.unanswered(), 7);
        assert_eq!(said(&mut s, watermarks(20, 0, 0)), ["written 20"]);
        assert_eq!(s.unanswered(), 5);
        assert_eq!(said(&mut s, watermarks(30, 0, 0)), ["written 30"]);
        assert!(!s.waits());
    }

    #[test]
    fn a_flush_after_a_loss_reports_it_once() {
        let lost = |losses| Watermarks { losses, ..watermarks(50, 50, 1) };
        let mut s = Session::begin(&lost(1));
        assert_eq!(s.lost_since(&lost(1)), None, "that was before it came");
        let error = s.lost_since(&lost(2)).expect("a loss");
        assert_eq!((error.code, error.retryable, error.maybe_written), (ErrorCode::JournalFailed, false, true));
        assert_eq!(s.lost_since(&lost(2)), None);
    }

    #[test]
    fn a_flush_that_waits_reports_what_was_lost_meanwhile_and_no_mark() {
        let lost = |losses| Watermarks { losses, ..watermarks(50, 50, 1) };
        let mut s = Session::begin(&lost(1));
        s.flush(7, 40, Level::Written, 1);
        s.flush(8, 60, Level::Durable, 1);
        s.flush(9, 60, Level::Written, 1);
        assert_eq!(s.unanswered(), 3);
        let mut answers = Vec::new();
        s.release(&lost(2), &mut answers);
        let failed_flushes = answers.iter().map(|a| match a {
            Answer::FlushFailed(id, error) => (*id, error.retryable, error.maybe_written),
            other => panic!("{other:?}"),
        });
        assert_eq!(failed_flushes.collect::<Vec<_>>(), [(7, false, true), (9, false, true), (8, false, true)]);
        assert_eq!((s.unanswered(), s.waits()), (0, false));
        // It was reported: the next one is answered by the watermark.
        assert_eq!(s.lost_since(&lost(2)), None);
        s.flush(10, 50, Level::Written, 1);
        assert_eq!(said(&mut s, lost(2)), ["written 50"]);
    }
}
