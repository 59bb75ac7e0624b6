//! Small scenes on the simulated disk, each about one promise that whole histories touch too rarely.

pub(crate) mod overtaken;
pub(crate) mod room;
pub(crate) mod unsynced;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clad_journal::format::checksum::plain;
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::Storage;
use clad_journal::stepper::{Kind, Next, Stepper};
use clad_journal::{Accepting, Append, Event, JournalConfig, Level, Permit, Policy, Retention};
use clad_sim::disk::{Fault as DiskFault, OpKind, Options, Survival};
use clad_sim::world::Tap;
use clad_sim::{SimClock, SimDisk};
use tokio::sync::Semaphore;

const SEGMENT: &str = "00000000000000000000.clog";
/// Where the first batch lies.
const BATCHES: u64 = 4096;

/// Seeds of the scenes in which the disk chooses what is left.
const LATE: u64 = 128;
const TORN: u64 = 32;

pub(crate) struct Stage {
    pub(crate) disk: SimDisk,
    tap: Tap,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) config: JournalConfig,
    journal: Option<Stepper>,
    pub(crate) sequence: u64,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::on(SimDisk::new(1))
    }

    fn on(disk: SimDisk) -> Self {
        let config = JournalConfig {
            policy: Policy::PerMessage,
            segment_bytes: 64 << 10,
            max_append_bytes: 16 << 10,
            reserve_free: 0,
            ..JournalConfig::default()
        };
        let clock = SimClock::new(disk.boot_id());
        let tap = Tap::new(disk.clone(), None);
        let events = Arc::default();
        let mut stage = Self { disk, tap, clock, config, journal: None, sequence: 0, events };
        stage.start();
        stage
    }

    pub(crate) fn start(&mut self) {
        self.journal = None;
        self.disk = self.disk.reopen();
        self.tap = Tap::new(self.disk.clone(), None);
        let storage = Arc::new(self.tap.clone());
        let events = self.events.clone();
        let observer = Arc::new(move |event: &Event| events.lock().unwrap().push(event.clone()));
        self.journal = Some(Stepper::open(storage, self.clock.clone(), self.config, observer).unwrap());
    }

    pub(crate) fn cut_power(&mut self, survival: Survival) {
        self.journal = None;
        self.disk.power_cut_as(survival);
        self.clock.reboot(self.disk.boot_id(), Duration::from_secs(1));
    }

    /// The process dies, with whatever it had in flight.
    pub(crate) fn die(&mut self) {
        self.journal = None;
        self.disk.kill();
    }

    pub(crate) fn journal(&self) -> &Stepper {
        self.journal.as_ref().expect("it was started")
    }

    pub(crate) fn append(&mut self, bytes: usize, permits: Option<&Arc<Semaphore>>) -> u64 {
        self.append_for(Level::Durable, bytes, permits)
    }

    fn append_for(&mut self, level: Level, bytes: usize, permits: Option<&Arc<Semaphore>>) -> u64 {
        let payload = vec![(self.sequence as u8).wrapping_add(1); bytes];
        let permit = permits.map(|p| {
            p.try_acquire_many(100).unwrap().forget();
            Permit::new(p.clone(), 100)
        });
        let given = self.journal().append(Append {
            producer: [1; 16],
            owner: 7,
            producer_epoch: 1,
            first_sequence: self.sequence,
            count: 1,
            gap: false,
            level,
            min_time_ns: 1,
            max_time_ns: 2,
            peer_meta: b"scene",
            payload: &payload,
            payload_checksum: plain(&payload),
            permit,
        });
        self.sequence += 1;
        given.unwrap().first_offset
    }

    /// The next job is begun and brought to its end.
    fn one_job(&self, kind: Kind) {
        let Next::Job(job) = self.journal().begin() else { panic!("nothing to do") };
        assert_eq!(job.kind, kind);
        self.journal().execute(job);
    }

    /// Everything that can be done now.
    pub(crate) fn run(&self) {
        while let Next::Job(job) = self.journal().begin() {
            self.journal().execute(job);
        }
    }

    /// Idle for long enough that a commit marker has the last watermarks.
    pub(crate) fn rest(&self) {
        self.run();
        self.clock.step(Duration::from_millis(200));
        self.run();
    }

    pub(crate) fn read(&self, offset: u64) -> Option<Vec<u8>> {
        self.read_below(Level::Durable, offset)
    }

    fn read_below(&self, level: Level, offset: u64) -> Option<Vec<u8>> {
        let batch = self.journal().reader(offset, level).next_batch().ok()??;
        let (at, chunk) = batch.chunks().next()?.ok()?;
        (at == offset).then(|| chunk.payload.to_vec())
    }
}

