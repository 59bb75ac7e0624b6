//! A reader while retention removes one segment after the other.

use clad_journal::ReadError;

use super::*;

const SEGMENTS: u64 = 40;
const AGE: Duration = Duration::from_secs(1000);

/// Each file that anybody opens finds one segment less, so that every look of the reader is for what has just gone. It is
/// given a gap for what was removed, and the rest: nothing of it is damage.
pub(crate) fn retention() {
    let mut stage = Stage::new();
    stage.config.retention = Retention { max_age: AGE, ..Retention::default() };
    for _ in 0..SEGMENTS {
        stage.append(100, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
        stage.clock.step(Duration::from_secs(1));
    }
    // A start reads no footers: each look has to open some.
    stage.start();
    stage.journal().retain(); // the clock is believed from here on
    stage.clock.step(AGE - Duration::from_secs(SEGMENTS + 1));
    stage.journal().retain();
    let journal = Arc::new(stage.journal.take().expect("it was started"));
    let mut left = SEGMENTS - 3;
    let (clock, retention) = (stage.clock.clone(), Arc::downgrade(&journal));
    stage.tap.before_open(move || {
        if left > 0 {
            left -= 1;
            clock.step(Duration::from_secs(1));
            retention.upgrade().expect("it runs").retain();
        }
    });
    let mut reader = journal.reader(0, Level::Durable);
    let (mut next, mut given, mut removed) = (0, 0, 0);
    loop {
        match reader.next_batch() {
            Ok(Some(batch)) => {
                assert_eq!(batch.first_offset, next);
                (next, given) = (batch.end_offset(), given + 1);
            }
            Ok(None) => break,
            Err(ReadError::Gap { from, to, damaged }) => {
                assert!(!damaged && from == next, "{from} to {to}, damaged: {damaged}; {next} is next");
                (next, removed) = (to, removed + 1);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(next == SEGMENTS && given >= 2 && removed >= 2, "up to {next}: {given} given, {removed} gaps");
}
