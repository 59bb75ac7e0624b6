//! The session by hand (`rules`, `drops`), against a model of the daemon (`model`, `random`), and against the daemon's own
//! session and the real journal on a simulated disk (`whole`).

mod drops;
mod model;
mod random;
mod rules;
mod whole;

use super::{Append, Outcome, Session};
use crate::{AppendError, Receipt, backoff::Backoff};
use bytes::Bytes;
use clad_proto::AckLevel;
use std::time::Duration;
use tokio::time::Instant;

pub(super) type TestSession = Session<u64, u64>;

pub(super) const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn session() -> TestSession {
    Session::new(64, DELIVERY_TIMEOUT, Backoff::new(Duration::from_millis(1), Duration::from_millis(8), 7))
}

/// An append whose payload is its number.
pub(super) fn append(number: u64, count: u32, level: Option<AckLevel>, now: Instant) -> Append {
    Append { payload: Bytes::copy_from_slice(&number.to_le_bytes()), count, crc: 0, level, severity: 9, submitted: now }
}

/// The outcomes of appends so far, by number.
pub(super) fn appends(session: &mut TestSession) -> Vec<(u64, Result<Receipt, AppendError>)> {
    let outcomes = std::mem::take(&mut session.outcomes).into_iter();
    outcomes
        .filter_map(|outcome| match outcome {
            Outcome::Append { waiter, result, .. } => Some((waiter, result)),
            Outcome::Flush { .. } => None,
        })
        .collect()
}

/// The outcomes of flushes so far, by number.
pub(super) fn flushes(session: &mut TestSession) -> Vec<(u64, Result<(), AppendError>)> {
    let (flushes, rest) =
        std::mem::take(&mut session.outcomes).into_iter().partition(|outcome| matches!(outcome, Outcome::Flush { .. }));
    session.outcomes = rest;
    let flushes: Vec<_> = flushes;
    flushes
        .into_iter()
        .filter_map(|outcome| match outcome {
            Outcome::Flush { waiter, result } => Some((waiter, result)),
            Outcome::Append { .. } => None,
        })
        .collect()
}
