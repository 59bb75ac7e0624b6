//! Peers that speak something else, or nothing: each gets an answer it can read, where there is one, and costs nobody else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use clad_e2e::raw::{Raw, hello};
use clad_e2e::{Daemon, TEST_TIMEOUT};

use super::{Host, append, refused};

/// What comes back for these bytes.
fn said(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream.write_all(bytes).expect("sent");
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said); // a reset after what was said is an end too
    said
}

#[test]
fn who_speaks_no_tls_is_answered_in_its_own_protocol() {
    let host = Host::start();
    let error = Raw::tcp(host.daemon.port("tcp")).greet(&hello()).expect_err("it is refused");
    assert!(error.text.contains("tcp+tls://"), "{error}");
    let answer = said(host.daemon.port("grpc"), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("speaks TLS alone: use https://"), "{answer}");
    let answer = said(host.daemon.port("grpc"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(String::from_utf8_lossy(&answer).contains("speaks TLS alone"), "{answer:?}");
    host.wait_handshakes("plaintext", 3.0);
    host.daemon.wait_said("the peer speaks no TLS, and this listener takes nothing else");
}

/// A client of another day: an old version, noise behind a good first byte, an end in the middle.
#[test]
fn old_versions_noise_and_halves_end_the_handshake_alone() {
    let host = Host::start();
    // A ClientHello of TLS 1.0 with one cipher.
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 1];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0, 0x2F, 1, 0]);
    let answer = said(host.daemon.port("tcp"), &hello);
    assert!(answer.len() == 7 && answer[0] == 0x15 && answer[5] == 2, "a fatal alert: {answer:?}");
    host.wait_handshakes("incompatible", 1.0);
    said(host.daemon.port("tcp"), &[&[0x16, 3, 3, 0, 200][..], &[9; 200]].concat());
    host.wait_handshakes("not_tls", 1.0);
    let half = TcpStream::connect(host.daemon.port("tcp")).expect("a listener");
    (&half).write_all(&hello[..20]).expect("sent");
    drop(half);
    host.wait_handshakes("closed", 1.0);
    append(&host.address("tcp+tls"), "as before").expect("durable");
}

/// The other way round: TLS where none is spoken.
#[test]
fn tls_to_a_listener_without_it_fails_in_words() {
    let (host, plain) = (Host::start(), Daemon::start());
    for (scheme, port) in [("tcp+tls", "tcp"), ("grpcs", "grpc")] {
        let error = refused(&format!("{scheme}://{}?ca={}", plain.port(port), host.ca.display()));
        assert!(
            error.contains("TLS") || error.contains("InvalidMessage") || error.contains("corrupt"),
            "{scheme}: {error}"
        );
    }
}

/// The words of a client about a daemon that it should not trust.
#[test]
fn a_client_says_what_is_wrong_with_the_daemon() {
    let host = Host::start();
    let other = host.folder.path().join("other.crt");
    std::fs::write(&other, super::certs::Authority::new("another").pem()).expect("written");
    let port = host.daemon.port("tcp");
    let missing = host.folder.path().join("missing");
    for (address, words) in [
        (format!("tcp+tls://{port}?ca={}", other.display()), "no authority that is trusted here"),
        (format!("tcp+tls://{port}?ca={}&server_name=logs.example", host.ca.display()), "is not for logs.example"),
        (format!("tcp+tls://{port}"), "set CLAD_TLS_CA"),
        (format!("tcp+tls://{port}?ca={}", missing.display()), "No such file"),
        (format!("tcp+tls://{port}?ca={}&cert={}", host.ca.display(), host.files.cert.display()), "wanted both"),
        (
            format!("tcp+tls://{port}?ca={0}&cert={0}&key={1}", host.ca.display(), host.files.key.display()),
            "do not belong together",
        ),
    ] {
        let error = refused(&address);
        assert!(error.contains(words), "{address}: {error}");
    }
}

/// A stop waits for no handshake, whatever its time.
#[test]
fn a_stop_waits_for_no_handshake() {
    let times = [
        ("limits.handshake_timeout", "10m"),
        ("daemon.drain_timeout", "10m"),
        ("ingest.syslog.net.listen", "tls://127.0.0.1:0"),
    ];
    let mut host = Host::start_with(&times);
    let syslog = host.daemon.status().listeners["syslog.net"].clone();
    let syslog = syslog.trim_start_matches("tls://").parse().expect("an address");
    let open: Vec<_> = [host.daemon.port("tcp"), host.daemon.port("grpc"), syslog]
        .map(|port: SocketAddr| {
            let stream = TcpStream::connect(port).expect("a listener");
            (&stream).write_all(&[0x16, 3, 1]).expect("sent");
            stream
        })
        .into();
    append(&host.address("tcp+tls"), "as before").expect("durable");
    assert_eq!(host.daemon.term(), Some(0));
    drop(open);
}

/// Connections that never end their handshake, more than there may be at once: others come through at once, and go on.
#[test]
fn half_open_handshakes_hold_up_nobody() {
    const HALF_OPEN: usize = 600;
    let connections = clad_e2e::max_connections_for(HALF_OPEN + 100);
    let host = Host::start_with(&[("limits.max_connections", &connections), ("limits.handshake_timeout", "60s")]);
    let address = host.address("tcp+tls");
    append(&address, "before").expect("durable");
    let mut open = Vec::new();
    for number in 0..HALF_OPEN {
        let stream = TcpStream::connect(host.daemon.port("tcp")).expect("a listener");
        (&stream).write_all(&[0x16, 3, 1]).expect("sent");
        open.push(stream);
        if number % 100 == 99 {
            append(&address, &number.to_string()).expect("durable, though others are in the middle of theirs");
        }
    }
    assert!(host.handshakes("crowded") >= (HALF_OPEN - 256 - 10) as f64, "{}", host.handshakes("crowded"));
    assert_eq!(host.handshakes("timeout"), 0.0, "nobody waited for a time that ran out");
    drop(open);
    append(&address, "after").expect("durable");
}
