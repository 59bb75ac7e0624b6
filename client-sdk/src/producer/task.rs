//! The task: takes from the inbox, gives to the connection, notifies the session and the waiters. It decides nothing.
//!
//! It goes round: inbox → session → connection → answers → session → waiters. It ends when everything is home after a
//! close, when the time for that is over, or when the daemon says for good that it does not want this producer.
//!
//! A connection is made at the start, and after a loss only when there is something to do.

use super::{
    dial::greeting,
    ring_task::{RingRetry, RingTask},
    shared::{Item, Life, Shared},
};
use crate::{
    Address, AppendError, ConnectError, DropReason,
    backoff::{Backoff, random},
    clock::now,
    lock::lock,
    session::{Out, Outcome, Session},
    sync::MutexGuard,
    transport::{Answer, Connection, Framed},
    undelivered::{FlushPruner, FlushSender},
    waiters::Claim,
};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, frame::Welcome};
use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// A daemon with a pending answer that is silent for so long is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(15);
/// The longest time for that. Long: a daemon under a slow disk stops reading.
const PONG_WITHIN: Duration = Duration::from_secs(60);
/// Time between two reports of drops: their records are to be few.
const REPORT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Why the task ends.
pub(super) type End = AppendError;

/// Whatever ends the task, also a runtime that goes down, no waiter waits for it for ever.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        if self.0.is_forked() {
            return; // it goes on where it was begun
        }
        // Tickets and flushes that are still in are notified by their drop.
        drop(self.0.end(AppendError::Closed { maybe_written: true }));
        let backlog = std::mem::take(&mut *lock(&self.0.backlog));
        let session = lock(&self.0.session).abandon();
        drop((backlog, session));
        self.0.gone();
    }
}

pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    _gone: Gone,
    /// With a ring, or before it is known whether there is one.
    pub(super) ring_task: Option<RingTask>,
    pub(super) ring_retry: RingRetry,
    connection: Option<Connection>,
    flush_pruner: FlushPruner,
    backoff: Backoff,
    retry_at: Option<Instant>,
    pub(super) dialled: bool,
    items: VecDeque<Item>,
    outcomes: Vec<Outcome<Claim, FlushSender>>,
    /// The last report of drops is under way.
    last_report: bool,
    /// No report before that, unless it is the last word.
    next_report: Instant,
    pub(super) answers: Vec<Answer>,
    /// When what is being grouped is due, or a report of drops.
    pub(super) linger: Option<Instant>,
    /// The trouble of the session that was reported last.
    trouble: Option<(Instant, String)>,
    last_answer_at: Instant,
    pinged_at: Option<Instant>,
}

