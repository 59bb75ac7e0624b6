//! Each key that HUP changes, seen to be changed: by a client, in the messages, or on the disk.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use clad_client::{
    Address, Cursor, Cursors, Event, ForwardAs, ForwardError, Forwarder, ForwarderOptions, LogId, Reader, StreamName,
};
use clad_e2e::raw::{hello, payload};
use clad_e2e::web::metrics;
use clad_e2e::{Daemon, Raw, Setup, not_run};
use clad_proto::frame::{AppendHead, encode_append};
use clad_proto::grpc::v1::DurabilityPolicy;
use clad_proto::{AckLevel, ErrorCode};
use nix::sys::signal::Signal;

const LAST_RELOAD_METRIC: &str = "clad_config_last_reload_successful";
const LAST_SUCCESS_METRIC: &str = "clad_config_last_reload_success_timestamp_seconds";

/// A daemon whose live keys are all left to its file.
fn daemon() -> Daemon {
    live_setup().start()
}

fn live_setup() -> Setup {
    let setup = Setup::new().unset("limits.max_append_bytes").unset("log.format");
    fs::write(setup.config(), "[limits]\nmax_append_bytes = \"2MiB\"\n").expect("written");
    setup
}

/// Reloads with this file, and waits until it is in force. `text` is another one than before.
fn reload(daemon: &Daemon, text: &str) {
    let before = daemon.said().matches("HUP: reloaded").count();
    fs::write(daemon.setup().config(), format!("[limits]\nmax_append_bytes = \"2MiB\"\n{text}")).expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_until("the reload", |_| daemon.said().matches("HUP: reloaded").count() > before);
}

fn greeted(daemon: &Daemon) -> Raw {
    Raw::producer(&daemon.socket()).0
}

