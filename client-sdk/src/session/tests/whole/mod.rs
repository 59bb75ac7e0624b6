//! Both sessions and the journal: this crate's, the daemon's own (its file, as it is), and the real journal on a
//! simulated disk. Connections break between any two messages, what a broken one had sent is still read later, out of
//! turn with what is sent again; writes fail, and room ends; appends come alone and in bursts; the daemon is killed or
//! loses its power, and clients die.
//!
//! Invariants of every receipt that a client was ever given:
//! - When it is given, the journal's own watermark of its level has passed it.
//! - It survives what its level covers: `received` the client's death, `written` a kill of the daemon, `durable` a
//!   power cut. It is then at its offset, byte for byte.
//! - A flush that ends well has raised all of its client's earlier receipts to its level.
//! - A record that was found once after a start is there after every later one.
//!
//! And of every log: each append is in it once at most, whole, as it was made, each client's in their order. In the end
//! every append that a living client handed over has a receipt and is there, also where it missed epochs. No client is
//! notified that it may have been forgotten.

mod daemon;
mod metrics {
    //! The counters of the daemon.
    pub(super) enum Level {
        None,
        Received,
        Written,
        Durable,
    }
    pub(super) fn acked(level: Level, _appends: u64, _records: u64, _time: std::time::Duration) {
        let (Level::None | Level::Received | Level::Written | Level::Durable) = level;
    }
}
/// The daemon's session.
#[path = "../../../../../daemon/src/ingest/session.rs"]
mod daemon_session;

use super::{Append, Outcome, TestSession};
use crate::{AppendError, Receipt, backoff::Backoff, session::Session};
use bytes::Bytes;
use clad_journal::Watermarks;
use clad_proto::{AckLevel, payload_checksum};
use clad_sim::Rng;
use daemon::{Daemon, Link, Said, Stored};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1 << 20);

/// An append as it was handed over.
struct Made {
    sequence: u64,
    count: u32,
    payload: Vec<u8>,
}

struct Client {
    id: [u8; 16],
    session: TestSession,
    made: Vec<Made>,
    records: u64,
    ended: BTreeMap<u64, Result<Receipt, AppendError>>,
    /// Of each flush so far, how many appends were before it, and its level.
    flushes: Vec<(u64, AckLevel)>,
    link: Option<Link>,
}

/// A receipt, and what still speaks for it.
struct Acked {
    client: usize,
    append: usize,
    offset: u64,
    level: AckLevel,
    must_be_there: bool,
}

#[derive(Debug, Default)]
struct Counts {
    receipts: u64,
    kills: u64,
    cuts: u64,
    clients_dead: u64,
    connections: u64,
    late: u64,
    duplicates: u64,
    failures: u64,
    forgotten: u64,
    bursts: u64,
    flushes: u64,
    flushes_failed: u64,
    no_space: u64,
}

