//! Records that the caller groups into one append.

use crate::SubmitError;
use clad_proto::{Body, EncodeError, Payload, PayloadBuilder, Record};

/// Records that will be one append: taken or refused whole, stored with consecutive offsets, one receipt.
///
/// Made by [`Producer::batch`](crate::Producer::batch), with the producer's resource and scope; encoded as it is filled.
/// After it was submitted it is empty and can be filled again.
#[derive(Debug)]
pub struct Batch {
    builder: PayloadBuilder,
}

impl Batch {
    pub(crate) const fn new(builder: PayloadBuilder) -> Self {
        Self { builder }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`EncodeError::AppendFull`] when this batch has no room for it (submit, then push again); any other says that the
    /// record itself does not go in. The batch is as before.
    pub fn push(&mut self, record: &Record) -> Result<(), EncodeError> {
        self.builder.push(record)
    }

    /// Adds a record that is a body with times (Unix nanoseconds, 0 unknown) and a severity number: the fast way for
    /// plain lines.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_body(&mut self, time: u64, observed: u64, severity: i32, body: Body<'_>) -> Result<(), EncodeError> {
        self.builder.push_body(time, observed, severity, body)
    }

    /// Whatever else clad-proto's builder can write: records field by field, or copied from a reader.
    pub const fn builder(&mut self) -> &mut PayloadBuilder {
        &mut self.builder
    }

    /// How many records are in.
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

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.builder.as_bytes()
    }

    pub(crate) fn take(&mut self) -> Result<Payload, SubmitError> {
        if self.builder.is_empty() { Err(SubmitError::Empty) } else { Ok(self.builder.finish()) }
    }
}
