//! What a call allocates, once it is warm; and how many crates it brings.

mod support;

use clad_client::{Producer, blocking};
use clad_tracing::Layer;
use std::collections::BTreeSet;
use std::process::Command;
use support::*;
use tracing::{info, info_span};
use tracing_subscriber::{layer::SubscriberExt, registry};

const EVENTS: u64 = 4000;
/// Memory for the payloads is allocated in pieces.
const EVENTS_PER_ALLOCATION_MIN: u64 = 16;
const CRATES_MAX: usize = 40;

#[test]
fn a_call_allocates_nothing_but_a_piece_now_and_then() {
    for group in [1, 64] {
        let daemon = Daemon::new();
        let builder = Producer::builder(daemon.address.clone()).component("test").max_append_records(group);
        let producer = blocking::Producer::connect(builder).expect("connected");
        let log = |events: u64| {
            for number in 0..events {
                info!(number, name = "three fields", ratio = 0.5, "an event {}", number);
            }
        };
        tracing::subscriber::with_default(registry().with(Layer::new(&producer)), || {
            let _span = info_span!("request", id = 7).entered();
            log(EVENTS);
            let allocated = allocation_counter::measure(|| log(EVENTS));
            assert!(
                allocated.count_total * EVENTS_PER_ALLOCATION_MIN < EVENTS,
                "groups of {group}: {allocated:?} for {EVENTS} events"
            );
        });
        let stats = close(producer);
        assert_eq!(daemon.records().len() as u64 + stats.dropped, 2 * EVENTS);
    }
}

#[test]
fn few_crates_come_with_it() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments =
        ["tree", "-p", "clad-tracing", "--no-default-features", "-e", "normal", "--prefix", "none", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let crates: BTreeSet<_> =
        text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).collect();
    assert!(crates.contains("clad-client") && crates.len() <= CRATES_MAX, "{}: {crates:?}", crates.len());
}
