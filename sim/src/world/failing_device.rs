//! A failing device, on top of bit rot: sectors that give EIO for good, in a life or between two, and a `clad.meta` of
//! which neither slot is left.
//!
//! Invariants, checked with the rest of the model:
//! - A sector that cannot be read costs no more than rot there would: the records in its block (of a header, the
//!   segment's), each reported as a gap. The sector stays bad over kills, power cuts and starts, and goes with a file
//!   that is used again. Half of them take no write either: a write or sync that meets one fails, with all
//!   consequences.
//! - A start may refuse for it, again and again, and then says for which file: the segment whose header is not given, a
//!   segment that takes no footer, `clad.meta`. What it refuses for a header or `clad.meta` that cannot be read has
//!   changed nothing.
//! - Then the operator does what the refusal says. The device gives the header again, or `repair` takes the segment
//!   away: it is missing then, by name, and what is left continues as after rot. What takes no write is copied to sound
//!   sectors; of a sealed segment with zeroes for what cannot be read. `clad.meta` is given back.
//! - While nothing can be appended for it nothing is acknowledged; on sound sectors it continues by itself.

use std::collections::BTreeSet;

use clad_journal::OpenError;
use clad_journal::clock::Clock;
use clad_journal::format::meta::SLOT;
use clad_journal::format::{META_NAME, parse_segment_name, segment_name};
use clad_journal::repair::repair_storage;

use super::World;
use super::model::{Check, ensure};
use crate::disk::SECTOR;

/// Bytes read at once where a larger piece fails: with one sector all of it is out of reach.
const BLOCK: u64 = 4096;
/// Starts that may be refused in a row for the failing device, before an attempt counts.
pub(super) const REFUSALS: u64 = 24;

/// Failures of the device, and their repairs.
#[derive(Default)]
pub(super) struct FailingDevice {
    /// Segments that ever had a bad sector.
    pub(super) hit: BTreeSet<u64>,
    /// Segments that `repair` took away, or may have.
    pub(super) moved: BTreeSet<u64>,
    /// The start that was just tried was refused for the failing device.
    pub(super) refused: bool,
}

/// Obstacle named by a refusal.
enum InTheWay {
    Segment(u64),
    Meta,
}

