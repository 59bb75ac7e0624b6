//! A disk that hangs, as a program sees it that logs by the Rust client: no call waits past its deadline, what does not
//! go into memory is dropped and counted, and what was taken is stored once when the disk is back.

use std::thread;
use std::time::{Duration, Instant};

use clad_client::{AckLevel, AnyValue, AppendError, Call, Overload, Producer, Record, Ticket, blocking};
use clad_e2e::{Frozen, Setup, TEST_TIMEOUT, readback};

use crate::{full, mount_point};

/// More than the daemon's memory takes, and the client's.
const RECORDS: u64 = 60;
/// The disk hangs for at least so long; `CLAD_HANG_SECONDS` says otherwise.
const HANG_SECONDS_DEFAULT: u64 = 1;

fn big(sequence: u64) -> Record {
    Record { body: Some(AnyValue::Bytes(full::body(sequence))), severity_number: 9, ..Record::default() }
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn costs_no_call_its_deadline() {
    let setup = Setup::new().set("limits.max_inflight_bytes", "1MiB").set("limits.max_append_bytes", "128KiB");
    let setup = setup.set("limits.max_connection_inflight_bytes", "1MiB").set("journal.max_record_bytes", "128KiB");
    let daemon = setup.start();
    let address = daemon.address("unix").parse().expect("an address");
    let builder = Producer::builder(address).component("disk").max_buffered_bytes(4 << 20);
    let producer = blocking::Producer::connect(builder.level(AckLevel::Durable)).expect("connected");
    producer.append(&[big(0)]).expect("durable");

    let frozen = Frozen::new(&mount_point());
    let until = std::env::var("CLAD_HANG_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let until = Instant::now() + Duration::from_secs(until.unwrap_or(HANG_SECONDS_DEFAULT));
    let tickets: Vec<Ticket> = (1..=RECORDS)
        .map(|sequence| producer.offer(&big(sequence), &Call::new().on_overload(Overload::DropNewest)).expect("room"))
        .collect();
    // There is no more room: these do not wait, or as long as they say.
    let wait = Duration::from_millis(20);
    for overload in [Overload::DropNewest, Overload::Wait(wait)] {
        let refused = (0..200).filter(|_| producer.offer(&big(0), &Call::new().on_overload(overload)).is_err());
        assert!(refused.count() > 0, "{overload:?} finds room for ever");
    }
    let error = producer.flush(AckLevel::Durable, wait).expect_err("nothing is durable");
    assert!(matches!(error, AppendError::DeliveryTimeout { maybe_written: true, .. }), "{error}");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !producer.why_waiting().is_some_and(|why| why.contains("busy")) {
        assert!(Instant::now() < deadline, "it waits for {:?}", producer.why_waiting());
        thread::sleep(Duration::from_millis(10));
    }
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    drop(frozen);

    let mut last = 0;
    for ticket in tickets {
        let receipt = ticket.wait(Duration::ZERO).expect("durable");
        let first = receipt.first_offset.expect("an offset");
        assert!(first > last && receipt.level == AckLevel::Durable, "{receipt:?} behind {last}");
        last = first;
    }
    producer.flush(AckLevel::Durable, TEST_TIMEOUT).expect("all of it is durable");
    let stats = producer.close(TEST_TIMEOUT).expect("nothing is left").stats;
    assert!(stats.dropped > 0 && stats.failed == 0, "{stats:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let stored = runtime.block_on(readback::served(&daemon.address("unix")));
    assert_eq!(stored.len() as u64, stats.submitted - stats.dropped, "{stats:?}");
    for (sequence, record) in (0..=RECORDS).zip(&stored) {
        assert!(record.body == full::body(sequence), "record {sequence} is another");
    }
}
