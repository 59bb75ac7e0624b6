//! From the configuration to the parts: the one place that knows both sides.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use clad_journal::io::device::{RangeRefusal, Substrate};
use clad_journal::io::{Engine, EngineWish};
use clad_journal::{JournalConfig, Policy, Retention};
use clad_proto::{AckLevel, DurabilityPolicy};

use crate::config::{Config, Durability, IoEngine, SEGMENT_OVERHEAD_BYTES};
use crate::ingest::{LEAVING_CONNECTIONS_MAX, ROOT_RESERVED_CONNECTIONS, clamp};
use crate::ops::pages;

/// Appends that a producer may have unacknowledged, announced in the handshake.
pub(crate) const WINDOW: u32 = 256;

/// Appends of requests that are known again, at most: fewer where segments are small.
const RESEND_ENTRIES_MAX: usize = 65_536;

/// The journal's settings.
pub(crate) fn journal(config: &Config) -> JournalConfig {
    let j = &config.journal;
    let (max_delay, in_flight) = (j.group_commit.max_delay, j.group_commit.in_flight as usize);
    let max_bytes = batch_bytes(config);
    let policy = match j.durability {
        Durability::GroupCommit => Policy::GroupCommit { max_delay, max_bytes, in_flight },
        Durability::SyncFileRange => Policy::SyncFileRange { max_delay, max_bytes, in_flight },
        Durability::PerMessage => Policy::PerMessage,
        Durability::FireAndForget => Policy::FireAndForget { sync_interval: j.fire_and_forget.sync_interval },
    };
    JournalConfig {
        policy,
        io_engine: match j.io_engine {
            IoEngine::Auto => EngineWish::Auto,
            IoEngine::Uring => EngineWish::Uring,
            IoEngine::Blocking => EngineWish::Blocking,
        },
        segment_bytes: j.segment_bytes,
        // The admission uses [limits] max_append_bytes, which a reload changes; the journal uses what a segment holds.
        max_append_bytes: largest_append(config),
        power_loss_protected: j.power_loss_protected,
        recycle: j.recycle,
        reserve_free: j.reserve_free,
        rotate_after: config.rotation.max_age,
        retention: retention(config),
        max_producers: config.limits.max_producers as usize,
        max_origins: config.limits.max_origins as usize,
        window: WINDOW as usize,
        resend_entries: RESEND_ENTRIES_MAX,
        resend_keep: config.ingest.otlp.resend_window,
        ..JournalConfig::default()
    }
}

/// Largest batch: two fit a segment.
pub(crate) fn batch_bytes(config: &Config) -> u32 {
    clamp(config.journal.group_commit.max_bytes.min(config.journal.segment_bytes / 2))
}

/// Largest append: no reload can raise `[limits] max_append_bytes` above it.
fn largest_append(config: &Config) -> u32 {
    clamp(config.journal.segment_bytes.saturating_sub(SEGMENT_OVERHEAD_BYTES))
}

/// The rules of retention.
pub(crate) fn retention(config: &Config) -> Retention {
    let r = &config.retention;
    Retention {
        max_bytes: r.max_bytes,
        max_age: r.max_age,
        min_free: r.min_free,
        keep_bytes: r.keep_bytes,
        per_owner_bytes: r.per_owner_bytes,
        max_held_bytes: r.max_held_bytes,
    }
}

/// The policy's name on the wire, and the highest level that it can promise where the disk allows `durable`.
pub(crate) fn policy(config: &Config) -> (DurabilityPolicy, AckLevel) {
    match config.journal.durability {
        Durability::GroupCommit => (DurabilityPolicy::GroupCommit, AckLevel::Durable),
        Durability::PerMessage => (DurabilityPolicy::PerMessage, AckLevel::Durable),
        Durability::SyncFileRange => (DurabilityPolicy::SyncFileRange, AckLevel::Durable),
        Durability::FireAndForget => (DurabilityPolicy::FireAndForget, AckLevel::Written),
    }
}

/// The engine in use, as the configuration names it.
pub(crate) fn engine(engine: Engine) -> IoEngine {
    match engine {
        Engine::Blocking => IoEngine::Blocking,
        Engine::Uring => IoEngine::Uring,
    }
}

/// Basis of the policy's promise beyond a flush that is honoured; empty where there is none.
///
/// # Errors
/// The reason why the policy is not for this disk.
pub(crate) fn grounds(config: &Config, substrate: &Substrate) -> Result<String, RangeRefusal> {
    match config.journal.durability {
        Durability::SyncFileRange => Ok(substrate.range_sync(config.journal.power_loss_protected)?.to_string()),
        _ => Ok(String::new()),
    }
}

/// Makes the data folder where it is missing, mode 0750 whatever the umask; an existing one keeps its mode. Nothing
/// above it is made: where that is missing a file system is not mounted, or a name is wrong.
pub(crate) fn make_dir(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().mode(0o750).create(dir)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o750))
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Descriptors that are the daemon's own beside its connections and rings: segments that are written, prepared and
/// read, the folder, sockets, rings' doorbells, what the libraries open. It is about half of this on a busy day.
const OWN_FDS: usize = 192;
/// Descriptors of each ring: itself, its completion page, its doorbell, its client.
const FDS_PER_RING: usize = 4;

/// Number of connections that there may be: the configured one, as far as the limit of open files leaves the log its
/// own.
pub(crate) fn connections_max(config: &Config) -> usize {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, 0));
    connections_max_of(soft, config.limits.max_connections as usize, config.ingest.shm.max_rings as usize)
}

fn connections_max_of(files: u64, wanted: usize, rings: usize) -> usize {
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let own = OWN_FDS
        + LEAVING_CONNECTIONS_MAX
        + ROOT_RESERVED_CONNECTIONS
        + pages::PAGE_CONNECTIONS_MAX
        + FDS_PER_RING * rings;
    // With next to no files, the log comes first, but one connection must be possible.
    wanted.min(files.saturating_sub(own).max(files / 8)).max(1)
}

/// Raises the soft limit of open files to the hard one; returns the limit then.
pub(crate) fn raise_files() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

#[cfg(test)]
mod tests {
    use super::connections_max_of;

    #[test]
    fn connections_leave_the_log_its_files() {
        assert_eq!(connections_max_of(16_384, 4096, 64), 4096, "the shipped unit has room for what it allows");
        assert_eq!(connections_max_of(900, 4096, 64), 900 - (192 + 32 + 16 + 64 + 4 * 64));
        assert_eq!(connections_max_of(256, 4096, 64), 32);
        assert_eq!(connections_max_of(0, 4096, 64), 1);
        assert_eq!(connections_max_of(u64::MAX, 7, 1024), 7);
    }
}
