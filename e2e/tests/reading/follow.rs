//! Following over rotations, cut connections and killed daemons; and each place to start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use clad_client::{AckLevel, Address, Event, Filter, Producer, Reader, Record, Severity, Start};
use tokio::net::{UnixListener, UnixStream};

use crate::{Appender, address, numbers, quick, read_all, runtime, small, soon};

/// Records between two breaks.
const STRETCH: u64 = 40;
/// Breaks of each kind.
const BREAKS: u64 = 4;
/// One record in so many is loud.
const LOUD_EVERY: u64 = 7;

/// Passes connections on to a daemon. Each can be cut.
struct Proxy {
    address: Address,
    cut: tokio::sync::watch::Sender<u64>,
    taken: Arc<AtomicU64>,
}

impl Proxy {
    fn new(folder: &std::path::Path, to: std::path::PathBuf) -> Self {
        let path = folder.join("proxy.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let (cut, cuts) = tokio::sync::watch::channel(0);
        let taken = Arc::new(AtomicU64::new(0));
        let count = taken.clone();
        tokio::spawn(async move {
            loop {
                let (mut from, _) = listener.accept().await.expect("a client");
                count.fetch_add(1, Ordering::Relaxed);
                let (to, mut cuts) = (to.clone(), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut to) = UnixStream::connect(to).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { address: Address::unix(path), cut, taken }
    }
}

fn severity(number: u64) -> i32 {
    if number.is_multiple_of(LOUD_EVERY) { 17 } else { 9 }
}

async fn follow(mut reader: Reader, to: u64) -> Vec<crate::Got> {
    let mut all = Vec::new();
    // Its place says when it is done: with a filter the last records may be none of its own.
    while reader.cursor().is_none_or(|cursor| cursor.offset < to) {
        match soon(reader.next()).await.expect("it comes back by itself").expect("it follows") {
            Event::Records(chunk) => all.extend(chunk.records().map(|(offset, record)| {
                (offset, String::from_utf8(record.body_bytes().expect("a body").to_vec()).expect("text"))
            })),
            Event::Gap(gap) => panic!("{gap:?}"),
            _ => {}
        }
    }
    all
}

#[test]
fn each_record_once_over_rotations_cuts_and_kills() {
    let mut daemon = small().fixed_ports().start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let proxy = Proxy::new(daemon.setup().dir(), daemon.socket());
        let to = STRETCH * BREAKS * 3;
        let loud = || Filter::new().severity_at_least(Severity(17));
        let mut followers = Vec::new();
        for (at, filter) in
            [(proxy.address.clone(), false), (proxy.address.clone(), true), (address(&daemon, "grpc"), true)]
        {
            let builder = quick(Reader::builder(at)).from(Start::Offset(0)).follow(true);
            let builder = if filter { builder.filter(loud()) } else { builder };
            followers.push((filter, tokio::spawn(follow(builder.open().await.expect("opened"), to))));
        }
        let producer = Producer::builder(address(&daemon, "unix")).component("follow").level(AckLevel::Durable).start();
        let producer = producer.expect("started");
        for number in 0..to {
            let record = Record::text(1, severity(number), format!("number {number}"));
            producer.append(&[record]).await.expect("durable");
            if number % STRETCH == STRETCH / 2 {
                // The daemon is asked and started by calls that wait.
                tokio::task::block_in_place(|| match number / STRETCH % 3 {
                    0 => drop(daemon.admin().rotate().expect("rotated")),
                    1 => proxy.cut.send_modify(|cuts| *cuts += 1),
                    _ => {
                        daemon.kill9();
                        daemon.restart();
                    }
                });
            }
        }
        for (filter, follower) in followers {
            let expected: Vec<_> =
                numbers(0..to).into_iter().filter(|(number, _)| !filter || severity(*number) == 17).collect();
            assert_eq!(soon(follower).await.expect("no panic"), expected, "a gap, a repeat, or another order");
        }
        assert!(proxy.taken.load(Ordering::Relaxed) >= 2 + 2 * BREAKS, "the connections were cut");
    });
}

#[test]
fn from_an_offset_a_time_the_end_and_the_last_few() {
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..30).for_each(|number| appender.text(format!("number {number}")));
    runtime().block_on(async {
        for transport in ["unix", "grpc"] {
            let builder = || Reader::builder(address(&daemon, transport));
            for (start, first) in
                [(Start::Oldest, 0), (Start::Offset(12), 12), (Start::Tail(4), 26), (Start::Tail(99), 0)]
            {
                let reader = builder().from(start).open().await.expect("opened");
                assert_eq!(read_all(reader, usize::MAX).await.expect("read").records, numbers(first..30), "{start:?}");
            }
        }
        let now = || i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos());
        let now = now().expect("before 2262");
        for (time, first) in [(now - 1_000_000, 30), (now + 1_000_000, 31)] {
            let stated = Record::text(u64::try_from(time).expect("after 1970"), 9, format!("number {first}"));
            let producer = Producer::builder(address(&daemon, "unix")).component("time").level(AckLevel::Durable);
            let producer = producer.connect().await.expect("connected");
            producer.append(&[stated]).await.expect("durable");
        }
        let since = |time| Reader::builder(address(&daemon, "unix")).since(time);
        let reader = since(now).open().await.expect("opened");
        assert_eq!(
            read_all(reader, usize::MAX).await.expect("read").records,
            numbers(31..32),
            "the records' own times"
        );
        // Only what comes from now on.
        let end =
            Reader::builder(address(&daemon, "unix")).from(Start::Tail(0)).follow(true).open().await.expect("opened");
        appender.text("number 32");
        assert_eq!(read_all(end, 1).await.expect("read").records, numbers(32..33));
    });
}
