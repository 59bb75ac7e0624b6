//! From a clad to another: each append once, in order, under its client's checksum.

use std::fs;
use std::path::Path;

use clad_client::{Event, Reader};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel;

use super::{Relay, wait};

fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB").fixed_ports()
}

fn relay(near: &Daemon, far: &Daemon, more: &str) -> Relay {
    let relay = Relay::new(near, "");
    let (near, far) = (near.socket(), far.socket());
    let text = format!(
        "name = \"test\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n{more}\n[to.clad]\nserver = \"unix://{}\"\n",
        near.display(),
        far.display()
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

/// Appends of one to three records each, with numbers.
struct Numbers {
    raw: Raw,
    sequence: u64,
}

impl Numbers {
    fn new(daemon: &Daemon) -> Self {
        Self { raw: Raw::producer(&daemon.socket()).0, sequence: 0 }
    }

    fn append(&mut self, appends: u64, bytes: usize) {
        for append in 0..appends {
            let records = 1 + append % 3;
            let bodies: Vec<_> = (0..records).map(|n| format!("{} {n} {}", self.sequence, "x".repeat(bytes))).collect();
            let bodies: Vec<&[u8]> = bodies.iter().map(String::as_bytes).collect();
            self.raw.append_acked(self.sequence, AckLevel::Durable, &bodies);
            self.sequence += records;
        }
    }
}

/// The appends of a log in their order: records, checksum, payload.
fn appends(daemon: &Daemon) -> Vec<(u32, u32, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = daemon.address("unix").parse().expect("an address");
        let mut reader = Reader::builder(address).open().await.expect("opened");
        let mut all = Vec::new();
        while let Some(event) = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.expect("in time").expect("read")
        {
            if let Event::Records(chunk) = event {
                let raw = chunk.raw().expect("framed");
                all.push((raw.head().count, raw.head().payload_crc, raw.payload().to_vec()));
            }
        }
        all
    })
}

fn copied(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(done.success());
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_append_comes_to_the_far_log_once_over_kills_of_all() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut near, mut far) = (small().start(), small().start());
    let mut relay = relay(&near, &far, "");
    relay.start();
    for kill in 0..kills {
        Numbers::new(&near).append(20, 10);
        if kill % 3 == 0 {
            // By how far it is, not by a time.
            let end = near.status().offsets.expect("offsets").durable;
            wait("half of them", || {
                relay.keep();
                far.status().offsets.expect("offsets").durable + 20 >= end
            });
        }
        match kill % 4 {
            0 => relay.kill9(),
            1 => {
                far.kill9();
                far.restart();
            }
            2 => {
                near.kill9();
                near.restart();
            }
            _ => {
                relay.kill9();
                far.kill9();
                far.restart();
            }
        }
        relay.keep();
    }
    let end = near.status().offsets.expect("offsets").durable;
    wait("all", || {
        relay.keep();
        far.status().offsets.expect("offsets").durable >= end
    });
    let (here, there) = (appends(&near), appends(&far));
    assert_eq!(here.len(), there.len());
    assert!(here == there, "the far log has other appends, or another order");
    wait("its cursor", || relay.say("status").contains(&format!("next offset  {end}")));
    assert_eq!(near.metric("clad_cursor_lag_records{cursor=\"test\"}"), 0.0);
    println!("kills: {kills}, {} appends, {end} records", here.len());
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_far_log_that_is_another_stops_it_until_a_person_says_so() {
    let (near, mut far) = (small().start(), small().start());
    let mut relay = relay(&near, &far, "");
    Numbers::new(&near).append(10, 0);
    relay.start();
    wait("all", || appends(&far) == appends(&near));
    wait("its cursor", || relay.say("status").contains("next offset  19"));
    assert!(relay.term(), "{}", relay.said());
    // Another log in its place.
    assert_eq!(far.term(), Some(0));
    fs::remove_dir_all(far.dir()).expect("removed");
    far.restart();
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains("this relay has brought records to log"), "{}", relay.said());
    assert!(appends(&far).is_empty(), "something was sent");
    assert!(relay.say("begin").contains("begins where `start` says"));
    relay.start();
    wait("all once more", || appends(&far) == appends(&near));
    // The operator there drops it: this one does not begin by itself.
    assert!(relay.term());
    let admin = format!("unix://{}", far.setup().admin_socket().display());
    let listed = clad_e2e::tool::clactl_ends(0, &["--admin", &admin, "origins", "-o", "json"], b"").stdout;
    let log = clad_e2e::json(&listed)["log_id"].as_str().expect("a log").to_owned();
    clad_e2e::tool::clactl_ends(0, &["--admin", &admin, "origins", "drop", &log, "main"], b"");
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(
        relay.said().contains("has nothing of stream main, and this relay has brought records"),
        "{}",
        relay.said()
    );
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_log_that_was_restored_stops_it_with_the_numbers_of_both() {
    let (mut near, far) = (small().start(), small().start());
    let mut relay = relay(&near, &far, "");
    Numbers::new(&near).append(10, 0);
    assert_eq!(near.term(), Some(0));
    let copy = tempfile::tempdir().expect("a folder");
    copied(near.dir(), &copy.path().join("log"));
    near.restart();
    Numbers::new(&near).append(5, 0);
    relay.start();
    wait("all", || appends(&far) == appends(&near));
    assert!(relay.term());
    // The backup comes back, and other records get the offsets of those that were brought over.
    assert_eq!(near.term(), Some(0));
    fs::remove_dir_all(near.dir()).expect("removed");
    copied(&copy.path().join("log"), near.dir());
    near.restart();
    Numbers::new(&near).append(20, 100);
    let before = appends(&far);
    relay.start();
    assert!(!relay.wait(), "it goes on");
    let said = relay.said();
    assert!(said.contains("have parted") && said.contains("the far log's last append has"), "{said}");
    assert_eq!(appends(&far), before, "something was sent");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn what_is_gone_or_too_large_is_left_out_and_the_rest_comes() {
    let near = small().set("retention.max_bytes", "4MiB").start();
    let far = small().set("limits.max_append_bytes", "100KiB").set("journal.max_record_bytes", "90KiB").start();
    let mut relay = relay(&near, &far, "hold = false");
    let mut numbers = Numbers::new(&near);
    numbers.append(3, 0);
    relay.start();
    wait("the first", || appends(&far).len() == 3);
    relay.kill9();
    numbers.append(120, 40_000);
    numbers.append(1, 95_000);
    numbers.append(3, 0);
    near.wait_until("retention has passed it", |status| status.lowest_offset > 20);
    relay.start();
    let here = appends(&near);
    let fits = |append: &&(u32, u32, Vec<u8>)| append.2.len() <= 100 << 10;
    let wanted: Vec<_> = here.iter().filter(fits).filter(|append| append.2.len() < 95_000).cloned().collect();
    wait("the rest", || appends(&far).len() == 3 + wanted.len());
    assert_eq!(appends(&far)[3..], wanted[..]);
    assert!(
        relay.said().contains("is left out") && relay.said().contains("cannot be read: Retention"),
        "{}",
        relay.said()
    );
}

/// Two logs that forward to each other: what came from here does not come back.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_circle_is_refused() {
    let (near, far) = (small().start(), small().start());
    let mut there = relay(&near, &far, "");
    let mut back = relay(&far, &near, "");
    Numbers::new(&near).append(2, 0);
    there.start();
    wait("all", || appends(&far).len() == 2);
    back.start();
    assert!(!back.wait(), "it goes on");
    assert!(back.said().contains("forwarding goes in a circle"), "{}", back.said());
    assert_eq!(appends(&near).len(), 2);
}
