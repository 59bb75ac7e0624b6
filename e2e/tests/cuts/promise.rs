//! What must be found after a cut, from what was said before it.
//!
//! What must hold, and is checked here:
//! 1. What was acknowledged `durable` is there: once, at its offset, byte for byte; likewise what a daemon said is durable
//!    below an offset, and everything that was received before a clean end.
//! 2. What was given an offset and is not above the end of the log is there, at that offset: what a cut leaves is an
//!    unbroken first part of what was given.
//! 3. What is there was sent before the cut, is whole, is there once, and stands in its client's order.
//! 4. What one start has found, every later one finds.
//! 5. The epoch is greater than any that was reported, but for a clean end.
//! 6. The log begins at 0, or where retention by its rule may have cut it.

use std::collections::{BTreeMap, HashMap};

use clad_client::AckLevel;
use clad_e2e::Rng;
use clad_e2e::cuts::CutResult;
use clad_e2e::cuts::trace::{Ack, Word};
use clad_e2e::readback::Stored;

use crate::cells::{RETENTION_BYTES, SEGMENT_BYTES};

/// What a log was found to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) log_id: String,
    pub(crate) epoch: u32,
    /// The lowest offset that is kept.
    pub(crate) first: u64,
    /// One past the last.
    pub(crate) end: u64,
    /// Sealed segments: number and bytes.
    pub(crate) sealed: Vec<(u64, u64)>,
    pub(crate) records: Vec<Stored>,
}

/// What was looked for, and found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Appends that had an offset.
    pub(crate) acks: u64,
    /// Of these, that had to be there.
    pub(crate) durable: u64,
    /// That were lost, as they may.
    pub(crate) gone: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.acks += other.acks;
        self.durable += other.durable;
        self.gone += other.gone;
    }
}

/// What was said before a cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promise {
    pub(crate) seed: u64,
    /// By offset; the level is the highest that was acknowledged.
    pub(crate) given: BTreeMap<u64, Ack>,
    /// Of each client, one past the last record that it may have sent.
    pub(crate) sent: HashMap<u64, u64>,
    log_id: Option<String>,
    /// The greatest that was reported.
    epoch: u32,
    durable: u64,
    clean: bool,
    /// A daemon was asked to end: the mark of a clean end may be there before anybody heard of it.
    ending: bool,
    /// A daemon was ready once.
    pub(crate) was_ready: bool,
    /// Retention may have removed segments.
    pub(crate) retention: bool,
    found: Option<Found>,
}

