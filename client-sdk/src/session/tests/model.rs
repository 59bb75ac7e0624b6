//! A model of the daemon: one log, one producer that matters, and noise of others between its records.

use crate::session::Out;
use clad_proto::{
    AckLevel, DurabilityPolicy, ErrorCode, ErrorInfo, LogId, ProducerId,
    frame::{Accepted, AppendHead, LastStored, Refused, Watermark, Welcome},
};
use std::collections::VecDeque;

/// One record: whose append (nothing: of another producer), and its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) append: Option<u64>,
    pub(super) seq: u64,
}

#[derive(Debug)]
pub(super) enum Answer {
    Accepted(Accepted),
    Watermark(Watermark),
    Refused(Refused),
}

#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) log_id: LogId,
    pub(super) log: Vec<Stored>,
    pub(super) epoch: u32,
    pub(super) epoch_first: u64,
    pub(super) written: u64,
    pub(super) durable: u64,
    pub(super) window: u32,
    /// What a client has sent and the daemon not read.
    pub(super) inbound: VecDeque<Out>,
    /// What the daemon has sent and the client not read.
    pub(super) outbound: VecDeque<Answer>,
    /// Accepted on this connection above `received` and not covered.
    waiting: Vec<(AppendHead, u64)>,
    flushes: Vec<(u32, AckLevel, u64)>,
}

impl Daemon {
    pub(super) fn new(window: u32) -> Self {
        Self {
            log_id: LogId::from_bytes([1; 16]),
            log: Vec::new(),
            epoch: 1,
            epoch_first: 0,
            written: 0,
            durable: 0,
            window,
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            waiting: Vec::new(),
            flushes: Vec::new(),
        }
    }

    fn end(&self) -> u64 {
        self.log.len() as u64
    }

    fn last(&self) -> Option<(u64, u64)> {
        let ours = |(_, stored): &(u64, &Stored)| stored.append.is_some();
        (0..).zip(&self.log).filter(ours).map(|(offset, stored)| (stored.seq, offset)).last()
    }

    pub(super) fn welcome(&self) -> Welcome {
        let last = self.last().map(|(sequence, offset)| LastStored { sequence, offset, level: AckLevel::Received });
        Welcome {
            version: 1,
            policy: DurabilityPolicy::GroupCommit,
            highest_ack: AckLevel::Durable,
            may_read: true,
            log_id: self.log_id,
            epoch: self.epoch,
            epoch_first_offset: self.epoch_first,
            producer_id: ProducerId::from_bytes([9; 16]),
            producer_epoch: 0,
            secret: Vec::new(),
            last,
            window: self.window,
            max_append_bytes: 1000,
            max_record_bytes: 1000,
            received: self.end(),
            written: self.written,
            durable: self.durable,
            earlier: Vec::new(),
        }
    }

    pub(super) fn noise(&mut self) {
        self.log.push(Stored { append: None, seq: 0 });
    }

    /// The number of the append that is read next, where it is one.
    pub(super) fn next(&self) -> Option<u64> {
        let Some(Out::Append { payload, .. }) = self.inbound.front() else { return None };
        Some(u64::from_le_bytes(payload.as_ref().try_into().expect("a number")))
    }

    /// Reads the next message; `refuse` is what it says to a new append instead of storing it.
    pub(super) fn read(&mut self, refuse: Option<ErrorInfo>) {
        match self.inbound.pop_front() {
            Some(Out::Append { head, payload, .. }) => {
                let number = u64::from_le_bytes(payload.as_ref().try_into().expect("a number"));
                let unanswered = self.waiting.len() as u32;
                assert!(unanswered < self.window, "the window is kept");
                match self.append(&head, number, refuse) {
                    _ if head.level == AckLevel::None => {}
                    Ok(accepted) => {
                        if head.level > AckLevel::Received {
                            self.waiting.push((head, accepted.first_offset + u64::from(accepted.count)));
                        }
                        self.outbound.push_back(Answer::Accepted(accepted));
                        // A level may have been reached long ago: say so again.
                        self.marks();
                    }
                    Err(error) => self.refuse(&head, error),
                }
            }
            Some(Out::Flush { id, level }) => {
                self.flushes.push((id, level, self.end()));
                self.marks();
            }
            None => {}
        }
    }

