//! A burst: the appends that one read of a connection brought, handed to the journal together.
//!
//! Invariants: each append is taken or refused exactly as if it had come alone, and answered in its order. Only appends
//! without a known error join. An append with an error goes the way of a single append, after those before it. A burst
//! is bounded, by [`BURST_APPENDS_MAX`] and [`BURST_BYTES_MAX`]: the journal's lock is held over a copy of it, and
//! other connections wait for that. Costs by count (the lock, the permit, the counters, the producer look-up) are paid
//! once per burst.

use clad_journal::{Accepted, AppendError, Item};
use clad_proto::frame::{self, AppendHead, AppendView, Refused};
use clad_proto::{AckLevel, payload_checksum};

use super::admission::{count_refusal, refusal};
use super::framed::Connection;
use super::reactor::defer_write;
use crate::ops::metrics;

/// Most appends in a burst.
pub(super) const BURST_APPENDS_MAX: usize = 256;
/// Most bytes of payload in a burst, unless it is one append.
pub(super) const BURST_BYTES_MAX: usize = 128 * 1024;

/// Appends that were checked and wait for the end of what was read.
#[derive(Default)]
pub(super) struct Burst<'a> {
    items: Vec<Item<'a>>,
    /// For each: the place of its frame in the bytes that were read, and its head.
    heads: Vec<(usize, AppendHead)>,
    bytes: usize,
    /// Bytes that they count against the budget.
    cost: usize,
}

impl<'a> Burst<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Room that the answers take, if all are taken.
    pub(super) fn answers_len(&self) -> usize {
        self.items.len() * frame::Accepted::FRAME_BYTES
    }

    #[inline(always)]
    fn push(&mut self, at: usize, head: AppendHead, item: Item<'a>) {
        self.bytes += item.payload.len();
        self.cost += item.share;
        self.items.push(item);
        self.heads.push((at, head));
    }

    fn clear(&mut self) {
        self.items.clear();
        self.heads.clear();
        (self.bytes, self.cost) = (0, 0);
    }
}

impl Connection {
    /// Lets an append join, if nothing is against it. `false`: it must be checked alone, after everything before it was
    /// handed over.
    pub(super) fn join<'a>(&mut self, burst: &mut Burst<'a>, body: &'a [u8], at: usize) -> bool {
        let Ok(view) = AppendView::parse(body) else { return false };
        let admission = &self.service.admission;
        let bytes = burst.bytes + view.payload.len();
        let full = !burst.is_empty() && (burst.items.len() >= BURST_APPENDS_MAX || bytes > BURST_BYTES_MAX);
        let window = self.session.unanswered() + burst.items.len() >= admission.window as usize;
        let unwritten = self.session.unwritten_bytes() + burst.bytes;
        let share = unwritten > 0 && unwritten + view.payload.len() > admission.max_connection_bytes;
        let alone = self.appends_by_ring() || self.waits_for_room();
        if full || window || share || self.producer.is_none() || alone {
            return false;
        }
        self.share_since = None;
        match admission.item(&view, payload_checksum(view.payload), self.arrival, &mut self.known_group) {
            Some(item) => burst.push(at, view.head, item),
            None => return false,
        }
        true
    }

    /// Hands over the appends that joined. Where the budget has no room for an append, the error is where its frame
    /// begins: those before it are taken.
    pub(super) fn hand_over(&mut self, burst: &mut Burst<'_>) -> Result<(), usize> {
        if burst.is_empty() {
            return Ok(());
        }
        let Some(permit) = self.inflight_quota.try_take(burst.cost) else { return self.one_by_one(burst) };
        let producer = self.producer.as_ref().expect("who has none does not join");
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let admission = &self.service.admission;
        let deferred_write =
            admission.take_burst(&self.peer, producer, &burst.items, permit, self.arrival, &mut verdicts);
        deferred_write.into_iter().for_each(defer_write);
        self.out.reserve(burst.answers_len());
        let (mut received, mut records) = (0, 0);
        for ((_, head), (item, verdict)) in burst.heads.iter().zip(burst.items.iter().zip(verdicts.drain(..))) {
            if head.level == AckLevel::Received && verdict.is_ok() {
                received += 1;
                records += u64::from(head.count);
            }
            self.answer(head, item.payload.len(), verdict);
        }
        if received > 0 {
            metrics::acked(metrics::Level::Received, received, records, self.arrival.since.elapsed());
        }
        self.verdicts = verdicts;
        burst.clear();
        Ok(())
    }

    fn answer(&mut self, head: &AppendHead, bytes: usize, verdict: Result<Accepted, AppendError>) {
        match verdict {
            Ok(accepted) => self.taken(head, &accepted, bytes, self.arrival.since),
            Err(e) => {
                let error = self.producer.as_ref().map_or_else(|| refusal(&e), |producer| producer.refusal(&e));
                self.refused(head, error);
            }
        }
    }

    fn one_by_one(&mut self, burst: &mut Burst<'_>) -> Result<(), usize> {
        for ((at, head), item) in burst.heads.iter().zip(&burst.items) {
            let view = AppendView { head: *head, payload: item.payload };
            if self.append_alone(&view).is_none() {
                return Err(*at);
            }
        }
        burst.clear();
        Ok(())
    }

    /// Answers an append that was taken, and notes what is still due.
    pub(super) fn taken(&mut self, head: &AppendHead, accepted: &Accepted, bytes: usize, since: std::time::Instant) {
        if head.level != AckLevel::None {
            let before = self.out.len();
            frame::Accepted {
                first_seq: head.first_seq,
                first_offset: accepted.first_offset,
                count: accepted.count,
                epoch: accepted.epoch,
                duplicate: accepted.duplicate,
            }
            .encode(&mut self.out);
            if head.level != AckLevel::Received {
                self.coalesce_ack(before, since);
            }
        }
        self.session.given(head.first_seq, accepted, head.level, bytes, since);
    }

    /// Answers an append that was refused.
    pub(super) fn refused(&mut self, head: &AppendHead, error: clad_proto::ErrorInfo) {
        count_refusal(head.level, error.code, head.count);
        if head.level != AckLevel::None {
            Refused { first_seq: head.first_seq, count: head.count, error }.encode(&mut self.out);
        }
    }
}
