//! Shares of each owner in what all share, and the time since a request was refused for it.
//!
//! Invariant: where a request was refused because its owner's share, or all, was used up, the daemon is degraded for
//! [`REFUSAL_REPORT_DURATION`] after the last time. The status names the largest holders of each: an operator sees at
//! once whose it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_proto::grpc::v1;

use crate::ingest::ConnectionSlots;
use crate::ingest::quota::{Owner, Quota, QuotaUsage, sorted};
use crate::ingest::rings::Rings;
use crate::ops::health::Health;
use crate::ops::metrics::{Label, Share};
use crate::read::Reads;
use clad_journal::Journal;
use clad_journal::owner_bytes::{NETWORK, OTHERS};

/// Time after the last refusal for which the daemon is degraded.
const REFUSAL_REPORT_DURATION: Duration = Duration::from_secs(60);
/// Most owners of each that the status names, largest first.
const REPORTED_OWNERS_MAX: usize = 5;

/// Refusals as they were counted at the last look.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    counted: [u64; Share::ALL.len()],
    last: [Option<Instant>; Share::ALL.len()],
}

impl Refusals {
    /// Looks at what was counted until now.
    pub(crate) fn look(&mut self, counted: [u64; Share::ALL.len()], now: Instant, health: &Health) {
        const CAUSE: &str = "shares";
        for (at, counted) in counted.into_iter().enumerate() {
            if counted > std::mem::replace(&mut self.counted[at], counted) {
                self.last[at] = Some(now);
            }
        }
        let is_recent =
            |at: &usize| self.last[*at].is_some_and(|last| now.duration_since(last) < REFUSAL_REPORT_DURATION);
        let refused: Vec<_> = (0..Share::ALL.len()).filter(is_recent).map(|at| words(Share::ALL[at])).collect();
        match refused.is_empty() {
            true => health.restored(CAUSE),
            false => health.degraded(
                CAUSE,
                format!(
                    "clients were refused in the last minute, for lack of {}: `clactl status` shows the owner with the most",
                    refused.join(", ")
                ),
            ),
        }
    }
}

fn words(share: Share) -> &'static str {
    match share {
        Share::Connections => "a connection",
        Share::InflightBytes => "space in [limits] max_inflight_bytes",
        Share::Producers => "an entry in [limits] max_producers",
        Share::Reads => "a READ",
        Share::Rings => "a ring",
        Share::LogBytes => "space in [retention] per_owner_bytes",
    }
}

/// Everything that is shared.
pub(crate) struct Shares {
    pub(crate) connections: Arc<ConnectionSlots>,
    pub(crate) inflight: Arc<Quota>,
    pub(crate) assembly: Arc<Quota>,
    pub(crate) buffers: Arc<Quota>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) rings: Rings,
}

impl Shares {
    /// As the status reports it.
    pub(crate) fn snapshot(&self, journal: &Journal) -> Vec<v1::Share> {
        let mut all = vec![
            share(Share::Connections.as_str(), self.connections.quota_usage()),
            share(Share::InflightBytes.as_str(), self.inflight.quota_usage()),
            share("assembly_bytes", self.assembly.quota_usage()),
            share("buffer_bytes", self.buffers.quota_usage()),
            producers(journal.producers_by_owner()),
            share(Share::Reads.as_str(), self.reads.quota_usage()),
            share(Share::Rings.as_str(), self.rings.quota_usage()),
        ];
        let retention = journal.retention();
        if retention.per_owner_bytes > 0 {
            all.push(log_bytes(&journal.status(), retention.max_bytes));
        }
        all
    }
}

/// The same of producers, by the owners that the journal knows them by.
fn producers((by_owner, total): (Vec<(u64, usize)>, usize)) -> v1::Share {
    let (network, users): (Vec<_>, Vec<_>) = by_owner.into_iter().partition(|(owner, _)| owner & NETWORK != 0);
    let network = (Owner::Network, network.into_iter().map(|(_, count)| count).sum());
    let users = users.into_iter().map(|(owner, count)| (Owner::Uid(owner as u32), count));
    let by_owner = sorted(users.chain([network]).filter(|(_, count)| *count > 0));
    share(Share::Producers.as_str(), QuotaUsage { total, by_owner })
}

/// The same of the stored log, beside `max_bytes`, or where there is no such rule beside all that it has.
fn log_bytes(status: &clad_journal::Status, max_bytes: u64) -> v1::Share {
    let owner = |owner: u64| if owner & NETWORK != 0 { Owner::Network } else { Owner::Uid(owner as u32) };
    // Owners that found no place in the table are not named.
    let named = status.owners.iter().filter(|(id, _)| *id != OTHERS);
    let by_owner = sorted(named.map(|&(id, bytes)| (owner(id), usize::try_from(bytes).unwrap_or(usize::MAX))));
    let total = if max_bytes > 0 { max_bytes } else { status.bytes };
    share(Share::LogBytes.as_str(), QuotaUsage { total: usize::try_from(total).unwrap_or(usize::MAX), by_owner })
}

fn share(what: &str, quota_usage: QuotaUsage) -> v1::Share {
    let largest = quota_usage.by_owner.iter().take(REPORTED_OWNERS_MAX);
    v1::Share {
        what: what.to_owned(),
        total: quota_usage.total as u64,
        in_use: quota_usage.by_owner.iter().map(|(_, amount)| *amount as u64).sum(),
        owners: quota_usage.by_owner.len() as u64,
        largest: largest
            .map(|(owner, amount)| v1::Holder { owner: owner.to_string(), amount: *amount as u64 })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_reported_for_a_while() {
        let (health, mut refusals, began) = (Health::default(), Refusals::default(), Instant::now());
        health.ready();
        let mut look = |counted, after| {
            refusals.look(counted, began + Duration::from_secs(after), &health);
            health.state().summary()
        };
        assert_eq!(look([0; 6], 0), "ok");
        let reported = look([1, 0, 0, 0, 0, 0], 1);
        assert!(reported.starts_with("degraded: ") && reported.contains("a connection"), "{reported}");
        assert!(look([1, 0, 2, 0, 0, 0], 59).contains("a connection, an entry in [limits] max_producers"));
        assert!(!look([1, 0, 2, 0, 0, 0], 61).contains("a connection"), "a minute after its last one");
        assert_eq!(look([1, 0, 2, 0, 0, 0], 119), "ok");
        assert!(look([1, 0, 3, 0, 0, 1], 500) != "ok");
    }

    #[test]
    fn the_largest_holders_are_named_and_all_are_counted() {
        let by_owner = sorted((1..=8).map(|uid| (Owner::Uid(uid), uid as usize)));
        let reported = share("connections", QuotaUsage { total: 100, by_owner });
        assert_eq!(
            (reported.total, reported.in_use, reported.owners, reported.largest.len()),
            (100, 36, 8, REPORTED_OWNERS_MAX)
        );
        assert_eq!((reported.largest[0].owner.as_str(), reported.largest[0].amount), ("uid 8", 8));
    }

    #[test]
    fn ids_of_the_network_are_one_owner() {
        let reported = producers((vec![(7, 2), (NETWORK | 1, 2), (NETWORK | 2, 1)], 10));
        let largest: Vec<_> = reported.largest.iter().map(|holder| (holder.owner.as_str(), holder.amount)).collect();
        assert_eq!(largest, [("network", 3), ("uid 7", 2)]);
    }
}
