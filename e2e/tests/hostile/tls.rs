//! Within TLS: handshakes that never end, clients that stop in the middle of a record or send a byte a record, noise behind a
//! good handshake, clients that never read, bombs. Beside each attack one client after another comes by a handshake of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clad_client::{AckLevel, Producer, Record, blocking};
use clad_e2e::raw::{hello, payload};
use clad_e2e::web::metrics;
use clad_e2e::{Daemon, Rng, STRANGER, Setup, TEST_TIMEOUT, as_user, is_root, not_run};
use clad_proto::frame::{AppendHead, Frame, FrameDecoder, encode_append, encode_ping};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::otlp::{MESSAGE_BYTES_MAX, TRANSFORMS, bombs, head, status};
use super::way::{SESSION_BYTES, Tls};
use super::{Over, attack, files, p99};

/// Handshakes under way at once (docs/ARCHITECTURE.md); each has its session, its task and a piece of the peer's bytes.
const HANDSHAKES_MAX: u64 = 256;
const HANDSHAKE_BYTES: u64 = 64 << 10;
/// What a framed connection has beside all budgets, as in `slow.rs`.
const CONNECTION_OWN_BYTES: u64 = 64 << 10;
/// Bytes of appends over all connections, and as many for frames and buffers.
const BUDGET_BYTES: u64 = 4 << 20;
const KERNEL_BUFFER_BYTES: usize = 64 << 10;
/// Clients with a handshake of their own that must be served beside an attack.
const CLIENTS_MIN: usize = 5;
/// Longest time to fill what lies between one who never reads and the daemon. A daemon that has time drains it for long.
const FILL_TIME_MAX: Duration = Duration::from_millis(50);
/// Between two of them.
const CLIENTS_PAUSE: Duration = Duration::from_millis(5);
/// Clients before an attack.
const CLIENTS_BEFORE: usize = 60;

struct Host {
    daemon: Daemon,
    folder: tempfile::TempDir,
    config: Arc<ClientConfig>,
}

impl Host {
    fn start(connections: usize) -> Self {
        let _ = files();
        let tls = Tls::new();
        let setup = tls.set(Setup::new()).set("ingest.tcp.tls", "true").set("ingest.grpc.tls", "true");
        // A user has half of them.
        let setup = setup.set("limits.max_connections", &(2 * connections + 100).to_string());
        let setup =
            setup.set("limits.max_inflight_bytes", &BUDGET_BYTES.to_string()).set("limits.max_producers", "8192");
        let daemon = setup.set("limits.max_connection_inflight_bytes", &BUDGET_BYTES.to_string()).start();
        Self { daemon, folder: tls.folder, config: tls.config }
    }

    fn handshakes(&self, result: &str) -> f64 {
        self.daemon.metric(&format!("clad_tls_handshakes_total{{result=\"{result}\"}}"))
    }

    fn session(&self) -> ClientConnection {
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        ClientConnection::new(self.config.clone(), name).expect("settings")
    }

    fn peer(&self, listener: &str) -> Peer {
        let mut peer = Peer { session: self.session(), socket: connect(self.daemon.port(listener)) };
        while peer.session.is_handshaking() {
            peer.session.complete_io(&mut peer.socket).expect("a handshake");
        }
        peer
    }

    /// Attacks under the eyes of the bystander of all attacks, and of clients that come one after the other within TLS. With
    /// `CLAD_HOSTILE_BESIDE` they are those of another daemon: what an attack costs whoever is on the same processors.
    fn attack<T: Send>(&self, name: &str, bound: u64, work: impl FnOnce() -> T + Send) -> T {
        if std::env::var_os("CLAD_HOSTILE_BESIDE").is_some() {
            return Self::start(1000).watched(name, bound, work);
        }
        self.watched(name, bound, work)
    }

