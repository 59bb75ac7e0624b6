//! The daemon of the simulation: the real journal, stepped, and the real session of each connection.

use super::daemon_session::{Answer, Session as DaemonSession};
use crate::session::Out;
use bytes::Bytes;
use clad_journal::{
    AppendError, Item, JournalConfig, Level, Observer, Policy, Sender, Watermarks,
    io::Storage,
    stepper::{Begun, Kind, Next, Stepper},
};
use clad_proto::{
    AckLevel, DurabilityPolicy, ErrorCode, ErrorInfo, LogId, ProducerId,
    frame::{Accepted, AppendHead, EpochStart, Forwarding, LastStored, Refused, Watermark, Welcome},
    limits::MAX_EARLIER_EPOCHS,
};
use clad_sim::{Rng, SimClock, SimDisk, disk::Fault, disk::OpKind};
use std::{collections::VecDeque, sync::Arc, time::Duration};

const OWNER: u64 = 7;
const MAX_APPEND: u32 = 4096;
const CAPACITY: u64 = 1 << 40;

/// Message of a daemon on a connection.
#[derive(Debug, Clone)]
pub(super) enum Said {
    Accepted(Accepted),
    Refused(Refused),
    Watermark(Watermark),
    FlushRefused(u32, ErrorInfo),
}

/// One connection, both ways.
pub(super) struct Link {
    producer: [u8; 16],
    epoch: u32,
    pub(super) up: VecDeque<Out>,
    pub(super) down: VecDeque<Said>,
    session: DaemonSession,
}

/// An append as it lies in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) offset: u64,
    pub(super) count: u32,
    pub(super) producer: [u8; 16],
    pub(super) sequence: u64,
    pub(super) payload: Vec<u8>,
}

pub(super) struct Daemon {
    pub(super) disk: SimDisk,
    clock: Arc<SimClock>,
    config: JournalConfig,
    window: u32,
    stepper: Option<Stepper>,
    held: Vec<Begun>,
    /// There is no space for another segment.
    full: bool,
}

impl Daemon {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let disk = SimDisk::new(rng.number());
        let in_flight = 1 + rng.index(3);
        let policy = match rng.below(4) {
            0 => Policy::PerMessage,
            _ => Policy::GroupCommit { max_delay: Duration::from_micros(200), max_bytes: 16 << 10, in_flight },
        };
        let window = [4, 16][rng.index(2)];
        let config = JournalConfig {
            policy,
            segment_bytes: 64 << 10,
            max_append_bytes: MAX_APPEND,
            reserve_free: 0,
            window: window as usize,
            ..JournalConfig::default()
        };
        Self {
            clock: SimClock::new(disk.boot_id()),
            disk,
            config,
            window,
            stepper: None,
            held: Vec::new(),
            full: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stepper.is_some() && self.disk.is_alive()
    }

    /// It dies, with what it has in flight.
    pub(super) fn die(&mut self, power: bool) {
        if power {
            self.disk.power_cut();
        } else {
            self.disk.kill();
        }
        self.held.clear();
        self.stepper = None;
    }

    /// Starts it again; what it has found.
    pub(super) fn start(&mut self) -> Vec<Stored> {
        self.disk.clear_faults();
        self.make_room();
        self.disk = self.disk.reopen();
        self.clock.reboot(self.disk.boot_id(), Duration::from_millis(10));
        let observer: Observer = Arc::new(|_| {});
        let opened = Stepper::open(Arc::new(self.disk.clone()), self.clock.clone(), self.config, observer);
        let stepper = opened.expect("it starts");
        assert!(!stepper.report().is_damaged(), "{}", stepper.report());
        self.stepper = Some(stepper);
        self.read()
    }

    /// All that is durable.
    pub(super) fn read(&self) -> Vec<Stored> {
        let mut reader = self.stepper().reader(0, Level::Durable);
        let mut all = Vec::new();
        while let Some(batch) = reader.next_batch().expect("nothing is damaged") {
            for chunk in batch.chunks() {
                let (offset, chunk) = chunk.expect("a chunk");
                let head = &chunk.header;
                let (count, producer, sequence) = (head.count, head.producer, head.first_sequence);
                all.push(Stored { offset, count, producer, sequence, payload: chunk.payload.to_vec() });
            }
        }
        all
    }

    fn stepper(&self) -> &Stepper {
        self.stepper.as_ref().expect("it is up")
    }

    pub(super) fn watermarks(&self) -> Watermarks {
        self.stepper().watermarks()
    }

    /// The epochs before this one, as the daemon reports them.
    fn earlier(&self) -> Vec<EpochStart> {
        let epochs = self.stepper().meta().epochs;
        let before = epochs.len().saturating_sub(1);
        let earlier = &epochs[before.saturating_sub(MAX_EARLIER_EPOCHS)..before];
        earlier.iter().map(|e| EpochStart { epoch: e.epoch, first_offset: e.first_offset }).collect()
    }

