//! Every line of the fault model, happening.

mod death;
mod faults;
mod power;
mod range;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use clad_journal::io::{Access, Durability, File, IoBuf, Lock, Storage};

use super::*;

const EIO: Option<i32> = Some(5);
const ENOSPC: Option<i32> = Some(28);
const EROFS: Option<i32> = Some(30);

/// `n` blocks of one byte.
fn blocks(byte: u8, n: usize) -> IoBuf {
    IoBuf::copy_of(&vec![byte; n * BLOCK as usize])
}

fn write(file: &Arc<dyn File>, pos: u64, buf: IoBuf) -> io::Result<()> {
    file.write_at(buf, pos, Durability::Written).1
}

fn write_synced(file: &Arc<dyn File>, pos: u64, buf: IoBuf) -> io::Result<()> {
    file.write_at(buf, pos, Durability::Synced).1
}

fn code(result: io::Result<()>) -> Option<i32> {
    result.expect_err("it should fail").raw_os_error()
}

/// A machine with a durable file of `n` blocks of zeroes.
fn with_file(seed: u64, n: usize) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(seed);
    disk.install("f", &blocks(0, n));
    let file = disk.open("f", Access::WriteDirect).unwrap();
    (disk, file)
}

/// The first byte of each sector, after checking that sectors are whole.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes
        .chunks(SECTOR)
        .map(|sector| {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is written whole");
            sector[0]
        })
        .collect()
}

/// Contents of `f` after a power cut, over many seeds of one instant.
fn after_cuts(disk: &SimDisk, survival: Survival) -> BTreeSet<Option<Vec<u8>>> {
    outcomes(|seed| {
        let copy = disk.fork(seed);
        copy.power_cut_as(survival);
        copy.peek("f").as_deref().map(sectors)
    })
}

fn outcomes<T: Ord>(of: impl Fn(u64) -> T) -> BTreeSet<T> {
    (0..300).map(of).collect()
}

