//! The crash simulation: the real journal on a simulated disk, producers around it, and a checker that knows every
//! answer they got.
//!
//! One seed makes a whole history: several lives of a journal with producers that append, send again and abandon; jobs
//! that are begun, held, and executed in any order. It has failed writes and syncs, a full disk, kills with writes in
//! flight, power cuts, and all of it again while the next start recovers. After each start everything is read back and
//! held against [`model`]'s plain statement of the promise.
//!
//! Invariants: the same seed makes the same history ([`Stats::digest`]). Only what was shown to a user while the
//! process lived is checked, so that a crash in the middle of a job promises nothing.
//!
//! With [`Settings::bit_rot`] bits turn over too, in what was acknowledged (`bit_rot.rs`); with
//! [`Settings::failing_device`] sectors go bad for good as well, and `clad.meta` as a whole (`failing_device.rs`).
//!
//! With [`Settings::write_back_fails`] the kernel loses what a commit marker repeats (`commit_markers.rs`). With
//! [`Settings::turnover`] producers come and go, more of them than there are places (`turnover.rs`). With
//! [`Settings::resends`] there are senders without a sequence (`resends.rs`), with [`Settings::forwards`] forwarders of other
//! logs (`forwards.rs`).
//!
//! Not covered: retention by age and by free space, threads (the journal's are tested with real kills), two faults of
//! one operation. The bytes on the disk at the end are part of the digest.

mod appends;
mod bit_rot;
mod client;
mod commit_markers;
mod failing_device;
mod forwards;
mod life;
mod model;
mod resends;
mod settings;
mod start;
mod tap;
mod turnover;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use clad_journal::clock::Clock;
use clad_journal::format::footer::{Footer, TRAILER};
use clad_journal::format::parse_segment_name;
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::Storage;
use clad_journal::stepper::{Begun, Stepper};
use clad_journal::{Event, JournalConfig, Policy};

use crate::{Rng, SimClock, SimDisk};
use client::Client;
use model::{Check, Model, ensure};
pub use model::{Death, Found, Violation};
pub use settings::Settings;
pub use tap::{Flaw, Tap};

/// Bytes of a disk that is not full.
const CAPACITY: u64 = 1 << 40;

/// Result of a look at the files alone.
#[derive(Clone, Debug, Default)]
pub struct Rest {
    /// Where the log begins.
    pub first: u64,
    /// The readable appends.
    pub found: Vec<Found>,
    /// Where the log ends.
    pub end: u64,
    /// Offsets that the reader said are lost.
    pub lost: Vec<(u64, u64)>,
    /// The violations.
    pub problems: Vec<String>,
}

/// Looks at the files of a dead journal, without the journal.
pub type Inspector = Box<dyn FnMut(&SimDisk) -> Rest>;

/// Counters of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Starts that succeeded.
    pub lives: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Kills.
    pub kills: u64,
    /// Starts that failed or were cut.
    pub failed_starts: u64,
    /// Recoveries in the process.
    pub rescues: u64,
    /// Clean ends.
    pub closes: u64,
    /// Appends that were answered with the offset that they had.
    pub duplicates: u64,
    /// Records that were acknowledged.
    pub acked: u64,
    /// Records that were read back and compared.
    pub read: u64,
    /// Segments whose bytes were compared with what they were when they were sealed.
    pub sealed: u64,
    /// Looks at the files alone.
    pub inspected: u64,
    /// Segments that retention removed.
    pub removed: u64,
    /// Of these, such whose file became another segment's.
    pub recycled: u64,
    /// Bits that turned over.
    pub bit_rot: u64,
    /// Ranges that were reported to readers as lost.
    pub gaps: u64,
    /// Sectors that went bad.
    pub bad_sectors: u64,
    /// Starts that were refused for what cannot be read or written, by its name.
    pub refused: u64,
    /// Segments that `repair` took away.
    pub repaired: u64,
    /// Producers that said BYE.
    pub byes: u64,
    /// Producers that came back and were unknown.
    pub returns: u64,
    /// Producers whose eviction was noticed.
    pub evicted: u64,
    /// HELLOs that had to wait until the log says what was forgotten.
    pub waits: u64,
    /// Appends that were refused for want of a place.
    pub placeless: u64,
    /// Appends without a sequence that came again, and were answered with the offset that they had.
    pub resent: u64,
    /// Records that were forwarded.
    pub forwarded: u64,
    /// Forwarded appends that were refused for another history.
    pub parted: u64,
    /// Origins that were dropped.
    pub origins_dropped: u64,
    /// Times that the log did not know where an origin goes on.
    pub origins_lost: u64,
    /// Bursts: appends that were handed over together.
    pub bursts: u64,
    /// Blocks that were lost with the write-back of a commit marker.
    pub commit_markers_lost: u64,
    /// Range syncs that the disk was asked for.
    pub range_syncs: u64,
    /// The whole history in a number.
    pub digest: u64,
}

