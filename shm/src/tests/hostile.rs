//! A client that writes whatever it likes, wherever it likes, whenever it likes.
//!
//! Invariants: no panic, no call that does not return, no memory beyond what the ring's size allows. Whatever is taken
//! still has rising numbers and sequences that add up. Another client's ring is not touched.
//! Seeded: `CLAD_SEED=N` runs one history again, `CLAD_SHM_RUNS=N` makes more.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::daemon::reader::{Entry, PEEK_SLOTS_MAX};
use crate::error::{Corrupt, OpenError};
use crate::layout::entry::{HEADER, Header};
use crate::layout::{Cursor, RING_MAGIC, Shape, Slot, VERSION, at};
use crate::mapped::Mapped;
use crate::memory::{Memory, Ordering::Relaxed};
use crate::{Drain, Peek, Producer, clock, drain};

const SHAPE: Shape = match Shape::new(4096, 32) {
    Ok(shape) => shape,
    Err(_) => panic!("a shape"),
};

/// Numbers that depend on a seed alone (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

fn pair() -> (Drain, Producer, Mapped) {
    let drain = Drain::create(SHAPE, 1, [0; 16], 1).expect("a ring");
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let producer = Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached");
    let memory = drain::map_ring(&own(fds.ring)).expect("the ring").0;
    (drain, producer, memory)
}

/// Writes nonsense somewhere: over the whole file, or where it hurts, with values that nearly make sense.
fn scribble(ring: &Mapped, chance: &mut Chance, next: u64) {
    let anywhere = chance.below(SHAPE.ring_bytes() as u64 / 8) as usize * 8;
    let places = [
        at::HEAD,
        at::TAIL,
        at::RELEASED,
        at::SLEEP,
        at::ABANDONED_REGION_COUNT,
        at::CHECKPOINTS[0],
        at::CHECKPOINTS[1],
    ];
    let near = next + chance.below(6);
    let place = match chance.below(5) {
        0 => places[chance.below(places.len() as u64) as usize],
        1 => at::ABANDONED_REGIONS + chance.below(48) as usize * 8,
        2 | 3 => SHAPE.slot_at(near),
        _ => anywhere,
    };
    let value = match chance.below(6) {
        0 => chance.next(),
        1 => ring.load(place, Relaxed) ^ 1 << chance.below(64),
        2 => Slot::committed(near, chance.below(1024) as u32).0,
        3 => Slot::abandoned(near).0,
        4 => Cursor::new(next + chance.below(40), chance.below(2048) as u32).0,
        _ => ring.load(place, Relaxed).wrapping_add(chance.below(16)),
    };
    ring.store(place, value, Relaxed);
}

/// Invariants of what a ring gives, whatever it is.
#[derive(Default)]
struct Rules {
    last: Option<Entry>,
}

impl Rules {
    fn check(&mut self, entry: Entry, len: usize, released: u64) {
        if let Some(last) = self.last {
            assert!(entry.append > last.append);
            assert_eq!(entry.sequence, last.sequence.wrapping_add(u64::from(last.records)));
        }
        assert!((1..=SHAPE.max_payload()).contains(&len));
        assert!(entry.append - released < u64::from(SHAPE.slots()), "more than the ring holds");
        self.last = Some(entry);
    }
}

/// One pass over the ring; `false`: it is corrupt.
fn drain_cycle(drain: &mut Drain, rules: &mut Rules) -> bool {
    let before = clock::now();
    let mut bytes = Vec::new();
    let mut calls = 0;
    loop {
        calls += 1;
        assert!(calls <= u64::from(SHAPE.slots()) + 2, "a pass without an end");
        match drain.peek(before) {
            Ok(Peek::Ready) => {
                bytes.clear();
                match drain.take(&mut bytes) {
                    Ok(Some(entry)) => rules.check(entry, bytes.len(), drain.released()),
                    Ok(None) => panic!("it was seen"),
                    Err(_) => {
                        assert!(bytes.is_empty(), "nothing of a corrupt entry is handed out");
                        return false;
                    }
                }
            }
            Ok(Peek::More | Peek::Empty | Peek::Blocked) => return true,
            Err(_) => return false,
        }
    }
}

