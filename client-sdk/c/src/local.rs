//! Memory that a thread uses for each record again.

use std::cell::RefCell;

use clad_client::{Batch, blocking};

use crate::error::Failure;

/// Producers whose batches a thread holds.
const BATCHES_MAX: usize = 4;
/// A batch that was longer is not held: one long record in each of many threads is much memory.
const HELD_BATCH_BYTES_MAX: usize = 64 * 1024;

thread_local! {
    /// With the number of the handle: a producer's id may come again, with another component.
    static BATCHES: RefCell<Vec<(u64, Batch)>> = const { RefCell::new(Vec::new()) };
}

/// Fills an empty batch of the producer with this number, and sends it. A signal handler that interrupts this finds the
/// thread's batches in use, and gets one of its own.
pub(crate) fn with_batch<T>(
    (number, producer): (u64, &blocking::Producer),
    fill: impl FnOnce(&mut Batch) -> Result<(), Failure>,
    send: impl FnOnce(&mut Batch) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut work = Some((fill, send));
    let done = BATCHES.try_with(|batches| {
        let mut batches = batches.try_borrow_mut().ok()?;
        let (fill, send) = work.take()?;
        let at = batches.iter().position(|(of, _)| *of == number).unwrap_or_else(|| {
            if batches.len() >= BATCHES_MAX {
                batches.remove(0); // of a producer that is gone, perhaps
            }
            batches.push((number, producer.batch()));
            batches.len() - 1
        });
        let (_, batch) = batches.get_mut(at)?;
        batch.clear(); // a call that panicked may have left its record
        let filled = fill(batch);
        let is_long = filled.is_err() || batch.len_bytes() > HELD_BATCH_BYTES_MAX;
        let answer = filled.and_then(|()| send(batch));
        if is_long {
            batches.swap_remove(at);
        }
        Some(answer)
    });
    match (done.ok().flatten(), work) {
        (Some(answer), _) => answer,
        // In the handler of a signal, or where the thread ends.
        (None, Some((fill, send))) => {
            let mut batch = producer.batch();
            fill(&mut batch)?;
            send(&mut batch)
        }
        (None, None) => Err(Failure::internal("a batch that was made is not there")),
    }
}

/// Forgets this thread's batch of a producer.
pub(crate) fn forget(number: u64) {
    // A thread that ends has none any more.
    let _ = BATCHES.try_with(|batches| {
        if let Ok(mut batches) = batches.try_borrow_mut() {
            batches.retain(|(of, _)| *of != number);
        }
    });
}
