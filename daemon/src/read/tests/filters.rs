//! READs with a filter: what is sent, what is passed over, and what the reader hears of it.

use bytes::BytesMut;
use clad_proto::filter::Filter;
use clad_proto::{Group, Payload, PayloadBuilder, Record, Severity};

use super::super::sieve::{EXPRESSION_LOOKS, FILTER_EXPRESSIONS_MAX};
use super::*;

const QUIET: i32 = 9;
const LOUD: i32 = 17;

fn append(severities: &[i32], body: &str) -> Payload {
    let mut builder = PayloadBuilder::new(&Group::component_named("app")).expect("a group");
    severities.iter().for_each(|severity| builder.push(&Record::text(1, *severity, body)).expect("a record"));
    builder.finish()
}

/// A log of these appends, each in a batch of its own, with their checksums xor a number.
fn log_of(appends: &[(Payload, u32)]) -> Log {
    let dir = tempfile::tempdir().expect("a folder");
    let config = JournalConfig { reserve_free: 0, segment_bytes: 32 << 20, ..JournalConfig::default() };
    let journal = Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"));
    let mut first_sequence = 0;
    for (payload, flip) in appends {
        submit(&journal, payload, first_sequence, *flip);
        first_sequence += u64::from(payload.count);
    }
    Log { _dir: dir, reads: Reads::new(journal, AckLevel::Durable) }
}

