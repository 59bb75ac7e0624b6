//! The configuration as the daemon uses it: plain types, every value checked, nothing optional that has a default.
//!
//! Invariants: the path of a field is its key (`config.journal.segment_bytes` is `journal.segment_bytes`); a `u64` is a
//! size in bytes and a `u32` a count. `schema.rs` builds on both.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clad_proto::{AckLevel, LogId};

use super::access::{Pattern, Right, Who};

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Place and method of storing the log.
    pub journal: Journal,
    /// Rules for sealing a segment before it is full.
    pub rotation: Rotation,
    /// The operator's rule for what may be removed.
    pub retention: Retention,
    /// Listeners that take records.
    pub ingest: Ingest,
    /// The socket that takes orders.
    pub admin: Admin,
    /// Listener of metrics and health.
    pub metrics: Metrics,
    /// Groups that may do more than append.
    pub access: Access,
    /// Certificate and key of the listeners that speak TLS.
    pub tls: Tls,
    /// The daemon's own log.
    pub log: Log,
    /// The life of the process.
    pub daemon: Daemon,
    /// Limits of one client, and of all of them.
    pub limits: Limits,
}

/// `[journal]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// The data folder.
    pub dir: PathBuf,
    /// Way in which the log reaches `durable`.
    pub durability: Durability,
    /// Engine that issues the writes.
    pub io_engine: IoEngine,
    /// Size of one segment file.
    pub segment_bytes: u64,
    /// Largest single record.
    pub max_record_bytes: u64,
    /// Preparing a segment never takes the file system below this much free space.
    pub reserve_free: u64,
    /// The operator's word that every disk below keeps what it has taken through a power cut.
    pub power_loss_protected: bool,
    /// True if a segment that retention removes may become the next prepared one.
    pub recycle: bool,
    /// Only under `durability = "group_commit"` and `"sync_file_range"`.
    pub group_commit: GroupCommit,
    /// Only under `durability = "fire_and_forget"`.
    pub fire_and_forget: FireAndForget,
}

/// `[journal.group_commit]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCommit {
    /// Longest that an open batch waits for more appends while another write is in flight.
    pub max_delay: Duration,
    /// Largest batch.
    pub max_bytes: u64,
    /// The most batches in flight to the disk at once.
    pub in_flight: u32,
}

/// `[journal.fire_and_forget]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireAndForget {
    /// Time between syncs; zero leaves it to the kernel.
    pub sync_interval: Duration,
}

/// `[rotation]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Age at which the active segment is sealed; zero is never.
    pub max_age: Duration,
}

/// `[retention]`: each rule is off at zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Most that the log may take.
    pub max_bytes: u64,
    /// Age at which a sealed segment goes.
    pub max_age: Duration,
    /// Free space that the file system is to keep.
    pub min_free: u64,
    /// Bytes that stay whatever the other rules say.
    pub keep_bytes: u64,
    /// Most that the records of one user, or of the network, may take of the stored log.
    pub per_owner_bytes: u64,
    /// Most that stays for named cursors which have not read it; 0 chooses it.
    pub max_held_bytes: u64,
}

/// `[ingest]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// Framed TCP.
    pub tcp: Listener,
    /// The framed Unix socket.
    pub unix: UnixSocket,
    /// gRPC.
    pub grpc: Listener,
    /// OTLP.
    pub otlp: Otlp,
    /// Listeners of syslog and RELP, each with its name.
    pub syslog: BTreeMap<String, SyslogListener>,
    /// Rings of shared memory.
    pub shm: SharedMemory,
}

/// `[ingest.tcp]` and `[ingest.grpc]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address; `None` is off, port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// True if it speaks TLS alone.
    pub tls: bool,
    /// True if this listener serves reading too.
    pub allow_read: bool,
    /// True if it may listen beyond the loopback without encryption.
    pub allow_plaintext: bool,
}

/// `[ingest.unix]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Path of the socket; `None` is off.
    pub path: Option<PathBuf>,
}

/// `[ingest.otlp]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Addresses beside that of gRPC.
    pub listen: Vec<SocketAddr>,
    /// True if they speak TLS alone.
    pub tls: bool,
    /// True if they may be beyond the loopback without encryption.
    pub allow_plaintext: bool,
    /// Path of a socket; `None` is off.
    pub path: Option<PathBuf>,
    /// Level of the requests that name none.
    pub ack: DefaultAck,
    /// Time for which a request is known again; zero is off.
    pub resend_window: Duration,
}

/// `[ingest.syslog.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogListener {
    /// Address; absent only where the configuration is not right.
    pub listen: Option<SyslogAddress>,
    /// True if it may be beyond the loopback without encryption.
    pub allow_plaintext: bool,
    /// Format of messages.
    pub format: SyslogFormat,
    /// Zone of times without one, by its name.
    pub time_zone: String,
    /// RELP: level of a record whose message is answered.
    pub ack: DefaultAck,
    /// Longest message.
    pub max_message: u64,
}

/// Address of a listener of syslog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// Datagrams.
    Udp(SocketAddr),
    /// Streams, in both framings of RFC 6587.
    Tcp(SocketAddr),
    /// Streams over TLS (RFC 5425).
    Tls(SocketAddr),
    /// RELP.
    Relp(SocketAddr),
    /// RELP over TLS.
    Relps(SocketAddr),
    /// Datagrams of this host.
    UnixDatagram(PathBuf),
    /// Streams of this host.
    UnixStream(PathBuf),
}

