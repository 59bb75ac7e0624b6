//! Bells: descriptors that wake a task when they become readable. A ring's doorbell, the end of a process, a timer.
//!
//! Invariants:
//! - **No ring is lost.** Events come on edges, and each edge is noted before the task is woken. A bell that had rung
//!   before it was watched rings then.
//! - **A bell that nobody rings wakes nobody.** Nothing is read, so a call that rings costs no second one here; a
//!   doorbell that is full of rings stays silent until the next.
//! - A bell is rung by whoever has its descriptor, which may be a client. That costs a turn of the task, as a byte on a
//!   socket does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::sources::{Sources, Watched};

/// Makes bells of a reactor. It holds no thread of the reactor.
#[derive(Clone)]
pub(crate) struct Bells(Arc<Sources>);

/// A watched descriptor. Dropped, it wakes nobody any more.
pub(crate) struct Bell(Arc<Source>);

struct Source {
    number: u64,
    sources: Arc<Sources>,
    rang: AtomicBool,
    waker: Waker,
}

impl Bells {
    pub(super) fn new(sources: &Arc<Sources>) -> Self {
        Self(sources.clone())
    }

    /// Bells of an epoll for which nobody waits.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
        Self(Sources::new(&Arc::new(epoll)))
    }

    /// Wakes by this waker each time that the descriptor becomes readable.
    pub(crate) fn watch(&self, fd: impl AsFd, waker: Waker) -> io::Result<Bell> {
        let Self(sources) = self;
        let bell = Bell(sources.enter(|number| Source {
            number,
            sources: sources.clone(),
            rang: AtomicBool::new(false),
            waker,
        }));
        sources.watch(fd, bell.0.number, EventFlags::IN | EventFlags::ET)?;
        Ok(bell)
    }
}

impl Bell {
    /// Returns true if it rang since the last call.
    pub(crate) fn take_rang(&self) -> bool {
        self.0.rang.swap(false, Ordering::AcqRel)
    }

    /// Takes its descriptor out of the epoll. To be called where others have the same one, so that closing ours would
    /// not do.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        self.0.sources.unwatch(fd);
    }
}

impl Watched for Source {
    fn happened(&self, _: EventFlags) {
        self.rang.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.sources.forget(self.number);
    }
}

/// A timer that is more exact than those of the runtime, and wakes no thread of the runtime.
///
/// Invariant: it fires at the deadline or before, never after, as it is set as seldom as may be.
pub(crate) struct Timer {
    fd: OwnedFd,
    bell: Bell,
    /// Time at which it fires; nothing: it is not set.
    at: Option<Instant>,
}

impl Timer {
    pub(crate) fn new(bells: &Bells, waker: Waker) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let bell = bells.watch(&fd, waker)?;
        Ok(Self { fd, bell, at: None })
    }

    /// Wakes at this time, or before.
    pub(crate) fn set(&mut self, at: Instant, now: Instant) {
        if self.bell.take_rang() {
            self.at = None;
        }
        if self.at.is_some_and(|set| set <= at) {
            return;
        }
        // Nothing at all would turn it off.
        let left = at.saturating_duration_since(now).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        // It fails for what is no timer, or no time.
        self.at = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once).is_ok().then_some(at);
    }
}
