//! `clactl import`: the log in a data folder, brought to a daemon.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clad_e2e::hold::{Holder, threads};
use clad_e2e::tool::{Running, clactl, clactl_ends};
use clad_e2e::{Daemon, Rng, Setup, json, seed};
use nix::sys::signal::Signal;

use super::{appends, fill, log_id, on, unix};

/// Calls that are killed before one comes to its end.
const KILLS: u64 = 12;
/// More than a killed call brings over.
const APPENDS: u64 = 3000;

/// A log in a folder, of a daemon that has ended.
fn source(appends: u64) -> Daemon {
    let mut source = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    source = source.set("journal.max_record_bytes", "128KiB");
    let mut source = source.start();
    on(fill(&source, 0, appends));
    assert_eq!(source.term(), Some(0));
    source
}

fn words<'a>(server: &'a str, dir: &'a str) -> [&'a str; 6] {
    ["--server", server, "import", dir, "-o", "json"]
}

#[test]
fn a_folder_comes_over_once_however_often_the_call_and_the_daemon_are_killed() {
    let mut from = Setup::new().start();
    on(fill(&from, 0, APPENDS));
    let all = on(appends(unix(&from)));
    let (id, dir) = (log_id(&from).to_string(), from.dir().display().to_string());
    assert_eq!(from.term(), Some(0));
    let mut to = Setup::new().fixed_ports().start();
    let server = to.address("unix");
    let mut rng = Rng::new(seed());
    let mut ends = Vec::new();
    let received = |to: &Daemon| to.status().offsets.expect("offsets").received;
    for kill in 0..KILLS {
        let before = received(&to);
        let running = Running::start(&mut clactl(&words(&server, &dir)));
        // Some calls are killed before a record has come, and some once records come: how long a program takes to begin is
        // the machine's affair.
        if kill >= 3 {
            while running.is_running() && received(&to) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(rng.below(10)));
        match kill % 3 {
            0 => running.kill(),
            1 => running.send(Signal::SIGINT),
            _ => {
                to.kill9();
                to.restart();
            }
        }
        running.wait_end(clad_e2e::TEST_TIMEOUT).expect("it ends");
        ends.push(received(&to));
    }
    let said = json(&clactl_ends(0, &words(&server, &dir), b"").stdout);
    let end: u64 = all.iter().map(|append| u64::from(append.head().count)).sum();
    ends.dedup();
    assert!(ends.iter().any(|&there| 0 < there && there < end), "no call was killed on its way: {ends:?} of {end}");
    assert_eq!((said["log_id"].as_str(), said["end_offset"].as_u64()), (Some(id.as_str()), Some(end)), "{said}");
    let there = on(appends(unix(&to)));
    let parts = |appends: &[clad_client::RawRecords]| -> Vec<_> {
        appends.iter().map(|raw| (raw.head().count, raw.head().payload_crc, raw.payload().clone())).collect()
    };
    assert!(parts(&there) == parts(&all), "{} appends of {}", there.len(), all.len());
    // Nothing is left to do, and nothing is done.
    let said = json(&clactl_ends(0, &words(&server, &dir), b"").stdout);
    assert_eq!((said["records"].as_u64(), said["offsets_before"].as_u64()), (Some(0), Some(end)), "{said}");
    // Each record is found by the log that it is from.
    let found = clactl_ends(0, &["--server", &server, "query", "--origin", &id, "-o", "cat"], b"").stdout;
    assert_eq!(found.iter().filter(|&&byte| byte == b'\n').count() as u64, end);
}

#[test]
fn a_log_that_parted_is_refused_with_both_sides() {
    let from = source(20);
    let dir = from.dir().display().to_string();
    // A copy that goes on otherwise.
    let other = tempfile::tempdir().expect("a folder");
    let copy = other.path().join("data");
    assert!(Command::new("cp").arg("-a").arg(&dir).arg(&copy).status().expect("cp").success());
    let to = Setup::new().start();
    let server = to.address("unix");
    for (data, number) in [(dir.as_str(), 1), (copy.to_str().expect("text"), 2)] {
        let mut goes_on = Setup::in_folder(Path::new(data)).start();
        on(fill(&goes_on, 1000 * number, number));
        assert_eq!(goes_on.term(), Some(0));
    }
    clactl_ends(0, &words(&server, &dir), b"");
    let refused = clactl_ends(1, &words(&server, copy.to_str().expect("text")), b"");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("have parted") && said.contains("with CRC"), "{said}");
}

#[test]
fn a_call_that_sends_nothing_waits_for_the_level_of_what_an_earlier_one_sent() {
    let from = source(5);
    let dir = from.dir().display().to_string();
    let to = Setup::new().start();
    let server = to.address("unix");
    let flush = |name: &str| name.starts_with("clad-write") || name.starts_with("clad-ingest");
    let disk = Holder::of_flushes(&threads(to.pid(), flush));
    disk.hold();
    let sent = Running::start(&mut clactl(&words(&server, &dir)));
    to.wait_until("all is received", |status| status.offsets.as_ref().is_some_and(|offsets| offsets.received == 9));
    sent.kill();
    sent.wait_end(clad_e2e::TEST_TIMEOUT).expect("it ends");
    let again = Running::start(&mut clactl(&words(&server, &dir)));
    // Far longer than it takes to see that nothing is left to send.
    assert!(
        again.wait_end(Duration::from_secs(1)).is_none(),
        "it ends before anything is durable: {}",
        again.printed()
    );
    disk.release();
    again.wait_end(clad_e2e::TEST_TIMEOUT).expect("it ends");
    assert_eq!(again.code(), Some(0), "{}", again.said());
    assert_eq!(to.status().offsets.expect("offsets").durable, 9);
    // A level that the log does not have is refused, though nothing is to be sent.
    let call = ["--server", &server, "import", &dir, "--ack", "none"];
    clactl_ends(2, &call, b"");
}

#[test]
fn damage_is_stated_and_the_rest_comes() {
    let from = source(600);
    let dir = from.dir().display().to_string();
    let segment = from.dir().join("00000000000000000000.clog");
    let mut bytes = std::fs::read(&segment).expect("a segment");
    // In the middle of what it has.
    let at = bytes.windows(3).position(|window| window == b"50.").expect("a record");
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).expect("written");
    let to = Setup::new().start();
    let server = to.address("unix");
    let ended = clactl_ends(1, &words(&server, &dir), b"");
    let said = json(&ended.stdout);
    let damaged = said["offsets_damaged"].as_u64().expect("a number");
    assert!(damaged > 0 && said["records"].as_u64() == Some(1200 - damaged), "{said}");
}
