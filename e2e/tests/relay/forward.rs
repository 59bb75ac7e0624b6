//! From a clad to another: each append once, in order, under its client's checksum.

use std::fs;
use std::time::Duration;

use clad_client::{Event, Reader};
use clad_e2e::hold::{Holder, threads};
use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Rng, Setup, TEST_TIMEOUT, json};
use clad_proto::AckLevel;

use super::certs::Authority;
use super::{Backup, Relay, wait};

pub(crate) fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB").fixed_ports()
}

fn relay(near: &Daemon, far: &Daemon, more: &str) -> Relay {
    relay_to(near, &far.address("unix"), more)
}

fn relay_to(near: &Daemon, far: &str, more: &str) -> Relay {
    let relay = Relay::new(near, "");
    let near = near.address("unix");
    let text = format!(
        "name = \"test\"\n[from.clad]\nserver = \"{near}\"\nstart = \"beginning\"\n{more}\n[to.clad]\nserver = \"{far}\"\n"
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

/// Far longer than it takes to cut the connection.
const LATE_ANSWERS: Duration = Duration::from_millis(500);

/// Appends of one to three records each, with numbers.
pub(crate) struct Numbers {
    raw: Raw,
    sequence: u64,
}

impl Numbers {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        Self { raw: Raw::producer(&daemon.socket()).0, sequence: 0 }
    }

    pub(crate) fn append(&mut self, appends: u64, bytes: usize) {
        for append in 0..appends {
            let records = 1 + append % 3;
            let bodies: Vec<_> = (0..records).map(|n| format!("{} {n} {}", self.sequence, "x".repeat(bytes))).collect();
            let bodies: Vec<&[u8]> = bodies.iter().map(String::as_bytes).collect();
            self.raw.append_acked(self.sequence, AckLevel::Durable, &bodies);
            self.sequence += records;
        }
    }

    /// Appends of one record each, of bytes that do not become fewer.
    pub(crate) fn append_noise(&mut self, appends: u64, bytes: usize) {
        let mut rng = Rng::new(self.sequence + 1);
        for _ in 0..appends {
            let body: Vec<u8> = (0..bytes).map(|_| b'!' + rng.below(90) as u8).collect();
            self.raw.append_acked(self.sequence, AckLevel::Durable, &[&body]);
            self.sequence += 1;
        }
    }
}

/// The appends of a log in their order: records, checksum, payload.
pub(crate) fn appends(daemon: &Daemon) -> Vec<(u32, u32, Vec<u8>)> {
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

fn admin(daemon: &Daemon) -> String {
    format!("unix://{}", daemon.setup().admin_socket().display())
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_append_comes_to_the_far_log_once_over_kills_of_all() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut near, mut far) = (small().start(), small().start());
    let folder = tempfile::tempdir().expect("a folder");
    let between = Place::Unix(folder.path().join("far.sock"));
    let proxy = Proxy::between(&between, Place::Unix(far.socket()), Rng::new(kills));
    let mut relay = relay_to(&near, &between.to_string(), "");
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
        match kill % 6 {
            0 => relay.kill9(),
            // The far log has acted, and its answers are lost; or a half of one comes.
            4 => {
                let before = far.status().offsets.expect("offsets").received;
                proxy.delay_answers(LATE_ANSWERS);
                Numbers::new(&near).append(5, 10);
                wait("the far log has them", || far.status().offsets.expect("offsets").received > before);
                proxy.cut();
            }
            5 => proxy.halve(),
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
    let admin = admin(&far);
    let listed = clactl_ends(0, &["--admin", &admin, "origins", "-o", "json"], b"").stdout;
    let log = json(&listed)["log_id"].as_str().expect("a log").to_owned();
    clactl_ends(0, &["--admin", &admin, "origins", "drop", &log, "main"], b"");
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
    let backup = Backup::of(&mut near);
    Numbers::new(&near).append(5, 0);
    relay.start();
    wait("all", || appends(&far) == appends(&near));
    assert!(relay.term());
    // The backup comes back, and other records get the offsets of those that were brought over.
    backup.is_put_back(&mut near);
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

/// The cursor stays behind what a crash of the far log can take away, also over a start of the relay with nothing new.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn what_the_far_log_has_only_received_is_held_here() {
    let (near, mut far) = (small().start(), small().start());
    let mut relay = relay(&near, &far, "");
    Numbers::new(&near).append(3, 0);
    relay.start();
    let stands = |relay: &Relay, end: u64| relay.say("status").contains(&format!("next offset  {end}\n"));
    let end = |log: &Daemon| log.status().offsets.expect("offsets");
    let before = end(&near).durable;
    wait("its cursor", || stands(&relay, before));
    let flush = |name: &str| name.starts_with("clad-write") || name.starts_with("clad-ingest");
    let disk = Holder::of_flushes(&threads(far.pid(), flush));
    disk.hold();
    Numbers::new(&near).append(4, 0);
    wait("received there", || end(&far).received == end(&near).received);
    relay.kill9();
    relay.start();
    // Five times as long as a cursor takes that moves.
    std::thread::sleep(Duration::from_secs(1));
    assert!(end(&far).durable < end(&near).durable, "the far log has flushed");
    assert!(stands(&relay, before), "{}", relay.say("status"));
    drop(disk);
    far.kill9();
    far.restart();
    wait("all", || appends(&far) == appends(&near));
    let all = end(&near).durable;
    wait("its cursor", || stands(&relay, all));
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

/// Over the network: the stream belongs to the name in the relay's certificate, which a rule lets forward this log.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_far_log_within_tls_takes_what_a_rule_lets_the_relay_forward() {
    const NAME: &str = "spiffe://prod/relay";
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("an authority"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    authority.server().put(folder.path(), "server");
    authority.client(NAME).put(folder.path(), "relay");
    fs::write(path("ca.crt"), authority.pem()).expect("written");
    let near = small().start();
    let log = json(&clactl_ends(0, &["--admin", &admin(&near), "status", "-o", "json"], b"").stdout);
    let log = log["log_id"].as_str().expect("its id").to_owned();
    let tls = [("cert", "server.crt"), ("key", "server.key"), ("client_ca", "ca.crt")];
    let setup = tls.iter().fold(small(), |setup, (key, file)| setup.set(&format!("tls.{key}"), &path(file)));
    let setup = setup.set("tls.require_client_cert", "true").set("ingest.tcp.tls", "true");
    let rule = |log: &str| {
        format!(
            "[[access.rule]]\nwho = \"cert:{NAME}\"\nmay = [\"forward\"]\nlogs = [\"{log}\"]\n\
             [[access.rule]]\nwho = \"*\"\nmay = [\"append\", \"read\"]\n"
        )
    };
    fs::write(setup.config(), rule("00112233445566778899aabbccddeeff")).expect("written");
    let mut far = setup.start();
    let own = format!("&cert={}&key={}", path("relay.crt"), path("relay.key"));
    let server = format!("tcp+tls://{}?ca={}{own}", far.port("tcp"), path("ca.crt"));
    let mut relay = relay_to(&near, &server, "");
    Numbers::new(&near).append(10, 0);
    // A rule for another log.
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains("may not forward"), "{}", relay.said());
    assert!(appends(&far).is_empty(), "something was taken");
    fs::write(far.setup().config(), rule(&log)).expect("written");
    assert_eq!(far.term(), Some(0));
    far.restart();
    relay.start();
    wait("all", || appends(&far) == appends(&near));
    relay.kill9();
    Numbers::new(&near).append(10, 0);
    relay.start();
    wait("the rest", || appends(&far) == appends(&near));
    relay.kill9();
    // Its first senders are known there, and the relay by its name.
    let words = ["query", "--server", &far.address("unix"), "--origin", &log, "--identity", NAME, "-o", "json"];
    let said = String::from_utf8(clactl_ends(0, &words, b"").stdout).expect("text");
    assert_eq!(said.lines().count(), 38, "{said}");
    // Another name is another owner, and has no right.
    authority.client("spiffe://prod/another").put(folder.path(), "relay");
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains("may not forward"), "{}", relay.said());
}
