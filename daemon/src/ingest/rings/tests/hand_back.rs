//! Rings that their clients hand back.

use clad_proto::ErrorCode;

use super::*;

/// A closed ring is taken back only for what lies in it. Where nothing does, its client goes on to another at once, and
/// neither the store nor the drain gets a ring that is over.
#[test]
fn a_closed_ring_is_taken_back_only_with_something_in_it() {
    let mut harness = Harness::new(16);
    let hands_back = |harness: &Harness, name: u8, texts: &[&str]| {
        let (program, mut ring) = harness.ring(name);
        for text in texts {
            program.push(AckLevel::Written, text);
        }
        ring.leave(false);
        assert!(program.ring.is_closed());
        harness.shared.registry.deregister(&ring.registered);
        let memory = program.memory.try_clone().expect("a descriptor").into();
        (harness.shared.take_back(ring.registered.note, memory), program)
    };
    let (refused, _) = hands_back(&harness, 1, &[]);
    let error = refused.map(drop).expect_err("nothing is in it");
    assert_eq!(error.code, ErrorCode::RingUnavailable, "{error}");
    assert_eq!(harness.shared.registry.totals().0, 0, "nothing is left of it");
    let (taken, program) = hands_back(&harness, 2, &["before the end"]);
    let _ring_ref = taken.expect("something is in it");
    harness.until("drained", |harness| harness.shared.registry.totals().0 == 0);
    harness.until("written", |harness| harness.stored(program.producer) == ["before the end"]);
}

/// Its newer instance counts on from what was stored at its HELLO: nothing of the older one comes in between.
#[test]
fn a_ring_of_an_older_instance_is_not_taken_back() {
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let note = ring.registered.note;
    harness.shared.session(&Note { producer_epoch: 1, ..note }).expect("the newer one");
    harness.shared.registry.deregister(&ring.registered);
    let memory = program.memory.try_clone().expect("a descriptor").into();
    let error = harness.shared.take_back(note, memory).map(drop).expect_err("it is to stop");
    assert_eq!(error.code, ErrorCode::ProducerFenced, "{error}");
    assert_eq!(harness.shared.registry.totals().0, 0, "nothing is left of it");
}

/// An older instance may be given a ring just behind the newer one's HELLO, and hold it. The newer one asks at each of its
/// appends, and waits no longer than it takes to drain the ring.
#[test]
fn the_ring_of_an_older_instance_ends_when_a_newer_one_appends() {
    let mut harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let note = ring.registered.note;
    let rings = Rings(Some(harness.shared.clone()));
    let _held = RingRef::of(&harness.shared, &ring.registered);
    harness.add(ring);
    assert!(rings.has_ring(&note.producer, note.producer_epoch));
    (0..3).for_each(|_| {
        harness.drainage.turn();
    });
    assert!(!program.ring.is_closed(), "its own instance ends nothing");
    assert!(rings.has_ring(&note.producer, note.producer_epoch + 1));
    harness.until("ended", |harness| harness.shared.registry.totals().0 == 0);
    assert!(program.ring.is_closed() && !rings.has_ring(&note.producer, note.producer_epoch + 1));
}
