//! Poll of an ingest thread, and the time it spins before it sleeps.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Event number of the bell. Everything else in an epoll of the reactor has another number.
pub(super) const BELL: u64 = 0;
/// Event number of the sockets together where helpers wait.
const SOCKETS: u64 = 1;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Events that have happened. As many are taken at once as there is room for.
pub(super) type Events = Vec<epoll::Event>;

/// An epoll with a bell in it.
pub(super) struct Poll {
    pub(super) epoll: Arc<OwnedFd>,
    bell: OwnedFd,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll: Arc::new(epoll), bell })
    }

    /// Wakes a waiting thread, or the next that waits.
    pub(super) fn ring(&self) {
        // It can only fail if it was rung as often as a u64 can count and no thread ever looked.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Waits until something happens.
    pub(super) fn wait(&self, events: &mut Events) {
        self.take(events, None);
    }

    /// Takes what has happened already.
    pub(super) fn look(&self, events: &mut Events) {
        self.take(events, Some(&NOW));
    }

    fn take(&self, events: &mut Events, timeout: Option<&Timespec>) {
        events.clear();
        // An error is a signal that came, or leaves nothing to look at.
        let _ = epoll::wait(&self.epoll, spare_capacity(events), timeout);
    }

    /// Wakes the threads that wait here by events there as well: one thread, once for each call of [`Self::watch`].
    pub(super) fn adopt(&self, other: &Self) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &other.epoll, EventData::new_u64(SOCKETS), EventFlags::IN | EventFlags::ONESHOT)?)
    }

    /// Turns that on or off from now on; also for events that have happened there already.
    pub(super) fn watch(&self, other: &Self, on: bool) {
        let events = if on { EventFlags::IN | EventFlags::ONESHOT } else { EventFlags::empty() };
        // It fails for descriptors that are not there, and this one is.
        let _ = epoll::modify(&self.epoll, &other.epoll, EventData::new_u64(SOCKETS), events);
    }
}

/// Time that the leader spins before it sleeps.
///
/// A wake-up from another processor costs several microseconds on both. A client that sends append after append sends
/// the next one just then. Invariant: an idle thread burns nothing. It spins only where the last
/// [`SHORT_WAITS_BEFORE_SPIN`] waits were shorter than [`SPIN_DURATION_MAX`], and the first longer wait ends it: a rest
/// costs one spin too many.
#[derive(Debug)]
pub(super) struct Backoff {
    /// Waits in a row that were short.
    short_waits: u32,
    /// With a single processor, the awaited event cannot happen meanwhile.
    enabled: bool,
}

/// The longest spin: somewhat more than a client needs to take an answer and to send on.
const SPIN_DURATION_MAX: Duration = Duration::from_micros(25);
/// Number of short waits in a row, before it spins.
const SHORT_WAITS_BEFORE_SPIN: u32 = 4;

impl Backoff {
    pub(super) fn new() -> Self {
        Self::for_processors(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    pub(super) fn for_processors(processors: usize) -> Self {
        Self { short_waits: 0, enabled: processors > 1 }
    }

    /// Returns true if it should look once more, `waited` after the wait began.
    pub(super) fn should_spin(&self, waited: Duration) -> bool {
        self.enabled && self.short_waits >= SHORT_WAITS_BEFORE_SPIN && waited < SPIN_DURATION_MAX
    }

    /// Notes that a wait of this length is over.
    pub(super) fn waited(&mut self, waited: Duration) {
        self.short_waits = if waited < SPIN_DURATION_MAX { self.short_waits.saturating_add(1) } else { 0 };
    }
}
