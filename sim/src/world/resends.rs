//! Senders without a sequence. The daemon numbers their appends, so one that comes again has another number, and only its
//! resend key says what it is.
//!
//! Invariants:
//! - An append that is called stored has an offset, and that offset holds its very bytes.
//! - While the window has a place and time for every append of a history, none that is there is stored again. So none is
//!   refused for want of room either.
//! - A window that is too small may forget; the first invariant holds all the same.
//!
//! Its choices come from a stream of their own: histories without it stay what they were.

use std::time::Duration;

use clad_journal::{Accepted, Accepting, AppendError, JournalConfig, Level, Policy, ResendKey, Sender};

use super::appends::item;
use super::client::{Client, Sent};
use super::model::{Check, ensure};
use super::turnover::owner_of;
use super::{Settings, World};
use crate::Rng;

/// The producer under which the daemon stores their appends.
pub(super) const DAEMON: [u8; 16] = [90; 16];
const SENDERS: u8 = 3;
/// Appends of a sender in a history, where the window must not overflow: a third of what fits the smallest segment.
const FITTING_APPENDS: u32 = 13;
/// Likewise where it may.
const MANY_APPENDS: u32 = 60;
/// Most appends of a sender that wait for an answer.
const UNACKED_MAX: usize = 6;

/// The senders, and what the daemon knows of them.
pub(super) struct Resends {
    rng: Rng,
    senders: Vec<Client>,
    /// New appends that each sender may still make.
    left: Vec<u32>,
    next_sequence: u64,
    /// Nothing leaves the window.
    fits: bool,
}

impl Settings {
    /// Senders without a sequence, in three of four histories.
    pub(super) fn resends(&self, config: &mut JournalConfig, seed: u64) -> Option<Resends> {
        let mut rng = Rng::new(seed ^ 0x7265_7365_6E64);
        if !self.resends || rng.chance(1, 4) {
            return None;
        }
        let fits = !rng.chance(1, 4);
        let (entries, keep_s, left) =
            if fits { (64, 365 * 86_400, FITTING_APPENDS) } else { (5, 1 + rng.below(60), MANY_APPENDS) };
        (config.resend_entries, config.resend_keep) = (entries, Duration::from_secs(keep_s));
        let senders: Vec<_> = (1..=SENDERS).map(Client::new).collect();
        Some(Resends { rng, left: vec![left; senders.len()], senders, next_sequence: 0, fits })
    }
}

impl Resends {
    /// True if a sender does something now.
    pub(super) fn takes_its_turn(&mut self) -> bool {
        self.rng.chance(1, 6)
    }

    pub(super) fn senders(&mut self) -> impl Iterator<Item = &mut Client> {
        self.senders.iter_mut()
    }

    /// Picks an append of a sender: one without an answer, now and then one under way or answered, else a new one. Says
    /// where it waits for its answer.
    fn pick(&mut self, who: usize, ends_at_written: bool) -> Option<(Sent, Option<usize>)> {
        let sender = &mut self.senders[who];
        if let Some(at) = sender.to_resend() {
            return Some((sender.unacked[at].clone(), Some(at)));
        }
        if self.rng.chance(1, 3) || self.left[who] == 0 || sender.unacked.len() >= UNACKED_MAX {
            let at = self.rng.index((sender.unacked.len() + sender.acked.len()).max(1));
            let waiting = sender.unacked.len();
            let again = sender.unacked.get(at).or_else(|| sender.acked.get(at.saturating_sub(waiting)));
            return again.cloned().map(|again| (again, None));
        }
        self.left[who] -= 1;
        let level = [Level::Received, Level::Written, Level::Durable][self.rng.index(3)];
        let level = if ends_at_written { level.min(Level::Written) } else { level };
        let (count, size) = (1 + self.rng.below(4) as u32, self.rng.index(700));
        let mut sent = sender.make(count, size, level, &mut self.rng);
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&self.rng.number().to_le_bytes());
        let mut payload = Vec::new();
        ResendKey { identity: sender.id[0].into(), digest }.encode(&mut payload);
        payload.append(&mut sent.append.payload);
        (sent.append.producer, sent.append.payload, sent.gap) = (DAEMON, payload, true);
        sender.unacked.push_back(sent.clone());
        Some((sent, Some(sender.unacked.len() - 1)))
    }

    /// The next sequence of the daemon. It leaves some out.
    fn number(&mut self, count: u32) -> u64 {
        let first = self.next_sequence;
        self.next_sequence += u64::from(count) + self.rng.below(3);
        first
    }
}

