//! `[retention] per_owner_bytes`: the flood of one user does not take the log from another.
//!
//! Invariants: an append that would take its owner above the quota is refused before it has an offset, until retention has
//! removed enough of that owner; nobody else is refused for it, root never is, and a resend is answered. It holds over a start,
//! whether the segments were sealed or are recovered from their batches.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use clad_journal::format::batch;
use clad_journal::format::chunk::ChunkHeader;
use clad_journal::format::footer::Footer;
use clad_journal::format::segment::SegmentHeader;
use clad_journal::owner_bytes::NETWORK;
use clad_journal::{Append, AppendError, Level, ReadError, Retention};
use clad_sim::SimClock;
use clad_sim::disk::Survival;
use scenes::{Stage, one};

const QUOTA: u64 = 10_000;
const RECORD_BYTES: usize = 3000;

fn stage() -> Stage {
    let mut stage = Stage::new();
    stage.config.retention = Retention { per_owner_bytes: QUOTA, ..Retention::default() };
    stage.die();
    stage.start();
    stage
}

/// One record of an owner, who has a producer for itself.
fn append(stage: &Stage, owner: u64, sequence: u64) -> Result<u64, AppendError> {
    let payload = [7; RECORD_BYTES];
    let append = Append { producer: [owner as u8; 16], owner, gap: true, ..one(sequence, &payload) };
    let taken = stage.journal().append(append).map(|accepted| accepted.first_offset);
    stage.run();
    taken
}

/// Bytes in a file of an append that is a batch of its own.
fn stored(payload_bytes: usize) -> u64 {
    (batch::LEN + ChunkHeader::encoded_len(one(0, &[]).peer_meta.len(), payload_bytes)) as u64
}

fn refused(stage: &Stage, owner: u64, sequence: u64) {
    let why = append(stage, owner, sequence).expect_err("it is taken");
    assert_eq!(why, AppendError::OwnerQuota { limit: QUOTA });
    assert!(why.is_for_now() && !why.is_for_all() && why.to_string().contains("per_owner_bytes"), "{why}");
}

fn rotate(stage: &Stage) {
    stage.journal().request_rotate();
    stage.run();
}

#[test]
fn who_has_its_share_is_refused_and_nobody_else() {
    let stage = stage();
    (0..3).for_each(|n| assert_eq!(append(&stage, 7, n), Ok(n)));
    refused(&stage, 7, 3);
    assert_eq!(append(&stage, 7, 2), Ok(2), "a resend has its offset");
    assert_eq!(append(&stage, 8, 0), Ok(3), "the refused one has none");
    // All of the network is one, and root has no bound.
    let ids = [NETWORK | 15, NETWORK | 16, NETWORK | 17];
    ids.into_iter().for_each(|id| assert!(append(&stage, id, 0).is_ok()));
    refused(&stage, NETWORK | 19, 0);
    (0..9).for_each(|n| assert!(append(&stage, 0, n).is_ok()));
    refused(&stage, 7, 3);
}

#[test]
fn retention_makes_room_for_it() {
    let stage = stage();
    append(&stage, 8, 0).expect("room");
    (0..3).for_each(|n| {
        append(&stage, 7, n).expect("room");
        rotate(&stage);
    });
    refused(&stage, 7, 3);
    // Two of three segments go, with two records of the one and all of the other.
    let by_size = Retention { per_owner_bytes: QUOTA, max_bytes: 1, ..Retention::default() };
    stage.journal().set_retention(by_size);
    stage.journal().retain();
    stage.journal().set_retention(Retention { max_bytes: 0, ..by_size });
    (3..5).for_each(|n| assert!(append(&stage, 7, n).is_ok()));
    refused(&stage, 7, 5);
    (1..4).for_each(|n| assert!(append(&stage, 8, n).is_ok()));
    refused(&stage, 8, 4);
    // Without the quota nothing is refused; with it again, what is there counts.
    stage.journal().set_retention(Retention::default());
    assert!(append(&stage, 7, 5).is_ok());
    stage.journal().set_retention(by_size);
    refused(&stage, 7, 6);
}

/// What the journal puts around an append counts: a flood of empty records takes no more of the log than one of long ones.
#[test]
fn empty_records_fill_a_share_as_well() {
    let stage = stage();
    let empty = |sequence| {
        let append = Append { producer: [7; 16], owner: 7, gap: true, ..one(sequence, &[]) };
        let taken = stage.journal().append(append);
        stage.run();
        taken
    };
    let taken = (0..QUOTA).find(|n| empty(*n).is_err()).expect("it is refused");
    assert_eq!(taken, QUOTA / stored(0), "each is a batch of its own");
    assert!(append(&stage, 8, 0).is_ok());
    let mut stage = stage;
    stage.die();
    stage.start();
    stage.journal().retain(); // a look of the background thread counts the footers
    refused(&stage, 7, taken);
}

/// A reader that comes behind the retention gets what is gone as a gap, also while batches of it are in memory.
#[test]
fn what_was_removed_is_not_read_from_memory() {
    let stage = stage();
    for n in 0..3 {
        append(&stage, 7, n).expect("room");
        rotate(&stage);
    }
    stage.journal().set_retention(Retention { max_bytes: 1, ..Retention::default() });
    stage.journal().retain();
    let lowest = stage.journal().meta().lowest_offset;
    assert!(lowest > 0, "something was removed");
    let first = stage.journal().reader(0, Level::Written).next_batch();
    assert!(matches!(first, Err(ReadError::Gap { from: 0, to, damaged: false }) if to == lowest), "{first:?}");
    let kept = stage.journal().reader(lowest, Level::Written).next_batch().expect("it is there").expect("a batch");
    assert_eq!(kept.first_offset, lowest);
}

/// Sealed by a rotation, by a clean end, or by the next start behind a power cut or a kill.
#[test]
fn it_holds_over_a_start() {
    for how in 0..4 {
        let mut stage = stage();
        for n in 0..3 {
            append(&stage, 7, n).expect("room");
            if how == 0 {
                rotate(&stage);
            }
        }
        stage.rest();
        match how {
            1 => {
                stage.journal().close();
                stage.run();
                stage.die();
            }
            2 => {
                stage.die();
                stage.disk.power_cut_as(Survival::None);
                stage.clock = SimClock::new(stage.disk.boot_id());
            }
            _ => stage.die(),
        }
        let footers = || stage.disk.names().into_iter().filter_map(|name| footer(&stage.disk.peek(&name)?));
        if how < 2 {
            assert_eq!(footers().map(|footer| footer.owners[0].1).sum::<u64>(), 3 * stored(RECORD_BYTES));
        }
        stage.start();
        stage.journal().retain(); // a look of the background thread counts the footers
        refused(&stage, 7, 3);
        assert_eq!(append(&stage, 8, 0), Ok(3), "{how}");
        // What goes with retention was counted.
        rotate(&stage);
        let by_size = Retention { per_owner_bytes: QUOTA, max_bytes: 1, ..Retention::default() };
        stage.journal().set_retention(by_size);
        stage.journal().retain();
        assert!((3..6).all(|n| append(&stage, 7, n).is_ok()), "{how}");
        refused(&stage, 7, 6);
    }
}

/// The footer of a segment that is sealed and holds records.
fn footer(bytes: &[u8]) -> Option<Footer> {
    let seed = SegmentHeader::decode(bytes.get(..4096)?).ok()?.seed();
    let (pos, _) = Footer::locate(bytes, bytes.len() as u64, &seed)?;
    let (footer, _) = Footer::decode(&bytes[pos as usize..], &seed, pos)?;
    (!footer.owners.is_empty()).then_some(footer)
}
