//! Parts that all requests of OTLP share.

use std::sync::{Arc, Mutex};

use clad_journal::WriteBuffer;
use clad_proto::AckLevel;
use tokio::sync::Semaphore;

use crate::ingest::LiveSettings;
use crate::ingest::http::{Calls, STREAMS_MAX};
use crate::ingest::own_producers::OwnProducers;
use crate::ingest::quota::Quota;

/// Bodies that are inflated, or turned from JSON, at once: each takes a thread.
const TRANSFORMS_MAX: usize = 2;
/// Bytes of bodies that wait for a larger share, over all requests.
pub(super) const WAITING_BYTES: usize = 32 << 20;

/// The part of the daemon that takes OTLP. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Otlp {
    pub(super) live_settings: LiveSettings,
    pub(super) producers: Arc<OwnProducers>,
    /// Level of requests that name none; absent is the highest that the log offers.
    pub(super) ack: Option<AckLevel>,
    /// The journal knows what is sent again.
    pub(super) has_resend_window: bool,
    pub(super) calls: Calls,
    /// Places of requests, on all listeners that speak HTTP.
    pub(super) stream_slots: Arc<Quota>,
    pub(super) transforms: Arc<Semaphore>,
    /// Bytes of bodies that wait for a larger share.
    pub(super) waiting: Arc<Quota>,
    /// For the writes that requests make themselves: one at a time.
    pub(super) write_buffer: Arc<Mutex<WriteBuffer>>,
}

impl Otlp {
    pub(crate) fn new(
        producers: Arc<OwnProducers>,
        live_settings: LiveSettings,
        ack: Option<AckLevel>,
        has_resend_window: bool,
    ) -> Self {
        Self {
            live_settings,
            producers,
            ack,
            has_resend_window,
            calls: Calls::default(),
            stream_slots: Quota::new(STREAMS_MAX),
            transforms: Arc::new(Semaphore::new(TRANSFORMS_MAX)),
            waiting: Quota::new(WAITING_BYTES),
            write_buffer: Arc::default(),
        }
    }

    /// Places of requests, on all listeners that speak HTTP.
    pub(crate) fn stream_slots(&self) -> &Arc<Quota> {
        &self.stream_slots
    }

    /// Requests that the end of the daemon waits for.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }
}
