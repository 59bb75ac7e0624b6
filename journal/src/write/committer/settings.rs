//! Inputs to the committer: settings, the next segment, and the free space.

use crate::clock::Moment;
use crate::config::Policy;
use crate::write::active::Active;
use crate::write::prepare::Prepared;
use crate::write::segment_supply::SpaceNews;

use super::Committer;

impl Committer {
    /// Adopts a segment that an earlier run had prepared.
    pub(crate) fn adopt(&mut self, prepared: Prepared) {
        self.supply.put_back(Some(prepared));
    }

    /// Sets the disk state as the start saw it. The first check decides on the report to the operator.
    pub(crate) fn begin_with(&mut self, free_segments: u64, block: u32) {
        self.supply.begin_with(free_segments);
        self.block = block.into();
    }

    /// For [`crate::faults::Fault::CutInPlace`]: the next appends go into a segment that was used before.
    pub(crate) fn resume_in(&mut self, active: Active, now: Moment) {
        self.take_active(Ok(active), now);
    }

    pub(crate) fn set_rotate_after(&mut self, age: std::time::Duration) {
        self.config.rotate_after = age;
    }

    /// Changes the settings of `group_commit`; no effect under another policy. More writes in flight begin with the
    /// next segment, which is opened for them.
    pub(crate) fn set_group_commit(&mut self, delay: std::time::Duration, bytes: u32, writes: usize) {
        if let Policy::GroupCommit { max_delay, max_bytes, in_flight }
        | Policy::SyncFileRange { max_delay, max_bytes, in_flight } = &mut self.config.policy
        {
            (*max_delay, *max_bytes) = (delay, bytes);
            *in_flight = writes.min(*in_flight);
            self.builder.set_max_bytes((bytes as usize).min(super::largest_batch(self.config.segment_bytes)));
            self.wanted_writes = writes;
        }
    }

    /// Notes that the open segment allows so many writes.
    pub(super) fn allow_writes(&mut self, open_for: usize) {
        if let Policy::GroupCommit { in_flight, .. } | Policy::SyncFileRange { in_flight, .. } = &mut self.config.policy
        {
            *in_flight = self.wanted_writes.min(open_for);
        }
    }

    /// Submits a prepared segment; `false` when it is not wanted any more.
    pub(crate) fn set_prepared(&mut self, prepared: Prepared) -> bool {
        match self.wants_prepared() {
            Some((number, _)) if number == prepared.header.number => {
                self.supply.made(prepared);
                self.watermarks.version += 1;
                true
            }
            _ => false,
        }
    }

    /// Notes that no segment can be created now: room on the disk counts again after one was created.
    pub(crate) fn cannot_make(&mut self, reason: String) {
        self.supply.cannot_make(reason);
        self.watermarks.version += 1;
    }

    /// Sets the number of further segments that have room, as just seen. Not called while one is created: it would
    /// count twice.
    pub(crate) fn set_free_segments(&mut self, free_segments: u64) -> SpaceNews {
        if self.busy {
            return SpaceNews { changed: false, report: false };
        }
        let news = self.supply.look(free_segments);
        if news.changed {
            self.watermarks.version += 1;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::config::JournalConfig;
    use crate::write::committer::{Done, Job, NoSegment, Step};
    use crate::write::producer::ProducerTable;

    #[test]
    fn room_that_a_rotation_missed_first_is_reported_all_the_same_and_once() {
        let producers = ProducerTable::new(1, 1, 1);
        let mut c = Committer::new(
            JournalConfig::default(),
            producers,
            0,
            crate::format::meta::EpochStart { epoch: 1, first_offset: 0 },
            0,
        );
        let now = Moment { real_ns: 0, boot_ns: 0 };
        assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
        c.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
        let news = c.set_free_segments(0);
        assert!(news.report && !news.changed);
        assert!(!c.set_free_segments(0).report);
        let news = c.set_free_segments(1);
        assert!(news.report && news.changed);
    }

    #[test]
    fn room_that_was_missing_for_a_moment_is_no_news_and_wakes_all_the_same() {
        let producers = ProducerTable::new(1, 1, 1);
        let mut c = Committer::new(
            JournalConfig::default(),
            producers,
            0,
            crate::format::meta::EpochStart { epoch: 1, first_offset: 0 },
            0,
        );
        let now = Moment { real_ns: 0, boot_ns: 0 };
        assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
        c.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
        let news = c.set_free_segments(1);
        assert!(!news.report && news.changed);
    }
}