/// `[ingest.shm]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// True if rings are given out.
    pub enabled: bool,
    /// Data bytes of a ring, where its client does not ask for less.
    pub ring_bytes: u64,
    /// Rings that there may be.
    pub max_rings: u32,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Path of the socket; `None` is off.
    pub path: Option<PathBuf>,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Address; `None` is off, port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// True if it may listen beyond the loopback without encryption.
    pub allow_plaintext: bool,
}

/// `[access]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Group that may read; empty is root and the daemon's user alone.
    pub read_group: String,
    /// Group of the admin socket; empty is the daemon's own.
    pub admin_group: String,
    /// Hashes of tokens, by their names; `None` is no token.
    pub tokens_file: Option<PathBuf>,
    /// The first that fits a peer says what the peer may do; without any, the defaults do.
    pub rule: Vec<AccessRule>,
}

/// `[[access.rule]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// Peers that it is for: any of them.
    pub who: Vec<Who>,
    /// Their rights; none where it is empty.
    pub may: Vec<Right>,
    /// The components whose records they may append; `None` is all.
    pub component: Option<Pattern>,
    /// The highest level that they may ask for.
    pub max_level: DefaultAck,
    /// Bytes that each of them may append in a second; zero is no limit.
    pub max_bytes_per_second: u64,
    /// Name by which they own producers together, in place of their own names.
    pub owner: Option<String>,
    /// The logs whose appends they may forward; `None` is all.
    pub logs: Option<Vec<LogId>>,
    /// Place where it stands.
    pub at: String,
}

/// `[tls]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The daemon's certificate and the chain of its issuers, as PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, as PEM.
    pub key: Option<PathBuf>,
    /// Authorities of clients' certificates, as PEM; `None` asks clients for none.
    pub client_ca: Option<PathBuf>,
    /// True if a client without a certificate is refused.
    pub require_client_cert: bool,
    /// Oldest version that is spoken.
    pub min_version: TlsVersion,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Least important message that is written.
    pub level: LogLevel,
    /// Format of messages.
    pub format: LogFormat,
}

/// `[daemon]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// The longest time that a stop waits for appends in flight.
    pub drain_timeout: Duration,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections over all listeners.
    pub max_connections: u32,
    /// Largest append.
    pub max_append_bytes: u64,
    /// Largest request of OTLP.
    pub max_message_bytes: u64,
    /// Bytes of appends in memory over all connections.
    pub max_inflight_bytes: u64,
    /// The most bytes of appends in memory for one connection.
    pub max_connection_inflight_bytes: u64,
    /// Producers remembered for exactly-once.
    pub max_producers: u32,
    /// Named cursors.
    pub max_cursors: u32,
    /// Origins that are taken: streams of other logs.
    pub max_origins: u32,
    /// The longest time that a new connection may take to send HELLO.
    pub handshake_timeout: Duration,
    /// Silence after which a connection is closed; zero is never.
    pub idle_timeout: Duration,
}

/// Defines a closed set of words: the enum, its words, and how it is shown.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$what])* $variant,)+ }

        impl $name {
            /// Every member.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that the configuration uses.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Way in which the log reaches `durable`.
    Durability {
        /// Batches, each synced; a batch collects appends while another is on its way.
        GroupCommit = "group_commit",
        /// Each append is its own synced write.
        PerMessage = "per_message",
        /// Batches, each written over written space and written back; no cache is flushed.
        SyncFileRange = "sync_file_range",
        /// Written at once, synced at leisure; the highest ack is `written`.
        FireAndForget = "fire_and_forget",
    }
}

words! {
    /// Level of an answer, where the sender names none.
    DefaultAck {
        /// The highest that the log offers.
        Highest = "highest",
        /// An answer at once.
        None = "none",
        /// The daemon holds it.
        Received = "received",
        /// The kernel has completed the write.
        Written = "written",
        /// It is on stable storage.
        Durable = "durable",
    }
}

impl DefaultAck {
    /// The level; `None` is the highest.
    #[must_use]
    pub const fn level(self) -> Option<AckLevel> {
        match self {
            Self::Highest => None,
            Self::None => Some(AckLevel::None),
            Self::Received => Some(AckLevel::Received),
            Self::Written => Some(AckLevel::Written),
            Self::Durable => Some(AckLevel::Durable),
        }
    }
}

words! {
    /// Version of TLS.
    TlsVersion {
        /// 1.2, and what is newer.
        V12 = "1.2",
        /// 1.3, and what is newer.
        V13 = "1.3",
    }
}

words! {
    /// Format of messages of syslog.
    SyslogFormat {
        /// RFC 5424 where the version is there, else RFC 3164.
        Auto = "auto",
        /// RFC 5424.
        Rfc5424 = "5424",
        /// RFC 3164, as vendors send it.
        Rfc3164 = "3164",
        /// Each message is one text.
        Raw = "raw",
    }
}

words! {
    /// Engine that issues the writes.
    IoEngine {
        /// Fastest one on this file system under this policy, of those that the kernel permits.
        Auto = "auto",
        /// One thread with an io_uring; where that is not to be had, threads, with a warning.
        Uring = "uring",
        /// Plain system calls on threads.
        Blocking = "blocking",
    }
}

words! {
    /// Least important message that is written.
    LogLevel {
        /// Something failed.
        Error = "error",
        /// Something an operator should look at.
        Warn = "warn",
        /// The life of the process.
        Info = "info",
        /// Actions of the daemon.
        Debug = "debug",
        /// Every step.
        Trace = "trace",
    }
}

words! {
    /// Format of messages.
    LogFormat {
        /// `journald` where stderr leads there, else `text`.
        Auto = "auto",
        /// For people.
        Text = "text",
        /// One object a line.
        Json = "json",
        /// Text with the priority in front, for the system's journal.
        Journald = "journald",
    }
}
