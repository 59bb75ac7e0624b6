//! Programs that log over every transport at every level, as long as a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clad_client::{Address, Cursor, Cursors, LogId, Producer, Reader, Record, Start};
use clad_e2e::tool::{Running, clactl};
use clad_e2e::{Daemon, TEST_TIMEOUT};
use clad_proto::AckLevel;

/// What each program hands in at a time.
const RECORDS: usize = 8;
const BODY_BYTES: usize = 512;
const APPEND_INTERVAL: Duration = Duration::from_millis(8);

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    programs: Vec<JoinHandle<()>>,
    reader: Running,
}

impl Load {
    pub(crate) fn on(daemon: &Daemon) -> Self {
        let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let programs = [("unix", AckLevel::Durable), ("tcp", AckLevel::Written), ("grpc", AckLevel::Received)]
            .map(|(transport, level)| {
                let (address, stop, acked) = (daemon.address(transport), stop.clone(), acked.clone());
                thread::spawn(move || program(&address, level, &stop, &acked))
            })
            .into_iter()
            .chain([follower(&daemon.address("unix"), &stop)])
            .collect();
        let reader = Running::start(&mut clactl(&["tail", "-f", "-o", "cat", "--server", &daemon.address("unix")]));
        Self { stop, acked, programs, reader }
    }

    /// Appends that were answered with their level so far.
    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// Ends all of it; what a program met with is met with here.
    pub(crate) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for program in self.programs.drain(..) {
            program.join().expect("a program that logs");
        }
        assert!(self.reader.is_running(), "the reader ended: {}", self.reader.said());
    }
}

/// Reads what is appended, and leaves its place with the daemon.
fn follower(address: &str, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (address, stop): (Address, _) = (address.parse().expect("an address"), stop.clone());
    let follow = async move {
        let mut cursors = Cursors::connect(address.clone()).await.expect("connected");
        let reader = Reader::builder(address).from(Start::Tail(0)).follow(true);
        let mut reader = reader.open().await.expect("opened");
        let mut committed = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let next = tokio::time::timeout(Duration::from_millis(100), reader.next()).await;
            next.map_or(Ok(None), |event| event.map(Some)).expect("it goes on");
            if let Some(place) = reader.cursor().filter(|_| committed.elapsed() > Duration::from_millis(300)) {
                // What it has read is written, and on the disk a moment later.
                drop(cursors.commit("to-b", place, true, "").await);
                committed = Instant::now();
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    thread::spawn(move || runtime.block_on(follow))
}

/// Sets a cursor that holds.
pub(crate) fn commit_cursor(daemon: &Daemon, name: &str, offset: u64) {
    let status = daemon.status();
    let log_id = LogId::from_bytes(status.log_id[..].try_into().expect("16 bytes"));
    let place = Cursor { log_id, epoch: status.epoch, offset };
    let address = daemon.address("unix").parse().expect("an address");
    let commit = async { Cursors::connect(address).await.expect("connected").commit(name, place, true, "").await };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(commit).expect("committed");
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.kill();
    }
}

fn program(address: &str, level: AckLevel, stop: &AtomicBool, acked: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = Producer::builder(address.parse().expect("an address")).component("load").level(level);
        let producer = builder.connect().await.expect("connected");
        let records = vec![Record::text(0, 9, "x".repeat(BODY_BYTES)); RECORDS];
        while !stop.load(Ordering::Relaxed) {
            let receipt = tokio::time::timeout(TEST_TIMEOUT, producer.append(&records)).await.expect("an answer");
            assert!(receipt.expect("taken").level >= level);
            acked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(APPEND_INTERVAL).await;
        }
    });
}
