//! The bytes of one file: what is on the media, what is on its way there, and what only pretends to be.
//!
//! A sector is in one of three states. Clean: reads give the media. Pending: there are versions of it, one for each
//! write since the last sync, each with the whole sector as it was after that write; reads give the last, a cut
//! leaves the media's or any version. Lied: a sync failed on it; reads go on giving the lost version, and no later
//! sync writes it. A new write makes it pending again.
//!
//! Changes of the size queue up beside the sectors and survive as a prefix, as a file system's journal keeps them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Rng;

/// Bytes that a device writes whole or not at all.
pub const SECTOR: usize = 512;
/// Bytes that space is allocated in.
pub const BLOCK: u64 = 4096;

pub(super) type Sector = [u8; SECTOR];

/// A sector as it was after one write.
#[derive(Clone)]
struct Version {
    seq: u64,
    data: Sector,
    cached: bool,
    /// Zeroes that a cut of the file put here: they stand or fall with the size.
    cut: bool,
}

#[derive(Clone)]
struct Lie {
    data: Sector,
    cached: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Write,
    Grow,
    Shrink,
}

#[derive(Clone)]
struct Resize {
    seq: u64,
    to: u64,
    cause: Cause,
}

/// One write or cut, for the choice of what survives.
pub(super) struct Pending {
    pub(super) seq: u64,
    pub(super) sectors: Vec<u64>,
}

/// The content of one file.
#[derive(Clone, Default)]
pub(super) struct Content {
    /// Bytes on the media; what lies beyond its end is zero.
    media: Vec<u8>,
    media_len: u64,
    /// Sectors that were durably written once: overwriting them needs no metadata.
    initialised: BTreeSet<u64>,
    pending: BTreeMap<u64, Vec<Version>>,
    lies: BTreeMap<u64, Lie>,
    resizes: Vec<Resize>,
    len: u64,
    blocks: BTreeSet<u64>,
    bad: BTreeSet<u64>,
    /// Likewise, and they take no write either: for good.
    ruined: BTreeSet<u64>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// The bytes that would be there if nothing unsynced survived.
    pub(super) fn durable(&self) -> Vec<u8> {
        let mut bytes = self.media.clone();
        bytes.resize(self.media_len as usize, 0);
        bytes
    }

    /// Fills `out` from `pos`, which lies below the end. Around the page cache, a sector that was lost there shows
    /// what the media holds.
    pub(super) fn read(&self, pos: u64, out: &mut [u8], direct: bool) {
        each_sector(pos, out.len(), |sector, within, range| {
            out[range].copy_from_slice(&self.sector(sector, direct)[within]);
        });
    }

    /// True if a sector in the range cannot be read.
    pub(super) fn is_bad(&self, pos: u64, len: usize) -> bool {
        let end = (pos + len as u64).div_ceil(SECTOR as u64);
        let sectors = pos / SECTOR as u64..end;
        len > 0 && (self.bad.range(sectors.clone()).next().is_some() || self.ruined.range(sectors).next().is_some())
    }

    /// True if a sector in the range takes no write.
    pub(super) fn is_ruined(&self, pos: u64, len: usize) -> bool {
        let end = (pos + len as u64).div_ceil(SECTOR as u64);
        len > 0 && self.ruined.range(pos / SECTOR as u64..end).next().is_some()
    }

    /// True if a sync that covers `upto` has to write to such a sector.
    pub(super) fn has_ruined_pending(&self, upto: u64) -> bool {
        let waits = |sector| self.pending.get(sector).is_some_and(|versions| versions.iter().any(|v| v.seq <= upto));
        self.ruined.iter().any(waits)
    }

    /// Sectors that cannot be read, in order.
    pub(super) fn bad_sectors(&self) -> Vec<u64> {
        self.bad.union(&self.ruined).copied().collect()
    }

    fn sector(&self, sector: u64, direct: bool) -> Sector {
        match (self.pending.get(&sector).and_then(|v| v.last()), self.lies.get(&sector)) {
            (Some(version), _) => version.data,
            (None, Some(lie)) if !(direct && lie.cached) => lie.data,
            _ => self.media_sector(sector),
        }
    }

    fn media_sector(&self, sector: u64) -> Sector {
        let mut data = [0; SECTOR];
        let start = (sector as usize * SECTOR).min(self.media.len());
        let end = (start + SECTOR).min(self.media.len());
        data[..end - start].copy_from_slice(&self.media[start..end]);
        data
    }

