//! Identity of a peer, as the kernel reports it: never as the peer says. And its rights.
//!
//! Invariants: peer metadata comes from `SO_PEERCRED` and `/proc`, and the address of a network peer from its socket. The owner
//! of a producer id is the uid on a Unix socket, and the name in the certificate, or of the token, of a peer that has shown one.
//! Elsewhere it is a hash of the secret: such a peer has no name that could be believed. A peer that was not judged may do
//! nothing.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use clad_proto::frame::{PeerMeta, Transport};
use clad_proto::{ErrorInfo, LogId};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sha2::{Digest, Sha256};

use super::quota::Owner;
use crate::access::{Access, Rights, RuleSet, Subject, refused};
use crate::config::Right;
use crate::ops::metrics::Refused;
use crate::tls;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) transport: Transport,
    /// Its names.
    subject: Subject,
    /// Nobody reads on the way what it sends: within TLS, or within this host.
    is_private: bool,
    rights: Arc<Rights>,
    /// Owner whose share of the quotas it uses.
    quota_owner: Owner,
    process: (u32, u64),
    /// It may read where there are no rules.
    reads_without_rules: bool,
    /// The peer metadata, encoded once.
    pub(crate) meta: Vec<u8>,
    /// For the log.
    pub(crate) name: String,
}

