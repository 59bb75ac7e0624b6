//! Appends without a sequence of their sender's, sent again: in flight, after every kind of end, and where the window
//! must not find them.

use std::sync::Arc;
use std::time::Duration;

use clad_journal::format::checksum::plain;
use clad_journal::format::footer::{Footer, TRAILER};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::Storage;
use clad_journal::stepper::{Kind, Next, Stepper};
use clad_journal::{Accepted, Accepting, AppendError, Item, JournalConfig, Level, Policy, ResendKey, Sender};
use clad_sim::disk::{Fault, OpKind};
use clad_sim::world::Tap;
use clad_sim::{SimClock, SimDisk};

const SEGMENT: &str = "00000000000000000000.clog";
const KEEP: Duration = Duration::from_secs(100);

type Answer = Result<Accepted, AppendError>;

fn key(number: u8) -> ResendKey {
    ResendKey { identity: u64::from(number % 2), digest: [number; 16] }
}

struct Stage {
    disk: SimDisk,
    clock: Arc<SimClock>,
    config: JournalConfig,
    journal: Option<Stepper>,
    sequence: u64,
}

impl Stage {
    fn new() -> Self {
        let disk = SimDisk::new(1);
        let config = JournalConfig {
            policy: Policy::PerMessage,
            segment_bytes: 64 << 10,
            max_append_bytes: 16 << 10,
            reserve_free: 0,
            resend_entries: 8,
            resend_keep: KEEP,
            ..JournalConfig::default()
        };
        let clock = SimClock::new(disk.boot_id());
        let mut stage = Self { disk, clock, config, journal: None, sequence: 0 };
        stage.start();
        stage
    }

    fn start(&mut self) {
        self.journal = None;
        self.disk = self.disk.reopen();
        let storage = Arc::new(Tap::new(self.disk.clone(), None));
        self.journal = Some(Stepper::open(storage, self.clock.clone(), self.config, Arc::new(|_| {})).unwrap());
    }

    fn cut_power(&mut self) {
        self.journal = None;
        self.disk.power_cut();
        self.clock.reboot(self.disk.boot_id(), Duration::from_secs(1));
        self.start();
    }

    fn restart_cleanly(&mut self) {
        self.journal().close();
        while let Next::Job(job) = self.journal().begin() {
            self.journal().execute(job);
        }
        self.journal = None;
        self.disk.kill();
        self.start();
    }

    fn journal(&self) -> &Stepper {
        self.journal.as_ref().expect("it was started")
    }

    /// An append of so many records under a key, always with another sequence, as the daemon counts them.
    fn send(&mut self, number: u8, count: u32) -> Answer {
        self.send_run(number, count, 1).pop().unwrap()
    }

    fn send_run(&mut self, number: u8, count: u32, appends: u64) -> Vec<Answer> {
        let mut peer_meta = vec![1, 5];
        key(number).encode(&mut peer_meta);
        let from = Sender {
            producer: [9; 16],
            owner: 0,
            producer_epoch: 1,
            peer_meta: &peer_meta,
            resend: Some(key(number)),
            forward: None,
        };
        let payload = [number; 20];
        let item = |n: u64| Item {
            first_sequence: self.sequence + n * u64::from(count),
            count,
            gap: true,
            level: Level::Durable,
            min_time_ns: 1,
            max_time_ns: 2,
            payload: &payload,
            payload_checksum: plain(&payload),
            share: 0,
        };
        let run: Vec<_> = (0..appends).map(item).collect();
        let answers = self.journal().append_burst(&from, &run, None);
        self.sequence += appends * u64::from(count) + 3;
        answers
    }

    /// Offset of an append that is stored by this, or was before.
    fn stored(&mut self, number: u8, count: u32) -> (u64, bool) {
        let accepted = self.send(number, count).unwrap();
        assert_eq!(accepted.count, count);
        (accepted.first_offset, accepted.duplicate)
    }

    fn settle(&self) {
        for _ in 0..200 {
            match self.journal().begin() {
                Next::Job(job) => self.journal().execute(job),
                Next::Wait(_) if self.journal().watermarks().accepting == Accepting::Yes => return,
                Next::Wait(_) => self.clock.step(Duration::from_secs(1)),
                Next::Exit => return,
            }
        }
        panic!("it does not come to rest");
    }

    /// As [`Self::settle`], on a disk that stays full.
    fn settle_somewhat(&self) {
        while let Next::Job(job) = self.journal().begin() {
            self.journal().execute(job);
        }
    }

    /// Offsets in the footer of the first segment.
    fn in_footer(&self) -> Vec<u64> {
        let bytes = self.disk.peek(SEGMENT).unwrap();
        let seed = SegmentHeader::decode(&bytes).unwrap().seed();
        let (pos, _) = Footer::locate(&bytes[bytes.len() - TRAILER..], bytes.len() as u64, &seed).unwrap();
        let (footer, _) = Footer::decode(&bytes[pos as usize..], &seed, pos).unwrap();
        footer.resends.iter().map(|entry| entry.first_offset).collect()
    }
}

