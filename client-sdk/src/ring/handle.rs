//! The ring that a producer has now.

use std::sync::{Arc, OnceLock, PoisonError, atomic::AtomicU64 as OwnNumber};
use std::time::Duration;

use clad_proto::{
    AckLevel, LogId,
    frame::{RingAppendTrailer, RingId},
};
use clad_shm::{Producer, PushError, Watermarks, clock};

use tokio::sync::Notify;

use super::completions::{Asked, Completions, Settled, watermark};
use super::waiting::{Queues, Waiting};
use crate::sync::{
    Builder, Mutex, RwLock, Thread,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    rest, wait_change, wake,
};
use crate::{
    AppendError, Receipt, lock::lock, session::Append, stats::Counters, undelivered::UndeliveredErrors, waiters::Claim,
};

/// The longest sleep of the ring handle's thread before it checks that it is still wanted.
const WATCH_INTERVAL_NS: u64 = 1_000_000_000;

/// Result of a post.
pub(crate) enum Posted {
    /// It is in the ring.
    Done,
    /// There is no room for it now, or no ring any more: it must wait.
    Wait(Append, Claim),
    /// This process is a fork of the one that has the ring.
    Forked(Append, Claim),
}

/// Why a push has no receipt at once. Nothing but numbers, so that the way of those that have one is short.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unsettled {
    /// It is in the ring, and an answer is due.
    Asked(Asked),
    /// It is not: its level is more than the log offers.
    Unreachable(AckLevel),
    /// It is not.
    Not(PushError),
}

/// An append that its caller's thread pushes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushing<'a> {
    pub(crate) bytes: &'a [u8],
    /// Of the first so many bytes, this is the checksum.
    pub(crate) known: (usize, u32),
    /// Records.
    pub(crate) count: u32,
}

impl<'a> Pushing<'a> {
    /// One of which no checksum is known.
    pub(crate) const fn new(bytes: &'a [u8], count: u32) -> Self {
        Self { bytes, known: (0, 0), count }
    }
}

/// Waiters: for what was pushed, and for what came through the queue. Whatever waits no longer is counted, and its error
/// noted where it has no listener, before the lock is given back: a flush that finds nothing left may end then.
#[derive(Debug)]
pub(super) struct Waiters {
    pub(super) completions: Completions,
    pub(super) queues: Queues,
    /// The task is to be woken when no append below waits, whichever thread finds that.
    pub(super) awaited: Option<u64>,
}

impl Waiters {
    fn len(&self) -> usize {
        self.completions.len() + self.queues.len()
    }

    pub(super) fn oldest(&mut self) -> Option<u64> {
        self.completions.oldest().into_iter().chain(self.queues.oldest()).min()
    }

    pub(super) fn is_answered_below(&mut self, append: u64) -> bool {
        self.oldest().is_none_or(|oldest| oldest >= append)
    }
}

/// The log of the newest completion page, and of the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    pub(super) now: LogId,
    pub(super) before: LogId,
}

