//! Appends of one log that another takes over, with real daemons: each once and in order however often daemon and connection
//! die, under the checksum of the first client; and what no log takes.

mod import;
mod refusals;
mod shown;

use std::future::Future;
use std::time::Duration;

use clad_client::{
    AckLevel, Address, Event, ForwardAs, ForwardError, Forwarded, Forwarder, ForwarderOptions, LogId, Producer,
    RawRecords, Reader, Record, SkipReason, StreamName,
};
use clad_e2e::{Daemon, Rng, Setup, TEST_TIMEOUT, readback, seed};

/// Kills of the daemon that takes the stream, and as many of the connection.
const KILLS: u64 = 25;
/// Appends of the source: more than come through before the last kill.
const APPENDS: u64 = 1200;
/// Appends that are put in line between two of them, at most.
const APPENDS_PER_LIFE_MAX: u64 = 40;

/// Runs a client to its end.
fn on<T>(client: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(10 * TEST_TIMEOUT, client).await.expect("in time") })
}

fn unix(daemon: &Daemon) -> Address {
    daemon.address("unix").parse().expect("an address")
}

fn log_id(daemon: &Daemon) -> LogId {
    let bytes: [u8; 16] = daemon.status().log_id[..].try_into().expect("16 bytes");
    LogId::from_bytes(bytes)
}

fn main_stream() -> StreamName {
    StreamName::new("main").expect("a name")
}

/// Appends of one to three records, and waits for the last.
async fn fill(daemon: &Daemon, from: u64, appends: u64) {
    let producer = Producer::builder(unix(daemon)).component("source").level(AckLevel::Received).connect().await;
    let producer = producer.expect("a producer");
    for at in from..from + appends {
        let records: Vec<Record> = (0..=at % 3).map(|n| Record::text(1 + at, 9, format!("{at}.{n}"))).collect();
        producer.append(&records).await.expect("an append");
    }
    producer.flush(AckLevel::Durable).await.expect("a flush");
    producer.close().await.expect("an end");
}

/// Every append of a log, as its daemon gives it.
async fn appends(address: Address) -> Vec<RawRecords> {
    let mut reader = Reader::builder(address).level(AckLevel::Written).open().await.expect("a reader");
    let mut all = Vec::new();
    while let Some(event) = reader.next().await.expect("no error") {
        match event {
            Event::Records(chunk) => all.push(chunk.raw().expect("by the framed protocol")),
            Event::Gap(gap) => panic!("{gap:?}"),
            _ => {}
        }
    }
    all
}

async fn connect(to: &Address, source: LogId) -> Result<Forwarder, ForwardError> {
    Forwarder::connect(to, source, main_stream(), &ForwarderOptions::default()).await
}

/// Forwards all of a source's appends from where the log stands, and returns the last receipt.
async fn forward_all(to: &Address, source: LogId, all: &[RawRecords]) -> Result<Option<Forwarded>, ForwardError> {
    let mut forwarder = connect(to, source).await?;
    let state = forwarder.state().copied();
    let mut previous = state.map_or(0, |state| state.end);
    let (mut begins, mut last) = (state.is_none(), None);
    let from = previous;
    for records in all.iter().filter(|records| records.head().first_offset >= from) {
        while !forwarder.has_room() {
            last = Some(forwarder.next().await?);
        }
        let skip = (records.head().first_offset > previous).then_some(SkipReason::Filter);
        let how = ForwardAs { previous, skip, begins, level: AckLevel::Durable };
        forwarder.forward(how, records).await?;
        (previous, begins) = (records.end_offset(), false);
    }
    while forwarder.pending() > 0 {
        last = Some(forwarder.next().await?);
    }
    Ok(last)
}

#[test]
fn each_append_is_there_once_and_in_order_however_often_daemon_and_connection_die() {
    let source = Daemon::start();
    let mut far = Setup::new().fixed_ports().start();
    let (from, mut rng) = (log_id(&source), Rng::new(seed()));
    on(fill(&source, 0, APPENDS));
    let all = on(appends(unix(&source)));
    assert_eq!(all.len() as u64, APPENDS);
    let (mut acked, mut kills, mut cuts, mut partial) = (0, 0, 0, 0);
    while kills + cuts < 2 * KILLS {
        let appends = 1 + rng.below(APPENDS_PER_LIFE_MAX);
        let budget = rng.below(appends);
        let is_kill = kills < KILLS && (rng.below(2) == 0 || cuts >= KILLS);
        let address = unix(&far);
        let pid = far.pid();
        let (end, in_flight) = on(async {
            let mut forwarder = connect(&address, from).await.expect("it is there");
            let state = forwarder.state().copied();
            let mut previous = state.map_or(0, |state| state.end);
            assert!(previous >= acked, "{acked} was durable, and {previous} is expected");
            if let Some(state) = state.filter(|state| state.count > 0) {
                let last =
                    all.iter().find(|records| records.head().first_offset == state.first).expect("of the source");
                assert_eq!((last.head().payload_crc, last.end_offset()), (state.payload_crc, state.end));
            }
            let mut begins = state.is_none();
            let from = previous;
            let mut rest = all.iter().filter(|records| records.head().first_offset >= from).take(appends as usize);
            let mut receipts = 0;
            loop {
                while forwarder.has_room()
                    && let Some(records) = rest.next()
                {
                    assert_eq!(records.head().first_offset, previous);
                    let level = [AckLevel::Received, AckLevel::Written, AckLevel::Durable][rng.below(3) as usize];
                    let how = ForwardAs { previous, skip: None, begins, level };
                    forwarder.forward(how, records).await.expect("it is taken");
                    (previous, begins) = (records.end_offset(), false);
                }
                if forwarder.pending() == 0 || receipts >= budget {
                    break (acked, forwarder.pending());
                }
                let receipt = forwarder.next().await.expect("a receipt");
                receipts += 1;
                if receipt.level == AckLevel::Durable {
                    acked = receipt.end;
                }
            }
        });
        assert_eq!(end, acked);
        partial += u64::from(in_flight > 0);
        if is_kill {
            assert_eq!(far.pid(), pid);
            far.kill9();
            far.restart();
            kills += 1;
        } else {
            cuts += 1; // the forwarder was dropped with what it had in flight
        }
    }
    on(forward_all(&unix(&far), from, &all)).expect("the rest");
    let there = on(appends(unix(&far)));
    let of = |records: &RawRecords| (records.head().payload_crc, records.payload().clone(), records.head().count);
    assert_eq!(there.len(), all.len(), "each append once");
    assert!(there.iter().map(of).eq(all.iter().map(of)), "the same bytes and checksums, in order");
    for (here, source) in there.iter().zip(&all) {
        assert_eq!(here.head().first_seq, source.head().first_offset);
    }
    assert!(partial > KILLS / 5, "only {partial} ends with something in flight: nothing is shown");
    drop(readback::files(far.dir()));
}

