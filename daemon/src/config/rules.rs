//! The rules that a value must satisfy, alone and beside the others.
//!
//! Invariant: a rule is one thing. Its words, which the manual and the example file print, and its judgement are made
//! from the same numbers and the same keys here. So neither can say what the other does not.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clad_journal::format::cursors::MAX_CURSORS;
use clad_proto::limits::{MAX_APPEND_BYTES, MAX_RECORD_BYTES};

use super::types::Config;
use super::units::{show_duration, show_size};

/// Bytes that a segment holds beside one append of the largest size: header, batch headers, padding, footer.
pub const SEGMENT_OVERHEAD_BYTES: u64 = 32 << 10;
/// Segments are made of whole steps of this size, which every block size divides.
pub const SEGMENT_BYTES_STEP: u64 = 64 << 10;
/// Largest segment: positions within one fit 31 bits, and the cost of a quarantined one stays bearable.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Most batches on their way at once: beyond this a device gains nothing and memory is only held.
pub const MAX_IN_FLIGHT: u32 = 16;
/// Longest useful wait for more appends; a longer one is a mistaken unit.
pub const MAX_GROUP_DELAY: Duration = Duration::from_secs(1);
/// Longest time for which a request is known again; the number of requests bounds it long before.
pub(super) const MAX_RESEND_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Most origins: with all of them a footer is a tenth of a mebibyte.
pub(super) const MAX_ORIGINS: u32 = 1024;
/// Segments that retention never removes: the active, the prepared and the newest sealed one.
pub const MIN_RETAINED_SEGMENTS: u64 = 3;
/// Longest path of a Unix socket on Linux.
pub(super) const MAX_SOCKET_PATH: usize = 107;
/// Smallest limit on records and batches that still lets ordinary lines through.
pub const SIZE_LIMIT_BYTES_MIN: u64 = 1 << 10;

/// Largest request of OTLP: a length over gRPC has 32 bits.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 30;

/// Most bytes in flight: more than any host has, and little enough that multiples of it do not overflow.
pub(super) const MAX_INFLIGHT_BYTES: u64 = 1 << 40;

/// Smallest and largest ring.
pub const RING_BYTES: RangeInclusive<u64> = 64 << 10..=256 << 20;
/// Most rings at once: each takes four descriptors of the daemon.
pub const MAX_RINGS: u32 = 1024;

/// One rule about one key.
pub(super) struct Rule {
    /// The key that it is about.
    pub(super) key: &'static str,
    /// Other keys that it reads.
    pub(super) beside: Vec<&'static str>,
    /// Requirement of the value, to stand behind "must be"; keys are in backticks.
    pub(super) must: String,
    /// Judges a configuration.
    pub(super) broken: Box<Judgement>,
}

/// Reason why a value cannot be, and what could; `None` where the rule holds.
pub(super) type Judgement = dyn Fn(&Config) -> Option<String>;

/// A key by its name, with its value.
struct Field<T> {
    key: &'static str,
    of: fn(&Config) -> T,
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

/// The field is found by the key's own name.
macro_rules! field {
    ($first:ident $(. $rest:ident)+) => {
        Field {
            key: concat!(stringify!($first) $(, ".", stringify!($rest))+),
            of: |config| Clone::clone(&config.$first $(.$rest)+),
        }
    };
}

/// All of them, in the order in which they are reported.
pub(super) fn rules() -> Vec<Rule> {
    let mut rules = sizes();
    rules.extend(journal());
    rules.extend(retention());
    rules.extend(limits());
    rules.extend(addresses());
    rules.extend(shared_memory());
    rules.extend(sockets());
    rules.extend(tls());
    rules
}

/// A rule of one value: `why` is asked where it does not hold.
fn alone<T: 'static>(
    field: Field<T>,
    must: String,
    holds: impl Fn(&T) -> bool + 'static,
    why: impl Fn(&T) -> String + 'static,
) -> Rule {
    let broken = move |config: &Config| {
        let value = (field.of)(config);
        (!holds(&value)).then(|| why(&value))
    };
    Rule { key: field.key, beside: Vec::new(), must, broken: Box::new(broken) }
}

