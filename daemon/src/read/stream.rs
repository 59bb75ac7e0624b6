//! One READ on its way through the log.
//!
//! The reader and the disk are asked in blocks, on the runtime's blocking threads; what comes back is what a
//! transport sends: [`Item`]s, with the chunk's own bytes untouched.
//!
//! Invariants: a reader that is gone, has cancelled or asked for a time without records keeps no thread. Between two
//! looks, of [`LOOK_BYTES_MAX`] bytes each, the read checks whether it continues; the next look waits for its turn
//! among all READs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clad_journal::format::footer::StoredRange;
use clad_journal::{Batch, Found, Journal, Level, ReadError, Reader};
use clad_proto::frame::{
    CaughtUp, ErrorFrame, Gap, GapReason, Progress, Read, ReadEnd, ReadEndReason, RecordsHead, numbers,
};
use clad_proto::{Cursor, ErrorCode, ErrorInfo, LogId, ProducerId, scan};
use tokio::sync::{Notify, mpsc, watch};

use super::item::{Block, Frames, Item};
use super::sieve::Sieve;
use crate::ingest::quota::QuotaHandle;
use crate::ingest::slots::Slot;

/// Bytes that are put together before they are sent.
const BLOCK_BYTES: usize = 128 * 1024;
/// Bytes of the log that are looked at before the check whether the reader still wants them: several blocks, and about
/// as much as a disk gives in some milliseconds.
pub(super) const LOOK_BYTES_MAX: usize = 1024 * 1024;

/// A following READ whose filter lets nothing through says where it stands once in so much time.
const PASSED_OVER_INTERVAL: Duration = Duration::from_secs(1);

/// A READ's places among all.
pub(super) struct ReadSlots {
    looks: QuotaHandle,
    open: Slot,
    /// Notified when the slot is to be released.
    room: Arc<Notify>,
}

impl ReadSlots {
    pub(super) fn new(looks: QuotaHandle, open: Slot) -> Self {
        let room = Arc::new(Notify::new());
        let wake = room.clone();
        open.slot_state().wake_by(move || wake.notify_one());
        Self { looks, open, room }
    }

    /// Waits until this READ is to make room for others.
    async fn make_room(&self) {
        if !self.open.slot_state().is_leaving() {
            self.room.notified().await;
        }
    }
}

/// Error for a READ that ends because it makes room.
fn makes_room() -> ErrorInfo {
    let text = "all READs are in use, most of them by this user (or the network): this one ends for another owner; read again from its last cursor";
    ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000)
}

/// A READ that was checked.
pub(crate) struct ReadStream {
    journal: Arc<Journal>,
    read: Read,
    /// Where it goes on. The epoch is the latest whose history is known to contain everything that was given: the
    /// records read while it was there, and its own records.
    place: Cursor,
    stop_at: u64,
    left: u64,
    level: Level,
    reader: Option<Reader>,
    sieve: Option<Sieve>,
    /// The place behind what was last sent: the peer knows it.
    sent_to: u64,
    slots: ReadSlots,
    /// The peer speaks protocol version 1, whose peer metadata has numbers alone.
    numbers_alone: bool,
}

/// End of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The reader was sent everything, the end or the error included.
    Delivered,
    /// The reader is gone.
    Gone,
    /// The daemon stops; the reader was not notified.
    Stopping,
}

/// Result of one look at the log.
pub(super) enum Look {
    /// More may be there.
    More,
    /// Everything that there is was given.
    CaughtUp,
    /// As many records as were asked for were given.
    Limit,
    /// The peer wants no more.
    Cancelled,
    /// It cannot go on.
    Failed(ErrorInfo),
}

impl ReadStream {
    pub(super) fn new(
        journal: Arc<Journal>,
        log_id: LogId,
        read: Read,
        (from, stop_at): (u64, u64),
        level: Level,
        sieve: Option<Sieve>,
        slots: ReadSlots,
    ) -> Self {
        let reader = journal.reader(from, level);
        let left = read.limit.map_or(u64::MAX, std::num::NonZeroU64::get);
        let range = (read.since.unwrap_or(i64::MIN), read.until.unwrap_or(i64::MAX));
        let reader = Some(if range == (i64::MIN, i64::MAX) { reader } else { reader.within(range.0, range.1) });
        let place = Cursor { log_id, epoch: 0, offset: from };
        let (sent_to, numbers_alone) = (from, false);
        Self { journal, read, place, stop_at, left, level, reader, sieve, sent_to, slots, numbers_alone }
    }

    /// For a peer that speaks this version of the protocol; without it, the newest.
    pub(crate) fn for_version(self, version: u16) -> Self {
        Self { numbers_alone: version < 2, ..self }
    }

    #[cfg(test)]
    pub(super) fn position(&self) -> u64 {
        self.place.offset
    }

    pub(super) fn cursor(&self) -> Cursor {
        self.place
    }

    /// Reads to the end, or for ever, in frames.
    pub(crate) async fn run(
        self,
        out: mpsc::Sender<Bytes>,
        stop: watch::Receiver<bool>,
        cancelled: watch::Receiver<bool>,
    ) {
        self.run_as::<Frames>(&out, stop, cancelled).await;
    }

