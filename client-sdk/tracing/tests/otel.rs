//! Trace and span ids, where OpenTelemetry is in use.

mod support;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use clad_client::{Producer, blocking};
use clad_tracing::Layer;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};
use support::*;
use tracing::{info, info_span};
use tracing_subscriber::{layer::SubscriberExt, registry};

/// Numbers traces and spans from 1 on.
#[derive(Default)]
struct Numbers(AtomicU64);

struct Numbered(SpanContext);

impl Tracer for Numbers {
    type Span = Numbered;

    fn build_with_context(&self, _: SpanBuilder, parent: &Context) -> Numbered {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let parent = parent.span().span_context().clone();
        let trace =
            if parent.is_valid() { parent.trace_id() } else { TraceId::from_bytes(u128::from(number).to_be_bytes()) };
        let span = SpanId::from_bytes(number.to_be_bytes());
        Numbered(SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default()))
    }
}

impl opentelemetry::trace::Span for Numbered {
    fn add_event_with_timestamp<T: Into<Cow<'static, str>>>(&mut self, _: T, _: SystemTime, _: Vec<KeyValue>) {}

    fn span_context(&self) -> &SpanContext {
        &self.0
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn set_attribute(&mut self, _: KeyValue) {}

    fn set_status(&mut self, _: Status) {}

    fn update_name<T: Into<Cow<'static, str>>>(&mut self, _: T) {}

    fn add_link(&mut self, _: SpanContext, _: Vec<KeyValue>) {}

    fn end_with_timestamp(&mut self, _: SystemTime) {}
}

#[test]
fn a_record_has_the_ids_of_its_span() {
    let daemon = Daemon::new();
    let builder = Producer::builder(daemon.address.clone()).component("test");
    let producer = blocking::Producer::start(builder).expect("started");
    let telemetry = tracing_opentelemetry::OpenTelemetryLayer::new(Numbers::default());
    tracing::subscriber::with_default(registry().with(telemetry).with(Layer::new(&producer)), || {
        info!("in none");
        let _outer = info_span!("outer").entered();
        info!("in one");
        let _inner = info_span!("inner").entered();
        info!("in both");
    });
    close(producer);
    let ids = |record: &clad_client::Record| (record.trace_id.to_vec(), record.span_id.to_vec());
    let (trace, first, second) =
        (u128::to_be_bytes(1).to_vec(), u64::to_be_bytes(1).to_vec(), u64::to_be_bytes(2).to_vec());
    let wanted = [(Vec::new(), Vec::new()), (trace.clone(), first), (trace, second)];
    assert_eq!(daemon.records().iter().map(ids).collect::<Vec<_>>(), wanted);
}
