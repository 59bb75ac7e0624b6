//! One user takes all he can of everything, and keeps it: producers, connections, READs, rings, memory for large frames. Beside him
//! others append as if he were not there, root among them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clad_e2e::as_user;
use clad_e2e::raw::{hello, hello_reader, payload};
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::frame::{AppendHead, Frame, Read, ReadFrom, encode_append};
use clad_proto::{AckLevel, ErrorCode};

use crate::session::{Session, TRANSPORTS, Transport, connect};
use crate::{GREEDY_UID, OTHER_UIDS, OTHERS_ACK_TIMEOUT, SteadyProducer, count, daemon, each_once, id};

/// Each small enough to be taken in a moment.
const PRODUCERS: u32 = 64;
const CONNECTIONS: usize = 96;
const RINGS: u32 = 8;
/// READs of a connection, and connections with READs: more than half of all READs of a daemon.
const READS: u32 = 16;
const READERS: usize = 20;
/// A frame of which half is sent, and how many of them: more than the memory for such frames.
const HALF_FRAME_BYTES: usize = 1 << 20;
const HALF_FRAMES: usize = 24;
/// What the others do of each kind when he has everything.
const ROUNDS_PER_KIND: u64 = 30;

/// What the greedy user holds on to, and the answers to him.
#[derive(Default)]
struct Loot {
    sessions: Vec<Session>,
    connections: Vec<Raw>,
    refusals: BTreeSet<String>,
}

impl Loot {
    fn take(&mut self, daemon: &Daemon) {
        // First: a producer needs a connection to come by.
        for (group, over) in (10..).zip(TRANSPORTS) {
            self.producers(daemon, over, group);
        }
        self.readers(daemon);
        self.halves(daemon);
        self.rings(daemon);
        for over in [Transport::Tcp, Transport::Unix] {
            self.idle(daemon, over);
        }
    }

    fn note_refusal(&mut self, code: ErrorCode) {
        self.refusals.insert(code.to_string());
    }

    /// Connections that each follow the log as often as they may.
    fn readers(&mut self, daemon: &Daemon) {
        for _ in 0..READERS {
            let mut raw = connect(daemon, Transport::Tcp);
            if let Err(error) = raw.greet(&hello_reader()) {
                return self.note_refusal(error.code);
            }
            for request_id in 1..=READS {
                follow(&mut raw, request_id);
            }
            self.connections.push(raw);
        }
    }

    /// Half of a large append each.
    fn halves(&mut self, daemon: &Daemon) {
        let payload = payload(&[&[b'h'; HALF_FRAME_BYTES][..]]);
        let (count, payload_crc) = (payload.count, payload.checksum());
        let head = AppendHead { first_seq: 0, count, level: AckLevel::Durable, gap: false, payload_crc };
        let mut frame = BytesMut::new();
        encode_append(&mut frame, &head, &payload.bytes);
        for over in (0..HALF_FRAMES).map(|n| TRANSPORTS[n % 2]) {
            let mut raw = connect(daemon, over);
            if let Err(error) = raw.greet(&hello()) {
                return self.note_refusal(error.code);
            }
            raw.send_some(&frame[..HALF_FRAME_BYTES / 2], Duration::from_millis(20));
            self.connections.push(raw);
        }
    }

    fn rings(&mut self, daemon: &Daemon) {
        for number in 0..RINGS {
            match Session::open(daemon, Transport::Ring, id(9, number)) {
                Ok((session, _)) => self.sessions.push(session),
                Err(error) => return self.note_refusal(error.code),
            }
        }
    }

    /// Producers that store something and go without BYE; more than there are places for.
    fn producers(&mut self, daemon: &Daemon, over: Transport, group: u8) {
        for number in 0..=PRODUCERS {
            let taken = Session::open(daemon, over, id(group, number)).and_then(|(mut session, _)| {
                session.append(0, AckLevel::Received, &format!("greedy {group}/{number}"))
            });
            if let Err(error) = taken {
                return self.note_refusal(error.code);
            }
        }
    }

    /// Connections that say nothing more.
    fn idle(&mut self, daemon: &Daemon, over: Transport) {
        for _ in 0..CONNECTIONS {
            let mut raw = connect(daemon, over);
            if let Err(error) = raw.greet(&hello()) {
                return self.note_refusal(error.code);
            }
            self.connections.push(raw);
        }
    }
}

