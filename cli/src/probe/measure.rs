//! The trials, in turn.

use std::path::Path;
use std::time::Duration;

use clad_journal::clock::SystemClock;
use clad_journal::io::probe::{METHODS, Method, ProbeError, Trial, Uring, Way};
use hdrhistogram::Histogram;

use crate::interrupt::Interrupt;
use crate::output::Progress;

/// The longest operation that is distinguished, in nanoseconds: 100 s. Longer ones count as this.
const LATENCY_MAX_NS: u64 = 100_000_000_000;

/// Each method is tried so often, in turn with the others, so that a slow moment of the disk is not one method's.
const ROUNDS: u32 = 3;

/// The cost of one method.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) method: Method,
    /// Of each operation, nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Time in which they were done.
    pub(super) nanos: u64,
    /// Why there is no figure.
    pub(super) error: Option<String>,
}

impl Measured {
    pub(super) fn of(method: Method) -> Self {
        let latencies =
            Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).unwrap_or_else(|_| unreachable!("bounds that hold"));
        Self { method, latencies, nanos: 0, error: None }
    }

    fn run_round(&mut self, trial: &mut Trial<'_>, nanos: u64, uring: &Uring) {
        if matches!(self.method.way, Way::Ring(_)) && !uring.permitted {
            self.error = Some("io_uring is not permitted".to_owned());
            return;
        }
        let latencies = &mut self.latencies;
        match trial.run(self.method, nanos, &mut |nanos| latencies.saturating_record(nanos)) {
            Ok(nanos) => self.nanos += nanos,
            Err(why) => self.error = Some(why.to_string()),
        }
    }

    /// Operations a second; nothing where there is no figure.
    pub(super) fn rate(&self) -> Option<f64> {
        let done = self.latencies.len();
        (self.error.is_none() && done > 0 && self.nanos > 0).then(|| done as f64 * 1e9 / self.nanos as f64)
    }

    /// The latency that so many of a hundred operations stay below, in microseconds.
    pub(super) fn micros(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1e3
    }
}

/// Tries every method for its share of the time.
///
/// # Errors
/// When the folder cannot be tried at all. A method that fails says so in its place.
pub(super) fn all(dir: &Path, time: Duration, uring: &Uring, stop: &Interrupt) -> Result<Vec<Measured>, ProbeError> {
    let clock = SystemClock::shared();
    let mut trial = Trial::new(dir, clock.as_ref(), stop.flag())?;
    let steps = u64::from(ROUNDS) * METHODS.len() as u64;
    let progress = Progress::count("measuring", steps);
    let share = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / steps;
    let mut all: Vec<Measured> = METHODS.into_iter().map(Measured::of).collect();
    let mut step = 0;
    for _ in 0..ROUNDS {
        for measured in &mut all {
            if stop.came() {
                return Ok(all);
            }
            let method = measured.method;
            progress.say(format!("{}: {}", method.space.name(), method.way.name()));
            progress.at(step, steps);
            step += 1;
            if measured.error.is_none() {
                measured.run_round(&mut trial, share, uring);
            }
        }
    }
    Ok(all)
}

/// Why there is no figure at all: of a folder without room, say.
pub(super) fn nothing(measured: &[Measured]) -> Option<&str> {
    let any = measured.iter().any(|measured| measured.rate().is_some());
    if any { None } else { Some(measured.iter().find_map(|measured| measured.error.as_deref()).unwrap_or("no time")) }
}