/// Numbers for ring handles, all of a process.
static NEXT_HANDLE_NUMBER: OwnNumber = OwnNumber::new(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct RingHandle {
    pub(crate) id: RingId,
    number: u64,
    pub(super) ring: Producer,
    /// The log that the daemon had when it gave the ring out.
    log_id: LogId,
    /// The one that it has now, where that is or was another one after it came back, and the one that it had before. (A
    /// receipt looks here without a lock for as long as there is none, and never sees a part of an id.)
    other_log: OnceLock<RwLock<Other>>,
    /// The levels that are offered, a bit for each code; appends without a level of their own ask for the highest.
    /// Another daemon may offer others.
    offered: AtomicU8,
    pub(super) waiting: Mutex<Waiters>,
    /// One past the last append of which a ticket is due: for flushes.
    pub(super) last: AtomicU64,
    /// Appends below it, if they still wait, were not refused.
    pub(super) looked: AtomicU64,
    /// Appends below it were in the ring when another daemon came to it: what that one refuses, the one before may have
    /// stored.
    pub(super) met: AtomicU64,
    /// The completion page has a waiter, so that the thread has to wait.
    wanted: AtomicBool,
    over: AtomicBool,
    thread: Mutex<Option<Thread>>,
    pub(super) counters: Arc<Counters>,
    /// Those of the producer, also when it has another ring.
    pub(super) undelivered: Arc<UndeliveredErrors>,
    /// Wakes the task.
    pub(super) wake: Arc<Notify>,
}

/// The levels up to the highest one of the log; `posted` only where the ring is stored.
fn offered((highest, stored): (AckLevel, bool)) -> u8 {
    let all = (2 << highest.code()) - 1;
    if stored { all } else { all & !(1 << AckLevel::Posted.code()) }
}

#[inline]
fn highest(offered: u8) -> AckLevel {
    let code = u8::try_from(offered.checked_ilog2().unwrap_or(0)).unwrap_or(0);
    AckLevel::from_code(code).unwrap_or(AckLevel::Written)
}

#[cold]
fn read(other: &RwLock<Other>) -> Other {
    *other.read().unwrap_or_else(PoisonError::into_inner)
}

impl RingHandle {
    pub(crate) fn new(
        id: RingId,
        ring: Producer,
        log_id: LogId,
        levels: (AckLevel, bool),
        counters: Arc<Counters>,
        undelivered: Arc<UndeliveredErrors>,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            id,
            number: NEXT_HANDLE_NUMBER.fetch_add(1, Ordering::Relaxed),
            waiting: Mutex::new(Waiters {
                completions: Completions::new(ring.shape().slots(), (log_id, ring.epoch())),
                queues: Queues::default(),
                awaited: None,
            }),
            ring,
            log_id,
            other_log: OnceLock::new(),
            offered: AtomicU8::new(offered(levels)),
            last: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            met: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            over: AtomicBool::new(false),
            thread: Mutex::new(None),
            counters,
            undelivered,
            wake,
        }
    }

    /// No other ring handle of this process has it; never 0.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The level of an append, or the one that is not offered here.
    #[inline(always)]
    fn level(&self, level: Option<AckLevel>) -> Result<AckLevel, AckLevel> {
        let offered = self.offered.load(Ordering::Acquire);
        let level = level.unwrap_or_else(|| highest(offered));
        if offered >> level.code() & 1 == 0 { Err(level) } else { Ok(level) }
    }

    /// True if appends may ask for this level.
    pub(crate) fn offers(&self, level: AckLevel) -> bool {
        self.level(Some(level)).is_ok()
    }

    /// The longest payload of an append.
    pub(crate) fn max_append_bytes(&self) -> u32 {
        u32::try_from(self.ring.max_payload().saturating_sub(RingAppendTrailer::BYTES)).unwrap_or(u32::MAX)
    }

    /// Puts an append into the ring. Never waits.
    pub(crate) fn post(self: &Arc<Self>, append: Append, claim: Claim) -> Posted {
        let level = match self.level(append.level) {
            Ok(level) => level,
            Err(level) => {
                self.resolve(claim, append.count, Err(AppendError::unreachable_level(level)));
                return Posted::Done;
            }
        };
        let trailer = RingAppendTrailer { level, payload_crc: append.crc }.encode();
        let count = append.count;
        match self.ring.push_summed(&append.payload, append.crc, trailer, count) {
            Ok(number) => {
                self.counters.sent.add(count.into());
                self.posted(Waiting { append: number, count, level, claim });
                Posted::Done
            }
            Err(PushError::Forked) => Posted::Forked(append, claim),
            Err(PushError::Size { len, max }) => {
                let trailer = RingAppendTrailer::BYTES as u64;
                let error = AppendError::TooLarge { len: len as u64 - trailer, max: max as u64 - trailer };
                self.resolve(claim, count, Err(error));
                Posted::Done
            }
            // Full, closed, or the drain abandoned the space meanwhile: nothing of it is in the ring.
            Err(_) => Posted::Wait(append, claim),
        }
    }

    /// Puts an append into the ring in its caller's thread. Never waits. Gives the receipt where no more is asked for
    /// than that, which is to be counted. Else [`RingTicket::settle`](super::RingTicket::settle) is to follow. It was counted as submitted.
    #[inline(always)]
    pub(crate) fn push(&self, payload: Pushing<'_>, level: Option<AckLevel>) -> Result<Receipt, Unsettled> {
        let Pushing { bytes, known, count } = payload;
        let level = self.level(level).map_err(Unsettled::Unreachable)?;
        let trailer = |payload_crc| RingAppendTrailer { level, payload_crc }.encode();
        match self.ring.push_trailed(bytes, known, trailer, count) {
            Ok(_) if level < AckLevel::Received => Ok(self.receipt(count, level)),
            Ok(append) => Err(Unsettled::Asked(Asked { append, count, level })),
            Err(error) => Err(Unsettled::Not(error)),
        }
    }

    /// An append is in the ring, and an answer is due.
    pub(super) fn pushed(&self, asked: Asked) -> Result<(), AppendError> {
        let append = asked.append;
        self.last.fetch_max(append + 1, Ordering::AcqRel);
        let mut waiting = lock(&self.waiting);
        if let Some(error) = waiting.queues.ended() {
            let error = error.clone();
            drop(waiting);
            self.counters.failed.add(asked.count.into());
            return Err(error);
        }
        waiting.completions.insert(asked);
        let late = self.is_late(&mut waiting, append);
        drop(waiting);
        self.look_behind(append, asked.level, late);
        Ok(())
    }

    /// An answer is stored for as many appends as the ring has slots: it is to be fetched well before.
    fn is_late(&self, waiting: &mut Waiters, append: u64) -> bool {
        let lag_max = u64::from(self.ring.shape().slots() / 2);
        waiting.oldest().is_some_and(|oldest| append.saturating_sub(oldest) >= lag_max)
    }

    /// The answer may have come before it was waited for. A polling waiter reads the completion page itself; the ring
    /// handle's thread sleeps until that changes. (The watermarks are not looked at for each append: the daemon writes
    /// them all the time.)
    fn look_behind(&self, append: u64, level: AckLevel, late: bool) {
        if late || self.wanted.load(Ordering::Acquire) && watermark(&self.ring.watermarks(), level) > append {
            self.pump();
        }
    }

    pub(super) fn posted(self: &Arc<Self>, waiting: Waiting) {
        let (number, level) = (waiting.append, waiting.level);
        if level < AckLevel::Received {
            let receipt = self.receipt(waiting.count, level);
            return self.resolve(waiting.claim, waiting.count, Ok(receipt));
        }
        self.last.fetch_max(number + 1, Ordering::AcqRel);
        let mut waiters = lock(&self.waiting);
        if let Some(error) = waiters.queues.ended() {
            let error = error.clone();
            drop(waiters);
            return self.resolve(waiting.claim, waiting.count, Err(error));
        }
        waiters.queues.insert(waiting);
        let late = self.is_late(&mut waiters, number);
        drop(waiters);
        let refused = self.ring.refused() > number;
        if refused {
            self.looked.fetch_min(number, Ordering::AcqRel);
        }
        self.look_behind(number, level, late || refused);
    }

    /// That an append is in the ring.
    #[inline]
    fn receipt(&self, count: u32, level: AckLevel) -> Receipt {
        Receipt { log_id: self.log_id(), epoch: self.ring.epoch(), first_offset: None, count, level }
    }

    #[inline]
    pub(super) fn other(&self) -> Option<Other> {
        self.other_log.get().map(read)
    }

    /// The log that the daemon has now.
    #[inline]
    pub(super) fn log_id(&self) -> LogId {
        self.other().map_or(self.log_id, |other| other.now)
    }

    /// The daemon came back with this one.
    fn set_log_id(&self, now: LogId) {
        let before = self.log_id();
        if now != before || self.other_log.get().is_some() {
            let other = self.other_log.get_or_init(|| RwLock::new(Other { now, before }));
            *other.write().unwrap_or_else(PoisonError::into_inner) = Other { now, before };
        }
    }

    /// Number of appends that wait for their answer.
    pub(crate) fn pending(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// True if this process is a fork of the one that has the ring.
    pub(crate) fn is_forked(&self) -> bool {
        self.ring.is_forked()
    }

    /// True if nothing can be put into it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Waits in the calling thread until the completion page has changed since `seen`, for at most `time`.
    pub(crate) fn wait_change(&self, seen: Watermarks, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        wait_change(&self.ring, seen, clock::now().saturating_add(nanos));
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        self.ring.watermarks()
    }

    /// Attaches the completion page of a daemon that was started again.
    pub(crate) fn attach_completion_page(
        &self,
        completion_page: &std::os::fd::OwnedFd,
        waker: Option<std::os::fd::OwnedFd>,
        levels: (AckLevel, bool),
    ) -> Result<(), clad_shm::OpenError> {
        self.pump(); // what the old one says is not on the new one
        if let Some(waker) = waker {
            self.ring.attach_waker(waker);
        }
        self.met.fetch_max(self.last(), Ordering::AcqRel);
        self.offered.store(offered(levels), Ordering::Release);
        self.looked.store(0, Ordering::Release);
        // Known before anybody looks there.
        self.ring.attach_completion_page(completion_page, |(log_id, _)| self.set_log_id(LogId::from_bytes(log_id)))?;
        lock(&self.waiting).completions.completion_page_replaced();
        self.pump();
        Ok(())
    }

    /// Called for a waiter that waits by now: a thread reads the completion page for it.
    pub(crate) fn want(&self) {
        if self.wanted.swap(true, Ordering::AcqRel) {
            return;
        }
        match &*lock(&self.thread) {
            Some(thread) => wake(thread),
            None => self.wake.notify_one(),
        }
    }

    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// A thread reads the completion page for all that wait there now, if there are any.
    pub(crate) fn want_for_waiting(&self) {
        if self.pending() > 0 {
            self.want();
        }
    }

    /// Starts the thread if it is wanted for the first time. The task does it, in a thread of the library: what blocks
    /// signals there blocks them in this one too.
    pub(crate) fn start_watch(self: &Arc<Self>) {
        let mut thread = lock(&self.thread);
        if thread.is_some() || !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let handle = self.clone();
        let spawned = Builder::new().name("clad-ring".to_owned()).spawn(move || handle.watch());
        match spawned {
            Ok(spawned) => *thread = Some(spawned.thread().clone()),
            // Every poll reads the page itself; the next one tries again.
            Err(_) => self.wanted.store(false, Ordering::Release),
        }
    }

    /// The thread: sleeps on the completion page while there is a waiter, else until there is one.
    fn watch(&self) {
        while !self.over.load(Ordering::Acquire) {
            let seen = self.ring.watermarks();
            if self.pump() {
                self.wake.notify_one();
            }
            if self.pending() > 0 {
                wait_change(&self.ring, seen, clock::now() + WATCH_INTERVAL_NS);
                continue;
            }
            self.wanted.store(false, Ordering::Release);
            // A waiter that came in between finds it unwanted, and wakes this thread; or this thread finds the waiter
            // here.
            if self.pending() == 0 && !self.over.load(Ordering::Acquire) {
                rest(Duration::from_nanos(WATCH_INTERVAL_NS));
            }
        }
    }

    /// The ring is abandoned: nothing more goes in, and every waiter gets the reason.
    pub(crate) fn end(&self, error: &AppendError) {
        self.ring.close();
        self.pump();
        self.over.store(true, Ordering::Release);
        // A thread that was putting something in comes to wait for it only now: it gets the same error.
        let mut settled = Settled::default();
        let mut waiting = lock(&self.waiting);
        waiting.completions.end_all(error, &mut settled);
        for ended in waiting.queues.end(error) {
            settled.claim(ended.claim, ended.count, Err(error.clone()));
        }
        self.notify(waiting, settled);
        if let Some(thread) = &*lock(&self.thread) {
            wake(thread);
        }
    }
}
