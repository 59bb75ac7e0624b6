//! To OpenTelemetry's collector, which writes a file: each record at least once, over deaths of the others and ends of its own.
//!
//! Invariant: it is ended and not killed, because a kill takes what it has answered and not yet written.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clad_e2e::proxy::{Place, Proxy};
use clad_e2e::{Rng, Scratch, json};
use nix::sys::signal::{Signal, kill};

use super::forward::{Numbers, small};
use super::objects::{bodies, end};
use super::{Relay, pid, wait};

/// Far longer than it takes to cut the connection.
const LATE_ANSWERS: Duration = Duration::from_secs(30);
/// Records that a request brings before its answer is lost.
const UNDER_WAY: Duration = Duration::from_millis(300);

struct Collector {
    child: Child,
    address: SocketAddr,
    scratch: Scratch,
}

impl Collector {
    fn start() -> Self {
        let (scratch, address) = (Scratch::new(), SocketAddr::from(([127, 0, 0, 1], clad_e2e::fixed_port())));
        let file = scratch.data().join("out.json");
        let text = format!(
            "receivers:\n  otlp:\n    protocols:\n      http: {{endpoint: \"{address}\"}}\nexporters:\n  file:\n    \
             path: {}\n    append: true\n    flush_interval: 100ms\nservice:\n  telemetry: {{metrics: {{level: none}}}}\n  \
             pipelines:\n    logs: {{receivers: [otlp], exporters: [file]}}\n",
            file.display()
        );
        fs::write(scratch.data().join("collector.yaml"), text).expect("written");
        let collector = Self { child: Self::child(&scratch), address, scratch };
        collector.wait();
        collector
    }

    fn child(scratch: &Scratch) -> Child {
        let program = std::env::var("CLAD_OTLP_COLLECTOR").expect("call `cargo xtask ci relay others`");
        let mut command = Command::new(program);
        command.arg("--config").arg(scratch.data().join("collector.yaml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    fn wait(&self) {
        wait("the collector", || TcpStream::connect(self.address).is_ok());
    }

    fn end(&mut self) {
        kill(pid(&self.child), Signal::SIGTERM).expect("it runs");
        assert!(self.child.wait().expect("a child").success(), "it does not end well");
    }

    fn restart(&mut self) {
        self.end();
        self.child = Self::child(&self.scratch);
        self.wait();
    }

    fn file(&self) -> PathBuf {
        self.scratch.data().join("out.json")
    }

    /// Bodies by offset, as often as each is there.
    fn found(&self) -> BTreeMap<u64, Vec<String>> {
        let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let text = fs::read_to_string(self.file()).expect("its file");
        for line in text.lines() {
            let request = json(line.as_bytes());
            let each = |value: &serde_json::Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
            let scopes = each(&request, "resourceLogs").into_iter().flat_map(|logs| each(&logs, "scopeLogs"));
            for record in scopes.flat_map(|scope| each(&scope, "logRecords")) {
                let attributes = each(&record, "attributes");
                let offset = attributes.iter().find(|pair| pair["key"] == "clad.offset").expect("its offset");
                let offset = offset["value"]["intValue"].as_str().and_then(|text| text.parse().ok()).expect("a number");
                found.entry(offset).or_default().push(record["body"]["stringValue"].as_str().expect("text").to_owned());
            }
        }
        found
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs a collector: `cargo xtask ci relay others`"]
fn every_record_is_in_the_file_of_a_collector_over_deaths_and_lost_answers() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let (mut daemon, mut collector) = (small().start(), Collector::start());
    let proxy = Proxy::to(Place::Tcp(collector.address), Rng::new(kills));
    let &Place::Tcp(between) = proxy.place() else { panic!("another place") };
    let mut relay = Relay::new(&daemon, "");
    let socket = daemon.socket();
    let text = format!(
        "name = \"test\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n[to.otlp]\nendpoint = \"http://{between}\"\n",
        socket.display()
    );
    fs::write(relay.file(), text).expect("written");
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        match kill % 5 {
            0 => relay.kill9(),
            1 => {
                daemon.kill9();
                daemon.restart();
            }
            2 => collector.restart(),
            3 => {
                proxy.delay_answers(LATE_ANSWERS);
                Numbers::new(&daemon).append(5, 10);
                std::thread::sleep(UNDER_WAY);
                proxy.delay_answers(Duration::ZERO);
                proxy.cut();
            }
            _ => proxy.halve(),
        }
        relay.keep();
    }
    let end = end(&daemon);
    wait("all is answered", || {
        relay.keep();
        relay.say("status").contains(&format!("next offset  {end}\n"))
    });
    collector.end();
    let found = collector.found();
    let here = bodies(&daemon);
    assert_eq!(found.len(), here.len(), "records are missing");
    let twice = found.values().filter(|copies| copies.len() > 1).count();
    for ((offset, copies), (wanted, body)) in found.iter().zip(&here) {
        assert!(offset == wanted && copies.iter().all(|copy| copy == body), "offset {offset}: {copies:?}, not {body}");
    }
    assert!(kills < 5 || twice > 0, "no answer was lost");
    println!("kills: {kills}, {} records in a collector's file, {twice} of them more than once", found.len());
}
