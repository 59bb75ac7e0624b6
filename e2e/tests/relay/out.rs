//! From a clad to an OTLP endpoint: each record at least once, by its place in the log.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::AckLevel;
use clad_proto::grpc::opentelemetry::proto::logs::v1::LogRecord;
use prost::Message as _;

use super::endpoint::{Act, Endpoint, body, number};
use super::{Relay, wait};

fn relay(daemon: &Daemon, endpoint: &Endpoint, more: &str) -> Relay {
    let relay = Relay::new(daemon, "");
    let text = format!(
        "name = \"test\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n{more}\n[to.otlp]\nendpoint = \"http://{}\"\n",
        daemon.socket().display(),
        endpoint.at
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB").fixed_ports()
}

/// Appends numbered records, each of so many bytes at least.
struct Numbers {
    raw: Raw,
    sequence: u64,
    number: u64,
}

impl Numbers {
    fn new(daemon: &Daemon, number: u64) -> Self {
        Self { raw: Raw::producer(&daemon.socket()).0, sequence: 0, number }
    }

    fn append(&mut self, records: u64, bytes: usize) {
        for _ in 0..records {
            let text = format!("number {}{}", self.number, " ".repeat(bytes));
            self.raw.append_acked(self.sequence, AckLevel::Durable, &[text.as_bytes()]);
            (self.sequence, self.number) = (self.sequence + 1, self.number + 1);
        }
    }
}

/// One record of each offset: whatever came twice was the same both times.
fn once(records: &[(u64, LogRecord)]) -> BTreeMap<u64, String> {
    let mut once = BTreeMap::new();
    for (offset, record) in records {
        let text = body(record).trim_end().to_owned();
        let before = once.insert(*offset, text.clone());
        assert!(before.as_ref().is_none_or(|before| *before == text), "offset {offset}: {before:?}, then {text}");
    }
    once
}

fn numbers(count: u64) -> BTreeMap<u64, String> {
    (0..count).map(|number| (number, format!("number {number}"))).collect()
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_record_comes_to_an_endpoint_over_kills_and_lost_answers() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let mut daemon = small().start();
    let endpoint = Endpoint::start();
    let mut relay = relay(&daemon, &endpoint, "");
    let requests = std::sync::atomic::AtomicU64::new(0);
    endpoint.answers(move |_| match requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 7 {
        2 => Act::TakeAndCut,
        4 => Act::Say(503, "retry-after: 0\r\n"),
        5 => Act::Say(429, "retry-after: 0\r\n"),
        _ => Act::Take,
    });
    relay.start();
    let (mut stored, mut twice) = (0, 0);
    for kill in 0..kills {
        let mut appended = Numbers::new(&daemon, stored);
        appended.append(20, 10);
        stored += 20;
        if kill % 3 == 0 {
            // By how far it is, not by a time.
            wait("the half of it", || endpoint.offsets() >= stored - 10);
        }
        relay.or_daemon_is_killed(&mut daemon, kill);
    }
    wait("all", || {
        relay.keep();
        endpoint.offsets() >= stored
    });
    let records = endpoint.records();
    assert_eq!(once(&records), numbers(stored));
    twice += records.len() as u64 - stored;
    let ids: std::collections::BTreeSet<_> = records.iter().map(|(_, record)| number(record, "clad.epoch")).collect();
    assert!(ids.len() > 1, "each kill of the daemon began an epoch: {ids:?}");
    // Once it has been ended well, nothing comes again. The last answer may have been lost: it is waited for.
    let end = super::objects::end(&daemon);
    wait("its cursor is at the end", || relay.say("status").contains(&format!("next offset  {end}\n")));
    assert!(relay.term(), "{}", relay.said());
    let before = endpoint.records().len();
    relay.start();
    Numbers::new(&daemon, stored).append(1, 0);
    endpoint.wait_for("one more", |records| once(records).len() as u64 > stored);
    assert_eq!(endpoint.records().len(), before + 1, "a stop sends nothing twice");
    println!("kills: {kills}, {stored} records, {twice} came twice");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn what_an_endpoint_does_not_take_is_split_kept_or_noted() {
    let daemon = small().start();
    let endpoint = Endpoint::start();
    let mut relay = relay(&daemon, &endpoint, "");
    Numbers::new(&daemon, 0).append(40, 1000);
    endpoint.answers(|request| {
        let logs = request.resource_logs.iter().flat_map(|logs| &logs.scope_logs);
        let records: Vec<_> = logs.flat_map(|logs| &logs.log_records).collect();
        match records.as_slice() {
            [one] if body(one).starts_with("number 7 ") => Act::Say(400, ""),
            [one] if body(one).starts_with("number 9 ") => Act::Say(413, ""),
            [one] if body(one).starts_with("number 11 ") => Act::Partly(1),
            [_] => Act::Take,
            _ => Act::Say(413, ""),
        }
    });
    relay.start();
    let records = endpoint.wait_for("all but two", |records| records.len() >= 38);
    let mut wanted = numbers(40);
    for number in [7, 9] {
        wanted.remove(&number);
    }
    assert_eq!(once(&records), wanted, "in order, each as it was");
    wait("its cursor", || relay.say("status").contains("next offset  40"));
    assert!(relay.term());
    let letters = fs::read_to_string(relay.scratch.data().join("state/test.dead-letters")).expect("there");
    let letters: Vec<_> = letters.lines().map(|line| clad_e2e::json(line.as_bytes())).collect();
    let places: Vec<_> = letters.iter().map(|letter| (letter["from"].as_u64(), letter["to"].as_u64())).collect();
    assert_eq!(places, [(Some(7), Some(8)), (Some(9), Some(10)), (Some(11), Some(12))], "{letters:?}");
    assert!(relay.said().contains("1 records of offsets 7 to 7 are not taken: 400"), "{}", relay.said());
}

/// The endpoint is away for a while: what is not brought over stays, and the cursor is where it was.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_outage_is_held_and_without_a_hold_the_gap_is_said() {
    for hold in [true, false] {
        let setup = small().set("retention.max_bytes", "4MiB").set("retention.max_held_bytes", "64MiB");
        let daemon = setup.start();
        let endpoint = Endpoint::start();
        let mut relay = relay(&daemon, &endpoint, &format!("hold = {hold}"));
        let mut appended = Numbers::new(&daemon, 0);
        appended.append(5, 0);
        relay.start();
        endpoint.wait_for("the first", |records| records.len() >= 5);
        wait("its cursor", || relay.say("status").contains("next offset  5"));
        endpoint.answers(|_| Act::Say(503, ""));
        appended.append(200, 60_000);
        if !hold {
            daemon.wait_until("retention has passed it", |status| status.lowest_offset > 20);
        }
        std::thread::sleep(Duration::from_millis(500));
        let held = daemon.metric("clad_cursor_held_bytes");
        assert_eq!(held > 5e6, hold, "{held} held");
        let rss = |relay: &Relay| {
            let pid = relay.child.as_ref().expect("it runs").id();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line").to_owned();
            line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
        };
        assert!(rss(&relay) < 64 << 10, "{} KiB", rss(&relay));
        endpoint.answers(|_| Act::Take);
        let records = endpoint.wait_for("the last", |records| records.iter().any(|(offset, _)| *offset == 204));
        let gaps: Vec<_> = records.iter().filter(|(_, record)| record.event_name == "clad.gap").collect();
        let rest: Vec<_> = records.iter().filter(|(_, record)| record.event_name != "clad.gap").cloned().collect();
        match hold {
            true => assert_eq!((gaps.len(), once(&rest)), (0, numbers(205))),
            false => {
                let (from, to) = (gaps[0].0, number(&gaps[0].1, "clad.gap.end").expect("its end") as u64);
                assert!(gaps.len() == 1 && from < to && body(&gaps[0].1).contains("retention"), "{gaps:?}");
                assert!(once(&rest).keys().copied().eq((0..from).chain(to..205)), "a gap of {from} to {to}");
            }
        }
    }
}

/// Another log is in the place of the one that was read: nothing is sent until a person says so.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_log_that_was_cut_back_stops_it_with_both_places() {
    let mut daemon = small().start();
    let endpoint = Endpoint::start();
    let mut relay = relay(&daemon, &endpoint, "");
    Numbers::new(&daemon, 0).append(10, 0);
    assert_eq!(daemon.term(), Some(0));
    let copy = tempfile::tempdir().expect("a folder");
    let cp = |from: &std::path::Path, to: &std::path::Path| {
        let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
        assert!(done.success());
    };
    cp(daemon.dir(), &copy.path().join("log"));
    daemon.restart();
    Numbers::new(&daemon, 10).append(10, 0);
    relay.start();
    endpoint.wait_for("all", |records| records.len() >= 20);
    wait("its cursor", || relay.say("status").contains("next offset  20"));
    assert!(relay.term());
    // The backup is put back, with the cursors as they are: the records behind it are others from now on.
    assert_eq!(daemon.term(), Some(0));
    let table = fs::read(daemon.dir().join("cursors/table")).expect("there");
    fs::remove_dir_all(daemon.dir()).expect("removed");
    cp(&copy.path().join("log"), daemon.dir());
    fs::create_dir_all(daemon.dir().join("cursors")).expect("a folder");
    fs::write(daemon.dir().join("cursors/table"), table).expect("written");
    daemon.restart();
    let before = endpoint.records().len();
    relay.start();
    assert!(!relay.wait(), "it goes on");
    let said = relay.said();
    assert!(
        said.contains("is not the one that this relay has read up to") && said.contains("clad-relay begin"),
        "{said}"
    );
    assert_eq!(endpoint.records().len(), before, "nothing was sent");
    let said = relay.say("begin");
    assert!(said.contains("begins where `start` says"), "{said}");
    relay.start();
    endpoint.wait_for("the ten once more", |records| records.len() >= before + 10);
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_endpoint_that_is_slow_gets_smaller_requests() {
    const BYTES_A_SECOND: usize = 200_000;
    let daemon = small().start();
    Numbers::new(&daemon, 0).append(400, 2000);
    let endpoint = Endpoint::start();
    endpoint.answers(|request| {
        std::thread::sleep(Duration::from_secs_f64(request.encoded_len() as f64 / BYTES_A_SECOND as f64));
        Act::Take
    });
    let mut relay = relay(&daemon, &endpoint, "");
    let text = fs::read_to_string(relay.file()).expect("its file") + "timeout = \"1s\"\n";
    fs::write(relay.file(), text).expect("written");
    relay.start();
    let end = super::objects::end(&daemon);
    wait("all is answered", || relay.say("status").contains(&format!("next offset  {end}\n")));
    assert_eq!(once(&endpoint.records()), numbers(400));
}
