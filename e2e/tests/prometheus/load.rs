//! Programs that log over every transport at every level, as long as a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clad_client::{Producer, Record};
use clad_e2e::tool::{Running, clactl};
use clad_e2e::{Daemon, TEST_TIMEOUT};
use clad_proto::AckLevel;

/// What each program hands in at a time.
const RECORDS: usize = 8;
const BODY_BYTES: usize = 512;
const APPEND_INTERVAL: Duration = Duration::from_millis(2);

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
            .into();
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
