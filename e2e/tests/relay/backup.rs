//! A raw archive: a backup that is read where it lies, and brought back.

use std::fs;
use std::path::{Path, PathBuf};

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, json};

use super::Relay;
use super::forward::{Numbers, appends, small};
use super::objects::{bodies, end, relay, verify, wait_stored};

const SMALL: &str = "format = \"raw\"\nmax_age = \"300ms\"\nobject_bytes = \"64KiB\"\n";
/// docs/FORMAT.md, section 10.
const RAW_HEAD_BYTES: usize = 32;
const SUFFIX: &str = ".raw.zst";

fn to_folder(relay: &Relay) -> String {
    format!("[to.objects]\nurl = \"file://{}\"\n{SMALL}", relay.folder().display())
}

/// The one folder of the history.
fn history(relay: &Relay) -> PathBuf {
    let only = |folder: &Path| {
        let mut found = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let first = found.next().expect("something");
        assert_eq!(found.next(), None);
        first
    };
    let history = only(&only(&relay.folder()));
    assert!(history.file_name().is_some_and(|name| name.to_string_lossy().starts_with("raw=")));
    history
}

fn objects(history: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(history).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut objects: Vec<_> = all.filter(|path| path.to_string_lossy().ends_with(SUFFIX)).collect();
    objects.sort();
    objects
}

/// Bodies by offset that `query --dir` shows, and its exit code's case.
fn queried(code: i32, history: &Path, more: &[&str]) -> (Vec<(u64, String)>, String) {
    let history = history.to_str().expect("text");
    let ended = clactl_ends(code, &[&["query", "--dir", history, "-o", "json"], more].concat(), b"");
    let lines = ended.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json);
    let bodies = lines.map(|record| {
        (record["offset"].as_u64().expect("an offset"), record["body"].as_str().expect("text").to_owned())
    });
    (bodies.collect(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_raw_archive_has_each_append_once_over_kills_is_read_in_place_and_brought_back() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let mut daemon = small().start();
    let mut relay = relay(&daemon, "", to_folder);
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        if kill % 4 == 0 {
            let goal = end(&daemon);
            wait_stored(&mut relay, goal);
        }
        relay.or_daemon_is_killed(&mut daemon, kill);
    }
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(&format!(" {end} records")) && said.contains("nothing is wrong"), "{said}");
    let history = history(&relay);
    let files = objects(&history);
    assert!(files.len() > 1);

    // Read where it lies: forwards, backwards, and from a place within an append.
    let here = bodies(&daemon);
    assert_eq!(queried(0, &history, &[]).0, here);
    let mut last = queried(0, &history, &["-n", "50", "-r"]).0;
    last.reverse();
    assert_eq!(last, here[here.len() - 50..]);
    // Together the objects are the raw export of the log, but for the heads.
    let export = relay.scratch.data().join("export");
    let words = ["--server", &daemon.address("unix"), "export", "-o", "raw", &export.display().to_string()];
    clactl_ends(0, &words, b"");
    let export = fs::read(export).expect("an export");
    let (head, mut together) = export.split_at(RAW_HEAD_BYTES);
    for file in &files {
        let exported = zstd::decode_all(&fs::read(file).expect("an object")[..]).expect("zstd");
        let frames = exported.strip_prefix(head).expect("the head of an export of this log");
        together = together.strip_prefix(frames).expect("what the export has at this place");
    }
    assert!(together.is_empty(), "{} bytes of the export are in no object", together.len());

    // Brought back, with each first client's checksum.
    let back = small().start();
    let (server, folder) = (back.address("unix"), history.to_str().expect("text"));
    let import = ["--server", &server, "import", folder, "-o", "json"];
    let said = json(&clactl_ends(0, &import, b"").stdout);
    assert_eq!((said["records"].as_u64(), said["end_offset"].as_u64()), (Some(end), Some(end)), "{said}");
    assert!(appends(&back) == appends(&daemon), "the log that was brought back is another one");
    // What comes later is brought behind it.
    Numbers::new(&daemon).append(7, 10);
    let all = super::objects::end(&daemon);
    wait_stored(&mut relay, all);
    let said = json(&clactl_ends(0, &import, b"").stdout);
    let done = (said["records"].as_u64(), said["offsets_before"].as_u64());
    assert_eq!(done, (Some(all - end), Some(end)), "{said}");
    assert!(appends(&back) == appends(&daemon), "the log that was brought back is another one");

    damage_is_named(&relay, &daemon, &history);
    println!("kills: {kills}, {end} records in {} objects of a raw archive", files.len());
}

/// A byte of an object is another, one ends early, one is gone: nothing false is shown, and all three are named.
fn damage_is_named(relay: &Relay, daemon: &Daemon, history: &Path) {
    let files = objects(history);
    let file = &files[files.len() / 2];
    let right = fs::read(file).expect("an object");
    let mut wrong = right.clone();
    let middle = wrong.len() / 2;
    wrong[middle] ^= 1;
    fs::write(file, &wrong).expect("written");
    let (said, is_right) = verify(relay, &[]);
    assert!(!is_right && said.contains("its data has sha256"), "{said}");
    let (found, said) = queried(1, history, &[]);
    let here = bodies(daemon);
    assert!(found.len() < here.len() && said.contains("are damaged and cannot be read"), "{said}");
    assert!(found.iter().all(|record| here.contains(record)), "something false is shown");

    fs::write(file, &right[..right.len() - 1]).expect("written");
    let (found, said) = queried(1, history, &[]);
    assert!(found.len() < here.len() && said.contains("it was not copied whole"), "{said}");

    fs::remove_file(file).expect("removed");
    let (found, said) = queried(1, history, &[]);
    assert!(found.len() < here.len() && said.contains("are in no object"), "{said}");
    let to = small().start();
    let folder = history.to_str().expect("text");
    let ended = clactl_ends(1, &["--server", &to.address("unix"), "import", folder, "-o", "json"], b"");
    let said = json(&ended.stdout);
    let (damaged, records) = (said["offsets_damaged"].as_u64(), said["records"].as_u64());
    assert_eq!(damaged.unwrap_or(0) + records.unwrap_or(0), here.len() as u64, "{said}");
    assert_eq!(records, Some(found.len() as u64), "{said}");
    fs::write(file, right).expect("written");
    assert!(verify(relay, &[]).1);
}
