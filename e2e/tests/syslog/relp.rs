//! RELP by hand: what is answered, when, and what is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use clad_e2e::{Daemon, TEST_TIMEOUT};
use nix::sys::signal::Signal;

use super::{body, place, records, setup};

/// A client that counts transactions.
pub(super) struct Client {
    stream: TcpStream,
    next: u32,
    unread: Vec<u8>,
}

impl Client {
    pub(super) fn connect(daemon: &Daemon) -> Self {
        let stream = TcpStream::connect(place(daemon, "relp")).expect("a daemon");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        Self { stream, next: 1, unread: Vec::new() }
    }

    pub(super) fn open(daemon: &Daemon) -> Self {
        let mut client = Self::connect(daemon);
        client.send("open", b"relp_version=0\nrelp_software=test\ncommands=syslog");
        let (number, answer) = client.answer().expect("an answer");
        assert_eq!(number, 1);
        assert!(answer.starts_with("200 OK\nrelp_version=0") && answer.ends_with("commands=syslog"), "{answer}");
        client
    }

    fn send(&mut self, command: &str, data: &[u8]) -> u32 {
        let number = self.next;
        self.next += 1;
        let head = format!("{number} {command} {} ", data.len()).into_bytes();
        self.stream.write_all(&[&head[..], data, b"\n"].concat()).expect("sent");
        number
    }

    pub(super) fn syslog(&mut self, message: &[u8]) -> u32 {
        self.send("syslog", message)
    }

