//! A connection of HTTP/2 and its requests, in one task: none of them waits for a thread that another wakes.
//!
//! Invariants:
//! - What a request has ready is sent in the turn in which it became ready. What wakes the connection meanwhile is seen in that turn,
//!   and wakes no other thread.
//! - The requests end with their connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::AtomicWaker;

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes the requests of a connection.
#[derive(Clone, Default)]
pub(super) struct Requests(Arc<Mutex<Vec<Request>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Requests {
    fn execute(&self, request: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(request));
    }
}

/// The connection, and the requests that it has begun.
pub(super) struct Together<'a, C> {
    connection: Pin<&'a mut C>,
    begun: Requests,
    open: FuturesUnordered<Request>,
    turn: Arc<Turn>,
    waker: Waker,
}

/// Wakes the task, but not out of its own turn.
#[derive(Default)]
struct Turn {
    is_on: AtomicBool,
    /// Something is to be polled again.
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.is_on.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl<'a, C: Future> Together<'a, C> {
    pub(super) fn new(connection: Pin<&'a mut C>, begun: Requests) -> Self {
        let turn = Arc::new(Turn::default());
        Self { connection, begun, open: FuturesUnordered::new(), waker: turn.clone().into(), turn }
    }

    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    /// Polls each that can go on.
    fn go_on(&mut self) -> Poll<C::Output> {
        let cx = &mut Context::from_waker(&self.waker);
        let ended = self.connection.as_mut().poll(cx);
        self.open.extend(self.begun.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
        while let Poll::Ready(Some(())) = self.open.poll_next_unpin(cx) {}
        ended
    }
}

impl<C: Future> Future for Together<'_, C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        /// Rounds of a turn: then other tasks have theirs.
        const ROUNDS_MAX: usize = 16;
        self.turn.task.register(cx.waker());
        self.turn.is_on.store(true, Ordering::SeqCst);
        for _ in 0..ROUNDS_MAX {
            self.turn.woken.store(false, Ordering::SeqCst);
            if let Poll::Ready(ended) = self.go_on() {
                return Poll::Ready(ended);
            }
            if !self.turn.woken.load(Ordering::SeqCst) {
                break;
            }
        }
        self.turn.is_on.store(false, Ordering::SeqCst);
        // What came behind the last look.
        if self.turn.woken.load(Ordering::SeqCst) {
            self.turn.task.wake();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use hyper::rt::Executor;

    use super::*;

    /// Counts how often the task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Woken {
        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// A connection: it sends what its requests have ready, each in a poll of its own, and ends behind the last.
    #[derive(Default)]
    struct Played {
        ready: Mutex<(Vec<u32>, Option<Waker>)>,
        sent: Mutex<Vec<u32>>,
        polls: AtomicUsize,
        is_over: AtomicBool,
    }

    impl Played {
        fn answer(&self, number: u32) {
            let mut ready = self.ready.lock().unwrap();
            ready.0.push(number);
            ready.1.as_ref().unwrap().wake_by_ref();
        }

        fn poll(&self, cx: &Context<'_>) -> Poll<()> {
            self.polls.fetch_add(1, Ordering::SeqCst);
            let mut ready = self.ready.lock().unwrap();
            ready.1 = Some(cx.waker().clone());
            self.sent.lock().unwrap().append(&mut ready.0);
            if self.is_over.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    fn played() -> (Arc<Played>, Requests, Arc<Woken>) {
        (Arc::default(), Requests::default(), Arc::default())
    }

    #[test]
    fn what_is_ready_is_sent_in_the_same_turn_and_wakes_nobody() {
        let (played, requests, woken) = played();
        let waker = Waker::from(woken.clone());
        let cx = &mut Context::from_waker(&waker);
        let connection = std::pin::pin!(std::future::poll_fn(|cx| played.poll(cx)));
        let mut together = std::pin::pin!(Together::new(connection, requests.clone()));
        for number in 0..3 {
            let answering = played.clone();
            requests.execute(async move { answering.answer(number) });
        }
        assert!(together.as_mut().poll(cx).is_pending());
        assert_eq!((played.sent.lock().unwrap().clone(), woken.count()), (vec![0, 1, 2], 0));
        // From elsewhere, out of a turn.
        played.answer(3);
        assert_eq!(woken.count(), 1);
        assert!(together.as_mut().poll(cx).is_pending());
        assert_eq!(played.sent.lock().unwrap().last(), Some(&3));
        played.is_over.store(true, Ordering::SeqCst);
        assert!(together.as_mut().poll(cx).is_ready());
    }

    #[test]
    fn a_connection_that_is_never_done_lets_others_have_their_turn() {
        let (played, requests, woken) = played();
        let waker = Waker::from(woken.clone());
        let connection = std::pin::pin!(std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            played.poll(cx)
        }));
        let mut together = std::pin::pin!(Together::new(connection, requests));
        assert!(together.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(woken.count(), 1, "it comes again by itself");
        assert!((2..100).contains(&played.polls.load(Ordering::SeqCst)));
    }

    /// A wake that comes at any moment of a turn is not lost.
    #[test]
    fn what_wakes_from_another_thread_is_seen() {
        const ANSWERS: u32 = 2000;
        let (played, requests, _) = played();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answering = played.clone();
        let other = std::thread::spawn(move || {
            while answering.ready.lock().unwrap().1.is_none() {
                std::thread::yield_now();
            }
            for number in 0..ANSWERS {
                answering.answer(number);
                (0..number % 50).for_each(|_| std::hint::spin_loop());
            }
            answering.is_over.store(true, Ordering::SeqCst);
            answering.answer(ANSWERS);
        });
        runtime.block_on(async {
            let connection = std::pin::pin!(std::future::poll_fn(|cx| played.poll(cx)));
            let together = Together::new(connection, requests);
            tokio::time::timeout(std::time::Duration::from_secs(60), together).await.expect("a wake is lost");
        });
        other.join().unwrap();
        assert!(played.sent.lock().unwrap().len() >= ANSWERS as usize);
    }
}
