//! Logs of real programs by each way in: what comes back is what was sent, byte for byte. By hand:
//! `CLAD_SENDERS_LOGS=FOLDER cargo xtask ci relay logs`.
//!
//! Invariants: a line is what stands between two line feeds, whatever its bytes; only a carriage return before the feed is
//! left out, which is part of a line's end in syslog.

use std::fs::{self, File};
use std::io::Write;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::proxy::Place;
use clad_e2e::{Daemon, Scratch, Setup, TEST_TIMEOUT, fixed_port};

use crate::check::Texts;
use crate::otlp::{OverGrpc, OverHttp};
use crate::relays::{Relay, is_note};
use crate::run::loopback;
use crate::sender::{Requests, Shared};
use crate::syslog::Session;
use crate::variable;

/// Lines of a request, or of datagrams that wait in a socket at once.
const AT_ONCE: usize = 50;
/// A way that datagrams take has a limit; longer lines are not sent there.
const DATAGRAM_BYTES_MAX: usize = 8 << 10;

/// Lines of all files below a folder.
fn lines(folder: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).expect("a folder").flatten().map(|file| file.path()).collect();
    files.sort();
    let mut lines = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let bytes = fs::read(file).expect("readable");
        let whole = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        lines.extend(whole.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
    }
    lines
}

/// A message of syslog with a line as its text.
fn message(line: &[u8]) -> Vec<u8> {
    [b"<13>1 - host app - - - ", line].concat()
}

/// The log's bodies once it has so many records that are no notes.
fn bodies(daemon: &mut Daemon, records: u64) -> Vec<Vec<u8>> {
    let until = Instant::now() + TEST_TIMEOUT;
    while stored(daemon) < records {
        assert!(Instant::now() < until, "{} of {records} are there:\n{}", stored(daemon), daemon.said());
        thread::sleep(Duration::from_millis(5));
    }
    daemon.kill9();
    let stored = clad_e2e::readback::files(daemon.dir());
    stored.into_iter().map(|record| record.body).filter(|body| !is_note(&String::from_utf8_lossy(body))).collect()
}

fn stored(daemon: &Daemon) -> u64 {
    daemon.status().offsets.map_or(0, |offsets| offsets.written)
}

