//! Syslog and RELP against a real daemon: each way in, what is cut, refused or dropped, and what is answered.

mod clients;
mod relp;
mod ways;

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Json, Setup, TEST_TIMEOUT};

/// A daemon with a listener of each kind, named by its protocol.
fn setup() -> Setup {
    let mut setup = Setup::new();
    let folder = setup.config().parent().expect("its folder").to_owned();
    for protocol in ["udp", "tcp", "relp"] {
        setup = setup.set(&format!("ingest.syslog.{protocol}.listen"), &format!("{protocol}://127.0.0.1:0"));
    }
    for protocol in ["unix-dgram", "unix-stream"] {
        let address = format!("{protocol}://{}", folder.join(protocol).display());
        setup = setup.set(&format!("ingest.syslog.{protocol}.listen"), &address);
    }
    for protocol in ["udp", "tcp", "relp", "unix-dgram", "unix-stream"] {
        setup = setup.set(&format!("ingest.syslog.{protocol}.time_zone"), "UTC");
    }
    setup
}

/// Where a listener is, without its protocol.
fn place(daemon: &Daemon, name: &str) -> String {
    let listeners = daemon.status().listeners;
    let address = listeners.get(&format!("syslog.{name}")).unwrap_or_else(|| panic!("{name} is not in {listeners:?}"));
    address.split_once("://").expect("a protocol").1.to_owned()
}

fn path(daemon: &Daemon, name: &str) -> PathBuf {
    PathBuf::from(place(daemon, name))
}

fn datagrams_to(daemon: &Daemon) -> UnixDatagram {
    let socket = UnixDatagram::unbound().expect("a socket");
    socket.connect(path(daemon, "unix-dgram")).expect("a daemon");
    socket
}

/// All records, once there are so many.
fn records(daemon: &Daemon, count: usize) -> Vec<Json> {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let output = clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"");
        let records: Vec<Json> =
            output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(clad_e2e::json).collect();
        if records.len() >= count {
            return records;
        }
        assert!(
            Instant::now() < until,
            "{count} records were waited for, these are there: {records:#?}\n{}",
            daemon.said()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn body(record: &Json) -> &str {
    record["body"].as_str().unwrap_or_else(|| panic!("no text: {record}"))
}
