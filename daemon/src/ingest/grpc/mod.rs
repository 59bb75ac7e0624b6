//! gRPC: `clad.v1.Ingest` and `clad.v1.Log`, the standard health service and reflection; and OTLP, on the same listener.
//!
//! Invariants:
//! - An append over gRPC goes through the same admission as a framed one and gets the same answers: what one takes, the
//!   other takes. It is encoded at admission, and its checksum starts there.
//! - Memory that a peer can hold is bounded before it is taken: a message under assembly by [`assembly`], admitted bytes
//!   by admission, answers by a channel, the rest by [`super::http`]. A request of any method but Append and Export is at
//!   most [`REQUEST_BYTES_MAX`] long, because tonic puts it together outside every budget.
//!
//! ```text
//! http (place, preface, streams) ─▶ assembly (length, budget, time) ─▶ append ─▶ Admission, Session ─▶ answers
//!                                └▶ log ─▶ ReadStream ─▶ blocks of OTLP
//! ```

mod append;
mod assembly;
mod health;
mod log;
mod oversize_header;

use std::sync::Arc;

use axum::Router;
use clad_proto::frame::Transport;
use clad_proto::grpc::v1::admin_server::{Admin, AdminServer, SERVICE_NAME as ADMIN};
use clad_proto::grpc::v1::ingest_server::SERVICE_NAME as INGEST;
use clad_proto::grpc::v1::log_server::{LogServer, SERVICE_NAME as LOG};
use clad_proto::grpc::{FILE_DESCRIPTOR_SET, to_status};
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

use crate::config::Right;
use crate::ingest::http::{self, Caller, Calls, Listener, with_stream_slots};
use crate::ingest::otlp::{self, LOGS_SERVICE, Otlp};
use crate::ingest::{ConnectionSlots, LiveSettings};
use crate::ops::health::Health;

/// The longest request of a call that is not Append: a ReadRequest, a name of a service, a name to reflect on.
const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Serves on a listener until the daemon stops.
pub(crate) fn serve(
    listener: Listener,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
    otlp: &Otlp,
    (may_read, orders): (bool, Option<impl Admin>),
    health: Health,
) {
    let calls = otlp.calls().clone();
    let services = services(&live_settings, &calls, (may_read, orders), health);
    let routes = with_stream_slots(services, otlp.stream_slots(), |_, error| to_status(error).into_http());
    let routes = routes.merge(otlp::routes(otlp)).fallback(otlp::unknown);
    http::serve(listener, routes, live_settings, connection_slots, calls);
}

/// The services of clad's own, and the standard ones beside them.
fn services(
    live_settings: &LiveSettings,
    calls: &Calls,
    (may_read, orders): (bool, Option<impl Admin>),
    health: Health,
) -> Router {
    let service = live_settings.service();
    let (reporter, health_service) = tonic_health::server::health_reporter();
    tokio::spawn(health::follow(health, (may_read, service.admission.access.clone()), reporter, service.stop.clone()));
    // Only what is served here is listed: Admin may be on another socket alone.
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure();
        let builder = if orders.is_some() { builder.with_service_name(ADMIN) } else { builder };
        builder
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(INGEST)
            .with_service_name(LOG)
            .with_service_name(LOGS_SERVICE)
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
    let (reads, stop, calls) = (service.reads.clone(), service.stop.clone(), calls.clone());
    let log = log::Log { live_settings: live_settings.clone(), reads, may_read, stop, calls };
    let mut routes = Routes::new(ingest)
        .add_service(LogServer::new(log).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(health_service.max_decoding_message_size(REQUEST_BYTES_MAX));
    let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
    if let Some(orders) = orders {
        let live_settings = live_settings.clone();
        let server = AdminServer::new(orders).max_decoding_message_size(REQUEST_BYTES_MAX);
        let checked = InterceptedService::new(server, move |request| admin(&live_settings, request));
        routes = routes.add_service(checked);
    }
    match (v1, v1alpha) {
        (Ok(v1), Ok(v1alpha)) => {
            routes = routes
                .add_service(v1.max_decoding_message_size(REQUEST_BYTES_MAX))
                .add_service(v1alpha.max_decoding_message_size(REQUEST_BYTES_MAX));
        }
        (Err(e), _) | (_, Err(e)) => tracing::error!(error = %e, "gRPC is served without reflection"),
    }
    routes.into_axum_router()
}

/// Lets a call of Admin pass whose caller may administer.
fn admin(live_settings: &LiveSettings, request: Request<()>) -> Result<Request<()>, Status> {
    let access = live_settings.service().admission.access.clone();
    let caller = request.extensions().get::<Caller>().ok_or_else(|| Status::internal("a call without a caller"))?;
    let peer = caller.peer((Transport::Grpc, false), request.metadata().as_ref(), &access);
    peer.and_then(|peer| peer.check(Right::Admin)).map_err(|error| to_status(&error))?;
    Ok(request)
}
