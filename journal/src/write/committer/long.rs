//! The long jobs: open a segment, rotate, close, recover. Each runs alone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Moment;
use crate::env::Trigger;
use crate::faults::Fault;
use crate::write::active::{Active, Shares};
use crate::write::batch::Batch;

use super::{Committer, InFlight, Job, Rescue, Rotation, State, Step};

impl Committer {
    pub(super) fn begin_open(&mut self, now: Moment) -> Step {
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Ok(None));
        }
        if self.closing && self.builder.is_empty() {
            self.busy = true;
            return Step::Run(Job::Close(None));
        }
        if now.boot_ns < self.supply.retry_at_ns() {
            return Step::Wait(Some(self.supply.retry_at_ns()));
        }
        self.busy = true;
        let wanted = self.claim_next();
        // Nothing is in flight, so everything submitted is written: the next batch starts there.
        Step::Run(Job::Open { wanted, next: self.watermarks.written, epoch: self.watermarks.epoch })
    }

    pub(super) fn rotation(&mut self, trigger: Trigger, now: Moment) -> Option<Box<Rotation>> {
        let active = self.active.take()?;
        let mut footer = active.footer();
        self.quota.sealed(active.owners(), &footer.owners);
        footer.producers = self.sequencer.begin_footer(footer.end_offset, now);
        // Where the token is not held, on purpose, a second segment is opened beside the one that is being sealed.
        assert!(
            footer.end_offset == self.watermarks.written || self.config.faults.has(Fault::TokenNotHeld),
            "the footer of segment {} ends at {}, `written` at {}: records between would be lost",
            footer.segment,
            footer.end_offset,
            self.watermarks.written
        );
        let unsynced = self.watermarks.durable < self.watermarks.written;
        let marker_unsynced = self.unsynced.is_some();
        let wanted = self.claim_next();
        Some(Box::new(Rotation { active, footer, unsynced, marker_unsynced, wanted, trigger }))
    }

    pub(super) fn begin_rotation(&mut self, trigger: Trigger, now: Moment) -> Step {
        match self.rotation(trigger, now) {
            Some(rotation) => {
                self.busy = !self.config.faults.has(Fault::TokenNotHeld);
                Step::Run(Job::Rotate(rotation))
            }
            None => Step::Wait(None),
        }
    }

    pub(super) fn begin_close(&mut self, now: Moment) -> Step {
        self.busy = true;
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Ok(None));
        }
        let rotation = self.rotation(Trigger::Close, now);
        Step::Run(Job::Close(rotation))
    }

    pub(super) fn begin_rescue(&mut self) -> Step {
        let State::Failed { rescue_from, .. } = &self.state else { return Step::Wait(None) };
        let from = *rescue_from;
        assert!(
            from <= self.watermarks.durable,
            "a recovery begins at {from}, above `durable` {}: records between would be lost",
            self.watermarks.durable
        );
        self.busy = true;
        let mut held: HashMap<u64, Arc<Batch>> = HashMap::new();
        for entry in &self.in_flight {
            for batch in entry.shares.batches().filter(|b| b.count > 0).chain([&entry.batch]) {
                held.insert(batch.first_offset, batch.clone());
            }
        }
        let last_block = self.active.iter().flat_map(Active::last_block);
        let control_batches = self.control_write.iter().flat_map(|v| v.1.batches());
        for batch in control_batches.chain(last_block).filter(|b| b.count > 0).chain(&self.recent) {
            held.insert(batch.first_offset, batch.clone());
        }
        // The waiting batches have their offsets already, so they are included.
        while let Some(g) = self.builder.pop() {
            held.insert(g.batch.first_offset, g.batch.clone());
            self.in_flight.push_back(InFlight {
                id: u64::MAX,
                batch: g.batch,
                shares: Shares::default(),
                _permit: g.permit,
                since_boot_ns: g.since_boot_ns,
                range: (0, 0),
                written: false,
                durable: false,
            });
        }
        // Tombstones have no offset of their own; the footers of this recovery leave out the forgotten producers.
        let mut held: Vec<_> = held.into_values().filter(|b| b.end_offset() > from).collect();
        held.sort_by_key(|b| b.first_offset);
        Step::Run(Job::Recover(Box::new(Rescue {
            active: self.active.take(),
            prepared: self.supply.take_prepared(),
            from,
            next: if self.config.faults.has(Fault::OffsetReused) { from } else { self.watermarks.received },
            held,
            producers: self.sequencer.producers().clone(),
            rewritten: self.rewritten,
            lost: self.lost.clone(),
        })))
    }
}
