//! What was read back against what was acknowledged.

use std::collections::HashMap;
use std::fmt;

use clad_client::{AckLevel, ProducerId};
use clad_e2e::readback::Stored;

use crate::world::{Ack, World};

/// What was looked for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    received: u64,
    written: u64,
    durable: u64,
    gone: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, written, durable, gone } = self;
        write!(
            f,
            "received {received}, of whose records {gone} went with the daemon; written {written}, durable {durable}"
        )
    }
}

/// Every record that is there is one that was sent, whole, once, in its producer's order; every ack at `written` or above
/// has its records, at their offsets. Density is seen to where the log is read.
pub(crate) fn all(world: &World, acks: &[Ack], stored: &[Stored]) -> Counts {
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
    for Ack { client, first, receipt } in acks {
        let at = receipt.first_offset.expect("an offset");
        for (index, offset) in (*first..).zip(at..at + u64::from(receipt.count)) {
            let found = places.get(&(*client, index)).copied();
            if receipt.level == AckLevel::Received {
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
