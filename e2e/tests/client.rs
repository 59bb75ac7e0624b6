//! The Rust client and its `tracing` layer with a real daemon: the layer's records come back over each transport, a call
//! of it in a ring allocates nothing, and a socket that vanishes is waited for.

use std::time::Duration;

use clad_client::{AckLevel, AnyValue, Call, ConnectError, Event, Producer, Reader, Record, blocking};
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};
use tracing::{info, info_span};
use tracing_subscriber::{layer::SubscriberExt, registry};

/// So many, that a piece of memory for payloads would be allocated many times.
const EVENTS: u64 = 4_000;

fn stored(daemon: &Daemon) -> Vec<Record> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = daemon.address("unix").parse().expect("an address");
        let mut reader = Reader::builder(address).level(AckLevel::Written).open().await.expect("a reader");
        let mut all = Vec::new();
        while let Some(event) = reader.next().await.expect("no error") {
            let Event::Records(chunk) = event else { panic!("not a record: {event:?}") };
            all.extend(chunk.records().map(|(_, record)| record.to_owned()));
        }
        all
    })
}

fn attribute<'a>(record: &'a Record, key: &str) -> Option<&'a AnyValue> {
    record.attributes.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_ref())
}

#[test]
fn what_the_layer_logs_comes_back_and_a_call_in_a_ring_allocates_nothing() {
    for (transport, level) in
        [("unix", AckLevel::Written), ("shm", AckLevel::None), ("shm", AckLevel::Written), ("tcp", AckLevel::Written)]
    {
        // Room for all events at once: none is dropped however slow the machine is.
        let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "16MiB").start();
        let address = daemon.address(transport).parse().expect("an address");
        let setup = clad_tracing::Setup::new().server(address).component("layer").level(level);
        let (layer, guard) = setup.flush_timeout(TEST_TIMEOUT).layer().expect("started");
        let producer = guard.producer().expect("a producer");
        let log = |from: u64| {
            for number in from..from + EVENTS {
                info!(number, name = "three fields", ratio = 0.5, "an event {number}");
            }
        };
        tracing::subscriber::with_default(registry().with(layer), || {
            let _span = info_span!("request", id = 7).entered();
            // Until it is answered, what is logged waits in memory, also where a ring comes.
            info!("the first");
            guard.flush().expect("stored");
            assert_eq!(producer.has_ring(), transport == "shm", "{:?}", producer.why_no_ring());
            log(0);
            let allocated = allocation_counter::measure(|| log(EVENTS)).count_total;
            // Over a socket a payload needs memory until it is acked; it comes in pieces for many.
            let limit = match (transport, level) {
                ("shm", AckLevel::None) => 0,
                ("shm", _) => EVENTS.ilog2().into(), // the list of those without an answer doubles
                _ => EVENTS / 16,
            };
            assert!(allocated <= limit, "{transport} at {level:?}: {allocated} allocations for {EVENTS} events");
        });
        producer.flush(AckLevel::Written, TEST_TIMEOUT).expect("stored");
        assert_eq!(producer.stats().dropped, 0);
        drop(guard);
        let records = stored(&daemon);
        assert_eq!(records.len() as u64, 1 + 2 * EVENTS, "{transport} at {level:?}");
        for (number, record) in (0..).zip(&records[1..]) {
            assert_eq!(record.body, Some(AnyValue::String(format!("an event {number}"))));
            assert_eq!(attribute(record, "number"), Some(&AnyValue::Int(number)));
            assert_eq!(attribute(record, "ratio"), Some(&AnyValue::Double(0.5)));
            assert_eq!(record.severity_number, 9);
            let Some(AnyValue::Array(spans)) = attribute(record, "spans") else { panic!("no spans: {record:?}") };
            let AnyValue::KvList(span) = &spans[0] else { panic!("{spans:?}") };
            assert!(span.iter().any(|pair| pair.key == "id" && pair.value == Some(AnyValue::Int(7))), "{span:?}");
        }
    }
}

#[test]
fn a_socket_that_vanishes_is_waited_for() {
    let mut daemon = Daemon::start();
    let builder = || {
        let ms = Duration::from_millis;
        Producer::builder(daemon.address("unix").parse().expect("an address")).backoff(ms(1), ms(20))
    };
    let producer = blocking::Producer::connect(builder().level(AckLevel::Written)).expect("connected");
    std::fs::remove_file(daemon.socket()).expect("removed");
    let body = |text: &str| Record::text(0, 9, text);
    producer.append(&[body("its connection is there")]).expect("written");
    let error = blocking::Producer::connect(builder()).expect_err("nobody finds it");
    assert!(matches!(error, ConnectError::Io { .. }), "{error}");
    daemon.kill9();
    // At its level: at level none it could be lost with the socket, whose end the producer may not know yet.
    let _waits = producer.offer(&body("waits"), &Call::default()).expect("handed over");
    producer.flush(AckLevel::Written, Duration::from_millis(50)).expect_err("no daemon has it");
    daemon.restart();
    producer.flush(AckLevel::Written, TEST_TIMEOUT).expect("written");
    let bodies: Vec<_> = stored(&daemon).into_iter().filter_map(|record| record.body).collect();
    assert_eq!(bodies, ["its connection is there", "waits"].map(|text| AnyValue::String(text.to_owned())));
}
