//! A histogram with fixed buckets.
//!
//! Invariants: observing takes no lock and no memory, however many observations lie between two scrapes. (The
//! exporter's own histograms keep every sample until the next scrape: at this daemon's rates, that alone would take
//! more memory than the log.)

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of the raw numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Shown as seconds.
    Nanoseconds,
    /// Shown as they are.
    Plain,
}

/// Upper bounds and unit of a histogram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets {
    /// Ascending; a last one without a bound follows by itself.
    pub(super) bounds: &'static [u64],
    /// Unit of bounds and observations.
    pub(super) unit: Unit,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// From a write into a cache to a disk that has gone to sleep.
pub(super) const DURATIONS: Buckets = Buckets {
    bounds: &[
        25 * US,
        50 * US,
        100 * US,
        250 * US,
        500 * US,
        MS,
        2_500 * US,
        5 * MS,
        10 * MS,
        25 * MS,
        50 * MS,
        100 * MS,
        250 * MS,
        500 * MS,
        S,
        2_500 * MS,
        5 * S,
        10 * S,
    ],
    unit: Unit::Nanoseconds,
};

/// From one record to a large batch full of short lines.
pub(super) const RECORDS: Buckets =
    Buckets { bounds: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384], unit: Unit::Plain };

/// From one short line to the largest batch.
pub(super) const BYTES: Buckets = Buckets {
    bounds: &[256, 1024, 4096, 16_384, 65_536, 131_072, 262_144, 524_288, 1_048_576, 2_097_152, 4_194_304],
    unit: Unit::Plain,
};

/// One series.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: Buckets,
    /// One more than there are bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(buckets: Buckets) -> Self {
        Self {
            buckets,
            counts: (0..=buckets.bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Notes `times` observations of a value.
    pub(super) fn observe(&self, value: u64, times: u64) {
        let bucket = self.buckets.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum.fetch_add(value.saturating_mul(times), Ordering::Relaxed);
    }

    /// The numbers as they are now.
    pub(super) fn snapshot(&self) -> clad_proto::grpc::v1::Histogram {
        clad_proto::grpc::v1::Histogram {
            bounds: self.buckets.bounds.to_vec(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }

    /// Writes the series; `label` is `name="value"` or empty.
    pub(super) fn render(&self, name: &str, label: &str, out: &mut String) {
        let comma = if label.is_empty() { "" } else { "," };
        let mut total = 0;
        for (bound, count) in self.buckets.bounds.iter().zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let bound = self.show(*bound);
            let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {total}");
        }
        // The count is made of the buckets, so that it can never disagree with them.
        total += self.counts[self.buckets.bounds.len()].load(Ordering::Relaxed);
        let braced = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        let sum = self.show(self.sum.load(Ordering::Relaxed));
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{braced} {sum}");
        let _ = writeln!(out, "{name}_count{braced} {total}");
    }

    fn show(&self, raw: u64) -> String {
        match self.buckets.unit {
            Unit::Plain => raw.to_string(),
            #[expect(clippy::cast_precision_loss, reason = "a sum that is off by a part in 2^53")]
            Unit::Nanoseconds => (raw as f64 / 1e9).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Buckets = Buckets { bounds: &[1_000_000, 2_500_000], unit: Unit::Nanoseconds };

    #[test]
    fn buckets_are_cumulative_and_bounds_inclusive() {
        let histogram = Histogram::new(SMALL);
        histogram.observe(1_000_000, 1);
        histogram.observe(1_000_001, 2);
        histogram.observe(9_000_000_000, 1);
        let mut text = String::new();
        histogram.render("x_seconds", "level=\"durable\"", &mut text);
        assert_eq!(
            text,
            "x_seconds_bucket{level=\"durable\",le=\"0.001\"} 1\n\
             x_seconds_bucket{level=\"durable\",le=\"0.0025\"} 3\n\
             x_seconds_bucket{level=\"durable\",le=\"+Inf\"} 4\n\
             x_seconds_sum{level=\"durable\"} 9.003000002\n\
             x_seconds_count{level=\"durable\"} 4\n"
        );
    }

    #[test]
    fn without_a_label_there_are_no_empty_braces() {
        let mut text = String::new();
        Histogram::new(RECORDS).render("x", "", &mut text);
        assert!(text.starts_with("x_bucket{le=\"1\"} 0\n") && text.ends_with("x_sum 0\nx_count 0\n"));
    }

    #[test]
    fn all_bounds_ascend() {
        for buckets in [DURATIONS, RECORDS, BYTES, SMALL] {
            assert!(buckets.bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
