//! Context of every command: output, daemon, time zone, a runtime.

use jiff::tz::TimeZone;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Stop;
use crate::locate::{Surroundings, Which};
use crate::output::Output;

/// Context of a command.
#[derive(Debug)]
pub(crate) struct Context {
    /// Stdout and stderr.
    pub(crate) output: Output,
    /// The flags that say which daemon.
    pub(crate) which: Which,
    /// The environment's word on it.
    pub(crate) around: Surroundings,
    /// The zone that times are shown in.
    pub(crate) zone: TimeZone,
    /// Runtime of futures.
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Context {
    /// That of this process.
    pub(crate) fn of_process(which: Which) -> Result<Self, Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(anyhow::Error::new)?;
        {
            // A limit on the size of files would end the process by it, without a word; the write fails as well.
            let _inside = runtime.enter();
            let too_large = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
            let _ = signal(too_large).map_err(anyhow::Error::new)?;
        }
        Ok(Self {
            output: Output::of_process(),
            which,
            around: Surroundings::of_process(),
            zone: TimeZone::system(),
            runtime,
        })
    }

    /// Runs what waits to its end.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
