//! Lines 7 to 14 of the fault model: operations that fail, and disks that lie.

use super::*;

fn read_byte(disk: &SimDisk, access: Access) -> u8 {
    disk.open("f", access).unwrap().read_at(IoBuf::with_capacity(0), 0, 4096).0[0]
}

#[test]
fn a_failed_sync_leaves_pages_that_no_later_sync_writes() {
    for access in [Access::WriteDirect, Access::WriteCached] {
        let seen = outcomes(|seed| {
            let disk = SimDisk::new(seed);
            disk.install("f", &blocks(0, 1));
            let file = disk.open("f", access).unwrap();
            write(&file, 0, blocks(1, 1)).unwrap();
            disk.fail_next(OpKind::SyncData, "f", Fault::Io);
            assert_eq!(code(file.sync_data()), EIO);
            assert_eq!(disk.peek("f").unwrap(), &blocks(1, 1)[..], "it reads as if it were there");
            let durable = sectors(&disk.peek_durable("f").unwrap());
            file.sync_data().unwrap();
            file.sync_all().unwrap();
            write_synced(&file, 0, IoBuf::with_capacity(0)).unwrap();
            assert_eq!(sectors(&disk.peek_durable("f").unwrap()), durable, "clean is clean");
            let copy = disk.fork(seed);
            copy.power_cut_as(Survival::All);
            assert_eq!(sectors(&copy.peek("f").unwrap()), durable, "not even by luck");
            // Only a new write helps.
            write(&file, 0, blocks(1, 1)).unwrap();
            file.sync_data().unwrap();
            assert_eq!(disk.peek_durable("f").unwrap(), &blocks(1, 1)[..]);
            durable
        });
        assert!(seen.len() > 100, "each sector landed or not");
    }
}

#[test]
fn what_was_lost_in_the_page_cache_is_old_around_it_and_after_an_eviction() {
    let disk = (0..)
        .find_map(|seed| {
            let (disk, _) = with_file(seed, 1);
            let file = disk.open("f", Access::WriteCached).unwrap();
            write(&file, 0, blocks(1, 1)).unwrap();
            disk.fail_next(OpKind::SyncAll, "", Fault::Io);
            assert_eq!(code(file.sync_all()), EIO);
            (disk.peek_durable("f").unwrap()[0] == 0).then_some(disk)
        })
        .unwrap();
    assert_eq!((read_byte(&disk, Access::ReadCached), read_byte(&disk, Access::ReadDirect)), (1, 0));
    disk.kill();
    let next = disk.reopen();
    assert_eq!(read_byte(&next, Access::ReadCached), 1, "a new process cannot know");
    next.evict();
    assert_eq!(read_byte(&next, Access::ReadCached), 0);
}

#[test]
fn a_write_error_is_reported_once_for_each_description() {
    let (disk, _) = with_file(1, 4);
    let open = || disk.open("f", Access::WriteCached).unwrap();
    let (a, b) = (open(), open());
    write(&a, 0, blocks(1, 4)).unwrap();
    disk.fail_writeback("f");
    let before_anyone_saw_the_error = open();
    assert_eq!(code(a.sync_data()), EIO);
    a.sync_data().unwrap();
    assert_eq!(code(b.sync_all()), EIO);
    b.sync_all().unwrap();
    assert_eq!(code(write_synced(&before_anyone_saw_the_error, 0, blocks(2, 1))), EIO);
    open().sync_data().expect("after a report the next caller gets no error");
    assert_ne!(disk.peek("f"), disk.peek_durable("f"));
}

#[test]
fn a_synced_buffered_write_that_failed_is_reported_to_the_others_too() {
    let (disk, _) = with_file(3, 4);
    let open = || disk.open("f", Access::WriteCached).unwrap();
    let (a, b) = (open(), open());
    disk.fail_next(OpKind::SyncedWrite, "f", Fault::Io);
    assert_eq!(code(write_synced(&a, 0, blocks(1, 4))), EIO);
    assert_eq!(disk.peek("f").unwrap(), &blocks(1, 4)[..]);
    assert_eq!(code(b.sync_data()), EIO);
}

