//! Answers, in the words of gRPC and of HTTP: what the OTLP specification says of each, and what exporters do with it.
//!
//! Invariants:
//! - Full success has no `partial_success`: exporters take one for a fault.
//! - Only what passes has a time to retry after. It is 0.2 to 1 s: exporters of Python give up at once where it is longer
//!   than the rest of their ten seconds. It is in both trailers that exporters look at.
//! - Backpressure over gRPC is UNAVAILABLE: RESOURCE_EXHAUSTED is final to some exporters.

use std::time::{Duration, SystemTime};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use clad_proto::{ErrorCode, ErrorInfo};
use http_body_util::BodyExt;
use prost::Message;
use serde_json::json;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::ops::metrics::{self, OtlpCode};

/// Encodings of bodies that are taken.
pub(super) const ENCODINGS: &str = "gzip, zstd";
const GRPC_ENCODINGS: &str = "identity,gzip,zstd";
/// Path at which HTTP, not gRPC, is spoken.
const HTTP_PATH: &str = "/v1/";

/// Format of a request and of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Protobuf,
    Json,
}

impl Format {
    /// The format of a body over HTTP; nothing where it is another.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        match kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "application/x-protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Records of a request that no retry will make good; the others have their level.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) rejected: u64,
    /// The first of them, and why.
    pub(super) first: Option<String>,
}

/// Reason why a request is not answered with success.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: OtlpCode,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(code: OtlpCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    fn passes(&self) -> bool {
        matches!(self.code, OtlpCode::Busy | OtlpCode::Unavailable)
    }
}