fn follow(raw: &mut Raw, request_id: u32) {
    let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
    let read = Read { request_id, from, follow: true, limit: None, min_level, since: None, until: None, filter: None };
    raw.send(|buf| read.encode(buf));
}

/// One of the others: until the test is over, and for a few rounds at least, a program of his comes by each transport in turn, stores
/// a small record and a large one, and says BYE. A refusal fails the test. How long the longest step took.
fn works(daemon: &Daemon, uid: u32, group: u8, rounds: &AtomicU64, over: &AtomicU64) -> (u32, Duration) {
    let (mut number, mut longest) = (0, Duration::ZERO);
    let large = "l".repeat(HALF_FRAME_BYTES / 4);
    while over.load(Ordering::SeqCst) == 0 {
        for transport in TRANSPORTS {
            let began = Instant::now();
            let name = format!("uid {uid} {number} by {transport:?}");
            let done = Session::open(daemon, transport, id(group, number)).and_then(|(mut session, _)| {
                session.append(0, AckLevel::Durable, &name)?;
                if transport != Transport::Ring {
                    session.append(1, AckLevel::Durable, &format!("large of {name} {large}"))?;
                }
                session.bye();
                Ok(())
            });
            done.unwrap_or_else(|error| panic!("{name}: {error}"));
            longest = longest.max(began.elapsed());
            number += 1;
        }
        if uid == 0 {
            // Root reads as well.
            let mut raw = connect(daemon, Transport::Unix);
            raw.greet(&hello_reader()).expect("let in");
            follow(&mut raw, 1);
            let first = raw.answer();
            assert!(matches!(first, Frame::Records(_)), "root's READ is answered by {first:?}");
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
    (number, longest)
}

/// Ends the work of the others also when somebody panics.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

#[test]
fn one_user_takes_all_he_can_and_nobody_else_notices() {
    let setup = Setup::new().set("limits.max_producers", &PRODUCERS.to_string());
    let setup = setup.set("limits.max_connections", &CONNECTIONS.to_string()).set("ingest.tcp.allow_read", "true");
    let setup = setup.set("ingest.shm.max_rings", &RINGS.to_string());
    let Some(mut daemon) = daemon("one user who takes all he can", setup) else { return };
    let (steady, session) = SteadyProducer::new(&daemon, 900, id(1, 0));
    drop(session);
    let (rounds, over) = (OTHER_UIDS.map(|_| AtomicU64::new(0)), AtomicU64::new(0));
    let done = thread::scope(|scope| {
        let end = Over(&over);
        let works: Vec<_> = (20..)
            .zip(OTHER_UIDS)
            .zip(&rounds)
            .map(|((group, uid), rounds)| {
                let (daemon, over) = (&daemon, &over);
                scope.spawn(move || as_user(uid, || works(daemon, uid, group, rounds, over)))
            })
            .collect();
        let mut loot = Loot::default();
        as_user(GREEDY_UID, || loot.take(&daemon));
        let refusals: Vec<&str> = loot.refusals.iter().map(String::as_str).collect();
        assert!(refusals.contains(&"too_many_producers") && refusals.contains(&"too_many_connections"), "{refusals:?}");
        // He has what he can have. It goes on beside that.
        let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::SeqCst));
        let began = Instant::now();
        while rounds.iter().zip(before).any(|(now, before)| now.load(Ordering::SeqCst) < before + ROUNDS_PER_KIND) {
            assert!(began.elapsed() < clad_e2e::TEST_TIMEOUT, "the others stand still: {rounds:?}, {before:?} before");
            assert!(works.iter().all(|work| !work.is_finished()), "one of the others has ended");
            thread::sleep(Duration::from_millis(5));
        }
        drop(end);
        let done: Vec<_> = works.into_iter().map(|work| work.join().expect("none is refused")).collect();
        drop(loot);
        done
    });
    let programs = done.iter().map(|(programs, _)| *programs as usize).sum::<usize>();
    let longest = done.iter().map(|(_, longest)| *longest).max().unwrap_or_default();
    assert!(longest < OTHERS_ACK_TIMEOUT, "{longest:?} for a program of the others");
    daemon.kill9();
    daemon.restart();
    steady.is_known(&daemon);
    let all = each_once(&daemon);
    assert_eq!(count(&all, "uid"), programs, "each program of the others has its record");
    assert_eq!(count(&all, "large"), programs / TRANSPORTS.len() * 3, "and a large one");
}
