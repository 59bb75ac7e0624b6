//! The status of a daemon, for people and for programs.
//!
//! Invariants: the names that programs lean on (`log_id, epoch, durability, io_engine, highest_ack, offsets {received,
//! written, durable}, segments, bytes, failed`) stay; nested names are objects, the unit is in the name; a person finds
//! what is wrong, and what to do, in the last lines.
//!
//! The files: `sample` what happened between two looks, `screen` how it is shown, `attention` what is wrong.

mod attention;
mod sample;
pub(super) mod screen;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;

use clad_journal::owner_bytes::{NETWORK, OTHERS};
use clad_proto::LogId;
use clad_proto::grpc::v1;
use serde_json::{Value, json};

use self::attention::within_status;
pub(super) use self::attention::{Weight, words};
pub(super) use self::sample::Sample;
use self::sample::{Quantile, mean, observations, quantile};
use super::cursors;
use crate::format::times;

/// The last seconds, as far as the daemon remembers them.
pub(super) fn lately(status: &v1::StatusResponse) -> Option<Sample> {
    Sample::between(status.counters_before.as_ref(), status.counters.as_ref()?)
}

/// One object; nested names are objects, the unit is in the name.
pub(super) fn json(status: &v1::StatusResponse) -> Value {
    let offsets = status.offsets.unwrap_or_default();
    let sample = lately(status);
    let mut object = json!({
        "version": status.version,
        "pid": status.pid,
        "uptime_ms": status.uptime_ms,
        "log_id": log_id(status),
        "epoch": status.epoch,
        "epoch_first_offset": status.epoch_first_offset,
        "durability": durability(status),
        "durability_reason": absent_if_empty(&status.policy_reason),
        "io_engine": status.io_engine,
        "io_engine_reason": status.io_engine_reason,
        "io_fallbacks": status.io_fallbacks,
        "inline_batches": status.inline_batches,
        "highest_ack": highest_ack(status),
        "not_durable_reason": absent_if_empty(&status.not_durable_reason),
        "offsets": {
            "received": offsets.received,
            "written": offsets.written,
            "durable": offsets.durable,
            "lowest": status.lowest_offset,
        },
        "segments": status.segments,
        "segments_recycled": status.segments_recycled,
        "bytes": status.bytes,
        "failed": status.failed,
        "failure": absent_if_empty(&status.failure),
        "ready": status.ready,
        "not_ready_reason": absent_if_empty(&status.not_ready_reason),
        "inflight_bytes": status.inflight_bytes,
        "producers": status.producers,
        "connections": sorted(&status.connections),
        "rings": status.rings.as_ref().map(rings_json),
        "listeners": sorted(&status.listeners),
        "journal_dir": status.journal_dir,
        "config_files": status.config_files,
        "config_overrides": status.config_overrides,
        "disk": {
            "free_bytes": status.disk_free_bytes,
            "total_bytes": status.disk_total_bytes,
            "reserve_bytes": status.reserve_free_bytes,
        },
        "inflight_limit_bytes": status.inflight_limit_bytes,
        "oldest_undurable_us": status.oldest_undurable_us,
        "next_segment_prepared": status.prepared,
        "segment_bytes": status.segment_bytes,
        "retention": status.retention,
        "oldest_segment_time": times::rfc3339_if_any(status.oldest_segment_time),
    });
    object["owners"] = status.owners.iter().map(owner_json).collect();
    object["origins"] = status.origins.iter().map(super::origins::object).collect();
    object["degraded"] = json!(sorted(&status.degraded));
    object["attention"] = json!(within_status(status, sample.as_ref()));
    object["shares"] = status.shares.iter().map(share_json).collect();
    object["totals"] = status.counters.as_ref().map(totals).into();
    object["recent"] = sample.as_ref().map(recent).into();
    object["substrate"] = status.substrate.as_ref().map(substrate_json).into();
    object["cursors"] = status.cursors.iter().flat_map(|all| &all.cursors).map(cursors::object).collect();
    object["held_bytes"] = json!(status.cursors.as_ref().map_or(0, |all| all.held_bytes));
    object["recovery"] = status.recovery.as_ref().map(recovery_json).into();
    object
}

/// The network and the rest have names, for no user id is theirs.
fn owner_json(of: &v1::OwnerBytes) -> Value {
    let owner = match of.owner {
        NETWORK => json!("network"),
        OTHERS => json!("others"),
        uid => json!(uid),
    };
    json!({ "owner": owner, "bytes": of.bytes })
}

