//! One screen: names beside values, the numbers of the last seconds, and what is wrong at the end.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use clad_proto::grpc::v1;

use super::attention::is_durable_offered;
use super::{
    Quantile, Sample, durability, highest_ack, lately, log_id, mean, observations, quantile, sorted, within_status,
};
use crate::format::human::{bytes, count, counted, duration};
use crate::output::table::Sheet;

/// Everything, for who asks once. `now_ns` is Unix time.
pub(crate) fn still(status: &v1::StatusResponse, now_ns: u64, columns: usize) -> String {
    let sample = lately(status);
    let mut sheet = Sheet::default();
    sheet.row("clad", head(status));
    identity(&mut sheet, status);
    moving(&mut sheet, status, sample.as_ref(), now_ns);
    sheet
        .row("shares", shares(status))
        .row("listens on", listed(&status.listeners))
        .row("configured by", configured(status))
        .row("last start", status.recovery.as_ref().map(|recovery| recovery.summary.clone()).unwrap_or_default());
    let words = within_status(status, sample.as_ref());
    sheet.row("attention", if words.is_empty() { "nothing".to_owned() } else { words.join("\n") });
    sheet.show(columns)
}

/// Everything that changes, for who keeps looking.
pub(crate) fn live(status: &v1::StatusResponse, sample: Option<&Sample>, now_ns: u64, columns: usize) -> String {
    let mut sheet = Sheet::default();
    sheet.row("log", format!("{}, epoch {}, {}", log_id(status), status.epoch, durability(status)));
    moving(&mut sheet, status, sample, now_ns);
    sheet.show(columns)
}

/// Version, process, and whether it takes appends.
pub(crate) fn head(status: &v1::StatusResponse) -> String {
    let uptime = duration(Duration::from_millis(status.uptime_ms));
    format!("{}, pid {}, up {uptime}, {}", status.version, status.pid, state(status))
}

fn identity(sheet: &mut Sheet, status: &v1::StatusResponse) {
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let (policy, engine) = (because(&status.policy_reason), because(&status.io_engine_reason));
    let (durability, highest) = (durability(status), highest_ack(status));
    let mut engine = format!("{}{engine}", status.io_engine);
    if status.inline_batches > 0 {
        let _ = write!(engine, ", {} batches written inline", count(status.inline_batches));
    }
    for fallback in &status.io_fallbacks {
        let _ = write!(engine, "\n{fallback}");
    }
    sheet
        .row(
            "log",
            format!("{}, epoch {} from offset {}", log_id(status), status.epoch, count(status.epoch_first_offset)),
        )
        .row("durability", format!("{durability}{policy}, highest ack {highest}; io engine {engine}"))
        .row("stands on", status.substrate.as_ref().map(stands_on).unwrap_or_default());
}

fn moving(sheet: &mut Sheet, status: &v1::StatusResponse, sample: Option<&Sample>, now_ns: u64) {
    let offsets = status.offsets.unwrap_or_default();
    let behind = |watermark: u64| match offsets.received.saturating_sub(watermark) {
        0 => String::new(),
        n => format!(" ({} behind)", count(n)),
    };
    let age = match status.oldest_undurable_us {
        0 => String::new(),
        us => format!("; oldest not durable {}", duration(Duration::from_micros(us))),
    };
    // Where a sync keeps nothing through a power cut, what was synced is not called durable.
    let synced = if is_durable_offered(status) { "durable" } else { "synced (not durable here)" };
    sheet.row(
        "offsets",
        format!(
            "{} received, {} written{}, {} {synced}{}{age}; kept from {}",
            count(offsets.received),
            count(offsets.written),
            behind(offsets.written),
            count(offsets.durable),
            behind(offsets.durable),
            count(status.lowest_offset)
        ),
    );
    if let Some(sample) = sample {
        throughput(sheet, sample);
    }
    if let Some(counters) = &status.counters {
        refused(sheet, counters);
    }
    sheet
        .row("journal", journal(status, now_ns))
        .row("disk", disk(status))
        .row("cursors", cursors(status))
        .row("clients", format!("{}; {} known", listed(&status.connections), counted(status.producers, "producer")))
        .row("rings", rings(status))
        .row("in flight", in_flight(status));
}

