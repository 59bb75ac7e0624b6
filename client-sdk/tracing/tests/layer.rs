//! Events as records: their fields, spans and limits; what is dropped is counted.

mod support;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clad_client::{AckLevel, Address, AnyValue, Call, Overload, Producer, ProducerBuilder, Record, Stats, blocking};
use clad_tracing::Layer;
use support::*;
use tracing::{Subscriber, debug, error, info, info_span, trace, warn};
use tracing_subscriber::{layer::SubscriberExt, registry};

fn builder(address: &Address) -> ProducerBuilder {
    let ms = Duration::from_millis;
    Producer::builder(address.clone()).component("test").backoff(ms(1), ms(20)).max_append_records(16)
}

fn subscriber(producer: &blocking::Producer) -> impl Subscriber + Send + Sync + 'static {
    registry().with(Layer::new(producer))
}

/// What is stored of what `f` logs.
fn stored(f: impl FnOnce()) -> (Vec<Record>, Stats) {
    let daemon = Daemon::new();
    let producer = blocking::Producer::start(builder(&daemon.address)).expect("started");
    tracing::subscriber::with_default(subscriber(&producer), f);
    let stats = close(producer);
    (daemon.records(), stats)
}

/// Its formatting does as it says.
struct Odd(fn(&mut fmt::Formatter<'_>) -> fmt::Result);

impl fmt::Debug for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

#[derive(Debug)]
struct Failure(Option<Box<Failure>>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "outer" } else { "inner" })
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.as_ref().map(|source| &**source as _)
    }
}

