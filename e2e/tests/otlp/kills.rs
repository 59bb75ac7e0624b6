//! The daemon is killed again and again while an exporter sends, with the retries that its SDK makes by itself.
//!
//! Invariants: each record whose export the SDK called a success is in the log. None is there twice, though an answer that
//! died with the daemon makes an SDK send again what was stored; but for an SDK whose clock has whole milliseconds.

use std::fmt;
use std::thread;
use std::time::Duration;

use clad_e2e::{Rng, Setup, seed};

use crate::agent::{Agent, Working, endpoint};
use crate::{given, read};

/// The SDK whose records take no part in the resend window.
const COARSE_CLOCK: &str = "js";
/// Successes between two kills, at most.
const SUCCESSES_MAX: u64 = 120;
/// From a success to the kill, at most: somewhere in the pause between two exports, or within one.
const KILL_DELAY_MILLIS_MAX: u64 = 150;
/// The longest that the daemon is away: longer than some SDKs try.
const AWAY_MILLIS_MAX: u64 = 1500;
/// More than an agent can log.
const RECORDS: u64 = 10_000_000;

/// What became of the records.
struct Verdict {
    successes: usize,
    /// Called a success, and not there.
    lost: Vec<u64>,
    stored: usize,
    /// There, and never called a success.
    given_up: usize,
    twice: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { successes, lost, stored, given_up, twice } = self;
        let lost = lost.len();
        write!(f, "{successes} successes, {lost} lost, {stored} stored, {given_up} of them given up, {twice} twice")
    }
}

/// Kills the daemon of an agent, and looks for its records at the end.
fn kill(agent: &Agent, kills: u64, seed: u64) -> Verdict {
    let mut rng = Rng::new(seed);
    let setup = Setup::new().with_fd_store().fixed_ports().set("journal.segment_bytes", "1MiB");
    let mut daemon = setup.set("limits.max_append_bytes", "256KiB").set("journal.max_record_bytes", "128KiB").start();
    let mut command = agent.command(&endpoint(daemon.port("grpc")), "stream", RECORDS, rng.chance(1, 2), None);
    let working = Working::start(&mut command);
    for _ in 0..kills {
        working.wait_successes(working.successes() + 1 + rng.below(SUCCESSES_MAX) as usize);
        thread::sleep(Duration::from_millis(rng.below(KILL_DELAY_MILLIS_MAX)));
        daemon.kill9();
        thread::sleep(Duration::from_millis(rng.below(AWAY_MILLIS_MAX)));
        daemon.restart();
    }
    working.wait_successes(working.successes() + 1);
    let successes = working.end();
    let counts = read::numbers(&read::records(&daemon));
    Verdict {
        successes: successes.len(),
        lost: successes.iter().copied().filter(|number| !counts.contains_key(number)).collect(),
        stored: counts.len(),
        given_up: counts.keys().filter(|number| !successes.contains(number)).count(),
        twice: counts.values().filter(|&&count| count > 1).count(),
    }
}

#[test]
#[ignore = "cargo xtask ci otlp"]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn what_was_called_a_success_survives() {
    let kills: u64 = given("CLAD_OTLP_KILLS").parse().expect("a number of kills");
    let (agent, seed) = (Agent::given(), seed());
    let verdict = kill(&agent, kills, seed);
    println!("kills: {} by {}, seed {seed}: {kills} kills, {verdict}", agent.language, agent.transport);
    assert!(verdict.lost.is_empty(), "called a success, and lost: {:?}", verdict.lost);
    assert!(verdict.twice == 0 || agent.language == COARSE_CLOCK, "{} are there twice", verdict.twice);
    println!("tally: kills={kills} acks={} lost=0", verdict.successes);
}

/// An agent that calls a success what it never sent.
#[test]
fn a_success_that_never_was_is_caught() {
    const NUMBERS: &str = "(for n in $(seq 0 9999); do echo $n; sleep 0.02; done) & cat; kill $!";
    let verdict = kill(&Agent::of_a_shell(NUMBERS), 1, seed());
    assert_eq!(verdict.lost.len(), verdict.successes);
}
