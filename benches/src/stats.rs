//! Figures out of many single operations, and out of several rounds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Digits that hold in a latency.
const DIGITS: u8 = 3;
/// An operation that takes so many times the median is an outlier.
pub const OUTLIER: u64 = 3;

/// An empty histogram of nanoseconds that grows as it must.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("{DIGITS} digits are possible"))
}

/// Notes how long one operation took.
pub fn record(histogram: &mut Histogram<u64>, took: Duration) {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    // It grows as it must; nothing is too long for it.
    let _ = histogram.record(nanos.max(1));
}

/// Latencies of single operations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub avg: f64,
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 took no longer.
    pub p95: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1000 took no longer.
    pub p999: f64,
    /// Greatest.
    pub max: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Share of those that took more than [`OUTLIER`] times the median.
    pub outliers: f64,
}

impl Latency {
    /// Those of a histogram of nanoseconds; zeroes for an empty one.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let micros = |nanos: f64| (nanos / 10.0).round() / 100.0;
        let at = |quantile| micros(histogram.value_at_quantile(quantile) as f64);
        let usual = histogram.value_at_quantile(0.5).saturating_mul(OUTLIER);
        let above = histogram.len() - histogram.count_between(0, usual);
        Self {
            avg: micros(histogram.mean()),
            min: micros(histogram.min() as f64),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(histogram.max() as f64),
            stddev: micros(histogram.stdev()),
            outliers: (above as f64 / histogram.len() as f64 * 1e6).round() / 1e6,
        }
    }
}

/// How a figure lies over rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of at least one figure; zeroes for none.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(0.0);
        let middle = sorted.len() / 2;
        let even = sorted.len().is_multiple_of(2) && middle > 0;
        let median = if even { (at(middle - 1) + at(middle)) / 2.0 } else { at(middle) };
        Self { median, min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }
}

/// So many in so long, each second; 0 for no time.
#[must_use]
pub fn per_second(number: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { number as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_from_every_value() {
        let mut all = histogram();
        for micros in 1..=1000 {
            record(&mut all, Duration::from_micros(micros));
        }
        let latency = Latency::of(&all);
        let table = [
            (latency.avg, 500.5),
            (latency.min, 1.0),
            (latency.p50, 500.0),
            (latency.p95, 950.0),
            (latency.p99, 990.0),
            (latency.p999, 999.0),
            (latency.max, 1000.0),
            (latency.stddev, 288.7),
        ];
        for (is, should) in table {
            assert!((is - should).abs() / should < 0.002, "{is} {should}");
        }
        assert_eq!((latency.outliers, Latency::of(&histogram())), (0.0, Latency::default()));
    }

    #[test]
    fn an_outlier_is_far_above_the_median() {
        let mut all = histogram();
        for (micros, times) in [(10, 98), (29, 1), (31, 1)] {
            (0..times).for_each(|_| record(&mut all, Duration::from_micros(micros)));
        }
        assert_eq!(Latency::of(&all).outliers, 0.01);
    }

    #[test]
    fn spread_over_rounds() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of([]), Spread::default());
        assert_eq!((per_second(10, 2.0), per_second(10, 0.0)), (5.0, 0.0));
    }
}
