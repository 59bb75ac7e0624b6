//! Hostile clients, alone and in masses: what they can make the daemon hold is bounded, and everybody else is served.
//!
//! What must hold, in each case: the daemon's own memory, looked at all the time, never grows beyond the bound that
//! docs/ARCHITECTURE.md states for it (the sum stands beside each case); the bytes of appends in flight never pass
//! `max_inflight_bytes`; a well-behaved client beside the attack gets `durable` acks all the time, and everything that
//! was acknowledged to it is there at the end. The heavy cases are called by `cargo xtask ci hostile`.
#![expect(clippy::print_stdout, reason = "the figures are the result, and wanted with --nocapture")]

#[path = "../tls/certs.rs"]
#[expect(dead_code, reason = "the tests of TLS use the rest")]
mod certs;
mod http2;
mod lengths;
mod many_connections;
mod messages;
mod otlp;
mod slow;
mod streams;
mod syslog;
mod tls;
mod way;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::raw::hello_reader;
use clad_e2e::tool::resident;
use clad_e2e::web::metrics;
use clad_e2e::{Daemon, Raw};
use clad_proto::AckLevel;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Between two looks at the daemon's memory.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Room for what a busy process takes by itself, whoever its clients are: its allocator's arenas, threads, batches.
const PROCESS_GROWTH_BYTES_MAX: u64 = 24 << 20;
/// Acks that the bystander must get during an attack, at least.
const BYSTANDER_ACKS_MIN: u64 = 20;
/// Acks that it gets before.
const QUIET_ACKS: usize = 200;
/// Between two of its appends: without it the bystander takes more of the processors than most attacks.
const BYSTANDER_PAUSE: Duration = Duration::from_millis(2);
const ATTACKERS_NICE: i32 = 19;

/// What an attack did.
#[derive(Debug)]
struct Seen {
    /// Most bytes of appends in flight.
    inflight: u64,
    /// Acks that the bystander got meanwhile.
    acks: u64,
}

/// Attacks a daemon under the eyes of a bystander. `bound` is what the attackers may make it hold.
fn attack<T: Send>(name: &str, daemon: &Daemon, bound: u64, attack: impl FnOnce() -> T + Send) -> (Seen, T) {
    let pages = daemon.port("metrics");
    let limit = metrics(pages)["clad_inflight_limit_bytes"] as u64;
    let (mut bystander, mut next) = (Raw::producer(&daemon.socket()).0, 0);
    let mut served = || {
        let began = Instant::now();
        bystander.append_acked(next, AckLevel::Durable, &[format!("bystander {next}").as_bytes()]);
        next += 1;
        began.elapsed()
    };
    served();
    let first = daemon.status().offsets.expect("offsets").durable - 1;
    let memory = || resident(daemon.pid()).anonymous;
    let before = memory();
    let (over, is_attacked) = (AtomicBool::new(false), AtomicBool::new(false));
    let (peak, inflight, acks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (mut quiet, mut took) = (Vec::new(), Vec::new());
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(memory(), Ordering::Relaxed);
                thread::sleep(MEMORY_POLL_INTERVAL);
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                inflight.fetch_max(metrics(pages)["clad_inflight_bytes"] as u64, Ordering::Relaxed);
                thread::sleep(10 * MEMORY_POLL_INTERVAL);
            }
        });
        let beside = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(BYSTANDER_PAUSE);
                if quiet.len() < QUIET_ACKS {
                    quiet.push(served());
                } else {
                    is_attacked.store(true, Ordering::Relaxed);
                    took.push(served());
                    acks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let over = Over(&over);
        while !is_attacked.load(Ordering::Relaxed) && !beside.is_finished() {
            thread::sleep(MEMORY_POLL_INTERVAL);
        }
        let attackers = scope.spawn(|| {
            // As if they were on another host: they get what the daemon and the bystander leave of the processors.
            if std::env::var_os("CLAD_HOSTILE_NICE").is_some() {
                rustix::process::setpriority_process(None, ATTACKERS_NICE).expect("a lower priority is for everybody");
            }
            attack()
        });
        let result = attackers.join();
        // Short attacks are over before the bystander has shown anything.
        while result.is_ok() && !beside.is_finished() && acks.load(Ordering::Relaxed) < BYSTANDER_ACKS_MIN {
            thread::sleep(MEMORY_POLL_INTERVAL);
        }
        drop(over);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let grown = peak.into_inner().saturating_sub(before);
    let seen = Seen { inflight: inflight.into_inner(), acks: acks.into_inner() };
    println!(
        "hostile: {name}: grew by {grown} of {} bytes, {} in flight, {} acks beside it, p99 {:?} (quiet {:?})",
        bound + PROCESS_GROWTH_BYTES_MAX,
        seen.inflight,
        seen.acks,
        p99(&mut took),
        p99(&mut quiet)
    );
    println!("tally: attacks=1 acks={}", seen.acks);
    assert!(
        grown <= bound + PROCESS_GROWTH_BYTES_MAX,
        "{name}: the daemon grew by {grown} bytes, and may by {bound} and {PROCESS_GROWTH_BYTES_MAX}"
    );
    assert!(seen.inflight <= limit, "{name}: {} bytes in flight of {limit}", seen.inflight);
    assert!(seen.acks >= BYSTANDER_ACKS_MIN, "{name}: {seen:?}");
    is_whole(daemon, first, next);
    (seen, result)
}

fn p99(took: &mut [Duration]) -> Duration {
    took.sort_unstable();
    took[(took.len() - 1) * 99 / 100]
}

/// Ends the looking also when the attack panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Everything that was acknowledged to the bystander is there, once and in order.
fn is_whole(daemon: &Daemon, first: u64, records: u64) {
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(first, AckLevel::Durable).expect("a read");
    let bodies = got.iter().filter_map(|got| std::str::from_utf8(got.body.as_deref()?).ok());
    let of_bystander: Vec<_> = bodies.filter_map(|body| body.strip_prefix("bystander ")).collect();
    assert_eq!(of_bystander.len() as u64, records, "as many as were acknowledged");
    assert!(of_bystander.iter().zip(0..).all(|(number, n)| **number == u64::to_string(&n)), "in their order");
}

/// Files that may be open here, as many as the system allows, less those that a test needs beside its connections.
fn files() -> usize {
    const OTHER_FILES: u64 = 200;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a soft limit may be raised to the hard one");
    hard.saturating_sub(OTHER_FILES) as usize
}
