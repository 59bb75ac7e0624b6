//! Signals that the daemon takes.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals.
pub(crate) struct Signals {
    pub(super) hup: Signal,
    pub(super) usr1: Signal,
    pub(super) usr2: Signal,
    pub(super) term: Signal,
    pub(super) int: Signal,
}

impl Signals {
    /// Catches them from now on; also the signal of a limit on the size of files. That one would end the process, and
    /// the write fails with EFBIG as well.
    pub(crate) fn catch() -> std::io::Result<Self> {
        let _ = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal to end.
    pub(crate) async fn end(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
