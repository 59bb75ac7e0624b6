//! Lines 1 to 4 of the fault model: what a power cut leaves of bytes, sizes and names.

use super::*;

#[test]
fn synced_bytes_are_there_and_handles_die_and_the_boot_id_changes() {
    for seed in 0..100 {
        let (disk, file) = with_file(seed, 4);
        write(&file, 0, blocks(1, 1)).unwrap();
        file.sync_data().unwrap();
        write_synced(&file, BLOCK, blocks(2, 1)).unwrap();
        let before = disk.boot_id();
        disk.power_cut();
        let bytes = sectors(&disk.peek("f").unwrap());
        assert_eq!((&bytes[..8], &bytes[8..16]), (&[1; 8][..], &[2; 8][..]));
        assert!(Dead::is(&write(&file, 0, blocks(1, 1)).unwrap_err()));
        assert!(Dead::is(&file.len().unwrap_err()) && Dead::is(&disk.list("").unwrap_err()));
        let after = disk.reopen();
        assert_ne!(after.boot_id(), before);
        assert!(after.is_alive() && after.list("").is_ok() && !disk.is_alive());
    }
}

#[test]
fn a_synced_write_syncs_its_own_bytes_and_no_others() {
    let (disk, file) = with_file(1, 2);
    write(&file, 0, blocks(1, 1)).unwrap();
    write_synced(&file, BLOCK, blocks(2, 1)).unwrap();
    let left = after_cuts(&disk, Survival::None);
    assert_eq!(left, BTreeSet::from([Some([[0; 8], [2; 8]].concat())]));
    // An empty one syncs nothing at all.
    write_synced(&file, 0, IoBuf::with_capacity(0)).unwrap();
    assert_eq!(after_cuts(&disk, Survival::None), left);
}

#[test]
fn unsynced_writes_vanish_survive_tear_and_reorder() {
    let (disk, file) = with_file(1, 2);
    write(&file, 0, blocks(1, 1)).unwrap();
    write(&file, 0, blocks(2, 1)).unwrap();
    write(&file, BLOCK, blocks(3, 1)).unwrap();
    let old = vec![0; 16];
    let new = [[2; 8], [3; 8]].concat();
    assert_eq!(after_cuts(&disk, Survival::None), BTreeSet::from([Some(old.clone())]));
    assert_eq!(after_cuts(&disk, Survival::All), BTreeSet::from([Some(new.clone())]));

    let half: Vec<Vec<u8>> = after_cuts(&disk, Survival::Half).into_iter().flatten().collect();
    for value in 0..=2 {
        assert!(half.iter().any(|s| s[0] == value), "a sector holds the old or either write: {value}");
    }
    assert!(half.iter().any(|s| s[0] != s[1]), "torn inside a block");
    assert!(half.iter().any(|s| s[0] == 0 && s[8] == 3), "the later without the earlier");
    assert!(after_cuts(&disk, Survival::Most).len() > 20);

    let writes: Vec<Vec<u8>> = after_cuts(&disk, Survival::Writes).into_iter().flatten().collect();
    assert_eq!(writes.len(), 6, "none, either or the later of two, times one: {writes:?}");
    assert!(writes.iter().all(|s| s[..8] == [s[0]; 8] && s[8..] == [s[8]; 8]));

    let prefix: Vec<Vec<u8>> = after_cuts(&disk, Survival::Prefix).into_iter().flatten().collect();
    assert!(prefix.iter().all(|s| s[15] == 0 || s[..15] == new[..15]), "in order: {prefix:?}");
    assert!(prefix.iter().any(|s| s[..3] == [2, 2, 1]), "a torn end");
    let suffix: Vec<Vec<u8>> = after_cuts(&disk, Survival::Suffix).into_iter().flatten().collect();
    assert!(suffix.iter().any(|s| s[0] == 0 && s[15] == 3));
    let single: Vec<Vec<u8>> = after_cuts(&disk, Survival::Single).into_iter().flatten().collect();
    assert!(single.iter().all(|s| (1..=3).contains(&s.iter().filter(|b| **b != 0).count())));

    // Left to itself the seed finds all of this.
    let any = outcomes(|seed| {
        let copy = disk.fork(seed);
        copy.power_cut();
        sectors(&copy.peek("f").unwrap())
    });
    assert!(any.contains(&old) && any.contains(&new) && any.len() > 50);
}