impl Promise {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The same after these words.
    pub(crate) fn after<'a>(mut self, words: impl Iterator<Item = &'a Word>) -> CutResult<Self> {
        for word in words {
            self.note(word)?;
        }
        Ok(self)
    }

    /// The same after a start that has found this.
    pub(crate) fn having_found(mut self, found: &Found) -> Self {
        self.found = Some(found.clone());
        self
    }

    fn note(&mut self, word: &Word) -> CutResult {
        match word {
            Word::Ready { log_id, epoch, first, retention } => {
                self.was_ready = true;
                self.retention |= retention;
                (self.clean, self.ending) = (false, false);
                self.log_id = Some(log_id.clone());
                self.epoch = self.epoch.max(*epoch);
                // Offsets from here on are given again, to other records.
                let abandoned = self.given.split_off(first);
                let lost =
                    abandoned.values().find(|ack| ack.epoch < *epoch && ack.level >= AckLevel::Durable as u8).copied();
                self.given.extend(abandoned.into_iter().filter(|(_, ack)| ack.epoch == *epoch));
                lost.map_or(Ok(()), |ack| Err(format!("epoch {epoch} begins at {first}, below {ack:?}")))
            }
            Word::Sending { client, below } => {
                let sent = self.sent.entry(*client).or_default();
                *sent = (*sent).max(*below);
                Ok(())
            }
            Word::Ack(ack) => {
                self.epoch = self.epoch.max(ack.epoch);
                let known = self.given.entry(ack.offset).or_insert(*ack);
                if (known.client, known.first, known.count) != (ack.client, ack.first, ack.count) {
                    return Err(format!("two appends have offset {}: {known:?} and {ack:?}", ack.offset));
                }
                known.level = known.level.max(ack.level);
                known.epoch = known.epoch.max(ack.epoch);
                Ok(())
            }
            Word::Durable { below } => {
                self.durable = self.durable.max(*below);
                Ok(())
            }
            Word::Ending => {
                self.ending = true;
                Ok(())
            }
            Word::Ended { clean } => {
                (self.clean, self.ending) = (*clean, false);
                Ok(())
            }
            Word::Block(_) | Word::Note(_) => Ok(()),
        }
    }

    fn must_be_there(&self, ack: &Ack) -> bool {
        ack.level >= AckLevel::Durable as u8 || self.clean || ack.offset + u64::from(ack.count) <= self.durable
    }

    /// Looks at what was found.
    pub(crate) fn check(&self, found: &Found) -> CutResult<Counts> {
        self.check_begin(found)?;
        let places = self.check_records(found)?;
        let mut counts = Counts::default();
        for ack in self.given.values() {
            counts.acks += 1;
            counts.durable += u64::from(self.must_be_there(ack));
            for (index, offset) in (ack.first..).zip(ack.offset..ack.offset + u64::from(ack.count)) {
                let at = places.get(&(ack.client, index)).copied();
                if offset < found.first || at == Some(offset) {
                    continue;
                }
                if offset >= found.end && at.is_none() && !self.must_be_there(ack) {
                    counts.gone += u64::from(index == ack.first);
                    continue;
                }
                return Err(format!("LOST: record {index} of {ack:?} is at {at:?} in {}", found.extent()));
            }
        }
        if found.end < self.durable {
            return Err(format!("LOST: all below {} was said to be durable, found {}", self.durable, found.extent()));
        }
        self.check_earlier(found)?;
        Ok(counts)
    }

    fn check_begin(&self, found: &Found) -> CutResult {
        if self.log_id.as_ref().is_some_and(|id| *id != found.log_id) {
            return Err(format!("another log: {} after {:?}", found.log_id, self.log_id));
        }
        // With nothing lost, an end that nobody heard of may have been a clean one.
        let whole = self.clean || (self.ending && self.given.values().all(|ack| ack.offset < found.end));
        let raised = found.epoch > self.epoch || (whole && found.epoch == self.epoch);
        if self.was_ready && !raised {
            return Err(format!("epoch {} after {} (clean end: {})", found.epoch, self.epoch, self.clean));
        }
        if found.first > 0 && !self.retention {
            return Err(format!("LOST: the log begins at {} and nothing was to be removed", found.first));
        }
        // Retention removes the oldest segment only while there is more than it may leave.
        let left: u64 = found.sealed.iter().map(|(_, bytes)| bytes).sum();
        if found.first > 0 && left + SEGMENT_BYTES <= RETENTION_BYTES {
            let before = self.found.as_ref().map(|earlier| &earlier.sealed);
            let now = &found.sealed;
            return Err(format!(
                "LOST: retention of {RETENTION_BYTES} bytes has left {left}: {now:?}; before: {before:?}"
            ));
        }
        Ok(())
    }

    /// Rule 3; where each record is.
    fn check_records(&self, found: &Found) -> CutResult<HashMap<(u64, u64), u64>> {
        let mut places = HashMap::new();
        let mut last = HashMap::new();
        for (offset, record) in (found.first..).zip(&found.records) {
            let whose = whose(&record.body).ok_or_else(|| format!("at {offset} stands nobody's record: {record:?}"))?;
            let (client, index) = whose;
            if record.offset != offset {
                return Err(format!("offset {} where {offset} is next", record.offset));
            }
            if record.body != body(self.seed, client, index) {
                return Err(format!("record {index} of client {client} at {offset} is not as it was sent"));
            }
            if index >= self.sent.get(&client).copied().unwrap_or(0) {
                return Err(format!("record {index} of client {client} at {offset} was not sent before the cut"));
            }
            if record.sequence != index {
                return Err(format!("record {index} of client {client} at {offset} has sequence {}", record.sequence));
            }
            if let Some(before) = last.insert(client, index).filter(|before| *before >= index) {
                return Err(format!("record {index} of client {client} at {offset} stands behind {before}"));
            }
            places.insert(whose, offset);
        }
        if found.first + found.records.len() as u64 != found.end {
            return Err(format!("{} records in {}", found.records.len(), found.extent()));
        }
        Ok(places)
    }

    /// Rule 4.
    fn check_earlier(&self, found: &Found) -> CutResult {
        let Some(earlier) = &self.found else { return Ok(()) };
        let same = |offset: u64, from: &Found| {
            let at = usize::try_from(offset - from.first).unwrap_or(usize::MAX);
            from.records.get(at).cloned()
        };
        for offset in earlier.first.max(found.first)..earlier.end {
            if same(offset, earlier) != same(offset, found) {
                return Err(format!(
                    "LOST: the start before found a record at {offset} in {}, this one not that in {}",
                    earlier.extent(),
                    found.extent()
                ));
            }
        }
        Ok(())
    }
}

