//! Rings of an earlier daemon that cannot be resumed: for now, by this version, or by this log.

use std::os::fd::AsRawFd as _;

use clad_proto::{ErrorCode, ErrorInfo};

use super::promises::{take, written};
use super::*;
use crate::fdstore::Layout;

/// Place of the version in the ring's layout, with the magic before it.
const VERSION_AT: u64 = 8;

/// A program's ring that an earlier daemon had given out, and had left something in.
fn left(harness: &Harness, name: u8, texts: &[&str]) -> (Program, StoredRing) {
    let (program, ring) = harness.ring(name);
    for text in texts {
        program.push(AckLevel::Posted, text);
    }
    let note = ring.registered.note;
    harness.shared.registry.deregister(&ring.registered);
    let stored = [ring.drain().client_fds().ring, ring.drain().client_fds().waker];
    let fds = stored.map(|fd| duplicate(fd).expect("a descriptor")).into();
    (program, StoredRing { note, fds })
}

/// Memory that the kernel maps for reading only: adopting it is refused as for want of memory.
fn unmappable(stored: &mut StoredRing) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", stored.fds[0].as_raw_fd());
    std::mem::replace(&mut stored.fds[0], std::fs::File::open(path).expect("it is there").into())
}

/// Answer to its client when it greets the daemon.
fn meets(harness: &Harness, program: &Program, stored: &Note) -> Result<bool, ErrorInfo> {
    let rings = Rings(Some(harness.shared.clone()));
    let hello = Hello { producer_id: program.producer, ..Hello::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(rings.meet(&hello, &peer_of(stored))).map(|ring_ref| ring_ref.is_some())
}

fn stalled(harness: &Harness) -> usize {
    Rings(Some(harness.shared.clone())).stalled()
}

fn not_drained(harness: &Harness) -> String {
    Rings(Some(harness.shared.clone())).not_drained().unwrap_or_default()
}

#[test]
fn a_ring_that_cannot_be_attached_now_is_attached_later() {
    let mut harness = Harness::new(16);
    let other = harness.program(2);
    let (program, mut stored) = left(&harness, 1, &["posted", "before"]);
    let (note, whole) = (stored.note, unmappable(&mut stored));
    assert!(harness.shared.adopt(stored).is_none());
    harness.shared.retry_stalled();
    assert!(
        not_drained(&harness).starts_with("1 rings of an earlier daemon are not drained"),
        "{}",
        not_drained(&harness)
    );
    let refused = meets(&harness, &program, &note).expect_err("what lies in the ring comes first");
    assert_eq!((refused.code, refused.retryable, refused.maybe_written), (ErrorCode::Busy, true, false), "{refused}");
    // It still counts for its user's limits, and holds up nobody.
    let (rings, bytes) = harness.shared.registry.totals();
    assert!(rings == 2 && bytes > 2 << 20 && stalled(&harness) == 1, "{rings} rings, {bytes} bytes");
    assert!(harness.catch_up(None));
    let last = other.push(AckLevel::Written, "of another");
    harness.all_written(&other, last);
    assert_eq!(Rings(Some(harness.shared.clone())).stop(Instant::now()), 2, "one by what its client may still do");
    program.push(AckLevel::Posted, "meanwhile");
    harness.shared.stalled()[0].fds()[0] = whole;
    harness.shared.retry_stalled();
    harness.until("drained", |harness| harness.stored(program.producer).len() == 3);
    assert_eq!(harness.stored(program.producer), ["posted", "before", "meanwhile"]);
    assert_eq!(not_drained(&harness), "");
    assert_eq!((harness.shared.stalled().len(), stalled(&harness)), (0, 0));
}

/// The daemon's own task, on which the watchdog depends, asks for its state: it waits for no try, whatever the try
/// waits for.
#[test]
fn a_look_at_stalled_rings_waits_for_no_retry() {
    let mut harness = Harness::new(16);
    let (program, mut stored) = left(&harness, 1, &["posted"]);
    let whole = unmappable(&mut stored);
    assert!(harness.shared.adopt(stored).is_none());
    harness.shared.stalled()[0].fds()[0] = whole;
    std::thread::scope(|scope| {
        // The lock stands for memory that is long in coming: each try needs the admission.
        let admission = harness.shared.admission.lock().expect("not poisoned");
        scope.spawn(|| harness.shared.retry_stalled());
        let is_tried = || harness.shared.stalled.try_lock().is_ok_and(|stalled| stalled[0].is_tried());
        let began = Instant::now();
        while !is_tried() {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody can look while it is tried");
            std::thread::yield_now();
        }
        assert!(not_drained(&harness).starts_with("1 rings of an earlier daemon are not drained"));
        drop(admission);
    });
    harness.until("drained", |harness| harness.stored(program.producer) == ["posted"]);
    assert_eq!(not_drained(&harness), "");
}

/// Its client comes back once the ring is resumed, to the same ring.
#[test]
fn a_client_returns_to_a_stalled_ring() {
    let mut harness = Harness::new(16);
    let (program, mut stored) = left(&harness, 1, &["posted"]);
    let (note, whole) = (stored.note, unmappable(&mut stored));
    assert!(harness.shared.adopt(stored).is_none() && meets(&harness, &program, &note).is_err());
    harness.shared.stalled()[0].fds()[0] = whole;
    harness.shared.retry_stalled();
    let is_its_own = harness.shared.registry.of_producer(&program.producer).expect("a ring");
    assert_eq!((is_its_own.note.id, harness.shared.registry.totals().0), (program.id, 1));
    // Its process is not the one of the note: the ring is closed and drained, and then the client may go another way.
    harness.until("drained to its end", |harness| harness.shared.registry.totals().0 == 0);
    assert_eq!(harness.stored(program.producer), ["posted"]);
    assert_eq!(meets(&harness, &program, &note), Ok(false));
}

#[test]
fn a_ring_of_another_version_stays_stored_and_a_corrupt_one_is_released() {
    let harness = Harness::new(16);
    let ours = clad_shm::VERSION;
    let other = Layout::OTHER;
    // The note says what the daemon has made. The ring says it where its client writes.
    for (layout, version, stays) in [
        (other, other.version(), true),
        (other, ours, true),
        (Layout::default(), other.version(), false),
        (Layout::default(), 1, false),
        (Layout::default(), u64::MAX, false),
    ] {
        let (program, mut stored) = left(&harness, 1, &["posted"]);
        stored.note.layout = layout;
        program.memory.write_at(&version.to_ne_bytes(), VERSION_AT).expect("writable");
        assert!(harness.shared.adopt(stored).is_none());
        assert_eq!(
            (harness.shared.stalled().len() == 1, harness.shared.registry.totals().0 == 1),
            (stays, stays),
            "{version}"
        );
        assert_eq!(not_drained(&harness).contains("the version of clad that gave it out"), stays, "{version}");
        harness.shared.retry_stalled();
        let stalled = std::mem::take(&mut *harness.shared.stalled());
        assert_eq!(stalled.len(), usize::from(stays), "{version}: time mends nothing");
        if let Some(registered) = harness.shared.registry.of_producer(&program.producer) {
            harness.shared.registry.deregister(&registered);
        }
    }
}

/// Its producer id is another user's in this log.
#[test]
fn a_ring_whose_producer_the_log_refuses_stays_stored() {
    let mut harness = Harness::new(16);
    let (program, stored) = left(&harness, 1, &["posted"]);
    harness.journal.connect(&[1; 16], u64::from(UID) + 1, 0, UID.into()).expect("nobody's");
    assert!(harness.shared.adopt(stored).is_none());
    assert!(not_drained(&harness).contains("first used by another user"), "{}", not_drained(&harness));
    harness.journal.disconnect(&[1; 16], true);
    harness.shared.retry_stalled();
    harness.until("drained", |harness| harness.stored(program.producer) == ["posted"]);
}

/// Posted to a daemon with larger segments: it waits for such a daemon, with all behind it. Appends that are posted to
/// this one are refused for good.
#[test]
fn what_no_segment_holds_any_more_waits_for_a_daemon_with_larger_ones() {
    const APPEND_BYTES_MAX: u32 = 100_000;
    let mut harness = Harness::of(16, APPEND_BYTES_MAX);
    let long = "x".repeat(2 * APPEND_BYTES_MAX as usize);
    let (program, stored) = left(&harness, 1, &["first", &long, "last"]);
    let again =
        StoredRing { note: stored.note, fds: stored.fds.iter().map(|fd| fd.try_clone().expect("one")).collect() };
    let ring = harness.shared.adopt(stored).expect("nothing stands in its way");
    harness.add(ring);
    harness.until("it is seen", |harness| !not_drained(harness).is_empty());
    let least = (2 * u64::from(APPEND_BYTES_MAX) + (32 << 10)).next_multiple_of(64 << 10);
    assert!(not_drained(&harness).contains(&format!("segment_bytes = {least} or more")), "{}", not_drained(&harness));
    assert_eq!(stalled(&harness), 1);
    // Nobody else waits for it, nor does a stop; what comes behind it does not overtake it.
    let other = harness.program(2);
    let refused = other.push(AckLevel::Written, &long);
    let last = other.push(AckLevel::Written, "of another");
    harness.all_written(&other, last);
    assert_eq!(other.code(refused), Some(ErrorCode::AppendTooLarge.number().into()));
    assert!(harness.catch_up(None));
    assert_eq!(harness.stored(program.producer), ["first"]);
    harness.until("the other's ring has ended", |harness| {
        Rings(Some(harness.shared.clone())).stop(Instant::now());
        harness.shared.registry.totals().0 == 1
    });
    assert!(!harness.shared.registry.any_gets_on(), "a stop waits for nothing more");
    // The next daemon.
    let mut larger = Harness::new(16);
    let ring = larger.shared.adopt(again).expect("nothing stands in its way");
    larger.add(ring);
    larger.until("drained", |larger| larger.stored(program.producer).len() == 2);
    assert_eq!(larger.stored(program.producer), [&long, "last"]);
    assert_eq!(not_drained(&larger), "");
}

/// A daemon with larger segments had taken it, and was killed before it gave the space back. The log has it, and what
/// is behind it does not wait.
#[test]
fn what_is_stored_already_needs_no_segment_that_holds_it() {
    const APPEND_BYTES_MAX: u32 = 100_000;
    let long = "x".repeat(2 * APPEND_BYTES_MAX as usize);
    let earlier = Harness::new(16);
    let (program, ring) = earlier.ring(1);
    program.push(AckLevel::Posted, "first");
    program.push(AckLevel::Written, &long);
    let mut rings = [ring];
    assert!(take(&earlier, &mut rings));
    written(&earlier, 2);
    let [ring] = rings;
    let fds = ring.drain().client_fds();
    let fds = [fds.ring, fds.waker].map(|fd| duplicate(fd).expect("a descriptor")).into();
    let stored = StoredRing { note: ring.registered.note, fds };
    drop(ring);
    program.push(AckLevel::Posted, "last");
    let mut harness = Harness::on(earlier.into_dir(), 16, APPEND_BYTES_MAX);
    let ring = harness.shared.adopt(stored).expect("nothing stands in its way");
    assert_eq!(ring.drain().released(), 0, "all of it comes again");
    harness.add(ring);
    harness.until("drained", |harness| harness.stored(program.producer).len() == 3);
    assert_eq!(harness.stored(program.producer), ["first", &long, "last"]);
    assert_eq!(not_drained(&harness), "");
}
