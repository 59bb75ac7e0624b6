//! Forwarders: streams of other logs, whose appends this log takes over.
//!
//! Invariants:
//! - What is stored of an origin, without what is reported lost, is its source's appends in their order, each once, with
//!   nothing left out but what its forwarder has stated.
//! - The journal's word on an origin is where that ends: never beyond it, and never before it.
//! - An append below or above that is refused, with that place; one that is another than the last stored names both.
//! - A dropped origin is unknown until it begins again. It may come back with a crash, and then as it was.
//!
//! Its choices come from a stream of their own: histories without it stay what they were. Not with bit rot: a sealed append
//! that turns over later is damage, and no forwarder's.

use clad_journal::format::checksum::plain;
use clad_journal::{
    Accepting, AppendError, Forward, Item, JournalConfig, Level, Origin, OriginEntry, Sender, StreamName,
};

use super::model::{Check, Found, Violation, ensure};
use super::{Settings, World};
use crate::Rng;

const FORWARDERS: u8 = 3;
/// Most appends that are handed over without a look at their answers.
const PIPELINE_MAX: usize = 5;

/// An append of the source.
#[derive(Clone, Debug)]
struct Source {
    /// Where the append before it ends.
    previous: u64,
    first: u64,
    count: u32,
    epoch: u32,
    payload: Vec<u8>,
}

impl Source {
    fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// A forwarder and its source.
struct Forwarder {
    owner: u64,
    id: [u8; 16],
    origin: Origin,
    source: Vec<Source>,
    /// The next of these, once the journal was asked; nothing before.
    next: Option<usize>,
    /// The journal said that it does not know the origin.
    begins: bool,
    /// Ends of the log at which it was dropped.
    dropped: Vec<u64>,
    /// Everything of it below this offset was dropped, and the log says so for good.
    gone_below: u64,
}

/// The forwarders.
pub(super) struct Forwards {
    rng: Rng,
    all: Vec<Forwarder>,
}

impl Settings {
    /// Forwarders, in three of four histories.
    pub(super) fn forwards(&self, config: &mut JournalConfig, seed: u64) -> Option<Forwards> {
        let mut rng = Rng::new(seed ^ 0x0066_6F72_7761_7264);
        if !self.forwards || self.bit_rot || rng.chance(1, 4) {
            return None;
        }
        config.max_origins = [2, 64][rng.index(2)];
        let all = (1..=FORWARDERS).map(|n| Forwarder {
            owner: u64::from(n) << 40,
            id: [200 + n; 16],
            origin: Origin { source: [n; 16], stream: StreamName::new(b"main").expect("a name") },
            source: Vec::new(),
            next: None,
            begins: false,
            dropped: Vec::new(),
            gone_below: 0,
        });
        Some(Forwards { all: all.collect(), rng })
    }
}

impl Forwards {
    pub(super) fn takes_its_turn(&mut self) -> bool {
        self.rng.chance(1, 6)
    }

    pub(super) fn disconnected(&mut self) {
        self.all.iter_mut().for_each(|forwarder| forwarder.next = None);
    }
}

impl Forwarder {
    /// The append of this number; the source is made as far.
    fn make(&mut self, at: usize, rng: &mut Rng) -> Source {
        while self.source.len() <= at {
            let (previous, epoch) = self.source.last().map_or((rng.below(9), 1), |last| (last.end(), last.epoch));
            let first = previous + if rng.chance(1, 5) { 1 + rng.below(9) } else { 0 };
            let mut payload = vec![rng.number() as u8; rng.index(900)];
            payload.extend_from_slice(&rng.number().to_le_bytes());
            let epoch = epoch + u32::from(rng.chance(1, 12));
            self.source.push(Source { previous, first, count: 1 + rng.below(6) as u32, epoch, payload });
        }
        self.source[at].clone()
    }
}

impl World {
    /// The newest stored append of an origin that is not lost.
    fn newest_forwarded(&self, id: &[u8; 16]) -> Option<&Found> {
        self.model.entries.iter().rev().find(|e| e.producer == *id && !self.model.is_lost(e.offset))
    }

    /// A start: what was dropped at offsets that are not in the log any more was dropped at its end.
    pub(super) fn origins_after_start(&mut self) -> Check {
        let end = self.model.end();
        for forwarder in self.forwards.iter_mut().flat_map(|forwards| &mut forwards.all) {
            forwarder.dropped.iter_mut().for_each(|at| *at = end.min(*at));
            forwarder.gone_below = forwarder.gone_below.min(end);
        }
        self.check_origins()
    }

