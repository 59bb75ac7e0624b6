//! A proxy on TCP that forwards in parts, and cuts, halves and delays.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::Rng;

/// Bytes that are read at once.
const READ_BYTES_MAX: usize = 32 << 10;
/// One part in so many is late by [`PART_DELAY`].
const LATE_PART_EVERY: u64 = 20;
const PART_DELAY: Duration = Duration::from_millis(1);
/// How long everything that is forwarded is halved.
const HALVING_DURATION: Duration = Duration::from_millis(5);

/// Forwards connections to one place.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    links: Arc<Links>,
}

#[derive(Debug)]
struct Links {
    target: SocketAddr,
    stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    halving: bool,
    held_until: Option<Instant>,
    open: Vec<Arc<TcpStream>>,
}

/// The next bytes to forward.
struct Part {
    length: usize,
    delay: Duration,
    /// Half of something, and the end.
    is_last: bool,
}

impl Proxy {
    pub(crate) fn to(target: SocketAddr, rng: Rng) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = State { rng, halving: false, held_until: None, open: Vec::new() };
        let links = Arc::new(Links { target, stopped: AtomicBool::new(false), state: Mutex::new(state) });
        let accepting = links.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if accepting.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let links = accepting.clone();
                thread::spawn(move || links.serve(near));
            }
        });
        Self { address, links }
    }

    pub(crate) fn address(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Ends every connection.
    pub(crate) fn cut(&self) {
        self.links.state().open.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Forwards a part of what comes next on each connection, and ends it.
    pub(crate) fn halve(&self) {
        self.links.state().halving = true;
        thread::sleep(HALVING_DURATION);
        self.links.state().halving = false;
    }

    /// Forwards nothing for a while.
    pub(crate) fn delay(&self, time: Duration) {
        self.links.state().held_until = Some(Instant::now() + time);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.links.stopped.store(true, Ordering::Relaxed);
        self.cut();
        drop(TcpStream::connect(self.address)); // wakes the thread that accepts
    }
}

impl Links {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a daemon the client's connection is closed.
    fn serve(&self, near: TcpStream) {
        let Ok(far) = TcpStream::connect(self.target) else { return };
        let both = [Arc::new(near), Arc::new(far)];
        both.iter().for_each(|stream| drop(stream.set_nodelay(true)));
        self.state().open.extend(both.iter().cloned());
        thread::scope(|scope| {
            scope.spawn(|| self.forward(&both[0], &both[1]));
            self.forward(&both[1], &both[0]);
        });
        self.state().open.retain(|open| !both.iter().any(|ours| Arc::ptr_eq(open, ours)));
    }

    fn forward(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = vec![0; READ_BYTES_MAX];
        'connection: while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let part = self.part(rest.len());
                thread::sleep(part.delay);
                if to.write_all(&rest[..part.length]).is_err() || part.is_last {
                    break 'connection;
                }
                rest = &rest[part.length..];
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn part(&self, length: usize) -> Part {
        let mut state = self.state();
        let length = 1 + state.rng.index(length);
        let late = if state.rng.chance(1, LATE_PART_EVERY) { PART_DELAY } else { Duration::ZERO };
        let held = state.held_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        Part { length, delay: late.max(held), is_last: state.halving }
    }
}
