//! The task's state of its ring: what found no room in it, and flushes. It feeds the ring, and asks for flushes.
//!
//! Submits go to the ring in their caller's thread ([`Shared`] decides that, while nothing waits here); what comes to
//! this task is what must wait, in its order.

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc, time::Duration};

use clad_proto::{AckLevel, ErrorCode, ErrorInfo, frame::Watermark};
use tokio::time::Instant;

use super::shared::{Item, Shared};
use crate::{
    AppendError, ConnectError,
    backoff::{Backoff, random},
    lock::lock,
    ring::{Posted, RingHandle},
    session::{Append, Out},
    sync::Mutex,
    transport::Connection,
    undelivered::{FlushPruner, FlushSender},
    waiters::Claim,
};

/// The longest wait of a flush before it is asked for again, if the daemon could not do it.
const FLUSH_RETRY_DELAY_MAX: Duration = Duration::from_millis(200);

/// The least and the longest time until a refused ring is asked for again.
const RING_RETRY_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A flush under way.
#[derive(Debug)]
struct Flush {
    level: AckLevel,
    /// Every ticket of an append below is to be answered first.
    upto: u64,
    id: u32,
    since: Instant,
    state: FlushState,
    sender: FlushSender,
}

#[derive(Debug, PartialEq, Eq)]
enum FlushState {
    /// It was not, or the daemon could not do it: again then.
    Unsent(Option<Instant>),
    Sent,
    Answered,
}

/// When a ring that was refused for now is asked for again.
#[derive(Debug)]
pub(super) struct RingRetry {
    backoff: Backoff,
    /// Then it is, or, once the socket is being left, then that is given up. Nothing: there is a ring, or there never is.
    pub(super) at: Option<Instant>,
}

impl RingRetry {
    pub(super) fn new() -> Self {
        let (first, max) = RING_RETRY_WAIT;
        Self { backoff: Backoff::new(first, max, u64::from_le_bytes(random())), at: None }
    }

    pub(super) fn later(&mut self, now: Instant) {
        self.at = Some(now + self.backoff.next());
    }
}

/// The task's state of its ring.
#[derive(Debug, Default)]
pub(crate) struct RingTask {
    pub(crate) ring_handle: Option<Arc<RingHandle>>,
    /// The memory of that ring, for the next daemon.
    pub(super) memory: Option<OwnedFd>,
    /// In the order of the submits. A caller's thread drops what is there for newer records.
    backlog: Arc<Mutex<VecDeque<Item>>>,
    flushes: VecDeque<Flush>,
    flush_id: u32,
    flush_pruner: FlushPruner,
    /// Since when there is no daemon.
    pub(super) disconnected_since: Option<Instant>,
    /// The last flush that ended was abandoned: nothing waits any longer for what is in the ring.
    flush_abandoned: bool,
}

impl RingTask {
    pub(crate) fn new(backlog: Arc<Mutex<VecDeque<Item>>>) -> Self {
        Self { backlog, ..Self::default() }
    }

    pub(crate) fn is_backlog_empty(&self) -> bool {
        lock(&self.backlog).is_empty()
    }

    fn pop_backlog(&self) -> Option<Item> {
        lock(&self.backlog).pop_front()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.is_backlog_empty()
            && self.flushes.is_empty()
            && self.ring_handle.as_ref().is_none_or(|ring_handle| ring_handle.is_answered_below(u64::MAX))
    }

    /// True if the end need not wait for the tickets of what is in the ring.
    pub(super) fn has_abandoned_flush(&self) -> bool {
        self.flush_abandoned && self.is_backlog_empty() && self.flushes.is_empty()
    }

    pub(super) fn lost_connection(&mut self, now: Instant) {
        self.disconnected_since.get_or_insert(now);
    }

    pub(super) fn has_ring(&self) -> bool {
        self.ring_handle.is_some()
    }

    pub(crate) fn take_in(&mut self, items: impl Iterator<Item = Item>) {
        for item in items {
            let is_due = matches!(item, Item::Flush(..)) && self.flush_pruner.is_due();
            lock(&self.backlog).push_back(item);
            if is_due {
                self.prune_flushes();
            }
        }
    }

    /// Releases the flushes that have no waiter and that the daemon does not have.
    fn prune_flushes(&mut self) {
        let mut left = 0;
        lock(&self.backlog).retain(|item| {
            let Item::Flush(_, sender, _) = item else { return true };
            left += usize::from(!sender.is_closed());
            !sender.is_closed()
        });
        self.flushes.retain(|flush| !matches!(flush.state, FlushState::Unsent(_)) || !flush.sender.is_closed());
        self.flush_pruner.reset(left + self.flushes.len());
    }

    /// Takes what waits here, to continue without a ring.
    pub(super) fn take_backlog(&mut self) -> Vec<Item> {
        let flushes = self.flushes.drain(..).map(|flush| Item::Flush(Some(flush.level), flush.sender, flush.since));
        flushes.chain(lock(&self.backlog).drain(..)).collect()
    }