/// A rule of two values.
fn beside<T: 'static, U: 'static>(
    (field, other): (Field<T>, Field<U>),
    must: String,
    holds: impl Fn(&T, &U) -> bool + 'static,
    why: impl Fn(&T, &U) -> String + 'static,
) -> Rule {
    let broken = move |config: &Config| {
        let (value, other) = ((field.of)(config), (other.of)(config));
        (!holds(&value, &other)).then(|| why(&value, &other))
    };
    Rule { key: field.key, beside: vec![other.key], must, broken: Box::new(broken) }
}

/// A size that must be at least that of another key.
fn at_least(field: Field<u64>, other: Field<u64>) -> Rule {
    let name = other.key;
    beside(
        (field, other),
        format!("at least `{name}`"),
        |value, least| value >= least,
        move |value, least| {
            let (value, least) = (show_size(*value), show_size(*least));
            format!("{value} is less than `{name}` = {least}; raise the one or lower the other")
        },
    )
}

/// The chain of sizes: a record in an append, an append in a connection's share, a share in the whole.
fn sizes() -> Vec<Rule> {
    let least = |field: Field<u64>| {
        let least = show_size(SIZE_LIMIT_BYTES_MIN);
        alone(
            field,
            format!("at least {least}"),
            |value| *value >= SIZE_LIMIT_BYTES_MIN,
            move |value| format!("{} is too small; the least is {least}", show_size(*value)),
        )
    };
    let most = |field: Field<u64>, most: u64| {
        let shown = show_size(most);
        alone(
            field,
            format!("at most {shown}"),
            move |value| *value <= most,
            move |value| format!("{} is more than {}", show_size(*value), show_size(most)),
        )
    };
    vec![
        least(field!(journal.max_record_bytes)),
        most(field!(journal.max_record_bytes), MAX_RECORD_BYTES.into()),
        least(field!(journal.group_commit.max_bytes)),
        least(field!(limits.max_append_bytes)),
        most(field!(limits.max_append_bytes), MAX_APPEND_BYTES.into()),
        most(field!(limits.max_inflight_bytes), MAX_INFLIGHT_BYTES),
        least(field!(limits.max_message_bytes)),
        most(field!(limits.max_message_bytes), MAX_MESSAGE_BYTES),
        at_least(field!(limits.max_append_bytes), field!(journal.max_record_bytes)),
        at_least(field!(limits.max_connection_inflight_bytes), field!(limits.max_append_bytes)),
        at_least(field!(limits.max_inflight_bytes), field!(limits.max_connection_inflight_bytes)),
    ]
}

fn is_segment(bytes: u64) -> bool {
    bytes.is_multiple_of(SEGMENT_BYTES_STEP) && (SEGMENT_BYTES_STEP..=MAX_SEGMENT_BYTES).contains(&bytes)
}

fn journal() -> Vec<Rule> {
    let (step, most) = (show_size(SEGMENT_BYTES_STEP), show_size(MAX_SEGMENT_BYTES));
    let segment = format!("a multiple of {step} from {step} to {most}");
    let delay = show_duration(MAX_GROUP_DELAY);
    vec![
        alone(
            field!(journal.segment_bytes),
            segment.clone(),
            |bytes| is_segment(*bytes),
            move |bytes| format!("{} is not {segment}", show_size(*bytes)),
        ),
        append_in_a_segment(),
        alone(
            field!(journal.group_commit.in_flight),
            format!("from 1 to {MAX_IN_FLIGHT}"),
            |number| (1..=MAX_IN_FLIGHT).contains(number),
            |number| format!("{number} is not from 1 to {MAX_IN_FLIGHT}"),
        ),
        at_most(field!(journal.group_commit.max_delay), MAX_GROUP_DELAY, delay),
    ]
}

