//! Many users of one daemon: what one of them takes, or leaves behind, costs nobody else.
//!
//! `goodbyes`: who said BYE is forgotten, and nobody else is. `returns`: an id that comes back after BYE begins again, and is never
//! answered with what it stored before. `places`: a user is one owner of producers, whatever he comes by. `greed`: one user takes
//! all he can of everything. `session`: a producer's session, the same over every transport.
//!
//! All of it needs root: the users are numbers, that no file of users knows.

mod goodbyes;
mod greed;
mod producer_slots;
mod returns;
mod session;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use clad_e2e::as_user;
use clad_e2e::readback::Stored;
use clad_e2e::{Daemon, Setup, is_root, not_run, readback};
use clad_proto::{AckLevel, ProducerId};
use session::{Session, TRANSPORTS, Transport};

/// The user who takes what he can.
const GREEDY_UID: u32 = 1001;
/// Users who want little, root among them.
const OTHER_UIDS: [u32; 3] = [1002, 1003, 0];
/// The longest that one of the others may wait for an ack: far more than a busy machine takes.
const OTHERS_ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon that every user can reach; none where the tests cannot be other users.
fn daemon(what: &str, setup: Setup) -> Option<Daemon> {
    if !is_root() {
        not_run(what, "only root can be somebody else");
        return None;
    }
    let daemon = setup.start();
    let socket = daemon.socket();
    let folder = socket.parent().expect("its folder");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    Some(daemon)
}

/// An id that no other test of this daemon has: of a group, by a number.
fn id(group: u8, number: u32) -> ProducerId {
    let mut bytes = [group; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    ProducerId::from_bytes(bytes)
}

/// A producer that has stored a few records, and is to be remembered.
struct SteadyProducer {
    uid: u32,
    id: ProducerId,
    last: (u64, u64),
}

impl SteadyProducer {
    /// It stores sequences 0 to 2. Its session goes on as long as the caller keeps it.
    fn new(daemon: &Daemon, uid: u32, id: ProducerId) -> (Self, Session) {
        as_user(uid, || {
            let (mut session, last) = Session::open(daemon, Transport::Unix, id).expect("let in");
            assert_eq!(last, None, "it is new");
            let mut offset = 0;
            for sequence in 0..3 {
                let stored = session.append(sequence, AckLevel::Durable, &Self::body(uid, sequence)).expect("taken");
                offset = stored.expect("an answer").offset;
            }
            (Self { uid, id, last: (2, offset) }, session)
        })
    }

    fn body(uid: u32, sequence: u64) -> String {
        format!("quiet {uid} {sequence}")
    }

    /// It is known by its last record, and what it sends again is stored already.
    fn is_known(&self, daemon: &Daemon) {
        as_user(self.uid, || {
            let (mut session, last) = Session::open(daemon, Transport::Unix, self.id).expect("let in");
            assert_eq!(last, Some(self.last), "the quiet producer of uid {}", self.uid);
            let (sequence, offset) = self.last;
            let again = session.append(sequence, AckLevel::Durable, &Self::body(self.uid, sequence)).expect("taken");
            let again = again.expect("an answer");
            assert_eq!((again.offset, again.duplicate), (offset, true), "it is stored already");
        });
    }
}

/// New producers of others are let in by every transport, at once.
fn others_are_admitted(daemon: &Daemon, group: u8) {
    for (n, uid) in (0..).zip(OTHER_UIDS) {
        for (k, over) in (0..).zip(TRANSPORTS) {
            let began = Instant::now();
            as_user(uid, || {
                let id = id(group, n * 16 + k);
                let (mut session, last) =
                    Session::open(daemon, over, id).unwrap_or_else(|error| panic!("uid {uid} by {over:?}: {error}"));
                assert_eq!(last, None, "it is new");
                let body = format!("uid {uid} by {over:?}, group {group}");
                let stored = session.append(0, AckLevel::Durable, &body);
                stored.unwrap_or_else(|error| panic!("uid {uid} by {over:?}: {error}"));
            });
            assert!(began.elapsed() < OTHERS_ACK_TIMEOUT, "uid {uid} by {over:?} waited {:?}", began.elapsed());
        }
    }
}

/// Everything in the log, in which no record is twice.
fn each_once(daemon: &Daemon) -> Vec<Stored> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let mut seen = HashSet::new();
    for stored in &all {
        assert!(seen.insert(&stored.body), "twice: {}", String::from_utf8_lossy(&stored.body));
    }
    all
}

/// How many records have a body that begins so.
fn count(all: &[Stored], begin: &str) -> usize {
    all.iter().filter(|stored| stored.body.starts_with(begin.as_bytes())).count()
}
