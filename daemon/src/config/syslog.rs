//! Listeners of syslog, which the operator names: their addresses, and the judgement of them all.
//!
//! Invariants: each has an address of its own, of no other listener; one beyond the loopback is there because the operator
//! said so; a message of the longest size fits a record with its attributes.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jiff::tz::{Offset, TimeZone};

use super::error::ConfigError;
use super::origin::Provenance;
use super::rules::{MAX_SOCKET_PATH, is_loopback, not_loopback};
use super::types::{Config, SyslogAddress, SyslogListener};
use super::units::show_size;

/// Shortest limit of a message: what every receiver must take (RFC 5424, 6.1: 480 bytes) fits.
const MESSAGE_BYTES_MIN: u64 = 1 << 10;

impl SyslogAddress {
    /// The address of the network, where it is one.
    #[must_use]
    pub fn network(&self) -> Option<SocketAddr> {
        match self {
            Self::Udp(address)
            | Self::Tcp(address)
            | Self::Tls(address)
            | Self::Relp(address)
            | Self::Relps(address) => Some(*address),
            Self::UnixDatagram(_) | Self::UnixStream(_) => None,
        }
    }

    /// The path of the socket, where it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::UnixDatagram(path) | Self::UnixStream(path) => Some(path),
            Self::Udp(_) | Self::Tcp(_) | Self::Tls(_) | Self::Relp(_) | Self::Relps(_) => None,
        }
    }

    /// True if it speaks TLS.
    #[must_use]
    pub fn speaks_tls(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Relps(_))
    }

    /// Reads `protocol://address`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (protocol, rest) = text.split_once("://")?;
        let address = || rest.parse().ok();
        let path = || (!rest.is_empty() && !rest.contains('\0')).then(|| PathBuf::from(rest));
        match protocol {
            "udp" => address().map(Self::Udp),
            "tcp" => address().map(Self::Tcp),
            "tls" => address().map(Self::Tls),
            "relp" => address().map(Self::Relp),
            "relps" => address().map(Self::Relps),
            "unix-dgram" => path().map(Self::UnixDatagram),
            "unix-stream" => path().map(Self::UnixStream),
            _ => None,
        }
    }
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Tls(address) => write!(f, "tls://{address}"),
            Self::Relp(address) => write!(f, "relp://{address}"),
            Self::Relps(address) => write!(f, "relps://{address}"),
            Self::UnixDatagram(path) => write!(f, "unix-dgram://{}", path.display()),
            Self::UnixStream(path) => write!(f, "unix-stream://{}", path.display()),
        }
    }
}

/// The zone of this name; nothing where there is none.
pub(crate) fn zone(name: &str) -> Option<TimeZone> {
    match name {
        "local" => Some(TimeZone::system()),
        _ if name.starts_with(['+', '-']) => offset(name).map(TimeZone::fixed),
        _ => TimeZone::get(name).ok(),
    }
}

/// `+02:00`.
fn offset(text: &str) -> Option<Offset> {
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let two = |digits: &str| (digits.len() == 2).then(|| digits.parse::<u8>().ok()).flatten().map(i32::from);
    let seconds = two(hours)? * 3600 + two(minutes).filter(|minutes| *minutes < 60)? * 60;
    Offset::from_seconds(if text.starts_with('-') { -seconds } else { seconds }).ok()
}

/// Checks all of them; keys that were refused are left out.
pub(super) fn validate(config: &Config, provenance: &Provenance, refused: &[String]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut before: Vec<(&str, &SyslogAddress)> = Vec::new();
    for (name, syslog) in &config.ingest.syslog {
        let mut wrong = |field: &str, reason: Option<String>| {
            let key = format!("ingest.syslog.{name}.{field}");
            if let Some(reason) = reason.filter(|_| !refused.contains(&key)) {
                errors.push(ConfigError::At { at: provenance.of(&key), problem: format!("`{key}`: {reason}") });
            }
        };
        wrong("listen", address(config, syslog, name).or_else(|| taken(config, syslog, &before)));
        wrong(
            "time_zone",
            zone(&syslog.time_zone).is_none().then(|| {
                format!(
                    "{:?} is no time zone: local, UTC, an offset such as +02:00, or a name such as Europe/Berlin",
                    syslog.time_zone
                )
            }),
        );
        wrong("max_message", message(config, syslog));
        before.extend(syslog.listen.as_ref().map(|listen| (name.as_str(), listen)));
    }
    errors
}

