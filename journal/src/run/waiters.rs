//! Waiters for the watermarks, and their wake-ups.
//!
//! Invariants:
//! - **Only waiters with a due answer are woken.** Each waits for the offset at which its next answer is due. A
//!   channel that wakes all of them at every batch would cost a thousand waiting connections a thousand wake-ups for
//!   each write, of which a few are of use.
//! - **No wake-up is lost.** The publisher first stores the watermarks and then looks for waiters, under the lock of
//!   the waiter list. A waiter first enters the list under that lock, and then looks at the watermarks. Of the two,
//!   the later sees the earlier.
//! - A change that is no watermark (a failure, a new epoch, no space, the end of the journal) wakes all waiters.
//! - **The channel has the newest watermarks while it has subscribers.** A value is sent on it only then, because
//!   sending costs as much as everything else here. A new subscriber is counted first and then sends the watermarks; a
//!   publisher first stores them and then looks for subscribers.
//!
//! A task that is polled again retains its entry, unless its wanted watermark or its waker has changed.
//!
//! `models/src/publication.rs` compiles this file by itself, on the locks of a model, and publishes and waits in every
//! order.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;

use crate::sync::plain::{Mutex, MutexGuard};
use crate::sync::{others_may_run, unpoisoned};
use crate::write::watermarks::{Accepting, Closed, Wants, Watermarks};

/// The state that wakes all waiters when it changes.
fn state_of(watermarks: &Watermarks) -> (u32, u32, Accepting) {
    (watermarks.failures, watermarks.epoch, watermarks.accepting)
}

/// The published watermarks, and their waiters.
#[derive(Debug)]
pub(crate) struct WatermarkPublisher {
    channel: watch::Sender<Watermarks>,
    waiters: Arc<Waiters>,
}

impl WatermarkPublisher {
    pub(crate) fn new(watermarks: Watermarks) -> Self {
        Self {
            channel: watch::channel(watermarks).0,
            waiters: Arc::new(Waiters { watermarks: Mutex::new(watermarks), inner: Mutex::default() }),
        }
    }

    /// Publishes the newest watermarks; of two publishers, the later value wins.
    pub(crate) fn publish(&self, watermarks: Watermarks) {
        let all = self.store(watermarks);
        self.wake(all);
    }

    /// Returns true if it concerns all waiters.
    fn store(&self, watermarks: Watermarks) -> bool {
        let mut all = false;
        others_may_run();
        let mut old = self.waiters.watermarks();
        if self.is_newer(&watermarks, &old) {
            all = state_of(&old) != state_of(&watermarks);
            *old = watermarks;
        }
        drop(old);
        others_may_run();
        if self.channel.receiver_count() > 0 {
            self.send(watermarks);
        }
        others_may_run();
        all
    }

    fn is_newer(&self, watermarks: &Watermarks, old: &Watermarks) -> bool {
        watermarks.version > old.version
    }

    fn send(&self, watermarks: Watermarks) {
        self.channel.send_if_modified(|old| {
            let newer = self.is_newer(&watermarks, old);
            if newer {
                *old = watermarks;
            }
            newer
        });
    }

    fn wake(&self, all: bool) {
        // The newest ones: of two tellers at once, the later may have been here first.
        let watermarks = *self.waiters.watermarks();
        self.waiters.wake(if all { Wake::All } else { Wake::Met(&watermarks) });
    }

    /// The newest value, not every one.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Watermarks> {
        let counted = self.channel.subscribe();
        others_may_run();
        let watermarks = *self.waiters.watermarks();
        others_may_run();
        self.send(watermarks);
        // One that has seen these, so that only others are news to it.
        let subscriber = self.channel.subscribe();
        drop(counted);
        subscriber
    }

    pub(crate) fn watcher(&self) -> Watcher {
        let seen = *self.waiters.watermarks();
        Watcher { seen, waiters: Arc::clone(&self.waiters), id: self.waiters.inner().enter() }
    }
}

impl WatermarkPublisher {
    /// Marks the watermarks as final: waits for more than they have are in vain.
    pub(crate) fn end(&self) {
        self.waiters.wake(Wake::End);
    }
}

impl Drop for WatermarkPublisher {
    fn drop(&mut self) {
        self.end();
    }
}

enum Wake<'a> {
    Met(&'a Watermarks),
    All,
    End,
}

// Plain in a model of the whole journal: no other lock is taken under it, and the waiters leave under it when a model
// ends.
#[derive(Debug)]
struct Waiters {
    /// The newest.
    watermarks: Mutex<Watermarks>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    waiting: HashMap<u64, (Wants, Waker)>,
    written: BTreeSet<(u64, u64)>,
    durable: BTreeSet<(u64, u64)>,
    /// Retained for its memory.
    woken: Vec<Waker>,
    closed: bool,
}

