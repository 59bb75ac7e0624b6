//! What one run of one contender gave, as one line of JSON: the same from every program that is compared.

use serde::{Deserialize, Serialize};

use crate::stats::Latency;

/// One run of one contender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was done: `durable`, `bulk`, …
    pub work: String,
    /// Who did it.
    pub by: String,
    /// Threads or tasks that each have one operation under way.
    pub writers: u32,
    /// Bytes of each operation.
    pub size: usize,
    /// Operations that succeeded.
    pub ops: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations whose bytes were found where they belong: those that nothing has overwritten since.
    pub verified: u64,
    /// From the start of the first operation to the end of the last one.
    pub seconds: f64,
    /// Of every operation; zeroes where single ones are not timed.
    pub latency_us: Latency,
    /// What a reader of the figures should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Outcome {
    /// Operations a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        crate::stats::per_second(self.ops, self.seconds)
    }

    /// Millions of bytes a second.
    #[must_use]
    pub fn megabytes(&self) -> f64 {
        self.rate() * self.size as f64 / 1e6
    }

    /// Refuses what must not become a figure.
    ///
    /// # Errors
    /// An operation failed, none was made, or nothing was read back.
    pub fn checked(self) -> anyhow::Result<Self> {
        let Self { work, by, ops, failed, verified, notes, .. } = &self;
        anyhow::ensure!(*failed == 0, "{work} by {by}: {failed} operations failed: {}", notes.join("; "));
        anyhow::ensure!(*ops > 0, "{work} by {by}: no operation was made");
        anyhow::ensure!(*verified > 0, "{work} by {by}: nothing was read back");
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_or_was_not_read_back_is_no_figure() {
        let good = Outcome { ops: 10, verified: 10, seconds: 2.0, size: 500_000, ..Outcome::default() };
        assert_eq!((good.rate(), good.megabytes()), (5.0, 2.5));
        assert!(good.clone().checked().is_ok());
        for bad in [
            Outcome { failed: 1, ..good.clone() },
            Outcome { ops: 0, ..good.clone() },
            Outcome { verified: 0, ..good.clone() },
        ] {
            assert!(bad.checked().is_err());
        }
        let line = serde_json::to_string(&good).expect("it is JSON");
        assert_eq!(serde_json::from_str::<Outcome>(&line).expect("and back"), good);
    }
}
