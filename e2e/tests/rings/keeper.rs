//! The process that keeps the rings (`clad hold`) dies before the daemon and its clients do.

use std::time::{Duration, Instant};

use clad_client::AckLevel;
use clad_e2e::{Daemon, Setup, readback, web};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::death::{Client, once_and_in_order};
use crate::{producer, runtime, submit};

/// The one that has our socket's path among its words; also where a daemon before this one has started it.
pub(crate) fn holder(daemon: &Daemon) -> Pid {
    let path = daemon.socket().with_file_name("rings.sock").display().to_string();
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"hold"[..]) && words.get(2) == Some(&path.as_bytes())
    };
    Pid::from_raw(pids.find(is_it).expect("a holder"))
}

fn health(daemon: &Daemon) -> String {
    web::page(daemon.port("metrics"), "/healthz").1
}

fn wait(daemon: &Daemon, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + clad_e2e::TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "{what} never was so: {}\n{}", health(daemon), daemon.said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_kept_again(daemon: &Daemon, lost: f64) {
    wait(daemon, "kept again", || {
        daemon.metric("clad_shm_keepers_lost_total") == lost
            && daemon.metric("clad_shm_rings_unprotected") == 0.0
            && health(daemon) == "ok\n"
    });
}

/// The holder first, then the client with records that nobody drained, then the daemon. Twice: the holder of the second
/// round is one that a daemon before has started.
#[test]
fn what_was_posted_outlives_the_holder_too() {
    let runtime = runtime();
    let mut daemon = Setup::new().start();
    let mut posted = Vec::new();
    for round in 0..2 {
        let clients: Vec<Client> = (0..2).map(|n| Client::start(&daemon, format!("c{round}-{n}"))).collect();
        for lost in 1..=2 {
            kill(holder(&daemon), Signal::SIGKILL).expect("killed");
            is_kept_again(&daemon, f64::from(lost));
        }
        daemon.signal(Signal::SIGSTOP);
        posted.extend(clients.into_iter().map(|client| client.posts_and_dies(300)));
        daemon.kill9();
        daemon.restart();
    }
    daemon.wait_for_rings(0);
    let last = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&last, AckLevel::Written, "last".to_owned())).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    for (name, many) in posted {
        once_and_in_order(&all, &name, many);
    }
}

/// Where no other can be started, it is said; programs that come meanwhile log over the socket; and when one can be started
/// again, it is, and has the rings that were given out before.
#[test]
fn while_nobody_keeps_the_rings_it_is_said_and_tried_again() {
    let runtime = runtime();
    let mut daemon = Setup::new().start();
    let client = Client::start(&daemon, "c".to_owned());
    let place = daemon.socket().with_file_name("rings.sock");
    std::fs::remove_file(&place).expect("it was there");
    std::fs::create_dir_all(place.join("in the way")).expect("a folder");
    kill(holder(&daemon), Signal::SIGKILL).expect("killed");
    wait(&daemon, "said", || health(&daemon).starts_with("degraded: 1 rings are kept by nobody else"));
    wait(&daemon, "counted", || daemon.metric("clad_shm_rings_unprotected") == 1.0);
    let address = daemon.address("shm").parse().expect("an address");
    let other = runtime.block_on(clad_client::Producer::builder(address).connect()).expect("connected");
    assert!(other.why_no_ring().is_some_and(|why| why.text.contains("does not keep it")), "{:?}", other.why_no_ring());
    runtime.block_on(submit(&other, AckLevel::Durable, "by the socket".to_owned())).expect("durable");
    std::fs::remove_dir_all(&place).expect("out of the way");
    is_kept_again(&daemon, 1.0);
    daemon.signal(Signal::SIGSTOP);
    let (name, many) = client.posts_and_dies(300);
    daemon.kill9();
    daemon.restart();
    daemon.wait_for_rings(0);
    runtime.block_on(submit(&other, AckLevel::Durable, "last".to_owned())).expect("durable");
    once_and_in_order(&runtime.block_on(readback::served(&daemon.address("unix"))), &name, many);
}
