//! Errors that flushes report because they had no listener.
//!
//! * The error of an append whose ticket was dropped is reported by the next flush that ends well otherwise. Of several
//!   the worst is: a loss before what may be written, that before what certainly is not.
//! * A report made once (a loss, by the daemon or found by the session) may meet a flush abandoned by its caller: then
//!   it is stored for the next one. This holds until its caller has it: a flush that is dropped with its answer in hand
//!   gives it back.
//! * The first error of a record is also reported at once, to whoever asked for that when the producer was made.
//! * A flush without a waiter is released, unless the daemon has it already ([`FlushPruner`]).

use crate::{AppendError, lock::lock, sync::Mutex};
use clad_proto::ErrorCode;
use tokio::sync::oneshot;

/// Number of flushes before a search for abandoned ones.
const PRUNE_AFTER_FLUSHES_MIN: usize = 64;

/// Time to release abandoned flushes. There are never more flushes than [`PRUNE_AFTER_FLUSHES_MIN`] and twice those
/// that callers wait for or the daemon has. Each is looked at a few times, however many there are.
#[derive(Debug, Default)]
pub(crate) struct FlushPruner {
    since: usize,
    every: usize,
}

impl FlushPruner {
    /// Counts one more flush; returns true if it is time.
    pub(crate) const fn is_due(&mut self) -> bool {
        self.since += 1;
        self.since > self.every
    }

    /// So many are left.
    pub(crate) fn reset(&mut self, left: usize) {
        *self = Self { since: 0, every: left.max(PRUNE_AFTER_FLUSHES_MIN) };
    }
}

/// Report for a flush.
#[derive(Debug)]
pub(crate) struct FlushReport {
    result: Result<(), AppendError>,
    /// It is reported to nothing else: it goes to the next flush, if this one does not listen any more.
    once: bool,
}

pub(crate) type FlushSender = oneshot::Sender<FlushReport>;

/// Takes note of an error that no waiter was there to hear.
pub(crate) type OnError = fn(&AppendError);

#[derive(Debug, Default)]
pub(crate) struct UndeliveredErrors {
    worst: Mutex<Option<AppendError>>,
    /// Until the first error.
    on_first: Mutex<Option<OnError>>,
}

/// A flush that waits for its report.
pub(crate) struct Listener<'a> {
    undelivered: &'a UndeliveredErrors,
    report: oneshot::Receiver<FlushReport>,
}

impl UndeliveredErrors {
    pub(crate) fn new(on_first: Option<OnError>) -> Self {
        Self { worst: Mutex::default(), on_first: Mutex::new(on_first) }
    }

    /// An append ended with this, and had no listener.
    pub(crate) fn add(&self, error: AppendError) {
        // Drops have their counts and reports.
        if !matches!(error, AppendError::Dropped { .. } | AppendError::Closed { .. } | AppendError::Forked) {
            let on_first = lock(&self.on_first).take();
            if let Some(on_first) = on_first {
                on_first(&error);
            }
        }
        let mut worst = lock(&self.worst);
        if worst.as_ref().is_none_or(|worst| weight(worst) < weight(&error)) {
            *worst = Some(error);
        }
    }

    /// An error that nobody has heard of.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<AppendError> {
        lock(&self.worst).take()
    }

    /// Ends a flush.
    pub(crate) fn complete_flush(&self, flush: FlushSender, result: Result<(), AppendError>) {
        let report = match result {
            Ok(()) => match lock(&self.worst).take() {
                Some(error) => FlushReport { result: Err(error), once: true },
                None => FlushReport { result: Ok(()), once: false },
            },
            Err(error) => FlushReport { once: is_reported_once(&error), result: Err(error) },
        };
        if let Err(report) = flush.send(report) {
            self.put_back(report);
        }
    }

    fn put_back(&self, report: FlushReport) {
        if let FlushReport { result: Err(error), once: true } = report {
            self.add(error);
        }
    }

    pub(crate) fn listen(&self) -> (FlushSender, Listener<'_>) {
        let (flush, report) = oneshot::channel();
        (flush, Listener { undelivered: self, report })
    }
}

