//! Who leads the drain, and who is woken beside it.

use super::*;

/// Back from the disk, the first thread leads again, and the other goes on standing by: what comes then is the first's, which
/// looks for it, and would cost a second wake-up.
#[test]
fn nobody_is_woken_beside_one_who_leads_again() {
    let world = World::new(16);
    let (program, ring) = world.ring(1);
    let told = world.shared.clone();
    world.journal.on_marks(move || told.marks_moved());
    let lead = Lead::new(world.shared.clone(), vec![ring]).expect("a lead");
    let end = Instant::now() + PATIENCE;
    // The journal's own threads may be on their way still, and make the write: then it is the next one.
    let owed = loop {
        let append = program.push(AckLevel::Durable, "durable");
        let owed = {
            let mut drainage = lead.drainage();
            drainage.look();
            drainage.goes()
        };
        if owed.is_some() {
            break owed;
        }
        while program.ring.marks().durable <= append {
            assert!(Instant::now() < end, "nobody writes");
            lead.drainage().turn();
        }
    };
    lead.arm();
    world.shared.ring_bell();
    assert!(lead.wakes(), "while it is at the disk, what comes is the other's");
    drop(owed.expect("owed").write(&mut Hand::default()));
    world.shared.order(Order::Stop);
    assert!(matches!(lead.drainage().lead(), Left::Over), "it drains what there is");
    world.shared.ring_bell();
    assert!(!lead.wakes(), "somebody is woken beside it");
    lead.arm();
    assert!(lead.wakes(), "until it is at the disk again");
    assert_eq!(world.stored(program.producer).last().map(String::as_str), Some("durable"));
}
