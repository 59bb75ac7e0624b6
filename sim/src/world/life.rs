//! What happens while a journal lives: appends, jobs in any order, time, and a disk that gets worse.

use std::time::Duration;

use clad_journal::format::checksum::plain;
use clad_journal::io::Storage;
use clad_journal::stepper::{Begun, Kind, Next};
use clad_journal::{Accepting, Append, AppendError, Event, Level, Policy};

use super::World;
use super::client::Sent;
use super::model::{Check, Death, Expect, Violation, ensure};

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
        self.inspect(true)
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
        match self.rng.below(100) {
            0..=27 => self.append_something()?,
            28..=54 => {
                if let Some(Next::Job(job)) = self.stepper.as_ref().map(|s| s.begin()) {
                    self.begun(job);
                }
            }
            55..=76 => {
                if !self.held.is_empty() {
                    let at = self.rng.index(self.held.len());
                    let job = self.held.swap_remove(at);
                    self.carry_out(job)?;
                }
            }
            77..=85 => {
                let pause = [100, 1_000, 6_000, 150_000, 1_100_000][self.rng.index(5)];
                self.clock.step(Duration::from_micros(pause));
            }
            86..=89 => {
                if let Some(stepper) = &self.stepper {
                    stepper.prepare();
                }
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
                let k = self.rng.below(50);
                self.plan_fault(k);
                self.disturbed = true;
            }
            4 if !self.full => {
                // Room for a part of a segment, or none.
                let Ok(space) = self.disk.space() else { return };
                let room = self.rng.below(self.config.segment_bytes);
                self.disk.set_capacity(space.total - space.free + room);
                (self.full, self.disturbed) = (true, true);
            }
            _ => self.make_room(),
        }
    }

    pub(super) fn make_room(&mut self) {
        if std::mem::take(&mut self.full) {
            self.disk.set_capacity(super::CAPACITY);
        }
    }

    // ---- producers ----------------------------------------------------------------------------------------------

    fn append_something(&mut self) -> Check {
        let who = self.rng.index(self.clients.len());
        let resend = self.clients[who].to_resend();
        let sent = match resend {
            Some(at) => self.clients[who].unacked[at].clone(),
            None if self.rng.chance(1, 6) => {
                // Again, for no good reason: an append under way, or one that was answered.
                let client = &self.clients[who];
                let all = client.unacked.len() + client.acked.len();
                let at = self.rng.index(all.max(1));
                match client.unacked.get(at).or_else(|| client.acked.get(at.saturating_sub(client.unacked.len()))) {
                    Some(again) => return self.send_again(who, again.clone()),
                    None => return Ok(()),
                }
            }
            None => {
                let sent = self.new_append(who);
                self.clients[who].unacked.push_back(sent.clone());
                sent
            }
        };
        let at = resend.unwrap_or(self.clients[who].unacked.len() - 1);
        if let Some((offset, failures)) = self.send(&sent)? {
            let kept = &mut self.clients[who].unacked[at];
            kept.append.offset = offset;
            kept.due = Some(failures);
        } else if resend.is_none() && self.rng.coin() {
            // Refused, certainly not written: it may be taken back.
            if let Some(back) = self.clients[who].unacked.pop_back() {
                self.clients[who].next_sequence = back.append.first_sequence;
                self.clients[who].jumps = back.gap;
            }
        }
        self.observe()
    }

    fn new_append(&mut self, who: usize) -> Sent {
        let count = 1 + self.rng.below(20) as u32;
        let size = match self.rng.below(40) {
            0 => self.config.max_append_bytes as usize - self.rng.index(2),
            1..=8 => self.rng.index(40),
            _ => self.rng.index(3 << 10),
        };
        let level = match self.config.policy {
            Policy::FireAndForget { .. } => [Level::Received, Level::Written][self.rng.index(2)],
            _ => [Level::Received, Level::Written, Level::Durable, Level::Durable][self.rng.index(4)],
        };
        self.clients[who].make(count, size, level, &mut self.rng)
    }

    fn send_again(&mut self, who: usize, mut sent: Sent) -> Check {
        let whole = sent.append.count;
        if self.rng.chance(1, 4) && whole > 1 {
            // A part of it has the offset of that part; the payload does not matter to that.
            let skip = self.rng.below(u64::from(whole));
            sent.append.first_sequence += skip;
            sent.append.count -= skip as u32;
        }
        let expected = self.model.expect(&sent.append, sent.gap, self.config.window);
        if let (Expect::Duplicate { .. }, Some(_)) = (expected, self.send(&sent)?) {
            self.note(|| format!("producer {who} sent again"));
        }
        self.observe()
    }

    /// What no journal may take.
    fn probe_refusals(&mut self, who: usize) -> Check {
        let mut sent = self.new_append(who);
        let client = &mut self.clients[who];
        client.next_sequence = sent.append.first_sequence;
        client.jumps = sent.gap;
        sent.gap = false;
        match self.rng.below(3) {
            0 => sent.append.first_sequence += 1 + self.rng.below(3),
            1 => sent.append.producer_epoch = sent.append.producer_epoch.saturating_sub(1),
            _ => {
                let Some(newest) = self.model.newest_of(&sent.append.producer) else { return Ok(()) };
                sent.append.first_sequence = newest.end_sequence() - 1;
                sent.append.count += 1;
            }
        }
        if self.model.expect(&sent.append, false, self.config.window) != Expect::Fresh {
            self.send(&sent)?;
        }
        self.observe()
    }

    /// Hands an append over, and checks the answer: its offset and the failures so far, or nothing.
    fn send(&mut self, sent: &Sent) -> Check<Option<(u64, u32)>> {
        let Some(stepper) = &self.stepper else { return Ok(None) };
        let a = &sent.append;
        let accepting = stepper.marks().accepting;
        let answer = stepper.append(Append {
            producer: a.producer,
            owner: 7,
            producer_epoch: a.producer_epoch,
            first_sequence: a.first_sequence,
            count: a.count,
            gap: sent.gap,
            level: sent.level,
            min_time_ns: 1,
            max_time_ns: 2,
            vouch: b"sim",
            payload: &a.payload,
            payload_checksum: plain(&a.payload),
            permit: None,
        });
        let expected = self.model.expect(a, sent.gap, self.config.window);
        let wrong = || Violation(format!("{expected:?} expected, {answer:?} answered to {}@{}", a.first_sequence, a.producer[0]));
        let taken = match (&answer, expected) {
            (Err(AppendError::Failed { .. }), _) => {
                ensure(accepting == Accepting::Failed, || format!("refused though {accepting:?}"))?;
                None
            }
            (Err(AppendError::NoSpace), Expect::Fresh) => {
                ensure(self.disturbed, || "no space, and nobody took any".to_owned())?;
                None
            }
            (Ok(given), Expect::Fresh) if !given.duplicate => {
                self.model.accept(super::Found { offset: given.first_offset, ..a.clone() })?;
                Some((given.first_offset, given.failures))
            }
            (Ok(given), Expect::Duplicate { offset, .. }) if given.duplicate && given.first_offset == offset => {
                ensure(!self.model.is_lost(offset), || format!("{offset} was lost, and is called stored"))?;
                self.stats.duplicates += 1;
                Some((given.first_offset, given.failures))
            }
            (Err(AppendError::TooOld), Expect::Duplicate { certain: false, .. } | Expect::Overlap)
            | (Err(AppendError::Fenced { .. }), Expect::Fenced)
            | (Err(AppendError::Gap { .. }), Expect::Gap)
            | (Err(AppendError::Overlap { .. }), Expect::Overlap) => None,
            _ => return Err(wrong()),
        };
        let (seq, who, n, level) = (a.first_sequence, a.producer[0], a.count, sent.level);
        self.note(|| format!("append {n} of {who} from {seq} for {level:?}: {answer:?}"));
        self.eat(&[taken.map_or(u64::MAX, |t| t.0)]);
        Ok(taken)
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

    fn carry_out(&mut self, job: Begun) -> Check {
        let kind = job.kind;
        if let Some(stepper) = &self.stepper {
            stepper.carry_out(job);
        }
        let alive = self.disk.is_alive();
        self.note(|| format!("carried out: {kind:?}, alive {alive}"));
        if !alive {
            return Ok(());
        }
        self.told()?;
        self.observe()?;
        match kind {
            Kind::Rotate | Kind::Recover | Kind::Close if !self.model.failed => self.check_sealed(),
            _ => Ok(()),
        }
    }

    pub(super) fn carry_out_all(&mut self) -> Check {
        while !self.held.is_empty() {
            let at = self.rng.index(self.held.len());
            let job = self.held.swap_remove(at);
            self.carry_out(job)?;
        }
        Ok(())
    }

    /// What the journal tells its operator.
    fn told(&mut self) -> Check {
        for event in self.take_events() {
            self.note(|| format!("{event:?}"));
            match event {
                Event::Lost { from, to } => {
                    let may = self.shaken && from >= self.model.durable;
                    ensure(may, || format!("offsets {from} to {to} are lost, and no fault explains it"))?;
                    self.model.lost.push((from, to));
                }
                Event::Failed { reason } => {
                    self.shaken = self.cached();
                    ensure(self.disturbed, || format!("it failed by itself: {reason}"))?;
                }
                Event::Recovered { .. } => {
                    self.shaken = false;
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

    /// Everybody is shown the marks.
    pub(super) fn observe(&mut self) -> Check {
        let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
        let marks = stepper.marks();
        self.model.observe(marks)?;
        self.stats.acked += self.clients.iter_mut().map(|c| c.answered(&marks)).sum::<u64>();
        self.eat(&[marks.received, marks.written, marks.durable, u64::from(marks.epoch)]);
        Ok(())
    }

    /// Reads what is there now. Not while a segment changes hands: the reader would wait for that, and so for us.
    fn read_along(&mut self) -> Check {
        let moving = |k: &Begun| !matches!(k.kind, Kind::Write | Kind::Sync);
        let Some(stepper) = self.stepper.as_ref().filter(|_| !self.held.iter().any(moving)) else { return Ok(()) };
        if self.model.failed {
            return Ok(());
        }
        let end = stepper.marks().written;
        let from = self.rng.below(end + 1);
        let found = self.read(from, Level::Written)?;
        if !self.disk.is_alive() {
            return Ok(());
        }
        let Some(first) = found.first().map(|f| f.offset) else {
            let lost = self.model.is_lost(from);
            return ensure(from == end || lost, || format!("nothing is read from {from} to {end}"));
        };
        let known: Vec<_> =
            self.model.entries.iter().filter(|e| e.offset >= first && e.offset < end && !self.model.is_lost(e.offset)).cloned().collect();
        ensure(first <= from || self.model.is_lost(from), || format!("read from {from}, got {first}"))?;
        ensure(found == known, || format!("a reader from {from} to {end} got {} of {}", found.len(), known.len()))
    }

    // ---- rest ---------------------------------------------------------------------------------------------------

    fn settle_a_little(&mut self) -> Check {
        self.carry_out_all()?;
        for _ in 0..4 {
            match self.stepper.as_ref().filter(|_| self.disk.is_alive()).map(|s| s.begin()) {
                Some(Next::Job(job)) => {
                    self.begun(job);
                    self.carry_out_all()?;
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
        self.make_room();
        for round in 0..600 {
            self.carry_out_all()?;
            let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
            match stepper.begin() {
                Next::Job(job) => self.begun(job),
                Next::Exit => return Ok(()),
                Next::Wait(_) => {
                    let marks = stepper.marks();
                    if marks.durable == marks.received && marks.accepting == Accepting::Yes && round > 3 {
                        return Ok(());
                    }
                    stepper.request_sync();
                    stepper.prepare();
                    let failed = marks.accepting == Accepting::Failed;
                    self.clock.step(Duration::from_millis(if failed { 15_000 } else { 60 }));
                    self.observe()?;
                }
            }
        }
        let marks = self.stepper.as_ref().map(|s| s.marks());
        Err(Violation(format!("it does not come to rest: {marks:?}")))
    }
}
