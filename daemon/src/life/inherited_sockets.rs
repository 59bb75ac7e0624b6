//! Listening sockets that the service manager holds for us (`clad.socket`). A client that connects while no daemon runs
//! waits in them: a restart or a crash refuses nobody.
//!
//! Invariants: a held socket is taken for the listener that the configuration gives the same address, whatever name or
//! order it comes with. One that no listener has is refused, for nobody would ever accept on it and its clients would
//! wait in silence. This process never removes a held socket's file.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::config::{Config, SyslogAddress};

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
    Udp(UdpSocket, SocketAddr),
    UnixDatagram(OwnedFd, PathBuf),
}

/// Sockets that the service manager handed over and no listener has taken yet.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<Socket>);

impl InheritedSockets {
    /// Sockets of this process, but for descriptors with a name that `is_other` says is something else. To be called
    /// once, before there are threads: it removes the variables that name them.
    ///
    /// # Errors
    /// Where something was handed over that is not a listening stream socket.
    pub fn of_process(is_other: impl Fn(&str) -> bool) -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let others: Vec<bool> = names.split(':').map(is_other).collect();
        let mut handed = ListenFd::from_env();
        let sockets = (0..handed.len()).filter(|at| !others.get(*at).copied().unwrap_or(false));
        sockets.collect::<Vec<_>>().into_iter().map(|at| taken(&mut handed, at)).collect::<io::Result<_>>().map(Self)
    }

    /// The sockets that no listener of this configuration has, in words that say what to do.
    #[must_use]
    pub fn strangers(&self, config: &Config) -> Vec<String> {
        let (ingest, metrics) = (&config.ingest, &config.metrics);
        let one = [ingest.tcp.listen, ingest.grpc.listen, metrics.listen].into_iter().flatten();
        let tcp: Vec<SocketAddr> = one.chain(ingest.otlp.listen.iter().copied()).collect();
        let unix = [&ingest.unix.path, &ingest.otlp.path, &config.admin.path];
        let syslog: Vec<&SyslogAddress> = ingest.syslog.values().filter_map(|syslog| syslog.listen.as_ref()).collect();
        let has_path = |wanted: &Path, is_kind: fn(&SyslogAddress) -> bool| {
            syslog.iter().any(|address| is_kind(address) && address.path().is_some_and(|path| same(path, wanted)))
        };
        let is_udp = |address: &SyslogAddress| matches!(address, SyslogAddress::Udp(_));
        let known = |socket: &&Socket| match socket {
            Socket::Tcp(_, address) => {
                !tcp.contains(address) && !syslog.iter().any(|one| !is_udp(one) && one.network() == Some(*address))
            }
            Socket::Udp(_, address) => !syslog.iter().any(|one| is_udp(one) && one.network() == Some(*address)),
            Socket::Unix(_, path) => {
                !unix.iter().any(|p| p.as_deref().is_some_and(|p| same(p, path)))
                    && !has_path(path, |address| matches!(address, SyslogAddress::UnixStream(_)))
            }
            Socket::UnixDatagram(_, path) => {
                !has_path(path, |address| matches!(address, SyslogAddress::UnixDatagram(_)))
            }
        };
        self.0.iter().filter(known).map(stranger).collect()
    }

    /// The socket with this address, if it is held.
    pub fn tcp(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        self.take(|socket| match socket {
            Socket::Tcp(listener, address) if address == wanted => Ok(listener),
            other => Err(other),
        })
    }

    /// The socket with this path, if it is held.
    pub fn unix(&mut self, wanted: &Path) -> Option<UnixListener> {
        self.take(|socket| match socket {
            Socket::Unix(listener, path) if same(&path, wanted) => Ok(listener),
            other => Err(other),
        })
    }

    /// The UDP socket with this address, if it is held.
    pub fn udp(&mut self, wanted: SocketAddr) -> Option<UdpSocket> {
        self.take(|socket| match socket {
            Socket::Udp(held, address) if address == wanted => Ok(held),
            other => Err(other),
        })
    }

    /// The Unix socket of datagrams with this path, if it is held.
    pub fn unix_datagram(&mut self, wanted: &Path) -> Option<OwnedFd> {
        self.take(|socket| match socket {
            Socket::UnixDatagram(held, path) if same(&path, wanted) => Ok(held),
            other => Err(other),
        })
    }

    /// Takes the first that is the one; others stay.
    fn take<T>(&mut self, is_it: impl Fn(Socket) -> Result<T, Socket>) -> Option<T> {
        let mut found = None;
        for socket in std::mem::take(&mut self.0) {
            match (&found, is_it(socket)) {
                (None, Ok(one)) => found = Some(one),
                (_, Err(other)) => self.0.push(other),
                (Some(_), Ok(_)) => {}
            }
        }
        found
    }
}

