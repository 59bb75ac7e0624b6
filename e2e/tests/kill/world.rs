//! What the clients have heard, kept outside of the daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clad_client::{AckLevel, AnyValue, AppendError, Receipt, Record};
use clad_e2e::{Rng, TEST_TIMEOUT};

/// An append that was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    /// Whose.
    pub(crate) client: u64,
    /// Its first record, by the client's own count.
    pub(crate) first: u64,
    /// It went by a ring.
    pub(crate) ring: bool,
    /// What the daemon said.
    pub(crate) receipt: Receipt,
}

/// What the clients have heard.
#[derive(Debug)]
pub(crate) struct World {
    seed: u64,
    stopped: AtomicBool,
    answers: Mutex<Answers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Answers {
    acks: Vec<Ack>,
    forgotten: u64,
    failure: Option<String>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, stopped: AtomicBool::new(false), answers: Mutex::default(), changed: Condvar::new() }
    }

    /// A source of chance for one purpose.
    pub(crate) fn rng(&self, purpose: u64) -> Rng {
        Rng::new(self.seed ^ purpose.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The body of a client's record: the same whenever it is asked for. It begins with whose it is and which.
    pub(crate) fn body(&self, client: u64, index: u64) -> Vec<u8> {
        let mut rng = self.rng((client << 40) ^ index);
        let mut body = format!("{client}:{index}:").into_bytes();
        let length = if rng.chance(1, 200) { 20_000 + rng.below(40_000) } else { rng.below(300) };
        // A third is bytes of any kind; the rest is text, with what loggers trip over.
        for _ in 0..length {
            let byte = rng.number() as u8;
            body.push(if index.is_multiple_of(3) { byte } else { byte & 0x7f });
        }
        body
    }

    /// The record with that body.
    pub(crate) fn record(&self, client: u64, index: u64) -> Record {
        let body = match String::from_utf8(self.body(client, index)) {
            Ok(text) => AnyValue::String(text),
            Err(bytes) => AnyValue::Bytes(bytes.into_bytes()),
        };
        Record { body: Some(body), ..Record::default() }
    }

    /// Notes an answer.
    ///
    /// A producer with a record in the log is known for ever. One without may get the answer, after two crashes in a row,
    /// that it is not known and its records may be written: then they are like those that were never acknowledged.
    pub(crate) fn note_answer(
        &self,
        client: u64,
        first: u64,
        level: AckLevel,
        ring: bool,
        answer: Result<Receipt, AppendError>,
    ) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = |ack: &Ack| ack.client == client && ack.first < first && ack.receipt.level > AckLevel::Received;
        match answer {
            Ok(receipt) if receipt.level == level => answers.acks.push(Ack { client, first, ring, receipt }),
            // A ring is never forgotten: somebody keeps it.
            Err(AppendError::Forgotten) if !ring && !answers.acks.iter().any(kept) => answers.forgotten += 1,
            other => answers.failure = Some(format!("client {client}, record {first}, at {level}: {other:?}")),
        }
        drop(answers);
        self.changed.notify_all();
    }

    /// How many appends were given up because the daemon knew nothing of their producer.
    pub(crate) fn forgotten(&self) -> u64 {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).forgotten
    }

    /// How many acks there were.
    pub(crate) fn acked(&self) -> u64 {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).acks.len() as u64
    }

    /// All acks so far.
    pub(crate) fn acks(&self) -> Vec<Ack> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(answers.failure, None);
        answers.acks.clone()
    }

    /// Waits for so many.
    pub(crate) fn wait_acked(&self, target: u64) {
        let until = Instant::now() + TEST_TIMEOUT;
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        while (answers.acks.len() as u64) < target && answers.failure.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            assert!(left > Duration::ZERO, "{} acks came, {target} were waited for", answers.acks.len());
            answers = self.changed.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        assert_eq!(answers.failure, None);
    }

    /// Asks the clients to finish what is in flight, and end.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
