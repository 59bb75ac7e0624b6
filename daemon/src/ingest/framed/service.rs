//! Parts and timeouts that a connection is given.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ingest::admission::Admission;
use crate::ingest::quota::Quota;
use crate::ingest::rings::Rings;
use crate::read::Reads;

/// Time for the rest of a frame whose first byte came.
pub(super) const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a peer to take some of what waits for it.
const PEER_WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for one that has a READ.
const READER_WRITE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time for a peer to take the last words.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a client to take its ring off the socket.
const RING_HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at whether the READs of a peer that closed its side have ended.
pub(super) const READ_END_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Silence after which a stream has ended, in either direction, and its buffer is released.
pub(super) const STREAM_IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// A wait that was begun and is not over, or none.
pub(super) type Waiting<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Waits for its end; for ever where there is none. Cancel safe.
pub(super) async fn end_of<T>(waiting: &mut Waiting<T>) -> T {
    let Some(wait) = waiting else { return std::future::pending().await };
    let result = wait.await;
    *waiting = None;
    result
}

/// Parts of the daemon that a connection uses.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) admission: Arc<Admission>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) rings: Rings,
    /// Bytes of large frames that are being put together, over all connections.
    pub(crate) assembly: Arc<Quota>,
    /// Bytes that buffers of connections use beyond their own.
    pub(crate) buffers: Arc<Quota>,
    pub(crate) handshake_timeout: Duration,
    /// Zero: never.
    pub(crate) idle_timeout: Duration,
    pub(crate) peer_timeouts: PeerTimeouts,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Timeouts for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeouts {
    /// For a peer that takes nothing of what waits for it,
    pub(crate) write: Duration,
    /// and for one that reads: a pager that no person looks at takes nothing;
    pub(crate) reader_write: Duration,
    /// and for one that does not take the ring that it has asked for.
    pub(crate) ring_handover: Duration,
}

impl PeerTimeouts {
    /// The time for which a peer that reads, or does not, may take nothing.
    pub(crate) fn of(self, reads: bool) -> Duration {
        if reads { self.reader_write } else { self.write }
    }
}

impl Default for PeerTimeouts {
    fn default() -> Self {
        Self { write: PEER_WRITE_TIMEOUT, reader_write: READER_WRITE_TIMEOUT, ring_handover: RING_HANDOVER_TIMEOUT }
    }
}