/// Appends come as fast as they are taken while the disk fills, and nobody looks for space meanwhile, or somebody does
/// after every few. Whatever has an offset is written all the same, on the disk as it is; then the journal ends cleanly.
pub(crate) fn full_disk() {
    for (segments, every) in (1..4).flat_map(|n| [1, 7, 40, u64::MAX].map(|every| (n, every))) {
        let mut stage = Stage::new();
        stage.config.policy = Policy::GROUP_COMMIT;
        let space = stage.disk.space().unwrap();
        stage.disk.set_capacity(space.total - space.free + segments * (64 << 10) + (12 << 10));
        stage.start();
        let mut held = Vec::new();
        for n in 0..400 {
            let payload = [7; 4000];
            let given = stage.journal().append(one(stage.sequence, &payload));
            stage.sequence += u64::from(given.is_ok());
            if n % every == every - 1 {
                stage.journal().prepare();
            }
            // Two writes at most, each a while after it was begun.
            if let Next::Job(job) = stage.journal().begin() {
                held.push(job);
            }
            if held.len() > 1 || n % 3 == 0 {
                held.drain(..).for_each(|job| stage.journal().execute(job));
            }
        }
        held.drain(..).for_each(|job| stage.journal().execute(job));
        stage.run();
        let watermarks = stage.journal().watermarks();
        let what = format!("{segments} segments, a look after every {every}: {watermarks:?}");
        assert!(watermarks.received >= segments * 10 && watermarks.accepting == Accepting::NoSpace, "{what}");
        assert_eq!(watermarks.durable, watermarks.received, "{what}");
        stage.journal().close();
        stage.run();
        assert!(matches!(stage.journal().begin(), Next::Exit) && stage.journal().meta().clean, "{what}");
    }
}

pub(crate) fn one(first_sequence: u64, payload: &[u8]) -> Append<'_> {
    Append {
        producer: [1; 16],
        owner: 7,
        producer_epoch: 1,
        first_sequence,
        count: 1,
        gap: false,
        level: Level::Durable,
        min_time_ns: 1,
        max_time_ns: 2,
        peer_meta: b"scene",
        payload,
        payload_checksum: plain(payload),
        permit: None,
    }
}

/// The bytes that admission counted are in memory until the write is done, and so are their permits.
pub(crate) fn permits() {
    let mut stage = Stage::new();
    let permits = Arc::new(Semaphore::new(100));
    stage.append(50, Some(&permits));
    let Next::Job(job) = stage.journal().begin() else { panic!("nothing to write") };
    assert!(stage.journal().in_flight_bytes() > 0);
    assert_eq!(permits.available_permits(), 0, "given back while the write is in flight");
    stage.journal().execute(job);
    stage.run();
    assert_eq!((stage.journal().in_flight_bytes(), permits.available_permits()), (0, 100));
}

