//! User of this host at the other end of a TCP connection, as the kernel says it (`NETLINK_SOCK_DIAG`).
//!
//! Invariants:
//! - It is for counting alone: the owner whose share of the quotas a connection uses ([`super::quota`]). It gives no
//!   right to read, no producer id is bound to it, and no record stores it. The kernel names the user who *made* the
//!   socket: that may be a program that passes on what others send it (a proxy, a forwarded port).
//! - Only a socket of this host has a user, so only a peer with this end's own or a loopback address is asked for.
//! - Only a connected socket is believed. A closed socket belongs to no user any more, and the kernel shows its user as
//!   0, which is root.
//! - It is asked once, when a connection is accepted, and waited for as long as [`ANSWER_WAIT`]; without an answer (no
//!   such module, not allowed, closed meanwhile) the peer counts as the network.
//!
//! The message is written by hand: three constants and one layout. A crate of netlink's would be four more crates.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::net::TcpStream;

use super::quota::Owner;

/// The kernel answers within the call that asks; longer takes only what loads a module first.
const ANSWER_WAIT: Duration = Duration::from_millis(200);

/// `struct nlmsghdr`, and in the request `struct inet_diag_req_v2`, in the answer `struct inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const ANSWER_BYTES: usize = HEADER_BYTES + 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;

/// Owner whose share the peer of an accepted connection uses.
pub(crate) async fn owner(stream: &TcpStream, peer: SocketAddr) -> Owner {
    let Ok(here) = stream.local_addr() else { return Owner::Network };
    let (peer, here) = (canonical(peer), canonical(here));
    if !peer.ip().is_loopback() && peer.ip() != here.ip() {
        return Owner::Network;
    }
    let asked = tokio::task::spawn_blocking(move || uid_of(peer, here));
    match tokio::time::timeout(ANSWER_WAIT, asked).await {
        Ok(Ok(Ok(Some(uid)))) => Owner::Uid(uid),
        Ok(Ok(Err(error))) => {
            tracing::debug!(%peer, %error, "the kernel does not say whose connection this is: it counts as the network's");
            Owner::Network
        }
        _ => Owner::Network,
    }
}

/// An IPv4 address that came by an IPv6 socket is one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The user whose connected socket has the first address as its own and the second as its peer's.
fn uid_of(own: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    net::send(&socket, &request(own, peer), SendFlags::empty())?;
    let mut answer = [0; 2 * ANSWER_BYTES];
    let (length, _) = net::recv(&socket, &mut answer, RecvFlags::empty())?;
    Ok(uid_in(&answer[..length], own.port(), peer.port()))
}

fn request(own: SocketAddr, peer: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    put(16, &[family.as_raw() as u8, IPPROTO_TCP]);
    put(20, &(1u32 << TCP_ESTABLISHED).to_ne_bytes());
    put(24, &own.port().to_be_bytes());
    put(26, &peer.port().to_be_bytes());
    for (at, address) in [(28, own.ip()), (44, peer.ip())] {
        match address {
            IpAddr::V4(v4) => put(at, &v4.octets()),
            IpAddr::V6(v6) => put(at, &v6.octets()),
        }
    }
    put(64, &[0xFF; 8]); // whichever socket has these addresses
    bytes
}

