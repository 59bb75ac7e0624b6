//! How long the windows and waits of rules are.
//!
//! What must hold: at the pace of the tests every rule is the same rule with shorter times, so that what is shown of it
//! in seconds holds of it in hours; the names of recorded series stay.

/// How fast time goes in the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pace {
    /// As operators use them, with a scrape every 15 s to 60 s.
    Real,
    /// For a Prometheus that scrapes and evaluates twice a second.
    Test,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
/// In tests a window holds at least 16 samples, and is over soon.
const WINDOW: (u64, u64) = (8, 16);

impl Pace {
    /// A window of a range vector.
    pub(super) fn window(self, seconds: u64) -> String {
        match self {
            Self::Real => shown(seconds),
            Self::Test => shown((seconds / MINUTE).clamp(WINDOW.0, WINDOW.1)),
        }
    }

    /// How long something must hold before an alert fires.
    pub(super) fn hold(self, seconds: u64) -> String {
        match self {
            Self::Real => shown(seconds),
            Self::Test => shown((seconds / MINUTE).min(2)),
        }
    }

    /// A threshold in seconds.
    pub(super) fn seconds(self, seconds: u64) -> u64 {
        match self {
            Self::Real => seconds,
            Self::Test => (seconds / 10).max(1),
        }
    }

    /// How far ahead is looked, in seconds.
    pub(super) fn ahead(self, seconds: u64) -> u64 {
        match self {
            Self::Real => seconds,
            Self::Test => seconds / HOUR,
        }
    }
}

/// As Prometheus writes it: `90s`, `5m`, `6h`.
fn shown(seconds: u64) -> String {
    match seconds {
        s if s >= HOUR && s % HOUR == 0 => format!("{}h", s / HOUR),
        s if s >= MINUTE && s % MINUTE == 0 => format!("{}m", s / MINUTE),
        s => format!("{s}s"),
    }
}
