//! Time that moves when the simulation says so, and chance that its seed decides.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clad_journal::clock::Clock;

/// 2026-01-01T00:00:00Z, where every simulation starts.
pub const START_REAL_NS: i64 = 1_767_225_600_000_000_000;

/// A clock that stands still until it is stepped.
#[derive(Debug)]
pub struct SimClock {
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    real_ns: i64,
    boot_ns: u64,
    boot_id: [u8; 16],
    synchronised: bool,
    random: crate::Rng,
}

impl SimClock {
    /// A clock at [`START_REAL_NS`], one second after the boot of that id.
    pub fn new(boot_id: [u8; 16]) -> Arc<Self> {
        let seed = u64::from_le_bytes(std::array::from_fn(|i| boot_id[i] ^ boot_id[i + 8]));
        let random = crate::Rng::new(seed);
        let now = Now { real_ns: START_REAL_NS, boot_ns: 1_000_000_000, boot_id, synchronised: true, random };
        Arc::new(Self { now: Mutex::new(now) })
    }

    /// Time passes.
    pub fn step(&self, by: Duration) {
        let ns = by.as_nanos() as u64;
        let mut now = self.lock();
        now.real_ns = now.real_ns.saturating_add(ns as i64);
        now.boot_ns = now.boot_ns.saturating_add(ns);
    }

    /// Somebody sets the wall clock, forwards or back; boot time does not notice.
    pub fn jump(&self, by_ns: i64) {
        let mut now = self.lock();
        now.real_ns = now.real_ns.saturating_add(by_ns);
    }

    /// Sets what the kernel says of the wall clock's synchronisation: it is synchronised until this is called.
    pub fn set_synchronised(&self, synchronised: bool) {
        self.lock().synchronised = synchronised;
    }

    /// The machine starts again, `down` later, under another boot id.
    pub fn reboot(&self, boot_id: [u8; 16], down: Duration) {
        self.step(down);
        let mut now = self.lock();
        now.boot_ns = 1_000_000_000;
        now.boot_id = boot_id;
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SimClock {
    fn real_ns(&self) -> i64 {
        self.lock().real_ns
    }
    fn boot_ns(&self) -> u64 {
        self.lock().boot_ns
    }
    fn boot_id(&self) -> [u8; 16] {
        self.lock().boot_id
    }
    fn is_synchronised(&self) -> bool {
        self.lock().synchronised
    }
    fn fill_random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        let mut now = self.lock();
        bytes.iter_mut().for_each(|b| *b = now.random.number() as u8);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_still_steps_jumps_and_reboots() {
        let clock = SimClock::new([1; 16]);
        assert_eq!((clock.real_ns(), clock.boot_ns()), (START_REAL_NS, 1_000_000_000));
        clock.step(Duration::from_secs(2));
        assert_eq!((clock.real_ns() - START_REAL_NS, clock.boot_ns()), (2_000_000_000, 3_000_000_000));
        clock.jump(-5_000_000_000);
        assert_eq!((clock.real_ns() - START_REAL_NS, clock.boot_ns()), (-3_000_000_000, 3_000_000_000));
        clock.reboot([2; 16], Duration::from_secs(3));
        assert_eq!((clock.real_ns() - START_REAL_NS, clock.boot_ns(), clock.boot_id()), (0, 1_000_000_000, [2; 16]));
    }
}