struct World {
    rng: Rng,
    daemon: Daemon,
    now: Instant,
    clients: Vec<Client>,
    /// The living clients, by their place.
    alive: Vec<usize>,
    /// Connections whose client is gone, which the daemon has not noticed.
    ghosts: Vec<Link>,
    acks: Vec<Acked>,
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let daemon = Daemon::new(&mut rng);
        let mut world = Self {
            rng,
            daemon,
            now: Instant::now(),
            clients: Vec::new(),
            alive: Vec::new(),
            ghosts: Vec::new(),
            acks: Vec::new(),
            counts: Counts::default(),
        };
        world.start();
        (0..3).for_each(|_| world.newcomer());
        world
    }

    fn newcomer(&mut self) {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(self.clients.len() as u64 + 1).to_le_bytes());
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(8), 7);
        let session = Session::new(64, DELIVERY_TIMEOUT, backoff);
        self.alive.push(self.clients.len());
        let (made, ended) = (Vec::new(), BTreeMap::new());
        self.clients.push(Client { id, session, made, records: 0, ended, flushes: Vec::new(), link: None });
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.now += Duration::from_millis(self.rng.below(20));
            let who = self.alive[self.rng.index(self.alive.len())];
            match self.rng.below(1000) {
                0..15 => self.flush(who),
                15..200 => self.submit(who),
                200..400 => self.send(who),
                400..560 => self.serve(who),
                560..740 => self.process_answer(who),
                740..960 => self.daemon.work(&mut self.rng),
                960..975 => self.lose_connection(who),
                975..982 => self.daemon.fail(&mut self.rng),
                982..986 => self.client_dies(who),
                986..992 => self.daemon_dies(true),
                992..995 => self.daemon_dies(false),
                995..998 => self.daemon.fill(&mut self.rng),
                _ => self.daemon.settle(),
            }
            if !self.daemon.is_up() {
                self.daemon_dies(false);
            }
        }
        self.come_home();
    }

    fn submit(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let level = [AckLevel::Received, AckLevel::Written, AckLevel::Durable][self.rng.index(3)];
        let (count, number) = (1 + self.rng.below(4) as u32, client.made.len() as u64);
        let mut payload = vec![0; 16 + self.rng.index(600)];
        payload[..8].copy_from_slice(&client.id[..8]);
        payload[8..16].copy_from_slice(&number.to_le_bytes());
        let crc = payload_checksum(&payload);
        let submitted = Append {
            payload: Bytes::copy_from_slice(&payload),
            count,
            crc,
            level: Some(level),
            severity: 9,
            submitted: self.now,
        };
        client.made.push(Made { sequence: client.records, count, payload });
        client.records += u64::from(count);
        client.session.submit(submitted, number);
    }

    fn flush(&mut self, who: usize) {
        let level = [AckLevel::Received, AckLevel::Written, AckLevel::Durable][self.rng.index(3)];
        let client = &mut self.clients[who];
        let number = client.flushes.len() as u64;
        client.flushes.push((client.made.len() as u64, level));
        client.session.flush(Some(level), number, self.now);
    }

    fn send(&mut self, who: usize) {
        self.connect(who);
        let client = &mut self.clients[who];
        let Some(link) = &mut client.link else { return };
        for _ in 0..1 + self.rng.below(6) {
            link.up.extend(client.session.next_out(self.now));
        }
        self.collect(who); // a flush may need no asking
    }

    fn connect(&mut self, who: usize) {
        let client = &mut self.clients[who];
        if client.link.is_some() {
            return;
        }
        let (welcome, link) = self.daemon.greet(client.id, 0).expect("nobody else has its id");
        client.session.connected(&welcome).expect("nobody else uses its id");
        client.link = Some(link);
        self.counts.connections += 1;
        self.collect(who);
    }

    /// The daemon reads of one connection, or of one that it does not know to be broken, and answers.
    fn serve(&mut self, who: usize) {
        if !self.ghosts.is_empty() && self.rng.chance(1, 3) {
            let at = self.rng.index(self.ghosts.len());
            self.daemon.serve(&mut self.ghosts[at], 1);
            self.counts.late += 1;
            if self.ghosts[at].up.is_empty() {
                let ghost = self.ghosts.swap_remove(at);
                self.daemon.bye(&ghost);
            }
            return;
        }
        if let Some(link) = &mut self.clients[who].link {
            let most = [1, 1, 2, 8, 64][self.rng.index(5)];
            self.counts.bursts += u64::from(self.daemon.serve(link, most) > 1);
            self.daemon.release(link);
        }
    }

    fn process_answer(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let Some(link) = &mut client.link else { return };
        self.daemon.release(link);
        for _ in 0..1 + self.rng.below(4) {
            match link.down.pop_front() {
                Some(Said::Accepted(answer)) => {
                    self.counts.duplicates += u64::from(answer.duplicate);
                    client.session.accepted(&answer, self.now).expect("a good answer");
                }
                Some(Said::Watermark(watermark)) => client.session.watermark(&watermark, self.now),
                Some(Said::FlushRefused(id, error)) => client.session.flush_refused(id, error, self.now),
                Some(Said::Refused(answer)) => {
                    self.counts.failures += 1;
                    self.counts.no_space += u64::from(answer.error.code == clad_proto::ErrorCode::NoSpace);
                    client.session.refused(answer, self.now);
                }
                None => break,
            }
        }
        self.collect(who);
    }

    fn collect(&mut self, who: usize) {
        let watermarks = self.daemon.watermarks();
        let client = &mut self.clients[who];
        for outcome in std::mem::take(&mut client.session.outcomes) {
            let (waiter, result) = match outcome {
                Outcome::Append { waiter, result, .. } => (waiter, result),
                Outcome::Flush { waiter, result } => {
                    self.counts.flushes += 1;
                    self.counts.flushes_failed += u64::from(result.is_err());
                    if result.is_ok() {
                        let (before, level) = client.flushes[waiter as usize];
                        flushed(&mut self.acks, who, before, level, client, &watermarks);
                    }
                    continue;
                }
            };
            if let Ok(receipt) = &result {
                let offset = receipt.first_offset.expect("an offset");
                let watermark = watermark_of(&watermarks, receipt.level);
                let end = offset + u64::from(receipt.count);
                assert!(end <= watermark, "{receipt:?} was given, and the journal is at {watermarks:?}");
                let (append, level) = (waiter as usize, receipt.level);
                self.acks.push(Acked { client: who, append, offset, level, must_be_there: true });
                self.counts.receipts += 1;
            }
            let again = client.ended.insert(waiter, result);
            assert!(again.is_none(), "append {waiter} of client {who} ended twice: {again:?}");
        }
    }

    fn lose_connection(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let Some(mut link) = client.link.take() else { return };
        client.session.disconnected(self.now, "a test");
        self.collect(who);
        // What was on its way may still be read, all of it, some, or none.
        link.up.truncate(self.rng.index(link.up.len() + 1));
        if link.up.is_empty() {
            self.daemon.bye(&link);
        } else {
            self.ghosts.push(link);
        }
    }

    fn client_dies(&mut self, who: usize) {
        self.lose_connection(who);
        self.alive.retain(|alive| *alive != who);
        self.counts.clients_dead += 1;
        self.newcomer();
    }

    fn daemon_dies(&mut self, power: bool) {
        for who in self.alive.clone() {
            let client = &mut self.clients[who];
            if client.link.take().is_some() {
                client.session.disconnected(self.now, "the daemon is gone");
                self.collect_of_the_dead(who);
            }
        }
        self.ghosts.clear();
        self.daemon.die(power);
        *(if power { &mut self.counts.cuts } else { &mut self.counts.kills }) += 1;
        let survives = if power { AckLevel::Durable } else { AckLevel::Written };
        for ack in &mut self.acks {
            ack.must_be_there &= ack.level >= survives;
        }
        self.start();
    }

    /// A client that loses the connection may abandon what it waits for; nothing ends well by that.
    fn collect_of_the_dead(&mut self, who: usize) {
        for outcome in std::mem::take(&mut self.clients[who].session.outcomes) {
            let Outcome::Append { waiter, result, .. } = outcome else { unreachable!("who flushes is still waiting") };
            assert!(result.is_err(), "a receipt without an answer: {result:?}");
            self.clients[who].ended.insert(waiter, result);
        }
    }

    fn start(&mut self) {
        let stored = self.daemon.start();
        self.check(&stored);
        for ack in &mut self.acks {
            let made = &self.clients[ack.client].made[ack.append];
            // Records found are durable now, whatever level was reported.
            ack.level = AckLevel::Durable;
            ack.must_be_there |= is_there(&stored, self.clients[ack.client].id, made, ack.offset);
        }
    }

    fn check(&self, stored: &[Stored]) {
        let by_id: BTreeMap<[u8; 16], usize> = self.clients.iter().enumerate().map(|(at, c)| (c.id, at)).collect();
        let mut next: BTreeMap<[u8; 16], u64> = BTreeMap::new();
        for one in stored {
            let client = &self.clients[by_id[&one.producer]];
            let next = next.entry(one.producer).or_default();
            assert!(one.sequence >= *next, "stored twice, or out of order: {one:?} where {next} is next");
            *next = one.sequence + u64::from(one.count);
            let made = client.made.iter().find(|made| made.sequence == one.sequence);
            let made = made.unwrap_or_else(|| panic!("nobody made {one:?}"));
            assert!((made.count, &made.payload) == (one.count, &one.payload), "{one:?} is not what was made");
        }
        for ack in self.acks.iter().filter(|ack| ack.must_be_there) {
            let client = &self.clients[ack.client];
            let made = &client.made[ack.append];
            assert!(
                is_there(stored, client.id, made, ack.offset),
                "LOST: append {} of client {} at offset {}, reported as {}",
                ack.append,
                ack.client,
                ack.offset,
                ack.level
            );
        }
    }

    /// With a disk that works and connections that hold, everything that was handed over gets its receipt.
    fn come_home(&mut self) {
        for _ in 0..10_000 {
            self.now += Duration::from_millis(50);
            self.daemon.settle();
            while let Some(mut ghost) = self.ghosts.pop() {
                while !ghost.up.is_empty() {
                    self.daemon.serve(&mut ghost, 1);
                }
                self.daemon.bye(&ghost);
            }
            for who in self.alive.clone() {
                self.send(who);
                (0..8).for_each(|_| self.serve(who));
                self.process_answer(who);
            }
            if self.alive.iter().all(|who| self.clients[*who].session.is_idle()) {
                break;
            }
        }
        for who in &self.alive {
            let client = &self.clients[*who];
            let forgotten = |end: &&Result<Receipt, AppendError>| matches!(end, Err(AppendError::Forgotten));
            self.counts.forgotten += client.ended.values().filter(forgotten).count() as u64;
            let ended = |number| client.ended.get(&number).is_some_and(|end| end.is_ok() || forgotten(&end));
            let missing = (0..client.made.len() as u64).find(|number| !ended(*number));
            assert_eq!(
                missing,
                None,
                "client {who} has no receipt for it: {:?}",
                missing.map(|n| client.ended.get(&n))
            );
        }
        for _ in 0..3 {
            self.daemon.settle();
        }
        self.daemon_dies(true);
    }
}