fn taken(handed: &mut ListenFd, at: usize) -> io::Result<Socket> {
    // The first try leaves a socket of another family where it is.
    if let Ok(Some(listener)) = handed.take_unix_listener(at) {
        let address = listener.local_addr()?;
        let path = address.as_pathname().ok_or_else(|| no_use("a Unix socket without a path"))?.to_owned();
        listener.set_nonblocking(true)?;
        return Ok(Socket::Unix(listener, path));
    }
    if let Ok(Some(socket)) = handed.take_udp_socket(at) {
        let address = socket.local_addr()?;
        return Ok(Socket::Udp(socket, address));
    }
    if let Ok(Some(socket)) = handed.take_unix_datagram(at) {
        let address = socket.local_addr()?;
        let path = address.as_pathname().ok_or_else(|| no_use("a Unix socket without a path"))?.to_owned();
        return Ok(Socket::UnixDatagram(socket.into(), path));
    }
    let listener = handed.take_tcp_listener(at)?.ok_or_else(|| no_use("a socket that no listener can have"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok(Socket::Tcp(listener, address))
}

fn no_use(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the service manager handed over {what}"))
}

/// `/var/run` and `/run` are the same folder on most hosts.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

fn stranger(socket: &Socket) -> String {
    let syslog = "the listen of an [ingest.syslog.NAME]";
    let (address, keys, unit) = match socket {
        Socket::Tcp(_, address) => {
            (address.to_string(), "ingest.tcp.listen, ingest.grpc.listen or ingest.otlp.listen", "ListenStream")
        }
        Socket::Unix(_, path) => (path.display().to_string(), "ingest.unix.path", "ListenStream"),
        Socket::Udp(_, address) => (format!("udp://{address}"), syslog, "ListenDatagram"),
        Socket::UnixDatagram(_, path) => (format!("unix-dgram://{}", path.display()), syslog, "ListenDatagram"),
    };
    format!(
        "the service manager holds {address} for clad, and no listener of the configuration has this address: a client there would wait for ever. Set {keys} to it, or take its {unit}= out of the socket unit \
         (`systemctl edit clad.socket`, see OPERATIONS.md) and restart that"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited() -> (InheritedSockets, SocketAddr, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clad.sock");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        (InheritedSockets(vec![Socket::Tcp(tcp, address), Socket::Unix(unix, path.clone())]), address, path, folder)
    }

    #[test]
    fn a_socket_is_taken_once_by_its_address() {
        let (mut inherited, address, path, folder) = inherited();
        assert!(inherited.tcp(SocketAddr::from(([127, 0, 0, 1], 1))).is_none());
        assert!(inherited.unix(&folder.path().join("other.sock")).is_none());
        assert_eq!(inherited.tcp(address).unwrap().local_addr().unwrap(), address);
        assert!(inherited.tcp(address).is_none());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(inherited.unix(&link.join("clad.sock")).is_some(), "the same file by another way");
        assert!(inherited.unix(&path).is_none());
    }

    #[test]
    fn what_nobody_would_accept_on_is_named() {
        let (inherited, address, path, _folder) = inherited();
        let mut config = Config::default();
        assert_eq!(inherited.strangers(&config).len(), 2);
        config.ingest.unix.path = Some(path);
        let left = inherited.strangers(&config);
        assert_eq!(left.len(), 1);
        assert!(left[0].contains(&address.to_string()) && left[0].contains("ListenStream="), "{left:?}");
        config.ingest.grpc.listen = Some(address);
        assert_eq!(inherited.strangers(&config), Vec::<String>::new());
    }
}
