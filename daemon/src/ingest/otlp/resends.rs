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
use clad_proto::Payload;

/// Appends of a request that have names; a request of more is at least once from there.
const NAMED_APPENDS_MAX: usize = 4096;

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
    pub(super) fn next(&mut self, payload: &Payload, has_coarse_time: bool) -> Option<ResendKey> {
        if self.seen.len() >= NAMED_APPENDS_MAX || has_coarse_time {
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

/// The first half of BLAKE3.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut first = [0; 16];
    hasher.finalize_xof().fill(&mut first);
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
        let names = [(); 3].map(|()| one.next(&fine, false));
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert_eq!([(); 3].map(|()| again.next(&fine, false)), names);
        assert_ne!(other.next(&fine, false), names[0]);
        assert_ne!(one.next(&payload(&[(1, 0), (1_000_000, 8)]), false), names[0]);
    }

    #[test]
    fn what_has_a_coarse_clock_has_no_name() {
        assert_eq!(Resends::of(1).next(&payload(&[(1, 0)]), true), None);
    }

    #[test]
    fn the_names_of_a_request_are_bounded() {
        let mut names = Resends::of(1);
        let named =
            (0..NAMED_APPENDS_MAX as u64 + 10).filter(|n| names.next(&payload(&[(2 * n + 1, 0)]), false).is_some());
        assert_eq!((named.count(), names.seen.len()), (NAMED_APPENDS_MAX, NAMED_APPENDS_MAX));
    }
}
