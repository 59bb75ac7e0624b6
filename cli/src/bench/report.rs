//! What a run has shown, for people and for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::check::Checked;
use super::direct::Looped;
use super::load::Loaded;
use super::plan::Load;
use super::stats::{Latency, Spread, new_histogram, per_second, ratio};
use crate::format::human::{bytes, count, counted};
use crate::output::table::{Sheet, columns};

/// A slice of load, and what went with it.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) loaded: Loaded,
    pub(super) looped: Option<Looped>,
    pub(super) checked: Option<Checked>,
}

/// A whole run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) load: &'a Load,
    /// At least one.
    pub(super) rounds: &'a [Round],
    pub(super) spawned: bool,
    pub(super) set: &'a [String],
    pub(super) peak_memory: Option<u64>,
}

/// All rounds together.
struct Total {
    acked: u64,
    failed: u64,
    verified: Option<u64>,
    elapsed: Duration,
    latencies: Histogram<u64>,
    trouble: Vec<String>,
}

/// A round beside its bare loop.
struct Ratios {
    rate: f64,
    p50: f64,
}

impl Loaded {
    /// The numbers alone.
    pub(super) fn without_flights(mut self) -> Self {
        self.flights = Vec::new();
        self
    }

    fn rate(&self) -> f64 {
        per_second(self.acked, self.elapsed)
    }
}

impl Looped {
    fn rate(&self) -> f64 {
        per_second(self.writes, self.elapsed)
    }
}

impl Round {
    fn ratios(&self) -> Option<Ratios> {
        let looped = self.looped.as_ref()?;
        let (load, bare) = (Latency::of(&self.loaded.latencies), Latency::of(&looped.latencies));
        Some(Ratios { rate: ratio(self.loaded.rate(), looped.rate()), p50: ratio(load.p50, bare.p50) })
    }
}