fn watermark_of(watermarks: &Watermarks, level: AckLevel) -> u64 {
    match level {
        AckLevel::Durable => watermarks.durable,
        AckLevel::Written => watermarks.written,
        _ => watermarks.received,
    }
}

/// A flush ended well: what had a receipt before it, and was lost by no crash, has its level now.
fn flushed(acks: &mut [Acked], who: usize, before: u64, level: AckLevel, client: &Client, watermarks: &Watermarks) {
    let theirs = acks.iter_mut().filter(|ack| ack.client == who && (ack.append as u64) < before);
    for ack in theirs.filter(|ack| ack.must_be_there) {
        let end = ack.offset + u64::from(client.made[ack.append].count);
        assert!(
            end <= watermark_of(watermarks, level),
            "append {} is flushed to {level}, the journal is at {watermarks:?}",
            ack.append
        );
        ack.level = ack.level.max(level);
    }
}

fn is_there(stored: &[Stored], producer: [u8; 16], made: &Made, offset: u64) -> bool {
    let at = stored.binary_search_by_key(&offset, |stored| stored.offset);
    at.is_ok_and(|at| {
        let one = &stored[at];
        (one.producer, one.sequence, &one.payload) == (producer, made.sequence, &made.payload)
    })
}

/// A fixed few histories and `CLAD_WHOLE_RUNS` fresh ones, by default none; or `CLAD_TEST_SEED` alone.
#[expect(clippy::print_stdout, reason = "without it nobody could run it again")]
fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    if let Some(seed) = number("CLAD_TEST_SEED") {
        return vec![seed];
    }
    let fresh = number("CLAD_WHOLE_RUNS").unwrap_or(0);
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let first = number("CLAD_SEED").unwrap_or(clock.as_nanos() as u64);
    println!("whole: seeds 0 to 19, and {fresh} from CLAD_TEST_SEED={first} on");
    (0..20).chain((0..fresh).map(|i| first.wrapping_add(i))).collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "what was tried is the result")]
