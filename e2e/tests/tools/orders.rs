//! `status`, `segments`, `rotate`, `sync`: what programs lean on.

use std::fs;
use std::path::Path;
use std::process::Command;

use clad_e2e::raw::hello;
use clad_e2e::tool::{clactl_ends, run};
use clad_e2e::{Daemon, Raw, Scratch, binary};
use clad_proto::AckLevel;

use crate::{append_numbers, numbers, ok, ok_json};

/// The manual's own commands, twice in a row with nothing logged in between: each copy is a whole log.
#[test]
fn a_backup_of_a_log_that_is_quiet_is_whole() {
    let manual =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATIONS.md")).expect("the manual");
    let (_, block) = manual.split_once("<!-- run: back up -->\n```\n").expect("its block");
    let (block, _) = block.split_once("\n```").expect("the block's end");
    let others = block.replace("/var/lib/clad", "").replace("/srv/backup", "");
    assert!(!others.contains("/var/lib") && !others.contains("/srv"), "{block}");
    let (daemon, folder) = (Daemon::start(), Scratch::new());
    let program = binary("clactl");
    append_numbers(&daemon, 0..10);
    for copy in ["first", "second"] {
        let copy = folder.data().join(copy).display().to_string();
        let script = block.replace("/var/lib/clad", &daemon.dir().display().to_string()).replace("/srv/backup", &copy);
        let script = script.replace("clactl ", &format!("{} ", program.display()));
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &script]).env("CLAD_SERVER", daemon.address("unix"));
        shell.env("CLAD_ADMIN", format!("unix://{}", daemon.setup().admin_socket().display()));
        let ended = run(&mut shell, b"");
        let said = [ended.stdout, ended.stderr].concat();
        assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&said));
        let output = clactl_ends(0, &["query", "--dir", &copy, "-o", "cat"], b"");
        assert!(output.stdout.starts_with(&numbers(0..10)), "{:?}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn status_has_the_names_that_are_promised() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..7);
    let status = ok_json(&daemon, &["status"]).remove(0);
    let mut raw = Raw::unix(&daemon.socket());
    let welcome = raw.greet(&hello()).expect("WELCOME");
    assert_eq!(status["log_id"], welcome.log_id.to_string(), "{status}");
    assert_eq!(status["epoch"], 1, "{status}");
    assert_eq!(
        (&status["durability"], &status["highest_ack"]),
        (&"group_commit".into(), &"durable".into()),
        "{status}"
    );
    assert!(status["io_engine"].is_string(), "{status}");
    for watermark in ["received", "written", "durable"] {
        assert_eq!(status["offsets"][watermark], 7, "{status}");
    }
    assert!(status["segments"].as_u64().is_some_and(|segments| segments >= 1), "{status}");
    assert!(status["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{status}");
    assert_eq!(status["failed"], false, "{status}");
    // What the daemon stands on is shown.
    let substrate = &status["substrate"];
    assert!(substrate["filesystem"].is_string() && substrate["devices"].is_array(), "{status}");
    // And a person sees the same log.
    let text = String::from_utf8(ok(&daemon, &["status"])).expect("text");
    for word in [welcome.log_id.to_string().as_str(), "group_commit", "durable", "7"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
}

#[test]
fn a_rotation_seals_what_is_there() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..5);
    let rotated = ok_json(&daemon, &["rotate"]).remove(0);
    assert_eq!((&rotated["first_offset"], &rotated["end_offset"]), (&0.into(), &5.into()), "{rotated}");
    append_numbers(&daemon, 5..9);
    let segments = ok_json(&daemon, &["segments"]);
    assert_eq!(segments.len(), 2, "{segments:?}");
    assert_eq!((&segments[0]["sealed"], &segments[1]["sealed"]), (&true.into(), &false.into()));
    assert_eq!((&segments[0]["records"], &segments[1]["records"]), (&5.into(), &4.into()));
    let file = daemon.dir().join(segments[0]["file"].as_str().expect("a name"));
    assert_eq!(fs::metadata(file).expect("the file").len(), segments[0]["bytes"].as_u64().expect("a length"));
    // Nothing to seal is no error, and makes no segment.
    ok(&daemon, &["rotate"]);
    let empty = ok_json(&daemon, &["rotate"]).remove(0);
    for key in ["sealed_segment", "first_offset", "end_offset"] {
        assert!(empty[key].is_null(), "{key}: {empty}");
    }
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..9));
}

#[test]
fn a_sync_makes_everything_durable() {
    let daemon = clad_e2e::Setup::new()
        .set("journal.durability", "fire_and_forget")
        .set("journal.fire_and_forget.sync_interval", "0")
        .start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    for sequence in 0..10 {
        raw.append_acked(sequence, AckLevel::Written, &[b"not on the disk yet"]);
    }
    let offsets = daemon.status().offsets.expect("offsets");
    assert_eq!((offsets.written, offsets.durable), (10, 0), "nobody asked for a sync");
    let synced = ok_json(&daemon, &["sync"]).remove(0);
    assert_eq!(synced["durable"], 10, "{synced}");
    assert_eq!(daemon.status().offsets.expect("offsets").durable, 10);
    assert_eq!(welcome.highest_ack, AckLevel::Written);
}

#[test]
fn a_wrong_call_ends_in_2() {
    for arguments in [&["frobnicate"][..], &["append", "--ack", "surely"], &["query", "--lines", "many"], &[]] {
        clactl_ends(2, arguments, b"");
    }
}
