//! A client that writes nonsense into its ring is cut off, and nobody else is.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clad_client::{AckLevel, Producer};
use clad_e2e::{Daemon, Rng, Setup, readback, seed};
use clad_proto::frame::{Hello, RingAppendTrailer};
use rustix::fs::FallocateFlags;

use crate::{producer, runtime, submit};
use clad_e2e::by_hand::ByHand;

/// A client that knows the protocol and means ill.
struct Hostile {
    _by_hand: ByHand,
    ring: File,
}

impl Hostile {
    fn at(socket: &std::path::Path) -> Self {
        let mut by_hand = ByHand::at(socket, &Hello { name: "hostile".to_owned(), ..clad_e2e::raw::hello() });
        assert!(by_hand.given.bytes > 0);
        let (ring, completion_page) = (File::from(by_hand.fds.remove(1)), File::from(by_hand.fds.remove(0)));
        // What it must not do, it cannot.
        assert!(ring.set_len(0).is_err() && ring.set_len(1 << 30).is_err(), "the ring can be cut or made to grow");
        assert!(
            completion_page.write_at(b"mine", 128).is_err() && completion_page.set_len(0).is_err(),
            "the page can be written"
        );
        Self { _by_hand: by_hand, ring }
    }

    fn scribble(&self, with: impl Fn(u64) -> u8) {
        let size = self.ring.metadata().expect("a file").len();
        let bytes: Vec<u8> = (0..size).map(with).collect();
        self.ring.write_all_at(&bytes, 0).expect("written");
    }
}

#[test]
fn who_scribbles_is_cut_off_and_nobody_else() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let good = producer(&runtime, &daemon, "shm");
    let cut_off = || daemon.metric("clad_shm_rings_cut_off_total");
    for (round, with) in
        [|_: u64| 0xFF, |at: u64| ((at * 2_654_435_761) >> 7) as u8, |at: u64| at as u8].iter().enumerate()
    {
        let hostile = Hostile::at(&daemon.socket());
        runtime.block_on(submit(&good, AckLevel::Durable, format!("{round} before"))).expect("durable");
        hostile.scribble(with);
        // It takes no notice of what the others log meanwhile.
        for number in 0..200 {
            runtime.block_on(submit(&good, AckLevel::Written, format!("{round} {number}"))).expect("written");
        }
        let until = Instant::now() + clad_e2e::TEST_TIMEOUT;
        while cut_off() < (round + 1) as f64 {
            assert!(Instant::now() < until, "the ring was not cut off");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(hostile);
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    assert_eq!(all.len(), 3 * 201, "all of the good one's, and nothing else");
    daemon.wait_for_rings(1);
}

/// What a client does to its ring, over and over, while records of its own and of others go on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    /// Cuts the file, and makes it grow: the seals refuse it.
    Truncate,
    /// Maps it again beside the mapping that is in use, writes there, and unmaps it.
    Remap,
    /// Punches holes: pages that the daemon has mapped are taken away and read as zeroes.
    Punch,
    /// Writes nonsense.
    Scribble,
}

/// What is punched or scribbled at once, bytes.
const CHUNK_BYTES: u64 = 16 * 4096;
/// How often an attack that changes nothing is tried.
const HARMLESS_ATTACK_ROUNDS: u64 = 100;
/// Appends of each of the others meanwhile.
const BYSTANDER_RECORDS: u64 = 20;

impl Attack {
    /// Whether the ring is nonsense afterwards.
    fn is_deadly(self) -> bool {
        matches!(self, Self::Punch | Self::Scribble)
    }

    fn strike(self, by_hand: &ByHand, rng: &mut Rng) {
        let ring = File::from(by_hand.fds[1].try_clone().expect("a descriptor"));
        let size = ring.metadata().expect("a file").len();
        match self {
            Self::Truncate => {
                for bytes in [0, size / 2, size - 1, size + 1, 1 << 30] {
                    let refused = ring.set_len(bytes).expect_err("the ring can be cut, or made to grow");
                    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{bytes} of {size} bytes");
                }
            }
            Self::Remap => {
                let again = by_hand.attach();
                push_if_it_can(&again, "from another mapping");
            }
            Self::Punch => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&ring, flags, somewhere(size, rng), CHUNK_BYTES).expect("a hole");
            }
            Self::Scribble => {
                let nonsense: Vec<u8> = (0..CHUNK_BYTES / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
                ring.write_all_at(&nonsense, somewhere(size, rng)).expect("written");
            }
        }
    }
}

/// Where a piece begins; every fourth time where the ring does, for what decides lies there.
fn somewhere(size: u64, rng: &mut Rng) -> u64 {
    if rng.chance(1, 4) { 0 } else { rng.below((size - CHUNK_BYTES) / 4096) * 4096 }
}

/// A record of an attacker's own; its ring may be nonsense by now.
fn push_if_it_can(ring: &clad_shm::Producer, body: &str) -> bool {
    let payload = clad_e2e::raw::payload(&[body.as_bytes()]);
    let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: payload.checksum() }.encode();
    ring.push(&[&payload.bytes, &trailer], payload.count).is_ok()
}

