//! Real senders, unmodified: run by `cargo xtask ci syslog`, which brings those that a host does not have.
//!
//! What must hold: each message comes back as its sender's own words say; what rsyslog was answered over RELP is there,
//! however often the daemon is killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clad_e2e::tool::{Running, run};
use clad_e2e::{Daemon, Json, Rng, Scratch, Setup, TEST_TIMEOUT, seed};

use super::{body, path, place, records, setup};

/// Where Debian's packages of senders were unpacked.
fn unpacked() -> PathBuf {
    PathBuf::from(std::env::var_os("CLAD_SYSLOG_PROGRAMS").expect("`cargo xtask ci syslog` says where"))
}

/// A program of them, with its libraries.
fn program(name: &str) -> Command {
    let root = unpacked();
    let folders =
        ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/syslog-ng", "lib/x86_64-linux-gnu"];
    let libraries: Vec<String> = folders.iter().map(|folder| root.join(folder).display().to_string()).collect();
    let mut command = Command::new(root.join("usr/sbin").join(name));
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    command
}

/// The file of this name below a folder.
fn found(below: &Path, name: &str) -> PathBuf {
    let mut open = vec![below.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name() == name {
                return entry.path();
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    panic!("{name} is not below {}", below.display());
}

fn ok(command: &mut Command) {
    let output = run(command, b"");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn port(daemon: &Daemon, name: &str) -> String {
    place(daemon, name).rsplit_once(':').expect("a port").1.to_owned()
}

fn attribute<'a>(record: &'a Json, name: &str) -> &'a str {
    record["attributes"][name].as_str().unwrap_or_default()
}

/// The next record behind so many.
fn next(daemon: &Daemon, before: usize) -> Json {
    records(daemon, before + 1).swap_remove(before)
}

#[test]
#[ignore = "cargo xtask ci syslog"]
fn logger_in_every_mode() {
    let daemon = setup().start();
    let (udp, tcp) = (port(&daemon, "udp"), port(&daemon, "tcp"));
    let (datagrams, stream) = (path(&daemon, "unix-dgram"), path(&daemon, "unix-stream"));
    let (datagrams, stream) = (datagrams.to_str().expect("text"), stream.to_str().expect("text"));
    let modes: Vec<Vec<&str>> = vec![
        vec!["-d", "--server", "127.0.0.1", "--port", &udp],
        vec!["-d", "--server", "127.0.0.1", "--port", &udp, "--rfc3164"],
        vec!["-d", "--server", "127.0.0.1", "--port", &udp, "--rfc5424"],
        vec!["-d", "--server", "127.0.0.1", "--port", &udp, "--rfc5424=notime,nohost"],
        vec!["-T", "--server", "127.0.0.1", "--port", &tcp],
        vec!["-T", "--server", "127.0.0.1", "--port", &tcp, "--rfc3164"],
        vec!["-T", "--server", "127.0.0.1", "--port", &tcp, "--rfc5424", "--octet-count"],
        vec!["-u", datagrams, "--socket-errors=on"],
        vec!["-u", datagrams, "--socket-errors=on", "--rfc5424"],
        vec!["-u", stream, "--socket-errors=on"],
    ];
    for (number, mode) in modes.iter().enumerate() {
        let text = format!("by mode {number}: ünd \"more\"");
        ok(Command::new("logger").args(mode).args(["-t", "tagged", "--id=4711", "-p", "local3.warning", &text]));
        let record = next(&daemon, number);
        assert_eq!(body(&record), text, "{mode:?}");
        assert_eq!(
            (&record["component"], &record["severity"]),
            (&"tagged".into(), &"WARN".into()),
            "{mode:?} {record}"
        );
        assert_eq!(attribute(&record, "syslog.facility"), "local3", "{mode:?}");
        assert_eq!(attribute(&record, "syslog.procid"), "4711", "{mode:?} {record}");
        assert_eq!(attribute(&record, "clad.parse_error"), "", "{mode:?}");
        let has_time = !mode.contains(&"--rfc5424=notime,nohost");
        assert_eq!(record["time"].is_string(), has_time, "{mode:?} {record}");
    }
    let before = modes.len();
    let sd = ["--rfc5424", "--sd-id", "zoo@123", "--sd-param", "tiger=\"hungry\"", "--msgid", "M1"];
    ok(Command::new("logger").args(["-d", "--server", "127.0.0.1", "--port", &udp]).args(sd).arg("with data"));
    let record = next(&daemon, before);
    assert_eq!(attribute(&record, "syslog.structured_data.zoo@123.tiger"), "hungry", "{record}");
    assert_eq!((attribute(&record, "syslog.msgid"), body(&record)), ("M1", "with data"));
}

#[test]
#[ignore = "cargo xtask ci syslog"]
fn the_handler_of_python() {
    let daemon = setup().start();
    let script = "\
import logging, logging.handlers, socket, sys
udp, tcp, datagrams, stream = sys.argv[1:]
for address, kind in [(('127.0.0.1', int(udp)), socket.SOCK_DGRAM), (('127.0.0.1', int(tcp)), socket.SOCK_STREAM),
                      (datagrams, socket.SOCK_DGRAM), (stream, socket.SOCK_STREAM)]:
    handler = logging.handlers.SysLogHandler(address=address, facility='daemon', socktype=kind)
    handler.ident = 'service: '
    logger = logging.Logger('x')
    logger.addHandler(handler)
    logger.error('one \\u00fc')
    handler.close()
";
    let (datagrams, stream) = (path(&daemon, "unix-dgram"), path(&daemon, "unix-stream"));
    let mut command = Command::new("python3");
    command.args(["-c", script, &port(&daemon, "udp"), &port(&daemon, "tcp")]).arg(datagrams).arg(stream);
    ok(&mut command);
    for record in records(&daemon, 4) {
        assert_eq!((body(&record), &record["component"]), ("one ü", &"service".into()), "{record}");
        assert_eq!(
            (&record["severity"], attribute(&record, "syslog.facility")),
            (&"ERROR".into(), "daemon"),
            "{record}"
        );
    }
}

/// `syslog(3)` knows one place, `/dev/log`: in a mount namespace of its own it is clad's socket.
#[test]
#[ignore = "cargo xtask ci syslog"]
fn the_c_library() {
    let daemon = setup().start();
    let scratch = Scratch::new();
    let (source, program) = (scratch.data().join("say.c"), scratch.data().join("say"));
    let text = "\
#include <syslog.h>
int main(void) {
    openlog(\"cprog\", LOG_PID, LOG_MAIL);
    for (int i = 0; i < 1000; i++) syslog(LOG_NOTICE, \"number %d\", i);
    syslog(LOG_ERR | LOG_AUTHPRIV, \"the last\");
    return 0;
}
";
    fs::write(&source, text).expect("written");
    ok(Command::new("cc").arg("-o").arg(&program).arg(&source));
    let socket = path(&daemon, "unix-dgram");
    let script =
        format!("mount -t tmpfs none /dev && ln -s {} /dev/log && exec {}", socket.display(), program.display());
    ok(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    let all = records(&daemon, 1001);
    for (number, record) in all[..1000].iter().enumerate() {
        assert_eq!((body(record), &record["severity"]), (&*format!("number {number}"), &"INFO2".into()));
        assert_eq!((&record["component"], attribute(record, "syslog.facility")), (&"cprog".into(), "mail"));
        assert_eq!(
            attribute(record, "syslog.procid"),
            record["peer_meta"]["pid"].to_string(),
            "the kernel says the same"
        );
    }
    assert_eq!((body(&all[1000]), attribute(&all[1000], "syslog.facility")), ("the last", "authpriv"));
}

/// A syslog daemon that forwards what is appended to a file.
struct Forwarder {
    _running: Running,
    input: PathBuf,
    _scratch: Scratch,
}

impl Forwarder {
    /// rsyslog with an action.
    fn rsyslog(action: &str) -> Self {
        let scratch = Scratch::new();
        let (input, config, pid) =
            (scratch.data().join("input"), scratch.data().join("rsyslog.conf"), scratch.data().join("pid"));
        fs::write(&input, "").expect("written");
        let text = format!(
            "global(workDirectory=\"{work}\")\nmodule(load=\"imfile\" mode=\"polling\" pollingInterval=\"1\")\n\
             input(type=\"imfile\" file=\"{input}\" tag=\"forwarded:\" severity=\"error\" facility=\"local1\")\n{action}\n",
            work = scratch.data().display(),
            input = input.display(),
        );
        fs::write(&config, text).expect("written");
        let mut command = program("rsyslogd");
        let module = found(&unpacked().join("usr/lib"), "imfile.so");
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(&pid).arg("-M").arg(module.parent().expect("a folder"));
        let running = Running::start(&mut command);
        Self { _running: running, input, _scratch: scratch }
    }

    /// syslog-ng with a destination.
    fn syslog_ng(destination: &str) -> Self {
        let scratch = Scratch::new();
        let folder = scratch.data().to_owned();
        let (input, config) = (folder.join("input"), folder.join("syslog-ng.conf"));
        fs::write(&input, "").expect("written");
        let text = format!(
            "@version: 3.38\nsource in {{ file(\"{}\" flags(no-parse) default-priority(err) default-facility(local1) \
             program-override(\"forwarded\") follow-freq(0.2)); }};\ndestination out {{ {destination} }};\n\
             log {{ source(in); destination(out); }};\n",
            input.display()
        );
        fs::write(&config, text).expect("written");
        let mut command = program("syslog-ng");
        let modules = found(&unpacked().join("usr/lib/syslog-ng"), "libaffile.so");
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command.args(["--foreground", "--no-caps"]).arg(flag("cfgfile", &config));
        command
            .arg(flag("module-path", modules.parent().expect("a folder")))
            .arg(flag("persist-file", &folder.join("persist")));
        command.arg(flag("pidfile", &folder.join("pid"))).arg(flag("control", &folder.join("control")));
        let running = Running::start(&mut command);
        Self { _running: running, input, _scratch: scratch }
    }

    fn append(&self, lines: impl Iterator<Item = String>) {
        let mut file = fs::OpenOptions::new().append(true).open(&self.input).expect("its input");
        let text: String = lines.map(|line| line + "\n").collect();
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
    }
}

/// End of the log.
fn received(daemon: &Daemon) -> u64 {
    daemon.status().offsets.expect("offsets").received
}

const LINES: usize = 2000;

/// Lines of any content, each once.
fn lines() -> Vec<String> {
    let mut rng = Rng::new(seed());
    (0..LINES)
        .map(|number| {
            format!("{number}: {:x} ünd [x] <13> \"q\" {}", rng.number(), "y".repeat(rng.below(300) as usize))
        })
        .collect()
}

fn forwards(daemon: &Daemon, forwarder: &Forwarder, what: &str) {
    let before = records(daemon, 0).len();
    let lines = lines();
    forwarder.append(lines.iter().cloned());
    let all = records(daemon, before + LINES);
    for (record, line) in all[before..].iter().zip(&lines) {
        assert_eq!(body(record), line, "{what}");
        assert_eq!(
            (&record["component"], &record["severity"]),
            (&"forwarded".into(), &"ERROR".into()),
            "{what}: {record}"
        );
        assert_eq!(
            (attribute(record, "syslog.facility"), attribute(record, "clad.parse_error")),
            ("local1", ""),
            "{what}"
        );
    }
}

#[test]
#[ignore = "cargo xtask ci syslog"]
fn rsyslog_forwards() {
    let daemon = setup().start();
    let (tcp, udp, relp) = (port(&daemon, "tcp"), port(&daemon, "udp"), port(&daemon, "relp"));
    let of = |protocol: &str, port: &str, more: &str| {
        format!("action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{port}\" protocol=\"{protocol}\" {more})")
    };
    for (what, action) in [
        ("omfwd by TCP", of("tcp", &tcp, "")),
        (
            "omfwd by TCP, counted, RFC 5424",
            of("tcp", &tcp, "tcp_framing=\"octet-counted\" template=\"RSYSLOG_SyslogProtocol23Format\""),
        ),
        ("omfwd by TCP, RFC 3164", of("tcp", &tcp, "template=\"RSYSLOG_TraditionalForwardFormat\"")),
        ("omfwd by UDP", of("udp", &udp, "")),
        ("omrelp", format!("module(load=\"omrelp\")\naction(type=\"omrelp\" target=\"127.0.0.1\" port=\"{relp}\")")),
    ] {
        forwards(&daemon, &Forwarder::rsyslog(&action), what);
    }
}

#[test]
#[ignore = "cargo xtask ci syslog"]
fn syslog_ng_forwards() {
    let daemon = setup().start();
    let (tcp, udp) = (port(&daemon, "tcp"), port(&daemon, "udp"));
    for (what, destination) in [
        ("network by TCP", format!("network(\"127.0.0.1\" port({tcp}));")),
        ("network by UDP", format!("network(\"127.0.0.1\" port({udp}) transport(\"udp\"));")),
        ("syslog by TCP", format!("syslog(\"127.0.0.1\" port({tcp}));")),
        ("unix-dgram", format!("unix-dgram(\"{}\");", path(&daemon, "unix-dgram").display())),
        ("unix-stream", format!("unix-stream(\"{}\");", path(&daemon, "unix-stream").display())),
    ] {
        forwards(&daemon, &Forwarder::syslog_ng(&destination), what);
    }
}

/// rsyslog is answered over RELP only what is durable: it lets go of nothing else, so all of it is there in the end. Twice
/// is what a session that was cut may be.
#[test]
#[ignore = "cargo xtask ci syslog"]
#[expect(clippy::print_stdout, reason = "the figures of the case")]
fn nothing_that_rsyslog_was_answered_is_lost_over_kills() {
    let kills: usize = std::env::var("CLAD_SYSLOG_KILLS").map_or(10, |kills| kills.parse().expect("a number"));
    let mut daemon = setup().set("ingest.syslog.relp.listen", "relp://127.0.0.1:20514").start();
    let action = "module(load=\"omrelp\")\naction(type=\"omrelp\" target=\"127.0.0.1\" port=\"20514\" action.resumeInterval=\"1\" \
                  action.resumeRetryCount=\"-1\" queue.type=\"Direct\")";
    let forwarder = Forwarder::rsyslog(action);
    let mut rng = Rng::new(seed());
    let mut sent = 0_u64;
    let mut killed = 0;
    while killed < kills {
        let more = 200 + rng.below(2000);
        forwarder.append((sent..sent + more).map(|number| format!("m {number}")));
        sent += more;
        let until = Instant::now() + TEST_TIMEOUT;
        let before = received(&daemon);
        while received(&daemon) < before + 1 + rng.below(300) {
            assert!(Instant::now() < until, "nothing comes:\n{}", daemon.said());
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.kill9();
        killed += 1;
        daemon.restart();
    }
    let until = Instant::now() + TEST_TIMEOUT;
    let (distinct, all) = loop {
        let all = records(&daemon, 0);
        let distinct: BTreeSet<u64> =
            all.iter().map(|record| body(record).trim_start_matches("m ").parse().expect("a number")).collect();
        if distinct.len() as u64 == sent {
            break (distinct.len() as u64, all.len());
        }
        assert!(Instant::now() < until, "{} of {sent} are there", distinct.len());
        std::thread::sleep(Duration::from_millis(200));
    };
    println!("kills: {killed}, messages {sent}, lost {}, twice {}", sent - distinct, all as u64 - distinct);
}

/// The bench of docs/BENCHMARKS.md, for its counts alone.
#[test]
#[ignore = "cargo xtask ci syslog"]
fn the_bench_sends_what_it_says() {
    const SENT: usize = 3000;
    let daemon = setup().start();
    let bench = std::env::var_os("CLAD_SYSLOG_BENCH").expect("`cargo xtask ci syslog` says where");
    for (number, way) in ["udp", "tcp", "relp", "unix-dgram"].into_iter().enumerate() {
        let to = format!("{way}://{}", place(&daemon, way));
        let mut command = Command::new(&bench);
        let output = run(command.args(["syslog_load", &to, "--messages", &SENT.to_string(), "--rate", "20000"]), b"");
        assert!(output.status.success(), "{way}: {output:?}");
        let said = clad_e2e::json(&output.stdout);
        assert_eq!((&said["messages"], said["answered"].is_object()), (&SENT.into(), way == "relp"), "{said}");
        assert_eq!(records(&daemon, SENT * (number + 1)).len(), SENT * (number + 1), "{way}");
    }
}

/// Blocks of docs/SENDERS.md about syslog, in their order.
fn blocks() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SENDERS.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("\n## Syslog\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("lines").1.to_owned()).collect()
}

/// Each block of the page, as it stands there but for ports and paths.
#[test]
#[ignore = "cargo xtask ci syslog"]
fn the_blocks_of_the_page() {
    let blocks = blocks();
    let block =
        |word: &str| blocks.iter().find(|block| block.contains(word)).unwrap_or_else(|| panic!("no block with {word}"));
    let setup = Setup::new();
    let socket = setup.config().with_file_name("syslog.sock").display().to_string();
    let config = block("[ingest.syslog.net]").replace(":514", ":0").replace(":2514", ":0");
    fs::write(setup.config(), config.replace("/run/clad/syslog.sock", &socket)).expect("written");
    let daemon = setup.start();
    let (udp, tcp, relp) = (port(&daemon, "net"), port(&daemon, "relay"), port(&daemon, "safe"));

    for (number, line) in block("logger --udp").lines().enumerate() {
        let port = if line.contains("--udp") { &udp } else { &tcp };
        let line = line.replace("--port 514", &format!("--port {port}")).replace("/run/clad/syslog.sock", &socket);
        ok(Command::new("sh").args(["-c", &line]));
        let record = next(&daemon, number);
        assert_eq!((body(&record), &record["component"]), ("it is done", &"backup".into()), "{line}");
    }
    let snippet = block("SysLogHandler").replace("/run/clad/syslog.sock", &socket);
    let script = format!(
        "import logging, logging.handlers\n{snippet}\nlogging.getLogger().addHandler(handler)\nlogging.error('x')"
    );
    ok(Command::new("python3").args(["-c", &script]));
    assert_eq!(next(&daemon, 3)["component"], "service");
    let action = block("omrelp").replace("\"2514\"", &format!("{relp:?}"));
    forwards(&daemon, &Forwarder::rsyslog(&action), "rsyslog by RELP");
    let action = block("omfwd").replace("\"514\"", &format!("{tcp:?}"));
    forwards(&daemon, &Forwarder::rsyslog(&action), "rsyslog by TCP");
    let destination =
        block("destination clad {").trim().trim_start_matches("destination clad {").trim_end_matches("};");
    let destination = destination.replace("port(514)", &format!("port({tcp})"));
    forwards(&daemon, &Forwarder::syslog_ng(&destination), "syslog-ng");
}
