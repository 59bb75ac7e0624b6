//! What was read back against what was acknowledged.

use std::collections::HashMap;
use std::fmt;

use clad_client::{AckLevel, ProducerId};
use clad_e2e::readback::Stored;

use crate::world::{Ack, World};

/// What was looked for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    posted: u64,
    received: u64,
    written: u64,
    durable: u64,
    gone: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { posted, received, written, durable, gone } = self;
        write!(
            f,
            "posted {posted}, received {received}, of whose records {gone} went with the daemon; written {written}, durable \
             {durable}"
        )
    }
}

/// Every record that is there is one that was sent, whole, once, in its producer's order; every ack at `written` or above
/// has its records, at their offsets; what went by a ring is there whatever its ack. Density is seen to where the log is
/// read; `ended`: nothing is under way any more.
pub(crate) fn all(world: &World, acks: &[Ack], stored: &[Stored], ended: bool) -> Counts {
    let mut places: HashMap<(u64, u64), u64> = HashMap::new();
    let mut last: HashMap<u64, (u64, ProducerId, u64)> = HashMap::new();
    for record in stored {
        let (client, index) = whose(&record.body);
        assert!(record.body == world.body(client, index), "record {index} of client {client} is not as it was sent");
        assert_eq!(
            places.insert((client, index), record.offset),
            None,
            "record {index} of client {client} is there twice"
        );
        if let Some((before, producer, sequence)) = last.insert(client, (index, record.producer, record.sequence)) {
            assert!(before < index, "client {client}: record {index} stands behind {before}");
            assert_eq!(producer, record.producer, "client {client} changed its producer");
            assert!(sequence < record.sequence, "client {client}: sequence {} behind {sequence}", record.sequence);
        }
    }
    let mut counts = Counts::default();
    for Ack { client, first, ring, receipt } in acks {
        let Some(at) = receipt.first_offset else {
            // Posted; or its offset was sent by a daemon that is gone, and not received.
            assert!(*ring, "an ack without an offset");
            // While the load goes on it may still be in the ring, and what is read is `written`.
            let must = ended || receipt.level >= AckLevel::Written;
            let lost =
                (*first..*first + u64::from(receipt.count)).find(|index| !places.contains_key(&(*client, *index)));
            assert_eq!(lost.filter(|_| must), None, "client {client} lost a record that was acked {}", receipt.level);
            counts.posted += u64::from(receipt.level == AckLevel::Posted);
            continue;
        };
        for (index, offset) in (*first..).zip(at..at + u64::from(receipt.count)) {
            let found = places.get(&(*client, index)).copied();
            if *ring && receipt.level == AckLevel::Received {
                // The next daemon takes it from the ring again, in its turn.
                assert!(found.is_some() || !ended, "record {index} of client {client} was in a ring, and is lost");
            } else if receipt.level == AckLevel::Received {
                // It may be gone; it cannot be elsewhere, as its client had no reason to send it again.
                assert!(found.is_none_or(|found| found == offset), "{client}:{index} is at {found:?}, not at {offset}");
                counts.gone += u64::from(found.is_none());
            } else {
                assert_eq!(found, Some(offset), "record {index} of client {client}, acked {}", receipt.level);
            }
        }
        match receipt.level {
            AckLevel::Received => counts.received += 1,
            AckLevel::Written => counts.written += 1,
            _ => counts.durable += 1,
        }
    }
    counts
}

fn whose(body: &[u8]) -> (u64, u64) {
    let mut parts = body.splitn(3, |&byte| byte == b':').take(2).map(|part| {
        std::str::from_utf8(part).ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("torn: {body:?}"))
    });
    match (parts.next(), parts.next()) {
        (Some(client), Some(index)) => (client, index),
        _ => panic!("torn: {body:?}"),
    }
}