impl Task {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let options = &shared.options;
        Self {
            backoff: Backoff::new(options.backoff.0, options.backoff.1, u64::from_le_bytes(random())),
            flush_pruner: FlushPruner::default(),
            ring_task: matches!(options.address, Address::Shm(_)).then(|| RingTask::new(shared.backlog.clone())),
            ring_retry: RingRetry::new(),
            connection: None,
            retry_at: None,
            dialled: false,
            items: VecDeque::new(),
            outcomes: Vec::new(),
            last_report: false,
            next_report: now(),
            answers: Vec::new(),
            linger: None,
            trouble: None,
            last_answer_at: now(),
            pinged_at: None,
            _gone: Gone(shared.clone()),
            shared,
        }
    }

    pub(super) async fn run(mut self) {
        let end = loop {
            let connection = match self.connection.take() {
                Some(connection) => connection,
                None => match self.dial().await {
                    ControlFlow::Continue(connection) => connection,
                    ControlFlow::Break(end) => break end,
                },
            };
            let served = match self.ring_task {
                Some(_) => self.serve_ring(connection).await,
                None => self.serve(connection).await,
            };
            if let ControlFlow::Break(end) = served {
                break end;
            }
        };
        self.finish(&end);
    }

    /// Connects once and keeps the connection.
    pub(super) async fn connect_once(&mut self) -> Result<(), ConnectError> {
        self.dialled = true;
        let shared = self.shared.clone();
        let options = &shared.options;
        let hello = greeting(options);
        let (mut connection, mut welcome) =
            Connection::connect(&options.address, &hello, options.connect_timeout).await?;
        if welcome.producer_id != options.producer_id {
            let what = "it welcomes another producer than was named".to_owned();
            return Err(ConnectError::Protocol { address: options.address.clone(), what });
        }
        self.shared.counters.connects.add(1); // before what WELCOME says is stored has its outcome
        let has_ring = match &mut connection {
            Connection::Framed(framed) => self.get_ring_in_time(framed, &mut welcome).await?,
            #[cfg(feature = "grpc")]
            Connection::Grpc(_) => false,
        };
        if !has_ring {
            self.session().connected(&welcome).map_err(|shared| ConnectError::ProducerShared {
                address: options.address.clone(),
                producer: options.producer_id,
                stored: shared.0,
            })?;
        }
        self.shared.greeted(&welcome);
        (self.last_answer_at, self.pinged_at) = (now(), None);
        tracing::debug!(address = %options.address, log = %welcome.log_id, epoch = welcome.epoch, "connected");
        self.connection = Some(connection);
        Ok(())
    }

    /// Connects until the last record that the log has of this producer has reached a level, and keeps that connection.
    pub(super) async fn connect_at(&mut self, level: AckLevel) -> Result<(), ConnectError> {
        let (start, shared) = (now(), self.shared.clone());
        let (address, timeout) = (&shared.options.address, shared.options.delivery_timeout);
        loop {
            self.connect_once().await?;
            if shared.log_info().is_some_and(|log| log.highest_ack < level) {
                let text = format!("this log does not offer the level {}", level.name());
                let error = Box::new(ErrorInfo::new(ErrorCode::LevelUnreachable, text));
                return Err(ConnectError::Refused { address: address.clone(), error });
            }
            if shared.last_stored().is_none_or(|last| last.level >= level) {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                return Err(ConnectError::Timeout { address: address.clone(), timeout });
            }
            self.connection = None;
            self.lost_connection(&ConnectError::Closed { address: address.clone() });
            sleep_until(self.retry_at.unwrap_or(start)).await;
        }
    }

    /// Waits until there is something to do, and connects, again and again.
    async fn dial(&mut self) -> ControlFlow<End, Connection> {
        loop {
            self.take_in(now())?;
            // Appends to a ring do not come by here: its new completion page is fetched with or without a waiter.
            let wanted = !self.dialled || !self.is_idle() || self.ring_task.as_ref().is_some_and(RingTask::has_ring);
            if wanted && self.retry_at.is_none_or(|time| time <= now()) {
                match self.connect_once().await {
                    Ok(()) => {
                        if let Some(connection) = self.connection.take() {
                            return ControlFlow::Continue(connection);
                        }
                    }
                    Err(error) if error.is_final() => return ControlFlow::Break(failed(error)),
                    Err(error) => self.lost_connection(&error),
                }
            }
            let other = [self.retry_at.filter(|_| wanted), self.ring_timer()].into_iter().flatten().min();
            let until = self.next_timer(other);
            self.pause(until).await;
        }
    }

    async fn pause(&self, until: Option<Instant>) {
        tokio::select! {
            () = self.shared.wake.notified() => {}
            () = sleep_until(until.unwrap_or_else(now)), if until.is_some() => {}
        }
    }

    async fn get_ring_in_time(&mut self, framed: &mut Framed, welcome: &mut Welcome) -> Result<bool, ConnectError> {
        if self.ring_task.is_none() {
            return Ok(false);
        }
        let (address, timeout) = (self.shared.options.address.clone(), self.shared.options.connect_timeout);
        match tokio::time::timeout(timeout, self.get_ring(framed, welcome)).await {
            Ok(asked) => asked,
            Err(_) => Err(ConnectError::Timeout { address, timeout }),
        }
    }

    pub(super) fn session(&self) -> MutexGuard<'_, Session<Claim, FlushSender>> {
        lock(&self.shared.session)
    }

    /// True if nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        let is_idle = self.session().is_idle();
        is_idle && self.ring_task.as_ref().is_none_or(RingTask::is_idle)
    }

    pub(super) fn lost_connection(&mut self, error: &ConnectError) {
        let (now, pending) = (now(), self.session().pending());
        tracing::debug!(address = %self.shared.options.address, %error, pending, "no connection");
        self.session().disconnected(now, &error.to_string());
        if let Some(ring_task) = &mut self.ring_task {
            ring_task.lost_connection(now);
            self.shared.waits_because(Some(error.to_string()));
        }
        self.retry_at = Some(now + self.backoff.next());
    }

    /// Works on one connection until it is lost.
    async fn serve(&mut self, mut connection: Connection) -> ControlFlow<End> {
        loop {
            let now = now();
            let error = match self.turn(&mut connection, now) {
                Ok(ControlFlow::Continue(())) => {
                    if self.seek_ring(now) {
                        connection.end(false).await;
                        return ControlFlow::Continue(());
                    }
                    let other = [self.ping_timer(), self.ring_retry.at].into_iter().flatten().min();
                    let until = self.next_timer(other);
                    tokio::select! {
                        driven = connection.drive(&mut self.answers) => driven.err(),
                        () = self.shared.wake.notified() => None,
                        () = sleep_until(until.unwrap_or(now)), if until.is_some() => None,
                    }
                }
                Ok(ControlFlow::Break(end)) => {
                    // The daemon may forget a producer that says good-bye: not one that may come back for answers.
                    let done = self.session().is_idle() && !self.shared.options.comes_back;
                    connection.end(done).await;
                    return ControlFlow::Break(end);
                }
                Err(error) => Some(error),
            };
            let Some(error) = error else { continue };
            // What came before the end still counts; on the next connection it would be out of place.
            let _ = self.process_answers(now);
            self.answers.clear();
            match error.of_an_append() {
                Some(refusal) => self.session().ended_by_append(refusal),
                None if error.is_final() => return ControlFlow::Break(failed(error)),
                None => {}
            }
            self.give_up_ring(now);
            self.lost_connection(&error);
            self.deliver();
            return ControlFlow::Continue(());
        }
    }

    /// Everything that can be done without waiting.
    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<ControlFlow<End>, ConnectError> {
        self.process_answers(now)?;
        // Before the inbox: what came in with the close, or before it, is taken out below.
        let life = self.shared.life();
        if let ControlFlow::Break(end) = self.take_in(now) {
            return Ok(ControlFlow::Break(end));
        }
        while connection.has_room() {
            let out = self.session().next_out(now);
            let Some(out) = out else { break };
            if let Out::Append { head, again, .. } = &out {
                let counters = &self.shared.counters;
                (if *again { &counters.resent } else { &counters.sent }).add(head.count.into());
            }
            connection.queue(out)?;
        }
        self.deliver();
        self.check_pulse(connection, now)?;
        // What was just sent may have been the last thing to do.
        Ok(self.over(&life, now))
    }

    /// Notifies the session of the answers.
    pub(super) fn process_answers(&mut self, now: Instant) -> Result<(), ConnectError> {
        if !self.answers.is_empty() {
            (self.last_answer_at, self.pinged_at) = (now, None);
        }
        for answer in self.answers.drain(..) {
            match answer {
                Answer::Accepted(answer) => {
                    lock(&self.shared.session).accepted(&answer, now).map_err(|what| ConnectError::Protocol {
                        address: self.shared.options.address.clone(),
                        what: what.to_owned(),
                    })?;
                    self.backoff.reset();
                    self.retry_at = None;
                }
                Answer::Watermark(watermark) => lock(&self.shared.session).watermark(&watermark, now),
                Answer::Refused(answer) => lock(&self.shared.session).refused(answer, now),
                Answer::FlushRefused { id, error } => lock(&self.shared.session).flush_refused(id, error, now),
                Answer::Pong => {}
            }
        }
        Ok(())
    }

    /// Takes from the inbox; ends when there is nothing more to do.
    pub(super) fn take_in(&mut self, now: Instant) -> ControlFlow<End> {
        // Looked at first: once it is closing, nothing comes in after what is taken out now.
        let life = self.shared.life();
        // Who makes room looks under this lock, and finds each item here or there.
        let shared = self.shared.clone();
        let mut session = lock(&shared.session);
        self.linger = shared.drain(now, &mut self.items);
        self.report_drops(&life, now);
        match &mut self.ring_task {
            Some(ring_task) => ring_task.take_in(self.items.drain(..)),
            None => {
                for item in self.items.drain(..) {
                    match item {
                        Item::Append(append, claim) => session.submit(append, claim),
                        Item::Flush(level, sender, since) => {
                            session.flush(level, sender, since);
                            if self.flush_pruner.is_due() {
                                self.flush_pruner.reset(session.prune_flushes(FlushSender::is_closed));
                            }
                        }
                    }
                }
            }
        }
        drop(session);
        self.tick_ring(now);
        self.session().tick(now);
        self.deliver();
        self.over(&life, now)
    }

    /// Adds a report of drops to what was taken in, where one is due: before a flush, at the end, and once half of the
    /// room is free, a second after the last one.
    fn report_drops(&mut self, life: &Life, now: Instant) {
        if self.last_report || !self.shared.counters.drops.has_unreported() {
            return;
        }
        let flush = self.items.iter().position(|item| matches!(item, Item::Flush(..)));
        let has_room = self.shared.budget.available_permits() >= self.shared.options.max_buffered_bytes / 2;
        let is_closing = !matches!(life, Life::Open);
        let is_last_word = flush.is_some() || is_closing;
        if !is_last_word && has_room && self.next_report > now {
            self.linger = self.linger.into_iter().chain([self.next_report]).min();
            return;
        }
        if (is_last_word || has_room)
            && let Some((append, claim)) = self.shared.drop_report()
        {
            (self.last_report, self.next_report) = (is_closing, now + REPORT_INTERVAL_MIN);
            self.items.insert(flush.unwrap_or(self.items.len()), Item::Append(append, claim));
        }
    }

    pub(super) fn over(&self, life: &Life, now: Instant) -> ControlFlow<End> {
        match life {
            Life::Closing(_) if self.is_idle() => {}
            // Its last flush was not answered: nor will they be whose tickets wait for what lies in the ring.
            Life::Closing(_)
                if self.session().is_idle() && self.ring_task.as_ref().is_some_and(RingTask::has_abandoned_flush) => {}
            Life::Closing(Some(deadline)) if *deadline <= now => {}
            _ => return ControlFlow::Continue(()),
        }
        ControlFlow::Break(AppendError::Closed { maybe_written: false })
    }

    /// Notifies the waiters.
    pub(super) fn deliver(&mut self) {
        let trouble = {
            let mut session = lock(&self.shared.session);
            std::mem::swap(&mut self.outcomes, &mut session.outcomes);
            (session.trouble() != self.trouble.as_ref()).then(|| session.trouble().cloned())
        };
        if let Some(trouble) = trouble {
            self.trouble = trouble;
            self.shared.waits_because(self.trouble.as_ref().map(|(_, why)| why.clone()));
        }
        let counters = &self.shared.counters;
        for outcome in self.outcomes.drain(..) {
            match outcome {
                Outcome::Append { waiter, count, silent, result } => {
                    match (&result, silent) {
                        (Ok(_), _) => counters.acked.add(count.into()),
                        (Err(_), true) => self.shared.add_drops(DropReason::Undelivered, count.into()),
                        (Err(_), false) => counters.failed.add(count.into()),
                    }
                    if !waiter.resolve(&result)
                        && let Err(error) = result
                    {
                        self.shared.undelivered.add(error);
                    }
                }
                Outcome::Flush { waiter, result } => self.shared.undelivered.complete_flush(waiter, result),
            }
        }
        if self.ring_task.is_none() {
            counters.pending_appends.set(lock(&self.shared.session).pending() as u64);
        }
    }

    fn next_timer(&self, other: Option<Instant>) -> Option<Instant> {
        let deadline = match self.shared.life() {
            Life::Closing(deadline) => deadline,
            _ => None,
        };
        [self.session().next_timer(), self.linger, deadline, other].into_iter().flatten().min()
    }

    fn ping_timer(&self) -> Option<Instant> {
        let due = self.pinged_at.map_or(self.last_answer_at + PING_AFTER, |at| at + PONG_WITHIN);
        self.session().awaits_answers().then_some(due)
    }

    fn check_pulse(&mut self, connection: &mut Connection, now: Instant) -> Result<(), ConnectError> {
        if !self.session().awaits_answers() {
            // Nothing is pending; the silence begins when something is.
            (self.last_answer_at, self.pinged_at) = (now, None);
        } else if self.ping_timer().is_some_and(|due| due <= now) {
            if self.pinged_at.is_some() {
                let options = &self.shared.options;
                return Err(ConnectError::Timeout { address: options.address.clone(), timeout: PONG_WITHIN });
            }
            match connection.ping() {
                true => self.pinged_at = Some(now),
                false => self.last_answer_at = now,
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, end: &End) {
        let late = self.shared.end(end.clone());
        if let Some(mut ring_task) = self.ring_task.take() {
            self.shared.set_ring_handle(None);
            ring_task.end(&self.shared, end);
        }
        for item in late {
            match item {
                Item::Append(append, claim) => self.session().submit(append, claim),
                Item::Flush(level, sender, since) => self.session().flush(level, sender, since),
            }
        }
        self.session().fail_all(end);
        self.deliver();
    }
}

pub(super) fn failed(error: ConnectError) -> End {
    AppendError::Failed { error: Box::new(error), maybe_written: false }
}