    fn settle_sector(&mut self, sector: u64, data: &Sector) {
        let start = sector as usize * SECTOR;
        if self.media.len() < start + SECTOR {
            self.media.resize(start + SECTOR, 0);
        }
        self.media[start..start + SECTOR].copy_from_slice(data);
        self.initialised.insert(sector);
    }

    /// Space for a range, block by block while `free` lasts; answers how many bytes of the range have some.
    pub(super) fn take_space(&mut self, pos: u64, len: u64, free: &mut u64) -> u64 {
        for block in pos / BLOCK..(pos + len).div_ceil(BLOCK) {
            if self.blocks.contains(&block) {
                continue;
            }
            if *free < BLOCK {
                return (block * BLOCK).saturating_sub(pos).min(len);
            }
            *free -= BLOCK;
            self.blocks.insert(block);
        }
        len
    }

    /// A completed, unsynced write.
    pub(super) fn write(&mut self, seq: u64, pos: u64, bytes: &[u8], cached: bool) {
        each_sector(pos, bytes.len(), |sector, within, range| {
            let mut data = self.sector(sector, false);
            data[within].copy_from_slice(&bytes[range]);
            self.pending.entry(sector).or_default().push(Version { seq, data, cached, cut: false });
            self.lies.remove(&sector);
            self.bad.remove(&sector);
        });
        let end = pos + bytes.len() as u64;
        if bytes.is_empty() {
            return;
        }
        // The size that these bytes need, should they be synced: beyond what the media has, or will have once an
        // unsynced cut is applied.
        let cut = self.resizes.iter().any(|r| r.cause == Cause::Shrink && r.to < end);
        if cut || end > self.media_len {
            self.resizes.push(Resize { seq, to: end, cause: Cause::Write });
        }
        self.len = self.len.max(end);
    }

    /// Sets the size; what comes into view is zero.
    pub(super) fn resize(&mut self, seq: u64, to: u64) {
        let cause = if to < self.len { Cause::Shrink } else { Cause::Grow };
        if to == self.len {
            return;
        }
        if cause == Cause::Shrink {
            self.cut_sectors(seq, to);
            self.blocks.retain(|block| block * BLOCK < to);
        }
        self.resizes.push(Resize { seq, to, cause });
        self.len = to;
    }

    fn cut_sectors(&mut self, seq: u64, to: u64) {
        for sector in to / SECTOR as u64..self.len.div_ceil(SECTOR as u64) {
            let before = self.sector(sector, false);
            let mut data = before;
            data[to.saturating_sub(sector * SECTOR as u64).min(SECTOR as u64) as usize..].fill(0);
            if data != before {
                self.pending.entry(sector).or_default().push(Version { seq, data, cached: true, cut: true });
                self.lies.remove(&sector);
            }
        }
    }

    /// Everything that was complete at `upto` is on the media now; with `all`, sizes that nothing was written for too.
    pub(super) fn settle(&mut self, upto: u64, all: bool) {
        let last_cut = self.resizes.iter().filter(|r| r.seq <= upto && r.cause == Cause::Shrink).map(|r| r.seq).max();
        for resize in std::mem::take(&mut self.resizes) {
            let needed = all || resize.cause == Cause::Write || last_cut.is_some_and(|cut| resize.seq <= cut);
            if resize.seq <= upto && needed {
                self.apply(&resize);
            } else {
                self.resizes.push(resize);
            }
        }
        for (sector, mut versions) in std::mem::take(&mut self.pending) {
            if let Some(last) = versions.iter().rev().find(|v| v.seq <= upto) {
                self.settle_sector(sector, &last.data);
                versions.retain(|v| v.seq > upto);
            }
            if !versions.is_empty() {
                self.pending.insert(sector, versions);
            }
        }
    }

    /// The bytes of one write are on the media now, and the size that it needs; other writes to the same sectors went
    /// with it, because a sector is written whole.
    pub(super) fn settle_write(&mut self, pos: u64, len: usize) {
        if let Some(cut) = self.resizes.iter().filter(|r| r.cause == Cause::Shrink).map(|r| r.seq).max() {
            self.settle(cut, true);
        }
        each_sector(pos, len, |sector, _, _| {
            if let Some(last) = self.pending.remove(&sector).and_then(|mut versions| versions.pop()) {
                self.settle_sector(sector, &last.data);
            }
        });
        self.media_len = self.media_len.max(pos + len as u64);
        let media_len = self.media_len;
        self.resizes.retain(|r| r.cause != Cause::Write || r.to > media_len);
    }

