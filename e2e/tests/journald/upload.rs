//! Uploads by hand: what is stored when, what is answered, what is there once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use clad_e2e::{Daemon, TEST_TIMEOUT, web};
use nix::sys::signal::Signal;

use super::{counts, entry, left_behind};

/// A request whose body comes in chunks.
struct Upload(TcpStream);

impl Upload {
    fn begin(daemon: &Daemon, headers: &str) -> Self {
        let mut stream = TcpStream::connect(daemon.port("grpc")).expect("a daemon");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        let head = "POST /upload HTTP/1.1\r\nhost: clad\r\ntransfer-encoding: chunked\r\n";
        write!(stream, "{head}{headers}\r\n").expect("sent");
        Self(stream)
    }

    fn of_entries(daemon: &Daemon) -> Self {
        Self::begin(daemon, "content-type: application/vnd.fdo.journal\r\n")
    }

    fn send(&mut self, piece: &[u8]) -> std::io::Result<()> {
        write!(self.0, "{:x}\r\n", piece.len())?;
        self.0.write_all(piece)?;
        self.0.write_all(b"\r\n")
    }

    fn send_entries(&mut self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.send(&entry(number)).expect("sent");
        }
    }

    fn end(mut self) -> (u16, String) {
        self.0.write_all(b"0\r\n\r\n").expect("sent");
        self.answer()
    }

    /// Status and the whole answer, without an end from this side.
    fn answer(mut self) -> (u16, String) {
        let mut answer = Vec::new();
        while !is_whole(&answer) {
            let mut piece = [0; 4096];
            match self.0.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => answer.extend_from_slice(&piece[..read]),
                Err(error) => panic!("no answer: {error}; so far {}", String::from_utf8_lossy(&answer)),
            }
        }
        let answer = String::from_utf8(answer).expect("text");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {answer:?}")), answer)
    }
}

/// An answer to its last chunk.
fn is_whole(answer: &[u8]) -> bool {
    answer.ends_with(b"\r\n0\r\n\r\n")
}

fn uploads(daemon: &Daemon, code: &str) -> f64 {
    daemon.metric(&format!("clad_journal_uploads_total{{code=\"{code}\"}}"))
}

#[test]
fn a_success_says_that_each_entry_is_durable_in_its_order() {
    let mut daemon = Daemon::start();
    let mut upload = Upload::of_entries(&daemon);
    upload.send_entries(0..500);
    let (status, answer) = upload.end();
    assert!(status == 200 && answer.contains("500 entries: durable\n"), "{answer}");
    assert_eq!(uploads(&daemon, "ok"), 1.0);
    assert_eq!(daemon.metric("clad_appended_records_total{transport=\"journal\"}"), 500.0);
    daemon.kill9();
    let stored = clad_e2e::readback::files(daemon.dir());
    assert!(counts(&stored).values().all(|count| *count == 1) && stored.len() == 500);
    assert!(stored.iter().zip(0..).all(|(record, number)| record.body == super::message(number)));
}

#[test]
fn an_entry_is_stored_while_the_request_goes_on() {
    let daemon = Daemon::start();
    let mut upload = Upload::of_entries(&daemon);
    upload.send_entries(0..100);
    daemon.wait_until("100 entries", |status| status.offsets.is_some_and(|offsets| offsets.durable >= 100));
    upload.send_entries(100..110);
    assert_eq!(upload.end().0, 200);
}

/// As `systemd-journal-upload` does: it has no answer, so it begins again where its state is.
#[test]
fn what_is_sent_again_after_kills_is_there_once() {
    let mut daemon = Daemon::start();
    let mut sent = 0;
    for round in 0..6 {
        let mut upload = Upload::of_entries(&daemon);
        let end = 400 * (round + 1);
        upload.send_entries(0..end);
        sent = sent.max(end);
        // Some of it, or all, and no answer.
        daemon.wait_until("a part", |status| status.offsets.is_some_and(|offsets| offsets.received > 100 * round));
        daemon.kill9();
        daemon.restart();
    }
    let mut upload = Upload::of_entries(&daemon);
    upload.send_entries(0..sent + 10);
    assert_eq!(upload.end().0, 200);
    let counts = left_behind(&mut daemon);
    assert_eq!(counts, (0..sent + 10).map(|number| (number, 1)).collect());
}

/// Entries differ by their cursors: without one, equal entries are honest.
#[test]
fn entries_without_a_cursor_are_each_stored() {
    let mut daemon = Daemon::start();
    for _ in 0..2 {
        let mut upload = Upload::of_entries(&daemon);
        upload.send(b"MESSAGE=1\n\nMESSAGE=1\n\n").expect("sent");
        assert_eq!(upload.end().0, 200);
    }
    assert_eq!(left_behind(&mut daemon), [(1, 4)].into());
}