impl Listener<'_> {
    /// The report; nothing if its sender is gone.
    pub(crate) async fn recv(mut self) -> Option<Result<(), AppendError>> {
        (&mut self.report).await.ok().map(|report| report.result)
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.report.close();
        if let Ok(report) = self.report.try_recv() {
            self.undelivered.put_back(report);
        }
    }
}

fn weight(error: &AppendError) -> u8 {
    match error {
        AppendError::Lost => 2,
        error => error.maybe_written().into(),
    }
}

/// True if the next flush does not get the error again.
fn is_reported_once(error: &AppendError) -> bool {
    match error {
        AppendError::Lost => true,
        AppendError::Refused { error, .. } => error.code == ErrorCode::JournalFailed && !error.retryable,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    const CERTAIN: AppendError = AppendError::TooLarge { len: 2, max: 1 };
    const PERHAPS: AppendError = AppendError::Closed { maybe_written: true };

    fn flushed(undelivered: &UndeliveredErrors, result: Result<(), AppendError>) -> Result<(), AppendError> {
        let (flush, listener) = undelivered.listen();
        undelivered.complete_flush(flush, result);
        match Box::pin(listener.recv()).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(report) => report.expect("it is reported"),
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn of_several_errors_the_worst_is_reported_once() {
        let undelivered = UndeliveredErrors::default();
        [CERTAIN, PERHAPS, CERTAIN].into_iter().for_each(|error| undelivered.add(error));
        assert!(matches!(flushed(&undelivered, Ok(())), Err(AppendError::Closed { maybe_written: true })));
        assert!(flushed(&undelivered, Ok(())).is_ok());
        [PERHAPS, AppendError::Lost, PERHAPS].into_iter().for_each(|error| undelivered.add(error));
        assert!(matches!(flushed(&undelivered, Ok(())), Err(AppendError::Lost)));
    }

    #[test]
    fn the_first_error_that_is_no_drop_is_reported_at_once() {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static REPORTS: AtomicUsize = AtomicUsize::new(0);
        let undelivered = UndeliveredErrors::new(Some(|error| {
            assert!(matches!(error, AppendError::TooLarge { .. }));
            REPORTS.fetch_add(1, Relaxed);
        }));
        undelivered.add(AppendError::Dropped { reason: crate::DropReason::Oldest });
        undelivered.add(PERHAPS);
        assert_eq!(REPORTS.load(Relaxed), 0);
        [CERTAIN, AppendError::Lost].into_iter().for_each(|error| undelivered.add(error));
        assert_eq!(REPORTS.load(Relaxed), 1);
        assert!(matches!(undelivered.take(), Some(AppendError::Lost)), "the next flush reports it all the same");
    }

    #[test]
    fn a_flush_that_fails_leaves_it_for_the_next() {
        let undelivered = UndeliveredErrors::default();
        undelivered.add(CERTAIN);
        assert!(matches!(flushed(&undelivered, Err(AppendError::Forgotten)), Err(AppendError::Forgotten)));
        assert!(matches!(flushed(&undelivered, Ok(())), Err(AppendError::TooLarge { .. })));
    }

    /// Abandoned before the report, and with the report in hand.
    #[test]
    fn what_is_reported_once_is_reported_to_a_listener() {
        let undelivered = UndeliveredErrors::default();
        for in_hand in [false, true] {
            for (result, again) in [
                (Err(AppendError::Lost), true),
                (Err(AppendError::Forgotten), false), // the next one finds out for itself
                (Ok(()), false),
            ] {
                let (flush, listener) = undelivered.listen();
                let mut listener = Some(listener).filter(|_| in_hand);
                undelivered.complete_flush(flush, result);
                drop(listener.take());
                assert_eq!(flushed(&undelivered, Ok(())).is_err(), again, "{in_hand}");
            }
            undelivered.add(CERTAIN);
            let (flush, listener) = undelivered.listen();
            let mut listener = Some(listener).filter(|_| in_hand);
            undelivered.complete_flush(flush, Ok(()));
            drop(listener.take());
            assert!(flushed(&undelivered, Ok(())).is_err(), "{in_hand}");
        }
    }
}
