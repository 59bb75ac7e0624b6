//! Retention by age, on wall clocks that are wrong.
//!
//! Invariants: a start with a clock that is ahead removes nothing by age at once; one that is put right costs no segment its
//! life; and a clock that is said to be right and is not costs a few segments in a minute, not the log.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clad_journal::stepper::Stepper;
use clad_journal::{Doubt, Event, Retention};
use scenes::Stage;

const SEGMENTS: u64 = 12;
const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);

/// A log of young segments, with a rule of a week, at its next start.
fn log() -> Stage {
    let mut stage = Stage::new();
    for _ in 0..SEGMENTS {
        stage.append(100, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
    }
    stage.die();
    stage.config.retention = Retention { max_age: 7 * DAY, ..Retention::default() };
    stage
}

fn jump(stage: &Stage, days: i64) {
    stage.clock.jump(days * DAY.as_nanos() as i64);
}

/// How many of the first segments retention has removed, at a look that follows so much later.
fn removed(stage: &Stage, later: Duration) -> u64 {
    stage.clock.step(later);
    stage.journal().retain();
    stage.journal().meta().lowest_offset
}

#[test]
fn a_start_with_a_clock_ahead_waits_until_it_is_put_right() {
    let mut stage = log();
    jump(&stage, 30);
    stage.clock.set_synchronised(false);
    stage.start();
    (0..9).for_each(|_| assert_eq!(removed(&stage, MINUTE), 0));
    // The time comes from the network now: a month back.
    jump(&stage, -30);
    stage.clock.set_synchronised(true);
    (0..30).for_each(|_| assert_eq!(removed(&stage, MINUTE), 0));
    // What is old goes, up to the newest, which the last start sealed empty.
    stage.clock.step(7 * DAY);
    assert_eq!(removed(&stage, MINUTE), SEGMENTS);
}

#[test]
fn without_time_synchronisation_the_rule_holds_after_a_stated_time() {
    let mut stage = log();
    jump(&stage, 30);
    stage.clock.set_synchronised(false);
    stage.start();
    assert_eq!(removed(&stage, MINUTE), 0);
    (0..9).for_each(|_| assert_eq!(removed(&stage, MINUTE), 0));
    assert_eq!(removed(&stage, MINUTE), 8);
}

#[test]
fn a_clock_that_is_wrong_and_said_to_be_right_costs_a_few_segments_in_the_first_minute() {
    let mut stage = log();
    jump(&stage, 30);
    stage.start();
    assert_eq!(removed(&stage, Duration::ZERO), 8);
    assert_eq!(removed(&stage, MINUTE / 2), 8);
    assert_eq!(removed(&stage, MINUTE / 2), SEGMENTS);
}

#[test]
fn it_is_reported_that_it_rests_and_that_it_goes_on_and_only_where_there_is_a_rule() {
    let mut stage = log();
    stage.clock.set_synchronised(false);
    stage.disk = stage.disk.reopen();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let events = reported.clone();
    let observer = Arc::new(move |event: &Event| {
        if matches!(event, Event::RetentionPaused(_) | Event::RetentionResumed) {
            events.lock().unwrap().push(event.clone());
        }
    });
    let config = clad_journal::JournalConfig { retention: Retention::default(), ..stage.config };
    let journal = Stepper::open(Arc::new(stage.disk.clone()), stage.clock.clone(), config, observer).unwrap();
    let look = || {
        journal.retain();
        std::mem::take(&mut *reported.lock().unwrap())
    };
    assert_eq!(look(), []);
    journal.set_retention(stage.config.retention);
    assert_eq!((look(), look()), (vec![Event::RetentionPaused(Doubt::Start)], vec![]));
    stage.clock.set_synchronised(true);
    assert_eq!((look(), look()), (vec![Event::RetentionResumed], vec![]));
    jump(&stage, 1);
    assert_eq!((look(), look()), (vec![Event::RetentionPaused(Doubt::Jump)], vec![]));
    journal.set_retention(Retention::default());
    assert_eq!(look(), [Event::RetentionResumed]);
}