    /// Holds the journal's word on every origin against what is stored.
    pub(super) fn check_origins(&mut self) -> Check {
        let (Some(stepper), Some(forwards)) = (&self.stepper, &self.forwards) else { return Ok(()) };
        let known = stepper.origins();
        for forwarder in &forwards.all {
            let of_it = |e: &&OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
            let entry = known.iter().find(of_it);
            let newest = self.newest_forwarded(&forwarder.id);
            let who = forwarder.id[0];
            let back = entry.is_some() && newest.is_some_and(|newest| newest.end() <= forwarder.gone_below);
            ensure(!back, || format!("origin {who} was dropped at {}, and is {entry:?}", forwarder.gone_below))?;
            let fits = match (entry, newest) {
                (None, None) => true,
                (None, Some(newest)) => forwarder.dropped.iter().any(|at| *at >= newest.end()),
                (Some(entry), _) if entry.is_lost => !self.model.lost.is_empty(),
                (Some(entry), None) => entry.last.count == 0 && forwarder.source[0].previous == entry.last.first,
                (Some(entry), Some(newest)) => {
                    let last = (entry.last.offset, entry.last.count, entry.last.payload_checksum);
                    let is_it = last == (newest.offset, newest.count, plain(&newest.payload));
                    entry.last.end() == newest.end_sequence() && (entry.last.count == 0 || is_it)
                }
            };
            ensure(fits, || {
                format!("origin {who} is {entry:?}, and the log has {:?}", newest.map(|e| (e.offset, e.end_sequence())))
            })?;
        }
        Ok(())
    }

    /// A forwarder does something.
    pub(super) fn forward_something(&mut self) -> Check {
        let alive = self.stepper.is_some() && self.disk.is_alive();
        let Some(mut forwards) = self.forwards.take().filter(|_| alive) else { return Ok(()) };
        let who = forwards.rng.index(forwards.all.len());
        let Forwards { rng, all } = &mut forwards;
        self.drops_that_hold(&mut all[who]);
        let done = match rng.below(16) {
            0 => self.drop_origin(&mut all[who]),
            1..=3 => self.forward_wrongly(&mut all[who], rng),
            _ => self.forward_in_line(&mut all[who], rng),
        };
        self.forwards = Some(forwards);
        done?;
        self.check_origins()?;
        self.observe()
    }

    /// Asks for what was dropped, as its operator does until the log says so.
    fn drops_that_hold(&self, forwarder: &mut Forwarder) {
        let Some(stepper) = &self.stepper else { return };
        let of_it = |e: &OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
        let last = forwarder.dropped.last().copied().filter(|at| *at > forwarder.gone_below);
        // It may have come back with a crash.
        if let Some(at) = last.filter(|_| !stepper.origins().iter().any(of_it)) {
            let mut id = forwarder.id;
            id.iter_mut().zip(forwarder.owner.to_le_bytes()).for_each(|(id, owner)| *id ^= owner);
            if !stepper.is_forgetting(&id) {
                forwarder.gone_below = at;
            }
        }
    }

    fn drop_origin(&mut self, forwarder: &mut Forwarder) -> Check {
        let Some(stepper) = &self.stepper else { return Ok(()) };
        let of_it = |e: &OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
        if let Some(entry) = stepper.origins().into_iter().find(of_it) {
            ensure(stepper.drop_origin(&entry), || "it was there".to_owned())?;
            forwarder.dropped.push(self.model.end());
            forwarder.next = None;
            self.stats.origins_dropped += 1;
            self.note(|| format!("origin dropped: {entry:?}"));
        }
        Ok(())
    }

    /// Goes on where the journal says, several appends without a look at the answers.
    fn forward_in_line(&mut self, forwarder: &mut Forwarder, rng: &mut Rng) -> Check {
        let Some(stepper) = &self.stepper else { return Ok(()) };
        if forwarder.next.is_none() {
            let of_it = |e: &OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
            let entry = stepper.origins().into_iter().find(of_it);
            if entry.is_some_and(|entry| entry.is_lost) {
                self.stats.origins_lost += 1;
                return self.drop_origin(forwarder);
            }
            // Its operator lets a dropped one go on behind what is stored.
            let end = entry.map(|entry| entry.last.end());
            let end = end.or_else(|| self.newest_forwarded(&forwarder.id).map(Found::end_sequence));
            let at = end.map_or(0, |end| forwarder.source.iter().take_while(|a| a.previous != end).count());
            let fits = end.is_none_or(|end| forwarder.make(at, rng).previous == end);
            ensure(fits, || format!("origin {} ends at {end:?}, within an append", forwarder.id[0]))?;
            (forwarder.next, forwarder.begins) = (Some(at), entry.is_none());
        }
        let mut refused = false;
        for _ in 0..=rng.index(PIPELINE_MAX) {
            let Some(at) = forwarder.next else { break };
            let append = forwarder.make(at, rng);
            let taken = self.forward(forwarder, &append, forwarder.begins, rng)?;
            ensure(!(refused && taken), || format!("{append:?} is taken behind one that was refused"))?;
            refused |= !taken;
            // What lies behind a refused one is sent all the same, as a pipeline has it.
            forwarder.begins = false;
            forwarder.next = Some(at + 1);
        }
        if refused {
            forwarder.next = None;
        }
        Ok(())
    }