fn at_most(field: Field<Duration>, most: Duration, shown: String) -> Rule {
    alone(
        field,
        format!("at most {shown}"),
        move |value| *value <= most,
        move |value| format!("{} is more than {shown}", show_duration(*value)),
    )
}

/// No further segment is made with less free space than the two others together. A rule that begins to remove below
/// that would never apply, and the log would refuse appends beside it.
fn room_for_a_segment(free: Field<u64>, reserve: Field<u64>, segment: Field<u64>) -> Rule {
    let broken = move |config: &Config| {
        let (value, least) = ((free.of)(config), (reserve.of)(config).saturating_add((segment.of)(config)));
        (value > 0 && value < least).then(|| {
            format!(
                "{} has no effect: with less than `{}` + `{}` = {} free no further segment is begun, so set at least \
                 that; 0 is off",
                show_size(value),
                reserve.key,
                segment.key,
                show_size(least)
            )
        })
    };
    Rule {
        key: free.key,
        beside: vec![reserve.key, segment.key],
        must: format!("0, or at least `{}` + `{}`", reserve.key, segment.key),
        broken: Box::new(broken),
    }
}

/// Lowering only one of the limits would end at the other.
fn append_in_a_segment() -> Rule {
    let (segment, slack) = (field!(journal.segment_bytes), show_size(SEGMENT_OVERHEAD_BYTES));
    let (append, record) = (field!(limits.max_append_bytes), field!(journal.max_record_bytes));
    let must = format!("at least `{}` + {slack}, for header and footer", append.key);
    let broken = move |config: &Config| {
        let (bytes, largest, longest) = ((segment.of)(config), (append.of)(config), (record.of)(config));
        // A value that is no segment at all was reported already.
        if !is_segment(bytes) || bytes >= largest.saturating_add(SEGMENT_OVERHEAD_BYTES) {
            return None;
        }
        let holds = bytes - SEGMENT_OVERHEAD_BYTES;
        let beside = match longest > holds {
            true => format!(" to {}, and with it `{}` = {}", show_size(holds), record.key, show_size(longest)),
            false => String::new(),
        };
        Some(format!(
            "{} does not hold one append of `{}` = {} with {slack} for header and footer; raise the one or lower the \
             other{beside}",
            show_size(bytes),
            append.key,
            show_size(largest),
        ))
    };
    Rule { key: segment.key, beside: vec![append.key], must, broken: Box::new(broken) }
}

fn retention() -> Vec<Rule> {
    let segment = field!(journal.segment_bytes);
    let (most, name) = (field!(retention.max_bytes), segment.key);
    let least = |segment: u64| MIN_RETAINED_SEGMENTS.saturating_mul(segment);
    vec![
        beside(
            (most, segment),
            format!("0, or at least {MIN_RETAINED_SEGMENTS} × `{name}`"),
            move |bytes, segment| *bytes == 0 || *bytes >= least(*segment),
            move |bytes, segment| {
                format!(
                    "{} is too little: the least is {MIN_RETAINED_SEGMENTS} × `{name}` = {}; 0 is off",
                    show_size(*bytes),
                    show_size(least(*segment))
                )
            },
        ),
        room_for_a_segment(field!(retention.min_free), field!(journal.reserve_free), segment),
        beside(
            (field!(retention.keep_bytes), most),
            format!("at most `{}`, where that is not 0", most.key),
            |keep, bytes| *bytes == 0 || keep <= bytes,
            move |keep, bytes| {
                let (keep, bytes) = (show_size(*keep), show_size(*bytes));
                format!("{keep} is more than `{}` = {bytes}; both cannot hold", most.key)
            },
        ),
        share_of_an_owner(),
    ]
}

