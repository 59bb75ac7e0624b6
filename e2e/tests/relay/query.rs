//! What a query of an archive reads: DuckDB asks for one service within a time, and passes by what other objects have.
//!
//! `CLAD_RELAY_QUERY_OBJECTS` is about how many objects there are.

use std::path::Path;
use std::process::Command;

use clad_client::{AckLevel, Producer, Record};
use clad_e2e::{Daemon, Setup, json};

use super::objects::{end, parquet_files, relay, wait_stored};

const SERVICES: u64 = 10;
const RECORDS_PER_APPEND: u64 = 64;
/// Records of an object of this size, about.
const OBJECT_BYTES: u64 = 4 << 20;
const RECORDS_PER_OBJECT: u64 = 60_000;
const RECORD_BYTES: usize = 200;
/// One record a millisecond, from here.
const BEGIN: u64 = 1_767_225_600_000_000_000;
const NANOS_PER_RECORD: u64 = 1_000_000;

/// A log of appends of one service after the other.
fn fill(daemon: &Daemon, records: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut producers = Vec::new();
        for service in 0..SERVICES {
            let builder = Producer::builder(daemon.address("unix").parse().expect("an address"));
            let builder = builder.component(format!("service-{service}")).level(AckLevel::Received);
            producers.push(builder.connect().await.expect("connected"));
        }
        let record = |number: u64| {
            let id = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let text =
                format!("request {number} of user {} took {} ms: GET /api/items/{id:016x} ", id % 9973, id % 997);
            Record::text(BEGIN + number * NANOS_PER_RECORD, 9, format!("{text:.<RECORD_BYTES$}"))
        };
        for append in 0..records / RECORDS_PER_APPEND {
            let all: Vec<Record> = (0..RECORDS_PER_APPEND).map(|at| record(append * RECORDS_PER_APPEND + at)).collect();
            producers[(append % SERVICES) as usize].append(&all).await.expect("appended");
        }
        for producer in producers {
            producer.flush(AckLevel::Durable).await.expect("durable");
            producer.close().await.expect("closed");
        }
    });
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay speed`"]
fn of_a_service_and_a_time_reads_few_of_the_bytes() {
    let objects = super::number("CLAD_RELAY_QUERY_OBJECTS");
    let records = objects * RECORDS_PER_OBJECT / RECORDS_PER_APPEND * RECORDS_PER_APPEND;
    let daemon = Setup::new().set("journal.segment_bytes", "64MiB").fixed_ports().start();
    fill(&daemon, records);
    assert_eq!(end(&daemon), records);
    let archive = tempfile::tempdir().expect("a folder");
    let mut relay = relay(&daemon, "", |_| {
        let folder = archive.path().display();
        format!("[to.objects]\nurl = \"file://{folder}\"\nmax_age = \"1s\"\nobject_bytes = {OBJECT_BYTES}\n")
    });
    relay.start();
    wait_stored(&mut relay, records);
    let files = parquet_files(archive.path().to_owned());
    let bytes: u64 = files.iter().map(|file| file.metadata().expect("a file").len()).sum();
    // A hundredth of the time, in the middle.
    let (first, count) = (records / 2, records / 100);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("objects/range.py");
    let python = std::env::var("CLAD_OBJECTS_PYTHON").expect("call `cargo xtask ci relay speed`");
    let time = |record: u64| (BEGIN + record * NANOS_PER_RECORD).to_string();
    let mut asked = Command::new(python);
    asked.arg("-B").arg(script).arg(archive.path()).args(["service-3", &time(first), &time(first + count)]);
    let done = asked.output().expect("python");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found = json(&done.stdout);
    let is_wanted = |record: &u64| record / RECORDS_PER_APPEND % SERVICES == 3;
    let wanted = (first..first + count).filter(is_wanted).count();
    assert_eq!(found["count"].as_u64(), Some(wanted as u64));
    let read = found["read"].as_u64().expect("a number");
    println!(
        "speed: a query of one service within a hundredth of the time: {} objects of {bytes} bytes, {read} are read: {:.1} %",
        files.len(),
        read as f64 * 100.0 / bytes as f64
    );
    assert!(read < bytes / 10, "{read} of {bytes} bytes were read");
}
