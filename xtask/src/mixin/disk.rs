//! The dashboard for the disk: what the log takes, how far back it reaches, what is left, and what went wrong.

use super::grafana::{Dashboard, Look, Panel, Row, SELECT, by, gauge, metric_rate};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "clad-disk",
        title: "clad / disk",
        description: "What the log takes, how far back it reaches, what is left, and what the disk did wrong.",
        rows: vec![glance(), space(), segments(), faults(), grounds(), process()],
    }
}

/// Seconds since the append time of the newest record in the oldest sealed segment.
fn horizon() -> String {
    format!("time() - ({} > 0)", gauge("clad_oldest_segment_timestamp_seconds"))
}

fn increase(label: &str, metric: &str) -> String {
    by(label, format!("increase({metric}{{{SELECT}}}[$__rate_interval])"))
}

fn glance() -> Row {
    let stat = |look, title: &str, unit| Panel::new(look, title, unit).wide(4);
    Row {
        title: "At a glance",
        panels: vec![
            stat(Look::Left, "Free", "percentunit")
                .about("Free share of the fullest file system.")
                .limits(&[0.1, 0.2])
                .query(format!("min({} / {})", gauge("clad_disk_free_bytes"), gauge("clad_disk_size_bytes")), "free"),
            stat(Look::Number, "Log size", "bytes")
                .about("Bytes that the log takes on the disk, the active and the prepared segment at their full size.")
                .query(format!("sum({})", gauge("clad_journal_bytes")), "bytes"),
            stat(Look::Number, "Segments", "short")
                .about("Segments of the log: sealed, active and prepared.")
                .query(format!("sum({})", gauge("clad_segments")), "segments"),
            stat(Look::Number, "Reaches back", "s")
                .about("All that was appended within this time is kept; there may be a little more. Empty before a segment was sealed.")
                .query(format!("min({})", horizon()), "horizon"),
            stat(Look::Good, "Next segment ready", "none")
                .about("Whether all instances have a prepared segment. Now and then it is not: it is being made.")
                .query(format!("min({})", gauge("clad_segment_prepared")), "prepared"),
            stat(Look::Bad, "Journal failed", "none")
                .about("Whether any journal has failed and not yet recovered.")
                .query(format!("max({})", gauge("clad_journal_failed")), "failed"),
        ],
    }
}

fn space() -> Row {
    Row {
        title: "Space",
        panels: vec![
            Panel::new(Look::Lines, "Free space", "bytes")
                .about("Free space of the log's file system, and the reserve: no new segment may take the one below the other, appends are refused first.")
                .query(by("instance", gauge("clad_disk_free_bytes")), "{{instance}} free")
                .query(by("instance", gauge("clad_disk_reserve_bytes")), "{{instance}} reserve"),
            Panel::new(Look::Lines, "Log size", "bytes")
                .about("Bytes that the log takes on the disk. Saw teeth are retention at work.")
                .query(by("instance", gauge("clad_journal_bytes")), "{{instance}}"),
            Panel::new(Look::Lines, "Written to segments", "binBps")
                .about("Bytes of batches as they are written, and of appends as they were handed in: what is between them is headers and padding.")
                .query(format!("sum({})", metric_rate("clad_batch_bytes", "_sum", "")), "batches")
                .query(format!("sum({})", metric_rate("clad_appended_bytes_total", "", "")), "appends"),
        ],
    }
}

