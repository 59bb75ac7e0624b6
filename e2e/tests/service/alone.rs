//! A request of OTLP that is alone writes by itself: no thread of the journal wakes for it, and where the disk holds it, nobody but
//! its own connection waits with it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use clad_e2e::hold::{Holder, threads};
use clad_e2e::web::page;
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prost::Message as _;

/// Exports one record, and returns at its answer.
fn export(daemon: &Daemon, level: &str, time: u64) {
    let record = LogRecord { time_unix_nano: time, ..LogRecord::default() };
    let scope_logs = vec![ScopeLogs { log_records: vec![record], ..ScopeLogs::default() }];
    let resource_logs = vec![ResourceLogs { scope_logs, ..ResourceLogs::default() }];
    let body = ExportLogsServiceRequest { resource_logs }.encode_to_vec();
    let head = format!(
        "POST /v1/logs HTTP/1.1\r\nhost: clad\r\ncontent-type: application/x-protobuf\r\nclad-ack: {level}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(daemon.port("grpc")).expect("a daemon");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
    stream.write_all(&[head.as_bytes(), &body].concat()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// How often the threads of the journal that write have gone to wait.
fn waits(daemon: &Daemon) -> u64 {
    let writers = threads(daemon.pid(), |name| name.starts_with("clad-write"));
    assert!(!writers.is_empty(), "nobody writes");
    let waits = |(thread, _): &(i32, String)| -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/task/{thread}/status", daemon.pid())).expect("it is there");
        let found = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        found.expect("a line").trim().parse().expect("a number")
    };
    writers.iter().map(waits).sum()
}

#[test]
fn a_request_that_is_alone_writes_by_itself_and_holds_nobody_up() {
    const REQUESTS: u64 = 40;
    // What a ring writes is no call of a thread.
    let daemon = Setup::new().set("journal.io_engine", "blocking").start();
    export(&daemon, "durable", 0);
    let before = waits(&daemon);
    (0..REQUESTS).for_each(|time| export(&daemon, "durable", time));
    // Another job of the journal may be under way in between, as the marker of an idle log.
    let woken = waits(&daemon) - before;
    assert!(woken < REQUESTS / 2, "threads of the journal were woken {woken} times for {REQUESTS} requests");

    let disk = Holder::of_flushes(&threads(daemon.pid(), |name| name.starts_with("tokio-")));
    disk.hold();
    thread::scope(|scope| {
        let held = scope.spawn(|| export(&daemon, "durable", REQUESTS));
        disk.wait_held(1);
        // Its thread waits for the disk; who asks for what the disk has no part in is served.
        for time in 0..10 {
            export(&daemon, "received", REQUESTS + 1 + time);
        }
        assert_eq!(page(daemon.port("metrics"), "/metrics").0, 200);
        assert!(daemon.status().offsets.expect("offsets").received >= REQUESTS + 11);
        // One more at `durable` is not alone, and waits as it always did.
        let behind = scope.spawn(|| export(&daemon, "durable", 2 * REQUESTS));
        daemon.wait_until("it is taken", |status| status.offsets.expect("offsets").received >= REQUESTS + 12);
        assert!(!held.is_finished() && !behind.is_finished(), "nothing is durable yet");
        disk.release();
    });
}