    fn watched<T: Send>(&self, name: &str, bound: u64, work: impl FnOnce() -> T + Send) -> T {
        let address =
            format!("tcp+tls://{}?ca={}", self.daemon.port("tcp"), self.folder.path().join("ca.crt").display());
        let mut took = Vec::new();
        let mut clients = |over: &AtomicBool, least: usize| {
            // They are no attackers. Only root may take a priority back.
            let _ = rustix::process::setpriority_process(None, 0);
            let began = took.len();
            while took.len() < began + least || !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let builder = Producer::builder(address.parse().expect("an address")).component("beside");
                let builder = builder.level(AckLevel::Durable).connect_timeout(TEST_TIMEOUT);
                let producer = blocking::Producer::start(builder).expect("a producer");
                producer.append(&[Record::text(0, 9, format!("client {}", took.len()))]).expect("durable");
                producer.close(TEST_TIMEOUT).expect("closed");
                took.push(began.elapsed());
                thread::sleep(CLIENTS_PAUSE);
            }
            took[began..].to_vec()
        };
        // What their handshakes cost without an attack.
        let (_, mut quiet) = attack(&format!("before {name}, clients by handshakes"), &self.daemon, bound, || {
            clients(&AtomicBool::new(true), CLIENTS_BEFORE)
        });
        let over = AtomicBool::new(false);
        let (_, (result, mut beside)) = attack(name, &self.daemon, bound, || {
            thread::scope(|scope| {
                let clients = scope.spawn(|| clients(&over, CLIENTS_MIN));
                let result = {
                    let _over = Over(&over);
                    work()
                };
                (result, clients.join().expect("the clients"))
            })
        });
        let count = beside.len();
        let (quiet, beside) = (p99(&mut quiet), p99(&mut beside));
        println!("hostile: {name}: {count} clients by handshakes beside it, p99 {beside:?} (quiet {quiet:?})");
        let socket = format!("unix://{}", self.daemon.socket().display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let stored = runtime.block_on(clad_e2e::readback::served(&socket));
        let bodies = stored.iter().filter_map(|one| std::str::from_utf8(&one.body).ok()?.strip_prefix("client "));
        let wanted: Vec<String> = (0..took.len()).map(|number| number.to_string()).collect();
        assert_eq!(bodies.collect::<Vec<_>>(), wanted, "what was acknowledged, once and in order");
        assert_eq!(self.daemon.said().matches("panicked").count(), 0, "{}", self.daemon.said());
        result
    }

    fn is_let_go(&self) {
        self.daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let come = || TcpStream::connect(address).expect("a daemon");
    let stream = if is_root() { as_user(STRANGER, come) } else { come() };
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    // What the kernel holds for many that never read is not what is looked at.
    sockopt::set_socket_recv_buffer_size(&stream, KERNEL_BUFFER_BYTES).expect("a size");
    sockopt::set_socket_send_buffer_size(&stream, KERNEL_BUFFER_BYTES).expect("a size");
    stream
}

/// A client within TLS, spoken by hand.
struct Peer {
    session: ClientConnection,
    socket: TcpStream,
}

impl Peer {
    /// These bytes as records of TLS.
    fn sealed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        self.session.set_buffer_limit(None);
        self.session.writer().write_all(bytes).expect("memory");
        while self.session.wants_write() {
            self.session.write_tls(&mut sealed).expect("memory");
        }
        sealed
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            self.session.read_tls(&mut self.socket)?;
            self.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Frames until this one.
    fn wait_frame(&mut self, is_wanted: impl Fn(&Frame) -> bool) {
        let (decoder, mut buf, mut chunk) = (FrameDecoder::default(), BytesMut::new(), [0; 4096]);
        loop {
            while let Some(frame) = decoder.next(&mut buf).expect("a frame") {
                if is_wanted(&frame) {
                    return;
                }
            }
            let read = self.read(&mut chunk).expect("it goes on");
            assert!(read > 0, "the end");
            buf.extend_from_slice(&chunk[..read]);
        }
    }

