//! The ring that a producer has now.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::{Duration, Instant};

use clad_proto::{
    AckLevel, ErrorCode, ErrorInfo, LogId,
    frame::{RingAppendTrailer, RingId},
    payload_checksum,
};
use clad_shm::{Look, Marks, Producer, PushError, clock};

use tokio::sync::Notify;

use super::dues::{Asked, Dues, Settled};
use super::waiting::{Queues, Waiting};
use crate::{
    AppendError,
    producer::{Book, Claim, Counters, Receipt},
    session::{Append, unreachable_level},
};

/// How long the port's thread sleeps at most before it looks whether it is still wanted.
const LOOK_NS: u64 = 1_000_000_000;

/// What became of a post.
pub(crate) enum Posted {
    /// It is in the ring.
    Done,
    /// There is no room for it now, or no ring any more: it must wait.
    Wait(Append, Claim),
    /// This process is a fork of the one that has the ring.
    Forked(Append, Claim),
}

/// What became of a push in its caller's thread.
pub(crate) enum Pushed {
    /// It is in the ring: what is due for it.
    Done(Due),
    /// It will never be in the ring, and that is its outcome.
    Ended(AppendError),
    /// There is no room for it now, or no ring any more: it must wait.
    Wait,
    /// This process is a fork of the one that has the ring.
    Forked,
}

/// Who waits: for what was pushed, and for what came through the queue.
#[derive(Debug)]
struct Waiters {
    dues: Dues,
    queues: Queues,
}

impl Waiters {
    fn len(&self) -> usize {
        self.dues.len() + self.queues.len()
    }

    fn oldest(&mut self) -> Option<u64> {
        self.dues.oldest().into_iter().chain(self.queues.oldest()).min()
    }
}

/// Numbers for ports, all of a process.
static PORTS: AtomicU64 = AtomicU64::new(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: RingId,
    number: u64,
    /// The daemon's clock is another one: what is in this ring is ordered by when it is drained.
    pub(crate) other_clock: bool,
    ring: Producer,
    /// The log that the daemon had when it gave the ring out.
    log_id: LogId,
    /// The one that it has now, where that is or was another one after it came back. (A receipt looks here without a lock
    /// for as long as there is none, and never sees a part of an id.)
    other_log: OnceLock<RwLock<LogId>>,
    /// What the log offers at most, which is what appends without a level of their own ask for. A code: another daemon may
    /// offer another.
    highest: AtomicU8,
    waiting: Mutex<Waiters>,
    /// One past the last append of which a ticket is due: for flushes.
    last: AtomicU64,
    /// Appends below it, if they still wait, were not refused.
    looked: AtomicU64,
    /// Appends below it were in the ring when another daemon came to it: what that one refuses, the one before may have
    /// stored.
    met: AtomicU64,
    /// Somebody waits for the board, so that the thread has to.
    wanted: AtomicBool,
    over: AtomicBool,
    thread: Mutex<Option<Thread>>,
    pub(super) counters: Arc<Counters>,
    /// An append ended with this and nobody was there to hear it.
    unheard: Mutex<Option<AppendError>>,
    /// Woken by the thread when something was answered.
    answered: Arc<Notify>,
}

