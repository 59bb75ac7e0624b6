//! A request, from its headers to its answer.

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use clad_proto::AckLevel;
use clad_proto::frame::Transport;

use super::answer::{Done, ENCODINGS, Format, Refusal};
use super::body::{Bodies, discard, message_of, read};
use super::export::Export;
use super::inflate::Encoding;
use super::shared::Otlp;
use crate::access::Rights;
use crate::config::Right;
use crate::ingest::http::Caller;
use crate::ingest::{Owner, Peer, Shown};
use crate::ops::metrics::OtlpCode;

/// Header that asks for a level, over either protocol: exporters set it by `OTEL_EXPORTER_OTLP_HEADERS`.
const ACK: HeaderName = HeaderName::from_static("clad-ack");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The one encoding that a header names.
fn encoding(headers: &HeaderMap, name: &HeaderName) -> Result<Encoding, Refusal> {
    let mut named = headers.get_all(name).iter();
    let one = named.next().map_or(Some(Encoding::Identity), |value| value.to_str().ok().and_then(Encoding::of));
    let one = one.filter(|_| named.next().is_none());
    one.ok_or_else(|| Refusal::new(OtlpCode::Unsupported, format!("{name}: one of {ENCODINGS} is taken, once")))
}

/// The sender of a request, who may append.
pub(super) fn sender(otlp: &Otlp, parts: &Parts, transport: Transport) -> Result<Peer, Refusal> {
    let access = &otlp.live_settings.service().admission.access;
    let caller = parts.extensions.get::<Caller>();
    let peer = match caller {
        Some(caller) => caller.peer((transport, false), &parts.headers, access)?,
        None => Peer::network(transport, None, Owner::Network, false).judged(access, Shown::Nothing)?,
    };
    peer.check(Right::Append)?;
    Ok(peer)
}

/// The level that a request asks for; without a header the highest that its sender may ask for.
pub(super) fn level(otlp: &Otlp, headers: &HeaderMap, rights: &Rights) -> Result<AckLevel, Refusal> {
    let Some(asked) = headers.get(&ACK) else {
        let level = otlp.ack.unwrap_or(otlp.live_settings.service().admission.highest);
        return Ok(rights.cap(level));
    };
    let level = asked.to_str().ok().and_then(|level| level.trim().parse().ok());
    level.ok_or_else(|| {
        Refusal::new(OtlpCode::Invalid, format!("{ACK}: one of none, received, written, durable, not {asked:?}"))
    })
}

/// The body, unless the headers are refused: then it is read in part, or its sender would not see the answer.
pub(super) async fn unless_refused<T>(checked: Result<T, Refusal>, body: Body) -> Result<(T, Body), Refusal> {
    match checked {
        Ok(checked) => Ok((checked, body)),
        Err(refusal) => {
            discard(body).await;
            Err(refusal)
        }
    }
}

/// An export over gRPC: one message in the body, compressed or not.
pub(super) async fn grpc(otlp: &Otlp, request: Request<Body>) -> Result<Done, Refusal> {
    let bodies = Bodies::of(otlp, &request);
    let (parts, body) = request.into_parts();
    let checked = || {
        let peer = sender(otlp, &parts, Transport::OtlpGrpc)?;
        let encoding = encoding(&parts.headers, &GRPC_ENCODING)?;
        let level = level(otlp, &parts.headers, peer.rights())?;
        Ok((peer, encoding, level))
    };
    let ((peer, encoding, level), body) = unless_refused(checked(), body).await?;
    let (message, mut room) = read(body, bodies, true).await?;
    let (is_compressed, message) = message_of(&message)?;
    let message = match is_compressed {
        false => message,
        true if encoding == Encoding::Identity => {
            return Err(Refusal::new(OtlpCode::Invalid, "a compressed message, and no grpc-encoding"));
        }
        true => room.transform(otlp, encoding, Format::Protobuf, message).await?,
    };
    Export::begin(otlp, parts.extensions.get::<Caller>(), peer, level)?.run(otlp, &message).await
}

/// An export over HTTP.
pub(super) async fn http(otlp: &Otlp, request: Request<Body>) -> Result<Done, Refusal> {
    let bodies = Bodies::of(otlp, &request);
    let (parts, body) = request.into_parts();
    let checked = || {
        let peer = sender(otlp, &parts, Transport::OtlpHttp)?;
        let Some(format) = Format::of(&parts.headers) else {
            let text = "content-type: application/x-protobuf or application/json";
            return Err(Refusal::new(OtlpCode::Unsupported, text));
        };
        let encoding = encoding(&parts.headers, &header::CONTENT_ENCODING)?;
        let level = level(otlp, &parts.headers, peer.rights())?;
        Ok((peer, format, encoding, level))
    };
    let ((peer, format, encoding, level), body) = unless_refused(checked(), body).await?;
    let (mut message, mut room) = read(body, bodies, false).await?;
    if encoding != Encoding::Identity || format == Format::Json {
        message = room.transform(otlp, encoding, format, message).await?;
    }
    Export::begin(otlp, parts.extensions.get::<Caller>(), peer, level)?.run(otlp, &message).await
}
