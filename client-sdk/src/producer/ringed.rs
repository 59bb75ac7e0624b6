//! The task of a producer with a ring: feeds it what found no room in it, asks for flushes, goes on with it after the
//! daemon was started again.
//!
//! Submits go to the ring in their caller's thread ([`Shared`] decides that, while nothing waits here); what comes to
//! this task is what must wait, in its order.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use clad_proto::{
    AckLevel, ErrorCode, ErrorInfo,
    frame::{Watermark, Welcome},
};
use tokio::time::{Instant, sleep_until};

use super::{
    shared::{Item, Life, Shared},
    task::{End, Task, failed},
    unheard::{FlushSender, Sweep},
    waiters::Claim,
};
use crate::{
    AppendError, ConnectError,
    clock::now,
    connection::{Answer, Connection, Framed},
    ring::{Asked, Port, Posted, ask},
    session::{Append, Out},
};

/// How often it looks whether the ring has room again.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// How long a flush waits at most before it is asked for again, where the daemon could not do it.
const FLUSH_AGAIN: Duration = Duration::from_millis(200);

/// A flush under way.
#[derive(Debug)]
struct Flush {
    level: AckLevel,
    /// Every ticket of an append below is to be answered first.
    upto: u64,
    id: u32,
    since: Instant,
    state: Asking,
    sender: FlushSender,
}

#[derive(Debug, PartialEq, Eq)]
enum Asking {
    /// It was not, or the daemon could not do it: again then.
    Not(Option<Instant>),
    Sent,
    Answered,
}

/// What the task knows of its ring.
#[derive(Debug, Default)]
pub(super) struct Ringed {
    port: Option<Arc<Port>>,
    /// In the order of the submits.
    backlog: VecDeque<Item>,
    flushes: VecDeque<Flush>,
    flush_id: u32,
    sweep: Sweep,
    /// Since when there is no daemon.
    alone: Option<Instant>,
    /// The last flush that ended was given up: nobody waits any longer for what is in the ring.
    given_up: bool,
}