    /// The next answer: its transaction and data. Nothing where the daemon closes.
    pub(super) fn answer(&mut self) -> Option<(u32, String)> {
        loop {
            if let Some((answer, length)) = parsed(&self.unread) {
                self.unread.drain(..length);
                return Some(answer);
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(read) => self.unread.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub(super) fn send_and_close(mut self, messages: &[&[u8]]) {
        for message in messages {
            self.syslog(message);
        }
        for _ in messages {
            assert_eq!(self.answer().expect("an answer").1, "200 OK");
        }
        let close = self.send("close", b"");
        assert_eq!(self.answer(), Some((close, String::new())));
        assert_eq!(self.answer(), Some((0, "serverclose".to_owned())));
        assert_eq!(self.answer(), None);
    }
}

/// `TXNR rsp LEN DATA`, or `0 serverclose 0`.
fn parsed(bytes: &[u8]) -> Option<((u32, String), usize)> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut words = text.splitn(3, ' ');
    let (number, command, rest) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let head = text.len() - rest.len();
    let end = rest.find([' ', '\n'])?;
    let length: usize = rest[..end].parse().expect("a length");
    if length == 0 {
        let data = if command == "rsp" { String::new() } else { command.to_owned() };
        return Some(((number, data), head + end + 1));
    }
    let data = rest.get(end + 1..end + 1 + length)?;
    rest.get(end + 1 + length..end + 2 + length).map(|_| ((number, data.to_owned()), head + end + 2 + length))
}

#[test]
fn answers_come_in_order_once_the_records_are_durable() {
    let mut daemon = setup().start();
    let mut client = Client::open(&daemon);
    let mut sent = Vec::new();
    for number in 0..1000 {
        sent.push(client.syslog(format!("<13>app{}: {number}", number % 3).as_bytes()));
    }
    for number in sent {
        assert_eq!(client.answer(), Some((number, "200 OK".to_owned())));
    }
    daemon.kill9();
    let stored = clad_e2e::readback::files(daemon.dir());
    let bodies: Vec<String> = stored.iter().map(|r| String::from_utf8_lossy(&r.body).into_owned()).collect();
    assert_eq!(bodies, (0..1000).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// What was answered is there after `kill -9`, whatever else was on its way.
#[test]
fn no_answered_message_is_lost_when_the_daemon_is_killed() {
    let mut daemon = setup().start();
    for round in 0..8 {
        let mut client = Client::open(&daemon);
        let mut answered = 0;
        for number in 0..200 * (round + 1) {
            client.syslog(format!("<13>app: {round} {number}").as_bytes());
        }
        while answered < 100 * round {
            assert_eq!(client.answer().expect("an answer").1, "200 OK");
            answered += 1;
        }
        daemon.kill9();
        while client.answer().is_some_and(|(_, answer)| answer == "200 OK") {
            answered += 1;
        }
        daemon.restart();
        let all = records(&daemon, 0);
        let of_round = all.iter().filter(|record| body(record).starts_with(&format!("{round} "))).count();
        assert!(of_round >= answered, "{answered} were answered and {of_round} are there");
    }
}

#[test]
fn who_speaks_no_relp_is_closed_and_others_are_not() {
    let daemon = setup().start();
    let mut good = Client::open(&daemon);
    for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"1 syslog 3 abc\n", b"1 open 9999999999 ", b"x"] {
        let mut client = Client::connect(&daemon);
        client.stream.write_all(wrong).expect("sent");
        assert_eq!(client.answer(), None, "{:?}", String::from_utf8_lossy(wrong));
    }
    let unknown = good.send("starttls", b"");
    let (number, answer) = good.answer().expect("an answer");
    assert!(number == unknown && answer.starts_with("500 "), "{answer}");
    good.send_and_close(&[b"<13>app: fine"]);
    assert_eq!(records(&daemon, 1).len(), 1);
    assert_eq!(daemon.metric("clad_dropped_records_total{reason=\"invalid\"}"), 4.0);
}

/// A daemon that stops answers what has its level, and says that it closes; what it does not answer a client sends again.
#[test]
fn a_stop_answers_what_is_stored_and_closes() {
    let mut daemon = setup().start();
    let mut client = Client::open(&daemon);
    for number in 0..500 {
        client.syslog(format!("<13>app: {number}").as_bytes());
    }
    daemon.signal(Signal::SIGTERM);
    let mut answered = 0;
    let mut closed = false;
    while let Some((_, answer)) = client.answer() {
        assert!(!closed, "{answer} behind the end");
        match answer.as_str() {
            "200 OK" => answered += 1,
            "serverclose" => closed = true,
            other => panic!("{other}"),
        }
    }
    assert_eq!(daemon.wait_end(), Some(0), "{}", daemon.said());
    let stored = clad_e2e::readback::files(daemon.dir()).len();
    assert!(closed && stored >= answered, "{answered} were answered, {stored} are there");
}

/// A level that the log does not offer is no listener at all; a lower one is answered as asked.
#[test]
fn the_level_is_the_listeners() {
    let low = setup().set("journal.durability", "fire_and_forget").set("ingest.syslog.relp.ack", "durable").try_start();
    let refused = low.expect_err("not durable").said;
    assert!(refused.contains("ingest.syslog.relp.ack = durable, and this log reaches written at most"), "{refused}");
    for level in ["none", "received", "written"] {
        let daemon = setup().set("ingest.syslog.relp.ack", level).start();
        Client::open(&daemon).send_and_close(&[b"<13>app: one", b"<13>app: two"]);
        assert_eq!(records(&daemon, 2).len(), 2, "{level}");
    }
}

/// Nothing that passes is answered by an error: a client would throw the message away. It is held; after 30 s the session
/// ends without an answer, and the client has it still.
#[test]
#[ignore = "cargo xtask ci syslog"]
fn a_message_that_there_is_no_room_for_is_never_answered_by_an_error() {
    let mut daemon = setup().set("journal.reserve_free", "1000TiB").start();
    let mut client = Client::open(&daemon);
    for number in 0..3 {
        client.syslog(format!("<13>app: {number}").as_bytes());
    }
    let held = std::time::Instant::now();
    assert_eq!(client.answer(), None, "it is closed");
    assert!(held.elapsed() > Duration::from_secs(25), "it was held for {:?} alone", held.elapsed());
    daemon.wait_said("a session of RELP has ended: the disk has no room");
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "1MiB");
    Client::open(&daemon).send_and_close(&[b"<13>app: 0", b"<13>app: 1", b"<13>app: 2"]);
    let all = records(&daemon, 3);
    assert_eq!(all.iter().map(body).collect::<Vec<_>>(), ["0", "1", "2"]);
}