impl World {
    /// A sender without a sequence sends something, or sends it again.
    pub(super) fn send_without_sequence(&mut self) -> Check {
        let alive = self.stepper.is_some() && self.disk.is_alive();
        let Some(resends) = self.resends.as_mut().filter(|_| alive) else { return Ok(()) };
        let who = resends.rng.index(resends.senders.len());
        let ends_at_written = matches!(self.config.policy, Policy::FireAndForget { .. });
        let Some((mut sent, waits_at)) = resends.pick(who, ends_at_written) else { return Ok(()) };
        sent.append.first_sequence = resends.number(sent.append.count);
        let answer = self.send_by_key(&sent)?;
        if let (Some(at), Some((offset, failures)), Some(resends)) = (waits_at, answer, &mut self.resends) {
            let waiting = &mut resends.senders[who].unacked[at];
            (waiting.append.offset, waiting.due) = (offset, Some(failures));
        }
        self.observe()
    }

    /// Hands an append over by its key, and checks the answer: its offset and the failures so far, or nothing.
    fn send_by_key(&mut self, sent: &Sent) -> Check<Option<(u64, u32)>> {
        let Some(stepper) = &self.stepper else { return Ok(None) };
        let (a, accepting) = (&sent.append, stepper.watermarks().accepting);
        let key = ResendKey::find(&a.payload);
        let mut peer_meta = vec![1, 5];
        key.iter().for_each(|key| key.encode(&mut peer_meta));
        let from = Sender {
            producer: DAEMON,
            owner: owner_of(&DAEMON),
            producer_epoch: a.producer_epoch,
            peer_meta: &peer_meta,
            resend: key,
            forward: None,
        };
        match stepper.append_burst(&from, &[item(sent)], None).pop() {
            Some(answer) => self.judge_resend(sent, answer, accepting),
            None => Ok(None),
        }
    }

    fn judge_resend(
        &mut self,
        sent: &Sent,
        answer: Result<Accepted, AppendError>,
        accepting: Accepting,
    ) -> Check<Option<(u64, u32)>> {
        let a = &sent.append;
        let hit = self.settings.bit_rot && self.was_damaged();
        let is_gone = |offset, end| self.model.is_lost(offset) || hit && self.model.is_excused(offset, end);
        let copies: Vec<_> = self.model.copies(a).map(|e| (e.offset, is_gone(e.offset, e.end()))).collect();
        match answer {
            Ok(given) if given.duplicate => {
                let of_it = |(offset, gone): &(u64, bool)| *offset == given.first_offset && (hit || !gone);
                let right = copies.iter().any(of_it) && given.count == a.count;
                ensure(right, || format!("{given:?} answered to what is stored at {copies:?}"))?;
                self.stats.resent += 1;
                self.note(|| format!("sent again by its key: {given:?}"));
                self.eat(&[given.first_offset]);
                Ok(Some((given.first_offset, given.failures)))
            }
            Err(AppendError::Failed { .. }) => self.judge(sent, answer, accepting),
            _ => {
                let fits = self.resends.as_ref().is_some_and(|resends| resends.fits);
                let there = fits && copies.iter().any(|(_, gone)| !gone);
                ensure(!there, || format!("{answer:?} answered to what is stored at {copies:?}"))?;
                self.judge(sent, answer, accepting)
            }
        }
    }
}
