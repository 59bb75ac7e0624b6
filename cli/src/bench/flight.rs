//! Appends of one connection in flight, and their outcomes: a plain state machine over frames and moments.
//!
//! Invariants: an append counts as acked when its level is there by the rules of docs/PROTOCOL.md, and then its
//! latency is recorded, every single one; an append that was refused, also after its ACCEPTED, counts as failed and its
//! offset is forgotten; answers come in the order of the appends, anything else ends the run. Appends that left together
//! are kept as one row, and those of them that are acked together have one latency, which is counted for each.

use std::collections::VecDeque;
use std::time::Instant;

use clad_proto::frame::{Accepted, Frame, Refused, Watermark};
use clad_proto::{AckLevel, ErrorInfo};
use hdrhistogram::Histogram;

use super::stats::new_histogram;

/// In place of an offset: the append was not acked.
pub(super) const NOT_ACKED: u64 = u64::MAX;

/// Appends of one connection.
#[derive(Debug)]
pub(super) struct Flight {
    level: AckLevel,
    records: u64,
    sent: VecDeque<Sent>,
    accepted: VecDeque<Taken>,
    in_flight: usize,
    /// Offset of the first record of each append, by its number.
    pub(super) offsets: Vec<u64>,
    /// Of every acked append, nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Appends that reached the level.
    pub(super) acked: u64,
    /// Appends that will not.
    pub(super) failed: u64,
    /// The first refusal.
    pub(super) refusal: Option<ErrorInfo>,
    /// When the last ack came.
    pub(super) last_ack: Option<Instant>,
}

/// Appends that left together, in a row.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Number of the first.
    number: usize,
    appends: usize,
    at: Instant,
}

/// Some of them, with offsets in a row.
#[derive(Debug, Clone, Copy)]
struct Taken {
    sent: Sent,
    epoch: u32,
    /// Of the first append.
    first_offset: u64,
}

impl Sent {
    fn split(&mut self, appends: usize) -> Self {
        let front = Self { appends, ..*self };
        self.number += appends;
        self.appends -= appends;
        front
    }
}

impl Taken {
    fn offset(&self, append: usize, records: u64) -> u64 {
        self.first_offset + append as u64 * records
    }

    fn split(&mut self, appends: usize, records: u64) -> Self {
        let front = Self { sent: self.sent.split(appends), ..*self };
        self.first_offset = self.offset(appends, records);
        front
    }

    /// Number of its appends that a mark covers; a mark that covers an append covers all before it.
    fn covered(&self, watermark: &Watermark, records: u64) -> usize {
        let covers = |append| watermark.covers(self.epoch, self.offset(append, records) + records - 1);
        if covers(self.sent.appends - 1) {
            return self.sent.appends;
        }
        (0..self.sent.appends).take_while(|&append| covers(append)).count()
    }
}

/// Early end of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The daemon ends it.
    #[error("the daemon closed a connection: {0}")]
    Closed(ErrorInfo),
    /// An answer that fits nothing.
    #[error("an answer out of order: {0}")]
    OutOfOrder(String),
}

impl Flight {
    /// Nothing in flight; appends of `records` records wait for `level`.
    pub(super) fn new(level: AckLevel, records: u32) -> Self {
        Self {
            level,
            records: records.into(),
            sent: VecDeque::new(),
            accepted: VecDeque::new(),
            in_flight: 0,
            offsets: Vec::with_capacity(1 << 16),
            latencies: new_histogram(),
            acked: 0,
            failed: 0,
            refusal: None,
            last_ack: None,
        }
    }

    /// Appends that wait for their answer or their level.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// So many more appends leave now; gives the sequence of the first record of the first.
    pub(super) fn leave(&mut self, appends: usize, now: Instant) -> u64 {
        let number = self.offsets.len();
        self.offsets.resize(number + appends, NOT_ACKED);
        self.sent.push_back(Sent { number, appends, at: now });
        self.in_flight += appends;
        number as u64 * self.records
    }

    /// A frame came.
    pub(super) fn answer(&mut self, frame: &Frame, now: Instant) -> Result<(), Broken> {
        match frame {
            Frame::Accepted(accepted) => self.accepted(accepted, now),
            Frame::Watermark(watermark) => {
                self.watermark(watermark, now);
                Ok(())
            }
            Frame::Refused(refused) => self.refused(refused),
            Frame::Error(error) => Err(Broken::Closed(error.error.clone())),
            Frame::Pong(_) => Ok(()),
            other => Err(Broken::OutOfOrder(format!("a {:?} frame", other.kind()))),
        }
    }

