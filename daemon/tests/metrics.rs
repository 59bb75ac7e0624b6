//! The scrape of one process: complete, at 0 from the start, readable line by line, and counting.
//!
//! In a process of its own, because the numbers are the process's: one test, in the order of a life.

use std::collections::BTreeMap;
use std::time::Duration;

use clad::config::{Durability, IoEngine};
use clad::ops::metrics::{
    Connection, Dropped, Fallback, Level, Recovery, Rejected, Rule, Transport, Trigger, Watermark, acked, appended,
    batch, config_loaded, connection_buffers, damaged, deduplicated, disk, dropped, horizon, inflight_bytes,
    inflight_limit, inline_batch, install, io_fallback, journal_failed, offset, oldest_undurable, ready, recovered,
    recovery, rejected, retained_away, rotated, segments, sync_failed, synced, unprepared,
};

/// What dashboards lean on, spelled out once more: a name that changes is a change for every operator.
const PROMISED: &[&str] = &[
    "clad_build_info{version=}",
    "clad_io_info{engine=,durability=}",
    "clad_appended_records_total{transport=}",
    "clad_appended_bytes_total",
    "clad_acked_records_total{level=}",
    "clad_rejected_records_total{reason=}",
    "clad_dropped_records_total{reason=}",
    "clad_refused_for_share_total{what=}",
    "clad_deduplicated_records_total",
    "clad_append_duration_seconds_bucket{level=,le=}",
    "clad_append_duration_seconds_sum{level=}",
    "clad_append_duration_seconds_count{level=}",
    "clad_sync_duration_seconds_bucket{le=}",
    "clad_sync_failures_total",
    "clad_batch_records_bucket{le=}",
    "clad_batch_bytes_bucket{le=}",
    "clad_inline_batches_total",
    "clad_inflight_bytes",
    "clad_inflight_limit_bytes",
    "clad_connection_buffer_bytes",
    "clad_connections{transport=}",
    "clad_offset{watermark=}",
    "clad_lowest_offset",
    "clad_oldest_segment_timestamp_seconds",
    "clad_oldest_undurable_age_seconds",
    "clad_segment_rotations_total{trigger=}",
    "clad_segments",
    "clad_segment_prepared",
    "clad_segments_unprepared_total",
    "clad_journal_bytes",
    "clad_disk_free_bytes",
    "clad_disk_size_bytes",
    "clad_disk_reserve_bytes",
    "clad_ready",
    "clad_journal_failed",
    "clad_io_fallbacks_total{reason=}",
    "clad_recoveries_total{outcome=}",
    "clad_recovery_truncated_bytes_total",
    "clad_recovery_duration_seconds",
    "clad_corrupt_records_total",
    "clad_lost_records",
    "clad_broken_segments{damage=}",
    "clad_config_last_reload_successful",
    "clad_config_last_reload_success_timestamp_seconds",
    "clad_retention_removed_segments_total{rule=}",
    "clad_retention_pauses_total",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
];

/// Reads the text format: series with its labels to value. Fails on any line that is not of it.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut typed = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            assert!(matches!(words[..], ["HELP" | "TYPE", _, _]), "{line}");
            if words[0] == "TYPE" {
                assert!(matches!(words[2], "counter" | "gauge" | "histogram"), "{line}");
                assert!(!typed.contains(&words[1].to_owned()), "typed twice: {line}");
                typed.push(words[1].to_owned());
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value.parse().expect(line);
        let bare = name.split('{').next().unwrap();
        assert!(bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
        assert!(!name.contains('{') || name.ends_with('}'), "{line}");
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end));
        let known = |name: &str| typed.iter().any(|typed| typed == name);
        assert!(known(bare) || family.is_some_and(known), "no TYPE before: {line}");
        assert!(series.insert(name.to_owned(), value).is_none(), "twice: {line}");
    }
    series
}

/// The name of a series with its labels but without their values.
fn shape(series: &str) -> String {
    let odd = series.split('"').step_by(2);
    odd.collect()
}