    /// On a device without a volatile cache a direct write is safe when it is complete, if it needs no metadata.
    pub(super) fn settle_overwrite(&mut self, pos: u64, len: usize) {
        let media_len = self.media_len;
        each_sector(pos, len, |sector, _, _| {
            if self.initialised.contains(&sector)
                && (sector + 1) * SECTOR as u64 <= media_len
                && let Some(last) = self.pending.remove(&sector).and_then(|mut versions| versions.pop())
            {
                self.settle_sector(sector, &last.data);
            }
        });
    }

    /// The dirty pages of a range have reached the device. Where it `keeps` what it takes, sectors that need no
    /// metadata are safe; everywhere they have left the page cache, so that it cannot lose them any more.
    pub(super) fn write_back(&mut self, upto: u64, pos: u64, len: u64, keeps: bool) {
        let media_len = self.media_len;
        each_sector(pos, len as usize, |sector, _, _| {
            let Some(mut versions) = self.pending.remove(&sector) else { return };
            let in_place = self.initialised.contains(&sector) && (sector + 1) * SECTOR as u64 <= media_len;
            let taken = versions.iter().rposition(|v| v.seq <= upto && v.cached && !v.cut);
            if let Some(at) = taken {
                let later = versions.split_off(at + 1);
                versions.iter_mut().for_each(|v| v.cached = false);
                if keeps && in_place {
                    let data = versions[at].data;
                    self.settle_sector(sector, &data);
                    versions.clear();
                }
                versions.extend(later);
            }
            if !versions.is_empty() {
                self.pending.insert(sector, versions);
            }
        });
    }

    /// True if a write below `len` needs no metadata: all of it was durably written once.
    pub(super) fn is_in_place(&self, len: u64) -> bool {
        let sectors = len.div_ceil(SECTOR as u64);
        len <= self.media_len
            && self.resizes.iter().all(|r| r.cause != Cause::Shrink)
            && self.initialised.range(..sectors).count() as u64 == sectors
    }

    /// A sync failed: of what it had to write, some sectors landed, and the others are marked clean and are not on the
    /// media. Answers whether any was lost in the page cache.
    pub(super) fn fail_sync(&mut self, upto: u64, rng: &mut Rng) -> bool {
        self.lose(|_, version| version.seq <= upto, rng)
    }

    /// The same for the sectors of one write.
    pub(super) fn fail_write(&mut self, pos: u64, len: usize, rng: &mut Rng) -> bool {
        let sectors = pos / SECTOR as u64..(pos + len as u64).div_ceil(SECTOR as u64);
        self.lose(|sector, _| sectors.contains(&sector), rng)
    }

    /// The same for the sectors that a range sync had to write.
    pub(super) fn fail_range(&mut self, upto: u64, pos: u64, len: u64, rng: &mut Rng) -> bool {
        let sectors = pos / SECTOR as u64..(pos + len).div_ceil(SECTOR as u64);
        self.lose(|sector, v| v.seq <= upto && v.cached && sectors.contains(&sector), rng)
    }

    /// The kernel failed to write some pages back; there was no descriptor to report it to.
    pub(super) fn fail_writeback(&mut self, rng: &mut Rng) -> bool {
        self.lose(|_, version| version.cached, rng)
    }

    /// The kernel failed to write the page cache back, and the device lost what the sectors held: none of them can be
    /// read until it is written again. Answers whether there was any.
    pub(super) fn destroy_in_writeback(&mut self) -> bool {
        let is_cached = |versions: &Vec<Version>| versions.last().is_some_and(|v| v.cached && !v.cut);
        let hit: Vec<u64> = self.pending.iter().filter(|(_, v)| is_cached(v)).map(|(sector, _)| *sector).collect();
        for sector in &hit {
            self.pending.remove(sector);
            self.bad.insert(*sector);
        }
        !hit.is_empty()
    }

    fn lose(&mut self, concerns: impl Fn(u64, &Version) -> bool, rng: &mut Rng) -> bool {
        let mut lost_cached = false;
        for (sector, mut versions) in std::mem::take(&mut self.pending) {
            match versions.iter().rposition(|v| concerns(sector, v)) {
                Some(at) if !versions[at].cut => {
                    let later = versions.split_off(at + 1);
                    let Version { data, cached, .. } = versions.swap_remove(at);
                    if rng.coin() {
                        self.settle_sector(sector, &data);
                    } else {
                        lost_cached |= cached;
                        if later.is_empty() {
                            self.lies.insert(sector, Lie { data, cached });
                        }
                    }
                    versions = later;
                }
                _ => {}
            }
            if !versions.is_empty() {
                self.pending.insert(sector, versions);
            }
        }
        lost_cached
    }

