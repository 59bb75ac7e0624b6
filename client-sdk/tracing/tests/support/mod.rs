//! A daemon that stores everything once, played by a thread; it can be cut off, and comes back.

#![allow(dead_code)] // no test uses all of it

#[path = "../../../tests/support/mod.rs"]
mod frames;

use clad_client::{
    AckLevel, Address, AnyValue, DROPS_EVENT_NAME, ErrorCode, ErrorInfo, KeyValue, ProducerId, Record, Stats, blocking,
};
use clad_proto::{PayloadView, frame::*};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::{net::UnixStream, sync::watch};

pub(crate) const SOON: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Log {
    records: Vec<Record>,
    /// Offsets of appends, by producer and first sequence.
    places: HashMap<(ProducerId, u64), u64>,
    /// The next sequence of a producer.
    expected: HashMap<ProducerId, u64>,
}

pub(crate) struct Daemon {
    pub(crate) address: Address,
    log: Arc<Mutex<Log>>,
    /// False: no connection is served.
    serves: watch::Sender<bool>,
    /// False: what is stored is `written`, and not `durable`.
    syncs: watch::Sender<bool>,
    /// The highest level that connections from now on are offered.
    offered: Arc<Mutex<AckLevel>>,
    _runtime: tokio::runtime::Runtime,
}

impl Daemon {
    pub(crate) fn new() -> Self {
        let daemon = Self::silent();
        daemon.serve(true);
        daemon
    }

    /// One that answers nothing until it is let.
    pub(crate) fn silent() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let fake = runtime.block_on(async { frames::Fake::new() });
        let (address, log) = (fake.address.clone(), Arc::<Mutex<Log>>::default());
        let ((serves, served), (syncs, synced)) = (watch::channel(false), watch::channel(true));
        let offered = Arc::new(Mutex::new(AckLevel::Durable));
        runtime.spawn(run(fake, log.clone(), offered.clone(), served, synced));
        Self { address, log, serves, syncs, offered, _runtime: runtime }
    }

    /// Serves connections; or cuts them off, and takes none.
    pub(crate) fn serve(&self, serves: bool) {
        self.serves.send_replace(serves);
    }

    /// Makes what is stored durable; or nothing of it from now on.
    pub(crate) fn sync(&self, syncs: bool) {
        self.syncs.send_replace(syncs);
    }

    /// Offers connections from now on no more than a level.
    pub(crate) fn offer(&self, highest: AckLevel) {
        *self.offered.lock().expect("sound") = highest;
    }

    pub(crate) fn len(&self) -> usize {
        self.log.lock().expect("sound").records.len()
    }

    /// Number of producers that appended.
    pub(crate) fn producers(&self) -> usize {
        self.log.lock().expect("sound").expected.len()
    }

    /// Everything that was stored; without reports of drops.
    pub(crate) fn records(&self) -> Vec<Record> {
        let records = self.log.lock().expect("sound").records.clone();
        records.into_iter().filter(|record| record.event_name != DROPS_EVENT_NAME).collect()
    }

    /// Drops as the records of the log report them.
    pub(crate) fn reported_drops(&self) -> i64 {
        let log = self.log.lock().expect("sound");
        let reports = log.records.iter().filter(|record| record.event_name == DROPS_EVENT_NAME);
        reports.map(|report| int(report, "clad.dropped.records")).sum()
    }
}

async fn run(
    fake: frames::Fake,
    log: Arc<Mutex<Log>>,
    offered: Arc<Mutex<AckLevel>>,
    mut served: watch::Receiver<bool>,
    synced: watch::Receiver<bool>,
) {
    loop {
        if served.wait_for(|served| *served).await.is_err() {
            return;
        }
        let mut cut = served.clone();
        tokio::select! {
            connection = fake.connection() => {
                let (log, synced) = (log.clone(), synced.clone());
                let highest = *offered.lock().expect("sound");
                tokio::spawn(async move {
                    // A connection that says nothing holds up no other: a child of fork keeps its parent's open.
                    tokio::select! {
                        () = serve(connection, &log, highest, synced) => {}
                        _ = cut.wait_for(|served| !*served) => {}
                    }
                });
            }
            _ = served.wait_for(|served| !*served) => {}
        }
    }
}

