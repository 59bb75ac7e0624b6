//! What a world is like, all of it chosen by its seed but for what a test insists on.

use std::time::Duration;

use clad_journal::{Faults, JournalConfig, Policy};

use super::tap::Flaw;
use crate::Rng;
use crate::disk::Options;

/// What a test insists on.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// This policy, instead of one that the seed picks.
    pub policy: Option<Policy>,
    /// A disk that is broken in one way all the time.
    pub flaw: Option<Flaw>,
    /// A journal that is wrong on purpose; none without the feature `faults`.
    pub faults: Faults,
    /// No faults, no crash at an operation, no want of space; only the ends of lives that a test asks for.
    pub calm: bool,
    /// Keep what happens, for the text of a violation.
    pub trace: bool,
}

/// The settings of a journal.
pub(super) fn journal(settings: &Settings, rng: &mut Rng) -> JournalConfig {
    let delay = Duration::from_micros([0, 200, 5_000][rng.index(3)]);
    let picked = match rng.below(8) {
        0..=4 => Policy::GroupCommit {
            max_delay: delay,
            max_bytes: [4 << 10, 16 << 10, 1 << 20][rng.index(3)],
            in_flight: 1 + rng.index(4),
        },
        5 => Policy::PerMessage,
        _ => Policy::FireAndForget {
            sync_interval: [Duration::ZERO, Duration::from_millis(5), Duration::from_secs(1)][rng.index(3)],
        },
    };
    let policy = settings.policy.unwrap_or(picked);
    JournalConfig {
        policy,
        segment_bytes: [64 << 10, 128 << 10, 256 << 10][rng.index(3)],
        max_append_bytes: 16 << 10,
        reserve_free: 0,
        rotate_after: [Duration::ZERO, Duration::ZERO, Duration::from_secs(2)][rng.index(3)],
        max_producers: 64,
        window: [4, 16, 64][rng.index(3)],
        recent_bytes: [8 << 10, 64 << 10, 2 << 20][rng.index(3)],
        faults: settings.faults,
        ..JournalConfig::default()
    }
}

/// The machine.
pub(super) fn machine(settings: &Settings, rng: &mut Rng) -> Options {
    Options {
        direct: !rng.chance(1, 8),
        zeroing_pays: !rng.chance(1, 4),
        volatile_cache: !rng.chance(1, 4),
        trace: settings.trace,
        ..Options::default()
    }
}
