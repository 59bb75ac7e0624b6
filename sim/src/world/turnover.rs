//! Producers that come and go, more of them than there are places: BYE, ids that come back, evictions, crashes in
//! between.
//!
//! Invariants:
//! - A producer is known exactly as its stored appends of this life say, whenever it says HELLO, and after every start.
//!   It is unknown where it has said BYE, or where the rules allow an eviction, and nowhere else.
//! - The report that a forgotten producer is unknown, once given, stays true over every crash.
//! - No producer is refused for want of a place whose owner has a share left, were every producer kept that may be.
//!
//! Its choices come from a stream of their own: histories without it stay what they were.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clad_journal::clock::Clock;
use clad_journal::{AppendError, JournalConfig, Level, Policy, ProducerState};

use super::client::{Client, Sent};
use super::forwards::Forwards;
use super::model::{Check, Violation, ensure};
use super::resends::DAEMON;
use super::{Settings, World};
use crate::Rng;
use crate::disk::Fault;

/// The owner of the producers that stay.
const STAYS: u64 = 7;
const ROOT: u64 = 0;
/// Most appends of a guest that wait for an answer.
const UNACKED_MAX: usize = 3;

/// Guests, and what is known of everybody's sessions.
pub(super) struct Turnover {
    rng: Rng,
    guests: Vec<Client>,
    /// Boot time of the last append, in this life of the process.
    active: HashMap<[u8; 16], u64>,
    connected: HashMap<[u8; 16], bool>,
    started_boot_ns: u64,
    /// The producers that the dead process may have evicted.
    evictable: HashSet<[u8; 16]>,
    lives: bool,
}

/// Places for producers: few, and some for long.
pub(super) fn places(config: &mut JournalConfig, seed: u64) -> Turnover {
    let mut rng = Rng::new(seed ^ 0x70_6C_61_63_65_73);
    config.max_producers = [4, 8, 24][rng.index(3)];
    config.keep_producer = Duration::from_millis([1_000, 20_000, 600_000][rng.index(3)]);
    let guests = (0..config.max_producers as u8 + 4).map(|n| Client::new(100 + n)).collect();
    Turnover {
        rng,
        guests,
        active: HashMap::new(),
        connected: HashMap::new(),
        started_boot_ns: 0,
        evictable: HashSet::new(),
        lives: false,
    }
}

/// The owner of an id.
pub(super) fn owner_of(id: &[u8; 16]) -> u64 {
    match id[0] {
        0..100 => STAYS,
        n if n % 7 == 0 => ROOT,
        n => 100 + u64::from(n % 3),
    }
}

impl Turnover {
    /// True if a guest does something now.
    pub(super) fn takes_its_turn(&mut self) -> bool {
        self.rng.chance(1, 4)
    }
}

impl World {
    /// A process has started: every producer is asked for, and those that stay connect.
    pub(super) fn producers_after_start(&mut self) -> Check {
        let Some(turnover) = &mut self.turnover else { return Ok(()) };
        (turnover.started_boot_ns, turnover.lives) = (self.clock.boot_ns(), true);
        for id in self.ids() {
            let Some(stepper) = &self.stepper else { break };
            let known = stepper.producer(&id, owner_of(&id)).map_err(|e| Violation(format!("{e} of {}", id[0])))?;
            self.check_known(&id, known, true)?;
        }
        for id in self.ids().iter().filter(|id| owner_of(id) == STAYS) {
            if let Some(stepper) = &self.stepper {
                stepper.connect(id, STAYS, 0).map_err(|e| Violation(format!("{e} after a start")))?;
            }
        }
        Ok(())
    }

    fn ids(&self) -> Vec<[u8; 16]> {
        let ids = self.clients.iter().chain(self.turnover.iter().flat_map(|t| &t.guests)).map(|c| c.id);
        ids.chain(self.resends.iter().map(|_| DAEMON)).collect()
    }

    /// The process is dead: no producer is connected any more.
    pub(super) fn everybody_is_disconnected(&mut self) {
        if self.turnover.as_ref().is_some_and(|t| t.lives) {
            let evictable = self.ids().into_iter().filter(|id| self.may_be_evicted(id)).collect();
            let turnover = self.turnover.as_mut().expect("it was there");
            (turnover.evictable, turnover.lives) = (evictable, false);
            turnover.connected.clear();
            turnover.active.clear();
        }
        self.clients.iter_mut().for_each(Client::disconnected);
        self.guests().for_each(Client::disconnected);
        self.resends.iter_mut().flat_map(|resends| resends.senders()).for_each(Client::disconnected);
        self.forwards.iter_mut().for_each(Forwards::disconnected);
    }