#[test]
fn any_part_of_a_failed_write_may_have_landed() {
    for (access, durability) in [
        (Access::WriteDirect, Durability::Synced),
        (Access::WriteDirect, Durability::Written),
        (Access::WriteCached, Durability::Written),
    ] {
        let seen = outcomes(|seed| {
            let (disk, _) = with_file(seed, 1);
            let file = disk.open("f", access).unwrap();
            disk.fail_at(disk.ops(), Fault::NoSpace);
            assert_eq!(code(file.write_at(blocks(1, 1), 0, durability).1), ENOSPC);
            disk.peek("f").unwrap().iter().filter(|b| **b == 1).count()
        });
        assert!(seen.len() > 4 && seen.iter().any(|n| *n > 0 && *n < 4096), "{seen:?}");
    }
}

/// A small life: 17 operations of every kind but locks.
fn life(disk: &SimDisk) -> io::Result<()> {
    disk.create_dir("q")?;
    let file = disk.create("a", Access::WriteDirect)?;
    file.allocate(4 * BLOCK)?;
    write(&file, 0, blocks(1, 4))?;
    file.sync_all()?;
    disk.sync_dir("")?;
    write_synced(&file, BLOCK, blocks(2, 1))?;
    file.read_at(IoBuf::with_capacity(0), 0, 4096).1?;
    file.len()?;
    disk.space()?;
    disk.list("")?;
    disk.set_sealed_mode("a", true)?;
    disk.rename("a", "q/a")?;
    disk.sync_dir("q")?;
    file.set_len(BLOCK)?;
    file.sync_data()?;
    disk.open("q/a", Access::ReadDirect)?;
    disk.remove("q/a")
}

#[test]
fn every_operation_can_fail_and_die() {
    let whole = SimDisk::new(1);
    life(&whole).unwrap();
    let ops = whole.ops();
    for op in 0..ops {
        for (fault, expected) in [(Fault::Io, EIO), (Fault::NoSpace, ENOSPC)] {
            let disk = SimDisk::new(1);
            disk.fail_at(op, fault);
            assert_eq!(code(life(&disk)), expected, "operation {op}");
            assert_eq!(disk.ops(), op + 1);
        }
        for fault in [Fault::PowerCut, Fault::Kill] {
            let disk = SimDisk::new(op);
            disk.fail_at(op, fault);
            assert!(Dead::is(&life(&disk).unwrap_err()), "operation {op}");
            assert!(!disk.is_alive());
            let after = disk.reopen();
            after.list("").unwrap();
            if op > 6 && fault == Fault::PowerCut {
                let name = after.names().into_iter().find(|n| n.ends_with('a'));
                let bytes = name.and_then(|n| after.peek(&n));
                assert!(op == ops - 1 || bytes.is_some_and(|b| b[0] == 1), "operation {op}");
            }
        }
    }
}

#[test]
fn an_operation_on_names_may_be_done_when_its_process_dies() {
    let seen = outcomes(|seed| {
        let disk = SimDisk::new(seed);
        disk.fail_next(OpKind::Create, "x", Fault::Kill);
        assert!(Dead::is(&disk.create("x", Access::WriteCached).err().unwrap()));
        disk.names()
    });
    assert_eq!(seen, [vec![], vec!["x".to_owned()]].into());
}

#[test]
fn a_short_write_goes_on_as_a_second_operation() {
    let (disk, file) = with_file(1, 2);
    disk.fail_at(disk.ops(), Fault::ShortWrite);
    let before = disk.ops();
    write(&file, 0, blocks(1, 2)).unwrap();
    assert_eq!((disk.ops() - before, disk.peek("f").unwrap()), (2, blocks(1, 2).to_vec()));
    // The second can fail in turn, and die.
    let torn = outcomes(|seed| {
        let (disk, file) = with_file(seed, 2);
        disk.fail_at(disk.ops(), Fault::ShortWrite);
        disk.fail_at(disk.ops() + 1, if seed % 2 == 0 { Fault::WriteZero } else { Fault::Kill });
        let e = write(&file, 0, blocks(1, 2)).unwrap_err();
        assert!(e.kind() == io::ErrorKind::WriteZero || Dead::is(&e));
        sectors(&disk.peek("f").unwrap()).iter().filter(|b| **b == 1).count()
    });
    assert!(torn.contains(&1) && torn.contains(&15) && torn.contains(&16) && !torn.contains(&0), "{torn:?}");
}

