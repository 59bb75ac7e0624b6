//! Reads that find nothing for long, and many of them: no read holds a thread that it does not use.

mod filters;

use std::time::{Duration, Instant};

use bytes::Bytes;
use clad_journal::{Append, JournalConfig, Policy};
use clad_proto::frame::{Frame, FrameDecoder, ReadEndReason};
use tokio::sync::{mpsc, watch};

use super::item::Frames;
use super::stream::LOOK_BYTES_MAX;
use super::*;
use clad_proto::Cursor;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const ME: Owner = Owner::Uid(1);
const BODY: usize = 64 << 10;
/// Several looks at it, and more than is held in memory.
const BATCHES: usize = 6 * LOOK_BYTES_MAX / BODY;

struct Log {
    _dir: tempfile::TempDir,
    reads: Arc<Reads>,
}

fn log() -> Log {
    log_under(Policy::GROUP_COMMIT)
}

fn log_under(policy: Policy) -> Log {
    let dir = tempfile::tempdir().expect("a folder");
    let config = JournalConfig { policy, reserve_free: 0, segment_bytes: 32 << 20, ..JournalConfig::default() };
    let journal = Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"));
    let payload = vec![b'x'; BODY];
    for sequence in 0..BATCHES as u64 {
        let append = Append {
            producer: [7; 16],
            owner: 1,
            producer_epoch: 1,
            first_sequence: sequence,
            count: 1,
            gap: false,
            level: Level::Written,
            min_time_ns: 1000,
            max_time_ns: 1000,
            peer_meta: &[],
            payload: &payload,
            payload_checksum: 0,
            permit: None,
        };
        append.submit(&journal).expect("taken");
        let began = Instant::now();
        while journal.watermarks().written <= sequence {
            assert!(began.elapsed() < TEST_TIMEOUT, "append {sequence} is never written");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Log { _dir: dir, reads: Reads::new(journal, AckLevel::Durable) }
}

/// A range of time without records.
fn nothing() -> Read {
    let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
    Read { request_id: 1, from, follow: false, limit: None, min_level, since: Some(1), until: Some(2), filter: None }
}

/// A read that runs, and what holds it.
struct Running {
    blocks: mpsc::Receiver<Bytes>,
    cancel: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    ended: tokio::task::JoinHandle<Ended>,
}

impl Running {
    fn begin(reads: &Reads, owner: Owner, stop: bool) -> Self {
        let (out, blocks) = mpsc::channel(2);
        let ((cancel, cancelled), (stop, stopped)) = (watch::channel(false), watch::channel(stop));
        let stream = reads.start(&nothing(), owner).expect("it begins");
        let ended = tokio::spawn(async move { stream.run_as::<Frames>(&out, stopped, cancelled).await });
        Self { blocks, cancel, stop, ended }
    }

    /// The reason of its end, as it reports it.
    async fn end_reason(&mut self) -> ReadEndReason {
        let block = tokio::time::timeout(TEST_TIMEOUT, self.blocks.recv()).await.expect("in time").expect("a block");
        match FrameDecoder::default().next(&mut block.as_ref().into()) {
            Ok(Some(Frame::ReadEnd(end))) => end.reason,
            other => panic!("{other:?}"),
        }
    }

    async fn ended(self) -> Ended {
        tokio::time::timeout(TEST_TIMEOUT, self.ended).await.expect("in time").expect("no panic")
    }
}

#[tokio::test]
async fn a_look_that_finds_nothing_comes_back_and_the_next_goes_on() {
    let log = log();
    let mut stream = log.reads.start(&nothing(), ME).unwrap();
    let mut looks = 0;
    while stream.position() < BATCHES as u64 {
        let before = stream.position();
        let (back, block, _) = stream.look::<Frames>();
        let passed = (back.position() - before) as usize;
        assert!(block.size() == 0 && (1..=LOOK_BYTES_MAX / BODY + 1).contains(&passed), "{passed} batches in one look");
        (stream, looks) = (back, looks + 1);
    }
    assert!(looks >= 5, "{looks} looks");
}

/// An epoch may begin while a look waits for its turn, or for the disk: the place behind its records is one of theirs.
#[tokio::test]
async fn a_place_is_of_the_epoch_of_what_was_given_before_it() {
    let log = log();
    let read = Read { since: None, until: None, ..nothing() };
    let stream = log.reads.start(&read, ME).unwrap();
    assert_eq!(stream.cursor().epoch, 0, "it knows of none");
    let (stream, block, _) = stream.look::<Frames>();
    assert!(block.size() > 0);
    assert_eq!(stream.cursor().epoch, log.reads.journal.watermarks().epoch);
}

/// A cursor of a READ at a lower level, say: records before it were given, and may not have reached this level yet.
#[tokio::test]
async fn a_cursor_may_lie_where_nothing_has_the_level_yet() {
    let log = log_under(Policy::FireAndForget { sync_interval: Duration::ZERO });
    let watermarks = log.reads.journal.watermarks();
    assert!(watermarks.durable < watermarks.received);
    let at =
        |offset| Cursor { log_id: LogId::from_bytes(log.reads.journal.meta().log_id), epoch: watermarks.epoch, offset };
    let read = |offset| Read { from: ReadFrom::Cursor(at(offset)), since: None, until: None, ..nothing() };
    let end = watermarks.received;
    let stream = log.reads.start(&Read { min_level: AckLevel::Durable, ..read(end) }, ME).expect("it is of this log");
    let (stream, block, look) = stream.look::<Frames>();
    assert!(block.size() == 0 && matches!(look, stream::Look::CaughtUp) && stream.position() == end);
    let error = log.reads.start(&read(end + 1), ME).map(drop).unwrap_err();
    assert_eq!(error.code, ErrorCode::CursorUnknown);
}

/// A read that waits for its turn, and one that has looked and found nothing yet.
#[tokio::test]
async fn between_two_looks_it_hears_that_it_is_not_wanted_any_more() {
    let log = log();
    let all_of_mine = log.reads.looks.handle(ME).take(CONCURRENT_LOOKS_MAX / 2).await;
    let mut cancelled = Running::begin(&log.reads, ME, false);
    let (gone, stopped) = (Running::begin(&log.reads, ME, false), Running::begin(&log.reads, ME, false));
    assert!(tokio::time::timeout(Duration::from_millis(20), cancelled.blocks.recv()).await.is_err(), "it waits");
    cancelled.cancel.send_replace(true);
    assert_eq!(cancelled.end_reason().await, ReadEndReason::Cancelled);
    assert_eq!(cancelled.ended().await, Ended::Delivered);
    let Running { blocks, ended, cancel: _cancel, stop: _stop } = gone;
    drop(blocks);
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, ended).await.unwrap().unwrap(), Ended::Gone);
    stopped.stop.send_replace(true);
    assert_eq!(stopped.ended().await, Ended::Stopping);
    drop(all_of_mine);
    // A daemon that goes down while the read looks does not report the end of the log.
    assert_eq!(Running::begin(&log.reads, ME, true).ended().await, Ended::Stopping);
}

