//! Producers of the daemon's own, under which it stores what has no producer: one for each owner.
//!
//! Invariants: a sequence is given under the producer's lock, and with it the offset: so none is passed over by another
//! that is faster. Ids are random, and belong to the owner: nobody else can take one. A producer that nobody uses goes
//! when there are [`IDLE_MAX`] others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clad_journal::Journal;
use clad_proto::{ErrorInfo, ProducerId};

use crate::ingest::quota::Owner;
use crate::ingest::{Peer, Producer, random, refusal};

/// Producers that are kept beside those in use. Each is one of `[limits] max_producers`.
const IDLE_MAX: usize = 64;

/// A producer, and its next sequence.
pub(super) struct OwnProducer {
    pub(super) producer: Producer,
    pub(super) next: Mutex<u64>,
}

/// The producer, and when it was asked for.
type Used = (Arc<OwnProducer>, Instant);

/// The producers in use, by owner, and whether the kernel names the user of the socket.
pub(super) struct Producers {
    journal: Arc<Journal>,
    of: Mutex<HashMap<(Owner, bool), Used>>,
}

impl Producers {
    pub(super) fn new(journal: Arc<Journal>) -> Self {
        Self { journal, of: Mutex::default() }
    }

    /// The producer for a peer.
    ///
    /// # Errors
    /// The journal is closing.
    pub(super) fn of(&self, peer: &Peer) -> Result<Arc<OwnProducer>, ErrorInfo> {
        let key = (peer.quota_owner(), peer.uid.is_some());
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
