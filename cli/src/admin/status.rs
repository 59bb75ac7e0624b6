//! What a daemon says of itself, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use clad_proto::LogId;
use clad_proto::grpc::v1;
use serde_json::{Value, json};

use crate::format::human::{bytes, count, counted, duration};
use crate::output::table::Sheet;

/// One object; nested names are objects, the unit is in the name.
pub(super) fn json(status: &v1::StatusResponse) -> Value {
    let offsets = status.offsets.unwrap_or_default();
    json!({
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
        "highest_ack": highest_ack(status),
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
        "listeners": sorted(&status.listeners),
        "journal_dir": status.journal_dir,
        "config_files": status.config_files,
        "disk": { "free_bytes": status.disk_free_bytes, "total_bytes": status.disk_total_bytes },
        "substrate": status.substrate.as_ref().map(substrate_json),
        "recovery": status.recovery.as_ref().map(|recovery| json!({
            "summary": recovery.summary,
            "clean": recovery.clean,
            "duration_ms": recovery.duration_ms,
            "truncated_bytes": recovery.truncated_bytes,
            "rewritten_bytes": recovery.rewritten_bytes,
            "records": recovery.records,
        })),
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

/// Lines that line up.
pub(super) fn sheet(status: &v1::StatusResponse) -> String {
    let offsets = status.offsets.unwrap_or_default();
    let uptime = duration(Duration::from_millis(status.uptime_ms));
    let mut sheet = Sheet::default();
    sheet
        .row("clad", format!("{}, pid {}, up {uptime}, {}", status.version, status.pid, state(status)))
        .row(
            "log",
            format!("{}, epoch {} from offset {}", log_id(status), status.epoch, count(status.epoch_first_offset)),
        )
        .row("durability", promise(status))
        .row(
            "offsets",
            format!(
                "{} received, {} written, {} durable; kept from {}",
                count(offsets.received),
                count(offsets.written),
                count(offsets.durable),
                count(status.lowest_offset)
            ),
        )
        .row(
            "journal",
            format!(
                "{}, {} in {}{}",
                counted(status.segments, "segment"),
                bytes(status.bytes),
                status.journal_dir,
                recycled(status)
            ),
        )
        .row("disk", format!("{} free of {}", bytes(status.disk_free_bytes), bytes(status.disk_total_bytes)))
        .row("stands on", status.substrate.as_ref().map(stands_on).unwrap_or_default())
        .row("last start", status.recovery.as_ref().map(|recovery| recovery.summary.clone()).unwrap_or_default())
        .row("connections", listed(&sorted(&status.connections)))
        .row("in flight", format!("{}; {} known", bytes(status.inflight_bytes), counted(status.producers, "producer")))
        .row("listens on", listed(&sorted(&status.listeners)))
        .row("configured by", configured(status));
    sheet.show()
}

fn state(status: &v1::StatusResponse) -> String {
    match (status.failed, status.ready) {
        (true, _) => format!("FAILED and recovering by itself: {}", status.failure),
        (false, false) => format!("not taking appends: {}", status.not_ready_reason),
        (false, true) => "taking appends".to_owned(),
    }
}

fn promise(status: &v1::StatusResponse) -> String {
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let (policy, engine) = (because(&status.policy_reason), because(&status.io_engine_reason));
    let (durability, highest) = (durability(status), highest_ack(status));
    format!("{durability}{policy}, highest ack {highest}; io engine {}{engine}", status.io_engine)
}

fn recycled(status: &v1::StatusResponse) -> String {
    match status.segments_recycled {
        0 => String::new(),
        n => format!("; {} used again", counted(n, "segment")),
    }
}

fn stands_on(substrate: &v1::Substrate) -> String {
    let mut text = format!("{} at {} ({})", substrate.filesystem, substrate.mount_point, substrate.mount_options);
    if substrate.power_loss_protected {
        text.push_str("; stated to keep its caches through power loss");
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
    if status.config_files.is_empty() { "defaults (no file)".to_owned() } else { status.config_files.join(", ") }
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

fn listed<V: std::fmt::Display>(map: &BTreeMap<String, V>) -> String {
    let all: Vec<String> = map.iter().map(|(key, value)| format!("{key} {value}")).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> v1::StatusResponse {
        v1::StatusResponse {
            version: "0.0.1".into(),
            log_id: vec![0xAB; 16].into(),
            epoch: 3,
            epoch_first_offset: 1200,
            policy: v1::DurabilityPolicy::GroupCommit.into(),
            io_engine: "blocking".into(),
            highest_ack: v1::AckLevel::Durable.into(),
            offsets: Some(v1::Offsets { received: 1234, written: 1233, durable: 1230 }),
            segments: 2,
            bytes: 134_217_728,
            ready: true,
            disk_free_bytes: 1 << 30,
            disk_total_bytes: 4 << 30,
            substrate: Some(v1::Substrate {
                filesystem: "ext4".into(),
                mount_point: "/".into(),
                mount_options: "rw".into(),
                devices: vec![v1::Device { name: "vda".into(), cache: "write back".into(), ..v1::Device::default() }],
                notes: vec!["a virtual disk".into()],
                power_loss_protected: false,
            }),
            connections: [("unix".to_owned(), 2)].into(),
            producers: 1,
            uptime_ms: 61_000,
            pid: 99,
            journal_dir: "/var/lib/clad".into(),
            ..v1::StatusResponse::default()
        }
    }

    #[test]
    fn for_people() {
        let golden = "
         clad  0.0.1, pid 99, up 1 min 1 s, taking appends
          log  abababababababababababababababab, epoch 3 from offset 1,200
   durability  group_commit, highest ack durable; io engine blocking
      offsets  1,234 received, 1,233 written, 1,230 durable; kept from 0
      journal  2 segments, 128.0 MiB in /var/lib/clad
         disk  1.0 GiB free of 4.0 GiB
    stands on  ext4 at / (rw)
               vda: cache write back
               a virtual disk
  connections  unix 2
    in flight  0 B; 1 producer known
configured by  defaults (no file)
";
        assert_eq!(format!("\n{}", sheet(&example())), golden);
        let ranges = v1::StatusResponse {
            policy: v1::DurabilityPolicy::SyncFileRange.into(),
            policy_reason: "every device reports write through".into(),
            segments_recycled: 3,
            ..example()
        };
        let text = sheet(&ranges);
        assert!(text.contains("sync_file_range (every device reports write through), highest ack durable;"), "{text}");
        assert!(text.contains("128.0 MiB in /var/lib/clad; 3 segments used again"), "{text}");
        assert_eq!(json(&ranges)["durability_reason"], "every device reports write through");
        let failed = v1::StatusResponse { failed: true, failure: "EIO".into(), ..example() };
        assert!(sheet(&failed).contains("FAILED and recovering by itself: EIO"));
    }

    #[test]
    fn for_programs() {
        let value = json(&example());
        for (pointer, golden) in [
            ("/log_id", json!("abababababababababababababababab")),
            ("/epoch", json!(3)),
            ("/durability", json!("group_commit")),
            ("/io_engine", json!("blocking")),
            ("/highest_ack", json!("durable")),
            ("/offsets/received", json!(1234)),
            ("/offsets/written", json!(1233)),
            ("/offsets/durable", json!(1230)),
            ("/segments", json!(2)),
            ("/bytes", json!(134_217_728)),
            ("/failed", json!(false)),
        ] {
            assert_eq!(value.pointer(pointer), Some(&golden), "{pointer}");
        }
    }
}
