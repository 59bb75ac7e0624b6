//! gRPC: `clad.v1.Ingest` and `clad.v1.Log`, the standard health service and reflection.
//!
//! What must hold:
//! - An append over gRPC goes through the same door as a framed one and gets the same answers; it is encoded once, at the
//!   door, and its checksum starts there.
//! - Memory that a peer can hold is bounded before it is taken: what HTTP/2 may have buffered by the windows below, a
//!   message that is put together by [`assembly`], what is admitted by the door, answers by a channel. A peer that does
//!   not read its answers is not read from either.
//! - A peer that is gone is found by HTTP/2's own pings; `idle_timeout` is of connections that have none.
//! - On the way down no call begins, what was taken is answered, and nobody holds the daemon up with a call that only
//!   watches.
//!
//! ```text
//! listen (place, preface) ─▶ HTTP/2 ─▶ assembly (length, budget, time, weight) ─▶ append ─▶ Door, Session ─▶ answers
//!                                   └▶ log ─▶ ReadStream ─▶ blocks of OTLP
//! ```

mod append;
mod assembly;
mod calls;
mod health;
mod listen;
mod log;
mod weight;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use clad_proto::grpc::FILE_DESCRIPTOR_SET;
use clad_proto::grpc::v1::ingest_server::{IngestServer, SERVICE_NAME as INGEST};
use clad_proto::grpc::v1::log_server::{LogServer, SERVICE_NAME as LOG};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use crate::health::Health;
use crate::ingest::{Current, Listeners};
use assembly::Assembling;
use calls::Calls;

/// What one stream may have sent that is not taken yet; less where one connection may hold less.
const STREAM_WINDOW: usize = 4 * 1024 * 1024;
/// The same for all streams of a connection; less where all connections together may hold less.
const CONNECTION_WINDOW: usize = 16 * 1024 * 1024;
/// Calls of one connection. RFC 9113 asks for 100 at least; clients beyond it wait.
const MAX_STREAMS: u32 = 100;
/// A silent connection is asked whether it is still there after this long, and given up after that much more.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Time for a peer to take the last words of its calls.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a message may take in memory when it is decoded, in `max_append_bytes`: as much as the smallest records do.
const WEIGHT: usize = 16;

/// The longest protobuf message. `max_append_bytes` is of our encoding, and protobuf takes more for small attributes and
/// negative numbers; an append that is longer still is to be split.
fn max_message_bytes(max_append: usize) -> usize {
    2 * max_append + 64 * 1024
}

fn window(at_most: usize, budget: usize) -> u32 {
    // HTTP/2 starts at 64 KiB - 1; less than that would only stop every sender after its first frames.
    at_most.min(budget).max(65_535) as u32
}

/// Serves on a listener until the daemon stops. `largest_append` is what no reload can raise `max_append_bytes` above; what
/// HTTP/2 may buffer is told once, by the limits at the start.
pub(crate) fn serve(
    listener: TcpListener,
    current: Current,
    largest_append: usize,
    listeners: Arc<Listeners>,
    may_read: bool,
    health: Health,
) {
    let service = current.service();
    let door = service.door.clone();
    let calls = Calls::default();
    let (cut, cut_now) = watch::channel(false);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    tokio::spawn(health::follow(health, reporter, service.stop.clone()));
    // Admin is in the descriptors and on another socket: only what is served here is listed.
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(INGEST)
        .with_service_name(LOG)
        .with_service_name("grpc.health.v1.Health")
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .build_v1();
    let reflection = match reflection {
        Ok(reflection) => Some(reflection),
        Err(e) => {
            tracing::error!(error = %e, "gRPC is served without reflection");
            None
        }
    };
    let ingest = append::Ingest { current: current.clone(), may_read, calls: calls.clone() };
    let ingest = IngestServer::new(ingest).max_decoding_message_size(max_message_bytes(largest_append));
    let log = log::Log { reads: service.reads.clone(), may_read, stop: service.stop.clone(), calls: calls.clone() };
    let incoming = listen::accept(listener, listeners, current.clone(), cut_now, service.stop.clone());
    let mut stop = service.stop.clone();
    let server = Server::builder()
        .initial_stream_window_size(window(STREAM_WINDOW, door.max_connection_bytes))
        .initial_connection_window_size(window(CONNECTION_WINDOW, door.budget.total()))
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(Assembling::new(ingest, current.clone()))
        .add_service(LogServer::new(log))
        .add_service(health_service)
        .add_optional_service(reflection)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move {
            let _ = stop.wait_for(|stop| *stop).await;
        });
    tokio::spawn(live(server, calls, service.stop, cut));
}

/// Serves until every connection has ended; those that have no call of ours are not waited for.
async fn live<E: std::fmt::Display>(
    server: impl Future<Output = Result<(), E>>,
    calls: Calls,
    mut stop: watch::Receiver<bool>,
    cut: watch::Sender<bool>,
) {
    let answered = async {
        let _ = stop.wait_for(|stop| *stop).await;
        calls.ended().await;
        tokio::time::sleep(LAST_WORDS).await;
        let _ = cut.send(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = server => {
            if let Err(e) = ended {
                tracing::error!(error = %e, "gRPC is not served any more");
            }
        }
        () = answered => {}
    }
}
