//! A start after `kill -9` on a disk that is full to its last block.
//!
//! Invariants: it serves, or it ends with 1 and says what to do; either way nothing that was acknowledged is lost, however
//! often it is killed and started while the disk is full, and what is refused meanwhile is certainly not written. Once there is
//! space it goes on.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use clad_e2e::raw::{Got, hello_reader};
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Rng, seed};
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ProducerId};

use crate::full::{body, certainly_not_written, until_taken};
use crate::{mount_point, small};

const ROUNDS: usize = 4;
/// Starts on the full disk in each round.
const STARTS: usize = 3;

/// Somebody else takes every block that there is.
fn fill() -> PathBuf {
    let path = mount_point().join("hog");
    let mut file = File::create(&path).expect("made");
    for piece in [1 << 20, 4096, 512] {
        let piece = vec![0xEE; piece];
        // What was refused may be there once what was taken is on the disk.
        while file.write_all(&piece).is_ok() || file.sync_all().is_ok() && file.write_all(&piece).is_ok() {}
    }
    let _ = file.sync_all();
    path
}

/// Appends up to so many, each `durable`, until one is refused; how many there are then.
fn append(daemon: &Daemon, id: ProducerId, many: u64) -> u64 {
    let (mut raw, welcome) = Raw::resume(&daemon.socket(), id);
    let first = welcome.expected_sequence();
    for sequence in first..first + many {
        raw.append(sequence, AckLevel::Durable, &[&body(sequence)]);
        match raw.answer() {
            Frame::Accepted(answer) => raw.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset),
            Frame::Refused(refused) => {
                certainly_not_written(&refused.error);
                return sequence;
            }
            other => panic!("{other:?}"),
        }
    }
    first + many
}

/// Everything that was acknowledged is there, and at most the one append behind it that was not; how many that are.
fn intact(daemon: &Daemon, acked: u64) -> u64 {
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(0, AckLevel::Written).expect("a read");
    assert!((acked..=acked + 1).contains(&(got.len() as u64)), "{} records, {acked} were acknowledged", got.len());
    for (sequence, Got { offset, sequence: its, body: got, .. }) in (0..).zip(&got) {
        assert_eq!((*offset, *its), (sequence, sequence));
        assert!(*got == Some(body(sequence)), "record {sequence} is not as it was sent");
    }
    got.len() as u64
}

#[test]
#[ignore = "cargo xtask ci disk"]
#[expect(clippy::print_stdout, reason = "what was tried is the result")]
fn serves_or_says_what_to_do() {
    let mut rng = Rng::new(seed());
    let mut daemon = small().start();
    let id = Raw::producer(&daemon.socket()).1.producer_id;
    let (mut acked, mut served, mut refused) = (0, 0, 0);
    for _ in 0..ROUNDS {
        acked = append(&daemon, id, 1 + rng.below(20));
        let (mut raw, _) = Raw::resume(&daemon.socket(), id);
        raw.append(acked, AckLevel::Durable, &[&body(acked)]); // whatever becomes of it
        daemon.kill9();
        let hog = fill();
        for _ in 0..STARTS {
            match daemon.try_restart() {
                Ok(()) => {
                    served += 1;
                    intact(&daemon, acked);
                    acked = append(&daemon, id, rng.below(10));
                    daemon.kill9();
                }
                Err(ended) => {
                    refused += 1;
                    assert_eq!(ended.code, Some(1), "{}", ended.said);
                    assert!(ended.said.contains("free space on the file system"), "{}", ended.said);
                }
            }
        }
        fs::remove_file(hog).expect("removed");
        daemon.restart();
        acked = intact(&daemon, acked);
        until_taken(&mut Raw::resume(&daemon.socket(), id).0, acked);
        acked += 1;
    }
    println!("starts on a full disk: {served} served, {refused} said what to do; {acked} records, 0 lost");
    println!("tally: kills={} acks={acked} lost=0", ROUNDS + served);
    assert_eq!(intact(&daemon, acked), acked);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

/// Segments of the log's folder with a name that ends so, by number.
fn segments(daemon: &Daemon, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(daemon.dir()).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut named: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    named.sort();
    named
}

/// A torn tail above the last watermark, behind the last byte of the active segment.
fn tear(segment: &PathBuf) {
    let bytes = fs::read(segment).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("it holds a batch") as u64 + 1;
    let file = OpenOptions::new().write(true).open(segment).expect("it opens");
    file.write_all_at(&[0x77; 9000], end.next_multiple_of(64)).expect("torn");
    file.sync_all().expect("synced");
}

/// With a torn tail to quarantine: a half-made segment holds the room, or a prepared one, or nothing does.
#[test]
#[ignore = "cargo xtask ci disk"]
fn comes_up_behind_a_torn_tail() {
    for (prepared, half_made) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut daemon = small().start();
        let id = Raw::producer(&daemon.socket()).1.producer_id;
        let acked = append(&daemon, id, 3);
        daemon.wait_until("the prepared segment", |status| status.segments >= 2);
        daemon.kill9();
        let all = segments(&daemon, ".clog");
        let (last, active) = (&all[all.len() - 1], &all[all.len() - 2]);
        tear(active);
        if half_made {
            let name = format!("{}.tmp", last.display());
            fs::write(name, vec![0; 1 << 20]).expect("made");
        }
        if !prepared {
            fs::remove_file(last).expect("removed");
        }
        let hog = fill();
        daemon.try_restart().unwrap_or_else(|ended| panic!("{prepared}, {half_made}: {}", ended.said));
        let said = daemon.said();
        let in_place = said.contains("after its end");
        assert_eq!(in_place, !prepared && !half_made, "{said}");
        assert!(!said.contains("direct I/O could not be tried"), "{said}");
        intact(&daemon, acked);
        assert!(segments(&daemon, ".tmp").is_empty());
        fs::remove_file(hog).expect("removed");
        until_taken(&mut Raw::resume(&daemon.socket(), id).0, acked);
        assert_eq!(intact(&daemon, acked + 1), acked + 1);
        assert_eq!(daemon.term(), Some(0));
        clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
    }
}
