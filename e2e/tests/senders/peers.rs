//! The same deaths for other programs that take these protocols: what they lose of what they answered. By hand:
//! `cargo xtask ci otlp losses [KILLS]`, `cargo xtask ci syslog losses [KILLS]`.
//!
//! `CLAD_OTLP_COLLECTOR` is OpenTelemetry's collector, `CLAD_SYSLOG_PROGRAMS` the folder with rsyslog, unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::{OutputStream, Running};
use clad_e2e::{Json, Scratch, TEST_TIMEOUT, fixed_port, seed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use clad_e2e::proxy::Place;

use crate::receiver::{Clad, End, Receiver};
use crate::run::{Death, Plan, loopback};
use crate::variable;

const KILLS_DEFAULT: usize = 30;
/// From the first answers to the kill, at most.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// Kinds of senders that are answered.
const ANSWERED: [&str; 3] = ["grpc", "http", "relp"];
/// A queue has passed on all that it has when nothing came for so long.
const QUIET: Duration = Duration::from_secs(8);

/// Where a peer's records end up.
enum Store {
    /// A file, of which a function makes texts.
    File(PathBuf, fn(&str) -> Vec<String>),
    /// A clad behind it, which is never killed and compares nothing.
    Behind(Box<Clad>),
}

/// A program that is killed.
struct Peer {
    name: &'static str,
    scratch: Scratch,
    command: Box<dyn Fn() -> Command>,
    /// The words by which it says that it takes connections; else its last port does.
    ready: Option<&'static str>,
    ports: Vec<(&'static str, u16)>,
    process: Option<Running>,
    store: Store,
}

impl Peer {
    fn running(&self) -> &Running {
        self.process.as_ref().expect("it runs")
    }
}

impl Receiver for Peer {
    fn place(&self, kind: &str) -> Place {
        let port = self.ports.iter().find(|(of, _)| *of == kind);
        loopback(port.unwrap_or_else(|| panic!("{} takes no {kind}", self.name)).1)
    }

    fn kill(&mut self) {
        let process = self.process.take().expect("it runs");
        assert!(process.is_running(), "{} has ended by itself:\n{}", self.name, process.said());
        process.kill();
    }

    fn start(&mut self) {
        let mut command = (self.command)();
        let process = Running::start(command.current_dir(self.scratch.data()));
        let is_ready = match self.ready {
            Some(words) => process.wait_for(OutputStream::Stderr, words, TEST_TIMEOUT),
            None => {
                let until = Instant::now() + TEST_TIMEOUT;
                let listens = || self.ports.iter().all(|(_, port)| loopback(*port).connect().is_ok());
                loop {
                    if listens() {
                        break true;
                    }
                    if Instant::now() > until || !process.is_running() {
                        break false;
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            }
        };
        assert!(is_ready, "{} does not start:\n{}", self.name, process.said());
        self.process = Some(process);
    }

    fn stored(&self, _: &str) -> Option<u64> {
        None
    }

    fn said(&self) -> String {
        self.process.as_ref().map_or_else(String::new, Running::said)
    }

    /// It has all the time that it needs, and ends in its own way.
    fn end(&mut self) -> End {
        let size = |store: &Store| match store {
            Store::File(path, _) => fs::metadata(path).map_or(0, |file| file.len()),
            Store::Behind(clad) => clad.records(),
        };
        let (mut last, mut quiet_since) = (size(&self.store), Instant::now());
        while quiet_since.elapsed() < QUIET {
            thread::sleep(Duration::from_millis(100));
            let now = size(&self.store);
            if now != last {
                (last, quiet_since) = (now, Instant::now());
            }
        }
        kill(Pid::from_raw(self.running().pid() as i32), Signal::SIGTERM).expect("it runs");
        assert!(self.running().wait_end(TEST_TIMEOUT).is_some(), "{} does not end", self.name);
        match &mut self.store {
            Store::File(path, texts) => {
                let lines = fs::read(path).unwrap_or_default();
                let texts =
                    String::from_utf8_lossy(&lines).lines().flat_map(*texts).map(|text| (text, false)).collect();
                End { stored: texts, ..End::default() }
            }
            Store::Behind(clad) => clad.end(),
        }
    }
}

/// Texts of a line of OTLP in JSON; of half a line, as a kill leaves it, none.
fn of_json(line: &str) -> Vec<String> {
    let Ok(request) = serde_json::from_str::<Json>(line) else { return Vec::new() };
    let each = |value: &Json, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let scopes = each(&request, "resourceLogs").into_iter().flat_map(|logs| each(&logs, "scopeLogs"));
    let records = scopes.flat_map(|scope| each(&scope, "logRecords"));
    records.map(|record| record["body"]["stringValue"].as_str().unwrap_or_default().to_owned()).collect()
}

/// How a collector keeps what it has answered.
#[derive(Clone, Copy)]
enum Collector {
    File,
    Queue,
    Storage { fsync: bool },
}

fn collector(name: &'static str, program: &Path, kind: Collector) -> Peer {
    let (grpc, http) = (fixed_port(), fixed_port());
    let scratch = Scratch::new();
    let folder = scratch.data();
    let (config, file) = (folder.join("collector.yaml"), folder.join("out.json"));
    let store = match kind {
        Collector::File => Store::File(file.clone(), of_json),
        _ => Store::Behind(Box::new(Clad::start(&[("ingest.otlp.resend_window", "0")]))),
    };
    let behind = match &store {
        Store::Behind(clad) => clad.place("grpc").to_string().replace("tcp://", ""),
        Store::File(..) => String::new(),
    };
    let queue = if let Collector::Storage { .. } = kind { "sending_queue: {storage: file_storage}" } else { "" };
    let (exporter, settings) = match kind {
        Collector::File => ("file", format!("path: {}", file.display())),
        _ => ("otlp", format!("endpoint: {behind}\n    tls: {{insecure: true}}\n    {queue}")),
    };
    let (extensions, used) = match kind {
        Collector::Storage { fsync } => {
            let storage = folder.join("storage");
            fs::create_dir(&storage).expect("a folder");
            (
                format!("extensions:\n  file_storage: {{directory: {}, fsync: {fsync}}}\n", storage.display()),
                "[file_storage]",
            )
        }
        _ => (String::new(), "[]"),
    };
    let text = format!(
        "{extensions}receivers:\n  otlp:\n    protocols:\n      grpc: {{endpoint: 127.0.0.1:{grpc}}}\n      \
         http: {{endpoint: 127.0.0.1:{http}}}\nexporters:\n  {exporter}:\n    {settings}\nservice:\n  \
         extensions: {used}\n  telemetry: {{metrics: {{level: none}}}}\n  \
         pipelines:\n    logs: {{receivers: [otlp], exporters: [{exporter}]}}\n"
    );
    fs::write(&config, text).expect("written");
    let program = program.to_owned();
    let command = move || {
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config);
        command
    };
    let ports = vec![("grpc", grpc), ("http", http)];
    let command = Box::new(command);
    started(Peer { name, scratch, command, ready: Some("Everything is ready"), ports, process: None, store })
}

fn started(mut peer: Peer) -> Peer {
    peer.start();
    peer
}

/// rsyslog with its queue in memory. `sync` says that it syncs its file after each write.
fn rsyslog(name: &'static str, programs: &Path, sync: bool) -> Peer {
    let (relp, tcp) = (fixed_port(), fixed_port());
    let scratch = Scratch::new();
    let folder = scratch.data();
    let (config, file) = (folder.join("rsyslog.conf"), folder.join("out"));
    let sync = if sync { "on" } else { "off" };
    let text = format!(
        "global(workDirectory=\"{}\")\nmodule(load=\"imrelp\")\nmodule(load=\"imtcp\")\n\
         template(name=\"text\" type=\"string\" string=\"%msg%\\n\")\n\
         input(type=\"imrelp\" address=\"127.0.0.1\" port=\"{relp}\")\ninput(type=\"imtcp\" address=\"127.0.0.1\" port=\"{tcp}\")\n\
         action(type=\"omfile\" file=\"{}\" template=\"text\" sync=\"{sync}\" queue.type=\"LinkedList\")\n",
        folder.display(),
        file.display()
    );
    fs::write(&config, text).expect("written");
    let (programs, pid) = (programs.to_owned(), folder.join("pid"));
    let command = move || {
        let library = programs.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(programs.join("usr/sbin/rsyslogd"));
        // A kill leaves the file with its number, and the next one would not start.
        let _ = fs::remove_file(&pid);
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(&pid).arg("-M").arg(library.join("rsyslog"));
        command.env("LD_LIBRARY_PATH", library);
        command
    };
    let store = Store::File(file, |line| vec![line.trim_start().to_owned()]);
    let (ports, command) = (vec![("relp", relp), ("tcp", tcp)], Box::new(command));
    started(Peer { name, scratch, command, ready: None, ports, process: None, store })
}

#[expect(clippy::print_stdout, reason = "the counts are the result")]
fn losses(name: &str, kinds: &[&'static str], receiver: &mut dyn Receiver) {
    let kills = variable("CLAD_SENDERS_KILLS").map_or(KILLS_DEFAULT, |text| text.parse().expect("CLAD_SENDERS_KILLS"));
    let plan = Plan::of(kinds, seed(), vec![Death::Receiver; kills]);
    let plan = Plan { pause: PAUSE_MAX, rests: false, ..plan };
    let report = plan.run(receiver);
    for (kind, verdict) in report.verdicts.iter().filter(|(kind, _)| ANSWERED.contains(kind)) {
        let share = 100.0 * verdict.lost as f64 / verdict.answered.max(1) as f64;
        println!("kills: {name}, {kills} of it, by {kind}: {share:.2} % lost; {verdict}");
    }
}

#[test]
#[ignore = "cargo xtask ci otlp losses"]
fn what_a_collector_loses() {
    let program = PathBuf::from(variable("CLAD_OTLP_COLLECTOR").expect("CLAD_OTLP_COLLECTOR"));
    let kinds = ["grpc", "http"];
    losses("clad", &kinds, &mut Clad::start(&[]));
    for (name, kind) in [
        ("collector into a file", Collector::File),
        ("collector, its queue in memory (default)", Collector::Queue),
        ("collector, file_storage", Collector::Storage { fsync: false }),
        ("collector, file_storage with fsync", Collector::Storage { fsync: true }),
    ] {
        losses(name, &kinds, &mut collector(name, &program, kind));
    }
}

#[test]
#[ignore = "cargo xtask ci syslog losses"]
fn what_rsyslog_loses() {
    let programs = PathBuf::from(variable("CLAD_SYSLOG_PROGRAMS").expect("CLAD_SYSLOG_PROGRAMS"));
    // Over TCP nothing is answered: it is the load of a host.
    let kinds = ["relp", "tcp"];
    losses("clad", &kinds, &mut Clad::start(&[]));
    for (name, sync) in [("rsyslog, its queue in memory", false), ("rsyslog, the same, and it syncs its file", true)] {
        losses(name, &kinds, &mut rsyslog(name, &programs, sync));
    }
}