#[test]
fn nonsense_between_any_two_calls() {
    let one = setting("CLAD_SEED");
    let runs = setting("CLAD_SHM_RUNS").unwrap_or(1000);
    let first = one.unwrap_or_else(clock::now);
    let (mut corrupt, mut taken) = (0, 0);
    for seed in first..first + if one.is_some() { 1 } else { runs } {
        let outcome = std::panic::catch_unwind(|| history(seed));
        let (is_corrupt, count) = outcome.unwrap_or_else(|_| panic!("again with CLAD_SEED={seed}"));
        corrupt += u64::from(is_corrupt);
        taken += count;
    }
    if one.is_none() && runs >= 1000 {
        assert!(corrupt > runs / 4 && taken > runs, "{corrupt} corrupt, {taken} taken of {runs}: this tests little");
    }
}

/// An honest client whose memory is scribbled over. Returns true if the ring was found corrupt, and how much it gave.
fn history(seed: u64) -> (bool, u64) {
    let mut chance = Chance(seed);
    let (mut drain, producer, memory) = pair();
    let mut rules = Rules::default();
    let noisy = 1 + chance.below(8);
    for step in 0..120_u64 {
        let payload = vec![step as u8; 1 + chance.below(200) as usize];
        let _ = producer.push(&[&payload], 1 + chance.below(3) as u32);
        if step > 10 && chance.below(noisy) == 0 {
            scribble(&memory, &mut chance, drain.next());
        }
        if chance.below(2) == 0 && !drain_cycle(&mut drain, &mut rules) {
            drain.cut_off(1);
            return (true, drain.next());
        }
        if drain.peek(clock::now()) == Ok(Peek::Empty) {
            assert!(drain.sleep(), "an empty ring that keeps its drain awake");
            drain.awake();
        }
        if chance.below(3) == 0 {
            drain.release(drain.next());
        }
        if chance.below(40) == 0 {
            let fds = drain.client_fds();
            let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
            match Drain::adopt(own(fds.ring), own(fds.waker), [0; 16], 2) {
                Ok(next) => drain = next,
                Err(_) => return (true, drain.next()),
            }
            rules = Rules::default();
        }
        if chance.below(50) == 0 {
            drain.client_gone();
        }
    }
    (false, drain.next())
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed, for who wants the same scribbles again")]
fn a_client_that_scribbles_all_the_time_costs_itself_alone() {
    let (mut good, producer, _) = pair();
    let deadline = Instant::now() + Duration::from_millis(1500);
    let (mut cut_off, mut count) = (0, 0_u64);
    let seed = setting("CLAD_SEED").unwrap_or_else(clock::now);
    println!("scribbles: CLAD_SEED={seed}");
    let mut rings = 0;
    // A daemon would release the ring that it cut off; here it continues while its tail can be determined, then with
    // another.
    while Instant::now() < deadline {
        let (mut bad, _, memory) = pair();
        let (stop, memory) = (AtomicBool::new(false), &memory);
        rings += 1;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut chance = Chance(seed + rings);
                while !stop.load(Relaxed) {
                    let next = memory.load(at::RELEASED, Relaxed) & 0xFFFF;
                    scribble(memory, &mut chance, next);
                }
            });
            let _stop = Stop(&stop);
            while Instant::now() < deadline {
                assert!(producer.push(&[&count.to_le_bytes()], 1).is_ok(), "the honest ring has space");
                let sound = drain_cycle(&mut bad, &mut Rules::default());
                let mut bytes = Vec::new();
                let seen = good.peek(clock::now()).expect("the honest ring is sound");
                assert!(matches!(seen, Peek::Ready), "{seen:?}");
                let entry = good.take(&mut bytes).expect("the honest ring is sound").expect("seen");
                assert_eq!((entry.append, bytes), (count, count.to_le_bytes().to_vec()));
                good.release(good.next());
                count += 1;
                if sound {
                    continue;
                }
                cut_off += 1;
                bad.cut_off(1);
                bad.release(u64::MAX);
                let fds = bad.client_fds();
                let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
                match Drain::adopt(own(fds.ring), own(fds.waker), [0; 16], 1) {
                    Ok(next) => bad = next,
                    Err(_) => break,
                }
            }
        });
    }
    assert!(cut_off > 10 && count > 1000, "{cut_off} times corrupt beside {count} honest appends");
}

