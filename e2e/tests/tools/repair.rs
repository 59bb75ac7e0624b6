//! A log that was damaged while nobody ran it: `clactl verify`, `clactl repair`, a start, and everything read back.
//!
//! What must hold, whatever was done to the files: `verify` and a dry run change nothing; a repair deletes nothing and a
//! second one finds nothing to do; behind it the daemon starts, each record that was not hit is there byte for byte, once,
//! at its offset; what was hit is told, by the start or by the reader, and the log goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clad_e2e::tool::{clactl, clactl_ends, run};
use clad_e2e::{Daemon, Json, Setup};

use crate::{append_numbers, numbers, ok};

/// Records of a segment, and segments of a log.
const RECORDS: u64 = 20;
const SEGMENTS: u64 = 4;
const END: u64 = RECORDS * SEGMENTS;

/// A file's bytes and its mode.
type Files = BTreeMap<PathBuf, (Vec<u8>, u32)>;

fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB")
}

/// The files of a log that a daemon left: at a stop, or under `kill -9`.
fn log(clean: bool) -> &'static Files {
    static LOGS: [OnceLock<Files>; 2] = [OnceLock::new(), OnceLock::new()];
    LOGS[usize::from(clean)].get_or_init(|| made(clean))
}

fn made(clean: bool) -> Files {
    let mut daemon = small().start();
    for segment in 0..SEGMENTS {
        if segment > 0 {
            ok(&daemon, &["rotate"]);
        }
        append_numbers(&daemon, of(segment));
    }
    match clean {
        true => assert_eq!(daemon.term(), Some(0)),
        false => daemon.kill9(),
    }
    files(daemon.dir())
}

/// The offsets in a segment.
fn of(segment: u64) -> Range<u64> {
    segment * RECORDS..(segment + 1) * RECORDS
}

/// All files below a folder, by their paths in it.
fn files(dir: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let mode = entry.metadata().expect("its mode").permissions().mode() & 0o7777;
                let name = entry.path().strip_prefix(dir).expect("below it").to_owned();
                found.insert(name, (fs::read(entry.path()).expect("its bytes"), mode));
            }
        }
    }
    found
}

fn name(segment: u64) -> PathBuf {
    format!("{segment:020}.clog").into()
}

/// What `clactl` says on both streams, with its exit code.
fn said(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(&mut clactl(arguments), b"");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// What is done to the files, and what must come of it.
struct Damage<'a> {
    /// How it is done.
    hit: &'a dyn Fn(&mut Files),
    /// What `verify` says before the repair; it ends in 1 with that, and in 0 where there is nothing to say.
    verify: Option<&'a str>,
    /// What the repair says that it does, in this order.
    actions: &'a [&'a str],
    /// What the repair says that it cannot do.
    left: Option<&'a str>,
    /// The offsets that are gone.
    lost: Range<u64>,
    /// The exit code of the repair and of those after it, before a start.
    ends: i32,
}

impl Default for Damage<'_> {
    fn default() -> Self {
        Self { hit: &|_| {}, verify: None, actions: &[], left: None, lost: 0..0, ends: 0 }
    }
}

