//! Appends that were never sent make room for newer ones.

use super::rules::{DURABLE, accepted, deliver_watermark, sent, with};
use super::{TestSession, append, appends, flushes};
use crate::session::Append;
use clad_proto::AckLevel;
use tokio::time::Instant;

/// The sequences of what is left are dense, whatever was dropped; a flush waits for what is left of those before it.
#[test]
fn what_was_never_sent_is_dropped_and_leaves_no_gap() {
    let now = Instant::now();
    let dropped = |session: &mut TestSession, most, below| -> Vec<u64> {
        session.drop_unsent(most, below, |_| 1).into_iter().map(|(_, number)| number).collect()
    };
    let mut session = with(2, now);
    assert_eq!(sent(&mut session, now), [(0, false), (1, false)]);
    for number in 2..10 {
        let severity = if number % 2 == 0 { 5 } else { 17 };
        session.submit(Append { severity, ..append(number, 1, DURABLE, now) }, number);
    }
    session.flush(DURABLE, 0, now);
    assert_eq!(dropped(&mut session, 2, None), [2, 3], "the oldest, and none that was sent");
    assert_eq!(dropped(&mut session, 2, Some(9)), [4, 6], "the oldest below the severity");
    session.submit(append(10, 1, DURABLE, now), 10);
    assert_eq!(sent(&mut session, now), [2, 3, 4, 5, 6].map(|seq| (seq, false)));
    assert!(dropped(&mut session, 9, None).is_empty(), "all were sent");
    for (seq, offset) in (0..7).zip(0..) {
        accepted(&mut session, seq, offset, 1, now);
    }
    deliver_watermark(&mut session, AckLevel::Durable, 6, now);
    let ended: Vec<_> = appends(&mut session).into_iter().map(|(number, result)| (number, result.is_ok())).collect();
    assert_eq!(ended, [0, 1, 5, 7, 8, 9].map(|number| (number, true)));
    sent(&mut session, now);
    assert_eq!(flushes(&mut session).len(), 1, "all before it have ended");
    // Of what is left, all can go; the next one still has the next sequence.
    session.submit(append(11, 3, DURABLE, now), 11);
    assert_eq!(dropped(&mut session, 1, Some(10)), [11]);
    session.submit(append(12, 1, DURABLE, now), 12);
    assert_eq!(sent(&mut session, now), [(7, false)]);
}