impl Report<'_> {
    fn total(&self) -> Total {
        let mut latencies = new_histogram();
        let mut trouble = Vec::new();
        for round in self.rounds {
            // It grows as it must, so adding cannot fail.
            let _ = latencies.add(&round.loaded.latencies);
            trouble.extend(round.loaded.trouble.clone());
            trouble.extend(round.checked.as_ref().and_then(|checked| checked.fault.clone()));
        }
        let loaded = || self.rounds.iter().map(|round| &round.loaded);
        if self.load.interrupt.came() {
            trouble.push("interrupted before its time was over".to_owned());
        }
        Total {
            acked: loaded().map(|loaded| loaded.acked).sum(),
            failed: loaded().map(|loaded| loaded.failed).sum(),
            verified: self.rounds.iter().map(|round| round.checked.as_ref().map(|checked| checked.verified)).sum(),
            elapsed: loaded().map(|loaded| loaded.elapsed).sum(),
            latencies,
            trouble,
        }
    }

    /// Whether everything was acked, and every ack was true as far as that could be seen.
    pub(super) fn is_good(&self) -> bool {
        let total = self.total();
        let true_acks = total.verified.is_none_or(|verified| verified == total.acked);
        total.acked > 0 && total.failed == 0 && true_acks && total.trouble.is_empty()
    }

    /// One object; the unit is in the name.
    pub(super) fn json(&self) -> Value {
        let total = self.total();
        let rate = per_second(total.acked, total.elapsed);
        let first = self.rounds.first().map(|round| &round.loaded);
        let mut value = json!({
            "records_per_second": tenth(rate),
            "body_bytes_per_second": tenth(rate * self.load.size as f64),
            "acked": total.acked,
            "failed": total.failed,
            "verified": total.verified,
            "appends": total.latencies.len(),
            "elapsed_seconds": total.elapsed.as_secs_f64(),
            "latency_us": Latency::of(&total.latencies),
            "trouble": total.trouble,
            "config": {
                "connections": self.load.connections,
                "in_flight": self.load.in_flight,
                "size_bytes": self.load.size,
                "records_per_append": self.load.records,
                "ack": first.map(|loaded| loaded.level.name()),
                "duration_seconds": self.load.duration.as_secs_f64(),
                "server": self.load.address.to_string(),
                "spawned": self.spawned,
                "set": self.set,
            },
            "log": first.map(|loaded| json!({
                "log_id": loaded.log.log_id.to_string(),
                "durability": loaded.log.policy.name(),
            })),
            "daemon_peak_rss_bytes": self.peak_memory,
        });
        if let (Some(baseline), Some(object)) = (self.baseline_json(), value.as_object_mut()) {
            object.insert("baseline".to_owned(), baseline);
        }
        value
    }

    fn baseline_json(&self) -> Option<Value> {
        let ratios = self.ratios()?;
        let round = |round: &Round| {
            let looped = round.looped.as_ref()?;
            let ratios = round.ratios()?;
            Some(json!({
                "records_per_second": tenth(round.loaded.rate()),
                "latency_us": Latency::of(&round.loaded.latencies),
                "loop_writes_per_second": tenth(looped.rate()),
                "loop_latency_us": Latency::of(&looped.latencies),
                "rate_ratio": hundredth(ratios.rate),
                "p50_ratio": hundredth(ratios.p50),
            }))
        };
        let writes = self.rounds.iter().filter_map(|round| round.looped.as_ref());
        Some(json!({
            "rate_ratio": Spread::of(ratios.iter().map(|ratios| hundredth(ratios.rate))),
            "p50_ratio": Spread::of(ratios.iter().map(|ratios| hundredth(ratios.p50))),
            "records_per_second": Spread::of(self.rounds.iter().map(|round| tenth(round.loaded.rate()))),
            "loop_writes_per_second": Spread::of(writes.map(|looped| tenth(looped.rate()))),
            "rounds": self.rounds.iter().map(round).collect::<Vec<_>>(),
        }))
    }

    fn ratios(&self) -> Option<Vec<Ratios>> {
        self.rounds.iter().map(Round::ratios).collect()
    }

    /// Lines that line up.
    pub(super) fn text(&self) -> String {
        let total = self.total();
        let rate = per_second(total.acked, total.elapsed);
        let latency = Latency::of(&total.latencies);
        let mut sheet = Sheet::default();
        sheet
            .row("load", self.asked())
            .row(
                "rate",
                format!(
                    "{} records/s, {}/s of bodies",
                    count(rate as u64),
                    bytes((rate * self.load.size as f64) as u64)
                ),
            )
            .row(
                "latency",
                format!(
                    "p50 {}, p90 {}, p99 {}, p99.9 {}, max {} (of {})",
                    micros(latency.p50),
                    micros(latency.p90),
                    micros(latency.p99),
                    micros(latency.p999),
                    micros(latency.max),
                    counted(total.latencies.len(), "append")
                ),
            )
            .row("acked", format!("{}, {} failed", counted(total.acked, "record"), count(total.failed)))
            .row("verified", verified(&total))
            .row(
                "memory",
                self.peak_memory.map(|peak| format!("{} at the daemon's peak", bytes(peak))).unwrap_or_default(),
            )
            .row("trouble", total.trouble.join("\n"));
        let mut text = sheet.show(usize::MAX);
        if let Some(ratios) = self.ratios() {
            text.push_str(&self.beside_the_loop(&ratios));
        }
        text
    }

    fn asked(&self) -> String {
        let load = self.load;
        let (level, policy) = self
            .rounds
            .first()
            .map_or(("none", "none"), |round| (round.loaded.level.name(), round.loaded.log.policy.name()));
        let grouped = if load.records > 1 { format!(", {} records an append", load.records) } else { String::new() };
        format!(
            "{} × {} in flight, {} B{grouped}, {level} under {policy}, {} at {}",
            load.connections,
            load.in_flight,
            load.size,
            if self.spawned { "a daemon of its own" } else { "the daemon" },
            load.address
        )
    }

    fn beside_the_loop(&self, ratios: &[Ratios]) -> String {
        let rows = self.rounds.iter().zip(ratios).zip(1..).filter_map(|((round, ratios), number)| {
            let looped = round.looped.as_ref()?;
            Some(vec![
                number.to_string(),
                count(round.loaded.rate() as u64),
                micros(Latency::of(&round.loaded.latencies).p50),
                count(looped.rate() as u64),
                micros(Latency::of(&looped.latencies).p50),
                format!("{:.2}", ratios.rate),
                format!("{:.2}", ratios.p50),
            ])
        });
        let rows: Vec<_> = rows.collect();
        let heads = [">round", ">records/s", ">p50", ">loop writes/s", ">loop p50", ">rate ratio", ">p50 ratio"];
        let (rate, p50) =
            (Spread::of(ratios.iter().map(|ratios| ratios.rate)), Spread::of(ratios.iter().map(|ratios| ratios.p50)));
        format!(
            "\n{}\nbeside a bare loop of synced writes: rate × {:.2} ({:.2} to {:.2}), p50 × {:.2} ({:.2} to {:.2})\n",
            columns(&heads, &rows),
            rate.median,
            rate.min,
            rate.max,
            p50.median,
            p50.min,
            p50.max
        )
    }
}

fn verified(total: &Total) -> String {
    match total.verified {
        None => "nothing: reading is not allowed here".to_owned(),
        Some(verified) if verified == total.acked => format!("all {} at the offsets of their acks", count(verified)),
        Some(verified) => format!("ONLY {} of {}", count(verified), count(total.acked)),
    }
}

fn micros(micros: f64) -> String {
    match micros {
        small if small < 1000.0 => format!("{small:.0} µs"),
        more if more < 1e6 => format!("{:.2} ms", more / 1e3),
        much => format!("{:.2} s", much / 1e6),
    }
}

fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn hundredth(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
