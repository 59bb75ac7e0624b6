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

use clad_journal::Marks;
use clad_shm::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{oneshot, watch};

use super::pace::{Pace, Rest};
use super::pass::{Batch, Fill};
use super::ring::Ring;
use super::{Order, Shared};

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
    /// Nothing is taken until then.
    paused: Option<Instant>,
    /// Who waits until everything older than a time was handed over.
    catching_up: Vec<(u64, oneshot::Sender<()>)>,
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
            self.take_orders();
            self.look_at_marks();
            let worked = self.pass();
            self.give_back();
            if self.stop && self.rings.is_empty() {
                return;
            }
            match worked {
                Next::Again => {}
                Next::Soon => self.rest(Some(SOON)),
                Next::Idle => match self.pace.rest(Instant::now(), self.somebody_waits()) {
                    Rest::Spin => std::thread::yield_now(),
                    Rest::Doze => self.rest(Some(DOZE)),
                    Rest::Sleep => self.sleep(),
                },
            }
        }
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
                Order::CatchUp(time, done) => self.catching_up.push((time, done)),
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
        for ring in &mut self.rings {
            match ring.release(&marks) {
                Some(any) => told |= any,
                None => ring.rewind(),
            }
        }
        if told {
            self.pace.told(Instant::now());
        }
    }

    fn pass(&mut self) -> Next {
        if self.paused.is_some_and(|until| Instant::now() < until) {
            return Next::Soon;
        }
        self.paused = None;
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
        match self.paused {
            None if left == Fill::More => {}
            None => self.caught_up(upto),
            // It was tried, and whatever else was logged before would be refused, too, as what waits for it will be.
            Some(_) => self.caught_up(before),
        }
        match left {
            _ if worked => Next::Again,
            Fill::More => Next::Again,
            Fill::Held => Next::Soon,
            Fill::All if self.rings.iter_mut().any(Ring::is_paused) => Next::Soon,
            Fill::All => Next::Idle,
        }
    }

    fn caught_up(&mut self, upto: u64) {
        if self.catching_up.iter().any(|(time, _)| *time <= upto) {
            let (done, waiting) =
                std::mem::take(&mut self.catching_up).into_iter().partition(|(time, _)| *time <= upto);
            self.catching_up = waiting;
            let done: Vec<(u64, oneshot::Sender<()>)> = done;
            for (_, done) in done {
                let _ = done.send(());
            }
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
            self.rest(None);
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
        if time.is_none() {
            crate::metrics::ring_wakeup();
        }
        for at in ended {
            self.rings[at].leave(false);
        }
    }
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Again,
    Soon,
    Idle,
}