impl World {
    /// A sector goes bad, or `clad.meta` loses both slots.
    pub(super) fn damage_device(&mut self) {
        match self.rng.below(16) {
            0 | 1 => return self.lose_meta(),
            2 => {
                let slot = self.rng.below(2);
                return self.spoil_slot(slot);
            }
            _ => {}
        }
        let names: Vec<_> = self.disk.names().into_iter().filter(|n| parse_segment_name(n).is_some()).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.rng.index(names.len())].clone();
        let (part, pick) = (self.rng.below(8), self.rng.number());
        let Some((header, data_end, len)) = self.landmarks(&name) else { return };
        let within = |from: u64, to: u64| from + pick % to.saturating_sub(from).max(1);
        let pos = match part {
            0 => within(0, header),
            1 | 2 => within(data_end, len),
            3 => within(0, len),
            _ => within(header, data_end),
        };
        if pos < len {
            self.add_bad_sector(&name, pos);
        }
        self.whole_segments();
    }

    fn add_bad_sector(&mut self, name: &str, pos: u64) {
        let for_writes = self.rng.coin();
        if for_writes {
            self.disk.ruin(name, pos)
        } else {
            self.disk.spoil(name, pos)
        }
        self.note(|| format!("the sector of {name} at {pos} goes bad (for writes too: {for_writes})"));
        if let Some(number) = parse_segment_name(name) {
            self.failing_device.hit.insert(number);
            self.sealed.remove(name);
        }
        self.stats.bad_sectors += 1;
        (self.planned, self.disturbed) = (true, true);
    }

    fn spoil_slot(&mut self, slot: u64) {
        if self.disk.peek(META_NAME).is_some_and(|bytes| bytes.len() == 2 * SLOT) {
            let at = slot * SLOT as u64 + self.rng.below(SLOT as u64);
            self.add_bad_sector(META_NAME, at);
        }
    }

    /// Each slot rots, or is not given any more.
    fn lose_meta(&mut self) {
        for slot in 0..2 {
            if self.rng.chance(1, 4) {
                self.spoil_slot(slot);
            } else {
                self.slot_bit_rot(slot);
            }
        }
    }

    /// The bytes of a file as far as the device gives them; what it does not give is nothing.
    pub(super) fn legible(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = self.disk.peek(name)?;
        for block in self.bad_blocks(name) {
            let from = (block as usize).min(bytes.len());
            let to = (from + BLOCK as usize).min(bytes.len());
            bytes[from..to].fill(0);
        }
        Some(bytes)
    }

    /// Where the blocks begin that a file's device does not give.
    pub(super) fn bad_blocks(&self, name: &str) -> BTreeSet<u64> {
        let of_block = |sector: u64| sector * SECTOR as u64 / BLOCK * BLOCK;
        let bad = if self.settings.failing_device { self.disk.bad_sectors(name) } else { Vec::new() };
        bad.into_iter().map(of_block).collect()
    }

    /// True if any file of the log has a bad sector.
    pub(super) fn has_bad_sectors(&self) -> bool {
        self.settings.failing_device && self.disk.names().iter().any(|name| !self.bad_blocks(name).is_empty())
    }

    /// The obstacle that a start names, if there is one.
    fn in_the_way(&self, error: &OpenError) -> Option<InTheWay> {
        match error {
            OpenError::MetaLost { .. } | OpenError::Remains { .. } => Some(InTheWay::Meta),
            OpenError::Unreadable { segment, .. } => {
                let first = self.bad_blocks(&segment_name(*segment)).contains(&0);
                first.then_some(InTheWay::Segment(*segment))
            }
            OpenError::Io { what, .. } if what.contains(META_NAME) => {
                (!self.bad_blocks(META_NAME).is_empty()).then_some(InTheWay::Meta)
            }
            OpenError::Io { what, .. } => {
                let names = self.disk.names().into_iter().filter(|name| !self.bad_blocks(name).is_empty());
                let mut numbers = names.filter_map(|name| Some((parse_segment_name(&name)?, name)));
                let is_named = |(number, name): &(u64, String)| {
                    what.contains(name.as_str()) || what.contains(&format!("segment {number}"))
                };
                numbers.find(is_named).map(|(number, _)| InTheWay::Segment(number))
            }
            _ => None,
        }
    }

    /// A start was refused. Returns true if that is for the failing device; then it may have been repaired. `same`: it
    /// has changed nothing.
    pub(super) fn refused_for_bad_sectors(&mut self, error: &OpenError, same: bool) -> Check<bool> {
        let Some(what) = self.settings.failing_device.then(|| self.in_the_way(error)).flatten() else {
            return Ok(false);
        };
        let must_not_touch = match (error, &what) {
            (OpenError::Io { what, .. }, _) => what.starts_with("read "),
            _ => true,
        };
        ensure(same || !must_not_touch, || format!("the start was refused, and has changed something: {error}"))?;
        self.stats.refused += 1;
        self.failing_device.refused = true;
        // It is not repaired at once: it is refused again.
        if self.rng.chance(1, 3) {
            return Ok(true);
        }
        match what {
            InTheWay::Meta => {
                self.give_meta_back();
                self.disk.heal(META_NAME, 0, 2 * SLOT as u64);
                self.note(|| "clad.meta lies on sound sectors".to_owned());
            }
            InTheWay::Segment(number) => {
                let name = segment_name(number);
                match (error, self.rng.coin()) {
                    (OpenError::Unreadable { .. }, true) => self.take_away()?,
                    (OpenError::Unreadable { .. }, false) => {
                        self.disk.heal(&name, 0, BLOCK);
                        self.note(|| format!("the header of {name} is given again"));
                    }
                    _ => self.copy(&name),
                }
            }
        }
        Ok(true)
    }

    /// `clactl repair`, because of a segment whose header is not given: it takes all such away.
    fn take_away(&mut self) -> Check {
        self.whole_segments();
        self.disk.kill();
        self.disk = self.disk.reopen();
        // Cut in the middle, it may have taken any of these away.
        let names = self.disk.names().into_iter().filter(|name| self.bad_blocks(name).contains(&0));
        let headless: Vec<_> = names.filter_map(|name| parse_segment_name(&name)).collect();
        self.failing_device.moved.extend(headless.iter().copied());
        let clock: &dyn Clock = self.clock.as_ref();
        let done = repair_storage(&self.disk, "simulated", clock, false);
        if !self.disk.is_alive() {
            return Ok(()); // cut in the middle
        }
        self.note(|| format!("repair: {done:?}"));
        if done.is_ok() {
            let left = self.disk.names();
            let stays = headless.iter().find(|number| left.contains(&segment_name(**number)));
            ensure(stays.is_none(), || format!("repair leaves segment {stays:?} where it is: {done:?}"))?;
            self.stats.repaired += headless.len() as u64;
        }
        // Segments that it has sealed again are held against what is read.
        self.sealed.clear();
        Ok(())
    }

    /// The log stands still for the failing device: the device is exchanged, with the bytes that it gives.
    pub(super) fn exchange_the_device(&mut self) {
        for name in self.disk.names().into_iter().filter(|name| !name.ends_with('/')) {
            self.copy(&name);
        }
    }

    fn copy(&mut self, name: &str) {
        if !self.bad_blocks(name).is_empty() {
            self.whole_segments();
            // The footer of a sealed segment may have abandoned what could not be read: then it does not come again.
            // Without a footer zeroes would say that nothing was ever there.
            match self.has_footer(name) {
                true => self.disk.copy(name),
                false => self.disk.heal(name, 0, u64::MAX / 2),
            }
            self.note(|| format!("{name} is copied to sound sectors"));
        }
    }
}