    fn refuse(&mut self, head: &AppendHead, error: ErrorInfo) {
        self.outbound.push_back(Answer::Refused(Refused { first_seq: head.first_seq, count: head.count, error }));
    }

    fn append(&mut self, head: &AppendHead, number: u64, refuse: Option<ErrorInfo>) -> Result<Accepted, ErrorInfo> {
        let expected = self.last().map_or(0, |(seq, _)| seq + 1);
        let accepted = |first_offset, epoch, duplicate| Accepted {
            first_seq: head.first_seq,
            first_offset,
            count: head.count,
            epoch,
            duplicate,
        };
        if head.first_seq < expected {
            let at = self.log.iter().position(|stored| stored.append.is_some() && stored.seq == head.first_seq);
            let at = at.ok_or_else(|| ErrorInfo::new(ErrorCode::SequenceTooOld, ""))?;
            assert_eq!(self.log[at].append, Some(number), "one append was taken for the resend of another");
            return Ok(accepted(at as u64, self.epoch, true));
        }
        if head.first_seq > expected && !head.gap {
            return Err(ErrorInfo::new(ErrorCode::SequenceGap, "").expecting(expected));
        }
        if let Some(error) = refuse {
            return Err(error);
        }
        let first = self.end();
        let seqs = head.first_seq..head.first_seq + u64::from(head.count);
        self.log.extend(seqs.map(|seq| Stored { append: Some(number), seq }));
        Ok(accepted(first, self.epoch, false))
    }

    fn marks(&mut self) {
        let (written, durable) = (self.written, self.durable);
        self.mark(0, AckLevel::Written, written);
        self.mark(0, AckLevel::Durable, durable);
        for (id, level, end) in std::mem::take(&mut self.flushes) {
            let reached = match level {
                AckLevel::Durable => durable,
                AckLevel::Written => written,
                _ => self.end(),
            };
            if reached >= end {
                self.mark(id, level, reached);
            } else {
                self.flushes.push((id, level, end));
            }
        }
    }

    fn mark(&mut self, request_id: u32, level: AckLevel, offset: u64) {
        self.waiting.retain(|(head, end)| head.level > level || *end > offset);
        let (epoch, epoch_first_offset) = (self.epoch, self.epoch_first);
        self.outbound.push_back(Answer::Watermark(Watermark { request_id, epoch, epoch_first_offset, level, offset }));
    }

    /// The disk has completed writes and perhaps syncs.
    pub(super) fn advance(&mut self, written: u64, durable: u64) {
        self.written = self.written.max(self.boundary(written));
        self.durable = self.durable.max(self.boundary(durable).min(self.written));
        self.marks();
    }

    pub(super) fn hang_up(&mut self) {
        self.inbound.clear();
        self.outbound.clear();
        self.waiting.clear();
        self.flushes.clear();
    }

    /// An append is one chunk: it is written, and kept, whole or not at all.
    fn boundary(&self, at: u64) -> u64 {
        let mut at = (at as usize).min(self.log.len());
        let inside = |at: usize| self.log[at].append.is_some() && self.log[at].append == self.log[at - 1].append;
        while at > 0 && at < self.log.len() && inside(at) {
            at -= 1;
        }
        at as u64
    }

    /// The log is cut at `keep` and a new epoch begins.
    pub(super) fn cut(&mut self, keep: u64, epochs: u32) {
        self.log.truncate(self.boundary(keep) as usize);
        // A later watermark says all that the one before said, so a daemon need not send both.
        self.outbound.retain(|answer| !matches!(answer, Answer::Watermark(mark) if mark.request_id == 0));
        self.epoch += epochs;
        self.epoch_first = self.end();
        (self.written, self.durable) = (self.end(), self.end());
    }

    /// A write has failed and the journal has recovered, while clients are connected.
    pub(super) fn fail_and_recover(&mut self, keep: u64) {
        for (head, _) in std::mem::take(&mut self.waiting) {
            self.refuse(&head, ErrorInfo::new(ErrorCode::JournalFailed, ""));
        }
        self.cut(keep, 1);
        self.marks();
    }
}
