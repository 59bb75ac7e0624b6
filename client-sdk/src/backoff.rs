//! Time until the next try: doubling, bounded, jittered so that many clients do not come back at once.

use std::time::Duration;

/// The next wait is drawn from the upper half of a span that doubles from `first` to `max`.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    span: Duration,
    random: u64,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration, seed: u64) -> Self {
        let first = first.clamp(Duration::from_millis(1), max.max(Duration::from_millis(1)));
        // xorshift stays at 0 for ever.
        Self { first, max: max.max(first), span: first, random: seed | 1 }
    }

    /// The wait before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let span = self.span;
        self.span = (span * 2).min(self.max);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = u64::try_from(span.as_micros() / 2).unwrap_or(u64::MAX);
        Duration::from_micros(half + self.random % (half + 1))
    }

    /// Something went well: the next wait is a short one again.
    pub(crate) fn reset(&mut self) {
        self.span = self.first;
    }
}

/// Random bits, for ids and jitter.
///
/// # Errors
/// When the system has none.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Without randomness an id would not be unique, and that would end in records taken for each other's resends.
        panic!("the system gives no random bytes: {error}");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_start_again() {
        let (first, max) = (Duration::from_millis(10), Duration::from_millis(70));
        let mut backoff = Backoff::new(first, max, 42);
        for span in [10, 20, 40, 70, 70, 70] {
            let wait = backoff.next();
            assert!(
                wait >= Duration::from_millis(span) / 2 && wait <= Duration::from_millis(span),
                "{wait:?} of {span}"
            );
        }
        backoff.reset();
        assert!(backoff.next() <= first);
    }
}
