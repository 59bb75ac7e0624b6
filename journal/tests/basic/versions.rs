//! Format version 1: its segments are read and ended, and what is new goes into segments of this version.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clad_journal::format::segment::{LEN, SegmentHeader, VERSION};
use clad_journal::{Level, Policy};

use super::{TEST_TIMEOUT, append, config, open, read_all, wait};

/// Headers of the segments; one that was being prepared when it was copied has none.
fn headers(dir: &Path) -> BTreeMap<u64, SegmentHeader> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let segments = names.filter(|path| path.extension().is_some_and(|end| end == "clog"));
    segments.filter_map(|path| SegmentHeader::decode(&fs::read(path).unwrap()).ok()).map(|h| (h.number, h)).collect()
}

/// No checksum in a segment depends on its version, but that of its header.
fn make_version_1(dir: &Path) {
    for (number, header) in headers(dir) {
        let path = dir.join(clad_journal::format::segment_name(number));
        let mut bytes = fs::read(&path).unwrap();
        bytes[..LEN].copy_from_slice(&SegmentHeader { version: 1, ..header }.encode());
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn a_log_of_version_1_goes_on_in_segments_of_version_2() {
    for clean in [true, false] {
        let (old, new) = (tempdir(), tempdir());
        let (journal, _) = open(old.path(), config(Policy::GROUP_COMMIT));
        for n in 0..3 {
            append(n, b"old", Level::Durable).submit(&journal).unwrap();
            wait(&journal, Level::Durable, n + 1);
            if n < 2 {
                assert!(journal.rotate().blocking_recv().unwrap().unwrap().is_some());
            }
        }
        if clean {
            assert!(journal.close(TEST_TIMEOUT));
        }
        // A copy of files that are in use is what a power cut leaves.
        for entry in fs::read_dir(old.path()).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file())
        {
            fs::copy(entry.path(), new.path().join(entry.file_name())).unwrap();
        }
        make_version_1(new.path());
        let before = headers(new.path());
        assert!(before.values().all(|header| header.version == 1));

        let (journal, _) = open(new.path(), config(Policy::GROUP_COMMIT));
        assert_eq!(read_all(&journal).len(), 3, "clean: {clean}");
        append(3, b"new", Level::Durable).submit(&journal).unwrap();
        wait(&journal, Level::Durable, 4);
        let all = read_all(&journal);
        assert_eq!(all.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1, 2, 3], "clean: {clean}");
        assert!(journal.close(TEST_TIMEOUT));
        let after = headers(new.path());
        let written = |number: &u64| before.contains_key(number) && after.contains_key(number);
        for number in (0..3).filter(written) {
            assert_eq!(after[&number].version, 1, "{number} is as it was");
        }
        let newest = after.iter().rev().find(|(_, header)| header.version == VERSION);
        assert!(newest.is_some_and(|(number, _)| *number >= 3), "the new record is in one of this version: {after:?}");
        let report = clad_journal::verify(new.path(), &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
    }
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
