//! The way past the inbox: a submit goes into the ring in its caller's thread.
//!
//! * Only while nothing waits for room in the ring ([`Shared::direct`] holds its number): a caller that queues closes
//!   this way, under the inbox's lock. The task opens it again, under the same lock, when it has put everything in
//!   ([`Late`]). So a thread's appends keep their order.
//! * Nothing waits here: if the ring is full, is being changed, or has ended, the long way is taken, or the caller gets
//!   an error.

use super::{Inbox, Life, Shared};
use crate::{
    DropReason, Receipt, SubmitError,
    lock::lock,
    producer::{
        batch::{Batch, CachedRing},
        ticket::Ticket,
    },
    ring::{Posted, Pushed, Pushing, RingHandle, RingTicket, Unsettled},
    session::Append,
    stats::Book,
    sync::{
        MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    waiters::Claim,
};
use clad_proto::{AckLevel, Record};
use std::sync::{Arc, PoisonError};

/// Items that the task handles while no thread can put any in.
const LATE_ITEMS_MAX: usize = 64;
/// Batches that are stored.
const POOLED_BATCHES_MAX: usize = 64;

impl Shared {
    /// The ring, if submits may go there at once.
    pub(super) fn direct(&self) -> Option<Arc<RingHandle>> {
        match self.direct.load(Ordering::Acquire) {
            0 => None,
            number => self.ring_handle_of(number),
        }
    }

    #[cold]
    fn ring_handle_of(&self, number: u64) -> Option<Arc<RingHandle>> {
        self.ring_handle().filter(|ring_handle| ring_handle.number() == number)
    }

    /// The ring that there is now. Never waits: where it changes just now, there is none.
    pub(crate) fn ring_handle(&self) -> Option<Arc<RingHandle>> {
        self.ring_handle.try_read().ok()?.clone()
    }

    /// An append goes to the ring; given back where it must wait.
    pub(super) fn try_post(
        &self,
        ring_handle: &Arc<RingHandle>,
        append: Append,
        claim: Claim,
    ) -> Result<Option<(Append, Claim)>, SubmitError> {
        match ring_handle.post(append, claim) {
            Posted::Done => Ok(None),
            Posted::Forked(append, _) => {
                self.counters.submitted.take_back(append.count.into());
                Err(SubmitError::Forked)
            }
            Posted::Wait(append, claim)
                if self.options.drop_when_full && !claim.is_shared() && !ring_handle.is_closed() =>
            {
                self.add_drops(DropReason::RingFull, append.count.into());
                Err(SubmitError::RingFull)
            }
            Posted::Wait(append, claim) => Ok(Some((append, claim))),
        }
    }

    /// Puts one append into the ring in the calling thread, if submits may go there and it has room. No permit is
    /// needed: what bounds it is the ring's own space. Nothing: it goes the long way.
    pub(crate) fn push(
        &self,
        payload: &[u8],
        count: u32,
        level: Option<AckLevel>,
    ) -> Option<Result<Ticket, SubmitError>> {
        let ring_handle = if self.options.max_records > 1 { None } else { self.direct() }?;
        let book = Book::Common(&self.counters);
        book.submitted(count.into());
        match ring_handle.push(Pushing::new(payload, count), level) {
            Ok(receipt) => {
                book.posted(count.into());
                Some(Ok(Ticket::from(receipt)))
            }
            Err(why) => self.settle(&ring_handle, why, count, book),
        }
    }

    fn settle(
        &self,
        ring_handle: &Arc<RingHandle>,
        why: Unsettled,
        count: u32,
        book: Book<'_>,
    ) -> Option<Result<Ticket, SubmitError>> {
        match RingTicket::settle(ring_handle, why, count, book) {
            Pushed::Pending(ticket) => Some(Ok(Ticket::from(ticket))),
            Pushed::Ended(error) => Some(Ok(Ticket::failed(error, ring_handle))),
            Pushed::Wait if self.options.drop_when_full && !ring_handle.is_closed() => {
                self.add_drops(DropReason::RingFull, count.into());
                Some(Err(SubmitError::RingFull))
            }
            Pushed::Wait => {
                book.take_back(count.into()); // the long way counts it
                None
            }
            Pushed::Forked => {
                book.take_back(count.into());
                Some(Err(SubmitError::Forked))
            }
        }
    }

    /// As [`Self::push`], of a batch, which is empty then.
    pub(crate) fn push_batch(&self, batch: &mut Batch, level: Option<AckLevel>) -> Option<Result<Ticket, SubmitError>> {
        match self.post_batch(batch, level) {
            Ok(receipt) => Some(Ok(Ticket::from(receipt))),
            Err(why) => self.settle_batch(batch, why?),
        }
    }

    /// As [`Self::push_batch`], where no more is asked for than that it is in the ring; and else why it is not settled
    /// by that ([`Self::settle_batch`]), or nothing: it goes the long way.
    // Inlined, and its ways separate: an outcome of several ways is put together in memory, and waited for.
    #[inline(always)]
    pub(crate) fn post_batch(&self, batch: &mut Batch, level: Option<AckLevel>) -> Result<Receipt, Option<Unsettled>> {
        let number = self.direct.load(Ordering::Acquire);
        if number == 0 || self.options.max_records > 1 || batch.is_empty() {
            return Err(None);
        }
        let find = || Some(CachedRing::new(self.ring_handle_of(number)?, &self.counters));
        let (payload, CachedRing { ring, tally, .. }) = batch.with_ring(number, find).ok_or(None)?;
        let count = payload.count();
        let payload = Pushing { bytes: payload.as_bytes(), known: payload.group_checksum(), count };
        let book = Book::Own(tally);
        book.submitted(count.into());
        let receipt = ring.push(payload, level).map_err(Some)?;
        book.posted(count.into());
        batch.clear();
        Ok(receipt)
    }

    /// Settles a batch that was not settled at once.
    pub(crate) fn settle_batch(&self, batch: &mut Batch, why: Unsettled) -> Option<Result<Ticket, SubmitError>> {
        let CachedRing { ring, tally, .. } = batch.cached_ring()?;
        let ticket = self.settle(ring, why, batch.count(), Book::Own(tally))?;
        batch.clear();
        Some(ticket)
    }

    /// As [`Self::push`], of a record, which is encoded without the inbox: several threads at once do not wait for each
    /// other.
    pub(crate) fn push_record(&self, record: &Record, level: Option<AckLevel>) -> Option<Result<Ticket, SubmitError>> {
        if self.direct.load(Ordering::Acquire) == 0 || self.options.max_records > 1 {
            return None;
        }
        let pooled = self.batches.try_lock().ok().and_then(|mut batches| batches.pop());
        let mut batch = pooled.unwrap_or_else(|| Batch::new(self.new_builder()));
        if let Err(error) = batch.push(record) {
            return Some(Err(SubmitError::Record { index: 0, error }));
        }
        let ticket = self.push_batch(&mut batch, level);
        batch.clear();
        if let Ok(mut batches) = self.batches.try_lock()
            && batches.len() < POOLED_BATCHES_MAX
        {
            batches.push(batch);
        }
        ticket
    }

    /// Another ring, or none.
    pub(crate) fn set_ring_handle(&self, ring_handle: Option<Arc<RingHandle>>) {
        self.direct.store(0, Ordering::Release);
        (*self.ring_handle.write().unwrap_or_else(PoisonError::into_inner)).clone_from(&ring_handle);
        lock(&self.batches).clear(); // with them goes the ring that was
        // A waiter that looked for it while it changed found none, and may never look again.
        if let Some(ring_handle) = ring_handle {
            ring_handle.want_for_waiting();
            ring_handle.start_watch();
        }
    }

    /// Takes out what has come in meanwhile; where that is little, nothing more comes in until the guard is gone.
    pub(crate) fn late(&self) -> Option<Late<'_>> {
        let mut inbox = lock(&self.inbox);
        let few = inbox.items.len() <= LATE_ITEMS_MAX;
        lock(&self.backlog).append(&mut inbox.items);
        few.then_some(Late { direct: &self.direct, inbox })
    }

    /// Polls the ring's completion page for the waiters for room or for an answer.
    pub(crate) fn poll_completion_page(&self) {
        if let Some(ring_handle) = self.ring_handle().filter(|_| !self.is_forked()) {
            ring_handle.pump();
            ring_handle.want();
        }
    }
}

/// The inbox, shut.
pub(crate) struct Late<'a> {
    direct: &'a AtomicU64,
    inbox: MutexGuard<'a, Inbox>,
}

impl Late<'_> {
    /// Nothing waits for room in this ring any more: from here on submits go there at once.
    pub(crate) fn post_directly(self, to: &RingHandle) {
        if matches!(self.inbox.life, Life::Open) {
            self.direct.store(to.number(), Ordering::Release);
        }
    }
}