#[test]
fn a_write_of_zero_bytes_writes_nothing() {
    let (disk, file) = with_file(1, 1);
    disk.fail_next(OpKind::Write, "", Fault::WriteZero);
    assert_eq!(write(&file, 0, blocks(1, 1)).unwrap_err().kind(), io::ErrorKind::WriteZero);
    assert_eq!(disk.peek("f").unwrap()[0], 0);
}

#[test]
fn a_flush_can_lie() {
    let (disk, file) = with_file(1, 2);
    disk.fail_next(OpKind::SyncData, "", Fault::FalseSync);
    disk.fail_next(OpKind::SyncedWrite, "", Fault::FalseSync);
    disk.fail_next(OpKind::SyncDir, "", Fault::FalseSync);
    write(&file, 0, blocks(1, 1)).unwrap();
    file.sync_data().unwrap();
    write_synced(&file, BLOCK, blocks(1, 1)).unwrap();
    disk.create("new", Access::WriteCached).unwrap();
    disk.sync_dir("").unwrap();
    let copy = disk.fork(1);
    copy.power_cut_as(Survival::None);
    assert_eq!((copy.peek("f").unwrap(), copy.names()), (blocks(0, 2).to_vec(), vec!["f".to_owned()]));
    file.sync_data().unwrap();
    assert_eq!(disk.peek_durable("f").unwrap(), &blocks(1, 2)[..], "an honest one makes up for it");
}

#[test]
fn a_broken_disk_fails_until_it_is_mended() {
    let (disk, file) = with_file(1, 1);
    disk.set_broken(true);
    for _ in 0..3 {
        assert_eq!(code(write(&file, 0, blocks(1, 1))), EIO);
        assert_eq!(code(file.sync_all()), EIO);
    }
    file.read_at(IoBuf::with_capacity(0), 0, 4096).1.unwrap();
    disk.set_broken(false);
    write_synced(&file, 0, blocks(1, 1)).unwrap();
}

#[test]
fn bits_rot_wherever_the_byte_is_held() {
    let (disk, file) = with_file(1, 2);
    write_synced(&file, 0, blocks(1, 1)).unwrap();
    write(&file, BLOCK, blocks(1, 1)).unwrap();
    disk.flip("f", 700, 0x80);
    disk.flip("f", BLOCK + 5, 0x01);
    let bytes = disk.peek("f").unwrap();
    assert_eq!((bytes[700], bytes[701], bytes[4101]), (0x81, 1, 0));
    disk.power_cut_as(Survival::All);
    assert_eq!(disk.peek("f").unwrap(), bytes);
}

#[test]
fn a_spoilt_sector_cannot_be_read_until_it_is_written() {
    let (disk, file) = with_file(1, 2);
    disk.spoil("f", 5000);
    let read = |pos| file.read_at(IoBuf::with_capacity(0), pos, 4096);
    let (buf, done) = read(BLOCK);
    assert_eq!((buf.len(), code(done)), (0, EIO));
    read(0).1.unwrap();
    write(&file, BLOCK, blocks(1, 1)).unwrap();
    read(BLOCK).1.unwrap();
}

#[test]
fn space_ends_and_comes_back() {
    let disk = SimDisk::with_options(1, Options { capacity: 4 * BLOCK, ..Options::default() });
    let a = disk.create("a", Access::WriteDirect).unwrap();
    a.allocate(2 * BLOCK).unwrap();
    assert_eq!((disk.space().unwrap().free, disk.space().unwrap().total), (2 * BLOCK, 4 * BLOCK));
    let b = disk.create("b", Access::WriteDirect).unwrap();
    assert_eq!(code(write(&b, 0, blocks(1, 3))), ENOSPC);
    assert_eq!(disk.peek("b").unwrap().len(), 2 * 4096, "up to the last block that there was room for");
    assert_eq!(code(a.allocate(3 * BLOCK)), ENOSPC);
    write(&a, 0, blocks(1, 2)).expect("its space is its own");
    disk.remove("b").unwrap();
    assert_eq!(disk.space().unwrap().free, 0, "held while it is open");
    drop(b);
    assert_eq!(disk.space().unwrap().free, 2 * BLOCK);
    a.set_len(0).unwrap();
    assert_eq!(disk.space().unwrap().free, 4 * BLOCK);
    disk.set_capacity(BLOCK);
    assert_eq!(code(write(&a, 0, blocks(1, 2))), ENOSPC);
}

