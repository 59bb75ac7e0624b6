//! A log that was damaged while nobody ran it: `clactl verify`, `clactl repair`, a start, and everything read back.
//!
//! What must hold, whatever was done to the files: `verify` and a dry run change nothing; a repair deletes nothing and a
//! second one finds nothing to do; behind it the daemon starts, each record that was not hit is there byte for byte, once,
//! at its offset; what was hit is reported, by the start or by the reader, and the log goes on.

mod harness;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clad_e2e::tool::clactl_ends;

use crate::{append_numbers, numbers, ok};
use harness::{Damage, Files, change, made, name, of, place, said, small};

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
        left: Some("segment 1 has no valid header"),
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
        verify: Some(": has lost its footer"),
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
        verify: Some(": has lost its footer"),
        actions: &["segment 1 had lost its footer: sealed again"],
        lost: 31..40,
        ends: 1,
        ..Damage::default()
    }
    .both();
}

/// Nothing that is left in it shows where the log ended: it is reported that it ended later. After a clean end `clad.meta` knows where.
#[test]
fn the_last_segment_cut_off() {
    let damage = Damage {
        hit: &|files| {
            change(files, name(3), |bytes| bytes.truncate(place(bytes, 75)));
        },
        verify: Some(": has lost its footer, and may have lost its end"),
        lost: 75..80,
        ends: 1,
        ..Damage::default()
    };
    damage.to(false);
    Damage { verify: Some("segment 3, offsets 75 to 79: "), ..damage }.to(true);
}

#[test]
fn a_segment_cut_to_nothing() {
    Damage {
        hit: &|files| change(files, name(1), Vec::clear),
        verify: Some("segment 1"),
        left: Some("segment 1 has no valid header"),
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
            verify: Some(&format!("segment {segment}, offsets")),
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
    let damage = Damage {
        hit: &|files| {
            files.remove(&name(3)).expect("it was there");
        },
        verify: Some("segment 3: missing, from offset 60 on"),
        left: Some("segment 3 is missing"),
        lost: of(3),
        ends: 1,
        ..Damage::default()
    };
    damage.to(false);
    Damage { verify: Some("segment 3, offsets 60 to 79: missing, from offset 60 on"), ..damage }.to(true);
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
        actions: &["segment 1 had the name of segment 2", "segment 2 had the name of segment 1"],
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
            "segment 0 had the name of segment 1",
            "segment 1 had the name of segment 2",
            "segment 2 had the name of segment 0",
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
        verify: Some(": belongs to another log"),
        actions: &["segment 2 belongs to the log", "segment 2 had the name of segment 900: renamed"],
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
        actions: &["segment 2 has no valid header, and is elsewhere", "segment 2 had the name"],
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
        verify: Some(": missing, from"),
        actions: &["segment 1 had the name of segment 900: renamed"],
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
        verify: Some(": belongs to another log"),
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
        actions: &["clad.meta was lost: rebuilt from segments 0 to 3, from offset 0 on"],
        ..Damage::default()
    }
    .both();
}

#[test]
fn clad_meta_zeroed() {
    Damage {
        hit: &|files| change(files, "clad.meta".into(), |bytes| bytes.fill(0)),
        verify: Some("`clactl repair`"),
        actions: &["clad.meta was lost: rebuilt from segments 0 to 3, from offset 0 on"],
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
        let actions = &["one of the two copies in clad.meta was invalid: rewritten"];
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
