//! Names of appends, by which the journal finds those that it has: an exporter that lost an answer sends the same records
//! again, and has no sequence.
//!
//! Invariants:
//! - A name is of the sender, as the kernel reports it, and of the append's bytes: one resource, one scope, its records. How
//!   an exporter groups these in a request does not count: SDKs group again at each try.
//! - Equal appends of one request have different names: both are stored.
//! - Two honest records may be equal where the clock is coarse. So an append has a name only if each record has a time that
//!   is no whole millisecond.

use std::collections::HashMap;

use clad_journal::ResendKey;
use clad_proto::{Payload, PayloadView};
use sha2::{Digest, Sha256};

/// Appends of a request that have names; a request of more is at least once from there.
const NAMED_APPENDS_MAX: usize = 4096;
const MILLISECOND_NS: u64 = 1_000_000;

/// The names of one request's appends.
pub(super) struct Resends {
    identity: u64,
    /// Equal appends so far.
    seen: HashMap<[u8; 16], u32>,
}

impl Resends {
    pub(super) fn of(identity: u64) -> Self {
        Self { identity, seen: HashMap::new() }
    }

    /// The name of the next append; nothing where it has none.
    pub(super) fn next(&mut self, payload: &Payload) -> Option<ResendKey> {
        if self.seen.len() >= NAMED_APPENDS_MAX || !has_fine_times(payload) {
            return None;
        }
        let content = digest(&[&payload.bytes]);
        let equal = self.seen.entry(content).or_default();
        let digest = if *equal == 0 { content } else { digest(&[&content, &equal.to_le_bytes()]) };
        *equal = equal.saturating_add(1);
        Some(ResendKey { identity: self.identity, digest })
    }
}

/// The name of an append that no other has: its content says so.
pub(super) fn key(identity: u64, payload: &Payload) -> ResendKey {
    ResendKey { identity, digest: digest(&[&payload.bytes]) }
}

fn has_fine_times(payload: &Payload) -> bool {
    let is_fine = |time: u64| !time.is_multiple_of(MILLISECOND_NS);
    PayloadView::parse(&payload.bytes, payload.count).is_ok_and(|view| {
        view.records().all(|record| is_fine(record.time_unix_nano()) || is_fine(record.observed_time_unix_nano()))
    })
}

/// The first half of SHA-256.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut sha = Sha256::new();
    parts.iter().for_each(|part| sha.update(part));
    let mut first = [0; 16];
    first.copy_from_slice(&sha.finalize()[..16]);
    first
}

#[cfg(test)]
mod tests {
    use clad_proto::{AnyValue, Group, PayloadBuilder, Record};

    use super::*;

    fn payload(times: &[(u64, u64)]) -> Payload {
        let mut builder = PayloadBuilder::new(&Group::default()).expect("it fits");
        for (time_unix_nano, observed_time_unix_nano) in times {
            let body = Some(AnyValue::String("line".into()));
            let record = Record {
                time_unix_nano: *time_unix_nano,
                observed_time_unix_nano: *observed_time_unix_nano,
                body,
                ..Record::default()
            };
            builder.push(&record).expect("it fits");
        }
        builder.finish()
    }

    #[test]
    fn a_name_is_of_sender_and_content_and_of_each_of_equals() {
        let fine = payload(&[(1, 0), (1_000_000, 7)]);
        let (mut one, mut again, mut other) = (Resends::of(1), Resends::of(1), Resends::of(2));
        let names = [one.next(&fine), one.next(&fine), one.next(&fine)];
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert_eq!([again.next(&fine), again.next(&fine), again.next(&fine)], names);
        assert_ne!(other.next(&fine), names[0]);
        assert_ne!(one.next(&payload(&[(1, 0), (1_000_000, 8)])), names[0]);
    }

    /// The SDK for JavaScript has whole milliseconds in both times.
    #[test]
    fn what_has_a_coarse_clock_has_no_name() {
        for times in [&[(0, 0)][..], &[(5_000_000, 0)], &[(5_000_000, 6_000_000)], &[(1, 0), (5_000_000, 0)]] {
            assert_eq!(Resends::of(1).next(&payload(times)), None, "{times:?}");
        }
    }

    #[test]
    fn the_names_of_a_request_are_bounded() {
        let mut names = Resends::of(1);
        let named = (0..NAMED_APPENDS_MAX as u64 + 10).filter(|n| names.next(&payload(&[(2 * n + 1, 0)])).is_some());
        assert_eq!((named.count(), names.seen.len()), (NAMED_APPENDS_MAX, NAMED_APPENDS_MAX));
    }
}
