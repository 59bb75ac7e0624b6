//! Listening sockets that the service manager holds for us (`clad.socket`). A client that connects while no daemon runs
//! waits in them: a restart or a crash refuses nobody.
//!
//! Invariants: a held socket is taken for the listener that the configuration gives the same address, whatever name or
//! order it comes with. One that no listener has is refused, for nobody would ever accept on it and its clients would
//! wait in silence. This process never removes a held socket's file.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::config::Config;

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
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
        let known = |socket: &&Socket| match socket {
            Socket::Tcp(_, address) => !tcp.contains(address),
            Socket::Unix(_, path) => !unix.iter().any(|p| p.as_deref().is_some_and(|p| same(p, path))),
        };
        self.0.iter().filter(known).map(stranger).collect()
    }

    /// The socket with this address, if it is held.
    pub fn tcp(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        let at = self.0.iter().position(|s| matches!(s, Socket::Tcp(_, address) if *address == wanted))?;
        match self.0.swap_remove(at) {
            Socket::Tcp(listener, _) => Some(listener),
            Socket::Unix(..) => None,
        }
    }

    /// The socket with this path, if it is held.
    pub fn unix(&mut self, wanted: &Path) -> Option<UnixListener> {
        let at = self.0.iter().position(|s| matches!(s, Socket::Unix(_, path) if same(path, wanted)))?;
        match self.0.swap_remove(at) {
            Socket::Unix(listener, _) => Some(listener),
            Socket::Tcp(..) => None,
        }
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
    let listener = handed.take_tcp_listener(at)?.ok_or_else(|| no_use("a socket that is no stream socket"))?;
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
    let (address, keys) = match socket {
        Socket::Tcp(_, address) => (address.to_string(), "ingest.tcp.listen, ingest.grpc.listen or ingest.otlp.listen"),
        Socket::Unix(_, path) => (path.display().to_string(), "ingest.unix.path"),
    };
    format!(
        "the service manager holds {address} for clad, and no listener of the configuration has this address: a client there would wait for ever. Set {keys} to it, or take its ListenStream= out of the socket unit \
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
