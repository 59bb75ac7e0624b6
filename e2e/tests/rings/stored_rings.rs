//! What was posted stays kept where a start cannot go on with it: no memory, or segments that do not hold it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clad_client::AckLevel;
use clad_e2e::stall::Stall;
use clad_e2e::tool::is_on_path;
use clad_e2e::{Daemon, Setup, not_run, readback, web};
use clad_proto::frame::{Hello, RingAppendTrailer};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::{producer, runtime, submit};
use clad_e2e::by_hand::{ByHand, push};

/// Records that a client has posted and nobody has drained.
const POSTED_RECORDS: usize = 20;

/// The longest pause between two tries to go on with a ring: on a slow machine the first, shorter ones are over when it can be.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// A daemon, and the file with the words that it is started under.
fn under(setup: Setup, words: &str) -> (Daemon, PathBuf) {
    let file = setup.dir().with_extension("under");
    fs::write(&file, words).expect("written");
    let call = format!("exec $(cat {}) \"$0\" \"$@\"", file.display());
    (setup.under(&["sh", "-c", &call]).start(), file)
}

fn client(daemon: &Daemon, name: &str) -> (ByHand, clad_shm::Producer) {
    let by_hand = ByHand::at(&daemon.socket(), &Hello { name: name.to_owned(), ..clad_e2e::raw::hello() });
    let ring = by_hand.attach();
    (by_hand, ring)
}

/// Has so many clients post, and kills the daemon before it has drained any of it. They live on.
fn post_and_kill(daemon: &mut Daemon, clients: usize) -> Vec<(ByHand, clad_shm::Producer)> {
    let clients: Vec<_> = (0..clients).map(|n| client(daemon, &format!("c{n}"))).collect();
    daemon.signal(Signal::SIGSTOP);
    for (n, (_, ring)) in clients.iter().enumerate() {
        for number in 0..POSTED_RECORDS {
            push(ring, AckLevel::Posted, &format!("c{n}:{number}"));
        }
    }
    daemon.kill9();
    clients
}

fn bodies(daemon: &Daemon) -> Vec<String> {
    let all = runtime().block_on(readback::served(&daemon.address("unix")));
    all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text")).collect()
}

fn health(daemon: &Daemon) -> String {
    web::page(daemon.port("metrics"), "/healthz").1
}

fn wait(daemon: &Daemon, what: &str, holds: impl FnMut() -> bool) {
    wait_for(daemon, what, clad_e2e::TEST_TIMEOUT, holds);
}

