//! Invariants over all events, in any order: every append ends once. A record with a receipt is where the receipt says,
//! as long as nothing happened that its level does not cover. Everything is stored once and in order. A record that is
//! said not to be written is not. A flush that ends well speaks for everything before it (see `check`).
//!
//! Events: connections break. The daemon dies, with the power or alone, or fails and recovers. What was `durable` is
//! lost. Other limits and another highest level hold from some start on. Another log takes the place of this one, and
//! the one before comes back. The daemon forgets the producer. An append ends the connection. Tickets and flushes are
//! dropped, before they end and with their report in hand. All connections are away for too long. The producer is
//! closed. What was never sent is dropped for something newer.

mod check;

use super::{
    DELIVERY_TIMEOUT,
    model::{Answer, Daemon, Kept, Limits},
};
use crate::{
    AppendError, DropReason, Receipt,
    backoff::Backoff,
    session::{Append, Outcome, Session},
    undelivered::{FlushSender, UndeliveredErrors},
};
use bytes::Bytes;
use check::Book;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::Instant;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Records handed over.
struct Submitted {
    count: u32,
    len: u32,
    /// Nothing: the highest.
    level: Option<AckLevel>,
    /// True if a ticket waits for it.
    ticket: bool,
}

type FlushResult = Result<(), AppendError>;
type FlushFuture = Pin<Box<dyn Future<Output = Option<FlushResult>>>>;

struct Flush {
    /// So many appends are before it.
    before: u64,
    level: Option<AckLevel>,
    /// Nothing: it was dropped, or has ended.
    future: Option<FlushFuture>,
    dropped: bool,
    result: Option<FlushResult>,
}

/// Events possible in a world: not everything in each, so that each is also seen without the others.
struct Fates {
    limits: bool,
    forgets: bool,
    replaced: bool,
    losses: bool,
    dropped: bool,
}