impl Waiters {
    fn watermarks(&self) -> MutexGuard<'_, Watermarks> {
        unpoisoned(self.watermarks.lock())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        unpoisoned(self.inner.lock())
    }

    fn wake(&self, who: Wake<'_>) {
        let mut inner = self.inner();
        let mut woken = std::mem::take(&mut inner.woken);
        match who {
            Wake::Met(watermarks) => inner.take_met(watermarks, &mut woken),
            Wake::All | Wake::End => {
                inner.closed |= matches!(who, Wake::End);
                inner.written.clear();
                inner.durable.clear();
                // Woken in order of arrival: also so that a model's orders can be run again.
                let mut all: Vec<_> = inner.waiting.drain().map(|(id, (_, waker))| (id, waker)).collect();
                all.sort_unstable_by_key(|(id, _)| *id);
                woken.extend(all.into_iter().map(|(_, waker)| waker));
            }
        }
        drop(inner);
        if woken.capacity() > 0 {
            woken.drain(..).for_each(Waker::wake);
            self.inner().woken = woken;
        }
    }
}

impl Inner {
    fn enter(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn wait(&mut self, id: u64, wants: Wants, waker: &Waker) {
        if self.waiting.get(&id).is_some_and(|(earlier, same)| *earlier == wants && same.will_wake(waker)) {
            return;
        }
        self.leave(id);
        self.written.insert((wants.written, id));
        self.durable.insert((wants.durable, id));
        self.waiting.insert(id, (wants, waker.clone()));
    }

    fn leave(&mut self, id: u64) -> Option<Waker> {
        let (wants, waker) = self.waiting.remove(&id)?;
        self.written.remove(&(wants.written, id));
        self.durable.remove(&(wants.durable, id));
        Some(waker)
    }

    fn take_met(&mut self, watermarks: &Watermarks, woken: &mut Vec<Waker>) {
        while let Some(&(_, id)) = self.written.first().filter(|(offset, _)| *offset <= watermarks.written) {
            woken.extend(self.leave(id));
        }
        while let Some(&(_, id)) = self.durable.first().filter(|(offset, _)| *offset <= watermarks.durable) {
            woken.extend(self.leave(id));
        }
    }
}

/// A waiter for the watermarks.
#[derive(Debug)]
pub struct Watcher {
    /// As they were when they were looked at last.
    seen: Watermarks,
    waiters: Arc<Waiters>,
    id: u64,
}

impl Watcher {
    /// The watermarks now. [`Watcher::reached`] reports changes relative to these.
    pub fn now(&mut self) -> Watermarks {
        self.seen = *self.waiters.watermarks();
        self.seen
    }

    /// Waits until the watermarks have the wanted value, or until another state has changed since [`Watcher::now`], so
    /// that they may never report it: the epoch, failures, or acceptance of appends.
    ///
    /// # Errors
    /// [`Closed`] when the journal is gone.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn reached(&mut self, wants: Wants) -> Result<(), Closed> {
        poll_fn(|context| self.poll(context, wants)).await
    }

