//! Being told to stop: SIGINT and SIGTERM end a run early, so that its daemon and its folder do not outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Set once somebody has asked for an early end.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for the signals from now on, in a thread that ends with the process.
    pub(super) fn listen() -> std::io::Result<Self> {
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
            set.0.store(true, Relaxed);
        })?;
        Ok(interrupt)
    }

    /// Whether it was asked for.
    pub(super) fn came(&self) -> bool {
        self.0.load(Relaxed)
    }
}
