//! What an operator reads of a daemon on a bad day, and each bad day made in earnest: the words of `clactl status`, of the
//! health pages, and of the service's status line.
//!
//! Invariants: what is wrong stands there with what to do about it while it is so, and a daemon that is well again is
//! said to be well. (A frozen disk and a full one need a file system of their own: `cargo xtask ci systemd`.)

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::{clactl, clactl_ends, is_on_path, run};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT, json, not_run, open_to_all, stranger, web};
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ErrorCode};
use nix::sys::signal::Signal;

/// The lines of *attention*, as programs get them; the same stand on the screen.
fn attention(daemon: &Daemon) -> Vec<String> {
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let said = clactl_ends(0, &["status", "--admin", &admin, "-o", "json"], b"");
    let lines = json(&said.stdout)["attention"].take();
    let lines = lines.as_array().expect("lines").iter();
    lines.map(|line| line.as_str().expect("a line").to_owned()).collect()
}

fn screen(daemon: &Daemon) -> String {
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    String::from_utf8(clactl_ends(0, &["status", "--admin", &admin], b"").stdout).expect("text")
}

/// Waits until one line of attention holds all of these.
fn says(daemon: &Daemon, words: &[&str]) {
    let began = Instant::now();
    loop {
        let lines = attention(daemon);
        if lines.iter().any(|line| words.iter().all(|word| line.contains(word))) {
            let screen = screen(daemon);
            assert!(screen.contains(words[0]), "{screen}");
            return;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{words:?} never stood there: {lines:#?}\n{}", daemon.said());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until no line of attention holds this.
fn says_no_more(daemon: &Daemon, word: &str) {
    let began = Instant::now();
    while attention(daemon).iter().any(|line| line.contains(word)) {
        assert!(began.elapsed() < TEST_TIMEOUT, "{word:?} stays there: {:#?}", attention(daemon));
        thread::sleep(Duration::from_millis(50));
    }
}

fn page(daemon: &Daemon, path: &str) -> (u16, String) {
    web::page(daemon.port("metrics"), path)
}

#[test]
fn all_is_well() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    // What the machine's disk raises by itself is no word of ours.
    let ours: Vec<_> = attention(&daemon).into_iter().filter(|line| !line.contains("The disk is")).collect();
    assert_eq!(ours, Vec::<String>::new());
    assert_eq!(page(&daemon, "/healthz"), (200, "ok\n".to_owned()));
}

#[test]
fn writes_that_fail_and_the_recovery() {
    if !is_on_path("prlimit") {
        return not_run("writes that fail", "no prlimit");
    }
    let daemon = Setup::new().under(&["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).start();
    let limit = |limit: &str| {
        let done = run(Command::new("prlimit").args(["--pid", &daemon.pid().to_string(), limit]), b"");
        assert!(done.status.success(), "{done:?}");
    };
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    limit("--fsize=0:unlimited");
    raw.append(1, AckLevel::Durable, &[b"meets the limit"]);
    says(&daemon, &["The journal has failed", "File too large", "appends are refused", "`dmesg`"]);
    let text = screen(&daemon);
    assert!(text.lines().next().is_some_and(|line| line.ends_with(", FAILED")), "{text}");
    let (status, why) = page(&daemon, "/readyz");
    assert!(status == 503 && why.contains("the journal failed"), "{status} {why}");
    let (status, why) = page(&daemon, "/healthz");
    assert!(status == 200 && why.starts_with("degraded: ") && why.contains("the journal failed"), "{status} {why}");
    // An order that cannot be carried out now is refused now.
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let output = clactl_ends(1, &["sync", "--admin", &admin], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the journal has failed and recovers by itself"), "{said}");
    limit("--fsize=unlimited:unlimited");
    says(&daemon, &["The kernel failed", "the journal recovered", "health of the disk"]);
    says_no_more(&daemon, "The journal has failed");
    assert_eq!(page(&daemon, "/readyz").0, 200);
}

#[test]
fn a_stop_while_the_journal_has_failed_says_what_it_loses() {
    if !is_on_path("prlimit") {
        return not_run("a stop while the journal has failed", "no prlimit");
    }
    let trapped = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let mut daemon = Setup::new().set("daemon.drain_timeout", "1s").under(&trapped).start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    let pid = daemon.pid().to_string();
    let done = run(Command::new("prlimit").args(["--pid", &pid, "--fsize=0:unlimited"]), b"");
    assert!(done.status.success(), "{done:?}");
    raw.append(1, AckLevel::Received, &[b"two", b"three"]);
    says(&daemon, &["The journal has failed"]);
    assert_eq!(daemon.term(), Some(1));
    let lost = "could not be closed cleanly in time: what was acknowledged as `received` and not written yet is lost (2 \
                records, offsets 1 to 2); nothing that was acknowledged as `written` or `durable` is lost";
    assert!(daemon.said().contains(lost), "{}", daemon.said());
}

#[test]
fn a_reload_that_was_refused() {
    let daemon = Daemon::start();
    fs::write(daemon.setup().config(), "[rotation]\nmax_agee = \"1h\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    let check = format!("`clad --config {} check`", daemon.setup().config().display());
    says(&daemon, &["The last reload was refused", &check]);
    let (status, why) = page(&daemon, "/healthz");
    assert!(status == 200 && why.starts_with("degraded: the last reload was refused"), "{status} {why}");
    assert_eq!(page(&daemon, "/readyz").0, 200, "it takes appends all the same");
    fs::write(daemon.setup().config(), "[rotation]\nmax_age = \"1h\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    says_no_more(&daemon, "The last reload");
}

#[test]
fn records_that_are_damaged_and_segments_that_are_gone() {
    let mut daemon = Setup::new().fixed_ports().start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..50 {
        raw.append_acked(sequence, AckLevel::Durable, &[format!("number {sequence}").as_bytes()]);
        if sequence == 20 {
            daemon.admin().rotate().expect("rotated");
        }
    }
    drop(raw);
    assert_eq!(daemon.term(), Some(0));
    let segment = daemon.dir().join(format!("{:020}.clog", 1));
    let bytes = fs::read(&segment).expect("the segment");
    let at = bytes.windows(9).position(|window| window == b"number 42").expect("the record");
    let file = OpenOptions::new().write(true).open(&segment).expect("the segment");
    file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("written");
    daemon.restart();
    let read = run(&mut clactl(&["query", "-o", "cat", "--server", &daemon.address("unix")]), b"");
    assert_eq!(read.status.code(), Some(1), "{read:?}");
    let dir = daemon.dir().display().to_string();
    says(&daemon, &["Damaged records were found", &format!("clactl verify {dir}"), "copy the folder"]);
    assert_eq!(daemon.term(), Some(0));
    fs::remove_file(daemon.dir().join(format!("{:020}.clog", 0))).expect("removed");
    daemon.restart();
    says(&daemon, &["Acknowledged records were lost", &format!("clactl verify {dir}"), "backup"]);
    assert!(page(&daemon, "/healthz").1.starts_with("degraded: acknowledged records were lost"));
}

#[test]
fn records_that_are_refused_or_dropped() {
    let daemon = open_to_all(Setup::new().set("limits.max_producers", "1").start());
    let mut known = stranger(&daemon);
    known.append_acked(0, AckLevel::Durable, &[b"known"]);
    let mut newcomer = stranger(&daemon);
    newcomer.append(0, AckLevel::Durable, &[b"one too many"]);
    newcomer.refused();
    says(&daemon, &["1 record refused just now (busy 1)", "who may try again"]);
    newcomer.append(0, AckLevel::None, &[b"and one that wants no answer"]);
    newcomer.ping();
    says(&daemon, &["1 record dropped since the start (busy 1)", "level `none`"]);
}

#[test]
fn a_log_in_memory() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return not_run("a log in memory", "no /dev/shm") };
    let daemon = Setup::in_folder(&folder.path().join("log")).start();
    says(
        &daemon,
        &["`durable` is not offered", "set journal.dir", "journal.power_loss_protected = true does not help"],
    );
    assert!(screen(&daemon).contains("highest ack written"), "{}", screen(&daemon));
}

#[test]
fn segments_that_nobody_can_prepare_in_time() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let began = Instant::now();
    let mut sequence = 0;
    while !attention(&daemon).iter().any(|line| line.contains("raise [journal] segment_bytes")) {
        for _ in 0..10 {
            raw.append_acked(sequence, AckLevel::Written, &[b"one each"]);
            sequence += 1;
            daemon.admin().rotate().expect("rotated");
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{:#?}", attention(&daemon));
    }
}

#[test]
fn no_room_for_a_further_segment() {
    let mut daemon = Setup::new().fixed_ports().start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"one"]);
    drop(raw);
    assert_eq!(daemon.term(), Some(0));
    // More is to be left free than any disk has: the same as a full one.
    daemon.restart_with("journal.reserve_free", "8000TiB");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append(0, AckLevel::Durable, &[b"no room"]);
    raw.refused();
    says(&daemon, &["Appends are refused: the disk has no space", "set a rule of [retention] and reload"]);
    says(&daemon, &["The disk is full", "reserve"]);
    let (status, why) = page(&daemon, "/readyz");
    assert!(status == 503 && why.contains("no space for another segment"), "{status} {why}");
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "1MiB");
    assert_eq!(page(&daemon, "/readyz").0, 200);
}

/// Large appends are refused and small ones fit still: who looks at readiness hears that appends are refused, also while
/// small ones go in.
#[test]
fn no_room_for_a_further_segment_while_small_appends_fit() {
    let setup = Setup::new().fixed_ports().set("journal.segment_bytes", "1MiB");
    let mut daemon = setup.set("limits.max_append_bytes", "512KiB").set("journal.max_record_bytes", "512KiB").start();
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "8000TiB");
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let large = "x".repeat(300_000);
    let mut sequence = 0;
    loop {
        raw.append(sequence, AckLevel::Received, &[large.as_bytes()]);
        match raw.answer() {
            Frame::Accepted(_) => sequence += 1,
            Frame::Refused(refused) => break assert_eq!(refused.error.code, ErrorCode::NoSpace),
            other => panic!("{other:?}"),
        }
    }
    says(&daemon, &["Appends are refused: the disk has no space"]);
    for _ in 0..20 {
        raw.append_acked(sequence, AckLevel::Written, &[b"it fits"]);
        sequence += 1;
        let (status, why) = page(&daemon, "/readyz");
        assert!(status == 503 && why.contains("no space for another segment"), "{status} {why}");
        assert_eq!(web::metrics(daemon.port("metrics"))["clad_ready"], 0.0);
        thread::sleep(Duration::from_millis(100)); // over more than one look of the daemon at its journal
    }
    drop(raw);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "1MiB");
    assert_eq!(page(&daemon, "/readyz").0, 200);
}
