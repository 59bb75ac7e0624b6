//! The resend window: its bounds, its time, and its cut.

use super::*;

const SEGMENT_BYTES: u64 = 64 << 20;
const SECOND_NS: u64 = 1_000_000_000;

fn key(identity: u64, number: u64) -> ResendKey {
    let mut digest = [0; 16];
    digest[..8].copy_from_slice(&number.to_le_bytes());
    ResendKey { identity, digest }
}

fn window(entries: usize) -> ResendWindow {
    let mut w = ResendWindow::new(entries, Duration::from_secs(10), SEGMENT_BYTES);
    w.pass(0, true);
    w
}

/// Remembers an append of one record, by its offset.
fn remember(w: &mut ResendWindow, identity: u64, offset: u64) {
    w.remember(key(identity, offset), 1, offset);
}

fn has(w: &ResendWindow, identity: u64, offset: u64) -> bool {
    w.find(&key(identity, offset), 1) == Some(offset)
}

fn offsets(w: &ResendWindow) -> Vec<u64> {
    w.snapshot(u64::MAX).iter().map(|entry| entry.first_offset).collect()
}

#[test]
fn it_is_bounded_by_its_places_by_all_and_by_the_segment() {
    let max = |entries, keep, segment_bytes| ResendWindow::new(entries, Duration::from_secs(keep), segment_bytes).max;
    assert_eq!(max(100, 1, SEGMENT_BYTES), 100);
    assert_eq!(max(usize::MAX, 1, u64::MAX), 65_536);
    assert_eq!(max(usize::MAX, 1, 64 << 10), (64 << 10) / 32 / 52);
    assert_eq!(max(0, 1, SEGMENT_BYTES), 0);
    assert_eq!(max(100, 0, SEGMENT_BYTES), 0);
    let mut w = window(8);
    (0..100).for_each(|offset| remember(&mut w, offset % 3, offset));
    assert_eq!((w.len(), w.evicted_early()), (8, 92));
    assert_eq!((w.offsets.len(), w.senders.len(), w.greed.len()), (8, 3, 3));
}

#[test]
fn it_is_off_without_a_place_or_a_time() {
    for mut w in [ResendWindow::default(), ResendWindow::new(8, Duration::ZERO, SEGMENT_BYTES), window(0)] {
        remember(&mut w, 1, 5);
        let mut meta = Vec::new();
        key(1, 6).encode(&mut meta);
        w.replay(&meta, 1, 6);
        w.load(&[ResendEntry { key: key(1, 7), first_offset: 7, count: 1 }]);
        assert!(!w.is_on() && !has(&w, 1, 5) && !has(&w, 1, 6) && !has(&w, 1, 7));
        assert_eq!((w.len(), w.len_after_next(), w.evicted_early(), w.snapshot(u64::MAX).len()), (0, 0, 0, 0));
    }
}

#[test]
fn a_hit_is_the_same_sender_digest_and_count() {
    let mut w = window(8);
    w.remember(key(1, 7), 3, 50);
    assert_eq!(w.find(&key(1, 7), 3), Some(50));
    assert_eq!(w.find(&key(1, 7), 2), None, "another count");
    assert_eq!(w.find(&key(2, 7), 3), None, "another sender");
    assert_eq!(w.find(&key(1, 8), 3), None, "another digest");
    w.remember(key(1, 7), 2, 60);
    assert_eq!((w.find(&key(1, 7), 3), w.find(&key(1, 7), 2)), (Some(50), Some(60)));
}

#[test]
fn a_full_window_loses_the_oldest_of_the_greediest() {
    let mut w = window(8);
    remember(&mut w, 1, 0);
    remember(&mut w, 2, 1);
    (2..8).for_each(|offset| remember(&mut w, 3, offset));
    assert_eq!(offsets(&w), [0, 1, 4, 5, 6, 7], "half of the places, beside others");
    (8..30).for_each(|offset| remember(&mut w, 3, offset));
    assert_eq!(offsets(&w), [0, 1, 26, 27, 28, 29], "a flood loses its own");
    remember(&mut w, 1, 30);
    remember(&mut w, 2, 31);
    assert_eq!(w.evicted_early(), 24);
    remember(&mut w, 2, 32);
    assert_eq!(offsets(&w), [0, 1, 27, 28, 29, 30, 31, 32], "the one with the most");
    remember(&mut w, 4, 33);
    assert_eq!(offsets(&w), [0, 27, 28, 29, 30, 31, 32, 33], "of two with as many the one with the oldest");
    assert_eq!(w.evicted_early(), 26);
}

#[test]
fn a_sender_that_is_alone_has_all_places_and_gives_them_back() {
    let mut w = window(8);
    (0..10).for_each(|offset| remember(&mut w, 1, offset));
    assert_eq!(offsets(&w), [2, 3, 4, 5, 6, 7, 8, 9]);
    remember(&mut w, 2, 10);
    assert_eq!(offsets(&w), [3, 4, 5, 6, 7, 8, 9, 10]);
    (11..14).for_each(|offset| remember(&mut w, 1, offset));
    assert!(has(&w, 2, 10), "the other's stays");
    (14..20).for_each(|offset| remember(&mut w, 2, offset));
    let of_first = (11..14).filter(|offset| has(&w, 1, *offset)).count();
    assert_eq!((w.len(), of_first, has(&w, 2, 19)), (8, 3, true));
    assert_eq!(w.senders.values().map(BTreeSet::len).max(), Some(4), "half each");
}

