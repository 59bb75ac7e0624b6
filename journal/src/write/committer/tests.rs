//! A burst behaves as its appends one by one, and has its fixed cost only once.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::in_flight::InFlight;
use super::{Accepted, AfterRefusal, Append, Committer, Done, Item, Job, NoSegment, Sender, Step};
use crate::clock::Moment;
use crate::config::{JournalConfig, Policy};
use crate::error::AppendError;
use crate::format::meta::EpochStart;
use crate::format::segment::{SegmentHeader, example};
use crate::io::{Access, Durability, OsStorage, Storage};
use crate::write::active::{Active, Shares};
use crate::write::batch::{BurstPermits, PendingBatch};
use crate::write::permits::Permit;
use crate::write::producer::ProducerTable;
use crate::write::watermarks::{Accepting, Level};

const NOW: Moment = Moment { real_ns: 7, boot_ns: 9 };
const FROM: Sender<'static> =
    Sender { producer: [1; 16], owner: 1000, producer_epoch: 3, peer_meta: b"metadata", resend: None, forward: None };
/// Permits in all; each append has a share of [`SHARE`].
const PERMITS: usize = 100_000;
const SHARE: usize = 10;

fn committer(max_bytes: u32) -> Committer {
    let mut config = JournalConfig { max_append_bytes: 100, ..JournalConfig::default() };
    if let Policy::GroupCommit { max_bytes: bytes, .. } = &mut config.policy {
        *bytes = max_bytes;
    }
    let mut c = Committer::new(config, ProducerTable::new(4, 8, 0), 50, EpochStart { epoch: 1, first_offset: 40 }, 0);
    c.begin_with(100, 4096);
    c
}

fn item(first_sequence: u64, count: u32, gap: bool, payload: &[u8]) -> Item<'_> {
    let level = Level::Written;
    let (min_time_ns, max_time_ns) = (first_sequence as i64, first_sequence as i64 + 1);
    let payload_checksum = payload.len() as u32;
    Item { first_sequence, count, gap, level, min_time_ns, max_time_ns, payload, payload_checksum, share: SHARE }
}

fn permit(permits: &Arc<Semaphore>, count: usize) -> Permit {
    permits.try_acquire_many(count as u32).unwrap().forget();
    Permit::new(permits.clone(), count)
}

/// Takes an append as a run of one.
pub(super) fn append_one(c: &mut Committer, append: Append<'_>, now: Moment) -> Result<Accepted, AppendError> {
    let (from, item, permit) = append.split();
    let (mut permits, mut answer) = (BurstPermits::new(permit), None);
    c.append([(&from, &[item][..])], AfterRefusal::Judge, now, &mut permits, |a| answer = Some(a));
    answer.expect("a run of one has one answer")
}

type Verdicts = Vec<Result<Accepted, AppendError>>;

fn alone(c: &mut Committer, i: &Item<'_>, permits: &Arc<Semaphore>) -> Result<Accepted, AppendError> {
    let append = Append {
        producer: FROM.producer,
        owner: FROM.owner,
        producer_epoch: FROM.producer_epoch,
        first_sequence: i.first_sequence,
        count: i.count,
        gap: i.gap,
        level: i.level,
        min_time_ns: i.min_time_ns,
        max_time_ns: i.max_time_ns,
        peer_meta: FROM.peer_meta,
        payload: i.payload,
        payload_checksum: i.payload_checksum,
        permit: Some(permit(permits, SHARE)),
    };
    append_one(c, append, NOW)
}

