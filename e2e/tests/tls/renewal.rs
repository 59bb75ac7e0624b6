//! Certificates that change while the daemon runs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clad_client::{Record, blocking};
use clad_e2e::{Setup, TEST_TIMEOUT};
use nix::sys::signal::Signal;

use super::certs::{Authority, Files, Issued, Wanted, replace};
use super::{Host, append, builder, refused, served};

/// Year of the end, as the metric of expiry has it.
fn end_of(year: i32) -> f64 {
    let days = i64::from(year - 1970) * 365 + i64::from((year - 1969) / 4 - (year - 1901) / 100 + (year - 1601) / 400);
    (days * 24 * 3600) as f64
}

fn expiry(host: &Host) -> f64 {
    host.daemon.metric("clad_tls_certificate_expiry_timestamp_seconds")
}

fn renewed(host: &Host, year: i32) -> Issued {
    host.authority.issue(Wanted { dns_names: &["localhost", "127.0.0.1"], valid: (2020, year), ..Wanted::default() })
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn files_that_change_are_taken_without_a_signal_and_with_one() {
    let host = Host::start();
    assert_eq!(expiry(&host), end_of(2120));
    renewed(&host, 2110).put(host.folder.path(), "server");
    wait("the new certificate", || expiry(&host) == end_of(2110));
    append(&host.address("tcp+tls"), "by the new one").expect("durable");
    renewed(&host, 2111).put(host.folder.path(), "server");
    host.daemon.signal(Signal::SIGHUP);
    wait("the newer certificate", || expiry(&host) == end_of(2111));
    assert!(host.daemon.said().contains("TLS: the files have changed"));
}

/// Each leaves what is in force as it is, and is reported until it is mended.
#[test]
fn files_that_are_not_sound_leave_the_old_in_force() {
    let host = Host::start();
    let address = host.address("tcp+tls");
    let good = Issued {
        cert: fs::read_to_string(&host.files.cert).expect("read"),
        key: fs::read_to_string(&host.files.key).expect("read"),
    };
    let half = &good.cert[..good.cert.len() / 2];
    let other = renewed(&host, 2110);
    let old = renewed(&host, 2021);
    let chain = format!("{}{}", good.cert, other.cert);
    for (cert, key, mode, words) in [
        (half, &good.key, 0o600, "not PEM, or cut short"),
        ("", &good.key, 0o600, "there is no certificate in it"),
        (&good.cert, &other.key, 0o600, "it is not the key of tls.cert"),
        (&good.cert, &good.cert, 0o600, "there is no private key in it"),
        (&old.cert, &old.key, 0o600, "it was valid until"),
        (&chain, &good.key, 0o600, "certificate 2 is not the issuer of certificate 1"),
        (&good.cert, &good.key, 0o644, "others can get at it (mode 0644)"),
    ] {
        replace(&host.files.key, key, mode);
        replace(&host.files.cert, cert, 0o644);
        host.daemon.signal(Signal::SIGHUP);
        host.daemon.wait_said(words);
        assert_eq!(expiry(&host), end_of(2120));
        append(&address, words).expect("the old one is in force");
    }
    // What is there now is refused at a look too, and said once.
    let page = || clad_e2e::web::page(host.daemon.port("metrics"), "/healthz").1;
    wait("the look", || page().contains("others can get at it"));
    assert_eq!(host.daemon.metric("clad_tls_reload_failed"), 1.0);
    good.put(host.folder.path(), "server");
    wait("the mended files", || host.daemon.metric("clad_tls_reload_failed") == 0.0);
    assert_eq!(served(&address).len(), 7);
}

/// Sessions that began under an authority end with it.
#[test]
fn a_new_authority_of_clients_lets_nobody_go_on_by_the_old() {
    let host = Host::start_with(&[("tls.require_client_cert", "true")]);
    let client = host.client("billing", &host.authority.client("spiffe://prod/billing"));
    // A file of the client's own: it has the same address, and so its sessions, to the end.
    let trusted = host.folder.path().join("trusted.crt");
    fs::write(&trusted, host.authority.pem()).expect("written");
    let address = host
        .address_as("tcp+tls", &client)
        .replace(&format!("ca={}", host.ca.display()), &format!("ca={}", trusted.display()));
    append(&address, "by the old authority").expect("durable");
    append(&address, "by a session that goes on").expect("durable");
    assert_eq!(host.handshakes("resumed"), 1.0);
    let next = Authority::new("the next authority");
    replace(&host.ca, &next.pem(), 0o644);
    wait("the next authority", || host.daemon.said().contains("TLS: the files have changed"));
    let error = refused(&address);
    assert!(error.contains("refuses this client"), "{error}");
    assert_eq!(host.handshakes("resumed"), 1.0);
    let client = host.client("billing of the next", &next.client("spiffe://prod/billing"));
    let address = format!(
        "tcp+tls://{}?ca={}&cert={}&key={}",
        host.daemon.port("tcp"),
        trusted.display(),
        client.cert.display(),
        client.key.display()
    );
    append(&address, "by the next authority").expect("durable");
}

/// Reloads under a load that also reconnects all the time. `CLAD_TLS_RELOADS` of them, by hand 1,000.
#[test]
#[expect(clippy::print_stdout, reason = "the figure of a run by hand")]
fn reloads_under_load_refuse_nobody_and_lose_nothing() {
    let reloads: i32 = std::env::var("CLAD_TLS_RELOADS").map_or(40, |count| count.parse().expect("a number"));
    let host = Host::start();
    let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = |reconnects: bool, who: &'static str| {
        let (address, stop, acked) = (host.address("tcp+tls"), stop.clone(), acked.clone());
        std::thread::spawn(move || {
            let mut producer = blocking::Producer::connect(builder(&address)).expect("connected");
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                if reconnects {
                    producer.close(TEST_TIMEOUT).expect("closed");
                    producer = blocking::Producer::connect(builder(&address)).expect("no connection is refused");
                }
                producer.append(&[Record::text(0, 9, format!("{who} {number}"))]).expect("no ack is lost");
                acked.fetch_add(1, Ordering::Relaxed);
                number += 1;
            }
            producer.close(TEST_TIMEOUT).expect("closed");
        })
    };
    let loads = [load(false, "stays"), load(false, "stays too"), load(true, "comes and goes")];
    for number in 0..reloads {
        let before = expiry(&host);
        renewed(&host, 2100 + number % 20).put(host.folder.path(), "server");
        host.daemon.signal(Signal::SIGHUP);
        wait("the reload", || expiry(&host) != before);
    }
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        load.join().expect("it holds");
    }
    let read = served(&host.address("tcp+tls"));
    assert_eq!(read.len() as u64, acked.load(Ordering::Relaxed));
    println!(
        "reloads: {reloads} under {} acked appends, {} handshakes",
        read.len(),
        host.handshakes("full") + host.handshakes("resumed")
    );
}

