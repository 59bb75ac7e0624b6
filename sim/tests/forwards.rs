//! Appends of other logs where the disk loses some: what the table of origins says then, and what is taken again.

use std::sync::Arc;
use std::time::Duration;

use clad_journal::format::checksum::plain;
use clad_journal::stepper::{Next, Stepper};
use clad_journal::{
    Accepted, Accepting, AppendError, Forward, Item, JournalConfig, Level, Origin, Policy, Sender, StreamName,
};
use clad_sim::disk::{Fault, OpKind};
use clad_sim::world::Tap;
use clad_sim::{SimClock, SimDisk};

struct Stage {
    disk: SimDisk,
    clock: Arc<SimClock>,
    config: JournalConfig,
    journal: Option<Stepper>,
}

impl Stage {
    fn new(policy: Policy) -> Self {
        let disk = SimDisk::new(1);
        let config = JournalConfig {
            policy,
            segment_bytes: 256 << 10,
            max_append_bytes: 16 << 10,
            reserve_free: 0,
            recent_bytes: 0,
            max_origins: 1024,
            ..JournalConfig::default()
        };
        let clock = SimClock::new(disk.boot_id());
        let mut stage = Self { disk, clock, config, journal: None };
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

    fn journal(&self) -> &Stepper {
        self.journal.as_ref().expect("it was started")
    }

    /// One record at this offset of the log `source`.
    fn forward(&self, source: u8, at: u64) -> Result<Accepted, AppendError> {
        let origin = Origin { source: [source; 16], stream: StreamName::new(b"main").unwrap() };
        let mut peer_meta = vec![1, 12];
        origin.encode(&[], &mut peer_meta);
        let payload = [source; 20];
        let from = Sender {
            producer: [source; 16],
            owner: 7,
            producer_epoch: 1,
            peer_meta: &peer_meta,
            resend: None,
            forward: Some(Forward { origin, previous: at, begins: self.end(source).is_none() }),
        };
        let item = Item {
            first_sequence: at,
            count: 1,
            gap: false,
            level: Level::Written,
            min_time_ns: 1,
            max_time_ns: 2,
            payload: &payload,
            payload_checksum: plain(&payload),
            share: 0,
        };
        self.journal().append_burst(&from, &[item], None).pop().unwrap()
    }

    fn end(&self, source: u8) -> Option<u64> {
        let origin = self.journal().origins().into_iter().find(|entry| entry.producer == [source; 16])?;
        assert!(!origin.is_lost, "{origin:?}");
        Some(origin.last.end())
    }

    fn settle_somewhat(&self) {
        while let Next::Job(job) = self.journal().begin() {
            self.journal().execute(job);
        }
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

    /// Turns a bit in the payload of the last append of a source.
    fn rot(&self, source: u8) {
        let name = "00000000000000000000.clog";
        let bytes = self.disk.peek(name).unwrap();
        let at = bytes.windows(20).rposition(|bytes| bytes == [source; 20]).unwrap();
        self.disk.flip(name, at as u64, 4);
    }
}

/// Damage in the middle is a gap for readers; what was at the end is expected again.
#[test]
fn what_rots_at_the_end_of_an_origin_is_taken_again_after_a_start() {
    let mut stage = Stage::new(Policy::PerMessage);
    for (source, at) in [(1, 0), (1, 1), (2, 0), (1, 2), (2, 1), (3, 0)] {
        stage.forward(source, at).unwrap();
        stage.settle();
    }
    stage.clock.step(Duration::from_secs(1));
    stage.settle();
    stage.rot(1);
    stage.rot(3);
    stage.cut_power();
    assert_eq!([stage.end(1), stage.end(2), stage.end(3)], [Some(2), Some(2), None]);
    assert!(matches!(stage.forward(1, 3), Err(AppendError::Gap { expected: 2 })));
    for (source, at) in [(1, 2), (3, 0), (2, 2)] {
        stage.forward(source, at).unwrap();
        stage.settle();
    }
    for _ in 0..2 {
        stage.cut_power();
        assert_eq!([stage.end(1), stage.end(2), stage.end(3)], [Some(3), Some(3), Some(1)]);
    }
}

/// The kernel loses pages with a failed sync, and the device the first sector of them.
#[test]
fn what_a_recovery_cannot_copy_is_expected_again() {
    let mut stage = Stage::new(Policy::FireAndForget { sync_interval: Duration::from_secs(3600) });
    for at in 0..6 {
        stage.forward(1, at).unwrap();
        stage.settle_somewhat();
    }
    for at in 0..40 {
        stage.forward(2, at).unwrap();
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
    assert_eq!([stage.end(1), stage.end(2)], [Some(0), Some(40)], "one is lost whole, the other in its middle");
    stage.forward(1, 0).unwrap();
    stage.forward(2, 40).unwrap();
    stage.settle();
    stage.journal().request_sync();
    stage.settle();
    stage.cut_power();
    assert_eq!([stage.end(1), stage.end(2)], [Some(1), Some(41)]);
}

/// All that small segments have room for is in each footer, and each segment is used to its end.
#[test]
fn a_segment_has_room_for_all_origins_in_its_footer() {
    let stage = Stage::new(Policy::GROUP_COMMIT);
    let mut taken = 0;
    for round in 0..60 {
        for source in 0..=255 {
            match stage.forward(source, round) {
                Ok(_) => taken += 1,
                Err(AppendError::TooManyOrigins { limit }) => assert_eq!(limit, 85),
                Err(e) => panic!("{source} at {round}: {e}"),
            }
            stage.settle_somewhat();
            stage.journal().prepare();
        }
    }
    assert_eq!(taken, 60 * 85);
    let mut sealed = 0;
    for name in stage.disk.names().into_iter().filter(|name| name.ends_with(".clog")) {
        let len = stage.disk.peek(&name).unwrap().len();
        assert!(len <= 256 << 10, "{name} has {len} bytes");
        sealed += u64::from(stage.disk.is_sealed_mode(&name));
    }
    assert!(sealed > 4, "{sealed} are sealed");
}