    /// An ACCEPTED came.
    pub(super) fn accepted(&mut self, accepted: &Accepted, now: Instant) -> Result<(), Broken> {
        let front = self.sent.front_mut().filter(|sent| sent.number as u64 * self.records == accepted.first_seq);
        let Some(front) = front.filter(|_| u64::from(accepted.count) == self.records) else {
            return Err(Broken::OutOfOrder(format!("sequence {} was accepted", accepted.first_seq)));
        };
        let sent = front.split(1);
        if front.appends == 0 {
            self.sent.pop_front();
        }
        if let Some(place) = self.offsets.get_mut(sent.number) {
            *place = accepted.first_offset;
        }
        if self.level <= AckLevel::Received {
            self.done(sent, now);
            return Ok(());
        }
        let records = self.records;
        let row = self.accepted.back_mut().filter(|row| {
            (row.sent.at, row.epoch) == (sent.at, accepted.epoch)
                && row.sent.number + row.sent.appends == sent.number
                && row.offset(row.sent.appends, records) == accepted.first_offset
        });
        match row {
            Some(row) => row.sent.appends += 1,
            None => {
                let taken = Taken { sent, epoch: accepted.epoch, first_offset: accepted.first_offset };
                self.accepted.push_back(taken);
            }
        }
        Ok(())
    }

    fn watermark(&mut self, watermark: &Watermark, now: Instant) {
        if watermark.level < self.level {
            return;
        }
        let records = self.records;
        while let Some(row) = self.accepted.front_mut() {
            let covered = row.covered(watermark, records);
            if covered == 0 {
                break;
            }
            let done = row.split(covered, records);
            let rest = row.sent.appends;
            self.done(done.sent, now);
            if rest > 0 {
                break;
            }
            self.accepted.pop_front();
        }
    }

    fn refused(&mut self, refused: &Refused) -> Result<(), Broken> {
        let number = (refused.first_seq / self.records) as usize;
        let is_in = |sent: &Sent| (sent.number..sent.number + sent.appends).contains(&number);
        if let Some(front) = self.sent.front_mut().filter(|sent| sent.number == number) {
            front.split(1);
            if front.appends == 0 {
                self.sent.pop_front();
            }
        } else if let Some(at) = self.accepted.iter().position(|taken| is_in(&taken.sent)) {
            self.forget_taken(at, number);
        } else {
            return Err(Broken::OutOfOrder(format!("sequence {} was refused", refused.first_seq)));
        }
        self.abandon(number, 1);
        self.refusal.get_or_insert_with(|| refused.error.clone());
        Ok(())
    }

    /// Takes one append out of the row of accepted ones at `at`.
    fn forget_taken(&mut self, at: usize, number: usize) {
        let Some(mut row) = self.accepted.remove(at) else { return };
        let before = row.split(number - row.sent.number, self.records);
        row.split(1, self.records);
        for part in [row, before].into_iter().filter(|part| part.sent.appends > 0) {
            self.accepted.insert(at, part);
        }
    }

    fn done(&mut self, sent: Sent, now: Instant) {
        let nanos = u64::try_from((now - sent.at).as_nanos()).unwrap_or(u64::MAX);
        // It grows as it must; nothing is too long for it.
        let _ = self.latencies.record_n(nanos.max(1), sent.appends as u64);
        self.acked += sent.appends as u64;
        self.in_flight -= sent.appends;
        self.last_ack = Some(now);
    }

    fn abandon(&mut self, number: usize, appends: usize) {
        self.failed += appends as u64;
        self.in_flight -= appends;
        for place in self.offsets.iter_mut().skip(number).take(appends) {
            *place = NOT_ACKED;
        }
    }

