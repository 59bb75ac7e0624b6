//! Locks, wake-ups and threads of the concurrent parts of a journal.
//!
//! They are std's. With the feature `models` they are shuttle's: then everything that threads share here runs under its
//! scheduler, one thread at a time in every order that it picks, and an order that comes to rest or breaks a promise is
//! found and can be run again (`models/`). What is never held over one of these (a lock around a plain value) stays
//! std's.

#[cfg(all(feature = "models", not(debug_assertions)))]
compile_error!("with the feature `models` a journal runs in a model only: it must not be in a release build");

#[cfg(not(feature = "models"))]
mod here {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic, mpsc};
    pub(crate) use std::thread;

    /// Wakes the waiting task, or the next one that waits.
    pub(crate) use tokio::sync::Notify as Bell;

    /// True if a thread has ended.
    pub(crate) fn has_ended(thread: &thread::JoinHandle<()>) -> bool {
        thread.is_finished()
    }

    /// Where others may come in between though nothing of the above is asked: a model looks at that too.
    #[inline(always)]
    pub(crate) fn others_may_run() {}
}

#[cfg(feature = "models")]
mod here {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic, mpsc};
    pub(crate) use shuttle::thread;

    /// Wakes the waiting task, or the next one that waits.
    pub(crate) struct Bell {
        rung: Mutex<bool>,
        heard: Condvar,
    }

    impl Bell {
        pub(crate) fn new() -> Self {
            Self { rung: Mutex::new(false), heard: Condvar::new() }
        }

        pub(crate) fn notify_one(&self) {
            *self.rung.lock().expect("a bell is whole") = true;
            self.heard.notify_one();
        }

        /// Waits until it was rung.
        pub(crate) fn wait(&self) {
            let mut rung = self.rung.lock().expect("a bell is whole");
            while !*rung {
                rung = self.heard.wait(rung).expect("a bell is whole");
            }
            *rung = false;
        }

        /// For the ring's real thread, which no model runs.
        pub(crate) async fn notified(&self) {
            self.wait();
        }

        /// Returns true if it was rung.
        pub(crate) fn take(&self) -> bool {
            std::mem::take(&mut *self.rung.lock().expect("a bell is whole"))
        }
    }

    /// Shuttle does not say; a model sees a thread that ended by what is not done.
    pub(crate) fn has_ended(_: &thread::JoinHandle<()>) -> bool {
        false
    }

    /// Where others may come in between though nothing of the above is asked.
    pub(crate) fn others_may_run() {
        atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
    }
}

pub(crate) use here::*;

/// The value behind a lock, also after a panic under it: a plain value is whole all the same.
pub(crate) fn unpoisoned<G>(locked: Result<G, std::sync::PoisonError<G>>) -> G {
    locked.unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Std's in a model too. Where a file is modelled by itself they are the model's there.
pub(crate) mod plain {
    pub(crate) use std::sync::{Mutex, MutexGuard};
}
