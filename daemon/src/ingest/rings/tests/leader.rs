//! Leader of the drain, and the thread that is woken beside it.

use super::*;

/// Back from the disk, the first thread leads again, and the other continues to stand by. What comes then is for the
/// first, which looks for it: a second wake-up would only cost.
#[test]
fn nobody_is_woken_beside_one_who_leads_again() {
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let observer = harness.shared.clone();
    harness.journal.on_watermarks(move || observer.watermarks_moved());
    let leader = Leader::new(harness.shared.clone(), vec![ring]).expect("a lead");
    let end = Instant::now() + TEST_TIMEOUT;
    // The journal's own threads may still be awake, and make the write: then it is the next one.
    let deferred_write = loop {
        let append = program.push(AckLevel::Durable, "durable");
        let deferred_write = {
            let mut drainage = leader.drainage();
            drainage.look();
            drainage.goes()
        };
        if deferred_write.is_some() {
            break deferred_write;
        }
        while program.ring.watermarks().durable <= append {
            assert!(Instant::now() < end, "nobody writes");
            leader.drainage().turn();
        }
    };
    leader.arm();
    harness.shared.ring_bell();
    assert!(leader.wakes(), "while it is at the disk, what comes is the other's");
    drop(deferred_write.expect("owed").write(&mut WriteBuffer::default()));
    harness.shared.order(Order::Stop);
    assert!(matches!(leader.drainage().lead(), StepDown::Drained), "it drains what there is");
    harness.shared.ring_bell();
    assert!(!leader.wakes(), "somebody is woken beside it");
    leader.arm();
    assert!(leader.wakes(), "until it is at the disk again");
    assert_eq!(harness.stored(program.producer).last().map(String::as_str), Some("durable"));
}
