//! The ring's thread for the models: `thread.rs` without tokio-uring and the kernel.
//!
//! Invariants: it asks its source, sleeps and wakes at exactly the same moments as the real thread, and at no other;
//! else a lost wake-up would stay hidden here. Operations in flight take effect and end in any order, at any moment, on
//! this thread. No time passes: a source that names a moment is not asked at it.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use super::operation::{Operation, What};
use super::state::{End, MAX_IN_FLIGHT, Next, Setup, Shared, Started};
use crate::io::{Durability, IoBuf};
use crate::sync::atomic::Ordering;
use crate::sync::thread;

pub(super) fn run(shared: &Arc<Shared>, _: &Setup, started: &Started) {
    let _end = End(shared.clone());
    let _ = started.send(Ok(false));
    let mut in_flight = Vec::new();
    loop {
        shared.wakes.fetch_add(1, Ordering::Relaxed);
        begin_all(shared, &mut in_flight);
        let stop = {
            let mut state = shared.state();
            state.busy = !in_flight.is_empty() || !state.inbox.is_empty();
            state.stop && !state.busy
        };
        shared.idle.notify_all();
        if stop {
            return;
        }
        rest(shared, &mut in_flight);
    }
}

fn begin_all(shared: &Arc<Shared>, in_flight: &mut Vec<Operation>) {
    while in_flight.len() < MAX_IN_FLIGHT {
        let next = shared.state().inbox.pop_front();
        match next {
            Some(operation) => begin(shared, operation, in_flight),
            None => break,
        }
    }
    while in_flight.len() < MAX_IN_FLIGHT {
        let Some(source) = shared.state().source.clone() else { return };
        match source.next() {
            Next::Begin(operation) => begin(shared, operation, in_flight),
            Next::Wait(_) => return,
            Next::Done => shared.state().source = None,
        }
    }
}

fn begin(shared: &Arc<Shared>, operation: Operation, in_flight: &mut Vec<Operation>) {
    in_flight.push(operation);
    shared.begun.fetch_add(1, Ordering::Relaxed);
    shared.most.fetch_max(in_flight.len(), Ordering::Relaxed);
}

/// Until the bell is rung or something ends.
fn rest(shared: &Shared, in_flight: &mut Vec<Operation>) {
    if in_flight.is_empty() {
        return shared.bell.wait();
    }
    while !shared.bell.take() {
        thread::yield_now();
        if thread_rng().gen_range(0..3u32) == 0 {
            let which = thread_rng().gen_range(0..in_flight.len());
            return execute(in_flight.swap_remove(which)); // which rings the bell
        }
    }
}

fn execute(mut operation: Operation) {
    let file = operation.file.clone();
    let write = |fill: super::operation::Fill, len, pos, durability| {
        let buf = fill(IoBuf::with_capacity(len));
        let bytes = buf.len() as u64;
        (bytes, file.write_at(buf, pos, durability).1)
    };
    let result = match operation.what.take() {
        None => Ok(()),
        Some(What::SyncData) => file.sync_data(),
        Some(What::SyncRange { pos, len }) => file.sync_range(pos, len),
        Some(What::Write { len, fill, pos, durability }) => write(fill, len, pos, durability).1,
        Some(What::WriteRange { len, fill, pos }) => {
            let (bytes, written) = write(fill, len, pos, Durability::Written);
            written.and_then(|()| file.sync_range(pos, bytes))
        }
    };
    drop(file);
    operation.end(result);
}
