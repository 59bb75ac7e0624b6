//! The clients: one for each transport × level, one for each transport that mixes levels, one that logs at `posted`, and
//! one in each round that leaves without hearing an answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clad_client::{AckLevel, AppendError, Producer};
use clad_e2e::TEST_TIMEOUT;
use tokio::sync::Semaphore;

use crate::world::World;

pub(crate) const TRANSPORTS: [&str; 4] = ["unix", "tcp", "grpc", RING];
/// What a ring holds outlives the daemon, whatever its level.
const RING: &str = "shm";
pub(crate) const LEVELS: [AckLevel; 3] = [AckLevel::Received, AckLevel::Written, AckLevel::Durable];
/// Appends that a client has in flight.
const APPENDS_IN_FLIGHT_MAX: u32 = 24;
/// Records in an append, at most.
const RECORDS_PER_APPEND_MAX: u64 = 4;
/// Appends of a client that leaves.
const LEAVER_APPENDS: u64 = 40;
/// The numbers of those that leave begin here.
const LEAVER_FIRST_NUMBER: u64 = 1000;

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    number: u64,
    address: String,
    /// Nothing: any of `levels`, append by append.
    level: Option<AckLevel>,
    levels: Vec<AckLevel>,
    transport: usize,
    producer: OnceLock<Producer>,
}

impl Client {
    /// One for each transport × level, and one for each transport that mixes them.
    pub(crate) fn all(levels: &[AckLevel], address: impl Fn(&str) -> String) -> Vec<Arc<Self>> {
        let mut all = Vec::new();
        for (transport, name) in TRANSPORTS.iter().enumerate() {
            for level in levels.iter().copied().map(Some).chain([None]) {
                let (number, levels, producer) = (all.len() as u64, levels.to_vec(), OnceLock::new());
                all.push(Arc::new(Self { number, address: address(name), level, levels, transport, producer }));
            }
        }
        // Never in flight: it has its receipt when it is in the ring.
        let (number, address, producer) = (all.len() as u64, address(RING), OnceLock::new());
        let (level, levels, transport) = (Some(AckLevel::Posted), levels.to_vec(), TRANSPORTS.len() - 1);
        all.push(Arc::new(Self { number, address, level, levels, transport, producer }));
        all
    }

    /// The one of a round that leaves.
    pub(crate) fn leaver(round: u64, levels: &[AckLevel], address: &str) -> Arc<Self> {
        let (number, level, address) = (LEAVER_FIRST_NUMBER + round, levels.last().copied(), address.to_owned());
        Arc::new(Self { number, address, level, levels: levels.to_vec(), transport: 0, producer: OnceLock::new() })
    }

    /// Its transport × level.
    pub(crate) fn cell(&self) -> Option<usize> {
        let level = self.levels.iter().position(|level| Some(*level) == self.level)?;
        Some(self.transport * self.levels.len() + level)
    }

    fn has_ring(&self) -> bool {
        TRANSPORTS.get(self.transport) == Some(&RING)
    }

    /// Records that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.producer.get().map_or(0, |producer| producer.stats().sent)
    }

    /// Records whose fate is known.
    pub(crate) fn settled(&self) -> u64 {
        self.producer.get().map_or(0, |producer| producer.stats().acked + producer.stats().failed)
    }

    /// Records that were sent again.
    pub(crate) fn resent(&self) -> u64 {
        self.producer.get().map_or(0, |producer| producer.stats().resent)
    }

    fn producer(&self) -> Producer {
        let builder = Producer::builder(self.address.parse().expect("an address")).component("kill");
        let builder = builder.backoff(Duration::from_millis(5), Duration::from_millis(50));
        let builder = builder.drop_timeout(Duration::ZERO).name(format!("kill {}", self.number));
        // The daemon may be down just now: the producer waits for it.
        self.producer.get_or_init(|| builder.start().expect("a small group")).clone()
    }

    /// Appends until it is stopped; then waits for all that is in flight.
    pub(crate) async fn run(self: Arc<Self>, world: Arc<World>) {
        let producer = self.producer();
        let mut rng = world.rng(self.number << 32);
        let flight = Arc::new(Semaphore::new(APPENDS_IN_FLIGHT_MAX as usize));
        let mut next = 0;
        while !world.is_stopped() {
            let permit = flight.clone().acquire_owned().await.expect("never closed");
            let count = 1 + rng.below(RECORDS_PER_APPEND_MAX);
            let level = self.level.unwrap_or(self.levels[rng.index(self.levels.len())]);
            let (client, first) = (self.number, next);
            let records: Vec<_> = (first..first + count).map(|index| world.record(client, index)).collect();
            next += count;
            let mut batch = producer.batch();
            records.iter().for_each(|record| batch.push(record).expect("it fits"));
            let room = producer.reserve(batch.len_bytes()).await.expect("room");
            let ticket = room.at(level).submit_batch(&mut batch).expect("submitted");
            let (world, ring) = (world.clone(), self.has_ring());
            tokio::spawn(async move {
                let late = Err(AppendError::DeliveryTimeout {
                    waited: TEST_TIMEOUT,
                    reason: "no answer".into(),
                    maybe_written: true,
                });
                // In a task of its own: a ticket that is looked at again when the time is over may have its answer by
                // that look alone, and a missing notification would not be noticed.
                let answer = tokio::time::timeout(TEST_TIMEOUT, tokio::spawn(ticket)).await;
                world.note_answer(client, first, level, ring, answer.map_or(late, |ended| ended.expect("no panic")));
                drop(permit);
            });
        }
        let _all = tokio::time::timeout(TEST_TIMEOUT, flight.acquire_many(APPENDS_IN_FLIGHT_MAX))
            .await
            .expect("all are answered");
        match producer.close().await {
            Ok(_) => {}
            // It asks for `durable` in the end: what was only `received` may have gone with a daemon, and it says so.
            Err(AppendError::Lost) if self.level.is_none_or(|level| level == AckLevel::Received) => {}
            Err(error) => panic!("client {}: {error}", self.number),
        }
    }

    /// Appends and goes, whatever becomes of it.
    pub(crate) async fn run_and_leave(self: Arc<Self>, world: Arc<World>) {
        let producer = self.producer();
        for index in 0..LEAVER_APPENDS {
            let room = producer.reserve(100_000).await.expect("room");
            drop(room.submit(&world.record(self.number, index)).expect("submitted"));
        }
        // Here it hangs until the daemon is killed, and it with it.
        std::future::pending::<()>().await;
    }
}
