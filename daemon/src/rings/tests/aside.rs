//! Rings of an earlier daemon that cannot be gone on with: for now, by this version, or by this log.

use std::os::fd::AsRawFd as _;

use clad_proto::{ErrorCode, ErrorInfo};

use super::promises::{take, written};
use super::*;
use crate::keep::Layout;

/// Where the ring's layout says its version, and the magic before it.
const VERSION_AT: u64 = 8;

/// A program's ring that an earlier daemon had given out, and had left something in.
fn left(world: &World, name: u8, texts: &[&str]) -> (Program, Kept) {
    let (program, ring) = world.ring(name);
    for text in texts {
        program.push(AckLevel::Posted, text);
    }
    let note = ring.member.note;
    world.shared.roll.leave(&ring.member);
    let kept = [ring.drain().client_fds().ring, ring.drain().client_fds().waker];
    let fds = kept.map(|fd| duplicate(fd).expect("a descriptor")).into();
    (program, Kept { note, fds })
}

/// What the kernel maps for reading only: adopting it is refused as for want of memory.
fn unmappable(kept: &mut Kept) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", kept.fds[0].as_raw_fd());
    std::mem::replace(&mut kept.fds[0], std::fs::File::open(path).expect("it is there").into())
}

/// What its client is told that greets the daemon.
fn meets(world: &World, program: &Program, kept: &Note) -> Result<bool, ErrorInfo> {
    let rings = Rings(Some(world.shared.clone()));
    let hello = Hello { producer_id: program.producer, ..Hello::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(rings.meet(&hello, &peer_of(kept))).map(|held| held.is_some())
}

fn aside(world: &World) -> usize {
    Rings(Some(world.shared.clone())).aside()
}

fn not_drained(world: &World) -> String {
    Rings(Some(world.shared.clone())).not_drained().unwrap_or_default()
}

#[test]
fn what_cannot_be_gone_on_with_now_stays_kept_and_goes_on_later() {
    let mut world = World::new(16);
    let other = world.program(2);
    let (program, mut kept) = left(&world, 1, &["posted", "before"]);
    let (note, whole) = (kept.note, unmappable(&mut kept));
    assert!(world.shared.adopt(kept).is_none());
    world.shared.try_again();
    assert!(not_drained(&world).starts_with("1 rings of an earlier daemon are not drained"), "{}", not_drained(&world));
    let told = meets(&world, &program, &note).expect_err("what lies in the ring comes first");
    assert_eq!((told.code, told.retryable, told.maybe_written), (ErrorCode::Busy, true, false), "{told}");
    // It keeps its place in what its user may have, and holds up nobody.
    let (rings, bytes) = world.shared.roll.totals();
    assert!(rings == 2 && bytes > 2 << 20 && aside(&world) == 1, "{rings} rings, {bytes} bytes");
    assert!(world.catch_up(None));
    let last = other.push(AckLevel::Written, "of another");
    world.all_written(&other, last);
    assert_eq!(Rings(Some(world.shared.clone())).stop(Instant::now()), 2, "one by what its client may still do");
    program.push(AckLevel::Posted, "meanwhile");
    world.shared.aside()[0].fds()[0] = whole;
    world.shared.try_again();
    world.until("drained", |world| world.stored(program.producer).len() == 3);
    assert_eq!(world.stored(program.producer), ["posted", "before", "meanwhile"]);
    assert_eq!(not_drained(&world), "");
    assert_eq!((world.shared.aside().len(), aside(&world)), (0, 0));
}

/// The daemon's own task asks how it is, on which the watchdog stands: it waits for no try, whatever that waits for.
#[test]
fn who_looks_at_what_is_set_aside_waits_for_no_try() {
    let mut world = World::new(16);
    let (program, mut kept) = left(&world, 1, &["posted"]);
    let whole = unmappable(&mut kept);
    assert!(world.shared.adopt(kept).is_none());
    world.shared.aside()[0].fds()[0] = whole;
    std::thread::scope(|scope| {
        // What stands for memory that is long in coming: each try needs the door.
        let door = world.shared.door.lock().expect("not poisoned");
        scope.spawn(|| world.shared.try_again());
        let is_tried = || world.shared.aside.try_lock().is_ok_and(|aside| aside[0].is_tried());
        let began = Instant::now();
        while !is_tried() {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody can look while it is tried");
            std::thread::yield_now();
        }
        assert!(not_drained(&world).starts_with("1 rings of an earlier daemon are not drained"));
        drop(door);
    });
    world.until("drained", |world| world.stored(program.producer) == ["posted"]);
    assert_eq!(not_drained(&world), "");
}

/// Its client comes back once it goes on, to the same ring.
#[test]
fn a_client_comes_back_to_a_ring_that_was_set_aside() {
    let mut world = World::new(16);
    let (program, mut kept) = left(&world, 1, &["posted"]);
    let (note, whole) = (kept.note, unmappable(&mut kept));
    assert!(world.shared.adopt(kept).is_none() && meets(&world, &program, &note).is_err());
    world.shared.aside()[0].fds()[0] = whole;
    world.shared.try_again();
    let is_its_own = world.shared.roll.of_producer(&program.producer).expect("a ring");
    assert_eq!((is_its_own.note.id, world.shared.roll.totals().0), (program.id, 1));
    // Its process is not the one of the note: the ring is closed and drained, and then it may go another way.
    world.until("drained to its end", |world| world.shared.roll.totals().0 == 0);
    assert_eq!(world.stored(program.producer), ["posted"]);
    assert_eq!(meets(&world, &program, &note), Ok(false));
}

#[test]
fn a_ring_of_another_version_is_kept_for_it_and_nonsense_is_let_go() {
    let world = World::new(16);
    let ours = clad_shm::VERSION;
    let other = Layout::OTHER;
    // What the note says that the daemon has made, and what the ring says, where its client writes.
    for (layout, version, stays) in [
        (other, other.version(), true),
        (other, ours, true),
        (Layout::default(), other.version(), false),
        (Layout::default(), 1, false),
        (Layout::default(), u64::MAX, false),
    ] {
        let (program, mut kept) = left(&world, 1, &["posted"]);
        kept.note.layout = layout;
        program.memory.write_at(&version.to_ne_bytes(), VERSION_AT).expect("writable");
        assert!(world.shared.adopt(kept).is_none());
        assert_eq!((world.shared.aside().len() == 1, world.shared.roll.totals().0 == 1), (stays, stays), "{version}");
        assert_eq!(not_drained(&world).contains("the version of clad that gave it out"), stays, "{version}");
        world.shared.try_again();
        let aside = std::mem::take(&mut *world.shared.aside());
        assert_eq!(aside.len(), usize::from(stays), "{version}: time mends nothing");
        if let Some(member) = world.shared.roll.of_producer(&program.producer) {
            world.shared.roll.leave(&member);
        }
    }
}

/// Its producer id is another user's in this log.
#[test]
fn a_ring_whose_producer_the_log_refuses_stays_kept() {
    let mut world = World::new(16);
    let (program, kept) = left(&world, 1, &["posted"]);
    world.journal.connect(&[1; 16], u64::from(UID) + 1, 0, UID.into()).expect("nobody's");
    assert!(world.shared.adopt(kept).is_none());
    assert!(not_drained(&world).contains("first used by another user"), "{}", not_drained(&world));
    world.journal.disconnect(&[1; 16], true);
    world.shared.try_again();
    world.until("drained", |world| world.stored(program.producer) == ["posted"]);
}

/// Posted to a daemon with larger segments: it waits for such a one, with all behind it. What is posted to this one is refused
/// for good.
#[test]
fn what_no_segment_holds_any_more_waits_for_a_daemon_with_larger_ones() {
    const MOST: u32 = 100_000;
    let mut world = World::of(16, MOST);
    let long = "x".repeat(2 * MOST as usize);
    let (program, kept) = left(&world, 1, &["first", &long, "last"]);
    let again = Kept { note: kept.note, fds: kept.fds.iter().map(|fd| fd.try_clone().expect("one")).collect() };
    let ring = world.shared.adopt(kept).expect("nothing stands in its way");
    world.add(ring);
    world.until("it is seen", |world| !not_drained(world).is_empty());
    let least = (2 * u64::from(MOST) + (32 << 10)).next_multiple_of(64 << 10);
    assert!(not_drained(&world).contains(&format!("segment_bytes = {least} or more")), "{}", not_drained(&world));
    assert_eq!(aside(&world), 1);
    // Nobody else waits for it, nor does a stop; and what comes behind it does not pass it.
    let other = world.program(2);
    let refused = other.push(AckLevel::Written, &long);
    let last = other.push(AckLevel::Written, "of another");
    world.all_written(&other, last);
    assert_eq!(other.code(refused), Some(ErrorCode::AppendTooLarge.number().into()));
    assert!(world.catch_up(None));
    assert_eq!(world.stored(program.producer), ["first"]);
    world.until("the other's ring has ended", |world| {
        Rings(Some(world.shared.clone())).stop(Instant::now());
        world.shared.roll.totals().0 == 1
    });
    assert!(!world.shared.roll.any_gets_on(), "a stop waits for nothing more");
    // The next daemon.
    let mut larger = World::new(16);
    let ring = larger.shared.adopt(again).expect("nothing stands in its way");
    larger.add(ring);
    larger.until("drained", |larger| larger.stored(program.producer).len() == 2);
    assert_eq!(larger.stored(program.producer), [&long, "last"]);
    assert_eq!(not_drained(&larger), "");
}

/// A daemon with larger segments had taken it, and was killed before it gave the space back: the log has it, and what is behind
/// it does not wait.
#[test]
fn what_is_stored_already_needs_no_segment_that_holds_it() {
    const MOST: u32 = 100_000;
    let long = "x".repeat(2 * MOST as usize);
    let earlier = World::new(16);
    let (program, ring) = earlier.ring(1);
    program.push(AckLevel::Posted, "first");
    program.push(AckLevel::Written, &long);
    let mut rings = [ring];
    assert!(take(&earlier, &mut rings));
    written(&earlier, 2);
    let [ring] = rings;
    let fds = ring.drain().client_fds();
    let fds = [fds.ring, fds.waker].map(|fd| duplicate(fd).expect("a descriptor")).into();
    let kept = Kept { note: ring.member.note, fds };
    drop(ring);
    program.push(AckLevel::Posted, "last");
    let mut world = World::on(earlier.into_dir(), 16, MOST);
    let ring = world.shared.adopt(kept).expect("nothing stands in its way");
    assert_eq!(ring.drain().released(), 0, "all of it comes again");
    world.add(ring);
    world.until("drained", |world| world.stored(program.producer).len() == 3);
    assert_eq!(world.stored(program.producer), ["first", &long, "last"]);
    assert_eq!(not_drained(&world), "");
}