    /// The page cache drops clean pages: what was lost in it shows the media again.
    pub(super) fn evict(&mut self) {
        self.lies.retain(|_, lie| !lie.cached);
    }

    /// Unsynced writes, oldest first.
    pub(super) fn unsynced(&self) -> Vec<Pending> {
        let mut by_seq: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (sector, versions) in &self.pending {
            for version in versions.iter().filter(|v| !v.cut) {
                by_seq.entry(version.seq).or_default().push(*sector);
            }
        }
        by_seq.into_iter().map(|(seq, sectors)| Pending { seq, sectors }).collect()
    }

    /// Number of unsynced changes of the size.
    pub(super) fn unsynced_sizes(&self) -> usize {
        self.resizes.len()
    }

    /// The power is gone: the first `sizes` changes of the size stand, and of each sector the latest version for which
    /// `survives` says so, else what the media held.
    pub(super) fn cut_power(&mut self, sizes: usize, mut survives: impl FnMut(u64, u64) -> bool) {
        let resizes = std::mem::take(&mut self.resizes);
        let stand = &resizes[..sizes.min(resizes.len())];
        stand.iter().for_each(|resize| self.apply(resize));
        let last_cut = stand.iter().filter(|r| r.cause == Cause::Shrink).map(|r| r.seq).max().unwrap_or(0);
        for (sector, versions) in std::mem::take(&mut self.pending) {
            // Asked for each version, chosen or not, so that the answers do not depend on each other.
            let alive: Vec<bool> = versions.iter().map(|v| survives(v.seq, sector)).collect();
            let newest = versions.iter().zip(alive).rev().find(|(v, alive)| *alive && !v.cut && v.seq > last_cut);
            if let Some((version, _)) = newest {
                self.settle_sector(sector, &version.data);
            }
        }
        self.media.truncate(self.media_len as usize);
        self.lies.clear();
        self.len = self.media_len;
        self.blocks.retain(|block| block * BLOCK < self.len);
        self.initialised.retain(|sector| sector * (SECTOR as u64) < self.len);
    }

    fn apply(&mut self, resize: &Resize) {
        if resize.cause == Cause::Shrink {
            self.media.truncate(resize.to as usize);
            self.media_len = self.media_len.min(resize.to);
            self.initialised.retain(|sector| sector * (SECTOR as u64) < resize.to);
        } else {
            self.media_len = self.media_len.max(resize.to);
        }
    }

    /// Turns bits over, in everything that holds the byte.
    pub(super) fn flip(&mut self, pos: u64, mask: u8) {
        let (sector, at) = (pos / SECTOR as u64, pos as usize % SECTOR);
        if let Some(byte) = self.media.get_mut(pos as usize) {
            *byte ^= mask;
        } else {
            let mut data = self.media_sector(sector);
            data[at] ^= mask;
            self.settle_sector(sector, &data);
        }
        self.pending.get_mut(&sector).into_iter().flatten().for_each(|version| version.data[at] ^= mask);
        if let Some(lie) = self.lies.get_mut(&sector) {
            lie.data[at] ^= mask;
        }
    }

    pub(super) fn spoil(&mut self, pos: u64) {
        self.bad.insert(pos / SECTOR as u64);
    }

    pub(super) fn ruin(&mut self, pos: u64) {
        self.ruined.insert(pos / SECTOR as u64);
    }

    /// The device gives these bytes again, and takes others.
    pub(super) fn heal(&mut self, pos: u64, len: u64) {
        let sectors = pos / SECTOR as u64..(pos + len).div_ceil(SECTOR as u64);
        self.bad.retain(|sector| !sectors.contains(sector));
        self.ruined.retain(|sector| !sectors.contains(sector));
    }

    /// On sound sectors, with zeroes for the blocks that could not be read.
    pub(super) fn copy(&mut self) {
        let a_block = BLOCK / SECTOR as u64;
        let blocks: BTreeSet<u64> = self.bad_sectors().iter().map(|sector| sector / a_block).collect();
        for sector in blocks.iter().flat_map(|block| block * a_block..(block + 1) * a_block) {
            self.pending.remove(&sector);
            self.lies.remove(&sector);
            self.settle_sector(sector, &[0; SECTOR]);
        }
        self.bad.clear();
        self.ruined.clear();
    }
}

/// Calls back with each sector of a range: its number, the range within it, and the range within the whole.
fn each_sector(pos: u64, len: usize, mut call: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = pos + done as u64;
        let within = at as usize % SECTOR;
        let n = (SECTOR - within).min(len - done);
        call(at / SECTOR as u64, within..within + n, done..done + n);
        done += n;
    }
}
