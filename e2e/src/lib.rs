//! End-to-end tests of clad with real processes (not shipped).
//!
//! Invariants: a test talks to the binaries that a user would run, over real sockets and on a real disk; every wait
//! has an event that ends it and a bound ([`TEST_TIMEOUT`]) that fails the test with what the daemon said; nothing leaves the
//! loopback; nothing is left behind.
//!
//! | module | what it is |
//! |---|---|
//! | [`daemon`] | a `clad` of our own: started, killed, started again |
//! | [`admin`] | its admin socket |
//! | [`raw`] | the framed protocol by hand, well or badly spoken |
//! | [`fd_store`] | a service manager with a descriptor store, which daemons are started over |
//! | [`grpc`] | an append call of gRPC by hand |
//! | [`by_hand`] | a client with a ring, by hand |
//! | [`proxy`] | connections that are forwarded in parts, and cut |
//! | [`user`] | what another user does |
//! | [`tool`] | `clactl`, and any other program, run to its end within a bound |
//! | [`readback`] | everything that a log holds, by the daemon and from the files |
//! | [`cuts`] | power cuts: a recording device under a real file system |
//! | [`Frozen`] | a file system whose writes wait |
//! | [`hold`] | threads of a program that are held, as by a device that does not answer |
//! | [`manager`] | a service manager: its notifications, and its watchdog |
//! | [`stall`] | what a wait that takes long says while it lasts |
//! | [`web`] | the pages of health and metrics |

pub mod admin;
mod binaries;
pub mod by_hand;
pub mod cuts;
pub mod daemon;
pub mod fd_store;
mod frozen;
pub mod grpc;
pub mod hold;
pub mod manager;
pub mod proxy;
pub mod raw;
pub mod readback;
mod scratch;
mod setup;
mod socket;
pub mod stall;
pub mod tool;
mod user;
pub use user::as_user;
pub mod web;

use std::time::Duration;

pub use binaries::binary;
pub use clad_sim::Rng;
pub use daemon::Daemon;
pub use fd_store::FdStore;
pub use frozen::Frozen;
pub use raw::Raw;
pub use scratch::Scratch;
pub use setup::{Ended, Setup, fixed_port, needs_word};

/// The longest that anything is waited for. Far more than it takes: whoever waits so long has found a defect.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The seed of this run: `CLAD_SEED`, else a new one. Printed, so that what failed can be run again.
#[expect(clippy::print_stdout, reason = "a test's own words: the seed that makes its failure again")]
#[must_use]
pub fn seed() -> u64 {
    let given = std::env::var("CLAD_SEED").ok().map(|text| text.parse().expect("CLAD_SEED is a number"));
    let seed = given.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Rng::new(since.as_nanos() as u64 ^ u64::from(std::process::id())).number() >> 16
    });
    println!("CLAD_SEED={seed}");
    seed
}

/// Whether the tests run as root; some things can only be tried then, others only when not.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

/// What `[limits] max_connections` must be for the user of the tests to get so many connections, and no more: root has 16
/// beside it, and anybody else half of it while nobody else is there.
#[must_use]
pub fn max_connections_for(connections: usize) -> String {
    if is_root() { connections - 16 } else { 2 * connections }.to_string()
}

/// The same daemon, to whose sockets any user can connect.
///
/// # Panics
/// When its folder cannot be opened to all.
#[must_use]
pub fn open_to_all(daemon: Daemon) -> Daemon {
    use std::os::unix::fs::PermissionsExt;
    let folder = daemon.socket().parent().expect("its folder").to_owned();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    daemon
}

/// The user of [`stranger`], where the tests are root's.
pub const STRANGER: u32 = 60_000;

/// A producer on the Unix socket of [`open_to_all`]: of a user whom nobody knows, where the tests are root's, who may have
/// more than anybody else.
///
/// # Panics
/// When it cannot connect.
#[must_use]
pub fn stranger(daemon: &Daemon) -> Raw {
    let connect = || Raw::producer(&daemon.socket()).0;
    if is_root() { as_user(STRANGER, connect) } else { connect() }
}

/// Says by name that something did not run, and why.
#[expect(clippy::print_stdout, reason = "what did not run must be heard")]
pub fn not_run(what: &str, why: &str) {
    println!("NOT RUN: {what}: {why}");
}

/// What programs say with `-o json`.
pub type Json = serde_json::Value;

/// Reads one object.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn json(text: &[u8]) -> Json {
    serde_json::from_slice(text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(text)))
}