fn together(c: &mut Committer, burst: &[Item<'_>], permits: &Arc<Semaphore>) -> Verdicts {
    let all = permit(permits, burst.len() * SHARE);
    let mut verdicts = Vec::new();
    c.append([(&FROM, burst)], AfterRefusal::Judge, NOW, &mut BurstPermits::new(Some(all)), |v| verdicts.push(v));
    verdicts
}

fn batches(c: &mut Committer) -> Vec<PendingBatch> {
    std::iter::from_fn(|| c.writer.builder.pop()).collect()
}

/// Everything of a batch but its permit.
fn content(g: &PendingBatch) -> impl PartialEq + std::fmt::Debug {
    let b = &g.batch;
    let numbers = (b.epoch, b.first_offset, b.count, b.append_real_ns, b.payload_bytes());
    (numbers, b.min_time_ns, b.max_time_ns, b.body.to_vec(), g.wants_written, g.since_boot_ns)
}

/// Appends as a client may send them, most in line: a step from what would be next, records, gap mark, payload.
fn stream() -> impl Strategy<Value = Vec<(i64, u32, bool, usize)>> {
    let step = prop_oneof![8 => Just(0i64), 1 => -6..0i64, 1 => 1..4i64];
    let count = prop_oneof![6 => Just(1u32), 2 => 2..4u32, 1 => Just(0u32)];
    let payload = prop_oneof![8 => 0..40usize, 1 => 99..103usize];
    proptest::collection::vec((step, count, any::<bool>(), payload), 1..60)
}

proptest! {
    #[test]
    fn a_burst_is_what_its_appends_are_one_by_one(
        stream in stream(),
        cuts in proptest::collection::vec(1..20usize, 1..20),
        max_bytes in prop_oneof![Just(200u32), Just(1 << 20)],
    ) {
        let bytes = [7; 128];
        let mut next = 0u64;
        let mut items = Vec::new();
        for (step, count, gap, payload) in stream {
            let first = next.saturating_add_signed(step);
            next = next.max(first + u64::from(count));
            items.push(item(first, count, gap, &bytes[..payload]));
        }
        let (mut one, mut many) = (committer(max_bytes), committer(max_bytes));
        let (ones, manys) = (Arc::new(Semaphore::new(PERMITS)), Arc::new(Semaphore::new(PERMITS)));
        let expected: Verdicts = items.iter().map(|i| alone(&mut one, i, &ones)).collect();
        let (mut got, mut rest, mut cuts) = (Vec::new(), &items[..], cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (burst, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            got.extend(together(&mut many, burst, &manys));
            rest = after;
        }
        prop_assert_eq!(expected, got);
        prop_assert_eq!(one.watermarks(), many.watermarks());
        prop_assert_eq!(one.sequencer.producers().snapshot(u64::MAX, NOW), many.sequencer.producers().snapshot(u64::MAX, NOW));
        prop_assert_eq!(ones.available_permits(), manys.available_permits());
        let (one, many) = (batches(&mut one), batches(&mut many));
        prop_assert_eq!(one.len(), many.len());
        for (a, b) in one.iter().zip(&many) {
            prop_assert_eq!(content(a), content(b));
            let held = |g: &PendingBatch| g.permit.as_ref().map(|p| p.num_permits());
            prop_assert_eq!(held(a), held(b), "each batch holds the shares of its own appends");
        }
        drop((one, many));
        prop_assert_eq!((ones.available_permits(), manys.available_permits()), (PERMITS, PERMITS));
    }
}

#[test]
fn refused_resent_and_jumping_appends_in_the_middle() {
    let mut c = committer(1 << 20);
    let permits = Arc::new(Semaphore::new(PERMITS));
    let burst = [
        item(0, 2, false, b"0,1"),
        item(2, 1, false, b"2"),
        item(9, 1, false, b"a gap, and no mark"),
        item(0, 2, false, b"0,1"),
        item(3, 0, false, b"no record"),
        item(3, 1, false, b"3"),
        item(9, 1, true, b"a gap, marked"),
        item(9, 2, false, b"stored in part"),
        item(10, 1, false, b"10"),
    ];
    let accepted =
        |first_offset, count, duplicate| Ok(Accepted { first_offset, count, epoch: 1, failures: 0, duplicate });
    let want = vec![
        accepted(50, 2, false),
        accepted(52, 1, false),
        Err(AppendError::Gap { expected: 3 }),
        accepted(50, 2, true),
        Err(AppendError::Size { limit: 100 }),
        accepted(53, 1, false),
        accepted(54, 1, false),
        Err(AppendError::Overlap { expected: 10 }),
        accepted(55, 1, false),
    ];
    assert_eq!(together(&mut c, &burst, &permits), want);
    assert_eq!(permits.available_permits(), PERMITS - 5 * SHARE, "only what was taken holds its share");
    let all = batches(&mut c);
    let payloads: Vec<_> = all[0].batch.chunks().map(|chunk| chunk.unwrap().1.payload.to_vec()).collect();
    assert_eq!(payloads, [&b"0,1"[..], b"2", b"3", b"a gap, marked", b"10"]);
    drop(all);
    assert_eq!(permits.available_permits(), PERMITS);
}

#[test]
fn what_follows_is_one_range_in_the_table_of_producers() {
    let mut c = committer(1 << 20);
    let permits = Arc::new(Semaphore::new(PERMITS));
    let burst: Vec<_> = (0..100).map(|n| item(n, 1, false, b"x")).collect();
    together(&mut c, &burst, &permits);
    let burst: Vec<_> = (100..200).map(|n| item(n, 1, false, b"x")).collect();
    together(&mut c, &burst, &permits);
    assert_eq!(batches(&mut c).len(), 1);
    assert_eq!(c.sequencer.producers().ranges(), 1);
    assert_eq!(c.sequencer.producers().get(&FROM.producer).unwrap().1.last, Some((199, 249)));
}

/// Rounds of batches, each written, and all of a round synced at once: number of memory requests to the allocator.
fn asked_for(rounds: u64, batches: u64, recent_bytes: usize, appends: impl Fn(u64) -> u64) -> usize {
    let mut c = committer(1 << 20);
    (c.writer.recent.bytes_max, c.max_append_bytes) = (recent_bytes, 1 << 20);
    let (permits, payload, mut next) = (Arc::new(Semaphore::new(PERMITS)), vec![7; 200_000], 0);
    for n in 0..rounds * batches {
        for _ in 0..appends(n) {
            together(&mut c, &[item(next, 1, false, &payload)], &permits);
            next += 1;
        }
        let pending = c.writer.builder.pop().expect("it was taken");
        let (id, _) = c.writer.in_flight.begin().expect("a file is free");
        c.writer.in_flight.batches.push_back(InFlight::new(id, pending, Shares::default(), (0, 0)));
        c.complete(Ok(Done::Write { id, durability: Durability::Written }), NOW);
        if n % batches == batches - 1 {
            c.writer.syncs.begin(NOW);
            c.complete(Ok(Done::Sync { upto: c.watermarks.written }), NOW);
            assert!(c.writer.in_flight.batches.is_empty() && c.watermarks.durable == c.watermarks.written);
        }
    }
    c.writer.builder.allocations()
}

/// The allocator takes memory of this size from the kernel, with a page fault for each page.
#[test]
fn a_batch_is_written_into_the_memory_of_one_that_is_gone() {
    // Remembered for longer than they wait for the disk, and the reverse; no batch is as large as the one before.
    for (batches, recent_bytes) in [(3, 2_000_000), (8, 1)] {
        for most in [1, 5] {
            let allocations = asked_for(40, batches, recent_bytes, |n| 1 + n % most);
            assert!(allocations < 20, "{} batches of up to {most} appends asked {allocations} times", 40 * batches);
        }
    }
}

/// A tombstone is written behind the records that its producer still had waiting. Without a sync interval nothing else
/// would end a wait for them.
#[test]
fn records_are_written_before_the_tombstone_that_waits_for_them() {
    let dir = crate::io::real_folder();
    let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
    let file = storage.create("1", Access::WriteCached).unwrap();
    let header = SegmentHeader { number: 1, capacity: 1 << 20, ..example() };
    let mut c = committer(1 << 20);
    c.writer.policy = Policy::FireAndForget { sync_interval: Duration::ZERO };
    c.take_active(Ok(Active::new(header, vec![file.clone(), file], 50, None)), NOW);
    let permits = Arc::new(Semaphore::new(PERMITS));
    c.sequencer.connect(&FROM.producer, FROM.owner, FROM.producer_epoch, FROM.owner).unwrap();
    let write = |c: &mut Committer| match c.step(NOW) {
        Step::Run(Job::Write { id, durability, .. }) => {
            c.complete(Ok(Done::Write { id, durability }), NOW);
            durability
        }
        _ => panic!("no write: {:?}", c.watermarks()),
    };
    together(&mut c, &[item(0, 1, false, b"written, not synced")], &permits);
    assert_eq!(write(&mut c), Durability::Written);
    together(&mut c, &[item(1, 1, false, b"waits")], &permits);
    c.disconnect(&FROM.producer, true);
    assert!(c.sequencer.is_forgetting(&FROM.producer), "somebody waits for the tombstone");
    assert_eq!(write(&mut c), Durability::Written, "the record");
    match c.step(NOW) {
        Step::Run(Job::Sync { upto: 52, .. }) => c.complete(Ok(Done::Sync { upto: 52 }), NOW),
        _ => panic!("what is below the tombstone is not synced"),
    }
    assert_eq!(write(&mut c), Durability::Synced, "the tombstone");
    assert!(!c.sequencer.is_forgetting(&FROM.producer));
}

/// Smaller appends are still accepted, to the end of the active segment. Acceptance is reported again only when a
/// segment for the large ones exists, not in between.
#[test]
fn what_is_refused_for_want_of_a_segment_is_said_until_there_is_one() {
    let dir = crate::io::real_folder();
    let storage = OsStorage::open(dir.path(), 4096, true).unwrap();
    let segment = |number: u64| {
        let file = storage.create(&number.to_string(), Access::WriteCached).unwrap();
        Active::new(SegmentHeader { number, capacity: 1 << 20, ..example() }, vec![file.clone(), file], 50, None)
    };
    let mut c = committer(1 << 20);
    (c.segments.segment_bytes, c.max_append_bytes) = (1 << 20, 1 << 20);
    c.take_active(Ok(segment(1)), NOW);
    c.set_free_segments(0);
    let permits = Arc::new(Semaphore::new(PERMITS));
    let payload = vec![7; 800 << 10];
    let take = |c: &mut Committer, first: u64, len: usize| {
        let before = c.watermarks();
        let taken = together(c, &[item(first, 1, true, &payload[..len])], &permits).remove(0);
        let after = c.watermarks();
        assert!(after == before || after.version > before.version, "{before:?} and {after:?} are of one version");
        (taken.map(|_| ()), after.accepting)
    };
    assert_eq!(take(&mut c, 0, 700 << 10), (Ok(()), Accepting::Yes), "an everyday append fits");
    assert_eq!(take(&mut c, 1, 400 << 10), (Err(AppendError::NoSpace), Accepting::NoSpace));
    assert_eq!(take(&mut c, 1, 100), (Ok(()), Accepting::NoSpace), "it fits into what is left");
    drop(batches(&mut c));
    assert_eq!(c.watermarks().accepting, Accepting::NoSpace, "what was taken waits no longer");
    c.set_free_segments(1);
    assert_eq!(c.watermarks().accepting, Accepting::Yes);
    c.set_free_segments(0);
    assert_eq!(c.watermarks().accepting, Accepting::NoSpace, "it was refused for this one, and it is the last again");
    c.take_active(Ok(segment(2)), NOW);
    assert_eq!(c.watermarks().accepting, Accepting::Yes, "nothing was refused for this one");
    assert_eq!(take(&mut c, 2, 400 << 10), (Ok(()), Accepting::Yes));
}

#[test]
fn room_that_a_rotation_missed_first_is_reported_all_the_same_and_once() {
    let producers = ProducerTable::new(1, 1, 1);
    let mut c = Committer::new(JournalConfig::default(), producers, 0, EpochStart { epoch: 1, first_offset: 0 }, 0);
    let now = Moment { real_ns: 0, boot_ns: 0 };
    assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
    c.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
    let news = c.set_free_segments(0);
    assert!(news.report && !news.changed);
    assert!(!c.set_free_segments(0).report);
    let news = c.set_free_segments(1);
    assert!(news.report && news.changed);
}

#[test]
fn room_that_was_missing_for_a_moment_is_no_news_and_wakes_all_the_same() {
    let producers = ProducerTable::new(1, 1, 1);
    let mut c = Committer::new(JournalConfig::default(), producers, 0, EpochStart { epoch: 1, first_offset: 0 }, 0);
    let now = Moment { real_ns: 0, boot_ns: 0 };
    assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
    c.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
    let news = c.set_free_segments(1);
    assert!(!news.report && news.changed);
}
