//! State shared by the handles and the task.
//!
//! * The inbox fixes the order: an append has its place when it is put in, under the lock, and the task takes items out
//!   in that order. Nothing waits under the lock; encoding a single record does happen there, so that its buffer is
//!   used again.
//! * Every item in the inbox holds permits of the budget, so the inbox needs no bound of its own. Reports of drops hold
//!   none; there is at most one at a time.
//! * The session and what waits for room in a ring are the task's. They have locks so that a caller's thread can drop
//!   what was never sent. Locks are taken in the order session, inbox, backlog.
//! * Appends go past it, straight into a ring, while nothing waits in it (`direct`).
//! * Once it has ended nothing goes in, and what was in has been notified.
//! * A child of `fork` has none of the threads that serve this, and the locks as they were at that moment. Every call
//!   of a handle checks [`Shared::is_forked`] before it takes a lock.

mod direct;
mod inbox;

pub(crate) use inbox::{Item, Life};

use self::inbox::{COPY_PIECE_BYTES, Inbox, Open, copied, take_appends};
use super::{batch::Batch, options::Options};
use crate::{
    AppendError, ConnectError, DropReason, LogInfo, SubmitError,
    backoff::{Backoff, random},
    clock::now,
    lock::lock,
    receipt::TicketSender,
    ring::RingHandle,
    session::{Append, Session},
    stats::{Counters, Stats, Summary},
    sync::{
        Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    undelivered::{FlushSender, UndeliveredErrors},
    waiters::{Claim, Share, Waiters},
};
use bytes::BytesMut;
use clad_proto::{
    AckLevel, EncodeError, ErrorInfo, Payload, PayloadBuilder, Record, RecordView, first_record,
    frame::{LastStored, Welcome},
    limits::{DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES},
    max_severity,
};
use clad_shm::ForkMark;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// A payload that every daemon and every ring takes, whatever its configuration.
const GUARANTEED_APPEND_BYTES: usize = 960;
/// Cost of an append in the budget besides its payload: its place in queues, its ticket.
pub(crate) const APPEND_OVERHEAD: usize = 256;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    mark: ForkMark,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) undelivered: Arc<UndeliveredErrors>,
    pub(crate) session: Mutex<Session<Claim, FlushSender>>,
    /// Items that wait for room in the ring, in their order.
    pub(crate) backlog: Arc<Mutex<VecDeque<Item>>>,
    /// The one report of drops that may be under way.
    pub(crate) report_permit: Arc<Semaphore>,
    pub(crate) wake: Arc<Notify>,
    /// The ring that there is now.
    ring_handle: RwLock<Option<Arc<RingHandle>>>,
    /// Nothing waits for room in the ring with this number: submits go there in their caller's thread. 0: there is
    /// none.
    direct: AtomicU64,
    /// Why there is no ring though one was asked for.
    no_ring: Mutex<Option<ErrorInfo>>,
    /// Why nothing goes forward.
    trouble: Mutex<Option<String>>,
    /// Batches for submits of single records, stored for their memory and their ring.
    batches: Mutex<Vec<Batch>>,
    done: watch::Sender<bool>,
    log: Mutex<Option<LogInfo>>,
    /// The last record that the log had of this producer before this process sent anything.
    last_stored: Mutex<Option<LastStored>>,
    inbox: Mutex<Inbox>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Result<Self, ConnectError> {
        let limits = (DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES);
        let builder = || PayloadBuilder::with_limits(&options.group, limits.0, limits.1).map_err(ConnectError::Group);
        let (builder, scratch) = (builder()?, builder()?);
        let inbox = Inbox {
            life: Life::Open,
            items: VecDeque::new(),
            builder,
            scratch,
            piece: BytesMut::new(),
            open: None,
            limits,
            max_group_bytes: GUARANTEED_APPEND_BYTES,
        };
        let mark = ForkMark::new().map_err(|error| ConnectError::Io {
            address: options.address.clone(),
            error: Arc::new(std::io::Error::other(error)),
        })?;
        let backoff = Backoff::new(options.backoff.0, options.backoff.1, u64::from_le_bytes(random()));
        Ok(Self {
            mark,
            session: Mutex::new(Session::new(options.max_in_flight, options.delivery_timeout, backoff)),
            backlog: Arc::default(),
            report_permit: Arc::new(Semaphore::new(1)),
            budget: Arc::new(Semaphore::new(options.max_buffered_bytes)),
            undelivered: Arc::new(UndeliveredErrors::new(options.on_first_error)),
            options,
            counters: Arc::default(),
            wake: Arc::default(),
            ring_handle: RwLock::default(),
            direct: AtomicU64::new(0),
            no_ring: Mutex::default(),
            trouble: Mutex::default(),
            batches: Mutex::default(),
            done: watch::Sender::new(false),
            log: Mutex::new(None),
            last_stored: Mutex::new(None),
            inbox: Mutex::new(inbox),
        })
    }

    /// True if this process is a fork of the one that made the producer.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.mark.is_set()
    }

    /// That it is not.
    #[inline]
    pub(crate) fn is_here(&self) -> Result<(), SubmitError> {
        if self.is_forked() { Err(SubmitError::Forked) } else { Ok(()) }
    }

    /// Makes a permit fit a payload of `len` bytes: gives back what is too much, takes what is missing if it is free.
    pub(crate) fn fit(&self, permit: &mut OwnedSemaphorePermit, len: usize) -> Result<(), SubmitError> {
        let (have, needed) = (permit.num_permits(), len.saturating_add(APPEND_OVERHEAD));
        if have > needed {
            drop(permit.split(have - needed));
        }
        if have >= needed {
            return Ok(());
        }
        let more =
            u32::try_from(needed - have).ok().and_then(|more| self.budget.clone().try_acquire_many_owned(more).ok());
        let reserved = have.saturating_sub(APPEND_OVERHEAD);
        permit.merge(more.ok_or(SubmitError::ReservationTooSmall { needed: len, reserved })?);
        Ok(())
    }

    /// A builder with the producer's group and the limits that hold now.
    pub(crate) fn new_builder(&self) -> PayloadBuilder {
        let limits = match self.is_forked() {
            true => (DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES),
            false => lock(&self.inbox).limits,
        };
        // It did fit when the producer was made; a daemon with a lower limit refuses the append then.
        PayloadBuilder::with_limits(&self.options.group, limits.0, limits.1)
            .or_else(|_| PayloadBuilder::new(&self.options.group))
            .unwrap_or_else(|_| {
                unreachable!("the group was encoded with the default limits when the producer was made")
            })
    }

    pub(crate) fn encode(&self, records: &[Record]) -> Result<Payload, SubmitError> {
        let mut builder = self.new_builder();
        for (index, record) in (0..).zip(records) {
            builder.push(record).map_err(|error| SubmitError::Record { index, error })?;
        }
        if records.is_empty() { Err(SubmitError::Empty) } else { Ok(builder.finish()) }
    }

    pub(crate) fn submit_record(
        &self,
        record: &Record,
        level: Option<AckLevel>,
        mut permit: OwnedSemaphorePermit,
        ticket: Option<TicketSender>,
    ) -> Result<(), SubmitError> {
        let bad = |error| SubmitError::Record { index: 0, error };
        let waiters = |ticket: Option<TicketSender>| ticket.map_or(Waiters::Nobody, Waiters::Whole);
        let mut inbox = self.open_inbox()?;
        if self.options.max_records > 1 {
            inbox.scratch.push(record).map_err(bad)?;
            let payload = inbox.scratch.finish();
            self.fit(&mut permit, payload.bytes.len())?;
            let record = first_record(&payload.bytes).ok_or(SubmitError::Empty)?;
            self.group(&mut inbox, payload.bytes.len(), record, level, permit, ticket)
        } else {
            inbox.builder.push(record).map_err(bad)?;
            let payload = inbox.builder.finish();
            self.fit(&mut permit, payload.bytes.len())?;
            self.put(&mut inbox, payload, level, permit, waiters(ticket))
        }
    }

    pub(crate) fn submit_payload(
        &self,
        payload: Payload,
        level: Option<AckLevel>,
        mut permit: OwnedSemaphorePermit,
        ticket: Option<TicketSender>,
    ) -> Result<(), SubmitError> {
        self.fit(&mut permit, payload.bytes.len())?;
        let waiters = ticket.map_or(Waiters::Nobody, Waiters::Whole);
        let mut inbox = self.open_inbox()?;
        self.close_group(&mut inbox);
        self.put(&mut inbox, payload, level, permit, waiters)
    }

    /// As [`Self::submit_payload`], of a payload that is copied.
    pub(crate) fn submit_encoded(
        &self,
        payload: &PayloadBuilder,
        level: Option<AckLevel>,
        permit: OwnedSemaphorePermit,
        ticket: Option<TicketSender>,
    ) -> Result<(), SubmitError> {
        let (bytes, count) = (payload.as_bytes(), payload.count());
        let mut inbox = self.open_inbox()?;
        if self.options.max_records > 1 && count == 1 {
            let record = first_record(bytes).ok_or(SubmitError::Empty)?;
            return self.group(&mut inbox, bytes.len(), record, level, permit, ticket);
        }
        self.close_group(&mut inbox);
        let payload = Payload { bytes: copied(&mut inbox.piece, bytes), count };
        self.put(&mut inbox, payload, level, permit, ticket.map_or(Waiters::Nobody, Waiters::Whole))
    }

    /// Counts records that were never handed over as dropped.
    pub(crate) fn drop_unsubmitted(&self, reason: DropReason, records: u64) {
        if !self.is_forked() {
            self.counters.submitted.add(records);
            self.add_drops(reason, records);
        }
    }

    /// Counts records as dropped; the task reports them.
    pub(crate) fn add_drops(&self, reason: DropReason, records: u64) {
        if self.counters.drops.add(reason, records) {
            self.wake.notify_one();
        }
    }

    /// Takes out appends that the session does not have yet, oldest first, until they hold `bytes` or more; where a
    /// severity is given, only those below it. `before` sees them before a flush behind them can be taken out.
    pub(crate) fn drop_items(
        &self,
        bytes: usize,
        below: Option<i32>,
        before: impl Fn(&[(u32, Claim)]),
    ) -> Vec<(u32, Claim)> {
        let mut dropped = {
            let mut backlog = lock(&self.backlog);
            let dropped = take_appends(&mut backlog, bytes, below);
            before(&dropped);
            dropped
        };
        let freed = |dropped: &[(u32, Claim)]| dropped.iter().map(|(_, claim)| claim.permit.num_permits()).sum();
        let mut missing = bytes.saturating_sub(freed(&dropped));
        let mut inbox = lock(&self.inbox);
        for _ in 0..2 {
            if missing > 0 {
                let more = take_appends(&mut inbox.items, missing, below);
                before(&more);
                missing = missing.saturating_sub(freed(&more));
                dropped.extend(more);
            }
            if missing > 0 && self.direct().is_none() {
                self.close_group(&mut inbox); // the newest of those that wait
            }
        }
        dropped
    }

    /// Adds one encoded record to the append that is being grouped.
    fn group(
        &self,
        inbox: &mut Inbox,
        len: usize,
        record: RecordView<'_>,
        level: Option<AckLevel>,
        permit: OwnedSemaphorePermit,
        ticket: Option<TicketSender>,
    ) -> Result<(), SubmitError> {
        let full = inbox.builder.len() + len > self.options.max_bytes.min(inbox.max_group_bytes);
        if inbox.open.as_ref().is_some_and(|open| open.level != level || full) {
            self.close_group(inbox);
        }
        inbox.builder.reserve(len, COPY_PIECE_BYTES);
        if let Err(EncodeError::AppendFull { .. }) = inbox.builder.push_view(record) {
            self.close_group(inbox);
            inbox.builder.push_view(record).map_err(|error| SubmitError::Record { index: 0, error })?;
        }
        let index = inbox.builder.count() - 1;
        let open = match &mut inbox.open {
            Some(open) => {
                open.permit.merge(permit);
                open
            }
            none => none.insert(Open { level, since: now(), permit, shares: Vec::new() }),
        };
        open.shares.extend(ticket.map(|ticket| Share { index, ticket }));
        if inbox.builder.count() >= self.options.max_records {
            self.close_group(inbox);
        } else if index == 0 {
            self.wake.notify_one(); // the task sees to the linger
        }
        Ok(())
    }

    fn close_group(&self, inbox: &mut Inbox) {
        if let Some(open) = inbox.open.take() {
            let payload = inbox.builder.finish();
            // A refused caller holds a ticket that says so.
            let waiters = Waiters::Shares(open.shares, payload.count);
            let _ = self.put(inbox, payload, open.level, open.permit, waiters);
        }
    }

    fn put(
        &self,
        inbox: &mut Inbox,
        payload: Payload,
        level: Option<AckLevel>,
        permit: OwnedSemaphorePermit,
        waiters: Waiters,
    ) -> Result<(), SubmitError> {
        let (append, claim) = self.append_of(payload, level, permit, waiters);
        let is_shared = claim.is_shared();
        let left = match self.direct() {
            Some(ring_handle) => match self.try_post(&ring_handle, append, claim)? {
                // Who has polled a ticket while its group was open looks no more.
                None if is_shared => {
                    ring_handle.want_for_waiting();
                    None
                }
                left => left,
            },
            None => Some((append, claim)),
        };
        if let Some((append, claim)) = left {
            self.queue(inbox, append, claim);
        }
        Ok(())
    }

    fn append_of(
        &self,
        payload: Payload,
        level: Option<AckLevel>,
        permit: OwnedSemaphorePermit,
        waiters: Waiters,
    ) -> (Append, Claim) {
        self.counters.submitted.add(payload.count.into());
        let (crc, severity) = (payload.checksum(), max_severity(&payload.bytes, payload.count));
        let append = Append { crc, count: payload.count, payload: payload.bytes, level, severity, submitted: now() };
        (append, Claim { waiters, permit })
    }

    fn queue(&self, inbox: &mut Inbox, append: Append, claim: Claim) {
        // From here on everything queues behind it.
        self.direct.store(0, Ordering::Release);
        self.enqueue(inbox, Item::Append(append, claim));
    }

    /// A ring was asked for, and there is none; nothing: there is one.
    pub(crate) fn has_no_ring(&self, why: Option<ErrorInfo>) {
        *lock(&self.no_ring) = why;
    }

    pub(crate) fn waits_because(&self, why: Option<String>) {
        *lock(&self.trouble) = why;
    }

    pub(crate) fn why_waiting(&self) -> Option<String> {
        if self.is_forked() {
            return None;
        }
        let trouble = lock(&self.trouble).clone();
        trouble.or_else(|| self.ring_handle()?.why_waiting())
    }

    pub(crate) fn why_no_ring(&self) -> Option<ErrorInfo> {
        if self.is_forked() { None } else { lock(&self.no_ring).clone() }
    }

    fn enqueue(&self, inbox: &mut Inbox, item: Item) {
        inbox.items.push_back(item);
        if inbox.items.len() == 1 {
            self.wake.notify_one(); // else the task was woken already and has not come yet
        }
    }

    fn open_inbox(&self) -> Result<MutexGuard<'_, Inbox>, SubmitError> {
        self.is_here()?; // nothing would take it out: the task is not in this process
        let inbox = lock(&self.inbox);
        match &inbox.life {
            Life::Open => Ok(inbox),
            Life::Closing(_) => Err(SubmitError::Ended(AppendError::Closed { maybe_written: false })),
            Life::Ended(error) => Err(SubmitError::Ended(not_written(error))),
        }
    }

    /// Takes everything out, in order, and says when what is still being grouped is due.
    pub(crate) fn drain(&self, now: Instant, into: &mut VecDeque<Item>) -> Option<Instant> {
        let mut inbox = lock(&self.inbox);
        let due = inbox.open.as_ref().map(|open| open.since + self.options.linger);
        let closing = !matches!(inbox.life, Life::Open);
        let wait = due.filter(|due| *due > now && !closing);
        if wait.is_none() {
            self.close_group(&mut inbox);
        }
        into.append(&mut inbox.items);
        wait
    }

    pub(crate) async fn flush(&self, level: Option<AckLevel>) -> Result<(), AppendError> {
        let (sender, listener) = self.undelivered.listen();
        {
            let mut inbox = self.open_inbox().map_err(|_| self.why_not_flushed())?;
            self.close_group(&mut inbox);
            self.enqueue(&mut inbox, Item::Flush(level, sender, now()));
        }
        listener.recv().await.unwrap_or_else(|| Err(self.why_not_flushed()))
    }

    /// Asks for a last flush and waits until the task is gone.
    pub(crate) async fn close(&self) -> Result<(), AppendError> {
        let (sender, listener) = self.undelivered.listen();
        {
            let mut inbox = self.open_inbox().map_err(|_| self.why_not_flushed())?;
            self.close_group(&mut inbox);
            self.enqueue(&mut inbox, Item::Flush(self.options.level, sender, now()));
            inbox.life = Life::Closing(None);
            self.direct.store(0, Ordering::Release);
            self.budget.close();
        }
        self.wake.notify_one();
        let flushed = listener.recv().await;
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
        flushed.unwrap_or_else(|| Err(self.why_not_flushed()))
    }

    /// The last handle is gone.
    pub(crate) fn close_on_drop(&self) {
        if self.is_forked() {
            return;
        }
        let mut inbox = lock(&self.inbox);
        if matches!(inbox.life, Life::Open) {
            inbox.life = Life::Closing(Some(now() + self.options.drop_timeout));
            self.direct.store(0, Ordering::Release);
            self.wake.notify_one();
        }
    }

    pub(crate) fn life(&self) -> Life {
        lock(&self.inbox).life.clone()
    }

    /// The task is about to go: from here on nothing goes in. Gives what was still in.
    pub(crate) fn end(&self, error: AppendError) -> VecDeque<Item> {
        let mut inbox = lock(&self.inbox);
        self.close_group(&mut inbox);
        if !matches!(inbox.life, Life::Ended(_)) {
            inbox.life = Life::Ended(error);
        }
        self.budget.close();
        std::mem::take(&mut inbox.items)
    }

    /// True if nothing more is taken.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(lock(&self.inbox).life, Life::Open)
    }

    /// A report of the drops so far, if there are any, and if none is under way.
    pub(crate) fn drop_report(&self) -> Option<(Append, Claim)> {
        let drops = &self.counters.drops;
        let permit = self.report_permit.clone().try_acquire_owned().ok().filter(|_| drops.has_unreported())?;
        let mut builder = self.new_builder();
        let report = drops.take_unreported();
        // A group that leaves no room for so little leaves none for any record.
        if builder.push(&report.record()).is_err() {
            drops.report_failed(&report, true);
            return None;
        }
        // It is to arrive, also where nothing else has to; and at a level that the log refuses it never would.
        let highest = self.log_info().map_or(AckLevel::Durable, |log| log.highest_ack);
        let level = self.options.level.map(|level| level.max(AckLevel::Received).min(highest));
        Some(self.append_of(builder.finish(), level, permit, Waiters::Report(report, self.counters.clone())))
    }

    /// Waits until the task is gone.
    pub(crate) async fn ended(self: Arc<Self>) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }

    pub(crate) fn gone(&self) {
        self.done.send_replace(true);
    }

    /// Why there will be no answer to a flush. Of what was submitted before it nothing is certain by that.
    fn why_not_flushed(&self) -> AppendError {
        self.why_ended().with_maybe_written(true)
    }

    pub(crate) fn why_ended(&self) -> AppendError {
        if self.is_forked() {
            return AppendError::Forked;
        }
        match &lock(&self.inbox).life {
            Life::Ended(error) => not_written(error),
            _ => AppendError::Closed { maybe_written: false },
        }
    }

    /// Takes note of what the daemon says about itself.
    pub(crate) fn greeted(&self, welcome: &Welcome) {
        *lock(&self.log) = Some(welcome.into());
        if self.stats().sent == 0 {
            *lock(&self.last_stored) = welcome.last;
        }
        let limits = (welcome.max_append_bytes, welcome.max_record_bytes);
        let mut inbox = lock(&self.inbox);
        inbox.max_group_bytes = usize::MAX; // the builder has the limit
        if inbox.limits != limits {
            self.close_group(&mut inbox);
            inbox.limits = limits;
            lock(&self.batches).clear();
            // A group that is too long for this daemon stays with the old builder; the daemon refuses it by name.
            let builder = || PayloadBuilder::with_limits(&self.options.group, limits.0, limits.1);
            if let (Ok(builder), Ok(scratch)) = (builder(), builder()) {
                (inbox.builder, inbox.scratch) = (builder, scratch);
            }
        }
    }

    pub(crate) fn log_info(&self) -> Option<LogInfo> {
        if self.is_forked() { None } else { lock(&self.log).clone() }
    }

    pub(crate) fn last_stored(&self) -> Option<LastStored> {
        if self.is_forked() { None } else { *lock(&self.last_stored) }
    }

    pub(crate) fn stats(&self) -> Stats {
        let buffered = self.options.max_buffered_bytes.saturating_sub(self.budget.available_permits());
        self.counters.snapshot(buffered as u64, !self.is_forked())
    }

    pub(crate) fn summary(&self) -> Summary {
        let log_id = lock(&self.log).as_ref().map(|log| log.log_id);
        Summary { producer_id: self.options.producer_id, log_id, stats: self.stats() }
    }
}

/// Converts the error that ended the producer for an append that was never handed over.
fn not_written(error: &AppendError) -> AppendError {
    match error.clone() {
        AppendError::Failed { error, .. } => AppendError::Failed { error, maybe_written: false },
        _ => AppendError::Closed { maybe_written: false },
    }
}
