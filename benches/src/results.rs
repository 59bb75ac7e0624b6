//! The results of a bench over its rounds, as they are kept in docs/benchmarks.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::place::{Ground, Place};
use crate::stats::{Latency, Spread};
use crate::writers::Limit;

/// Everything that one bench found in one sitting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Which bench.
    pub bench: String,
    /// What it stood on.
    pub ground: Ground,
    /// The machine.
    pub machine: Machine,
    /// Rounds in which the rows took turns.
    pub rounds: u32,
    /// Seconds of each run; 0 where runs are bounded by operations.
    pub seconds: f64,
    /// The rows.
    pub rows: Vec<Row>,
    /// What is to be reached, and whether it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aims: Vec<Aim>,
}

/// A ratio that is to be reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// The work.
    pub work: String,
    /// Who of ours.
    pub of: String,
    /// The one of these whose median is the best.
    pub beside: Vec<String>,
    /// Those that were not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The aim.
    pub at_least: f64,
    /// The ratios of the rounds.
    pub ratio: Spread,
}

impl Aim {
    /// Whether the median reaches it.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.ratio.median >= self.at_least
    }
}

/// What the figures are of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub processors: usize,
    /// `uname -r`.
    pub kernel: String,
    /// Of this process: `usual`, or `FIFO 10`.
    pub scheduling: String,
    /// Whether the kernel sees a hypervisor.
    pub virtual_machine: bool,
}

/// One row: medians over its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The key that distinguishes it from the others: (name of a column, what stands there).
    pub cell: BTreeMap<String, String>,
    /// Operations in all runs.
    pub ops: u64,
    /// Operations that failed: 0, or there would be no results.
    pub failed: u64,
    /// Operations that were read back.
    pub verified: u64,
    /// Operations a second.
    pub rate: Spread,
    /// Millions of bytes a second.
    pub megabytes: Spread,
    /// Of single operations: the median over the runs of each figure, but the least `min` and the greatest `max`.
    pub latency_us: Latency,
    /// Whether what is called done survives a power cut on this disk.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub safe: bool,
    /// What the rates are compared with, and the ratio of each round.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, Spread>,
    /// What a reader should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
fn is_yes(is: &bool) -> bool {
    *is
}

impl Results {
    /// None yet.
    #[must_use]
    pub fn new(bench: &str, place: &Place, rounds: u32, limit: Limit) -> Self {
        Self {
            bench: bench.to_owned(),
            ground: place.ground(),
            machine: Machine::this(place.substrate().hypervisor),
            rounds,
            seconds: if limit.time == Duration::MAX { 0.0 } else { limit.time.as_secs_f64() },
            rows: Vec::new(),
            aims: Vec::new(),
        }
    }

    /// Adds a row from its runs.
    pub fn add(&mut self, cell: &[(&str, &str)], runs: &[Outcome]) -> &mut Row {
        let row = Row::of(cell.iter().map(|(name, is)| ((*name).to_owned(), (*is).to_owned())).collect(), runs);
        self.rows.push(row);
        self.rows.last_mut().unwrap_or_else(|| unreachable!("it was just pushed"))
    }

    /// The row with these cells.
    #[must_use]
    pub fn find(&self, cell: &[(&str, &str)]) -> Option<&Row> {
        self.rows.iter().find(|row| cell.iter().all(|(name, is)| row.cell.get(*name).is_some_and(|it| it == is)))
    }

    /// Writes them as JSON.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Row {
    fn of(cell: BTreeMap<String, String>, runs: &[Outcome]) -> Self {
        let mut notes: Vec<String> = runs.iter().flat_map(|run| run.notes.clone()).collect();
        notes.sort();
        notes.dedup();
        Self {
            cell,
            ops: runs.iter().map(|run| run.ops).sum(),
            failed: runs.iter().map(|run| run.failed).sum(),
            verified: runs.iter().map(|run| run.verified).sum(),
            rate: Spread::of(runs.iter().map(Outcome::rate)),
            megabytes: Spread::of(runs.iter().map(Outcome::megabytes)),
            latency_us: latency(runs),
            safe: true,
            beside: BTreeMap::new(),
            notes,
        }
    }
}

fn latency(runs: &[Outcome]) -> Latency {
    let of = |figure: fn(&Latency) -> f64| Spread::of(runs.iter().map(|run| figure(&run.latency_us)));
    Latency {
        avg: of(|l| l.avg).median,
        min: of(|l| l.min).min,
        p50: of(|l| l.p50).median,
        p95: of(|l| l.p95).median,
        p99: of(|l| l.p99).median,
        p999: of(|l| l.p999).median,
        max: of(|l| l.max).max,
        stddev: of(|l| l.stddev).median,
        outliers: of(|l| l.outliers).median,
    }
}

/// The ratio of two contenders, round by round: of runs that stood side by side.
#[must_use]
pub fn ratio(of: &[Outcome], to: &[Outcome]) -> Spread {
    Spread::of(of.iter().zip(to).filter(|(_, to)| to.rate() > 0.0).map(|(of, to)| of.rate() / to.rate()))
}

impl Machine {
    fn this(virtual_machine: bool) -> Self {
        let uname = rustix::system::uname();
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            scheduling: scheduling(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default()),
            virtual_machine,
        }
    }
}

/// From `/proc/self/stat`: the 40th field is the realtime priority, the 41st the policy; the second may hold blanks.
fn scheduling(stat: &str) -> String {
    let fields: Vec<&str> = stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    match (fields.get(37), fields.get(38)) {
        (Some(priority), Some(&"1")) => format!("FIFO {priority}"),
        (Some(priority), Some(&"2")) => format!("RR {priority}"),
        _ => "usual".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ops: u64, seconds: f64, p95: f64) -> Outcome {
        let latency_us = Latency { p95, min: p95 / 10.0, max: p95 * 10.0, ..Latency::default() };
        Outcome { ops, seconds, size: 1000, verified: 1, latency_us, notes: vec!["x".into()], ..Outcome::default() }
    }

    #[test]
    fn a_row_is_medians_of_its_runs() {
        let runs = [run(100, 1.0, 5.0), run(300, 1.0, 1.0), run(200, 1.0, 3.0)];
        let mut results = Results::default();
        let row = results.add(&[("method", "a")], &runs).clone();
        assert_eq!((row.ops, row.verified, row.rate.median), (600, 3, 200.0));
        assert_eq!((row.latency_us.p95, row.latency_us.min, row.latency_us.max), (3.0, 0.1, 50.0));
        assert_eq!(row.notes, ["x"]);
        assert!(results.find(&[("method", "a")]).is_some() && results.find(&[("method", "b")]).is_none());
        let other = [run(100, 1.0, 1.0), run(100, 1.0, 1.0), run(100, 1.0, 1.0)];
        assert_eq!(ratio(&runs, &other), Spread { median: 2.0, min: 1.0, max: 3.0 });
        let text = serde_json::to_string(&results).expect("it is JSON");
        assert_eq!(serde_json::from_str::<Results>(&text).expect("and back"), results);
    }

    #[test]
    fn the_scheduling_of_this_process() {
        let fifo = format!("1 (a b) c) S {}10 1 0", "0 ".repeat(36));
        assert_eq!(scheduling(&fifo), "FIFO 10");
        assert_eq!(scheduling(&fifo.replace("10 1 0", "0 0 0")), "usual");
        assert_eq!(scheduling(""), "usual");
    }
}