impl Damage<'_> {
    /// To a log that was stopped, and to one that was killed.
    fn both(&self) {
        self.to(true);
        self.to(false);
    }

    fn to(&self, clean: bool) {
        let setup = small();
        let dir = setup.dir().to_owned();
        let mut hit = log(clean).clone();
        (self.hit)(&mut hit);
        install(&dir, &hit);
        let path = dir.display().to_string();

        let (code, text) = said(&["verify", &path]);
        assert_eq!(code, Some(i32::from(self.verify.is_some())), "verify: {text}");
        assert!(text.contains(self.verify.unwrap_or("no damage")), "verify: {text}");

        // A dry run names what is to be done, and does nothing.
        let (code, text) = said(&["repair", "--dry-run", &path]);
        let to_do = !self.actions.is_empty() || self.left.is_some();
        assert_eq!(code, Some(i32::from(to_do).max(self.ends)), "a dry run: {text}");
        // Where there is nothing to do, it says what is lost.
        let told = self.actions.is_empty() && self.verify.is_some_and(|verify| text.contains(verify));
        assert_eq!(told, self.actions.is_empty() && self.verify.is_some(), "a dry run: {text}");
        self.names_the_actions("would be done: ", &text);
        assert!(files(&dir) == hit, "a dry run or a check has changed something");

        let (code, text) = said(&["repair", &path]);
        assert_eq!(code, Some(self.ends), "repair: {text}");
        self.names_the_actions("done: ", &text);
        nothing_is_gone(&hit, &files(&dir));

        // Again: nothing is left to do, nothing is done, and what is lost is told once more.
        let repaired = files(&dir);
        let report = clad_e2e::json(&clactl_ends(self.ends, &["repair", &path, "-o", "json"], b"").stdout);
        assert_eq!(report["actions"], Json::Array(Vec::new()), "a second repair: {report}");
        assert_eq!(report["verify"]["damaged"], self.ends == 1, "{report}");
        assert!(files(&dir) == repaired, "a second repair has changed something");

        self.reads_back(setup.start());
    }

    fn names_the_actions(&self, word: &str, text: &str) {
        let named: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(word)).collect();
        assert_eq!(named.len(), self.actions.len(), "{word}{named:?}, expected {:?}", self.actions);
        for (named, expected) in named.iter().zip(self.actions) {
            assert!(named.contains(expected), "{named:?} is not {expected:?}");
        }
        let left: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("CANNOT BE REPAIRED: ")).collect();
        match self.left {
            Some(expected) => assert!(left.len() == 1 && left[0].contains(expected), "{left:?} is not {expected:?}"),
            None => assert!(left.is_empty(), "{left:?}"),
        }
        let nothing = self.actions.is_empty() && self.left.is_none();
        assert_eq!(text.contains("nothing to repair"), nothing, "{text}");
    }

    /// From a daemon that started on what the repair left.
    fn reads_back(&self, mut daemon: Daemon) {
        let status = daemon.status();
        let (next, recovery) = (status.offsets.expect("watermarks").written, status.recovery.expect("what happened"));
        let server = daemon.address("unix");
        let (gap, got) = read(&["--server", &server]);
        let all: Vec<u64> = (0..END).filter(|offset| !self.lost.contains(offset)).collect();
        assert_eq!(got.keys().copied().collect::<Vec<_>>(), all, "the offsets that are there");
        // Below the next offset a reader is told of it; from there on the start has said so.
        let inside = !self.lost.is_empty() && self.lost.start < next;
        assert_eq!(gap, inside, "a gap that is told by the reader; the next offset is {next}");
        if self.lost.end > next {
            assert!(recovery.summary.contains("DAMAGE"), "lost in silence: {}", recovery.summary);
        }
        assert!(next >= all.last().map_or(0, |last| last + 1), "{next} is given again");

        // It goes on, and what it took is there as well.
        append_numbers(&daemon, next..next + 5);
        let (_, got) = read(&["--server", &server]);
        let all: Vec<u64> = all.into_iter().chain(next..next + 5).collect();
        assert_eq!(got.keys().copied().collect::<Vec<_>>(), all, "with the new ones");
        let dir = daemon.dir().display().to_string();
        assert_eq!(daemon.term(), Some(0));
        assert_eq!(read(&["--dir", &dir]).1, got, "from the files");
        // What only a start told, or a segment that is named and not there, is told for as long.
        clactl_ends(i32::from(inside || self.left.is_some()), &["verify", &dir], b"");
    }
}

