//! The dashboard for throughput and ack latency: what goes in, how fast it is answered, what is refused or lost.

use super::grafana::{Dashboard, Look, Panel, Row, SELECT, by, gauge, metric_rate, rate_by};

const LEVELS: [(&str, &str); 3] = [
    ("received", "the daemon holds it"),
    ("written", "the kernel has completed the write"),
    ("durable", "it is on stable storage"),
];

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "clad-throughput",
        title: "clad / throughput and ack latency",
        description: "What programs hand in, how fast each ack level is answered, and what is refused or lost.",
        rows: vec![glance(), throughput(), latency(), way(), refused()],
    }
}

fn glance() -> Row {
    let stat = |look, title: &str, unit| Panel::new(look, title, unit).wide(4);
    let quantile = |level: &str| {
        let rate = metric_rate("clad_append_duration_seconds", "_bucket", &format!("level=\"{level}\""));
        format!("histogram_quantile(0.99, {})", by("le", rate))
    };
    Row {
        title: "At a glance",
        panels: vec![
            stat(Look::Good, "Takes appends", "none")
                .about("Whether all instances accept appends now, as /readyz says it.")
                .query(format!("min({})", gauge("clad_ready")), "ready"),
            stat(Look::Number, "Records", "recps")
                .about("Records that were given an offset, over all transports.")
                .query(format!("sum({})", metric_rate("clad_appended_records_total", "", "")), "records"),
            stat(Look::Number, "Durable ack, p99", "s")
                .about("99 of 100 durable acks were released within this time after the append was decoded.")
                .limits(&[0.1, 1.0])
                .query(quantile("durable"), "p99"),
            stat(Look::Number, "Oldest not durable", "s")
                .about("Age of the oldest record that is not on stable storage; it grows while the disk does not answer.")
                .limits(&[5.0, 30.0])
                .query(format!("max({})", gauge("clad_oldest_undurable_age_seconds")), "age"),
            stat(Look::Number, "Dropped in this range", "short")
                .about("Records lost without anybody being told, in the time range of the dashboard. Only ack level `none` can be dropped.")
                .limits(&[1.0, 1.0])
                .query(format!("sum(increase(clad_dropped_records_total{{{SELECT}}}[$__range]))"), "dropped"),
            stat(Look::Bad, "Journal failed", "none")
                .about("Whether any journal has failed and not yet recovered.")
                .query(format!("max({})", gauge("clad_journal_failed")), "failed"),
        ],
    }
}

fn throughput() -> Row {
    Row {
        title: "Throughput",
        panels: vec![
            Panel::new(Look::Stacked, "Records in, by transport", "recps")
                .about("Records that were given an offset. A resend of what is stored already counts under `resent`, below.")
                .query(rate_by("transport", "clad_appended_records_total"), "{{transport}}"),
            Panel::new(Look::Stacked, "Acks, by level", "recps")
                .about("Records whose ack was released, by the level that was asked for. `none` is never answered and so not here.")
                .query(rate_by("level", "clad_acked_records_total"), "{{level}}"),
            Panel::new(Look::Lines, "Bytes in", "binBps")
                .about("Bytes of appends as they were handed in; what the disk takes is on the disk's dashboard.")
                .query(rate_by("instance", "clad_appended_bytes_total"), "{{instance}}"),
            Panel::new(Look::Stacked, "Connections, by transport", "short")
                .about("Open connections of clients, readers included.")
                .query(by("transport", gauge("clad_connections")), "{{transport}}"),
            Panel::new(Look::Lines, "Bytes in memory", "bytes")
                .about("Bytes of appends that wait for the disk, and the limit at which senders are made to wait; what buffers of connections take beyond each one's own (answers that are not read, streams that come).")
                .query(by("instance", gauge("clad_inflight_bytes")), "{{instance}}")
                .query(format!("min({})", gauge("clad_inflight_limit_bytes")), "limit")
                .query(by("instance", gauge("clad_connection_buffer_bytes")), "{{instance}} buffers of connections"),
            Panel::new(Look::Lines, "Rings of shared memory", "short")
                .about("Rings that are given out, or not drained to their end; those of an earlier daemon that this one does not drain; those that nobody else keeps, and how often who kept them ended; those that were cut off because what lay in them was nonsense.")
                .query(by("instance", gauge("clad_shm_rings")), "{{instance}}")
                .query(by("instance", gauge("clad_shm_rings_aside")), "{{instance}} kept and not drained")
                .query(by("instance", gauge("clad_shm_rings_unkept")), "{{instance}} kept by nobody else")
                .query(rate_by("instance", "clad_shm_keepers_lost_total"), "{{instance}} keepers lost per second")
                .query(rate_by("instance", "clad_shm_rings_cut_off_total"), "{{instance}} cut off per second"),
            Panel::new(Look::Lines, "Memory of rings", "bytes")
                .about("What the rings and their boards take, beside the bytes in memory.")
                .query(by("instance", gauge("clad_shm_ring_bytes")), "{{instance}}"),
            Panel::new(Look::Lines, "Wake-ups by rings", "ops")
                .about("How often the drain of the rings was woken from its sleep. Under load it does not sleep; a trickle wakes it once a record at most.")
                .query(rate_by("instance", "clad_shm_wakeups_total"), "{{instance}}"),
            Panel::new(Look::Lines, "CPU", "percentunit")
                .about("Cores that the daemon uses: 100 % is one core.")
                .query(rate_by("instance", "process_cpu_seconds_total"), "{{instance}}"),
        ],
    }
}

