//! Every key of the configuration: its name, what it is for, whether a reload may change it.
//!
//! Invariants: this table is the only list of keys. The loader, `clad config`, the reload rule, the
//! example file and the manual's table are all made from it, so none of them can miss a key.

use config::{Value, ValueKind};

use super::types::Config;
use super::value::{Setting, Shown};

/// The part of a key's name that stands for a name of the operator's.
const NAME: &str = "NAME";
/// Longest name of an operator's.
const NAME_BYTES_MAX: usize = 32;

/// One key.
#[derive(Clone, Copy)]
pub(super) struct Key {
    /// Dotted name: section and key. The operator names the section where a part of it is `NAME`.
    pub(super) name: &'static str,
    /// True if a running daemon takes a new value on HUP.
    pub(super) live: bool,
    /// One line for the operator.
    pub(super) about: &'static str,
    /// Reads a value into its field, of the section with this name.
    put: fn(&mut Config, &str, &Value) -> Result<(), String>,
    /// Shows the field, where there is such a section.
    get: fn(&Config, &str) -> Option<Shown>,
}

impl Key {
    /// The section and the key within it.
    pub(super) fn split(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// The sections before and behind the operator's name.
    fn around_name(&self) -> Option<(&'static str, &'static str)> {
        self.name.split_once(".NAME.")
    }
}

/// A key, in the section that the operator gave a name where it has one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) key: &'static Key,
    given: String,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Found {
    /// Its whole name.
    pub(super) fn name(&self) -> String {
        match self.given.is_empty() {
            true => self.key.name.to_owned(),
            false => self.key.name.replace(NAME, &self.given),
        }
    }

    /// The environment variable that sets it.
    pub(super) fn variable(&self) -> String {
        format!("CLAD_{}", self.name().to_uppercase().replace('.', "__"))
    }

    /// Reads a value into its field.
    pub(super) fn put(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        (self.key.put)(config, &self.given, value)
    }

    /// Shows the field; nothing where the configuration has no such section.
    pub(super) fn get(&self, config: &Config) -> Option<Shown> {
        (self.key.get)(config, &self.given)
    }
}

/// Takes effect on HUP.
const LIVE: bool = true;
/// Takes effect at the next start.
const RESTART: bool = false;

/// A row of the table; the field is found by the key's own name.
macro_rules! key {
    ($first:ident $(. $rest:ident)+, $live:expr, $about:literal) => {
        Key {
            name: concat!(stringify!($first) $(, ".", stringify!($rest))+),
            live: $live,
            about: $about,
            put: |config, _, value| {
                config.$first $(.$rest)+ = Setting::read(value)?;
                Ok(())
            },
            get: |config, _| Some(config.$first $(.$rest)+.show()),
        }
    };
}

/// A row for each listener of syslog.
macro_rules! syslog_key {
    ($field:ident, $about:literal) => {
        Key {
            name: concat!("ingest.syslog.NAME.", stringify!($field)),
            live: RESTART,
            about: $about,
            put: |config, given, value| {
                config.ingest.syslog.entry(given.to_owned()).or_default().$field = Setting::read(value)?;
                Ok(())
            },
            get: |config, given| Some(config.ingest.syslog.get(given)?.$field.show()),
        }
    };
}

/// The table, in the order in which it is shown; the keys of a section stand together.
pub(super) const KEYS: &[Key] = &[
    key!(journal.dir, RESTART, "The data folder. Default: $STATE_DIRECTORY, else ./clad-data."),
    key!(
        journal.durability,
        RESTART,
        "The way of records to the disk: group_commit, per_message, sync_file_range or fire_and_forget. per_message: each append is its own synced write. sync_file_range flushes no disk cache: for ext4 and xfs on disks without a volatile cache. fire_and_forget: highest ack written."
    ),
    key!(
        journal.io_engine,
        RESTART,
        "The way of writing: auto (the fastest here), uring (threads where the kernel refuses it, with a warning), or blocking."
    ),
    key!(journal.segment_bytes, RESTART, "Size of one segment file."),
    key!(journal.max_record_bytes, RESTART, "Largest single record; larger ones are refused."),
    key!(
        journal.reserve_free,
        RESTART,
        "Free space that preparing a segment never uses; appends are refused first. Only a segment for records that have offsets already may use it."
    ),
    key!(
        journal.power_loss_protected,
        RESTART,
        "Your statement that the file system and every disk below keep all data and file names when the power fails. It has no effect in memory (tmpfs), or where flushes are switched off."
    ),
    key!(
        journal.recycle,
        RESTART,
        "Write the next segment over one that retention removes, where zeroes would be written ahead of it otherwise."
    ),
    key!(
        journal.group_commit.max_delay,
        LIVE,
        "The longest time that a batch waits for more records while another write is in flight."
    ),
    key!(
        journal.group_commit.max_bytes,
        LIVE,
        "Largest batch, and never more than half of journal.segment_bytes; an append larger than this is a batch of its own."
    ),
    key!(journal.group_commit.in_flight, LIVE, "The most batches in flight to the disk at once."),
    key!(journal.fire_and_forget.sync_interval, RESTART, "Time between syncs; 0 leaves it to the kernel."),
    key!(rotation.max_age, LIVE, "Seal the active segment at this age; 0 is off: by size alone."),
    key!(
        retention.max_bytes,
        LIVE,
        "Remove the oldest sealed segments while these together take more than this; 0 is off. The active and the prepared one come on top, 2 x journal.segment_bytes."
    ),
    key!(
        retention.max_age,
        LIVE,
        "Remove sealed segments whose newest record is older than this; 0 is off. It may pause for 10 minutes after a start (CladRetentionPaused)."
    ),
    key!(
        retention.min_free,
        LIVE,
        "Remove the oldest sealed segments while the file system has less free space than this; 0 is off."
    ),
    key!(retention.keep_bytes, LIVE, "Never shrink the log below this size, whatever the other rules allow; 0 is off."),
    key!(
        retention.per_owner_bytes,
        LIVE,
        "Refuse appends (quota_exceeded, retryable) of a user, or of the network as a whole, \
         whose records in the log would take more than this; 0 is off. They resume when retention has removed enough. Root is exempt. Records count with the headers of their append and batch, as in the files."
    ),
    key!(
        retention.max_held_bytes,
        LIVE,
        "The most bytes that stay, against max_bytes and max_age, because a named cursor that holds has not read them. The oldest go beyond it, and when the disk is full. 0 is retention.max_bytes, else half of the free space at the start."
    ),
    key!(ingest.tcp.listen, RESTART, "Address for framed TCP; \"\" is off, port 0 takes a free one."),
    key!(ingest.tcp.tls, RESTART, "Speak TLS on it, and nothing else, with the certificate of [tls]."),
    key!(ingest.tcp.allow_read, RESTART, "Serve reading on it too, to anyone who can connect."),
    key!(ingest.tcp.allow_plaintext, RESTART, "Let it listen beyond the loopback, without encryption."),
    key!(
        ingest.unix.path,
        RESTART,
        "Socket for appending and reading; \"\" is off. Default: clad.sock in $RUNTIME_DIRECTORY, else in the data folder."
    ),
    key!(ingest.grpc.listen, RESTART, "Address for gRPC; \"\" is off, port 0 takes a free one."),
    key!(ingest.grpc.tls, RESTART, "Speak TLS on it, and nothing else, with the certificate of [tls]."),
    key!(ingest.grpc.allow_read, RESTART, "Serve reading on it too, to anyone who can connect."),
    key!(ingest.grpc.allow_plaintext, RESTART, "Let it listen beyond the loopback, without encryption."),
    key!(
        ingest.otlp.listen,
        RESTART,
        "Addresses for OTLP alone, gRPC and HTTP on each, such as [\"127.0.0.1:4317\", \"127.0.0.1:4318\"]. ingest.grpc.listen takes OTLP as well."
    ),
    key!(ingest.otlp.tls, RESTART, "Speak TLS on these addresses, and nothing else, with the certificate of [tls]."),
    key!(ingest.otlp.allow_plaintext, RESTART, "Let it listen beyond the loopback, without encryption."),
    key!(
        ingest.otlp.path,
        RESTART,
        "Socket for OTLP, gRPC and HTTP; \"\" is off. The kernel names each sender's user and process."
    ),
    key!(
        ingest.otlp.ack,
        RESTART,
        "Level at which a request is answered that has no header clad-ack: highest (that the log offers), none, received, written or durable."
    ),
    key!(
        ingest.otlp.resend_window,
        RESTART,
        "Time for which a request that is sent again is known, so that it is stored once; 0 is off. It stands still while no appends are taken."
    ),
    syslog_key!(
        listen,
        "Address, with the protocol before it: udp://127.0.0.1:514, tcp://127.0.0.1:514, tls://0.0.0.0:6514, relp://127.0.0.1:2514, relps://0.0.0.0:2514, unix-dgram:///run/clad/syslog.sock or unix-stream:///run/clad/syslog.sock."
    ),
    syslog_key!(allow_plaintext, "Let it listen beyond the loopback, without encryption."),
    syslog_key!(
        format,
        "Format of messages: 5424 or 3164 (the RFCs), auto (either), or raw (a message is one text, whatever is in it)."
    ),
    syslog_key!(
        time_zone,
        "Zone of times without one: local (the host's), UTC, an offset such as +02:00, or a name such as Europe/Berlin."
    ),
    syslog_key!(
        ack,
        "RELP alone: level of a record whose message is answered: highest (that the log offers), none, received, written or durable."
    ),
    syslog_key!(
        max_message,
        "Longest message; a longer one is cut, and marked as cut. Must be at least 1KiB, and at most half of journal.max_record_bytes."
    ),
    key!(
        ingest.shm.enabled,
        RESTART,
        "Give rings of shared memory on ingest.unix.path to any local user. A user gets at most as many as stay free for others; root is exempt."
    ),
    key!(
        ingest.shm.ring_bytes,
        RESTART,
        "Size of a ring; its tables take about a third more. The longest append is a quarter of it."
    ),
    key!(ingest.shm.max_rings, RESTART, "The most rings at once; further clients log over the socket."),
    key!(
        admin.path,
        RESTART,
        "Socket for administration; \"\" is off. Default: admin.sock in $RUNTIME_DIRECTORY, else in the data folder."
    ),
    key!(metrics.listen, RESTART, "Address for /metrics, /healthz and /readyz; \"\" is off, port 0 takes a free one."),
    key!(metrics.allow_plaintext, RESTART, "Let it listen beyond the loopback, without encryption."),
    key!(access.read_group, RESTART, "Group that may read, beside root and the daemon's user; \"\" is nobody else."),
    key!(access.admin_group, RESTART, "Group of the admin socket; \"\" is the daemon's own."),
    key!(
        access.tokens_file,
        LIVE,
        "File with a line for each token: its name, and the SHA-256 of it in hexadecimal; \"\" is no token. It is read again on HUP. Only its owner and group may write it."
    ),
    key!(
        access.rule,
        LIVE,
        "[[access.rule]], each with who and may, and for appends component, max_level, max_bytes_per_second and owner. The first that fits a peer decides; who fits none may nothing. Without rules read_group and allow_read decide."
    ),
    key!(
        tls.cert,
        LIVE,
        "File with the daemon's certificate first, then the issuer of each (PEM). It is read again on HUP and when it changes."
    ),
    key!(tls.key, LIVE, "File with the private key of tls.cert (PEM). Only its owner and group may read it."),
    key!(
        tls.client_ca,
        LIVE,
        "File with the authorities of clients' certificates (PEM); \"\" asks clients for none. A client's name is its one URI, else its one DNS name, as subjectAltName."
    ),
    key!(tls.require_client_cert, LIVE, "Refuse a client that shows no certificate."),
    key!(tls.min_version, LIVE, "Oldest version of TLS that is spoken: 1.2 or 1.3."),
    key!(log.level, LIVE, "The daemon's own messages: error, warn, info, debug or trace."),
    key!(log.format, LIVE, "How they are written to stderr: auto, text, json or journald."),
    key!(daemon.drain_timeout, LIVE, "The longest time that a stop waits for appends in flight."),
    key!(
        limits.max_connections,
        LIVE,
        "The most connections over all listeners. A user, or the network, gets at most as many as stay free for others. With none free, the idlest connection of the owner with most is closed for an owner with fewer."
    ),
    key!(limits.max_append_bytes, LIVE, "Largest append."),
    key!(
        limits.max_message_bytes,
        LIVE,
        "Largest request of OTLP, compressed or not; larger ones are refused for ever."
    ),
    key!(
        limits.max_inflight_bytes,
        LIVE,
        "The most bytes of appends in memory over all connections; beyond it, senders wait. A user, or the network, gets at most as many as stay free for others. Buffers of connections get twice as much."
    ),
    key!(limits.max_connection_inflight_bytes, LIVE, "The most bytes of appends in memory for one connection."),
    key!(
        limits.max_producers,
        LIVE,
        "The most remembered producers, so that a resent record is stored once. One user, or the network, has half of them at most. An owner with fewer than 8 is admitted beyond it, up to twice as many, and root up to three times."
    ),
    key!(
        limits.max_cursors,
        LIVE,
        "The most named cursors, at most 256. A user, or the network, gets a further one only while as many as they have stay free; root may take the last."
    ),
    key!(
        limits.max_origins,
        LIVE,
        "The most origins: streams of other logs that are forwarded here. A further one is refused; none is ever forgotten but by `clactl origins drop`. Where segments are small it is at most one for each 3 KiB of a segment."
    ),
    key!(limits.handshake_timeout, LIVE, "The longest time that a new connection may take to send HELLO."),
    key!(limits.idle_timeout, LIVE, "Close a connection after this much silence; 0 is never."),
];

/// The key of that name.
pub(super) fn find(name: &str) -> Option<Found> {
    KEYS.iter().find_map(|key| {
        let given = match key.around_name() {
            None => (key.name == name).then(String::new),
            Some((before, behind)) => {
                let given = name.strip_prefix(before)?.strip_prefix('.')?.strip_suffix(behind)?.strip_suffix('.')?;
                is_name(given).then(|| given.to_owned())
            }
        };
        Some(Found { key, given: given? })
    })
}

/// A name that an operator may give.
fn is_name(given: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=NAME_BYTES_MAX).contains(&given.len()) && given.bytes().all(is_plain)
}

