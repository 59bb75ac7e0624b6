//! Waiting for a future in the calling thread, for a time that is bounded.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::{Duration, Instant},
};

/// The longest sleep between two looks.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(10);

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of a future, unless `time` is over first. Between two looks at it, `look` is called at least every
/// 10 ms. Works in any thread, also in one of a runtime, which does nothing else meanwhile.
pub(crate) fn wait_for<F: Future>(future: F, time: Duration, look: impl Fn()) -> Option<F::Output> {
    // A task of tokio is given a budget of polls, and would never get more of it here.
    let mut future = pin!(tokio::task::unconstrained(future));
    let start = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left.min(LOOK_INTERVAL_MAX));
        look();
    }
}