/// Whether a gap was told, and the records by their offsets; each is what was stored there, and there once.
fn read(from: &[&str]) -> (bool, BTreeMap<u64, String>) {
    let output = run(&mut clactl(&[&["query", "-o", "json"], from].concat()), b"");
    let mut got = BTreeMap::new();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let record = clad_e2e::json(line);
        let offset = record["offset"].as_u64().expect("an offset");
        let body = record["body"].as_str().expect("a body").to_owned();
        assert_eq!(body, format!("number {offset}"), "what is stored at {offset}");
        assert_eq!(got.insert(offset, body), None, "{offset} is there twice");
    }
    match output.status.code() {
        Some(0) => (false, got),
        Some(1) => (true, got),
        other => panic!("query ended with {other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn install(dir: &Path, files: &Files) {
    fs::create_dir(dir).expect("the data folder");
    for (name, (bytes, mode)) in files {
        fs::write(dir.join(name), bytes).expect("written");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(*mode)).expect("its mode");
    }
}

/// What is no more under its name lies elsewhere, byte for byte.
fn nothing_is_gone(before: &Files, after: &Files) {
    for (name, (bytes, _)) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
        let kept = after.values().any(|(kept, _)| kept == bytes);
        assert!(kept, "{} is gone", name.display());
    }
}

/// Changes a file.
fn change(files: &mut Files, name: PathBuf, how: impl FnOnce(&mut Vec<u8>)) {
    how(&mut files.get_mut(&name).unwrap_or_else(|| panic!("{} is not there", name.display())).0);
}

/// Where a record stands in its segment.
fn place(bytes: &[u8], number: u64) -> usize {
    let text = format!("number {number}");
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("the record")
}

#[test]
fn nothing_at_all() {
    Damage::default().both();
}