/// True if the name is a section that holds keys or further sections.
pub(super) fn is_section(name: &str) -> bool {
    let below = |key: &Key, name: &str| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    KEYS.iter().any(|key| {
        let of_given = || {
            let (before, _) = key.around_name()?;
            let given = name.strip_prefix(before)?.strip_prefix('.')?;
            Some(is_name(given))
        };
        below(key, name) || of_given().unwrap_or(false)
    })
}

/// Every key of the configurations: one of a section that the operator names for each such section.
pub(super) fn keys_of(configs: &[&Config]) -> Vec<Found> {
    let mut names: Vec<&str> =
        configs.iter().flat_map(|config| config.ingest.syslog.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    every_key(&names)
}

/// Every key with its value, where there is one.
pub(super) fn values(root: &Value) -> Vec<(Found, &Value)> {
    let names = names_in(root);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    every_key(&names)
        .into_iter()
        .filter_map(|found| Some((value_at(root, &found.name())?, found)))
        .map(|(v, f)| (f, v))
        .collect()
}

/// Names that the operator gave sections, also to those without a key.
pub(super) fn names_in(root: &Value) -> Vec<String> {
    let mut names: Vec<String> = match value_at(root, "ingest.syslog").map(|value| &value.kind) {
        Some(ValueKind::Table(table)) => table.keys().cloned().collect(),
        _ => Vec::new(),
    };
    names.sort_unstable();
    names
}

fn every_key(names: &[&str]) -> Vec<Found> {
    let mut all = Vec::new();
    for section in KEYS.chunk_by(|one, next| one.split().0 == next.split().0) {
        let plain = section.iter().all(|key| key.around_name().is_none());
        for given in if plain { &[""][..] } else { names } {
            all.extend(section.iter().map(|key| Found { key, given: (*given).to_owned() }));
        }
    }
    all
}

/// The value at a dotted name.
fn value_at<'a>(root: &'a Value, name: &str) -> Option<&'a Value> {
    name.split('.').try_fold(root, |value, part| match &value.kind {
        ValueKind::Table(table) => table.get(part),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_stand_together_and_keys_are_unique() {
        let mut sections: Vec<&str> = KEYS.iter().map(|key| key.split().0).collect();
        sections.dedup();
        let mut unique = sections.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), sections.len(), "{sections:?}");

        let mut names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
    }

    #[test]
    fn an_operator_names_a_section() {
        let name = |name: &str| find(name).map(|found| found.name());
        assert_eq!(name("ingest.syslog.net.listen").as_deref(), Some("ingest.syslog.net.listen"));
        assert_eq!(find("ingest.syslog.net.ack").unwrap().variable(), "CLAD_INGEST__SYSLOG__NET__ACK");
        assert!(is_section("ingest.syslog") && is_section("ingest.syslog.net") && is_section("ingest"));
        let long = format!("ingest.syslog.{}.listen", "a".repeat(33));
        for wrong in [
            "ingest.syslog.listen",
            "ingest.syslog..listen",
            "ingest.syslog.a.b.listen",
            "ingest.syslog.a b.listen",
            &long,
        ] {
            assert!(find(wrong).is_none(), "{wrong}");
        }
        assert!(!is_section("ingest.syslog.net.listen") && !is_section("ingest.syslog.a b"));
    }

    #[test]
    fn every_key_has_one_line_for_the_operator() {
        for key in KEYS {
            assert!(key.about.ends_with('.') && !key.about.contains('\n'), "{}", key.name);
        }
    }
}
