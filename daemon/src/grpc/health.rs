//! `grpc.health.v1`: what `/readyz` says, for gRPC clients.
//!
//! What must hold: `SERVING` only while appends are accepted, for the whole (the empty name) and for the service that
//! takes them; whoever watches is told of each change, and of the end before the connection goes.

use clad_proto::grpc::v1::ingest_server::SERVICE_NAME as INGEST;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::health::Health;

/// Follows the daemon's own state until it stops.
pub(super) async fn follow(health: Health, reporter: HealthReporter, mut stop: watch::Receiver<bool>) {
    let mut state = health.subscribe();
    loop {
        let ready = state.borrow_and_update().not_ready.is_none() && !*stop.borrow();
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", INGEST] {
            reporter.set_service_status(service, status).await;
        }
        if *stop.borrow() {
            return;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            _ = stop.changed() => {}
        }
    }
}
