//! Bytes that a peer may append in a second.
//!
//! Invariant: over any time the peer gets what its rate gives, and at most a second's worth and one append beyond it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One peer's bytes, over all its connections.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: u64,
    /// Bytes that are left, less than none after a long append; and when that was so.
    left: Mutex<(f64, Instant)>,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, left: Mutex::new((bytes_per_second as f64, Instant::now())) }
    }

    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Takes so many where any are left, else says how long that takes.
    pub(crate) fn try_take(&self, bytes: usize) -> Result<(), Duration> {
        self.try_take_at(bytes, Instant::now())
    }

    fn try_take_at(&self, bytes: usize, now: Instant) -> Result<(), Duration> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = self.bytes_per_second as f64;
        let since = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + since * rate).min(rate), left.1.max(now));
        if left.0 < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left.0) / rate));
        }
        left.0 -= bytes as f64;
        Ok(())
    }

    /// Returns true if it is as one that was never used.
    pub(super) fn is_full(&self) -> bool {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = self.bytes_per_second as f64;
        left.0 + left.1.elapsed().as_secs_f64() * rate >= rate
    }

    /// Gives back what was taken for an append that was not made.
    pub(crate) fn give_back(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.0 += bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_its_rate_and_a_second_of_it_at_once() {
        let rate = Rate::new(1000);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut taken = 0;
        for ms in 0..10_000 {
            while rate.try_take_at(100, at(ms)).is_ok() {
                taken += 100;
            }
        }
        assert!((10_900..=11_100).contains(&taken), "ten seconds and one: {taken}");
        let wait = rate.try_take_at(100, at(10_000)).expect_err("nothing is left");
        assert!(rate.try_take_at(100, at(10_000) + wait).is_ok(), "as long as it said");
        assert!(rate.try_take_at(100_000, at(20_000)).is_ok(), "a long append is made at once");
        assert!(rate.try_take_at(1, at(118_000)).is_err() && rate.try_take_at(1, at(119_100)).is_ok(), "and paid for");
        rate.give_back(2000);
        assert!(rate.try_take_at(1, at(119_100)).is_ok());
        assert!(rate.try_take_at(1, at(0)).is_ok(), "a clock that goes back takes nothing away");
    }
}
