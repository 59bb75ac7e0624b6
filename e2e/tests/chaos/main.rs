//! Chaos: the daemon, clients and connections die at random while records are written. One harness for the clients of
//! every language: each has a small program, its agent, which logs and says what it was answered.
//!
//! Every record with a receipt that a kill cannot take is there once, at its offset; every other at most once; each
//! producer's order is kept; drops and stored add up to logged.
//!
//! `CLAD_AGENT="PROGRAM ARGS"` is the agent's command (default: the Rust client's), `CLAD_AGENT_RINGS=1` says that it has
//! `shm://`. `CLAD_CHAOS_KILLS` sets the deaths, `CLAD_SEED` the random choices (the scheduler still varies).
//!
//! # The agent
//! `AGENT ADDRESS PRODUCER_ID COMPONENT EPOCH MODE`: PRODUCER_ID in 32 hex digits, EPOCH in decimal, the secret is
//! `chaos`, backoff 1 ms to 20 ms. Each line is flushed. At the end of stdin an agent brings everything home, closes and
//! exits with 0.
//!
//! - `keeps` tries to connect every 5 ms. It goes on behind the last stored record of its producer, once that is
//!   `written`: the number of a record is its sequence. It appends record after record, body = number, at level `written` and
//!   `durable` in turn, and sleeps 5 ms after each 8. `receipt NUMBER FIRST_OFFSET` is a receipt, any other line a fault. Over
//!   `shm://` FIRST_OFFSET is `-` where the receipt has none: a daemon died with it.
//! - `drops-newest`, `drops-oldest`, `drops-below` have no identity (`-`, epoch 0), 16 KiB of room, and never wait long.
//!   Two threads log bodies `THREAD NUMBER`, severity 9 and 13 and both levels in turn, and sleep 40 ms after each 64.
//!   `receipt THREAD:NUMBER FIRST_OFFSET`; `never THREAD:NUMBER` for what was dropped or refused and is certainly not
//!   written. Last `stats LOGGED ACKNOWLEDGED DROPPED REFUSED`, the client's own, when the last report of drops is answered.
//! - `mixed` is the same at all levels in turn, with a wait of at most 20 ms. A receipt that a kill can take is
//!   `sent THREAD:NUMBER`.
//! - `follows` reads what is durable: `records FIRST_OFFSET COUNT`. Its backoff is the client's default where a
//!   reader has no such setting.

mod agent;
mod audit;
mod check;
mod deaths;
mod exactly_once;

use clad_e2e::seed;

use deaths::{Chaos, Death};

/// Deaths where nothing else is said: as many as a test among others may take time for.
const KILLS_DEFAULT: u64 = 12;
/// Of so many or more there are some of each kind.
const KILLS_OF_EACH_KIND: u64 = 100;
/// The agent of the Rust client.
const RUST_AGENT: &str = env!("CARGO_BIN_EXE_clad-e2e-chaos-agent");

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn every_receipt_is_kept() {
    let kills = variable("CLAD_CHAOS_KILLS").map_or(KILLS_DEFAULT, |text| text.parse().expect("CLAD_CHAOS_KILLS"));
    let (agent, seed) = (variable("CLAD_AGENT"), seed());
    let has_rings = agent.is_none() || variable("CLAD_AGENT_RINGS").is_some();
    let agent = agent.unwrap_or_else(|| RUST_AGENT.to_owned());
    if let Some(missing) = agent::missing_file(&agent) {
        panic!("the agent cannot start: {missing} is not there (CLAD_AGENT is `{agent}`)");
    }
    let report = Chaos { agent, fault: None, has_rings, seed, deaths: Chaos::deaths(seed, kills) }.run();
    let (verdict, kinds) = (&report.verdict, report.deaths.len());
    println!("chaos: {report}");
    assert!(verdict.faults.is_empty(), "{}", verdict.faults.join("\n"));
    assert!(verdict.drops > 0, "nothing was dropped: nothing was shown of that");
    assert!(kills < KILLS_OF_EACH_KIND || kinds == 6, "not every kind of death: {report}");
    println!("tally: kills={kills} acks={} lost=0", verdict.receipts);
}

/// A wrong agent, of the harness's own, is seen by one of the texts of its faults, and by the count of its kind.
fn is_caught(fault: &'static str, text: &str, count: impl Fn(&check::Verdict) -> u64) {
    // The clients die in turn, for an agent that is wrong only in its second life.
    let deaths = vec![Death::Client, Death::Daemon, Death::Client, Death::Client];
    let chaos = Chaos { agent: RUST_AGENT.to_owned(), fault: Some(fault), has_rings: false, seed: seed(), deaths };
    let verdict = chaos.run().verdict;
    assert!(verdict.faults.iter().any(|fault| fault.contains(text)), "{fault}: {verdict}: {:?}", verdict.faults);
    assert!(count(&verdict) > 0, "{fault}: {verdict}: {:?}", verdict.faults);
}

#[test]
fn an_agent_that_is_not_there_is_named() {
    assert_eq!(agent::missing_file(RUST_AGENT), None);
    assert_eq!(agent::missing_file(&format!("env A=/nowhere/b {RUST_AGENT} --word")), None);
    assert_eq!(
        agent::missing_file(&format!("env A=/nowhere/b {RUST_AGENT}-other")),
        Some(&*format!("{RUST_AGENT}-other"))
    );
    assert_eq!(agent::missing_file("python3 /nowhere/agent.py"), Some("/nowhere/agent.py"));
}

#[test]
fn a_receipt_that_was_never_given_is_caught() {
    is_caught("has a receipt that was never given", "has a receipt and is lost", |verdict| verdict.lost);
}

#[test]
fn a_wrong_offset_is_caught() {
    is_caught("says a wrong offset", "its receipt says", |_| 1);
}

#[test]
fn a_record_that_is_there_twice_is_caught() {
    is_caught("writes one twice", "is there twice", |verdict| verdict.twice);
    is_caught("begins again", "is there twice", |verdict| verdict.twice);
}

#[test]
fn another_order_is_caught() {
    is_caught("swaps two", "out of order", |verdict| verdict.out_of_order);
}

#[test]
fn wrong_counts_are_caught() {
    is_caught("counts a drop too few", "does not add up", |_| 1);
    is_caught("says nothing of drops", "never written", |_| 1);
    is_caught("denies what is stored", "is not written, and is there", |_| 1);
}

#[test]
fn a_reader_that_skips_is_caught() {
    is_caught("skips one", "says \"records", |_| 1);
}

#[test]
fn a_bad_end_is_caught() {
    is_caught("fails at its end", "ends with", |_| 1);
}
