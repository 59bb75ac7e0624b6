//! Identity of a peer, as the kernel reports it: never as the peer says.
//!
//! Invariants: peer metadata comes from `SO_PEERCRED` and `/proc`, and the address of a network peer from its socket. The owner
//! of a producer id is the uid on a Unix socket, and the name in the certificate of a peer that has shown one. Elsewhere it is
//! a hash of the secret: such a peer has no name that could be believed.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use clad_proto::frame::{PeerMeta, Transport};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sha2::{Digest, Sha256};

use super::quota::Owner;
use crate::tls;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) transport: Transport,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Owner whose share of the quotas it uses.
    quota_owner: Owner,
    process: (u32, u64),
    /// Name in its certificate.
    identity: Option<Arc<str>>,
    pub(crate) may_read: bool,
    /// The peer metadata, encoded once.
    pub(crate) meta: Vec<u8>,
    /// For the log.
    pub(crate) name: String,
}

impl Peer {
    /// A peer on a Unix socket, and the start time of its process, where that is certain.
    pub(crate) fn unix(uid: u32, gid: u32, (pid, pid_start): (Option<u32>, Option<u64>), may_read: bool) -> Self {
        Self { may_read, ..Self::local(Transport::Unix, uid, gid, pid, pid_start) }
    }

    /// The process that a ring was given to, as it was known on the Unix socket.
    pub(crate) fn shm(uid: u32, gid: u32, pid: Option<u32>, pid_start: Option<u64>) -> Self {
        Self::local(Transport::Shm, uid, gid, pid, pid_start)
    }

    /// A peer on a Unix socket, by any transport.
    pub(crate) fn local(transport: Transport, uid: u32, gid: u32, pid: Option<u32>, pid_start: Option<u64>) -> Self {
        let (uid_seen, gid_seen) = (Some(uid), Some(gid));
        let peer_meta = PeerMeta {
            transport: Some(transport),
            pid,
            pid_start,
            uid: uid_seen,
            gid: gid_seen,
            ..PeerMeta::default()
        };
        let name = pid.map_or_else(|| format!("uid {uid}"), |pid| format!("uid {uid} pid {pid}"));
        let process = (pid.unwrap_or_default(), pid_start.unwrap_or_default());
        let quota_owner = Owner::Uid(uid);
        Self {
            transport,
            uid: uid_seen,
            gid: gid_seen,
            quota_owner,
            process,
            identity: None,
            may_read: false,
            meta: peer_meta.to_bytes(),
            name,
        }
    }

    /// Process id and start time, 0 where they are not known.
    pub(crate) fn process(&self) -> (u32, u64) {
        self.process
    }

    /// A peer on a network socket; `quota_owner` is the owner whose share it uses, by [`super::sock_diag`].
    pub(crate) fn network(
        transport: Transport,
        address: Option<SocketAddr>,
        quota_owner: Owner,
        may_read: bool,
    ) -> Self {
        Self::certified(transport, address, quota_owner, may_read, None)
    }

    /// The same, with the name in its certificate, where it has shown one.
    pub(crate) fn certified(
        transport: Transport,
        address: Option<SocketAddr>,
        quota_owner: Owner,
        may_read: bool,
        identity: Option<Arc<str>>,
    ) -> Self {
        let in_meta = identity.as_deref().map(str::to_owned);
        let peer_meta = PeerMeta { transport: Some(transport), address, identity: in_meta, ..PeerMeta::default() };
        let mut name = address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        if let Some(identity) = &identity {
            name = format!("{identity} at {name}");
        }
        let (uid, gid, process) = (None, None, (0, 0));
        Self { transport, uid, gid, quota_owner, process, identity, may_read, meta: peer_meta.to_bytes(), name }
    }

    /// Owner of a producer id when this peer uses it.
    pub(crate) fn owner(&self, secret: &[u8]) -> u64 {
        match (self.uid, &self.identity) {
            (Some(uid), _) => u64::from(uid),
            (None, Some(identity)) => tls::owner(identity),
            (None, None) => secret_owner(secret),
        }
    }

    /// Owner whose share of the quotas it uses: the user, on any transport, where the kernel knows the user.
    pub(crate) fn quota_owner(&self) -> Owner {
        self.quota_owner
    }

