//! State shared by the handles and the task.
//!
//! * The inbox fixes the order: an append has its place when it is put in, under the lock, and the task takes items out
//!   in that order. Nothing waits under the lock; encoding a single record does happen there, so that its buffer is
//!   used again.
//! * Every item in the inbox holds permits of the budget, so the inbox needs no bound of its own.
//! * Appends go past it, straight into a ring, while nothing waits in it (`direct`).
//! * Once it has ended nothing goes in, and what was in has been notified.
//! * A child of `fork` has none of the threads that serve this, and the locks as they were at that moment. Every call
//!   of a handle checks [`Shared::is_forked`] before it takes a lock.

mod direct;

use super::{
    batch::Batch,
    options::Options,
    undelivered::{FlushSender, UndeliveredErrors},
};
use crate::{
    AppendError, ConnectError, LogInfo, SubmitError,
    clock::now,
    lock::lock,
    receipt::TicketSender,
    ring::RingHandle,
    session::Append,
    stats::{Counters, Stats, Summary},
    waiters::{Claim, Share, Waiters},
};
use clad_proto::{
    AckLevel, EncodeError, ErrorInfo, Payload, PayloadBuilder, PayloadView, Record,
    frame::Welcome,
    limits::{DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES},
};
use clad_shm::ForkMark;
use std::sync::{
    Arc, Mutex, MutexGuard, RwLock,
    atomic::{AtomicU64, Ordering},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// Cost of an append in the budget besides its payload: its place in queues, its ticket.
pub(crate) const APPEND_OVERHEAD: usize = 256;

/// Item that the task takes out of the inbox.
#[derive(Debug)]
pub(crate) enum Item {
    Append(Append, Claim),
    /// And since when it waits.
    Flush(Option<AckLevel>, FlushSender, Instant),
}

/// Phase of the producer's life.
#[derive(Debug, Clone)]
pub(crate) enum Life {
    Open,
    /// Nothing more is taken; what is there is brought home, until then at most.
    Closing(Option<Instant>),
    Ended(AppendError),
}

#[derive(Debug)]
struct Inbox {
    life: Life,
    items: Vec<Item>,
    builder: PayloadBuilder,
    /// Encodes one record where records are grouped.
    scratch: PayloadBuilder,
    /// The append that is being grouped in `builder`.
    open: Option<Open>,
    limits: (u32, u32),
}

#[derive(Debug)]
struct Open {
    level: Option<AckLevel>,
    since: Instant,
    permit: OwnedSemaphorePermit,
    shares: Vec<Share>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    mark: ForkMark,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) undelivered: UndeliveredErrors,
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
    inbox: Mutex<Inbox>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Result<Self, ConnectError> {
        let limits = (DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES);
        let builder = || PayloadBuilder::with_limits(&options.group, limits.0, limits.1).map_err(ConnectError::Group);
        let (builder, scratch) = (builder()?, builder()?);
        let inbox = Inbox { life: Life::Open, items: Vec::new(), builder, scratch, open: None, limits };
        let mark = ForkMark::new().map_err(|error| ConnectError::Io {
            address: options.address.clone(),
            error: Arc::new(std::io::Error::other(error)),
        })?;
        Ok(Self {
            mark,
            budget: Arc::new(Semaphore::new(options.max_buffered_bytes)),
            options,
            counters: Arc::default(),
            undelivered: UndeliveredErrors::default(),
            wake: Arc::default(),
            ring_handle: RwLock::default(),
            direct: AtomicU64::new(0),
            no_ring: Mutex::default(),
            trouble: Mutex::default(),
            batches: Mutex::default(),
            done: watch::Sender::new(false),
            log: Mutex::new(None),
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
            self.group(&mut inbox, &payload, level, permit, ticket)
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

    /// Adds one encoded record to the append that is being grouped.
    fn group(
        &self,
        inbox: &mut Inbox,
        payload: &Payload,
        level: Option<AckLevel>,
        permit: OwnedSemaphorePermit,
        ticket: Option<TicketSender>,
    ) -> Result<(), SubmitError> {
        let full = inbox.builder.len() + payload.bytes.len() > self.options.max_bytes;
        if inbox.open.as_ref().is_some_and(|open| open.level != level || full) {
            self.close_group(inbox);
        }
        let view = PayloadView::parse(&payload.bytes, payload.count).ok();
        let Some(record) = view.and_then(|view| view.records().next()) else { return Err(SubmitError::Empty) };
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
        let (append, claim) = match self.direct() {
            Some(ring_handle) => match self.try_post(&ring_handle, append, claim)? {
                Some(left) => left,
                None => return Ok(()),
            },
            None => (append, claim),
        };
        self.queue(inbox, append, claim);
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
        let append =
            Append { crc: payload.checksum(), count: payload.count, payload: payload.bytes, level, submitted: now() };
        (append, Claim { waiters, permit })
    }

    fn queue(&self, inbox: &mut Inbox, append: Append, claim: Claim) {
        // From here on everything queues behind it.
        self.direct.store(0, Ordering::Release);
        self.enqueue(inbox, Item::Append(append, claim));
    }

    /// A ring was asked for, and there is none.
    pub(crate) fn has_no_ring(&self, why: ErrorInfo) {
        *lock(&self.no_ring) = Some(why);
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
        inbox.items.push(item);
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
    pub(crate) fn drain(&self, now: Instant, into: &mut Vec<Item>) -> Option<Instant> {
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
    pub(crate) fn end(&self, error: AppendError) -> Vec<Item> {
        let mut inbox = lock(&self.inbox);
        self.close_group(&mut inbox);
        if !matches!(inbox.life, Life::Ended(_)) {
            inbox.life = Life::Ended(error);
        }
        self.budget.close();
        std::mem::take(&mut inbox.items)
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
        let limits = (welcome.max_append_bytes, welcome.max_record_bytes);
        let mut inbox = lock(&self.inbox);
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
