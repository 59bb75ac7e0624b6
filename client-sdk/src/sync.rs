//! Locks, shared numbers, and the thread of a ring.
//!
//! They are std's, and the page's own futex. With the feature `models` they are shuttle's: then what threads share here
//! runs under its scheduler, in every order that it picks (`models/`). Tokio's primitives wake by wakers, which are
//! shuttle's there.

#[cfg(all(feature = "models", not(debug_assertions)))]
compile_error!("with the feature `models` a client runs in a model only: it must not be in a release build");

#[cfg(not(feature = "models"))]
mod here {
    pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use std::thread::{Builder, Thread};
    use std::time::Duration;

    /// Sleeps until the completion page of a ring has changed since `seen`, or the deadline (CLOCK_MONOTONIC
    /// nanoseconds) has passed.
    pub(crate) fn wait_change(ring: &clad_shm::Producer, seen: clad_shm::Watermarks, deadline: u64) {
        let _ = ring.wait_change(seen, deadline);
    }

    /// Rests until [`wake`] is called, or was, for at most `time`.
    pub(crate) fn rest(time: Duration) {
        std::thread::park_timeout(time);
    }

    /// Wakes the thread of the ring.
    pub(crate) fn wake(thread: &Thread) {
        thread.unpark();
    }
}

#[cfg(feature = "models")]
mod here {
    use shuttle::sync::Condvar;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use shuttle::thread::{Builder, Thread, yield_now};
    use std::time::Duration;

    shuttle::lazy_static! {
        /// The futex of the one ring of a model: whether its time has passed.
        static ref PAGE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        /// The rest of its one thread: whether it was woken. (Shuttle's own threads wake from it by themselves.)
        static ref REST: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    }

    /// Sleeps until the completion page has changed. Time passes when the model says so.
    pub(crate) fn wait_change(ring: &clad_shm::Producer, seen: clad_shm::Watermarks, _: u64) {
        let mut is_over = PAGE.0.lock().expect("a number is whole");
        while !*is_over && ring.watermarks() == seen {
            is_over = PAGE.1.wait(is_over).expect("a number is whole");
        }
    }

    /// Rests until [`wake`] is called, or was.
    pub(crate) fn rest(_: Duration) {
        let mut is_woken = REST.0.lock().expect("a number is whole");
        while !std::mem::take(&mut *is_woken) {
            is_woken = REST.1.wait(is_woken).expect("a number is whole");
        }
    }

    /// Wakes the thread of the ring.
    pub(crate) fn wake(_: &Thread) {
        *REST.0.lock().expect("a number is whole") = true;
        REST.1.notify_one();
    }

    /// Wakes who sleeps on the completion page.
    pub(crate) fn wake_page(is_over: bool) {
        *PAGE.0.lock().expect("a number is whole") |= is_over;
        PAGE.1.notify_all();
    }
}

pub(crate) use here::*;
