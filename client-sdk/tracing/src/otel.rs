//! Trace and span ids of OpenTelemetry spans.

use std::sync::OnceLock;

use opentelemetry::trace::TraceContextExt;
use tracing::{dispatcher::WeakDispatch, span::Id};

/// The ids of a span, where the subscriber has a layer of `tracing-opentelemetry`.
pub(crate) fn ids(dispatch: &OnceLock<WeakDispatch>, span: &Id) -> Option<([u8; 16], [u8; 8])> {
    let dispatch = dispatch.get()?.upgrade()?;
    let context = tracing_opentelemetry::get_otel_context(span, &dispatch)?;
    let span = context.span();
    let ids = span.span_context();
    ids.is_valid().then(|| (ids.trace_id().to_bytes(), ids.span_id().to_bytes()))
}
