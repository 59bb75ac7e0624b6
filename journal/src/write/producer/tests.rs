//! The producer table: resends, gaps, fencing, eviction, and cuts at a footer.

use super::*;

fn append(producer: u8, first_sequence: u64, count: u32) -> ChunkHeader {
    ChunkHeader {
        flags: 0,
        count,
        payload_checksum: 0,
        producer: [producer; 16],
        owner: 1000,
        first_sequence,
        producer_epoch: 1,
    }
}

fn at(ns: i64) -> Moment {
    Moment { real_ns: ns, boot_ns: ns as u64 }
}

fn check(t: &ProducerTable, a: &ChunkHeader) -> Verdict {
    t.check(a, false, 1000, at(0), &HashMap::<_, ()>::new())
}

#[test]
fn a_resend_gets_its_first_offset_and_nothing_else_passes_twice() {
    let none = HashMap::<_, ()>::new();
    let mut t = ProducerTable::new(10, 4, 0);
    assert_eq!(check(&t, &append(1, 0, 2)), Verdict::First);
    t.store(&append(1, 0, 2), 100, 1000, u64::MAX, at(0));
    t.store(&append(1, 2, 3), 200, 1000, u64::MAX, at(0));
    assert_eq!(check(&t, &append(1, 0, 2)), Verdict::Duplicate { first_offset: 100 });
    assert_eq!(check(&t, &append(1, 3, 2)), Verdict::Duplicate { first_offset: 201 });
    assert_eq!(check(&t, &append(1, 4, 2)), Verdict::Overlap { expected: 5 });
    assert_eq!(check(&t, &append(1, 1, 2)), Verdict::Overlap { expected: 5 });
    assert_eq!(check(&t, &append(1, 6, 1)), Verdict::Gap { expected: 5 });
    assert_eq!(t.check(&append(1, 6, 1), true, 1000, at(0), &none), Verdict::Fresh);
    assert_eq!(check(&t, &append(1, 5, 1)), Verdict::Fresh);
    assert_eq!(check(&t, &ChunkHeader { owner: 7, ..append(1, 5, 1) }), Verdict::NotOwner);
    assert_eq!(check(&t, &ChunkHeader { producer_epoch: 0, ..append(1, 5, 1) }), Verdict::Fenced { current: 1 });
    assert_eq!(check(&t, &append(2, 9, 1)), Verdict::Gap { expected: 0 });
}

#[test]
fn what_lies_in_a_gap_is_not_stored_and_what_reaches_out_of_it_is_in_part() {
    let mut t = ProducerTable::new(10, 4, 0);
    t.store(&append(1, 0, 2), 100, 1000, u64::MAX, at(0));
    t.store(&append(1, 10, 2), 102, 1000, u64::MAX, at(0)); // with the gap mark
    assert_eq!(check(&t, &append(1, 2, 8)), Verdict::Skipped { expected: 12 });
    assert_eq!(check(&t, &append(1, 5, 2)), Verdict::Skipped { expected: 12 });
    for (first, count) in [(1, 2), (8, 3), (9, 3), (1, 10)] {
        assert_eq!(check(&t, &append(1, first, count)), Verdict::Overlap { expected: 12 }, "{first} {count}");
    }
    assert_eq!(check(&t, &append(1, 10, 2)), Verdict::Duplicate { first_offset: 102 });
}

#[test]
fn the_window_bounds_what_is_remembered_and_a_row_is_one_range() {
    let mut t = ProducerTable::new(10, 2, 0);
    for i in 0..100 {
        t.store(&append(1, i, 1), i, 1000, u64::MAX, at(0));
    }
    assert_eq!(t.ranges(), 1);
    for i in 0..5 {
        t.store(&append(1, 100 + i, 1), 1000 + i * 10, 1000, u64::MAX, at(0));
    }
    assert_eq!(t.ranges(), 2);
    assert_eq!(check(&t, &append(1, 50, 1)), Verdict::TooOld);
    assert_eq!(check(&t, &append(1, 103, 1)), Verdict::Duplicate { first_offset: 1030 });
}

