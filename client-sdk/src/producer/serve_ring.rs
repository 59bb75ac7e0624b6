//! The task of a producer with a ring: it asks for one, serves a connection with it, and resumes it after a restart of
//! the daemon.
//!
//! A ring that was refused for now is asked for again. The producer goes from the socket to the ring only when the log has
//! all that went over the socket as `written`: no crash of the daemon loses that, so nothing is left that only the session
//! could report. What is submitted meanwhile waits behind it.

use std::{ops::ControlFlow, os::fd::AsFd, sync::Arc, time::Duration};

use clad_proto::{AckLevel, frame::Welcome};
use tokio::time::{Instant, sleep_until};

use super::{
    ring_task::{RingRetry, RingTask},
    shared::{Item, Life},
    task::{End, Task, failed},
};
use crate::{
    AppendError, ConnectError,
    clock::now,
    lock::lock,
    ring::{Asked, RingHandle, ask},
    transport::{Answer, Connection, Framed},
};

/// Interval between two looks for room in the ring.
const RING_ROOM_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time in which all that went over the socket is to be answered, while what comes in waits for the ring.
const RING_SWITCH_TIMEOUT: Duration = Duration::from_millis(200);

impl Task {
    /// Asks for a ring on a connection that was just greeted; nothing where there is none, and from now on the socket
    /// is used.
    pub(super) async fn get_ring(&mut self, framed: &mut Framed, welcome: &mut Welcome) -> Result<bool, ConnectError> {
        let Some(ring_task) = &mut self.ring_task else { return Ok(false) };
        let known = ring_task.ring_handle.as_ref().zip(ring_task.memory.as_ref());
        let known = known.map(|(ring_handle, memory)| (ring_handle.id, memory.as_fd()));
        let mut asked = ask(framed, known).await?;
        if let (Asked::Refused(why), Some(ring_handle)) = (&asked, &ring_task.ring_handle) {
            tracing::warn!(ring = %ring_handle.id, %why, "the ring is gone; what was not answered may be written");
            self.shared.set_ring_handle(None);
            ring_task.close_ring(&self.shared, &AppendError::Forgotten);
            asked = ask(framed, None).await?;
        }
        match asked {
            Asked::New { id, ring, stored, memory } => {
                let wake = self.shared.wake.clone();
                let (counters, undelivered) = (self.shared.counters.clone(), self.shared.undelivered.clone());
                let ring_handle = RingHandle::new(
                    id,
                    *ring,
                    welcome.log_id,
                    (welcome.highest_ack, stored),
                    counters,
                    undelivered,
                    wake,
                );
                ring_task.ring_handle = Some(Arc::new(ring_handle));
                ring_task.memory = Some(memory);
                self.ring_retry = RingRetry::new();
                self.shared.has_no_ring(None);
                lock(&self.shared.session).restart();
            }
            Asked::Known { completion_page, waker, stored } => {
                if let Some(ring_handle) = &ring_task.ring_handle {
                    ring_handle
                        .attach_completion_page(&completion_page, waker, (welcome.highest_ack, stored))
                        .map_err(|e| framed.protocol(format!("its completion page: {e}")))?;
                }
            }
            Asked::Refused(why) => {
                tracing::warn!(address = %self.shared.options.address, %why, "no ring is given: logging over the socket");
                self.ring_retry.at = None;
                if why.retryable {
                    self.ring_retry.later(now());
                }
                self.shared.has_no_ring(Some(why));
                self.shared.waits_because(None);
                self.leave_ring();
                return Ok(false);
            }
        }
        if let Some(ring_handle) = &ring_task.ring_handle {
            welcome.max_append_bytes = welcome.max_append_bytes.min(ring_handle.max_append_bytes());
            self.shared.set_ring_handle(Some(ring_handle.clone()));
        }
        ring_task.disconnected_since = None;
        self.shared.waits_because(None);
        Ok(true)
    }

    /// From now on there is no ring.
    fn leave_ring(&mut self) {
        let Some(mut ring_task) = self.ring_task.take() else { return };
        for item in ring_task.take_backlog() {
            match item {
                Item::Append(append, claim) => self.session().submit(append, claim),
                Item::Flush(level, sender, since) => self.session().flush(level, sender, since),
            }
        }
    }

