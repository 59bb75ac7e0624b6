//! Who said BYE is forgotten, and nobody else is: over a clean restart, and over `kill -9`.

use clad_e2e::as_user;
use clad_e2e::{Daemon, Setup, web};
use clad_proto::AckLevel;

use crate::session::{Session, TRANSPORTS, Transport, all_at_once};
use crate::{GREEDY_UID, OTHER_UIDS, SteadyProducer, count, daemon, each_once, id, others_are_admitted};

/// More ids than the log remembers by default.
const FORGOTTEN_IDS: u32 = 1200;
/// More programs than that, one after the other.
const RING_PROGRAMS: u32 = 1100;
/// Lives of one id, each by a ring of its own.
const RETURNS_AT_ONCE: usize = 500;

/// `clad_dropped_records_total`, for all reasons.
fn dropped(daemon: &Daemon) -> usize {
    let metrics = web::metrics(daemon.port("metrics"));
    let of_drops = metrics.iter().filter(|(name, _)| name.starts_with("clad_dropped_records_total"));
    of_drops.map(|(_, value)| *value as usize).sum()
}

/// Two who are quiet, one of them connected. A user comes under ever new ids, each of which hands a record over, at level `none`, and
/// says BYE. Then the daemon is stopped and started.
fn many_ids_that_say_bye_cost_nobody_else(over: Transport) {
    let what = format!("{FORGOTTEN_IDS} ids that say BYE, by {over:?}");
    let Some(mut daemon) = daemon(&what, Setup::new()) else { return };
    let (there, session) = SteadyProducer::new(&daemon, 1002, id(1, 0));
    let (away, _) = SteadyProducer::new(&daemon, 1003, id(1, 1));
    let refused = as_user(GREEDY_UID, || {
        let tries = (0..FORGOTTEN_IDS).map(|n| all_at_once(&daemon, over, id(9, n), &format!("short {n}")));
        tries.filter(Result::is_err).count()
    });
    let dropped = dropped(&daemon);
    assert_eq!(daemon.term(), Some(0));
    drop(session);
    daemon.restart();
    there.is_known(&daemon);
    away.is_known(&daemon);
    others_are_admitted(&daemon, 2);
    let all = each_once(&daemon);
    assert_eq!(count(&all, "quiet"), 6);
    assert_eq!(count(&all, "uid"), OTHER_UIDS.len() * TRANSPORTS.len());
    let short = count(&all, "short");
    assert_eq!(
        (short, dropped, refused),
        (FORGOTTEN_IDS as usize, 0, 0),
        "stored, dropped, refused: BYE gives its place back"
    );
}

#[test]
fn many_ids_by_the_unix_socket_that_say_bye_cost_nobody_else() {
    many_ids_that_say_bye_cost_nobody_else(Transport::Unix);
}

#[test]
fn many_ids_over_tcp_that_say_bye_cost_nobody_else() {
    many_ids_that_say_bye_cost_nobody_else(Transport::Tcp);
}

#[test]
fn many_ids_over_grpc_that_say_bye_cost_nobody_else() {
    many_ids_that_say_bye_cost_nobody_else(Transport::Grpc);
}

#[test]
fn many_ids_with_rings_that_say_bye_cost_nobody_else() {
    many_ids_that_say_bye_cost_nobody_else(Transport::Ring);
}

/// One process that says BYE to its ring and at once HELLO under the same id, again and again: by then the earlier life is over.
#[test]
fn who_comes_back_right_after_bye_by_a_ring_starts_over() {
    let Some(daemon) = daemon("BYE by a ring, and HELLO at once", Setup::new()) else { return };
    as_user(GREEDY_UID, || {
        for n in 0..RETURNS_AT_ONCE {
            let (mut session, known) = Session::open(&daemon, Transport::Ring, id(8, 0)).expect("let in");
            assert_eq!(known, None, "life {n}: the one before said BYE");
            session.append(0, AckLevel::Durable, &format!("life {n}")).expect("stored");
            session.bye();
        }
    });
    assert_eq!(count(&each_once(&daemon), "life"), RETURNS_AT_ONCE);
}

/// Programs of several users, by every transport: each waits for its ack, says BYE, and has ended when the next one comes. Then the
/// daemon dies.
#[test]
fn short_programs_before_a_crash_cost_nobody_anything() {
    let Some(mut daemon) = daemon("short programs before a crash", Setup::new()) else { return };
    let (steady, _session) = SteadyProducer::new(&daemon, 1002, id(1, 0));
    let last = id(9, RING_PROGRAMS - 1);
    let uid_of = |n: u32| [1001, 1004, 1005, 0][n as usize / 4 % 4];
    for n in 0..RING_PROGRAMS {
        let (uid, over) = (uid_of(n), TRANSPORTS[n as usize % 4]);
        as_user(uid, || {
            let (mut session, _) =
                Session::open(&daemon, over, id(9, n)).unwrap_or_else(|e| panic!("program {n} by {over:?}: {e}"));
            let stored = session.append(0, AckLevel::Durable, &format!("program {n}"));
            stored.unwrap_or_else(|e| panic!("program {n} by {over:?}: {e}"));
            session.bye();
        });
    }
    // WELCOME that knows nothing is said when the forgetting outlasts a crash, and so do all before it. The id is its
    // user's until then: another's HELLO does not wait for the end of his ring, it is refused.
    as_user(uid_of(RING_PROGRAMS - 1), || {
        let (_, known) = Session::open(&daemon, Transport::Ring, last).expect("let in");
        assert_eq!(known, None, "the last one said BYE");
    });
    daemon.kill9();
    daemon.restart();
    assert_eq!(daemon.status().producers, 1, "the quiet one alone is remembered");
    steady.is_known(&daemon);
    others_are_admitted(&daemon, 2);
    let all = each_once(&daemon);
    assert_eq!((count(&all, "quiet"), count(&all, "program")), (3, RING_PROGRAMS as usize));
}
