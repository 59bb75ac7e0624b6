//! From files: lines, records of several lines, places, and what is gone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use super::{Relay, append, daemon, left_behind, wait_for};

const FROM: &str = "[from.files]\npaths = [\"FOLDER/*.log\"]\nstart = \"beginning\"";

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn lines_are_records_with_the_bytes_that_they_have() {
    let daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}\ncomponent = \"web\"\nmax_record = \"1KiB\""));
    let long = "l".repeat(3000);
    let endless = "e".repeat(700_000);
    fs::write(relay.path("a.log"), format!("one\n\n{long}\n{endless}\nlast\nhalf")).expect("written");
    let bodies = wait_for(&daemon, &mut relay, 5);
    assert_eq!(bodies, ["one", "", &long[..1024], &endless[..1024], "last"]);
    let said = relay.say("status");
    assert!(said.contains("relay test\nlast record  offset"), "{said}");
    append(&relay.path("a.log"), " a line\n");
    assert_eq!(wait_for(&daemon, &mut relay, 6)[5], "half a line");
    let output = clad_e2e::tool::clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["\"log.original_length\"", "700000", "3000", "a.log", "\"web\""] {
        assert!(text.contains(part), "{part}: {text:.2000}");
    }
    assert!(relay.term());
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_record_of_several_lines_is_one() {
    let daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}\nmultiline = '^[0-9]'"));
    fs::write(relay.path("a.log"), "1 a\n at x\n at y\n2 b\n at z\n").expect("written");
    assert_eq!(wait_for(&daemon, &mut relay, 2), ["1 a\n at x\n at y", "2 b\n at z"]);
    append(&relay.path("a.log"), "3 c\n");
    assert_eq!(wait_for(&daemon, &mut relay, 3)[2], "3 c");
    // Lines that come one after the other are one record too, unless none comes for a second.
    let number = (4..).find(|number| {
        append(&relay.path("a.log"), &format!("{number} d\n"));
        let gaps = (0..5).map(|_| {
            let before = Instant::now();
            std::thread::sleep(Duration::from_millis(300));
            append(&relay.path("a.log"), " at w\n");
            before.elapsed()
        });
        gaps.max() < Some(Duration::from_secs(1))
    });
    let begin = format!("{} d", number.expect("a machine that does not stand still"));
    append(&relay.path("a.log"), "0 end\n");
    let mut count = 5;
    let bodies = loop {
        let bodies = wait_for(&daemon, &mut relay, count);
        if bodies.last().is_some_and(|body| body == "0 end") {
            break bodies;
        }
        count = bodies.len() + 1;
    };
    let found: Vec<&String> = bodies.iter().filter(|body| body.starts_with(&begin)).collect();
    assert_eq!(found, [&(begin + &"\n at w".repeat(5))], "{bodies:#?}");
}

/// Begun at the end, it goes on from there, whatever happens before the first line.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_relay_that_begins_now_leaves_what_is_old_and_nothing_behind_it() {
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, "[from.files]\npaths = [\"FOLDER/*.log\"]");
    fs::write(relay.path("a.log"), "old\nol").expect("written");
    relay.start();
    daemon.wait_until("its places", |status| status.offsets.is_some_and(|offsets| offsets.durable >= 2));
    relay.kill9();
    append(&relay.path("a.log"), "d and new\nnew\n");
    fs::write(relay.path("b.log"), "another\n").expect("written");
    let mut bodies = wait_for(&daemon, &mut relay, 3);
    bodies.sort();
    assert_eq!(bodies, ["another", "new", "old and new"]);
    left_behind(&mut daemon);
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_file_that_is_gone_or_was_truncated_is_said_in_the_log() {
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, FROM);
    for name in ["gone.log", "cut.log"] {
        fs::write(relay.path(name), format!("{name} 1\n{name} 2\n")).expect("written");
    }
    wait_for(&daemon, &mut relay, 4);
    relay.kill9();
    append(&relay.path("gone.log"), "lost\n");
    append(&relay.path("cut.log"), "lost\n");
    fs::remove_file(relay.path("gone.log")).expect("removed");
    // Longer than it was: only its bytes show it.
    fs::write(relay.path("cut.log"), "another 1\nanother 2\nanother 3\nanother 4\n").expect("written");
    let bodies = wait_for(&daemon, &mut relay, 8);
    assert_eq!(bodies[4..], ["another 1", "another 2", "another 3", "another 4"]);
    let all = left_behind(&mut daemon);
    let gone =
        all.iter().filter(|body| body.contains("gone.log is gone; what it had from byte 22 on, if anything, is lost"));
    let cut = all.iter().filter(|body| body.contains("cut.log was truncated"));
    assert_eq!((gone.count(), cut.count()), (1, 1), "{all:#?}");
}

