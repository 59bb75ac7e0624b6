//! What gRPC can be made to hold: metadata without end, streams that are reset as fast as they open, windows that are
//! filled on every stream of every connection, frames that ask for answers that nobody reads.

use std::time::{Duration, Instant};

use clad_e2e::hold::{Holder, threads};
use clad_e2e::web::metrics;
use clad_e2e::{Setup, TEST_TIMEOUT, is_root, not_run};
use clad_proto::grpc::opentelemetry::proto::logs::v1 as logs;
use clad_proto::grpc::v1;
use prost::Message;

use super::attack;
use super::http2::{
    CONTINUATION, DATA, END_HEADERS, FRAME, GOAWAY, HEADERS, Http2, PING, RST_STREAM, SETTINGS, call, header, message,
};
use super::way::{Target, Way};

const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;
/// Calls of one connection.
const MAX_STREAMS: u32 = 100;
/// What one HTTP/2 connection takes that has nothing under way, at most: its buffers, its task, its tables.
const CONNECTION_BYTES_MAX: u64 = 128 << 10;
/// `[limits] max_inflight_bytes` of these daemons.
const BUDGET_BYTES: u64 = 4 << 20;
/// Of each stream that is open: its task and its places.
const STREAM_BYTES_MAX: u64 = 24 << 10;

fn setup() -> Setup {
    let setup = Setup::new().set("limits.max_inflight_bytes", &BUDGET_BYTES.to_string());
    setup.set("limits.max_connection_inflight_bytes", &BUDGET_BYTES.to_string())
}

fn start(way: Way) -> Target {
    Target::start(way, setup(), |setup| setup.set("ingest.grpc.tls", "true"))
}

/// Headers in frames of the largest size, with more behind each; nothing where the daemon has closed.
fn headers(connection: &mut Http2, stream: u32, block: &[u8], ended: bool) -> Option<()> {
    let pieces: Vec<&[u8]> = block.chunks(FRAME).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let kind = if n == 0 { HEADERS } else { CONTINUATION };
        let flags = if ended && n + 1 == pieces.len() { END_HEADERS } else { 0 };
        connection.try_send(kind, flags, stream, piece)?;
    }
    Some(())
}

fn huge_metadata(way: Way) {
    let target = start(way);
    let daemon = &target.daemon;
    let address = target.at(daemon.port("grpc"));
    let huge = "m".repeat(1 << 20);
    // One header of a megabyte, and a hundred thousand small ones.
    let mut one = call();
    header(&mut one, "x-huge", &huge);
    let mut many = call();
    (0..100_000).for_each(|n| header(&mut many, &format!("x-{n}"), "v"));
    let bound = 20 * CONNECTION_BYTES_MAX + way.bytes(20);
    attack(&format!("huge metadata{}", way.words()), daemon, bound, || {
        for block in [&one, &many].into_iter().cycle().take(20) {
            let mut connection = Http2::connect(address);
            if headers(&mut connection, 1, block, true).is_some() {
                match connection.until_answered(1) {
                    // 431 (in its headers), or the end of the connection.
                    None => {}
                    Some(got) => assert!([HEADERS, RST_STREAM, GOAWAY].contains(&got.kind), "{got:?}"),
                }
            }
        }
    });
}

#[test]
fn metadata_that_is_huge_is_refused() {
    huge_metadata(Way::Plain);
}

/// Headers that never end.
fn metadata_without_end(way: Way) {
    const SENT_BYTES_MAX: usize = 16 << 20;
    let target = start(way);
    let daemon = &target.daemon;
    let mut connection = Http2::connect(target.at(daemon.port("grpc")));
    let bound = CONNECTION_BYTES_MAX + way.bytes(1);
    let (_, sent) = attack(&format!("metadata without end{}", way.words()), daemon, bound, || {
        headers(&mut connection, 1, &call(), false);
        let mut piece = Vec::new();
        header(&mut piece, "x", &"m".repeat(FRAME - 100));
        let mut sent = 0;
        while sent < SENT_BYTES_MAX && connection.try_send(CONTINUATION, 0, 1, &piece).is_some() {
            sent += piece.len();
        }
        sent
    });
    assert!(sent < SENT_BYTES_MAX, "{sent} bytes of headers were taken");
}

#[test]
fn metadata_without_end_ends_the_connection() {
    metadata_without_end(Way::Plain);
}

/// More calls than a connection may have open: they are refused, those that are there go on.
fn too_many_streams(way: Way) {
    let target = start(way);
    let daemon = &target.daemon;
    let mut connection = Http2::connect(target.at(daemon.port("grpc")));
    let bound = CONNECTION_BYTES_MAX + u64::from(MAX_STREAMS) * STREAM_BYTES_MAX + way.bytes(1);
    attack(&format!("too many streams{}", way.words()), daemon, bound, || {
        for n in 0..MAX_STREAMS {
            connection.open(2 * n + 1);
        }
        let beyond = 2 * MAX_STREAMS + 1;
        connection.open(beyond);
        let got = connection.until_answered(beyond).expect("an answer");
        assert_eq!((got.kind, got.code()), (RST_STREAM, REFUSED_STREAM), "{got:?}");
        connection.data(1, &hello(), false);
        // The first one goes on: it is welcomed.
        while connection.frame().is_none_or(|got| (got.stream, got.kind) != (1, DATA)) {}
    });
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    too_many_streams(Way::Plain);
}