#[test]
fn fields_keep_their_types() {
    let line = line!() + 3;
    let (records, stats) = stored(|| {
        let failure = Failure(Some(Box::new(Failure(None))));
        info!(
            int = -7, unsigned = 7u64, huge = u64::MAX, wide = i128::MIN, double = 1.5, nan = f64::NAN, yes = true,
            text = "a\0b", bytes = &b"\x00\xff"[..], debug = ?Some(1), display = %"shown",
            error = &failure as &(dyn std::error::Error + 'static), "paid {} of {}", 3, 4
        );
        trace!(name: "shop.opened", target: "shop", "trace");
        debug!("debug");
        warn!("warn");
        error!(only = "fields");
    });
    assert_eq!((records.len(), stats.dropped), (5, 0));
    let record = &records[0];
    assert_eq!(body(record), "paid 3 of 4");
    assert_eq!((int(record, "int"), int(record, "unsigned")), (-7, 7));
    assert_eq!(text(record, "huge"), u64::MAX.to_string());
    assert_eq!(text(record, "wide"), i128::MIN.to_string());
    assert_eq!(value(record, "double"), Some(&AnyValue::Double(1.5)));
    assert!(matches!(value(record, "nan"), Some(AnyValue::Double(nan)) if nan.is_nan()));
    assert_eq!(value(record, "yes"), Some(&AnyValue::Bool(true)));
    assert_eq!(text(record, "text"), "a\0b");
    assert_eq!(value(record, "bytes"), Some(&AnyValue::Bytes(vec![0, 255])));
    assert_eq!((text(record, "debug"), text(record, "display")), ("Some(1)", "shown"));
    assert_eq!(text(record, "error"), "outer: inner");
    assert_eq!((text(record, "log.target"), text(record, "code.namespace")), ("layer", "layer"));
    assert!(text(record, "code.file.path").ends_with("tests/layer.rs"));
    assert_eq!(int(record, "code.line.number"), i64::from(line));
    assert!(record.time_unix_nano > 0 && record.event_name.is_empty());
    let levels: Vec<_> = records.iter().map(|record| (record.severity_number, record.severity_text.as_str())).collect();
    assert_eq!(levels, [(9, "INFO"), (1, "TRACE"), (5, "DEBUG"), (13, "WARN"), (17, "ERROR")]);
    assert_eq!((records[1].event_name.as_str(), text(&records[1], "log.target")), ("shop.opened", "shop"));
    assert_eq!((records[4].body.as_ref(), text(&records[4], "only")), (None, "fields"));
}

#[test]
fn what_is_too_long_is_cut_and_says_so() {
    let long = "\u{e4}\0".repeat(1 << 20);
    let (records, stats) = stored(|| {
        info!(text = long.as_str(), kept = 7, "{long}");
        let _span = info_span!("around", long = long.as_str()).entered();
        info!("short");
    });
    assert_eq!((records.len(), stats.dropped), (2, 0));
    let cut = &records[0];
    assert!(long.starts_with(body(cut)) && long.starts_with(text(cut, "text")));
    assert!(body(cut).len() > 10_000 && text(cut, "text").len() > 10_000);
    assert_eq!((int(cut, "kept"), value(cut, "log.truncated")), (7, Some(&AnyValue::Bool(true))));
    assert_eq!((body(&records[1]), value(&records[1], "log.truncated")), ("short", None));
}

/// More than a record can have, of that which is not a text.
#[test]
fn what_is_too_long_in_its_spans_goes_without_them() {
    let (records, stats) = stored(|| {
        let daemon_limit = vec![0u8; 4096];
        let spans: Vec<_> = (0..600)
            .map(|_| {
                info_span!(
                    "s",
                    a = daemon_limit.as_slice(),
                    b = daemon_limit.as_slice(),
                    c = daemon_limit.as_slice(),
                    d = daemon_limit.as_slice(),
                    e = daemon_limit.as_slice(),
                    f = daemon_limit.as_slice()
                )
                .entered()
            })
            .collect();
        info!(kept = false, "the body is kept");
        spans.into_iter().rev().for_each(drop);
    });
    assert_eq!((records.len(), stats.dropped), (1, 0));
    assert_eq!(body(&records[0]), "the body is kept");
    assert_eq!((value(&records[0], "kept"), spans(&records[0]).len()), (None, 0));
    assert_eq!(value(&records[0], "log.truncated"), Some(&AnyValue::Bool(true)));
}

#[test]
fn spans_are_there_with_their_fields_outermost_first() {
    let (records, _) = stored(|| {
        let outer = info_span!("request", id = 7, status = tracing::field::Empty, message = "a field here").entered();
        let inner = info_span!("query", rows = tracing::field::Empty).entered();
        inner.record("rows", 3);
        inner.record("rows", 4);
        info!("in both");
        drop(inner);
        outer.record("status", "ok");
        info!("in one");
        drop(outer);
        info!("in none");
        info!(parent: &info_span!("given"), "elsewhere");
        let deep: Vec<_> = (0..150).map(|depth| info_span!("deep", depth).entered()).collect();
        info!("deep");
        deep.into_iter().rev().for_each(drop);
    });
    let named = |record: &Record| -> Vec<Vec<String>> {
        let pair = |pair: &clad_client::KeyValue| format!("{}={:?}", pair.key, pair.value.as_ref().expect("a value"));
        spans(record).iter().map(|pairs| pairs.iter().map(pair).collect()).collect()
    };
    let query = [r#"name=String("query")"#, "rows=Int(4)"];
    let request = [r#"name=String("request")"#, "id=Int(7)", r#"message=String("a field here")"#];
    assert_eq!(named(&records[0]), [&request[..], &query[..]]);
    let with_status = [request[0], request[1], request[2], r#"status=String("ok")"#];
    assert_eq!(named(&records[1]), [with_status]);
    assert!(named(&records[2]).is_empty());
    assert_eq!(named(&records[3]), [[r#"name=String("given")"#]]);
    let deep = named(&records[4]);
    assert_eq!((deep.len(), deep[0][1].as_str(), deep[99][1].as_str()), (100, "depth=Int(50)", "depth=Int(149)"));
}

#[test]
fn foreign_code_that_panics_or_logs_is_survived() {
    let (records, stats) = stored(|| {
        let panics = Odd(|_| panic!("in Debug"));
        info!(bad = ?panics, good = 1, "before {:?} after", Odd(|_| panic!("in the message")));
        let logs = Odd(|f| {
            info!("inside");
            f.write_str("done")
        });
        info!(logs = ?logs, "outside");
        let _span = info_span!("span", ?panics, ?logs).entered();
        info!("within");
    });
    assert_eq!(records.len(), 3);
    assert!(text(&records[0], "bad").contains("panicked") && body(&records[0]).contains("panicked"));
    assert_eq!(int(&records[0], "good"), 1);
    assert_eq!((body(&records[1]), text(&records[1], "logs")), ("outside", "done"));
    assert_eq!((body(&records[2]), spans(&records[2]).len()), ("within", 1));
    // A subscriber of a scope never gets what is logged inside (`program.rs` has one of the program).
    assert_eq!(stats.dropped, 0);
}

/// Logs one event more for each that it sees, as a layer that is careless may.
struct Echo;

impl<S: Subscriber> tracing_subscriber::Layer<S> for Echo {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() != "echo" {
            info!(target: "echo", "echo");
        }
    }
}

#[test]
fn the_clients_own_events_are_not_logged_and_nothing_goes_round_in_circles() {
    let daemon = Daemon::new();
    let producer = blocking::Producer::start(builder(&daemon.address)).expect("started");
    tracing::subscriber::with_default(subscriber(&producer).with(Echo), || {
        info!(target: "clad_client::producer::task", "connected");
        info!(target: "clad_clients", "another crate");
        info!("mine");
    });
    let stats = close(producer);
    let bodies: Vec<_> = daemon.records().iter().map(|record| body(record).to_owned()).collect();
    assert!(!bodies.contains(&"connected".to_owned()));
    assert_eq!(bodies.iter().filter(|body| *body == "mine").count(), 1);
    assert_eq!(bodies.iter().filter(|body| *body == "another crate").count(), 1);
    assert_eq!(stats.submitted - stats.drop_reports, bodies.len() as u64 + stats.dropped);
}

/// The daemon is away, comes, is cut off again and again, while many threads log and there is not enough room.
#[test]
fn what_is_stored_and_what_is_dropped_is_all_that_64_threads_log() {
    const THREADS: usize = 64;
    const EACH: usize = 200;
    for overload in [
        Overload::DropNewest,
        Overload::DropOldest,
        Overload::Wait(Duration::from_millis(2)),
        Overload::DropBelow { severity: clad_client::Severity::WARN, wait: Duration::from_millis(1) },
    ] {
        let daemon = Daemon::silent();
        let builder = builder(&daemon.address).overload(overload).max_buffered_bytes(256 * 1024);
        let producer = blocking::Producer::start(builder).expect("started");
        let subscriber = Arc::new(subscriber(&producer));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let subscriber = subscriber.clone();
                scope.spawn(move || {
                    tracing::subscriber::with_default(subscriber, || {
                        let _span = info_span!("thread", thread).entered();
                        for number in 0..EACH {
                            match number % 8 {
                                7 => warn!(thread, number, "counted"),
                                _ => info!(thread, number, "counted"),
                            }
                        }
                    });
                });
            }
            // All of it is more than there is room for.
            while producer.stats().dropped == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..10 {
                daemon.serve(true);
                std::thread::sleep(Duration::from_millis(10));
                daemon.serve(false);
            }
            daemon.serve(true);
        });
        drop(subscriber);
        // What was dropped without a ticket is reported by the first flush.
        let _ = producer.flush(AckLevel::Written, SOON);
        let stats = close(producer);
        let records = daemon.records();
        assert_eq!(stats.submitted - stats.drop_reports, (THREADS * EACH) as u64, "{overload:?}");
        assert_eq!(records.len() as u64 + stats.dropped, (THREADS * EACH) as u64, "{overload:?}: {stats:?}");
        assert_eq!((stats.failed, daemon.reported_drops()), (0, stats.dropped as i64), "{overload:?}");
        let mut last = [-1; THREADS];
        for record in &records {
            let (thread, number) = (int(record, "thread") as usize, int(record, "number"));
            assert!(last[thread] < number, "{overload:?}: {thread} logged {number} behind {}", last[thread]);
            last[thread] = number;
        }
    }
}

#[test]
fn a_daemon_that_restarts_has_everything_once() {
    let daemon = Daemon::new();
    let producer = blocking::Producer::start(builder(&daemon.address)).expect("started");
    tracing::subscriber::with_default(subscriber(&producer), || {
        for number in 0..300 {
            info!(number, "x");
            if number % 60 == 30 {
                daemon.serve(false);
                std::thread::sleep(Duration::from_millis(3));
                daemon.serve(true);
            }
        }
    });
    assert_eq!(close(producer).dropped, 0);
    let numbers: Vec<_> = daemon.records().iter().map(|record| int(record, "number")).collect();
    assert_eq!(numbers, Vec::from_iter(0..300));
}

#[test]
fn a_call_of_the_layer_can_differ_from_the_producer() {
    let daemon = Daemon::silent();
    let builder = builder(&daemon.address).max_buffered_bytes(4096).max_append_records(1);
    let producer = blocking::Producer::start(builder).expect("started");
    let layer = Layer::new(&producer).with_call(Call::new().on_overload(Overload::DropOldest));
    tracing::subscriber::with_default(registry().with(layer), || (0..100).for_each(|number| info!(number, "x")));
    daemon.serve(true);
    let _ = producer.flush(AckLevel::Written, SOON);
    let stats = close(producer);
    let numbers: Vec<_> = daemon.records().iter().map(|record| int(record, "number")).collect();
    assert_eq!(numbers, Vec::from_iter(stats.dropped as i64..100), "the newest are there");
}
