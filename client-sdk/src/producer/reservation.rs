//! Room for one append.

use super::{
    batch::Batch,
    shared::{APPEND_OVERHEAD, Shared},
    ticket::Ticket,
};
use crate::SubmitError;
use clad_proto::{AckLevel, Record};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Room for one append, from [`Producer::reserve`](crate::Producer::reserve). Dropped without a submit, the room is
/// free again.
#[derive(Debug)]
#[must_use = "a reservation that is not used gives its room back"]
pub struct Reservation {
    shared: Arc<Shared>,
    permit: OwnedSemaphorePermit,
    level: Option<AckLevel>,
}

impl Reservation {
    pub(crate) const fn new(shared: Arc<Shared>, permit: OwnedSemaphorePermit, level: Option<AckLevel>) -> Self {
        Self { shared, permit, level }
    }

    /// Asks for this level instead of the producer's default.
    pub const fn at(mut self, level: AckLevel) -> Self {
        self.level = Some(level);
        self
    }

    /// Bytes of payload that were reserved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.permit.num_permits().saturating_sub(APPEND_OVERHEAD)
    }

    /// Hands over one record. Never waits. The order of submit calls is the order of the records in the log.
    ///
    /// Bytes reserved in excess are free again at once; missing bytes are taken if they are free now.
    ///
    /// # Errors
    /// The record is not handed over, has no place in the order and is certainly not written.
    pub fn submit(self, record: &Record) -> Result<Ticket, SubmitError> {
        self.shared.is_here()?;
        if let Some(ticket) = self.shared.push_record(record, self.level) {
            return ticket;
        }
        let (sender, ticket) = Ticket::new(&self.shared);
        self.shared.submit_record(record, self.level, self.permit, Some(sender)).map(|()| ticket)
    }

    /// As [`Self::submit`], without a ticket.
    pub(crate) fn send(self, record: &Record) -> Result<(), SubmitError> {
        self.shared.is_here()?;
        match self.shared.push_record(record, self.level) {
            Some(ticket) => ticket.map(drop),
            None => self.shared.submit_record(record, self.level, self.permit, None),
        }
    }

    /// Hands over records as one append: taken or refused whole. Never waits.
    ///
    /// # Errors
    /// As [`Self::submit`]; no record is handed over then.
    pub fn submit_many(self, records: &[Record]) -> Result<Ticket, SubmitError> {
        self.shared.is_here()?;
        let payload = self.shared.encode(records)?;
        if let Some(ticket) = self.shared.push(&payload.bytes, payload.count, self.level) {
            return ticket;
        }
        let (sender, ticket) = Ticket::new(&self.shared);
        self.shared.submit_payload(payload, self.level, self.permit, Some(sender)).map(|()| ticket)
    }

    /// Hands over what is in a batch as one append; the batch is empty then. Never waits.
    ///
    /// # Errors
    /// As [`Self::submit`]. On [`SubmitError::ReservationTooSmall`] and [`SubmitError::Empty`] the batch is as before.
    pub fn submit_batch(self, batch: &mut Batch) -> Result<Ticket, SubmitError> {
        self.shared.is_here()?;
        if let Some(ticket) = self.shared.push_batch(batch, self.level) {
            return ticket;
        }
        let (mut permit, len) = (self.permit, batch.len_bytes());
        self.shared.fit(&mut permit, len)?;
        let payload = batch.take()?;
        let (sender, ticket) = Ticket::new(&self.shared);
        self.shared.submit_payload(payload, self.level, permit, Some(sender)).map(|()| ticket)
    }
}