impl Found {
    pub(crate) fn extent(&self) -> String {
        format!("{} to {} (epoch {})", self.first, self.end, self.epoch)
    }
}

/// What a client sends as its record of a number.
pub(crate) fn body(seed: u64, client: u64, index: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ client << 40 ^ index);
    let length = match rng.below(16) {
        0 => rng.below(8000),
        1..=4 => rng.below(1500),
        _ => rng.below(300),
    };
    let mut body = format!("{client}:{index}:").into_bytes();
    body.extend((0..length).map(|_| b' ' + (rng.number() % 90) as u8));
    body
}

fn whose(body: &[u8]) -> Option<(u64, u64)> {
    let mut parts = body.splitn(3, |byte| *byte == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use clad_proto::ProducerId;

    use super::*;

    fn ready(epoch: u32, first: u64) -> Word {
        Word::Ready { log_id: "a".into(), epoch, first, retention: false }
    }

    fn ack(first: u64, level: AckLevel) -> Word {
        Word::Ack(Ack { client: 1, first, count: 1, offset: first, epoch: 1, level: level as u8 })
    }

    fn found(epoch: u32, indices: &[u64]) -> Found {
        let stored = |(offset, index): (u64, &u64)| Stored {
            offset,
            producer: ProducerId::from_bytes([1; 16]),
            sequence: *index,
            body: body(7, 1, *index),
            is_cut: false,
        };
        let records: Vec<_> = (0..).zip(indices).map(stored).collect();
        Found { log_id: "a".into(), epoch, first: 0, end: records.len() as u64, sealed: Vec::new(), records }
    }

    fn promise(words: &[Word]) -> Promise {
        Promise::new(7).after(words.iter()).expect("words that fit")
    }

    #[test]
    fn sees_what_is_wrong() {
        let sending = Word::Sending { client: 1, below: 3 };
        let words = [ready(1, 0), sending, ack(0, AckLevel::Durable), ack(1, AckLevel::Written)];
        let promise = promise(&words);
        for good in [&[0][..], &[0, 1], &[0, 1, 2]] {
            promise.check(&found(2, good)).expect("as promised");
        }
        for (bad, why) in [
            (found(2, &[]), "LOST"),
            (found(1, &[0, 1]), "epoch"),
            (found(2, &[1, 0]), "behind"),
            (found(2, &[0, 0]), "behind"),
            (found(2, &[0, 2]), "LOST"),
            (found(2, &[0, 1, 2, 3]), "not sent"),
        ] {
            let error = promise.check(&bad).expect_err("not as promised");
            assert!(error.contains(why), "{error}");
        }
        let mut torn = found(2, &[0, 1]);
        torn.records[1].body.pop();
        assert!(promise.check(&torn).expect_err("torn").contains("not as it was sent"));
        let earlier = promise.clone().having_found(&found(2, &[0, 1]));
        assert!(earlier.check(&found(3, &[0])).expect_err("found before").contains("the start before"));
    }

    #[test]
    fn a_clean_end_keeps_everything() {
        let sending = Word::Sending { client: 1, below: 1 };
        let words = [ready(1, 0), sending, ack(0, AckLevel::Received), Word::Ended { clean: true }];
        promise(&words).check(&found(1, &[0])).expect("kept, in the same epoch");
        promise(&words).check(&found(1, &[])).expect_err("everything was drained and synced");
        promise(&words[..3]).check(&found(2, &[])).expect("received is not kept");
    }
}
