//! Report of a run, for people and for programs.

use std::time::Duration;

use clad_client::Address;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::check::Checked;
use super::direct::Looped;
use super::load::Loaded;
use super::plan::Load;
use super::stats::{Latency, Spread, new_histogram, per_second, ratio};
use crate::format::human::{bytes, count, counted};
use crate::output::table::{Sheet, columns};

/// A slice of load, read back.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) loaded: Loaded,
    pub(super) checked: Option<Checked>,
}

/// A slice of load, and what went beside it.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) load: Slice,
    /// The same load by another transport.
    pub(super) compared: Option<Slice>,
    pub(super) looped: Option<Looped>,
}

/// A whole run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) load: &'a Load,
    /// The load that it is measured beside.
    pub(super) compared: Option<&'a Load>,
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

/// A round beside its bare loop, or beside the same load by another transport.
struct Ratios {
    rate: f64,
    p50: f64,
    /// Of processor time a record, the daemon's and the load's together; 0 beside a bare loop.
    cpu: f64,
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

    /// Nanoseconds of processor time a record: the daemon's, where it is one of our own, and the load's.
    fn cpu(&self) -> (Option<f64>, f64) {
        let a_record = |time: Duration| ratio(time.as_nanos() as f64, self.acked as f64);
        (self.cpu.daemon.map(a_record), self.cpu.load.map_or(0.0, a_record))
    }
}

impl Looped {
    fn rate(&self) -> f64 {
        per_second(self.writes, self.elapsed)
    }
}

impl Slice {
    /// Reasons why the slice is not good: a refusal, a false ack, an append that failed.
    fn trouble(&self) -> impl Iterator<Item = String> {
        let Loaded { acked, failed, .. } = self.loaded;
        let fault = self.checked.as_ref().and_then(|checked| checked.fault.clone());
        let failed = (failed > 0).then(|| format!("{} failed", counted(failed, "record")));
        let none = (acked == 0).then(|| "nothing was acked".to_owned());
        [self.loaded.trouble.clone(), fault, failed, none].into_iter().flatten()
    }
}

impl Round {
    fn ratios(&self) -> Option<Ratios> {
        let looped = self.looped.as_ref()?;
        let loaded = &self.load.loaded;
        let (load, bare) = (Latency::of(&loaded.latencies), Latency::of(&looped.latencies));
        Some(Ratios { rate: ratio(loaded.rate(), looped.rate()), p50: ratio(load.p50, bare.p50), cpu: 0.0 })
    }

    fn compared_ratios(&self) -> Option<Ratios> {
        let (one, other) = (&self.load.loaded, &self.compared.as_ref()?.loaded);
        let p50 = |loaded: &Loaded| Latency::of(&loaded.latencies).p50;
        let cpu = |loaded: &Loaded| loaded.cpu().0.unwrap_or(0.0) + loaded.cpu().1;
        Some(Ratios {
            rate: ratio(one.rate(), other.rate()),
            p50: ratio(p50(one), p50(other)),
            cpu: ratio(cpu(one), cpu(other)),
        })
    }
}

