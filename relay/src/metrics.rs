//! Metrics of a relay.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use metrics::{counter, describe_counter, describe_gauge, gauge};

const RECORDS: &str = "clad_relay_records_total";
const BYTES: &str = "clad_relay_bytes_total";
const LOST: &str = "clad_relay_lost_total";
const RESTARTS: &str = "clad_relay_source_restarts_total";
const BEHIND: &str = "clad_relay_behind_bytes";
const STORED: &str = "clad_relay_stored_timestamp_seconds";

/// Serves them at `/metrics`.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    let builder = metrics_exporter_prometheus::PrometheusBuilder::new().with_http_listener(address);
    builder.install().with_context(|| format!("metrics.listen: {address}"))?;
    describe_counter!(RECORDS, "Records that the log has stored.");
    describe_counter!(BYTES, "Bytes of their appends.");
    describe_counter!(LOST, "Parts of the source, or appends, that could not be brought over; the log says which.");
    describe_counter!(RESTARTS, "Times that the source was begun to be read again: journalctl ended.");
    describe_gauge!(BEHIND, "Bytes of the files that are not read yet.");
    describe_gauge!(STORED, "When the log last stored a record of this relay.");
    for name in [RECORDS, BYTES, LOST, RESTARTS] {
        counter!(name).increment(0);
    }
    Ok(())
}

pub(crate) fn stored(records: u64, bytes: u64) {
    counter!(RECORDS).increment(records);
    counter!(BYTES).increment(bytes);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(STORED).set(now.as_secs_f64());
}

pub(crate) fn lost() {
    counter!(LOST).increment(1);
}

pub(crate) fn restarted() {
    counter!(RESTARTS).increment(1);
}

pub(crate) fn behind(bytes: u64) {
    gauge!(BEHIND).set(bytes as f64);
}