/// Ends a thread also where the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn no_row_of_abandoned_slots_is_longer_than_the_ring() {
    let (mut drain, _, memory) = pair();
    // More and more appends are said to be abandoned, in the very slots that are looked at.
    for n in 0..10 * PEEK_SLOTS_MAX {
        memory.store(SHAPE.slot_at(n), Slot::abandoned(n).0, Relaxed);
        memory.store(at::HEAD, Cursor::new(n + 1, 0).0, Relaxed);
        drain.peek(1).expect("not corrupt, only silly");
    }
    assert_eq!(drain.next(), u64::from(SHAPE.slots()), "no more than the ring holds is remembered");
}

/// The flags of a descriptor's open file are the client's to change: it has the same one.
#[test]
fn a_doorbell_that_the_client_made_blocking_holds_up_nobody() {
    let (mut drain, producer, _) = pair();
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let (ring, waker) = (own(fds.ring), own(fds.waker));
    rustix::fs::fcntl_setfl(&waker, rustix::fs::OFlags::empty()).expect("the client's to say");
    let rung = |waker: &OwnedFd| {
        let mut fds = [PollFd::new(waker, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled") == 1
    };
    let (rung_tx, hears) = std::sync::mpsc::sync_channel(4);
    // Without an end it would not come back: then the thread is left behind.
    std::thread::spawn(move || {
        drain.awake(); // no ring of the bell
        rung_tx.send(rung(&waker)).expect("somebody hears");
        assert!(drain.sleep());
        producer.push(&[b"it rings"], 1).expect("pushed");
        rung_tx.send(rung(&waker)).expect("somebody hears");
        drain.awake();
        rung_tx.send(rung(&waker)).expect("somebody hears");
        drop(Drain::adopt(ring, waker, [0; 16], 2).expect("adopted")); // the next daemon
        rung_tx.send(false).expect("somebody hears");
    });
    for (at, wanted) in [false, true, false, false].into_iter().enumerate() {
        assert_eq!(hears.recv_timeout(Duration::from_secs(30)), Ok(wanted), "step {at}");
    }
}

#[test]
fn a_tail_that_cannot_be_is_not_adopted() {
    let (drain, _, memory) = pair();
    for append in [1 << 63, u64::MAX, u64::MAX - 5, 7] {
        memory.store(at::CHECKPOINTS[0] + 8, append, Relaxed);
        if append != 7 {
            let word = Cursor::new(append, 0).0;
            memory.store(at::CHECKPOINTS[0], word, Relaxed);
            memory.store(at::TAIL, word, Relaxed);
        }
        let fds = drain.client_fds();
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        let error = Drain::adopt(own(fds.ring), own(fds.waker), [0; 16], 2).expect_err("nonsense").error;
        assert!(matches!(error, OpenError::Corrupt(Corrupt::Tail)) && error.is_for_good(), "{append}");
    }
}

/// An obstacle of the moment to an adoption takes nothing away: what was handed over comes back, and is resumed later.
/// Nonsense is so for good.
#[test]
fn what_cannot_be_adopted_now_can_be_later() {
    let (drain, producer, memory) = pair();
    assert_eq!(producer.push(&[b"posted"], 1), Ok(0));
    let refused = |ring, waker| Drain::adopt(ring, waker, [0; 16], 2).expect_err("not now");
    let path = format!("/proc/self/fd/{}", drain.client_fds().ring.as_raw_fd());
    let [ring, waker] = drain.into_fds();
    // What the kernel refuses now.
    let read_only = std::fs::File::open(path).expect("it is there").into();
    let not = refused(read_only, waker);
    assert!(matches!(not.error, OpenError::Os { .. }) && !not.error.is_for_good(), "{not}");
    let mut waker = not.waker;
    let mut ring = ring;
    // Its client can write that, whatever it is.
    for version in [0, 1, 3, 0xffff, 0x1_0000, u64::MAX] {
        memory.store(at::VERSION, version, Relaxed);
        let not = refused(ring, waker);
        assert!(not.error.is_for_good(), "{version}: {not}");
        (ring, waker) = (not.ring, not.waker);
    }
    memory.store(at::VERSION, VERSION, Relaxed);
    memory.store(at::MAGIC, 0, Relaxed);
    let not = refused(ring, waker);
    assert!(not.error.is_for_good(), "{not}");
    memory.store(at::MAGIC, RING_MAGIC, Relaxed);
    let mut drain = Drain::adopt(not.ring, not.waker, [0; 16], 2).expect("nothing stands in its way");
    let mut taken = Vec::new();
    assert!(matches!(drain.peek(clock::now()), Ok(Peek::Ready)));
    assert!(drain.take(&mut taken).expect("sound").is_some_and(|entry| entry.append == 0));
    assert_eq!(taken, b"posted");
}

/// Everything that is checked, broken alone. The rest of the entry is as it should be, its checksum too.
#[test]
fn each_nonsense_has_its_name() {
    type Spoil<'a> = &'a dyn Fn(&Mapped, &mut Header, &mut u32);
    // The second append, behind a sound first one.
    let good = |append: u64| Header { len: 8, records: 1, ignored: 7, append: append as u32, check: 0 };
    let spoiled: [(&str, Corrupt, Spoil<'_>); 9] = [
        ("length 0", Corrupt::Length(1), &|_, header, _| header.len = 0),
        ("length above the limit", Corrupt::Length(1), &|_, header, _| header.len = SHAPE.max_payload() as u32 + 1),
        ("length u32::MAX", Corrupt::Length(1), &|_, header, _| header.len = u32::MAX),
        ("beyond the end of the area", Corrupt::Length(1), &|_, header, place| (header.len, *place) = (900, 500)),
        ("a header beyond the end", Corrupt::Place(1), &|_, _, place| *place = 510),
        ("a place that is taken", Corrupt::Place(1), &|_, _, place| *place = 1),
        ("a place a lap ahead", Corrupt::Place(1), &|_, _, place| *place = 600),
        ("another append's", Corrupt::Number(1), &|_, header, _| header.append = 33),
        ("a payload that changed", Corrupt::Checksum(1), &|ring, _, place| {
            ring.write(SHAPE.place_at(*place) + HEADER, b"payloaD!");
        }),
    ];
    for (what, expected, spoil) in spoiled {
        let (mut drain, producer, memory) = pair();
        assert_eq!(producer.push(&[b"payload!"], 1), Ok(0));
        let mut taken = Vec::new();
        assert!(matches!(drain.peek(clock::now()), Ok(Peek::Ready)));
        assert!(matches!(drain.take(&mut taken), Ok(Some(Entry { append: 0, .. }))));
        let (mut header, mut place) = (good(1), 4);
        memory.write(SHAPE.place_at(place) + HEADER, b"payload!");
        spoil(&memory, &mut header, &mut place);
        header.check = header.expected(crate::checksum::of(b"payload!"));
        for (index, word) in header.words().into_iter().enumerate() {
            let at = SHAPE.place_at(place) + index * 8;
            if at < SHAPE.ring_bytes() {
                memory.store(at, word, Relaxed);
            }
        }
        memory.store(SHAPE.slot_at(1), Slot::committed(1, place).0, Relaxed);
        memory.store(at::HEAD, Cursor::new(2, place + 4).0, Relaxed);
        let corrupt = drain.peek(clock::now()).and_then(|_| drain.take(&mut taken)).err();
        assert_eq!((corrupt, taken.as_slice()), (Some(expected), &b"payload!"[..]), "{what}");
    }
    for head in [Cursor::new(40, 4), Cursor::new((1 << 31) - 1, 4)] {
        let (mut drain, _, memory) = pair();
        memory.store(at::HEAD, head.0, Relaxed);
        assert_eq!(drain.peek(clock::now()), Err(Corrupt::Head));
    }
}
