//! A process that logs for a while through the SDK: what it keeps up, what its calls wait for, what an answer takes.
//!
//! ```text
//! stdin:  KIND RECORDS IN_FLIGHT MILLISECONDS START    KIND: ring, socket, flood, durable, bare
//! stdout: records first last cpu calls waited p50 p99 greatest     nanoseconds on the clock of the rings
//! ```
//! Each record carries the number of its process and its own, so that the log can be read back.

use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use clad_client::{AckLevel, Batch, Body, Producer, Ticket};
use clad_shm::clock;

/// How long who waits for an answer looks before it sleeps, where both sides spin.
const SPIN: Duration = Duration::from_micros(50);
/// A call that takes as long has waited.
const WAITED_NS: u64 = 20_000;
/// The bare loop goes round in a file of so many bytes.
const BARE: u64 = 4 << 20;

/// A body of this size, the first 16 bytes for its numbers.
pub(crate) fn body(size: usize) -> Vec<u8> {
    (b'!'..=b'~').cycle().take(size).collect()
}

pub(crate) fn run(args: &[String]) {
    let [index, size, rings, socket, bare] = args else { panic!("five arguments") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let connect = |address: &str| {
        let builder = Producer::builder(address.parse().expect("an address")).component("ring_limit");
        runtime.block_on(builder.max_buffered_bytes(64 << 20).connect()).expect("connected")
    };
    let (ring, framed) = (connect(rings), connect(socket));
    assert!(ring.has_ring(), "{:?}", ring.why_no_ring());
    let index: u64 = index.parse().expect("a number");
    let mut load = Load {
        batch: ring.batch(),
        body: body(size.parse().expect("a size")),
        next: index << 48,
        latencies: Vec::new(),
        runtime,
    };
    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    writeln!(answers, "ready").and_then(|()| answers.flush()).expect("the parent listens");
    let mut line = String::new();
    while orders.read_line(&mut line).is_ok_and(|read| read > 0) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, numbers @ ..] = &words[..] else { panic!("an order") };
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().expect("a number")).collect();
        let [records, in_flight, millis, start] = numbers[..] else { panic!("four numbers") };
        while clock::now() < start {
            std::hint::spin_loop();
        }
        let (records, in_flight) = (records as u32, in_flight as usize);
        let (from, used, until) = (clock::now(), crate::child::processor_ns(), start + millis * 1_000_000);
        let (acked, calls, waited) = match *kind {
            "ring" => load.sustain(&ring, records, in_flight, until),
            "socket" => load.sustain(&framed, records, in_flight, until),
            "flood" => load.flood(&ring, until),
            "durable" => load.one_by_one(&ring, until),
            "bare" => load.bare(bare, until),
            other => panic!("{other}"),
        };
        let (used, to) = (crate::child::processor_ns() - used, clock::now());
        let [p50, p99, greatest] = load.percentiles();
        writeln!(answers, "{acked} {from} {to} {used} {calls} {waited} {p50} {p99} {greatest}")
            .and_then(|()| answers.flush())
            .expect("the parent listens");
        line.clear();
    }
    for producer in [ring, framed] {
        let stats = load.runtime.block_on(producer.close()).expect("all of it is in the log").stats;
        assert_eq!((stats.acked, stats.failed, stats.dropped), (stats.submitted, 0, 0), "{stats:?}");
    }
}

struct Load {
    batch: Batch,
    body: Vec<u8>,
    next: u64,
    latencies: Vec<u64>,
    runtime: tokio::runtime::Runtime,
}