#[test]
fn new_sizes_hold_for_new_connections_and_old_ones_keep_theirs() {
    let setup = Setup::new().unset("limits.max_append_bytes").set("journal.max_record_bytes", "1MiB");
    fs::write(setup.config(), "[limits]\nmax_append_bytes = \"2MiB\"\n").expect("written");
    let daemon = setup.start();
    let body = vec![b'x'; 900 << 10];
    let two = payload(&[&body, &body]);
    let (mut before, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.max_append_bytes, 2 << 20);
    fs::write(daemon.setup().config(), "[limits]\nmax_append_bytes = \"1MiB\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("HUP: reloaded");
    before.append_payload(0, AckLevel::Durable, false, &two);
    assert_eq!(before.accepted().count, 2);
    let (mut after, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.max_append_bytes, 1 << 20);
    // Its first bytes say how long it is, and that is enough.
    let head = AppendHead { first_seq: 0, count: 2, level: AckLevel::Durable, gap: false, payload_crc: two.checksum() };
    let mut frame = bytes::BytesMut::new();
    encode_append(&mut frame, &head, &two.bytes);
    after.send_bytes(&frame[..64]).expect("sent");
    assert_eq!(after.end().code, ErrorCode::AppendTooLarge);
    // More again, for who comes then.
    fs::write(daemon.setup().config(), "[limits]\nmax_append_bytes = \"3MiB\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_until("the reload", |_| daemon.said().matches("HUP: reloaded").count() == 2);
    let (mut again, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.max_append_bytes, 3 << 20);
    again.append_payload(0, AckLevel::Durable, false, &two);
    assert_eq!(again.accepted().count, 2);
}

#[test]
fn times_hold_for_who_connects() {
    let daemon = daemon();
    let mut silent_before = Raw::unix(&daemon.socket());
    let mut idle_before = greeted(&daemon);
    reload(&daemon, "handshake_timeout = \"100ms\"\nidle_timeout = \"100ms\"\n");
    assert_eq!(Raw::unix(&daemon.socket()).end().code, ErrorCode::HandshakeTimeout);
    assert_eq!(greeted(&daemon).end().code, ErrorCode::IdleTimeout);
    // Both were let in under 5 s and no limit, and stay.
    idle_before.append_acked(0, AckLevel::Durable, &[b"still here"]);
    silent_before.greet(&hello()).expect("WELCOME");
}

#[test]
fn the_number_of_producers_is_lowered_and_raised() {
    let daemon = daemon();
    let mut known: Vec<Raw> = (0..3).map(|_| greeted(&daemon)).collect();
    for one in &mut known {
        one.append_acked(0, AckLevel::Durable, &[b"one"]);
    }
    reload(&daemon, "max_producers = 1\n");
    let mut newcomer = greeted(&daemon);
    newcomer.append(0, AckLevel::Durable, &[b"refused"]);
    assert_eq!(newcomer.refused().error.code, ErrorCode::TooManyProducers);
    for one in &mut known {
        one.append_acked(1, AckLevel::Durable, &[b"who is known stays"]);
    }
    // An ordinary user has at most half of them.
    reload(&daemon, "max_producers = 8\n");
    newcomer.append_acked(0, AckLevel::Durable, &[b"taken"]);
}

#[test]
fn the_bytes_in_memory_are_lowered_and_raised_under_load() {
    let daemon = daemon();
    let body = vec![b'x'; 500 << 10];
    let mut raw = greeted(&daemon);
    let mut sequence = 0;
    for total in ["2MiB", "64MiB", "3MiB"] {
        for _ in 0..8 {
            raw.append(sequence, AckLevel::Durable, &[&body]);
            sequence += 1;
        }
        reload(&daemon, &format!("max_inflight_bytes = \"{total}\"\nmax_connection_inflight_bytes = \"2MiB\"\n"));
        for _ in 0..8 {
            raw.accepted();
        }
    }
    // All permits are back: an append that needs them all is taken.
    let three = payload(&[&body, &body, &body]);
    let mut all = greeted(&daemon);
    all.append_payload(0, AckLevel::Durable, false, &three);
    assert_eq!(all.accepted().count, 3);
}

#[test]
fn messages_change_their_form_and_level() {
    let daemon = daemon();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    reload(&daemon, "[log]\nformat = \"json\"\nlevel = \"debug\"\n");
    // At debug, and as JSON: a protocol error is not worth more than that.
    raw.send_bytes(&[0xFF; 64]).expect("sent");
    raw.end();
    daemon.wait_said("protocol error");
    let said = daemon.said();
    let line = said.lines().find(|line| line.contains("protocol error")).expect("a line");
    assert_eq!(clad_e2e::json(line.as_bytes())["level"], "DEBUG", "{line}");
}

#[test]
fn rotation_and_batches_change() {
    rotates_and_batches(daemon());
}

/// The same under the policy that syncs by ranges: its batches are those of `[journal.group_commit]`.
#[test]
fn rotation_and_batches_change_under_sync_file_range() {
    let setup = live_setup().set("journal.durability", "sync_file_range").set("journal.power_loss_protected", "true");
    match setup.try_start() {
        Ok(daemon) => {
            assert_eq!(daemon.status().policy(), DurabilityPolicy::SyncFileRange);
            rotates_and_batches(daemon);
        }
        Err(ended) => {
            assert!(ended.code == Some(78) && ended.said.contains("ext4 and xfs alone"), "{}", ended.said);
            not_run("a reload under sync_file_range", "the build folder is on neither ext4 nor xfs");
        }
    }
}

fn rotates_and_batches(daemon: Daemon) {
    let mut raw = greeted(&daemon);
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    reload(&daemon, "[rotation]\nmax_age = \"100ms\"\n");
    daemon.wait_said("segment sealed");
    reload(&daemon, "[journal.group_commit]\nmax_delay = \"1ms\"\nmax_bytes = \"4KiB\"\nin_flight = 8\n");
    // At once for who writes now, and for the segment that is begun next.
    assert!(daemon.said().contains("journal.group_commit.in_flight"), "{}", daemon.said());
    // With batches of 4 KiB at most, 64 appends of 1 KiB that come at once are 16 batches at least.
    let batches = || metrics(daemon.port("metrics"))["clad_batch_bytes_count"];
    let before = batches();
    let body = vec![b'x'; 1024];
    for sequence in 1..65 {
        raw.append(sequence, AckLevel::Durable, &[&body]);
    }
    let last = (0..64).map(|_| raw.accepted()).last().expect("64 answers");
    raw.wait_watermark(AckLevel::Durable, last.epoch, last.first_offset);
    assert!(batches() >= before + 16.0, "{} batches", batches() - before);
}

#[test]
fn the_metrics_report_the_last_reload() {
    let daemon = daemon();
    let at = || {
        let all = metrics(daemon.port("metrics"));
        (all[LAST_RELOAD_METRIC], all[LAST_SUCCESS_METRIC])
    };
    let (successful, began) = at();
    assert_eq!(successful, 1.0);
    fs::write(daemon.setup().config(), "[limits]\nmax_append_bytes = \"2MiB\"\nno_such_key = 1\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("HUP: refused");
    assert_eq!(at(), (0.0, began), "what is in force is as old as before");
    reload(&daemon, "");
    let (successful, now) = at();
    assert_eq!(successful, 1.0);
    assert!(now > began);
}

/// Seals some segments with a record of 30 KiB each.
fn seal(daemon: &Daemon, raw: &mut Raw, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        raw.append_acked(sequence, AckLevel::Durable, &[&[b'x'; 30 << 10]]);
        daemon.admin().rotate().expect("rotated");
    }
}

#[test]
fn each_rule_of_retention_begins_to_hold_and_ends() {
    const FULL: u64 = 32;
    let small = [("journal.segment_bytes", "128KiB"), ("limits.max_append_bytes", "64KiB")];
    let setup = small.into_iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value));
    let daemon = setup.set("journal.max_record_bytes", "48KiB").start();
    let mut raw = greeted(&daemon);
    let number = |name: &str| metrics(daemon.port("metrics"))[name];
    let removed = |rule: &str| number(&format!("clad_retention_removed_segments_total{{rule=\"{rule}\"}}"));
    seal(&daemon, &mut raw, 0..FULL);
    assert_eq!(number("clad_lowest_offset"), 0.0, "it is off by default");
    reload(&daemon, "[retention]\nmax_bytes = \"384KiB\"\n");
    daemon.wait_until("max_bytes", |status| removed("max_bytes") >= 16.0 && status.bytes <= 640 << 10);
    // Older than a moment, and less free than any disk has: both hold of everything.
    for (round, (rule, keys)) in
        [("max_age", "max_age = \"1ms\"\n"), ("min_free", "min_free = \"8000TiB\"\n")].into_iter().enumerate()
    {
        // What is to be kept weighs more than any rule.
        let kept = number("clad_lowest_offset");
        reload(&daemon, &format!("[retention]\n{keys}keep_bytes = \"1TiB\"\n"));
        let first = FULL + 4 * round as u64;
        seal(&daemon, &mut raw, first..first + 4);
        assert_eq!((removed(rule), number("clad_lowest_offset")), (0.0, kept), "{rule}");
        reload(&daemon, &format!("[retention]\n{keys}"));
        // By age only where something synchronises the clock of this host.
        let rests = || rule == "max_age" && daemon.said().contains("retention by age is paused");
        daemon.wait_until(rule, |_| removed(rule) >= 3.0 || rests());
        reload(&daemon, "");
        // One may have been on its way: until nothing has gone for a while.
        let mut lowest = f64::NAN;
        while std::mem::replace(&mut lowest, number("clad_lowest_offset")) != lowest {
            thread::sleep(Duration::from_secs(1));
        }
    }
    // Over: nothing goes any more.
    let kept = number("clad_lowest_offset");
    seal(&daemon, &mut raw, FULL + 8..FULL + 24);
    assert_eq!(number("clad_lowest_offset"), kept);
}