    /// The metric label of the transport.
    pub(crate) fn label(&self) -> crate::ops::metrics::Transport {
        match self.transport {
            Transport::Unix => crate::ops::metrics::Transport::Unix,
            Transport::Grpc => crate::ops::metrics::Transport::Grpc,
            Transport::Shm => crate::ops::metrics::Transport::Shm,
            Transport::OtlpGrpc => crate::ops::metrics::Transport::OtlpGrpc,
            Transport::OtlpHttp => crate::ops::metrics::Transport::OtlpHttp,
            Transport::SyslogUdp => crate::ops::metrics::Transport::SyslogUdp,
            Transport::SyslogTcp => crate::ops::metrics::Transport::SyslogTcp,
            Transport::SyslogUnix => crate::ops::metrics::Transport::SyslogUnix,
            Transport::Relp => crate::ops::metrics::Transport::Relp,
            Transport::Journal => crate::ops::metrics::Transport::Journal,
            _ => crate::ops::metrics::Transport::Tcp,
        }
    }
}

/// 63 bits of SHA-256 of the secret, marked so that no uid equals it.
fn secret_owner(secret: &[u8]) -> u64 {
    let digest = Sha256::digest(secret);
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first) | 1 << 63
}

/// Start time of the process that connected a Unix socket, where it is certain that it is that process. A process that
/// has ended may have left its number to another, and its socket to any process.
pub(crate) fn start_time_of_peer(socket: &impl AsFd, pid: u32) -> Option<u64> {
    start_time_while(getsockopt(socket, sockopt::PeerPidfd), pid)
}

/// The start time behind a pid that belonged to the process during the whole call.
fn start_time_while(process: Result<OwnedFd, Errno>, pid: u32) -> Option<u64> {
    match process {
        Ok(process) => {
            let start = start_time(pid)?;
            // It is readable once the process has ended. Until then no other process has its number.
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            (poll(&mut ended, Some(&Timespec::default())) == Ok(0)).then_some(start)
        }
        // Linux before 6.5 reports nothing.
        Err(Errno::ENOPROTOOPT) => start_time(pid),
        Err(_) => None,
    }
}

/// Start time of a process, in clock ticks since boot: with the pid it names one process for ever.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces and parentheses itself: count from the last one. Field 22 is wanted.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_uid_or_the_secret_and_never_both() {
        let unix = Peer::unix(1000, 1000, (Some(std::process::id()), None), false);
        assert_eq!(unix.owner(b"ignored"), 1000);
        let tcp = Peer::network(Transport::Tcp, None, Owner::Uid(1000), false);
        assert_eq!(tcp.owner(b"a"), tcp.owner(b"a"));
        assert_ne!(tcp.owner(b"a"), tcp.owner(b"b"));
        assert!(tcp.owner(b"a") > u64::from(u32::MAX));
        let named = |name: &str| Peer::certified(Transport::Tcp, None, Owner::Network, false, Some(name.into()));
        assert_eq!(named("spiffe://prod/a").owner(b"a"), named("spiffe://prod/a").owner(b"b"), "no secret counts");
        assert_ne!(named("spiffe://prod/a").owner(b""), named("spiffe://prod/b").owner(b""));
        assert_eq!(named("spiffe://prod/a").owner(b"") >> 62, 1, "neither a uid nor a secret is the same");
        assert_eq!(PeerMeta::decode(&named("x").meta).unwrap().identity.as_deref(), Some("x"));
        assert_eq!(
            (unix.quota_owner(), tcp.quota_owner()),
            (Owner::Uid(1000), Owner::Uid(1000)),
            "they are counted together"
        );
        assert_eq!(PeerMeta::decode(&tcp.meta).unwrap().uid, None, "that is for counting alone");
    }

    #[test]
    fn the_kernel_reports_when_a_process_started() {
        let (own, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let start = start_time_of_peer(&own, std::process::id());
        let peer_meta = PeerMeta::decode(&Peer::unix(1, 2, (Some(std::process::id()), start), false).meta).unwrap();
        assert_eq!((peer_meta.uid, peer_meta.gid, peer_meta.pid), (Some(1), Some(2), Some(std::process::id())));
        assert!(peer_meta.pid_start.unwrap() > 0);
        assert_eq!(start_time(u32::MAX), None);
    }

    /// The number of a process that has ended belongs to another by now: this test's own.
    #[test]
    fn who_has_ended_has_no_start_time_of_another() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        let own = std::process::id();
        assert_eq!(start_time_while(Ok(process), own), None);
        assert_eq!(start_time_while(Err(Errno::ESRCH), own), None, "it was reaped");
        assert!(start_time_while(Err(Errno::ENOPROTOOPT), own).is_some(), "a kernel that cannot say");
    }
}