    /// On the socket: when it is time, leaves it for a ring. True once that connection can end.
    pub(super) fn seek_ring(&mut self, now: Instant) -> bool {
        let Some(at) = self.ring_retry.at else { return false };
        let mut session = lock(&self.shared.session);
        if self.ring_task.is_some() {
            if session.is_safe_in_the_log() {
                drop(session);
                (self.dialled, self.ring_retry.at) = (false, None);
                return true;
            }
            if session.is_idle() || at <= now {
                drop(session);
                self.give_up_ring(now);
            }
        } else if at <= now {
            if session.trouble().is_some() {
                self.ring_retry.later(now);
                return false;
            }
            // Nobody listens: what it would report, the next flush does.
            let (flush, _) = self.shared.undelivered.listen();
            session.flush(Some(AckLevel::Written), flush, now);
            drop(session);
            self.ring_task = Some(RingTask::new(self.shared.backlog.clone()));
            self.ring_retry.at = Some(now + RING_SWITCH_TIMEOUT);
            self.shared.wake.notify_one();
        }
        false
    }

    /// The socket is not left yet.
    pub(super) fn give_up_ring(&mut self, now: Instant) {
        if self.ring_task.is_some() {
            self.leave_ring();
            self.ring_retry.later(now);
            self.shared.wake.notify_one(); // what waited for the ring goes now
        }
    }

    /// Works on one connection with its ring until the connection is lost.
    pub(super) async fn serve_ring(&mut self, mut connection: Connection) -> ControlFlow<End> {
        loop {
            let now = now();
            let error = match self.turn_ring(&mut connection, now) {
                Ok(ControlFlow::Continue(until)) => {
                    tokio::select! {
                        driven = connection.drive(&mut self.answers) => driven.err(),
                        () = self.shared.wake.notified() => None,
                        () = sleep_until(until.unwrap_or(now)), if until.is_some() => None,
                    }
                }
                Ok(ControlFlow::Break(end)) => {
                    let done = self.is_idle() && !self.shared.options.comes_back;
                    connection.end(done).await;
                    return ControlFlow::Break(end);
                }
                Err(error) => Some(error),
            };
            let Some(error) = error else { continue };
            self.answers.clear();
            if let Some(ring_task) = &mut self.ring_task {
                ring_task.disconnected();
            }
            if error.is_final() {
                return ControlFlow::Break(failed(error));
            }
            self.lost_connection(&error);
            return ControlFlow::Continue(());
        }
    }

    /// Everything that can be done without waiting; says until when to wait then.
    fn turn_ring(
        &mut self,
        connection: &mut Connection,
        now: Instant,
    ) -> Result<ControlFlow<End, Option<Instant>>, ConnectError> {
        let life = self.shared.life();
        if let ControlFlow::Break(end) = self.take_in(now) {
            return Ok(ControlFlow::Break(end));
        }
        let linger = self.linger;
        let shared = self.shared.clone();
        let Some(ring_task) = &mut self.ring_task else { return Ok(ControlFlow::Continue(None)) };
        for answer in self.answers.drain(..) {
            match answer {
                Answer::Watermark(watermark) => ring_task.flush_answered(&watermark),
                Answer::FlushRefused { id, error } => ring_task.flush_refused(&shared, id, error, now),
                Answer::Accepted(_) | Answer::Refused(_) | Answer::Pong => {}
            }
        }
        ring_task.feed(&shared);
        ring_task.expire(&shared, now);
        ring_task.flush(&shared, connection, now)?;
        if ring_task.ring_handle.as_ref().is_some_and(|ring_handle| ring_handle.is_closed()) {
            return Err(ConnectError::Closed { address: shared.options.address.clone() });
        }
        let again = ring_task.flush_timer();
        let room = (!ring_task.is_backlog_empty()).then(|| now + RING_ROOM_POLL_INTERVAL);
        let expiry = ring_task.next_expiry(&shared);
        shared
            .counters
            .pending_appends
            .set(ring_task.ring_handle.as_ref().map_or(0, |ring_handle| ring_handle.pending()) as u64);
        let deadline = match &life {
            Life::Closing(deadline) => *deadline,
            _ => None,
        };
        if let ControlFlow::Break(end) = self.over(&life, now) {
            return Ok(ControlFlow::Break(end));
        }
        if let Some(ring_task) = &self.ring_task {
            ring_task.rest(!matches!(life, Life::Open));
        }
        Ok(ControlFlow::Continue([linger, again, room, expiry, deadline].into_iter().flatten().min()))
    }

    /// Abandons what waits for a daemon.
    pub(super) fn tick_ring(&mut self, now: Instant) {
        let shared = self.shared.clone();
        if let Some(ring_task) = &mut self.ring_task {
            ring_task.expire(&shared, now);
        }
    }

    pub(super) fn ring_timer(&self) -> Option<Instant> {
        self.ring_task.as_ref().and_then(|ring_task| ring_task.next_expiry(&self.shared))
    }
}