/// A share that nothing frees would refuse its owner for ever; the newest segments are never removed either.
fn share_of_an_owner() -> Rule {
    let (share, segment) = (field!(retention.per_owner_bytes), field!(journal.segment_bytes));
    let (bytes, age, free) = (field!(retention.max_bytes), field!(retention.max_age), field!(retention.min_free));
    let broken = move |config: &Config| {
        let (value, least) = ((share.of)(config), MIN_RETAINED_SEGMENTS.saturating_mul((segment.of)(config)));
        let frees = (bytes.of)(config) > 0 || !(age.of)(config).is_zero() || (free.of)(config) > 0;
        match value {
            0 => None,
            _ if !frees => Some(format!(
                "no rule would ever remove records of that user: set `{}`, `{}` or `{}` as well; 0 is off",
                bytes.key, age.key, free.key
            )),
            _ if (bytes.of)(config) > 0 && value > (bytes.of)(config) => Some(format!(
                "{} is more than `{}` = {}: one user could remove everybody's history; set it below that",
                show_size(value),
                bytes.key,
                show_size((bytes.of)(config))
            )),
            _ => (value < least).then(|| {
                format!(
                    "{} is too little: the least is {MIN_RETAINED_SEGMENTS} × `{}` = {}; 0 is off",
                    show_size(value),
                    segment.key,
                    show_size(least)
                )
            }),
        }
    };
    Rule {
        key: share.key,
        beside: vec![segment.key, bytes.key, age.key, free.key],
        must: format!(
            "0, or at least {MIN_RETAINED_SEGMENTS} × `{}`, with `{}`, `{}` or `{}` set, and not above `{}`",
            segment.key, bytes.key, age.key, free.key, bytes.key
        ),
        broken: Box::new(broken),
    }
}

fn limits() -> Vec<Rule> {
    let somebody = |field: Field<u32>| {
        let why = |_: &u32| "0 would let nobody in; the least is 1".to_owned();
        alone(field, "at least 1".to_owned(), |number| *number >= 1, why)
    };
    let some_time = |field: Field<Duration>| {
        let must = "more than 0";
        alone(field, must.to_owned(), |time| !time.is_zero(), move |_| format!("it must be {must}"))
    };
    vec![
        somebody(field!(limits.max_connections)),
        somebody(field!(limits.max_producers)),
        alone(
            field!(limits.max_cursors),
            format!("at most {MAX_CURSORS}"),
            |number| *number as usize <= MAX_CURSORS,
            |_| format!("a log keeps at most {MAX_CURSORS}"),
        ),
        somebody(field!(limits.max_origins)),
        alone(
            field!(limits.max_origins),
            format!("at most {MAX_ORIGINS}"),
            |origins| *origins <= MAX_ORIGINS,
            |_| format!("{MAX_ORIGINS} is the limit: the footer of each segment holds all of them"),
        ),
        some_time(field!(limits.handshake_timeout)),
        some_time(field!(daemon.drain_timeout)),
    ]
}

fn addresses() -> Vec<Rule> {
    let tcp = field!(ingest.tcp.listen);
    let grpc = field!(ingest.grpc.listen);
    let metrics = field!(metrics.listen);
    vec![
        encrypted(tcp, field!(ingest.tcp.tls), field!(ingest.tcp.allow_plaintext)),
        encrypted(grpc, field!(ingest.grpc.tls), field!(ingest.grpc.allow_plaintext)),
        another(grpc, tcp),
        loopback(metrics, field!(metrics.allow_plaintext)),
        another(metrics, tcp),
        another(metrics, grpc),
        encrypted(field!(ingest.otlp.listen), field!(ingest.otlp.tls), field!(ingest.otlp.allow_plaintext)),
        others(field!(ingest.otlp.listen), [tcp, grpc, metrics]),
        at_most(field!(ingest.otlp.resend_window), MAX_RESEND_WINDOW, show_duration(MAX_RESEND_WINDOW)),
    ]
}