async fn serve(connection: UnixStream, log: &Mutex<Log>, highest: AckLevel, mut synced: watch::Receiver<bool>) {
    let Some(mut peer) = frames::Peer::meet(connection).await else { return };
    let id = peer.hello.producer_id;
    let mut welcome = frames::welcome(&peer.hello);
    welcome.highest_ack = highest;
    {
        let log = log.lock().expect("sound");
        let end = log.records.len() as u64;
        (welcome.received, welcome.written, welcome.durable) = (end, end, end);
        welcome.last = log.expected.get(&id).map(|next| LastStored {
            sequence: next - 1,
            offset: end - 1,
            level: AckLevel::Durable,
        });
    }
    peer.send(Frame::Welcome(welcome)).await;
    loop {
        let frame = tokio::select! {
            frame = peer.try_next() => frame,
            changed = synced.changed() => {
                let end = log.lock().expect("sound").records.len() as u64;
                if changed.is_ok() && *synced.borrow() {
                    peer.durable(end).await;
                }
                continue;
            }
        };
        let Some(frame) = frame else { return };
        match frame {
            Frame::Append(append) if append.head.level > highest => {
                peer.refused(&append, ErrorInfo::new(ErrorCode::LevelUnreachable, "not offered")).await;
            }
            Frame::Append(append) if highest < AckLevel::Durable && is_behind(log, id, &append.head) => {
                let expected_sequence = Some(expected(log, id));
                let error = ErrorInfo::new(ErrorCode::SequenceGap, "");
                peer.refused(&append, ErrorInfo { expected_sequence, ..error }).await;
            }
            Frame::Append(append) => {
                let (offset, end) = log.lock().expect("sound").store(id, &append);
                if append.head.level > AckLevel::None {
                    peer.accepted(&append, offset, 1).await;
                    let level = if *synced.borrow() { AckLevel::Durable } else { AckLevel::Written };
                    peer.watermark(0, level.min(highest), end, 1, 0).await;
                }
            }
            Frame::Flush(flush) => {
                let end = log.lock().expect("sound").records.len() as u64;
                peer.watermark(flush.request_id, flush.level, end, 1, 0).await;
            }
            Frame::Bye => return,
            other => panic!("{other:?}"),
        }
    }
}

fn expected(log: &Mutex<Log>, id: ProducerId) -> u64 {
    log.lock().expect("sound").expected.get(&id).copied().unwrap_or_default()
}

/// Behind one that was refused.
fn is_behind(log: &Mutex<Log>, id: ProducerId, head: &AppendHead) -> bool {
    !head.gap && head.first_seq > expected(log, id)
}

impl Log {
    fn store(&mut self, id: ProducerId, append: &Append) -> (u64, u64) {
        assert!(append.checksum_holds());
        let AppendHead { first_seq, count, gap, .. } = append.head;
        let expected = self.expected.entry(id).or_default();
        if first_seq >= *expected {
            assert!(first_seq == *expected || gap, "{first_seq} is not {expected}");
            *expected = first_seq + u64::from(count);
            self.places.insert((id, first_seq), self.records.len() as u64);
            let view = PayloadView::parse(&append.payload, count).expect("a payload");
            self.records.extend(view.records().map(|record| record.to_owned()));
        }
        (self.places[&(id, first_seq)], self.records.len() as u64)
    }
}

pub(crate) fn value<'a>(record: &'a Record, key: &str) -> Option<&'a AnyValue> {
    let pair = record.attributes.iter().rev().find(|pair| pair.key == key);
    pair.and_then(|pair| pair.value.as_ref())
}

pub(crate) fn text<'a>(record: &'a Record, key: &str) -> &'a str {
    match value(record, key) {
        Some(AnyValue::String(text)) => text,
        other => panic!("{key} is {other:?}"),
    }
}

pub(crate) fn int(record: &Record, key: &str) -> i64 {
    match value(record, key) {
        Some(AnyValue::Int(number)) => *number,
        other => panic!("{key} is {other:?}"),
    }
}

pub(crate) fn body(record: &Record) -> &str {
    match &record.body {
        Some(AnyValue::String(text)) => text,
        other => panic!("the body is {other:?}"),
    }
}

/// The spans of a record: their names and fields.
pub(crate) fn spans(record: &Record) -> Vec<&[KeyValue]> {
    let Some(AnyValue::Array(spans)) = value(record, "spans") else { return Vec::new() };
    fn pairs(span: &AnyValue) -> &[KeyValue] {
        match span {
            AnyValue::KvList(pairs) => pairs,
            other => panic!("a span is {other:?}"),
        }
    }
    spans.iter().map(pairs).collect()
}

/// Everything is home; the counters.
pub(crate) fn close(producer: blocking::Producer) -> Stats {
    producer.close(SOON).expect("everything is home").stats
}
