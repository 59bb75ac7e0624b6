//! Actions of producers on the journal, and the required answers.
//!
//! Invariant: every answer is the one that [`super::model`] expects of what is stored; a refusal leaves no trace.

use clad_journal::format::checksum::plain;
use clad_journal::{Accepted, Accepting, Append, AppendError, Item, Level, Policy, Sender};

use super::World;
use super::client::Sent;
use super::model::{Check, Expect, Violation, ensure};
use super::turnover::owner_of;

/// The most appends sent again in one burst.
const MAX_BURST: usize = 12;

pub(super) fn item(sent: &Sent) -> Item<'_> {
    let payload = &sent.append.payload;
    Item {
        first_sequence: sent.append.first_sequence,
        count: sent.append.count,
        gap: sent.gap,
        level: sent.level,
        min_time_ns: 1,
        max_time_ns: 2,
        payload,
        payload_checksum: plain(payload),
        share: payload.len(),
    }
}

impl World {
    pub(super) fn append_something(&mut self) -> Check {
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

    /// Tries appends that no journal may take.
    pub(super) fn probe_refusals(&mut self, who: usize) -> Check {
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

    /// Several of one producer together, as one read of a connection brings them: what is to be sent again, then new
    /// ones; now and then one in the middle that no journal may take, which costs the others nothing.
    pub(super) fn append_burst(&mut self) -> Check {
        let who = self.rng.index(self.clients.len());
        let resends = self.clients[who].unacked.iter().filter(|sent| sent.due.is_none()).cloned();
        let mut burst: Vec<Sent> = resends.take(MAX_BURST).collect();
        let again = burst.len();
        while burst.len() < again + 1 + self.rng.index(6) {
            let sent = self.new_append(who);
            self.clients[who].unacked.push_back(sent.clone());
            burst.push(sent);
        }
        if self.rng.chance(1, 4) {
            let mut bad = burst[self.rng.index(burst.len())].clone();
            bad.gap = false;
            bad.append.producer_epoch = bad.append.producer_epoch.saturating_sub(1);
            bad.append.first_sequence += 1 + self.rng.below(60);
            let at = self.rng.index(burst.len() + 1);
            burst.insert(at, bad);
        }
        // One session has one epoch: what comes under another is a burst of its own.
        for of_epoch in burst.chunk_by(|a, b| a.append.producer_epoch == b.append.producer_epoch) {
            for (sent, given) in of_epoch.iter().zip(self.send_together(of_epoch)?) {
                let same = |known: &&mut Sent| {
                    let (known, sent) = (&known.append, &sent.append);
                    (known.first_sequence, known.producer_epoch) == (sent.first_sequence, sent.producer_epoch)
                };
                if let (Some((offset, failures)), Some(kept)) = (given, self.clients[who].unacked.iter_mut().find(same))
                {
                    kept.append.offset = offset;
                    kept.due = Some(failures);
                }
            }
        }
        self.stats.bursts += 1;
        self.observe()
    }

    fn send_together(&mut self, burst: &[Sent]) -> Check<Vec<Option<(u64, u32)>>> {
        let (Some(stepper), Some(first)) = (&self.stepper, burst.first()) else { return Ok(Vec::new()) };
        let accepting = stepper.watermarks().accepting;
        let from = Sender {
            producer: first.append.producer,
            owner: owner_of(&first.append.producer),
            producer_epoch: first.append.producer_epoch,
            peer_meta: b"sim",
            resend: None,
            forward: None,
        };
        let items: Vec<Item<'_>> = burst.iter().map(item).collect();
        let answers = stepper.append_burst(&from, &items, None);
        ensure(answers.len() == burst.len(), || format!("{} answers to {} appends", answers.len(), burst.len()))?;
        burst.iter().zip(answers).map(|(sent, answer)| self.judge(sent, answer, accepting)).collect()
    }

    /// Hands an append over, and checks the answer: its offset and the failures so far, or nothing.
    pub(super) fn send(&mut self, sent: &Sent) -> Check<Option<(u64, u32)>> {
        let Some(stepper) = &self.stepper else { return Ok(None) };
        let a = &sent.append;
        let accepting = stepper.watermarks().accepting;
        let answer = stepper.append(Append {
            producer: a.producer,
            owner: owner_of(&a.producer),
            producer_epoch: a.producer_epoch,
            first_sequence: a.first_sequence,
            count: a.count,
            gap: sent.gap,
            level: sent.level,
            min_time_ns: 1,
            max_time_ns: 2,
            peer_meta: b"sim",
            payload: &a.payload,
            payload_checksum: plain(&a.payload),
            permit: None,
        });
        self.judge(sent, answer, accepting)
    }

    pub(super) fn judge(
        &mut self,
        sent: &Sent,
        answer: Result<Accepted, AppendError>,
        accepting: Accepting,
    ) -> Check<Option<(u64, u32)>> {
        let a = &sent.append;
        let expected = self.model.expect(a, sent.gap, self.config.window);
        let wrong = || {
            Violation(format!("{expected:?} expected, {answer:?} answered to {}@{}", a.first_sequence, a.producer[0]))
        };
        let bit_rot = self.settings.bit_rot && self.was_damaged();
        let taken = match (&answer, expected) {
            (Ok(given), _) if bit_rot => {
                let right = self.model.may_answer(a, given.first_offset, given.duplicate);
                ensure(right, || format!("{given:?} answered to {}@{}", a.first_sequence, a.producer[0]))?;
                if !given.duplicate {
                    self.model.accept(super::Found { offset: given.first_offset, ..a.clone() })?;
                }
                Some((given.first_offset, given.failures))
            }
            (
                Err(
                    AppendError::TooOld
                    | AppendError::Skipped { .. }
                    | AppendError::Fenced { .. }
                    | AppendError::Gap { .. }
                    | AppendError::Overlap { .. },
                ),
                _,
            ) if bit_rot => None,
            // What it takes for new, as it has noticed that the first is gone.
            (Err(AppendError::NoSpace | AppendError::NoSegment { .. }), _) if bit_rot && self.disturbed => None,
            (Err(AppendError::Failed { .. }), _) => {
                ensure(accepting == Accepting::Failed, || format!("refused though {accepting:?}"))?;
                None
            }
            (Err(AppendError::NoSpace | AppendError::NoSegment { .. }), Expect::Fresh) => {
                ensure(self.disturbed, || "no space, and nobody took any".to_owned())?;
                None
            }
            (Err(AppendError::TooManyProducers), Expect::Fresh) if self.model.newest_known(&a.producer).is_none() => {
                self.may_have_no_place(&a.producer)?;
                self.stats.placeless += 1;
                None
            }
            (Ok(given), Expect::Fresh) if !given.duplicate => {
                self.model.accept(super::Found { offset: given.first_offset, ..a.clone() })?;
                self.was_active(&a.producer);
                Some((given.first_offset, given.failures))
            }
            (Ok(given), Expect::Duplicate { offset, .. }) if given.duplicate && given.first_offset == offset => {
                ensure(!self.model.is_lost(offset), || format!("{offset} was lost, and is called stored"))?;
                self.stats.duplicates += 1;
                Some((given.first_offset, given.failures))
            }
            (Err(AppendError::TooOld), Expect::Duplicate { certain: false, .. } | Expect::Overlap)
            | (Err(AppendError::Skipped { .. }), Expect::Overlap)
            | (Err(AppendError::Fenced { .. }), Expect::Fenced)
            | (Err(AppendError::Gap { .. }), Expect::Gap)
            | (Err(AppendError::Overlap { .. }), Expect::Overlap) => None,
            (Err(AppendError::Fenced { current }), _) if self.model.may_be_fenced(a, *current) => None,
            _ => return Err(wrong()),
        };
        let (seq, who, n, level) = (a.first_sequence, a.producer[0], a.count, sent.level);
        self.note(|| format!("append {n} of {who} from {seq} for {level:?}: {answer:?}"));
        self.eat(&[taken.map_or(u64::MAX, |t| t.0)]);
        Ok(taken)
    }
}