    /// Checks the report on a producer against its stored appends.
    fn check_known(&mut self, id: &[u8; 16], known: Option<ProducerState>, at_start: bool) -> Check {
        let who = id[0];
        if at_start {
            self.model.settle_lives(id, known.and_then(|state| state.last).map(|(_, offset)| offset));
        }
        let newest = self.model.newest_known(id).map(|e| (e.end_sequence() - 1, e.end() - 1));
        let last = known.and_then(|state| state.last);
        match (last, newest) {
            (last, newest) if last == newest => Ok(()),
            // Of what is lost not all is remembered.
            (Some((_, offset)), _) if !self.model.lost.is_empty() => {
                ensure(offset >= self.model.life_from(id), || format!("{who} is known by an earlier life, at {offset}"))
            }
            (None, Some(_)) if !self.model.lost.is_empty() => {
                self.model.forget(id, true);
                Ok(())
            }
            (None, Some(newest)) => {
                let was_evicted = self.turnover.as_ref().is_some_and(|t| t.evictable.contains(id));
                let may = if at_start { was_evicted } else { self.may_be_evicted(id) };
                ensure(may, || format!("{who} is forgotten, and nobody said so: {newest:?} is stored"))?;
                self.model.forget(id, true);
                self.stats.evicted += 1;
                Ok(())
            }
            _ => Err(Violation(format!("{who} is known by {known:?}, stored is {newest:?}"))),
        }
    }

    fn may_be_evicted(&self, id: &[u8; 16]) -> bool {
        let Some(turnover) = &self.turnover else { return false };
        let (now, keep) = (self.clock.boot_ns(), self.config.keep_producer.as_nanos() as u64);
        let silent = match turnover.active.get(id) {
            Some(active) => now - active >= keep,
            // The wall clock may have jumped: a start believes it but for a tenth.
            None => now - turnover.started_boot_ns >= keep / 10,
        };
        silent && !turnover.connected.contains_key(id) && id[0] >= 100
    }

    /// A refusal for want of a place: right only if the owner has no share left, with every producer kept that may be.
    pub(super) fn may_have_no_place(&self, id: &[u8; 16]) -> Check {
        ensure(self.turnover.is_some(), || "there are places enough".to_owned())?;
        let known: Vec<_> =
            self.ids().into_iter().filter(|id| self.model.newest_known(id).is_some()).map(|id| owner_of(&id)).collect();
        let (max, kept, owner) = (self.config.max_producers, known.len(), owner_of(id));
        let theirs = known.iter().filter(|o| **o == owner).count();
        let grows = kept < max && (theirs == 0 || theirs + 1 < max - kept);
        let few = theirs < (max / 8).clamp(1, 8) && kept < 2 * max;
        let root = owner == ROOT && kept < 3 * max;
        ensure(!(grows || few || root), || format!("{owner} has {theirs} of {kept} places, and gets none"))
    }

    /// An append was taken.
    pub(super) fn was_active(&mut self, id: &[u8; 16]) {
        let now = self.clock.boot_ns();
        if let Some(turnover) = &mut self.turnover {
            turnover.active.insert(*id, now);
        }
    }

    /// A guest does something.
    pub(super) fn come_and_go(&mut self) -> Check {
        let Some(turnover) = &mut self.turnover else { return Ok(()) };
        let at = turnover.rng.index(turnover.guests.len());
        let (what, id) = (turnover.rng.below(20), turnover.guests[at].id);
        if self.stepper.is_none() || !self.disk.is_alive() {
            return Ok(());
        }
        match (turnover.connected.contains_key(&id), what) {
            (false, _) => self.hello(at)?,
            (true, 0..10) => self.guest_appends(at)?,
            (true, 10..17) => self.bye(at)?,
            (true, 17) => self.disconnect(at, false),
            (true, 18) if !self.settings.calm => {
                let turnover = self.turnover.as_mut().expect("it was there");
                let (k, how) = (turnover.rng.below(4), [Fault::Kill, Fault::PowerCut][turnover.rng.index(2)]);
                self.plan(k, how);
            }
            _ => self.clock.step(Duration::from_millis(110)),
        }
        self.observe()
    }

