//! One producer connection's open questions: what was given and not yet answered. Pure: marks in, answers out.
//!
//! What must hold:
//! - An answer at a level is released only when the watermark of that level has passed the append's end, and no
//!   failure of the journal lies between the append and the mark.
//! - After a failure everything unanswered is answered "maybe written", once.
//! - Levels do not wait for each other: each has its own queue, in offset order.
//! - The bytes that this connection holds in the journal are known, so that one connection cannot hold all of them.

use std::collections::VecDeque;
use std::time::Instant;

use clad_journal::{Accepting, Level, Marks};
use clad_proto::frame::{Refused, Watermark};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

/// What the connection says next.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Watermark(Watermark),
    Refused(Refused),
    /// The FLUSH of this id cannot be answered by a mark any more.
    FlushFailed(u32, ErrorInfo),
}

struct Waiting {
    first_seq: u64,
    count: u32,
    end: u64,
    failures: u32,
    since: Instant,
    /// The FLUSH that it stands for; 0 for an append.
    flush: u32,
}

/// The open questions.
#[derive(Default)]
pub(crate) struct Session {
    written: VecDeque<Waiting>,
    durable: VecDeque<Waiting>,
    held: VecDeque<(u64, usize)>,
    held_bytes: usize,
}

impl Session {
    /// Whether the marks must be watched.
    pub(crate) fn waits(&self) -> bool {
        !self.written.is_empty() || !self.durable.is_empty() || !self.held.is_empty()
    }

    /// Appends whose answer is still due.
    pub(crate) fn unanswered(&self) -> usize {
        self.written.len() + self.durable.len()
    }

    /// Bytes that this connection holds in the journal.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
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
            self.held.push_back((end, bytes));
            self.held_bytes += bytes;
        }
        let waiting = Waiting { first_seq, count, end, failures, since, flush: 0 };
        match level {
            AckLevel::Written => insert(&mut self.written, waiting),
            AckLevel::Durable => insert(&mut self.durable, waiting),
            _ => {}
        }
    }

    /// Notes a flush of everything below `end`.
    pub(crate) fn flush(&mut self, id: u32, end: u64, level: Level, failures: u32) {
        let waiting = Waiting { first_seq: 0, count: 0, end, failures, since: Instant::now(), flush: id };
        match level {
            Level::Durable => insert(&mut self.durable, waiting),
            _ => insert(&mut self.written, waiting),
        }
    }

    /// Releases what the marks cover.
    pub(crate) fn release(&mut self, m: &Marks, answers: &mut Vec<Answer>) {
        while let Some((end, bytes)) = self.held.front().copied()
            && (end <= m.written || m.accepting == Accepting::Failed)
        {
            self.held.pop_front();
            self.held_bytes -= bytes;
        }
        for (queue, level, mark) in
            [(&mut self.written, AckLevel::Written, m.written), (&mut self.durable, AckLevel::Durable, m.durable)]
        {
            let mut released = 0;
            while let Some(w) = queue.front() {
                if w.failures < m.failures {
                    answers.push(maybe_written(w));
                } else if w.end > mark {
                    break;
                } else {
                    if w.flush != 0 {
                        answers.push(Answer::Watermark(watermark(m, level, mark, w.flush)));
                    } else {
                        released += u64::from(w.count);
                        crate::metrics::acked(level_label(level), u64::from(w.count), w.since.elapsed());
                    }
                }
                queue.pop_front();
            }
            if released > 0 {
                answers.push(Answer::Watermark(watermark(m, level, mark, 0)));
            }
        }
    }
}

/// Keeps the queue in offset order: a resend may be answered at a lower offset than what was given last.
fn insert(queue: &mut VecDeque<Waiting>, w: Waiting) {
    if queue.back().is_none_or(|last| last.end <= w.end) {
        return queue.push_back(w);
    }
    let at = queue.partition_point(|other| other.end <= w.end);
    queue.insert(at, w);
}

fn watermark(m: &Marks, level: AckLevel, offset: u64, request_id: u32) -> Watermark {
    Watermark { request_id, epoch: m.epoch, epoch_first_offset: m.epoch_first, level, offset }
}

fn maybe_written(w: &Waiting) -> Answer {
    let text = "a write to the disk failed while this was under way; it may be stored, a resend is safe";
    let error = ErrorInfo::new(ErrorCode::JournalFailed, text).retry_after_ms(1000);
    match w.flush {
        0 => Answer::Refused(Refused { first_seq: w.first_seq, count: w.count, error }),
        id => Answer::FlushFailed(id, error),
    }
}

/// The metric label of a level.
pub(crate) fn level_label(level: AckLevel) -> crate::metrics::Level {
    match level {
        AckLevel::None | AckLevel::Posted => crate::metrics::Level::None,
        AckLevel::Received => crate::metrics::Level::Received,
        AckLevel::Written => crate::metrics::Level::Written,
        AckLevel::Durable => crate::metrics::Level::Durable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(s: &mut Session, seq: u64, offset: u64, level: AckLevel) {
        let a = clad_journal::Accepted { first_offset: offset, count: 1, epoch: 1, failures: 0, duplicate: false };
        s.given(seq, &a, level, 100, Instant::now());
    }

    fn marks(written: u64, durable: u64, failures: u32) -> Marks {
        Marks { epoch: 1, received: 100, written, durable, failures, ..Marks::default() }
    }

    fn said(s: &mut Session, m: Marks) -> Vec<String> {
        let mut answers = Vec::new();
        s.release(&m, &mut answers);
        let tell = |a: &Answer| match a {
            Answer::Watermark(w) => format!("{} {}", w.level, w.offset),
            Answer::Refused(r) => format!("refused {} {}", r.first_seq, r.error.code),
            Answer::FlushFailed(id, e) => format!("flush {id} {}", e.code),
        };
        answers.iter().map(tell).collect()
    }

    #[test]
    fn levels_do_not_wait_for_each_other_and_nothing_runs_ahead() {
        let mut s = Session::default();
        given(&mut s, 0, 10, AckLevel::Durable);
        given(&mut s, 1, 11, AckLevel::Written);
        given(&mut s, 2, 12, AckLevel::Received);
        assert_eq!(s.held_bytes(), 300);
        assert_eq!(said(&mut s, marks(11, 0, 0)), [""; 0]);
        assert_eq!(said(&mut s, marks(12, 10, 0)), ["written 12"]);
        assert_eq!(said(&mut s, marks(13, 11, 0)), ["durable 11"]);
        assert!(!s.waits());
        assert_eq!(s.held_bytes(), 0);
    }

    #[test]
    fn a_failure_answers_everything_once_even_when_the_mark_has_passed_since() {
        let mut s = Session::default();
        given(&mut s, 0, 10, AckLevel::Durable);
        given(&mut s, 1, 11, AckLevel::Durable);
        s.flush(7, 12, Level::Durable, 0);
        let want = ["refused 0 journal_failed", "refused 1 journal_failed", "flush 7 journal_failed"];
        assert_eq!(said(&mut s, marks(50, 50, 1)), want);
        assert_eq!(said(&mut s, marks(60, 60, 1)), [""; 0]);
    }

    #[test]
    fn a_resend_is_answered_at_its_own_offset() {
        let mut s = Session::default();
        given(&mut s, 5, 20, AckLevel::Durable);
        given(&mut s, 0, 3, AckLevel::Durable);
        assert_eq!(said(&mut s, marks(4, 4, 0)), ["durable 4"]);
        assert_eq!(s.unanswered(), 1);
    }
}
