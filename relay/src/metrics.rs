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
const UNSTORED: &str = "clad_relay_unstored_records";
const STORED: &str = "clad_relay_stored_timestamp_seconds";

const DEAD_LETTERS: &str = "clad_relay_dead_letters_total";
const RETRIES: &str = "clad_relay_retries_total";
const LAG: &str = "clad_relay_lag_seconds";
/// Reasons for another try at a destination.
const REASONS: [&str; 7] = ["connect", "connection", "error", "forbidden", "throttled", "timeout", "unavailable"];

/// Serves them at `/metrics`.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    let builder = metrics_exporter_prometheus::PrometheusBuilder::new().with_http_listener(address);
    builder.install().with_context(|| format!("metrics.listen: {address}"))?;
    describe();
    Ok(())
}

/// Names them, and has each begin at zero but for the time of the last record: there is none.
fn describe() {
    describe_counter!(RECORDS, "Records that the destination has stored.");
    describe_counter!(BYTES, "Bytes of their appends.");
    describe_counter!(LOST, "Parts of the source (the log says which) and refused appends that are not brought over.");
    describe_counter!(RESTARTS, "Times that the source was begun to be read again: journalctl ended.");
    describe_gauge!(BEHIND, "Bytes of the files that are not stored.");
    describe_gauge!(UNSTORED, "Records that were handed over and are not stored yet.");
    describe_gauge!(STORED, "When the destination last stored a record of this relay.");
    describe_counter!(
        DEAD_LETTERS,
        "Records that the destination refuses for ever; the file of dead letters has their offsets."
    );
    describe_counter!(RETRIES, "Times that the destination took nothing and is asked again, by the reason.");
    describe_gauge!(LAG, "Age of the newest record that was brought over, while more are there; 0 where all are.");
    for reason in REASONS {
        counter!(RETRIES, "reason" => reason).increment(0);
    }
    gauge!(LAG).set(0);
    for name in [RECORDS, BYTES, RESTARTS, DEAD_LETTERS] {
        counter!(name).increment(0);
    }
    for lost in [Lost::Source, Lost::Refused] {
        counter!(LOST, "reason" => lost.name()).increment(0);
    }
    gauge!(BEHIND).set(0);
    gauge!(UNSTORED).set(0);
}

/// Why something is not brought over.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    /// The source does not have it any more.
    Source,
    /// The log does not take it.
    Refused,
}

impl Lost {
    const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Refused => "refused",
        }
    }
}

pub(crate) fn handed_over(records: u32) {
    gauge!(UNSTORED).increment(records);
}

/// Handed over, and answered.
pub(crate) fn answered(records: u32) {
    gauge!(UNSTORED).decrement(records);
}

pub(crate) fn stored(records: u64, bytes: u64) {
    counter!(RECORDS).increment(records);
    counter!(BYTES).increment(bytes);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(STORED).set(now.as_secs_f64());
}

pub(crate) fn lost(reason: Lost) {
    counter!(LOST, "reason" => reason.name()).increment(1);
}

pub(crate) fn restarted() {
    counter!(RESTARTS).increment(1);
}

pub(crate) fn retried(reason: &'static str) {
    counter!(RETRIES, "reason" => reason).increment(1);
}

pub(crate) fn dead_letters(records: u64) {
    counter!(DEAD_LETTERS).increment(records);
}

/// Records of this time (Unix nanoseconds) are brought over, and more are there; nothing where all are.
pub(crate) fn behind_since(append_time: Option<u64>) {
    let age = append_time.map_or(0, |time| crate::log::now().saturating_sub(time));
    gauge!(LAG).set(age as f64 / 1e9);
}

pub(crate) fn behind(bytes: u64) {
    gauge!(BEHIND).set(bytes as f64);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::*;

    fn mixin(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/mixin").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The names of a relay's metrics in a text, each with what stands before it: the function that it is asked by.
    fn asked(text: &str) -> Vec<(&str, &str)> {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let found = text.match_indices("clad_relay_").map(|(at, _)| {
            let end = text[at..].find(|c| !is_name(c)).map_or(text.len(), |length| at + length);
            let before = &text[..at];
            let function = before
                .strip_suffix('(')
                .map_or("", |before| &before[before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1)..]);
            (&text[at..end], function)
        });
        found.collect()
    }

    /// Kind by name, as a relay says it that has stored something.
    fn served() -> BTreeMap<String, String> {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            stored(1, 1);
        });
        let text = page.render();
        let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        typed.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
    }

    /// Each metric is in a panel, and what panels and alerts ask for is there: rates of counters, gauges as they are.
    #[test]
    fn dashboard_and_alerts_ask_for_the_metrics_that_there_are() {
        let served = served();
        let panels: String =
            mixin("dashboards/clad-relay.json").lines().filter(|line| line.contains("\"expr\":")).collect();
        let rules: String =
            mixin("rules/clad-relay-alerts.yaml").lines().filter(|line| line.starts_with("          ")).collect();
        let shown: BTreeSet<&str> = asked(&panels).iter().map(|(name, _)| *name).collect();
        assert_eq!(shown, served.keys().map(String::as_str).collect(), "what panels show, and what is served");
        assert!(asked(&rules).len() >= 4);
        for (name, function) in [asked(&panels), asked(&rules)].concat() {
            let kind = served.get(name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!(kind == "counter", ["rate", "increase"].contains(&function), "{name} is a {kind}: {function}(");
        }
        for lost in [Lost::Source, Lost::Refused] {
            assert!(rules.contains(&format!("reason=\"{}\"", lost.name())), "no alert of {lost:?}");
        }
    }
}
