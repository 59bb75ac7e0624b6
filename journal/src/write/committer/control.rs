//! The write of tombstones: when a batch of them begins.

use std::sync::Arc;

use super::{Committer, Job, Step, SyncBy};
use crate::clock::Moment;
use crate::format::batch;
use crate::format::tombstone::{self, Tombstone};
use crate::io::Durability;
use crate::write::batch::Batch;
use crate::write::tombstones::{TOMBSTONES_PER_BATCH_MAX, UNSYNCED_TOMBSTONES_MAX};

impl Committer {
    /// True if no further write begins, so that due tombstones can be written.
    pub(super) fn holds_back_for_tombstones(&self) -> bool {
        let syncs = self.config.policy.syncs() || self.sequencer.tombstones.wanted;
        let waits = self.writes > 0 || (self.watermarks.written > self.watermarks.durable && syncs);
        waits && self.sequencer.tombstones.are_due()
    }

    /// Writes a batch of tombstones, which also stores the watermarks, with nothing in flight beside it. Writes
    /// nothing where it has no place: then a footer stores them.
    ///
    /// Where it is synced, everything before it is synced first. Otherwise it might be durable behind a batch that is
    /// not, and be cut off with it.
    pub(super) fn begin_tombstones(&mut self, now: Moment) -> Option<Step> {
        let synced = self.config.policy.syncs()
            || self.sequencer.tombstones.wanted
            || self.sequencer.tombstones.all.len() > UNSYNCED_TOMBSTONES_MAX;
        let written = if synced { 0 } else { self.sequencer.tombstones.written };
        // The next segment may hold waiting records of a forgotten producer: then that segment needs the tombstone.
        let ripe = self.sequencer.tombstones.all.iter().take_while(|t| t.below <= self.submitted_end);
        let all: Vec<Tombstone> = ripe.skip(written).take(TOMBSTONES_PER_BATCH_MAX).copied().collect();
        let stored = batch::LEN + all.len() * tombstone::LEN;
        let active = self.active.as_ref()?;
        let fits = active.fits(stored as u64, false, self.footer_len(active)) && self.check_room(stored).is_ok();
        if all.is_empty() || self.writes > 0 || self.control_write.is_some() || !fits {
            return None;
        }
        if synced && self.watermarks.written > self.watermarks.durable {
            self.sync_target = self.sync_target.max(self.watermarks.written);
            return None;
        }
        let slot = self.free_files.pop()?;
        let batch = Arc::new(Batch {
            epoch: self.watermarks.epoch,
            first_offset: active.end_offset,
            append_real_ns: now.real_ns,
            payload_bytes: Some(0),
            body: Tombstone::encode(&all).into(),
            ..Batch::default()
        });
        let active = self.active.as_mut()?;
        let placed = active.place(&batch, false, &self.watermarks, now);
        let (id, alone) = (self.next_id, !self.sync_running);
        self.next_id += 1;
        self.writes += 1;
        self.file_of.push((id, slot));
        if synced && self.config.policy.syncs() {
            self.unsynced = None; // of a commit marker: this write repeats its block and content
        }
        self.control_write = Some((id, placed.shares.clone()));
        self.sequencer.tombstones.in_write = written + all.len();
        self.idle_since_ns = now.boot_ns;
        let durability = if synced { Durability::Synced } else { Durability::Written };
        let (file, sync) = (active.files[slot].clone(), SyncBy::Data);
        Some(Step::Run(Job::Write { id, file, placed, durability, sync, alone }))
    }
}
