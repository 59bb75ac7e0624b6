//! A log's files, what is done to them, and what must come of it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clad_e2e::tool::{clactl, clactl_ends, run};
use clad_e2e::{Daemon, Json, Setup};

use crate::{append_numbers, ok};

/// Records of a segment, and segments of a log.
pub(crate) const RECORDS: u64 = 20;
pub(crate) const SEGMENTS: u64 = 4;
pub(crate) const END: u64 = RECORDS * SEGMENTS;

/// A file's bytes and its mode.
pub(crate) type Files = BTreeMap<PathBuf, (Vec<u8>, u32)>;

pub(crate) fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB")
}

/// The files of a log that a daemon left: at a stop, or under `kill -9`.
pub(crate) fn log(clean: bool) -> &'static Files {
    static LOGS: [OnceLock<Files>; 2] = [OnceLock::new(), OnceLock::new()];
    LOGS[usize::from(clean)].get_or_init(|| made(clean))
}

pub(crate) fn made(clean: bool) -> Files {
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
pub(crate) fn of(segment: u64) -> Range<u64> {
    segment * RECORDS..(segment + 1) * RECORDS
}

/// All files below a folder, by their paths in it.
pub(crate) fn files(dir: &Path) -> Files {
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

pub(crate) fn name(segment: u64) -> PathBuf {
    format!("{segment:020}.clog").into()
}

/// What `clactl` says on both streams, with its exit code.
pub(crate) fn said(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(&mut clactl(arguments), b"");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// What is done to the files, and what must come of it.
pub(crate) struct Damage<'a> {
    /// How it is done.
    pub(crate) hit: &'a dyn Fn(&mut Files),
    /// What `verify` says before the repair; it ends in 1 with that, and in 0 where there is nothing to say.
    pub(crate) verify: Option<&'a str>,
    /// What the repair says that it does, in this order.
    pub(crate) actions: &'a [&'a str],
    /// What the repair says that it cannot do.
    pub(crate) left: Option<&'a str>,
    /// The offsets that are gone.
    pub(crate) lost: Range<u64>,
    /// The exit code of the repair and of those after it, before a start.
    pub(crate) ends: i32,
}

/// The lines that begin so, without that.
fn behind(beginning: &str, text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(beginning)).map(str::to_owned).collect()
}

impl Default for Damage<'_> {
    fn default() -> Self {
        Self { hit: &|_| {}, verify: None, actions: &[], left: None, lost: 0..0, ends: 0 }
    }
}

impl Damage<'_> {
    /// To a log that was stopped, and to one that was killed.
    pub(crate) fn both(&self) {
        self.to(true);
        self.to(false);
    }

    pub(crate) fn to(&self, clean: bool) {
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
        let reported = self.actions.is_empty() && self.verify.is_some_and(|verify| text.contains(verify));
        assert_eq!(reported, self.actions.is_empty() && self.verify.is_some(), "a dry run: {text}");
        self.names_the_actions("would be done: ", &text);
        let dry_run: Vec<String> = behind("would be done: ", &text);
        assert!(files(&dir) == hit, "a dry run or a check has changed something");

        let (code, text) = said(&["repair", &path]);
        assert_eq!(code, Some(self.ends), "repair: {text}");
        self.names_the_actions("done: ", &text);
        assert_eq!(behind("done: ", &text), dry_run, "a dry run names the same, and what is lost with it");
        nothing_is_gone(&hit, &files(&dir));

        // Again: nothing is left to do, nothing is done, and what is lost is reported once more.
        let repaired = files(&dir);
        let report = clad_e2e::json(&clactl_ends(self.ends, &["repair", &path, "-o", "json"], b"").stdout);
        assert_eq!(report["actions"], Json::Array(Vec::new()), "a second repair: {report}");
        assert_eq!(report["verify"]["damaged"], self.ends == 1, "{report}");
        assert!(files(&dir) == repaired, "a second repair has changed something");

        self.reads_back(setup.start());
    }

    pub(crate) fn names_the_actions(&self, word: &str, text: &str) {
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
        assert_eq!(text.contains("nothing to repair"), nothing && self.ends == 0, "{text}");
        assert_eq!(text.contains("nothing that a repair changes"), nothing && self.ends == 1, "{text}");
    }

    /// From a daemon that started on what the repair left.
    pub(crate) fn reads_back(&self, mut daemon: Daemon) {
        let status = daemon.status();
        let (next, recovery) = (status.offsets.expect("watermarks").written, status.recovery.expect("what happened"));
        let server = daemon.address("unix");
        let (gap, got) = read(&["--server", &server]);
        let all: Vec<u64> = (0..END).filter(|offset| !self.lost.contains(offset)).collect();
        assert_eq!(got.keys().copied().collect::<Vec<_>>(), all, "the offsets that are there");
        // Below the next offset a reader gets a gap; from there on the start has said so.
        let inside = !self.lost.is_empty() && self.lost.start < next;
        assert_eq!(gap, inside, "a gap that the reader reports; the next offset is {next}");
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
        // What only a start reported, or a segment that is named and not there, is reported for as long.
        clactl_ends(i32::from(inside || self.left.is_some()), &["verify", &dir], b"");
    }
}

/// Returns true if a gap was reported, and the records by their offsets; each is what was stored there, and there once.
pub(crate) fn read(from: &[&str]) -> (bool, BTreeMap<u64, String>) {
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

pub(crate) fn install(dir: &Path, files: &Files) {
    fs::create_dir(dir).expect("the data folder");
    for (name, (bytes, mode)) in files {
        fs::write(dir.join(name), bytes).expect("written");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(*mode)).expect("its mode");
    }
}

/// What is no more under its name lies elsewhere, byte for byte.
pub(crate) fn nothing_is_gone(before: &Files, after: &Files) {
    for (name, (bytes, _)) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
        let kept = after.values().any(|(kept, _)| kept == bytes);
        assert!(kept, "{} is gone", name.display());
    }
}

/// Changes a file.
pub(crate) fn change(files: &mut Files, name: PathBuf, how: impl FnOnce(&mut Vec<u8>)) {
    how(&mut files.get_mut(&name).unwrap_or_else(|| panic!("{} is not there", name.display())).0);
}

/// Where a record stands in its segment.
pub(crate) fn place(bytes: &[u8], number: u64) -> usize {
    let text = format!("number {number}");
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("the record")
}
