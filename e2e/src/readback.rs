//! Everything that a log holds: asked of the daemon through the SDK, and read from the files.
//!
//! Invariants: offsets are dense from the first on; both ways give the same records.

use std::path::Path;

use clad_client::{Event, Reader, ValueRef};
use clad_journal::OfflineLog;
use clad_proto::{AckLevel, PayloadView, ProducerId, RecordView, payload_checksum};

use crate::TEST_TIMEOUT;

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its offset.
    pub offset: u64,
    /// Who appended it.
    pub producer: ProducerId,
    /// Its producer's sequence.
    pub sequence: u64,
    /// Its body, where it is text or bytes; else nothing.
    pub body: Vec<u8>,
    /// Whether it says that it was cut.
    pub is_cut: bool,
}

fn body(record: &RecordView<'_>) -> Vec<u8> {
    match record.body() {
        Some(ValueRef::String(text)) => text.as_bytes().to_vec(),
        Some(ValueRef::Bytes(bytes)) => bytes.to_vec(),
        _ => Vec::new(),
    }
}

fn is_cut(record: &RecordView<'_>) -> bool {
    record.attributes().iter().any(|pair| pair.key == "log.truncated")
}

/// Everything that the daemon at an address gives out.
///
/// # Panics
/// On a gap, on an error, and when offsets are not dense.
pub async fn served(address: &str) -> Vec<Stored> {
    let address = address.parse().expect("an address");
    let mut reader = Reader::builder(address).level(AckLevel::Written).open().await.expect("a reader");
    let mut all = Vec::new();
    loop {
        let event = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.expect("the read goes on");
        match event.expect("no error") {
            Some(Event::Records(chunk)) => {
                let skipped = chunk.first_sequence();
                for (index, (offset, record)) in (0..).zip(chunk.records()) {
                    let sequence = skipped + index;
                    all.push(Stored {
                        offset,
                        producer: chunk.producer_id(),
                        sequence,
                        body: body(&record),
                        is_cut: is_cut(&record),
                    });
                }
            }
            Some(other) => panic!("not a record: {other:?}"),
            None => break,
        }
    }
    dense(&all);
    all
}

/// Everything that the files in a folder hold.
///
/// # Panics
/// On a gap, on an error, and when offsets are not dense.
#[must_use]
pub fn files(dir: &Path) -> Vec<Stored> {
    let log = OfflineLog::open(dir).expect("a log");
    assert!(log.damage().is_empty(), "{:?}", log.damage());
    let mut reader = log.read(log.first_offset());
    let mut all = Vec::new();
    while let Some(batch) = reader.next_batch().expect("no gap") {
        for chunk in batch.chunks() {
            let (first, chunk) = chunk.expect("a chunk");
            let header = &chunk.header;
            assert_eq!(payload_checksum(chunk.payload), header.payload_checksum, "the client's checksum at {first}");
            let view = PayloadView::parse(chunk.payload, header.count).expect("a payload");
            for (index, record) in (0..).zip(view.records()) {
                let producer = ProducerId::from_bytes(header.producer);
                let sequence = header.first_sequence + index;
                all.push(Stored {
                    offset: first + index,
                    producer,
                    sequence,
                    body: body(&record),
                    is_cut: is_cut(&record),
                });
            }
        }
    }
    dense(&all);
    all
}

fn dense(all: &[Stored]) {
    for (want, got) in (all.first().map_or(0, |first| first.offset)..).zip(all) {
        assert_eq!(got.offset, want, "an offset is missing, or there twice");
    }
}
