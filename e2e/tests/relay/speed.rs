//! The speed of a relay to each destination, beside a client of the destination's own makers where there is one.
//!
//! Invariant: a figure is of all records: what was sent is counted at its destination, and the relay's cursor is at the end.
//! Figures are for by hand; as a case the test asserts the counts alone.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// Of the load that a relay has missed when it begins.
const OUTAGE_SECONDS: u64 = 10;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn setup() -> Setup {
    Setup::new().set("journal.segment_bytes", "64MiB").fixed_ports()
}

/// A log with so many records.
fn filled(records: u64) -> Daemon {
    let daemon = setup().start();
    let appends = records / RECORDS_PER_APPEND;
    append(&daemon, |at| (at < appends).then_some(Duration::ZERO));
    daemon
}

/// Appends one after the other, each when so much time has gone by since the first; until there is no time for one.
fn append(daemon: &Daemon, due: impl Fn(u64) -> Option<Duration>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = Producer::builder(daemon.address("unix").parse().expect("an address")).component("speed");
        let producer = builder.level(AckLevel::Received).connect().await.expect("connected");
        let (began, mut append) = (Instant::now(), 0);
        while let Some(due) = due(append) {
            if !due.is_zero() {
                tokio::time::sleep_until((began + due).into()).await;
            }
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
            append += 1;
        }
        producer.flush(AckLevel::Durable).await.expect("durable");
        producer.close().await.expect("closed");
    });
}

/// A relay that was away for ten seconds of a load of so many records a second, which goes on: how many times as fast the
/// relay is until it is within a second of the end.
#[expect(clippy::print_stdout, reason = "the figures")]
fn catches_up(to: &str, rate: u64, lines: &str) {
    let backlog = OUTAGE_SECONDS * rate;
    let daemon = filled(backlog);
    let began_at = end(&daemon);
    let mut relay = Relay::new(&daemon, "");
    let server = daemon.address("unix");
    let lines = lines.replace("FOLDER", &relay.folder().display().to_string());
    let text = format!("name = \"test\"\n[from.clad]\nserver = \"{server}\"\nstart = \"beginning\"\n{lines}\n");
    std::fs::write(relay.file(), text).expect("written");
    let is_there = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let due = |at: u64| Duration::from_secs_f64((at * RECORDS_PER_APPEND) as f64 / rate as f64);
            append(&daemon, |at| (!is_there.load(Ordering::Relaxed)).then(|| due(at)));
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = server.parse::<Address>().expect("an address");
        let mut cursors = runtime.block_on(Cursors::connect(address)).expect("connected");
        let began = Instant::now();
        relay.start();
        let until = began + 10 * TEST_TIMEOUT;
        let lag = |cursors: &mut Cursors| {
            let there = runtime.block_on(cursors.get("test")).expect("asked").map_or(0, |named| named.place.offset);
            end(&daemon).saturating_sub(there)
        };
        while lag(&mut cursors) > rate && Instant::now() < until {
            std::thread::sleep(POLL_INTERVAL);
        }
        let took = began.elapsed().as_secs_f64();
        is_there.store(true, Ordering::Relaxed);
        load.join().expect("the load");
        wait("all is there", || lag(&mut cursors) == 0);
        took
    });
    let came = (end(&daemon) - began_at) as f64;
    let times = (backlog as f64 + came - rate as f64).max(0.0) / took / rate as f64;
    println!(
        "speed: catching up to {to}: {backlog} records behind, {rate}/s come: {took:.1} s, {times:.1} times as fast"
    );
}

/// From where the time of a relay counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    ItsStart,
    /// The first time that its cursor was seen to move: new servers of Kafka make topics for transactions first.
    FirstMove,
}

/// What a relay took for all records of a log.
struct Took {
    records_a_second: f64,
    processor_seconds: f64,
    peak_mib: u64,
}