/// Addresses that differ from each other and from those of other listeners.
fn others(listen: Field<Vec<SocketAddr>>, taken: [Field<Option<SocketAddr>>; 3]) -> Rule {
    let names = taken.map(|other| format!("`{}`", other.key)).join(", ");
    let broken = move |config: &Config| {
        let addresses: Vec<_> = (listen.of)(config).into_iter().filter(|address| address.port() != 0).collect();
        let of_another = addresses.iter().find_map(|address| {
            let other = taken.iter().find(|other| (other.of)(config) == Some(*address))?;
            Some(format!("{address} is also `{}`", other.key))
        });
        let twice = addresses.iter().enumerate().find(|(at, address)| addresses[..*at].contains(address));
        of_another.or_else(|| twice.map(|(_, address)| format!("{address} is there twice")))
    };
    Rule {
        key: listen.key,
        beside: taken.iter().map(|other| other.key).collect(),
        must: format!("other addresses than {names}, each once"),
        broken: Box::new(broken),
    }
}

fn loopback(listen: Field<Option<SocketAddr>>, plaintext: Field<bool>) -> Rule {
    let name = plaintext.key;
    beside(
        (listen, plaintext),
        format!("a loopback address, unless `{name}` is true"),
        |address, allowed| *allowed || address.is_none_or(is_loopback),
        move |address, _| {
            let address = address.map_or_else(String::new, |address| address.to_string());
            format!(
                "{address} is not a loopback address, and metrics have no TLS; set `{name} = true` to send them in the clear"
            )
        },
    )
}

/// The value of a key for addresses.
trait Addresses {
    fn beyond_loopback(&self) -> Option<SocketAddr>;
}

impl Addresses for Option<SocketAddr> {
    fn beyond_loopback(&self) -> Option<SocketAddr> {
        self.filter(|address| !is_loopback(*address))
    }
}

impl Addresses for Vec<SocketAddr> {
    fn beyond_loopback(&self) -> Option<SocketAddr> {
        self.iter().copied().find(|address| !is_loopback(*address))
    }
}

/// Loopback, or TLS, or the operator's word for plaintext.
fn encrypted<T: Addresses + 'static>(listen: Field<T>, tls: Field<bool>, plaintext: Field<bool>) -> Rule {
    let broken = move |config: &Config| {
        let is_allowed = (tls.of)(config) || (plaintext.of)(config);
        let address = (listen.of)(config).beyond_loopback().filter(|_| !is_allowed)?;
        Some(not_loopback(
            &address.to_string(),
            &format!("`{} = true`, with certificate and key in [tls],", tls.key),
            plaintext.key,
        ))
    };
    Rule {
        key: listen.key,
        beside: vec![tls.key, plaintext.key],
        must: format!("on the loopback, unless `{}` or `{}` is true", tls.key, plaintext.key),
        broken: Box::new(broken),
    }
}

/// Certificate and key belong together, and a listener that speaks TLS has both.
fn tls() -> Vec<Rule> {
    let (cert, key, authorities) = (field!(tls.cert), field!(tls.key), field!(tls.client_ca));
    let with = |one: Field<Option<PathBuf>>, other: Field<Option<PathBuf>>| {
        beside(
            (one, other),
            format!("set where `{}` is", other.key),
            |one, other| one.is_some() || other.is_none(),
            move |_, _| format!("it is not set, and `{}` is: a certificate has a key, each in its file", other.key),
        )
    };
    let needs = |listener: Field<bool>| {
        beside(
            (listener, cert),
            format!("false, unless `{}` is set", cert.key),
            |speaks, cert| !speaks || cert.is_some(),
            move |_, _| format!("there is no certificate to speak TLS with; set `{}` and `{}`", cert.key, key.key),
        )
    };
    vec![
        with(cert, key),
        with(key, cert),
        needs(field!(ingest.tcp.tls)),
        needs(field!(ingest.grpc.tls)),
        needs(field!(ingest.otlp.tls)),
        beside(
            (authorities, cert),
            format!("\"\", unless `{}` is set", cert.key),
            |authorities, cert| authorities.is_none() || cert.is_some(),
            move |_, _| {
                format!("authorities of clients are for a daemon with a certificate of its own; set `{}`", cert.key)
            },
        ),
        beside(
            (field!(tls.require_client_cert), authorities),
            format!("false, unless `{}` is set", authorities.key),
            |required, authorities| !required || authorities.is_some(),
            move |_, _| format!("no certificate of a client can be checked; set `{}`", authorities.key),
        ),
    ]
}

