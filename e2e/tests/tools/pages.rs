//! `/healthz`, `/readyz`, `/metrics`.

use clad_e2e::{Daemon, Raw, TEST_TIMEOUT, web};
use clad_proto::AckLevel;

use crate::append_numbers;

/// Every metric that stands in the manual.
fn promised() -> Vec<String> {
    let manual = include_str!("../../../docs/REFERENCE.md");
    let table = manual.split_once("<!-- metrics:").and_then(|(_, rest)| rest.split_once("<!-- end of metrics -->"));
    let (table, _) = table.expect("the table of metrics");
    let names = table.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|line| line.split('`').next());
    names.map(str::to_owned).collect()
}

#[test]
fn health() {
    let mut daemon = Daemon::start();
    let address = daemon.port("metrics");
    assert_eq!(web::page(address, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(web::page(address, "/readyz").0, 200);
    assert_eq!(web::page(address, "/nothing").0, 404);
    assert_eq!(daemon.term(), Some(0));
    assert!(std::net::TcpStream::connect(address).is_err(), "it is down and answers");
}

#[test]
fn every_metric_of_the_manual_is_there_from_the_start() {
    let daemon = Daemon::start();
    let samples = web::metrics(daemon.port("metrics"));
    let promised = promised();
    assert!(promised.len() > 25, "{promised:?}");
    // Those of a cursor are there once it is.
    for name in promised.iter().filter(|name| !name.starts_with("clad_cursor_lag_")) {
        let has = |sample: &String| {
            let sample = sample.split('{').next().unwrap_or_default();
            sample == name
                || sample.strip_prefix(name.as_str()).is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest))
        };
        assert!(samples.keys().any(has), "{name} is not there");
    }
    for (sample, value) in samples.iter().filter(|(sample, _)| sample.contains("_total") && sample.starts_with("clad_"))
    {
        assert_eq!(*value, 0.0, "{sample} does not start at 0");
    }
    let strangers = samples.keys().filter(|sample| !sample.starts_with("clad_") && !sample.starts_with("process_"));
    assert_eq!(strangers.count(), 0);
}

#[test]
fn what_was_done_is_counted() {
    let daemon = Daemon::start();
    let address = daemon.port("metrics");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"a", b"b", b"c"]);
    raw.append_acked(3, AckLevel::Written, &[b"d"]);
    raw.append_acked(4, AckLevel::Received, &[b"e"]);
    raw.append_acked(4, AckLevel::Durable, &[b"again"]);
    raw.append(99, AckLevel::Durable, &[b"a gap", b"of two"]);
    raw.refused();
    let mut tcp = Raw::tcp(daemon.port("tcp"));
    tcp.greet(&clad_e2e::raw::hello()).expect("WELCOME");
    tcp.append_acked(0, AckLevel::Durable, &[b"over tcp"]);
    let samples = web::metrics(address);
    for (name, value) in [
        ("clad_appended_records_total{transport=\"unix\"}", 5.0),
        ("clad_appended_records_total{transport=\"tcp\"}", 1.0),
        ("clad_acked_records_total{level=\"written\"}", 1.0),
        ("clad_acked_records_total{level=\"received\"}", 1.0),
        ("clad_deduplicated_records_total", 1.0),
        ("clad_rejected_records_total{reason=\"sequence\"}", 2.0),
        ("clad_connections{transport=\"unix\"}", 1.0),
        ("clad_connections{transport=\"tcp\"}", 1.0),
        ("clad_journal_failed", 0.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}");
    }
    assert!(samples["clad_acked_records_total{level=\"durable\"}"] >= 4.0);
    assert!(samples["clad_sync_duration_seconds_count"] > 0.0);
    daemon.admin().rotate().expect("rotated");
    // Gauges are looked at once in a while.
    let began = std::time::Instant::now();
    loop {
        let samples = web::metrics(address);
        if samples["clad_segments"] >= 2.0 && samples["clad_offset{watermark=\"durable\"}"] == 6.0 {
            assert_eq!(samples["clad_segment_rotations_total{trigger=\"command\"}"], 1.0);
            assert!(samples["clad_journal_bytes"] > 0.0 && samples["clad_disk_free_bytes"] > 0.0);
            break;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{samples:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A scrape shows the moment of the scrape: a daemon that has just got ready has a segment, a disk and takes appends, and
/// what was just appended is counted.
#[test]
fn gauges_are_those_of_the_moment() {
    let daemon = Daemon::start();
    let first = web::metrics(daemon.port("metrics"));
    assert!(first["clad_segments"] >= 1.0 && first["clad_journal_bytes"] > 0.0, "{first:?}");
    assert!(first["clad_disk_size_bytes"] > 0.0 && first["clad_disk_reserve_bytes"] > 0.0, "{first:?}");
    assert_eq!((first["clad_ready"], first["clad_config_last_reload_successful"]), (1.0, 1.0));
    for appended in 1..=3 {
        append_numbers(&daemon, 0..1);
        let now = web::metrics(daemon.port("metrics"));
        assert_eq!(now["clad_offset{watermark=\"durable\"}"], f64::from(appended));
    }
}
