//! What is kept up, call to `written`, by rings and by the framed Unix socket; what a full ring does to its callers; and a
//! durable answer beside a bare synced write. All by the SDK, by four processes at once, with a daemon on the same cores.
//!
//! The log is kept at 1 GiB by retention, so that the segments that go are used again: a log that only grows is made of
//! zeroes first, and then the device sets the pace of both, at half of what it can (BENCHMARKS.md).
//!
//! Kinds take turns within a round, rings and socket one right after the other. What is told is the median over rounds with
//! the least and the greatest; a ratio is taken within its round. Processor time is that of all four and of the daemon.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use clad_client::{Event, Reader, Start};
use clad_shm::clock;

use crate::PROCESSES;
use crate::daemon::Daemon;
use crate::load;

/// Bytes of a ring.
const RING: &str = "4MiB";
/// Records in an append.
const BATCHES: [u64; 5] = [1, 16, 64, 256, 1024];
/// Bytes of a record.
const SIZE: usize = 128;

/// Appends that each process keeps in flight.
const fn in_flight(records: u64) -> u64 {
    match records {
        1 => 2048,
        16 => 256,
        64 => 64,
        256 => 16,
        _ => 8,
    }
}

/// What one process says of a slice.
#[derive(Clone, Copy, Debug)]
struct Slice {
    records: u64,
    from: u64,
    to: u64,
    used: u64,
    calls: u64,
    waited: u64,
    percentiles: [u64; 3],
}

