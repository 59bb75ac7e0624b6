//! Events while a journal lives: jobs in any order, time, readers, and a disk that gets worse.
//!
//! Invariant: the journal is shown to its users after each step, and only while its process lives.

use std::time::Duration;

use clad_journal::io::Storage;
use clad_journal::stepper::{Begun, Kind, Next};
use clad_journal::{Accepting, Event, Level, Policy};

use super::World;
use super::model::{Check, Death, Found, Violation, ensure};

impl World {
    /// A whole history.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Result<(), Violation> {
        for _ in 0..2 + self.rng.below(4) {
            self.start()?;
            let steps = 10 + self.rng.below(120);
            self.work(steps)?;
            match self.rng.below(8) {
                0..=2 => self.end(Death::PowerCut)?,
                3..=5 => self.end(Death::Kill)?,
                6 => {
                    self.settle()?;
                    self.end(Death::PowerCut)?;
                }
                _ => {
                    let clean = self.close()?;
                    if !clean || self.rng.coin() {
                        self.end(Death::PowerCut)?;
                    }
                }
            }
        }
        self.start()?;
        self.settle()?;
        self.close()?;
        self.eat(&[self.disk.digest()]);
        self.inspect()
    }

    /// Ends the life in this way, or in the way in which it has ended already.
    ///
    /// # Errors
    /// A broken rule.
    pub fn end(&mut self, how: Death) -> Result<(), Violation> {
        if self.disk.is_alive() || self.stepper.is_none() {
            self.die(how)
        } else {
            let how = self.cause();
            self.bury(how)
        }
    }

    /// So many things happen, or fewer where the process dies.
    ///
    /// # Errors
    /// A broken rule.
    pub fn work(&mut self, steps: u64) -> Result<(), Violation> {
        for _ in 0..steps {
            if !self.disk.is_alive() {
                break;
            }
            self.one_thing()?;
        }
        Ok(())
    }

    fn one_thing(&mut self) -> Check {
        if self.settings.bit_rot && self.rng.chance(1, 24) {
            self.bit_rot();
        }
        if self.settings.write_back_fails && self.rng.chance(1, 48) {
            self.lose_commit_marker()?;
        }
        if let Some(turnover) = &mut self.turnover
            && turnover.takes_its_turn()
        {
            return self.come_and_go();
        }
        if let Some(resends) = &mut self.resends
            && resends.takes_its_turn()
        {
            return self.send_without_sequence();
        }
        if let Some(forwards) = &mut self.forwards
            && forwards.takes_its_turn()
        {
            return self.forward_something();
        }
        match self.rng.below(100) {
            0..=2 => self.append_burst()?,
            3..=27 => self.append_something()?,
            28..=54 => {
                if let Some(Next::Job(job)) = self.stepper.as_ref().map(|s| s.begin()) {
                    self.begun(job);
                }
            }
            55..=76 => {
                if !self.held.is_empty() {
                    let at = self.rng.index(self.held.len());
                    let job = self.held.swap_remove(at);
                    self.execute(job)?;
                }
            }
            77..=85 => {
                let pause = [100, 1_000, 6_000, 150_000, 1_100_000][self.rng.index(5)];
                self.clock.step(Duration::from_micros(pause));
                if self.rng.chance(1, 10) {
                    let hours = self.rng.below(49) as i64 - 24;
                    self.clock.jump(hours * 3_600_000_000_000);
                }
            }
            86..=89 => {
                if let Some(stepper) = &self.stepper {
                    stepper.retain();
                    if self.disk.is_alive() {
                        stepper.prepare();
                    }
                }
                self.looked();
                if self.disk.is_alive() {
                    self.check_events()?;
                }
                self.writing = self.disk.is_alive();
                self.observe()?;
            }
            90 => {
                if let Some(stepper) = &self.stepper {
                    stepper.request_rotate();
                }
            }
            91 | 92 => {
                if let Some(stepper) = &self.stepper {
                    stepper.request_sync();
                }
            }
            93 | 94 => self.read_along()?,
            95 => {
                let who = self.rng.index(self.clients.len());
                match self.rng.below(3) {
                    0 => self.clients[who].give_up(&mut self.rng),
                    1 => self.clients[who].epoch += 1,
                    _ => self.probe_refusals(who)?,
                }
            }
            96..=98 if !self.settings.calm => self.disturb(),
            _ => self.settle_a_little()?,
        }
        Ok(())
    }

    fn disturb(&mut self) {
        match self.rng.below(6) {
            0..=3 => {
                self.plan_fault(50);
                self.disturbed = true;
            }
            4 if !self.full => {
                // Room for a part of a segment, or none.
                let Ok(space) = self.disk.space() else { return };
                let room = self.rng.below(self.config.segment_bytes);
                self.disk.set_capacity(space.total - space.free + room);
                (self.full, self.unseen, self.disturbed) = (true, true, true);
            }
            _ => self.make_room(),
        }
    }

    pub(super) fn make_room(&mut self) {
        if std::mem::take(&mut self.full) {
            self.disk.set_capacity(super::CAPACITY);
            self.unseen = false;
        }
    }

    /// The journal has looked for space: of what it takes from now on it knows. While segments change hands it does not
    /// look.
    fn looked(&mut self) {
        let Some(stepper) = self.stepper.as_ref().filter(|_| self.unseen && self.disk.is_alive()) else { return };
        if !self.held.iter().any(is_moving) {
            (self.unseen, self.squeezed) = (false, stepper.watermarks().received);
        }
    }

    /// On a disk that stays full everything that has an offset is written all the same.
    fn rest_while_full(&mut self) -> Check {
        let (mut waits, mut jobs) = (0, 0);
        while self.full && waits < 8 && jobs < 200 {
            self.execute_all()?;
            let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
            match stepper.begin() {
                Next::Job(job) => {
                    jobs += 1;
                    self.begun(job);
                }
                Next::Exit => return Ok(()),
                Next::Wait(_) => {
                    waits += 1;
                    stepper.prepare();
                    self.looked();
                    self.clock.step(Duration::from_millis(60));
                    if self.disk.is_alive() {
                        self.check_events()?;
                    }
                    self.observe()?;
                }
            }
        }
        self.execute_all()?;
        let Some(stepper) = self.stepper.as_ref().filter(|_| self.full && self.disk.is_alive()) else { return Ok(()) };
        let watermarks = stepper.watermarks();
        let excused = self.planned || self.unseen || self.model.failed || watermarks.received <= self.squeezed;
        ensure(excused || watermarks.written == watermarks.received, || {
            format!("no segment can hold what has an offset: {watermarks:?}")
        })
    }

    // ---- jobs ---------------------------------------------------------------------------------------------------

    pub(super) fn begun(&mut self, job: Begun) {
        let kind = job.kind;
        self.note(|| format!("begun: {kind:?}"));
        if kind == Kind::Sync && self.rng.coin() {
            self.tap.begin_sync();
        }
        self.held.push(job);
    }

    fn execute(&mut self, job: Begun) -> Check {
        let kind = job.kind;
        self.model.maybe_clean |= kind == Kind::Close;
        self.writing = matches!(kind, Kind::Write);
        if let Some(stepper) = &self.stepper {
            stepper.execute(job);
        }
        let alive = self.disk.is_alive();
        self.writing |= alive;
        self.note(|| format!("carried out: {kind:?}, alive {alive}"));
        if !alive {
            return Ok(());
        }
        self.check_events()?;
        self.observe()?;
        match kind {
            Kind::Rotate | Kind::Recover | Kind::Close if !self.model.failed => self.check_sealed(),
            _ => Ok(()),
        }
    }

    pub(super) fn execute_all(&mut self) -> Check {
        while !self.held.is_empty() {
            let at = self.rng.index(self.held.len());
            let job = self.held.swap_remove(at);
            self.execute(job)?;
        }
        Ok(())
    }

    /// Checks the events that the journal reports to its operator.
    fn check_events(&mut self) -> Check {
        self.whole_segments();
        for event in self.take_events() {
            self.note(|| format!("{event:?}"));
            match event {
                Event::Lost { from, to } => {
                    // A journal that syncs holds all that is not durable in memory, until it is.
                    let holds = !matches!(self.config.policy, Policy::FireAndForget { .. });
                    let may = self.may_be_gone(from, to, self.shaken && !holds);
                    ensure(may, || format!("offsets {from} to {to} are lost, and no fault explains it"))?;
                    self.model.lost.push((from, to));
                }
                Event::Failed { reason } => {
                    self.shaken = self.cached();
                    ensure(self.disturbed, || format!("it failed by itself: {reason}"))?;
                }
                Event::Removed { end_offset, .. } => {
                    self.stats.removed += 1;
                    self.model.retained_from(end_offset)?;
                }
                Event::Recycled { .. } => {
                    self.stats.recycled += 1;
                    self.recycled_at.get_or_insert(self.disk.ops());
                }
                Event::Recovered { .. } => {
                    (self.shaken, self.model.maybe_clean) = (false, false);
                    self.stats.rescues += 1;
                }
                Event::RecoveryFailed { reason, .. } | Event::SegmentFailed { reason } => {
                    ensure(self.disturbed, || format!("it failed by itself: {reason}"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Everybody is shown the watermarks.
    pub(super) fn observe(&mut self) -> Check {
        let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
        let watermarks = stepper.watermarks();
        self.model.observe(watermarks)?;
        self.stats.acked += self.clients.iter_mut().map(|c| c.answered(&watermarks)).sum::<u64>();
        let others = self.guests().map(|c| c.answered(&watermarks)).sum::<u64>();
        let senders = self.resends.iter_mut().flat_map(|resends| resends.senders());
        let acked = others + senders.map(|c| c.answered(&watermarks)).sum::<u64>();
        self.stats.acked += acked;
        self.eat(&[watermarks.received, watermarks.written, watermarks.durable, u64::from(watermarks.epoch)]);
        Ok(())
    }

    /// Reads what is there now. Not while a segment changes hands: the reader would wait for that, and so for us.
    pub(super) fn read_along(&mut self) -> Check {
        let Some(stepper) = self.stepper.as_ref().filter(|_| !self.held.iter().any(is_moving)) else { return Ok(()) };
        if self.model.failed {
            return Ok(());
        }
        let end = stepper.watermarks().written;
        let from = self.rng.below(end + 1);
        let (found, gaps) = self.read(from, Level::Written)?;
        if !self.disk.is_alive() {
            return Ok(());
        }
        // Offsets below have left, as they should; from there on all is given or reported.
        let from_there = from.max(self.model.removed);
        let is_gap = |offset| gaps.iter().any(|(from, to)| *from <= offset && offset < *to);
        let Some(first) = found.first().map(|f| f.offset) else {
            let lost = self.model.is_lost(from_there) || is_gap(from_there) || end <= self.model.removed;
            return ensure(from == end || lost, || format!("nothing is read from {from} to {end}"));
        };
        // What retention removed may still be in memory, and is right then.
        let there = |e: &&Found| e.offset >= self.model.removed || found.iter().any(|f| f.offset == e.offset);
        let known: Vec<_> = self
            .model
            .entries
            .iter()
            .filter(|e| e.offset >= first && e.offset < end && !self.model.is_lost(e.offset) && !is_gap(e.offset))
            .filter(there)
            .cloned()
            .collect();
        ensure(first <= from_there || self.model.is_lost(from_there) || is_gap(from_there), || {
            format!("read from {from}, got {first}")
        })?;
        ensure(found == known, || format!("a reader from {from} to {end} got {} of {}", found.len(), known.len()))
    }

    // ---- rest ---------------------------------------------------------------------------------------------------

    pub(super) fn settle_a_little(&mut self) -> Check {
        self.execute_all()?;
        for _ in 0..4 {
            match self.stepper.as_ref().filter(|_| self.disk.is_alive()).map(|s| s.begin()) {
                Some(Next::Job(job)) => {
                    self.begun(job);
                    self.execute_all()?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// With room on the disk and time enough, everything becomes durable and appends are taken.
    ///
    /// # Errors
    /// A broken rule; one is that it does not come to rest.
    pub fn settle(&mut self) -> Result<(), Violation> {
        self.rest_while_full()?;
        self.make_room();
        for round in 0..600 {
            if round == 200 && self.has_bad_sectors() {
                self.exchange_the_device();
            }
            self.execute_all()?;
            let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
            match stepper.begin() {
                Next::Job(job) => self.begun(job),
                Next::Exit => return Ok(()),
                Next::Wait(_) => {
                    let watermarks = stepper.watermarks();
                    if watermarks.durable == watermarks.received && watermarks.accepting == Accepting::Yes && round > 3
                    {
                        return Ok(());
                    }
                    stepper.request_sync();
                    stepper.retain();
                    stepper.prepare();
                    let waits = self.settings.failing_device && watermarks.accepting != Accepting::Yes;
                    let failed = watermarks.accepting == Accepting::Failed || waits;
                    self.clock.step(Duration::from_millis(if failed { 15_000 } else { 60 }));
                    if self.disk.is_alive() {
                        self.check_events()?; // what retention has removed, before a read
                    }
                    self.observe()?;
                }
            }
        }
        let watermarks = self.stepper.as_ref().map(|s| s.watermarks());
        Err(Violation(format!("it does not come to rest: {watermarks:?}")))
    }
}

/// True if segments change hands in it.
fn is_moving(job: &Begun) -> bool {
    !matches!(job.kind, Kind::Write | Kind::Sync | Kind::SyncRange)
}
