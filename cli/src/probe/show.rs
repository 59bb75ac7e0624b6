//! Findings, for people and for programs.

use std::path::Path;

use clad_journal::io::device::Device;
use clad_journal::io::probe::BLOCK;
use serde_json::{Value, json};

use super::advise::{Advice, Findings};
use super::measure::Measured;
use crate::format::human::{bytes, count};
use crate::output::table::{Sheet, columns};

pub(super) fn text(dir: &Path, findings: &Findings<'_>) -> String {
    let advice = findings.advice();
    let mut out = stands_on(dir, findings).show(usize::MAX);
    out.push('\n');
    out.push_str(&table(findings));
    out.push_str("(4 KiB a write; µs for each operation)\n\nrecommended\n");
    out.push_str(&format!("  [journal]\n  durability = \"{}\"\n", advice.durability));
    out.push_str(&format!("  io_engine = \"{}\"\n", advice.io_engine));
    if advice.durability == "group_commit" {
        out.push_str(&format!("  [journal.group_commit]\n  in_flight = {}\n", advice.in_flight));
    }
    for reason in &advice.reasons {
        out.push_str(&format!("because {reason}\n"));
    }
    let warnings = findings.warnings();
    if !warnings.is_empty() {
        out.push('\n');
    }
    for warning in warnings {
        out.push_str(&format!("WARNING: {warning}\n"));
    }
    out
}

fn stands_on(dir: &Path, findings: &Findings<'_>) -> Sheet {
    let found = findings.substrate;
    let mut sheet = Sheet::default();
    let direct = match found.direct_io {
        Some(true) => "direct I/O",
        Some(false) => "no direct I/O",
        None => "does not report direct I/O",
    };
    sheet.row("folder", dir.display().to_string()).row(
        "file system",
        format!(
            "{} at {} ({}); {direct}, block {}",
            found.filesystem,
            found.mount_point.display(),
            found.mount_options.join(","),
            bytes(found.block_size.into())
        ),
    );
    for layer in &found.below {
        let options = layer.mount_options.join(",");
        sheet.row("over", format!("{} at {} ({options})", layer.filesystem, layer.mount_point.display()));
    }
    for device in &found.devices {
        sheet.row(if device.leaf { "disk" } else { "device" }, device.to_string());
    }
    let ring = findings.uring;
    let limit = ring.memlock_bytes.map_or_else(|| "no limit".to_owned(), bytes);
    let permitted = if ring.permitted { "permitted" } else { "not permitted" };
    sheet.row("io_uring", format!("{permitted}; Linux {}, lockable memory: {limit}", ring.kernel));
    sheet.row("highest ack", highest_ack(findings));
    sheet
}

fn highest_ack(findings: &Findings<'_>) -> &'static str {
    if findings.substrate.durability_class(false).is_durable() { "durable" } else { "written" }
}

fn table(findings: &Findings<'_>) -> String {
    let row = |measured: &Measured| {
        let method = measured.method;
        let mut row =
            vec![method.space.name().to_owned(), method.way.name().to_owned(), method.way.in_flight().to_string()];
        match (measured.rate(), &measured.error) {
            (Some(rate), _) => {
                let micros = |percent| format!("{:.0}", measured.micros(percent));
                let note = match (method.way.flushes(), findings.is_safe(measured)) {
                    (false, false) if method.way.name() == "write" => "not synced",
                    (false, false) => "UNSAFE here: flushes no cache",
                    _ => "",
                };
                row.extend([count(rate as u64), micros(50.0), micros(99.0), micros(100.0), note.to_owned()]);
            }
            (None, why) => {
                let why = why.clone().unwrap_or_else(|| "nothing was done in time".to_owned());
                row.extend(["-".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned(), why]);
            }
        }
        row
    };
    let rows: Vec<_> = findings.measured.iter().map(row).collect();
    columns(&["space", "method", ">in flight", ">ops/s", ">p50", ">p99", ">max", "note"], &rows)
}

/// One object; nested names are objects, the unit is in the name.
pub(super) fn json(dir: &Path, findings: &Findings<'_>) -> Value {
    let found = findings.substrate;
    let ring = findings.uring;
    let Advice { durability, io_engine, in_flight, reasons } = findings.advice();
    json!({
        "dir": dir.display().to_string(),
        "highest_ack": highest_ack(findings),
        "substrate": {
            "filesystem": found.filesystem,
            "mount_point": found.mount_point.display().to_string(),
            "mount_options": found.mount_options,
            "below": found.below.iter().map(|layer| json!({
                "filesystem": layer.filesystem,
                "mount_point": layer.mount_point.display().to_string(),
                "mount_options": layer.mount_options,
            })).collect::<Vec<_>>(),
            "devices": found.devices.iter().map(device).collect::<Vec<_>>(),
            "direct_io": found.direct_io,
            "block_bytes": found.block_size,
            "volatile_cache": found.volatile_cache(),
            "hypervisor": found.hypervisor,
            "notes": found.notes,
        },
        "io_uring": {
            "permitted": ring.permitted,
            "notes": ring.notes,
            "kernel": ring.kernel,
            "sysctl_disabled": ring.disabled,
            "memlock_bytes": ring.memlock_bytes,
        },
        "methods": findings.measured.iter().map(|one| measured(findings, one)).collect::<Vec<_>>(),
        "recommendation": {
            "durability": durability,
            "io_engine": io_engine,
            "in_flight": in_flight,
            "reasons": reasons,
        },
        "warnings": findings.warnings(),
    })
}

fn device(device: &Device) -> Value {
    json!({
        "name": device.name,
        "kind": device.kind.to_string(),
        "leaf": device.leaf,
        "cache": device.write_cache.to_string(),
        "fua": device.fua,
        "model": device.model,
        "rotational": device.rotational,
        "physical_block_bytes": device.physical_block,
        "logical_block_bytes": device.logical_block,
        "passes_flushes": device.stops_flush.is_none(),
    })
}

fn measured(findings: &Findings<'_>, measured: &Measured) -> Value {
    let method = measured.method;
    let rate = measured.rate();
    json!({
        "space": method.space.name(),
        "method": method.way.name(),
        "in_flight": method.way.in_flight(),
        "block_bytes": BLOCK,
        "flushes": method.way.flushes(),
        "power_safe": findings.is_safe(measured),
        "operations": measured.latencies.len(),
        "operations_per_second": rate,
        "latency_us": rate.map(|_| json!({
            "p50": measured.micros(50.0),
            "p99": measured.micros(99.0),
            "max": measured.micros(100.0),
        })),
        "error": measured.error,
    })
}