impl From<ErrorInfo> for Refusal {
    fn from(error: ErrorInfo) -> Self {
        let code = match error.code {
            ErrorCode::Busy
            | ErrorCode::WindowExceeded
            | ErrorCode::TooManyProducers
            | ErrorCode::QuotaExceeded
            | ErrorCode::TooManyConnections => OtlpCode::Busy,
            ErrorCode::LevelUnreachable => OtlpCode::Level,
            ErrorCode::PermissionDenied => OtlpCode::Denied,
            ErrorCode::BadRecord => OtlpCode::Invalid,
            ErrorCode::RecordTooLarge | ErrorCode::AppendTooLarge => OtlpCode::TooLarge,
            _ => OtlpCode::Unavailable,
        };
        Self { code, text: error.to_string() }
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RetryDelay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl RetryInfo {
    const TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";

    /// Spread, so that exporters that were refused together do not come back together.
    fn soon() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let delay = Duration::from_millis(200 + u64::from(now.subsec_micros() % 800));
        Self { retry_delay: Some(RetryDelay { seconds: 0, nanos: delay.subsec_nanos() as i32 }) }
    }
}

/// Codes of a refusal in both protocols.
pub(super) fn codes(code: OtlpCode) -> (Code, StatusCode) {
    match code {
        OtlpCode::Ok | OtlpCode::Partial => (Code::Ok, StatusCode::OK),
        OtlpCode::Invalid => (Code::InvalidArgument, StatusCode::BAD_REQUEST),
        OtlpCode::TooLarge => (Code::ResourceExhausted, StatusCode::PAYLOAD_TOO_LARGE),
        OtlpCode::Unsupported => (Code::Unimplemented, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        OtlpCode::Level => (Code::FailedPrecondition, StatusCode::BAD_REQUEST),
        OtlpCode::Denied => (Code::PermissionDenied, StatusCode::FORBIDDEN),
        OtlpCode::Busy => (Code::Unavailable, StatusCode::TOO_MANY_REQUESTS),
        OtlpCode::Unavailable => (Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
    }
}

fn count(answer: &Result<Done, Refusal>) {
    metrics::otlp_request(match answer {
        Ok(done) if done.rejected == 0 => OtlpCode::Ok,
        Ok(_) => OtlpCode::Partial,
        Err(refusal) => refusal.code,
    });
}

fn response_of(done: Done) -> ExportLogsServiceResponse {
    let partial_success = (done.rejected > 0).then(|| ExportLogsPartialSuccess {
        rejected_log_records: i64::try_from(done.rejected).unwrap_or(i64::MAX),
        error_message: done.first.unwrap_or_default(),
    });
    ExportLogsServiceResponse { partial_success }
}

/// The status of a refusal, with its details.
fn status(refusal: &Refusal) -> RpcStatus {
    let details = match refusal.passes() {
        true => vec![Any { type_url: RetryInfo::TYPE.to_owned(), value: RetryInfo::soon().encode_to_vec() }],
        false => Vec::new(),
    };
    RpcStatus { code: codes(refusal.code).0 as i32, message: refusal.text.clone(), details }
}

/// The answer over gRPC.
pub(super) fn grpc(answer: Result<Done, Refusal>) -> Response {
    count(&answer);
    match answer {
        Ok(done) => grpc_success(&response_of(done)),
        Err(refusal) => grpc_refusal(&refusal),
    }
}

fn grpc_refusal(refusal: &Refusal) -> Response {
    let status = status(refusal);
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-accept-encoding", MetadataValue::from_static(GRPC_ENCODINGS));
    if let Some(retry) = status.details.first() {
        metadata.insert_bin("google.rpc.retryinfo-bin", MetadataValue::from_bytes(&retry.value));
    }
    let details = status.encode_to_vec().into();
    Status::with_details_and_metadata(codes(refusal.code).0, &refusal.text, details, metadata).into_http()
}

/// One message, and the trailers that say OK.
fn grpc_success(message: &ExportLogsServiceResponse) -> Response {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.encoded_len() as u32);
    body.put_slice(&message.encode_to_vec());
    let trailers = async {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Some(Ok(trailers))
    };
    let body = http_body_util::Full::new(body.freeze()).with_trailers(trailers);
    let mut response = Response::new(axum::body::Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static(GRPC_ENCODINGS));
    response
}

/// The answer over HTTP, in the format of the request.
pub(super) fn http(answer: Result<Done, Refusal>, format: Format) -> Response {
    count(&answer);
    match answer {
        Ok(done) => {
            let message = response_of(done);
            let body = match format {
                Format::Protobuf => message.encode_to_vec(),
                Format::Json => success_json(&message).to_string().into_bytes(),
            };
            formatted(StatusCode::OK, format, body)
        }
        Err(refusal) => http_refusal(&refusal, format),
    }
}

fn success_json(message: &ExportLogsServiceResponse) -> serde_json::Value {
    match &message.partial_success {
        None => json!({}),
        Some(partial) => json!({ "partialSuccess": {
            "rejectedLogRecords": partial.rejected_log_records.to_string(),
            "errorMessage": partial.error_message,
        }}),
    }
}

fn http_refusal(refusal: &Refusal, format: Format) -> Response {
    let status = status(refusal);
    let body = match format {
        Format::Protobuf => status.encode_to_vec(),
        Format::Json => json!({ "code": status.code, "message": status.message }).to_string().into_bytes(),
    };
    let mut response = formatted(codes(refusal.code).1, format, body);
    let headers = response.headers_mut();
    retry_after(refusal, headers);
    if refusal.code == OtlpCode::Unsupported {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(ENCODINGS));
    }
    response
}

/// Says when to try again, where that helps.
pub(super) fn retry_after(refusal: &Refusal, headers: &mut HeaderMap) {
    if refusal.passes() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
}

fn formatted(status: StatusCode, format: Format, body: Vec<u8>) -> Response {
    let kind = match format {
        Format::Protobuf => "application/x-protobuf",
        Format::Json => "application/json",
    };
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}

/// Answer to a request that has no place.
pub(super) fn refuse(request: &Request, error: &ErrorInfo) -> Response {
    let refusal = Refusal::from(error.clone());
    metrics::otlp_request(refusal.code);
    match request.uri().path().starts_with(HTTP_PATH) {
        true => http_refusal(&refusal, Format::of(request.headers()).unwrap_or_default()),
        false => grpc_refusal(&refusal),
    }
}
