//! The bridge from the crate `log`, with its key-value pairs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clad_client::{AckLevel, Call, DropReason, KvWriter, Producer, blocking};
use log::kv::{self, VisitSource, VisitValue};
use tracing_subscriber::filter::Targets;

use crate::callsite::{Place, is_own, severity};
use crate::current::Current;
use crate::local::{Extent, Head, with_local};
use crate::text::{PANICKED, push_value, to_stderr};

/// Attribute that says that the source of the key-value pairs panicked.
const PANIC_KEY: &str = "log.pairs";

/// Hands records of the crate `log` to a producer. Key-value pairs are attributes with their types.
#[derive(Debug)]
pub struct Logger {
    current: Current,
    call: Call,
    filter: Targets,
    flush: (AckLevel, Duration),
}

impl Logger {
    /// A logger over a producer. It takes what `filter` takes; `log::Log::flush` waits for a level, for at most a time.
    #[must_use]
    pub fn new(producer: &Producer, filter: Targets, flush: (AckLevel, Duration)) -> Self {
        Self::of(Current::new(producer), filter, flush)
    }

    pub(crate) const fn of(current: Current, filter: Targets, flush: (AckLevel, Duration)) -> Self {
        Self { current, call: Call::new(), filter, flush }
    }

    /// Other settings than the producer's.
    #[must_use]
    pub fn with_call(mut self, call: Call) -> Self {
        self.call = call;
        self
    }
}

/// The same level of `tracing`.
const fn level(level: log::Level) -> tracing::Level {
    match level {
        log::Level::Error => tracing::Level::ERROR,
        log::Level::Warn => tracing::Level::WARN,
        log::Level::Info => tracing::Level::INFO,
        log::Level::Debug => tracing::Level::DEBUG,
        log::Level::Trace => tracing::Level::TRACE,
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        !is_own(metadata.target())
            && !blocking::is_worker_thread()
            && self.filter.would_enable(metadata.target(), &level(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let (severity, severity_text) = severity(level(record.level()));
        let head = Head { severity, severity_text, event_name: "", has_body: true, ids: None };
        let place =
            Place { target: record.target(), module: record.module_path(), file: record.file(), line: record.line() };
        let logged = with_local(|local| {
            local.body.clear();
            push_value(&mut local.body, *record.args());
            local.send(self.current.producer(), &self.call, head, |pairs, value, extent| {
                if !matches!(extent, Extent::Bare(_)) {
                    visit(record.key_values(), &mut Pairs { pairs, value, extent });
                }
                place.write(pairs);
            });
        });
        if logged.is_none() {
            self.current.producer().count_dropped(DropReason::Recursive);
        }
    }

    fn flush(&self) {
        let (level, timeout) = self.flush;
        // Nobody is there to hear of an error; the next flush reports what had none.
        let _ = blocking::flush(self.current.producer(), level, timeout);
    }
}

/// Writes the pairs of a source: foreign code, which may panic. What it gave before that is kept.
fn visit(source: &dyn kv::Source, pairs: &mut Pairs<'_, '_>) {
    // No visit here ends with an error. A panic is between two pairs: a value's own is text already.
    if catch_unwind(AssertUnwindSafe(|| source.visit(pairs))).is_err() {
        pairs.pairs.entry(PANIC_KEY).text(PANICKED);
    }
}

/// Writes key-value pairs as attributes.
struct Pairs<'a, 'p> {
    pairs: &'a mut KvWriter<'p>,
    value: &'a mut String,
    extent: Extent,
}

impl<'kvs> VisitSource<'kvs> for Pairs<'_, '_> {
    fn visit_pair(&mut self, key: kv::Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        let visited = value.visit(Pair { key: key.as_str(), of: self });
        visited.or(Ok(()))
    }
}

struct Pair<'k, 'a, 'b, 'p> {
    key: &'k str,
    of: &'a mut Pairs<'b, 'p>,
}

impl Pair<'_, '_, '_, '_> {
    fn text(&mut self, value: fmt::Arguments<'_>) {
        self.of.value.clear();
        push_value(self.of.value, value);
        self.of.pairs.entry(self.key).text(self.of.extent.of(self.of.value));
    }
}

impl<'v> VisitValue<'v> for Pair<'_, '_, '_, '_> {
    fn visit_any(&mut self, value: kv::Value<'_>) -> Result<(), kv::Error> {
        self.text(format_args!("{value}"));
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), kv::Error> {
        self.of.pairs.entry(self.key).empty();
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), kv::Error> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => {
                self.text(format_args!("{value}"));
                Ok(())
            }
        }
    }

    fn visit_i64(&mut self, value: i64) -> Result<(), kv::Error> {
        self.of.pairs.entry(self.key).int(value);
        Ok(())
    }

    fn visit_f64(&mut self, value: f64) -> Result<(), kv::Error> {
        self.of.pairs.entry(self.key).double(value);
        Ok(())
    }

    fn visit_bool(&mut self, value: bool) -> Result<(), kv::Error> {
        self.of.pairs.entry(self.key).boolean(value);
        Ok(())
    }

    fn visit_str(&mut self, value: &str) -> Result<(), kv::Error> {
        self.of.pairs.entry(self.key).text(self.of.extent.of(value));
        Ok(())
    }
}

/// Writes to stderr, where there is no log.
pub(crate) struct Stderr(pub(crate) Targets);

impl log::Log for Stderr {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.0.would_enable(metadata.target(), &level(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            to_stderr(format_args!("{:>5} {}: {}", record.level(), record.target(), record.args()));
        }
    }

    fn flush(&self) {}
}
