//! What each value, alone and beside the others, must satisfy.
//!
//! What must hold: nothing is corrected; every refusal says what could work; it points at a value that
//! somebody set, so that the line to change is the line that is named.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigError;
use super::source::{Provenance, Source};
use super::types::Config;
use super::units::{show_duration, show_size};

/// What a segment holds beside one append of the largest size: header, batch headers, padding, footer.
pub const SEGMENT_SLACK: u64 = 32 << 10;
/// Segments are made of whole steps of this size, which every block size divides.
pub const SEGMENT_STEP: u64 = 64 << 10;
/// Largest segment: positions within one fit 31 bits, and setting one aside stays bearable.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Most batches on their way at once: beyond this a device gains nothing and memory is only held.
pub const MAX_IN_FLIGHT: u32 = 16;
/// Longest useful wait for company; beyond it somebody mistook the unit.
pub const MAX_GROUP_DELAY: Duration = Duration::from_secs(1);
/// Segments that retention never removes: the active, the prepared and the newest sealed one.
pub const MIN_RETAINED_SEGMENTS: u64 = 3;
/// Longest path of a Unix socket on Linux.
pub const MAX_SOCKET_PATH: usize = 107;
/// Smallest limit on records and batches that still lets ordinary lines through.
pub const MIN_BYTES: u64 = 1 << 10;

/// Smallest and largest ring.
pub const RING_BYTES: RangeInclusive<u64> = 64 << 10..=256 << 20;
/// Most rings at once: each takes four descriptors of the daemon.
pub const MAX_RINGS: u32 = 1024;
/// Longest useful spin: beyond it somebody mistook the unit.
pub const MAX_SPIN: Duration = Duration::from_millis(10);

/// Checks everything; `refused` keys are left out, for they hold no value of the operator's.
pub(super) fn validate(config: &Config, provenance: &Provenance, refused: &[&str]) -> Vec<ConfigError> {
    let mut checks = Checks { provenance, refused, errors: Vec::new() };
    sizes(config, &mut checks);
    journal(config, &mut checks);
    retention(config, &mut checks);
    limits(config, &mut checks);
    addresses(config, &mut checks);
    shared_memory(config, &mut checks);
    sockets(config, &mut checks);
    checks.errors
}

/// Collects refusals.
struct Checks<'a> {
    provenance: &'a Provenance,
    refused: &'a [&'a str],
    errors: Vec<ConfigError>,
}

impl Checks<'_> {
    /// Refuses `key` unless `holds`; `beside` are the other keys that the rule reads.
    fn require(&mut self, holds: bool, key: &'static str, beside: &[&'static str], reason: impl FnOnce() -> String) {
        let involved = || std::iter::once(key).chain(beside.iter().copied());
        if holds || involved().any(|one| self.refused.contains(&one)) {
            return;
        }
        let set = involved().map(|one| self.provenance.of(one));
        let at = set
            .clone()
            .find(|source| !matches!(source, Source::Default | Source::Derived(_)))
            .unwrap_or(self.provenance.of(key))
            .clone();
        let reason = reason();
        self.errors.push(ConfigError::Impossible { at, key, reason });
    }

    /// A size that must be at least that of another key.
    fn at_least(&mut self, key: &'static str, value: u64, other: &'static str, least: u64) {
        self.require(value >= least, key, &[other], || {
            format!(
                "{} is less than `{other}` = {}; raise the one or lower the other",
                show_size(value),
                show_size(least)
            )
        });
    }
}

/// Rings: what they can be made of, and that somebody can ask for one.
fn shared_memory(config: &Config, checks: &mut Checks<'_>) {
    let shm = &config.ingest.shm;
    let ring = shm.ring_bytes;
    checks.require(ring.is_power_of_two() && RING_BYTES.contains(&ring), "ingest.shm.ring_bytes", &[], || {
        let (least, most) = (show_size(*RING_BYTES.start()), show_size(*RING_BYTES.end()));
        format!("{} is not a power of two from {least} to {most}", show_size(ring))
    });
    checks.require((1..=MAX_RINGS).contains(&shm.max_rings), "ingest.shm.max_rings", &[], || {
        format!("{} is not from 1 to {MAX_RINGS}; `ingest.shm.enabled = false` turns rings off", shm.max_rings)
    });
    checks.require(shm.spin <= MAX_SPIN, "ingest.shm.spin", &[], || {
        format!("{} is more than {}", show_duration(shm.spin), show_duration(MAX_SPIN))
    });
}

/// The chain of sizes: a record in an append, an append in a connection's share, a share in the whole.
fn sizes(config: &Config, checks: &mut Checks<'_>) {
    let (journal, limits) = (&config.journal, &config.limits);
    for (key, value) in [
        ("journal.max_record_bytes", journal.max_record_bytes),
        ("journal.group_commit.max_bytes", journal.group_commit.max_bytes),
        ("limits.max_append_bytes", limits.max_append_bytes),
    ] {
        checks.require(value >= MIN_BYTES, key, &[], || {
            format!("{} is too small; the least is {}", show_size(value), show_size(MIN_BYTES))
        });
    }
    let append = limits.max_append_bytes;
    checks.at_least("limits.max_append_bytes", append, "journal.max_record_bytes", journal.max_record_bytes);
    checks.at_least(
        "limits.max_connection_inflight_bytes",
        limits.max_connection_inflight_bytes,
        "limits.max_append_bytes",
        append,
    );
    checks.at_least(
        "limits.max_inflight_bytes",
        limits.max_inflight_bytes,
        "limits.max_connection_inflight_bytes",
        limits.max_connection_inflight_bytes,
    );
}

