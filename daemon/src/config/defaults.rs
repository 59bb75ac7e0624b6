//! The embedded defaults, each with its reason.
//!
//! Invariants: they serve a developer in the current folder with no file at all, pass every check, and promise more
//! rather than less. The three that depend on the surroundings (data folder and sockets) are settled by
//! [`Config::settle`] once it is known which of them were set.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::types::{
    Access, Admin, Config, Daemon, DefaultAck, Durability, FireAndForget, GroupCommit, Ingest, IoEngine, Journal,
    Limits, Listener, Log, LogFormat, LogLevel, Metrics, Otlp, Retention, Rotation, SharedMemory, SyslogFormat,
    SyslogListener, Tls, TlsVersion, UnixSocket,
};

const MIB: u64 = 1 << 20;

/// Data folder where neither the configuration nor the service manager names one.
pub const LOCAL_DIR: &str = "./clad-data";
/// Name of the socket for appending and reading.
pub const INGEST_SOCKET: &str = "clad.sock";
/// Name of the socket that takes orders.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// Listeners that an instance would share with the host's log: off unless set.
pub(super) const NETWORK_KEYS: [&str; 3] = ["ingest.tcp.listen", "ingest.grpc.listen", "metrics.listen"];

impl Default for Config {
    fn default() -> Self {
        Self {
            journal: Journal {
                dir: PathBuf::from(LOCAL_DIR),
                durability: Durability::GroupCommit,
                io_engine: IoEngine::Auto,
                // Large enough that sealing is rare, small enough that retention is fine-grained.
                segment_bytes: 64 * MIB,
                // A stack trace or a core summary fits; a file does not belong in a log.
                max_record_bytes: 2 * MIB,
                // One segment's worth: a host whose disk is full still has room to be repaired in.
                reserve_free: 64 * MIB,
                // Only the operator can know it.
                power_loss_protected: false,
                // Half of what a full disk's worth of log writes would be zeroes otherwise.
                recycle: true,
                group_commit: GroupCommit {
                    // The order of one device flush: waiting longer for more appends than a flush takes would cost more
                    // than it saves.
                    max_delay: Duration::from_millis(5),
                    // Past this, one larger write is no faster than two.
                    max_bytes: MIB,
                    // One on the device, one behind it.
                    in_flight: 2,
                },
                fire_and_forget: FireAndForget {
                    // Bounds what a power cut takes, at a cost that does not show.
                    sync_interval: Duration::from_secs(1),
                },
            },
            rotation: Rotation { max_age: Duration::ZERO },
            // Off: nothing acknowledged is removed unless the operator said so.
            retention: Retention {
                max_bytes: 0,
                max_age: Duration::ZERO,
                min_free: 0,
                keep_bytes: 0,
                per_owner_bytes: 0,
                // Chosen at the start, by what the rules and the disk leave.
                max_held_bytes: 0,
            },
            ingest: Ingest {
                tcp: loopback_listener(7440),
                unix: UnixSocket { path: Some(Path::new(LOCAL_DIR).join(INGEST_SOCKET)) },
                grpc: loopback_listener(7441),
                otlp: Otlp {
                    // The listener of gRPC takes OTLP. A host that runs a collector on the usual ports must survive an
                    // upgrade.
                    listen: Vec::new(),
                    tls: false,
                    allow_plaintext: false,
                    path: None,
                    // An exporter that gets an answer may forget the records.
                    ack: DefaultAck::Highest,
                    // Longer than exporters try; a collector with a queue may try longer.
                    resend_window: Duration::from_secs(600),
                },
                syslog: BTreeMap::new(),
                shm: SharedMemory {
                    // It costs nothing before the first ring, and a client that names shm:// asked for it.
                    enabled: true,
                    // Some thousand lines: the logs of a program while the daemon is being started again.
                    ring_bytes: MIB,
                    // With it, all rings together take about 100 MiB at most.
                    max_rings: 64,
                },
            },
            admin: Admin { path: Some(Path::new(LOCAL_DIR).join(ADMIN_SOCKET)) },
            metrics: Metrics { listen: Some(loopback(9744)), allow_plaintext: false },
            access: Access {
                read_group: "clad".to_owned(),
                admin_group: String::new(),
                tokens_file: None,
                rule: Vec::new(),
            },
            tls: Tls {
                cert: None,
                key: None,
                client_ca: None,
                // Names that somebody shows are worth something before everybody has one.
                require_client_cert: false,
                // Network devices speak no newer one.
                min_version: TlsVersion::V12,
            },
            log: Log { level: LogLevel::Info, format: LogFormat::Auto },
            daemon: Daemon {
                // Well under the 90 s after which service managers kill.
                drain_timeout: Duration::from_secs(10),
            },
            limits: Limits {
                // Every program of a busy host; the unit raises the file limit to match.
                max_connections: 4096,
                // Twice the largest record, so that one always fits beside its resource and scope.
                max_append_bytes: 4 * MIB,
                // What the OTLP specification recommends for HTTP.
                max_message_bytes: 20 * MIB,
                // With what the journal holds in flight the daemon stays below 64 MiB.
                max_inflight_bytes: 16 * MIB,
                // A quarter of all: one flooding client leaves room for the others.
                max_connection_inflight_bytes: 4 * MIB,
                // The footer of each segment holds a snapshot of them.
                max_producers: 1024,
                // A relay has one for each place that it brings records to.
                max_cursors: 64,
                // Each log that is forwarded here is one, or a few; the footer of each segment holds all of them.
                max_origins: 64,
                // Local peers answer within milliseconds; what takes longer holds a slot for nothing.
                handshake_timeout: Duration::from_secs(5),
                // Programs log rarely and stay for weeks: silence is not a fault.
                idle_timeout: Duration::ZERO,
            },
        }
    }
}

impl Default for SyslogListener {
    fn default() -> Self {
        Self {
            listen: None,
            allow_plaintext: false,
            format: SyslogFormat::Auto,
            // What the host's own programs mean, and most devices beside it.
            time_zone: "local".to_owned(),
            // A client of RELP forgets what was answered.
            ack: DefaultAck::Highest,
            // The longest datagram.
            max_message: 64 << 10,
        }
    }
}

impl Config {
    /// Fills in what depends on the surroundings, for the keys that nobody set, and says where each came from: the data
    /// folder from `state`, the sockets from `runtime`, else from the data folder.
    pub(super) fn settle(
        &mut self,
        state: Option<(PathBuf, &'static str)>,
        runtime: Option<(PathBuf, &'static str)>,
        is_set: impl Fn(&str) -> bool,
    ) -> Vec<(&'static str, &'static str)> {
        let mut origins = Vec::new();
        if let Some((state, origin)) = state
            && !is_set("journal.dir")
        {
            self.journal.dir = state;
            origins.push(("journal.dir", origin));
        }
        let (folder, origin) = runtime.unwrap_or_else(|| (self.journal.dir.clone(), "journal.dir"));
        let sockets = [
            ("ingest.unix.path", INGEST_SOCKET, &mut self.ingest.unix.path),
            ("admin.path", ADMIN_SOCKET, &mut self.admin.path),
        ];
        for (key, name, path) in sockets {
            if !is_set(key) {
                *path = Some(folder.join(name));
                origins.push((key, origin));
            }
        }
        origins
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn loopback_listener(port: u16) -> Listener {
    Listener { listen: Some(loopback(port)), tls: false, allow_read: false, allow_plaintext: false }
}
