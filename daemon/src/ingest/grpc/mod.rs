//! gRPC: `clad.v1.Ingest` and `clad.v1.Log`, the standard health service and reflection.
//!
//! Invariants:
//! - An append over gRPC goes through the same admission as a framed one and gets the same answers: what one takes, the
//!   other takes. It is encoded at admission, and its checksum starts there.
//! - Memory that a peer can hold is bounded before it is taken: streams by [`streams`], HTTP/2's buffers by the windows
//!   below, a message under assembly by [`assembly`], admitted bytes by admission, answers by a channel. A peer that
//!   does not read its answers is not read from either. A request of any method but Append is at most
//!   [`REQUEST_BYTES_MAX`] long, because tonic puts it together outside every budget.
//! - HTTP/2's own pings find a peer that is gone; `idle_timeout` is for connections without pings.
//! - During the shutdown no call begins, taken appends are answered, and no call that only watches delays the daemon.
//!
//! ```text
//! listen (place, preface) ─▶ HTTP/2 ─▶ streams ─▶ assembly (length, budget, time) ─▶ append ─▶ Admission, Session ─▶ answers
//!                                             └▶ log ─▶ ReadStream ─▶ blocks of OTLP
//! ```

mod append;
mod assembly;
mod calls;
mod health;
mod listen;
mod log;
mod oversize_header;
mod streams;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware;
use clad_journal::io::release_free_memory;
use clad_proto::grpc::FILE_DESCRIPTOR_SET;
use clad_proto::grpc::v1::ingest_server::SERVICE_NAME as INGEST;
use clad_proto::grpc::v1::log_server::{LogServer, SERVICE_NAME as LOG};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::ingest::quota::Quota;
use crate::ingest::{ConnectionSlots, LiveSettings};
use crate::ops::health::Health;
use crate::ops::metrics;
use calls::{CLOSE_TIMEOUT, Calls};
use listen::Connection;
use streams::{STREAMS_MAX, with_stream_slot};

/// Bytes that one stream, or a whole connection, may have sent that are not taken yet. [`window`] may make it less.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Calls of one connection, at most and at least: see [`calls_max`]. RFC 9113 asks for 100; clients beyond it wait.
const MAX_STREAMS: u32 = 100;
const MIN_STREAMS: u32 = 4;
/// Calls beyond its limit, or broken, after which a connection ends. HTTP/2 remembers each of them for a while.
const REFUSED_CALLS_MAX: usize = 32;
/// Connections that are a burst: when half of it has gone, its memory is given back to the system,
const CROWD_CONNECTIONS: usize = 8;
/// this long after the last one went.
const RELEASE_DELAY: Duration = Duration::from_secs(1);
/// The longest request of a call that is not Append: a ReadRequest, a name of a service, a name to reflect on.
const REQUEST_BYTES_MAX: usize = 4 * 1024;
/// A silent connection is probed after this long, and closed after that much more.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// The window of the `nth` open connection: HTTP/2's buffers of bytes that wait for room are bounded for all
/// connections together. 1/2 + 1/6 + 1/12 + ... is less than 1, so that n of them have a quarter of the budget, and 64
/// KiB each: HTTP/2 starts there, and less would only stop every sender after its first frames.
fn window(at_most: usize, budget: usize, nth: usize) -> u32 {
    let nth = nth.max(1);
    at_most.min(budget / 4 / nth.saturating_mul(nth + 1)).max(65_535) as u32
}

/// Maximum of open calls announced to the `nth` connection: a part of an eighth of all, because each call that is
/// opened and refused costs some memory too. All together are bounded by [`streams`].
fn calls_max(nth: usize) -> u32 {
    u32::try_from(STREAMS_MAX / 8 / nth.max(1)).unwrap_or(u32::MAX).clamp(MIN_STREAMS, MAX_STREAMS)
}

