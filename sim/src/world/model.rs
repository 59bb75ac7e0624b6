//! Content that the log must hold: a second, slow and plain statement of the journal's promise.
//!
//! Invariants, checked here:
//! 1. Every append that was given offsets got them right behind the ones before, whatever the epoch. So after any crash
//!    an unbroken first part of what was given is found, append by append, byte for byte.
//! 2. That first part reaches at least as far as the level that the crash leaves alone. This is what was seen below
//!    `written` after a kill, below `durable` after a power cut, everything after a clean end.
//! 3. What was found once, after a start, is durable: it is there after every later crash. What was not found never
//!    comes back, unless it is sent again.
//! 4. Watermarks are ordered, never fall, and stand still from a failure to the recovery from it.
//! 5. An epoch is greater than all before it in which any answer was given, but for a clean end: one that was reported,
//!    or one whose mark was on its way, or failed, when the process died with nothing left to lose. It is greater by
//!    two at least where something is lost that was given in the last of them: a watermark speaks for the epoch before,
//!    too.
//! 6. A producer's append is judged as its stored appends say: taken once, or answered with the offset it has. Those of
//!    a life that was forgotten say nothing. An epoch that was given an offset may fence lower ones also where that is
//!    lost.

use std::collections::BTreeMap;

use clad_journal::{Accepting, Watermarks};

/// A rule that was broken, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

pub(super) type Check<T = ()> = Result<T, Violation>;

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(Violation(what())) }
}

/// One append as it is found in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Offset of its first record.
    pub offset: u64,
    /// Records.
    pub count: u32,
    /// Whose it is.
    pub producer: [u8; 16],
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Found {
    /// One past its last offset.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.count)
    }
    /// One past its last sequence.
    pub fn end_sequence(&self) -> u64 {
        self.first_sequence + u64::from(self.count)
    }
    fn is(&self, o: &Self) -> bool {
        self == o
    }
    fn name(&self) -> String {
        let Self { offset, count, producer, first_sequence, payload, .. } = self;
        format!(
            "{count} records at {offset} (producer {}, sequence {first_sequence}, {} bytes)",
            producer[0],
            payload.len()
        )
    }
}

/// The required answer to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// New offsets.
    Fresh,
    /// The offset it has. `certain`: it is among those that must be remembered.
    Duplicate { offset: u64, certain: bool },
    /// Refused: an older session.
    Fenced,
    /// Refused: it jumps.
    Gap,
    /// Refused: partly stored.
    Overlap,
}

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The power went.
    PowerCut,
    /// It was killed, or abandoned its work.
    Kill,
}

/// The end of a producer's life: its BYE, or an eviction.
#[derive(Clone, Copy, Debug)]
struct Forgotten {
    id: [u8; 16],
    /// Records stored below are of an earlier life.
    at: u64,
    /// It was reported as unknown once: that stays so.
    sure: bool,
}

/// The state of the promise.
#[derive(Default)]
pub(super) struct Model {
    forgotten: Vec<Forgotten>,
    /// The greatest epoch of each producer that was ever given an offset.
    epochs: BTreeMap<[u8; 16], u32>,
    /// Everything that was given offsets and may be in the log, in order.
    pub(super) entries: Vec<Found>,
    /// Ranges that the journal said are lost.
    pub(super) lost: Vec<(u64, u64)>,
    /// Ranges that it was about to say so of when it died.
    pub(super) maybe_lost: Vec<(u64, u64)>,
    /// Ranges whose bytes turned over on the media: they may be missing where that is reported.
    pub(super) bit_rot: Vec<(u64, u64)>,
    /// Below this, retention has removed everything.
    pub(super) removed: u64,
    /// Greatest watermarks that anybody was shown.
    pub(super) written: u64,
    pub(super) durable: u64,
    /// The log reaches at least this far, now that the process is dead.
    floor: u64,
    clean: bool,
    /// The mark of a clean end may be on the disk, though it was not reported.
    pub(super) maybe_clean: bool,
    /// A write or sync failed and was not recovered from.
    pub(super) failed: bool,
    last: Option<Watermarks>,
    /// Number of the entries of `lost` that the watermarks have spoken of, or need not.
    lost_before: usize,
    epoch: u32,
    /// Where the last epoch began that anybody was shown.
    epoch_first: u64,
    log_id: Option<[u8; 16]>,
}

impl Model {
    pub(super) fn end(&self) -> u64 {
        self.entries.last().map_or(0, Found::end)
    }