/// Others log by rings and by a socket, and are answered, while a client with a ring attacks.
/// Says how many records of its own the client got into its ring.
fn under(attack: Attack, daemon: &Daemon, runtime: &tokio::runtime::Runtime, others: &[Producer], seed: u64) -> u64 {
    let cut_off = || daemon.metric("clad_shm_rings_cut_off_total");
    let before = cut_off();
    let by_hand = ByHand::at(&daemon.socket(), &Hello { name: "hostile".to_owned(), ..clad_e2e::raw::hello() });
    let ring = by_hand.attach();
    let (over, strikes, own) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if push_if_it_can(&ring, "of the attacker") {
                    own.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(50)); // the processors are the others', too
            }
        });
        scope.spawn(|| {
            let mut rng = Rng::new(seed);
            while !over.load(Ordering::Relaxed) {
                attack.strike(&by_hand, &mut rng);
                strikes.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..BYSTANDER_RECORDS {
                for other in others {
                    let receipt = runtime.block_on(submit(other, AckLevel::Written, format!("{attack:?} {number}")));
                    receipt.expect("written");
                }
            }
            let until = Instant::now() + clad_e2e::TEST_TIMEOUT;
            let done = || match attack.is_deadly() {
                true => cut_off() > before,
                false => {
                    strikes.load(Ordering::Relaxed) >= HARMLESS_ATTACK_ROUNDS
                        && own.load(Ordering::Relaxed) >= HARMLESS_ATTACK_ROUNDS
                }
            };
            while !done() {
                // A daemon that sleeps looks at no ring.
                runtime.block_on(submit(&others[0], AckLevel::Written, "more".to_owned())).expect("written");
                assert!(
                    Instant::now() < until,
                    "{attack:?}: {strikes:?} strikes, {own:?} records, {} cut off",
                    cut_off()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }));
        over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    drop(by_hand);
    // Let go in either case, and counted where it was nonsense.
    daemon.wait_for_rings(others.iter().filter(|other| other.has_ring()).count() as u32);
    assert_eq!(cut_off() - before, f64::from(u8::from(attack.is_deadly())), "{attack:?}");
    own.into_inner()
}

/// One client after the other cuts, remaps, punches or scribbles, under load. The others' acks go on; who makes nonsense of
/// its ring is cut off, once; who only tries what it cannot has its own records stored.
#[test]
fn whatever_a_client_does_to_its_ring_the_others_proceed() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let others: Vec<Producer> = ["shm", "shm", "unix"].map(|way| producer(&runtime, &daemon, way)).into();
    let seed = seed();
    let mut own = 0;
    for attack in [Attack::Truncate, Attack::Remap, Attack::Punch, Attack::Scribble] {
        let pushed = under(attack, &daemon, &runtime, &others, seed);
        own += if attack.is_deadly() { 0 } else { pushed };
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let found = |body: &str| all.iter().filter(|stored| stored.body == body.as_bytes()).count() as u64;
    for attack in [Attack::Truncate, Attack::Remap, Attack::Punch, Attack::Scribble] {
        for number in 0..BYSTANDER_RECORDS {
            assert_eq!(found(&format!("{attack:?} {number}")), others.len() as u64, "{attack:?} {number}");
        }
    }
    assert!(found("of the attacker") >= own && found("from another mapping") > 0, "who does no harm is served: {own}");
    drop(others);
    assert_eq!(daemon.term(), Some(0));
}

/// Where as many are given out as may be, the next producer logs over the socket, says so, and asks again. Each way that it
/// goes continues the one before.
#[test]
fn without_a_ring_it_goes_over_the_socket_and_comes_again() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().set("ingest.shm.max_rings", "1").start();
    let first = producer(&runtime, &daemon, "shm");
    let address = daemon.address("shm").parse().expect("an address");
    let second = runtime.block_on(Producer::builder(address).connect()).expect("connected");
    assert!(!second.has_ring());
    let why = second.why_no_ring().expect("it says why");
    assert!(why.text.contains("max_rings"), "{why}");
    let receipt = runtime.block_on(submit(&second, AckLevel::Durable, "0".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(0));
    let posted = runtime.block_on(submit(&second, AckLevel::Posted, "no".to_owned()));
    assert!(posted.is_err_and(|e| e.code() == Some(clad_proto::ErrorCode::LevelUnreachable)), "no ring, no such level");
    let receipt = runtime.block_on(submit(&first, AckLevel::Durable, "1".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(1));

    runtime.block_on(first.close()).expect("all is durable");
    let (until, mut number) = (Instant::now() + clad_e2e::TEST_TIMEOUT, 1);
    let mut log = |level| {
        number += 1;
        assert!(Instant::now() < until, "it stays where it is: {:?}", second.why_no_ring());
        let receipt = runtime.block_on(submit(&second, level, number.to_string())).expect("an ack");
        assert!(receipt.first_offset.is_none_or(|offset| offset == number), "{receipt:?}");
    };
    while !second.has_ring() {
        log(AckLevel::Received);
    }
    [AckLevel::Posted, AckLevel::Received, AckLevel::Durable].into_iter().for_each(&mut log);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("ingest.shm.enabled", "false");
    while second.has_ring() {
        assert!(Instant::now() < until, "it has the ring of a daemon that has none");
        std::thread::sleep(Duration::from_millis(5));
    }
    [AckLevel::Received, AckLevel::Durable].into_iter().for_each(&mut log);
    let bodies: Vec<String> = (0..=number).map(|number| number.to_string()).collect();
    let stored = runtime.block_on(readback::served(&daemon.address("unix")));
    assert_eq!(Vec::from_iter(stored.iter().map(|stored| String::from_utf8_lossy(&stored.body))), bodies);
}
