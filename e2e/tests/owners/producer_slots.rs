//! Places of producers: a user is one owner, whatever he comes by; he grows only while as many places are free as he has; who has
//! few is always let in.

use clad_e2e::as_user;
use clad_e2e::{Daemon, Setup};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

use crate::session::{Session, TRANSPORTS, Transport};
use crate::{GREEDY_UID, OTHER_UIDS, SteadyProducer, daemon, each_once, id, others_are_admitted};

/// Producers that an owner may have in a full table.
const GUARANTEED_PRODUCERS: usize = 8;

fn with_producer_slots(what: &str, slots: usize) -> Option<Daemon> {
    daemon(what, Setup::new().set("limits.max_producers", &slots.to_string()))
}

/// A new producer stores a record and goes without BYE: it is remembered.
fn stays(daemon: &Daemon, over: Transport, group: u8, number: usize) -> Result<(), ErrorInfo> {
    let (mut session, _) = Session::open(daemon, over, id(group, number as u32))?;
    session.append(0, AckLevel::Durable, &format!("{group}/{number} by {over:?}")).map(drop)
}

/// A user takes places by a transport until he is refused: how many he gets.
fn takes_all(daemon: &Daemon, uid: u32, over: Transport, group: u8) -> usize {
    as_user(uid, || {
        let mut taken = 0;
        loop {
            assert!(taken <= 1000, "uid {uid} is never refused");
            match stays(daemon, over, group, taken) {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::TooManyProducers, "uid {uid} by {over:?}: {error}");
                    assert!(error.retryable && !error.maybe_written, "{error}");
                    return taken;
                }
            }
        }
    })
}

/// Alone he has half, and by another transport no more. Whichever he begins with.
#[test]
fn a_user_is_one_owner_by_every_transport() {
    const PRODUCER_SLOTS: usize = 64;
    for first in 0..TRANSPORTS.len() {
        let Some(mut daemon) = with_producer_slots("a user by every transport", PRODUCER_SLOTS) else { return };
        let order = (0..TRANSPORTS.len()).map(|n| TRANSPORTS[(first + n) % TRANSPORTS.len()]);
        let taken: Vec<_> =
            (10..).zip(order).map(|(group, over)| takes_all(&daemon, GREEDY_UID, over, group)).collect();
        let half = PRODUCER_SLOTS / 2 - 1..=PRODUCER_SLOTS / 2 + 1;
        assert!(half.contains(&taken[0]), "{:?} first: {taken:?} of {PRODUCER_SLOTS}", TRANSPORTS[first]);
        assert!(half.contains(&taken.iter().sum()), "{:?} first: {taken:?} of {PRODUCER_SLOTS}", TRANSPORTS[first]);
        others_are_admitted(&daemon, 2);
        // It stays so when the daemon dies: the places are his, and the others have theirs.
        daemon.kill9();
        daemon.restart();
        // What came by a network socket is bound to its secret: a start counts it as the network's, for ten minutes.
        if matches!(TRANSPORTS[first], Transport::Unix | Transport::Ring) {
            assert_eq!(takes_all(&daemon, GREEDY_UID, TRANSPORTS[first], 20), 0, "he has his half");
        }
        others_are_admitted(&daemon, 3);
        each_once(&daemon);
    }
}

/// Users take what they can, one after the other, until twice as many places are taken as there are. Each of the first few has his
/// guarantee, though the table is full. How many there are.
fn is_filled(daemon: &Daemon, slots: usize) -> usize {
    let (mut all, mut last) = (0, 0);
    for (n, uid) in (0..).zip(GREEDY_UID..GREEDY_UID + 16) {
        last = takes_all(daemon, uid, Transport::Unix, 10 + n);
        assert!(n > 5 || last >= GUARANTEED_PRODUCERS, "uid {uid} has {last}, and others {all} of {slots}");
        all += last;
    }
    assert!(last == 0 && all > slots && all <= 2 * slots, "{all} are remembered of {slots}, {last} of the last user");
    all
}

/// A start forgets nobody for it, and lets in nobody whom it would not have let in before.
#[test]
fn an_owner_of_few_is_admitted_though_the_table_is_full() {
    const PRODUCER_SLOTS: usize = 64;
    let Some(mut daemon) = with_producer_slots("who has few", PRODUCER_SLOTS) else { return };
    let (steady, session) = SteadyProducer::new(&daemon, 900, id(1, 0));
    drop(session);
    let all = is_filled(&daemon, PRODUCER_SLOTS) + 1;
    for crash in [true, false] {
        match crash {
            true => daemon.kill9(),
            false => assert_eq!(daemon.term(), Some(0)),
        }
        daemon.restart();
        assert_eq!(daemon.status().producers, all as u64, "known after a start, crash: {crash}");
        steady.is_known(&daemon);
    }
    assert_eq!(takes_all(&daemon, OTHER_UIDS[0] + 100, Transport::Unix, 70), 0, "a user who comes when all is taken");
    each_once(&daemon);
}

/// Whatever users have, root is not kept out.
#[test]
fn root_is_admitted_when_users_have_all_slots() {
    const PRODUCER_SLOTS: usize = 64;
    let Some(daemon) = with_producer_slots("root, when users have all places", PRODUCER_SLOTS) else { return };
    is_filled(&daemon, PRODUCER_SLOTS);
    for (group, over) in (50..).zip(TRANSPORTS) {
        as_user(0, || stays(&daemon, over, group, 0)).unwrap_or_else(|error| panic!("root by {over:?}: {error}"));
    }
}