    /// HELLO and WELCOME; or it is fenced.
    pub(super) fn greet(&self, producer: [u8; 16], epoch: u32) -> Option<(Welcome, Link)> {
        let stepper = self.stepper();
        let known = stepper.producer(&producer, OWNER).expect("its own");
        if known.is_some_and(|state| epoch < state.epoch) {
            return None;
        }
        let watermarks = stepper.watermarks();
        let level = |offset| match offset {
            o if o < watermarks.durable => AckLevel::Durable,
            o if o < watermarks.written => AckLevel::Written,
            _ => AckLevel::Received,
        };
        let last = known.and_then(|state| state.last);
        stepper.connect(&producer, OWNER, epoch).expect("its own");
        let welcome = Welcome {
            version: 1,
            policy: DurabilityPolicy::GroupCommit,
            highest_ack: AckLevel::Durable,
            may_read: true,
            log_id: LogId::from_bytes(stepper.meta().log_id),
            epoch: watermarks.epoch,
            epoch_first_offset: watermarks.epoch_first,
            producer_id: ProducerId::from_bytes(producer),
            producer_epoch: epoch,
            secret: Vec::new(),
            last: last.map(|(sequence, offset)| LastStored { sequence, offset, level: level(offset) }),
            window: self.window,
            max_append_bytes: MAX_APPEND,
            max_record_bytes: MAX_APPEND,
            received: watermarks.received,
            written: watermarks.written,
            durable: watermarks.durable,
            earlier: self.earlier(),
            forwarding: Forwarding::No,
        };
        let (up, down, session) = (VecDeque::new(), VecDeque::new(), DaemonSession::begin(&watermarks));
        Some((welcome, Link { producer, epoch, up, down, session }))
    }

    pub(super) fn bye(&self, link: &Link) {
        if self.is_up() {
            self.stepper().disconnect(&link.producer, false);
        }
    }

    /// Takes the next messages of a connection, at most so many appends at once, and answers them; says how many it
    /// took.
    pub(super) fn serve(&self, link: &mut Link, most: usize) -> usize {
        match link.up.pop_front() {
            Some(Out::Flush { id, level }) => {
                self.flush(link, id, level);
                1
            }
            Some(Out::Append { head, payload, .. }) => {
                let mut burst = vec![(head, payload)];
                while burst.len() < most
                    && let Some(Out::Append { head, payload, .. }) = link.up.front().cloned()
                {
                    link.up.pop_front();
                    burst.push((head, payload));
                }
                self.take(link, &burst);
                burst.len()
            }
            None => 0,
        }
    }

    /// Handles one read of a connection. An append beyond the window is refused before the journal sees it.
    fn take(&self, link: &mut Link, burst: &[(AppendHead, Bytes)]) {
        let room = (self.window as usize).saturating_sub(link.session.unanswered());
        let (within, beyond) = burst.split_at(burst.len().min(room));
        let from = Sender {
            producer: link.producer,
            owner: OWNER,
            producer_epoch: link.epoch,
            peer_meta: b"sim",
            resend: None,
            forward: None,
        };
        let items: Vec<Item<'_>> = within.iter().map(|(head, payload)| item(head, payload)).collect();
        let answers = self.stepper().append_burst(&from, &items, None);
        assert_eq!(answers.len(), within.len(), "each is answered");
        let since = std::time::Instant::now();
        for ((head, payload), answer) in within.iter().zip(answers) {
            let said = match answer {
                Ok(given) => {
                    link.session.given(head.first_seq, &given, head.level, payload.len(), since);
                    Said::Accepted(Accepted {
                        first_seq: head.first_seq,
                        first_offset: given.first_offset,
                        count: given.count,
                        epoch: given.epoch,
                        duplicate: given.duplicate,
                    })
                }
                Err(error) => refused(head, refusal(error)),
            };
            link.down.push_back(said);
        }
        let too_many = |(head, _): &(AppendHead, Bytes)| refused(head, ErrorInfo::new(ErrorCode::WindowExceeded, ""));
        link.down.extend(beyond.iter().map(too_many));
    }

    /// As the daemon's own connection does it.
    fn flush(&self, link: &mut Link, id: u32, level: AckLevel) {
        let watermarks = self.watermarks();
        if let Some(error) = link.session.lost_since(&watermarks) {
            return link.down.push_back(Said::FlushRefused(id, error));
        }
        match level {
            AckLevel::Durable => {
                link.session.flush(id, self.stepper().request_sync(), Level::Durable, watermarks.failures)
            }
            AckLevel::Written => link.session.flush(id, watermarks.received, Level::Written, watermarks.failures),
            _ => link.down.push_back(Said::Watermark(Watermark {
                request_id: id,
                epoch: watermarks.epoch,
                epoch_first_offset: watermarks.epoch_first,
                level: AckLevel::Received,
                offset: watermarks.received,
            })),
        }
    }