fn rings_json(rings: &v1::Rings) -> Value {
    json!({
        "count": rings.count,
        "bytes": rings.bytes,
        "data_bytes": rings.data_bytes,
        "used_bytes": rings.used_bytes,
        "waiting_appends": rings.waiting_appends,
        "stalled": rings.stalled,
        "unstored": rings.unstored,
    })
}

fn share_json(share: &v1::Share) -> Value {
    let largest = share.largest.iter().map(|holder| json!({ "owner": holder.owner, "amount": holder.amount }));
    json!({
        "what": share.what,
        "total": share.total,
        "in_use": share.in_use,
        "owners": share.owners,
        "largest": largest.collect::<Vec<_>>(),
    })
}

fn recovery_json(recovery: &v1::Recovery) -> Value {
    json!({
        "summary": recovery.summary,
        "clean": recovery.clean,
        "duration_ms": recovery.duration_ms,
        "truncated_bytes": recovery.truncated_bytes,
        "rewritten_bytes": recovery.rewritten_bytes,
        "records": recovery.records,
    })
}

/// Since the start.
fn totals(counters: &v1::Counters) -> Value {
    json!({
        "appended_records": sorted(&counters.appended_records),
        "appended_bytes": counters.appended_bytes,
        "acked_records": sorted(&counters.acked_records),
        "rejected_records": sorted(&counters.rejected_records),
        "dropped_records": sorted(&counters.dropped_records),
        "deduplicated_records": counters.deduplicated_records,
        "corrupt_records": counters.corrupt_records,
        "sync_failures": counters.sync_failures,
        "segments_unprepared": counters.segments_unprepared,
        "segment_rotations": sorted(&counters.rotations),
        "retention_removed_segments": sorted(&counters.retention_removed_segments),
        "io_fallbacks": sorted(&counters.io_fallbacks),
    })
}

/// In the last seconds.
fn recent(sample: &Sample) -> Value {
    let counted = &sample.counted;
    let latency = |histogram: &v1::Histogram| {
        let at = |share| match quantile(histogram, share) {
            Some(Quantile::About(ns) | Quantile::Above(ns)) => json!(ns / 1e3),
            None => Value::Null,
        };
        json!({ "count": observations(histogram), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99) })
    };
    let levels: BTreeMap<&str, Value> =
        counted.append_duration_ns.iter().map(|(level, histogram)| (level.as_str(), latency(histogram))).collect();
    json!({
        "window_ms": sample.window.as_millis() as u64,
        "records_per_second": sample.rates(&counted.appended_records),
        "bytes_per_second": sample.rate(counted.appended_bytes),
        "acked_records_per_second": sample.rates(&counted.acked_records),
        "append_latency_us": levels,
        "sync_latency_us": counted.sync_duration_ns.as_ref().map(latency),
        "batch_records_mean": counted.batch_records.as_ref().and_then(mean),
        "batch_bytes_mean": counted.batch_bytes.as_ref().and_then(mean),
    })
}

fn substrate_json(substrate: &v1::Substrate) -> Value {
    let device = |device: &v1::Device| {
        json!({
            "name": device.name,
            "cache": device.cache,
            "model": absent_if_empty(&device.model),
            "rotational": device.rotational,
            "logical_block_bytes": device.logical_block_bytes,
        })
    };
    json!({
        "filesystem": substrate.filesystem,
        "mount_point": substrate.mount_point,
        "mount_options": substrate.mount_options,
        "power_loss_protected": substrate.power_loss_protected,
        "devices": substrate.devices.iter().map(device).collect::<Vec<_>>(),
        "notes": substrate.notes,
    })
}

fn log_id(status: &v1::StatusResponse) -> String {
    let bytes: Option<[u8; 16]> = status.log_id.as_ref().try_into().ok();
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| LogId::from_bytes(bytes).to_string())
}

fn durability(status: &v1::StatusResponse) -> &'static str {
    status.policy().policy().map_or("unknown", |policy| policy.name())
}

fn highest_ack(status: &v1::StatusResponse) -> &'static str {
    status.highest_ack().level().map_or("unknown", |level| level.name())
}

fn absent_if_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn sorted<V: Clone>(map: &std::collections::HashMap<String, V>) -> BTreeMap<String, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