struct World {
    random: Random,
    fates: Fates,
    now: Instant,
    undelivered: &'static UndeliveredErrors,
    session: Session<u64, (usize, FlushSender)>,
    max_in_flight: usize,
    daemon: Daemon,
    submitted: Vec<Submitted>,
    outcomes: HashMap<u64, Result<Receipt, AppendError>>,
    flushes: Vec<Flush>,
    /// These end the connection when the daemon comes to them.
    poison: HashSet<u64>,
    book: Book,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(2); // a small seed is a small number
        let window = 1 + random.below(8) as u32;
        let max_in_flight = [1, 3, 64, 64][random.below(4) as usize];
        let mut some = || random.below(2) == 0;
        let fates = Fates { limits: some(), forgets: some(), replaced: some(), losses: some(), dropped: some() };
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(8), 7);
        Self {
            random,
            fates,
            now: Instant::now(),
            undelivered: Box::leak(Box::default()),
            session: Session::new(max_in_flight, DELIVERY_TIMEOUT, backoff),
            max_in_flight: max_in_flight as usize,
            daemon: Daemon::new(window),
            submitted: Vec::new(),
            outcomes: HashMap::new(),
            flushes: Vec::new(),
            poison: HashSet::new(),
            book: Book::default(),
        }
    }

    fn submit(&mut self) {
        let level = [AckLevel::None, AckLevel::Received, AckLevel::Written, AckLevel::Durable, AckLevel::Durable]
            [self.random.below(5) as usize];
        let count = 1 + self.random.below(3) as u32;
        let number = self.submitted.len() as u64;
        // The highest is asked for in both ways.
        let level = (level != AckLevel::Durable || self.random.one_in(2)).then_some(level);
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(8 + self.random.below(40) as usize, 0);
        let (len, ticket) = (payload.len() as u32, !(self.fates.dropped && self.random.one_in(4)));
        let append = Append {
            payload: Bytes::from(payload),
            count,
            crc: 0,
            level,
            severity: 5 + count as i32 * 2,
            submitted: self.now,
        };
        self.session.submit(append, number);
        self.submitted.push(Submitted { count, len, level, ticket });
        if self.random.one_in(50) {
            self.poison.insert(number);
        }
    }

    fn flush(&mut self) {
        let level = AckLevel::WATERMARKS[self.random.below(3) as usize];
        let level = (level != AckLevel::Durable || self.random.one_in(2)).then_some(level);
        self.flush_to(level);
    }

    fn flush_to(&mut self, level: Option<AckLevel>) {
        let (sender, listener) = self.undelivered.listen();
        self.session.flush(level, (self.flushes.len(), sender), self.now);
        let (before, future) = (self.submitted.len() as u64, Some(Box::pin(listener.recv()) as FlushFuture));
        self.flushes.push(Flush { before, level, future, dropped: false, result: None });
    }

    /// A caller goes away.
    fn drop_flush(&mut self) {
        let waiting: Vec<usize> = (0..self.flushes.len()).filter(|at| self.flushes[*at].future.is_some()).collect();
        if let Some(at) = waiting.get(self.random.below(waiting.len().max(1) as u64) as usize) {
            (self.flushes[*at].future, self.flushes[*at].dropped) = (None, true);
        }
        if self.random.one_in(2) {
            let left = self.session.prune_flushes(|(_, sender)| sender.is_closed());
            let asked = self.session.flushes.iter().filter(|flush| flush.is_sent()).count();
            let waiting = self.flushes.iter().filter(|flush| flush.future.is_some()).count();
            assert!(left <= asked + waiting, "{left} are kept, and nobody waits for them");
        }
    }

    /// The daemon takes what is next, or ends the connection for its sake.
    fn read(&mut self, refusal: Option<ErrorInfo>) {
        if self.daemon.next().is_some_and(|number| self.poison.contains(&number)) {
            // What was answered before it arrives first.
            while !self.daemon.outbound.is_empty() {
                self.process_answer();
            }
            self.session.ended_by_append(&ErrorInfo::new(ErrorCode::AppendTooLarge, ""));
            self.hang_up();
        } else {
            self.daemon.read(refusal);
        }
    }

    fn hang_up(&mut self) {
        self.daemon.hang_up();
        self.book.note_unreported(&self.daemon.log, &self.outcomes);
        self.session.disconnected(self.now, "cut");
        self.collect();
    }

    fn send(&mut self) {
        for _ in 0..1 + self.random.below(6) {
            if !self.daemon.connected {
                return;
            }
            if let Some(out) = self.session.next_out(self.now) {
                self.daemon.inbound.push_back(out);
            }
        }
        self.collect(); // a flush may need no asking
        let most = self.max_in_flight.min(self.daemon.limits.window as usize);
        assert!(self.daemon.unanswered() <= most, "more in flight than {most}");
        let waiting = self.submitted.len() - self.outcomes.len();
        assert!(self.session.pending() <= waiting + self.max_in_flight, "what has ended is kept");
    }

    fn process_answer(&mut self) {
        match self.daemon.outbound.pop_front() {
            Some(Answer::Accepted(answer)) => self.session.accepted(&answer, self.now).expect("a good answer"),
            Some(Answer::Watermark(watermark)) => self.session.watermark(&watermark, self.now),
            Some(Answer::Refused(answer)) => self.session.refused(answer, self.now),
            Some(Answer::FlushRefused(id, error)) => self.session.flush_refused(id, error, self.now),
            None => {}
        }
        self.collect();
    }

    /// Notifies the waiters, as the producer's task does it.
    fn collect(&mut self) {
        self.note_news();
        for outcome in std::mem::take(&mut self.session.outcomes) {
            match outcome {
                Outcome::Append { waiter, result, .. } => self.append_ends(waiter, result),
                Outcome::Flush { waiter: (number, sender), result } => self.flush_ends(number, sender, result),
            }
        }
    }

    fn append_ends(&mut self, number: u64, result: Result<Receipt, AppendError>) {
        self.check_outcome(number, &result);
        if let Err(error) = &result
            && !self.submitted[number as usize].ticket
        {
            self.undelivered.add(error.clone());
            self.book.unreported.insert(number);
        }
        assert!(self.outcomes.insert(number, result).is_none(), "append {number} ended twice");
    }

    fn flush_ends(&mut self, number: usize, sender: FlushSender, result: FlushResult) {
        let of_its_own = result.clone().err();
        if matches!(of_its_own, None | Some(AppendError::Lost)) {
            self.raise(number);
        }
        self.undelivered.complete_flush(sender, result);
        let flush = &mut self.flushes[number];
        assert!(flush.result.is_none(), "flush {number} ended twice");
        let Some(mut future) = flush.future.take() else { return };
        if self.fates.dropped && self.random.one_in(8) {
            flush.dropped = true;
            return; // with its report in hand
        }
        let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("flush {number} has ended and waits");
        };
        let result = result.expect("it is reported");
        flush.result = Some(result.clone());
        match result {
            Ok(()) => self.check_flush(number),
            Err(error) => self.check_reported(&error, of_its_own.as_ref()),
        }
    }

    /// There is no room: what was never sent is dropped, as the caller's thread does it.
    fn drop_unsent(&mut self) {
        let below = self.random.one_in(2).then_some(9);
        let most = self.random.below(4) as usize;
        for (_, number) in self.session.drop_unsent(most, below, |_| 1) {
            self.book.dropped.insert(number);
            self.append_ends(number, Err(AppendError::Dropped { reason: DropReason::Oldest }));
        }
    }

    fn refusal(&mut self) -> Option<ErrorInfo> {
        match self.random.below(40) {
            0..6 => Some(ErrorInfo::new(ErrorCode::Busy, "")),
            6 => Some(ErrorInfo::new(ErrorCode::NoSpace, "").retry_after_ms(3)),
            7 | 8 => Some(ErrorInfo::new(ErrorCode::BadRecord, "")),
            9 => Some(ErrorInfo::new(ErrorCode::Internal, "")),
            _ => None,
        }
    }

    fn disconnect(&mut self) {
        if self.daemon.connected {
            // The daemon still reads some of what is on its way, the client some of the answers.
            for _ in 0..self.random.below(4) {
                if self.daemon.next().is_none_or(|number| !self.poison.contains(&number)) {
                    self.daemon.read(None);
                }
            }
            for _ in 0..self.random.below(4) {
                self.process_answer();
            }
            self.hang_up();
        }
    }

    /// A place between what is sure to be kept and all of it.
    fn keep(&mut self, sure: u64) -> u64 {
        sure + self.random.below(self.daemon.log.end() - sure + 1)
    }

    /// The daemon dies, and is started again.
    fn crash(&mut self) {
        self.disconnect();
        let log = &self.daemon.log;
        let (sure, survives) = match self.random.below(8) {
            0 if self.fates.losses => (0, None),
            0..4 => (log.durable, Some(AckLevel::Durable)),
            _ => (log.written, Some(AckLevel::Written)),
        };
        for _ in 0..1 + self.random.below(2) {
            let keep = self.keep(sure.min(self.daemon.log.end()));
            let epochs = 1 + self.random.below(2) as u32;
            self.daemon.log.cut(keep, epochs);
            self.daemon.restart();
            self.book.cut(&self.daemon.log, survives);
            for _ in 0..self.random.below(3) {
                self.daemon.noise(); // others go on while we are away, on offsets that were ours
            }
            if self.random.one_in(2) {
                break;
            }
        }
    }

    /// A write fails, or what failed recovers.
    fn fail_or_recover(&mut self) {
        if !self.daemon.failed {
            return self.daemon.fail();
        }
        self.raise_on_the_way();
        let log = &self.daemon.log;
        let (durable, written) = (log.durable, log.written);
        if self.fates.losses && self.daemon.connected && self.random.one_in(3) {
            let from = durable + self.random.below(written - durable + 1);
            let to = from + self.random.below(written - from + 1);
            let lost = self.daemon.recover(Kept::But(from, to));
            self.book.note_gap(&self.daemon.log, lost);
        } else {
            let keep = self.keep(durable);
            self.daemon.recover(Kept::Below(keep));
            self.book.cut(&self.daemon.log, Some(AckLevel::Durable));
        }
    }

    /// Events while there is no connection.
    fn while_away(&mut self) {
        if self.fates.limits && self.random.one_in(3) {
            self.end_well();
            let lower = |random: &mut Random| if random.one_in(3) { 8 + random.below(40) as u32 } else { 1000 };
            let highest = [AckLevel::Durable, AckLevel::Durable, AckLevel::Written][self.random.below(3) as usize];
            let window = 1 + self.random.below(8) as u32;
            let (max_append, max_record) = (lower(&mut self.random), lower(&mut self.random));
            self.daemon.limits = Limits { window, max_append, max_record, highest };
            self.book.limited_to(self.daemon.limits);
        }
        if self.fates.forgets && self.is_known() && self.random.one_in(6) {
            self.daemon.log.forget();
            self.book.forgotten = true;
        }
        if self.fates.replaced && self.random.one_in(8) {
            self.end_well();
            let back = self.daemon.shelf.len() as u64;
            let from_shelf = self.random.below(back + 1);
            let noise = self.random.below(6);
            self.daemon.replace((from_shelf < back).then_some(from_shelf as usize), noise);
            self.book.replaced = true;
        }
    }

    /// A producer that has sent something, and received no answer that it was taken, or of what was abandoned since,
    /// cannot know that it was forgotten. What is there is then sent again (PROTOCOL, section 5, does not promise
    /// more), and nothing of that is checked here.
    fn is_known(&self) -> bool {
        let kept = |(_, offset)| offset < self.daemon.log.lowest_cut;
        self.session.known.is_none_or(|known| known.sent_end.is_none() || known.first_place.is_some_and(kept))
    }

    /// The daemon is stopped as it should be, or, where it cannot, as it comes.
    fn end_well(&mut self) {
        if self.daemon.failed {
            return self.crash();
        }
        let end = self.daemon.log.end();
        self.daemon.advance(end, end);
        self.daemon.restart();
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(3));
        if self.daemon.failed && self.random.one_in(12) {
            return self.fail_or_recover();
        }
        match self.random.below(100) {
            0..20 => self.submit(),
            20..45 => self.send(),
            45..65 => {
                let refusal = self.refusal();
                self.read(refusal);
            }
            65..85 => self.process_answer(),
            87 if self.fates.dropped => self.drop_unsent(),
            85..88 => self.daemon.noise(),
            88..94 => {
                let (written, durable) = (self.keep(self.daemon.log.written), self.keep(self.daemon.log.durable));
                self.daemon.advance(written, durable);
            }
            94..96 if self.daemon.connected => self.disconnect(),
            96 => self.crash(),
            97 => self.fail_or_recover(),
            98 if self.fates.dropped && self.random.one_in(3) => self.drop_flush(),
            98 => self.flush(),
            99 if self.random.below(30) == 0 => {
                self.now += DELIVERY_TIMEOUT * 2;
                self.book.waited = true;
                self.session.tick(self.now);
                self.collect();
            }
            _ if !self.daemon.connected => self.connect(),
            _ => {
                self.session.tick(self.now);
                self.collect();
            }
        }
    }

    fn connect(&mut self) {
        self.while_away();
        self.book.left_for(&self.daemon.log, &self.session.known, &self.outcomes);
        self.session.connected(&self.daemon.welcome()).expect("our own producer");
        self.collect();
    }

    /// Nothing goes wrong any more: everything must come home.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.now += Duration::from_millis(20);
            if self.daemon.failed {
                self.fail_or_recover();
            }
            if !self.daemon.connected {
                self.connect();
            }
            self.send();
            self.read(None);
            let end = self.daemon.log.end();
            self.daemon.advance(end, end);
            while !self.daemon.outbound.is_empty() {
                self.process_answer();
            }
            if self.session.is_idle() && self.daemon.inbound.is_empty() {
                return;
            }
        }
        panic!("not settled: {:?}", self.session.entries);
    }

    /// A few flushes report what there was to report, each another thing; then a flush ends well.
    fn flush_at_the_end(&mut self) {
        (self.fates.dropped, self.fates.limits, self.fates.replaced, self.fates.forgets) = (false, false, false, false);
        for _ in 0..5 {
            self.flush_to(None);
            self.settle();
            if matches!(self.flushes.last(), Some(Flush { result: Some(Ok(())), .. })) {
                return;
            }
        }
        panic!("no flush ends well: {:?}", self.flushes.last().map(|flush| &flush.result));
    }

    fn run(&mut self) {
        for _ in 0..400 {
            self.step();
        }
        if self.random.one_in(8) {
            self.session.fail_all(&AppendError::Closed { maybe_written: false });
            self.book.closed = true;
            self.collect();
            while self.daemon.next().is_some() {
                self.daemon.read(None); // what was on its way
            }
        } else {
            self.settle();
            self.flush_at_the_end();
        }
        self.check();
    }
}