    fn guest(&mut self, at: usize) -> &mut Client {
        &mut self.turnover.as_mut().expect("who comes and goes").guests[at]
    }

    fn hello(&mut self, at: usize) -> Check {
        let (id, epoch) = (self.guest(at).id, self.guest(at).epoch);
        let Some(stepper) = &self.stepper else { return Ok(()) };
        let owner = owner_of(&id);
        let known = stepper.producer(&id, owner).map_err(|e| Violation(format!("{e} of {}", id[0])))?;
        match stepper.connect(&id, owner, epoch) {
            Err(AppendError::Forgetting) => {
                self.stats.waits += 1;
                return Ok(()); // it gets no report
            }
            connected => connected.map_err(|e| Violation(format!("{e} of {}", id[0])))?,
        }
        self.note(|| format!("{} says HELLO: {known:?}", id[0]));
        self.check_known(&id, known, false)?;
        self.model.reported_unknown(&id);
        let was_here = self.guest(at).next_sequence > 0;
        self.stats.returns += u64::from(was_here && known.is_none());
        let guest = self.guest(at);
        if known.is_none() {
            // Whatever it has not been answered is in no log: it begins again.
            (guest.next_sequence, guest.jumps) = (0, false);
            guest.unacked.clear();
        }
        // Its BYE may have been lost with a process: then it resumes where it was.
        guest.next_sequence =
            guest.next_sequence.max(known.and_then(|state| state.last).map_or(0, |(sequence, _)| sequence + 1));
        guest.acked.clear();
        self.turnover.as_mut().expect("who comes and goes").connected.insert(id, true);
        Ok(())
    }

    fn guest_appends(&mut self, at: usize) -> Check {
        let turnover = self.turnover.as_mut().expect("who comes and goes");
        let guest = &mut turnover.guests[at];
        let resend = guest.to_resend();
        let sent: Sent = match resend {
            Some(at) => guest.unacked[at].clone(),
            None if guest.unacked.len() >= UNACKED_MAX => return Ok(()),
            None => {
                let level = [Level::Received, Level::Written, Level::Durable][turnover.rng.index(3)];
                let ends_at_written = matches!(self.config.policy, Policy::FireAndForget { .. });
                let level = if ends_at_written { level.min(Level::Written) } else { level };
                let (count, size) = (1 + turnover.rng.below(4) as u32, turnover.rng.index(300));
                guest.make(count, size, level, &mut turnover.rng)
            }
        };
        let answer = self.send(&sent)?;
        let guest = self.guest(at);
        match (resend, answer) {
            (Some(at), Some((offset, failures))) => {
                (guest.unacked[at].append.offset, guest.unacked[at].due) = (offset, Some(failures));
            }
            (None, Some((offset, failures))) => {
                let mut sent = sent;
                (sent.append.offset, sent.due) = (offset, Some(failures));
                guest.unacked.push_back(sent);
            }
            // It is not stored, and taken back.
            (None, None) => guest.next_sequence = sent.append.first_sequence,
            (Some(_), None) => {}
        }
        Ok(())
    }

    /// BYE, with answers for everything that wants one above `received`: what is only received may wait for the disk
    /// still.
    fn bye(&mut self, at: usize) -> Check {
        let waits = self.guest(at).unacked.iter().any(|s| s.level > Level::Received || s.due.is_none());
        if waits {
            return Ok(());
        }
        let id = self.guest(at).id;
        self.disconnect(at, true);
        self.note(|| format!("{} says BYE", id[0]));
        self.model.forget(&id, false);
        self.stats.byes += 1;
        let guest = self.guest(at);
        let number = guest.id[0];
        *guest = Client::new(number);
        guest.next_sequence = 0;
        Ok(())
    }

    fn disconnect(&mut self, at: usize, forget: bool) {
        let id = self.guest(at).id;
        if let Some(stepper) = &self.stepper {
            stepper.disconnect(&id, forget);
        }
        self.turnover.as_mut().expect("who comes and goes").connected.remove(&id);
    }

    /// Those that come and go are notified of it, too.
    pub(super) fn guests(&mut self) -> impl Iterator<Item = &mut Client> {
        self.turnover.iter_mut().flat_map(|t| &mut t.guests)
    }
}

impl Settings {
    /// With guests.
    pub(super) fn turnover(&self, config: &mut JournalConfig, seed: u64) -> Option<Turnover> {
        self.turnover.then(|| places(config, seed))
    }
}