#[test]
fn a_read_only_file_system_refuses_every_change() {
    let (disk, file) = with_file(1, 1);
    write(&file, 0, blocks(1, 1)).unwrap();
    disk.set_read_only(true);
    for refused in [
        write(&file, 0, blocks(2, 1)),
        file.sync_data(),
        file.set_len(1),
        file.allocate(9),
        disk.create("x", Access::WriteCached).map(drop),
        disk.create_dir("x"),
        disk.remove("f"),
        disk.rename("f", "x"),
        disk.set_sealed_mode("f", true),
        disk.open("f", Access::WriteDirect).map(drop),
    ] {
        assert_eq!(code(refused), EROFS);
    }
    disk.open("f", Access::ReadDirect).unwrap().read_at(IoBuf::with_capacity(0), 0, 4096).1.unwrap();
}

#[test]
fn misuse_is_an_error() {
    let (disk, file) = with_file(1, 2);
    let einval = Some(22);
    assert_eq!(code(write(&file, 1, blocks(1, 1))), einval);
    assert_eq!(code(write(&file, 0, IoBuf::zeroed(512))), einval);
    assert_eq!(code(file.read_at(IoBuf::with_capacity(0), 512, 4096).1), einval);
    let read_only = disk.open("f", Access::ReadDirect).unwrap();
    assert_eq!(code(write(&read_only, 0, blocks(1, 1))), Some(9));
    // Where there is no direct access nothing has to be aligned.
    let plain = SimDisk::with_options(1, Options { direct: false, ..Options::default() });
    plain.install("f", &blocks(0, 1));
    let file = plain.open("f", Access::WriteDirect).unwrap();
    write(&file, 1, IoBuf::zeroed(5)).unwrap();
    // A handle of another machine is none of ours.
    assert!(Dead::is(&disk.begin_write(&file, blocks(1, 1), 0, Durability::Written).unwrap_err().1));
}

#[test]
fn a_ruined_sector_is_never_given_and_takes_nothing_until_the_file_lies_elsewhere() {
    let disk = SimDisk::new(1);
    disk.install("f", &blocks(1, 2));
    disk.ruin("f", 4096 + 512);
    let read = |disk: &SimDisk, pos| {
        disk.open("f", Access::ReadDirect).unwrap().read_at(IoBuf::with_capacity(4096), pos, 4096).1
    };
    for how in 0..3 {
        // Nothing that is written, and no death, makes it sound.
        let file = disk.reopen().open("f", Access::WriteDirect).unwrap();
        assert_eq!(code(write(&file, 4096, blocks(2, 1))), EIO);
        assert_eq!(code(write_synced(&file, 4096, blocks(2, 1))), EIO);
        write(&file, 0, blocks(2, 1)).unwrap();
        let cached = disk.reopen().open("f", Access::WriteCached).unwrap();
        write(&cached, 4096, blocks(3, 1)).unwrap();
        assert_eq!(code(cached.sync_data()), EIO, "the page cache takes it, the device does not");
        match how {
            0 => disk.kill(),
            _ => disk.power_cut(),
        }
        assert_eq!(code(read(&disk.reopen(), 4096)), EIO);
        read(&disk.reopen(), 0).unwrap();
        assert_eq!(disk.bad_sectors("f"), [9]);
    }
    let (healed, copied) = (disk.fork(1), disk.fork(1));
    healed.heal("f", 4096, 4096);
    copied.copy("f");
    for (disk, byte) in [(healed, disk.peek("f").unwrap()[4096 + 512]), (copied, 0)] {
        assert!(disk.bad_sectors("f").is_empty());
        read(&disk.reopen(), 4096).unwrap();
        assert_eq!(disk.peek("f").unwrap()[4096 + 512], byte);
        write_synced(&disk.reopen().open("f", Access::WriteDirect).unwrap(), 4096, blocks(2, 1)).unwrap();
    }
}