#[test]
fn what_is_lost_is_never_called_stored_though_nothing_older_is_remembered() {
    let mut t = ProducerTable::new(10, 2, 0);
    for i in 0..4 {
        t.store(&append(1, i * 10, 10), 1000 + i * 100, 1000, u64::MAX, at(0)); // own ranges, two forgotten
    }
    t.lose(1200, 1300);
    let mut again = ProducerTable::new(10, 2, 0);
    again.load(&t.snapshot(u64::MAX, at(9)), at(9));
    for t in [&t, &again] {
        assert_eq!(check(t, &append(1, 10, 10)), Verdict::TooOld);
        assert_eq!(check(t, &append(1, 20, 10)), Verdict::Skipped { expected: 40 });
        assert_eq!(check(t, &append(1, 15, 10)), Verdict::Overlap { expected: 40 }, "a part of it was stored");
    }
    // With nothing left it continues where the known part ends.
    t.lose(0, u64::MAX);
    let mut again = ProducerTable::new(10, 2, 0);
    again.load(&t.snapshot(u64::MAX, at(9)), at(9));
    for t in [&t, &again] {
        assert_eq!(check(t, &append(1, 0, 1)), Verdict::TooOld);
        assert_eq!(check(t, &append(1, 20, 10)), Verdict::Fresh);
        assert_eq!(check(t, &append(1, 30, 10)), Verdict::Gap { expected: 20 });
    }
}

#[test]
fn room_is_made_by_evicting_the_longest_silent_that_may_go() {
    let mut t = ProducerTable::new(2, 2, 100);
    let none = HashMap::<_, ()>::new();
    t.store(&append(1, 0, 1), 0, 7, u64::MAX, at(10));
    t.store(&append(2, 0, 1), 1, 8, u64::MAX, at(20));
    assert_eq!(t.check(&append(3, 0, 1), false, 7, at(50), &none), Verdict::TableFull, "nobody was silent long enough");
    assert!(t.clone().make_room(at(50), &none).is_empty());
    assert_eq!(t.check(&append(3, 0, 1), false, 7, at(110), &none), Verdict::First);
    let pinned = HashMap::from([([1; 16], ())]);
    assert_eq!(t.check(&append(3, 0, 1), false, 7, at(115), &pinned), Verdict::TableFull);
    assert_eq!(t.make_room(at(130), &pinned), [[2; 16]]);
    t.store(&append(3, 0, 1), 2, 7, u64::MAX, at(130));
    assert!(t.get(&[1; 16]).is_some() && t.get(&[2; 16]).is_none());
}

/// As many ids as an owner gets at this time.
fn fill(t: &mut ProducerTable, ids: &mut u64, owner: u64, ns: i64) -> usize {
    let none = HashMap::<_, ()>::new();
    let mut got = 0;
    loop {
        let mut producer = [0; 16];
        producer[..8].copy_from_slice(&ids.to_le_bytes());
        *ids += 1;
        let append = ChunkHeader { producer, owner, ..append(0, 0, 1) };
        if t.check(&append, false, counted_under(owner), at(ns), &none) != Verdict::First {
            return got;
        }
        t.make_room(at(ns), &none);
        t.store(&append, *ids, counted_under(owner), u64::MAX, at(ns));
        got += 1;
    }
}

#[test]
fn an_owner_grows_while_as_much_as_he_has_is_free() {
    const MAX: usize = 1024;
    let (mut t, mut ids) = (ProducerTable::new(MAX, 2, 100), 0);
    assert_eq!(fill(&mut t, &mut ids, 1000, 0), MAX / 2);
    assert_eq!(fill(&mut t, &mut ids, 1001, 0), MAX / 4, "and another half of what is left");
    assert_eq!(fill(&mut t, &mut ids, 1000, 50), 0);
    // Whatever their secrets are, producers of the network count as one owner.
    let (mut network, mut others) = (ProducerTable::new(MAX, 2, 100), 0);
    let secrets = [NETWORK | 5, NETWORK | 6].map(|owner| fill(&mut network, &mut others, owner, 0));
    assert_eq!(secrets, [MAX / 2, 0]);
    // A producer that was silent for long enough counts as free, whichever owner it has.
    assert_eq!(fill(&mut t, &mut ids, 1003, 100), MAX / 2);
    assert_eq!(t.len(), MAX);
}

