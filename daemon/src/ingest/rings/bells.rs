//! Wake-ups of the drain's task: doorbells of rings, ends of clients' processes, orders, room, the timer.
//!
//! Invariant: whoever has something for the drain says so first, and wakes its task then. A task that is woken while it
//! runs runs once more. So nothing that comes between its look and its rest is missed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};

use crate::ingest::reactor::{Bell, Bells, Timer};

/// Wakes the drain's task, which always has the same waker. It is not there before the task runs for the first time: then
/// the task looks at everything.
#[derive(Default)]
struct DrainWaker(OnceLock<Waker>);

impl Wake for DrainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(task) = self.0.get() {
            task.wake_by_ref();
        }
    }
}

/// Makes the bells that wake the drain's task.
pub(super) struct RingBells {
    bells: Bells,
    drain: Arc<DrainWaker>,
}

impl RingBells {
    pub(super) fn new(bells: Bells) -> Self {
        Self { bells, drain: Arc::default() }
    }

    /// Notes the task.
    pub(super) fn set_task(&self, waker: &Waker) {
        self.drain.0.get_or_init(|| waker.clone());
    }

    /// Waker of the task.
    pub(super) fn waker(&self) -> Waker {
        self.drain.clone().into()
    }

    pub(super) fn wake_task(&self) {
        self.drain.wake_by_ref();
    }

    pub(super) fn timer(&self) -> io::Result<Timer> {
        Timer::new(&self.bells, self.waker())
    }

    /// Watches a ring's doorbell.
    pub(super) fn doorbell(&self, fd: impl AsFd) -> io::Result<Bell> {
        self.bells.watch(fd, self.waker())
    }

    /// Watches a client's process. `None` where it cannot be watched: then its ring ends with its connection.
    pub(super) fn process(&self, process: Option<OwnedFd>) -> Option<(Bell, OwnedFd)> {
        let process = process?;
        let bell = self.bells.watch(&process, self.waker());
        bell.ok().map(|bell| (bell, process))
    }
}
