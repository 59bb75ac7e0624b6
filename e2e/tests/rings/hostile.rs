//! A client that writes nonsense into its ring is cut off, and nobody else is.

use std::fs::File;
use std::os::unix::fs::FileExt;

use clad_client::AckLevel;
use clad_e2e::{Setup, readback};
use clad_proto::frame::Hello;

use crate::by_hand::ByHand;
use crate::{producer, runtime, submit};

/// A client that knows the protocol and means ill.
struct Hostile {
    _by_hand: ByHand,
    ring: File,
}

impl Hostile {
    fn at(socket: &std::path::Path) -> Self {
        // A clock that is not the daemon's.
        let mut by_hand = ByHand::at(socket, &Hello { name: "hostile".to_owned(), ..clad_e2e::raw::hello() }, 1);
        assert!(by_hand.given.other_clock, "its clock is none");
        assert!(by_hand.given.bytes > 0);
        let (ring, board) = (File::from(by_hand.fds.remove(1)), File::from(by_hand.fds.remove(0)));
        // What it must not do, it cannot.
        assert!(ring.set_len(0).is_err() && ring.set_len(1 << 30).is_err(), "the ring can be cut or made to grow");
        assert!(board.write_at(b"mine", 128).is_err() && board.set_len(0).is_err(), "the board can be written");
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
    let daemon = Setup::new().start();
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
        let until = std::time::Instant::now() + clad_e2e::PATIENCE;
        while cut_off() < (round + 1) as f64 {
            assert!(std::time::Instant::now() < until, "the ring was not cut off");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(hostile);
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    assert_eq!(all.len(), 3 * 201, "all of the good one's, and nothing else");
    daemon.wait_for_rings(1);
}

/// Where as many are given out as may be, the next producer logs over the socket, and says so.
#[test]
fn without_a_ring_it_goes_over_the_socket() {
    let runtime = runtime();
    let daemon = Setup::new().set("ingest.shm.max_rings", "1").start();
    let first = producer(&runtime, &daemon, "shm");
    let address = daemon.address("shm").parse().expect("an address");
    let second = runtime.block_on(clad_client::Producer::builder(address).connect()).expect("connected");
    assert!(!second.has_ring());
    let why = second.why_no_ring().expect("it says why");
    assert!(why.text.contains("max_rings"), "{why}");
    let receipt = runtime.block_on(submit(&second, AckLevel::Durable, "by the socket".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(0));
    let posted = runtime.block_on(submit(&second, AckLevel::Posted, "no".to_owned()));
    assert!(posted.is_err_and(|e| e.code() == Some(clad_proto::ErrorCode::LevelUnreachable)), "no ring, no such level");
    let receipt = runtime.block_on(submit(&first, AckLevel::Durable, "by the ring".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(1));
}