fn submit(journal: &Journal, payload: &Payload, first_sequence: u64, flip: u32) {
    let append = Append {
        producer: [7; 16],
        owner: 1,
        producer_epoch: 1,
        first_sequence,
        count: payload.count,
        gap: false,
        level: Level::Written,
        min_time_ns: 1,
        max_time_ns: 1,
        peer_meta: &[],
        payload: &payload.bytes,
        payload_checksum: payload.checksum() ^ flip,
        permit: None,
    };
    append.submit(journal).expect("taken");
    let (end, began) = (first_sequence + u64::from(payload.count), Instant::now());
    while journal.watermarks().written < end {
        assert!(began.elapsed() < TEST_TIMEOUT, "the append at {first_sequence} is never written");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn read(filter: &Filter) -> Read {
    Read { since: None, until: None, filter: Some(filter.to_bytes().expect("a filter")), ..nothing() }
}

fn loud() -> Filter {
    Filter::new().severity_at_least(Severity(LOUD))
}

/// The frames of a READ to its end, and the bytes of all.
async fn frames(log: &Log, read: &Read) -> (Vec<Frame>, usize) {
    let (out, mut blocks) = mpsc::channel(2);
    let (_cancel, cancelled) = watch::channel(false);
    let (_stop, stop) = watch::channel(false);
    let stream = log.reads.start(read, ME).expect("it begins");
    let reading = tokio::spawn(stream.run(out, stop, cancelled));
    let mut all = BytesMut::new();
    while let Some(block) = tokio::time::timeout(TEST_TIMEOUT, blocks.recv()).await.expect("in time") {
        all.extend_from_slice(&block);
    }
    reading.await.expect("no panic");
    let (bytes, mut frames) = (all.len(), Vec::new());
    while let Some(frame) = FrameDecoder::default().next(&mut all).expect("frames") {
        frames.push(frame);
    }
    (frames, bytes)
}

fn sent(frames: &[Frame]) -> Vec<(u64, u32)> {
    let records = frames.iter().filter_map(|frame| match frame {
        Frame::Records(records) => {
            assert_eq!((records.head.skip, records.head.take), (0, records.head.count), "appends come whole");
            Some((records.head.first_offset, records.head.count))
        }
        _ => None,
    });
    records.collect()
}

#[tokio::test]
async fn appends_with_a_match_come_whole_and_the_end_is_behind_all() {
    let log = log_of(
        &[&[QUIET][..], &[QUIET, LOUD, QUIET], &[LOUD], &[QUIET, QUIET], &[LOUD, LOUD], &[QUIET]]
            .map(|severities| (append(severities, "x"), 0)),
    );
    let (got, _) = frames(&log, &read(&loud())).await;
    assert_eq!(sent(&got), [(1, 3), (4, 1), (7, 2)]);
    let Some(Frame::ReadEnd(end)) = got.last() else { panic!("{got:?}") };
    assert_eq!((end.cursor.offset, end.reason), (10, ReadEndReason::End));
    let (all, _) = frames(&log, &Read { filter: None, ..read(&loud()) }).await;
    assert_eq!(sent(&all).len(), 6, "without a filter everything");
    assert!(!all.iter().any(|frame| matches!(frame, Frame::Progress(_))));
    // It begins inside an append: what the append has is judged whole.
    let inside = Read { from: ReadFrom::Offset(2), ..read(&loud()) };
    let (out, mut blocks) = mpsc::channel(8);
    let (_keep, flag) = watch::channel(false);
    log.reads.start(&inside, ME).expect("it begins").run(out, flag.clone(), flag).await;
    let Ok(Some(Frame::Records(first))) =
        FrameDecoder::default().next(&mut blocks.recv().await.expect("a block").as_ref().into())
    else {
        panic!("records")
    };
    assert_eq!((first.head.first_offset, first.head.skip, first.head.take), (1, 1, 2));
}

/// Damage is for the reader to find: what does not fit its checksum, or is no payload, comes whatever the filter is.
#[tokio::test]
async fn a_damaged_append_is_never_left_out() {
    let torn = Payload { bytes: Bytes::from_static(b"no payload at all"), ..append(&[QUIET], "x") };
    let log = log_of(&[(append(&[QUIET], "a"), 0), (append(&[QUIET], "b"), 1), (torn, 0), (append(&[QUIET], "c"), 0)]);
    assert_eq!(sent(&frames(&log, &read(&loud())).await.0), [(1, 1), (2, 1)]);
}

#[tokio::test]
async fn where_little_matches_little_is_sent_and_the_place_moves() {
    let body = "q".repeat(BODY);
    let appends: Vec<_> = (0..BATCHES).map(|at| (append(&[if at == 7 { LOUD } else { QUIET }], &body), 0)).collect();
    let log = log_of(&appends);
    let (got, bytes) = frames(&log, &read(&loud())).await;
    assert_eq!(sent(&got), [(7, 1)]);
    assert!(bytes < 2 * BODY, "{bytes} bytes for one record of {BODY}");
    let places: Vec<u64> =
        got.iter().filter_map(|f| if let Frame::Progress(p) = f { Some(p.cursor.offset) } else { None }).collect();
    assert!(places.is_sorted_by(|a, b| a < b) && places.len() >= 4, "{places:?}");
    let step = (LOOK_BYTES_MAX / BODY + 1) as u64;
    let steps = std::iter::once(8).chain(places.iter().copied()).zip(places.iter().copied().chain([BATCHES as u64]));
    steps.for_each(|(from, to)| assert!(to.saturating_sub(from) <= step, "{places:?}"));
    let Some(Frame::ReadEnd(end)) = got.last() else { panic!("{got:?}") };
    assert!(
        end.cursor.epoch > 0
            && got.iter().all(|f| !matches!(f, Frame::Progress(p) if p.cursor.epoch != end.cursor.epoch))
    );
}

/// A reader that follows hears of matches at once. That its place moves over others it hears in the end, not each time.
#[tokio::test]
async fn a_follower_hears_of_what_it_is_not_sent_but_seldom() {
    const OTHERS: u64 = 300;
    let log = log_of(&[(append(&[LOUD], "x"), 0)]);
    let (out, mut blocks) = mpsc::channel(2);
    let ((_cancel, cancelled), (_stop, stop)) = (watch::channel(false), watch::channel(false));
    let stream = log.reads.start(&Read { follow: true, ..read(&loud()) }, ME).expect("it begins");
    let reading = tokio::spawn(stream.run(out, stop, cancelled));
    let journal = log.reads.journal.clone();
    let began = Instant::now();
    let appending = tokio::task::spawn_blocking(move || {
        (1..=OTHERS).for_each(|sequence| submit(&journal, &append(&[QUIET], "x"), sequence, 0));
        submit(&journal, &append(&[LOUD], "x"), OTHERS + 1, 0);
        submit(&journal, &append(&[QUIET], "x"), OTHERS + 2, 0);
    });
    let (mut caught_up, mut matches, mut place) = (0, Vec::new(), 0);
    while place < OTHERS + 3 {
        let block = tokio::time::timeout(TEST_TIMEOUT, blocks.recv()).await.expect("in time").expect("a block");
        let mut block = BytesMut::from(block.as_ref());
        while let Some(frame) = FrameDecoder::default().next(&mut block).expect("frames") {
            match frame {
                Frame::Records(records) => {
                    matches.push(records.head.first_offset);
                    place = records.head.first_offset + 1;
                }
                Frame::CaughtUp(at) => {
                    assert!(at.cursor.offset >= place, "{} behind {place}", at.cursor.offset);
                    (caught_up, place) = (caught_up + 1, at.cursor.offset);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    appending.await.expect("appended");
    assert_eq!(matches, [0, OTHERS + 1]);
    let seconds = began.elapsed().as_secs();
    assert!(caught_up <= 4 + seconds, "{caught_up} reports in {seconds} s for {OTHERS} appends");
    reading.abort();
}

#[tokio::test]
async fn a_filter_that_is_not_evaluated_is_refused_and_nothing_else_ends() {
    let log = log_of(&[(append(&[LOUD], "x"), 0)]);
    let with = |bytes: &[u8]| Read { filter: Some(Bytes::copy_from_slice(bytes)), ..read(&loud()) };
    for bad in [&[200, 0][..], &[1, 3, 1, 2, 3], &[4, 0], &[2, 2, 1], &[0xFF; 3000], &[1; 3841]] {
        let error = log.reads.start(&with(bad), ME).map(drop).expect_err("no filter");
        assert_eq!((error.code, error.retryable), (ErrorCode::FilterUnsupported, false), "{bad:?}");
    }
    // What an expression costs is seen where it is compiled, and that is off the threads that others need.
    for pattern in ["(", r"\w{2000}", "(?:a{1000}){1000}", &"(".repeat(3000)] {
        let (got, _) = frames(&log, &read(&Filter::new().body_matches(pattern, false))).await;
        let [Frame::Error(error)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!((error.request_id, error.error.code), (1, ErrorCode::FilterUnsupported), "{pattern}");
    }
    assert_eq!(sent(&frames(&log, &read(&loud())).await.0), [(0, 1)]);
}

#[tokio::test]
async fn regular_expressions_are_bounded_in_number_and_count_as_several_looks() {
    let log = log_of(&[(append(&[LOUD], "x"), 0)]);
    let expression = read(&Filter::new().body_matches("x+y", true));
    let open: Vec<_> =
        (0..FILTER_EXPRESSIONS_MAX).map(|_| log.reads.start(&expression, ME).expect("one of them")).collect();
    assert_eq!(log.reads.start(&expression, ME).map(drop).unwrap_err().code, ErrorCode::FilterUnsupported);
    assert!(log.reads.start(&read(&loud()), ME).is_ok(), "another filter");
    drop(open);
    let all_but_few = log.reads.looks.handle(ME).take(CONCURRENT_LOOKS_MAX / 2 - EXPRESSION_LOOKS + 1).await;
    let (out, mut blocks) = mpsc::channel(2);
    let ((_cancel, cancelled), (_stop, stop)) = (watch::channel(false), watch::channel(false));
    let reading = tokio::spawn(log.reads.start(&expression, ME).expect("it begins").run(out, stop, cancelled));
    assert!(tokio::time::timeout(Duration::from_millis(20), blocks.recv()).await.is_err(), "there is room for it");
    drop(all_but_few);
    assert!(tokio::time::timeout(TEST_TIMEOUT, blocks.recv()).await.expect("in time").is_some());
    reading.await.expect("no panic");
}