    pub(super) fn was_opened(&self) -> bool {
        self.log_id.is_some()
    }

    /// Neither a segment nor anything that names one is left of a log in which no offset was given out: the next start
    /// makes a log.
    pub(super) fn is_forgotten(&mut self) {
        if self.entries.is_empty() {
            (self.log_id, self.epoch, self.clean, self.maybe_clean) = (None, 0, false, false);
        }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The newest stored append of a producer.
    pub(super) fn newest_of(&self, producer: &[u8; 16]) -> Option<&Found> {
        self.entries.iter().rev().find(|e| e.producer == *producer)
    }

    /// The newest of this life that is not lost: what the log remembers of a producer.
    pub(super) fn newest_known(&self, producer: &[u8; 16]) -> Option<&Found> {
        let from = self.life_from(producer);
        self.entries.iter().rev().find(|e| e.producer == *producer && e.offset >= from && !self.is_lost(e.offset))
    }

    /// Where a producer's life begins: what is stored below was forgotten.
    pub(super) fn life_from(&self, id: &[u8; 16]) -> u64 {
        self.forgotten.iter().filter(|f| f.id == *id).map(|f| f.at).max().unwrap_or(0)
    }

    /// A producer was forgotten. `sure`: also for every later process.
    pub(super) fn forget(&mut self, id: &[u8; 16], sure: bool) {
        let at = self.end();
        self.forgotten.push(Forgotten { id: *id, at, sure });
    }

    /// A HELLO was answered: what was forgotten of this producer stays so.
    pub(super) fn reported_unknown(&mut self, id: &[u8; 16]) {
        self.forgotten.iter_mut().filter(|f| f.id == *id).for_each(|f| f.sure = true);
    }

    /// A start says what a producer's last record is: an unreported end of a life may have been lost with the process.
    pub(super) fn settle_lives(&mut self, id: &[u8; 16], last: Option<u64>) {
        if let Some(last) = last {
            self.forgotten.retain(|f| f.id != *id || f.sure || f.at <= last);
        }
        self.reported_unknown(id);
    }

    pub(super) fn is_lost(&self, offset: u64) -> bool {
        self.lost.iter().any(|(from, to)| *from <= offset && offset < *to)
    }

    /// Retention has removed everything below.
    pub(super) fn retained_from(&mut self, lowest: u64) -> Check {
        ensure(lowest >= self.removed, || format!("kept from {lowest}, {} was removed before", self.removed))?;
        ensure(lowest <= self.end(), || format!("kept from {lowest}, the log ends at {}", self.end()))?;
        self.removed = lowest;
        Ok(())
    }

    /// True if the loss of a range that cannot be read was, or would have been, reported.
    pub(super) fn may_be_lost(&mut self, from: u64, to: u64) -> bool {
        let reported = self.is_lost(from) && self.is_lost(to - 1);
        if !reported && self.maybe_lost.contains(&(from, to)) && from >= self.durable {
            self.lost.push((from, to));
            return true;
        }
        reported
    }

    /// True if everything in a range may be missing: it is lost, or was hit by rot, or retention has removed it.
    pub(super) fn is_excused(&self, from: u64, to: u64) -> bool {
        self.is_excused_or(from, to, |_| false)
    }

    /// The same, where an append at these offsets may be missing for another reason as well.
    pub(super) fn is_excused_or(&self, from: u64, to: u64, gone: impl Fn(u64) -> bool) -> bool {
        let hit = |offset| self.bit_rot.iter().any(|(from, to)| *from <= offset && offset < *to);
        let within = self.entries.iter().filter(|e| e.end() > from && e.offset < to);
        within.into_iter().all(|e| e.end() <= self.removed || self.is_lost(e.offset) || hit(e.offset) || gone(e.offset))
    }

    /// Rule 6.
    pub(super) fn expect(&self, a: &Found, gap: bool, window: usize) -> Expect {
        // A lost append is not stored, also if it was reported as stored.
        let from = self.life_from(&a.producer);
        let of_this_life = |e: &&Found| e.producer == a.producer && e.offset >= from && !self.is_lost(e.offset);
        let theirs = || self.entries.iter().rev().filter(of_this_life);
        let Some(newest) = theirs().next() else {
            return if a.first_sequence == 0 || gap { Expect::Fresh } else { Expect::Gap };
        };
        if theirs().any(|e| e.producer_epoch > a.producer_epoch) {
            return Expect::Fenced;
        }
        let expected = newest.end_sequence();
        match a.first_sequence {
            s if s == expected => Expect::Fresh,
            s if s > expected => {
                if gap {
                    Expect::Fresh
                } else {
                    Expect::Gap
                }
            }
            _ if a.end_sequence() > expected => Expect::Overlap,
            s => {
                let at = theirs().position(|e| e.first_sequence <= s && a.end_sequence() <= e.end_sequence());
                match at {
                    Some(at) => {
                        let e = theirs().nth(at).expect("it was just found");
                        Expect::Duplicate { offset: e.offset + (s - e.first_sequence), certain: at < window }
                    }
                    None => Expect::Overlap,
                }
            }
        }
    }

    /// True if a session may be fenced though nothing that is stored says so: what does may be lost.
    pub(super) fn may_be_fenced(&self, a: &Found, current: u32) -> bool {
        a.producer_epoch < current && self.epochs.get(&a.producer).is_some_and(|epoch| current <= *epoch)
    }

    /// Rule 6, in a log that was hit by rot. The log remembers what it stored, and may or may not have noticed
    /// what is gone since: such an append is stored again, or answered with the offset it had. What is there is never
    /// stored twice, and no offset is anything else's.
    pub(super) fn may_answer(&self, a: &Found, given: u64, duplicate: bool) -> bool {
        let mut theirs = self.entries.iter().filter(|e| e.producer == a.producer);
        let overlaps = |e: &Found| e.first_sequence < a.end_sequence() && a.first_sequence < e.end_sequence();
        let gone = |e: &Found| self.is_excused(e.offset, e.end());
        match duplicate {
            true => theirs.any(|e| {
                let within = e.first_sequence <= a.first_sequence && a.end_sequence() <= e.end_sequence();
                within && given == e.offset + (a.first_sequence - e.first_sequence)
            }),
            false => theirs.all(|e| gone(e) || !overlaps(e)),
        }
    }

    /// The stored appends of a producer with these very bytes.
    pub(super) fn copies<'a>(&'a self, a: &'a Found) -> impl Iterator<Item = &'a Found> {
        let same = |e: &&Found| (e.producer, e.count) == (a.producer, a.count) && e.payload == a.payload;
        self.entries.iter().filter(same)
    }

    /// New offsets were given.
    pub(super) fn accept(&mut self, a: Found) -> Check {
        let end = self.end();
        ensure(a.offset == end, || format!("{} was given, {end} is next", a.name()))?;
        let epoch = self.epochs.entry(a.producer).or_default();
        *epoch = a.producer_epoch.max(*epoch);
        self.entries.push(a);
        Ok(())
    }

    /// Rule 4. Somebody is shown these watermarks.
    pub(super) fn observe(&mut self, m: Watermarks) -> Check {
        ensure(m.received >= m.written && m.written >= m.durable, || format!("watermarks out of order: {m:?}"))?;
        ensure(m.received == self.end(), || format!("received is {}, {} were given", m.received, self.end()))?;
        if let Some(p) = self.last {
            let fell = m.received < p.received || m.written < p.written || m.durable < p.durable;
            ensure(!fell && m.version >= p.version && m.failures >= p.failures, || {
                format!("watermarks fell: {p:?}, {m:?}")
            })?;
            let moved = (m.received, m.written, m.durable) != (p.received, p.written, p.durable);
            let still_failed = p.accepting == Accepting::Failed && m.epoch == p.epoch;
            ensure(!(still_failed && moved), || format!("released after a failure: {p:?}, {m:?}"))?;
            if m.epoch != p.epoch {
                let by_recovery = m.failures > 0 && m.epoch > p.epoch && m.epoch_first == m.received;
                ensure(by_recovery, || format!("the epoch moved: {p:?}, {m:?}"))?;
                // A FLUSH is refused for it: neither in silence, nor where nothing was lost.
                let lost = self.lost.len() > self.lost_before;
                ensure((m.losses > p.losses) == lost, || format!("lost: {lost}, and the watermarks say {p:?}, {m:?}"))?;
                self.lost_before = self.lost.len();
            }
        } else {
            self.lost_before = self.lost.len();
        }
        self.failed = m.accepting == Accepting::Failed;
        self.epoch = self.epoch.max(m.epoch);
        self.epoch_first = m.epoch_first;
        self.written = self.written.max(m.written);
        self.durable = self.durable.max(m.durable);
        self.last = Some(m);
        Ok(())
    }

    /// The process is dead. `shaken`: what it had only written may be gone from the page cache by a failed sync.
    pub(super) fn died(&mut self, how: Death, shaken: bool) {
        let covered = match how {
            Death::Kill if !shaken => self.written,
            _ => self.durable,
        };
        self.floor = if self.last.is_some() { covered } else { self.floor.min(covered) };
        self.last = None;
    }

    /// The process ended cleanly.
    pub(super) fn ended(&mut self, disturbed: bool) {
        self.written = self.end();
        self.durable = self.end();
        self.floor = self.end();
        self.clean = true;
        // On a full disk there may be no segment to say it in.
        self.forgotten.iter_mut().for_each(|f| f.sure |= !disturbed);
        self.last = None;
    }

    /// Rules 1 to 3, for the records of a reader that sees the log end at `end`, and that got the report of `gaps`.
    /// `floor`: at least so far.
    pub(super) fn check_found(&self, found: &[Found], gaps: &[(u64, u64)], end: u64, floor: u64) -> Check {
        ensure(end >= floor, || format!("the log ends at {end}, records below {floor} were promised"))?;
        let reported = |offset| gaps.iter().any(|(from, to)| *from <= offset && offset < *to);
        let there = |e: &&Found| e.offset >= self.removed && !self.is_lost(e.offset) && !reported(e.offset);
        let mut expected = self.entries.iter().filter(there).take_while(|e| e.offset < end);
        for f in found {
            let Some(e) = expected.next() else {
                return Err(Violation(format!("found {} that nobody may find", f.name())));
            };
            ensure(f.is(e), || format!("found {}, expected {}", f.name(), e.name()))?;
        }
        match expected.next() {
            Some(e) => Err(Violation(format!("lost: {} (the log ends at {end})", e.name()))),
            None => ensure(end <= self.end() && self.entries.iter().all(|e| e.end() <= end || e.offset >= end), || {
                format!("the log ends at {end}, inside of an append or beyond all ({})", self.end())
            }),
        }
    }

    /// A start succeeded and showed these watermarks. `cut`: where rot allows it to have cut the log. `missing_ranges`:
    /// what the files say is lost.
    pub(super) fn opened(
        &mut self,
        m: Watermarks,
        log_id: [u8; 16],
        cut: Option<u64>,
        missing_ranges: &[(u64, u64)],
    ) -> Check {
        ensure(self.log_id.is_none_or(|id| id == log_id), || "another log id".to_owned())?;
        let whole = self.clean || self.maybe_clean && m.received == self.end();
        let raised = if whole { m.epoch >= self.epoch } else { m.epoch > self.epoch };
        ensure(raised, || format!("epoch {} after {} (clean: {})", m.epoch, self.epoch, self.clean))?;
        let given = self.entries.iter().filter(|e| e.offset >= self.epoch_first);
        let lost =
            given.into_iter().find(|e| missing_ranges.iter().any(|(from, to)| e.offset < *to && *from < e.end()));
        let lost = lost.filter(|_| m.epoch <= self.epoch + 1).map(Found::name);
        ensure(lost.is_none(), || format!("epoch {} after {} speaks for what is lost: {lost:?}", m.epoch, self.epoch))?;
        let next = m.received;
        ensure(m.written == next && m.durable == next, || format!("watermarks after a start: {m:?}"))?;
        let cut = cut.is_some_and(|cut| next >= cut);
        ensure(cut || next >= self.floor, || {
            format!("the log goes on at {next}, records below {} were promised", self.floor)
        })?;
        ensure(cut || !self.clean || next == self.end(), || format!("{next} after a clean end at {}", self.end()))?;
        ensure(m.failures == 0, || "failures of another life".to_owned())?;
        self.entries.retain(|e| e.offset < next);
        self.forgotten.iter_mut().for_each(|f| f.at = f.at.min(next));
        ensure(self.end() == next, || format!("the log goes on at {next}, which is inside of an append"))?;
        for ranges in [&mut self.lost, &mut self.bit_rot] {
            ranges.iter_mut().for_each(|(_, to)| *to = next.min(*to));
            ranges.retain(|(from, to)| from < to);
        }
        self.lost_before = self.lost.len(); // what a start reports is no loss of this life
        self.log_id = Some(log_id);
        (self.epoch, self.clean, self.maybe_clean, self.failed) = (m.epoch, false, false, false);
        self.epoch_first = m.epoch_first;
        (self.written, self.durable, self.floor) = (next, next, next);
        self.maybe_lost.clear();
        self.last = Some(m);
        Ok(())
    }
}