    /// Reports to a connection what the watermarks cover.
    pub(super) fn release(&self, link: &mut Link) {
        let mut answers = Vec::new();
        let watermarks = self.watermarks();
        link.session.release(&watermarks, &mut answers);
        let wants = link.session.wants();
        assert!(
            wants.written > watermarks.written && wants.durable > watermarks.durable,
            "{wants:?} is due at {watermarks:?}"
        );
        link.down.extend(answers.into_iter().map(|answer| match answer {
            Answer::Watermark(watermark) => Said::Watermark(watermark),
            Answer::Refused(refused) => Said::Refused(refused),
            Answer::FlushFailed(id, error) => Said::FlushRefused(id, error),
        }));
    }

    /// Something happens at the disk, or to it.
    pub(super) fn work(&mut self, rng: &mut Rng) {
        match rng.below(8) {
            0..=2 => self.begin(),
            3..=5 if !self.held.is_empty() => {
                let at = rng.index(self.held.len());
                let job = self.held.swap_remove(at);
                self.stepper().execute(job);
            }
            6 => self.clock.step(Duration::from_micros([100, 5_000, 1_100_000][rng.index(3)])),
            _ => {
                let stepper = self.stepper();
                stepper.prepare();
                if rng.chance(1, if self.full { 1 } else { 8 }) {
                    stepper.request_rotate();
                }
            }
        }
    }

    fn begin(&mut self) {
        if let Next::Job(job) = self.stepper().begin() {
            self.held.push(job);
        }
    }

    /// The next write or sync fails.
    pub(super) fn fail(&self, rng: &mut Rng) {
        let kind = [OpKind::Write, OpKind::SyncedWrite, OpKind::SyncData][rng.index(3)];
        self.disk.fail_next(kind, ".clog", Fault::Io);
    }

    /// Others take what room there is, but for a part of a segment.
    pub(super) fn fill(&mut self, rng: &mut Rng) {
        let space = self.disk.space().expect("it is up");
        self.disk.set_capacity(space.total - space.free + rng.below(64 << 10));
        self.full = true;
    }

    fn make_room(&mut self) {
        self.disk.set_capacity(CAPACITY);
        self.full = false;
    }

    /// Everything that was begun ends, what is due is done, and time passes.
    pub(super) fn settle(&mut self) {
        self.disk.clear_faults();
        self.make_room();
        for job in std::mem::take(&mut self.held) {
            self.stepper().execute(job);
        }
        for _ in 0..20 {
            match self.stepper().begin() {
                Next::Job(job) if job.kind == Kind::Close => unreachable!("nobody closes it"),
                Next::Job(job) => self.stepper().execute(job),
                _ => break,
            }
        }
        self.stepper().prepare();
        self.clock.step(Duration::from_millis(700));
    }
}

fn item<'a>(head: &AppendHead, payload: &'a [u8]) -> Item<'a> {
    let level = match head.level {
        AckLevel::Durable => Level::Durable,
        AckLevel::Written => Level::Written,
        _ => Level::Received,
    };
    Item {
        first_sequence: head.first_seq,
        count: head.count,
        gap: head.gap,
        level,
        min_time_ns: 1,
        max_time_ns: 1,
        payload,
        payload_checksum: head.payload_crc,
        share: payload.len(),
    }
}

fn refused(head: &AppendHead, error: ErrorInfo) -> Said {
    Said::Refused(Refused { first_seq: head.first_seq, count: head.count, error })
}

fn refusal(error: AppendError) -> ErrorInfo {
    let code = match error {
        AppendError::Fenced { .. } => ErrorCode::ProducerFenced,
        AppendError::Gap { .. } => ErrorCode::SequenceGap,
        AppendError::Overlap { .. } | AppendError::Skipped { .. } => ErrorCode::SequenceOverlap,
        AppendError::TooOld => ErrorCode::SequenceTooOld,
        AppendError::NoSpace | AppendError::NoSegment { .. } => ErrorCode::NoSpace,
        AppendError::Failed { .. } => ErrorCode::JournalFailed,
        other => panic!("{other:?}"),
    };
    let mut info = ErrorInfo::new(code, "");
    info.maybe_written = false;
    if let AppendError::Gap { expected } | AppendError::Overlap { expected } | AppendError::Skipped { expected } = error
    {
        info.expected_sequence = Some(expected);
    }
    info
}