fn segments() -> Row {
    Row {
        title: "Segments and retention",
        panels: vec![
            Panel::new(Look::Lines, "Segments", "short")
                .about("Segments of the log: sealed, active and prepared.")
                .query(by("instance", gauge("clad_segments")), "{{instance}}"),
            Panel::new(Look::Stacked, "Rotations, by trigger", "short")
                .about("Segments sealed: because they were full, old, by an order, or in a recovery.")
                .query(increase("trigger", "clad_segment_rotations_total"), "{{trigger}}"),
            Panel::new(Look::Lines, "Preparation", "short")
                .about("Whether the next segment is ready; rotations that found none, which take unwritten space and are slower; and segments written over one that retention removed, which spares their zeroes.")
                .query(format!("min by (instance) ({})", gauge("clad_segment_prepared")), "{{instance}} ready")
                .query(increase("instance", "clad_segments_unprepared_total"), "{{instance}} unprepared")
                .query(increase("instance", "clad_segments_recycled_total"), "{{instance}} used again"),
            Panel::new(Look::Lines, "Retention horizon", "s")
                .about("How far back the log reaches at least. It grows by a second a second until retention removes a segment.")
                .query(format!("min by (instance) ({})", horizon()), "{{instance}}"),
            Panel::new(Look::Lines, "Records kept", "short")
                .about("Records between the lowest offset and the end of the log.")
                .query(
                    format!("sum by (instance) (clad_offset{{{SELECT}, watermark=\"written\"}} - ignoring (watermark) {})", gauge("clad_lowest_offset")),
                    "{{instance}}",
                ),
            Panel::new(Look::Stacked, "Removed by retention, by rule", "short")
                .about("Segments that the operator's rule removed; and how often retention by age rested because the clock had jumped.")
                .query(increase("rule", "clad_retention_removed_segments_total"), "{{rule}}")
                .query(increase("instance", "clad_retention_pauses_total"), "{{instance}} pauses"),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "Faults and recovery",
        panels: vec![
            Panel::new(Look::Stacked, "Failed writes and recoveries", "short")
                .about("Writes or syncs that the kernel failed, and how recovery in the running process ended.")
                .query(increase("instance", "clad_sync_failures_total"), "{{instance}} failed writes")
                .query(increase("outcome", "clad_recoveries_total"), "recovery {{outcome}}"),
            Panel::new(Look::Lines, "State", "short")
                .about("1 while appends are accepted; 1 while the journal has failed.")
                .query(format!("min by (instance) ({})", gauge("clad_ready")), "{{instance}} ready")
                .query(format!("max by (instance) ({})", gauge("clad_journal_failed")), "{{instance}} failed"),
            Panel::new(Look::Lines, "Damaged and lost records", "short")
                .about("Records found damaged, by readers and by recovery, each once since the start. Records that are known to be lost, and segments that are missing or broken, for as long as they are.")
                .query(increase("instance", "clad_corrupt_records_total"), "{{instance}} found")
                .query(by("instance", gauge("clad_lost_records")), "{{instance}} lost")
                .query(by("instance", gauge("clad_broken_segments")), "{{instance}} broken segments"),
            Panel::new(Look::Lines, "Recovery at the start", "s")
                .wide(12)
                .about("How long recovery took at the last start. It does not grow with the log.")
                .query(format!("max by (instance) ({})", gauge("clad_recovery_duration_seconds")), "{{instance}}"),
            Panel::new(Look::Lines, "Set aside at the start", "bytes")
                .wide(12)
                .about("Bytes of unvouched tail that recovery put into quarantine/: nothing of it was acknowledged at a level that the crash left intact.")
                .query(format!("max by (instance) (clad_recovery_truncated_bytes_total{{{SELECT}}})"), "{{instance}}"),
        ],
    }
}

fn grounds() -> Row {
    Row {
        title: "What the promise stands on",
        panels: vec![
            Panel::new(Look::Stacked, "Policy and engine", "short")
                .about("Instances, by how they reach `durable` and by what issues their writes.")
                .query(by("durability, engine", gauge("clad_io_info")), "{{durability}}, {{engine}}"),
            Panel::new(Look::Lines, "Power-loss protection stated", "short")
                .about("1 where the operator states that no disk below loses what it has taken when the power fails. If that is wrong, so is every `durable` of this instance.")
                .query(by("instance", gauge("clad_power_loss_protected")), "{{instance}}"),
            Panel::new(Look::Stacked, "Fallbacks, by reason", "short")
                .about("Times that a slower way was taken because kernel or file system do not offer the faster, since the start.")
                .query(by("reason", format!("clad_io_fallbacks_total{{{SELECT}}}")), "{{reason}}"),
        ],
    }
}

fn process() -> Row {
    Row {
        title: "Process",
        panels: vec![
            Panel::new(Look::Lines, "Memory", "bytes")
                .about("Resident memory of the daemon. It is bounded by [limits] and does not grow with the log.")
                .query(by("instance", gauge("process_resident_memory_bytes")), "{{instance}}"),
            Panel::new(Look::Lines, "Open files", "short")
                .about("Open file descriptors, and how many there may be.")
                .query(by("instance", gauge("process_open_fds")), "{{instance}}")
                .query(format!("min({})", gauge("process_max_fds")), "limit"),
            Panel::new(Look::Lines, "Age of the configuration", "s")
                .about("Time since the configuration in use was taken, at the start or by a reload.")
                .query(
                    format!(
                        "max by (instance) (time() - {})",
                        gauge("clad_config_last_reload_success_timestamp_seconds")
                    ),
                    "{{instance}}",
                ),
        ],
    }
}
