//! UDP, TCP and Unix sockets.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};
use nix::sys::signal::Signal;

use super::{body, datagrams_to, path, place, records, setup};

const MESSAGE: &[u8] = b"<165>1 2026-11-27T10:00:00.5Z web1 app 42 ID7 [q@1 k=\"v\\\"w\"] what happened";

/// Sends a message by a way, which names its listener.
fn send(daemon: &Daemon, way: &str, message: &[u8]) {
    let place = place(daemon, way);
    let line = [message, b"\n"].concat();
    match way {
        "udp" => {
            UdpSocket::bind("127.0.0.1:0").expect("a socket").send_to(message, place).expect("sent");
        }
        "tcp" => TcpStream::connect(place).expect("a daemon").write_all(&line).expect("sent"),
        "unix-stream" => UnixStream::connect(place).expect("a daemon").write_all(&line).expect("sent"),
        "unix-dgram" => {
            datagrams_to(daemon).send(message).expect("sent");
        }
        "relp" => super::relp::Client::open(daemon).send_and_close(&[message]),
        other => panic!("{other} is no way"),
    }
}

#[test]
fn a_message_is_the_same_record_by_each_way_in() {
    let daemon = setup().start();
    for (way, transport) in [
        ("udp", "syslog_udp"),
        ("tcp", "syslog_tcp"),
        ("relp", "relp"),
        ("unix-dgram", "syslog_unix"),
        ("unix-stream", "syslog_unix"),
    ] {
        let before = records(&daemon, 0).len();
        send(&daemon, way, MESSAGE);
        let all = records(&daemon, before + 1);
        let record = &all[before];
        assert_eq!(body(record), "what happened", "{way}");
        assert_eq!((&record["component"], &record["severity"]), (&"app".into(), &"INFO2".into()), "{way}: {record}");
        assert_eq!(record["time"], "2026-11-27T10:00:00.500000000Z", "{way}");
        let attributes = serde_json::json!({
            "syslog.facility": "local4",
            "syslog.hostname": "web1",
            "syslog.procid": "42",
            "syslog.msgid": "ID7",
            "syslog.structured_data.q@1.k": "v\"w",
        });
        assert_eq!(record["attributes"], attributes, "{way}");
        let peer = &record["peer_meta"];
        assert_eq!(peer["transport"], transport, "{record}");
        if way.starts_with("unix") {
            assert_eq!(peer["pid"], std::process::id(), "{way}: the kernel names the sender");
            assert_eq!(peer["uid"], nix::unistd::Uid::effective().as_raw(), "{way}");
        } else {
            assert!(peer["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{record}");
        }
        assert!(daemon.metric(&format!("clad_appended_records_total{{transport=\"{transport}\"}}")) >= 1.0);
    }
    assert_eq!(daemon.metric("clad_syslog_messages_total{format=\"5424\"}"), 5.0);
    assert_eq!(daemon.metric("clad_syslog_unparsed_total"), 0.0);
}

#[test]
fn both_framings_of_tcp_and_what_no_grammar_has() {
    let daemon = setup().start();
    let mut counted = TcpStream::connect(place(&daemon, "tcp")).expect("a daemon");
    counted.write_all(b"12 <13>app: a\nb11 <13>app: b\n").expect("sent");
    records(&daemon, 2);
    let mut lines = TcpStream::connect(place(&daemon, "tcp")).expect("a daemon");
    lines.write_all(b"plain, \xFF\0 no priority\n<13>app: \x80\r\n<13>app: the end").expect("sent");
    drop(lines);
    let all = records(&daemon, 5);
    assert_eq!((body(&all[0]), body(&all[1])), ("a\nb", "b"));
    assert_eq!(all[2]["body_base64"], "cGxhaW4sIP8AIG5vIHByaW9yaXR5", "byte for byte");
    assert!(all[2]["attributes"]["clad.parse_error"].as_str().is_some_and(|text| text.contains("no priority")));
    assert_eq!(all[3]["body_base64"], "gA==");
    assert_eq!(body(&all[4]), "the end");
    assert_eq!(daemon.metric("clad_syslog_unparsed_total"), 1.0);
}

#[test]
fn what_is_too_long_is_cut_and_a_length_that_lies_ends_its_connection_alone() {
    let daemon =
        setup().set("ingest.syslog.tcp.max_message", "1KiB").set("ingest.syslog.udp.max_message", "1KiB").start();
    let long = [b"<13>app: ".to_vec(), vec![b'x'; 5000]].concat();
    let counted = [format!("{} ", long.len()).into_bytes(), long.clone(), b"10 <13>app: b".to_vec()].concat();
    TcpStream::connect(place(&daemon, "tcp")).expect("a daemon").write_all(&counted).expect("sent");
    let all = records(&daemon, 2);
    assert_eq!((body(&all[0]).len(), body(&all[1])), (1024 - 9, "b"));
    assert_eq!(all[0]["attributes"]["log.truncated"], true);
    assert_eq!(all[0]["attributes"]["log.original_length"], 5009);
    send(&daemon, "udp", &long);
    let all = records(&daemon, 3);
    assert_eq!((body(&all[2]).len(), &all[2]["attributes"]["log.original_length"]), (1024 - 9, &5009.into()));
    assert_eq!(daemon.metric("clad_syslog_truncated_total"), 2.0);

    let mut good = TcpStream::connect(place(&daemon, "tcp")).expect("a daemon");
    good.write_all(b"<13>app: before\n").expect("sent");
    let mut bad = TcpStream::connect(place(&daemon, "tcp")).expect("a daemon");
    bad.write_all(b"10 <13>app: c9999999999 <13>app: x").expect("sent");
    bad.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    assert_eq!(std::io::Read::read(&mut bad, &mut [0]).unwrap_or(0), 0, "it is closed");
    good.write_all(b"<13>app: after\n").expect("sent");
    let all = records(&daemon, 6);
    let bodies: Vec<&str> = all[3..].iter().map(body).collect();
    assert_eq!(bodies.iter().filter(|body| ["before", "c", "after"].contains(body)).count(), 3, "{bodies:?}");
    assert_eq!(daemon.metric("clad_dropped_records_total{reason=\"invalid\"}"), 1.0);
    daemon.wait_said("a connection of syslog is closed");
}

/// A sender that says a byte and nothing more costs its connection alone.
#[test]
fn senders_that_never_end_a_message_cost_others_nothing() {
    const SILENT: usize = 500;
    let daemon = setup().set("limits.max_connections", &(2 * SILENT + 64).to_string()).start();
    let mut silent = Vec::new();
    for index in 0..SILENT {
        let mut stream =
            TcpStream::connect(place(&daemon, if index % 2 == 0 { "tcp" } else { "relp" })).expect("a daemon");
        stream.write_all(b"1").expect("sent");
        silent.push(stream);
    }
    let until = Instant::now() + TEST_TIMEOUT;
    while daemon.metric("clad_connections{transport=\"syslog_tcp\"}") < (SILENT / 2) as f64 {
        assert!(Instant::now() < until, "{}", daemon.said());
        thread::sleep(Duration::from_millis(5));
    }
    for way in ["udp", "tcp", "relp", "unix-dgram", "unix-stream"] {
        send(&daemon, way, MESSAGE);
    }
    records(&daemon, 5);
    drop(silent);
    // What they said is a message: a line without its end. The half of a frame of RELP is none.
    records(&daemon, 5 + SILENT / 2);
}

/// What came before the stop is in the log, whoever sent it.
#[test]
fn datagrams_that_wait_at_a_stop_are_stored() {
    // More than are read before the signal is; only root has a queue for them.
    let over_udp = if clad_e2e::is_root() { 4000 } else { 150 };
    let mut daemon = setup().start();
    let (unix, udp) = (datagrams_to(&daemon), UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let udp_place = place(&daemon, "udp");
    daemon.signal(Signal::SIGSTOP);
    unix.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    for number in 0..over_udp {
        // The queue of a Unix socket is short.
        sent += usize::from(unix.send(format!("<13>app: unix {number}").as_bytes()).is_ok());
        udp.send_to(format!("<13>app: udp {number}").as_bytes(), &udp_place).expect("sent");
    }
    assert!(sent > 0);
    daemon.signal(Signal::SIGTERM);
    daemon.signal(Signal::SIGCONT);
    assert_eq!(daemon.wait_end(), Some(0), "{}", daemon.said());
    let stored = clad_e2e::readback::files(daemon.dir());
    assert_eq!(stored.len(), sent + over_udp, "{sent} over the Unix socket");
}

/// Sent = stored + counted, and a record says so.
#[test]
fn what_the_kernel_drops_of_udp_is_counted_and_reported() {
    const SENT: u64 = 60_000;
    let daemon = setup().start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let place = place(&daemon, "udp");
    daemon.signal(Signal::SIGSTOP);
    let message = [b"<13>app: ".to_vec(), vec![b'x'; 400]].concat();
    for _ in 0..SENT {
        socket.send_to(&message, &place).expect("sent");
    }
    daemon.signal(Signal::SIGCONT);
    // The kernel says with a datagram what it dropped before it.
    let until = Instant::now() + TEST_TIMEOUT;
    let mut last = 0;
    let counted = loop {
        socket.send_to(b"<13>app: last", &place).expect("sent");
        last += 1;
        let stored = daemon.metric("clad_appended_records_total{transport=\"syslog_udp\"}") as u64;
        let dropped = daemon.metric("clad_dropped_records_total{reason=\"kernel_queue\"}") as u64;
        let read = daemon.metric("clad_syslog_messages_total{format=\"3164\"}") as u64;
        if read + dropped == SENT + last {
            break (stored, dropped, read);
        }
        assert!(Instant::now() < until, "{read} read, {dropped} dropped of {SENT} and {last}\n{}", daemon.said());
        thread::sleep(Duration::from_millis(20));
    };
    assert!(counted.1 > 0, "nothing was dropped of {SENT}: {counted:?}");
    let reports: Vec<_> =
        records(&daemon, 1).into_iter().filter(|record| record["event_name"] == "clad.records_dropped").collect();
    let reported: u64 =
        reports.iter().map(|r| r["attributes"]["clad.dropped.records"].as_u64().expect("a number")).sum();
    assert_eq!(reported, counted.1, "{reports:?}");
    assert_eq!(reports[0]["component"], "clad");
    assert!(body(&reports[0]).contains(&format!(" messages of udp://{place} dropped between 20")), "{}", reports[0]);
}

/// With little room each message is stored, or dropped and counted.
#[test]
fn a_flood_of_datagrams_is_stored_or_counted() {
    let daemon = setup()
        .set("limits.max_inflight_bytes", "64KiB")
        .set("limits.max_connection_inflight_bytes", "16KiB")
        .set("limits.max_append_bytes", "8KiB")
        .set("journal.max_record_bytes", "4KiB")
        .set("ingest.syslog.unix-dgram.max_message", "2KiB")
        .set("ingest.syslog.udp.max_message", "2KiB")
        .set("ingest.syslog.tcp.max_message", "2KiB")
        .set("ingest.syslog.relp.max_message", "2KiB")
        .set("ingest.syslog.unix-stream.max_message", "2KiB")
        .start();
    let socket = datagrams_to(&daemon);
    let sent = 50_000_u64;
    for number in 0..sent {
        socket.send(format!("<13>app: {number:>1000}").as_bytes()).expect("sent");
    }
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let read = daemon.metric("clad_syslog_messages_total{format=\"3164\"}") as u64;
        if read == sent {
            break;
        }
        assert!(Instant::now() < until, "{read} of {sent} were read\n{}", daemon.said());
        thread::sleep(Duration::from_millis(5));
    }
    let dropped = daemon.metric("clad_dropped_records_total{reason=\"busy\"}") as u64;
    let all = records(&daemon, (sent - dropped) as usize);
    let mut numbers: Vec<u64> =
        all.iter().filter(|r| r["component"] == "app").map(|r| body(r).trim().parse().expect("a number")).collect();
    assert!(numbers.is_sorted(), "in their order");
    numbers.dedup();
    assert_eq!(numbers.len() as u64 + dropped, sent, "stored and counted is sent");
}

/// A sender over TCP waits while there is no room, and nothing of its is dropped.
#[test]
fn a_flood_over_tcp_is_stored_whole() {
    let daemon =
        setup().set("limits.max_inflight_bytes", "4MiB").set("limits.max_connection_inflight_bytes", "2MiB").start();
    let mut stream = TcpStream::connect(place(&daemon, "tcp")).expect("a daemon");
    let sent = 50_000;
    let mut lines = Vec::new();
    for number in 0..sent {
        lines.extend_from_slice(format!("<13>app: {number:>200}\n").as_bytes());
    }
    stream.write_all(&lines).expect("sent");
    drop(stream);
    let all = records(&daemon, sent);
    assert_eq!(all.len(), sent);
    for (number, record) in all.iter().enumerate() {
        assert_eq!(body(record).trim(), number.to_string());
    }
}

/// A socket that another daemon left is taken over; one that is served is not.
#[test]
fn a_socket_is_taken_from_the_dead_alone() {
    let mut first = setup().start();
    let socket = path(&first, "unix-dgram");
    let second = |path: &std::path::Path| {
        Setup::new().set("ingest.syslog.a.listen", &format!("unix-dgram://{}", path.display())).try_start()
    };
    let refused = second(&socket).expect_err("it is served").said;
    assert!(refused.contains("another process answers on this socket"), "{refused}");
    first.kill9();
    assert!(socket.exists());
    let mut taken = second(&socket).expect("the dead have left it");
    assert_eq!(taken.term(), Some(0));
    assert!(!socket.exists());
}
