//! `grpc.health.v1`: what `/readyz` says, for gRPC clients.
//!
//! Invariants: `SERVING` only while appends are accepted, for the whole (the empty name) and for the service that takes
//! them. For the service that is read from, where this listener serves reading, also while they are not: a full disk is
//! no reason to take the readers away. Each watcher is notified of each change, and of the end before the connection
//! goes.

use clad_proto::grpc::v1::ingest_server::SERVICE_NAME as INGEST;
use clad_proto::grpc::v1::log_server::SERVICE_NAME as LOG;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::access::Access;
use crate::ingest::otlp::LOGS_SERVICE;
use crate::ops::health::Health;

/// Follows the daemon's own state until it stops.
pub(super) async fn follow(
    health: Health,
    (may_read, access): (bool, Access),
    reporter: HealthReporter,
    mut stop: watch::Receiver<bool>,
) {
    let (mut state, mut rules) = (health.subscribe(), access.subscribe());
    loop {
        let stopping = *stop.borrow();
        let may_read = rules.borrow_and_update().let_read().unwrap_or(may_read);
        let takes = state.borrow_and_update().not_ready.is_none() && !stopping;
        for (service, serves) in [("", takes), (INGEST, takes), (LOGS_SERVICE, takes), (LOG, may_read && !stopping)] {
            let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status(service, status).await;
        }
        if stopping {
            return;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            _ = rules.changed() => {}
            _ = stop.changed() => {}
        }
    }
}
