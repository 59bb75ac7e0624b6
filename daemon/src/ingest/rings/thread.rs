//! Work and sleep of the thread that drains the rings. `leader.rs` decides which of two threads that is.
//!
//! After it found or announced something, the thread looks again for `spin`, without sleeping. It yields its processor
//! in between, because the journal's writing thread or a client may need it. Then it dozes: while no client asks for
//! answers it looks every [`DOZE_INTERVAL`], for a while after the last record. No client needs to wake it. Then it
//! sleeps, and the first client that commits wakes it ([`super::backoff`]). So an idle daemon takes no CPU time, a
//! steady trickle costs its writers no system call, and no waiting client waits for a doze.
//!
//! Invariant: no wake-up is lost. The sender of something for this thread (a record, an order, a moved watermark) says
//! so first and then looks if the thread sleeps. This thread says that it sleeps first and then looks if there is
//! something.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Waker;
use std::time::{Duration, Instant};

use clad_journal::{DeferredWrite, Watermarks};
use clad_proto::{ErrorCode, ErrorInfo};
use clad_shm::{StallBudget, StallLimits, clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use super::backoff::{BUSY_PAUSE, Backoff, InlineWritePolicy, Rest};
use super::cycle::{Batch, Fill, Hold};
use super::leader::{StepDown, Watch};
use super::ring::Ring;
use super::{CatchUp, Order, Shared};
use crate::ingest::Admission;

/// Between two looks of a doze.
const DOZE_INTERVAL: Duration = Duration::from_micros(500);
/// Between two looks while something is held up.
const STALL_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// With more rings than this the thread makes no write itself: it would have to say on each of them that it sleeps.
const INLINE_WRITE_RINGS_MAX: usize = 8;

/// Time for which uncommitted slots in rings may hold others up, over all users together, in percent. One user may take
/// less, so that only a conspiracy reaches it, and everybody's intake continues even then.
const STALL_BUDGET_ALL_USERS_PERCENT: u64 = 50;

/// State of the thread.
pub(super) struct Drainage {
    shared: Arc<Shared>,
    /// For the journal and the budget, which no reload replaces.
    admission: Arc<Admission>,
    /// Wakes the standby thread while none leads.
    watch: Arc<Watch>,
    rings: Vec<Ring>,
    /// Budget for the uncommitted slots of all rings.
    stall_budget: StallBudget,
    batch: Batch,
    watermarks: watch::Receiver<Watermarks>,
    epoch: u32,
    /// The journal takes nothing now.
    hold: Option<Hold>,
    /// Reason, as all completion pages say.
    all_wait: Option<ErrorCode>,
    catching_up: Vec<CatchUp>,
    /// Woken when there is room for the batch: rings the bell.
    waker: Waker,
    /// Time when the first ring's client must have come back, after a restart.
    expected: Option<Instant>,
    backoff: Backoff,
    /// Something was handed over since the watermarks were looked at.
    handed_over: bool,
    /// The write that was deferred for what was handed over.
    deferred_write: Option<DeferredWrite>,
    inline_writes: InlineWritePolicy,
    /// Its thread went to make a write, and none has led since.
    went: bool,
    stop: bool,
    over: bool,
}

impl Drainage {
    pub(super) fn new(shared: Arc<Shared>, watch: Arc<Watch>, rings: Vec<Ring>) -> Self {
        let watermarks = shared.journal.subscribe();
        let epoch = watermarks.borrow().epoch;
        let backoff = Backoff::new(shared.settings.spin, Instant::now());
        let stall_budget =
            StallBudget::new(StallLimits { percent: STALL_BUDGET_ALL_USERS_PERCENT, ..StallLimits::default() });
        let mut drainage = Self {
            epoch,
            watermarks,
            waker: Waker::from(shared.clone()),
            admission: shared.admission(),
            shared,
            watch,
            rings: Vec::with_capacity(rings.len()),
            stall_budget,
            batch: Batch::default(),
            hold: None,
            all_wait: None,
            catching_up: Vec::new(),
            expected: None,
            backoff,
            handed_over: false,
            deferred_write: None,
            inline_writes: InlineWritePolicy::default(),
            went: false,
            stop: false,
            over: false,
        };
        rings.into_iter().for_each(|ring| drainage.add(ring));
        drainage.expect_clients();
        drainage
    }

    /// Adds one more ring. The rings of one user have one stall budget for their uncommitted slots.
    fn add(&mut self, mut ring: Ring) {
        let of_one = self.rings.iter().find(|other| other.registered.note.uid == ring.registered.note.uid);
        let stall_budget = of_one.map(|other| other.drain().stall_budget().clone());
        ring.set_stall_budget(
            stall_budget.unwrap_or_else(|| self.stall_budget.part(StallLimits::default(), clock::now())),
        );
        ring.set_watched(self.watch.add(ring.waker()));
        ring.all_wait(self.all_wait);
        self.rings.push(ring);
    }

    #[cfg(test)]
    pub(super) fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// Closes the rings whose clients have not come back, and notes the clients that it waits for.
    fn expect_clients(&mut self) {
        let now = Instant::now();
        for ring in self.rings.iter_mut().filter(|ring| ring.expected().is_some_and(|until| until <= now)) {
            tracing::info!(peer = ring.peer.name, ring = %ring.registered.note.id, "nobody came back to a ring: it is closed");
            ring.leave(false);
        }
        self.expected = self.rings.iter().filter_map(Ring::expected).min();
    }

    /// Drains until a stop is ordered and nothing is left, or until it has a write to make.
    pub(super) fn lead(&mut self) -> StepDown {
        if std::mem::take(&mut self.went) {
            self.inline_writes.back(self.watch.woke());
            // No thread is to be woken beside one that leads. What comes now must not count as coming during a write.
            self.watch.disarm();
            self.get_up();
        }
        while !self.over {
            let next = self.look();
            if self.stop && self.rings.is_empty() && self.has_ended() {
                self.over = true;
                break;
            }
            if let Some(deferred_write) = self.goes() {
                return StepDown::DeferredWrite(deferred_write);
            }
            match next {
                Next::Again => {}
                Next::Pause => self.pause_while_busy(),
                Next::Soon => self.rest(Some(STALL_POLL_INTERVAL)),
                Next::At(until) => self.sleep(Some(until), true),
                Next::Idle => match self.backoff.rest(Instant::now(), self.somebody_waits()) {
                    Rest::Spin => std::thread::yield_now(),
                    Rest::Doze => self.rest(Some(DOZE_INTERVAL)),
                    Rest::Sleep => self.sleep(None, false),
                },
            }
        }
        StepDown::Drained
    }

    /// Returns the write that its thread goes to make; others make a deferred write that it does not go for.
    pub(super) fn goes(&mut self) -> Option<DeferredWrite> {
        let deferred_write = self.deferred_write.take()?;
        self.went = self.may_go() && self.lie_down(false);
        self.went.then_some(deferred_write)
    }

    /// Returns true if the thread may make a write itself: only what rings a bell can happen meanwhile.
    fn may_go(&mut self) -> bool {
        let waits = self.hold.is_some() || self.expected.is_some() || self.stop || self.batch.has_waiters();
        let rings = self.rings.len() <= INLINE_WRITE_RINGS_MAX
            && self.rings.iter().all(|ring| ring.is_watched() && ring.held().is_none());
        !waits && rings && self.catching_up.is_empty() && self.inline_writes.may()
    }

    /// Returns true if it takes no more orders, unless there are some.
    fn has_ended(&self) -> bool {
        let mut orders = self.shared.orders();
        let none = orders.as_ref().is_none_or(Vec::is_empty);
        if none {
            *orders = None;
        }
        none
    }

    /// Runs as in a turn in which others write.
    #[cfg(test)]
    pub(super) fn turn(&mut self) -> Next {
        let next = self.look();
        self.deferred_write = None;
        next
    }

    /// Does everything that can be done without waiting.
    pub(super) fn look(&mut self) -> Next {
        self.take_orders();
        if self.expected.is_some_and(|until| until <= Instant::now()) {
            self.expect_clients();
        }
        self.look_at_watermarks();
        let next = self.drain_cycle();
        self.give_back();
        next
    }

    fn take_orders(&mut self) {
        if !self.shared.ordered.swap(false, Ordering::AcqRel) {
            return;
        }
        let orders = self.shared.orders().as_mut().map(std::mem::take).unwrap_or_default();
        for order in orders {
            match order {
                Order::Add(mut ring, done) => {
                    if self.stop {
                        ring.leave(false);
                    }
                    self.add(*ring);
                    let _ = done.send(());
                }
                // A client that has waited for too long has gone, and gets no report.
                Order::Resume(_, given) if given.is_closed() => {}
                Order::Resume(id, given) => {
                    let mut found = self.rings.iter_mut().find(|ring| ring.registered.note.id == id);
                    if let Some(ring) = &mut found {
                        ring.came_back();
                    }
                    let _ =
                        given.send(found.and_then(|ring| super::Given::again(ring.registered.note, ring.drain()).ok()));
                }
                Order::Retire { id, forget, done } => {
                    let Some(ring) = self.rings.iter_mut().find(|ring| ring.registered.note.id == id) else { continue };
                    ring.leave(forget);
                    ring.ended.extend(done);
                }
                Order::CatchUp(catch_up) => {
                    // A waiter that has waited for too long is gone.
                    self.catching_up.retain(|catch_up| !catch_up.done.is_closed());
                    self.catching_up.push(catch_up);
                }
                Order::Sign(sign) => drop(sign.send(())),
                Order::Count(written, done) => {
                    let _ = done.send(self.rings.iter().map(|ring| ring.unwritten_from(written)).sum());
                }
                Order::Stop => {
                    self.stop = true;
                    self.rings.iter_mut().for_each(|ring| ring.leave(false));
                }
            }
        }
    }

    /// Announces the watermarks to the rings, if they have moved or there is something new to announce. What an earlier
    /// daemon took may have its level already.
    fn look_at_watermarks(&mut self) {
        if !std::mem::take(&mut self.handed_over) && !self.watermarks.has_changed().unwrap_or(false) {
            return;
        }
        let watermarks = *self.watermarks.borrow_and_update();
        if watermarks.epoch != self.epoch {
            self.epoch = watermarks.epoch;
            self.rings.iter_mut().for_each(|ring| ring.set_epoch(watermarks.epoch));
        }
        let mut answered = false;
        for ring in &mut self.rings {
            match ring.release(&watermarks) {
                Some(any) => answered |= any,
                None => ring.rewind(watermarks.written),
            }
        }
        if answered {
            self.backoff.answered(Instant::now());
        }
    }

    fn drain_cycle(&mut self) -> Next {
        if let Some(until) = self.hold.as_ref().map(|hold| hold.until).filter(|until| Instant::now() < *until) {
            self.cannot_catch_up();
            return Next::At(until);
        }
        self.hold = None;
        self.batch.admit(&mut self.rings, &self.waker);
        let before = clock::now_before_looking();
        let (left, upto) = self.batch.fill(&mut self.rings, before);
        let worked = !self.batch.is_empty();
        if worked {
            let arrival = self.admission.arrival();
            let appends = self.batch.len();
            let handed = self.batch.hand_over(&mut self.rings, &self.admission, arrival);
            (self.hold, self.handed_over) = (handed.hold, true);
            self.backoff.handed_over(Instant::now(), appends, handed.asked);
            let alone = left == Fill::All && handed.waits && !self.backoff.is_busy();
            self.deferred_write = handed.deferred_write.filter(|_| alone);
        }
        self.say_why();
        match self.hold {
            Some(_) => self.cannot_catch_up(),
            // Also where there is more: in a flood there always is.
            None => self.caught_up(upto),
        }
        match left {
            Fill::All if worked && self.backoff.is_busy() && self.catching_up.is_empty() => Next::Pause,
            _ if worked => Next::Again,
            Fill::More => Next::Again,
            Fill::Blocked => Next::Soon,
            Fill::All => Next::Idle,
        }
    }

    /// Says on the completion pages why nothing is taken, or that it is taken again, where that has changed.
    fn say_why(&mut self) {
        let why = self.hold.as_ref().map(|hold| hold.why.code);
        if why != self.all_wait {
            self.all_wait = why;
            self.rings.iter_mut().for_each(|ring| ring.all_wait(why));
        }
    }

    /// Notes that everything older than `upto` was handed over, but for what its ring holds. A waiter that asks for a
    /// ring without room waits with it.
    fn caught_up(&mut self, upto: u64) {
        let rings = &self.rings;
        let waits = |of| rings.iter().any(|ring| Some(ring.registered.note.id) == of && ring.waits_for_room());
        let is_over = |catch_up: &mut CatchUp| catch_up.time <= upto && !waits(catch_up.of);
        for CatchUp { of, done, .. } in self.catching_up.extract_if(.., is_over) {
            let ring = of.and_then(|id| self.rings.iter().find(|ring| ring.registered.note.id == id));
            let held = ring.and_then(Ring::held).map(|hold| hold.why.clone());
            let _ = done.send(held.map_or(Ok(()), Err::<(), ErrorInfo>));
        }
    }

    /// The journal takes nothing now: waiters for that are notified at once.
    fn cannot_catch_up(&mut self) {
        let Some(hold) = &self.hold else { return };
        for CatchUp { done, .. } in self.catching_up.drain(..) {
            let _ = done.send(Err(hold.why.clone()));
        }
    }

    /// Releases the rings that are drained to their end.
    fn give_back(&mut self) {
        let mut at = 0;
        while at < self.rings.len() {
            if !self.rings[at].is_over() {
                at += 1;
                continue;
            }
            let mut ring = self.rings.swap_remove(at);
            self.watch.remove(ring.waker());
            ring.say_refused(true);
            tracing::debug!(peer = ring.peer.name, ring = %ring.registered.note.id, "a ring was drained to its end");
            self.shared.fd_store.forget(&ring.registered.note);
            let (registered, ended) = (ring.registered.clone(), std::mem::take(&mut ring.ended));
            // The producer's session ends before the registry says that there is no ring: a HELLO that finds none must not
            // be told of a life that BYE has ended.
            drop(ring);
            self.shared.registry.deregister(&registered);
            for done in ended {
                let _ = done.send(());
            }
        }
    }

    fn somebody_waits(&self) -> bool {
        self.rings.iter().any(Ring::waits)
    }

    /// Says that it sleeps, looks once more, and sleeps until it is woken, or until `until`. While nothing can be taken
    /// (`all_held`), or nothing of one ring, no client of it has to wake the thread.
    fn sleep(&mut self, until: Option<Instant>, all_held: bool) {
        if self.lie_down(all_held) {
            let holds = self.rings.iter().filter_map(|ring| Some(ring.held()?.until));
            let until = until.into_iter().chain(self.expected).chain(holds).min();
            self.rest(until.map(|until| until.saturating_duration_since(Instant::now())));
            self.get_up();
        }
    }

    /// Says that it sleeps, and looks once more; `false`: there is something, and it is up again.
    fn lie_down(&mut self, all_held: bool) -> bool {
        let shared = &self.shared;
        shared.waits_for_watermarks.store(self.somebody_waits(), Ordering::Relaxed);
        shared.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut quiet = !shared.ordered.load(Ordering::SeqCst) && !self.watermarks.has_changed().unwrap_or(false);
        let takes = |ring: &&mut Ring| !all_held && ring.held().is_none() && !ring.waits_for_room();
        for ring in self.rings.iter_mut().filter(takes) {
            quiet &= ring.sleep();
        }
        if !quiet {
            self.get_up();
        }
        quiet
    }

    fn get_up(&mut self) {
        self.shared.asleep.store(false, Ordering::SeqCst);
        self.rings.iter_mut().for_each(Ring::awake);
    }

    /// Lets appends collect while busy, but not while there is an order.
    fn pause_while_busy(&self) {
        let time = Timespec { tv_sec: 0, tv_nsec: BUSY_PAUSE.subsec_nanos().into() };
        let mut bell = [PollFd::new(&self.shared.bell, PollFlags::IN)];
        if let Ok(1..) = poll(&mut bell, Some(&time)) {
            self.still_bell();
        }
    }

    fn still_bell(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
    }

    /// Waits for a wake-up, or for so long.
    pub(super) fn rest(&mut self, time: Option<Duration>) {
        let shared = self.shared.clone();
        let time = time.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(&shared.bell, PollFlags::IN)];
        let wakers: Vec<_> = self.rings.iter().map(Ring::waker).collect();
        fds.extend(wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)));
        let processes: Vec<_> = (0..).zip(&self.rings).filter_map(|(at, ring)| Some((at, ring.process()?))).collect();
        fds.extend(processes.iter().map(|(_, process)| PollFd::new(*process, PollFlags::IN)));
        let woken = poll(&mut fds, time.as_ref());
        let ended: Vec<usize> = match woken {
            Ok(1..) => {
                let of_processes = &fds[fds.len() - processes.len()..];
                let ready = processes.iter().zip(of_processes).filter(|(_, fd)| !fd.revents().is_empty());
                ready.map(|((at, _), _)| *at).collect()
            }
            _ => Vec::new(),
        };
        let belled = !fds[0].revents().is_empty();
        let doorbells = fds[1..=wakers.len()].iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
        let rung: Vec<usize> = doorbells.map(|(at, _)| at).collect();
        drop(fds);
        if belled {
            self.still_bell();
        }
        if time.is_none() {
            crate::ops::metrics::ring_wakeup();
        }
        for at in rung {
            self.rings[at].awake(); // a client may ring though no thread sleeps
        }
        for at in ended {
            self.rings[at].leave(false);
        }
    }
}

/// Next action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Again,
    /// At once, but under load.
    Pause,
    Soon,
    /// Then, or when it is woken.
    At(Instant),
    Idle,
}
