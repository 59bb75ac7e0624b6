//! Room for the appends of one peer: its owner's share of the bytes in flight, and the rate of its rule.
//!
//! Invariant: what is not admitted takes nothing from the rate.

use super::peer::Peer;
use super::quota::{Quota, QuotaGuard, QuotaHandle};
use crate::access::Rate;
use std::sync::Arc;

/// Bytes of a rate, given back where the wait for room ends early; none once they are used.
struct Held<'a>(&'a Rate, usize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.give_back(self.1);
    }
}

/// Handle of one peer. Clones are the same.
#[derive(Clone)]
pub(crate) struct AppendQuota {
    inflight: QuotaHandle,
    rate: Option<Arc<Rate>>,
}

impl AppendQuota {
    pub(crate) fn of(peer: &Peer, inflight: &Arc<Quota>) -> Self {
        Self { inflight: inflight.handle(peer.quota_owner()), rate: peer.rights().rate.clone() }
    }

    /// Takes so many bytes, if they may be had right now.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<QuotaGuard> {
        let Some(rate) = &self.rate else { return self.inflight.try_take(bytes) };
        rate.try_take(bytes).ok()?;
        let taken = self.inflight.try_take(bytes);
        if taken.is_none() {
            rate.give_back(bytes);
        }
        taken
    }

    /// Takes so many bytes, or at most the total, in turn. Cancel safe: nothing is taken then.
    pub(crate) async fn take(&self, bytes: usize) -> Option<QuotaGuard> {
        let Some(rate) = &self.rate else { return self.inflight.take(bytes).await };
        // First: while it waits for its rate, nothing of what others can use is held.
        while let Err(wait) = rate.try_take(bytes) {
            tokio::time::sleep(wait).await;
        }
        let mut held = Held(rate, bytes);
        let guard = self.inflight.take(bytes).await;
        held.1 = 0;
        guard
    }

    /// Bytes that may be in flight over all connections.
    pub(crate) fn total(&self) -> usize {
        self.inflight.total()
    }

    /// Bytes that the peer may append in a second, where a rule says so.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        self.rate.as_ref().map(|rate| rate.bytes_per_second())
    }
}
