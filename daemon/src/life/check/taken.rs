//! Listeners of this host, as the kernel lists them: binding to find out could be in the way of a start.
//!
//! Invariants: nothing is bound or connected to (a connection could start what a service manager holds a socket for);
//! what this process may not see is reported as not known, never as free or taken by anybody in particular. A Unix socket is
//! compared by its file: its name in the kernel's list may begin at another process's working directory.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The first process of the host: systemd, where it holds sockets for others.
const INIT: u32 = 1;
/// A listening socket, in the state column of `/proc/net/tcp`.
const LISTEN: &str = "0A";
/// `__SO_ACCEPTCON`, in the flags column of `/proc/net/unix`.
const ACCEPTS: u32 = 0x1_0000;
/// `struct nlmsghdr` with `struct unix_diag_req`; in the answer with `struct unix_diag_msg`, and then attributes.
const REQUEST_BYTES: usize = 16 + 24;
const ANSWER_HEAD_BYTES: usize = 16 + 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_VFS: u16 = 1;

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

/// Reason why this address cannot be listened on. Port 0 takes a free one.
pub(super) fn tcp(wanted: SocketAddr) -> Option<Listening> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let (uid, inode) = tables.iter().flat_map(|table| table.lines()).find_map(|line| tcp_in(line, wanted))?;
    Some(Listening { owner: owner(inode, Some(uid)) })
}

/// The same for the path of a Unix socket. Where there is no file, nobody is in the way.
pub(super) fn unix(wanted: &Path) -> Option<Listening> {
    let there = BoundFile::of(wanted).ok()?;
    let table = std::fs::read_to_string("/proc/net/unix").ok()?;
    let kernel = diag().ok();
    let is_it = |(inode, name): &(u64, &Path)| match kernel.as_ref().and_then(|kernel| bound_file(kernel, *inode)) {
        Some(bound) if bound == there => true,
        // Devices differ on file systems whose subvolumes have numbers of their own (btrfs).
        Some(bound) => bound.inode == there.inode && is_named(name, *inode, wanted),
        None => is_named(name, *inode, wanted),
    };
    let inode = table.lines().filter_map(unix_in).find(is_it)?.0;
    Some(Listening { owner: owner(inode, None) })
}

/// A file, as far as the kernel says which one a socket was bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundFile {
    /// The lower half of its number.
    inode: u32,
    device: u32,
}

impl BoundFile {
    fn of(path: &Path) -> io::Result<Self> {
        let found = path.metadata()?;
        let device = rustix::fs::major(found.dev()) << 20 | rustix::fs::minor(found.dev());
        Ok(Self { inode: found.ino() as u32, device })
    }
}

fn diag() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Which file a Unix socket was bound to; nothing where this kernel does not say.
fn bound_file(kernel: &OwnedFd, socket: u64) -> Option<BoundFile> {
    let mut request = [0; REQUEST_BYTES];
    let mut put = |at: usize, what: &[u8]| request[at..at + what.len()].copy_from_slice(what);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(16, &[AddressFamily::UNIX.as_raw() as u8]);
    put(20, &u32::MAX.to_ne_bytes()); // in any state
    put(24, &u32::try_from(socket).ok()?.to_ne_bytes());
    put(28, &UDIAG_SHOW_VFS.to_ne_bytes());
    put(32, &[0xFF; 8]); // whichever has this number
    net::send(kernel, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (length, _) = net::recv(kernel, &mut answer, RecvFlags::empty()).ok()?;
    file_in(&answer[..length])
}

/// The file in an answer that is no error.
fn file_in(answer: &[u8]) -> Option<BoundFile> {
    let short = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..at + 2)?.first_chunk()?));
    let long = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..at + 4)?.first_chunk()?));
    if short(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = ANSWER_HEAD_BYTES;
    while short(at + 2)? != UNIX_DIAG_VFS {
        at += usize::from(short(at)?).max(4).next_multiple_of(4);
    }
    Some(BoundFile { inode: long(at + 4)?, device: long(at + 8)? })
}

/// The name in the kernel's list is that of the wanted socket. A relative one begins where its process stands.
fn is_named(name: &Path, inode: u64, wanted: &Path) -> bool {
    if name.is_absolute() || name.file_name() != wanted.file_name() {
        return real(name) == real(wanted);
    }
    let stands = match owner(inode, None) {
        Owner::Process { pid, .. } => std::fs::read_link(format!("/proc/{pid}/cwd")).ok(),
        _ => None,
    };
    let tail = name.strip_prefix(".").unwrap_or(name);
    stands.map_or_else(|| real(wanted).ends_with(tail), |folder| real(&folder.join(name)) == real(wanted))
}

/// The path by the folder's real name: the socket itself may be bound under any of them.
fn real(path: &Path) -> PathBuf {
    let folder = path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    match (folder.and_then(|folder| folder.canonicalize().ok()), path.file_name()) {
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

    /// The same name in two folders: the kernel has the name as it was bound, which is no socket of this folder's.
    #[test]
    fn a_relative_name_is_of_the_folder_where_its_process_stands() {
        const NAME: &str = "life::check::taken::tests::a_relative_name_is_of_the_folder_where_its_process_stands";
        const SOCKET: &str = "./of-another-folder/clad.sock";
        if std::env::var_os("CLAD_TEST_BINDS").is_some() {
            let _socket = UnixListener::bind(SOCKET).unwrap();
            io::stdin().read_line(&mut String::new()).unwrap();
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["ra", "rb"].map(|name| base.path().join(name).join(SOCKET));
        for socket in [&theirs, &ours] {
            std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        }
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME]).env("CLAD_TEST_BINDS", "1").current_dir(base.path().join("ra"));
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
        while std::os::unix::net::UnixStream::connect(&theirs).is_err() {
            assert_eq!(child.try_wait().unwrap(), None, "it listens");
            std::thread::yield_now();
        }
        // A socket file that a dead daemon left.
        drop(UnixListener::bind(&ours).unwrap());
        assert_eq!((unix(Path::new(SOCKET)), unix(&ours)), (None, None), "nobody listens there");
        let found = unix(&theirs).expect("it listens").owner;
        assert!(matches!(found, Owner::Process { pid, .. } if pid == child.id()), "{found}");
        // A kernel that does not say which file it is.
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let (inode, name) = table.lines().filter_map(unix_in).find(|(_, name)| *name == Path::new(SOCKET)).unwrap();
        assert!(is_named(name, inode, &theirs) && !is_named(name, inode, &ours));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    /// A kernel that does not say which file it is.
    #[test]
    fn without_the_file_the_name_decides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _socket = UnixListener::bind(&path).unwrap();
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let (inode, name) = table.lines().filter_map(unix_in).find(|(_, name)| *name == path).unwrap();
        assert!(is_named(name, inode, &path) && !is_named(name, inode, &folder.path().join("b.sock")));
        // This process's own, as it would be bound from its folder.
        let here = std::env::current_dir().unwrap().join("x.sock");
        assert!(is_named(Path::new("./x.sock"), inode, &here) && is_named(Path::new("x.sock"), inode, &here));
        assert!(!is_named(Path::new("./x.sock"), inode, &folder.path().join("x.sock")));
        assert_eq!(file_in(&[0; 64]), None, "an answer of another kind");
        match diag().ok().and_then(|kernel| bound_file(&kernel, inode)) {
            Some(bound) => assert_eq!(bound.inode, BoundFile::of(&path).unwrap().inode),
            None => eprintln!("NOT RUN the file of a socket: this kernel does not say it"),
        }
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
