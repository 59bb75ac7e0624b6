//! Producers: what they send and send again, and the answers they got.
//!
//! Invariants: a producer numbers its records without gaps but for what it abandons with a gap mark. It sends again, in
//! order, what has no answer; it never changes what it has sent.

use std::collections::VecDeque;

use clad_journal::{Level, Watermarks};

use super::model::Found;
use crate::Rng;

/// An append that its producer keeps until it is acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Its offset is of the last time it was accepted.
    pub(super) append: Found,
    pub(super) gap: bool,
    pub(super) level: Level,
    /// [`Watermarks::failures`] and the process's life when it was last accepted; the answer is due under these.
    pub(super) due: Option<u32>,
}

/// One producer.
pub(super) struct Client {
    pub(super) id: [u8; 16],
    pub(super) epoch: u32,
    pub(super) next_sequence: u64,
    pub(super) unacked: VecDeque<Sent>,
    /// A few that were acknowledged, to be sent again all the same.
    pub(super) acked: VecDeque<Sent>,
    /// The next new append jumps ahead.
    pub(super) jumps: bool,
}

impl Client {
    pub(super) fn new(number: u8) -> Self {
        Self {
            id: [number; 16],
            epoch: 1,
            next_sequence: 0,
            unacked: VecDeque::new(),
            acked: VecDeque::new(),
            jumps: false,
        }
    }

    /// A new append.
    pub(super) fn make(&mut self, count: u32, size: usize, level: Level, rng: &mut Rng) -> Sent {
        let gap = std::mem::take(&mut self.jumps);
        let append = Found {
            offset: 0,
            count,
            producer: self.id,
            producer_epoch: self.epoch,
            first_sequence: self.next_sequence,
            payload: payload(size, rng),
        };
        self.next_sequence += u64::from(count);
        Sent { append, gap, level, due: None }
    }

    /// The appends to send again, oldest first: those that will not be answered any more.
    pub(super) fn to_resend(&self) -> Option<usize> {
        self.unacked.iter().position(|s| s.due.is_none())
    }

    /// Takes the answers that these watermarks give; says how many records were acknowledged.
    pub(super) fn answered(&mut self, m: &Watermarks) -> u64 {
        let mut records = 0;
        for sent in &mut self.unacked {
            // A failure in between: "maybe written", whatever the watermarks say later.
            sent.due = sent.due.filter(|failures| *failures == m.failures);
        }
        let mut at = 0;
        while let Some(sent) = self.unacked.get(at) {
            if sent.due.is_some() && m.of(sent.level) >= sent.append.end() {
                let sent = self.unacked.remove(at).expect("it was just looked at");
                records += u64::from(sent.append.count);
                self.acked.push_back(sent);
                if self.acked.len() > 40 {
                    self.acked.pop_front();
                }
            } else {
                at += 1;
            }
        }
        records
    }

    /// The daemon is gone: nothing that was not answered will be.
    pub(super) fn disconnected(&mut self) {
        self.unacked.iter_mut().for_each(|s| s.due = None);
    }

    /// It does not want to know any more.
    pub(super) fn give_up(&mut self, rng: &mut Rng) {
        self.unacked.clear();
        self.next_sequence += rng.below(5);
        self.jumps = true;
    }
}

/// Bytes that differ from everybody else's.
fn payload(size: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 8);
    let mut word = rng.number();
    while bytes.len() < size {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.rotate_left(9).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    bytes.truncate(size);
    bytes
}
