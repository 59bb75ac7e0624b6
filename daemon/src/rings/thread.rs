//! The thread that drains the rings, and how it sleeps.
//!
//! After it found something or told somebody it looks again for `spin`, without sleeping; it offers its processor in
//! between, because what it waits for may need that: the journal's thread that writes, or a client. Then it dozes: as
//! long as nobody asks for answers it looks every [`DOZE`], for a while after the last record, and no client needs to
//! wake it. Then it sleeps, and the first client that commits wakes it ([`super::pace`]). So an idle daemon takes no CPU
//! time, a steady trickle costs its writers no system call, and whoever waits for an answer is not kept waiting for a doze.
//!
//! What must hold: no wake-up is lost. Whoever has something for this thread (a record, an order, a mark that moved) says
//! so first and then looks whether it sleeps; this thread says that it sleeps first and then looks whether there is
//! something.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use clad_journal::{Accepting, Marks};
use clad_shm::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use super::pace::{Pace, Rest};
use super::pass::{Batch, Fill};
use super::ring::Ring;
use super::{Order, Shared, Waits};

/// Between two looks of a doze.
const DOZE: Duration = Duration::from_micros(500);
/// Between two looks while something is held up, or waits for room.
const SOON: Duration = Duration::from_micros(100);

/// What the thread holds.
pub(super) struct Drainage {
    shared: Arc<Shared>,
    rings: Vec<Ring>,
    batch: Batch,
    marks: watch::Receiver<Marks>,
    epoch: u32,
    /// The log refuses appends: nothing is taken until then, or until it takes them again.
    paused: Option<Instant>,
    catching_up: Vec<Waits>,
    pace: Pace,
    /// Something was, since the marks were looked at.
    handed_over: bool,
    stop: bool,
}

impl Drainage {
    pub(super) fn new(shared: Arc<Shared>, rings: Vec<Ring>) -> Self {
        let marks = shared.journal.subscribe();
        let epoch = marks.borrow().epoch;
        let pace = Pace::new(shared.settings.spin, Instant::now());
        Self {
            epoch,
            marks,
            shared,
            rings,
            batch: Batch::default(),
            paused: None,
            catching_up: Vec::new(),
            pace,
            handed_over: false,
            stop: false,
        }
    }

    /// Drains until it is told to stop and has nothing left.
    pub(super) fn run(mut self) {
        loop {
            let next = self.turn();
            if self.stop && self.rings.is_empty() {
                return;
            }
            match next {
                Next::Again => {}
                Next::Soon => self.rest(Some(SOON)),
                Next::Paused(time) => self.rest(Some(time)),
                Next::Idle => match self.pace.rest(Instant::now(), self.somebody_waits()) {
                    Rest::Spin => std::thread::yield_now(),
                    Rest::Doze => self.rest(Some(DOZE)),
                    Rest::Sleep => self.sleep(),
                },
            }
        }
    }

    /// Everything that can be done without waiting.
    pub(super) fn turn(&mut self) -> Next {
        self.take_orders();
        self.look_at_marks();
        let next = self.pass();
        self.give_back();
        next
    }

    fn take_orders(&mut self) {
        if !self.shared.ordered.swap(false, Ordering::AcqRel) {
            return;
        }
        let orders = std::mem::take(&mut *self.shared.orders());
        for order in orders {
            match order {
                Order::Add(ring, done) => {
                    self.rings.push(*ring);
                    let _ = done.send(());
                }
                Order::GoOn(id, given) => {
                    let found = self.rings.iter().find(|ring| ring.member.note.id == id);
                    let _ = given.send(found.and_then(|ring| super::Given::again(ring.member.note, ring.drain()).ok()));
                }
                Order::Retire { id, forget, done } => {
                    let Some(ring) = self.rings.iter_mut().find(|ring| ring.member.note.id == id) else { continue };
                    ring.leave(forget);
                    ring.ended.extend(done);
                }
                Order::CatchUp(waits) => {
                    // Who has waited for too long is gone.
                    self.catching_up.retain(|waits| !waits.done.is_closed());
                    self.catching_up.push(waits);
                }
                Order::Stop => {
                    self.stop = true;
                    self.rings.iter_mut().for_each(|ring| ring.leave(false));
                }
            }
        }
    }