/// Reason why the address alone cannot be.
fn address(config: &Config, syslog: &SyslogListener, name: &str) -> Option<String> {
    let Some(listen) = &syslog.listen else {
        return Some("it must be set, such as \"udp://127.0.0.1:514\"".to_owned());
    };
    if let Some(address) = listen.network() {
        let allow = format!("ingest.syslog.{name}.allow_plaintext");
        if listen.speaks_tls() {
            let missing = config.tls.cert.is_none();
            return missing
                .then(|| "there is no certificate to speak TLS with; set `tls.cert` and `tls.key`".to_owned());
        }
        let encrypted = match listen {
            SyslogAddress::Relp(_) => "relps://",
            _ => "tls://",
        };
        return (!syslog.allow_plaintext && !is_loopback(address))
            .then(|| not_loopback(&address.to_string(), encrypted, &allow));
    }
    let path = listen.path()?;
    let length = path.as_os_str().as_bytes().len();
    if length > MAX_SOCKET_PATH {
        return Some(format!(
            "a socket's path holds at most {MAX_SOCKET_PATH} bytes, this one has {length}; set a shorter one"
        ));
    }
    let others = [
        ("ingest.unix.path", &config.ingest.unix.path),
        ("ingest.otlp.path", &config.ingest.otlp.path),
        ("admin.path", &config.admin.path),
    ];
    let other = others.iter().find(|(_, other)| other.as_deref() == Some(path))?;
    Some(format!("it is also `{}`", other.0))
}

/// Reason why another listener has it.
fn taken(config: &Config, syslog: &SyslogListener, before: &[(&str, &SyslogAddress)]) -> Option<String> {
    let listen = syslog.listen.as_ref()?;
    let is_udp = |listen: &SyslogAddress| matches!(listen, SyslogAddress::Udp(_));
    let is_same = |other: &SyslogAddress| match (listen.network(), other.network()) {
        (Some(one), Some(other_one)) => one == other_one && is_udp(listen) == is_udp(other),
        _ => listen.path() == other.path(),
    };
    if listen.network().is_some_and(|address| address.port() == 0) {
        return None;
    }
    if let Some((name, _)) = before.iter().find(|(_, other)| is_same(other)) {
        return Some(format!("{listen} is also `ingest.syslog.{name}.listen`"));
    }
    let address = listen.network().filter(|_| !is_udp(listen))?;
    let tcp = [
        ("ingest.tcp.listen", config.ingest.tcp.listen),
        ("ingest.grpc.listen", config.ingest.grpc.listen),
        ("metrics.listen", config.metrics.listen),
    ];
    let otlp = config.ingest.otlp.listen.iter().map(|address| ("ingest.otlp.listen", Some(*address)));
    let (key, _) = tcp.into_iter().chain(otlp).find(|(_, other)| *other == Some(address))?;
    Some(format!("{address} is also `{key}`"))
}

fn message(config: &Config, syslog: &SyslogListener) -> Option<String> {
    let most = config.journal.max_record_bytes / 2;
    let (value, most_shown) = (show_size(syslog.max_message), show_size(most));
    if syslog.max_message < MESSAGE_BYTES_MIN {
        return Some(format!("{value} is too small; the least is {}", show_size(MESSAGE_BYTES_MIN)));
    }
    (syslog.max_message > most).then(|| {
        format!(
            "{value} is more than half of `journal.max_record_bytes`, {most_shown}; lower the one or raise the other"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_shown() {
        for text in [
            "udp://127.0.0.1:514",
            "tcp://[::1]:514",
            "tls://127.0.0.1:6514",
            "relp://127.0.0.1:2514",
            "relps://[::]:2514",
            "unix-dgram:///run/a.sock",
            "unix-stream://b",
        ] {
            assert_eq!(SyslogAddress::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["", "127.0.0.1:514", "udp://localhost:514", "dtls://127.0.0.1:6514", "unix-dgram://", "unix:///a"]
        {
            assert_eq!(SyslogAddress::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_zone_has_a_name_or_is_an_offset() {
        let seconds = |name: &str| {
            let summer = jiff::civil::date(2026, 7, 1).at(12, 0, 0, 0);
            zone(name).map(|zone| zone.to_zoned(summer).unwrap().offset().seconds())
        };
        assert_eq!(seconds("UTC"), Some(0));
        assert_eq!(seconds("+02:00"), Some(7200));
        assert_eq!(seconds("-03:30"), Some(-12_600));
        assert_eq!(seconds("Europe/Berlin"), Some(7200));
        assert!(zone("local").is_some());
        for wrong in ["", "+2", "+99:00", "+01:60", "Europe/Nowhere", "+é0:00", "+", "+0é:00"] {
            assert!(zone(wrong).is_none(), "{wrong}");
        }
    }
}
