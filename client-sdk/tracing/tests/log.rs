//! Records of the crate `log`, with their key-value pairs.

mod support;

use std::fmt;
use std::time::Duration;

use clad_client::{AckLevel, AnyValue, DropReason, Producer, blocking};
use clad_tracing::Logger;
use log::Log;
use support::*;
use tracing_subscriber::filter::Targets;

struct Logs<'a>(&'a Logger);

impl fmt::Display for Logs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.log(&log::Record::builder().level(log::Level::Error).args(format_args!("inside")).build());
        f.write_str("outside")
    }
}

#[test]
fn pairs_keep_their_types() {
    let daemon = Daemon::new();
    let builder = Producer::builder(daemon.address.clone()).component("test");
    let producer = blocking::Producer::start(builder).expect("started");
    let filter = Targets::new().with_default(tracing::Level::INFO);
    let logger = Logger::new(&producer, filter, (AckLevel::Written, Duration::from_secs(60)));
    let pairs: &[(&str, log::kv::Value<'_>)] = &[
        ("int", (-7).into()),
        ("huge", u64::MAX.into()),
        ("nan", f64::NAN.into()),
        ("yes", true.into()),
        ("text", "a\0b".into()),
        ("none", log::kv::Value::null()),
    ];
    let mut record = log::Record::builder();
    record.level(log::Level::Warn).target("shop::till").module_path(Some("shop")).file(Some("till.rs")).line(Some(3));
    logger.log(&record.key_values(&pairs).args(format_args!("paid {}", 3)).build());
    // Below the filter, and the client's own.
    logger.log(&log::Record::builder().level(log::Level::Debug).args(format_args!("fine")).build());
    let own =
        log::Record::builder().level(log::Level::Error).target("clad_client::x").args(format_args!("own")).build();
    logger.log(&own);
    logger.log(&log::Record::builder().level(log::Level::Info).args(format_args!("{}", Logs(&logger))).build());
    logger.flush();
    let records = daemon.records();
    assert_eq!(records.iter().map(body).collect::<Vec<_>>(), ["paid 3", "outside"]);
    let record = &records[0];
    assert_eq!((record.severity_number, int(record, "int")), (13, -7));
    assert_eq!((text(record, "huge"), text(record, "text")), (u64::MAX.to_string().as_str(), "a\0b"));
    assert!(matches!(value(record, "nan"), Some(AnyValue::Double(nan)) if nan.is_nan()));
    assert_eq!((value(record, "yes"), value(record, "none")), (Some(&AnyValue::Bool(true)), Some(&AnyValue::Empty)));
    assert_eq!((text(record, "log.target"), text(record, "code.namespace")), ("shop::till", "shop"));
    assert_eq!((text(record, "code.file.path"), int(record, "code.line.number")), ("till.rs", 3));
    let stats = close(producer);
    assert_eq!(stats.dropped_by.of(DropReason::Recursive), 1);
}

struct Panics;

impl fmt::Display for Panics {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("in Display")
    }
}

/// Gives one pair, and panics.
struct BadSource;

impl log::kv::Source for BadSource {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn log::kv::VisitSource<'kvs>) -> Result<(), log::kv::Error> {
        visitor.visit_pair("good".into(), 1.into())?;
        panic!("in visit")
    }
}

fn logger(daemon: &Daemon) -> (blocking::Producer, Logger) {
    let producer = blocking::Producer::start(Producer::builder(daemon.address.clone())).expect("started");
    let filter = Targets::new().with_default(tracing::Level::INFO);
    let logger = Logger::new(&producer, filter, (AckLevel::Written, SOON));
    (producer, logger)
}

/// No hook of panics is installed here: the panics of this test are nobody's last words.
#[test]
fn foreign_code_that_panics_is_survived() {
    let daemon = Daemon::new();
    let (producer, logger) = logger(&daemon);
    let log = |source: &dyn log::kv::Source, body: fmt::Arguments<'_>| {
        logger.log(&log::Record::builder().level(log::Level::Info).key_values(&source).args(body).build());
    };
    let none: Option<(&str, i32)> = None;
    log(&none, format_args!("a {Panics}"));
    let pairs: &[(&str, log::kv::Value<'_>)] = &[("bad", log::kv::Value::from_display(&Panics)), ("good", 1.into())];
    log(&pairs, format_args!("a value"));
    log(&BadSource, format_args!("a source"));
    log(&none, format_args!("after them"));
    logger.flush();
    let records = daemon.records();
    let bodies: Vec<_> = records.iter().map(body).collect();
    assert_eq!(bodies[1..], ["a value", "a source", "after them"]);
    assert!(bodies[0].contains("panicked"), "{bodies:?}");
    assert!(text(&records[1], "bad").contains("panicked"));
    assert_eq!((int(&records[1], "good"), int(&records[2], "good")), (1, 1));
    assert!(text(&records[2], "log.pairs").contains("panicked"));
    assert_eq!(text(&records[2], "log.target"), "", "what comes after the pairs is there");
    assert_eq!(close(producer).dropped, 0);
}

#[test]
fn what_is_too_long_is_cut_and_says_so() {
    const LONG_BYTES: usize = 2 << 20;
    let daemon = Daemon::new();
    let (producer, logger) = logger(&daemon);
    let long = "\u{e4}\0".repeat(LONG_BYTES / 3 + 1);
    let pairs: &[(&str, log::kv::Value<'_>)] = &[("text", long.as_str().into()), ("kept", 7.into())];
    let mut record = log::Record::builder();
    record.level(log::Level::Info).key_values(&pairs);
    logger.log(&record.args(format_args!("{long}")).build());
    logger.log(&log::Record::builder().level(log::Level::Info).args(format_args!("short")).build());
    logger.flush();
    let records = daemon.records();
    let cut = &records[0];
    assert!(long.starts_with(body(cut)) && long.starts_with(text(cut, "text")));
    assert!(body(cut).len() > 10_000 && text(cut, "text").len() > 10_000);
    assert_eq!((int(cut, "kept"), value(cut, "log.truncated")), (7, Some(&AnyValue::Bool(true))));
    assert_eq!((body(&records[1]), value(&records[1], "log.truncated")), ("short", None));
    assert_eq!(close(producer).dropped, 0);
}
