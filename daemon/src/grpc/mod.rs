//! gRPC: health and reflection for now.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::health::Health;
use crate::ingest::{FramedService, Listeners};

/// Serves on a listener until the daemon stops.
pub(crate) fn serve(
    listener: TcpListener,
    service: FramedService,
    listeners: Arc<Listeners>,
    may_read: bool,
    health: Health,
) {
    let _ = (listener, service, listeners, may_read, health);
}