pub(super) fn hello() -> Vec<u8> {
    let hello = v1::Hello { min_version: 1, max_version: 1, ..v1::Hello::default() };
    message(&v1::AppendRequest { message: Some(v1::append_request::Message::Hello(hello)) }.encode_to_vec())
}

/// Streams that are reset as soon as they are open, over and over: the server answers ENHANCE_YOUR_CALM, and closes.
fn storm(way: Way, resets: u32, with_hello: bool) {
    let target = start(way);
    let daemon = &target.daemon;
    let address = target.at(daemon.port("grpc"));
    let name = format!("{resets} resets{}{}", if with_hello { " of calls that began" } else { "" }, way.words());
    let bound = 20 * CONNECTION_BYTES_MAX + way.bytes(20);
    let (_, (sent, thrown_out)) = attack(&name, daemon, bound, || {
        let (mut sent, mut thrown_out) = (0, 0);
        while sent < resets {
            let mut connection = Http2::connect(address);
            let mut stream = 1;
            let ended = loop {
                let opened = connection.try_send(HEADERS, END_HEADERS, stream, &call());
                let hello = opened.filter(|()| with_hello).and_then(|()| connection.try_send(0, 0, stream, &hello()));
                if opened.is_none()
                    || (with_hello && hello.is_none())
                    || connection.try_send(RST_STREAM, 0, stream, &8_u32.to_be_bytes()).is_none()
                {
                    break true;
                }
                sent += 1;
                stream += 2;
                if sent >= resets {
                    break false;
                }
            };
            if ended {
                while let Some(got) = connection.frame() {
                    if got.kind == GOAWAY {
                        assert_eq!(got.code(), ENHANCE_YOUR_CALM, "{got:?}");
                    }
                }
                thrown_out += 1;
            }
        }
        (sent, thrown_out)
    });
    println!("hostile: {name}: {sent} were sent, over {thrown_out} connections that were ended for it");
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    assert!(!daemon.said().contains("panicked"), "{}", daemon.said());
}

