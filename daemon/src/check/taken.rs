//! Who listens where, as the kernel lists it: binding to find out could be in the way of a start.
//!
//! What must hold: nothing is bound or connected to (a connection could start what a service manager holds a socket for);
//! what this process may not see is told as not known, never as free or taken by anybody in particular.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The first process of the host: systemd, where it holds sockets for others.
const INIT: u32 = 1;
/// A listening socket, in the state column of `/proc/net/tcp`.
const LISTEN: &str = "0A";
/// `__SO_ACCEPTCON`, in the flags column of `/proc/net/unix`.
const ACCEPTS: u32 = 0x1_0000;

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listening {
    pub(super) owner: Owner,
}

/// Whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A process.
    Process { pid: u32, name: String },
    /// The first process of the host, which may hold it for clad.
    ServiceManager,
    /// Processes of this user cannot be looked into; no service manager of the host's has its sockets.
    OtherUser(u32),
    /// It cannot be seen from here.
    NotKnown,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } => write!(f, "pid {pid} ({name})"),
            Self::ServiceManager => f.write_str("the service manager"),
            Self::OtherUser(uid) => write!(f, "a process of uid {uid}"),
            Self::NotKnown => f.write_str("a process that only root can see"),
        }
    }
}

/// What keeps this address from being listened on. Port 0 takes a free one.
pub(super) fn tcp(wanted: SocketAddr) -> Option<Listening> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let (uid, inode) = tables.iter().flat_map(|table| table.lines()).find_map(|line| tcp_in(line, wanted))?;
    Some(Listening { owner: owner(inode, Some(uid)) })
}

/// The same for the path of a Unix socket.
pub(super) fn unix(wanted: &Path) -> Option<Listening> {
    let table = std::fs::read_to_string("/proc/net/unix").ok()?;
    let wanted = real(wanted);
    let inode = table.lines().find_map(|line| unix_in(line).filter(|(_, path)| real(path) == wanted))?.0;
    Some(Listening { owner: owner(inode, None) })
}

/// The path by the folder's real name: the socket itself may be bound under any of them.
fn real(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// User and inode of a line `sl local remote state queues timer retransmits uid timeout inode …` that listens where it
/// would be in the way.
fn tcp_in(line: &str, wanted: SocketAddr) -> Option<(u32, u64)> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let (local, state) = (words.get(1)?, words.get(3)?);
    let (uid, inode) = (words.get(7)?.parse().ok()?, words.get(9)?.parse().ok()?);
    (*state == LISTEN && meets(address(local)?, wanted)).then_some((uid, inode))
}

/// Two listeners of one port meet on the same address, and where one of them is for all addresses (`::` is for those of
/// version 4, too).
fn meets(there: SocketAddr, wanted: SocketAddr) -> bool {
    let all = |one: IpAddr, other: IpAddr| one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    let (a, b) = (there.ip(), wanted.ip());
    there.port() == wanted.port() && wanted.port() != 0 && (a == b || all(a, b) || all(b, a))
}

/// `0100007F:1D10`: words of 32 bits in the host's order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..ip.len()).step_by(8) {
        bytes.extend_from_slice(&u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

/// Inode and path of a line `Num: RefCount Protocol Flags Type St Inode Path` that listens.
fn unix_in(line: &str) -> Option<(u64, &Path)> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?;
    // The path is the rest of the line, and may have spaces.
    let path = line.split_once(&format!(" {inode} "))?.1;
    (flags & ACCEPTS != 0).then(|| Some((inode.parse().ok()?, Path::new(path)))).flatten()
}

/// The process that has the socket, as far as processes can be looked into.
fn owner(inode: u64, uid: Option<u32>) -> Owner {
    let link = format!("socket:[{inode}]");
    let mut found = None;
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let fds = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str());
        if fds.into_iter().any(has) {
            // Who was handed the service manager's socket listens on it, not the manager.
            found = found.max(Some(pid));
        }
    }
    match (found, uid) {
        (Some(INIT), _) => Owner::ServiceManager,
        (Some(pid), _) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Owner::Process { pid, name: name.trim_end().to_owned() }
        }
        (None, Some(uid)) if uid != 0 => Owner::OtherUser(uid),
        (None, _) => Owner::NotKnown,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_as_they_are() {
        let line =
            "   1: 0100007F:1D10 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 4711 1 x";
        let at = |text: &str| text.parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(tcp_in(line, at("127.0.0.1:7440")), Some((998, 4711)));
            assert_eq!(tcp_in(line, at("0.0.0.0:7440")), Some((998, 4711)));
            assert_eq!(tcp_in(line, at("[::]:7440")), Some((998, 4711)));
        }
        for other in ["127.0.0.2:7440", "127.0.0.1:7441", "[::1]:7440", "127.0.0.1:0"] {
            assert_eq!(tcp_in(line, at(other)), None, "{other}");
        }
        assert_eq!(tcp_in(&line.replace(" 0A ", " 01 "), at("127.0.0.1:7440")), None, "a connection");
        assert_eq!(address("00000000000000000000000000000000:0050"), Some(at("[::]:80")));
        let line = "ffff: 00000002 00000000 00010000 0001 01 47 /run/a b/clad.sock";
        assert_eq!(unix_in(line), Some((47, Path::new("/run/a b/clad.sock"))));
        assert_eq!(unix_in(&line.replace("00010000", "00000000")), None, "a connection");
        assert_eq!(unix_in("ffff: 00000002 00000000 00010000 0001 01 47"), None, "no path");
    }

    #[test]
    fn a_listener_of_this_process_is_found_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = folder.path().join("a b.sock");
        let socket = UnixListener::bind(&path).unwrap();
        for found in [tcp(address), unix(&path), unix(&folder.path().join(".").join("a b.sock"))] {
            let owner = found.expect("it listens").owner;
            assert!(matches!(owner, Owner::Process { pid, .. } if pid == std::process::id()), "{owner}");
        }
        drop((listener, socket));
        assert_eq!((tcp(address), unix(&path)), (None, None));
    }
}