    fn poll(&mut self, context: &Context<'_>, wants: Wants) -> Poll<Result<(), Closed>> {
        if self.is_new(wants) {
            return Poll::Ready(Ok(()));
        }
        others_may_run();
        let mut waiters = self.waiters.inner();
        if waiters.closed {
            drop(waiters);
            // The last watermarks were published before the end: they may have come since the look above.
            return Poll::Ready(if self.is_new(wants) { Ok(()) } else { Err(Closed) });
        }
        waiters.wait(self.id, wants, context.waker());
        drop(waiters);
        others_may_run();
        if self.is_new(wants) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn is_new(&self, wants: Wants) -> bool {
        let watermarks = *self.waiters.watermarks();
        wants.met(&watermarks) || state_of(&watermarks) != state_of(&self.seen)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.waiters.inner().leave(self.id));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Task {
        watcher: Watcher,
        woken: Arc<Count>,
    }

    impl Task {
        fn of(publisher: &WatermarkPublisher) -> Self {
            Self { watcher: publisher.watcher(), woken: Arc::default() }
        }

        fn poll(&mut self, written: u64, durable: u64) -> Poll<Result<(), Closed>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            let mut waiting = pin!(self.watcher.reached(Wants { written, durable }));
            waiting.as_mut().poll(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> usize {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    fn watermarks(version: u64, written: u64, durable: u64) -> Watermarks {
        Watermarks { version, written, durable, ..Watermarks::default() }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn only_those_are_woken_whose_offset_is_reached_and_once() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        let mut tasks: Vec<Task> = (0..1000).map(|_| Task::of(&publisher)).collect();
        for (n, task) in (1..).zip(&mut tasks) {
            assert!(task.poll(NEVER, n).is_pending());
        }
        let woken = |tasks: &[Task]| tasks.iter().map(Task::woken).sum::<usize>();
        publisher.publish(watermarks(1, 1000, 0));
        assert_eq!(woken(&tasks), 0, "nobody waits for written");
        publisher.publish(watermarks(2, 1000, 7));
        assert_eq!((woken(&tasks), woken(&tasks[..7])), (7, 7));
        publisher.publish(watermarks(3, 1000, 8));
        assert_eq!((woken(&tasks), woken(&tasks[..8])), (8, 8));
        for (n, task) in (1..).zip(&mut tasks) {
            assert_eq!(task.poll(NEVER, n).is_ready(), n <= 8);
        }
        // Of two watermarks, whichever comes first.
        assert!(tasks[0].poll(2000, 9).is_pending());
        publisher.publish(watermarks(4, 2000, 8));
        assert_eq!(tasks[0].woken(), 2);
        publisher.publish(watermarks(5, 2000, 9));
        assert_eq!((tasks[0].woken(), tasks[8].woken()), (2, 1));
    }

    #[test]
    fn what_is_no_watermark_wakes_everybody() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        let mut task = Task::of(&publisher);
        let published = [
            Watermarks { failures: 1, ..watermarks(1, 0, 0) },
            Watermarks { failures: 1, accepting: Accepting::NoSpace, ..watermarks(2, 0, 0) },
            Watermarks { failures: 1, epoch: 2, ..watermarks(3, 0, 0) },
        ];
        for (n, published) in (1..).zip(published) {
            assert!(task.poll(NEVER, NEVER).is_pending());
            publisher.publish(published);
            assert_eq!(task.woken(), n);
            assert!(task.poll(NEVER, NEVER).is_ready());
            assert_eq!(task.watcher.now(), published);
        }
        assert!(task.poll(NEVER, NEVER).is_pending());
        drop(publisher);
        assert_eq!((task.woken(), task.poll(NEVER, NEVER)), (4, Poll::Ready(Err(Closed))));
    }

    /// Woken, and when it looks, all is as it was: it waits on, and is woken again.
    #[test]
    fn a_change_that_is_taken_back_loses_nobody() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        let mut task = Task::of(&publisher);
        assert!(task.poll(10, NEVER).is_pending());
        publisher.publish(Watermarks { accepting: Accepting::NoSpace, ..watermarks(1, 0, 0) });
        publisher.publish(Watermarks { accepting: Accepting::Yes, ..watermarks(2, 0, 0) });
        assert_eq!(task.woken(), 1);
        assert!(task.poll(10, NEVER).is_pending());
        publisher.publish(watermarks(3, 10, 0));
        assert_eq!(task.woken(), 2);
    }

    #[test]
    fn an_older_value_published_late_takes_nothing_back() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        let mut task = Task::of(&publisher);
        publisher.publish(watermarks(2, 20, 20));
        publisher.publish(watermarks(1, 10, 10));
        assert_eq!(task.watcher.now().written, 20);
        assert!(task.poll(20, NEVER).is_ready());
    }

    #[test]
    fn who_is_polled_again_by_another_task_or_for_another_offset_is_woken_there() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        let mut task = Task::of(&publisher);
        assert!(task.poll(10, NEVER).is_pending());
        let first = std::mem::take(&mut task.woken);
        assert!(task.poll(10, NEVER).is_pending());
        assert!(task.poll(5, NEVER).is_pending());
        publisher.publish(watermarks(1, 5, 0));
        assert_eq!((first.0.load(Ordering::Relaxed), task.woken()), (0, 1));
        publisher.publish(watermarks(2, 10, 0));
        assert_eq!(task.woken(), 1, "what it does not wait for any more");
    }

    #[test]
    fn who_is_gone_leaves_nothing_behind() {
        let publisher = WatermarkPublisher::new(Watermarks::default());
        for _ in 0..100 {
            let mut task = Task::of(&publisher);
            assert!(task.poll(1, 1).is_pending());
        }
        let waiters = publisher.waiters.inner();
        assert_eq!((waiters.waiting.len(), waiters.written.len(), waiters.durable.len()), (0, 0, 0));
    }

    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// A publisher and waiters at full speed: a waiter that misses a step stays parked.
    #[test]
    fn nobody_sleeps_over_what_it_waits_for() {
        const STEPS: u64 = 20_000;
        let publisher = WatermarkPublisher::new(Watermarks::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut watcher = publisher.watcher();
                scope.spawn(move || {
                    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                    let mut next = 1;
                    while next <= STEPS {
                        let wants = Wants { written: next, durable: NEVER };
                        if watcher.poll(&Context::from_waker(&waker), wants).is_pending() {
                            let began = std::time::Instant::now();
                            std::thread::park_timeout(std::time::Duration::from_secs(30));
                            assert!(began.elapsed().as_secs() < 30, "nobody woke it at {next}");
                        }
                        next = watcher.now().written + 1;
                    }
                });
            }
            for step in 1..=STEPS {
                publisher.publish(watermarks(step, step, 0));
            }
        });
    }
}