#[test]
fn complete_at_zero_and_counting() {
    let scrape = install();
    let series = parse(&scrape.render());
    for name in PROMISED {
        let of_it: Vec<_> = series.iter().filter(|(series, _)| shape(series) == *name).collect();
        assert!(!of_it.is_empty(), "{name} is missing");
        for (name, value) in of_it.iter().filter(|(name, _)| !name.starts_with("process_")) {
            let start = if name.starts_with("clad_build_info") { 1.0 } else { 0.0 };
            assert_eq!(**value, start, "{name}");
        }
    }
    assert!(series["process_resident_memory_bytes"] > 0.0);

    appended(Transport::Grpc, 3, 300);
    acked(Level::Durable, 1, 3, Duration::from_millis(2));
    rejected(Rejected::TooLarge, 1);
    dropped(Dropped::Invalid, 2);
    deduplicated(4);
    batch(16, 5000);
    synced(Duration::from_micros(30));
    sync_failed();
    inline_batch();
    inflight_bytes(77);
    let connection = Connection::open(Transport::Unix);
    offset(Watermark::Durable, 9);
    oldest_undurable(Duration::from_millis(1500));
    rotated(Trigger::Command);
    unprepared();
    inflight_limit(88);
    connection_buffers(99);
    horizon(3, Some(1_500_000_000));
    segments(5, 6, true);
    disk(7, 8, 9);
    ready(true);
    recovery(Recovery::Failed);
    journal_failed(true);
    io_fallback(Fallback::Direct);
    io_fallback(Fallback::UringDenied);
    recovered(Duration::from_millis(250), 12);
    damaged(7, 8);
    damaged(7, 8);
    retained_away(Rule::MinFree, 2);
    config_loaded(Some(Duration::from_secs(1234)));
    config_loaded(None);
    scrape.io_info(IoEngine::Blocking, Durability::GroupCommit);

    let series = parse(&scrape.render());
    for (name, value) in [
        ("clad_appended_records_total{transport=\"grpc\"}", 3.0),
        ("clad_appended_records_total{transport=\"unix\"}", 0.0),
        ("clad_appended_bytes_total", 300.0),
        ("clad_acked_records_total{level=\"durable\"}", 3.0),
        ("clad_append_duration_seconds_bucket{level=\"durable\",le=\"0.001\"}", 0.0),
        ("clad_append_duration_seconds_bucket{level=\"durable\",le=\"0.0025\"}", 1.0),
        ("clad_append_duration_seconds_sum{level=\"durable\"}", 0.002),
        ("clad_rejected_records_total{reason=\"too_large\"}", 1.0),
        ("clad_dropped_records_total{reason=\"invalid\"}", 2.0),
        ("clad_deduplicated_records_total", 4.0),
        ("clad_batch_records_count", 1.0),
        ("clad_batch_bytes_sum", 5000.0),
        ("clad_sync_duration_seconds_bucket{le=\"0.00005\"}", 1.0),
        ("clad_sync_failures_total", 1.0),
        ("clad_inline_batches_total", 1.0),
        ("clad_inflight_bytes", 77.0),
        ("clad_connections{transport=\"unix\"}", 1.0),
        ("clad_offset{watermark=\"durable\"}", 9.0),
        ("clad_oldest_undurable_age_seconds", 1.5),
        ("clad_segment_rotations_total{trigger=\"command\"}", 1.0),
        ("clad_segments_unprepared_total", 1.0),
        ("clad_segments", 5.0),
        ("clad_journal_bytes", 6.0),
        ("clad_segment_prepared", 1.0),
        ("clad_disk_free_bytes", 7.0),
        ("clad_disk_size_bytes", 8.0),
        ("clad_disk_reserve_bytes", 9.0),
        ("clad_ready", 1.0),
        ("clad_inflight_limit_bytes", 88.0),
        ("clad_connection_buffer_bytes", 99.0),
        ("clad_lowest_offset", 3.0),
        ("clad_oldest_segment_timestamp_seconds", 1.5),
        ("clad_recoveries_total{outcome=\"failed\"}", 1.0),
        ("clad_recoveries_total{outcome=\"done\"}", 0.0),
        ("clad_journal_failed", 1.0),
        ("clad_io_fallbacks_total{reason=\"direct\"}", 1.0),
        ("clad_io_fallbacks_total{reason=\"uring_denied\"}", 1.0),
        ("clad_io_fallbacks_total{reason=\"memlock\"}", 0.0),
        ("clad_recovery_duration_seconds", 0.25),
        ("clad_recovery_truncated_bytes_total", 12.0),
        ("clad_corrupt_records_total", 1.0),
        ("clad_config_last_reload_successful", 0.0),
        ("clad_config_last_reload_success_timestamp_seconds", 1234.0),
        ("clad_retention_removed_segments_total{rule=\"min_free\"}", 2.0),
        ("clad_io_info{engine=\"blocking\",durability=\"group_commit\"}", 1.0),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name}");
    }
    drop(connection);
    assert_eq!(parse(&scrape.render())["clad_connections{transport=\"unix\"}"], 0.0);
}