#[test]
fn an_append_in_flight_is_answered_by_its_offset_and_not_before_it_is_there() {
    let mut stage = Stage::new();
    assert_eq!(stage.stored(1, 3), (0, false));
    assert_eq!(stage.stored(1, 3), (0, true), "it waits for the disk");
    let Next::Job(write) = stage.journal().begin() else { panic!("nothing to write") };
    assert_eq!(write.kind, Kind::Write);
    assert_eq!(stage.stored(1, 3), (0, true), "it is at the disk");
    assert_eq!((stage.journal().watermarks().received, stage.journal().watermarks().durable), (3, 0));
    stage.journal().execute(write);
    assert_eq!(stage.stored(1, 3), (0, true));
    assert_eq!((stage.journal().watermarks().received, stage.journal().watermarks().durable), (3, 3));
    assert_eq!(stage.stored(1, 2), (3, false), "another count is another append");
    assert_eq!(stage.stored(2, 3), (5, false));
}

#[test]
fn a_start_knows_what_was_sent_before_it() {
    for clean in [true, false] {
        let mut stage = Stage::new();
        assert_eq!((stage.stored(1, 3), stage.stored(2, 2)), ((0, false), (3, false)));
        stage.settle();
        stage.journal().request_rotate();
        stage.settle();
        assert_eq!(stage.in_footer(), [0, 3]);
        assert_eq!(stage.stored(3, 4), (5, false));
        stage.settle();
        for _ in 0..3 {
            if clean {
                stage.restart_cleanly()
            } else {
                stage.cut_power()
            }
            assert_eq!([stage.stored(1, 3), stage.stored(2, 2), stage.stored(3, 4)], [(0, true), (3, true), (5, true)]);
        }
    }
}

#[test]
fn what_a_crash_took_is_stored_again() {
    let mut stage = Stage::new();
    assert_eq!(stage.stored(1, 3), (0, false));
    stage.settle();
    assert_eq!(stage.stored(2, 2), (3, false));
    stage.cut_power();
    assert_eq!(stage.stored(3, 7), (3, false), "the offset is another's now");
    assert_eq!((stage.stored(2, 2), stage.stored(2, 2)), ((10, false), (10, true)));
    assert_eq!(stage.stored(1, 3), (0, true));
}

#[test]
fn a_footer_has_no_append_above_its_end() {
    let mut stage = Stage::new();
    stage.journal().prepare();
    assert_eq!(stage.stored(1, 3), (0, false));
    stage.settle();
    assert_eq!(stage.stored(2, 2), (3, false));
    stage.journal().request_rotate();
    let Next::Job(rotate) = stage.journal().begin() else { panic!("no rotation") };
    assert_eq!(rotate.kind, Kind::Rotate);
    stage.journal().execute(rotate);
    assert_eq!(stage.in_footer(), [0]);
    assert_eq!(stage.stored(2, 2), (3, true), "it is known all the same");
    stage.cut_power();
    assert_eq!(stage.stored(1, 3), (0, true));
    assert_eq!(stage.stored(4, 2), (3, false), "the other was in no segment");
}

#[test]
fn a_start_with_the_window_off_or_smaller_forgets() {
    let mut stage = Stage::new();
    for number in 1..=4 {
        stage.send(number, 1).unwrap();
        stage.settle();
    }
    stage.config.resend_entries = 2;
    stage.restart_cleanly();
    assert_eq!([stage.stored(3, 1), stage.stored(4, 1)], [(2, true), (3, true)], "the newest stay");
    assert_eq!(stage.stored(1, 1), (4, false));
    stage.settle();
    stage.config.resend_entries = 0;
    stage.restart_cleanly();
    assert_eq!((stage.stored(1, 1), stage.stored(1, 1)), ((5, false), (6, false)));
    stage.settle();
    stage.restart_cleanly();
    stage.config.resend_entries = 8;
    stage.restart_cleanly();
    assert_eq!(stage.stored(1, 1), (7, false), "no footer had it any more");
}

#[test]
fn a_key_counts_for_nothing_in_a_run_of_two() {
    let mut stage = Stage::new();
    let answers: Vec<_> = stage.send_run(1, 2, 2).into_iter().map(|a| a.unwrap()).collect();
    assert_eq!((answers[0].first_offset, answers[1].first_offset, answers[1].duplicate), (0, 2, false));
    assert_eq!(stage.stored(1, 2), (4, false));
}

#[test]
fn what_is_stored_is_answered_without_room_for_more() {
    let mut stage = Stage::new();
    stage.stored(1, 3);
    stage.settle();
    let space = stage.disk.space().unwrap();
    stage.disk.set_capacity(space.total - space.free);
    stage.journal().prepare();
    let mut number = 2;
    while stage.send(number, 1).is_ok() {
        number += 2;
        stage.send_run(number, 1, 60);
        stage.settle_somewhat();
        assert!(number < 250, "it is never full");
    }
    assert_eq!(stage.stored(1, 3), (0, true));
}

