//! What clad's threads share, in every order that a scheduler thinks of (not shipped).
//!
//! The code is the shipped one: the whole journal with its threads, on shuttle's locks (`journal/src/sync.rs`); the
//! daemon's quota, the queue of its ingest threads, and the journal's publication, each compiled here by itself; what the
//! threads of a client with a ring share, on such locks too (`client-sdk/src/sync.rs`). One thread
//! runs at a time, and at each lock, wake-up and shared number the scheduler decides who is next: at random, and by few
//! changes of priority (PCT), which finds orders that chance does not. Time stands still unless a model lets it pass, so
//! that no timer heals a wake-up that was lost: what comes to rest with work waiting is found, as all threads then sleep.
//!
//! Everything follows from one seed, and the same seed finds the same again.

#[cfg(feature = "journal")]
pub mod client;
#[cfg(feature = "journal")]
pub mod journal;
#[cfg(feature = "journal")]
pub mod latch;
#[cfg(feature = "journal")]
mod machine;
#[cfg(feature = "journal")]
pub mod orders;
#[cfg(feature = "journal")]
pub mod permits;
#[cfg(feature = "journal")]
#[path = "../../daemon/src/ingest/quota.rs"]
#[allow(dead_code)] // what only the daemon asks
mod quota;
#[cfg(feature = "journal")]
pub mod reactor;
#[cfg(feature = "journal")]
pub mod room;

#[cfg(feature = "journal")]
pub mod publication;
#[cfg(feature = "journal")]
#[path = "../../journal/src/run/waiters.rs"]
#[allow(dead_code, unreachable_pub)] // what only the journal asks, and gives out
mod waiters;

/// What `daemon/src/sync.rs` and `journal/src/sync.rs` have.
#[cfg(feature = "journal")]
mod sync {
    pub(crate) use shuttle::future::spawn;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) mod plain {
        pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    }

    pub(crate) fn unpoisoned<G>(locked: std::sync::LockResult<G>) -> G {
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn others_may_run() {
        use shuttle::sync::atomic::{AtomicBool, Ordering};
        AtomicBool::new(false).load(Ordering::SeqCst);
    }
}

/// What the journal's files name besides.
#[cfg(feature = "journal")]
mod write {
    pub(crate) mod watermarks {
        pub(crate) use clad_journal::{Accepting, Closed, Wants, Watermarks};
    }
}
