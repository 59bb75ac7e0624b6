//! What reaches the device: flushes, counted where the kernel counts them (field 16 of `/proc/diskstats`), on a device
//! that nobody else writes to. A sync that does nothing is found here and nowhere else.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use clad_e2e::Raw;
use clad_journal::io::uring::{Operation, Ticket};
use clad_journal::io::{
    Access, Durability, EngineOptions, EngineWish, File, IoBuf, LatchedFile, OsStorage, Storage, device,
};
use clad_proto::AckLevel;

use crate::{mount_point, small};

const BLOCK_BYTES: usize = 4096;
const WRITES: u64 = 64;

/// Flushes that the device below a folder has done.
fn flushes(below: &Path) -> u64 {
    let dev = fs::metadata(below).expect("the mount").dev();
    let (major, minor) = ((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00));
    let stats = fs::read_to_string("/proc/diskstats").expect("diskstats");
    let mut lines = stats.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|f| f[0] == major.to_string() && f[1] == minor.to_string()).expect("the device's line");
    line[18].parse().expect("a number") // the 16th after major, minor and name
}

/// Flushes while something is done; before that the file system settles.
fn during(what: impl FnOnce()) -> u64 {
    let point = mount_point();
    let storage = OsStorage::open(&point, BLOCK_BYTES as u32, false).expect("the mount");
    storage.sync_dir("").expect("a sync");
    let before = flushes(&point);
    what();
    flushes(&point) - before
}

fn write(storage: &OsStorage, file: &Arc<dyn File>, len: usize, pos: u64, durability: Durability) {
    let Some(ring) = storage.ring() else { return file.write_at(IoBuf::zeroed(len), pos, durability).1.unwrap() };
    let ticket = Ticket::default();
    let fill = move |mut buf: IoBuf| {
        buf.set_len(len);
        buf.fill(7);
        buf
    };
    ring.submit(Operation::write(file.clone(), pos, durability, len, fill, ticket.done()));
    ticket.wait().unwrap();
}

/// One flush for each synced write, none for a plain or an empty one; by a call and through a ring, around the page cache
/// and through it, over zeroes that are there.
#[test]
#[ignore = "cargo xtask ci disk"]
fn are_made_by_synced_writes_and_by_nothing_else() {
    for wish in [EngineWish::Blocking, EngineWish::Uring] {
        let options = EngineOptions { wish, in_flight: 2, on_fallback: Arc::new(|_| {}) };
        let block = device::discover(&mount_point()).block_size;
        let storage = OsStorage::open_with(&mount_point(), block, true, &options).unwrap();
        assert_eq!(storage.ring().is_some(), wish == EngineWish::Uring, "{:?}", storage.engine());
        for access in [Access::WriteDirect, Access::WriteCached] {
            let name = format!("{wish:?}{access:?}");
            let file: Arc<dyn File> = Arc::new(LatchedFile::new(storage.create(&name, access).unwrap()));
            file.write_at(IoBuf::zeroed(WRITES as usize * BLOCK_BYTES), 0, Durability::Written).1.unwrap();
            file.sync_all().unwrap();
            let each = |len: usize, durability| {
                during(|| (0..WRITES).for_each(|i| write(&storage, &file, len, i * BLOCK_BYTES as u64, durability)))
            };
            let synced = each(BLOCK_BYTES, Durability::Synced);
            // The file system may commit by itself meanwhile, but not for every write.
            assert!((WRITES..WRITES + 8).contains(&synced), "{name}: {synced} flushes for {WRITES} synced writes");
            let written = each(BLOCK_BYTES, Durability::Written);
            assert!(written < 8, "{name}: {written} flushes for {WRITES} writes without a sync");
            let empty = each(0, Durability::Synced);
            assert!(empty < 8, "{name}: {empty} flushes for {WRITES} empty writes");
            let one = during(|| file.sync_data().unwrap());
            assert!((1..8).contains(&one), "{name}: {one} flushes for a sync");
        }
    }
}

/// Under `per_message` each append is a write of its own with a sync of its own, under either engine.
#[test]
#[ignore = "cargo xtask ci disk"]
fn are_one_for_each_append_under_per_message() {
    for engine in ["blocking", "uring"] {
        let setup = small().set("journal.durability", "per_message").set("journal.io_engine", engine);
        let mut daemon = setup.start();
        assert_eq!(daemon.status().io_engine, engine, "{}", daemon.said());
        let (mut raw, _) = Raw::producer(&daemon.socket());
        raw.append_acked(0, AckLevel::Durable, &[b"the first"]);
        // Nothing else writes: the next segment is ready.
        daemon.wait_until("the prepared segment", |s| s.segments == 2);
        let made = during(|| {
            for sequence in 1..=WRITES {
                raw.append_acked(sequence, AckLevel::Durable, &[b"one"]);
            }
        });
        assert!((WRITES..WRITES + 16).contains(&made), "{engine}: {made} flushes for {WRITES} appends");
        assert_eq!(daemon.status().inline_batches, WRITES + 1, "{engine}: each was alone");
        assert_eq!(daemon.term(), Some(0));
    }
}