#[test]
fn an_ordinary_day() {
    let disk = SimDisk::new(1);
    disk.create_dir("d").unwrap();
    disk.create_dir("d").unwrap();
    let file = disk.create("d/a", Access::WriteCached).unwrap();
    assert_eq!(disk.create("d/a", Access::WriteCached).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(disk.create("e/a", Access::WriteCached).err().unwrap().kind(), io::ErrorKind::NotFound);
    write(&file, 3, IoBuf::copy_of(b"hello")).unwrap();
    assert_eq!(file.len().unwrap(), 8);
    let (buf, read) = file.read_at(IoBuf::with_capacity(0), 2, 100);
    read.unwrap();
    assert_eq!(&buf[..], b"\0hello");
    file.set_len(5).unwrap();
    file.set_len(7).unwrap();
    assert_eq!(disk.peek("d/a").unwrap(), b"\0\0\0he\0\0", "what was cut off does not come back");
    file.allocate(4).unwrap();
    assert_eq!(file.len().unwrap(), 7, "allocation never cuts");
    disk.rename("d/a", "b").unwrap();
    let names: BTreeSet<String> = disk.list("").unwrap().into_iter().map(|e| format!("{} {}", e.name, e.len)).collect();
    assert_eq!(names, BTreeSet::from(["b 7".to_owned(), "d 0".to_owned()]));
    assert!(disk.list("d").unwrap().is_empty());
    disk.set_sealed_mode("b", true).unwrap();
    assert!(disk.is_sealed_mode("b"));
    disk.remove("b").unwrap();
    assert_eq!(disk.open("b", Access::ReadCached).err().unwrap().kind(), io::ErrorKind::NotFound);
    write(&file, 0, IoBuf::copy_of(b"x")).unwrap();
    assert_eq!(file.len().unwrap(), 7, "a removed file lives while it is open");
}

/// Some of everything, decided by the seed.
fn a_busy_day(disk: &SimDisk, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut now = disk.clone();
    for _ in 0..120 {
        let name = format!("f{}", rng.below(4));
        let _ = match rng.below(12) {
            0 => now.create(&name, Access::WriteDirect).map(drop),
            1 => now.rename(&name, &format!("f{}", rng.below(4))),
            2 => now.remove(&name),
            3 => now.sync_dir(""),
            4 => {
                now.power_cut();
                now = now.reopen();
                Ok(())
            }
            5 => {
                now.kill();
                now = now.reopen();
                Ok(())
            }
            n => now.open(&name, Access::WriteDirect).and_then(|file| match n {
                6 => file.sync_data(),
                7 => file.sync_all(),
                8 => file.allocate(rng.below(9) * BLOCK),
                9 => write_synced(&file, rng.below(8) * BLOCK, blocks(rng.below(256) as u8, 2)),
                _ => {
                    let buf = blocks(rng.below(256) as u8, 3);
                    let _ = now.begin_write(&file, buf, rng.below(8) * BLOCK, Durability::Written);
                    Ok(())
                }
            }),
        };
    }
    now.digest()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let day = |seed| {
        let disk = SimDisk::with_options(seed, Options { trace: true, ..Options::default() });
        disk.fail_at(20, Fault::Io);
        disk.fail_at(40, Fault::PowerCut);
        disk.fail_at(60, Fault::ShortWrite);
        (a_busy_day(&disk, seed), disk.trace(), disk.counters())
    };
    for seed in 0..40 {
        assert_eq!(day(seed), day(seed));
    }
    assert!((0..40).map(|seed| day(seed).0).collect::<BTreeSet<_>>().len() > 20, "and other seeds other bytes");
}

#[test]
fn a_fork_is_a_machine_of_its_own() {
    let (disk, file) = with_file(1, 1);
    write(&file, 0, blocks(1, 1)).unwrap();
    let copy = disk.fork(9);
    copy.power_cut_as(Survival::None);
    assert_eq!(copy.peek("f").unwrap()[0], 0);
    assert_eq!(disk.peek("f").unwrap()[0], 1);
    assert!(disk.is_alive() && !copy.is_alive());
    file.sync_data().unwrap();
    assert_eq!(disk.peek_durable("f").unwrap()[0], 1);
    assert_eq!(copy.reopen().peek_durable("f").unwrap()[0], 0);
}

#[test]
fn everything_is_counted() {
    let (disk, file) = with_file(1, 2);
    let other = disk.create("g", Access::WriteCached).unwrap();
    write(&file, 0, blocks(1, 1)).unwrap();
    write_synced(&file, 0, blocks(1, 2)).unwrap();
    file.sync_data().unwrap();
    file.read_at(IoBuf::with_capacity(0), 0, 4096).1.unwrap();
    other.sync_all().unwrap();
    disk.sync_dir("").unwrap();
    let all = disk.counters();
    assert_eq!((all.ops, all.writes, all.synced_writes, all.bytes_written), (8, 2, 1, 3 * 4096));
    assert_eq!((all.reads, all.bytes_read, all.syncs, all.dir_syncs), (1, 4096, 2, 1));
    assert_eq!(disk.counters_of("f").syncs, 1);
    assert_eq!(disk.counters_of("g").writes, 0);
    assert_eq!(disk.ops(), 8);
}

#[test]
fn threads_may_share_it() {
    let disk = SimDisk::with_options(1, Options { threaded: true, ..Options::default() });
    disk.install("f", &blocks(0, 8));
    std::thread::scope(|scope| {
        for i in 0..8u64 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..50 {
                    let file = disk.open("f", Access::WriteDirect).unwrap();
                    file.lock(Lock::Exclusive).unwrap();
                    write_synced(&file, i * BLOCK, blocks(round, 1)).unwrap();
                }
            });
        }
    });
    assert_eq!(disk.peek_durable("f").unwrap(), &blocks(49, 8)[..]);
}