#[test]
fn an_old_entry_goes_and_time_stands_still_while_nothing_is_taken() {
    let mut w = window(8);
    remember(&mut w, 1, 0);
    w.pass(9 * SECOND_NS, false);
    w.pass(500 * SECOND_NS, true);
    assert!(has(&w, 1, 0), "it was refused for all of that time");
    w.pass(501 * SECOND_NS, true);
    assert!(has(&w, 1, 0), "ten seconds are not over");
    w.pass(501 * SECOND_NS + 1, true);
    assert!(!has(&w, 1, 0));
    assert_eq!((w.len(), w.evicted_early()), (0, 0), "that was its time");
}

/// More than leave at one look: they are neither found nor in a footer, and make room before anything is evicted.
#[test]
fn many_old_entries_leave_little_by_little() {
    let mut w = window(1000);
    (0..1000).for_each(|offset| remember(&mut w, offset % 3, offset));
    w.pass(11 * SECOND_NS, true);
    assert_eq!((w.len(), offsets(&w).len(), has(&w, 0, 999)), (1000 - EXPIRED_PER_LOOK_MAX, 0, false));
    (1000..2000).for_each(|offset| remember(&mut w, offset % 3, offset));
    assert_eq!((w.len(), w.evicted_early()), (1000, 0));
}

#[test]
fn a_recovery_makes_all_young_and_goes_on_with_the_counts() {
    let mut live = window(2);
    (0..3).for_each(|offset| remember(&mut live, 1, offset));
    live.pass(9 * SECOND_NS, false);
    let mut recovered = live.clone();
    recovered.lose(2, 3);
    live.pass(20 * SECOND_NS, false);
    recovered.catch_up(&live);
    recovered.pass(21 * SECOND_NS, true);
    recovered.pass(31 * SECOND_NS, true);
    assert!(has(&recovered, 1, 1) && !has(&recovered, 1, 2));
    assert_eq!(recovered.evicted_early(), 1);
    recovered.pass(31 * SECOND_NS + 1, true);
    assert!(!has(&recovered, 1, 1));
}

#[test]
fn an_append_with_a_lost_offset_is_forgotten_whole() {
    for (from, to, left) in [
        (0, 10, vec![10, 20, 30]),
        (11, 12, vec![20, 30]),
        (19, 20, vec![20, 30]),
        (20, 20, vec![10, 20, 30]),
        (19, 21, vec![30]),
        (25, u64::MAX, vec![10]),
        (40, u64::MAX, vec![10, 20, 30]),
    ] {
        let mut w = window(8);
        [10, 20, 30].into_iter().for_each(|offset| w.remember(key(1, offset), 10, offset));
        w.lose(from, to);
        assert_eq!(offsets(&w), left, "{from} to {to}");
        let found = [10, 20, 30].into_iter().filter(|offset| w.find(&key(1, *offset), 10).is_some());
        assert_eq!(found.collect::<Vec<_>>(), left, "{from} to {to}");
        w.remember(key(1, 10), 10, 90);
        assert_eq!(w.find(&key(1, 10), 10), Some(90), "it is stored again");
    }
}

#[test]
fn a_footer_has_what_ends_below_its_end() {
    let mut w = window(8);
    [10, 20, 30].into_iter().for_each(|offset| w.remember(key(1, offset), 10, offset));
    for (footer_end, count) in [(10, 0), (19, 0), (20, 1), (39, 2), (40, 3), (u64::MAX, 3)] {
        assert_eq!(w.snapshot(footer_end).len(), count, "{footer_end}");
    }
    let mut again = window(8);
    again.load(&w.snapshot(39));
    assert_eq!(again.find(&key(1, 20), 10), Some(20));
    assert_eq!(again.find(&key(1, 30), 10), None);
    assert_eq!(again.snapshot(u64::MAX), w.snapshot(39));
}

#[test]
fn a_smaller_window_loads_the_newest() {
    let mut w = window(8);
    (0..8).for_each(|offset| remember(&mut w, offset % 2, offset));
    let mut smaller = window(3);
    smaller.load(&w.snapshot(u64::MAX));
    assert_eq!((offsets(&smaller), smaller.evicted_early()), (vec![5, 6, 7], 0));
    let mut off = window(0);
    off.load(&w.snapshot(u64::MAX));
    assert_eq!(off.len(), 0);
}

#[test]
fn what_is_in_the_log_twice_is_at_its_later_place() {
    let mut w = window(8);
    let mut meta = Vec::new();
    key(1, 7).encode(&mut meta);
    w.replay(&meta, 2, 10);
    w.replay(&meta, 2, 20);
    w.replay(b"sim", 2, 30);
    assert_eq!((w.find(&key(1, 7), 2), w.len(), w.senders.len()), (Some(20), 1, 1));
}

/// Entries of a file that cannot be: nothing panics.
#[test]
fn numbers_beyond_all_are_taken() {
    let mut w = window(2);
    let entry = |first_offset, count| ResendEntry { key: key(1, first_offset), first_offset, count };
    w.load(&[entry(u64::MAX, u32::MAX), entry(0, 0), entry(u64::MAX - 1, 7), entry(u64::MAX - 1, 8)]);
    w.lose(5, 3);
    w.lose(0, u64::MAX);
    remember(&mut w, 1, 3);
    assert!(has(&w, 1, 3));
}
