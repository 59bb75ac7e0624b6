//! Damage is found, named by its offsets, and never read as if it were nothing; a torn tail is only a note.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clad_e2e::Daemon;
use clad_e2e::tool::{clactl_ends, clactl_unread};

use crate::{append_numbers, numbers, ok};

fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.clog"))
}

fn place(file: &Path, text: &[u8]) -> u64 {
    let bytes = fs::read(file).expect("the segment");
    bytes.windows(text.len()).position(|window| window == text).expect("the record") as u64
}

fn flip(file: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).expect("the segment");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
}

/// Where the last byte that is no zero stands.
fn end_of_data(file: &Path) -> u64 {
    let bytes = fs::read(file).expect("the segment");
    bytes.iter().rposition(|&byte| byte != 0).expect("some data") as u64 + 1
}

#[test]
fn a_flipped_byte_in_a_sealed_segment() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..100);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 100..150);
    assert_eq!(daemon.term(), Some(0));
    let dir = daemon.dir().display().to_string();
    let file = segment(daemon.dir(), 0);
    flip(&file, place(&file, b"number 42"));

    let report = clad_e2e::json(&clactl_ends(1, &["verify", &dir, "-o", "json"], b"").stdout);
    assert_eq!(report["damaged"], true, "{report}");
    let problem =
        report["problems"].as_array().expect("a list").iter().find(|problem| !problem["first_offset"].is_null());
    let problem = problem.unwrap_or_else(|| panic!("no offsets in {report}"));
    let (from, to) = (problem["first_offset"].as_u64().expect("from"), problem["end_offset"].as_u64().expect("to"));
    assert!((from..to).contains(&42), "42 is not within {from} to {to}");
    assert_eq!(problem["segment"], 0, "{report}");
    let text = String::from_utf8(clactl_ends(1, &["verify", &dir], b"").stdout).expect("text");
    assert!(text.contains("DAMAGE") && text.contains(&format!("offsets {from} to {}", to - 1)), "{text}");

    // Everything else is read on, what is missing is said, and the end is 1: from the files and from the daemon.
    let expected = [numbers(0..from), numbers(to..150)].concat();
    let output = clactl_ends(1, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert_eq!(output.stdout, expected, "from the files");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&from.to_string()), "{said}");
    daemon.restart();
    let server = daemon.address("unix");
    let output = clactl_ends(1, &["query", "--server", &server, "-o", "cat"], b"");
    assert_eq!(output.stdout, expected, "from the daemon");
    // It goes on taking records, on the same log.
    append_numbers(&daemon, 150..160);
    let output = clactl_ends(1, &["query", "--server", &server, "-o", "cat"], b"");
    assert_eq!(output.stdout, [expected, numbers(150..160)].concat());
}

/// What is piped into something that ends early is judged all the same.
#[test]
fn damage_is_reported_by_the_exit_code_where_nobody_reads_the_output() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..100);
    ok(&daemon, &["rotate"]);
    assert_eq!(daemon.term(), Some(0));
    let dir = daemon.dir().display().to_string();
    let calls: [&[&str]; 9] = [
        &["verify", &dir],
        &["verify", "-o", "json", &dir],
        &["query", "--dir", &dir, "-o", "cat"],
        &["query", "--dir", &dir, "-o", "json", "--show-cursor"],
        &["export", "--dir", &dir, "-o", "json"],
        &["export", "--dir", &dir, "-o", "raw"],
        &["repair", "--dry-run", &dir],
        &["repair", "--dry-run", "-o", "json", &dir],
        &["repair", &dir],
    ];
    for call in calls {
        assert_eq!(clactl_unread(call, b""), 0, "sound: clactl {}", call.join(" "));
    }
    let file = segment(daemon.dir(), 0);
    flip(&file, place(&file, b"number 42"));
    for call in calls {
        assert_eq!(clactl_unread(call, b""), 1, "damaged: clactl {}", call.join(" "));
    }
}