#[test]
fn the_share_of_one_owner_in_the_log_changes() {
    let small = [
        ("journal.segment_bytes", "128KiB"),
        ("limits.max_append_bytes", "64KiB"),
        ("journal.max_record_bytes", "48KiB"),
    ];
    let daemon = small.into_iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value)).start();
    // By the network, which is one owner: root is bound by no share.
    let mut raw = Raw::tcp(daemon.port("tcp"));
    raw.greet(&hello()).expect("WELCOME");
    let body = vec![b'x'; 40_000];
    for sequence in 0..12 {
        raw.append_acked(sequence, AckLevel::Written, &[&body]);
    }
    reload(&daemon, "[retention]\nmax_bytes = \"1GiB\"\nper_owner_bytes = \"384KiB\"\n");
    raw.append(12, AckLevel::Written, &[&body]);
    let error = raw.refused().error;
    assert!(error.code == ErrorCode::QuotaExceeded && error.text.contains("per_owner_bytes"), "{error}");
    reload(&daemon, "[retention]\nmax_bytes = \"1GiB\"\n");
    raw.append_acked(12, AckLevel::Written, &[&body]);
}

fn commit_cursor(daemon: &Daemon, name: &str, offset: u64, hold: bool) -> Result<(), Option<ErrorCode>> {
    let status = daemon.status();
    let log_id = LogId::from_bytes(status.log_id[..].try_into().expect("16 bytes"));
    let place = Cursor { log_id, epoch: status.epoch, offset };
    let address = daemon.address("unix").parse().expect("an address");
    let commit = async { Cursors::connect(address).await.expect("connected").commit(name, place, hold, "").await };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(commit).map(drop).map_err(|error| error.code())
}

#[test]
fn the_number_of_cursors_changes() {
    let daemon = daemon();
    reload(&daemon, "max_cursors = 1\n");
    assert_eq!(commit_cursor(&daemon, "a", 0, false), Ok(()));
    assert_eq!(commit_cursor(&daemon, "b", 0, false), Err(Some(ErrorCode::TooManyCursors)));
    reload(&daemon, "max_cursors = 8\n");
    assert_eq!(commit_cursor(&daemon, "b", 0, false), Ok(()));
}

