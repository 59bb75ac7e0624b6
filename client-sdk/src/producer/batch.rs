//! Records that the caller groups into one append.

use std::sync::Arc;

use crate::{
    SubmitError,
    ring::RingHandle,
    stats::{Counters, Tally},
};
use clad_proto::{Body, EncodeError, Payload, PayloadBuilder, Record};

/// Records that will be one append: taken or refused whole, stored with consecutive offsets, one receipt.
///
/// Made by [`Producer::batch`](crate::Producer::batch), with the producer's resource and scope; encoded as it is
/// filled. After a submit it is empty and can be filled again, which is the cheapest way: it keeps its buffer. If it
/// goes into a ring of shared memory, it also keeps that ring until it goes into another one or is dropped.
#[derive(Debug)]
pub struct Batch {
    builder: PayloadBuilder,
    cached_ring: Option<CachedRing>,
}

/// State that spares the next submit all that threads would share: a look at the ring's number instead of a counted
/// reference.
#[derive(Debug)]
pub(crate) struct CachedRing {
    /// The ring that the batch went into last.
    pub(crate) ring: Arc<RingHandle>,
    pub(crate) tally: Arc<Tally>,
    counters: Arc<Counters>,
}

impl CachedRing {
    pub(crate) fn new(ring: Arc<RingHandle>, counters: &Arc<Counters>) -> Self {
        Self { ring, tally: counters.open(), counters: counters.clone() }
    }
}

impl Drop for CachedRing {
    fn drop(&mut self) {
        // A fork has the locks as they were.
        if !self.ring.is_forked() {
            self.counters.close(&self.tally);
        }
    }
}

impl Batch {
    pub(crate) const fn new(builder: PayloadBuilder) -> Self {
        Self { builder, cached_ring: None }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`EncodeError::AppendFull`] when this batch has no room for it (submit, then push again); any other says that
    /// the record itself does not go in. The batch is as before.
    pub fn push(&mut self, record: &Record) -> Result<(), EncodeError> {
        self.builder.push(record)
    }

    /// Adds a record that is a body with times (Unix nanoseconds, 0 unknown) and a severity number: the fast way for
    /// plain lines.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub fn push_body(&mut self, time: u64, observed: u64, severity: i32, body: Body<'_>) -> Result<(), EncodeError> {
        self.builder.push_body(time, observed, severity, body)
    }

    /// Whatever else clad-proto's builder can write: records field by field, or copied from a reader.
    pub const fn builder(&mut self) -> &mut PayloadBuilder {
        &mut self.builder
    }

    /// The number of records in the batch.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.builder.count()
    }

    /// Bytes of the payload so far: what to reserve for it.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.builder.len()
    }

    /// True when no record is in.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Forgets the records.
    pub fn clear(&mut self) {
        self.builder.clear();
    }

    /// The records in the batch, and the ring with this number; if they went into another ring, or none, `find` gives
    /// it.
    #[inline]
    pub(crate) fn with_ring(
        &mut self,
        number: u64,
        find: impl FnOnce() -> Option<CachedRing>,
    ) -> Option<(&PayloadBuilder, &CachedRing)> {
        if self.cached_ring.as_ref().is_none_or(|cached_ring| cached_ring.ring.number() != number) {
            self.cached_ring = find();
        }
        Some((&self.builder, self.cached_ring.as_ref()?))
    }

    /// The ring that it went into last.
    pub(crate) const fn cached_ring(&self) -> Option<&CachedRing> {
        self.cached_ring.as_ref()
    }

    pub(crate) fn take(&mut self) -> Result<Payload, SubmitError> {
        if self.builder.is_empty() { Err(SubmitError::Empty) } else { Ok(self.builder.finish()) }
    }
}
