//! Producers of the daemon's own, under which it stores what has no producer: one for each owner.
//!
//! Invariants: a sequence is given under the producer's lock, and with it the offset: so none is passed over by another
//! that is faster. Ids are random, and belong to the owner: nobody else can take one. A producer that nobody uses goes
//! when there are [`IDLE_MAX`] others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clad_journal::{Accepted, DeferredWrite, Journal, ResendKey};
use clad_proto::frame::{AppendHead, AppendView};
use clad_proto::{AckLevel, ErrorInfo, Payload, ProducerId};

use super::admission::{Admission, Admitted, Producer, random, refusal};
use super::peer::Peer;
use super::quota::Owner;

/// Producers that are kept beside those in use. Each is one of `[limits] max_producers`.
const IDLE_MAX: usize = 64;

/// A producer, and its next sequence.
pub(crate) struct OwnProducer {
    producer: Producer,
    next: Mutex<u64>,
}

impl OwnProducer {
    /// Hands an append over, under the next sequence: the first sequence, what the journal made of it, and a write that is
    /// left to the caller, which the journal's threads make where it is dropped.
    ///
    /// # Errors
    /// Its refusal; nothing of it is stored.
    pub(crate) fn append(
        &self,
        admission: &Admission,
        peer: &Peer,
        level: AckLevel,
        (payload, key): (&Payload, Option<ResendKey>),
        admitted: Admitted,
    ) -> Result<(u64, Accepted, Option<DeferredWrite>), ErrorInfo> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        // The gap mark: sequences of appends that the journal lost are not given again.
        let (first_seq, count, payload_crc) = (*next, payload.count, payload.checksum());
        let head = AppendHead { first_seq, count, level, gap: true, payload_crc };
        let view = AppendView { head, payload: &payload.bytes };
        let (accepted, deferred) = match key {
            Some(key) => admission.take_once(peer, &self.producer, key, &view, admitted)?,
            None => admission.take(peer, &self.producer, &view, admitted)?,
        };
        *next += u64::from(count);
        Ok((first_seq, accepted, deferred))
    }
}

/// The producer, and when it was asked for.
type Used = (Arc<OwnProducer>, Instant);

/// The producers in use, by owner, and whether the kernel names the user of the socket.
pub(crate) struct OwnProducers {
    journal: Arc<Journal>,
    of: Mutex<HashMap<(Owner, bool), Used>>,
}

impl OwnProducers {
    pub(crate) fn new(journal: Arc<Journal>) -> Self {
        Self { journal, of: Mutex::default() }
    }

    /// The producer for a peer.
    ///
    /// # Errors
    /// The journal is closing.
    pub(crate) fn of(&self, peer: &Peer) -> Result<Arc<OwnProducer>, ErrorInfo> {
        let key = (peer.quota_owner(), peer.uid().is_some());
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((producer, asked)) = of.get_mut(&key) {
            *asked = Instant::now();
            return Ok(producer.clone());
        }
        if of.len() >= IDLE_MAX {
            let idle = of.iter().filter(|(_, (producer, _))| Arc::strong_count(producer) == 1);
            let oldest = idle.min_by_key(|(_, (_, asked))| *asked).map(|(key, _)| *key);
            oldest.map(|key| of.remove(&key));
        }
        // Over the network its owner is a secret that nobody else knows.
        let (id, secret) = (ProducerId::from_bytes(random()?), random::<16>()?);
        let (owner, quota) = (peer.owner(&secret), peer.quota_owner());
        let producer = Producer::begin(self.journal.clone(), id, owner, 1, quota).map_err(|error| refusal(&error))?;
        let producer = Arc::new(OwnProducer { producer, next: Mutex::new(0) });
        of.insert(key, (producer.clone(), Instant::now()));
        Ok(producer)
    }
}
