//! The same burst through the SDK: a record, its encoding, its ticket.

use clad_client::{AckLevel, Batch, Body, Producer};

/// A producer with a ring of the daemon's.
pub(crate) struct Sdk {
    runtime: tokio::runtime::Runtime,
    producer: Producer,
    batch: Batch,
}

impl Sdk {
    pub(crate) fn connect(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let producer = Producer::builder(address.parse().expect("an address")).component("ring_limit").connect();
        let producer = runtime.block_on(producer).expect("connected");
        assert!(producer.has_ring(), "{:?}", producer.why_no_ring());
        let batch = producer.batch();
        let mut sdk = Self { runtime, producer, batch };
        sdk.push(b"first");
        sdk.settle();
        sdk
    }

    /// One log call.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.batch.push_body(0, 0, 9, Body::Bytes(bytes)).expect("it fits");
        drop(self.producer.try_append_batch(&mut self.batch, Some(AckLevel::Posted)).expect("submitted"));
    }

    /// Everything is written, and so the ring empty.
    pub(crate) fn settle(&self) {
        self.runtime.block_on(self.producer.flush(AckLevel::Written)).expect("written");
        let stats = self.producer.stats();
        assert_eq!((stats.acked, stats.failed, stats.dropped), (stats.submitted, 0, 0), "{stats:?}");
    }
}
