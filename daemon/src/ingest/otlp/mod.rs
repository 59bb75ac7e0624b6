//! OTLP: log records of OpenTelemetry's exporters, over gRPC and HTTP, on any socket that speaks HTTP. The journal's
//! entries come beside them ([`upload`]).
//!
//! Invariants:
//! - A success says that each record has the level asked for, but for those that it counts as rejected. A request that
//!   is stored in part and then refused for a passing reason is answered as refused: its sender sends it again.
//! - What a retry cannot make good is refused for ever, and no record beside it with it. What passes is refused with a
//!   time of at most a second: exporters give up after ten.
//! - A record is never decoded: its protobuf becomes a payload ([`clad_proto::otlp`]), JSON becomes protobuf first.
//! - Memory of a request is counted before it is taken, also what a compressed body becomes: [`body`]. A payload that
//!   finds no room is not kept while it waits.
//! - A request that is sent again is stored once, as far as its appends have names ([`resends`]) and the journal knows them.
//! - The sender is whom the kernel reports; a producer of the daemon's own numbers what each owner sends.
//!
//! ```text
//! http ─▶ request (protocol, level) ─▶ body (length, budget, time; inflate) ─▶ export ─▶ Admission, Session ─▶ answer
//! ```

mod answer;
mod body;
mod export;
mod inflate;
mod json;
mod request;
mod resends;
mod shared;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
pub(crate) use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::logs_service_server::SERVICE_NAME as LOGS_SERVICE;
use tonic::{Code, Status};

use crate::ingest::http::{self, Listener, with_stream_slots};
use crate::ingest::{ConnectionSlots, LiveSettings};
pub use json::to_protobuf;
pub(crate) use shared::Otlp;

/// The method of [`LOGS_SERVICE`].
const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// Methods of the services for what is no log.
const OTHER_SIGNALS: [&str; 3] = [
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
];

/// The routes, each request in a place of the slots.
pub(crate) fn routes(otlp: &Otlp) -> Router {
    let mut routes = Router::new()
        .route(EXPORT, any(over_grpc))
        .route("/v1/logs", post(over_http))
        .with_state(otlp.clone())
        .route("/v1/traces", any(not_logs))
        .route("/v1/metrics", any(not_logs));
    for method in OTHER_SIGNALS {
        routes = routes
            .route(method, any(async || Status::unimplemented("clad keeps logs").into_http::<axum::body::Body>()));
    }
    let uploads = Router::new().route(upload::PATH, post(upload::upload).fallback(upload::only_post));
    let uploads = with_stream_slots(uploads.with_state(otlp.clone()), &otlp.stream_slots, upload::refuse);
    with_stream_slots(routes, &otlp.stream_slots, answer::refuse).merge(uploads)
}

/// Serves OTLP alone on a listener until the daemon stops.
pub(crate) fn serve(
    listener: Listener,
    otlp: &Otlp,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
) {
    let routes = routes(otlp).fallback(unknown);
    http::serve(listener, routes, live_settings, connection_slots, otlp.calls.clone());
}

async fn over_grpc(State(otlp): State<Otlp>, request: Request) -> Response {
    let answer = request::grpc(&otlp, request).await;
    answer::grpc(answer)
}

async fn over_http(State(otlp): State<Otlp>, request: Request) -> Response {
    let format = answer::Format::of(request.headers());
    let answer = request::http(&otlp, request).await;
    answer::http(answer, format.unwrap_or_default())
}

async fn not_logs() -> Response {
    (StatusCode::NOT_FOUND, "clad keeps logs: POST /v1/logs\n").into_response()
}

/// Answer where nothing is served.
pub(crate) async fn unknown(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::new(Code::Unimplemented, format!("there is no {} here", request.uri().path())).into_http();
    }
    (StatusCode::NOT_FOUND, "this is clad: gRPC, and OTLP over HTTP at POST /v1/logs\n").into_response()
}