struct Loader {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Loader {
    fn start(index: usize, daemon: &Daemon, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--load", &index.to_string(), &SIZE.to_string(), &daemon.address(), &daemon.framed()])
            .arg(folder.join("bare"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process that logs");
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it is ready");
        assert_eq!(line, "ready\n");
        Self { child, answers }
    }

    fn order(&mut self, kind: &str, numbers: [u64; 4]) {
        let [records, in_flight, millis, start] = numbers;
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        writeln!(pipe, "{kind} {records} {in_flight} {millis} {start}").expect("it lives");
    }

    fn answer(&mut self) -> Slice {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [records, from, to, used, calls, waited, p50, p99, greatest] = numbers[..] else { panic!("{line}") };
        Slice { records, from, to, used, calls, waited, percentiles: [p50, p99, greatest] }
    }
}

/// All processes and their daemon.
struct World {
    daemon: Daemon,
    loaders: Vec<Loader>,
    millis: u64,
}

/// What a slice of all came to.
#[derive(Clone, Copy, Debug)]
struct Kept {
    per_second: f64,
    writers_ns: f64,
    daemon_ns: f64,
    p50_us: f64,
}

impl World {
    fn slices(&mut self, kind: &str, records: u64, who: usize) -> (Vec<Slice>, u64) {
        let used = self.daemon.processor_ns();
        let start = clock::now() + 2_000_000;
        let order = [records, in_flight(records), self.millis, start];
        self.loaders.iter_mut().take(who).for_each(|loader| loader.order(kind, order));
        let slices = self.loaders.iter_mut().take(who).map(Loader::answer).collect();
        (slices, self.daemon.processor_ns() - used)
    }

    fn sustain(&mut self, kind: &str, records: u64) -> (Kept, u64) {
        let (slices, daemon) = self.slices(kind, records, PROCESSES);
        let from = slices.iter().map(|slice| slice.from).min().unwrap_or(0);
        let to = slices.iter().map(|slice| slice.to).max().unwrap_or(0);
        let all: u64 = slices.iter().map(|slice| slice.records).sum();
        let writers: u64 = slices.iter().map(|slice| slice.used).sum();
        let p50 = slices.iter().map(|slice| slice.percentiles[0]).max().unwrap_or(0);
        let kept = Kept {
            per_second: all as f64 * 1e9 / (to - from) as f64,
            writers_ns: writers as f64 / all as f64,
            daemon_ns: daemon as f64 / all as f64,
            p50_us: p50 as f64 / 1e3,
        };
        (kept, all)
    }
}

/// Runs it; `timed`: tells figures, else checks counts and contents alone.
pub(crate) fn run(program: &Path, folder: &Path, set: Option<&str>, rounds: usize, timed: bool) -> String {
    let folder = folder.join("sustained");
    std::fs::create_dir_all(&folder).expect("a folder");
    let daemon = Daemon::start(program, &folder, RING, set);
    let loaders = (0..PROCESSES).map(|index| Loader::start(index, &daemon, &folder)).collect();
    let mut world = World { daemon, loaders, millis: if timed { 1000 } else { 30 } };
    let mut measurements = Measurements::default();
    let mut logged = 0;
    for _ in 0..rounds {
        for records in BATCHES {
            for kind in ["socket", "ring"] {
                let (kept, all) = world.sustain(kind, records);
                measurements.kept.entry((kind, records)).or_default().push(kept);
                logged += all;
            }
        }
        let (slices, _) = world.slices("flood", 1, PROCESSES);
        logged += slices.iter().map(|slice| slice.records).sum::<u64>();
        measurements.floods.push(slices);
        if set.is_some_and(|set| set.ends_with("fire_and_forget")) {
            continue; // it promises no more than `written`
        }
        let bare = world.slices("bare", 1, 1).0[0];
        let durable = world.slices("durable", 1, 1).0[0];
        logged += durable.records;
        measurements.durable.push((bare.percentiles, durable.percentiles));
    }
    for loader in &mut world.loaders {
        drop(loader.child.stdin.take());
        assert!(loader.child.wait().expect("a child").success(), "a process that logs failed");
    }
    if !timed {
        read_back(&world.daemon, logged);
        println!("{logged} records of the sustained load are in the log as they were acknowledged");
    }
    measurements.text()
}

/// Every record that was acknowledged is in the log once, whole, and each process's in its order.
fn read_back(daemon: &Daemon, logged: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let filling = load::body(SIZE);
    let (mut found, mut next) = (0, [0_u64; PROCESSES]);
    runtime.block_on(async {
        let address = daemon.framed().parse().expect("an address");
        let mut reader = Reader::builder(address).from(Start::Oldest).open().await.expect("a reader");
        while let Some(event) = reader.next().await.expect("it reads") {
            let Event::Records(chunk) = event else { panic!("{event:?}") };
            for (_, record) in chunk.records() {
                let body = record.body_bytes().expect("bytes");
                assert!(body.len() == SIZE && body[16..] == filling[16..], "record {found}");
                let number = std::str::from_utf8(&body[..16]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                let number = number.expect("a number");
                // Two producers of a process, which wait for all of one kind before they begin another.
                let of = &mut next[(number >> 48) as usize];
                assert_eq!(number & 0xFFFF_FFFF_FFFF, *of, "out of order, lost or twice");
                *of += 1;
                found += 1;
            }
        }
    });
    assert_eq!(found, logged, "what was acknowledged and what is in the log");
}

#[derive(Default)]
struct Measurements {
    kept: std::collections::BTreeMap<(&'static str, u64), Vec<Kept>>,
    floods: Vec<Vec<Slice>>,
    durable: Vec<([u64; 3], [u64; 3])>,
}

/// Least, median and greatest.
fn spread(of: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    [0, all.len() / 2, all.len() - 1].map(|at| all[at])
}

fn list([low, mid, high]: [f64; 3]) -> String {
    format!("{mid:.2} ({low:.2} to {high:.2})")
}

impl Measurements {
    fn best(&self, kind: &'static str, round: usize) -> f64 {
        BATCHES.iter().map(|records| self.kept[&(kind, *records)][round].per_second).fold(0.0, f64::max)
    }

    fn text(&self) -> String {
        let rounds = self.floods.len();
        let mut text = format!(
            "sustained, {SIZE} B, call to written, {PROCESSES} processes, {rounds} rounds: median (least to greatest)\n"
        );
        for records in BATCHES {
            for kind in ["socket", "ring"] {
                let all = &self.kept[&(kind, records)];
                text += &format!(
                    "{kind:>6} {records:>5} a call  M records/s {}   ns a record: writers {}, daemon {}   p50 us {}\n",
                    list(spread(all.iter().map(|kept| kept.per_second / 1e6))),
                    list(spread(all.iter().map(|kept| kept.writers_ns))),
                    list(spread(all.iter().map(|kept| kept.daemon_ns))),
                    list(spread(all.iter().map(|kept| kept.p50_us))),
                );
            }
            let (ring, socket) = (&self.kept[&("ring", records)], &self.kept[&("socket", records)]);
            let ratio = |of: fn(&Kept) -> f64| list(spread(ring.iter().zip(socket).map(|(r, s)| of(r) / of(s))));
            text += &format!(
                "       {records:>5} a call: rings to socket {}, by processor time {}\n",
                ratio(|kept| kept.per_second),
                ratio(|kept| 1.0 / (kept.writers_ns + kept.daemon_ns)),
            );
        }
        let best = (0..rounds).map(|round| self.best("ring", round) / self.best("socket", round));
        text += &format!("best of rings to best of socket {}\n", list(spread(best)));
        let single = (0..rounds).map(|round| self.kept[&("ring", 1)][round].per_second / self.best("socket", round));
        text += &format!("rings, one record a call, to best of socket {}\n", list(spread(single)));
        for (what, of) in [
            (
                "calls that waited, percent",
                (|slice| slice.waited as f64 * 100.0 / slice.calls as f64) as fn(&Slice) -> f64,
            ),
            ("p50 of those, us", |slice| slice.percentiles[0] as f64 / 1e3),
            ("p99 of those, us", |slice| slice.percentiles[1] as f64 / 1e3),
            ("longest, us", |slice| slice.percentiles[2] as f64 / 1e3),
        ] {
            text += &format!("flood: {what} {}\n", list(spread(self.floods.iter().flatten().map(of))));
        }
        if self.durable.is_empty() {
            return text;
        }
        for (at, what) in ["p50", "p99"].into_iter().enumerate() {
            text += &format!(
                "durable, one in flight, both spinning: {what} us {}, bare {}, ratio {}\n",
                list(spread(self.durable.iter().map(|(_, ring)| ring[at] as f64 / 1e3))),
                list(spread(self.durable.iter().map(|(bare, _)| bare[at] as f64 / 1e3))),
                list(spread(self.durable.iter().map(|(bare, ring)| ring[at] as f64 / bare[at] as f64))),
            );
        }
        text
    }
}
