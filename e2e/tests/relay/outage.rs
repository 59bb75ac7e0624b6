//! Every destination away at once, for as long as it takes: the log holds what they lack, and relays stay as small as they were.
//!
//! `CLAD_RELAY_OUTAGE_SECONDS` is how long.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use super::bucket::{Act as Does, Bucket};
use super::endpoint::{Act, Endpoint};
use super::forward::{Numbers, appends, small};
use super::objects::{SMALL, end, named, verify};
use super::{Relay, kafka, nats, wait};

/// Between two appends of the producer.
const PAUSE: Duration = Duration::from_millis(100);
/// Six records of them in three appends: 120,000 bytes a second.
const RECORD_BYTES: usize = 2000;
/// More than any relay needs: one that held what it cannot bring over would have that after ten minutes.
const RESIDENT_KIB_MAX: u64 = 64 << 10;
/// Time for all to come over afterwards.
const CATCH_UP: Duration = Duration::from_secs(600);

/// Memory of its own.
fn resident_kib(relay: &Relay) -> u64 {
    let process = relay.child.as_ref().expect("it runs").id();
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let found = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    found.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn p99(took: &mut [Duration]) -> Duration {
    took.sort_unstable();
    took[(took.len() - 1) * 99 / 100]
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn of_every_destination_is_waited_out_in_flat_memory() {
    let outage = Duration::from_secs(super::number("CLAD_RELAY_OUTAGE_SECONDS"));
    // The cursors keep it, beyond what retention leaves.
    let near = small().set("retention.max_bytes", "4MiB").set("retention.max_held_bytes", "4GiB").start();
    let mut far = small().start();
    let (endpoint, bucket) = (Endpoint::start(), Bucket::start());
    let (mut nats, mut kafka) = (nats::Server::start(), kafka::Server::start());
    nats.make();
    kafka.make(&[]);
    let start = |name: &str, to: &dyn Fn(&Relay) -> String| {
        let mut relay = named(name, &near, "", to);
        relay.start();
        relay
    };
    let mut relays = BTreeMap::from([
        ("clad", start("clad", &|_| format!("[to.clad]\nserver = \"{}\"\n", far.address("unix")))),
        ("otlp", start("otlp", &|_| format!("[to.otlp]\nendpoint = \"http://{}\"\n", endpoint.at))),
        ("objects", start("objects", &|relay| bucket.lines(&relay.folder()) + SMALL)),
        ("nats", start("nats", &|_| nats.lines(""))),
        ("kafka", start("kafka", &|_| kafka.lines(""))),
    ]);
    let mut numbers = Numbers::new(&near);
    let mut append = |took: &mut Vec<Duration>| {
        let began = Instant::now();
        numbers.append(3, RECORD_BYTES);
        took.push(began.elapsed());
        std::thread::sleep(PAUSE);
    };
    let mut quiet = Vec::new();
    (0..50).for_each(|_| append(&mut quiet));
    wait_stored(&mut relays, end(&near), super::TEST_TIMEOUT);

    far.kill9();
    endpoint.answers(|_| Act::Say(503, ""));
    bucket.acts(|_| Does::Cut);
    nats.kill9();
    kafka.kill9();
    let (before, until) = (end(&near), Instant::now() + outage);
    let (mut took, mut peak) = (Vec::new(), BTreeMap::new());
    while Instant::now() < until {
        (0..10).for_each(|_| append(&mut took));
        for (name, relay) in &mut relays {
            relay.keep();
            let most = peak.entry(*name).or_insert(0);
            *most = resident_kib(relay).max(*most);
        }
    }
    let held = near.metric("clad_cursor_held_bytes") as u64;
    assert!(peak.values().all(|&kib| kib < RESIDENT_KIB_MAX), "{peak:?} KiB");

    far.restart();
    endpoint.answers(|_| Act::Take);
    bucket.acts(|_| Does::Forward);
    nats.restart();
    kafka.restart();
    let (end, began) = (end(&near), Instant::now());
    let caught_up = wait_stored(&mut relays, end, CATCH_UP);
    println!(
        "kills: 0, {} s away: {} records, {held} bytes held; resident KiB at most {peak:?}; three appends took {:?} \
         (p99), {:?} before; all over after {:?} s",
        outage.as_secs(),
        end - before,
        p99(&mut took),
        p99(&mut quiet),
        caught_up
    );
    assert!(began.elapsed() < CATCH_UP);
    let log = appends(&near);
    // The near log has not all of it any more.
    let there = appends(&far);
    assert!(there.ends_with(&log), "{} appends here, {} there", log.len(), there.len());
    assert_eq!(there.iter().map(|(count, ..)| u64::from(*count)).sum::<u64>(), end);
    assert_eq!(endpoint.offsets(), end);
    let (said, is_right) = verify(&relays["objects"], &[]);
    assert!(is_right && said.contains(&format!(" {end} records")) && said.contains(" 0 gaps"), "{said}");
    assert_eq!(chain_end(nats.read().iter().map(|found| (found.first, found.end))), end);
    assert_eq!(chain_end(kafka.read().iter().map(|found| (found.first, found.end))), end);
    wait("nothing is held", || near.metric("clad_cursor_held_bytes") < f64::from(4 << 20));
}

/// Where the last of these messages ends; each begins where the one before it ends, and the first at 0.
pub(super) fn chain_end(messages: impl Iterator<Item = (u64, u64)>) -> u64 {
    messages.fold(0, |before, (first, end)| {
        assert_eq!(first, before, "what is before it is missing, or there twice");
        end
    })
}

/// Waits until each relay's cursor is there: after how many seconds each was.
fn wait_stored(relays: &mut BTreeMap<&'static str, Relay>, end: u64, bound: Duration) -> BTreeMap<&'static str, u64> {
    let (began, mut there) = (Instant::now(), BTreeMap::new());
    while there.len() < relays.len() {
        for (name, relay) in relays.iter_mut() {
            relay.keep();
            if !there.contains_key(name) && relay.say("status").contains(&format!("next offset  {end}\n")) {
                there.insert(*name, began.elapsed().as_secs());
            }
        }
        assert!(began.elapsed() < bound, "{there:?} alone are at {end}");
        std::thread::sleep(Duration::from_millis(50));
    }
    there
}