impl Ringed {
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.flushes.is_empty() && self.port.as_ref().is_none_or(|port| port.pending() == 0)
    }

    /// Whether the end need not wait for the tickets of what is in the ring.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up && self.backlog.is_empty() && self.flushes.is_empty()
    }

    pub(super) fn lost_connection(&mut self, now: Instant) {
        self.alone.get_or_insert(now);
    }

    pub(super) fn has_port(&self) -> bool {
        self.port.is_some()
    }

    pub(super) fn take_in(&mut self, items: impl Iterator<Item = Item>) {
        for item in items {
            let is_due = matches!(item, Item::Flush(..)) && self.sweep.is_due();
            self.backlog.push_back(item);
            if is_due {
                self.forget_flushes();
            }
        }
    }

    /// Lets go of the flushes that nobody waits for and the daemon does not have.
    fn forget_flushes(&mut self) {
        let mut left = 0;
        self.backlog.retain(|item| {
            let Item::Flush(_, sender, _) = item else { return true };
            left += usize::from(!sender.is_closed());
            !sender.is_closed()
        });
        self.flushes.retain(|flush| !matches!(flush.state, Asking::Not(_)) || !flush.sender.is_closed());
        self.sweep.done(left + self.flushes.len());
    }

    /// What waits here, for who goes on without a ring.
    fn take_backlog(&mut self) -> Vec<Item> {
        let flushes = self.flushes.drain(..).map(|flush| Item::Flush(Some(flush.level), flush.sender, flush.since));
        flushes.chain(self.backlog.drain(..)).collect()
    }

    /// Puts into the ring what has room there; then submits go there at once again.
    fn feed(&mut self, shared: &Shared) {
        let Some(port) = self.port.clone() else { return };
        while self.feed_backlog(shared, &port) {
            // Who submits all the time has always put something in meanwhile; the last few go in while the inbox is shut.
            if let Some(shut) = shared.late(&mut self.backlog) {
                if self.feed_backlog(shared, &port) {
                    shut.post_directly(&port);
                }
                return;
            }
        }
    }

    /// Posts what waits; false when something must wait on.
    fn feed_backlog(&mut self, shared: &Shared, port: &Arc<Port>) -> bool {
        if self.backlog.is_empty() {
            return true;
        }
        let all = self.post_backlog(shared, port);
        // Whoever waits for one of these may have looked when it was not in the ring, and never looks again.
        port.want_for_waiting();
        all
    }

    /// Posts in order, until one finds no room; says whether all did.
    fn post_backlog(&mut self, shared: &Shared, port: &Arc<Port>) -> bool {
        while let Some(item) = self.backlog.pop_front() {
            match item {
                Item::Append(append, claim) => match port.post(append, claim) {
                    Posted::Done => {}
                    Posted::Wait(append, claim) | Posted::Forked(append, claim) => {
                        self.backlog.push_front(Item::Append(append, claim));
                        return false;
                    }
                },
                Item::Flush(level, sender, since) => {
                    let highest = shared.log_info().map_or(AckLevel::Written, |log| log.highest_ack);
                    let level = level.unwrap_or(highest);
                    self.flush_id = self.flush_id.checked_add(1).unwrap_or(2);
                    let (upto, id) = (port.last(), self.flush_id + 1);
                    // What is in the ring is posted; there is nothing to ask for.
                    let state = if level < AckLevel::Received { Asking::Answered } else { Asking::Not(None) };
                    self.flushes.push_back(Flush { level, upto, id, since, state, sender });
                }
            }
        }
        true
    }

    /// Ends what has waited for too long: for room, or for a daemon. What lies in the ring is for the daemon to end.
    fn give_up(&mut self, shared: &Shared, now: Instant) {
        let patience = shared.options.give_up_after;
        while self
            .flushes
            .front()
            .is_some_and(|flush| self.flush_due(flush.since, patience).is_some_and(|due| due <= now))
        {
            let Some(flush) = self.flushes.pop_front() else { return };
            self.give_up_flush(shared, flush.sender, patience);
        }
        while self.front_due(patience).is_some_and(|due| due <= now) {
            match self.backlog.pop_front() {
                Some(Item::Append(append, claim)) => {
                    let error = self.no_room(patience);
                    Self::end_append(shared, &append, claim, error);
                }
                Some(Item::Flush(_, sender, _)) => self.give_up_flush(shared, sender, patience),
                None => return,
            }
        }
    }

    /// Why an append found no room for so long. Without a daemon that is the reason, whatever it said before it went.
    fn no_room(&self, waited: Duration) -> AppendError {
        let given_up = |reason: &str| AppendError::GivenUp { waited, reason: reason.to_owned(), maybe_written: false };
        match &self.port {
            Some(port) if self.alone.is_none() => match port.refused_for_now() {
                Some(error) => AppendError::Refused { error: Box::new(error), maybe_written: false },
                None => given_up("the ring is full"),
            },
            _ => given_up("there is no daemon"),
        }
    }

    fn give_up_flush(&mut self, shared: &Shared, sender: FlushSender, patience: Duration) {
        let reason = "there is no daemon to take what lies in the ring".to_owned();
        self.given_up = true;
        let error = AppendError::GivenUp { waited: patience, reason, maybe_written: true };
        shared.unheard.tell(sender, Err(error));
    }

    /// When a flush is given up; never while there is a daemon, which answers it.
    fn flush_due(&self, since: Instant, patience: Duration) -> Option<Instant> {
        self.alone.map(|alone| alone.max(since) + patience)
    }

    /// When what waits longest for room is given up.
    fn front_due(&self, patience: Duration) -> Option<Instant> {
        match self.backlog.front()? {
            Item::Append(append, _) => Some(append.submitted + patience),
            Item::Flush(_, _, since) => self.flush_due(*since, patience),
        }
    }

    /// An append that never was in the ring ends.
    fn end_append(shared: &Shared, append: &Append, claim: Claim, error: AppendError) {
        shared.counters.failed.add(append.count.into());
        let outcome = Err(error);
        if !claim.resolve(&outcome)
            && let Err(error) = outcome
        {
            shared.unheard.keep(error);
        }
    }

    fn give_up_at(&self, shared: &Shared) -> Option<Instant> {
        let patience = shared.options.give_up_after;
        let flush = self.flushes.front().and_then(|flush| self.flush_due(flush.since, patience));
        flush.into_iter().chain(self.front_due(patience)).min()
    }

    /// Asks for flushes whose appends are all in the ring, and ends those that are over.
    fn flush(&mut self, shared: &Shared, connection: &mut Connection, now: Instant) -> Result<(), ConnectError> {
        let due = |flush: &&mut Flush| matches!(flush.state, Asking::Not(at) if at.is_none_or(|at| at <= now));
        for flush in self.flushes.iter_mut().filter(due) {
            flush.state = Asking::Sent;
            connection.queue(Out::Flush { id: flush.id, level: flush.level })?;
        }
        let Some(port) = &self.port else { return Ok(()) };
        port.pump();
        while let Some(flush) = self.flushes.front()
            && flush.state == Asking::Answered
            && port.is_answered_below(flush.upto)
        {
            let Some(flush) = self.flushes.pop_front() else { break };
            self.given_up = false;
            if let Some(error) = port.take_unheard() {
                shared.unheard.keep(error);
            }
            shared.unheard.tell(flush.sender, Ok(()));
        }
        if !self.flushes.is_empty() {
            port.want();
        }
        Ok(())
    }

    fn flush_answered(&mut self, mark: &Watermark) {
        if let Some(flush) = self.flushes.iter_mut().find(|flush| flush.id == mark.request_id) {
            flush.state = Asking::Answered;
        }
    }

    /// What the daemon cannot do now it is asked for again: what waits in the ring, waits there.
    fn flush_refused(&mut self, shared: &Shared, id: u32, error: ErrorInfo, now: Instant) {
        let Some(at) = self.flushes.iter().position(|flush| flush.id == id) else { return };
        let overdue = self.flushes[at].since + shared.options.give_up_after <= now;
        if error.retryable && !overdue {
            let pause = error.retry_after_ms.map_or(FLUSH_AGAIN, |ms| Duration::from_millis(ms.into()));
            self.flushes[at].state = Asking::Not(Some(now + pause.min(FLUSH_AGAIN)));
        } else if error.code == ErrorCode::JournalFailed && !error.retryable && !error.maybe_written {
            // It is told once: the ring goes on, and so does who flushes again.
            let Some(flush) = self.flushes.remove(at) else { return };
            shared.unheard.tell(flush.sender, Err(AppendError::Lost));
        } else if let Some(flush) = self.flushes.remove(at) {
            self.given_up = true;
            let error = AppendError::Refused { error: Box::new(error), maybe_written: true };
            shared.unheard.tell(flush.sender, Err(error));
        }
    }

    fn flush_timer(&self) -> Option<Instant> {
        let waits = |flush: &Flush| if let Asking::Not(at) = flush.state { at } else { None };
        self.flushes.iter().filter_map(waits).min()
    }

    /// The connection is gone; the ring is not.
    fn disconnected(&mut self) {
        for flush in self.flushes.iter_mut().filter(|flush| flush.state == Asking::Sent) {
            flush.state = Asking::Not(None);
        }
    }

    /// The ring is given up. What nobody heard of it is told by the next flush: also of what has its receipt as `posted`.
    fn end_port(&mut self, shared: &Shared, error: &AppendError) {
        let Some(port) = self.port.take() else { return };
        port.end(error);
        let posted = (!port.is_given_back()).then(|| error.clone());
        port.take_unheard().into_iter().chain(posted).for_each(|error| shared.unheard.keep(error));
        // All that they waited for has its outcome; the next ring counts anew.
        self.flushes.iter_mut().for_each(|flush| flush.upto = 0);
    }

    /// Everything ends.
    pub(super) fn end(&mut self, shared: &Shared, error: &AppendError) {
        self.end_port(shared, &error.clone().with_maybe_written(true)); // whatever daemon comes takes it
        for item in self.take_backlog() {
            match item {
                Item::Append(append, claim) => {
                    Self::end_append(shared, &append, claim, error.clone().with_maybe_written(false));
                }
                Item::Flush(_, sender, _) => shared.unheard.tell(sender, Err(error.clone().with_maybe_written(true))),
            }
        }
    }
}

