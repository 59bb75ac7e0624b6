//! The handle.

use super::{
    batch::Batch,
    call::Call,
    overload,
    reservation::Reservation,
    shared::{APPEND_OVERHEAD, Shared},
    ticket::Ticket,
};
use crate::{
    Address, AppendError, DropReason, LogInfo, Receipt, ReserveError, SendError, Stats, SubmitError, Summary,
    ring::Unsettled,
};
use clad_proto::{AckLevel, ProducerId, Record, frame::LastStored};
use std::{future::Future, sync::Arc};
use tokio::sync::TryAcquireError;

/// Appends records. Cheap to clone; all clones are one producer with one order and one connection.
///
/// When the last clone is dropped, what was submitted is still brought home for at most
/// [`drop_timeout`](crate::ProducerBuilder::drop_timeout), if the runtime lives as long. [`close`](Self::close) waits for it.
#[derive(Debug, Clone)]
pub struct Producer {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

/// Ends the task when the last handle goes.
#[derive(Debug)]
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.close_on_drop();
    }
}

impl Producer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { _alive: Arc::new(Alive(shared.clone())), shared }
    }

    /// Waits for room for an append of `bytes` bytes of payload: as an estimate, 32 for each record, its text and
    /// attributes, and the resource and scope once. First come, first served.
    ///
    /// # Errors
    /// When there is not so much in all, or the producer has ended.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is taken; the place in the queue is lost.
    pub async fn reserve(&self, bytes: usize) -> Result<Reservation, ReserveError> {
        let permits = self.permits(bytes)?;
        if self.shared.is_forked() {
            return Err(ReserveError::Forked);
        }
        if self.shared.budget.available_permits() < permits as usize {
            self.shared.poll_completion_page();
        }
        match self.shared.budget.clone().acquire_many_owned(permits).await {
            Ok(permit) => Ok(Reservation::new(self.shared.clone(), permit, self.shared.options.level)),
            Err(_) => Err(ReserveError::Ended(self.shared.why_ended())),
        }
    }

    /// Takes room if there is some now.
    ///
    /// # Errors
    /// As [`Self::reserve`], and [`ReserveError::Full`] when there is none now.
    pub fn try_reserve(&self, bytes: usize) -> Result<Reservation, ReserveError> {
        let permits = self.permits(bytes)?;
        if self.shared.is_forked() {
            return Err(ReserveError::Forked);
        }
        if self.shared.budget.available_permits() < permits as usize {
            self.shared.poll_completion_page();
        }
        match self.shared.budget.clone().try_acquire_many_owned(permits) {
            Ok(permit) => Ok(Reservation::new(self.shared.clone(), permit, self.shared.options.level)),
            Err(TryAcquireError::NoPermits) => Err(ReserveError::Full { bytes }),
            Err(TryAcquireError::Closed) => Err(ReserveError::Ended(self.shared.why_ended())),
        }
    }

    fn permits(&self, bytes: usize) -> Result<u32, ReserveError> {
        let max = self.shared.options.max_buffered_bytes;
        bytes
            .checked_add(APPEND_OVERHEAD)
            .filter(|permits| *permits <= max)
            .and_then(|permits| u32::try_from(permits).ok())
            .ok_or(ReserveError::TooLarge { bytes, max: max.saturating_sub(APPEND_OVERHEAD) })
    }

    /// Hands over what is in a batch as one append, without waiting: [`Self::try_reserve`] and
    /// [`Reservation::submit_batch`] in one call. Where it goes straight into a ring of shared memory nothing is
    /// reserved, so this is the cheapest way to log. No level: the producer's default. The batch is empty once it is
    /// handed over.
    ///
    /// # Errors
    /// As those two; the batch is as before where there was no room.
    pub fn try_append_batch(&self, batch: &mut Batch, level: Option<AckLevel>) -> Result<Ticket, SendError> {
        self.shared.is_here()?;
        let level = level.or(self.shared.options.level);
        match self.shared.post_batch(batch, level) {
            Ok(receipt) => Ok(Ticket::from(receipt)),
            Err(why) => self.append_otherwise(batch, level, why),
        }
    }

    #[inline(never)]
    fn append_otherwise(
        &self,
        batch: &mut Batch,
        level: Option<AckLevel>,
        why: Option<Unsettled>,
    ) -> Result<Ticket, SendError> {
        if let Some(ticket) = why.and_then(|why| self.shared.settle_batch(batch, why)) {
            return Ok(ticket?);
        }
        let reserved = self.try_reserve(batch.len_bytes())?;
        let ticket = match level {
            Some(level) => reserved.at(level).submit_batch(batch),
            None => reserved.submit_batch(batch),
        };
        Ok(ticket?)
    }

    /// Hands over records as one append and waits until it has reached the default level.
    ///
    /// # Errors
    /// Says whether another try makes sense and whether the records may be written.
    ///
    /// # Cancel safety
    /// If it is dropped while it waits for room, nothing was handed over; if dropped later, the append continues. Use
    /// [`reserve`](Self::reserve) to distinguish the two.
    pub async fn append(&self, records: &[Record]) -> Result<Receipt, SendError> {
        let mut batch = self.batch();
        for (index, record) in (0..).zip(records) {
            batch.push(record).map_err(|error| SubmitError::Record { index, error })?;
        }
        self.append_batch(&mut batch).await
    }

    /// Hands over what is in a batch as one append and waits until it has reached the default level. The batch is empty
    /// once it is handed over.
    ///
    /// # Errors
    /// As [`Self::append`].
    ///
    /// # Cancel safety
    /// As [`Self::append`].
    pub async fn append_batch(&self, batch: &mut Batch) -> Result<Receipt, SendError> {
        let ticket = self.reserve(batch.len_bytes()).await?.submit_batch(batch)?;
        Ok(ticket.await?)
    }

    /// Hands over a record at level `none`: no answer, no promise. Waits for room.
    ///
    /// # Errors
    /// When it was not handed over.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the record was not handed over.
    pub async fn send(&self, record: &Record) -> Result<(), SendError> {
        let mut batch = self.batch();
        batch.push(record).map_err(|error| SubmitError::Record { index: 0, error })?;
        let reservation = self.reserve(batch.len_bytes()).await?;
        Ok(reservation.at(AckLevel::None).send(record)?)
    }

    /// Hands over a record at level `none` if there is room for it now; else it is dropped and counted
    /// ([`Stats::dropped`]). False when it was dropped.
    pub fn try_send(&self, record: &Record) -> bool {
        let room = self.try_reserve(0).map_err(SendError::from);
        match room.and_then(|reservation| Ok(reservation.at(AckLevel::None).send(record)?)) {
            Ok(()) => true,
            // It was counted where it found the ring full.
            Err(SendError::Submit(SubmitError::RingFull)) => false,
            Err(_) => {
                self.shared.drop_unsubmitted(DropReason::NoRoom, 1);
                false
            }
        }
    }

    /// Hands over a record. Waits at most as long as the rule for a lack of room says
    /// ([`Overload`](crate::Overload)), in the calling thread; never by default. A record that is not handed over is
    /// counted as dropped, and a record of the log reports it later
    /// ([`DROPS_EVENT_NAME`](crate::DROPS_EVENT_NAME)).
    ///
    /// # Errors
    /// Why it was not handed over; it is certainly not written.
    pub fn offer(&self, record: &Record, call: &Call) -> Result<Ticket, SendError> {
        let mut batch = self.batch();
        batch.push(record).map_err(|error| overload::refuse(&self.shared, error))?;
        self.offer_batch(&mut batch, call)
    }

    /// As [`Self::offer`], of the records in a batch, as one append. The batch is empty then, whatever the result.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn offer_batch(&self, batch: &mut Batch, call: &Call) -> Result<Ticket, SendError> {
        overload::offer_batch(&self.shared, batch, call)
    }

    /// As [`Self::offer_batch`], without a ticket: the cheapest way for a logger. Where it goes to a socket, memory is
    /// allocated only once for many calls. The records are sent again as any others; an error of theirs is reported by
    /// the next flush.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn post_batch(&self, batch: &mut Batch, call: &Call) -> Result<(), SendError> {
        overload::post_batch(&self.shared, batch, call)
    }

    /// Counts a record that its caller could not hand over, so that it is reported as any other that is dropped.
    pub fn count_dropped(&self, reason: DropReason) {
        self.shared.drop_unsubmitted(reason, 1);
    }

    /// An empty batch with this producer's resource and scope, and the limits that the daemon last stated.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self.shared.new_builder())
    }

    /// Waits until every record that was submitted before has reached a level.
    ///
    /// Records sent at level `none` count as far as they reached the daemon.
    ///
    /// # Errors
    /// If the daemon cannot be reached, or one of the records ended with an unreported error: its ticket was dropped,
    /// or there was none. Such an error is reported once; of several, the worst is.
    ///
    /// # Cancel safety
    /// If it is dropped before it is done, nothing changes: the next one reports what this one was to report.
    pub async fn flush(&self, level: AckLevel) -> Result<(), AppendError> {
        self.shared.flush(Some(level)).await
    }

    pub(crate) fn delivery_timeout(&self) -> std::time::Duration {
        self.shared.options.delivery_timeout
    }

    /// Ends when the producer's task is gone. Holds no handle.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.shared.clone().ended()
    }

    /// The daemon's description of itself and its log at the last greeting; nothing before the first.
    #[must_use]
    pub fn log(&self) -> Option<LogInfo> {
        self.shared.log_info()
    }

    /// The last record that the log had of this producer before this process sent anything; nothing if it had none. The
    /// first record of this process has the sequence after it. Nothing for a new id, which no log has.
    ///
    /// The record may be lost with the daemon unless its level covers that:
    /// [`resume`](crate::ProducerBuilder::resume) waits for a level.
    #[must_use]
    pub fn last_stored(&self) -> Option<LastStored> {
        self.shared.last_stored()
    }

    /// The producer's id.
    #[must_use]
    pub fn id(&self) -> ProducerId {
        self.shared.options.producer_id
    }

    /// The daemon that it appends to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.options.address
    }

    /// True in a child of `fork`: it is refused whatever it asks, and begins with a producer of its own.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// True if appends go to a ring of shared memory now.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.shared.ring_handle().is_some_and(|ring_handle| !ring_handle.is_forked())
    }

    /// True if appends go to a ring of shared memory that is stored. There a record may have the level `posted`: it
    /// outlives this process and the daemon. In another ring it is refused (`level_unreachable`), before it is pushed.
    #[must_use]
    pub fn offers_posted(&self) -> bool {
        self.shared.ring_handle().is_some_and(|ring_handle| ring_handle.offers(AckLevel::Posted))
    }

    /// Why there is no ring of shared memory though the address asks for one (`shm://`): appends go over the Unix
    /// socket then. Nothing before the first greeting, and where there is a ring.
    #[must_use]
    pub fn why_no_ring(&self) -> Option<clad_proto::ErrorInfo> {
        self.shared.why_no_ring()
    }

    /// The reason why nothing goes forward, in words for a person. It is the daemon's refusal for now (no space, too
    /// much in flight), or the state of the connection. Nothing while appends are taken. With a ring: also what its
    /// completion page reports of an append that waits for its answer, however short it has waited (the daemon has not
    /// come to it, or waits for its disk).
    #[must_use]
    pub fn why_waiting(&self) -> Option<String> {
        self.shared.why_waiting()
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Brings everything that was submitted to the default level, says good-bye (unless the id was
    /// [chosen](crate::ProducerBuilder::producer)) and ends, for all clones. Any later submit is an error.
    ///
    /// # Errors
    /// As [`Self::flush`]; it has ended all the same.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the producer continues to end in the background.
    pub async fn close(self) -> Result<Summary, AppendError> {
        self.shared.close().await?;
        Ok(self.shared.summary())
    }
}
