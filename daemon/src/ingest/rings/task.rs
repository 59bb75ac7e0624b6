//! Task of the drain on the ingest threads: it runs a turn of the [`Drainage`], leaves the deferred write to its thread,
//! and rests.
//!
//! Invariants:
//! - **A drain never waits for the disk.** Its deferred write is its thread's, as that of a socket's burst is. While one
//!   thread writes, another watches doorbells and sockets.
//! - The task gives way after each cycle: connections have their turn.
//! - A panic ends the process ([`crate::defect`]): no other task would drain, and everybody would wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::drainage::{Drainage, Next};
use super::shared::Shared;
use crate::defect::ends_clad;
use crate::ingest::reactor::{Timer, defer_write};

/// Between two looks at a ring in which something waits for an uncommitted slot.
const STALL_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Description of the task in the message when it cannot continue.
pub(super) const TASK_DESCRIPTION: &str = "the drain of the rings";

/// The task, until all is drained after a stop.
pub(super) struct DrainTask {
    drainage: Drainage,
    shared: Arc<Shared>,
    timer: Timer,
}

impl DrainTask {
    pub(super) fn new(drainage: Drainage, shared: Arc<Shared>, timer: Timer) -> Self {
        Self { drainage, shared, timer }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.shared.bells.set_task(context.waker());
        let next = self.drainage.look();
        if let Some(deferred_write) = self.drainage.deferred_write.take() {
            defer_write(deferred_write);
        }
        if self.drainage.is_over() {
            return Poll::Ready(());
        }
        let now = Instant::now();
        let rests = match next {
            Next::Again => false,
            Next::Soon => self.sleep(Some(now + STALL_POLL_INTERVAL), false, now),
            Next::At(until) => self.sleep(Some(until), true, now),
            Next::Rest { worked } => match self.drainage.load.rest(now, worked) {
                Some(time) => {
                    self.drainage.stay_up();
                    self.timer.set(now + time, now);
                    true
                }
                None => self.sleep(None, false, now),
            },
        };
        if !rests || self.drainage.watch_watermarks(context) {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Lets clients wake it; `false`: there is something.
    fn sleep(&mut self, until: Option<Instant>, all_held: bool, now: Instant) -> bool {
        if !self.drainage.lie_down(all_held) {
            return false;
        }
        if let Some(until) = until.into_iter().chain(self.drainage.deadline()).min() {
            self.timer.set(until, now);
        }
        true
    }
}

impl Future for DrainTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (task, mut polled) = (self.get_mut(), Poll::Pending);
        ends_clad(TASK_DESCRIPTION, || polled = task.turn(context));
        polled
    }
}
