//! Where a daemon listens.
//!
//! Text forms: `unix://PATH`, `shm://PATH` (of the same socket), `tcp://HOST:PORT`, `grpc://HOST:PORT`, and over TLS
//! `tcp+tls://HOST:PORT`, `grpcs://HOST:PORT`. Shorter: the two slashes may be left out (`unix:PATH`). A missing port is the
//! daemon's default one. A text that starts with `/` or `.` is the path of a Unix socket. A host is a name, an IPv4 address, or
//! an IPv6 address in brackets.
//!
//! Over TLS, settings may follow: `?ca=FILE&cert=FILE&key=FILE&server_name=NAME`, each once, in any order. Those that are left
//! out come from `CLAD_TLS_CA`, `CLAD_TLS_CERT`, `CLAD_TLS_KEY`, `CLAD_TLS_SERVER_NAME`, where they are set. A value ends at `&`.

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
    /// The framed protocol on TCP, within TLS.
    #[cfg(feature = "tls")]
    TcpTls(Box<TlsHost>),
    /// gRPC.
    #[cfg(feature = "grpc")]
    Grpc(HostPort),
    /// gRPC within TLS.
    #[cfg(all(feature = "grpc", feature = "tls"))]
    Grpcs(Box<TlsHost>),
}

/// A host that is spoken to within TLS.
#[cfg(feature = "tls")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsHost {
    /// Host and port.
    pub at: HostPort,
    /// File with the authorities that the daemon's certificate is checked by (PEM).
    pub ca: Option<PathBuf>,
    /// File with the certificate of this client (PEM), and the issuers behind it.
    pub cert: Option<PathBuf>,
    /// File with its key (PEM).
    pub key: Option<PathBuf>,
    /// Name that the daemon's certificate is to have. Default: the host.
    pub server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl TlsHost {
    /// A host, without settings.
    fn new(at: HostPort) -> Self {
        Self { at, ca: None, cert: None, key: None, server_name: None }
    }

    fn parse(text: &str, default: u16) -> Result<Self, ParseAddressError> {
        let (at, settings) = text.split_once('?').unwrap_or((text, ""));
        let mut host = Self::new(host_port(at, default)?);
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let bad = || ParseAddressError::Setting(setting.to_owned());
            let (name, value) = setting.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(bad)?;
            let is_new = match name {
                "ca" => host.ca.replace(value.into()).is_none(),
                "cert" => host.cert.replace(value.into()).is_none(),
                "key" => host.key.replace(value.into()).is_none(),
                "server_name" => host.server_name.replace(value.to_owned()).is_none(),
                _ => false,
            };
            if !is_new {
                return Err(bad());
            }
        }
        Ok(host)
    }

    /// With the environment's settings for those that it leaves out.
    pub(crate) fn with_environment(&self) -> Self {
        let path = |own: &Option<PathBuf>, name: &str| {
            let set = || std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            own.clone().or_else(set)
        };
        let name = || std::env::var("CLAD_TLS_SERVER_NAME").ok().filter(|value| !value.is_empty());
        Self {
            at: self.at.clone(),
            ca: path(&self.ca, "CLAD_TLS_CA"),
            cert: path(&self.cert, "CLAD_TLS_CERT"),
            key: path(&self.key, "CLAD_TLS_KEY"),
            server_name: self.server_name.clone().or_else(name),
        }
    }
}

#[cfg(feature = "tls")]
impl fmt::Display for TlsHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let settings = [
            ("ca", path(&self.ca)),
            ("cert", path(&self.cert)),
            ("key", path(&self.key)),
            ("server_name", self.server_name.clone()),
        ];
        let mut before = '?';
        for (name, value) in settings {
            if let Some(value) = value {
                write!(f, "{before}{name}={value}")?;
                before = '&';
            }
        }
        Ok(())
    }
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
    #[error("`{0}` is not a transport of this client: unix, shm, tcp{grpc}{tls} are", grpc = if cfg!(feature = "grpc") { ", grpc" } else { "" }, tls = match (cfg!(feature = "tls"), cfg!(feature = "grpc")) { (true, true) => ", tcp+tls, grpcs", (true, false) => ", tcp+tls", _ => "" })]
    UnknownScheme(String),
    /// A Unix or shared-memory address without a path.
    #[error("`{0}` names no path: unix://PATH or shm://PATH is wanted")]
    NoPath(String),
    /// A setting of TLS that there is not, or twice.
    #[cfg(feature = "tls")]
    #[error(
        "`{0}` is no setting of TLS, or there twice: ca=FILE, cert=FILE, key=FILE, server_name=NAME are, with & between"
    )]
    Setting(String),
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
            #[cfg(feature = "tls")]
            Self::TcpTls(host) => write!(f, "tcp+tls://{host}"),
            #[cfg(all(feature = "grpc", feature = "tls"))]
            Self::Grpcs(host) => write!(f, "grpcs://{host}"),
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
            #[cfg(feature = "tls")]
            "tcp+tls" => TlsHost::parse(rest, DEFAULT_TCP_PORT).map(Box::new).map(Self::TcpTls),
            #[cfg(all(feature = "grpc", feature = "tls"))]
            "grpcs" => TlsHost::parse(rest, DEFAULT_GRPC_PORT).map(Box::new).map(Self::Grpcs),
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
            #[cfg(feature = "tls")]
            ("tcp+tls://logs.example", "tcp+tls://logs.example:7440"),
            #[cfg(feature = "tls")]
            ("tcp+tls://[::1]:9?server_name=a&ca=/x/ca.pem", "tcp+tls://[::1]:9?ca=/x/ca.pem&server_name=a"),
            #[cfg(all(feature = "grpc", feature = "tls"))]
            ("grpcs:h?cert=c&key=k", "grpcs://h:7441?cert=c&key=k"),
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
            #[cfg(feature = "tls")]
            ("tcp+tls://h?ca=a&ca=b", Setting("ca=b".into())),
            #[cfg(feature = "tls")]
            ("tcp+tls://h?cipher=x", Setting("cipher=x".into())),
            #[cfg(feature = "tls")]
            ("tcp+tls://h?ca=", Setting("ca=".into())),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error));
        }
    }
}