#[test]
fn what_a_power_cut_left_stays() {
    for seed in 0..50 {
        let (disk, file) = with_file(seed, 2);
        write(&file, 0, blocks(1, 2)).unwrap();
        disk.power_cut();
        let left = disk.peek("f");
        assert_eq!(disk.peek_durable("f"), left);
        let after = disk.reopen();
        after.power_cut();
        assert_eq!(after.peek("f"), left);
    }
}

#[test]
fn a_write_in_flight_may_land_or_not() {
    let (disk, file) = with_file(1, 1);
    disk.begin_write(&file, blocks(1, 1), 0, Durability::Synced).unwrap();
    assert_eq!(disk.peek("f").unwrap()[0], 0);
    assert_eq!(after_cuts(&disk, Survival::None).len(), 1);
    assert_eq!(after_cuts(&disk, Survival::All), BTreeSet::from([Some(vec![1; 8])]));
    assert!(after_cuts(&disk, Survival::Half).len() > 100);
}

#[test]
fn a_sync_covers_what_was_complete_when_it_began() {
    let (disk, file) = with_file(1, 2);
    write(&file, 0, blocks(1, 1)).unwrap();
    let write_in_flight = disk.begin_write(&file, blocks(2, 1), BLOCK, Durability::Written).unwrap();
    let sync = disk.begin_sync(&file, true).unwrap();
    assert_eq!(disk.in_flight(), [write_in_flight, sync]);
    let (buf, done) = disk.finish(write_in_flight);
    done.unwrap();
    assert_eq!(buf.unwrap().len(), 4096);
    disk.finish(sync).1.unwrap();
    assert_eq!(after_cuts(&disk, Survival::None), BTreeSet::from([Some([[1; 8], [0; 8]].concat())]));
}

#[test]
fn a_size_is_durable_after_sync_all_only() {
    let lengths = |disk: &SimDisk| {
        outcomes(|seed| {
            let copy = disk.fork(seed);
            copy.power_cut();
            copy.peek("f").unwrap().len()
        })
    };
    for allocate in [true, false] {
        let (disk, file) = with_file(1, 1);
        if allocate {
            file.allocate(8 * BLOCK).unwrap()
        } else {
            file.set_len(8 * BLOCK).unwrap()
        }
        file.sync_data().unwrap();
        assert_eq!(lengths(&disk), BTreeSet::from([4096, 8 * 4096]));
        write(&file, BLOCK, blocks(1, 1)).unwrap();
        file.sync_data().unwrap();
        assert_eq!(lengths(&disk), BTreeSet::from([2 * 4096, 8 * 4096]), "a sync keeps the size that its bytes need");
        file.sync_all().unwrap();
        assert_eq!(lengths(&disk), BTreeSet::from([8 * 4096]));
    }
    let (disk, file) = with_file(1, 1);
    write_synced(&file, BLOCK, blocks(1, 1)).unwrap();
    assert_eq!(lengths(&disk), BTreeSet::from([2 * 4096]), "and so does a synced write");
    write(&file, 2 * BLOCK, blocks(1, 1)).unwrap();
    file.set_len(4 * BLOCK).unwrap();
    file.set_len(5 * BLOCK).unwrap();
    assert_eq!(lengths(&disk), [2, 3, 4, 5].map(|n| n * 4096).into(), "in order");
}

#[test]
fn a_cut_off_end_comes_back_as_a_whole_or_not_at_all() {
    let disk = SimDisk::new(1);
    disk.install("f", &blocks(7, 3));
    let file = disk.open("f", Access::WriteDirect).unwrap();
    file.set_len(BLOCK).unwrap();
    file.set_len(2 * BLOCK).unwrap();
    assert_eq!(sectors(&disk.peek("f").unwrap()), [[7; 8], [0; 8]].concat());
    let all = [vec![7; 24], vec![7; 8], [[7; 8], [0; 8]].concat()].map(Some);
    assert_eq!(after_cuts(&disk, Survival::Half), all.clone().into());
    write(&file, BLOCK, blocks(1, 1)).unwrap();
    file.sync_data().unwrap();
    assert_eq!(after_cuts(&disk, Survival::Half), [Some([[7; 8], [1; 8]].concat())].into());
}

