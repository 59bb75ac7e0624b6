//! Syslog over a stream, and RELP, by hand.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use clad_e2e::Rng;
use clad_e2e::proxy::Place;

use crate::check::{Promise, Said, message};
use crate::sender::Shared;

/// Messages that are written at once, at most.
const BURST_MAX: u64 = 8;
/// Between two bursts, at most.
const PAUSE_MICROS_MAX: u64 = 8000;
/// Messages of RELP that wait for their answers, at most: rsyslog has 128.
const WINDOW: usize = 128;

/// Sends over connection after connection. `counts` says that each message has its length before it; else a line ends it.
pub(crate) fn stream(kind: &'static str, place: &Place, counts: bool, shared: &Shared, mut rng: Rng) -> Vec<Said> {
    let promise = if counts { Promise::Stream } else { Promise::StreamOfLines };
    let mut all = Vec::new();
    while !shared.is_stopped() {
        let Ok(socket) = shared.connect(place) else {
            shared.retry_later();
            continue;
        };
        let mut said = Said::new(kind, all.len() as u64, promise);
        while !shared.is_stopped() {
            let first = said.sent;
            said.sent += 1 + rng.below(BURST_MAX);
            let framed = |number| {
                let message = message(&said.stream, number);
                if counts { format!("{} {message}", message.len()) } else { format!("{message}\n") }
            };
            let burst: String = (first..said.sent).map(framed).collect();
            if (&*socket).write_all(burst.as_bytes()).is_err() {
                break;
            }
            shared.adds(said.sent - first);
            shared.rest(&mut rng, PAUSE_MICROS_MAX);
        }
        // Nobody cut this one.
        if shared.is_stopped() {
            said.answered = said.sent;
        }
        all.push(said);
    }
    all
}

/// A session of RELP.
pub(crate) struct Session {
    socket: Arc<File>,
    next: u64,
    unread: Vec<u8>,
}

impl Session {
    pub(crate) fn open(place: &Place, shared: &Shared) -> io::Result<Self> {
        let mut session = Self { socket: shared.connect(place)?, next: 1, unread: Vec::new() };
        let offers = b"relp_version=0\nrelp_software=clad-e2e\ncommands=syslog";
        let mut bytes = Vec::new();
        session.put("open", offers, &mut bytes);
        (&*session.socket).write_all(&bytes)?;
        session.answer()?;
        Ok(session)
    }

    fn put(&mut self, command: &str, data: &[u8], into: &mut Vec<u8>) {
        into.extend_from_slice(format!("{} {command} {} ", self.next, data.len()).as_bytes());
        into.extend_from_slice(data);
        into.push(b'\n');
        self.next += 1;
    }

    /// Sends messages and waits for their answers.
    pub(crate) fn ask(&mut self, messages: &[Vec<u8>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| self.put("syslog", message, &mut bytes));
        (&*self.socket).write_all(&bytes)?;
        messages.iter().try_for_each(|_| self.answer())
    }

    /// Waits for the next answer, which must be a success.
    fn answer(&mut self) -> io::Result<()> {
        let mut piece = [0; 4096];
        loop {
            if let Some((command, data, length)) = frame(&self.unread) {
                let is_good = command == "rsp" && data.starts_with("200 OK");
                let what = format!("{command} {data}");
                self.unread.drain(..length);
                return match (is_good, command.as_str()) {
                    (true, _) => Ok(()),
                    (false, "serverclose") => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => panic!("not an answer of success: {what}"),
                };
            }
            match (&*self.socket).read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.unread.extend_from_slice(&piece[..read]),
            }
        }
    }
}

/// Command and data of the first frame, and its length: `TXNR COMMAND LENGTH[ DATA]LF`.
fn frame(bytes: &[u8]) -> Option<(String, String, usize)> {
    let end = bytes.iter().enumerate().filter(|(_, byte)| matches!(byte, b' ' | b'\n')).nth(2)?.0;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut words = head.split(' ').skip(1);
    let (command, length) = (words.next()?.to_owned(), words.next()?.parse::<usize>().expect("a length"));
    let (data, whole) = if length == 0 { (end, end + 1) } else { (end + 1, end + 2 + length) };
    let text = String::from_utf8_lossy(bytes.get(data..data + length)?).into_owned();
    (bytes.len() >= whole).then_some((command, text, whole))
}

/// Sends over RELP, with a window, and sends again what a session has left without an answer, as librelp does.
pub(crate) fn relp(kind: &'static str, place: &Place, shared: &Shared, mut rng: Rng) -> Vec<Said> {
    let mut all = Vec::new();
    while !shared.is_stopped() {
        let life = shared.deaths();
        let mut said = Said::new(kind, life, Promise::AtLeastOnce);
        let mut unanswered = VecDeque::new();
        while shared.deaths() == life {
            match session(place, shared, &mut said, &mut unanswered, &mut rng) {
                Ok(()) => break,
                Err(_) => shared.retry_later(),
            }
        }
        all.push(said);
    }
    all
}

/// One session, to its end; a good one where it was stopped.
fn session(
    place: &Place,
    shared: &Shared,
    said: &mut Said,
    unanswered: &mut VecDeque<u64>,
    rng: &mut Rng,
) -> io::Result<()> {
    let mut session = Session::open(place, shared)?;
    let mut bytes = Vec::new();
    // Who does not rest keeps the window full.
    let (burst, unread) = if shared.rests() { (BURST_MAX + 1, WINDOW / 4) } else { (u64::MAX, WINDOW / 2) };
    for number in unanswered.iter() {
        *said.sends.entry(*number).or_insert(1) += 1;
        session.put("syslog", message(&said.stream, *number).as_bytes(), &mut bytes);
    }
    loop {
        if !shared.is_stopped() {
            for _ in 0..rng.below(burst).min((WINDOW.saturating_sub(unanswered.len())) as u64) {
                session.put("syslog", message(&said.stream, said.sent).as_bytes(), &mut bytes);
                unanswered.push_back(said.sent);
                said.sent += 1;
            }
        }
        (&*session.socket).write_all(&bytes)?;
        bytes.clear();
        // Some answers stay unread for a while, and at the end none.
        let stays = if shared.is_stopped() { 0 } else { rng.index(unread) };
        while unanswered.len() > stays {
            session.answer()?;
            said.answered = unanswered.pop_front().expect("one waits") + 1;
            shared.adds(1);
        }
        if shared.is_stopped() && unanswered.is_empty() {
            return Ok(());
        }
        shared.rest(rng, PAUSE_MICROS_MAX);
    }
}
