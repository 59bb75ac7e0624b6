//! Being told to stop: SIGINT and SIGTERM end a run early, so that nothing of it outlives it, and what it did so far
//! is kept where that is of use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Set once somebody has asked for an early end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    came: AtomicBool,
    signalled: Notify,
}

impl Interrupt {
    /// Listens for the signals from now on, in a thread that ends with the process.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let set = interrupt.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut int, mut term) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                }
            });
            set.0.came.store(true, Relaxed);
            set.0.signalled.notify_one();
        })?;
        Ok(interrupt)
    }

    /// True if it was asked for.
    pub(crate) fn came(&self) -> bool {
        self.0.came.load(Relaxed)
    }

    /// The flag itself, for what looks at it between two steps.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0.came
    }

    /// Result of the future; nothing where an end is asked for first. For one waiter at a time.
    pub(crate) async fn or<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let asked = async {
            while !self.came() {
                self.0.signalled.notified().await;
            }
        };
        tokio::select! {
            biased;
            () = asked => None,
            done = future => Some(done),
        }
    }
}