/// As many histories as ever were tried here, and `CLAD_SESSION_RUNS` fresh ones, by default none; or `CLAD_TEST_SEED`
/// alone.
#[expect(clippy::print_stdout, reason = "without it nobody could run it again")]
fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    if let Some(seed) = number("CLAD_TEST_SEED") {
        return vec![seed];
    }
    let fresh = number("CLAD_SESSION_RUNS").unwrap_or(0);
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let first = number("CLAD_SEED").unwrap_or(clock.as_nanos() as u64);
    println!("random: seeds 0 to 2999, and {fresh} from CLAD_TEST_SEED={first} on");
    (0..3000).chain((0..fresh).map(|i| first.wrapping_add(i))).collect()
}

#[test]
fn everything_ends_once_and_is_stored_once_in_order() {
    let seeds = seeds();
    let (mut receipts, mut errors) = (0, 0);
    for seed in &seeds {
        let mut world = World::new(*seed);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        assert!(outcome.is_ok(), "seed {seed}; CLAD_TEST_SEED={seed} runs it alone");
        receipts += world.outcomes.values().filter(|outcome| outcome.is_ok()).count();
        errors += world.outcomes.values().filter(|outcome| outcome.is_err()).count();
        assert!(world.now < Instant::now() + DELIVERY_TIMEOUT * 1000);
    }
    assert!(
        seeds.len() == 1 || (receipts > errors && errors > 100),
        "both are met: {receipts} receipts, {errors} errors"
    );
}
