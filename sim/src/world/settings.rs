//! Properties of a world, all chosen by its seed but for those that a test insists on.

use std::time::Duration;

use clad_journal::{JournalConfig, Policy, Retention};

use super::tap::Flaw;
use crate::Rng;
use crate::disk::Options;

/// Settings that a test insists on.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// This policy, instead of one that the seed picks.
    pub policy: Option<Policy>,
    /// Most bytes of sealed segments, instead of no limit or what the seed picks.
    pub max_bytes: Option<u64>,
    /// True if the disk has a volatile cache, instead of what the seed and the policy make of it.
    pub volatile_cache: Option<bool>,
    /// True if zeroes are written ahead, likewise.
    pub zeroing_pays: Option<bool>,
    /// A disk that is broken in one way all the time.
    pub flaw: Option<Flaw>,
    /// No faults, no crash at an operation, no want of space; only the ends of lives that a test asks for.
    pub calm: bool,
    /// Bits turn over in what was acknowledged.
    pub bit_rot: bool,
    /// With that: blocks go bad for good, and `clad.meta` may lose both its slots.
    pub failing_device: bool,
    /// Now and then the last commit marker of a log at rest cannot be written back, and its block is lost
    /// (`commit_markers.rs`).
    pub write_back_fails: bool,
    /// Producers come and go, and there are fewer places than producers (`turnover.rs`).
    pub turnover: bool,
    /// Senders without a sequence, in most histories (`resends.rs`).
    pub resends: bool,
    /// Forwarders of other logs, in most histories without bit rot (`forwards.rs`).
    pub forwards: bool,
    /// The files are looked at without the journal at the end of one life in so many (default 16). A history stays the
    /// same.
    pub look_every: Option<u64>,
    /// Keep what happens, for the text of a violation.
    pub trace: bool,
}

/// The settings of a journal.
pub(super) fn journal(settings: &Settings, rng: &mut Rng) -> JournalConfig {
    let delay = Duration::from_micros([0, 200, 5_000][rng.index(3)]);
    let max_bytes = [4 << 10, 16 << 10, 1 << 20][rng.index(3)];
    let picked = match rng.below(10) {
        0 | 1 => Policy::SyncFileRange { max_delay: delay, max_bytes, in_flight: 1 + rng.index(4) },
        2..=6 => Policy::GroupCommit { max_delay: delay, max_bytes, in_flight: 1 + rng.index(4) },
        7 => Policy::PerMessage,
        _ => Policy::FireAndForget {
            sync_interval: [Duration::ZERO, Duration::from_millis(5), Duration::from_secs(1)][rng.index(3)],
        },
    };
    let policy = settings.policy.unwrap_or(picked);
    // Next to nothing is retained, so that much is removed.
    let max_bytes = settings.max_bytes.unwrap_or([0, 0, 1, 128 << 10][rng.index(4)]);
    JournalConfig {
        policy,
        segment_bytes: [64 << 10, 128 << 10, 256 << 10][rng.index(3)],
        max_append_bytes: 16 << 10,
        reserve_free: 0,
        retention: Retention { max_bytes, ..Retention::default() },
        rotate_after: [Duration::ZERO, Duration::ZERO, Duration::from_secs(2)][rng.index(3)],
        max_producers: 64,
        window: [4, 16, 64][rng.index(3)],
        recent_bytes: [8 << 10, 64 << 10, 2 << 20][rng.index(3)],
        ..JournalConfig::default()
    }
}

/// The machine. Range syncs are for disks without a volatile cache alone; the journal refuses them elsewhere.
pub(super) fn machine(settings: &Settings, policy: Policy, rng: &mut Rng) -> Options {
    let ranges = matches!(policy, Policy::SyncFileRange { .. });
    // Half of the range syncs have something to do.
    let cached = if ranges { 2 } else { 8 };
    let (direct, zeroing, volatile) = (!rng.chance(1, cached), !rng.chance(1, 4), !rng.chance(1, 4));
    Options {
        direct,
        zeroing_pays: settings.zeroing_pays.unwrap_or(zeroing),
        volatile_cache: settings.volatile_cache.unwrap_or(volatile && !ranges),
        trace: settings.trace,
        ..Options::default()
    }
}
