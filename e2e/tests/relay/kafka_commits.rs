//! To a topic of Kafka: commits whose end the relay does not hear of, each for certain.
//!
//! Invariants: what is lost is the commit (`EndTxn`) or its answer alone, each time that the client tries again, too; what is said of
//! it is counted. Frames of Kafka: a length of 32 bits, then a request's key and version of 16 bits each and its number of 32, or an
//! answer's number.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::forward::{Numbers, small};
use super::kafka::{Server, assert_chain, relay_at, wait_stored};
use super::objects::bodies;
use super::wait;

/// `EndTxn`: a transaction is committed, or given up.
const END_TXN: u16 = 26;

/// What becomes of a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    Nothing,
    /// The server does not hear of it.
    Commit,
    /// The server has committed, and the client does not hear of it.
    Answer,
}

/// What lies between the relay and the server.
struct Between {
    lost: AtomicU8,
    count: AtomicUsize,
}

impl Between {
    /// Between a port of its own and a server.
    fn start(server: SocketAddr) -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("its address");
        let between = Arc::new(Self { lost: AtomicU8::new(0), count: AtomicUsize::new(0) });
        let served = between.clone();
        // It ends with the process of the tests.
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let (ends, waited) = ([near, far], Arc::new(Mutex::new(HashSet::new())));
                for is_answers in [false, true] {
                    let [near, far] = [&ends[0], &ends[1]].map(|end| end.try_clone().expect("a descriptor"));
                    let (from, to) = if is_answers { (far, near) } else { (near, far) };
                    let (between, waited) = (served.clone(), waited.clone());
                    thread::spawn(move || {
                        let _ = between.forward(&from, &to, is_answers, &waited);
                        for end in [from, to] {
                            let _ = end.shutdown(Shutdown::Both);
                        }
                    });
                }
            }
        });
        (between, own)
    }

    fn lose(&self, lost: Lost) {
        self.lost.store(lost as u8, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Forwards whole frames, until one is lost: then the connection ends.
    fn forward(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        is_answers: bool,
        waited: &Mutex<HashSet<[u8; 4]>>,
    ) -> io::Result<()> {
        loop {
            let mut length = [0; 4];
            from.read_exact(&mut length)?;
            let mut frame = vec![0; u32::from_be_bytes(length) as usize];
            from.read_exact(&mut frame)?;
            let word = |at: usize| -> [u8; 4] { frame[at..at + 4].try_into().expect("a number") };
            let is_lost = if is_answers {
                waited.lock().expect("whole").remove(&word(0))
            } else if u16::from_be_bytes([frame[0], frame[1]]) == END_TXN {
                let lost = self.lost.load(Ordering::SeqCst);
                if lost == Lost::Answer as u8 {
                    waited.lock().expect("whole").insert(word(4));
                }
                lost == Lost::Commit as u8
            } else {
                false
            };
            if is_lost {
                self.count.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            to.write_all(&[&length, frame.as_slice()].concat())?;
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_commit_that_nobody_hears_of_is_asked_for_and_each_message_is_there_once() {
    const ROUNDS: usize = 2;
    let mut between = None;
    let daemon = small().start();
    let server = Server::start_behind(|server| {
        let (own, address) = Between::start(server);
        between = Some((own, address));
        address
    });
    let (between, address) = between.expect("it was asked for");
    server.make(&[]);
    let mut relay = relay_at(&daemon, address, "format = \"body\"");
    relay.start();
    let mut numbers = Numbers::new(&daemon);
    let (mut lost, mut given_up) = ([0, 0], 0);
    for round in 0..ROUNDS {
        // One that is committed: what it says again is shown again.
        numbers.append(5, 10);
        wait_stored(&mut relay, &daemon);
        let what = if round % 2 == 0 { Lost::Answer } else { Lost::Commit };
        between.lose(what);
        let before = super::objects::end(&daemon);
        numbers.append(5, 10);
        // The client tries for as long as an answer may take. Then the relay gives it up, and asks how far it is.
        wait("the relay has given up", || {
            relay.keep();
            relay.said().matches("a transaction").count() > given_up
        });
        if what == Lost::Answer {
            // It is committed, and the relay was not answered.
            assert!(server.end() > before, "round {round}");
        }
        lost[round % 2] += between.count();
        between.lose(Lost::Nothing);
        wait_stored(&mut relay, &daemon);
        given_up = relay.said().matches("a transaction").count();
    }
    assert!(lost.iter().all(|&count| count >= ROUNDS / 2), "{lost:?}");
    let found = server.read();
    assert_chain(&found, &bodies(&daemon));
    let ahead = relay.said().matches("is ahead of the cursor").count();
    assert!(ahead >= ROUNDS / 2, "{ahead}: {}", relay.said());
    println!(
        "kills: 0, {} commits and {} answers to commits lost, {ahead} times the topic was ahead",
        lost[1], lost[0]
    );
}
