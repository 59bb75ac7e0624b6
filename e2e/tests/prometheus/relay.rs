//! `clad-relay`, scraped beside its daemon: each fault of it raises its alert, which ends with the fault.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use clad_e2e::tool::Running;
use clad_e2e::{Daemon, Raw, Scratch, Setup};
use clad_proto::AckLevel;

use crate::server::{Prometheus, given};

/// A relay of its own, with metrics on a port that is the same after each start.
pub(crate) struct Relay {
    scratch: Scratch,
    metrics: SocketAddr,
    running: Running,
}

impl Relay {
    /// One that brings to this daemon, with the lines of `[from.…]`. In them `FOLDER` is the folder of [`Relay::path`].
    pub(crate) fn start(daemon: &Daemon, from: &str) -> Self {
        Self::between(from, &format!("[to.clad]\nserver = \"unix://{}\"\n", daemon.socket().display()))
    }

    /// One with the lines of `[from.…]` and of `[to.…]`.
    fn between(from: &str, to: &str) -> Self {
        let scratch = Scratch::new();
        // Nobody else is given the port while it is in the range of those that are asked for by number.
        let metrics = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let from = from.replace("FOLDER", &scratch.data().display().to_string());
        let text = format!("name = \"test\"\n{from}\n{to}\n[metrics]\nlisten = \"{metrics}\"\n");
        fs::write(scratch.data().join("relay.toml"), text).expect("written");
        let running = run(&scratch);
        Self { scratch, metrics, running }
    }

    /// A file in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.data().join(name)
    }

    /// Where its metrics are.
    pub(crate) const fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    fn append(&self, name: &str, text: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.path(name));
        std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("written");
    }

    fn restart(&mut self) {
        self.running.kill();
        self.running = run(&self.scratch);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.running.kill();
    }
}

fn run(scratch: &Scratch) -> Running {
    let mut relay = Command::new(given("CLAD_RELAY"));
    relay.arg("run").arg(scratch.data().join("relay.toml")).arg("--state").arg(scratch.data().join("state"));
    Running::start(relay.env_remove("NOTIFY_SOCKET"))
}

/// All that a folder's files have.
pub(crate) const FILES: &str = "[from.files]\npaths = [\"FOLDER/*.log\"]\nstart = \"beginning\"";

fn stored(prometheus: &Prometheus, lines: f64) {
    prometheus.wait("lines that are stored", || {
        prometheus.value("clad_relay_records_total").is_some_and(|records| records > lines)
            && prometheus.value("clad_relay_behind_bytes") == Some(0.0)
    });
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_relay_that_is_killed_waits_or_has_lost_its_file() {
    const ALERTS: [&str; 3] = ["CladRelayDown", "CladRelayStalled", "CladRelaySourceLost"];
    let mut daemon = Setup::new().fixed_ports().start();
    let prometheus = Prometheus::over(&daemon);
    let mut relay = Relay::start(&daemon, FILES);
    relay.append("a.log", "one\ntwo\n");
    prometheus.scrape_relay(relay.metrics());
    stored(&prometheus, 2.0);
    prometheus.is_silent(&ALERTS);
    // The daemon is away: what is read waits.
    daemon.kill9();
    relay.append("a.log", "three\n");
    prometheus.wait_firing(&["CladRelayStalled"]);
    daemon.restart();
    prometheus.wait_over(&["CladRelayStalled"]);
    // The relay is away, and so is what it has not read.
    relay.running.kill();
    prometheus.wait_firing(&["CladRelayDown"]);
    fs::remove_file(relay.path("a.log")).expect("removed");
    prometheus.is_silent(&["CladRelaySourceLost"]);
    relay.restart();
    prometheus.wait_over(&["CladRelayDown"]);
    prometheus.wait_firing(&["CladRelaySourceLost"]);
    prometheus.wait_over(&["CladRelaySourceLost"]);
}

/// An endpoint that is away, and then one that refuses a record for ever.
#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_destination_that_is_away_and_one_that_refuses() {
    const ALERTS: [&str; 2] = ["CladRelayDestinationAway", "CladRelayDeadLetters"];
    let daemon = Setup::new().start();
    let prometheus = Prometheus::over(&daemon);
    let at = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let from = format!("[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"", daemon.socket().display());
    let relay = Relay::between(&from, &format!("[to.otlp]\nendpoint = \"http://{at}\"\n"));
    prometheus.scrape_relay(relay.metrics());
    prometheus.wait("a scrape", || prometheus.value("clad_relay_dead_letters_total") == Some(0.0));
    prometheus.is_silent(&ALERTS);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    prometheus.wait_firing(&["CladRelayDestinationAway"]);
    let listener = TcpListener::bind(at).expect("still free");
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(refuse));
    prometheus.wait_firing(&["CladRelayDeadLetters"]);
    prometheus.wait_over(&ALERTS);
}

/// Answers each request with 400.
fn refuse(mut stream: std::net::TcpStream) {
    use std::io::{Read, Write};
    let mut request = [0; 64 << 10];
    // What it sends is in one packet.
    if stream.read(&mut request).is_ok_and(|read| read > 0) {
        let _ = stream.write_all(b"HTTP/1.1 400 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A daemon that takes smaller records than the one before.
#[test]
#[ignore = "cargo xtask ci prometheus"]
fn records_of_a_relay_that_are_refused() {
    let mut daemon = Setup::new().fixed_ports().start();
    let prometheus = Prometheus::over(&daemon);
    let relay = Relay::start(&daemon, FILES);
    relay.append("a.log", "small\n");
    prometheus.scrape_relay(relay.metrics());
    stored(&prometheus, 1.0);
    prometheus.is_silent(&["CladRelayRefused"]);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.max_record_bytes", "1KiB");
    relay.append("a.log", &format!("{}\nsmall\n", "x".repeat(10_000)));
    prometheus.wait_firing(&["CladRelayRefused"]);
    prometheus.wait_over(&["CladRelayRefused"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_journalctl_that_ends_again_and_again() {
    let daemon = Daemon::start();
    let prometheus = Prometheus::over(&daemon);
    let relay = Relay::start(&daemon, "[from.journal]\nstart = \"beginning\"\njournalctl = \"FOLDER/journalctl\"");
    // It is what it is at each start: a program that ends, and then one that stays.
    let program = relay.path("journalctl");
    let write = |text: &str| {
        let next = program.with_extension("next");
        fs::write(&next, text).expect("written");
        fs::set_permissions(&next, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changed");
        fs::rename(next, &program).expect("renamed");
    };
    write("#!/bin/sh\nsleep 0.5\n");
    prometheus.scrape_relay(relay.metrics());
    prometheus.wait_firing(&["CladRelaySourceRestarts"]);
    write("#!/bin/sh\nexec sleep 3600\n");
    prometheus.wait_over(&["CladRelaySourceRestarts"]);
}
