//! State of the drain, and its turns: a cycle over all rings, the orders, the watermarks. The task around it is in
//! `task.rs`.
//!
//! Invariant: no wake-up is lost. A client commits its record first and then looks if the drain sleeps. The drain says on
//! a ring that it sleeps first and then looks if there is something ([`Drainage::lie_down`]). A ring from which nothing
//! was taken may say so while the drain is awake: its client rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use clad_journal::{DeferredWrite, Wants, Watcher, Watermarks};
use clad_proto::ErrorCode;
use clad_shm::clock;

use super::busy::Load;
use super::cycle::{Batch, Fill};
use super::given::Given;
use super::hold::Hold;
use super::ring::Ring;
use super::shared::{Order, Reach, Shared};
use crate::ingest::Admission;

/// State of the drain.
pub(super) struct Drainage {
    shared: Arc<Shared>,
    /// For the journal and the budget, which no reload replaces.
    admission: Arc<Admission>,
    rings: Vec<Ring>,
    batch: Batch,
    watcher: Watcher,
    /// As they were looked at last.
    watermarks: Watermarks,
    /// The journal takes nothing now.
    hold: Option<Hold>,
    /// Reason, as all completion pages say.
    all_wait: Option<ErrorCode>,
    /// Waiters for what lies in rings.
    reaching: Vec<Reach>,
    /// Woken when there is room for the batch.
    waker: Waker,
    /// Time when the first ring's client must have come back, after a restart.
    expected: Option<Instant>,
    pub(super) load: Load,
    /// Something was handed over since the watermarks were looked at.
    handed_over: bool,
    /// The write that was deferred for what was handed over.
    pub(super) deferred_write: Option<DeferredWrite>,
    stop: bool,
}

impl Drainage {
    pub(super) fn new(shared: Arc<Shared>, rings: Vec<Ring>) -> Self {
        let mut watcher = shared.journal.watcher();
        let mut drainage = Self {
            watermarks: watcher.now(),
            watcher,
            waker: shared.bells.waker(),
            admission: shared.admission(),
            shared,
            rings: Vec::with_capacity(rings.len()),
            batch: Batch::default(),
            hold: None,
            all_wait: None,
            reaching: Vec::new(),
            expected: None,
            load: Load::default(),
            handed_over: false,
            deferred_write: None,
            stop: false,
        };
        rings.into_iter().for_each(|ring| drainage.add(ring));
        drainage.expect_clients();
        drainage
    }