    /// Reads to the end, or for ever; ends when the peer is gone or cancels it, or the daemon stops.
    ///
    /// A cancelled read reports the place that it has come to, behind everything that it gave.
    pub(crate) async fn run_as<B: Block>(
        mut self,
        out: &mpsc::Sender<B::Sent>,
        mut stop: watch::Receiver<bool>,
        mut cancelled: watch::Receiver<bool>,
    ) -> Ended {
        let mut watermarks = self.journal.subscribe();
        let mut reported: Option<(u64, tokio::time::Instant)> = None;
        loop {
            // Not later: records that are given next may be abandoned meanwhile, and then they are in no later history.
            self.place.epoch = self.place.epoch.max(watermarks.borrow_and_update().epoch);
            let request_id = self.read.request_id;
            let permit = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ended::Stopping,
                () = out.closed() => return Ended::Gone,
                () = self.slots.make_room() => break,
                Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => None,
                permit = self.slots.looks.take(self.sieve.as_ref().map_or(1, Sieve::looks)) => permit,
            };
            let (mut block, look) = if *cancelled.borrow() {
                (B::default(), Look::Cancelled)
            } else {
                // The place goes along: a reader that is gone does not end a look.
                let look = move || {
                    let _place = permit;
                    self.look::<B>()
                };
                match tokio::task::spawn_blocking(look).await {
                    Ok((me, block, look)) => {
                        self = me;
                        (block, look)
                    }
                    Err(e) if e.is_panic() => {
                        let error = ErrorInfo::new(ErrorCode::Internal, "the read met a defect of clad: see its log");
                        let mut block = B::default();
                        block.put(Item::Failed(ErrorFrame { request_id, error }));
                        return if out.send(block.finish()).await.is_ok() { Ended::Delivered } else { Ended::Gone };
                    }
                    Err(_) => return Ended::Stopping, // the runtime is going down
                }
            };
            let caught_up = matches!(look, Look::CaughtUp);
            let mut report_at = None;
            let ended = match look {
                Look::More => {
                    if self.sieve.is_some() && self.place.offset > self.sent_to {
                        block.put(Item::Progress(Progress { request_id, cursor: self.cursor() }));
                        self.sent_to = self.place.offset;
                    }
                    false
                }
                Look::CaughtUp if self.read.follow => {
                    let now = tokio::time::Instant::now();
                    report_at = self.report_at(reported, now);
                    if report_at.is_some_and(|at| at <= now) {
                        block.put(Item::CaughtUp(CaughtUp { request_id, cursor: self.cursor() }));
                        (reported, report_at) = (Some((self.place.offset, now)), None);
                    }
                    false
                }
                Look::CaughtUp => self.end(&mut block, ReadEndReason::End),
                Look::Limit => self.end(&mut block, ReadEndReason::Limit),
                Look::Cancelled => self.end(&mut block, ReadEndReason::Cancelled),
                Look::Failed(error) => {
                    block.put(Item::Failed(ErrorFrame { request_id, error }));
                    true
                }
            };
            if ended {
                // Before the peer can know: it may use the request id again as soon as it does.
                cancelled = watch::channel(false).1;
            }
            if block.size() > 0 {
                tokio::select! {
                    biased;
                    sent = out.send(block.finish()) => match sent {
                        Ok(()) => self.slots.open.slot_state().active(Instant::now()),
                        Err(_) => return Ended::Gone,
                    },
                    _ = stop.wait_for(|stop| *stop) => return Ended::Stopping,
                    // Records that do not find their reader are not given: it asks for them again.
                    () = self.slots.make_room() => break,
                }
            }
            if ended {
                return Ended::Delivered;
            }
            // A full block at the very end of the log is no reason to wait: a non-following reader needs the end.
            if caught_up && self.place.offset >= self.journal.watermarks().of(self.level) {
                tokio::select! {
                    changed = watermarks.changed() => if changed.is_err() { return Ended::Stopping },
                    _ = stop.wait_for(|stop| *stop) => return Ended::Stopping,
                    Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => {}
                    () = out.closed() => return Ended::Gone,
                    () = self.slots.make_room() => break,
                    () = sleep_until(report_at) => {}
                }
            }
        }
        self.abandon::<B>(out, stop, cancelled).await
    }

    /// When CAUGHT_UP is due: at once if something was sent since the last, or there is no filter. Else the reader learns
    /// only that its place moves, and that can wait.
    fn report_at(
        &self,
        reported: Option<(u64, tokio::time::Instant)>,
        now: tokio::time::Instant,
    ) -> Option<tokio::time::Instant> {
        match reported {
            Some((at, _)) if at == self.place.offset => None,
            Some((at, when)) if self.sieve.is_some() && self.sent_to <= at => Some(when + PASSED_OVER_INTERVAL),
            _ => Some(now),
        }
    }

    /// Ends because others want the slot.
    async fn abandon<B: Block>(
        &self,
        out: &mpsc::Sender<B::Sent>,
        mut stop: watch::Receiver<bool>,
        cancelled: watch::Receiver<bool>,
    ) -> Ended {
        drop(cancelled); // before the peer can know, as at every end
        let mut block = B::default();
        block.put(Item::Failed(ErrorFrame { request_id: self.read.request_id, error: makes_room() }));
        tokio::select! {
            biased;
            sent = out.send(block.finish()) => if sent.is_ok() { Ended::Delivered } else { Ended::Gone },
            _ = stop.wait_for(|stop| *stop) => Ended::Stopping,
        }
    }

    fn end<B: Block>(&self, block: &mut B, reason: ReadEndReason) -> bool {
        block.put(Item::End(ReadEnd { request_id: self.read.request_id, cursor: self.cursor(), reason }));
        true
    }

    /// Reads until a block is full, enough was looked at, or there is nothing more. Blocks for the disk.
    pub(super) fn look<B: Block>(mut self) -> (Self, B, Look) {
        let mut block = B::default();
        let Some(mut reader) = self.reader.take() else { return (self, block, Look::CaughtUp) };
        let mut bytes = LOOK_BYTES_MAX;
        if let Some(Err(error)) = self.sieve.as_mut().map(Sieve::prepare) {
            return (self, block, Look::Failed(error));
        }
        let look = loop {
            if self.left == 0 {
                break Look::Limit;
            }
            if self.place.offset >= self.stop_at {
                break Look::CaughtUp;
            }
            if block.size() >= BLOCK_BYTES {
                break Look::More;
            }
            let found = reader.look(&mut bytes);
            match found {
                Ok(Found::Batch(batch)) => self.give(&batch, &mut block),
                Ok(Found::CaughtUp | Found::NotYet) => {
                    // Batches that the time range passes over move the place all the same.
                    self.place.offset = self.place.offset.max(reader.position());
                    break if matches!(found, Ok(Found::NotYet)) { Look::More } else { Look::CaughtUp };
                }
                Err(ReadError::Gap { from, to, damaged }) => {
                    let reason = if damaged { GapReason::Damage } else { GapReason::Retention };
                    if damaged {
                        crate::ops::metrics::damaged(from, to);
                    }
                    let epoch = self.journal.watermarks().epoch;
                    block.put(Item::Gap(Gap { request_id: self.read.request_id, from, to, epoch, reason }));
                    self.place.offset = to;
                    self.sent_to = to;
                }
                Err(e) => break Look::Failed(ErrorInfo::new(ErrorCode::Internal, e.to_string())),
            }
        };
        self.reader = Some(reader);
        (self, block, look)
    }

    fn give<B: Block>(&mut self, batch: &Batch, block: &mut B) {
        self.place.epoch = self.place.epoch.max(batch.epoch);
        for (first, chunk) in batch.chunks().flatten() {
            let h = &chunk.header;
            let range = StoredRange { first_sequence: h.first_sequence, first_offset: first, count: h.count };
            let end = first + u64::from(range.count);
            if end <= self.place.offset || self.left == 0 {
                continue;
            }
            let skip = self.place.offset.saturating_sub(first) as u32;
            let producer_id = ProducerId::from_bytes(h.producer);
            let passes = |sieve: &Sieve| sieve.passes(producer_id, h.count, chunk.payload, h.payload_checksum);
            if !self.in_time(batch, chunk.payload, h.count) || !self.sieve.as_ref().is_none_or(passes) {
                self.place.offset = end;
                continue;
            }
            let take = u64::from(range.count - skip).min(self.left) as u32;
            let head = RecordsHead {
                epoch: batch.epoch,
                count: range.count,
                first_offset: first,
                append_time: u64::try_from(batch.append_real_ns).unwrap_or(0),
                producer_id,
                producer_epoch: h.producer_epoch,
                payload_crc: h.payload_checksum,
                first_seq: h.first_sequence,
                skip,
                take,
            };
            let request_id = self.read.request_id;
            let peer_meta = if self.numbers_alone { numbers(chunk.peer_meta) } else { chunk.peer_meta };
            block.put(Item::Records { request_id, head, peer_meta, payload: chunk.payload });
            self.left -= u64::from(take);
            self.place.offset = first + u64::from(skip) + u64::from(take);
            self.sent_to = self.place.offset;
        }
    }

    /// Returns true if an append may hold a record of the range that was asked for.
    fn in_time(&self, batch: &Batch, payload: &[u8], count: u32) -> bool {
        let (since, until) = (self.read.since.unwrap_or(i64::MIN), self.read.until.unwrap_or(i64::MAX));
        if since == i64::MIN && until == i64::MAX {
            return true;
        }
        let appended = u64::try_from(batch.append_real_ns).unwrap_or(0);
        let Ok(times) = scan(payload, count, u32::MAX).map(|s| s.times_or(appended)) else { return true };
        let signed = |t: u64| i64::try_from(t).unwrap_or(i64::MAX);
        signed(times.max) >= since && signed(times.min) <= until
    }
}

async fn sleep_until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
