//! Clients by hand: they know when each answer came, because nothing lies between the socket and the trace.

use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use clad_client::AckLevel;
use clad_e2e::cuts::trace::{Ack, Word};
use clad_e2e::cuts::{CutResult, Recorder};
use clad_e2e::raw::{hello_as, payload};
use clad_e2e::{Raw, Rng};
use clad_proto::ProducerId;
use clad_proto::frame::{AppendHead, Frame, encode_append};

use crate::promise::body;

/// Appends that a client has under way, at most; one of these. The last is more than a segment takes, from all clients.
pub(crate) const WINDOWS: [usize; 3] = [4, 8, 48];
/// What they ask for.
pub(crate) const LEVELS: [AckLevel; 3] = [AckLevel::Received, AckLevel::Written, AckLevel::Durable];

/// A client that lives longer than a daemon.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) number: u64,
    seed: u64,
    rng: Rng,
    next: u64,
    window: usize,
    /// What it sent: first record, how many, and the offset once known.
    history: Vec<(u64, u32, Option<u64>)>,
    pub(crate) resent: u64,
}

/// An append under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    at: usize,
    level: AckLevel,
    ack: Option<Ack>,
}

/// The producer id of a client.
pub(crate) fn id_of(seed: u64, number: u64) -> ProducerId {
    let mut id = [0x5C; 16];
    id[..8].copy_from_slice(&seed.to_le_bytes());
    id[8] = number as u8;
    ProducerId::from_bytes(id)
}

impl Client {
    pub(crate) fn new(number: u64, seed: u64, window: usize) -> Self {
        let rng = Rng::new(seed ^ number << 50);
        Self { number, seed, rng, next: 0, window, history: Vec::new(), resent: 0 }
    }

    /// One that goes on where the log says that it was.
    pub(crate) fn resumed(number: u64, seed: u64, next: u64, chance: u64) -> Self {
        Self { number, seed, rng: Rng::new(chance), next, window: WINDOWS[1], history: Vec::new(), resent: 0 }
    }

    /// Appends so many times, or until the daemon is gone, and hears what comes.
    pub(crate) fn run(&mut self, socket: &Path, recorder: &Recorder, levels: &[AckLevel], appends: usize) -> CutResult {
        let mut raw = Raw::unix(socket);
        let welcome = raw.greet(&hello_as(id_of(self.seed, self.number), 0, b"")).map_err(|e| format!("{e:?}"))?;
        let stored = welcome.last.map_or(0, |last| last.sequence + 1);
        let lost = self.history.iter().position(|(first, ..)| *first >= stored).unwrap_or(self.history.len());
        // What the daemon has not is sent again, and a little that it has.
        let mut again: VecDeque<usize> = (lost.saturating_sub(3)..self.history.len()).collect();
        self.resent += again.len() as u64;
        let mut flights: VecDeque<Flight> = VecDeque::new();
        let mut left = appends;
        loop {
            while flights.len() < self.window && (left > 0 || !again.is_empty()) {
                let at = match again.pop_front() {
                    Some(at) => at,
                    None => {
                        left -= 1;
                        self.think_of_one()
                    }
                };
                let level = levels[self.rng.index(levels.len())];
                if self.send(&mut raw, at, level, recorder).is_err() {
                    return Ok(());
                }
                flights.push_back(Flight { at, level, ack: None });
                if self.rng.chance(1, 12) {
                    break; // now and then it hears before it goes on
                }
            }
            if flights.is_empty() && left == 0 && again.is_empty() {
                return Ok(());
            }
            match raw.frame() {
                None => return Ok(()),
                Some(frame) => self.note(&frame, &mut flights, recorder)?,
            }
            if self.rng.chance(1, 60) {
                thread::sleep(Duration::from_millis(self.rng.below(8)));
            }
        }
    }

    fn think_of_one(&mut self) -> usize {
        let count = 1 + self.rng.below(4) as u32;
        self.history.push((self.next, count, None));
        self.next += u64::from(count);
        self.history.len() - 1
    }

    fn send(&self, raw: &mut Raw, at: usize, level: AckLevel, recorder: &Recorder) -> std::io::Result<()> {
        let (first, count, _) = self.history[at];
        let below = first + u64::from(count);
        let bodies: Vec<Vec<u8>> = (first..below).map(|index| body(self.seed, self.number, index)).collect();
        let payload = payload(&bodies.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let head = AppendHead { first_seq: first, count, level, gap: false, payload_crc: payload.checksum() };
        let mut bytes = BytesMut::new();
        encode_append(&mut bytes, &head, &payload.bytes);
        recorder.say(Word::Sending { client: self.number, below });
        raw.send_bytes(&bytes)
    }

    fn note(&mut self, frame: &Frame, flights: &mut VecDeque<Flight>, recorder: &Recorder) -> CutResult {
        match frame {
            Frame::Accepted(accepted) => {
                let first = |flight: &Flight| self.history[flight.at].0;
                let flight =
                    flights.iter_mut().find(|flight| first(flight) == accepted.first_seq && flight.ack.is_none());
                let flight = flight.ok_or_else(|| format!("nobody waits for {accepted:?}"))?;
                let known = &mut self.history[flight.at].2;
                if accepted.duplicate && known.is_some_and(|offset| offset != accepted.first_offset) {
                    return Err(format!("sent again, it has another offset than {known:?}: {accepted:?}"));
                }
                *known = Some(accepted.first_offset);
                let ack = Ack {
                    client: self.number,
                    first: accepted.first_seq,
                    count: accepted.count,
                    offset: accepted.first_offset,
                    epoch: accepted.epoch,
                    level: AckLevel::Received as u8,
                };
                flight.ack = Some(ack);
                recorder.say(Word::Ack(ack));
                flights.retain(|flight| flight.level > AckLevel::Received || flight.ack.is_none());
                Ok(())
            }
            Frame::Watermark(watermark) => {
                flights.retain(|flight| {
                    let Some(ack) = flight.ack.filter(|_| flight.level <= watermark.level) else { return true };
                    if !watermark.covers(ack.epoch, ack.offset + u64::from(ack.count) - 1) {
                        return true;
                    }
                    recorder.say(Word::Ack(Ack { level: watermark.level as u8, ..ack }));
                    false
                });
                Ok(())
            }
            other => Err(format!("client {}: {other:?}", self.number)),
        }
    }
}
