//! Turn of a task on an ingest thread, and its end.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Reads and writes of a task in one turn.
pub(super) const TASK_OPERATIONS_MAX: u32 = 32;
/// The longest that one task runs before others have their turn, and that a thread with tasks looks at no socket.
pub(super) const TASK_TURN_MAX: Duration = Duration::from_millis(1);

thread_local! {
    static OPERATIONS_LEFT: Cell<u32> = const { Cell::new(0) };
    static TURN_ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Begins a task's turn on this thread.
pub(super) fn begin(now: Instant) {
    OPERATIONS_LEFT.set(TASK_OPERATIONS_MAX);
    TURN_ENDS.set(now.checked_add(TASK_TURN_MAX));
}

/// Counts an operation of the running task; `false`: others are to have their turn.
pub(super) fn operate() -> bool {
    let left = OPERATIONS_LEFT.get();
    OPERATIONS_LEFT.set(left.saturating_sub(1));
    // A turn's first operation is always allowed: it is what the task was woken for.
    left == TASK_OPERATIONS_MAX || (left > 0 && TURN_ENDS.get().is_none_or(|ends| Instant::now() < ends))
}
