//! The speed of a relay to each destination, beside a client of the destination's own makers where there is one.
//!
//! Invariant: a figure is of all records: what was sent is counted at its destination, and the relay's cursor is at the end.
//! Figures are for by hand; as a case the test asserts the counts alone.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clad_client::{AckLevel, Address, Cursors, Producer, Record};
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};

use serde_json::json;

use super::bucket::Bucket;
use super::objects::end;
use super::{Relay, kafka, nats, wait};

const RECORD_BYTES: usize = 200;
const RECORDS_PER_APPEND: u64 = 64;
/// Messages of the other client of NATS that have no answer yet: as many as the relay's.
const NATS_PENDING: &str = "1024";
/// Records to NATS as a message each, at most: a multiple of an append's.
const NATS_RECORDS_MAX: u64 = 32_000;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn setup() -> Setup {
    Setup::new().set("journal.segment_bytes", "64MiB").fixed_ports()
}

/// A log with so many records.
fn filled(records: u64) -> Daemon {
    let daemon = setup().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = Producer::builder(daemon.address("unix").parse().expect("an address")).component("speed");
        let producer = builder.level(AckLevel::Received).connect().await.expect("connected");
        for append in 0..records / RECORDS_PER_APPEND {
            // Words, numbers and ids, as a service logs: not one byte again and again.
            let record = |at: u64| {
                let number = append * RECORDS_PER_APPEND + at;
                let id = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let text =
                    format!("request {number} of user {} took {} ms: GET /api/items/{id:016x} ", id % 9973, id % 997);
                Record::text(0, 9, format!("{text:.<RECORD_BYTES$}"))
            };
            let all: Vec<Record> = (0..RECORDS_PER_APPEND).map(record).collect();
            producer.append(&all).await.expect("appended");
        }
        producer.flush(AckLevel::Durable).await.expect("durable");
        producer.close().await.expect("closed");
    });
    daemon
}