/// Serves on a listener until the daemon stops. The windows of HTTP/2 are announced once, when a connection begins, by
/// the limits at the daemon's start.
pub(crate) fn serve(
    listener: TcpListener,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
    may_read: bool,
    health: Health,
) {
    let service = live_settings.service();
    let admission = service.admission.clone();
    let calls = Calls::default();
    let (cut, cut_now) = watch::channel(false);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    tokio::spawn(health::follow(health, may_read, reporter, service.stop.clone()));
    // Admin is in the descriptors and on another socket: only what is served here is listed.
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(INGEST)
            .with_service_name(LOG)
            .with_service_name("grpc.health.v1.Health")
            .with_service_name("grpc.reflection.v1.ServerReflection")
            // Name that tools from before 2023 ask for, and some of today ask for first.
            .with_service_name("grpc.reflection.v1alpha.ServerReflection")
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
            .include_reflection_service(false)
    };
    let waiters = assembly::Waiters::default();
    let ingest = append::Ingest { live_settings: live_settings.clone(), may_read, calls: calls.clone(), waiters };
    let log = log::Log { reads: service.reads.clone(), may_read, stop: service.stop.clone(), calls: calls.clone() };
    let mut routes = Routes::new(ingest)
        .add_service(LogServer::new(log).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(health_service.max_decoding_message_size(REQUEST_BYTES_MAX));
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => {
            routes = routes
                .add_service(v1.max_decoding_message_size(REQUEST_BYTES_MAX))
                .add_service(v1alpha.max_decoding_message_size(REQUEST_BYTES_MAX));
        }
        (Err(e), _) | (_, Err(e)) => tracing::error!(error = %e, "gRPC is served without reflection"),
    }
    let stream_slots = Quota::new(STREAMS_MAX);
    let routes = routes.into_axum_router().layer(middleware::from_fn_with_state(stream_slots, with_stream_slot));
    let routes = Routes::from(routes).prepare();
    let incoming = listen::accept(listener, connection_slots.clone(), live_settings, cut_now, service.stop.clone());
    let serving = Serving {
        routes,
        connection_slots,
        windows: (admission.max_connection_bytes, admission.budget.total()),
        keepalive: KEEPALIVE,
        stop: service.stop.clone(),
    };
    tokio::spawn(live(serving.all(incoming), calls, service.stop, cut));
}

/// Settings with which each connection is served.
struct Serving {
    routes: Routes,
    connection_slots: Arc<ConnectionSlots>,
    /// The maximum that a stream and a connection may hold.
    windows: (usize, usize),
    /// Silence after which a connection is probed, and time for its answer.
    keepalive: (Duration, Duration),
    stop: watch::Receiver<bool>,
}

impl Serving {
    /// Serves connections until no more come and all have ended.
    async fn all(self, mut incoming: mpsc::Receiver<Connection>) {
        let mut open = JoinSet::new();
        // The most connections since memory was released, and when it is released again.
        let (mut most, mut release_at) = (0, None);
        loop {
            tokio::select! {
                connection = incoming.recv() => match connection {
                    Some(connection) => {
                        open.spawn(self.one(connection));
                        most = most.max(open.len());
                    }
                    None => break,
                },
                Some(_) = open.join_next() => {
                    if most >= CROWD_CONNECTIONS && open.len() <= most / 2 {
                        release_at = Some(Instant::now() + RELEASE_DELAY);
                    }
                }
                () = sleep_until(release_at.unwrap_or_else(Instant::now)), if release_at.is_some() => {
                    (most, release_at) = (open.len(), None);
                    tokio::task::spawn_blocking(release_free_memory);
                }
            }
        }
        while open.join_next().await.is_some() {}
    }

    /// One connection, as a server of its own: HTTP/2 gets its windows when it begins.
    fn one(&self, mut connection: Connection) -> impl Future<Output = ()> + Send + use<> {
        let nth = self.connection_slots.open_on(metrics::Transport::Grpc);
        let over = connection.closed_stream();
        let mut stop = self.stop.clone();
        let server = Server::builder()
            .initial_stream_window_size(window(WINDOW_BYTES, self.windows.0, nth))
            .initial_connection_window_size(window(WINDOW_BYTES, self.windows.1, nth))
            .max_concurrent_streams(calls_max(nth))
            .http2_max_local_error_reset_streams(Some(REFUSED_CALLS_MAX))
            .http2_keepalive_interval(Some(self.keepalive.0))
            .http2_keepalive_timeout(Some(self.keepalive.1))
            .add_routes(self.routes.clone())
            // No second one ever comes; its end is the sign for the server that it is done.
            .serve_with_incoming_shutdown(tokio_stream::once(Ok(connection)).chain(over), async move {
                let _ = stop.wait_for(|stop| *stop).await;
            });
        async move {
            if let Err(error) = server.await {
                tracing::debug!(%error, "a gRPC connection ended");
            }
        }
    }
}

/// Serves until every connection has ended; those that have no call of ours are not waited for.
async fn live(
    server: impl Future<Output = ()>,
    calls: Calls,
    mut stop: watch::Receiver<bool>,
    cut: watch::Sender<bool>,
) {
    let answered = async {
        let _ = stop.wait_for(|stop| *stop).await;
        calls.ended().await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
        let _ = cut.send(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = server => {}
        () = answered => {}
    }
}