#[test]
fn a_path_grows_and_a_circle_is_refused() {
    let (one, two, three) = (Daemon::start(), Daemon::start(), Daemon::start());
    let ids = [&one, &two, &three].map(log_id);
    on(async {
        fill(&one, 0, 3).await;
        forward_all(&unix(&two), ids[0], &appends(unix(&one)).await).await.expect("from one to two");
        fill(&two, 100, 1).await;
        let of_two = appends(unix(&two)).await;
        forward_all(&unix(&three), ids[1], &of_two).await.expect("from two to three");
        let mut reader = Reader::builder(unix(&three)).level(AckLevel::Written).open().await.expect("a reader");
        let mut paths = Vec::new();
        while let Some(Event::Records(chunk)) = reader.next().await.expect("no error") {
            let meta = chunk.peer_meta();
            let (path, origin) = (meta.path.clone().expect("a path"), meta.origin.clone().expect("an origin"));
            assert_eq!(meta.transport.map(|transport| transport.name()), Some("relay"));
            paths.push((path.logs, origin.log_id, origin.first_offset));
        }
        let wanted = [0, 1, 3].map(|offset| (vec![ids[0], ids[1]], ids[0], offset));
        assert_eq!(paths[..3], wanted);
        assert_eq!(paths[3], (vec![ids[1]], ids[1], 6), "what two's own clients appended came from there first");

        // Back to where it came from, and to itself.
        let of_three = appends(unix(&three)).await;
        for back in [&one, &two] {
            let error = forward_all(&unix(back), ids[2], &of_three).await.expect_err("it has been there");
            assert!(matches!(error, ForwardError::Loop { .. }) && !error.is_retryable(), "{error}");
        }
        let error = connect(&unix(&one), ids[0]).await.expect_err("its own");
        assert!(matches!(error, ForwardError::Loop { .. }), "{error}");
        assert_eq!(appends(unix(&one)).await.len(), 3, "nothing of it is stored");
    });
}

/// The same over TCP, with skips that are stated.
#[test]
fn what_a_filter_leaves_out_is_stated_and_nothing_else_is_left_out() {
    let (source, far) = (Daemon::start(), Daemon::start());
    let from = log_id(&source);
    on(async {
        fill(&source, 0, 9).await;
        let all = appends(unix(&source)).await;
        let some: Vec<RawRecords> = all.iter().step_by(2).cloned().collect();
        let last = forward_all(&unix(&far), from, &some).await.expect("with skips").expect("a receipt");
        assert_eq!((last.level, last.end), (AckLevel::Durable, all[8].end_offset()));
        assert_eq!(appends(unix(&far)).await.len(), 5);

        // Two forwarders of one stream: the second is refused, and asks again.
        fill(&source, 9, 3).await;
        let all = appends(unix(&source)).await;
        let (mut one, mut two) = (connect(&unix(&far), from).await.unwrap(), connect(&unix(&far), from).await.unwrap());
        let how = |previous| ForwardAs { previous, skip: None, begins: false, level: AckLevel::Written };
        for (forwarder, wanted) in [(&mut one, true), (&mut two, false)] {
            for records in &all[9..11] {
                forwarder.forward(how(records.head().first_offset), records).await.expect("in line");
            }
            match forwarder.next().await {
                Ok(receipt) if wanted => assert_eq!(receipt.first, all[9].head().first_offset),
                Err(ForwardError::Gap { expected, .. }) if !wanted => assert_eq!(expected, all[10].end_offset()),
                other => panic!("{other:?}"),
            }
        }
        let error = two.forward(how(0), &all[0]).await.expect_err("it is at its end");
        assert!(error.is_retryable(), "{error}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        forward_all(&unix(&far), from, &all).await.expect("the rest");
        assert_eq!(appends(unix(&far)).await.len(), 8);
    });
}