#[test]
fn the_number_of_origins_changes() {
    let daemon = daemon();
    Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Written, &[b"one"]);
    let address: Address = daemon.address("unix").parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Its own record, as one of other logs.
    let forward = |log: u8| {
        runtime.block_on(async {
            let mut reader = Reader::builder(address.clone()).limit(1).open().await.expect("opened");
            let Ok(Some(Event::Records(chunk))) = reader.next().await else { panic!("no record") };
            let stream = StreamName::new("main").expect("a name");
            let (log_id, options) = (LogId::from_bytes([log; 16]), ForwarderOptions::default());
            let mut forwarder = Forwarder::connect(&address, log_id, stream, &options).await?;
            let how = ForwardAs { previous: 0, skip: None, begins: true, level: AckLevel::Written };
            forwarder.forward(how, &chunk.raw().expect("framed")).await?;
            forwarder.next().await
        })
    };
    reload(&daemon, "max_origins = 1\n");
    forward(1).expect("forwarded");
    assert!(matches!(forward(2), Err(ForwardError::TooManyOrigins { .. })));
    reload(&daemon, "max_origins = 8\n");
    forward(2).expect("forwarded");
}

#[test]
fn the_bytes_that_cursors_hold_change() {
    let small = [
        ("journal.segment_bytes", "1MiB"),
        ("limits.max_append_bytes", "256KiB"),
        ("journal.max_record_bytes", "128KiB"),
    ];
    let daemon = small.into_iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value)).start();
    reload(&daemon, "[retention]\nmax_bytes = \"3MiB\"\nmax_held_bytes = \"1GiB\"\n");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let body = vec![b'x'; 100 << 10];
    raw.append_acked(0, AckLevel::Written, &[&body]);
    assert_eq!(commit_cursor(&daemon, "a", 0, true), Ok(()));
    (1..100).for_each(|sequence| _ = raw.append_acked(sequence, AckLevel::Written, &[&body]));
    // Retention looks five times a second, and is done with a look when it says what is held.
    daemon.wait_until("something is held", |status| status.cursors.as_ref().is_some_and(|all| all.held_bytes > 0));
    assert_eq!(daemon.status().lowest_offset, 0);
    reload(&daemon, "[retention]\nmax_bytes = \"3MiB\"\nmax_held_bytes = \"1MiB\"\n");
    daemon.wait_until("the rest is removed", |status| status.lowest_offset > 20);
}

#[test]
fn the_deadline_of_a_stop_changes() {
    let mut daemon = daemon();
    reload(&daemon, "[daemon]\ndrain_timeout = \"1234ms\"\n");
    assert_eq!(daemon.term(), Some(0));
    assert!(daemon.said().contains("drain_timeout=1.234s"), "{}", daemon.said());
}

/// Of a body that is no protobuf: it is looked at, or is too long for that.
#[test]
fn the_longest_request_of_otlp_changes() {
    let daemon = live_setup().start();
    let answer = || {
        let mut stream = TcpStream::connect(daemon.port("grpc")).expect("a daemon");
        let body = vec![0; 2 << 20];
        let head = "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n";
        let head = format!("{head}content-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).expect("sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        String::from_utf8_lossy(&status[9..]).into_owned()
    };
    assert_eq!(answer(), "400");
    reload(&daemon, "max_message_bytes = \"1MiB\"\n");
    assert_eq!(answer(), "413");
    reload(&daemon, "max_message_bytes = \"4MiB\"\n");
    assert_eq!(answer(), "400");
}

/// Whoever lets HUP change another key shows here that it does.
#[test]
fn no_key_that_may_change_is_left_out() {
    let said = Setup::new().arguments(&["config", "-o", "json"]).run_to_end();
    let keys = clad_e2e::json(said.printed.as_bytes());
    let shown = concat!(
        include_str!("live.rs"),
        include_str!("../tools/signals.rs"),
        include_str!("../tls/renewal.rs"),
        include_str!("../tls/real.rs"),
        include_str!("../tls/rules.rs")
    );
    let (mut looked_at, mut queue) = (0, vec![(String::new(), &keys)]);
    while let Some((name, value)) = queue.pop() {
        let Some(section) = value.as_object() else { continue };
        if section.contains_key("reloadable") {
            if value["reloadable"] == true {
                looked_at += 1;
                assert!(shown.contains(&format!("{name} = ")), "no test changes {name} by HUP");
            }
            continue;
        }
        queue.extend(section.iter().map(|(name, value)| (name.clone(), value)));
    }
    assert!(looked_at >= 18, "{looked_at} keys");
}