    /// Tells the rings what the marks say, if they have moved or there is something new to tell of: what was taken
    /// before, by a daemon before this one, may have its level already.
    fn look_at_marks(&mut self) {
        if !std::mem::take(&mut self.handed_over) && !self.marks.has_changed().unwrap_or(false) {
            return;
        }
        let marks = *self.marks.borrow_and_update();
        if marks.epoch != self.epoch {
            self.epoch = marks.epoch;
            self.rings.iter_mut().for_each(|ring| ring.set_epoch(marks.epoch));
        }
        let mut told = false;
        for (at, ring) in self.rings.iter_mut().enumerate() {
            match ring.release(&marks) {
                Some(any) => told |= any,
                None => {
                    ring.rewind();
                    self.batch.forget(at);
                }
            }
        }
        if told {
            self.pace.told(Instant::now());
        }
    }

    fn pass(&mut self) -> Next {
        if let Some(time) = self.pause() {
            self.caught_up(u64::MAX, false);
            return Next::Paused(time);
        }
        let waiting = !self.batch.is_empty(); // for room, since an earlier pass
        let before = clock::now_before_looking();
        let (left, upto) = if waiting { (Fill::More, 0) } else { self.batch.fill(&mut self.rings, before) };
        let worked = !self.batch.is_empty();
        if worked {
            let door = self.shared.door();
            let arrival = door.arrival();
            match self.batch.hand_over(&mut self.rings, &door, arrival) {
                None => return Next::Soon,
                Some(handed) => {
                    (self.paused, self.handed_over) = (handed.paused, true);
                    self.pace.handed_over(Instant::now(), handed.asked);
                }
            }
        }
        if left != Fill::More && self.paused.is_none() {
            self.caught_up(upto, true);
        }
        match left {
            _ if worked => Next::Again,
            Fill::More => Next::Again,
            Fill::Held => Next::Soon,
            Fill::All => Next::Idle,
        }
    }

    /// How long nothing is taken. Ends when the log takes appends again: who comes by a socket then waits for the rings.
    fn pause(&mut self) -> Option<Duration> {
        let left = self.paused?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        if left.is_none() || self.shared.journal.marks().accepting == Accepting::Yes {
            self.paused = None;
            return None;
        }
        left
    }

    /// Tells who waits for what is older than `upto` that it was handed over, or that it is not waited for.
    fn caught_up(&mut self, upto: u64, handed_over: bool) {
        for waits in self.catching_up.extract_if(.., |waits| waits.time <= upto) {
            let own = waits.own.and_then(|id| self.rings.iter().find(|ring| ring.member.note.id == id));
            // Nobody listens any more if this fails.
            let _ = waits.done.send(handed_over && !own.is_some_and(Ring::is_aside));
        }
    }

    /// Lets go of the rings that are drained to their end.
    fn give_back(&mut self) {
        if !self.batch.is_empty() {
            return; // it knows the rings by their places
        }
        let mut at = 0;
        while at < self.rings.len() {
            if !self.rings[at].is_over() {
                at += 1;
                continue;
            }
            let mut ring = self.rings.swap_remove(at);
            tracing::debug!(peer = ring.peer.name, ring = %ring.member.note.id, "a ring was drained to its end");
            self.shared.keeper.forget(&ring.member.note);
            self.shared.roll.leave(&ring.member);
            let ended = std::mem::take(&mut ring.ended);
            drop(ring); // its producer's session has ended before anybody hears of it
            for done in ended {
                let _ = done.send(());
            }
        }
    }

    fn somebody_waits(&self) -> bool {
        self.rings.iter().any(Ring::waits)
    }

    /// Says that it sleeps, looks once more, and sleeps until it is woken.
    fn sleep(&mut self) {
        let shared = self.shared.clone();
        shared.waits_for_marks.store(self.somebody_waits(), Ordering::Relaxed);
        shared.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut quiet = !shared.ordered.load(Ordering::SeqCst) && !self.marks.has_changed().unwrap_or(false);
        for ring in &mut self.rings {
            quiet &= ring.sleep();
        }
        if quiet {
            let again = self.rings.iter().filter_map(Ring::again_at).min();
            self.rest(again.map(|at| Duration::from_nanos(at.saturating_sub(clock::now()))));
            crate::metrics::ring_wakeup();
        }
        shared.asleep.store(false, Ordering::SeqCst);
        self.rings.iter_mut().for_each(Ring::awake);
    }

    /// Waits for a wake-up, or for so long.
    fn rest(&mut self, time: Option<Duration>) {
        let shared = self.shared.clone();
        let time = time.map(|time| Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ });
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
        drop(fds);
        if belled {
            let mut count = [0; 8];
            let _ = rustix::io::read(&shared.bell, &mut count);
        }
        for at in ended {
            self.rings[at].leave(false);
        }
    }
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Again,
    Soon,
    /// The log refuses appends, for so long.
    Paused(Duration),
    Idle,
}