/// Bit rot in acknowledged data, with and without another boot: it is named, and everything around it stays.
pub(crate) fn damage() {
    for (lost, cut) in (0..3).flat_map(|lost| [(lost, true), (lost, false)]) {
        let mut stage = Stage::new();
        (0..3).for_each(|_| {
            stage.append(5000, None); // more than a block: each batch has sectors of its own
            stage.run();
        });
        stage.rest();
        let bytes = stage.disk.peek(SEGMENT).unwrap();
        let payload = [lost as u8 + 1; 64];
        let at = bytes.windows(64).position(|w| w == payload).unwrap() as u64 + 2000;
        stage.disk.flip(SEGMENT, at, 4);
        if cut {
            // The last commit marker is not synced. Where a cut takes it along, what lies behind the damage is proven by nobody.
            stage.cut_power(Survival::All);
        } else {
            stage.journal = None;
            stage.disk.kill();
        }
        stage.start();
        let report = stage.journal().report().clone();
        let named: Vec<_> = report.damage.iter().map(|d| (d.from, d.to)).collect();
        assert_eq!(named, [(lost, lost + 1)], "{report}");
        assert_eq!((report.cut_at, report.next_offset), (None, 3), "{report}");
        // What was given up once stays so, also where the disk thinks better of it: it may be stored again by then. (Where
        // the last batch was, there is the footer now.)
        for again in [false, true] {
            if again && lost < 2 {
                stage.disk.flip(SEGMENT, at, 4);
            }
            for offset in 0..3 {
                let there = stage.read(offset).is_some();
                assert_eq!(there, offset != lost, "offset {offset} of which {lost} is damaged, flipped back: {again}");
            }
        }
    }
}

/// A batch that nothing confirms and that is not intact is cut off, and its bytes go to quarantine.
pub(crate) fn tail() {
    let mut stage = Stage::new();
    stage.append(500, None);
    stage.run();
    stage.disk.flip(SEGMENT, BATCHES + 300, 1);
    let found = stage.disk.peek(SEGMENT).unwrap();
    stage.cut_power(Survival::None);
    stage.start();
    let report = stage.journal().report().clone();
    assert_eq!(report.next_offset, 0, "{report}");
    let quarantined: Vec<_> = stage.disk.names().into_iter().filter(|n| n.starts_with("quarantine/0")).collect();
    assert_eq!((quarantined.len(), report.quarantined.clone()), (1, quarantined.clone()), "{report}");
    let kept = stage.disk.peek_durable(&quarantined[0]).unwrap();
    assert_eq!(kept[..256], found[BATCHES as usize..BATCHES as usize + 256]);
}

/// Killed, or without power, in the write with which `clad.meta` passes a segment: no segment is missing afterwards.
pub(crate) fn retention() {
    // The seed says what of the write is left.
    for (seed, fault) in (0..16).flat_map(|seed| [(seed, DiskFault::PowerCut), (seed, DiskFault::Kill)]) {
        let mut stage = Stage::on(SimDisk::new(seed));
        stage.config.retention = Retention { max_bytes: 16 << 10, ..Retention::default() };
        stage.start();
        (0..4).for_each(|_| {
            stage.append(10_000, None);
            stage.run();
            stage.journal().request_rotate();
            stage.run();
        });
        stage.disk.fail_next(OpKind::SyncedWrite, "clad.meta", fault);
        stage.journal().retain();
        assert!(!stage.disk.is_alive(), "nothing was removed");
        stage.journal = None;
        if fault == DiskFault::PowerCut {
            stage.clock.reboot(stage.disk.boot_id(), Duration::from_secs(1));
        }
        stage.start();
        let report = stage.journal().report().clone();
        assert!(report.missing.is_empty() && report.next_offset == 4, "seed {seed}, {fault:?}: {report}");
    }
}