impl Stats {
    /// Power cuts, kills and starts that failed or were cut: after each of them everything was read back and compared.
    pub fn crash_states(&self) -> u64 {
        self.cuts + self.kills + self.failed_starts
    }

    /// The counts for the closing line of `cargo xtask proof`.
    pub fn tally(&self) -> String {
        format!("states={} acks={} lost=0", self.crash_states(), self.acked)
    }

    /// Adds another world's.
    pub fn add(&mut self, o: &Self) {
        self.lives += o.lives;
        self.cuts += o.cuts;
        self.kills += o.kills;
        self.failed_starts += o.failed_starts;
        self.rescues += o.rescues;
        self.closes += o.closes;
        self.duplicates += o.duplicates;
        self.acked += o.acked;
        self.read += o.read;
        self.sealed += o.sealed;
        self.inspected += o.inspected;
        self.range_syncs += o.range_syncs;
        self.removed += o.removed;
        self.recycled += o.recycled;
        self.bursts += o.bursts;
        self.resent += o.resent;
        self.forwarded += o.forwarded;
        self.parted += o.parted;
        self.origins_dropped += o.origins_dropped;
        self.origins_lost += o.origins_lost;
        self.commit_markers_lost += o.commit_markers_lost;
        self.bit_rot += o.bit_rot;
        self.gaps += o.gaps;
        self.bad_sectors += o.bad_sectors;
        self.refused += o.refused;
        self.repaired += o.repaired;
        self.byes += o.byes;
        self.returns += o.returns;
        self.evicted += o.evicted;
        self.waits += o.waits;
        self.placeless += o.placeless;
        self.digest = self.digest.rotate_left(1) ^ o.digest;
    }
}

/// A machine, a journal on it, and its users.
pub struct World {
    settings: Settings,
    config: JournalConfig,
    rng: Rng,
    disk: SimDisk,
    tap: Tap,
    clock: Arc<SimClock>,
    stepper: Option<Stepper>,
    held: Vec<Begun>,
    model: Model,
    clients: Vec<Client>,
    turnover: Option<turnover::Turnover>,
    resends: Option<resends::Resends>,
    forwards: Option<forwards::Forwards>,
    events: Arc<Mutex<Vec<Event>>>,
    sealed: BTreeMap<String, Vec<u8>>,
    spots: Vec<bit_rot::Spot>,
    meta_spots: Vec<bit_rot::MetaSpot>,
    failing_device: failing_device::FailingDevice,
    /// Where the next start may cut the log, because of rot.
    cut: Option<u64>,
    /// Bytes that the media proved since the process died, at some time at which nothing was on its way to them.
    proven: u64,
    inspector: Option<Inspector>,
    stats: Stats,
    trace: Vec<(u64, String)>,
    /// Something was made to fail in this life, or there was no space: refusals and losses that follow are no wonder.
    disturbed: bool,
    /// A sync or write failed and took pages of the page cache along.
    shaken: bool,
    /// The operation in flight at its death now is a batch, which a ring may land late.
    writing: bool,
    /// There is no room for a further segment.
    full: bool,
    /// Others took room, and the journal has not looked since.
    unseen: bool,
    /// Offsets below may have been given when the room for them was there, which others took before the journal looked.
    squeezed: u64,
    /// An operation of this life was made to fail.
    planned: bool,
    /// One past the last operation that was made to fail.
    last_fault: u64,
    recycled_at: Option<u64>,
    /// The last that was made to fail with an error, whatever it is.
    last_error: u64,
}

