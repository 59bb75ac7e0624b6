//! Range syncs, and files that are taken over.

use clad_journal::io::{TakeOver, Witness};

use super::*;

/// A machine with a cache of this kind, and `f`, opened through the page cache: two written blocks, two reserved ones.
fn machine(volatile_cache: bool) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::with_options(1, Options { volatile_cache, ..Options::default() });
    disk.install("f", &blocks(0, 2));
    let file = disk.open("f", Access::WriteCached).unwrap();
    file.allocate(4 * BLOCK).unwrap();
    file.sync_all().unwrap();
    (disk, file)
}

fn kept(disk: &SimDisk) -> BTreeSet<Option<Vec<u8>>> {
    after_cuts(disk, Survival::None)
}

#[test]
fn a_range_sync_keeps_overwrites_of_written_blocks_where_no_cache_is_volatile() {
    let (disk, file) = machine(false);
    write(&file, 0, blocks(1, 4)).unwrap();
    file.sync_range(0, BLOCK).unwrap();
    let (zero, one) = ([0; 8], [1; 8]);
    assert_eq!(kept(&disk), BTreeSet::from([Some([one, zero, zero, zero].concat())]), "of its own range alone");
    file.sync_range(0, 4 * BLOCK).unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some([one, one, zero, zero].concat())]), "reserved blocks need more");
    file.sync_data().unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some([one, one, one, one].concat())]));
    // Written and synced once, they are as good as any.
    write(&file, 2 * BLOCK, blocks(2, 1)).unwrap();
    file.sync_range(2 * BLOCK, BLOCK).unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some([one, one, [2; 8], one].concat())]));
    assert_eq!((disk.counters().range_syncs, disk.counters().syncs), (3, 2));
}

#[test]
fn a_range_sync_keeps_nothing_in_a_volatile_cache() {
    let (disk, file) = machine(true);
    write(&file, 0, blocks(1, 4)).unwrap();
    file.sync_range(0, 4 * BLOCK).unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some(vec![0; 32])]));
    assert!(after_cuts(&disk, Survival::Half).len() > 20, "any of it may be kept");
    // It has left the page cache, though: a write-back that fails now cannot lose it.
    disk.fail_writeback("f");
    file.sync_range(0, 4 * BLOCK).unwrap();
    assert_eq!(disk.peek("f").map(|bytes| sectors(&bytes)), Some(vec![1; 32]));
    file.sync_data().unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some(vec![1; 32])]));
}

#[test]
fn a_range_sync_covers_what_was_complete_when_it_began() {
    let (disk, file) = machine(false);
    write(&file, 0, blocks(1, 1)).unwrap();
    let ticket = disk.begin_range(&file, 0, BLOCK).unwrap();
    write(&file, 0, blocks(2, 1)).unwrap();
    disk.finish(ticket).1.unwrap();
    assert_eq!(kept(&disk), BTreeSet::from([Some([[1; 8], [0; 8], [0; 8], [0; 8]].concat())]));
}

#[test]
fn a_range_sync_that_fails_leaves_clean_pages_and_is_reported_once_to_each() {
    let (disk, file) = machine(false);
    let other = disk.open("f", Access::WriteCached).unwrap();
    write(&file, 0, blocks(1, 2)).unwrap();
    disk.fail_next(OpKind::SyncRange, "f", Fault::Io);
    assert_eq!(code(file.sync_range(0, 2 * BLOCK)), EIO);
    file.sync_range(0, 2 * BLOCK).unwrap();
    let lost = kept(&disk).into_iter().flatten().next().unwrap();
    assert!(lost[..16].contains(&0), "some of it is on no disk: {lost:?}");
    assert_eq!(
        disk.peek("f").map(|bytes| sectors(&bytes)[..16].to_vec()),
        Some(vec![1; 16]),
        "and readable all the same"
    );
    assert_eq!(code(other.sync_range(0, BLOCK)), EIO, "each description gets it");
    other.sync_range(0, BLOCK).unwrap();
    disk.set_read_only(true);
    assert_eq!(code(file.sync_range(0, BLOCK)), EROFS);
}

#[test]
fn in_place_is_what_was_durably_written_and_is_shared_with_nobody() {
    let (disk, file) = machine(false);
    assert!(file.overwrites_in_place(2 * BLOCK).unwrap());
    assert!(!file.overwrites_in_place(3 * BLOCK).unwrap());
    write(&file, 2 * BLOCK, blocks(1, 2)).unwrap();
    assert!(!file.overwrites_in_place(4 * BLOCK).unwrap(), "written, not synced");
    file.sync_all().unwrap();
    assert!(file.overwrites_in_place(4 * BLOCK).unwrap() && !file.overwrites_in_place(5 * BLOCK).unwrap());
    disk.share("f");
    assert!(!file.overwrites_in_place(BLOCK).unwrap());
}

#[test]
fn a_file_is_taken_over_when_nobody_can_see_it() {
    let (disk, file) = machine(false);
    let refused = |why| assert_eq!(disk.take_over("f", "g").unwrap(), TakeOver::Refused(why));
    refused(Witness::Open);
    drop(file);
    refused(Witness::Shared); // half of it was never written
    let file = disk.open("f", Access::WriteDirect).unwrap();
    file.set_len(2 * BLOCK).unwrap();
    file.sync_all().unwrap();
    let dying = disk.reopen();
    let theirs = dying.open("f", Access::ReadCached).unwrap();
    drop(file);
    refused(Witness::Open);
    drop(theirs);
    assert_eq!(disk.take_over("f", "g").unwrap(), TakeOver::Done);
    assert_eq!(disk.names(), ["g"]);
    // The name is one like any other: durable with its folder.
    let names = outcomes(|seed| {
        let copy = disk.fork(seed);
        copy.power_cut();
        copy.names()
    });
    assert_eq!(names, BTreeSet::from([vec!["f".to_owned()], vec!["g".to_owned()]]));
}
