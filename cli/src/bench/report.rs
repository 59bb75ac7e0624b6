//! Results of a run, for people and for programs.

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

/// A round beside something else: its bare loop, or the same load by another transport.
struct Beside {
    rate: f64,
    p50: f64,
    rate_ratio: f64,
    p50_ratio: f64,
    /// Of processor time a record, the daemon's and the load's together; 0 beside a bare loop.
    cpu_ratio: f64,
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

    fn whole_cpu(&self) -> f64 {
        let (daemon, load) = self.cpu();
        daemon.unwrap_or(0.0) + load
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
    fn beside(&self, rate: f64, latencies: &Histogram<u64>, cpu: f64) -> Beside {
        let loaded = &self.load.loaded;
        let (load, p50) = (Latency::of(&loaded.latencies), Latency::of(latencies).p50);
        let cpu_ratio = ratio(loaded.whole_cpu(), cpu);
        Beside { rate, p50, rate_ratio: ratio(loaded.rate(), rate), p50_ratio: ratio(load.p50, p50), cpu_ratio }
    }

    fn beside_loop(&self) -> Option<Beside> {
        let Looped { writes, elapsed, latencies } = self.looped.as_ref()?;
        Some(self.beside(per_second(*writes, *elapsed), latencies, 0.0))
    }

    fn beside_other(&self) -> Option<Beside> {
        let other = &self.compared.as_ref()?.loaded;
        Some(self.beside(other.rate(), &other.latencies, other.whole_cpu()))
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

    /// Returns true if everything was acked, and every ack was true as far as that could be seen.
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
        let beside = self.beside(Round::beside_other)?;
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
            "rate_ratio": spread(&beside, |beside| hundredth(beside.rate_ratio)),
            "p50_ratio": spread(&beside, |beside| hundredth(beside.p50_ratio)),
            "cpu_ratio": spread(&beside, |beside| hundredth(beside.cpu_ratio)),
            "rounds": self.rounds.iter().map(round).collect::<Option<Vec<_>>>()?,
        }))
    }

    fn baseline_json(&self) -> Option<Value> {
        let beside = self.beside(Round::beside_loop)?;
        let round = |(round, beside): (&Round, &Beside)| {
            json!({
                "records_per_second": tenth(round.load.loaded.rate()),
                "latency_us": Latency::of(&round.load.loaded.latencies),
                "loop_writes_per_second": tenth(beside.rate),
                "loop_latency_us": round.looped.as_ref().map(|looped| Latency::of(&looped.latencies)),
                "rate_ratio": hundredth(beside.rate_ratio),
                "p50_ratio": hundredth(beside.p50_ratio),
            })
        };
        Some(json!({
            "rate_ratio": spread(&beside, |beside| hundredth(beside.rate_ratio)),
            "p50_ratio": spread(&beside, |beside| hundredth(beside.p50_ratio)),
            "records_per_second": self.spread_of(|slice| Some(slice.loaded.rate())),
            "loop_writes_per_second": spread(&beside, |beside| tenth(beside.rate)),
            "rounds": self.rounds.iter().zip(&beside).map(round).collect::<Vec<_>>(),
        }))
    }

    /// Each round beside something else; `None` where it was not measured.
    fn beside(&self, of: fn(&Round) -> Option<Beside>) -> Option<Vec<Beside>> {
        self.rounds.iter().map(of).collect()
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
        if let Some(beside) = self.beside(Round::beside_loop) {
            text.push_str(&self.compare(
                &beside,
                [">loop writes/s", ">loop p50"],
                "a bare loop of synced writes",
                false,
            ));
        }
        if let (Some(beside), Some(compared)) = (self.beside(Round::beside_other), self.compared) {
            let whom = compared.address.to_string();
            text.push_str(&self.compare(&beside, [">other records/s", ">other p50"], &whom, true));
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

    /// A row a round, and the spread of the ratios; with that of processor time where `cpu` is set.
    fn compare(&self, all: &[Beside], [rate, p50]: [&str; 2], whom: &str, cpu: bool) -> String {
        let rows = self.rounds.iter().zip(all).zip(1..).map(|((round, beside), number)| {
            let loaded = &round.load.loaded;
            let figures = [(loaded.rate(), Latency::of(&loaded.latencies).p50), (beside.rate, beside.p50)];
            let figures = figures.into_iter().flat_map(|(rate, p50)| [count(rate as u64), micros(p50)]);
            let ratios = [beside.rate_ratio, beside.p50_ratio].into_iter().chain(cpu.then_some(beside.cpu_ratio));
            let ratios = ratios.map(|ratio| format!("{ratio:.2}"));
            [number.to_string()].into_iter().chain(figures).chain(ratios).collect()
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let mut heads = vec![">round", ">records/s", ">p50", rate, p50, ">rate ratio", ">p50 ratio"];
        heads.extend(cpu.then_some(">cpu ratio"));
        let of = |of: fn(&Beside) -> f64| {
            let Spread { median, min, max } = spread(all, of);
            format!("{median:.2} ({min:.2} to {max:.2})")
        };
        let mut last = format!("rate × {}, p50 × {}", of(|beside| beside.rate_ratio), of(|beside| beside.p50_ratio));
        if cpu {
            last.push_str(&format!(", processor time a record × {}", of(|beside| beside.cpu_ratio)));
        }
        format!("\n{}\nbeside {whom}: {last}\n", columns(&heads, &rows))
    }
}

fn spread(all: &[Beside], of: impl Fn(&Beside) -> f64) -> Spread {
    Spread::of(all.iter().map(of))
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