/// Secrets that a peer has shown.
#[derive(Clone, Copy)]
pub(crate) enum Shown<'a> {
    Nothing,
    /// The secret of a producer, which may be a token.
    Secret(&'a [u8]),
    /// It must be a token.
    Token(&'a [u8]),
}

impl Peer {
    /// A peer on a Unix socket, and the start time of its process, where that is certain.
    pub(crate) fn unix(uid: u32, gid: u32, (pid, pid_start): (Option<u32>, Option<u64>), may_read: bool) -> Self {
        Self { reads_without_rules: may_read, ..Self::local(Transport::Unix, uid, gid, pid, pid_start) }
    }

    /// The process that a ring was given to, as it was known on the Unix socket.
    pub(crate) fn shm(uid: u32, gid: u32, pid: Option<u32>, pid_start: Option<u64>) -> Self {
        Self::local(Transport::Shm, uid, gid, pid, pid_start)
    }

    /// A peer on a Unix socket, by any transport.
    pub(crate) fn local(transport: Transport, uid: u32, gid: u32, pid: Option<u32>, pid_start: Option<u64>) -> Self {
        let subject = Subject { uid: Some(uid), gid: Some(gid), ..Subject::default() };
        let peer_meta = PeerMeta {
            transport: Some(transport),
            pid,
            pid_start,
            uid: subject.uid,
            gid: subject.gid,
            ..PeerMeta::default()
        };
        let name = pid.map_or_else(|| format!("uid {uid}"), |pid| format!("uid {uid} pid {pid}"));
        let process = (pid.unwrap_or_default(), pid_start.unwrap_or_default());
        let quota_owner = Owner::Uid(uid);
        Self {
            transport,
            subject,
            is_private: true,
            rights: Rights::none(),
            quota_owner,
            process,
            reads_without_rules: false,
            meta: peer_meta.to_bytes(),
            name,
        }
    }

    /// The daemon itself, which no rule is for.
    pub(crate) fn daemon(transport: Transport) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let rights = Rights::without_rules(false, true, false);
        Self { rights, ..Self::local(transport, uid, gid, Some(std::process::id()), None) }
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
        let subject = Subject { address: address.map(|address| address.ip()), ..Subject::default() };
        let is_private = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
        let mut peer = Self {
            transport,
            subject,
            is_private,
            rights: Rights::none(),
            quota_owner,
            process: (0, 0),
            reads_without_rules: may_read,
            meta: Vec::new(),
            name: String::new(),
        };
        peer.describe(address);
        peer
    }

    /// The same within TLS, with the name in its certificate, where it has shown one.
    pub(crate) fn over_tls(
        transport: Transport,
        address: SocketAddr,
        quota_owner: Owner,
        may_read: bool,
        certificate: Option<Arc<str>>,
    ) -> Self {
        let mut peer = Self::network(transport, Some(address), quota_owner, may_read);
        (peer.subject.certificate, peer.is_private) = (certificate, true);
        peer.describe(Some(address));
        peer
    }

    /// Makes the metadata and the name of a network peer.
    fn describe(&mut self, address: Option<SocketAddr>) {
        let identity = self.subject.identity();
        let transport = Some(self.transport);
        let in_meta = identity.as_deref().map(str::to_owned);
        self.meta = PeerMeta { transport, address, identity: in_meta, ..PeerMeta::default() }.to_bytes();
        let at = address.map_or_else(|| "?".to_owned(), |address| address.to_string());
        self.name = identity.map_or(at.clone(), |identity| format!("{identity} at {at}"));
    }

    /// The peer with its rights, by the rules in force now.
    ///
    /// # Errors
    /// It has shown a token that is none, or in the clear.
    pub(crate) fn judged(mut self, access: &Access, shown: Shown<'_>) -> Result<Self, ErrorInfo> {
        let rules = access.rules();
        let token = match shown {
            Shown::Nothing => None,
            Shown::Secret(secret) => rules.token(secret).map(Some),
            // Where no tokens are, the header is for somebody before clad.
            Shown::Token(token) => rules.has_tokens().then(|| rules.token(token)),
        };
        if let Some(name) = token {
            let Some(name) = name.filter(|_| self.is_private) else {
                return Err(refused(&self.subject, &self.rights, Refused::Token));
            };
            self.subject.token = Some(name);
            if self.subject.uid.is_none() {
                let address = PeerMeta::decode(&self.meta).ok().and_then(|meta| meta.address);
                self.describe(address);
            }
        }
        self.rights = rules.rights(&self.subject, self.reads_without_rules);
        Ok(self)
    }

    /// Its rights.
    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Checks a right.
    ///
    /// # Errors
    /// It does not have it.
    pub(crate) fn check(&self, right: Right) -> Result<(), ErrorInfo> {
        match self.rights.may(right) {
            true => Ok(()),
            false => Err(refused(&self.subject, &self.rights, right.into())),
        }
    }

    /// Checks the right to forward appends of a log.
    ///
    /// # Errors
    /// It does not have it.
    pub(crate) fn check_forward(&self, log: LogId) -> Result<(), ErrorInfo> {
        match self.rights.may_forward(log) {
            true => Ok(()),
            false => Err(refused(&self.subject, &self.rights, Right::Forward.into())),
        }
    }

    /// The error for records of another component than it may append.
    pub(crate) fn wrong_component(&self) -> ErrorInfo {
        refused(&self.subject, &self.rights, Refused::Component)
    }

    /// Its rights by other rules, where they are not the same.
    pub(crate) fn rights_have_changed(&self, rules: &RuleSet) -> bool {
        !self.rights.is_same(&rules.rights(&self.subject, self.reads_without_rules))
    }

    /// Returns true if it is known by the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.subject == other.subject && self.reads_without_rules == other.reads_without_rules
    }

    /// User on a Unix socket.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.subject.uid
    }

    /// Group on a Unix socket.
    pub(crate) fn gid(&self) -> Option<u32> {
        self.subject.gid
    }

    /// The name by which it owns producers, where it has one.
    fn owner_name(&self) -> Option<Arc<str>> {
        let own = || self.subject.identity().filter(|_| self.subject.uid.is_none());
        self.rights.owner.clone().or_else(own)
    }

    /// Owner of a producer id when this peer uses it.
    pub(crate) fn owner(&self, secret: &[u8]) -> u64 {
        match (self.owner_name(), self.subject.uid) {
            (Some(name), _) => tls::owner(&name),
            (None, Some(uid)) => u64::from(uid),
            (None, None) => secret_owner(secret),
        }
    }

    /// Returns true if a secret is what it owns producers by.
    pub(crate) fn needs_secret(&self) -> bool {
        self.owner_name().is_none() && self.subject.uid.is_none()
    }

    /// Sender, for a resend: by its name, else the user, where the kernel knows it, else the address. The network is none:
    /// its peers are many.
    pub(crate) fn sender_hash(&self) -> u64 {
        let name = match (self.owner_name(), self.quota_owner, self.subject.uid) {
            (Some(name), ..) => format!("certificate {name}"),
            (None, Owner::Uid(uid), _) | (None, _, Some(uid)) => format!("uid {uid}"),
            (None, Owner::Network, None) => {
                let address = self.subject.address.map(|address| address.to_canonical().to_string());
                format!("address {}", address.unwrap_or_default())
            }
        };
        let mut first = [0; 8];
        first.copy_from_slice(&Sha256::digest(name)[..8]);
        u64::from_le_bytes(first)
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
        let address = "192.0.2.1:1".parse().unwrap();
        let named = |name: &str| Peer::over_tls(Transport::Tcp, address, Owner::Network, false, Some(name.into()));
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

    /// Rules with a token, and what peers are by it.
    #[test]
    fn a_token_counts_where_nobody_reads_it_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        let hash: String = Sha256::digest("a token").iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(&file, format!("ci {hash}\n")).unwrap();
        let settings = crate::config::Access { tokens_file: Some(file), ..crate::config::Config::default().access };
        let access = Access::new(&settings, RuleSet::read(&settings).unwrap());
        let far: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let near: SocketAddr = "[::ffff:127.0.0.1]:1".parse().unwrap();
        let plain = |at| Peer::network(Transport::Tcp, Some(at), Owner::Network, false);
        let tls = |name: Option<&str>| Peer::over_tls(Transport::Tcp, far, Owner::Network, false, name.map(Into::into));
        let unix = || Peer::unix(1000, 1000, (None, None), false);
        let judged = |peer: Peer, shown| peer.judged(&access, shown);
        let identity = |peer: &Peer| PeerMeta::decode(&peer.meta).unwrap().identity;
        for peer in [plain(near), tls(None)] {
            let peer = judged(peer, Shown::Secret(b"a token")).unwrap();
            assert_eq!(identity(&peer).as_deref(), Some("token:ci"));
            assert!(PeerMeta::decode(&peer.meta).unwrap().address.is_some());
            assert_eq!(peer.owner(b"a token"), tls::owner("token:ci"));
            assert!(!peer.needs_secret() && peer.check(Right::Append).is_ok());
        }
        for shown in [Shown::Secret(b"a token"), Shown::Token(b"a token")] {
            let error = judged(plain(far), shown).expect_err("in the clear");
            assert_eq!((error.code, error.retryable), (clad_proto::ErrorCode::PermissionDenied, false));
        }
        judged(tls(None), Shown::Token(b"another")).expect_err("it is none");
        let peer = judged(plain(far), Shown::Secret(b"a secret")).unwrap();
        assert_eq!((identity(&peer), peer.needs_secret()), (None, true), "any other secret is one");
        let peer = judged(tls(Some("spiffe://prod/a")), Shown::Token(b"a token")).unwrap();
        assert_eq!(identity(&peer).as_deref(), Some("spiffe://prod/a"), "the certificate comes first");
        assert_eq!(peer.subject.token.as_deref(), Some("ci"));
        let peer = judged(unix(), Shown::Token(b"a token")).unwrap();
        assert_eq!((identity(&peer), peer.owner(b"")), (None, 1000), "the kernel knows the user");
        let without = Access::open();
        let peer = tls(None).judged(&without, Shown::Token(b"for somebody else")).unwrap();
        assert!(peer.check(Right::Append).is_ok() && peer.check(Right::Read).is_err());
        assert!(tls(None).check(Right::Append).is_err(), "who was not judged may nothing");
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
