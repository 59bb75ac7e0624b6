//! A client with a ring, as the models have it: the shipped handles, inbox, ring task and ring handle, and a round of the
//! task without a connection. One with a socket: [`socket_client`].

use std::{collections::VecDeque, sync::Arc};

use clad_proto::{AckLevel, LogId, frame::RingId};
use clad_shm::Producer as Ring;

pub use crate::producer::{SocketTask, socket_client};
use crate::{
    AppendError, ConnectError, Producer, ProducerBuilder,
    clock::now,
    producer::{Life, RingTask, Shared},
    ring::RingHandle,
    sync,
};

/// The client's task.
#[derive(Debug)]
pub struct Task {
    shared: Arc<Shared>,
    ring_task: RingTask,
    handle: Arc<RingHandle>,
}

/// Wakes who sleeps on the completion page of the ring; with `is_over` also him for whom nothing changed.
pub fn wake_page(is_over: bool) {
    sync::wake_page(is_over);
}

/// A producer with a ring, and its task.
///
/// # Errors
/// When resource and scope are too long.
pub fn client(builder: ProducerBuilder, ring: Ring, log: LogId) -> Result<(Producer, Task), ConnectError> {
    let shared = Arc::new(Shared::new(builder.finish())?);
    let levels = (AckLevel::Durable, true);
    let id = RingId::from_bytes([1; 16]);
    let (counters, undelivered, wake) = (shared.counters.clone(), shared.undelivered.clone(), shared.wake.clone());
    let handle = RingHandle::new(id, ring, log, levels, counters, undelivered, wake);
    let handle = Arc::new(handle);
    let mut ring_task = RingTask::new(shared.backlog.clone());
    ring_task.ring_handle = Some(handle.clone());
    Ok((Producer::new(shared.clone()), Task { shared, ring_task, handle }))
}

impl Task {
    /// Serves until it is closed and nothing waits. A FLUSH is answered as soon as it is asked for: what it waits for
    /// then is the client's own.
    pub async fn run(mut self) {
        let (shared, mut items) = (self.shared, VecDeque::new());
        shared.set_ring_handle(Some(self.handle.clone()));
        loop {
            let life = shared.life();
            let _ = shared.drain(now(), &mut items);
            self.ring_task.take_in(items.drain(..));
            self.ring_task.feed(&shared);
            self.ring_task.answer_flushes();
            self.ring_task.end_flushes(&shared);
            let closes = !matches!(life, Life::Open);
            if closes && self.ring_task.is_idle() {
                break;
            }
            self.ring_task.rest(closes);
            match self.ring_task.is_backlog_empty() {
                true => shared.wake.notified().await,
                false => sync::yield_now(), // it looks for room
            }
        }
        let end = AppendError::Closed { maybe_written: false };
        drop(shared.end(end.clone()));
        shared.set_ring_handle(None);
        self.ring_task.end(&shared, &end);
        wake_page(true);
        shared.gone();
    }
}