impl World {
    /// A new world; nothing was started yet.
    pub fn new(seed: u64, settings: Settings) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = settings::journal(&settings, &mut rng);
        let turnover = settings.turnover(&mut config, seed);
        let resends = settings.resends(&mut config, seed);
        let forwards = settings.forwards(&mut config, seed);
        let disk = SimDisk::with_options(rng.number(), settings::machine(&settings, config.policy, &mut rng));
        let clients = (1..=2 + rng.below(4) as u8).map(Client::new).collect();
        let mut world = Self {
            clock: SimClock::new(disk.boot_id()),
            tap: Tap::new(disk.clone(), settings.flaw),
            settings,
            config,
            rng,
            disk,
            stepper: None,
            held: Vec::new(),
            model: Model::default(),
            clients,
            turnover,
            resends,
            forwards,
            events: Arc::default(),
            sealed: BTreeMap::new(),
            spots: Vec::new(),
            meta_spots: Vec::new(),
            failing_device: failing_device::FailingDevice::default(),
            cut: None,
            proven: 0,
            inspector: None,
            stats: Stats { digest: 0xCBF2_9CE4_8422_2325, ..Stats::default() },
            trace: Vec::new(),
            disturbed: false,
            shaken: false,
            writing: true,
            full: false,
            unseen: false,
            squeezed: 0,
            planned: false,
            last_fault: 0,
            recycled_at: None,
            last_error: 0,
        };
        let what = format!("{:?}", world.config);
        world.note(|| what);
        world
    }

    /// Lets an inspector look at the files of dead journals now and then.
    pub fn inspect_with(&mut self, inspector: Inspector) {
        self.inspector = Some(inspector);
    }

    /// Number of operations that the disk had seen when the first file had become another segment's.
    pub fn recycled_at(&self) -> Option<u64> {
        self.recycled_at
    }

    /// The disk, to break it.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        Stats { range_syncs: self.disk.counters().range_syncs, ..self.stats }
    }

    /// Trace of the world and of the disk, if it was recorded.
    pub fn trace(&self) -> Vec<String> {
        let ops = self.disk.trace().into_iter();
        let ops =
            ops.map(|o| (o.number, 0, format!("    {:?} {} at {} of {}: {:?}", o.kind, o.name, o.pos, o.len, o.fault)));
        let mut all: Vec<_> = self.trace.iter().map(|(op, what)| (*op, 1, what.clone())).chain(ops).collect();
        all.sort_by_key(|(op, which, _)| (*op, *which == 0));
        all.into_iter().map(|(op, _, what)| format!("op {op} {what}")).collect()
    }

    /// True if what is only `written` lies in the page cache.
    fn cached(&self) -> bool {
        match self.config.policy {
            Policy::FireAndForget { .. } => true,
            Policy::SyncFileRange { .. } => !self.disk.is_direct(),
            Policy::PerMessage | Policy::GroupCommit { .. } => false,
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.settings.trace {
            let (op, at) = (self.disk.ops(), self.clock.boot_ns() / 1000);
            self.trace.push((op, format!("{at}us {}", what())));
        }
    }

    fn eat(&mut self, numbers: &[u64]) {
        for n in numbers {
            self.stats.digest = (self.stats.digest ^ n).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
        }
    }

    fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The segments that are sealed now must stay as they are; those that were sealed before must have.
    fn check_sealed(&mut self) -> Check {
        let names: Vec<_> = self.disk.names().into_iter().filter(|n| n.ends_with(".clog")).collect();
        // What retention removed is gone, or its file has become another segment's.
        let there = self.disk.names();
        self.sealed.retain(|name, _| there.contains(name));
        for (name, known) in &self.sealed {
            let now = self.sealed_bytes(name);
            let differs = known.iter().zip(&now).position(|(a, b)| a != b);
            ensure(now == *known, || {
                format!("sealed {name} has changed: {} bytes, now {}, from {differs:?} on", known.len(), now.len())
            })?;
            self.stats.sealed += 1;
        }
        for name in names {
            let hit = self.spots.iter().any(|spot| spot.name == name);
            let hit = hit || parse_segment_name(&name).is_some_and(|number| self.failing_device.hit.contains(&number));
            if !hit && !self.sealed.contains_key(&name) && self.disk.is_sealed_mode(&name) {
                let bytes = self.sealed_bytes(&name);
                self.sealed.insert(name, bytes);
            }
        }
        self.check_noted()
    }

    /// A segment's bytes that carry meaning: those between the end of the data and the footer's block carry none.
    /// Bytes that the footer abandons carry none either, and may differ in the page cache and on the disk; a reader holds
    /// to what is stored beside it.
    fn sealed_bytes(&self, name: &str) -> Vec<u8> {
        let mut bytes = self.disk.peek(name).unwrap_or_default();
        let slack = SegmentHeader::decode(&bytes).ok().and_then(|header| {
            let (seed, len) = (header.seed(), bytes.len() as u64);
            let (pos, _) = Footer::locate(bytes.get(bytes.len() - TRAILER..)?, len, &seed)?;
            let (footer, _) = Footer::decode(&bytes[pos as usize..], &seed, pos)?;
            let from = if footer.damage.is_empty() { footer.data_end } else { u64::from(header.block_size.max(4096)) };
            Some(from as usize..pos as usize)
        });
        if let Some(slack) = slack {
            bytes[slack].fill(0);
        }
        bytes
    }

    /// Every now and then the files are looked at without the journal.
    fn inspect(&mut self) -> Check {
        // A copy to a real disk takes longer than a whole life here.
        let chosen = self.rng.chance(1, self.settings.look_every.unwrap_or(16));
        let nothing_lost = self.settings.bit_rot || self.model.lost.is_empty();
        let whole = self.model.was_opened() && nothing_lost && self.model.maybe_lost.is_empty();
        // On a real disk the bad sectors would be sound.
        let whole = whole && !self.has_lost_meta() && !self.has_bad_sectors();
        let Some(inspector) = self.inspector.as_mut().filter(|_| chosen && whole && !self.disturbed) else {
            return Ok(());
        };
        let rest = inspector(&self.disk);
        self.whole_segments();
        self.stats.inspected += 1;
        let reported = !rest.problems.is_empty();
        ensure(!reported || self.was_damaged(), || format!("the files alone: {:?}", rest.problems))?;
        ensure(reported || rest.lost.is_empty(), || format!("the files alone: {:?}, and no problem", rest.lost))?;
        ensure(reported || !self.has_bit_rot(), || "the files alone: rot, and no problem".to_owned())?;
        self.model.retained_from(rest.first)?;
        for (from, to) in &rest.lost {
            ensure(self.model.is_excused(*from, *to), || format!("the files alone: {from} to {to} are lost"))?;
        }
        // It is unknown there whether the machine was booted since.
        let cut = self.may_be_cut_at(false).unwrap_or(u64::MAX);
        let floor = self.model.floor().min(cut);
        let Violation(text) = match self.model.check_found(&rest.found, &rest.lost, rest.end, floor) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        Err(Violation(format!("the files alone: {text}")))
    }
}