/// Locks of plain state that nothing panics in.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    pub(crate) fn new(
        (id, other_clock): (RingId, bool),
        ring: Producer,
        log_id: LogId,
        highest: AckLevel,
        counters: Arc<Counters>,
        answered: Arc<Notify>,
    ) -> Self {
        Self {
            id,
            number: PORTS.fetch_add(1, Ordering::Relaxed),
            other_clock,
            waiting: Mutex::new(Waiters { dues: Dues::new(ring.shape().slots()), queues: Queues::default() }),
            ring,
            log_id,
            other_log: OnceLock::new(),
            highest: AtomicU8::new(highest.code()),
            last: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            met: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            over: AtomicBool::new(false),
            thread: Mutex::new(None),
            counters,
            unheard: Mutex::new(None),
            answered,
        }
    }

    /// No other port of this process has it; never 0.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn highest(&self) -> AckLevel {
        AckLevel::from_code(self.highest.load(Ordering::Acquire)).unwrap_or(AckLevel::Written)
    }

    /// The longest payload of an append.
    pub(crate) fn max_append_bytes(&self) -> u32 {
        u32::try_from(self.ring.max_payload().saturating_sub(RingAppendTrailer::BYTES)).unwrap_or(u32::MAX)
    }

    /// Puts an append into the ring. Never waits.
    pub(crate) fn post(self: &Arc<Self>, append: Append, claim: Claim) -> Posted {
        let highest = self.highest();
        let level = append.level.unwrap_or(highest);
        if level > highest {
            self.resolve(claim, append.count, Err(unreachable_level(level)));
            return Posted::Done;
        }
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
            // Full, closed, or the space was given up under us: nothing of it is in the ring.
            Err(_) => Posted::Wait(append, claim),
        }
    }

    /// Puts an append into the ring in its caller's thread. Never waits. Its caller has counted it as submitted.
    // Inlined, as what calls it: an outcome that is handed up from call to call is copied at each.
    #[inline(always)]
    pub(crate) fn push(
        self: &Arc<Self>,
        payload: &[u8],
        count: u32,
        level: Option<AckLevel>,
        book: Book<'_>,
    ) -> Pushed {
        let highest = self.highest();
        let level = level.unwrap_or(highest);
        let ended = |error| {
            self.counters.failed.add(count.into());
            Pushed::Ended(error)
        };
        if level > highest {
            return ended(unreachable_level(level));
        }
        let payload_crc = payload_checksum(payload);
        let trailer = RingAppendTrailer { level, payload_crc }.encode();
        match self.ring.push_summed(payload, payload_crc, trailer, count) {
            Ok(append) => {
                if level >= AckLevel::Received {
                    book.sent(count.into());
                    return self.pushed(Asked { append, count, level });
                }
                book.posted(count.into());
                Pushed::Done(Due::Known(Ok(self.receipt(None, count, level))))
            }
            Err(PushError::Forked) => Pushed::Forked,
            Err(PushError::Size { len, max }) => {
                let trailer = RingAppendTrailer::BYTES as u64;
                ended(AppendError::TooLarge { len: len as u64 - trailer, max: max as u64 - trailer })
            }
            Err(_) => Pushed::Wait,
        }
    }

    /// An append is in the ring, and an answer is due.
    fn pushed(self: &Arc<Self>, asked: Asked) -> Pushed {
        let append = asked.append;
        self.last.fetch_max(append + 1, Ordering::AcqRel);
        let mut waiting = lock(&self.waiting);
        if let Some(error) = waiting.queues.ended() {
            let error = error.clone();
            drop(waiting);
            self.counters.failed.add(asked.count.into());
            return Pushed::Ended(error);
        }
        waiting.dues.insert(asked);
        let late = self.is_late(&mut waiting, append);
        drop(waiting);
        self.look_behind(append, asked.level, late);
        Pushed::Done(Due::Later(Later { port: self.clone(), append, fetched: false }))
    }

    /// An answer is kept for as many appends as the ring has slots: it is to be fetched well before.
    fn is_late(&self, waiting: &mut Waiters, append: u64) -> bool {
        let patience = u64::from(self.ring.shape().slots() / 2);
        waiting.oldest().is_some_and(|oldest| append.saturating_sub(oldest) >= patience)
    }

    /// The answer may have come before it was waited for. Whoever polls looks at the board himself; the port's thread sleeps
    /// until that changes. (The marks are not looked at for each append: the daemon writes them all the time.)
    fn look_behind(&self, append: u64, level: AckLevel, late: bool) {
        if late || self.wanted.load(Ordering::Acquire) && mark(&self.ring.marks(), level) > append {
            self.pump();
        }
    }

    pub(super) fn posted(self: &Arc<Self>, waiting: Waiting) {
        let (number, level) = (waiting.append, waiting.level);
        if level < AckLevel::Received {
            let receipt = self.receipt(None, waiting.count, level);
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

    /// Looks at the board and tells those whose level is reached. True when anybody was told.
    pub(crate) fn pump(&self) -> bool {
        let mut covered = Vec::new();
        let mut settled = Settled::default();
        let look = self.ring.look();
        let (marks, refusals) = (look.marks(), look.refused());
        {
            let mut waiting = lock(&self.waiting);
            let Waiters { dues, queues } = &mut *waiting;
            if dues.is_due(&marks, refusals) {
                let answer = |append| self.place(&look, append);
                dues.settle(&marks, refusals, answer, |append| is_refused(&look, append), &mut settled);
            }
            queues.covered(&marks, &mut covered);
            // A refusal is final when it is there: no level is waited for. It is on the board before the mark that covers it.
            let refused = refusals.min(marks.received);
            let looked = self.looked.load(Ordering::Acquire);
            if looked < refused {
                self.looked.store(refused, Ordering::Release);
                queues.refused(looked..refused, |append| is_refused(&look, append), &mut covered);
            }
        }
        let any = !covered.is_empty() || !settled.is_nothing();
        let places: Vec<_> = covered.iter().map(|waiting| self.place(&look, waiting.append)).collect();
        drop(look); // a receipt may look once more
        for (waiting, place) in covered.into_iter().zip(places) {
            let result = place.map(|place| self.receipt(place, waiting.count, waiting.level));
            self.resolve(waiting.claim, waiting.count, result);
        }
        self.tell(settled);
        any
    }

    fn tell(&self, settled: Settled) {
        let Settled { acked, failed, unheard, wakers } = settled;
        if acked > 0 {
            self.counters.acked.add(acked);
        }
        if failed > 0 {
            self.counters.failed.add(failed);
        }
        if let Some(error) = unheard {
            lock(&self.unheard).get_or_insert(error);
        }
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Where an append is whose mark has passed it, or why it is not.
    fn place(&self, look: &Look<'_>, append: u64) -> Result<Option<(u32, u64)>, AppendError> {
        let Some(answer) = look.answer(append) else {
            if append < look.refused() {
                // The answer went with the daemon that gave it, or is overwritten, and it may have been a refusal.
                return Err(AppendError::Forgotten);
            }
            // It is as safe as was asked for; where it lies was overwritten by later answers.
            return Ok(None);
        };
        let code = ErrorCode::from_number(u16::try_from(answer.code).unwrap_or(u16::MAX));
        match (answer.code, code) {
            (0, _) => Ok(Some((answer.epoch, answer.first_offset))),
            // Stored by a daemon before this one, so long ago that the offset is not known any more.
            (_, ErrorCode::SequenceTooOld) => Ok(None),
            _ => {
                let mut error = ErrorInfo::new(code, "the daemon refused it as it drained the ring");
                error.record_index = (code == ErrorCode::BadRecord || code == ErrorCode::RecordTooLarge)
                    .then(|| u32::try_from(answer.detail).unwrap_or(u32::MAX));
                error.maybe_written |= append < self.met.load(Ordering::Acquire);
                let maybe_written = error.maybe_written;
                Err(AppendError::Refused { error: Box::new(error), maybe_written })
            }
        }
    }

    #[inline]
    fn receipt(&self, place: Option<(u32, u64)>, count: u32, level: AckLevel) -> Receipt {
        let epoch = place.map_or_else(|| self.ring.epoch(), |(epoch, _)| epoch);
        Receipt { log_id: self.log_id(), epoch, first_offset: place.map(|(_, offset)| offset), count, level }
    }

    /// The log that the daemon has now.
    #[inline]
    pub(super) fn log_id(&self) -> LogId {
        let other = self.other_log.get();
        other.map_or(self.log_id, |other| *other.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The daemon came back with this one.
    fn set_log_id(&self, now: LogId) {
        if now != self.log_id() {
            let other = self.other_log.get_or_init(|| RwLock::new(now));
            *other.write().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }

    /// The outcome of an append that was pushed, if it is there.
    fn outcome(&self, append: u64) -> Option<Result<Receipt, AppendError>> {
        // The board is looked at before this lock is taken, or after: who pumps has it the other way round.
        // (A waker goes without the lock, too: what it drops may be another ticket.)
        let taken = lock(&self.waiting).dues.take(append);
        let (outcome, _waker) = taken?;
        Some(outcome.map(|(place, count, level)| self.receipt(place, count, level)))
    }

    /// As [`Port::outcome`], with a look at the board.
    fn outcome_now(&self, append: u64) -> Option<Result<Receipt, AppendError>> {
        self.outcome(append).or_else(|| {
            self.pump();
            self.outcome(append)
        })
    }

    pub(crate) fn resolve(&self, claim: Claim, count: u32, result: Result<Receipt, AppendError>) {
        let counter = if result.is_ok() { &self.counters.acked } else { &self.counters.failed };
        counter.add(count.into());
        if !claim.resolve(&result)
            && let Err(error) = result
        {
            lock(&self.unheard).get_or_insert(error);
        }
    }

    /// An error that nobody has heard yet.
    pub(crate) fn take_unheard(&self) -> Option<AppendError> {
        lock(&self.unheard).take()
    }

    /// One past the last append whose ticket is due, so far.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Whether every append below has its outcome.
    pub(crate) fn is_answered_below(&self, append: u64) -> bool {
        lock(&self.waiting).oldest().is_none_or(|oldest| oldest >= append)
    }

    /// Whether all that was put into it, at whatever level, was given back: then it is `written`.
    pub(crate) fn is_given_back(&self) -> bool {
        self.ring.unreleased() == 0
    }

    /// How many appends wait for their answer.
    pub(crate) fn pending(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Whether this process is a fork of the one that has the ring.
    pub(crate) fn is_forked(&self) -> bool {
        self.ring.is_forked()
    }

    /// Whether nothing can be put into it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Waits in the calling thread until the board has changed since `seen`, for at most `time`.
    pub(crate) fn wait_change(&self, seen: Marks, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let _ = self.ring.wait_change(seen, clock::now().saturating_add(nanos));
    }

    pub(crate) fn marks(&self) -> Marks {
        self.ring.marks()
    }

    /// The board of a daemon that was started anew.
    pub(crate) fn attach_board(
        &self,
        board: &std::os::fd::OwnedFd,
        highest: AckLevel,
    ) -> Result<(), clad_shm::OpenError> {
        self.pump(); // what the old one says is not on the new one
        self.met.fetch_max(self.last(), Ordering::AcqRel);
        self.highest.store(highest.code(), Ordering::Release);
        self.looked.store(0, Ordering::Release);
        self.ring.attach_board(board)?;
        self.set_log_id(LogId::from_bytes(self.ring.log().0));
        lock(&self.waiting).dues.board_is_new();
        self.pump();
        Ok(())
    }

    /// Somebody waits: a thread looks at the board for him.
    pub(crate) fn want(self: &Arc<Self>) {
        if self.wanted.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut thread = lock(&self.thread);
        match &*thread {
            Some(thread) => thread.unpark(),
            None => {
                let port = self.clone();
                let spawned = std::thread::Builder::new().name("clad-ring".to_owned()).spawn(move || port.watch());
                // Without it whoever polls looks himself; the next one tries again.
                self.wanted.store(spawned.is_ok(), Ordering::Release);
                *thread = spawned.ok().map(|spawned| spawned.thread().clone());
            }
        }
    }

    /// A thread looks at the board for all that wait there now, if there are any.
    pub(crate) fn want_for_waiting(self: &Arc<Self>) {
        if self.pending() > 0 {
            self.want();
        }
    }

    /// The thread: sleeps on the board while somebody waits, else until somebody does.
    fn watch(&self) {
        while !self.over.load(Ordering::Acquire) {
            let seen = self.ring.marks();
            if self.pump() {
                self.answered.notify_one();
            }
            if self.pending() > 0 {
                let _ = self.ring.wait_change(seen, clock::now() + LOOK_NS);
                continue;
            }
            self.wanted.store(false, Ordering::Release);
            // Whoever came in between finds it unwanted, and wakes this thread; or it finds him here.
            if self.pending() == 0 && !self.over.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_nanos(LOOK_NS));
            }
        }
    }

    /// The ring is given up: nothing more goes in, and whoever waits is told why.
    pub(crate) fn end(&self, error: &AppendError) {
        self.ring.close();
        self.pump();
        self.over.store(true, Ordering::Release);
        // A thread that was putting something in comes to wait for it only now: it is told the same.
        let mut settled = Settled::default();
        let waiting = {
            let mut waiting = lock(&self.waiting);
            waiting.dues.end_all(error, &mut settled);
            waiting.queues.end(error)
        };
        self.tell(settled);
        for waiting in waiting {
            self.resolve(waiting.claim, waiting.count, Err(error.clone()));
        }
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }
}

/// What is due for an append that was pushed.
#[derive(Debug)]
pub(crate) enum Due {
    /// It is there already.
    Known(Result<Receipt, AppendError>),
    Later(Later),
}

/// The outcome of an append that is in the ring. Dropped before it was fetched, an error is the next flush's to tell.
#[derive(Debug)]
pub(crate) struct Later {
    port: Arc<Port>,
    append: u64,
    fetched: bool,
}

impl Later {
    /// Waits in the calling thread; looks without sleeping for `spin`, then sleeps until the board changes, for `most` at
    /// a time.
    pub(crate) fn wait(mut self, spin: Duration, most: Duration) -> Result<Receipt, AppendError> {
        // A fork has the locks as they were.
        if self.port.is_forked() {
            return Err(AppendError::Forked);
        }
        // Who looked at the board before has settled others, too.
        if let Some(outcome) = self.fetch(Port::outcome) {
            return outcome;
        }
        let mut start = None;
        loop {
            let seen = self.port.marks();
            if let Some(outcome) = self.fetch(Port::outcome_now) {
                return outcome;
            }
            let now = Instant::now();
            match now - *start.get_or_insert(now) < spin {
                true => std::thread::yield_now(),
                // It may be told by another's look, or the ring end: then nothing on the board says so.
                false => self.port.wait_change(seen, most),
            }
        }
    }

    /// As a future is polled.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Receipt, AppendError>> {
        if self.port.is_forked() {
            return Poll::Ready(Err(AppendError::Forked));
        }
        if let Some(outcome) = self.fetch(Port::outcome_now) {
            return Poll::Ready(outcome);
        }
        let before = lock(&self.port.waiting).dues.set_waker(self.append, cx.waker());
        drop(before);
        self.port.want();
        // It may have come since.
        self.fetch(Port::outcome_now).map_or(Poll::Pending, Poll::Ready)
    }

    fn fetch(
        &mut self,
        by: impl FnOnce(&Port, u64) -> Option<Result<Receipt, AppendError>>,
    ) -> Option<Result<Receipt, AppendError>> {
        let outcome = by(&self.port, self.append);
        self.fetched |= outcome.is_some();
        outcome
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.fetched || self.port.is_forked() {
            return;
        }
        let let_go = lock(&self.port.waiting).dues.let_go(self.append);
        let (error, _waker) = let_go;
        if let Some(error) = error {
            lock(&self.port.unheard).get_or_insert(error);
        }
    }
}

fn is_refused(look: &Look<'_>, append: u64) -> bool {
    let code = look.answer(append).map_or(0, |answer| answer.code);
    code != 0 && code != u32::from(ErrorCode::SequenceTooOld.number())
}

fn mark(marks: &Marks, level: AckLevel) -> u64 {
    match level {
        AckLevel::Durable => marks.durable,
        AckLevel::Written => marks.written,
        _ => marks.received,
    }
}