fn wait_for(daemon: &Daemon, what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let (until, mut stall) = (Instant::now() + limit, Stall::default());
    while !holds() {
        assert!(Instant::now() < until, "{what} never was so: {}\n{}", health(daemon), daemon.said());
        stall.look(|| format!("{what}; health: {}{}", health(daemon), daemon.said()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Another program's record is durable.
fn another_is_served(daemon: &Daemon, runtime: &tokio::runtime::Runtime) {
    let other = producer(runtime, daemon, "unix");
    let mut ticket = submit(&other, AckLevel::Durable, "of another".to_owned());
    let mut look = || runtime.block_on(async { timeout(Duration::from_millis(20), &mut ticket).await });
    wait(daemon, "another's record is durable", || match look() {
        Ok(outcome) => outcome.map(drop).map(|()| true).expect("nobody waits for what is kept"),
        Err(_) => false,
    });
}

/// All that the clients have posted is there, of each once and in its order.
fn all_is_there(daemon: &Daemon, clients: usize) {
    let drained = || bodies(daemon).iter().filter(|body| body.starts_with('c')).count() >= clients * POSTED_RECORDS;
    wait_for(daemon, "drained", clad_e2e::TEST_TIMEOUT + RETRY_INTERVAL, drained);
    let all = bodies(daemon);
    for n in 0..clients {
        let prefix = format!("c{n}:");
        let found: Vec<usize> = all.iter().filter_map(|body| body.strip_prefix(&prefix)?.parse().ok()).collect();
        assert_eq!(found, (0..POSTED_RECORDS).collect::<Vec<_>>(), "client {n}");
    }
}

/// The most address space that it has taken, bytes.
fn most_mapped(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("a line");
    line.trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// Two starts have no memory for the rings. They serve without them, say so, and the second goes on with them when it has some.
#[test]
fn a_ring_without_memory_stays_stored_and_resumes_when_there_is() {
    const RING_BYTES: u64 = 128 << 20;
    if !is_on_path("prlimit") {
        return not_run("a limit on the address space", "no prlimit");
    }
    let runtime = runtime();
    // The allocator takes no address space that it does not need.
    let plain = "env MALLOC_ARENA_MAX=1";
    let (mut daemon, file) =
        under(Setup::new().with_fd_store().set("ingest.shm.ring_bytes", &RING_BYTES.to_string()), plain);
    // More than all else takes, and less than the ring does.
    let limit = most_mapped(&daemon) + RING_BYTES / 4;
    assert!(limit < RING_BYTES, "all else takes too much: {limit}");
    let clients = post_and_kill(&mut daemon, 1);
    fs::write(&file, format!("{plain} prlimit --as={limit}:")).expect("written");
    for last in [false, true] {
        daemon.restart();
        daemon.wait_said("a stored ring cannot be resumed: it stays stored");
        wait(&daemon, "said", || health(&daemon).contains("1 rings of an earlier daemon are not drained"));
        let said = health(&daemon);
        assert!(said.contains("it needs more memory") && said.contains("Cannot allocate memory"), "{said}");
        assert_eq!(daemon.metric("clad_shm_rings_stalled"), 1.0);
        another_is_served(&daemon, &runtime);
        if !last {
            daemon.kill9();
        }
    }
    let unlimited = Command::new("prlimit").args(["--pid", &daemon.pid().to_string(), "--as=unlimited:"]).output();
    assert!(unlimited.is_ok_and(|done| done.status.success()), "prlimit");
    all_is_there(&daemon, clients.len());
    wait(&daemon, "over", || health(&daemon) == "ok\n");
    assert_eq!((daemon.metric("clad_shm_rings_stalled"), daemon.metric("clad_shm_rings_cut_off_total")), (0.0, 0.0));
}

/// The next daemon has smaller segments: what does not fit waits, with all behind it, for one with larger ones. What no
/// daemon would take is reported.
#[test]
fn what_was_posted_waits_for_segments_that_hold_it() {
    const SMALL: &str = "[journal]\nsegment_bytes = \"192KiB\"\nmax_record_bytes = \"32KiB\"\n\
        [journal.group_commit]\nmax_bytes = \"32KiB\"\n\
        [limits]\nmax_append_bytes = \"64KiB\"\nmax_connection_inflight_bytes = \"64KiB\"\n";
    let setup = ["journal.segment_bytes", "limits.max_append_bytes", "journal.max_record_bytes"];
    let setup = setup.into_iter().fold(Setup::new().with_fd_store(), Setup::unset);
    let config = setup.config().to_owned();
    let mut daemon = setup.start();
    let ((_by_hand, ring), (_other_by_hand, other)) = (client(&daemon, "long"), client(&daemon, "bad"));
    daemon.signal(Signal::SIGSTOP);
    let long = "y".repeat(240_000);
    for body in ["first", &long, "last"] {
        push(&ring, AckLevel::Posted, body);
    }
    for _ in 0..3 {
        let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: 7 }.encode();
        other.push(&[b"no records at all", &trailer], 2).expect("room");
    }
    push(&other, AckLevel::Posted, "good");
    daemon.kill9();
    fs::write(&config, SMALL).expect("written");
    daemon.restart();
    daemon.wait_said("a ring waits, and stays stored: an append of 2400");
    daemon.wait_said("records that were posted to a daemon before this one are refused for good, and lost");
    assert!(daemon.said().contains("records=6 appends=3"), "{}", daemon.said());
    wait(&daemon, "said", || health(&daemon).contains("start clad with [journal] segment_bytes = 327680 or more"));
    wait(&daemon, "the others are drained", || bodies(&daemon).len() == 2);
    let mut all = bodies(&daemon);
    all.sort();
    assert_eq!(all, ["first", "good"], "nothing passes it");
    assert_eq!(daemon.term(), Some(1), "something is left");
    fs::write(&config, "").expect("written");
    daemon.restart();
    wait(&daemon, "drained", || bodies(&daemon).len() == 4);
    assert_eq!(bodies(&daemon)[2..], [long, "last".to_owned()]);
    wait(&daemon, "over", || health(&daemon) == "ok\n");
}
