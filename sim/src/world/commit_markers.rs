//! The kernel cannot write back the last commit marker of a log at rest, and the device loses what it held there: the
//! block that the marker repeats, with durable records in it.
//!
//! Invariant, under the policies that sync, where segments are written through the page cache: the journal gets the
//! error at its next operation on the segment. It has what was in the block in memory. Nothing is lost, and nothing is
//! reported as lost. (A journal that dies before that operation has lost it: a device that destroys what was synced is
//! for `failing_device.rs`.)

use std::time::Duration;

use clad_journal::Policy;
use clad_journal::format::segment_name;
use clad_journal::io::Storage;

use super::World;
use super::model::{Check, ensure};

impl World {
    /// The log comes to rest and writes a commit marker; the write-back of that fails; then an append comes, or time
    /// passes, and a rotation.
    pub(super) fn lose_commit_marker(&mut self) -> Check {
        let syncs = !matches!(self.config.policy, Policy::FireAndForget { .. });
        let by_ranges = matches!(self.config.policy, Policy::SyncFileRange { .. });
        if !syncs || self.disk.is_direct() && !by_ranges || self.settings.calm {
            return Ok(());
        }
        self.disk.clear_faults();
        self.last_fault = 0;
        self.settle()?;
        self.clock.step(Duration::from_millis(150));
        self.settle_a_little()?;
        let Some(stepper) = self.stepper.as_ref().filter(|_| self.disk.is_alive()) else { return Ok(()) };
        let (name, failures) = (segment_name(stepper.meta().highest_segment), stepper.watermarks().failures);
        if !self.disk.names().contains(&name) || !self.disk.destroy_in_writeback(&name) {
            return Ok(());
        }
        self.note(|| format!("a commit marker in {name} cannot be written back, and its block is lost"));
        self.stats.commit_markers_lost += 1;
        self.disturbed = true;
        match self.rng.below(3) {
            0 => self.append_something()?,
            1 => self.clock.step(Duration::from_secs(3)),
            _ => {}
        }
        self.settle_a_little()?;
        if let Some(stepper) = &self.stepper {
            stepper.request_rotate();
        }
        self.settle()?;
        let now = self.stepper.as_ref().map_or(0, |s| s.watermarks().failures);
        ensure(now > failures, || format!("nothing reported that {name} could not be written back"))?;
        self.read_along()
    }
}