/// Runs the relay until its cursor is at the end.
fn timed(daemon: &Daemon, since: Since, lines: &str) -> Took {
    let mut relay = Relay::new(daemon, "");
    let lines = lines.replace("FOLDER", &relay.folder().display().to_string());
    let server = daemon.address("unix");
    let text = format!("name = \"test\"\n[from.clad]\nserver = \"{server}\"\nstart = \"beginning\"\n{lines}\n");
    std::fs::write(relay.file(), text).expect("written");
    let (end, address) = (end(daemon), server.parse::<Address>().expect("an address"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut cursors = runtime.block_on(Cursors::connect(address)).expect("connected");
    let until = Instant::now() + 10 * TEST_TIMEOUT;
    relay.start();
    let mut first = (since == Since::ItsStart).then(|| (Instant::now(), 0));
    let (began, from) = loop {
        let at = runtime.block_on(cursors.get("test")).expect("asked").map_or(0, |named| named.place.offset);
        let (began, from) = *first.get_or_insert_with(|| (Instant::now(), at));
        if at == end {
            break (began, from);
        }
        if from == 0 && since == Since::FirstMove {
            first = None;
        }
        assert!(Instant::now() < until, "it does not come to the end: {}", relay.said());
        std::thread::sleep(POLL_INTERVAL);
    };
    // A few records are all there when the cursor first moves.
    let records_a_second = (end - from) as f64 / began.elapsed().as_secs_f64().max(0.001);
    let pid = relay.child.as_ref().expect("it runs").id();
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let (stat, status) = (of("stat"), of("status"));
    // Fields 14 and 15 (man 5 proc_pid_stat), in hundredths of a second.
    let fields = stat.rsplit(')').next().expect("fields").split_whitespace().skip(11).take(2);
    let processor_seconds = fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let peak_mib = peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024;
    Took { records_a_second, processor_seconds, peak_mib }
}

/// The figures so far, as they go into docs/benchmarks/relay.json.
#[derive(Default)]
struct Figures {
    rows: Vec<serde_json::Value>,
}

impl Figures {
    #[expect(clippy::print_stdout, reason = "the figures")]
    fn add(&mut self, to: &str, records: u64, took: Took, stored_bytes: Option<u64>) {
        let (records, peak) = (records as f64, took.peak_mib);
        let (rate, core) = (took.records_a_second.round(), (records / took.processor_seconds.max(0.01)).round());
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
    let rate = |by_hand: u64| if records < OUTAGE_SECONDS * by_hand { records / OUTAGE_SECONDS } else { by_hand };
    if is_wanted("catch-up") {
        let far = setup().start();
        catches_up("another clad", rate(100_000), &format!("[to.clad]\nserver = \"{}\"", far.address("unix")));
        let folder = tempfile::tempdir().expect("a folder");
        let url = folder.path().display();
        let lines = format!("[to.objects]\nurl = \"file://{url}\"\nmax_age = \"1s\"");
        catches_up("objects, parquet", rate(100_000), &lines);
        let server = nats::Server::start();
        server.make();
        catches_up("NATS, otlp", rate(25_000), &server.lines(""));
        let server = kafka::Server::start();
        server.client(&["make", kafka::TOPIC, "1"]);
        catches_up("Kafka, otlp", rate(40_000), &server.lines(""));
    }
    if is_wanted("clad") {
        let far = setup().start();
        let lines = format!("[to.clad]\nserver = \"{}\"", far.address("unix"));
        let took = timed(&daemon, Since::ItsStart, &lines);
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
                Since::ItsStart,
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
            timed(&daemon, Since::ItsStart, &(bucket.lines(folder.path()) + "max_age = \"1s\"")),
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
            let took = timed(daemon, Since::ItsStart, &server.lines(&lines));
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
            let lines = server.lines(&format!("{lines}\ncompression = \"none\""));
            let took = timed(&daemon, Since::FirstMove, &lines);
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