impl Report<'_> {
    fn total(&self) -> Total {
        let mut latencies = new_histogram();
        let mut trouble = Vec::new();
        for round in self.rounds {
            // It grows as it must, so adding cannot fail.
            let _ = latencies.add(&round.load.loaded.latencies);
            for slice in [Some(&round.load), round.compared.as_ref()].into_iter().flatten() {
                trouble.extend(slice.trouble());
            }
        }
        let loaded = || self.rounds.iter().map(|round| &round.load.loaded);
        if self.load.interrupt.came() {
            trouble.push("interrupted before its time was over".to_owned());
        }
        Total {
            acked: loaded().map(|loaded| loaded.acked).sum(),
            failed: loaded().map(|loaded| loaded.failed).sum(),
            verified: self.rounds.iter().map(|round| round.load.checked.as_ref().map(|checked| checked.verified)).sum(),
            elapsed: loaded().map(|loaded| loaded.elapsed).sum(),
            latencies,
            trouble,
        }
    }

    /// True if everything was acked, and every ack was true as far as that could be seen.
    pub(super) fn is_good(&self) -> bool {
        let total = self.total();
        let true_acks = total.verified.is_none_or(|verified| verified == total.acked);
        total.acked > 0 && total.failed == 0 && true_acks && total.trouble.is_empty()
    }

    /// One object; the unit is in the name.
    pub(super) fn json(&self) -> Value {
        let total = self.total();
        let rate = per_second(total.acked, total.elapsed);
        let first = self.rounds.first().map(|round| &round.load.loaded);
        let mut value = json!({
            "records_per_second": tenth(rate),
            "body_bytes_per_second": tenth(rate * self.load.size as f64),
            "acked": total.acked,
            "failed": total.failed,
            "verified": total.verified,
            "appends": total.latencies.len(),
            "elapsed_seconds": total.elapsed.as_secs_f64(),
            "latency_us": Latency::of(&total.latencies),
            "cpu_ns_per_record": {
                "daemon": self.spread_of(|slice| slice.loaded.cpu().0),
                "load": self.spread_of(|slice| Some(slice.loaded.cpu().1)),
            },
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
        for (name, beside) in [("baseline", self.baseline_json()), ("compare", self.compare_json())] {
            if let (Some(beside), Some(object)) = (beside, value.as_object_mut()) {
                object.insert(name.to_owned(), beside);
            }
        }
        value
    }

    /// Median, least and greatest over the rounds; `None` where it was not measured.
    fn spread_of(&self, of: impl Fn(&Slice) -> Option<f64>) -> Option<Spread> {
        let all: Option<Vec<f64>> = self.rounds.iter().map(|round| of(&round.load).map(tenth)).collect();
        all.map(Spread::of)
    }

    fn compare_json(&self) -> Option<Value> {
        let ratios = self.compared_ratios()?;
        let slice = |slice: &Slice| {
            json!({
                "records_per_second": tenth(slice.loaded.rate()),
                "latency_us": Latency::of(&slice.loaded.latencies),
                "cpu_ns_per_record": { "daemon": slice.loaded.cpu().0.map(tenth), "load": tenth(slice.loaded.cpu().1) },
                "acked": slice.loaded.acked,
                "verified": slice.checked.as_ref().map(|checked| checked.verified),
            })
        };
        let round = |round: &Round| Some(json!([slice(&round.load), slice(round.compared.as_ref()?)]));
        Some(json!({
            "server": self.compared?.address.to_string(),
            "rate_ratio": Spread::of(ratios.iter().map(|ratios| hundredth(ratios.rate))),
            "p50_ratio": Spread::of(ratios.iter().map(|ratios| hundredth(ratios.p50))),
            "cpu_ratio": Spread::of(ratios.iter().map(|ratios| hundredth(ratios.cpu))),
            "rounds": self.rounds.iter().map(round).collect::<Option<Vec<_>>>()?,
        }))
    }

    fn compared_ratios(&self) -> Option<Vec<Ratios>> {
        self.rounds.iter().map(Round::compared_ratios).collect()
    }

    fn baseline_json(&self) -> Option<Value> {
        let ratios = self.ratios()?;
        let round = |round: &Round| {
            let looped = round.looped.as_ref()?;
            let ratios = round.ratios()?;
            Some(json!({
                "records_per_second": tenth(round.load.loaded.rate()),
                "latency_us": Latency::of(&round.load.loaded.latencies),
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
            "records_per_second": Spread::of(self.rounds.iter().map(|round| tenth(round.load.loaded.rate()))),
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
        if let (Some(ratios), Some(compared)) = (self.compared_ratios(), self.compared) {
            text.push_str(&self.beside_another(&ratios, &compared.address));
        }
        text
    }

    fn asked(&self) -> String {
        let load = self.load;
        let (level, policy) = self
            .rounds
            .first()
            .map_or(("none", "none"), |round| (round.load.loaded.level.name(), round.load.loaded.log.policy.name()));
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
                count(round.load.loaded.rate() as u64),
                micros(Latency::of(&round.load.loaded.latencies).p50),
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

impl Report<'_> {
    fn beside_another(&self, ratios: &[Ratios], address: &Address) -> String {
        let rows = self.rounds.iter().zip(ratios).zip(1..).filter_map(|((round, ratios), number)| {
            let (one, other) = (&round.load.loaded, &round.compared.as_ref()?.loaded);
            Some(vec![
                number.to_string(),
                count(one.rate() as u64),
                micros(Latency::of(&one.latencies).p50),
                count(other.rate() as u64),
                micros(Latency::of(&other.latencies).p50),
                format!("{:.2}", ratios.rate),
                format!("{:.2}", ratios.p50),
                format!("{:.2}", ratios.cpu),
            ])
        });
        let rows: Vec<_> = rows.collect();
        let heads = [
            ">round",
            ">records/s",
            ">p50",
            ">other records/s",
            ">other p50",
            ">rate ratio",
            ">p50 ratio",
            ">cpu ratio",
        ];
        let spread = |of: fn(&Ratios) -> f64| {
            let Spread { median, min, max } = Spread::of(ratios.iter().map(of));
            format!("{median:.2} ({min:.2} to {max:.2})")
        };
        format!(
            "\n{}\nbeside {address}: rate × {}, p50 × {}, processor time a record × {}\n",
            columns(&heads, &rows),
            spread(|ratios| ratios.rate),
            spread(|ratios| ratios.p50),
            spread(|ratios| ratios.cpu),
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
