//! Connections that speak HTTP: gRPC over HTTP/2, and OTLP over either version, on the same sockets.
//!
//! Invariants:
//! - Memory that a peer can hold is bounded before it is taken: requests by [`streams`], buffers of HTTP by the limits
//!   below. A peer that does not read its answers is not read from either.
//! - HTTP/2's own pings find a peer that is gone. HTTP/1 has none: a connection that begins no request for
//!   [`HEADERS_TIMEOUT`] is closed.
//! - During the shutdown no request begins, taken appends are answered, and no request that only watches delays the
//!   daemon.

mod calls;
mod listen;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod together;

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use clad_journal::io::release_free_memory;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tonic::codegen::{Body, Service};

use crate::ingest::{ConnectionSlots, LiveSettings};
use crate::ops::metrics;
pub(crate) use calls::{CLOSE_TIMEOUT, Call, Calls};
use listen::Connection;
pub(crate) use listen::{Caller, Listener};
pub(crate) use streams::{STREAMS_MAX, StreamSlot, with_stream_slots};
use together::{Requests, Together};

/// Bytes that one stream, or a whole connection, may have sent that are not taken yet. [`window`] may make it less.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Calls of one connection, at most and at least: see [`calls_max`]. RFC 9113 asks for 100; clients beyond it wait.
const MAX_STREAMS: u32 = 100;
const MIN_STREAMS: u32 = 4;
/// Calls beyond its limit, or broken, after which a connection ends. HTTP/2 remembers each of them for a while.
const REFUSED_CALLS_MAX: usize = 32;
/// Buffer of an HTTP/1 connection: a request's head, and the piece of its body that was read.
const HTTP1_BUFFER_BYTES: usize = 16 * 1024;
/// Time for a request's head over HTTP/1, and for the next request to begin. Clients drop idle connections before: 90 s
/// in Go.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(120);
/// Connections that are a burst: when half of it has gone, its memory is given back to the system,
const CROWD_CONNECTIONS: usize = 8;
/// this long after the last one went.
const RELEASE_DELAY: Duration = Duration::from_secs(1);
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
/// the limits at the daemon's start. The end waits for those requests that are among the `calls`.
pub(crate) fn serve(
    listener: Listener,
    routes: Router,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
    calls: Calls,
) {
    let service = live_settings.service();
    let (cut, cut_now) = watch::channel(false);
    let idle_timeout = service.idle_timeout;
    let incoming = listen::accept(listener, connection_slots.clone(), live_settings, cut_now, service.stop.clone());
    let serving = Serving {
        routes,
        connection_slots,
        windows: (service.admission.max_connection_bytes, service.admission.budget.total()),
        keepalive: KEEPALIVE,
        headers_timeout: if idle_timeout.is_zero() { HEADERS_TIMEOUT } else { idle_timeout.min(HEADERS_TIMEOUT) },
        stop: service.stop.clone(),
    };
    tokio::spawn(live(serving.all(incoming), calls, service.stop, cut));
}

/// Settings with which each connection is served.
struct Serving {
    routes: Router,
    connection_slots: Arc<ConnectionSlots>,
    /// The maximum that a stream and a connection may hold.
    windows: (usize, usize),
    /// Silence after which a connection is probed, and time for its answer.
    keepalive: (Duration, Duration),
    headers_timeout: Duration,
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

    /// One connection: HTTP/2 gets its windows when it begins.
    fn one(&self, connection: Connection) -> impl Future<Output = ()> + Send + use<> {
        let nth = self.connection_slots.open_on(metrics::Transport::Grpc);
        let requests = Requests::default();
        let mut http = auto::Builder::new(requests.clone());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.headers_timeout)
            .max_buf_size(HTTP1_BUFFER_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(window(WINDOW_BYTES, self.windows.0, nth))
            .initial_connection_window_size(window(WINDOW_BYTES, self.windows.1, nth))
            .max_concurrent_streams(calls_max(nth))
            .max_local_error_reset_streams(REFUSED_CALLS_MAX)
            .keep_alive_interval(self.keepalive.0)
            .keep_alive_timeout(self.keepalive.1);
        let service = TowerToHyperService::new(WithCaller { routes: self.routes.clone(), caller: connection.caller() });
        let mut stop = self.stop.clone();
        async move {
            let served = pin!(http.serve_connection(TokioIo::new(connection), service));
            let mut served = Together::new(served, requests);
            let ended = tokio::select! {
                ended = &mut served => Some(ended),
                () = async { drop(stop.wait_for(|stop| *stop).await) } => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    served.connection().graceful_shutdown();
                    served.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection that speaks HTTP ended");
            }
        }
    }
}

/// The routes for one connection: each request gets its caller.
#[derive(Clone)]
struct WithCaller {
    routes: Router,
    caller: Caller,
}

impl<B> Service<axum::http::Request<B>> for WithCaller
where
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = <Router as Service<Request>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: axum::http::Request<B>) -> Self::Future {
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(self.caller.clone());
        self.routes.call(request)
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
