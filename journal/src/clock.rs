//! Time as the journal sees it: passed in, so that a simulation owns it.
//!
//! Two clocks, for two questions. The real-time clock says when something happened in the world and may jump;
//! boot time (`CLOCK_BOOTTIME`) says how long something took and only grows, through suspend too. Rotation by age
//! runs on boot time; records carry real time as observed, never clamped.

use std::sync::Arc;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since the Unix epoch; may step in either direction.
    fn real_ns(&self) -> i64;
    /// Nanoseconds since boot, suspend included; never falls.
    fn boot_ns(&self) -> u64;
    /// Names this boot of the machine; zeroes where it cannot be known (which then never equals a stored one).
    fn boot_id(&self) -> [u8; 16];
    /// True if the real-time clock is synchronised, as far as the kernel knows.
    fn is_synchronised(&self) -> bool;
    /// Random bytes, for log ids and salts: asked for here, so that a simulation owns chance as it owns time.
    ///
    /// # Errors
    /// When the kernel has none.
    fn fill_random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        getrandom::fill(bytes).map_err(|e| std::io::Error::other(format!("no random numbers: {e}")))
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// As [`Clock::real_ns`].
    pub real_ns: i64,
    /// As [`Clock::boot_ns`].
    pub boot_ns: u64,
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock {
    boot_id: [u8; 16],
}

impl SystemClock {
    /// Reads the boot id once.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { boot_id: crate::io::device::boot_id().unwrap_or_default() })
    }
}

impl Clock for SystemClock {
    fn real_ns(&self) -> i64 {
        nanoseconds(rustix::time::ClockId::Realtime)
    }
    fn boot_ns(&self) -> u64 {
        nanoseconds(rustix::time::ClockId::Boottime) as u64
    }
    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
    fn is_synchronised(&self) -> bool {
        crate::io::time_sync::is_synchronised()
    }
}

fn nanoseconds(id: rustix::time::ClockId) -> i64 {
    let t = rustix::time::clock_gettime(id);
    t.tv_sec.saturating_mul(1_000_000_000).saturating_add(t.tv_nsec)
}