/// Each key of `[tls]`, seen to be changed by a client; `min_version` by an old one, in `real`.
#[test]
fn keys_that_change_hold_for_the_next_handshake() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("the tests' authority"));
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, authority.pem()).expect("written");
    let first = authority.server().put(folder.path(), "first");
    let names = Wanted { dns_names: &["second.example"], ..Wanted::default() };
    let second = authority.issue(names).put(folder.path(), "second");
    let setup = Setup::new().set("ingest.tcp.tls", "true");
    let file = |files: &Files, more: &str| format!("[tls]\ncert = {:?}\nkey = {:?}\n{more}", files.cert, files.key);
    fs::write(setup.config(), file(&first, "")).expect("written");
    let daemon = setup.start();
    let address = format!("tcp+tls://{}?ca={}", daemon.port("tcp"), ca.display());
    append(&address, "by the first").expect("durable");
    let mut reloads = 0;
    let mut reload = |text: &str| {
        fs::write(daemon.setup().config(), text).expect("written");
        daemon.signal(Signal::SIGHUP);
        reloads += 1;
        wait("the reload", || daemon.said().matches("HUP: reloaded").count() == reloads);
    };
    reload(&file(&second, ""));
    let error = refused(&address);
    assert!(error.contains("is not for 127.0.0.1"), "{error}");
    append(&format!("{address}&server_name=second.example"), "by the second").expect("durable");
    let client = authority.client("spiffe://prod/a").put(folder.path(), "client");
    let required = format!("client_ca = {ca:?}\nrequire_client_cert = true\n");
    reload(&file(&first, &required));
    refused(&address);
    let named = format!("{address}&cert={}&key={}", client.cert.display(), client.key.display());
    append(&named, "by name").expect("durable");
    reload(&file(&first, &format!("{required}min_version = \"1.3\"\n")));
    append(&named, "by 1.3").expect("durable");
}