impl Load {
    /// Appends of so many records, so many in flight, each followed to `written`.
    fn sustain(&mut self, to: &Producer, records: u32, in_flight: usize, until: u64) -> (u64, u64, u64) {
        let mut out: VecDeque<(Ticket, u64)> = VecDeque::with_capacity(in_flight);
        let (mut acked, mut calls) = (0, 0);
        loop {
            let mut now = clock::now();
            while out.len() < in_flight && now < until {
                self.fill(records);
                let ticket = to.try_append_batch(&mut self.batch, Some(AckLevel::Written)).expect("there is room");
                out.push_back((ticket, now));
                calls += 1;
                now = clock::now();
            }
            let Some((ticket, since)) = out.pop_front() else { return (acked, calls, 0) };
            let receipt = ticket.wait(Duration::from_nanos(1)).expect("written");
            assert_eq!(receipt.count, records);
            acked += u64::from(records);
            self.latencies.push(clock::now() - since);
        }
    }

    /// As fast as calls return, with nothing that bounds them but the ring and the memory behind it.
    fn flood(&mut self, to: &Producer, until: u64) -> (u64, u64, u64) {
        let (mut calls, mut waited, mut now) = (0, 0, clock::now());
        while now < until {
            self.fill(1);
            let ticket = match to.try_append_batch(&mut self.batch, Some(AckLevel::Written)) {
                Ok(ticket) => ticket,
                Err(_) => {
                    let room = self.runtime.block_on(to.reserve(self.batch.len_bytes())).expect("room");
                    room.at(AckLevel::Written).submit_batch(&mut self.batch).expect("submitted")
                }
            };
            drop(ticket);
            calls += 1;
            let then = std::mem::replace(&mut now, clock::now());
            if now - then >= WAITED_NS {
                waited += 1;
                self.latencies.push(now - then);
            }
        }
        self.runtime.block_on(to.flush(AckLevel::Written)).expect("written");
        (calls, calls, waited)
    }

    /// One in flight, durable, both sides spinning.
    fn one_by_one(&mut self, to: &Producer, until: u64) -> (u64, u64, u64) {
        let mut calls = 0;
        loop {
            let now = clock::now();
            if now >= until {
                return (calls, calls, 0);
            }
            self.fill(1);
            let ticket = to.try_append_batch(&mut self.batch, Some(AckLevel::Durable)).expect("there is room");
            ticket.wait(SPIN).expect("durable");
            self.latencies.push(clock::now() - now);
            calls += 1;
        }
    }

    /// The bare loop: a synced write of as many bytes, over and over, in a file that was written before.
    fn bare(&mut self, path: &str, until: u64) -> (u64, u64, u64) {
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).expect("a file");
        if file.metadata().expect("its length").len() < BARE {
            file.write_all_at(&vec![0; BARE as usize], 0).and_then(|()| file.sync_all()).expect("written");
        }
        let (mut calls, mut at) = (0, 0);
        loop {
            let now = clock::now();
            if now >= until {
                return (calls, calls, 0);
            }
            let bytes = [std::io::IoSlice::new(&self.body)];
            let done = rustix::io::pwritev2(&file, &bytes, at, rustix::io::ReadWriteFlags::DSYNC).expect("synced");
            assert_eq!(done, self.body.len(), "a short write");
            at = (at + self.body.len() as u64) % (BARE - self.body.len() as u64);
            self.latencies.push(clock::now() - now);
            calls += 1;
        }
    }

    fn fill(&mut self, records: u32) {
        for _ in 0..records {
            let digits = format_hex(self.next);
            self.body[..16].copy_from_slice(&digits);
            self.next += 1;
            self.batch.push_body(0, 0, 9, Body::Bytes(&self.body)).expect("it fits");
        }
    }

    fn percentiles(&mut self) -> [u64; 3] {
        self.latencies.sort_unstable();
        let all = std::mem::take(&mut self.latencies);
        [50, 99, 100].map(|percent| all.get((all.len().max(1) - 1) * percent / 100).copied().unwrap_or(0))
    }
}

fn format_hex(number: u64) -> [u8; 16] {
    std::array::from_fn(|digit| b"0123456789abcdef"[(number >> (60 - 4 * digit)) as usize & 15])
}
