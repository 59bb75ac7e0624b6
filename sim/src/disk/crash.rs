//! Deaths of processes and machines.

use std::collections::BTreeMap;

use super::content::{Content, Pending};
use super::names::Node;
use super::state::{Action, Disk, Late};
use crate::Rng;

/// Part of the unsynced data that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Each sector of each write, by a coin.
    Half,
    /// Each sector of each write but for one in eight.
    Most,
    /// Each write whole or not at all.
    Writes,
    /// All writes up to one, of which the first sectors.
    Prefix,
    /// The latest writes only: everything reordered to the worst.
    Suffix,
    /// One to three sectors.
    Single,
}

impl Survival {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::None, Self::All, Self::Half, Self::Most, Self::Writes, Self::Prefix, Self::Suffix, Self::Single];

    pub(super) fn choose(rng: &mut Rng) -> Self {
        Self::ALL[rng.index(Self::ALL.len())]
    }

    /// Chances out of four that a change of names survives.
    fn names(self) -> u64 {
        match self {
            Self::None => 0,
            Self::All => 4,
            Self::Most => 3,
            Self::Single => 1,
            _ => 2,
        }
    }
}

/// Which sectors of which writes survive, over all files.
struct Choice {
    survival: Survival,
    /// Prefix and suffix: the write in the middle, and the first of its sectors that is lost.
    middle: (u64, u64),
    whole: BTreeMap<u64, bool>,
    single: Vec<(u64, u64)>,
}

impl Choice {
    fn new(survival: Survival, writes: &[Pending], rng: &mut Rng) -> Self {
        let mut seqs: Vec<u64> = writes.iter().map(|w| w.seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        let mut middle = (0, 0);
        if let Some(write) = (!writes.is_empty()).then(|| &writes[rng.index(writes.len())]) {
            middle = (write.seq, write.sectors[0] + rng.below(write.sectors.len() as u64 + 1));
        }
        let whole = seqs.iter().map(|seq| (*seq, rng.coin())).collect();
        let mut single = Vec::new();
        for _ in 0..if writes.is_empty() { 0 } else { 1 + rng.below(3) } {
            let write = &writes[rng.index(writes.len())];
            single.push((write.seq, write.sectors[rng.index(write.sectors.len())]));
        }
        Self { survival, middle, whole, single }
    }

    fn survives(&self, seq: u64, sector: u64, rng: &mut Rng) -> bool {
        match self.survival {
            Survival::None => false,
            Survival::All => true,
            Survival::Half => rng.coin(),
            Survival::Most => !rng.chance(1, 8),
            Survival::Writes => self.whole.get(&seq).copied().unwrap_or(false),
            Survival::Prefix => seq < self.middle.0 || (seq == self.middle.0 && sector < self.middle.1),
            Survival::Suffix => seq > self.middle.0 || (seq == self.middle.0 && sector >= self.middle.1),
            Survival::Single => self.single.contains(&(seq, sector)),
        }
    }

    fn sizes(&self, content: &Content, rng: &mut Rng) -> usize {
        match self.survival {
            Survival::None => 0,
            Survival::All => content.unsynced_sizes(),
            _ => rng.index(content.unsynced_sizes() + 1),
        }
    }
}

impl Disk {
    pub(super) fn power_cut(&mut self, survival: Survival) {
        self.drop_to_the_device();
        let writes: Vec<Pending> = self.inodes.values().flat_map(|inode| inode.content.unsynced()).collect();
        let choice = Choice::new(survival, &writes, &mut self.rng);
        let rng = &mut self.rng;
        for inode in self.inodes.values_mut() {
            let sizes = choice.sizes(&inode.content, rng);
            inode.content.cut_power(sizes, |seq, sector| choice.survives(seq, sector, rng));
            inode.locks.clear();
            inode.errors = 0;
            inode.error_reported = true;
            let mode_survives = rng.chance(survival.names(), 4);
            if !mode_survives {
                inode.sealed = inode.sealed_durable;
            }
            inode.sealed_durable = inode.sealed;
        }
        self.names.cut_power(survival.names(), rng);
        self.handles.clear();
        self.processes.clear();
        self.boots += 1;
        let Self { names, inodes, .. } = self;
        inodes.retain(|id, _| names.mentions(*id));
        for (name, node) in names.all() {
            if let Node::File(id) = node {
                inodes.get_mut(&id).expect("a name leads to it").name = name.to_owned();
            }
        }
    }

    /// All in flight reached the device, in any order; the power decides about it as about the rest.
    fn drop_to_the_device(&mut self) {
        let mut flights: Vec<_> = std::mem::take(&mut self.flights).into_values().collect();
        self.rng.shuffle(&mut flights);
        for flight in flights {
            if let Action::Write { pos, bytes, .. } = flight.action {
                self.land(flight.inode, pos, &bytes, self.is_cached(flight.handle));
            }
        }
        self.land_late(None);
    }

    pub(super) fn kill(&mut self, process: u64) {
        self.processes.remove(&process);
        let theirs: Vec<u64> = self.handles.iter().filter(|(_, h)| h.process == process).map(|(id, _)| *id).collect();
        let mut flights = std::mem::take(&mut self.flights);
        for id in flights.keys().copied().collect::<Vec<_>>() {
            if !theirs.contains(&flights[&id].handle) {
                continue;
            }
            let flight = flights.remove(&id).expect("its key was just listed");
            let handle = self.handles.get_mut(&flight.handle).expect("a flight holds its handle");
            handle.flights -= 1;
            if let Action::Write { pos, mut bytes, .. } = flight.action {
                let cached = self.is_cached(flight.handle);
                let pages = bytes.len().div_ceil(4096);
                if cached || self.rng.chance(1, 4) {
                    bytes.truncate(self.rng.index(pages + 1) * 4096);
                }
                if !cached && self.rng.coin() && !bytes.is_empty() {
                    self.handles.get_mut(&flight.handle).expect("as above").flights += 1;
                    self.late.push(Late { handle: flight.handle, inode: flight.inode, pos, bytes });
                } else {
                    self.land(flight.inode, pos, &bytes, cached);
                }
            }
        }
        self.flights = flights;
        theirs.into_iter().for_each(|handle| self.close(handle));
    }

    /// Late writes land: all of them, or those of one file.
    pub(super) fn land_late(&mut self, inode: Option<u64>) {
        let mut late = std::mem::take(&mut self.late);
        self.rng.shuffle(&mut late);
        for write in late {
            if inode.is_none_or(|inode| inode == write.inode) {
                self.land_one_late(write);
            } else {
                self.late.push(write);
            }
        }
    }

    /// Time passes for the writes of the dead.
    pub(super) fn land_some_late(&mut self) {
        if !self.late.is_empty() && self.rng.chance(1, 8) {
            let at = self.rng.index(self.late.len());
            let write = self.late.swap_remove(at);
            self.land_one_late(write);
        }
    }

    fn land_one_late(&mut self, write: Late) {
        self.land(write.inode, write.pos, &write.bytes, false);
        if let Some(handle) = self.handles.get_mut(&write.handle) {
            handle.flights -= 1;
        }
        self.release_if_unused(write.handle);
    }
}