#[test]
fn a_byte_of_a_record() {
    Damage {
        hit: &|files| {
            change(files, name(1), |bytes| {
                let at = place(bytes, 33);
                bytes[at + 3] ^= 1;
            });
        },
        verify: Some("offsets 33 to 33"),
        lost: 33..34,
        ends: 1,
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_byte_of_a_header() {
    Damage {
        hit: &|files| change(files, name(1), |bytes| bytes[60] ^= 0x40),
        verify: Some("segment 1"),
        actions: &["segment 1 had a wrong byte in its header, at 60"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn two_bytes_of_a_header() {
    Damage {
        hit: &|files| {
            change(files, name(1), |bytes| {
                bytes[60] ^= 0x40;
                bytes[100] ^= 0x40;
            });
        },
        verify: Some("offsets 20 to 39"),
        left: Some("segment 1 has no header that can be believed"),
        lost: of(1),
        ends: 1,
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_byte_of_a_footer() {
    Damage {
        hit: &|files| {
            change(files, name(1), |bytes| {
                let end = bytes.len();
                bytes[end - 8] ^= 1;
            });
        },
        verify: Some("segment 1 has lost its footer"),
        actions: &["segment 1 had lost its footer: sealed again"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_sealed_segment_cut_off() {
    Damage {
        hit: &|files| {
            change(files, name(1), |bytes| bytes.truncate(place(bytes, 31)));
        },
        verify: Some("segment 1 has lost its footer"),
        actions: &["segment 1 had lost its footer: sealed again"],
        lost: 31..40,
        ends: 1,
        ..Damage::default()
    }
    .both();
}

/// Nothing that is left tells where the log ended: that it ended later is told.
#[test]
fn the_last_segment_cut_off() {
    Damage {
        hit: &|files| {
            change(files, name(3), |bytes| bytes.truncate(place(bytes, 75)));
        },
        verify: Some("segment 3 has lost its footer, and may have lost its end"),
        lost: 75..80,
        ends: 1,
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_segment_cut_to_nothing() {
    Damage {
        hit: &|files| change(files, name(1), Vec::clear),
        verify: Some("segment 1"),
        left: Some("segment 1 has no header that can be believed"),
        lost: of(1),
        ends: 1,
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_segment_deleted() {
    for segment in [0, 1] {
        let offsets = of(segment);
        Damage {
            hit: &|files| {
                files.remove(&name(segment)).expect("it was there");
            },
            verify: Some(&format!("segment {segment} is missing")),
            left: Some(&format!("segment {segment} is missing")),
            lost: offsets,
            ends: 1,
            ..Damage::default()
        }
        .both();
    }
}

#[test]
fn the_last_segment_deleted() {
    Damage {
        hit: &|files| {
            files.remove(&name(3)).expect("it was there");
        },
        verify: Some("segment 3 is missing"),
        left: Some("segment 3 is missing"),
        lost: of(3),
        ends: 1,
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_segment_replaced_by_another_of_the_log() {
    Damage {
        hit: &|files| {
            let other = files[&name(2)].clone();
            files.insert(name(1), other);
        },
        verify: Some("segment 1"),
        actions: &["segment 1 is a copy of segment 2"],
        left: Some("segment 1 is missing"),
        lost: of(1),
        ends: 1,
    }
    .both();
}

#[test]
fn two_segments_swapped() {
    Damage {
        hit: &|files| {
            let (one, two) = (files[&name(1)].clone(), files[&name(2)].clone());
            files.insert(name(1), two);
            files.insert(name(2), one);
        },
        verify: Some("segment 1"),
        actions: &["segment 1 lay under the name of segment 2", "segment 2 lay under the name of segment 1"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn three_segments_in_each_others_place() {
    Damage {
        hit: &|files| {
            let three = [0, 1, 2].map(|segment| files[&name(segment)].clone());
            for (segment, file) in three.into_iter().enumerate() {
                files.insert(name((segment as u64 + 1) % 3), file);
            }
        },
        verify: Some("segment 1"),
        actions: &[
            "segment 0 lay under the name of segment 1",
            "segment 1 lay under the name of segment 2",
            "segment 2 lay under the name of segment 0",
        ],
        ..Damage::default()
    }
    .both();
}

/// The names are wrong, and one of them is taken by what is none of the log's.
#[test]
fn a_segment_whose_name_another_log_has() {
    let other = made(true);
    Damage {
        hit: &|files| {
            let two = files[&name(2)].clone();
            files.insert(name(900), two);
            files.insert(name(2), other[&name(2)].clone());
        },
        verify: Some("segment 2 belongs to another log"),
        actions: &["segment 2 belongs to the log", "segment 2 lay under the name of segment 900: put back"],
        ..Damage::default()
    }
    .both();
}

/// Of two files for one segment the one counts that has a header.
#[test]
fn a_copy_of_a_segment_without_a_header() {
    Damage {
        hit: &|files| {
            let two = files[&name(2)].clone();
            files.insert(name(900), two);
            change(files, name(2), |bytes| bytes[..4096].fill(0));
        },
        verify: Some("segment 2"),
        actions: &["segment 2 has no header that can be believed, and lies elsewhere", "segment 2 lay under the name"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_segment_under_a_name_that_was_never_in_use() {
    Damage {
        hit: &|files| {
            let one = files.remove(&name(1)).expect("it was there");
            files.insert(name(900), one);
        },
        verify: Some("segment 1 is missing"),
        actions: &["segment 1 lay under the name of segment 900: put back"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn a_segment_of_another_log() {
    let other = made(true);
    Damage {
        hit: &|files| {
            files.insert(name(1), other[&name(1)].clone());
        },
        verify: Some("segment 1 belongs to another log"),
        actions: &["segment 1 belongs to the log"],
        left: Some("segment 1 is missing"),
        lost: of(1),
        ends: 1,
    }
    .both();
}

#[test]
fn clad_meta_deleted() {
    Damage {
        hit: &|files| {
            files.remove(Path::new("clad.meta")).expect("it was there");
        },
        verify: Some("`clactl repair`"),
        actions: &["clad.meta was lost: made anew from segments 0 to 3, from offset 0 on"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn clad_meta_zeroed() {
    Damage {
        hit: &|files| change(files, "clad.meta".into(), |bytes| bytes.fill(0)),
        verify: Some("`clactl repair`"),
        actions: &["clad.meta was lost: made anew from segments 0 to 3, from offset 0 on"],
        ..Damage::default()
    }
    .both();
}

/// One slot is what a torn write may cost: a start goes on from the other by itself.
#[test]
fn a_slot_of_clad_meta_zeroed() {
    for slot in 0..2 {
        let hit = |files: &mut Files| {
            change(files, "clad.meta".into(), |bytes| {
                let half = bytes.len() / 2;
                bytes[slot * half..(slot + 1) * half].fill(0);
            });
        };
        let actions = &["one of the two copies in clad.meta did not hold: written anew"];
        Damage { hit: &hit, actions, ..Damage::default() }.both();
    }
}

#[test]
fn a_file_of_somebody_else() {
    Damage {
        hit: &|files| {
            files.insert("notes.txt".into(), (b"remember the milk\n".to_vec(), 0o644));
        },
        verify: Some("`notes.txt`, which is no part of a log"),
        actions: &["`notes.txt` is no part of a log: moved to quarantine/"],
        ..Damage::default()
    }
    .both();
}

/// Everything at once that a restore gone wrong may leave.
#[test]
fn several_at_once() {
    let other = made(true);
    let hit = |files: &mut Files| {
        files.remove(Path::new("clad.meta")).expect("it was there");
        files.insert("core.1234".into(), (vec![7; 5000], 0o600));
        files.insert(name(7), other[&name(0)].clone());
        change(files, name(1), |bytes| bytes[60] ^= 0x40);
        change(files, name(2), |bytes| bytes.truncate(place(bytes, 51)));
    };
    let actions = [
        "segment 1 had a wrong byte",
        "`core.1234`",
        "segment 7 belongs to the log",
        "clad.meta was lost",
        "segment 2 had lost its footer",
    ];
    // Where no footer is behind it, segment 2 is left to the start, as any other that a killed daemon left.
    for (clean, actions) in [(true, &actions[..]), (false, &actions[..4])] {
        let verify = Some("no part of a log");
        Damage { hit: &hit, verify, actions, lost: 51..60, ends: 1, left: None }.to(clean);
    }
}

/// Nothing is repaired under a daemon that runs, and nothing is touched.
#[test]
fn a_log_that_is_in_use() {
    let daemon = small().start();
    append_numbers(&daemon, 0..10);
    fs::write(daemon.dir().join("notes.txt"), "milk").expect("written");
    let dir = daemon.dir().display().to_string();
    for arguments in [&["repair", &dir][..], &["repair", "--dry-run", &dir], &["repair", &dir, "-o", "json"]] {
        let output = clactl_ends(1, arguments, b"");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("in use by a clad") && output.stdout.is_empty(), "{arguments:?}: {text}");
    }
    assert!(daemon.dir().join("notes.txt").exists() && !daemon.dir().join("quarantine").exists());
    append_numbers(&daemon, 10..20);
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..20));
}

/// A folder that was named by mistake keeps all it has, and gets nothing.
#[test]
fn a_folder_of_anything_else() {
    let setup = small();
    fs::create_dir_all(setup.dir().join("sub")).expect("a folder");
    fs::write(setup.dir().join("letter.txt"), "dear reader").expect("written");
    let before: BTreeSet<_> =
        fs::read_dir(setup.dir()).expect("it").map(|e| e.expect("an entry").file_name()).collect();
    for arguments in [&["repair"][..], &["repair", "--dry-run"]] {
        let (code, text) = said(&[arguments, &[&setup.dir().display().to_string()]].concat());
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("holds no log"), "{text}");
    }
    let after: BTreeSet<_> = fs::read_dir(setup.dir()).expect("it").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(after, before);
}
