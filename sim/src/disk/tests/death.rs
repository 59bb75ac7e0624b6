//! Lines 5 and 6 of the fault model: a process dies, its writes perhaps later.

use super::*;

#[test]
fn what_was_written_outlives_the_process_and_the_boot_goes_on() {
    let (disk, file) = with_file(1, 1);
    let boot = disk.boot_id();
    disk.create("new", Access::WriteCached).unwrap();
    write(&file, 0, blocks(1, 1)).unwrap();
    disk.kill();
    assert!(Dead::is(&file.sync_data().unwrap_err()) && Dead::is(&disk.remove("f").unwrap_err()));
    let next = disk.reopen();
    assert_eq!(next.boot_id(), boot);
    assert_eq!(next.names(), ["f", "new"]);
    let file = next.open("f", Access::ReadCached).unwrap();
    assert_eq!(file.read_at(IoBuf::with_capacity(0), 0, 1).0[..], [1]);
    // Written is not durable: the page cache survived, the power cut it would not have.
    next.power_cut_as(Survival::None);
    assert_eq!(next.peek("f").unwrap()[0], 0);
}

#[test]
fn a_kill_leaves_the_other_process_alone() {
    let (disk, _file) = with_file(1, 1);
    let other = disk.reopen();
    let theirs = other.open("f", Access::WriteDirect).unwrap();
    disk.kill();
    assert!(!disk.is_alive() && other.is_alive());
    write(&theirs, 0, blocks(1, 1)).unwrap();
}

#[test]
fn a_direct_write_in_flight_lands_now_or_later_or_never() {
    let seen = outcomes(|seed| {
        let (disk, file) = with_file(seed, 3);
        disk.begin_write(&file, blocks(1, 3), 0, Durability::Written).unwrap();
        disk.kill();
        let now = sectors(&disk.peek("f").unwrap()).iter().filter(|b| **b == 1).count();
        let late = disk.late_writes();
        disk.land_late_writes();
        let then = sectors(&disk.peek("f").unwrap()).iter().filter(|b| **b == 1).count();
        assert_eq!(disk.late_writes(), 0);
        assert!(then % 8 == 0 && (now == 0 || late == 0));
        (now, late, then)
    });
    for one in [(24, 0, 24), (0, 1, 24), (0, 0, 0), (8, 0, 8), (0, 1, 16)] {
        assert!(seen.contains(&one), "{one:?} in {seen:?}");
    }
}

#[test]
fn a_buffered_write_in_flight_is_copied_to_any_page_and_never_late() {
    let seen = outcomes(|seed| {
        let (disk, _) = with_file(seed, 3);
        let file = disk.open("f", Access::WriteCached).unwrap();
        disk.begin_write(&file, blocks(1, 3), 0, Durability::Written).unwrap();
        disk.kill();
        assert_eq!(disk.late_writes(), 0);
        sectors(&disk.peek("f").unwrap()).iter().filter(|b| **b == 1).count()
    });
    assert_eq!(seen, [0, 8, 16, 24].into());
}

/// A machine on which the one write in flight is late.
fn with_late_write() -> SimDisk {
    (0..)
        .find_map(|seed| {
            let (disk, file) = with_file(seed, 1);
            assert!(file.try_lock(Lock::Shared).unwrap());
            disk.begin_write(&file, blocks(1, 1), 0, Durability::Written).unwrap();
            disk.kill();
            (disk.late_writes() == 1).then(|| disk.reopen())
        })
        .unwrap()
}

#[test]
fn a_late_write_comes_during_any_later_operation() {
    let disk = with_late_write();
    assert_eq!(disk.peek("f").unwrap()[0], 0);
    let after = outcomes(|seed| {
        let copy = disk.fork(seed);
        (0..).find(|_| copy.space().is_ok() && copy.late_writes() == 0)
    });
    assert!(after.len() > 5, "{after:?}");
}

#[test]
fn the_lock_of_the_dead_is_held_until_their_writes_landed() {
    let disk = with_late_write();
    let file = disk.open("f", Access::ReadDirect).unwrap();
    let refused = (0..).take_while(|_| !file.try_lock(Lock::Exclusive).unwrap()).count();
    assert_eq!(disk.late_writes(), 0);
    assert_eq!(disk.peek("f").unwrap()[0], 1);
    assert!(refused < 1000);

    let disk = with_late_write();
    let file = disk.open("f", Access::ReadDirect).unwrap();
    assert!(file.try_lock(Lock::Shared).unwrap(), "a shared one may stand beside it");
    file.lock(Lock::Exclusive).unwrap();
    assert_eq!((disk.late_writes(), disk.peek("f").unwrap()[0]), (0, 1), "waiting makes it land");
}

#[test]
fn a_closed_description_holds_its_lock_while_a_write_is_in_flight() {
    let (disk, file) = with_file(1, 1);
    let other = disk.open("f", Access::WriteDirect).unwrap();
    assert!(file.try_lock(Lock::Shared).unwrap());
    let ticket = disk.begin_write(&file, blocks(1, 1), 0, Durability::Written).unwrap();
    drop(file);
    assert!(!other.try_lock(Lock::Exclusive).unwrap());
    disk.finish(ticket).1.unwrap();
    assert!(other.try_lock(Lock::Exclusive).unwrap());
}

#[test]
fn locks_are_of_the_description_and_a_refused_change_loses_the_old_one() {
    let (disk, a) = with_file(1, 1);
    let (b, c) = (disk.open("f", Access::ReadCached).unwrap(), disk.open("f", Access::ReadCached).unwrap());
    assert!(a.try_lock(Lock::Shared).unwrap() && b.try_lock(Lock::Shared).unwrap());
    assert!(!c.try_lock(Lock::Exclusive).unwrap());
    assert_eq!(c.lock(Lock::Exclusive).unwrap_err().kind(), io::ErrorKind::Deadlock, "a single thread says so");
    assert!(!b.try_lock(Lock::Exclusive).unwrap(), "refused, and its shared lock is gone");
    assert!(a.try_lock(Lock::Exclusive).unwrap(), "so that a is alone now");
    drop(a);
    assert!(c.try_lock(Lock::Exclusive).unwrap());
    disk.power_cut();
    let after = disk.reopen();
    assert!(after.open("f", Access::WriteDirect).unwrap().try_lock(Lock::Exclusive).unwrap());
}
