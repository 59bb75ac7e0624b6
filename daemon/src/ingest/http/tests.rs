//! Connections of faulty peers, with times that a test can wait for, and the maximum of all of them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::listen::Identity;
use super::stream::Stream;
use super::*;
use crate::ingest::PeerTimeouts;
use crate::ingest::quota::Owner;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Short replacement for a minute.
const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Bounds that docs/ARCHITECTURE.md states of all connections together, up to `max_connections`.
#[test]
fn the_parts_of_all_connections_have_a_bound() {
    const BUDGET: usize = 16 << 20;
    let mut bytes = 0;
    for nth in 1..=4096 {
        bytes += window(WINDOW_BYTES, BUDGET, nth) as usize;
        assert!(bytes <= BUDGET / 4 + 65_536 * nth, "{bytes} bytes of {nth}");
    }
    assert_eq!((window(WINDOW_BYTES, BUDGET, 1), calls_max(1)), (2 << 20, 100), "one alone has an eighth of it");
    assert_eq!((window(WINDOW_BYTES, BUDGET, 4096), calls_max(4096)), (65_535, 4));
}

/// A connection as it was accepted, and its peer.
async fn pair(peer_timeouts: PeerTimeouts) -> (Connection, TcpStream, watch::Sender<bool>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a peer");
    let (stream, address) = listener.accept().await.expect("it comes");
    let slot = ConnectionSlots::new(1).take(Owner::Network, metrics::Transport::Grpc).expect("a place");
    let (cut, is_cut) = watch::channel(false);
    let identity = (Identity::Network(address), Owner::Network);
    let times = (TEST_TIMEOUT * 10, peer_timeouts);
    (Connection::new(Stream::Tcp(stream), identity, slot, times, is_cut), peer, cut)
}

/// Writes until nothing more is taken, and waits for the result.
async fn fill(connection: &mut Connection) -> io::Error {
    let bytes = vec![0; 64 << 10];
    loop {
        if let Err(e) = connection.write(&bytes).await {
            return e;
        }
    }
}

/// As far as it goes without waiting.
async fn fill_now(connection: &mut Connection) {
    let bytes = vec![0; 64 << 10];
    std::future::poll_fn(|cx| {
        while let Poll::Ready(written) = Pin::new(&mut *connection).poll_write(cx, &bytes) {
            written.expect("it is there");
        }
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_disconnected() {
    let peer_timeouts =
        PeerTimeouts { write: SHORT_TIMEOUT, reader_write: TEST_TIMEOUT * 10, ..PeerTimeouts::default() };
    let (mut connection, _peer, _cut) = pair(peer_timeouts).await;
    let error = timeout(TEST_TIMEOUT, fill(&mut connection)).await.expect("it is let go");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// However long ago it took something before.
#[tokio::test]
async fn a_peer_that_takes_some_has_all_the_time_again() {
    let (mut connection, mut peer, _cut) =
        pair(PeerTimeouts { write: SHORT_TIMEOUT, reader_write: SHORT_TIMEOUT, ..PeerTimeouts::default() }).await;
    fill_now(&mut connection).await;
    tokio::time::sleep(2 * SHORT_TIMEOUT).await;
    let mut bytes = vec![0; 64 << 10];
    let room = async {
        tokio::select! {
            room = connection.stream().writable() => room.expect("it is there"),
            () = async { while peer.read(&mut bytes).await.expect("it is there") > 0 {} } => panic!("it has ended"),
        }
    };
    timeout(TEST_TIMEOUT, room).await.expect("there is room");
    fill_now(&mut connection).await;
}

/// A pager that no person looks at: also when its read has ended, and when it began while something waited already.
#[tokio::test]
async fn one_that_has_read_may_rest_for_longer() {
    let peer_timeouts =
        PeerTimeouts { write: SHORT_TIMEOUT, reader_write: TEST_TIMEOUT * 10, ..PeerTimeouts::default() };
    for waits_before in [false, true] {
        let (mut connection, mut peer, _cut) = pair(peer_timeouts).await;
        if waits_before {
            fill_now(&mut connection).await;
        }
        drop(connection.caller().begin_read().expect("a place"));
        assert!(timeout(5 * SHORT_TIMEOUT, fill(&mut connection)).await.is_err(), "it is let go");
        // It takes all, and continues.
        let (mut taken, mut bytes) = (0, vec![0; 64 << 10]);
        let goes_on = async {
            loop {
                tokio::select! {
                    written = connection.write(b"more") => return written,
                    read = peer.read(&mut bytes) => taken += read.expect("it is there"),
                }
            }
        };
        assert_eq!(timeout(TEST_TIMEOUT, goes_on).await.expect("there is room").ok(), Some(4));
        assert!(taken > 0);
    }
    let (mut connection, _peer, _cut) =
        pair(PeerTimeouts { write: TEST_TIMEOUT * 10, reader_write: SHORT_TIMEOUT, ..PeerTimeouts::default() }).await;
    let _reads = connection.caller().begin_read().expect("a place");
    let error = timeout(TEST_TIMEOUT, fill(&mut connection)).await.expect("not for ever");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// Frames of a connection of HTTP/2, written by hand.
struct Frames(TcpStream);

impl Frames {
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    async fn greet(mut peer: TcpStream) -> Self {
        peer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
        Self(peer)
    }

    /// The next frame: its kind, its flags, its content; nothing at the end.
    async fn next(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        self.0.read_exact(&mut body).await.ok()?;
        Some((head[3], head[4], body))
    }

    async fn answer(&mut self, kind: u8, body: &[u8]) {
        let mut frame = vec![0, 0, body.len() as u8, kind, Self::ACK, 0, 0, 0, 0];
        frame.extend_from_slice(body);
        self.0.write_all(&frame).await.expect("sent");
    }

    /// Answers so many PINGs, and nothing after them; returns true if so many came before the end.
    async fn answers(&mut self, mut pings: u32) -> bool {
        while pings > 0 {
            match self.next().await {
                Some((Self::SETTINGS, 0, _)) => self.answer(Self::SETTINGS, &[]).await,
                Some((Self::PING, 0, body)) => {
                    self.answer(Self::PING, &body).await;
                    pings -= 1;
                }
                Some(_) => {}
                None => return false,
            }
        }
        true
    }
}

fn serving(keepalive: (Duration, Duration)) -> (Serving, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let (routes, connection_slots) = (Router::new(), ConnectionSlots::new(1));
    let windows = (1 << 20, 8 << 20);
    (Serving { routes, connection_slots, windows, keepalive, headers_timeout: SHORT_TIMEOUT, stop: stopped }, stop)
}

/// A peer that vanishes says nothing, and a peer that is there is asked as well.
#[tokio::test]
async fn a_silent_peer_is_asked_whether_it_is_there_and_let_go_where_it_is_not() {
    for (is_there, time_to_answer) in [(true, TEST_TIMEOUT * 10), (false, SHORT_TIMEOUT)] {
        let (serving, _stop) = serving((SHORT_TIMEOUT / 10, time_to_answer));
        let (connection, peer, _cut) = pair(PeerTimeouts::default()).await;
        let served = tokio::spawn(serving.one(connection));
        let mut peer = Frames::greet(peer).await;
        if is_there {
            assert!(timeout(TEST_TIMEOUT, peer.answers(5)).await.expect("it is asked again and again"), "it is let go");
            assert!(!served.is_finished());
        } else {
            while timeout(TEST_TIMEOUT, peer.next()).await.expect("it is let go").is_some() {}
            timeout(TEST_TIMEOUT, served).await.expect("and that is all").expect("no panic");
        }
    }
}
