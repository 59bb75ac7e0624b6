//! The ring that a producer has now.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};
use std::thread::Thread;
use std::time::Duration;

use clad_proto::{
    AckLevel, ErrorCode, ErrorInfo, LogId,
    frame::{RingAppendHead, RingId},
};
use clad_shm::{Marks, Producer, PushError, clock};

use tokio::sync::Notify;

use super::waiting::{Queues, Waiting};
use crate::{
    AppendError,
    producer::{Claim, Counters, Receipt},
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: RingId,
    /// The daemon's clock is another one: what is in this ring is ordered by when it is drained.
    pub(crate) other_clock: bool,
    ring: Producer,
    log_id: LogId,
    /// What the log offers at most, which is what appends without a level of their own ask for. A code: another daemon may
    /// offer another.
    highest: AtomicU8,
    waiting: Mutex<Queues>,
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
    counters: Arc<Counters>,
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
            other_clock,
            ring,
            log_id,
            highest: AtomicU8::new(highest.code()),
            waiting: Mutex::default(),
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

    fn highest(&self) -> AckLevel {
        AckLevel::from_code(self.highest.load(Ordering::Acquire)).unwrap_or(AckLevel::Written)
    }

    /// The longest payload of an append.
    pub(crate) fn max_append_bytes(&self) -> u32 {
        u32::try_from(self.ring.max_payload().saturating_sub(RingAppendHead::BYTES)).unwrap_or(u32::MAX)
    }

    /// Puts an append into the ring. Never waits.
    pub(crate) fn post(self: &Arc<Self>, append: Append, claim: Claim) -> Posted {
        let highest = self.highest();
        let level = append.level.unwrap_or(highest);
        if level > highest {
            self.resolve(claim, append.count, Err(unreachable_level(level)));
            return Posted::Done;
        }
        let head = RingAppendHead { level, payload_crc: append.crc }.encode();
        let count = append.count;
        match self.ring.push(&[&head, &append.payload], count) {
            Ok(number) => {
                self.counters.sent.add(count.into());
                self.posted(Waiting { append: number, count, level, claim });
                Posted::Done
            }
            Err(PushError::Forked) => Posted::Forked(append, claim),
            Err(PushError::Size { len, max }) => {
                let head = RingAppendHead::BYTES as u64;
                let error = AppendError::TooLarge { len: len as u64 - head, max: max as u64 - head };
                self.resolve(claim, count, Err(error));
                Posted::Done
            }
            // Full, closed, or the space was given up under us: nothing of it is in the ring.
            Err(_) => Posted::Wait(append, claim),
        }
    }

    pub(super) fn posted(self: &Arc<Self>, waiting: Waiting) {
        let (number, level) = (waiting.append, waiting.level);
        if level < AckLevel::Received {
            let receipt = self.receipt(None, waiting.count, level);
            return self.resolve(waiting.claim, waiting.count, Ok(receipt));
        }
        self.last.fetch_max(number + 1, Ordering::AcqRel);
        let mut queues = lock(&self.waiting);
        if let Some(error) = queues.ended() {
            let error = error.clone();
            drop(queues);
            return self.resolve(waiting.claim, waiting.count, Err(error));
        }
        queues.insert(waiting);
        // An answer is kept for as many appends as the ring has slots: fetch it well before.
        let late = queues
            .oldest()
            .is_some_and(|oldest| number - oldest.min(number) >= u64::from(self.ring.shape().slots() / 2));
        drop(queues);
        if self.ring.refused() > number {
            self.looked.fetch_min(number, Ordering::AcqRel);
        }
        // The answer may have come before it was waited for.
        if late || self.ring.refused() > number || mark(&self.ring.marks(), level) > number {
            self.pump();
        }
    }

    /// Looks at the board and tells those whose level is reached. True when anybody was told.
    pub(crate) fn pump(&self) -> bool {
        let mut covered = Vec::new();
        let marks = self.ring.marks();
        {
            let mut queues = lock(&self.waiting);
            queues.covered(&marks, &mut covered);
            // A refusal is final when it is there: no level is waited for. It is on the board before the mark that covers it.
            let refused = self.ring.refused().min(marks.received);
            let looked = self.looked.load(Ordering::Acquire);
            if looked < refused {
                self.looked.store(refused, Ordering::Release);
                queues.refused(looked..refused, |append| self.is_refused(append), &mut covered);
            }
        }
        let any = !covered.is_empty();
        for waiting in covered {
            let result = self.answer(&waiting);
            self.resolve(waiting.claim, waiting.count, result);
        }
        any
    }

    fn is_refused(&self, append: u64) -> bool {
        let code = self.ring.answer(append).map_or(0, |answer| answer.code);
        code != 0 && code != u32::from(ErrorCode::SequenceTooOld.number())
    }

    fn answer(&self, waiting: &Waiting) -> Result<Receipt, AppendError> {
        let Some(answer) = self.ring.answer(waiting.append) else {
            if waiting.append < self.ring.refused() {
                // The answer went with the daemon that gave it, or is overwritten, and it may have been a refusal.
                return Err(AppendError::Forgotten);
            }
            // It is as safe as was asked for; where it lies was overwritten by later answers.
            return Ok(self.receipt(None, waiting.count, waiting.level));
        };
        let code = ErrorCode::from_number(u16::try_from(answer.code).unwrap_or(u16::MAX));
        match (answer.code, code) {
            (0, _) => {
                let place = Some((answer.epoch, answer.first_offset));
                Ok(self.receipt(place, waiting.count, waiting.level))
            }
            // Stored by a daemon before this one, so long ago that the offset is not known any more.
            (_, ErrorCode::SequenceTooOld) => Ok(self.receipt(None, waiting.count, waiting.level)),
            _ => {
                let mut error = ErrorInfo::new(code, "the daemon refused it as it drained the ring");
                error.record_index = (code == ErrorCode::BadRecord || code == ErrorCode::RecordTooLarge)
                    .then(|| u32::try_from(answer.detail).unwrap_or(u32::MAX));
                error.maybe_written |= waiting.append < self.met.load(Ordering::Acquire);
                let maybe_written = error.maybe_written;
                Err(AppendError::Refused { error: Box::new(error), maybe_written })
            }
        }
    }

    fn receipt(&self, place: Option<(u32, u64)>, count: u32, level: AckLevel) -> Receipt {
        let epoch = place.map_or_else(|| self.ring.log().1, |(epoch, _)| epoch);
        Receipt { log_id: self.log_id, epoch, first_offset: place.map(|(_, offset)| offset), count, level }
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
            if !lock(&self.waiting).is_empty() {
                let _ = self.ring.wait_change(seen, clock::now() + LOOK_NS);
                continue;
            }
            self.wanted.store(false, Ordering::Release);
            // Whoever came in between finds it unwanted, and wakes this thread; or it finds him here.
            if lock(&self.waiting).is_empty() && !self.over.load(Ordering::Acquire) {
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
        let waiting = lock(&self.waiting).end(error);
        for waiting in waiting {
            self.resolve(waiting.claim, waiting.count, Err(error.clone()));
        }
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }
}

fn mark(marks: &Marks, level: AckLevel) -> u64 {
    match level {
        AckLevel::Durable => marks.durable,
        AckLevel::Written => marks.written,
        _ => marks.received,
    }
}