    /// The connection is over: what is in flight will have no answer any more.
    pub(super) fn end(&mut self) {
        let left: Vec<Sent> = self.sent.drain(..).chain(self.accepted.drain(..).map(|taken| taken.sent)).collect();
        for sent in left {
            self.abandon(sent.number, sent.appends);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clad_proto::ErrorCode;

    use super::*;

    fn accepted(first_seq: u64, first_offset: u64) -> Frame {
        Frame::Accepted(Accepted { first_seq, first_offset, count: 2, epoch: 1, duplicate: false })
    }

    fn watermark(level: AckLevel, offset: u64) -> Frame {
        Frame::Watermark(Watermark { request_id: 0, epoch: 1, epoch_first_offset: 0, level, offset })
    }

    fn refused(first_seq: u64) -> Frame {
        Frame::Refused(Refused { first_seq, count: 2, error: ErrorInfo::new(ErrorCode::NoSpace, "full") })
    }

    #[test]
    fn durable_waits_for_a_watermark_that_covers_the_last_record() {
        let start = Instant::now();
        let later = start + Duration::from_micros(500);
        let mut flight = Flight::new(AckLevel::Durable, 2);
        assert_eq!((flight.leave(2, start), flight.in_flight()), (0, 2));
        flight.answer(&accepted(0, 10), later).expect("in order");
        flight.answer(&watermark(AckLevel::Written, 12), later).expect("a mark");
        flight.answer(&watermark(AckLevel::Durable, 11), later).expect("a mark");
        assert_eq!(flight.acked, 0);
        flight.answer(&watermark(AckLevel::Durable, 12), later).expect("a mark");
        assert_eq!((flight.acked, flight.in_flight(), flight.last_ack), (1, 1, Some(later)));
        let p50 = flight.latencies.value_at_quantile(0.5);
        assert!((499_000..=501_000).contains(&p50), "{p50}");
        assert_eq!(flight.offsets, [10, NOT_ACKED]);
    }

    #[test]
    fn received_is_the_accepted_itself() {
        let now = Instant::now();
        let mut flight = Flight::new(AckLevel::Received, 2);
        flight.leave(1, now);
        flight.answer(&accepted(0, 10), now).expect("in order");
        assert_eq!((flight.acked, flight.in_flight()), (1, 0));
    }

    #[test]
    fn refusals_before_and_after_the_offset_was_given() {
        let now = Instant::now();
        let mut flight = Flight::new(AckLevel::Written, 2);
        flight.leave(4, now);
        flight.answer(&accepted(0, 10), now).expect("in order");
        flight.answer(&refused(2), now).expect("in order");
        flight.answer(&accepted(4, 12), now).expect("in order");
        flight.answer(&refused(0), now).expect("the journal failed");
        flight.answer(&watermark(AckLevel::Written, 14), now).expect("a mark");
        assert_eq!((flight.acked, flight.failed, flight.in_flight()), (1, 2, 1));
        flight.end();
        assert_eq!((flight.failed, flight.offsets.as_slice()), (3, &[NOT_ACKED, NOT_ACKED, 12, NOT_ACKED][..]));
        assert_eq!(flight.refusal.map(|error| error.code), Some(ErrorCode::NoSpace));
    }

    #[test]
    fn answers_out_of_order_are_reported() {
        let now = Instant::now();
        let mut flight = Flight::new(AckLevel::Written, 2);
        flight.leave(1, now);
        assert!(matches!(flight.answer(&accepted(2, 10), now), Err(Broken::OutOfOrder(_))));
        assert!(matches!(flight.answer(&refused(8), now), Err(Broken::OutOfOrder(_))));
    }

    #[test]
    fn a_watermark_within_a_row_acks_what_it_covers_each_with_its_latency() {
        let start = Instant::now();
        let mut flight = Flight::new(AckLevel::Written, 2);
        flight.leave(5, start);
        for n in 0..5 {
            flight.answer(&accepted(2 * n, 10 + 2 * n), start).expect("in order");
        }
        assert_eq!(flight.accepted.len(), 1, "one row");
        flight.answer(&watermark(AckLevel::Written, 15), start + Duration::from_millis(1)).expect("a mark");
        assert_eq!((flight.acked, flight.in_flight(), flight.latencies.len()), (2, 3, 2));
        flight.answer(&refused(6), start).expect("the journal failed");
        flight.answer(&watermark(AckLevel::Written, 20), start + Duration::from_millis(3)).expect("a mark");
        assert_eq!((flight.acked, flight.failed, flight.in_flight(), flight.latencies.len()), (4, 1, 0, 4));
        assert_eq!(flight.offsets, [10, 12, 14, NOT_ACKED, 18]);
        let max = Duration::from_nanos(flight.latencies.max()).as_micros();
        assert!((2_990..=3_010).contains(&max), "{max}");
    }
}