fn latency() -> Row {
    let quantiles = LEVELS.map(|(level, meaning)| {
        Panel::new(Look::Lines, format!("Ack latency: {level}"), "s")
            .about(format!("From decoding an append to the release of its `{level}` ack ({meaning}). Estimated within the histogram's buckets."))
            .quantiles("clad_append_duration_seconds", &format!("level=\"{level}\""))
    });
    let heatmaps = LEVELS.map(|(level, _)| {
        let rate = metric_rate("clad_append_duration_seconds", "_bucket", &format!("level=\"{level}\""));
        Panel::new(Look::Heatmap, format!("Ack latency: {level}"), "s")
            .about(format!("How many appends got their `{level}` ack in which time. Two bands mean two kinds of waiting: a batch, and the disk."))
            .query(by("le", rate), "{{le}}")
    });
    Row { title: "Ack latency", panels: quantiles.into_iter().chain(heatmaps).collect() }
}

fn way() -> Row {
    let mean =
        |metric: &str| format!("sum({}) / sum({})", metric_rate(metric, "_sum", ""), metric_rate(metric, "_count", ""));
    let behind = |mark: &str| {
        format!(
            "sum by (instance) (clad_offset{{{SELECT}, watermark=\"received\"}} - ignoring (watermark) clad_offset{{{SELECT}, watermark=\"{mark}\"}})"
        )
    };
    Row {
        title: "On the way to the disk",
        panels: vec![
            Panel::new(Look::Lines, "Sync latency", "s")
                .about("One sync, or one write that syncs. What a durable ack takes beyond it is waiting for its batch.")
                .quantiles("clad_sync_duration_seconds", ""),
            Panel::new(Look::Heatmap, "Sync latency", "s")
                .about("How many syncs took which time.")
                .query(by("le", metric_rate("clad_sync_duration_seconds", "_bucket", "")), "{{le}}"),
            Panel::new(Look::Lines, "Syncs and batches", "ops")
                .about("Batches are writes; under group_commit most carry their sync. Few syncs for many records is what batching is for. Inline ones were written at once by the thread that took them, with nothing in flight: most at a light load, few at a heavy one.")
                .query(format!("sum({})", metric_rate("clad_sync_duration_seconds", "_count", "")), "syncs")
                .query(format!("sum({})", metric_rate("clad_batch_records", "_count", "")), "batches")
                .query(format!("sum({})", metric_rate("clad_inline_batches_total", "", "")), "inline batches"),
            Panel::new(Look::Lines, "Records in a batch", "short")
                .about("How many records share one write and one checksum.")
                .quantiles("clad_batch_records", "")
                .query(mean("clad_batch_records"), "mean"),
            Panel::new(Look::Lines, "Bytes of a batch", "bytes")
                .about("How large writes are.")
                .quantiles("clad_batch_bytes", "")
                .query(mean("clad_batch_bytes"), "mean"),
            Panel::new(Look::Lines, "Behind what was received", "short")
                .about("Records that were received and are not written, or not durable, yet: what a kill, or a power cut, at this moment could take. Nobody was told otherwise.")
                .query(behind("written"), "{{instance}} not written")
                .query(behind("durable"), "{{instance}} not durable"),
            Panel::new(Look::Lines, "Age of the oldest record that is not durable", "s")
                .about("A saw tooth under fire_and_forget; near 0 under the other policies.")
                .wide(24)
                .query(format!("max by (instance) ({})", gauge("clad_oldest_undurable_age_seconds")), "{{instance}}"),
        ],
    }
}

fn refused() -> Row {
    Row {
        title: "Refused and lost",
        panels: vec![
            Panel::new(Look::Stacked, "Rejected, by reason", "recps")
                .about("Records refused; their sender was told. `busy`, `no_space` and `journal_failed` pass by themselves, the others are the sender's.")
                .query(rate_by("reason", "clad_rejected_records_total"), "{{reason}}"),
            Panel::new(Look::Stacked, "Dropped, by reason", "recps")
                .about("Records lost; nobody was told, because their senders wanted no answer.")
                .query(rate_by("reason", "clad_dropped_records_total"), "{{reason}}"),
            Panel::new(Look::Lines, "Resent", "recps")
                .about("Records that came again and were stored already: stored once, answered again.")
                .query(rate_by("instance", "clad_deduplicated_records_total"), "{{instance}}"),
        ],
    }
}