fn throughput(sheet: &mut Sheet, sample: &Sample) {
    let counted_now = &sample.counted;
    let total = counted_now.appended_records.values().sum();
    let each: Vec<String> = sorted(&counted_now.appended_records)
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(transport, n)| format!("{transport} {}", per_second(sample.rate(n))))
        .collect();
    let each = if each.len() > 1 { format!(": {}", each.join(", ")) } else { String::new() };
    sheet.row(
        "records in",
        format!(
            "{}/s, {}/s over {}{each}",
            per_second(sample.rate(total)),
            bytes(sample.rate(counted_now.appended_bytes) as u64),
            duration(sample.window),
        ),
    );
    sheet.row("latency", latencies(sample));
    let batches = counted_now.batch_records.as_ref().map_or(0, observations);
    if let (Some(records), Some(size)) =
        (counted_now.batch_records.as_ref().and_then(mean), counted_now.batch_bytes.as_ref().and_then(mean))
    {
        sheet.row(
            "batches",
            format!(
                "{}/s of {records:.1} records, {} on average",
                per_second(sample.rate(batches)),
                bytes(size as u64)
            ),
        );
    }
}

/// A table: acks by level, and syncs.
fn latencies(sample: &Sample) -> String {
    let mut text = format!("{:9}{:>9}{:>10}{:>10}{:>10}", "", "per s", "p50", "p90", "p99");
    let mut row = |name: &str, rate: f64, histogram: &v1::Histogram| {
        let at = |share| shown(quantile(histogram, share));
        let _ = write!(text, "\n{name:9}{:>9}{:>10}{:>10}{:>10}", per_second(rate), at(0.5), at(0.9), at(0.99));
    };
    for level in ["received", "written", "durable"] {
        if let Some(histogram) = sample.counted.append_duration_ns.get(level) {
            let records = sample.counted.acked_records.get(level).copied().unwrap_or(0);
            row(level, sample.rate(records), histogram);
        }
    }
    if let Some(syncs) = &sample.counted.sync_duration_ns {
        row("sync", sample.rate(observations(syncs)), syncs);
    }
    text
}

fn shown(quantile: Option<Quantile>) -> String {
    let time = |ns: f64| duration(Duration::from_nanos(ns as u64));
    match quantile {
        Some(Quantile::About(ns)) => time(ns),
        Some(Quantile::Above(ns)) => format!("> {}", time(ns)),
        None => "-".to_owned(),
    }
}

/// Small rates with a digit behind the point: `0.3` is not nothing.
fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { count(rate.round() as u64) }
}

fn refused(sheet: &mut Sheet, counters: &v1::Counters) {
    let some = |name: &str, counts: &HashMap<String, u64>| {
        let some: HashMap<_, _> = counts.iter().filter(|(_, n)| **n > 0).map(|(k, n)| (k.clone(), count(*n))).collect();
        (!some.is_empty()).then(|| format!("{name}: {}", listed(&some)))
    };
    let resent =
        (counters.deduplicated_records > 0).then(|| format!("resent {}", count(counters.deduplicated_records)));
    let all = [some("rejected", &counters.rejected_records), some("dropped", &counters.dropped_records), resent];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if !all.is_empty() {
        sheet.row("since start", all.join("; "));
    }
}

fn journal(status: &v1::StatusResponse, now_ns: u64) -> String {
    let next = if status.prepared { "the next is ready" } else { "the next is being made" };
    let back = match status.oldest_segment_time {
        Some(then) => {
            format!("; reaches back {} at least", duration(Duration::from_nanos(now_ns.saturating_sub(then))))
        }
        None => String::new(),
    };
    let again = match status.segments_recycled {
        0 => String::new(),
        n => format!("; {} used again", counted(n, "segment")),
    };
    let (segments, taken) = (counted(status.segments, "segment"), bytes(status.bytes));
    format!("{segments}, {next}; {taken} in {}{back}{again}", status.journal_dir)
}