    /// Puts into the ring what has room there; then submits go there at once again.
    pub(crate) fn feed(&mut self, shared: &Shared) {
        let Some(ring_handle) = self.ring_handle.clone() else { return };
        while self.feed_backlog(shared, &ring_handle) {
            // A thread that submits all the time has always put something in meanwhile; the last few go in while the
            // inbox is shut.
            if let Some(shut) = shared.late() {
                if self.feed_backlog(shared, &ring_handle) {
                    shut.post_directly(&ring_handle);
                }
                return;
            }
        }
    }

    /// Posts what waits; false when something must wait on.
    fn feed_backlog(&mut self, shared: &Shared, ring_handle: &Arc<RingHandle>) -> bool {
        if self.is_backlog_empty() {
            return true;
        }
        let all = self.post_backlog(shared, ring_handle);
        // A waiter for one of these may have looked when it was not in the ring, and never looks again.
        ring_handle.want_for_waiting();
        all
    }

    /// Posts in order, until one finds no room; says whether all did.
    fn post_backlog(&mut self, shared: &Shared, ring_handle: &Arc<RingHandle>) -> bool {
        while let Some(item) = self.pop_backlog() {
            match item {
                Item::Append(append, claim) => match ring_handle.post(append, claim) {
                    Posted::Done => {}
                    Posted::Wait(append, claim) | Posted::Forked(append, claim) => {
                        lock(&self.backlog).push_front(Item::Append(append, claim));
                        return false;
                    }
                },
                Item::Flush(level, sender, since) => {
                    let highest = shared.log_info().map_or(AckLevel::Written, |log| log.highest_ack);
                    let level = level.unwrap_or(highest);
                    self.flush_id = self.flush_id.checked_add(1).unwrap_or(2);
                    let (upto, id) = (ring_handle.last(), self.flush_id + 1);
                    // What is in the ring is posted; there is nothing to ask for.
                    let state =
                        if level < AckLevel::Received { FlushState::Answered } else { FlushState::Unsent(None) };
                    self.flushes.push_back(Flush { level, upto, id, since, state, sender });
                }
            }
        }
        true
    }

    /// Ends what has waited for too long: for room, or for a daemon. What lies in the ring is for the daemon to end.
    pub(super) fn expire(&mut self, shared: &Shared, now: Instant) {
        let timeout = shared.options.delivery_timeout;
        while self
            .flushes
            .front()
            .is_some_and(|flush| self.flush_deadline(flush.since, timeout).is_some_and(|due| due <= now))
        {
            let Some(flush) = self.flushes.pop_front() else { return };
            self.expire_flush(shared, flush.sender, timeout);
        }
        while self.front_deadline(timeout).is_some_and(|due| due <= now) {
            match self.pop_backlog() {
                Some(Item::Append(append, claim)) => {
                    let error = self.no_room(timeout);
                    Self::fail_append(shared, &append, claim, error);
                }
                Some(Item::Flush(_, sender, _)) => self.expire_flush(shared, sender, timeout),
                None => return,
            }
        }
    }

    /// Why an append found no room for so long. Without a daemon that is the reason, whatever it said before it went.
    fn no_room(&self, waited: Duration) -> AppendError {
        let timed_out =
            |reason: &str| AppendError::DeliveryTimeout { waited, reason: reason.to_owned(), maybe_written: false };
        match &self.ring_handle {
            Some(ring_handle) if self.disconnected_since.is_none() => match ring_handle.refused_for_now() {
                Some(error) => AppendError::Refused { error: Box::new(error), maybe_written: false },
                None => timed_out("the ring is full"),
            },
            _ => timed_out("there is no daemon"),
        }
    }

    fn expire_flush(&mut self, shared: &Shared, sender: FlushSender, timeout: Duration) {
        let reason = "there is no daemon to take what lies in the ring".to_owned();
        self.flush_abandoned = true;
        let error = AppendError::DeliveryTimeout { waited: timeout, reason, maybe_written: true };
        shared.undelivered.complete_flush(sender, Err(error));
    }

    /// Time when a flush is abandoned; never while there is a daemon, which answers it.
    fn flush_deadline(&self, since: Instant, timeout: Duration) -> Option<Instant> {
        self.disconnected_since.map(|disconnected_since| disconnected_since.max(since) + timeout)
    }

    /// Time when the oldest item that waits for room is abandoned.
    fn front_deadline(&self, timeout: Duration) -> Option<Instant> {
        match lock(&self.backlog).front()? {
            Item::Append(append, _) => Some(append.submitted + timeout),
            Item::Flush(_, _, since) => self.flush_deadline(*since, timeout),
        }
    }

    /// An append that never was in the ring ends.
    fn fail_append(shared: &Shared, append: &Append, claim: Claim, error: AppendError) {
        shared.counters.failed.add(append.count.into());
        let outcome = Err(error);
        if !claim.resolve(&outcome)
            && let Err(error) = outcome
        {
            shared.undelivered.add(error);
        }
    }