#[test]
fn without_a_volatile_cache_a_direct_overwrite_is_safe_on_written_blocks_only() {
    let disk = SimDisk::with_options(1, Options { volatile_cache: false, ..Options::default() });
    disk.install("f", &blocks(0, 1));
    let file = disk.open("f", Access::WriteDirect).unwrap();
    file.allocate(2 * BLOCK).unwrap();
    file.sync_all().unwrap();
    write(&file, 0, blocks(1, 2)).unwrap();
    let left = after_cuts(&disk, Survival::None);
    assert_eq!(left, [Some([[1; 8], [0; 8]].concat())].into(), "allocated space is not written space");
    // Once it was written durably it is.
    file.sync_data().unwrap();
    write(&file, 0, blocks(2, 2)).unwrap();
    assert_eq!(after_cuts(&disk, Survival::None), [Some(vec![2; 16])].into());
    // The page cache is volatile whatever the disk is.
    let cached = disk.open("f", Access::WriteCached).unwrap();
    write(&cached, 0, blocks(3, 1)).unwrap();
    assert_eq!(after_cuts(&disk, Survival::None), [Some(vec![2; 16])].into());
}

fn names_after_cuts(disk: &SimDisk) -> BTreeSet<String> {
    outcomes(|seed| {
        let copy = disk.fork(seed);
        copy.power_cut_as(Survival::Half);
        copy.names().join(" ")
    })
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn names_are_durable_after_a_sync_of_their_folder_only() {
    let disk = SimDisk::new(1);
    for name in ["a", "b"] {
        let file = disk.create(name, Access::WriteDirect).unwrap();
        write_synced(&file, 0, blocks(1, 1)).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(names_after_cuts(&disk), set(["", "a", "b", "a b"]), "a synced file without a name is gone");
    disk.sync_dir("").unwrap();
    assert_eq!(names_after_cuts(&disk), set(["a b"]));
    disk.remove("a").unwrap();
    disk.rename("b", "c").unwrap();
    assert_eq!(names_after_cuts(&disk), set(["a b", "b", "a c", "c"]));
    disk.sync_dir("").unwrap();
    assert_eq!(names_after_cuts(&disk), set(["c"]));
}

#[test]
fn changes_of_one_name_keep_their_order() {
    let disk = SimDisk::new(1);
    disk.install("a", b"old");
    disk.install("n", b"new");
    disk.rename("a", "b").unwrap();
    disk.rename("n", "a").unwrap();
    assert_eq!(names_after_cuts(&disk), set(["a n", "b n", "a b"]), "the second does not lose what the first kept");
    let held = outcomes(|seed| {
        let copy = disk.fork(seed);
        copy.power_cut_as(Survival::Half);
        copy.peek("a")
    });
    assert_eq!(held, [None, Some(b"old".to_vec()), Some(b"new".to_vec())].into());
}

#[test]
fn a_rename_across_folders_never_loses_the_file() {
    let disk = SimDisk::new(1);
    disk.install("a", b"x");
    disk.create_dir("q").unwrap();
    disk.rename("a", "q/a").unwrap();
    let all = ["a", "a q/", "a q/ q/a", "q/ q/a"];
    assert_eq!(names_after_cuts(&disk), set(all));
    let target_first = disk.fork(2);
    target_first.sync_dir("q").unwrap();
    assert_eq!(names_after_cuts(&target_first), set(["a", "a q/ q/a", "q/ q/a"]), "the folder itself has no name yet");
    disk.sync_dir("").unwrap();
    assert_eq!(names_after_cuts(&disk), set(["q/ q/a"]));
}

#[test]
fn a_mode_is_durable_after_sync_all() {
    let (disk, file) = with_file(1, 1);
    disk.set_sealed_mode("f", true).unwrap();
    let modes = |disk: &SimDisk| {
        outcomes(|seed| {
            let copy = disk.fork(seed);
            copy.power_cut_as(Survival::Half);
            copy.is_sealed_mode("f")
        })
    };
    assert_eq!(modes(&disk), [false, true].into());
    file.sync_all().unwrap();
    assert_eq!(modes(&disk), [true].into());
}