    /// Adds one more ring.
    fn add(&mut self, mut ring: Ring) {
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

    /// Returns true if it was stopped, and all is drained.
    pub(super) fn is_over(&self) -> bool {
        self.stop && self.rings.is_empty() && self.has_ended()
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
        drop(self.deferred_write.take());
        next
    }

    /// Does everything that can be done without waiting.
    pub(super) fn look(&mut self) -> Next {
        self.shared.asleep.store(false, Ordering::SeqCst);
        self.rings.iter_mut().filter(|ring| ring.has_process_ended()).for_each(|ring| ring.leave(false));
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
                    let _ = given.send(found.and_then(|ring| Given::again(ring.registered.note, ring.drain()).ok()));
                }
                Order::Retire { id, forget, done } => {
                    let Some(ring) = self.rings.iter_mut().find(|ring| ring.registered.note.id == id) else { continue };
                    ring.leave(forget);
                    ring.ended.extend(done);
                }
                Order::Reach(reach) => {
                    // A waiter that has waited for too long is gone.
                    self.reaching.retain(|reach| !reach.done.is_closed());
                    self.reaching.push(reach);
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
        let watermarks = self.watcher.now();
        let before = std::mem::replace(&mut self.watermarks, watermarks);
        // A ring that ends does so as soon as nobody waits for what it had: that is no later watermark.
        let is_new =
            std::mem::take(&mut self.handed_over) || self.rings.iter().any(|ring| ring.registered.is_leaving());
        if !is_new && watermarks.version == before.version {
            return;
        }
        if watermarks.epoch != before.epoch {
            self.rings.iter_mut().for_each(|ring| ring.set_epoch(watermarks.epoch));
        }
        for ring in &mut self.rings {
            if ring.release(&watermarks).is_none() {
                ring.rewind(watermarks.written);
            }
        }
    }

    /// Asks to be woken when something is due by the watermarks, or they have another state. Returns true if they have.
    pub(super) fn watch_watermarks(&mut self, context: &mut Context<'_>) -> bool {
        let none = Wants { written: u64::MAX, durable: u64::MAX };
        let wants = self.rings.iter().map(|ring| ring.in_flight.wants()).fold(none, |all, one| Wants {
            written: all.written.min(one.written),
            durable: all.durable.min(one.durable),
        });
        let reached = std::pin::pin!(self.watcher.reached(wants));
        matches!(reached.poll(context), Poll::Ready(Ok(())))
    }

    fn drain_cycle(&mut self) -> Next {
        if let Some(until) = self.hold.as_ref().map(|hold| hold.until).filter(|until| Instant::now() < *until) {
            self.answer_waiters(false);
            return Next::At(until);
        }
        self.hold = None;
        self.batch.admit(&mut self.rings, &self.waker);
        let left = self.batch.fill(&mut self.rings, clock::now());
        let worked = !self.batch.is_empty();
        if worked {
            let arrival = self.admission.arrival();
            let handed = self.batch.hand_over(&mut self.rings, &self.admission, arrival);
            (self.hold, self.handed_over) = (handed.hold, true);
            self.load.handed_over(Instant::now(), handed.asked);
            self.deferred_write = handed.deferred_write;
        }
        self.say_why();
        self.answer_waiters(true);
        match left {
            Fill::More => Next::Again,
            Fill::Blocked => Next::Soon,
            Fill::All => Next::Rest { worked },
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

    /// Notifies those whose ring is handed over up to where they wait for, or waits for a reason that does not pass by
    /// itself: where the journal takes nothing, or nothing of that ring. A ring without room resumes by itself.
    /// `looked`: at all rings, since the orders were taken.
    fn answer_waiters(&mut self, looked: bool) {
        let (rings, hold) = (&self.rings, &self.hold);
        let answer = |reach: &Reach| {
            let Some(ring) = rings.iter().find(|ring| ring.registered.note.id == reach.id) else { return Some(Ok(())) };
            // A slot that nobody has committed by now belongs to a push that has not returned: it is not waited for.
            let is_reached = ring.has_reached(reach.upto) || looked && ring.is_empty();
            match ring.held().or(hold.as_ref()) {
                _ if is_reached => Some(Ok(())),
                Some(hold) => Some(Err(hold.why.clone())),
                None => None,
            }
        };
        let mut waiting = Vec::new();
        for reach in self.reaching.drain(..) {
            match answer(&reach) {
                Some(answer) => drop(reach.done.send(answer)),
                None => waiting.push(reach),
            }
        }
        self.reaching = waiting;
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
            ring.say_refused(true);
            tracing::debug!(peer = ring.peer.name, ring = %ring.registered.note.id, "a ring was drained to its end");
            self.shared.fd_store.forget(&ring.registered.note);
            let (registered, ended) = (ring.registered.clone(), std::mem::take(&mut ring.ended));
            // The producer's session ends before the registry says that there is no ring: a HELLO that finds none must not
            // hear of a life that BYE has ended.
            drop(ring);
            self.shared.registry.deregister(&registered);
            for done in ended {
                let _ = done.send(());
            }
        }
    }

    /// Takes the rings from which something was taken for awake: their clients need not ring, as it looks again by
    /// itself.
    pub(super) fn stay_up(&mut self) {
        self.rings.iter_mut().for_each(Ring::stay_up);
    }

    /// Says on the rings that it sleeps, and looks once more; `false`: there is something. While nothing can be taken
    /// (`all_held`), or nothing of one ring, no client of it has to wake the drain. A ring that is blocked is looked at
    /// again by the clock.
    pub(super) fn lie_down(&mut self, all_held: bool) -> bool {
        let takes =
            |ring: &&mut Ring| !all_held && ring.held().is_none() && !ring.waits_for_room() && !ring.is_blocked();
        let mut quiet = true;
        for ring in self.rings.iter_mut().filter(takes) {
            quiet &= ring.sleep();
        }
        self.shared.asleep.store(quiet, Ordering::SeqCst);
        quiet
    }

    /// Time when it must look again, though nothing wakes it. Room wakes it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let held = self.rings.iter().filter(|ring| !ring.waits_for_room()).filter_map(Ring::held);
        let holds = held.map(|hold| hold.until);
        self.expected.into_iter().chain(holds).min()
    }
}

/// Next action of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There is more than a cycle takes.
    Again,
    /// Something waits for an uncommitted slot.
    Soon,
    /// Then, or when it is woken: nothing is taken until then.
    At(Instant),
    /// All was taken; `worked`: there was something.
    Rest { worked: bool },
}