    /// The end of the connection, whatever is answered before.
    fn wait_end(&mut self) {
        let mut chunk = [0; 4096];
        while let Ok(1..) = self.read(&mut chunk) {}
    }
}

fn greeting() -> BytesMut {
    let mut bytes = BytesMut::new();
    hello().encode(&mut bytes);
    bytes
}

fn append(body: &[u8]) -> BytesMut {
    let (mut bytes, whole) = (BytesMut::new(), payload(&[body]));
    let (count, level, payload_crc) = (1, AckLevel::Durable, whole.checksum());
    encode_append(&mut bytes, &AppendHead { first_seq: 0, count, level, gap: false, payload_crc }, &whole.bytes);
    bytes
}

/// Nothing is said, half of a first word, or the whole of it and nothing behind it.
fn half_open_handshakes(connections: usize) {
    let host = Host::start(1000);
    let address = host.daemon.port("tcp");
    let before = host.handshakes("crowded");
    let bound = HANDSHAKES_MAX * HANDSHAKE_BYTES;
    host.attack(&format!("{connections} half-open handshakes"), bound, || {
        let (mut peers, mut most) = (Vec::with_capacity(connections), 0);
        for index in 0..connections {
            let mut socket = connect(address);
            let mut first = Vec::new();
            host.session().write_tls(&mut first).expect("memory");
            let part = [0, first.len() / 2, first.len()][index % 3];
            // The daemon may have ended it by now.
            let _ = socket.write_all(&first[..part]);
            peers.push(socket);
            if index % 256 == 0 {
                most = most.max(host.daemon.status().connections.values().sum::<u64>());
            }
        }
        host.daemon.wait_until("all but the last have ended", |_| {
            host.handshakes("crowded") - before + host.handshakes("timeout")
                >= (connections as u64 - HANDSHAKES_MAX) as f64
        });
        println!("hostile: {connections} half-open handshakes: {most} connections were open at once");
    });
    host.is_let_go();
}

#[test]
fn half_open_handshakes_of_a_thousand() {
    half_open_handshakes(1000);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn half_open_handshakes_of_ten_thousand() {
    let reached = files().min(10_000);
    if reached < 10_000 {
        not_run(
            "10000 half-open handshakes",
            &format!("the hard limit of open files allows {reached}: these are tried"),
        );
    }
    half_open_handshakes(reached);
}

/// A socket that takes a byte at a time.
struct Drip<'a>(&'a TcpStream);

impl Write for Drip<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Drip<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = bytes.len().min(1);
        self.0.read(&mut bytes[..most])
    }
}

/// They do no harm, and are served: a byte at a time in the handshake, and a byte a record behind it.
#[test]
fn a_byte_at_a_time() {
    const CONNECTIONS: usize = 60;
    let host = Host::start(CONNECTIONS);
    let bound = CONNECTIONS as u64 * (CONNECTION_OWN_BYTES + SESSION_BYTES) + BUDGET_BYTES;
    host.attack(&format!("{CONNECTIONS} clients of a byte at a time"), bound, || {
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut peer = Peer { session: host.session(), socket: connect(host.daemon.port("tcp")) };
                    while peer.session.is_handshaking() {
                        peer.session.complete_io(&mut Drip(&peer.socket)).expect("a handshake");
                    }
                    let frames = [greeting(), append(b"slowly")].concat();
                    for byte in frames.chunks(1) {
                        let sealed = peer.sealed(byte);
                        Drip(&peer.socket).write_all(&sealed).expect("sent");
                    }
                    peer.wait_frame(|frame| matches!(frame, Frame::Accepted(_)));
                });
            }
        });
    });
    host.is_let_go();
}

/// Half of the last record of TLS of an append, and no more: what is not whole is not judged, and held.
fn half_records(connections: usize) {
    let host = Host::start(connections);
    let bound = connections as u64 * (CONNECTION_OWN_BYTES + SESSION_BYTES) + 2 * BUDGET_BYTES;
    host.attack(&format!("{connections} half records"), bound, || {
        let mut peers = Vec::new();
        for _ in 0..connections {
            let mut peer = host.peer("tcp");
            let frames = [greeting(), append(&[b'h'; 15 << 10])].concat();
            let sealed = peer.sealed(&frames);
            peer.socket.write_all(&sealed[..sealed.len() - 100]).expect("sent");
            peers.push(peer);
        }
        thread::sleep(Duration::from_millis(500)); // so that there is something to see
    });
    host.is_let_go();
}

