//! Logs in through `clactl append` over each transport, and out again: the same lines, byte for byte.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Stdio;

use clad_e2e::tool::{clactl, clactl_ends, clactl_unread};
use clad_e2e::{Daemon, Rng, not_run, seed};

use crate::ok_json;

/// Lines with everything that logs hold: CRLF, odd bytes, long and empty ones.
fn material(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut text = Vec::new();
    for number in 0..5000 {
        let length = match rng.below(100) {
            0..10 => 0,
            10..98 => rng.below(200),
            _ => 10_000 + rng.below(100_000),
        };
        let odd = rng.chance(1, 10);
        text.extend_from_slice(format!("{number} ").as_bytes());
        for _ in 0..length {
            let byte = rng.number() as u8;
            text.push(match if odd { byte } else { byte & 0x7f } {
                b'\n' => b' ',
                other => other,
            });
        }
        text.extend_from_slice(if rng.chance(1, 5) { b"\r\n" } else { b"\n" });
    }
    text
}

fn round_trip(daemon: &Daemon, component: &str, input: &[u8]) {
    let lines = input.iter().filter(|&&byte| byte == b'\n').count();
    for (transport, level) in [("unix", "durable"), ("tcp", "written"), ("grpc", "received")] {
        let name = format!("{component}-{transport}");
        let server = daemon.address(transport);
        let arguments = ["append", "--server", &server, "--ack", level, "--component", &name, "-o", "json"];
        let said = clad_e2e::json(&clactl_ends(0, &arguments, input).stdout);
        assert_eq!((&said["acked"], &said["level"]), (&lines.into(), &level.into()), "{said}");
        let (first, last) = (said["first_offset"].as_u64(), said["last_offset"].as_u64());
        assert_eq!(last.zip(first).map(|(last, first)| last - first + 1), Some(lines as u64), "{said}");
        crate::ok(daemon, &["sync"]);
        let out = crate::ok(daemon, &["query", "-t", &name, "-o", "cat"]);
        assert!(out == input, "{name}: what came back is not what was sent");
    }
}

#[test]
fn over_each_transport() {
    let mut daemon = Daemon::start();
    let input = material(seed());
    round_trip(&daemon, "made", &input);
    // From the files, while the daemon runs and when it does not.
    let dir = daemon.dir().display().to_string();
    let files = |name: &str| clactl_ends(0, &["query", "--dir", &dir, "-t", name, "-o", "cat"], b"").stdout;
    assert!(files("made-tcp") == input);
    assert_eq!(daemon.term(), Some(0));
    assert!(files("made-grpc") == input);
    let output = clactl_ends(0, &["verify", &dir], b"");
    assert!(String::from_utf8_lossy(&output.stdout).contains("no damage"));
}

#[test]
fn a_file_of_the_host() {
    let found =
        ["/etc/services", "/etc/mime.types", "/etc/passwd"].into_iter().find_map(|path| std::fs::read(path).ok());
    let Some(mut input) = found else { return not_run("a file of the host", "none of those looked for is there") };
    if !input.ends_with(b"\n") {
        input.push(b'\n');
    }
    round_trip(&Daemon::start(), "host", &input);
}

#[test]
fn what_json_says_of_a_record() {
    let daemon = Daemon::start();
    let server = daemon.address("unix");
    let input = b"plain\n\xff\x00odd\n\n";
    clactl_ends(0, &["append", "--server", &server, "--component", "shop", "--severity", "warning"], input);
    let records = ok_json(&daemon, &["query"]);
    assert_eq!(records.len(), 3);
    for (offset, record) in (0..).zip(&records) {
        assert_eq!(record["offset"], offset, "{record}");
        assert_eq!((&record["severity_number"], &record["component"]), (&13.into(), &"shop".into()), "{record}");
        assert_eq!(record["peer_meta"]["transport"], "unix", "{record}");
        assert_eq!(record["peer_meta"]["uid"], nix_uid(), "{record}");
    }
    assert_eq!((&records[0]["body"], &records[2]["body"]), (&"plain".into(), &"".into()));
    assert_eq!((records[1].get("body"), &records[1]["body_base64"]), (None, &"/wBvZGQ=".into()), "{}", records[1]);
    // A cursor goes on behind its record; the whole is one object a line.
    let cursor = records[0]["cursor"].as_str().expect("a cursor");
    let rest = ok_json(&daemon, &["query", "--after-cursor", cursor]);
    assert_eq!(rest, records[1..]);
    let newest = ok_json(&daemon, &["query", "-r", "-n", "2"]);
    assert_eq!(newest.iter().map(|record| &record["offset"]).collect::<Vec<_>>(), [2, 1]);
    // Every other form escapes what would turn a terminal's colours.
    clactl_ends(0, &["append", "--server", &server], b"\x1b[31mred\n");
    let short = crate::ok(&daemon, &["query", "-n", "1"]);
    assert!(!short.contains(&0x1b), "{:?}", String::from_utf8_lossy(&short));
}

fn nix_uid() -> u32 {
    nix::unistd::Uid::effective().as_raw()
}

#[test]
fn a_line_that_is_refused_is_named() {
    let daemon = clad_e2e::Setup::new().set("journal.max_record_bytes", "64KiB").start();
    let mut input = b"one\ntwo\n".to_vec();
    input.extend(vec![b'x'; 70_000]);
    input.extend_from_slice(b"\nfour\n");
    for transport in ["unix", "tcp", "grpc"] {
        let server = daemon.address(transport);
        let output = clactl_ends(1, &["append", "--server", &server, "--batch", "1"], &input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("line 3"), "{transport}: {said}");
        assert!(said.contains("the last line that reached `durable` is line 2"), "{transport}: {said}");
        assert!(output.stdout.is_empty());
        for form in ["text", "json"] {
            let unread = clactl_unread(&["append", "--server", &server, "--batch", "1", "-o", form], &input);
            assert_eq!(unread, 1, "{transport}, {form}, and nobody reads the output");
            assert_eq!(clactl_unread(&["append", "--server", &server, "-o", form], b"one\n"), 0);
        }
    }
}

/// An output that takes nothing is a failure; that the lines are safe all the same is said beside it.
#[test]
fn what_is_acknowledged_is_said_where_stdout_is_full() {
    let daemon = Daemon::start();
    for form in ["text", "json"] {
        let mut command = clactl(&["append", "-o", form, "--server", &daemon.address("unix")]);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(OpenOptions::new().write(true).open("/dev/full").expect("a full device"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        process.stdin.take().expect("stdin").write_all(b"one\ntwo\n").expect("written");
        let output = process.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("2 lines durable") && said.contains("No space left"), "{form}: {said}");
    }
    assert_eq!(crate::ok(&daemon, &["query", "-o", "cat"]), b"one\ntwo\none\ntwo\n");
}
