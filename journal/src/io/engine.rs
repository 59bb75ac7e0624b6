//! The engine that issues the writes, the reason for it, and its fallbacks.
//!
//! Invariants: every engine keeps the same promises (`journal/tests/engines`), so the choice concerns speed alone and
//! may always fall back. A fallback is never silent: it has a reason of a fixed set and a text with a remedy. It is
//! reported to the opener of the storage, once for each reason.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::sync::unpoisoned;

/// Engine that issues the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Threads that block in the system call.
    Blocking,
    /// One thread with an io_uring keeps several writes in flight; a blocking thread makes the write of an empty queue.
    Uring,
}

impl Engine {
    /// The name that operators know.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Uring => "uring",
        }
    }
}

/// The engine that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineWish {
    /// `choose` decides.
    #[default]
    Auto,
    /// io_uring; where it is not available, threads, and a warning.
    Uring,
    /// Threads.
    Blocking,
}

/// The reason for a slower way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The file system has no direct I/O: writes go through the page cache.
    Direct,
    /// No sync as part of a write: a write and an `fdatasync` stand in.
    WriteSync,
    /// io_uring is not permitted.
    UringDenied,
    /// The kernel has no io_uring, or not the operations that are needed.
    UringUnsupported,
    /// Not enough memory may be locked for the ring, which some kernels count as locked.
    Memlock,
}

/// One way that was not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its reason.
    pub reason: FallbackReason,
    /// The finding, the replacement, and the remedy.
    pub text: String,
}

impl Fallback {
    pub(super) fn new(reason: FallbackReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    pub(super) fn write_sync_refused(error: &std::io::Error) -> Self {
        let text = format!(
            "a write cannot be synced by itself here: {error}: a write and an fdatasync take its place, which also waits \
             for what others wrote; ext4, xfs and btrfs have it"
        );
        Self::new(FallbackReason::WriteSync, text)
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The engine in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineReport {
    /// Its kind.
    pub engine: Engine,
    /// The reason for this engine.
    pub why: String,
    /// Ways that were not available.
    pub fallbacks: Vec<Fallback>,
}

/// Called with each fallback when it is found.
pub(crate) type OnFallback = Arc<dyn Fn(&Fallback) + Send + Sync>;

/// The fallbacks of one storage.
pub(super) struct Fallbacks {
    found: Mutex<Vec<Fallback>>,
    on_fallback: OnFallback,
}

impl Fallbacks {
    pub(super) fn new(on_fallback: OnFallback) -> Self {
        Self { found: Mutex::default(), on_fallback }
    }

    /// Notes a fallback, and reports it if it is the first of its reason.
    pub(super) fn add(&self, fallback: Fallback) {
        let mut found = unpoisoned(self.found.lock());
        if !found.iter().any(|f| f.reason == fallback.reason) {
            found.push(fallback.clone());
            drop(found);
            (self.on_fallback)(&fallback);
        }
    }

    pub(super) fn all(&self) -> Vec<Fallback> {
        unpoisoned(self.found.lock()).clone()
    }
}

/// Grounds of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grounds {
    /// The engine that is asked for.
    pub(super) wish: EngineWish,
    /// Writes go around the page cache here.
    pub(super) direct: bool,
    /// Writes that the policy may have in flight.
    pub(super) in_flight: usize,
}

/// Chooses the engine to try, with the reason. `docs/BENCHMARKS.md` has the figures.
pub(super) fn choose(grounds: &Grounds) -> (Engine, &'static str) {
    match *grounds {
        Grounds { wish: EngineWish::Uring, .. } => (Engine::Uring, "asked for"),
        Grounds { wish: EngineWish::Blocking, .. } => (Engine::Blocking, "asked for"),
        // Each goes through one lock of the inode, in the kernel's own threads: slower than our threads.
        Grounds { direct: false, .. } => (Engine::Blocking, "writes go through the page cache here, one at a time"),
        Grounds { in_flight: 0..=1, .. } => {
            (Engine::Blocking, "one write in flight at a time, for which a ring gains nothing")
        }
        // The kernel ends a synced write of a ring in a worker of its own, which costs more than one of our threads.
        _ => (Engine::Blocking, "threads were measured faster at every depth that is offered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_over_all_grounds() {
        use Engine::{Blocking, Uring};
        let table = [
            // wish, direct, in flight, engine
            (EngineWish::Auto, true, 2, Blocking),
            (EngineWish::Auto, true, 16, Blocking),
            (EngineWish::Auto, true, 1, Blocking),
            (EngineWish::Auto, false, 1, Blocking),
            (EngineWish::Auto, false, 16, Blocking),
            (EngineWish::Uring, true, 1, Uring),
            (EngineWish::Uring, false, 2, Uring),
            (EngineWish::Blocking, true, 16, Blocking),
            (EngineWish::Blocking, false, 1, Blocking),
        ];
        for (wish, direct, in_flight, engine) in table {
            let grounds = Grounds { wish, direct, in_flight };
            assert_eq!(choose(&grounds).0, engine, "{grounds:?}");
        }
        // Each for a reason of its own, which the status shows.
        let why = |direct, in_flight| choose(&Grounds { wish: EngineWish::Auto, direct, in_flight }).1;
        assert!(why(false, 2) != why(true, 1) && why(true, 1) != why(true, 2));
    }

    #[test]
    fn each_reason_is_reported_once() {
        let calls = Arc::new(Mutex::new(0));
        let counter = calls.clone();
        let fallbacks = Fallbacks::new(Arc::new(move |_| *counter.lock().unwrap() += 1));
        for reason in [FallbackReason::Direct, FallbackReason::Direct, FallbackReason::Memlock] {
            fallbacks.add(Fallback::new(reason, "x"));
        }
        assert_eq!((*calls.lock().unwrap(), fallbacks.all().len()), (2, 2));
    }
}
