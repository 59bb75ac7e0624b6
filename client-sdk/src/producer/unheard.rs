//! What flushes tell, and nobody else was there to hear.
//!
//! * The error of an append whose ticket was dropped is told by the next flush that ends well otherwise. Of several the worst
//!   is: a loss before what may be written, that before what certainly is not.
//! * What is told once (a loss, by the daemon or found by the session) and meets a flush that its caller has given up is kept
//!   for the next one. So it is until its caller has it: a flush that is dropped with its answer in hand gives it back.
//! * A flush that nobody waits for any more is let go of, unless the daemon has it already ([`Sweep`]).

use super::shared::lock;
use crate::AppendError;
use clad_proto::ErrorCode;
use std::sync::Mutex;
use tokio::sync::oneshot;

/// So many flushes come before those are looked for that were given up.
const SWEEP: usize = 64;

/// When to let go of flushes that were given up. Of those that wait there are never more than twice as many as the callers
/// that wait, or the daemon has, and [`SWEEP`]; and each is looked at a few times, however many there are.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    since: usize,
    every: usize,
}

impl Sweep {
    /// One more has come; whether it is time.
    pub(super) const fn is_due(&mut self) -> bool {
        self.since += 1;
        self.since > self.every
    }

    /// So many are left.
    pub(super) fn done(&mut self, left: usize) {
        *self = Self { since: 0, every: left.max(SWEEP) };
    }
}

/// What a flush is told.
#[derive(Debug)]
pub(crate) struct Told {
    result: Result<(), AppendError>,
    /// Nobody else is told: it goes to the next flush, if this one does not listen any more.
    once: bool,
}

pub(crate) type FlushSender = oneshot::Sender<Told>;

#[derive(Debug, Default)]
pub(crate) struct Unheard(Mutex<Option<AppendError>>);

/// A flush that waits for what it is told.
pub(crate) struct Listener<'a> {
    unheard: &'a Unheard,
    told: oneshot::Receiver<Told>,
}

impl Unheard {
    /// An append ended with this, and nobody was there.
    pub(crate) fn keep(&self, error: AppendError) {
        let mut kept = lock(&self.0);
        if kept.as_ref().is_none_or(|kept| weight(kept) < weight(&error)) {
            *kept = Some(error);
        }
    }

    /// Ends a flush.
    pub(crate) fn tell(&self, flush: FlushSender, result: Result<(), AppendError>) {
        let told = match result {
            Ok(()) => match lock(&self.0).take() {
                Some(error) => Told { result: Err(error), once: true },
                None => Told { result: Ok(()), once: false },
            },
            Err(error) => Told { once: is_told_once(&error), result: Err(error) },
        };
        if let Err(told) = flush.send(told) {
            self.give_back(told);
        }
    }

    fn give_back(&self, told: Told) {
        if let Told { result: Err(error), once: true } = told {
            self.keep(error);
        }
    }

    pub(crate) fn listen(&self) -> (FlushSender, Listener<'_>) {
        let (flush, told) = oneshot::channel();
        (flush, Listener { unheard: self, told })
    }
}

impl Listener<'_> {
    /// What it is told; nothing where nobody is there to tell it.
    pub(crate) async fn hear(mut self) -> Option<Result<(), AppendError>> {
        (&mut self.told).await.ok().map(|told| told.result)
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.told.close();
        if let Ok(told) = self.told.try_recv() {
            self.unheard.give_back(told);
        }
    }
}

fn weight(error: &AppendError) -> u8 {
    match error {
        AppendError::Lost => 2,
        error => error.maybe_written().into(),
    }
}

/// Who flushes again is told nothing of it.
fn is_told_once(error: &AppendError) -> bool {
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

    fn heard(unheard: &Unheard, result: Result<(), AppendError>) -> Result<(), AppendError> {
        let (flush, listener) = unheard.listen();
        unheard.tell(flush, result);
        match Box::pin(listener.hear()).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(told) => told.expect("it is told"),
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn of_several_errors_the_worst_is_told_once() {
        let unheard = Unheard::default();
        [CERTAIN, PERHAPS, CERTAIN].into_iter().for_each(|error| unheard.keep(error));
        assert!(matches!(heard(&unheard, Ok(())), Err(AppendError::Closed { maybe_written: true })));
        assert!(heard(&unheard, Ok(())).is_ok());
        [PERHAPS, AppendError::Lost, PERHAPS].into_iter().for_each(|error| unheard.keep(error));
        assert!(matches!(heard(&unheard, Ok(())), Err(AppendError::Lost)));
    }

    #[test]
    fn a_flush_that_fails_leaves_it_for_the_next() {
        let unheard = Unheard::default();
        unheard.keep(CERTAIN);
        assert!(matches!(heard(&unheard, Err(AppendError::Forgotten)), Err(AppendError::Forgotten)));
        assert!(matches!(heard(&unheard, Ok(())), Err(AppendError::TooLarge { .. })));
    }

    /// Given up before it was told, and with what it was told in hand.
    #[test]
    fn what_is_told_once_is_told_to_who_listens() {
        let unheard = Unheard::default();
        for in_hand in [false, true] {
            for (result, again) in [
                (Err(AppendError::Lost), true),
                (Err(AppendError::Forgotten), false), // the next one finds out for itself
                (Ok(()), false),
            ] {
                let (flush, listener) = unheard.listen();
                let mut listener = Some(listener).filter(|_| in_hand);
                unheard.tell(flush, result);
                drop(listener.take());
                assert_eq!(heard(&unheard, Ok(())).is_err(), again, "{in_hand}");
            }
            unheard.keep(CERTAIN);
            let (flush, listener) = unheard.listen();
            let mut listener = Some(listener).filter(|_| in_hand);
            unheard.tell(flush, Ok(()));
            drop(listener.take());
            assert!(heard(&unheard, Ok(())).is_err(), "{in_hand}");
        }
    }
}
