//! Room for the next append: its connection's share of bytes, and its owner's.
//!
//! Invariants: an append waits for [`ADMISSION_TIMEOUT`] at most for either. One append waits at a time, the one at the
//! front. A connection whose answers are not read has no place in the queue for room, and no granted share: free room
//! would be reserved for it, for up to an hour where it has a READ.

use std::sync::Arc;
use std::time::Instant;

use clad_proto::ErrorInfo;

use super::service::Waiting;
use crate::ingest::AppendQuota;
use crate::ingest::admission::{ADMISSION_TIMEOUT, Admission, Admitted, Arrival};

/// The permits of a connection's appends.
pub(super) struct AppendRoom {
    /// Its peer's handle for the bytes that may be in flight.
    pub(super) quota: AppendQuota,
    pub(super) admitting: Waiting<Result<Admitted, ErrorInfo>>,
    pub(super) admitted: Option<Result<Admitted, ErrorInfo>>,
    /// Time since when an append has waited for this connection's share of bytes; until there was room for one.
    pub(super) share_since: Option<Instant>,
}

impl AppendRoom {
    pub(super) fn new(quota: AppendQuota) -> Self {
        Self { quota, admitting: None, admitted: None, share_since: None }
    }

    /// The permit of the append at the front, or the reason why it has none; nothing where it must wait. The connection
    /// has so many bytes unwritten.
    pub(super) fn ask(
        &mut self,
        admission: &Arc<Admission>,
        unwritten: usize,
        payload: usize,
        arrival: Arrival,
    ) -> Option<Result<Admitted, ErrorInfo>> {
        if let Some(waited) = self.admitted.take() {
            return Some(waited);
        }
        if self.admitting.is_some() {
            return None; // it stays in its place in the queue for room
        }
        // One connection's share; it is free again when the watermarks have passed the bytes that it holds. After a wait
        // for that has timed out, later appends need not wait as long again.
        if unwritten > 0 && unwritten + payload > admission.max_connection_bytes {
            let since = *self.share_since.get_or_insert_with(Instant::now);
            return (since.elapsed() >= ADMISSION_TIMEOUT).then(|| Err(admission.share_is_full()));
        }
        self.share_since = None;
        let admitted = Admission::try_admit(&self.quota, payload, arrival);
        if admitted.is_none() {
            let (admission, quota) = (admission.clone(), self.quota.clone());
            self.admitting = Some(Box::pin(async move { admission.admit(&quota, payload).await }));
        }
        admitted.map(Ok)
    }

    /// Returns true if a permit is being waited for, or was, for the append at the front.
    pub(super) fn is_asked(&self) -> bool {
        self.admitting.is_some() || self.admitted.is_some()
    }

    /// Gives up its place in the queue for room, or the share that it was granted there.
    pub(super) fn leave_the_queue(&mut self) {
        self.admitting = None;
        self.admitted.take_if(|admitted| admitted.is_ok());
    }

    /// Time at which a wait for the connection's share has been long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.share_since.map(|since| since + ADMISSION_TIMEOUT)
    }
}