    pub(super) fn next_expiry(&self, shared: &Shared) -> Option<Instant> {
        let timeout = shared.options.delivery_timeout;
        let flush = self.flushes.front().and_then(|flush| self.flush_deadline(flush.since, timeout));
        flush.into_iter().chain(self.front_deadline(timeout)).min()
    }

    /// Asks for flushes whose appends are all in the ring, and ends those that are over.
    pub(super) fn flush(
        &mut self,
        shared: &Shared,
        connection: &mut Connection,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let due = |flush: &&mut Flush| matches!(flush.state, FlushState::Unsent(at) if at.is_none_or(|at| at <= now));
        for flush in self.flushes.iter_mut().filter(due) {
            flush.state = FlushState::Sent;
            connection.queue(Out::Flush { id: flush.id, level: flush.level })?;
        }
        self.end_flushes(shared);
        Ok(())
    }

    /// Ends the flushes that are over.
    pub(crate) fn end_flushes(&mut self, shared: &Shared) {
        let Some(ring_handle) = &self.ring_handle else { return };
        ring_handle.pump();
        while let Some(flush) = self.flushes.front()
            && flush.state == FlushState::Answered
            && ring_handle.is_answered_below(flush.upto)
        {
            let Some(flush) = self.flushes.pop_front() else { break };
            self.flush_abandoned = false;
            shared.undelivered.complete_flush(flush.sender, Ok(()));
        }
        if !self.flushes.is_empty() {
            ring_handle.want();
        }
    }

    /// Before the task waits: has the ring looked after. `closes`: the end waits for what was just found waiting.
    pub(crate) fn rest(&self, closes: bool) {
        if let Some(ring_handle) = &self.ring_handle {
            if closes {
                ring_handle.want();
            }
            ring_handle.start_watch();
        }
    }

    /// The daemon of a model answers at once.
    #[cfg(feature = "models")]
    pub(crate) fn answer_flushes(&mut self) {
        self.flushes.iter_mut().for_each(|flush| flush.state = FlushState::Answered);
    }

    pub(super) fn flush_answered(&mut self, watermark: &Watermark) {
        if let Some(flush) = self.flushes.iter_mut().find(|flush| flush.id == watermark.request_id) {
            flush.state = FlushState::Answered;
        }
    }

    /// The daemon cannot do the flush now, so it is asked for again: what waits in the ring, waits there.
    pub(super) fn flush_refused(&mut self, shared: &Shared, id: u32, error: ErrorInfo, now: Instant) {
        let Some(at) = self.flushes.iter().position(|flush| flush.id == id) else { return };
        let overdue = self.flushes[at].since + shared.options.delivery_timeout <= now;
        if error.retryable && !overdue {
            let pause = error.retry_after_ms.map_or(FLUSH_RETRY_DELAY_MAX, |ms| Duration::from_millis(ms.into()));
            self.flushes[at].state = FlushState::Unsent(Some(now + pause.min(FLUSH_RETRY_DELAY_MAX)));
        } else if error.code == ErrorCode::JournalFailed && !error.retryable && !error.maybe_written {
            // It is reported once: the ring continues, and the next flush can succeed.
            let Some(flush) = self.flushes.remove(at) else { return };
            shared.undelivered.complete_flush(flush.sender, Err(AppendError::Lost));
        } else if let Some(flush) = self.flushes.remove(at) {
            self.flush_abandoned = true;
            let error = AppendError::Refused { error: Box::new(error), maybe_written: true };
            shared.undelivered.complete_flush(flush.sender, Err(error));
        }
    }

    pub(super) fn flush_timer(&self) -> Option<Instant> {
        let waits = |flush: &Flush| if let FlushState::Unsent(at) = flush.state { at } else { None };
        self.flushes.iter().filter_map(waits).min()
    }

    /// The connection is gone; the ring is not.
    pub(super) fn disconnected(&mut self) {
        for flush in self.flushes.iter_mut().filter(|flush| flush.state == FlushState::Sent) {
            flush.state = FlushState::Unsent(None);
        }
    }

    /// Abandons the ring. The next flush reports errors that had no listener: also those of appends that have their
    /// receipt as `posted`.
    pub(super) fn close_ring(&mut self, shared: &Shared, error: &AppendError) {
        self.memory = None;
        let Some(ring_handle) = self.ring_handle.take() else { return };
        ring_handle.end(error);
        if !ring_handle.is_drained() {
            shared.undelivered.add(error.clone());
        }
        // All that they waited for has its outcome; the next ring counts from the start again.
        self.flushes.iter_mut().for_each(|flush| flush.upto = 0);
    }

    /// Everything ends.
    pub(crate) fn end(&mut self, shared: &Shared, error: &AppendError) {
        self.close_ring(shared, &error.clone().with_maybe_written(true)); // whatever daemon comes takes it
        for item in self.take_backlog() {
            match item {
                Item::Append(append, claim) => {
                    Self::fail_append(shared, &append, claim, error.clone().with_maybe_written(false));
                }
                Item::Flush(_, sender, _) => {
                    shared.undelivered.complete_flush(sender, Err(error.clone().with_maybe_written(true)))
                }
            }
        }
    }
}