/// Sends datagrams, never more at once than a socket holds.
fn datagrams(daemon: &Daemon, lines: &[Vec<u8>], send: impl Fn(&[u8])) {
    for (number, some) in lines.chunks(AT_ONCE).enumerate() {
        some.iter().for_each(|line| send(&message(line)));
        let until = Instant::now() + TEST_TIMEOUT;
        while stored(daemon) < (number * AT_ONCE + some.len()) as u64 {
            assert!(Instant::now() < until, "{} are there", stored(daemon));
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn requests(mut protocol: impl Requests, lines: &[Vec<u8>]) {
    let shared = Shared::default();
    for first in (0..lines.len()).step_by(AT_ONCE) {
        let end = (first + AT_ONCE).min(lines.len());
        let numbers: Range<u64> = first as u64..end as u64;
        let request = protocol.request("lines", numbers);
        protocol.ask(&shared, &request).expect("stored");
    }
}

/// A way in: sends lines, and returns once they are sent.
fn by(way: &str, daemon: &Daemon, place: &Place, lines: &Arc<Vec<Vec<u8>>>) {
    let texts = Texts::Lines(lines.clone());
    match way {
        "OTLP over gRPC" => requests(OverGrpc::to(place, None).with(texts), lines),
        "OTLP over HTTP" => requests(OverHttp::to(place, None).with(texts), lines),
        "/upload" => requests(OverHttp::uploads(place).with(texts), lines),
        "syslog over TCP, with lengths" | "syslog over a Unix stream" => {
            let mut socket: File = place.connect().expect("a daemon");
            for line in lines.iter() {
                let message = message(line);
                let framed = if way.ends_with("lengths") {
                    [format!("{} ", message.len()).as_bytes(), &message].concat()
                } else {
                    [&message[..], b"\n"].concat()
                };
                socket.write_all(&framed).expect("sent");
            }
        }
        "RELP" => {
            let shared = Shared::default();
            let mut session = Session::open(place, &shared).expect("a session");
            for some in lines.chunks(AT_ONCE) {
                let messages: Vec<Vec<u8>> = some.iter().map(|line| message(line)).collect();
                session.ask(&messages).expect("answered");
            }
        }
        "syslog over UDP" => {
            let Place::Tcp(address) = place else { panic!("{place} is no port") };
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.connect(address).expect("an address");
            datagrams(daemon, lines, |message| assert_eq!(socket.send(message).expect("sent"), message.len()));
        }
        "syslog over Unix datagrams" => {
            let Place::Unix(path) = place else { panic!("{place} is no path") };
            let socket = UnixDatagram::unbound().expect("a socket");
            socket.connect(path).expect("a daemon");
            datagrams(daemon, lines, |message| assert_eq!(socket.send(message).expect("sent"), message.len()));
        }
        other => panic!("{other} is no way"),
    }
}

#[test]
#[ignore = "CLAD_SENDERS_LOGS=FOLDER cargo xtask ci relay logs"]
#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn real_logs_come_back_byte_for_byte() {
    let folder = PathBuf::from(variable("CLAD_SENDERS_LOGS").expect("CLAD_SENDERS_LOGS"));
    let all = Arc::new(lines(&folder));
    let bytes: usize = all.iter().map(Vec::len).sum();
    let odd = all.iter().filter(|line| std::str::from_utf8(line).is_err()).count();
    println!("kills: {} lines, {bytes} bytes, {odd} lines are no UTF-8", all.len());
    for way in [
        "OTLP over gRPC",
        "OTLP over HTTP",
        "/upload",
        "syslog over TCP, with lengths",
        "syslog over a Unix stream",
        "RELP",
        "syslog over UDP",
        "syslog over Unix datagrams",
    ] {
        let (scratch, port) = (Scratch::new(), fixed_port());
        let path = scratch.sockets().join("syslog.sock");
        let (listener, place) = match way {
            "RELP" => (format!("relp://127.0.0.1:{port}"), loopback(port)),
            "syslog over UDP" => (format!("udp://127.0.0.1:{port}"), loopback(port)),
            "syslog over Unix datagrams" => (format!("unix-dgram://{}", path.display()), Place::Unix(path)),
            "syslog over a Unix stream" => (format!("unix-stream://{}", path.display()), Place::Unix(path)),
            _ => (format!("tcp://127.0.0.1:{port}"), loopback(port)),
        };
        let mut daemon = Setup::new().set("ingest.syslog.a.listen", &listener).start();
        let place = if way.contains("OTLP") || way == "/upload" { Place::Tcp(daemon.port("grpc")) } else { place };
        let sent = if way.contains("atagrams") || way.contains("UDP") {
            Arc::new(all.iter().filter(|line| line.len() <= DATAGRAM_BYTES_MAX).cloned().collect())
        } else {
            all.clone()
        };
        by(way, &daemon, &place, &sent);
        compare(way, &mut daemon, &sent);
    }
    let Some(program) = variable("CLAD_RELAY") else { return };
    let mut daemon = Setup::new().start();
    let text = all.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect::<Vec<u8>>();
    let relay = Relay::of_a_file(Path::new(&program), &Place::Unix(daemon.socket()), &text);
    // And the note of where it began.
    let until = Instant::now() + TEST_TIMEOUT;
    while stored(&daemon) < all.len() as u64 {
        assert!(Instant::now() < until, "the relay does not bring them: {}", relay.words());
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(500));
    compare("clad-relay from a file", &mut daemon, &all);
}

#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn compare(way: &str, daemon: &mut Daemon, sent: &[Vec<u8>]) {
    let found = bodies(daemon, sent.len() as u64);
    for (number, (found, sent)) in found.iter().zip(sent).enumerate() {
        let (found_text, sent_text) = (String::from_utf8_lossy(found), String::from_utf8_lossy(sent));
        assert!(found == sent, "{way}: line {number} is {found_text:?}, and {sent_text:?} was sent");
    }
    assert_eq!(found.len(), sent.len(), "{way}");
    println!("kills: {way}: {} lines came back, byte for byte", found.len());
}