#[tokio::test]
async fn who_holds_all_looks_that_he_may_holds_up_only_himself() {
    let log = log();
    let all_of_mine = log.reads.looks.handle(ME).take(CONCURRENT_LOOKS_MAX / 2).await;
    let mut mine = Running::begin(&log.reads, ME, false);
    for owner in [Owner::Uid(2), Owner::Network] {
        assert_eq!(Running::begin(&log.reads, owner, false).end_reason().await, ReadEndReason::End);
    }
    assert!(mine.blocks.try_recv().is_err(), "there was no look for it");
    drop(all_of_mine);
    assert_eq!(mine.end_reason().await, ReadEndReason::End);
}

#[tokio::test]
async fn open_reads_have_a_bound_and_are_shared() {
    let log = log();
    let start = |owner| log.reads.start(&nothing(), owner);
    let mut mine: Vec<_> = (0..OPEN_READS_MAX / 2).map(|_| start(ME).expect("one of mine")).collect();
    let error = start(ME).map(drop).unwrap_err();
    assert_eq!((error.code, error.retryable), (ErrorCode::Busy, true));
    let others: Vec<_> = std::iter::from_fn(|| start(Owner::Network).ok()).collect();
    let equal = OPEN_READS_MAX * 3 / 8;
    assert_eq!(log.reads.quota_usage().by_owner, [(ME, equal), (Owner::Network, equal)], "and the rest is for others");
    assert!(start(Owner::Uid(2)).is_ok());
    drop(others);
    mine.clear();
    assert!(start(ME).is_ok());
}

/// One READ of the greediest ends, for an owner with fewer; it is notified, and has released its slot though unread.
#[tokio::test]
async fn a_read_of_who_has_most_makes_room_and_is_notified() {
    let log = log();
    let follow = || Read { follow: true, ..nothing() };
    let mut mine = Vec::new();
    while let Ok(stream) = log.reads.start(&follow(), ME) {
        let (out, blocks) = mpsc::channel(2);
        let ((cancel, cancelled), (stop, stopped)) = (watch::channel(false), watch::channel(false));
        let ended = tokio::spawn(async move { stream.run_as::<Frames>(&out, stopped, cancelled).await });
        mine.push(Running { blocks, cancel, stop, ended });
    }
    assert_eq!(mine.len(), OPEN_READS_MAX / 2, "as many are left for others");
    let fill: Vec<_> =
        (2..2 + OPEN_READS_MAX as u32 / 2).map(|uid| log.reads.start(&nothing(), Owner::Uid(uid))).collect();
    assert!(fill.iter().all(Result::is_ok), "who has none gets one");
    assert_eq!(log.reads.quota_usage().by_owner[0], (ME, OPEN_READS_MAX / 2));
    let new = log.reads.start(&nothing(), Owner::Network).expect("one of mine makes room");
    assert_eq!(log.reads.quota_usage().by_owner[0], (ME, OPEN_READS_MAX / 2 - 1));
    let began = Instant::now();
    let ended_read = loop {
        assert!(began.elapsed() < TEST_TIMEOUT, "none of mine ends");
        match mine.iter().position(|read| read.ended.is_finished()) {
            Some(at) => break mine.remove(at),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let Running { mut blocks, ended, .. } = ended_read;
    assert_eq!(ended.await.expect("no panic"), Ended::Delivered);
    let mut frames = Vec::new();
    while let Ok(block) = blocks.try_recv() {
        let (decoder, mut block) = (FrameDecoder::default(), block.as_ref().into());
        while let Ok(Some(frame)) = decoder.next(&mut block) {
            frames.push(frame);
        }
    }
    let Some(Frame::Error(last)) = frames.last() else { panic!("{frames:?}") };
    assert_eq!((last.request_id, last.error.code, last.error.retryable), (1, ErrorCode::Busy, true));
    drop((new, fill, mine));
    while !log.reads.quota_usage().by_owner.is_empty() {
        assert!(began.elapsed() < TEST_TIMEOUT, "a slot is not given back");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
