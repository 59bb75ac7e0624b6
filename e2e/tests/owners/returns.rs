//! An id that comes back after BYE: it begins again, and nothing that it sends is answered with what it stored before.
//!
//! Invariants: WELCOME that knows nothing is a promise that outlasts a crash. Where the crash came before it, the daemon
//! may still know the earlier life, and says so.

use std::collections::HashMap;

use clad_e2e::as_user;
use clad_e2e::{Daemon, Rng, Setup, seed};
use clad_proto::{AckLevel, ProducerId};

use crate::session::{Answer, Last, Session, TRANSPORTS, Transport};
use crate::{GREEDY_UID, daemon, each_once, id};

/// Crashes by each transport.
const CRASHES: u32 = 4;

/// The offset of each record, by its text.
fn offsets(daemon: &Daemon) -> HashMap<String, u64> {
    let text = |body| String::from_utf8(body).expect("text");
    each_once(daemon).into_iter().map(|stored| (text(stored.body), stored.offset)).collect()
}

/// A life of a producer: it is let in, stores a record at this sequence, and goes with BYE. Returns what WELCOME said of the life before.
fn lives(daemon: &Daemon, over: Transport, id: ProducerId, body: &str) -> Last {
    as_user(GREEDY_UID, || {
        let (mut session, last) = Session::open(daemon, over, id).unwrap_or_else(|e| panic!("{over:?}: {e}"));
        let next = last.map_or(0, |(sequence, _)| sequence + 1);
        if let Some(answer) = session.append(next, AckLevel::Durable, body).expect("taken") {
            assert!(!answer.duplicate, "{over:?}: {body:?} is called stored at {}", answer.offset);
        }
        session.bye();
        last
    })
}

/// Sends HELLO, and nothing more. Returns what WELCOME said.
fn knocks(daemon: &Daemon, over: Transport, id: ProducerId) -> Last {
    as_user(GREEDY_UID, || Session::open(daemon, over, id).unwrap_or_else(|e| panic!("{over:?}: {e}")).1)
}

/// A connection with a ring ends before the ring is drained, and the producer ends with the ring: HELLO waits for that.
fn has_ended(daemon: &Daemon, over: Transport, id: ProducerId) {
    if over == Transport::Ring {
        assert_eq!(knocks(daemon, over, id), None, "it said BYE");
    }
}

/// Two lives of an id for each transport, and what happens to the daemon between them.
fn comes_back(what: &str, between: impl Fn(&mut Daemon, Transport, ProducerId)) {
    let Some(mut daemon) = daemon(what, Setup::new()) else { return };
    for (n, over) in (0..).zip(TRANSPORTS) {
        let id = id(1, n);
        assert_eq!(lives(&daemon, over, id, &format!("earlier {over:?}")), None);
        between(&mut daemon, over, id);
        let known = lives(&daemon, over, id, &format!("later {over:?}"));
        assert_eq!(known, None, "{over:?}: it said BYE");
    }
    assert_eq!(each_once(&daemon).len(), 2 * TRANSPORTS.len(), "each life has stored its record");
}

#[test]
fn a_returning_id_starts_over() {
    comes_back("an id that comes back", |_, _, _| {});
}

#[test]
fn a_returning_id_starts_over_after_a_rotation_and_a_crash() {
    comes_back("an id that comes back after a rotation and a crash", |daemon, over, id| {
        has_ended(daemon, over, id);
        daemon.admin().rotate().expect("rotated");
        daemon.kill9();
        daemon.restart();
    });
}

#[test]
fn a_returning_id_starts_over_after_a_clean_restart() {
    comes_back("an id that comes back after a clean restart", |daemon, over, id| {
        has_ended(daemon, over, id);
        assert_eq!(daemon.term(), Some(0));
        daemon.restart();
    });
}