pub(super) fn not_loopback(address: &str, tls: &str, allow: &str) -> String {
    format!(
        "{address} is not a loopback address, and it does not speak TLS: use {tls} or set `{allow} = true` to send everything \
         in the clear"
    )
}

/// `::ffff:127.0.0.1` is the loopback too.
pub(super) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn another(listen: Field<Option<SocketAddr>>, other: Field<Option<SocketAddr>>) -> Rule {
    let name = other.key;
    beside(
        (listen, other),
        format!("another address than `{name}`"),
        |address, taken| address.is_none_or(|address| address.port() == 0) || taken != address,
        move |address, _| {
            let address = address.map_or_else(String::new, |address| address.to_string());
            format!("{address} is also `{name}`")
        },
    )
}

/// Rings: what they can be made of, and that a client can ask for one.
fn shared_memory() -> Vec<Rule> {
    let ring = format!("a power of two from {} to {}", show_size(*RING_BYTES.start()), show_size(*RING_BYTES.end()));
    let rings = format!("from 1 to {MAX_RINGS}");
    vec![
        alone(
            field!(ingest.shm.ring_bytes),
            ring.clone(),
            |bytes| bytes.is_power_of_two() && RING_BYTES.contains(bytes),
            move |bytes| format!("{} is not {ring}", show_size(*bytes)),
        ),
        alone(
            field!(ingest.shm.max_rings),
            rings.clone(),
            |number| (1..=MAX_RINGS).contains(number),
            move |number| format!("{number} is not {rings}; `ingest.shm.enabled = false` turns rings off"),
        ),
    ]
}

fn sockets() -> Vec<Rule> {
    let (ingest, admin, otlp) = (field!(ingest.unix.path), field!(admin.path), field!(ingest.otlp.path));
    // A path that nobody set follows the data folder's.
    let short = |path: Field<Option<PathBuf>>| {
        let long = |path: &Option<PathBuf>| path.as_ref().map_or(0, |path| path.as_os_str().as_bytes().len());
        beside(
            (path, field!(journal.dir)),
            format!("at most {MAX_SOCKET_PATH} bytes long"),
            move |path, _| long(path) <= MAX_SOCKET_PATH,
            move |path, _| {
                let length = long(path);
                format!(
                    "a socket's path holds at most {MAX_SOCKET_PATH} bytes, this one has {length}; set a shorter one"
                )
            },
        )
    };
    vec![
        short(ingest),
        short(admin),
        short(otlp),
        another_path(admin, ingest),
        another_path(otlp, ingest),
        another_path(otlp, admin),
    ]
}

fn another_path(path: Field<Option<PathBuf>>, other: Field<Option<PathBuf>>) -> Rule {
    beside(
        (path, other),
        format!("another path than `{}`", other.key),
        |path, other| other.is_none() || other != path,
        move |_, _| format!("it is also `{}`", other.key),
    )
}

#[cfg(test)]
mod tests {
    use super::super::schema::find;
    use super::*;

    #[test]
    fn every_rule_is_of_keys_and_names_those_that_it_reads() {
        for rule in rules() {
            assert!(find(rule.key).is_some_and(|_| rule.beside.iter().all(|key| find(key).is_some())), "{}", rule.key);
            let named: Vec<&str> = rule.must.split('`').skip(1).step_by(2).collect();
            assert!(named.iter().all(|key| rule.beside.contains(key)), "{}: {}", rule.key, rule.must);
        }
    }
}