/// What one flipped byte or one lost file spoils is one damaged place, with the offsets that it costs.
#[test]
fn one_cause_is_one_damaged_place() {
    let mut daemon = Daemon::start();
    for numbers in [0..50, 50..100, 100..150] {
        append_numbers(&daemon, numbers);
        ok(&daemon, &["rotate"]);
    }
    assert_eq!(daemon.term(), Some(0));
    let dir = daemon.dir().display().to_string();
    let file = segment(daemon.dir(), 1);
    let whole = fs::read(&file).expect("the segment");
    let footer = end_of_data(&file) - 1;
    // The first and the last batch, the header with which all batches are lost, and the footer, which costs none.
    let (first, last) = (place(&file, b"number 50"), place(&file, b"number 99"));
    for (what, byte, lost) in
        [("first", first, Some(50)), ("last", last, Some(99)), ("header", 20, Some(75)), ("footer", footer, None)]
    {
        flip(&file, byte);
        let report = clad_e2e::json(&clactl_ends(1, &["verify", &dir, "-o", "json"], b"").stdout);
        let problems = report["problems"].as_array().expect("a list");
        assert_eq!((problems.len(), &problems[0]["segment"]), (1, &1.into()), "{what}: {report}");
        let offset = |key: &str| problems[0][key].as_u64();
        let within = lost.map(|lost| (offset("first_offset")..offset("end_offset")).contains(&Some(lost)));
        assert!(within.unwrap_or(offset("first_offset").is_none()), "{what}: {report}");
        let text = String::from_utf8(clactl_ends(1, &["verify", &dir], b"").stdout).expect("text");
        assert!(text.ends_with("\n1 damaged place\n"), "{what}: {text}");
        fs::write(&file, &whole).expect("as it was");
    }
    // Two causes are two, and a file that is gone is one, beside the one that is left.
    flip(&file, first);
    fs::remove_file(segment(daemon.dir(), 0)).expect("there");
    let text = String::from_utf8(clactl_ends(1, &["verify", &dir], b"").stdout).expect("text");
    assert!(text.ends_with("\n2 damaged places\n"), "{text}");
    assert!(text.contains("DAMAGE: segment 0, offsets 0 to 49: missing, from offset 0 on\n"), "{text}");
}

/// What a dead daemon had in flight behind its last batch was never confirmed.
#[test]
fn garbage_behind_the_end() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..50);
    daemon.kill9();
    let dir = daemon.dir().display().to_string();
    let file = segment(daemon.dir(), 0);
    let behind = end_of_data(&file).next_multiple_of(4096) + 4096;
    let written = OpenOptions::new().write(true).open(&file).expect("the segment");
    written.write_all_at(&[0xA5; 5000], behind).expect("written");
    drop(written);

    let report = clad_e2e::json(&clactl_ends(0, &["verify", &dir, "-o", "json"], b"").stdout);
    assert_eq!(report["damaged"], false, "{report}");
    assert!(report["notes"].to_string().contains("torn tail"), "{report}");
    let output = clactl_ends(0, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert_eq!(output.stdout, numbers(0..50));
    assert!(String::from_utf8_lossy(&output.stderr).contains("torn tail"), "{output:?}");

    daemon.restart();
    let recovery = daemon.status().recovery.expect("what happened");
    assert!(!recovery.clean && recovery.truncated_bytes >= 5000, "{recovery:?}");
    let quarantined: Vec<_> = fs::read_dir(daemon.dir().join("quarantine")).expect("the folder").collect();
    assert!(!quarantined.is_empty(), "nothing was quarantined");
    append_numbers(&daemon, 50..60);
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..60));
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &dir], b"");
}

/// A segment is made shorter only when its footer is durable: one that is shorter and has none was cut by somebody, and
/// nothing in it shows where it ended. Each batch that is left is read all the same.
#[test]
fn a_segment_that_was_cut_off() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..50);
    daemon.kill9();
    let dir = daemon.dir().display().to_string();
    let file = segment(daemon.dir(), 0);
    let end = end_of_data(&file).next_multiple_of(4096);
    OpenOptions::new().write(true).open(&file).expect("the segment").set_len(end).expect("cut");
    let text = String::from_utf8(clactl_ends(1, &["verify", &dir], b"").stdout).expect("text");
    assert!(text.contains("DAMAGE: segment 0: has lost its footer, and may have lost its end"), "{text}");
    // Nothing can be named by its offset; what is there is read, and what may be missing is said.
    let output = clactl_ends(1, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert_eq!(output.stdout, numbers(0..50));
    assert!(String::from_utf8_lossy(&output.stderr).contains("may have lost its end"), "{output:?}");
    daemon.restart();
    let recovery = daemon.status().recovery.expect("what happened");
    assert!(recovery.summary.contains("DAMAGE: segment 0 has lost its footer"), "{recovery:?}");
    append_numbers(&daemon, 50..60);
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..60));
    assert_eq!(daemon.term(), Some(0));
    // The start has sealed it with what it found, and reported that.
    clactl_ends(0, &["verify", &dir], b"");
}

#[test]
fn a_sealed_segment_that_is_gone() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..10);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 10..20);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 20..30);
    assert_eq!(daemon.term(), Some(0));
    fs::remove_file(segment(daemon.dir(), 1)).expect("removed");
    let dir = daemon.dir().display().to_string();
    let text = String::from_utf8(clactl_ends(1, &["verify", &dir], b"").stdout).expect("text");
    assert!(text.contains("segment 1"), "{text}");
    let output = clactl_ends(1, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert_eq!(output.stdout, [numbers(0..10), numbers(20..30)].concat());
    daemon.restart();
    daemon.wait_said("segment 1 is missing");
    let output = clactl_ends(1, &["query", "--server", &daemon.address("unix"), "-o", "cat"], b"");
    assert_eq!(output.stdout, [numbers(0..10), numbers(20..30)].concat());
}