impl Task {
    /// Asks for a ring on a connection that was just greeted; nothing where there is none, and from now on the socket is
    /// used.
    pub(super) async fn get_ring(&mut self, framed: &mut Framed, welcome: &mut Welcome) -> Result<bool, ConnectError> {
        let Some(ringed) = &mut self.ringed else { return Ok(false) };
        let mut asked = ask(framed, ringed.port.as_ref().map(|port| port.id)).await?;
        if let (Asked::Refused(why), Some(port)) = (&asked, &ringed.port) {
            tracing::warn!(ring = %port.id, %why, "the ring is gone; what was not answered may be written");
            self.shared.set_port(None);
            ringed.end_port(&self.shared, &AppendError::Forgotten);
            asked = ask(framed, None).await?;
        }
        match asked {
            Asked::New { id, ring, other_clock } => {
                if other_clock {
                    tracing::info!(
                        "this process has another clock than the daemon: its records are ordered by when they are drained"
                    );
                }
                let wake = self.shared.wake.clone();
                let counters = self.shared.counters.clone();
                let port = Port::new((id, other_clock), *ring, welcome.log_id, welcome.highest_ack, counters, wake);
                ringed.port = Some(Arc::new(port));
            }
            Asked::Known { board } => {
                if let Some(port) = &ringed.port {
                    port.attach_board(&board, welcome.highest_ack)
                        .map_err(|e| framed.protocol(format!("its board: {e}")))?;
                }
            }
            Asked::Refused(why) => {
                tracing::warn!(address = %self.shared.options.address, %why, "no ring is given: logging over the socket");
                self.shared.has_no_ring(why);
                self.shared.waits_because(None);
                self.leave_ring();
                return Ok(false);
            }
        }
        if let Some(port) = &ringed.port {
            welcome.max_append_bytes = welcome.max_append_bytes.min(port.max_append_bytes());
            self.shared.set_port(Some(port.clone()));
        }
        ringed.alone = None;
        self.shared.waits_because(None);
        Ok(true)
    }

