//! Rings of a daemon without a descriptor store: all levels but `posted` are offered, and who lives hands its ring back to
//! the next daemon.

use clad_client::{AckLevel, Producer};
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Rng, Setup, TEST_TIMEOUT, readback, seed};
use clad_proto::ErrorCode;
use nix::sys::signal::Signal;

use crate::{producer, runtime, submit};

/// How often the daemon is killed.
const KILLS: u64 = 6;
/// Records of a client between two kills, at most.
const RECORDS_PER_KILL_MAX: u64 = 400;
/// Clients with rings.
const CLIENTS: usize = 3;

#[test]
fn without_a_store_a_ring_serves_every_level_but_posted() {
    let runtime = runtime();
    let daemon = Daemon::start();
    let client = producer(&runtime, &daemon, "shm");
    for level in [AckLevel::Received, AckLevel::Written, AckLevel::Durable] {
        let receipt = runtime.block_on(submit(&client, level, level.name().to_owned()));
        assert_eq!(receipt.expect("reached").level, level);
    }
    let refused = runtime.block_on(submit(&client, AckLevel::Posted, "refused".to_owned()));
    assert!(refused.as_ref().is_err_and(|e| e.code() == Some(ErrorCode::LevelUnreachable)), "{refused:?}");
    assert!(client.has_ring(), "one level costs nobody its ring");
    runtime.block_on(submit(&client, AckLevel::Durable, "after it".to_owned())).expect("durable");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let found: Vec<&[u8]> = all.iter().map(|stored| &stored.body[..]).collect();
    assert_eq!(found, [&b"received"[..], b"written", b"durable", b"after it"]);
}

#[test]
fn status_shows_rings_that_are_not_stored() {
    let runtime = runtime();
    for is_stored in [true, false] {
        let setup = if is_stored { Setup::new().with_fd_store() } else { Setup::new() };
        let daemon = setup.start();
        let _client = producer(&runtime, &daemon, "shm");
        let admin = format!("unix://{}", daemon.setup().admin_socket().display());
        let status = clactl_ends(0, &["status", "--admin", &admin], b"");
        let status = String::from_utf8(status.stdout).expect("text");
        let page = status.lines().find(|line| line.contains("posted"));
        assert_eq!(page.is_some(), !is_stored, "{status}");
    }
}

/// Outside a manager the daemon is killed, again and again, while clients live. What they have committed in their rings is
/// in the log once, in its order, whether it was answered or not.
#[test]
fn what_a_living_client_has_committed_outlives_a_kill_without_a_store() {
    let mut rng = Rng::new(seed());
    let runtime = runtime();
    let mut daemon = Daemon::start();
    let clients: Vec<Producer> = (0..CLIENTS).map(|_| producer(&runtime, &daemon, "shm")).collect();
    let mut committed = [0_u64; CLIENTS];
    for round in 0..KILLS {
        let stands_still = round % 2 == 0;
        if stands_still {
            daemon.signal(Signal::SIGSTOP);
        }
        for (which, client) in clients.iter().enumerate() {
            for _ in 0..1 + rng.below(RECORDS_PER_KILL_MAX) {
                let level = [AckLevel::Received, AckLevel::Written, AckLevel::Durable][rng.index(3)];
                drop(submit(client, level, format!("{which}:{}", committed[which])));
                committed[which] += 1;
            }
        }
        daemon.kill9();
        if rng.chance(1, 2) {
            daemon.start_and_kill9();
        }
        daemon.restart();
        if rng.chance(1, 2) {
            daemon.wait_for_rings(CLIENTS as u32);
        }
    }
    for client in &clients {
        let flushed = async { tokio::time::timeout(TEST_TIMEOUT, client.flush(AckLevel::Durable)).await };
        runtime.block_on(flushed).expect("in time").expect("durable");
        assert!(client.has_ring(), "{:?}", client.why_no_ring());
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    for (which, committed) in committed.into_iter().enumerate() {
        let prefix = format!("{which}:");
        let bodies = all.iter().filter_map(|stored| std::str::from_utf8(&stored.body).ok()?.strip_prefix(&prefix));
        let found: Vec<u64> = bodies.map(|number| number.parse().expect("a number")).collect();
        assert_eq!(found, (0..committed).collect::<Vec<_>>(), "client {which}: each once, in its order");
    }
}

/// The same over a clean end, and where the client posts under a manager whose store has no room for its ring.
#[test]
fn what_a_living_client_has_committed_outlives_a_kill_with_a_full_store() {
    let runtime = runtime();
    let mut daemon = Setup::new().over_fd_store(clad_e2e::FdStore::new(0, true)).start();
    let client = producer(&runtime, &daemon, "shm");
    let submit_all = |from: u64, until: u64| {
        (from..until).for_each(|number| drop(submit(&client, AckLevel::Received, format!("{number}"))));
    };
    submit_all(0, 100);
    daemon.signal(Signal::SIGSTOP);
    submit_all(100, 200);
    daemon.kill9();
    submit_all(200, 300);
    daemon.restart();
    runtime.block_on(client.flush(AckLevel::Durable)).expect("durable");
    submit_all(300, 400);
    assert_eq!(daemon.term(), Some(0));
    submit_all(400, 500);
    daemon.restart();
    runtime.block_on(client.flush(AckLevel::Durable)).expect("durable");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let found: Vec<u64> =
        all.iter().map(|stored| std::str::from_utf8(&stored.body).expect("text").parse().expect("a number")).collect();
    assert_eq!(found, (0..500).collect::<Vec<_>>());
}
