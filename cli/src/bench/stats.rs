//! Numbers out of many: latencies over every single operation, medians and spread over rounds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Digits that hold in a latency.
const DIGITS: u8 = 3;

/// An empty histogram of nanoseconds that grows as it must.
pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("a histogram takes up to 5 digits")
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    /// Those of a histogram of nanoseconds; zeroes for an empty one.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let micros = |nanos: u64| (nanos as f64 / 100.0).round() / 10.0;
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: micros(histogram.max()) }
    }
}

/// Spread of numbers over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of at least one number; zeroes for none.
    pub(super) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(0.0);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) && middle > 0 { (at(middle - 1) + at(middle)) / 2.0 } else { at(middle) };
        Self { median, min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }
}

/// So many in so long, each second.
pub(super) fn per_second(number: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { number as f64 / elapsed.as_secs_f64() }
}

/// A ratio; 0 where there is nothing to compare with.
pub(super) fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_from_every_value() {
        let mut histogram = new_histogram();
        for micros in 1..=1000u64 {
            histogram.record(micros * 1000).expect("it grows");
        }
        let latency = Latency::of(&histogram);
        for (is, should) in [
            (latency.p50, 500.0),
            (latency.p90, 900.0),
            (latency.p99, 990.0),
            (latency.p999, 999.0),
            (latency.max, 1000.0),
        ] {
            assert!((is - should).abs() / should < 0.002, "{is} {should}");
        }
        let none = Latency::of(&new_histogram());
        assert_eq!((none.p50, none.max), (0.0, 0.0));
    }

    #[test]
    fn spread_over_rounds() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of([5.0]), Spread { median: 5.0, min: 5.0, max: 5.0 });
        assert_eq!(Spread::of([]), Spread { median: 0.0, min: 0.0, max: 0.0 });
        assert_eq!((per_second(10, Duration::from_secs(2)), per_second(10, Duration::ZERO)), (5.0, 0.0));
        assert_eq!((ratio(6.0, 2.0), ratio(6.0, 0.0)), (3.0, 0.0));
    }
}