#[test]
fn half_records_of_two_hundred() {
    half_records(200);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn half_records_of_thousands() {
    half_records(3000);
}

/// Noise as it is, noise with the head of a record, noise within good records: each is ended, and nothing of it stored.
#[test]
fn noise_behind_a_handshake() {
    const CONNECTIONS: usize = 300;
    let host = Host::start(CONNECTIONS);
    let seed = std::env::var("CLAD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("hostile: noise: CLAD_SEED={seed}");
    let mut rng = Rng::new(seed);
    let bound = CONNECTIONS as u64 * (CONNECTION_OWN_BYTES + SESSION_BYTES) + 2 * BUDGET_BYTES;
    host.attack(&format!("{CONNECTIONS} of noise"), bound, || {
        for index in 0..CONNECTIONS {
            let mut peer = host.peer("tcp");
            let noise: Vec<u8> = (0..600).map(|_| rng.below(256) as u8).collect();
            let sent = match index % 3 {
                0 => [&[0xFF][..], &noise].concat(),
                1 => [&[0x17, 3, 3, 2, 88][..], &noise].concat(),
                _ => peer.sealed(&[&[0xC2][..], &noise].concat()),
            };
            // The daemon may end it in the middle.
            let _ = peer.socket.write_all(&sent);
            peer.wait_end();
        }
    });
    host.is_let_go();
}

/// They ping, and never look at an answer.
fn who_never_reads(connections: usize) {
    let host = Host::start(connections);
    let mut pings = BytesMut::new();
    (0..1000).for_each(|_| encode_ping(&mut pings, 1));
    let bound = connections as u64 * (CONNECTION_OWN_BYTES + SESSION_BYTES) + 2 * BUDGET_BYTES;
    host.attack(&format!("{connections} who never read"), bound, || {
        let mut peers = Vec::new();
        for _ in 0..connections {
            let mut peer = host.peer("tcp");
            let sealed = peer.sealed(&greeting());
            peer.socket.write_all(&sealed).expect("sent");
            peer.socket.set_write_timeout(Some(Duration::from_millis(10))).expect("a timeout");
            // A record that was cut in the middle goes on where it was.
            let mut waits = Vec::new();
            let until = Instant::now() + FILL_TIME_MAX;
            while Instant::now() < until {
                if waits.is_empty() {
                    waits = peer.sealed(&pings);
                }
                match peer.socket.write(&waits) {
                    Ok(sent) => drop(waits.drain(..sent)),
                    Err(_) => break,
                }
            }
            peers.push(peer);
        }
        let buffers = metrics(host.daemon.port("metrics"))["clad_connection_buffer_bytes"] as u64;
        assert!(buffers <= BUDGET_BYTES, "{buffers} bytes of buffers, and one user may have {BUDGET_BYTES}");
        thread::sleep(Duration::from_millis(500));
    });
    host.is_let_go();
}

#[test]
fn two_hundred_who_never_read_within_tls() {
    who_never_reads(200);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn hundreds_who_never_read_within_tls() {
    // Of a thousand the kernel holds some 2 GiB, on the daemon's side. That is all that TCP gets here: it resets others then.
    who_never_reads(600);
}

#[test]
fn bombs_within_tls() {
    const CONNECTIONS: usize = 24;
    const BOMBS: usize = 4;
    let host = Host::start(CONNECTIONS);
    let bombs = bombs();
    let bound =
        CONNECTIONS as u64 * (CONNECTION_OWN_BYTES + SESSION_BYTES) + 2 * BUDGET_BYTES + MESSAGE_BYTES_MAX + TRANSFORMS;
    host.attack("bombs within TLS", bound, || {
        thread::scope(|scope| {
            for index in 0..CONNECTIONS {
                let ((encoding, bomb), host) = (&bombs[index % 2], &host);
                scope.spawn(move || {
                    for _ in 0..BOMBS {
                        let mut peer = host.peer("grpc");
                        let length = format!("content-encoding: {encoding}\r\ncontent-length: {}", bomb.len());
                        let mut stream = rustls::Stream::new(&mut peer.session, &mut peer.socket);
                        stream.write_all(&[head(&length), bomb.clone()].concat()).expect("sent");
                        let status = status(&mut stream);
                        assert!(matches!(status, Some(413 | 429)), "{encoding}: {status:?}");
                    }
                });
            }
        });
    });
    let answers = metrics(host.daemon.port("metrics"));
    let count = |code| answers[format!("clad_otlp_requests_total{{code=\"{code}\"}}").as_str()] as usize;
    assert_eq!((count("too_large") + count("busy"), count("ok") + count("partial")), (CONNECTIONS * BOMBS, 0));
}