fn every_receipt_is_kept() {
    const STEPS: u64 = 1500;
    let seeds = seeds();
    let mut sum = Counts::default();
    for seed in &seeds {
        let mut world = World::new(*seed);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(STEPS)));
        assert!(ran.is_ok(), "CLAD_TEST_SEED={seed} (see above)");
        let counts = world.counts;
        sum.receipts += counts.receipts;
        sum.kills += counts.kills;
        sum.cuts += counts.cuts;
        sum.clients_dead += counts.clients_dead;
        sum.connections += counts.connections;
        sum.late += counts.late;
        sum.duplicates += counts.duplicates;
        sum.failures += counts.failures;
        sum.forgotten += counts.forgotten;
        sum.bursts += counts.bursts;
        sum.flushes += counts.flushes;
        sum.flushes_failed += counts.flushes_failed;
        sum.no_space += counts.no_space;
    }
    println!("whole: {} histories, {sum:?}, 0 lost", seeds.len());
    println!("tally: states={} acks={} lost=0", sum.kills + sum.cuts, sum.receipts);
    assert_eq!(sum.forgotten, 0, "nobody is away for so long that the log forgets him");
    // Each of these is half of what the histories are there for.
    let least = seeds.len() as u64;
    for (what, count) in [
        ("receipts", sum.receipts),
        ("resends", sum.duplicates),
        ("late reads", sum.late),
        ("bursts", sum.bursts),
        ("flushes", sum.flushes),
    ] {
        assert!(count > least, "only {count} {what}: nothing is shown");
    }
    assert!(least < 20 || sum.no_space > 0, "there was always room");
}
