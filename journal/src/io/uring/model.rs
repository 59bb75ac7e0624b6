//! The ring's thread for the models: `thread.rs` without tokio-uring and the kernel.
//!
//! Invariants: it asks its source, sleeps and wakes at exactly the same moments as the real thread, and at no other;
//! else a lost wake-up would stay hidden here. Operations in flight take effect and end in any order, at any moment, on
//! this thread. No time passes: a source that names a moment is not asked at it.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use super::operation::{Operation, What};
use super::state::{End, MAX_IN_FLIGHT, Setup, Shared, Started};
use crate::io::IoBuf;
use crate::sync::atomic::Ordering;
use crate::sync::thread;

pub(super) fn run(shared: &Arc<Shared>, _: &Setup, started: &Started) {
    let _end = End(shared.clone());
    let _ = started.send(Ok(()));
    let mut in_flight = Vec::new();
    loop {
        shared.wakes.fetch_add(1, Ordering::Relaxed);
        while in_flight.len() < MAX_IN_FLIGHT {
            let Ok(operation) = shared.next() else { break };
            in_flight.push(operation);
            shared.begins(in_flight.len());
        }
        if shared.looked(in_flight.len()) {
            return;
        }
        rest(shared, &mut in_flight);
    }
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
    let result = match operation.what.take() {
        None => Ok(()),
        Some(What::SyncData) => file.sync_data(),
        Some(What::SyncRange { pos, len }) => file.sync_range(pos, len),
        Some(What::Write { len, fill, pos, durability, range }) => {
            let buf = fill(IoBuf::with_capacity(len));
            let bytes = buf.len() as u64;
            let written = file.write_at(buf, pos, durability).1;
            if range { written.and_then(|()| file.sync_range(pos, bytes)) } else { written }
        }
    };
    drop(file);
    operation.end(result);
}
