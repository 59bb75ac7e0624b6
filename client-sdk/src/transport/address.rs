//! Where a daemon listens.
//!
//! Text forms: `unix://PATH`, `shm://PATH` (of the same socket), `tcp://HOST:PORT`, `grpc://HOST:PORT`. Shorter: the
//! two slashes may be left out (`unix:PATH`). A missing port is the daemon's default one. A text that starts with `/`
//! or `.` is the path of a Unix socket. A host is a name, an IPv4 address, or an IPv6 address in brackets.

use std::{fmt, path::PathBuf, str::FromStr};

/// The port of framed TCP when none is named.
pub const DEFAULT_TCP_PORT: u16 = 7440;
/// The port of gRPC when none is named.
pub const DEFAULT_GRPC_PORT: u16 = 7441;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// The framed protocol on a Unix socket.
    Unix(PathBuf),
    /// A ring of shared memory, asked for on this Unix socket; the socket itself where no ring is given.
    Shm(PathBuf),
    /// The framed protocol on TCP.
    Tcp(HostPort),
    /// gRPC.
    #[cfg(feature = "grpc")]
    Grpc(HostPort),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name or an address; an IPv6 address has no brackets here.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseAddressError {
    /// Nothing before a colon that names a transport.
    #[error("`{0}` is not an address: unix://PATH, shm://PATH, tcp://HOST:PORT or grpc://HOST:PORT is wanted")]
    NoScheme(String),
    /// A transport that this build does not speak.
    #[error("`{0}` is not a transport of this client: unix, shm, tcp{grpc} are", grpc = if cfg!(feature = "grpc") { ", grpc" } else { "" })]
    UnknownScheme(String),
    /// A Unix or shared-memory address without a path.
    #[error("`{0}` names no path: unix://PATH or shm://PATH is wanted")]
    NoPath(String),
    /// Not a host and a port.
    #[error("`{0}` is not HOST:PORT")]
    HostPort(String),
}

impl Address {
    /// The address of a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix(path.into())
    }

    /// The address of a Unix socket on which a ring of shared memory is asked for.
    pub fn shm(path: impl Into<PathBuf>) -> Self {
        Self::Shm(path.into())
    }

    /// The address of a framed TCP listener.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp(HostPort { host: host.into(), port })
    }

    /// The address of a gRPC listener.
    #[cfg(feature = "grpc")]
    pub fn grpc(host: impl Into<String>, port: u16) -> Self {
        Self::Grpc(HostPort { host: host.into(), port })
    }

    /// True if the daemon identifies this process by the socket alone; elsewhere a secret binds the producer id.
    pub(crate) const fn knows_its_peer(&self) -> bool {
        matches!(self, Self::Unix(_) | Self::Shm(_))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Shm(path) => write!(f, "shm://{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp://{at}"),
            #[cfg(feature = "grpc")]
            Self::Grpc(at) => write!(f, "grpc://{at}"),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        if text.starts_with(['/', '.']) {
            return Ok(Self::unix(text));
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| ParseAddressError::NoScheme(text.to_owned()))?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        match scheme {
            "unix" | "shm" if rest.is_empty() => Err(ParseAddressError::NoPath(text.to_owned())),
            "unix" => Ok(Self::unix(rest)),
            "shm" => Ok(Self::shm(rest)),
            "tcp" => host_port(rest, DEFAULT_TCP_PORT).map(Self::Tcp),
            #[cfg(feature = "grpc")]
            "grpc" => host_port(rest, DEFAULT_GRPC_PORT).map(Self::Grpc),
            other => Err(ParseAddressError::UnknownScheme(other.to_owned())),
        }
    }
}

fn host_port(text: &str, default: u16) -> Result<HostPort, ParseAddressError> {
    let bad = || ParseAddressError::HostPort(text.to_owned());
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']').ok_or_else(bad)?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(bad)?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Ok(default), |port| port.parse().map_err(|_| bad()))?;
    if host.is_empty() || host.contains(['/', ' ', '@']) {
        Err(bad())
    } else {
        Ok(HostPort { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, canonical) in [
            ("unix:///run/clad/clad.sock", "unix:///run/clad/clad.sock"),
            ("unix:/run/clad/clad.sock", "unix:///run/clad/clad.sock"),
            ("unix:clad-data/clad.sock", "unix://clad-data/clad.sock"),
            ("./clad-data/clad.sock", "unix://./clad-data/clad.sock"),
            ("shm:///run/clad/clad.sock", "shm:///run/clad/clad.sock"),
            ("tcp://127.0.0.1:7440", "tcp://127.0.0.1:7440"),
            ("tcp://localhost", "tcp://localhost:7440"),
            ("tcp:[::1]:99", "tcp://[::1]:99"),
            ("tcp://[::1]", "tcp://[::1]:7440"),
            #[cfg(feature = "grpc")]
            ("grpc://logs.example:1/", "grpc://logs.example:1"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        use ParseAddressError::*;
        for (text, error) in [
            ("", NoScheme("".into())),
            ("clad.sock", NoScheme("clad.sock".into())),
            ("shm://", NoPath("shm://".into())),
            ("http://x", UnknownScheme("http".into())),
            ("unix://", NoPath("unix://".into())),
            ("tcp://:7440", HostPort(":7440".into())),
            ("tcp://h:70000", HostPort("h:70000".into())),
            ("tcp://[::1", HostPort("[::1".into())),
            ("tcp://::1", HostPort("::1".into())),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error));
        }
    }
}