fn journal(config: &Config, checks: &mut Checks<'_>) {
    let segment = config.journal.segment_bytes;
    let append = config.limits.max_append_bytes;
    let key = "journal.segment_bytes";
    let stepped = segment.is_multiple_of(SEGMENT_STEP) && (SEGMENT_STEP..=MAX_SEGMENT_BYTES).contains(&segment);
    checks.require(stepped, key, &[], || {
        format!(
            "{} is not a multiple of {} from {} to {}",
            show_size(segment),
            show_size(SEGMENT_STEP),
            show_size(SEGMENT_STEP),
            show_size(MAX_SEGMENT_BYTES)
        )
    });
    checks.require(
        !stepped || segment >= append.saturating_add(SEGMENT_SLACK),
        key,
        &["limits.max_append_bytes"],
        || {
            format!(
                "{} does not hold one append of `limits.max_append_bytes` = {} with {} for header and footer; \
                 raise the one or lower the other",
                show_size(segment),
                show_size(append),
                show_size(SEGMENT_SLACK)
            )
        },
    );
    let group = &config.journal.group_commit;
    checks.require((1..=MAX_IN_FLIGHT).contains(&group.in_flight), "journal.group_commit.in_flight", &[], || {
        format!("{} is not from 1 to {MAX_IN_FLIGHT}", group.in_flight)
    });
    checks.require(group.max_delay <= MAX_GROUP_DELAY, "journal.group_commit.max_delay", &[], || {
        format!("{} is more than {}", show_duration(group.max_delay), show_duration(MAX_GROUP_DELAY))
    });
}

fn retention(config: &Config, checks: &mut Checks<'_>) {
    let (segment, retention) = (config.journal.segment_bytes, &config.retention);
    let least = MIN_RETAINED_SEGMENTS.saturating_mul(segment);
    checks.require(
        retention.max_bytes == 0 || retention.max_bytes >= least,
        "retention.max_bytes",
        &["journal.segment_bytes"],
        || {
            format!(
                "{} cannot be kept: the active, the prepared and the newest sealed segment always stay, \
                 {MIN_RETAINED_SEGMENTS} × `journal.segment_bytes` = {}; 0 is off",
                show_size(retention.max_bytes),
                show_size(least)
            )
        },
    );
    checks.require(
        retention.max_bytes == 0 || retention.keep_bytes <= retention.max_bytes,
        "retention.keep_bytes",
        &["retention.max_bytes"],
        || {
            format!(
                "{} is more than `retention.max_bytes` = {}; both cannot be kept",
                show_size(retention.keep_bytes),
                show_size(retention.max_bytes)
            )
        },
    );
}

fn limits(config: &Config, checks: &mut Checks<'_>) {
    let limits = &config.limits;
    for (key, value) in
        [("limits.max_connections", limits.max_connections), ("limits.max_producers", limits.max_producers)]
    {
        checks.require(value >= 1, key, &[], || "0 would let nobody in; the least is 1".to_owned());
    }
    for (key, value) in
        [("limits.handshake_timeout", limits.handshake_timeout), ("daemon.drain_timeout", config.daemon.drain_timeout)]
    {
        checks.require(!value.is_zero(), key, &[], || "it must be more than 0".to_owned());
    }
}

fn addresses(config: &Config, checks: &mut Checks<'_>) {
    let (tcp, grpc, metrics) = (&config.ingest.tcp, &config.ingest.grpc, &config.metrics);
    let listeners = [
        ("ingest.tcp.listen", tcp.listen, "ingest.tcp.allow_plaintext", tcp.allow_plaintext),
        ("ingest.grpc.listen", grpc.listen, "ingest.grpc.allow_plaintext", grpc.allow_plaintext),
        ("metrics.listen", metrics.listen, "metrics.allow_plaintext", metrics.allow_plaintext),
    ];
    for (at, &(key, address, plaintext, allowed)) in listeners.iter().enumerate() {
        let Some(address) = address else { continue };
        checks.require(allowed || is_loopback(address), key, &[plaintext], || {
            format!(
                "{address} is not a loopback address and TLS is not in this version of clad; set \
                 `{plaintext} = true` to send everything in the clear"
            )
        });
        for &(other, taken, ..) in &listeners[..at] {
            checks.require(address.port() == 0 || taken != Some(address), key, &[other], || {
                format!("{address} is also `{other}`")
            });
        }
    }
}

/// `::ffff:127.0.0.1` is the loopback too.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn sockets(config: &Config, checks: &mut Checks<'_>) {
    let (ingest, admin) = (&config.ingest.unix.path, &config.admin.path);
    let named: [(&'static str, &Option<PathBuf>); 2] = [("ingest.unix.path", ingest), ("admin.path", admin)];
    for (key, path) in named {
        let length = path.as_ref().map_or(0, |path| path.as_os_str().as_bytes().len());
        checks.require(length <= MAX_SOCKET_PATH, key, &["journal.dir"], || {
            format!("a socket's path holds at most {MAX_SOCKET_PATH} bytes, this one has {length}; set a shorter one")
        });
    }
    checks.require(ingest.is_none() || ingest != admin, "admin.path", &["ingest.unix.path"], || {
        "it is also `ingest.unix.path`".to_owned()
    });
}