/// Distinction of a segment's bytes from those of any other file: a salt of its own.
pub(crate) fn salt() {
    let mut stage = Stage::new();
    let mut salts = Vec::new();
    (0..4).for_each(|number| {
        stage.append(100, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
        let bytes = stage.disk.peek(&format!("{number:020}.clog")).unwrap();
        salts.push(SegmentHeader::decode(&bytes).unwrap().salt);
    });
    salts.sort_unstable();
    salts.dedup();
    assert_eq!((salts.len(), salts.contains(&0)), (4, false));
}

/// A write repeats the acknowledged bytes of the block it begins in. When it fails, that block may be gone from the
/// disk: what was in it is written again elsewhere, from memory.
pub(crate) fn shared_block() {
    let mut stage = Stage::new();
    let acknowledged = stage.append(200, None);
    stage.run();
    assert_eq!(stage.journal().watermarks().durable, 1);
    stage.append(200, None);
    stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
    stage.run();
    stage.disk.spoil(SEGMENT, BATCHES); // the device could not finish the sector
    stage.clock.step(Duration::from_secs(2));
    stage.run();
    stage.rest();
    stage.cut_power(Survival::None);
    stage.start();
    assert_eq!(stage.read(acknowledged), Some(vec![1; 200]), "{}", stage.journal().report());
}

/// Recovery in the process fails at any one of its operations, and retention takes what it may before the next attempt:
/// that one comes to an end all the same, and nothing is lost that was not to go.
pub(crate) fn recovery_again() {
    let failed = || {
        let mut stage = Stage::new();
        stage.config.retention = Retention { max_bytes: 1, ..Retention::default() };
        stage.start();
        (0..2).for_each(|_| {
            stage.append(3000, None);
            stage.run();
            stage.journal().request_rotate();
            stage.run();
        });
        stage.append(3000, None);
        stage.run();
        stage.append(3000, None);
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
        stage.run();
        stage.clock.step(Duration::from_secs(2));
        stage
    };
    let well = failed();
    let from = well.disk.ops();
    well.run();
    let to = well.disk.ops();
    assert_eq!(
        (well.journal().watermarks().durable, to > from + 30),
        (4, true),
        "it recovers in {} operations",
        to - from
    );
    for at in from..to {
        let mut stage = failed();
        stage.disk.fail_at(at, DiskFault::Io);
        stage.run();
        stage.journal().retain();
        stage.disk.clear_faults();
        stage.clock.step(Duration::from_secs(10));
        stage.run();
        let context = format!("operation {at}, of {from} to {to}: {:?}", stage.journal().watermarks());
        assert_eq!(stage.append(3000, None), 4, "{context}");
        stage.run();
        assert_eq!((2..5).map(|o| stage.read(o).is_some()).collect::<Vec<_>>(), [true; 3], "{context}");
    }
}

/// The file of a removed segment waits to be the next one, with its old batches still in it: a start does not take it for
/// one in use, after a clean end as after a kill.
pub(crate) fn used_again() {
    for clean in [true, false] {
        let options = Options { zeroing_pays: true, ..Options::default() };
        let mut stage = Stage::on(SimDisk::with_options(1, options));
        stage.config.retention = Retention { max_bytes: 1, ..Retention::default() };
        stage.start();
        (0..2).for_each(|_| {
            for _ in 0..3 {
                stage.append(14_000, None);
            }
            stage.run();
            stage.journal().request_rotate();
            stage.run();
        });
        stage.append(100, None);
        stage.run();
        let (used, again) = ("00000000000000000001.clog", "00000000000000000004.clog");
        let old = stage.disk.peek(used).unwrap();
        stage.journal().retain();
        let prepared = stage.disk.peek(again).unwrap();
        let batches = BATCHES as usize..BATCHES as usize + 14_000;
        assert_eq!((stage.disk.peek(used), &prepared[batches.clone()]), (None, &old[batches]), "it is not used again");
        if clean {
            stage.journal().close();
            stage.run();
        }
        stage.journal = None;
        stage.disk.kill();
        stage.start();
        let report = stage.journal().report().clone();
        assert_eq!((report.clean, report.scanned), (clean, u32::from(!clean)), "{report}");
        assert_eq!((report.next_offset, report.quarantined.as_slice()), (7, &[][..]), "{report}");
        stage.append(100, None);
        stage.rest();
        assert_eq!(stage.read(7), Some(vec![8; 100]), "{}", stage.journal().report());
    }
}

/// The file of a segment that is known to be damaged is not used again: it goes, as its device cannot be trusted with the
/// next one. An undamaged one, in the same scene, is.
pub(crate) fn damaged_goes() {
    // The second start has put the second segment to use.
    let used = "00000000000000000001.clog";
    for damaged in [false, true] {
        let options = Options { zeroing_pays: true, ..Options::default() };
        let mut stage = Stage::on(SimDisk::with_options(1, options));
        stage.config.retention = Retention { max_bytes: 1, ..Retention::default() };
        stage.start();
        for _ in 0..3 {
            stage.append(14_000, None);
        }
        stage.run();
        let bytes = stage.disk.peek(used).unwrap();
        if damaged {
            let at = bytes.windows(64).position(|w| w == [1; 64]).unwrap() as u64 + 8000;
            stage.disk.flip(used, at, 4);
        }
        stage.journal = None;
        stage.disk.kill();
        stage.start();
        assert_eq!(stage.journal().report().damage.len(), usize::from(damaged), "{}", stage.journal().report());
        for _ in 0..2 {
            stage.append(100, None);
            stage.run();
            stage.journal().request_rotate();
            stage.run();
        }
        stage.append(100, None);
        stage.run();
        stage.journal().retain();
        let names = stage.disk.names().into_iter().filter(|name| name.ends_with(".clog"));
        let has_old = |name: &String| stage.disk.peek(name).is_some_and(|b| b.windows(64).any(|w| w == [1; 64]));
        let again: Vec<_> = names.filter(has_old).collect();
        assert!(!again.contains(&used.to_owned()), "it was not removed");
        assert_eq!(again.len(), usize::from(!damaged), "damaged: {damaged}, used again as {again:?}");
    }
}

/// A direct write that a killed process had in flight lands at any time after: the start waits for it, and concludes and
/// seals only then. Which of these writes come late, and when, is the seed's choice.
pub(crate) fn late_write() {
    let mut late = 0;
    for seed in 0..LATE {
        let mut stage = Stage::on(SimDisk::new(seed));
        for _ in 0..3 {
            stage.append(500, None);
            stage.run();
        }
        stage.append(9000, None);
        stage.tap.die_with(1);
        stage.one_job(Kind::Write);
        stage.die();
        late += stage.disk.late_writes();
        stage.start();
        let next = stage.journal().report().next_offset;
        stage.sequence = next;
        let after = stage.append(700, None);
        stage.rest();
        stage.disk.land_late_writes();
        stage.die();
        stage.start();
        let report = stage.journal().report();
        assert!(!report.is_damaged(), "seed {seed}: {report}");
        assert_eq!(stage.read(after), Some(vec![after as u8 + 1; 700]), "seed {seed}: {report}");
        for offset in 0..3 {
            assert_eq!(stage.read(offset), Some(vec![offset as u8 + 1; 500]), "seed {seed}: {report}");
        }
    }
    assert!(late >= LATE as usize / 8, "only {late} writes came late");
}

/// Batches that were in flight behind the cut stay where they were: nothing is appended to a segment that was cut. In its
/// place they come back as witnesses of records that nobody was given.
pub(crate) fn behind_the_cut() {
    let mut seen = 0;
    for seed in 0..TORN {
        let mut stage = Stage::new();
        stage.disk = SimDisk::new(seed);
        stage.config.policy = Policy::GroupCommit { max_delay: Duration::ZERO, max_bytes: 1 << 20, in_flight: 4 };
        stage.clock = SimClock::new(stage.disk.boot_id());
        stage.start();
        let first = stage.append(5000, None);
        stage.run();
        assert_eq!(stage.journal().watermarks().durable, 1);
        // Two are written and not synced when the third is, which confirms them.
        for _ in 0..2 {
            stage.append_for(Level::Written, 9000, None);
            stage.one_job(Kind::Write);
        }
        let Next::Job(_never_ends) = stage.journal().begin() else { panic!("a sync is due") };
        stage.append_for(Level::Written, 9000, None);
        stage.one_job(Kind::Write);
        assert_eq!((stage.journal().watermarks().written, stage.journal().watermarks().durable), (4, 1));
        stage.cut_power(Survival::Writes);
        let on_disk = stage.disk.peek(SEGMENT).unwrap();
        let whole = |fill: u8| on_disk.windows(9000).any(|w| w.iter().all(|b| *b == fill));
        if whole(2) || !whole(4) {
            continue; // the cut is not below a batch that is there
        }
        seen += 1;
        stage.start();
        let report = stage.journal().report();
        assert_eq!((report.next_offset, report.cut_at), (1, Some(1)), "seed {seed}: {report}");
        stage.sequence = 1;
        let after = stage.append(700, None);
        stage.rest();
        stage.die();
        stage.start();
        let report = stage.journal().report().clone();
        assert_eq!((report.damage.as_slice(), report.next_offset), (&[][..], 2), "seed {seed}: {report}");
        assert_eq!((stage.read(first), stage.read(after)), (Some(vec![1; 5000]), Some(vec![2; 700])), "{report}");
    }
    assert!(seen > 0, "no batch lay behind a cut");
}

/// A recovery in the process that fails on a full disk is made again in the space that it has: what it would give back is
/// somebody else's at once.
pub(crate) fn recovery_keeps_its_space() {
    let mut over = 0;
    // What of the failed write has landed is the seed's choice.
    for seed in 0..16 {
        let mut stage = Stage::on(SimDisk::new(seed));
        let first = stage.append(500, None);
        stage.run();
        stage.journal().prepare();
        let second = stage.append(500, None);
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
        stage.run();
        stage.disk.fail_next(OpKind::SyncAll, ".tmp", DiskFault::Io);
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        assert!(stage.disk.names().iter().any(|name| name.ends_with(".tmp")), "{:?}", stage.disk.names());
        // Full, and whoever wants more than two blocks of what comes free is there first.
        let free = stage.disk.space().unwrap().free;
        stage.disk.set_capacity((1 << 40) - free - (56 << 10));
        for _ in 0..3 {
            stage.clock.step(Duration::from_secs(60));
            stage.run();
        }
        let names = stage.disk.names();
        assert!(!names.iter().any(|name| name.ends_with(".tmp")), "seed {seed}: not written elsewhere: {names:?}");
        // What has landed goes to quarantine, for which it takes a block more.
        over += usize::from(stage.journal().watermarks().accepting != Accepting::Failed);
        stage.disk.set_capacity(1 << 40);
        stage.clock.step(Duration::from_secs(60));
        stage.run();
        let watermarks = stage.journal().watermarks();
        assert_eq!(
            (watermarks.failures, watermarks.durable, watermarks.accepting),
            (1, 2, Accepting::Yes),
            "seed {seed}: {watermarks:?}"
        );
        stage.die();
        stage.start();
        let report = stage.journal().report();
        assert_eq!((report.next_offset, report.damage.as_slice()), (2, &[][..]), "seed {seed}: {report}");
        assert_eq!((stage.read(first), stage.read(second)), (Some(vec![1; 500]), Some(vec![2; 500])));
    }
    assert!(over > 0, "no recovery came to its end while it was full");
}

/// The file system becomes read-only under a journal that runs, and writable again: what was acknowledged is read all the
/// time, nothing is acknowledged meanwhile, and it recovers by itself.
pub(crate) fn read_only() {
    let forget = Policy::FireAndForget { sync_interval: Duration::ZERO };
    for (policy, level) in [(Policy::PerMessage, Level::Durable), (forget, Level::Written)] {
        let mut stage = Stage::new();
        stage.config.policy = policy;
        stage.start();
        let first = stage.append_for(level, 500, None);
        stage.rest();
        stage.disk.set_read_only(true);
        let second = stage.append_for(level, 500, None);
        for _ in 0..4 {
            stage.run();
            stage.clock.step(Duration::from_secs(60));
            let watermarks = stage.journal().watermarks();
            assert_eq!((watermarks.accepting, watermarks.failures), (Accepting::Failed, 1), "{watermarks:?}");
            let found = stage.read_below(level, first);
            assert!(watermarks.written == second && found == Some(vec![1; 500]), "{watermarks:?}");
        }
        stage.disk.set_read_only(false);
        stage.clock.step(Duration::from_secs(60));
        stage.run();
        let watermarks = stage.journal().watermarks();
        assert_eq!(
            (watermarks.accepting, watermarks.failures, watermarks.written),
            (Accepting::Yes, 1, 2),
            "{watermarks:?}"
        );
        let third = stage.append_for(level, 500, None);
        stage.rest();
        stage.die();
        stage.start();
        let all = [first, second, third].map(|offset| stage.read(offset));
        assert_eq!(all, [1, 2, 3].map(|fill| Some(vec![fill; 500])), "{}", stage.journal().report());
    }
}