/// The daemon is killed when it has said that it knows nothing, and before it is sent anything.
#[test]
fn an_id_welcomed_before_a_crash_starts_over() {
    comes_back("an id that was welcomed before a crash", |daemon, over, id| {
        assert_eq!(knocks(daemon, over, id), None, "{over:?}: it said BYE");
        daemon.kill9();
        daemon.restart();
    });
}

/// The same where the log was rotated in between, and crashes twice.
#[test]
fn an_id_welcomed_before_a_rotation_and_two_crashes_starts_over() {
    comes_back("an id that was welcomed before a rotation and two crashes", |daemon, over, id| {
        assert_eq!(knocks(daemon, over, id), None, "{over:?}: it said BYE");
        daemon.admin().rotate().expect("rotated");
        daemon.kill9();
        daemon.restart();
        daemon.kill9();
        daemon.restart();
    });
}

/// The daemon dies when BYE has ended the session: it may know the earlier life, and what comes then is distinguished from that.
#[test]
fn a_crash_right_after_bye_answers_nothing_new_with_what_is_old() {
    let Some(mut daemon) = daemon("a crash right after BYE", Setup::new()) else { return };
    for (n, over) in (0..CRASHES * 4).zip(TRANSPORTS.into_iter().cycle()) {
        let (id, earlier) = (id(1, n), format!("earlier {n}"));
        assert_eq!(lives(&daemon, over, id, &earlier), None);
        daemon.kill9();
        daemon.restart();
        let stored = offsets(&daemon)[&earlier];
        let known = lives(&daemon, over, id, &format!("later {n}"));
        assert!([None, Some((0, stored))].contains(&known), "{over:?}: {known:?}, the earlier life is at {stored}");
    }
    assert_eq!(offsets(&daemon).len() as u32, 2 * 4 * CRASHES, "each life has stored its record");
}

/// The daemon dies when a second life has begun, with its first record on the way. That is sent again: it is answered with its own
/// offset, or stored. By a ring nothing is sent again: what lies there outlives the daemon.
#[test]
fn what_is_sent_again_after_a_crash_is_answered_by_its_own_life() {
    let Some(mut daemon) = daemon("what a second life sends again after a crash", Setup::new()) else { return };
    let mut rng = Rng::new(seed());
    let mut answers: Vec<(String, Answer)> = Vec::new();
    for (n, over) in (0..CRASHES * 3).zip(TRANSPORTS.into_iter().filter(|over| *over != Transport::Ring).cycle()) {
        let (id, later) = (id(1, n), format!("later {n}"));
        assert_eq!(lives(&daemon, over, id, &format!("earlier {n}")), None);
        let level = [AckLevel::None, AckLevel::Received, AckLevel::Written, AckLevel::Durable][rng.index(4)];
        as_user(GREEDY_UID, || {
            let (mut session, last) = Session::open(&daemon, over, id).expect("let in");
            assert_eq!(last, None, "{over:?}: it said BYE");
            let answer = session.append(0, level, &later).expect("taken");
            assert!(answer.is_none_or(|answer| !answer.duplicate), "{over:?}: {answer:?}");
        });
        daemon.kill9();
        daemon.restart();
        as_user(GREEDY_UID, || {
            let (mut session, last) = Session::open(&daemon, over, id).expect("let in");
            let answer = session.append(0, AckLevel::Durable, &later).expect("taken").expect("an answer");
            let known = last.map(|(sequence, offset)| (sequence, Answer { offset, duplicate: true }));
            let right = known.is_none_or(|known| known == (0, answer)) && known.is_some() == answer.duplicate;
            assert!(right, "{over:?} at {level}: WELCOME said {last:?}, {answer:?} was answered");
            assert!(known.is_some() || level < AckLevel::Written, "{over:?}: it was {level}, and is not there");
            answers.push((later, answer));
        });
    }
    let stored = offsets(&daemon);
    assert_eq!(stored.len() as u32, 2 * 3 * CRASHES, "each life has stored its record");
    for (later, answer) in answers {
        assert_eq!(stored[&later], answer.offset, "{later} was answered with another record's offset");
    }
}