/// As long as it was, and in the same file: only its bytes show it.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_file_that_was_written_again_to_the_same_length_is_read_again() {
    let daemon = daemon();
    let mut relay = Relay::new(&daemon, FROM);
    fs::write(relay.path("a.log"), "first 1\nfirst 2\n").expect("written");
    wait_for(&daemon, &mut relay, 2);
    fs::write(relay.path("a.log"), "other 1\nother 2\n").expect("written");
    assert_eq!(wait_for(&daemon, &mut relay, 4)[2..], ["other 1", "other 2"]);
    relay.kill9();
    fs::write(relay.path("a.log"), "third 1\nthird 2\n").expect("written");
    assert_eq!(wait_for(&daemon, &mut relay, 6)[4..], ["third 1", "third 2"]);
}

/// Retention has removed all that it stored: where it stands nobody knows, and it does not guess.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_relay_that_the_log_has_nothing_of_stops_until_a_person_says_so() {
    let first = daemon();
    let mut relay = Relay::new(&first, FROM);
    fs::write(relay.path("a.log"), "one\n").expect("written");
    wait_for(&first, &mut relay, 1);
    assert!(relay.term());
    let second = daemon();
    let text = fs::read_to_string(relay.file()).expect("its file");
    let text = text.replace(&first.socket().display().to_string(), &second.socket().display().to_string());
    fs::write(relay.file(), text).expect("written");
    relay.start();
    assert!(!relay.wait());
    assert!(relay.said().contains("has no record of this relay, which has stored some in log"), "{}", relay.said());
    assert!(relay.say("begin").contains("begins where `start` says"));
    assert_eq!(wait_for(&second, &mut relay, 1), ["one"]);
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn one_process_runs_a_relay_and_a_wrong_file_is_refused_in_words() {
    let daemon = daemon();
    let mut relay = Relay::new(&daemon, FROM);
    fs::write(relay.path("a.log"), "one\n").expect("written");
    wait_for(&daemon, &mut relay, 1);
    let said = relay.say("run");
    assert!(said.contains("another process runs the relay test"), "{said}");
    assert!(relay.say("check").contains("relay test\nfrom  files: "));
    relay.kill9();
    fs::write(relay.file(), "name = \"test\"\n[from.journal]\n[to.clad]\nserver = \"tcp://127.0.0.1:1\"\n")
        .expect("written");
    let said = relay.say("check");
    assert!(said.contains("is not right") && said.contains("unix://PATH"), "{said}");
}

/// A place in a file is none in the journal, nor the other way round: the name has stored what it has stored.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_name_that_has_stored_one_source_is_refused_for_the_other() {
    const JOURNAL: &str = "[from.journal]\nstart = \"beginning\"\njournalctl = \"FOLDER/journalctl\"";
    for (first, other, source) in [(FROM, JOURNAL, "files"), (JOURNAL, FROM, "the journal")] {
        let daemon = daemon();
        let mut relay = Relay::new(&daemon, first);
        fs::write(relay.path("a.log"), "one\n").expect("written");
        let entry = "__CURSOR=s=1;i=1\n__REALTIME_TIMESTAMP=1700000000000000\nMESSAGE=one\n\n";
        fs::write(relay.path("entry"), entry).expect("written");
        let program = relay.path("journalctl");
        fs::write(&program, format!("#!/bin/sh\ncat {}\n", relay.path("entry").display())).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("changed");
        assert_eq!(wait_for(&daemon, &mut relay, 1), ["one"]);
        assert!(relay.term());
        let folder = relay.folder().display().to_string();
        let [first, other] = [first, other].map(|from| from.replace("FOLDER", &folder));
        let text = fs::read_to_string(relay.file()).expect("its file");
        fs::write(relay.file(), text.replace(&first, &other)).expect("written");
        relay.start();
        assert!(!relay.wait());
        assert!(relay.said().contains(&format!("a relay of this name has stored {source}")), "{}", relay.said());
    }
}

/// Memory does not grow with what waits, and what waits comes.
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_outage_is_waited_out_with_flat_memory() {
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, FROM);
    fs::write(relay.path("a.log"), "first\n").expect("written");
    wait_for(&daemon, &mut relay, 1);
    daemon.kill9();
    let line = "x".repeat(200) + "\n";
    append(&relay.path("a.log"), &line.repeat(300_000));
    let process = format!("/proc/{}", relay.child.as_ref().expect("it runs").id());
    let number = |file: &str, name: &str| -> u64 {
        let text = fs::read_to_string(format!("{process}/{file}")).expect("it runs");
        let found = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        found.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    // Until it reads no further.
    let mut read = 0;
    while std::mem::replace(&mut read, number("io", "rchar:")) != read || read < 4 << 20 {
        std::thread::sleep(Duration::from_secs(1));
    }
    let held = number("status", "RssAnon:");
    assert!(held < 24 << 10 && read < 12 << 20, "{held} KiB are held, {read} bytes read, of 60 MB that wait");
    daemon.restart();
    assert_eq!(wait_for(&daemon, &mut relay, 300_001).len(), 300_001);
}