/// The user, where the answer is of that socket, and it is connected.
fn uid_in(answer: &[u8], own_port: u16, peer_port: u16) -> Option<u32> {
    let field = |at: usize| answer.get(at..at + 4)?.first_chunk::<4>().copied();
    let [kind @ .., _, _] = field(4)?;
    let [_, state, ..] = field(16)?;
    let ports = field(20)?;
    let is_it = ports == [own_port.to_be_bytes(), peer_port.to_be_bytes()].concat()[..];
    let believed = u16::from_ne_bytes(kind) == SOCK_DIAG_BY_FAMILY && state == TCP_ESTABLISHED && is_it;
    // Behind the header: what it is (4), its addresses (48), three counts (12).
    believed.then(|| field(HEADER_BYTES + 64).map(u32::from_ne_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream as Connected};

    use super::*;

    fn pair(listen: &str, connect: &str) -> Option<(Connected, Connected)> {
        let listener = TcpListener::bind(listen).ok()?;
        let port = listener.local_addr().unwrap().port();
        let client = Connected::connect(format!("{connect}:{port}")).unwrap();
        Some((client, listener.accept().unwrap().0))
    }

    /// Owner that the daemon would count the client as.
    async fn counted(accepted: Connected) -> Owner {
        accepted.set_nonblocking(true).unwrap();
        let peer = accepted.peer_addr().unwrap();
        owner(&TcpStream::from_std(accepted).unwrap(), peer).await
    }

    fn me() -> Owner {
        Owner::Uid(rustix::process::geteuid().as_raw())
    }

    #[tokio::test]
    async fn a_peer_on_loopback_is_its_user() {
        let (_client, accepted) = pair("127.0.0.1:0", "127.0.0.1").unwrap();
        assert_eq!(counted(accepted).await, me());
        if let Some((_client, accepted)) = pair("[::1]:0", "[::1]") {
            assert_eq!(counted(accepted).await, me(), "IPv6");
        }
        if let Some((_client, accepted)) = pair("[::]:0", "127.0.0.1") {
            assert!(accepted.peer_addr().unwrap().is_ipv6(), "an IPv4 peer of an IPv6 socket");
            assert_eq!(counted(accepted).await, me(), "a mapped address");
        }
        if let Some((_client, accepted)) = pair("[::]:0", "[::ffff:127.0.0.1]") {
            assert_eq!(counted(accepted).await, me(), "mapped on both sides");
        }
    }

    /// The user who made the socket, and not the one that asks.
    #[tokio::test]
    async fn another_user_is_another_owner() {
        if me() != Owner::Uid(0) {
            return; // only root can be another user
        }
        const NOBODY: u32 = 65_534;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, release) = std::sync::mpsc::sync_channel::<()>(1);
        let client = std::thread::spawn(move || {
            // Of this thread alone.
            let uid = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let client = Connected::connect(address).unwrap();
            let _ = release.recv();
            drop(client);
        });
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(counted(accepted).await, Owner::Uid(NOBODY));
        drop(asked);
        client.join().unwrap();
    }

    /// The kernel shows a closed socket as root's.
    #[tokio::test]
    async fn who_has_closed_is_nobody() {
        let (client, mut accepted) = pair("127.0.0.1:0", "127.0.0.1").unwrap();
        drop(client);
        assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0, "it is closed");
        assert_eq!(counted(accepted).await, Owner::Network);
    }

    #[test]
    fn an_answer_that_is_not_of_this_socket_is_none() {
        let of = |kind: u16, state: u8, own: u16, uid: u32| {
            let mut bytes = [0; ANSWER_BYTES];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[17] = state;
            bytes[20..22].copy_from_slice(&own.to_be_bytes());
            bytes[22..24].copy_from_slice(&7440u16.to_be_bytes());
            bytes[80..84].copy_from_slice(&uid.to_ne_bytes());
            bytes
        };
        let uid = |bytes: &[u8]| uid_in(bytes, 5000, 7440);
        assert_eq!(uid(&of(SOCK_DIAG_BY_FAMILY, TCP_ESTABLISHED, 5000, 7)), Some(7));
        assert_eq!(uid(&of(2, TCP_ESTABLISHED, 5000, 7)), None, "an error");
        assert_eq!(uid(&of(SOCK_DIAG_BY_FAMILY, 6, 5000, 0)), None, "TIME_WAIT");
        assert_eq!(uid(&of(SOCK_DIAG_BY_FAMILY, TCP_ESTABLISHED, 0, 7)), None, "a listener");
        assert_eq!(uid(&of(SOCK_DIAG_BY_FAMILY, TCP_ESTABLISHED, 5000, 7)[..60]), None, "half of one");
    }
}
