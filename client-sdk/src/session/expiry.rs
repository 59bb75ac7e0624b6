//! When waiting ends: trouble that lasts too long, and the end of the producer.

use super::{Entry, Session, Stage};
use crate::AppendError;
use tokio::time::Instant;

impl<W, F> Session<W, F> {
    /// Abandons what has waited too long through the trouble there is, and ends what need not wait for a connection.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some((since, why)) = self.trouble.clone() {
            self.expire(since, &why, now);
        }
        if self.link.is_none() {
            // There is no connection to ask: this ends the flushes that need no asking, and gives nothing.
            self.next_flush(now);
        }
    }

    fn expire(&mut self, since: Instant, why: &str, now: Instant) {
        let due = |submitted: Instant| since.max(submitted) + self.delivery_timeout <= now;
        let mut overdue = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if !due(entry.append.submitted) {
                break; // they are in the order of their submits
            }
            // An append that a live connection has is not abandoned here: its answer comes.
            if entry.stage == Stage::Queued || (self.link.is_none() && entry.stage != Stage::Done) {
                overdue.push(at);
            }
        }
        let upto = overdue.last().map_or(0, |last| last + 1);
        for at in overdue {
            // Without a daemon that is the reason, whatever it said before it went.
            let refusal =
                self.entries.get_mut(at).and_then(|entry| entry.refusal.take()).filter(|_| self.link.is_some());
            self.finish(at, Err(self.timeout_error(refusal, why)));
        }
        self.drop_expired(upto);
        while self.link.is_none()
            && self.flushes.front().is_some_and(|flush| since.max(flush.since) + self.delivery_timeout <= now)
        {
            self.flush_ends(0, Err(self.timeout_error(None, why).with_maybe_written(true)));
        }
    }

    /// Behind an append that a connection has and does not answer, others are abandoned for as long as that lasts.
    /// Those that were never sent have no place in the order; they lie together, as they came.
    fn drop_expired(&mut self, upto: usize) {
        let gone = |entry: &Entry<W>| entry.stage == Stage::Done && !entry.was_sent;
        let mut behind = (0..).zip(&self.entries).take(upto).skip(self.frontier);
        if let Some((from, _)) = behind.by_ref().find(|(_, entry)| gone(entry)) {
            let to = behind.find(|(_, entry)| !gone(entry)).map_or(upto, |(to, _)| to);
            self.entries.drain(from..to);
            self.cursor = self.cursor.min(from);
        }
        self.trim();
    }

    fn timeout_error(&self, refusal: Option<Box<clad_proto::ErrorInfo>>, why: &str) -> AppendError {
        match refusal {
            Some(error) => AppendError::Refused { error, maybe_written: false },
            None => AppendError::DeliveryTimeout {
                waited: self.delivery_timeout,
                reason: why.to_owned(),
                maybe_written: false,
            },
        }
    }

    /// Nothing goes forward, since now or since before; why is the newest reason there is.
    pub(super) fn is_in_trouble(&mut self, now: Instant, why: &str) {
        let (_, reason) = self.trouble.get_or_insert((now, String::new()));
        why.clone_into(reason);
    }

    /// Since when nothing goes forward, and why.
    pub(crate) const fn trouble(&self) -> Option<&(Instant, String)> {
        self.trouble.as_ref()
    }

    /// When to call [`Self::tick`] and ask what to send, if nothing else happens before.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let expiry = self.trouble.as_ref().and_then(|(since, _)| {
            let queued = |stage| stage == Stage::Queued || (self.link.is_none() && stage != Stage::Done);
            let entry = self.entries.iter().find(|entry| queued(entry.stage)).map(|entry| entry.append.submitted);
            let flush = self.flushes.front().filter(|_| self.link.is_none()).map(|flush| flush.since);
            let first = entry.into_iter().chain(flush).min()?;
            Some(first.max(*since) + self.delivery_timeout)
        });
        // Without a connection there is nothing to send when these are over.
        let waits = self.link.as_ref().map(|_| [self.not_before, self.flush_timer()]);
        waits.into_iter().flatten().flatten().chain(expiry).min()
    }

    /// Ends everything.
    pub(crate) fn fail_all(&mut self, error: &AppendError) {
        for at in 0..self.entries.len() {
            self.finish(at, Err(error.clone()));
        }
        self.trim();
        while !self.flushes.is_empty() {
            self.flush_ends(0, Err(error.clone().with_maybe_written(true)));
        }
    }
}