/// Nothing where there is none.
fn cursors(status: &v1::StatusResponse) -> String {
    let Some(all) = status.cursors.as_ref().filter(|all| !all.cursors.is_empty()) else { return String::new() };
    let lost = all.cursors.iter().filter(|cursor| cursor.lost).count();
    let lost = if lost == 0 { String::new() } else { format!("; {lost} lost records") };
    let furthest = all.cursors.iter().max_by_key(|cursor| cursor.lag_records);
    let behind = furthest.filter(|cursor| cursor.lag_records > 0).map_or_else(
        || "none is behind".to_owned(),
        |cursor| format!("{} is {} records behind", cursor.name, count(cursor.lag_records)),
    );
    format!("{}; {behind}; {} held{lost}", all.cursors.len(), bytes(all.held_bytes))
}

fn disk(status: &v1::StatusResponse) -> String {
    let (free, total) = (status.disk_free_bytes, status.disk_total_bytes);
    let share = free.saturating_mul(100).checked_div(total).unwrap_or(0);
    format!("{} free of {} ({share} %), {} in reserve", bytes(free), bytes(total), bytes(status.reserve_free_bytes))
}

fn in_flight(status: &v1::StatusResponse) -> String {
    match status.inflight_limit_bytes {
        0 => bytes(status.inflight_bytes),
        limit => format!("{} of at most {}", bytes(status.inflight_bytes), bytes(limit)),
    }
}

fn state(status: &v1::StatusResponse) -> &'static str {
    match (status.failed, status.ready) {
        (true, _) => "FAILED",
        (false, false) => "NOT taking appends",
        (false, true) => "taking appends",
    }
}

fn stands_on(substrate: &v1::Substrate) -> String {
    let mut text = format!("{} at {} ({})", substrate.filesystem, substrate.mount_point, substrate.mount_options);
    if substrate.power_loss_protected {
        text.push_str("; stated to keep its data through power loss");
    }
    for device in &substrate.devices {
        let kind = if device.rotational { ", rotational" } else { "" };
        let model = if device.model.is_empty() { String::new() } else { format!(", {}", device.model) };
        let _ = write!(text, "\n{}: cache {}{kind}{model}", device.name, device.cache);
    }
    for note in &substrate.notes {
        let _ = write!(text, "\n{note}");
    }
    text
}

fn configured(status: &v1::StatusResponse) -> String {
    let files =
        if status.config_files.is_empty() { "defaults (no file)".into() } else { status.config_files.join(", ") };
    match status.config_overrides.as_slice() {
        [] => files,
        over => format!("{files}; over that {}", over.join(", ")),
    }
}

/// Rings of shared memory, where there are any.
fn rings(status: &v1::StatusResponse) -> String {
    let Some(rings) = status.rings.as_ref().filter(|rings| rings.count > 0) else { return String::new() };
    let stalled = match rings.stalled {
        0 => String::new(),
        stalled => format!("; {} stalled", count(stalled)),
    };
    let unstored = match rings.unstored {
        0 => String::new(),
        unstored => format!("; {} not stored, without `posted`", count(unstored)),
    };
    format!(
        "{} with {} for records; {} used, {} not drained{stalled}{unstored}",
        count(rings.count),
        bytes(rings.data_bytes),
        bytes(rings.used_bytes),
        counted(rings.waiting_appends, "append"),
    )
}

/// Amounts that each holds of what all share, where somebody has some.
fn shares(status: &v1::StatusResponse) -> String {
    let line = |share: &v1::Share| {
        let amount = |n: u64| if share.what.ends_with("_bytes") { bytes(n) } else { count(n) };
        let mut line = format!("{} {} of {}:", share.what, amount(share.in_use), amount(share.total));
        for (at, holder) in share.largest.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(line, "{comma} {} {}", holder.owner, amount(holder.amount));
        }
        match share.owners.saturating_sub(share.largest.len() as u64) {
            0 => {}
            others => {
                let _ = write!(line, ", and {}", counted(others, "other"));
            }
        }
        line
    };
    let lines: Vec<String> = status.shares.iter().filter(|share| share.in_use > 0).map(line).collect();
    lines.join("\n")
}

fn listed<V: std::fmt::Display + Clone>(map: &HashMap<String, V>) -> String {
    let all: Vec<String> = sorted(map).iter().map(|(key, value)| format!("{key} {value}")).collect();
    all.join(", ")
}
