//! The exporters of Rust's SDK, as they come, behind the layer of `tracing`: `clad-otlp-agent TRANSPORT MODE COUNT`.
//!
//! README.md has what all agents have in common. The endpoint, headers and compression are the SDK's own variables.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::logs::AnyValue;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder, BatchLogProcessor, LogBatch, LogExporter as Export, SdkLogRecord, SdkLoggerProvider,
};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;

type Error = Box<dyn std::error::Error>;

/// Between the records of `stream`, and how long the SDK keeps them before it sends.
const STREAM_PAUSE: Duration = Duration::from_millis(5);
const STREAM_DELAY: Duration = Duration::from_millis(10);
/// The scope of all records, and of each second one of `stream`.
const TARGET: &str = "clad.agent";
const OTHER: &str = "clad.other";

/// Hands over to an exporter, and prints the number of each record whose export it calls a success.
#[derive(Debug)]
struct Said(LogExporter);

impl Export for Said {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let numbers: String = batch.iter().filter_map(|(record, _)| number(record)).collect();
        let result = self.0.export(batch).await;
        let written = match &result {
            Ok(()) => std::io::stdout().write_all(numbers.as_bytes()),
            Err(error) => {
                eprint!("{error}\n{numbers}");
                Ok(())
            }
        };
        written.expect("stdout is read");
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// The line of a record.
fn number(record: &SdkLogRecord) -> Option<String> {
    record.attributes_iter().find_map(|(key, value)| match value {
        AnyValue::Int(number) if key.as_str() == "n" => Some(format!("{number}\n")),
        _ => None,
    })
}

fn exporter(transport: &str) -> Result<LogExporter, Error> {
    Ok(match transport {
        "grpc" => LogExporter::builder().with_tonic().build()?,
        "http" => LogExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?,
        "json" => LogExporter::builder().with_http().with_protocol(Protocol::HttpJson).build()?,
        other => return Err(format!("no exporter for {other}").into()),
    })
}

fn body(n: i64) -> String {
    match n % 6 {
        0 => format!("record {n}"),
        1 => format!("Grüße {n}, 世界 🚀"),
        2 => String::new(),
        3 => format!("one\ntwo\t\"three\" \\ {n}"),
        4 => format!("{}{n}", "x".repeat(2000)),
        _ => format!("last {n}"),
    }
}

/// One event at the level of its number, which `tracing` wants to know when it is compiled.
macro_rules! event {
    ($n:expr, $($fields:tt)+) => {
        match $n % 5 {
            0 => tracing::debug!(target: TARGET, n = $n, $($fields)+),
            1 => tracing::info!(target: TARGET, n = $n, $($fields)+),
            2 => tracing::warn!(target: TARGET, n = $n, $($fields)+),
            3 => tracing::error!(target: TARGET, n = $n, $($fields)+),
            _ => tracing::trace!(target: TARGET, n = $n, $($fields)+),
        }
    };
}

fn log_simple(n: i64) {
    let body = body(n);
    if n % 10 == 9 {
        let broken = std::io::Error::other(format!("broken {n}"));
        return event!(n, error = &broken as &dyn std::error::Error, "{body}");
    }
    match n % 8 {
        0 => event!(n, text = format!("Zürich/東京 {n}"), "{body}"),
        1 => event!(n, least = i64::MIN, most = i64::MAX, "{body}"),
        2 => event!(n, half = n as f64 + 0.5, tiny = 1e-300, negative = -0.25, "{body}"),
        3 => event!(n, yes = true, no = false, "{body}"),
        4 => event!(n, over = u64::MAX, "{body}"),
        5 => event!(n, list = ?[1, 2], "{body}"),
        6 => event!(n, bytes = [0_u8, 1, 0xfe, 0xff].as_slice(), "{body}"),
        _ => event!(n, empty = "", "{body}"),
    }
}

/// The context of a span that was begun elsewhere.
fn span(n: i64) -> Result<Context, Error> {
    let trace = TraceId::from_hex(&format!("c1ad{:028x}", n + 1))?;
    let span = SpanId::from_hex(&format!("c1ad{:012x}", n + 1))?;
    let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    Ok(Context::new().with_remote_span_context(context))
}

fn simple(count: i64) -> Result<(), Error> {
    for n in 0..count {
        let _active = if n % 4 == 0 { Some(span(n)?.attach()) } else { None };
        log_simple(n);
    }
    Ok(())
}

fn stream(count: i64) {
    let ends = Arc::new(AtomicBool::new(false));
    let seen = ends.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    for n in (0..count).take_while(|_| !ends.load(Ordering::Relaxed)) {
        match n % 2 {
            0 => tracing::info!(target: TARGET, n, "record {n}"),
            _ => tracing::info!(target: OTHER, n, "record {n}"),
        }
        std::thread::sleep(STREAM_PAUSE);
    }
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [transport, mode, count] = words.as_slice() else {
        return Err("clad-otlp-agent TRANSPORT MODE COUNT".into());
    };
    let (count, is_simple) = (count.parse()?, mode == "simple");
    // tonic needs a runtime; the client of HTTP brings its own, and may not be made within another.
    let runtime = tokio::runtime::Runtime::new()?;
    let exporter = {
        let _entered = (transport == "grpc").then(|| runtime.enter());
        exporter(transport)?
    };
    let delay = if is_simple { Duration::from_secs(1) } else { STREAM_DELAY };
    let config = BatchConfigBuilder::default().with_scheduled_delay(delay).build();
    let names = Value::Array(Array::String(vec!["a".into(), "b".into()]));
    let about = [KeyValue::new("cpus", 2), KeyValue::new("ratio", 0.5), KeyValue::new("flag", true)];
    let about = Resource::builder().with_service_name("otlp-agent").with_attributes(about);
    let provider = SdkLoggerProvider::builder()
        .with_resource(about.with_attribute(KeyValue::new("names", names)).build())
        .with_log_processor(BatchLogProcessor::builder(Said(exporter)).with_batch_config(config).build())
        .build();
    // What the exporter itself does is no record of the program's.
    let ours = filter_fn(|of| [TARGET, OTHER].contains(&of.target()));
    let layer = OpenTelemetryTracingBridge::new(&provider).with_filter(ours);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    if is_simple {
        simple(count)?
    } else {
        stream(count)
    }
    provider.shutdown_with_timeout(Duration::from_secs(60))?;
    Ok(())
}