#[test]
fn with_all_places_taken_everybody_has_a_few_and_root_always_gets_in() {
    const MAX: usize = 64;
    let (mut t, mut ids) = (ProducerTable::new(MAX, 2, 100), 0);
    while t.len() < MAX {
        let len = t.len() as u64;
        fill(&mut t, &mut ids, 1000 + len, 0);
    }
    assert_eq!(fill(&mut t, &mut ids, 5000, 0), guarantee(MAX), "above the limit");
    assert_eq!(fill(&mut t, &mut ids, 1000, 0), 0, "who has more than that gets no further one");
    let left = 3 * MAX - t.len();
    assert_eq!(fill(&mut t, &mut ids, ROOT, 0), left, "up to three times the limit");
    assert_eq!(fill(&mut t, &mut ids, 6000, 0), 0);
}

#[test]
fn few_places_are_for_whoever_comes() {
    for max in 1..=4 {
        let mut t = ProducerTable::new(max, 2, 100);
        for owner in 0..max as u64 {
            let append = ChunkHeader { owner: 7 + owner, ..append(owner as u8, 0, 1) };
            assert_eq!(
                t.check(&append, false, append.owner, at(0), &HashMap::<_, ()>::new()),
                Verdict::First,
                "{owner}"
            );
            t.store(&append, owner, append.owner, u64::MAX, at(0));
        }
        let again = ChunkHeader { owner: 7, ..append(9, 0, 1) };
        assert_eq!(t.check(&again, false, 7, at(0), &HashMap::<_, ()>::new()), Verdict::TableFull);
    }
}

#[test]
fn a_lower_limit_evicts_nobody_before_its_time() {
    let pinned = HashMap::from([([1; 16], ())]);
    let mut t = ProducerTable::new(4, 2, 100);
    for id in 1..=4 {
        t.store(&append(id, 0, 1), u64::from(id), u64::from(id), u64::MAX, at(i64::from(id)));
    }
    t.set_max(1);
    assert_eq!(t.check(&append(9, 0, 1), false, 2, at(50), &pinned), Verdict::TableFull, "none is silent for 100");
    assert_eq!(t.check(&append(3, 1, 1), false, 7, at(50), &pinned), Verdict::Fresh, "who is known stays");
    // At 103 two of the three that may go have been silent for long enough, and both go; two are left.
    assert_eq!(t.check(&append(9, 0, 1), false, 2, at(103), &pinned), Verdict::First);
    assert_eq!(t.make_room(at(103), &pinned), [[2; 16], [3; 16]]);
    t.store(&append(9, 0, 1), 9, 7, u64::MAX, at(103));
    assert!(t.get(&[1; 16]).is_some() && t.get(&[4; 16]).is_some() && t.get(&[9; 16]).is_some());
    assert_eq!(t.len(), 3);
}

/// A wall clock that was ahead by hours and is put right: silence is measured by the boot clock.
#[test]
fn a_wall_clock_that_is_put_right_keeps_nobodys_place() {
    let none = HashMap::<_, ()>::new();
    let mut t = ProducerTable::new(1, 2, 100);
    t.store(&append(1, 0, 1), 0, 1000, u64::MAX, Moment { real_ns: 1_000_000, boot_ns: 10 });
    let later = Moment { real_ns: 50, boot_ns: 111 };
    assert_eq!(t.check(&append(2, 0, 1), false, 1000, later, &none), Verdict::First);
    // Also over a start: none is younger than now, and each has a tenth of the time to come back.
    let mut back = ProducerTable::new(1, 2, 100);
    back.load(&t.snapshot(u64::MAX, later), Moment { real_ns: 60, boot_ns: 5 });
    for (boot_ns, verdict) in [(14, Verdict::TableFull), (15, Verdict::First)] {
        let now = Moment { real_ns: 0, boot_ns };
        assert_eq!(back.check(&append(2, 0, 1), false, 1000, now, &none), verdict, "{boot_ns}");
    }
}