    /// From now on there is no ring.
    fn leave_ring(&mut self) {
        let Some(mut ringed) = self.ringed.take() else { return };
        for item in ringed.take_backlog() {
            match item {
                Item::Append(append, claim) => self.session.submit(append, claim),
                Item::Flush(level, sender, since) => self.session.flush(level, sender, since),
            }
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
            if let Some(ringed) = &mut self.ringed {
                ringed.disconnected();
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
        let Some(ringed) = &mut self.ringed else { return Ok(ControlFlow::Continue(None)) };
        for answer in self.answers.drain(..) {
            match answer {
                Answer::Watermark(mark) => ringed.flush_answered(&mark),
                Answer::FlushRefused { id, error } => ringed.flush_refused(&shared, id, error, now),
                Answer::Accepted(_) | Answer::Refused(_) | Answer::Pong => {}
            }
        }
        ringed.feed(&shared);
        ringed.give_up(&shared, now);
        ringed.flush(&shared, connection, now)?;
        if ringed.port.as_ref().is_some_and(|port| port.is_closed()) {
            return Err(ConnectError::Closed { address: shared.options.address.clone() });
        }
        if !matches!(life, Life::Open)
            && let Some(port) = &ringed.port
        {
            port.want(); // the end waits for its tickets
        }
        let again = ringed.flush_timer();
        let room = (!ringed.backlog.is_empty()).then(|| now + ROOM_LOOK);
        let give_up = ringed.give_up_at(&shared);
        shared.counters.pending_appends.set(ringed.port.as_ref().map_or(0, |port| port.pending()) as u64);
        let deadline = match &life {
            Life::Closing(deadline) => *deadline,
            _ => None,
        };
        if let ControlFlow::Break(end) = self.over(&life, now) {
            return Ok(ControlFlow::Break(end));
        }
        Ok(ControlFlow::Continue([linger, again, room, give_up, deadline].into_iter().flatten().min()))
    }

    /// Gives up what waits for a daemon.
    pub(super) fn tick_ring(&mut self, now: Instant) {
        let shared = self.shared.clone();
        if let Some(ringed) = &mut self.ringed {
            ringed.give_up(&shared, now);
        }
    }

    pub(super) fn ring_timer(&self) -> Option<Instant> {
        self.ringed.as_ref().and_then(|ringed| ringed.give_up_at(&self.shared))
    }
}