/// A full window is in each footer, and each segment is used to its end.
#[test]
fn a_segment_has_room_for_the_window_in_its_footer() {
    let mut stage = Stage::new();
    (stage.config.segment_bytes, stage.config.resend_entries) = (256 << 10, 1000);
    stage.restart_cleanly();
    let (mut sealed, mut number) = (0, 0u8);
    for round in 0..8000 {
        number = number.wrapping_add(1);
        stage.send(number, 1 + round / 256).unwrap();
        stage.settle_somewhat();
        stage.journal().prepare();
    }
    for name in stage.disk.names().into_iter().filter(|name| name.ends_with(".clog")) {
        let len = stage.disk.peek(&name).unwrap().len();
        assert!(len <= 256 << 10, "{name} has {len} bytes");
        sealed += u64::from(stage.disk.is_sealed_mode(&name));
    }
    assert!(sealed > 5, "{sealed} are sealed");
}

/// What a start finds damaged is no append that was sent before.
#[test]
fn what_rots_is_stored_again_after_a_start() {
    let mut stage = Stage::new();
    for number in 1..=3 {
        stage.send(number, 3).unwrap();
        stage.settle();
    }
    stage.clock.step(Duration::from_secs(1));
    stage.settle();
    let bytes = stage.disk.peek(SEGMENT).unwrap();
    let at = bytes.windows(20).position(|bytes| bytes == [2; 20]).unwrap();
    stage.disk.flip(SEGMENT, at as u64, 4);
    stage.cut_power();
    let damage: Vec<_> = stage.journal().report().damage.iter().map(|lost| (lost.from, lost.to)).collect();
    assert_eq!(damage, [(3, 6)]);
    assert_eq!([stage.stored(1, 3), stage.stored(2, 3), stage.stored(3, 3)], [(0, true), (9, false), (6, true)]);
    stage.settle();
    stage.cut_power();
    assert_eq!([stage.stored(1, 3), stage.stored(2, 3), stage.stored(3, 3)], [(0, true), (9, true), (6, true)]);
}

/// The kernel loses pages with a failed sync, and the device the first sector of them.
#[test]
fn what_a_recovery_cannot_copy_is_stored_again() {
    const APPENDS: u8 = 36;
    let mut stage = Stage::new();
    stage.config.policy = Policy::FireAndForget { sync_interval: Duration::from_secs(3600) };
    (stage.config.resend_entries, stage.config.recent_bytes) = (1000, 0);
    stage.restart_cleanly();
    for number in 1..=APPENDS {
        stage.send(number, 1).unwrap();
        stage.settle_somewhat();
    }
    stage.disk.fail_next(OpKind::SyncData, ".clog", Fault::Io);
    stage.journal().request_sync();
    stage.settle_somewhat();
    assert_eq!(stage.journal().watermarks().failures, 1);
    let has_first = |name: &String| stage.disk.peek(name).unwrap().windows(20).any(|bytes| bytes == [1; 20]);
    let name = stage.disk.names().into_iter().filter(|name| name.ends_with(".clog")).find(has_first).unwrap();
    stage.disk.spoil(&name, 4096);
    stage.disk.evict();
    stage.clock.step(Duration::from_secs(2));
    stage.settle();
    assert_eq!(stage.journal().watermarks().losses, 1);
    let end = u64::from(APPENDS);
    assert_eq!([stage.stored(1, 1), stage.stored(APPENDS, 1)], [(end, false), (end - 1, true)]);
    assert_eq!(stage.stored(1, 1), (end, true));
}

/// A sync fails: nothing is taken until the recovery, and no time passes for the window.
#[test]
fn a_recovery_keeps_what_it_copies_and_its_time_does_not_count() {
    let mut stage = Stage::new();
    stage.stored(1, 3);
    stage.settle();
    stage.clock.step(KEEP - Duration::from_secs(10));
    stage.disk.fail_next(OpKind::SyncedWrite, "", Fault::Io);
    assert_eq!(stage.stored(2, 2), (3, false));
    let Next::Job(write) = stage.journal().begin() else { panic!("nothing to write") };
    stage.journal().execute(write);
    assert!(matches!(stage.send(1, 3), Err(AppendError::Failed { .. })), "a hit is no answer now");
    stage.clock.step(KEEP * 2);
    stage.settle();
    assert_eq!([stage.stored(1, 3), stage.stored(2, 2)], [(0, true), (3, true)]);
    stage.cut_power();
    assert_eq!([stage.stored(1, 3), stage.stored(2, 2)], [(0, true), (3, true)]);
    stage.settle();
    stage.clock.step(KEEP + Duration::from_secs(2));
    stage.settle();
    assert_eq!(stage.stored(1, 3), (5, false), "its time is over");
}