#[test]
fn what_is_no_upload_is_refused_in_words_and_costs_no_entry_before_it() {
    let mut daemon = Daemon::start();
    for (headers, body, status, words) in [
        ("", &b"MESSAGE=1\n\n"[..], 415, "content-type: application/vnd.fdo.journal"),
        ("content-type: text/plain\r\n", b"MESSAGE=1\n\n", 415, "content-type: application/vnd.fdo.journal"),
        (
            "content-type: application/vnd.fdo.journal\r\ncontent-encoding: gzip\r\n",
            b"MESSAGE=1\n\n",
            415,
            "content-encoding: entries are taken uncompressed",
        ),
        ("content-type: application/vnd.fdo.journal\r\nclad-ack: soon\r\n", b"MESSAGE=1\n\n", 400, "clad-ack: one of"),
        (
            "content-type: application/vnd.fdo.journal\r\n",
            b"__CURSOR=a\nMESSAGE=7\n\nno name\n\n",
            400,
            "not the journal's export format: the name of a field",
        ),
        (
            "content-type: application/vnd.fdo.journal\r\n",
            b"__CURSOR=b\nMESSAGE=8\n\nMESSAGE\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFhalf",
            400,
            "not the journal's export format: the end is in the middle of a field",
        ),
    ] {
        let mut upload = Upload::begin(&daemon, headers);
        // What the headers alone refuse is answered before the body, whose bytes may find the connection closed.
        let sent = upload.send(body).and_then(|()| upload.0.write_all(b"0\r\n\r\n"));
        assert!(sent.is_ok() || status == 415 || words.starts_with("clad-ack"), "{headers}: {sent:?}");
        let (got, answer) = upload.answer();
        assert!(got == status && answer.contains(words), "{headers}: {answer}");
    }
    assert_eq!((uploads(&daemon, "unsupported"), uploads(&daemon, "invalid")), (3.0, 3.0));
    let (status, _) = web::page(daemon.port("grpc"), "/upload");
    assert_eq!(status, 405);
    assert_eq!(left_behind(&mut daemon), [(7, 1), (8, 1)].into());
}

/// A core of a gigabyte, as old systems have them in the journal.
#[test]
fn a_field_without_end_costs_one_entry_and_the_rest_of_it_is_there() {
    let mut daemon = Daemon::start();
    let before = memory(&daemon);
    let mut upload = Upload::of_entries(&daemon);
    let (piece, pieces) = (vec![7_u8; 1 << 20], 256_u64);
    let mut head = b"__CURSOR=c\nCOREDUMP\n".to_vec();
    head.extend_from_slice(&(pieces << 20).to_le_bytes());
    upload.send(&head).expect("sent");
    for _ in 0..pieces {
        upload.send(&piece).expect("sent");
    }
    let held = memory(&daemon).saturating_sub(before);
    assert!(held < 16 << 20, "{held} bytes are held");
    upload.send(b"\nMESSAGE=3\n\n").expect("sent");
    assert_eq!(upload.end().0, 200);
    let output = clad_e2e::tool::clactl_ends(0, &["query", "--server", &daemon.address("unix"), "-o", "json"], b"");
    let record = clad_e2e::json(&output.stdout);
    let text = record.to_string();
    assert!(text.contains("\"log.truncated\"") && text.contains(&((pieces << 20) + 2).to_string()), "{text:.300}");
    assert_eq!(left_behind(&mut daemon), [(3, 1)].into());
}

fn memory(daemon: &Daemon) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn a_stop_ends_an_upload_with_an_answer_and_keeps_what_came() {
    let mut daemon = Daemon::start();
    let mut upload = Upload::of_entries(&daemon);
    upload.send_entries(0..50);
    daemon.wait_until("50 entries", |status| status.offsets.is_some_and(|offsets| offsets.durable >= 50));
    daemon.signal(Signal::SIGTERM);
    let (status, answer) = upload.answer();
    assert!(status == 503 && answer.contains("clad is stopping") && answer.contains("retry-after: 1"), "{answer}");
    assert_eq!(daemon.wait_end(), Some(0));
    assert_eq!(counts(&clad_e2e::readback::files(daemon.dir())), (0..50).map(|number| (number, 1)).collect());
}

/// Who brings nothing does not keep a place that others want, nor the end of the daemon waiting.
#[test]
fn an_upload_whose_sender_is_gone_leaves_its_entries() {
    let mut daemon = Daemon::start();
    let mut upload = Upload::of_entries(&daemon);
    upload.send_entries(0..20);
    upload.send(b"MESSAGE=hal").expect("sent");
    drop(upload);
    daemon.wait_until("20 entries", |status| status.offsets.is_some_and(|offsets| offsets.durable >= 20));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(daemon.term(), Some(0));
    assert_eq!(counts(&clad_e2e::readback::files(daemon.dir())), (0..20).map(|number| (number, 1)).collect());
}