/// An append with an offset behind the footer's end leaves no trace in it.
#[test]
fn a_footer_is_the_table_as_it_was_at_its_end() {
    const LATE: u64 = 30;
    let mut t = ProducerTable::new(10, 2, 100);
    let mut then = Vec::new();
    let mut offset = 0;
    for step in 0..40_u64 {
        then.push((offset, t.snapshot(u64::MAX, at(0))));
        let (id, count) = ((step % 3) as u8, 1 + (step % 2) as u32);
        let next = t.get(&[id; 16]).and_then(|(_, state)| state.last).map_or(0, |(sequence, _)| sequence + 1);
        // Everything but the last few is settled: a footer may end there.
        t.store(&append(id, next, count), offset, 7, offset.saturating_sub(LATE), at(0));
        offset += u64::from(count);
    }
    for (end, snapshot) in then.into_iter().filter(|(end, _)| *end >= offset - LATE) {
        let cut = t.snapshot(end, at(0));
        let trim = |mut e: ProducerEntry| {
            for old in e.appends.drain(..e.appends.len().saturating_sub(2)) {
                e.forgotten_below = old.first_sequence + u64::from(old.count);
            }
            e
        };
        assert_eq!(cut, snapshot.into_iter().map(trim).collect::<Vec<_>>(), "{end}");
    }
    assert_eq!(t.ranges(), 6, "a footer never has more than the window of each");
}

#[test]
fn a_tombstone_takes_an_earlier_life_and_no_later_one() {
    let mut t = ProducerTable::new(10, 2, 100);
    t.store(&append(1, 0, 2), 100, 7, u64::MAX, at(0));
    t.bury(&Tombstone { producer: [1; 16], below: 100 });
    assert!(t.get(&[1; 16]).is_some());
    t.bury(&Tombstone { producer: [1; 16], below: 102 });
    assert!(t.get(&[1; 16]).is_none() && t.ranges() == 0);
    t.replay(&append(1, 0, 1), 102, 0, at(0));
    t.bury(&Tombstone { producer: [1; 16], below: 102 });
    assert_eq!(t.get(&[1; 16]).and_then(|(_, state)| state.last), Some((0, 102)));
    // The log has a sequence once more: a tombstone was lost in between.
    t.replay(&append(1, 0, 1), 110, 0, at(0));
    assert_eq!(check(&t, &append(1, 0, 1)), Verdict::Duplicate { first_offset: 110 });
}

#[test]
fn a_start_evicts_nobody() {
    let mut t = ProducerTable::new(2, 2, 100);
    for id in 0..9 {
        t.replay(&append(id, 0, 1), u64::from(id), 0, at(50));
    }
    assert_eq!(t.len(), 9);
}

#[test]
fn a_snapshot_is_the_table() {
    let mut t = ProducerTable::new(10, 4, 0);
    t.store(&append(1, 0, 2), 100, 1000, u64::MAX, at(5));
    t.store(&append(2, 0, 1), 102, 1000, u64::MAX, at(6));
    let mut back = ProducerTable::new(10, 4, 0);
    back.load(&t.snapshot(u64::MAX, at(9)), at(9));
    assert_eq!(back.snapshot(u64::MAX, at(9)), t.snapshot(u64::MAX, at(9)));
    assert_eq!(back.ranges(), 2);
    assert_eq!(check(&back, &append(1, 0, 2)), Verdict::Duplicate { first_offset: 100 });
}

#[test]
fn what_recovery_gives_back_takes_no_fence_away() {
    let mut live = ProducerTable::new(10, 4, 0);
    live.store(&append(1, 0, 2), 100, 1000, u64::MAX, at(5));
    live.store(&append(2, 0, 1), 102, 1000, u64::MAX, at(6));
    let mut recovered = live.clone();
    recovered.lose(101, 102);
    live.raise_epoch(&[1; 16], 9);
    live.forget(&[2; 16]);
    recovered.catch_up(&live);
    assert_eq!((recovered.len(), recovered.ranges()), (1, 1));
    assert_eq!(check(&recovered, &append(1, 1, 1)), Verdict::Fenced { current: 9 });
    assert_eq!(check(&recovered, &ChunkHeader { producer_epoch: 9, ..append(1, 1, 1) }), Verdict::Fresh, "lost");
}