#[test]
fn a_storm_of_resets() {
    storm(Way::Plain, 5_000, false);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn a_long_storm_of_resets() {
    storm(Way::Plain, 100_000, false);
    storm(Way::Plain, 20_000, true);
}

/// PINGs and SETTINGS whose answers are never read.
fn unread_answers(way: Way) {
    const SENT_BYTES_MAX: usize = 64 << 20;
    let target = start(way);
    let daemon = &target.daemon;
    let address = target.at(daemon.port("grpc"));
    let name = format!("PINGs and SETTINGS that nobody reads the answers of{}", way.words());
    attack(&name, daemon, 4 * CONNECTION_BYTES_MAX + way.bytes(4), || {
        for (kind, payload) in [(PING, &[7; 8][..]), (SETTINGS, &[0, 4, 0, 0, 255, 255][..])] {
            let mut connection = Http2::connect(address);
            connection.set_read_timeout(Duration::from_millis(500));
            let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
            frame.extend([kind, 0, 0, 0, 0, 0]);
            frame.extend(payload);
            let flood = frame.repeat(1000);
            let mut sent = 0;
            while sent < SENT_BYTES_MAX && connection.write(&flood).is_some() {
                sent += flood.len();
            }
            assert!(sent < SENT_BYTES_MAX, "{sent} bytes were taken of who does not read");
        }
    });
}

#[test]
fn answers_that_nobody_reads() {
    unread_answers(Way::Plain);
}

/// Every window of every stream of every connection is filled, with messages that wait for room: what HTTP/2 holds for all
/// of them together is bounded, not only what it holds for each.
fn windows(way: Way, connections: u64) {
    /// Messages of this length wait for a share of the budget, which few can have at a time.
    const MESSAGE_BYTES: usize = 2 << 20;
    let target = start(way);
    let daemon = &target.daemon;
    let address = target.at(daemon.port("grpc"));
    // docs/ARCHITECTURE.md: all windows are a quarter of the budget, and HTTP/2's own first window for each connection; and the
    // calls of all are a part of 2048.
    let windows = BUDGET_BYTES / 4 + connections * 65_535;
    let streams = (connections * u64::from(MAX_STREAMS)).min(2048);
    let bound = windows + 2 * BUDGET_BYTES + connections * CONNECTION_BYTES_MAX + streams * STREAM_BYTES_MAX;
    let (name, bound) =
        (format!("windows of {connections} connections{}", way.words()), bound + way.bytes(connections));
    let (_, sent) = attack(&name, daemon, bound, || {
        let mut all: Vec<Http2> = (0..connections).map(|_| Http2::connect(address)).collect();
        let mut first = hello();
        first.extend([0]);
        first.extend((MESSAGE_BYTES as u32).to_be_bytes());
        let piece = vec![b'w'; 64 << 10];
        let mut sent = 0;
        for connection in &mut all {
            for stream in (0..connection.streams).map(|n| 2 * n + 1) {
                connection.open(stream);
                sent += connection.data_within(stream, &first);
            }
        }
        // Round after round on all streams, never the last byte of a message.
        for _ in 0..MESSAGE_BYTES / piece.len() - 1 {
            let mut round = 0;
            for connection in &mut all {
                for stream in (0..connection.streams).map(|n| 2 * n + 1) {
                    round += connection.data_within(stream, &piece);
                }
            }
            sent += round;
            if round == 0 {
                break;
            }
        }
        sent as u64
    });
    println!("hostile: {name}: {sent} bytes were sent");
    assert!(sent > connections * 60_000, "{sent} bytes: the windows were not filled");
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
}

#[test]
fn windows_of_ten_connections() {
    windows(Way::Plain, 10);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn windows_of_hundreds_of_connections() {
    windows(Way::Plain, 200);
}

/// The same once more, each within TLS.
#[test]
#[ignore = "cargo xtask ci hostile"]
fn http2_within_tls() {
    huge_metadata(Way::Tls);
    metadata_without_end(Way::Tls);
    too_many_streams(Way::Tls);
    storm(Way::Tls, 5_000, false);
    storm(Way::Tls, 5_000, true);
    unread_answers(Way::Tls);
    windows(Way::Tls, 50);
}

/// A record of so many bytes and a few.
pub(super) fn record(bytes: usize) -> logs::LogRecord {
    logs::LogRecord { event_name: "r".repeat(bytes), ..Default::default() }
}

pub(super) fn append(first_seq: u64, records: Vec<logs::LogRecord>) -> Vec<u8> {
    let scope_logs = vec![logs::ScopeLogs { log_records: records, ..Default::default() }];
    let resource_logs = Some(logs::ResourceLogs { scope_logs, ..Default::default() });
    let append = v1::Append { first_seq, level: v1::AckLevel::Received.into(), gap: false, resource_logs };
    message(&v1::AppendRequest { message: Some(v1::append_request::Message::Append(append)) }.encode_to_vec())
}

/// Sends all of it, as the windows open.
pub(super) fn send(connection: &mut Http2, stream: u32, mut bytes: &[u8]) {
    let began = Instant::now();
    while !bytes.is_empty() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{} bytes are not taken", bytes.len());
        match connection.data_within(stream, bytes) {
            0 => std::thread::sleep(Duration::from_millis(1)),
            sent => bytes = &bytes[sent..],
        }
    }
}

/// Small messages of empty records, which are many times as long once they are encoded, and a disk that does not answer:
/// they wait for room as they came, with a share of what is for messages that are put together, or are refused.
#[test]
fn what_waits_for_room_is_as_long_as_it_came() {
    if !is_root() {
        return not_run("messages that wait for room", "an ordinary user cannot fill all bytes");
    }
    const CONNECTIONS: u32 = 2;
    /// Two bytes each as they come: a message that comes in one DATA frame.
    const RECORDS: usize = 8_000;
    let daemon = setup().set("journal.io_engine", "blocking").start();
    let pages = daemon.port("metrics");
    let writers = threads(daemon.pid(), |name| name.starts_with("clad-write") || name.starts_with("clad-ingest"));
    let disk = Holder::of_flushes(&writers);
    let streams = u64::from(CONNECTIONS * MAX_STREAMS);
    let bound = 2 * BUDGET_BYTES
        + BUDGET_BYTES
        + u64::from(CONNECTIONS + 1) * CONNECTION_BYTES_MAX
        + streams * STREAM_BYTES_MAX;
    let small = append(0, vec![logs::LogRecord::default(); RECORDS]);
    assert!(small.len() < FRAME, "{} bytes: it would need a share before it waits", small.len());
    attack("empty records that wait for room", &daemon, bound, || {
        disk.hold();
        let mut filler = Http2::connect(daemon.port("grpc"));
        filler.open(1);
        send(&mut filler, 1, &hello());
        for first_seq in 0..4 {
            send(&mut filler, 1, &append(first_seq, vec![record(1 << 20)]));
        }
        let began = Instant::now();
        while metrics(pages)["clad_inflight_bytes"] < f64::from(3 << 20) {
            assert!(began.elapsed() < TEST_TIMEOUT, "there is room still");
        }
        let mut all: Vec<_> = (0..CONNECTIONS).map(|_| Http2::connect(daemon.port("grpc"))).collect();
        for connection in &mut all {
            for stream in (0..MAX_STREAMS).map(|n| 2 * n + 1) {
                connection.open(stream);
                send(connection, stream, &hello());
                send(connection, stream, &small);
            }
        }
        // They have waited, as long as one waits, and are refused; but for a few that go into what is free still.
        let refused = || metrics(pages)["clad_rejected_records_total{reason=\"busy\"}"] as usize;
        while refused() < streams as usize / 4 * 3 * RECORDS {
            assert!(began.elapsed() < TEST_TIMEOUT, "{} records are refused", refused());
            std::thread::sleep(Duration::from_millis(10));
        }
        disk.release();
    });
}
