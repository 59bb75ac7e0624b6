//! A sender: a thread that sends under load until it is stopped, and notes what it was answered.
//!
//! Invariants:
//! - A request that was not answered is sent again with the same bytes, on a new connection, as an exporter does it.
//! - A client that dies forgets what it was not answered, and begins a new stream.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clad_e2e::{Rng, TEST_TIMEOUT};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::sync::Notify;

use clad_e2e::proxy::{Place, end};

use crate::check::{Promise, Said};

/// Before a new connection.
const RETRY_DELAY: Duration = Duration::from_millis(3);
/// Between two requests, at most.
const PAUSE_MICROS_MAX: u64 = 4000;
/// Records of a request, at most.
const REQUEST_RECORDS_MAX: u64 = 12;

/// What a sender and its killer share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    stopped: AtomicBool,
    deaths: AtomicU64,
    /// It rests between two requests.
    rests: bool,
    connections: AtomicU64,
    /// Records that were answered, or written where nothing is answered.
    progress: AtomicU64,
    socket: Mutex<Option<Arc<File>>>,
    /// Wakes a sender that has no socket of its own.
    killed: Notify,
}

impl Shared {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::Relaxed)
    }

    pub(crate) fn adds(&self, records: u64) {
        self.progress.fetch_add(records, Ordering::Relaxed);
    }

    pub(crate) async fn killed(&self) {
        self.killed.notified().await;
    }

    /// Connects, so that a death ends the connection.
    pub(crate) fn connect(&self, place: &Place) -> io::Result<Arc<File>> {
        let socket = Arc::new(place.connect()?);
        self.connections.fetch_add(1, Ordering::Relaxed);
        for bound in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&*socket, bound, Some(TEST_TIMEOUT))?;
        }
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.clone());
        Ok(socket)
    }

    pub(crate) const fn rests(&self) -> bool {
        self.rests
    }

    /// Rests between two requests, for a time below a bound.
    pub(crate) fn rest(&self, rng: &mut Rng, micros_max: u64) {
        if self.rests {
            thread::sleep(Duration::from_micros(rng.below(micros_max)));
        }
    }

    /// Waits before another try.
    pub(crate) fn retry_later(&self) {
        thread::sleep(RETRY_DELAY);
    }
}

/// A sender at work.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) kind: &'static str,
    shared: Arc<Shared>,
    thread: JoinHandle<Vec<Said>>,
}

impl Sender {
    pub(crate) fn start(
        kind: &'static str,
        rests: bool,
        send: impl FnOnce(&Shared) -> Vec<Said> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared { rests, ..Shared::default() });
        let own = shared.clone();
        let thread = thread::Builder::new().name(kind.to_owned()).spawn(move || send(&own)).expect("a thread");
        Self { kind, shared, thread }
    }

    /// Kills the client.
    pub(crate) fn die(&self) {
        self.shared.deaths.fetch_add(1, Ordering::Relaxed);
        self.cut();
    }

    /// Ends its connection.
    pub(crate) fn cut(&self) {
        if let Some(socket) = &*self.shared.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            end(socket);
        }
        self.shared.killed.notify_one();
    }

    pub(crate) fn progress(&self) -> u64 {
        self.shared.progress.load(Ordering::Relaxed)
    }

    /// Connections that it has made, where it has a socket of its own.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets it end once all that it has sent is answered.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(self) -> Vec<Said> {
        self.thread.join().unwrap_or_else(|_| panic!("the sender {} has failed", self.kind))
    }
}

/// A protocol of requests, each of which is answered.
pub(crate) trait Requests {
    /// The bytes of a request.
    fn request(&mut self, stream: &str, numbers: Range<u64>) -> Vec<u8>;

    /// Sends one and waits for its answer; an error where it has to be sent again.
    fn ask(&mut self, shared: &Shared, request: &[u8]) -> io::Result<()>;

    /// Closes the connection.
    fn close(&mut self);
}

/// Sends request after request.
pub(crate) fn requests(kind: &'static str, mut protocol: impl Requests, shared: &Shared, mut rng: Rng) -> Vec<Said> {
    let mut all = Vec::new();
    'life: while !shared.is_stopped() {
        let life = shared.deaths();
        let mut said = Said::new(kind, life, Promise::ExactlyOnce);
        protocol.close();
        while !shared.is_stopped() {
            said.sent = said.answered + 1 + rng.below(REQUEST_RECORDS_MAX);
            let request = protocol.request(&said.stream, said.answered..said.sent);
            while let Err(error) = protocol.ask(shared, &request) {
                assert!(error.kind() != io::ErrorKind::InvalidData, "{kind}: {error}");
                protocol.close();
                if shared.deaths() != life {
                    all.push(said);
                    continue 'life;
                }
                shared.retry_later();
            }
            shared.adds(said.sent - said.answered);
            said.answered = said.sent;
            shared.rest(&mut rng, PAUSE_MICROS_MAX);
        }
        all.push(said);
    }
    all
}
