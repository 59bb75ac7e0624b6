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