    /// Hands over what no log may take: an append that is not next, as by another forwarder, or another one in the place of the last.
    fn forward_wrongly(&mut self, forwarder: &mut Forwarder, rng: &mut Rng) -> Check {
        let at = rng.index(forwarder.source.len() + 2);
        let mut append = forwarder.make(at, rng);
        match rng.below(4) {
            0 => append.payload.push(7),
            1 => append.epoch = 0,
            _ => {}
        }
        let of_it = |e: &OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
        let entry = self.stepper.iter().flat_map(|stepper| stepper.origins()).find(of_it);
        let is_next = entry.is_none_or(|entry| append.previous == entry.last.end() && !entry.is_lost);
        if !is_next || append.epoch == 0 && entry.is_some() {
            let taken = self.forward(forwarder, &append, rng.coin(), rng)?;
            ensure(!taken, || format!("{append:?} is taken, and is not next"))?;
        }
        Ok(())
    }

    /// Hands an append over, and checks the answer; `true` if it was taken.
    fn forward(&mut self, forwarder: &Forwarder, a: &Source, begins: bool, rng: &mut Rng) -> Check<bool> {
        let Some(stepper) = &self.stepper else { return Ok(false) };
        let accepting = stepper.watermarks().accepting;
        let of_it = |e: &OriginEntry| (e.owner, e.producer) == (forwarder.owner, forwarder.id);
        let (known, origins) = (stepper.origins().into_iter().find(of_it), stepper.origins().len());
        let mut peer_meta = vec![1, 12];
        let before = [[99; 16]; 2];
        forwarder.origin.encode(&before[..rng.index(3)], &mut peer_meta);
        let from = Sender {
            producer: forwarder.id,
            owner: forwarder.owner,
            producer_epoch: a.epoch,
            peer_meta: &peer_meta,
            resend: None,
            forward: Some(Forward { origin: forwarder.origin, previous: a.previous, begins }),
        };
        let item = Item {
            first_sequence: a.first,
            count: a.count,
            gap: false,
            level: [Level::Received, Level::Written][rng.index(2)],
            min_time_ns: 1,
            max_time_ns: 2,
            payload: &a.payload,
            payload_checksum: plain(&a.payload),
            share: a.payload.len(),
        };
        let Some(answer) = stepper.append_burst(&from, &[item], None).pop() else { return Ok(false) };
        let who = forwarder.id[0];
        self.note(|| format!("forwarded {}..{} of {who}: {answer:?}", a.first, a.end()));
        let expected = known.map(|entry| entry.last.end());
        match answer {
            Ok(given) => {
                let follows =
                    known.map_or(begins, |entry| a.previous == entry.last.end() && a.epoch >= entry.last.epoch);
                ensure(follows && !given.duplicate, || format!("{given:?} answered to {a:?}, {expected:?} was next"))?;
                self.stats.forwarded += u64::from(a.count);
                let (count, payload) = (a.count, a.payload.clone());
                self.model.accept(Found {
                    offset: given.first_offset,
                    count,
                    producer: forwarder.id,
                    producer_epoch: a.epoch,
                    first_sequence: a.first,
                    payload,
                })?;
                self.eat(&[given.first_offset]);
                return Ok(true);
            }
            Err(AppendError::Gap { expected: next }) => {
                ensure(Some(next) == expected, || format!("{next} is said to be next, {expected:?} is"))?;
            }
            Err(AppendError::Parted(parting)) => {
                let stored = known.map(|entry| entry.last);
                let other = stored.is_some_and(|last| {
                    let same =
                        a.first == last.first && (a.count, plain(&a.payload)) != (last.count, last.payload_checksum);
                    parting.is_lost || same || a.epoch < last.epoch
                });
                ensure(other && Some(parting.stored) == stored, || format!("{parting} to {a:?}"))?;
                self.stats.parted += 1;
            }
            Err(AppendError::UnknownOrigin) => {
                ensure(known.is_none() && !begins, || format!("{who} is unknown, and is {known:?}"))?;
            }
            Err(AppendError::TooManyOrigins { limit }) => {
                ensure(known.is_none() && origins >= limit, || format!("{origins} origins are too many of {limit}"))?;
            }
            Err(AppendError::Forgetting) => {
                ensure(!forwarder.dropped.is_empty(), || format!("{who} was never dropped"))?;
            }
            Err(AppendError::Failed { .. }) => {
                ensure(accepting == Accepting::Failed, || format!("refused though {accepting:?}"))?;
            }
            Err(AppendError::NoSpace | AppendError::NoSegment { .. }) => {
                ensure(self.disturbed, || "no space, and nobody took any".to_owned())?;
            }
            Err(other) => return Err(Violation(format!("{other:?} answered to {a:?}"))),
        }
        Ok(false)
    }
}