/// Runs the relay until its cursor is at the end: seconds, the relay's processor seconds, and its greatest memory.
fn timed(daemon: &Daemon, lines: &str) -> (f64, f64, u64) {
    let mut relay = Relay::new(daemon, "");
    let lines = lines.replace("FOLDER", &relay.folder().display().to_string());
    let server = daemon.address("unix");
    let text = format!("name = \"test\"\n[from.clad]\nserver = \"{server}\"\nstart = \"beginning\"\n{lines}\n");
    std::fs::write(relay.file(), text).expect("written");
    let (end, address) = (end(daemon), server.parse::<Address>().expect("an address"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut cursors = runtime.block_on(Cursors::connect(address)).expect("connected");
    let began = Instant::now();
    relay.start();
    let until = began + 10 * TEST_TIMEOUT;
    while runtime.block_on(cursors.get("test")).expect("asked").is_none_or(|named| named.place.offset < end) {
        assert!(Instant::now() < until, "it does not come to the end: {}", relay.said());
        std::thread::sleep(POLL_INTERVAL);
    }
    let took = began.elapsed().as_secs_f64();
    let pid = relay.child.as_ref().expect("it runs").id();
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let (stat, status) = (of("stat"), of("status"));
    // Fields 14 and 15 (man 5 proc_pid_stat), in hundredths of a second.
    let fields = stat.rsplit(')').next().expect("fields").split_whitespace().skip(11).take(2);
    let processor = fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    (took, processor, peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024)
}

/// The figures so far, as they go into docs/benchmarks/relay.json.
#[derive(Default)]
struct Figures {
    rows: Vec<serde_json::Value>,
}

impl Figures {
    #[expect(clippy::print_stdout, reason = "the figures")]
    fn add(&mut self, to: &str, records: u64, (took, processor, peak): (f64, f64, u64), stored_bytes: Option<u64>) {
        let records = records as f64;
        let (rate, core) = ((records / took).round(), (records / processor.max(0.01)).round());
        let bytes = stored_bytes.map(|bytes| (bytes as f64 / records * 10.0).round() / 10.0);
        let stored = bytes.map(|bytes| format!("; {bytes} bytes a record there")).unwrap_or_default();
        println!("speed: {to}: {rate} records/s; {core} a processor second of the relay; {peak} MiB at most{stored}");
        self.rows.push(json!({
            "to": to,
            "records_a_second": rate,
            "records_a_processor_second": core,
            "memory_mib": peak,
            "bytes_a_record": bytes,
        }));
    }
}

/// Bytes of a folder's files.
fn size(folder: &Path) -> u64 {
    let done = Command::new("du").arg("-sb").arg(folder).output().expect("du");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).expect("bytes")
}

/// The destinations of `CLAD_RELAY_SPEED`, or all.
#[expect(clippy::print_stdout, reason = "the figures")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn of_each_destination() {
    let wanted = std::env::var("CLAD_RELAY_SPEED").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|word| word == name);
    let records = super::number("CLAD_RELAY_SPEED_RECORDS") / RECORDS_PER_APPEND * RECORDS_PER_APPEND;
    let daemon = filled(records);
    assert_eq!(end(&daemon), records);
    let mut figures = Figures::default();
    if is_wanted("clad") {
        let far = setup().start();
        let lines = format!("[to.clad]\nserver = \"{}\"", far.address("unix"));
        let took = timed(&daemon, &lines);
        assert_eq!(end(&far), records);
        figures.add("another clad", records, took, Some(encoded(&far)));
        forgets(&daemon);
    }
    for format in ["parquet", "raw"] {
        if is_wanted(format) {
            let folder = tempfile::tempdir().expect("a folder");
            let url = folder.path().display();
            let took = timed(
                &daemon,
                &format!("[to.objects]\nurl = \"file://{url}\"\nformat = \"{format}\"\nmax_age = \"1s\""),
            );
            figures.add(&format!("objects, {format}"), records, took, Some(size(folder.path())));
            forgets(&daemon);
        }
    }
    if is_wanted("bucket") {
        let bucket = Bucket::start();
        let folder = tempfile::tempdir().expect("a folder");
        figures.add(
            "a bucket of moto's, parquet",
            records,
            timed(&daemon, &(bucket.lines(folder.path()) + "max_age = \"1s\"")),
            None,
        );
        forgets(&daemon);
    }
    for format in ["body", "otlp"] {
        let lines = format!("format = \"{format}\"");
        if is_wanted("nats") {
            // A message each is a flush each on the server.
            let (few, messages) = match format {
                "body" => (Some(filled(records.min(NATS_RECORDS_MAX))), records.min(NATS_RECORDS_MAX)),
                _ => (None, records / RECORDS_PER_APPEND),
            };
            let daemon = few.as_ref().unwrap_or(&daemon);
            let server = nats::Server::start();
            server.make();
            let took = timed(daemon, &server.lines(&lines));
            assert_eq!(server.count(), messages);
            figures.add(&format!("NATS, {format}"), end(daemon), took, None);
            if few.is_some() {
                server.make_other("bare");
                let words = ["flood", "bare", &messages.to_string(), &RECORD_BYTES.to_string(), NATS_PENDING];
                println!("speed: a bare publisher of NATS: {}", server.client(&words).trim());
            }
            forgets(daemon);
        }
        if is_wanted("kafka") {
            let server = kafka::Server::start();
            server.client(&["make", kafka::TOPIC, "1"]);
            // Kafka's own measurement does not compress.
            let took = timed(&daemon, &server.lines(&format!("{lines}\ncompression = \"none\"")));
            figures.add(&format!("Kafka, {format}"), records, took, None);
            forgets(&daemon);
            if format == "body" {
                server.client(&["make", "bare", "1"]);
                println!("speed: Kafka's own producer-perf-test: {}", server.perf_test("bare", records, RECORD_BYTES));
            }
        }
    }
    if let Some(file) = std::env::var_os("CLAD_RELAY_SPEED_JSON") {
        let all = json!({ "record_bytes": RECORD_BYTES, "records": records, "rows": figures.rows });
        std::fs::write(file, format!("{all:#}\n")).expect("written");
    }
}

/// Bytes of a log's records, as their senders encoded them.
fn encoded(daemon: &Daemon) -> u64 {
    daemon.metric("clad_appended_bytes_total") as u64
}

/// The relay's cursor is dropped, so that the next one begins again.
fn forgets(daemon: &Daemon) {
    let address = daemon.address("unix").parse::<Address>().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    wait("the cursor is dropped", || {
        runtime.block_on(async {
            let mut cursors = Cursors::connect(address.clone()).await.expect("connected");
            cursors.remove("test").await.is_ok()
        })
    });
}
