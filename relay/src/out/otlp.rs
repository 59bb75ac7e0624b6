//! An OTLP endpoint over HTTP: what takes a request, and what it answers.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceResponse;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::config::ToOtlp;

/// The reason of a request that was not answered in time.
pub(super) const TIMEOUT: &str = "timeout";
/// The most of an answer that is looked at.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The endpoint.
pub(super) struct Otlp {
    client: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    gzip: bool,
}

/// Answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has all of it.
    Taken,
    /// It has taken it, but for so many records.
    TakenInPart { rejected: u64, text: String },
    /// It is too large.
    TooLarge,
    /// It will never take it.
    Refused(String),
    /// Not now; after this time, where it says one.
    NotNow { reason: &'static str, text: String, after: Option<Duration> },
}

impl Otlp {
    pub(super) fn new(to: &ToOtlp) -> Result<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        for (name, value) in to.headers()? {
            let name =
                HeaderName::try_from(&name).with_context(|| format!("to.otlp: {name:?} is no name of a header"))?;
            let mut value =
                HeaderValue::try_from(value).with_context(|| format!("to.otlp: the value of header {name}"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let mut client = reqwest::Client::builder()
            .timeout(to.timeout()?)
            .user_agent(concat!("clad-relay/", env!("CARGO_PKG_VERSION")));
        client = client.redirect(reqwest::redirect::Policy::none());
        if let Some(ca) = &to.ca {
            let pem = std::fs::read(ca).with_context(|| format!("to.otlp.ca: {}", ca.display()))?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem);
            let certificates = certificates.with_context(|| format!("to.otlp.ca: {}", ca.display()))?;
            client = client.tls_certs_only(certificates);
        }
        Ok(Self { client: client.build().context("to.otlp")?, url: to.url()?, headers, gzip: to.gzip })
    }

    /// Sends a request, once. Cancel safe: the endpoint has it, or not.
    pub(super) async fn send(&self, request: &[u8]) -> Answer {
        let mut post = self.client.post(self.url.clone()).headers(self.headers.clone());
        post = match self.gzip {
            true => post.header(CONTENT_ENCODING, "gzip").body(gzip(request)),
            false => post.body(request.to_vec()),
        };
        match post.send().await {
            Ok(response) => answer(response).await,
            Err(error) => not_now(&error),
        }
    }
}

fn gzip(request: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(request.len() / 4), Compression::fast());
    // Into memory: nothing can fail.
    let _ = encoder.write_all(request);
    encoder.finish().unwrap_or_default()
}

fn not_now(error: &reqwest::Error) -> Answer {
    let reason = match error {
        error if error.is_timeout() => TIMEOUT,
        error if error.is_connect() => "connect",
        _ => "connection",
    };
    Answer::NotNow { reason, text: format!("{:#}", anyhow::anyhow!("{}", chain(error))), after: None }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

async fn answer(response: reqwest::Response) -> Answer {
    let (status, headers) = (response.status(), response.headers().clone());
    let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    let body = match body(response).await {
        Ok(body) => body,
        // The status alone says that it has it; but a partial success may have been said in what is lost.
        Err(error) => return not_now(&error),
    };
    let text = || {
        format!(
            "{status}: {}",
            String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(300).collect::<String>()
        )
    };
    match status {
        status if status.is_success() => match ExportLogsServiceResponse::decode(body.clone()) {
            Ok(ExportLogsServiceResponse { partial_success: Some(partial) }) if partial.rejected_log_records > 0 => {
                let rejected = u64::try_from(partial.rejected_log_records).unwrap_or(0);
                Answer::TakenInPart { rejected, text: partial.error_message }
            }
            _ => Answer::Taken,
        },
        StatusCode::PAYLOAD_TOO_LARGE => Answer::TooLarge,
        StatusCode::TOO_MANY_REQUESTS => Answer::NotNow { reason: "throttled", text: text(), after },
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Answer::NotNow { reason: "unavailable", text: text(), after }
        }
        // Not of these records: somebody has to put something right, and then they are taken.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            Answer::NotNow { reason: "forbidden", text: text(), after }
        }
        status if status.is_client_error() => Answer::Refused(text()),
        // A proxy's page, or a fault over there: the specification has no word for it, and nothing is given up for it.
        _ => Answer::NotNow { reason: "error", text: text(), after },
    }
}

async fn body(mut response: reqwest::Response) -> Result<Bytes, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            break;
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.into())
}
