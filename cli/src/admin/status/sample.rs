//! Rates and quantiles between two samples of a daemon.
//!
//! Invariants: nothing is made up. Without two looks there is no rate; without an observation there is no quantile;
//! one above the last bucket is said to be above it. A daemon that was started anew between the looks counts from 0.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use clad_proto::grpc::v1::{Counters, Histogram};

/// Less than this between two looks says nothing.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Counts within a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// The time.
    pub(crate) window: Duration,
    /// Counts in it.
    pub(crate) counted: Counters,
}

impl Sample {
    /// Between two looks; nothing when they are too close.
    pub(crate) fn between(before: Option<&Counters>, now: &Counters) -> Option<Self> {
        let whole = Counters::default();
        // A lower uptime is another process.
        let before = before.filter(|before| before.uptime_us <= now.uptime_us).unwrap_or(&whole);
        let window = Duration::from_micros(now.uptime_us - before.uptime_us);
        (window >= SAMPLE_INTERVAL_MIN).then(|| Self { window, counted: difference(now, before) })
    }

    /// So many a second.
    pub(crate) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.window.as_secs_f64()
    }

    /// So many a second, for each.
    pub(super) fn rates(&self, counts: &HashMap<String, u64>) -> BTreeMap<String, f64> {
        counts.iter().map(|(name, count)| (name.clone(), self.rate(*count))).collect()
    }
}

fn difference(now: &Counters, before: &Counters) -> Counters {
    let map = |now: &HashMap<String, u64>, before: &HashMap<String, u64>| {
        let less = |name: &String| before.get(name).copied().unwrap_or(0);
        now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(less(name)))).collect()
    };
    let none = Histogram::default();
    let less = |now: &Option<Histogram>, before: &Option<Histogram>| {
        now.as_ref().map(|now| histogram(now, before.as_ref().unwrap_or(&none)))
    };
    Counters {
        uptime_us: now.uptime_us - before.uptime_us,
        appended_records: map(&now.appended_records, &before.appended_records),
        appended_bytes: now.appended_bytes.saturating_sub(before.appended_bytes),
        acked_records: map(&now.acked_records, &before.acked_records),
        rejected_records: map(&now.rejected_records, &before.rejected_records),
        dropped_records: map(&now.dropped_records, &before.dropped_records),
        deduplicated_records: now.deduplicated_records.saturating_sub(before.deduplicated_records),
        corrupt_records: now.corrupt_records.saturating_sub(before.corrupt_records),
        sync_failures: now.sync_failures.saturating_sub(before.sync_failures),
        segments_unprepared: now.segments_unprepared.saturating_sub(before.segments_unprepared),
        rotations: map(&now.rotations, &before.rotations),
        retention_removed_segments: map(&now.retention_removed_segments, &before.retention_removed_segments),
        io_fallbacks: map(&now.io_fallbacks, &before.io_fallbacks),
        append_duration_ns: now
            .append_duration_ns
            .iter()
            .map(|(level, now)| (level.clone(), histogram(now, before.append_duration_ns.get(level).unwrap_or(&none))))
            .collect(),
        sync_duration_ns: less(&now.sync_duration_ns, &before.sync_duration_ns),
        batch_records: less(&now.batch_records, &before.batch_records),
        batch_bytes: less(&now.batch_bytes, &before.batch_bytes),
    }
}

fn histogram(now: &Histogram, before: &Histogram) -> Histogram {
    let less = before.counts.iter().chain(std::iter::repeat(&0));
    Histogram {
        bounds: now.bounds.clone(),
        counts: now.counts.iter().zip(less).map(|(now, before)| now.saturating_sub(*before)).collect(),
        sum: now.sum.saturating_sub(before.sum),
    }
}

/// Number of observations.
pub(super) fn observations(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

/// The mean; nothing without an observation.
pub(super) fn mean(histogram: &Histogram) -> Option<f64> {
    let count = observations(histogram);
    (count > 0).then(|| histogram.sum as f64 / count as f64)
}

/// A place in a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Quantile {
    /// About this, by the share of its bucket.
    About(f64),
    /// Above the last bound.
    Above(f64),
}

/// The value below which a share of the observations lies, as Prometheus estimates it.
pub(super) fn quantile(histogram: &Histogram, share: f64) -> Option<Quantile> {
    let count = observations(histogram);
    if count == 0 {
        return None;
    }
    let rank = share * count as f64;
    let (mut below, mut floor) = (0.0, 0.0);
    for (bound, in_it) in histogram.bounds.iter().zip(&histogram.counts) {
        let (bound, in_it) = (*bound as f64, *in_it as f64);
        if in_it > 0.0 && below + in_it >= rank {
            return Some(Quantile::About(floor + (bound - floor) * ((rank - below) / in_it).clamp(0.0, 1.0)));
        }
        (below, floor) = (below + in_it, bound);
    }
    Some(Quantile::Above(floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram_of(counts: &[u64]) -> Histogram {
        Histogram { bounds: vec![10, 20, 40], counts: counts.to_vec(), sum: 90 }
    }

    #[test]
    fn quantiles_lie_in_their_bucket() {
        let histogram = histogram_of(&[10, 0, 10, 0]);
        assert_eq!(quantile(&histogram, 0.25), Some(Quantile::About(5.0)));
        assert_eq!(quantile(&histogram, 0.5), Some(Quantile::About(10.0)));
        assert_eq!(quantile(&histogram, 0.75), Some(Quantile::About(30.0)));
        assert_eq!(quantile(&histogram_of(&[1, 0, 0, 9]), 0.99), Some(Quantile::Above(40.0)));
        assert_eq!(quantile(&histogram_of(&[0, 0, 0, 0]), 0.99), None);
        assert_eq!(quantile(&Histogram::default(), 0.5), None);
        assert_eq!(mean(&histogram), Some(4.5));
    }

    #[test]
    fn rates_are_of_what_lies_between() {
        let at = |uptime_us, unix| Counters {
            uptime_us,
            appended_records: [("unix".to_owned(), unix)].into(),
            sync_duration_ns: Some(histogram_of(&[unix, 0, 0, 0])),
            ..Counters::default()
        };
        let sample = Sample::between(Some(&at(1_000_000, 50)), &at(3_000_000, 250)).expect("two seconds");
        assert_eq!(sample.window, Duration::from_secs(2));
        assert_eq!(sample.rates(&sample.counted.appended_records)["unix"], 100.0);
        assert_eq!(observations(sample.counted.sync_duration_ns.as_ref().expect("syncs")), 200);
        // Too close, the first look, and another process.
        assert!(Sample::between(Some(&at(1_000_000, 50)), &at(1_050_000, 60)).is_none());
        let first = Sample::between(None, &at(3_000_000, 250)).expect("since the start");
        assert_eq!(first.window, Duration::from_secs(3));
        let since_start = Sample::between(Some(&at(9_000_000, 900)), &at(1_000_000, 7)).expect("since the start");
        assert_eq!(since_start.rates(&since_start.counted.appended_records)["unix"], 7.0);
    }
}
