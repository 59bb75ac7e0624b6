//! A reader that follows the log over every death: what it was given must be there at the end.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clad_client::{AckLevel, Address, Event, Reader};
use clad_e2e::readback::Stored;
use tokio::time::{sleep, timeout};

use crate::check::kind_of;

/// Between two tries to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// What a reader was given.
#[derive(Debug, Default)]
struct Followed {
    /// Of each record, by its offset: a hash of its text.
    hashes: Vec<u64>,
    /// Records of each kind of sender.
    kinds: HashMap<String, u64>,
    faults: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Follower {
    followed: Arc<Mutex<Followed>>,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn hash(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Follower {
    pub(crate) fn start(address: &str) -> Self {
        let address: Address = address.parse().expect("an address");
        let (followed, stopped) = (Arc::new(Mutex::new(Followed::default())), Arc::new(AtomicBool::new(false)));
        let (own, ends) = (followed.clone(), stopped.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(follow(address, &own, &ends));
        });
        Self { followed, stopped, thread }
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records of a kind that are stored.
    pub(crate) fn stored(&self, kind: &str) -> u64 {
        self.lock().kinds.get(kind).copied().unwrap_or(0)
    }

    /// Ends it. Answers how many records it was given, and what is not as it should be: of the whole log, it must have seen a
    /// beginning.
    pub(crate) fn end(self, stored: &[Stored]) -> (usize, Vec<String>) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().expect("the reader ends");
        let followed = std::mem::take(&mut *self.followed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut faults = followed.faults;
        for (offset, want) in followed.hashes.iter().enumerate() {
            if stored.get(offset).is_none_or(|record| hash(&record.body) != *want) {
                faults.push(format!("offset {offset} was read, and is lost or another"));
            }
        }
        (followed.hashes.len(), faults)
    }
}

async fn follow(address: Address, followed: &Mutex<Followed>, stopped: &AtomicBool) {
    let builder = Reader::builder(address).level(AckLevel::Written).follow(true).backoff(BACKOFF.0, BACKOFF.1);
    let mut reader = loop {
        match builder.clone().open().await {
            Ok(reader) => break reader,
            Err(_) => sleep(BACKOFF.1).await,
        }
    };
    while !stopped.load(Ordering::Relaxed) {
        // `next` loses nothing where it is dropped.
        let Ok(event) = timeout(BACKOFF.1, reader.next()).await else { continue };
        let mut followed = followed.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Some(Event::Records(chunk))) => {
                for (offset, record) in chunk.records() {
                    let body = record.body_bytes().unwrap_or_default();
                    if offset != followed.hashes.len() as u64 {
                        let wanted = followed.hashes.len();
                        followed.faults.push(format!("the reader is given offset {offset} where {wanted} belongs"));
                    }
                    followed.hashes.push(hash(body));
                    let kind = kind_of(std::str::from_utf8(body).unwrap_or_default()).to_owned();
                    *followed.kinds.entry(kind).or_default() += 1;
                }
            }
            Ok(Some(Event::CaughtUp { .. })) => {}
            other => {
                followed.faults.push(format!("the reader is given {other:?}"));
                return;
            }
        }
    }
}
