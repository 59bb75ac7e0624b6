//! A proxy on TCP and Unix sockets that forwards in parts, and cuts, halves and delays.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::Rng;

/// Bytes that are read at once.
const READ_BYTES_MAX: usize = 32 << 10;
/// One part in so many is late by [`PART_DELAY`].
const LATE_PART_EVERY: u64 = 20;
const PART_DELAY: Duration = Duration::from_millis(1);
/// How long everything that is forwarded is halved.
const HALVING_DURATION: Duration = Duration::from_millis(5);

/// An end of connections.
#[derive(Debug, Clone)]
pub enum Place {
    /// A port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Place {
    /// A connection to it. Reads and writes of a socket are those of a file.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(&self) -> std::io::Result<File> {
        let socket: OwnedFd = match self {
            Self::Tcp(address) => without_delay(TcpStream::connect(address)?).into(),
            Self::Unix(path) => UnixStream::connect(path)?.into(),
        };
        Ok(socket.into())
    }

    /// Listens there. What is returned waits for the next connection.
    fn listen(&self) -> (Self, Box<dyn FnMut() -> std::io::Result<File> + Send>) {
        match self {
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address).expect("a port");
                let own = Self::Tcp(listener.local_addr().expect("its address"));
                (own, Box::new(move || Ok(OwnedFd::from(without_delay(listener.accept()?.0)).into())))
            }
            Self::Unix(path) => {
                let listener = UnixListener::bind(path).expect("a socket");
                (self.clone(), Box::new(move || Ok(OwnedFd::from(listener.accept()?.0).into())))
            }
        }
    }
}

fn without_delay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}

/// Ends a connection in both directions.
pub fn end(socket: &File) {
    let _ = shutdown(socket, Shutdown::Both);
}

/// Forwards connections to one place.
#[derive(Debug)]
pub struct Proxy {
    place: Place,
    links: Arc<Links>,
}

#[derive(Debug)]
struct Links {
    target: Place,
    stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    halving: bool,
    held_until: Option<Instant>,
    answers_held_until: Option<Instant>,
    open: Vec<Arc<File>>,
}

/// The next bytes to forward.
struct Part {
    length: usize,
    delay: Duration,
    /// Half of something, and the end.
    is_last: bool,
}

impl Proxy {
    /// On a port of its own.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn to(target: Place, rng: Rng) -> Self {
        Self::between(&Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))), target, rng)
    }

    /// At a place.
    ///
    /// # Panics
    /// When it cannot listen there.
    #[must_use]
    pub fn between(place: &Place, target: Place, rng: Rng) -> Self {
        let (place, mut accept) = place.listen();
        let state = State { rng, halving: false, held_until: None, answers_held_until: None, open: Vec::new() };
        let links = Arc::new(Links { target, stopped: AtomicBool::new(false), state: Mutex::new(state) });
        let accepting = links.clone();
        thread::spawn(move || {
            loop {
                let near = accept();
                if accepting.stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(near) = near {
                    let links = accepting.clone();
                    thread::spawn(move || links.serve(near));
                }
            }
        });
        Self { place, links }
    }

    /// Where it listens.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// Ends every connection.
    pub fn cut(&self) {
        self.links.state().open.iter().for_each(|socket| end(socket));
    }

    /// Forwards a part of what comes next on each connection, and ends it.
    pub fn halve(&self) {
        self.links.state().halving = true;
        thread::sleep(HALVING_DURATION);
        self.links.state().halving = false;
    }

    /// Forwards nothing for a while.
    pub fn delay(&self, time: Duration) {
        self.links.state().held_until = Some(Instant::now() + time);
    }

    /// Forwards no answer for a while: a cut within it loses those that were given.
    pub fn delay_answers(&self, time: Duration) {
        self.links.state().answers_held_until = Some(Instant::now() + time);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.links.stopped.store(true, Ordering::Relaxed);
        self.cut();
        drop(self.place.connect()); // wakes the thread that accepts
    }
}

impl Links {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a daemon the client's connection is closed.
    fn serve(&self, near: File) {
        let Ok(far) = self.target.connect() else { return };
        let both = [Arc::new(near), Arc::new(far)];
        self.state().open.extend(both.iter().cloned());
        thread::scope(|scope| {
            scope.spawn(|| self.forward(&both[0], &both[1], false));
            self.forward(&both[1], &both[0], true);
        });
        self.state().open.retain(|open| !both.iter().any(|ours| Arc::ptr_eq(open, ours)));
    }

    fn forward(&self, mut from: &File, mut to: &File, are_answers: bool) {
        let mut bytes = vec![0; READ_BYTES_MAX];
        'connection: while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let part = self.part(rest.len(), are_answers);
                thread::sleep(part.delay);
                if to.write_all(&rest[..part.length]).is_err() || part.is_last {
                    break 'connection;
                }
                rest = &rest[part.length..];
            }
        }
        end(from);
        end(to);
    }

    fn part(&self, length: usize, are_answers: bool) -> Part {
        let mut state = self.state();
        let length = 1 + state.rng.index(length);
        let late = if state.rng.chance(1, LATE_PART_EVERY) { PART_DELAY } else { Duration::ZERO };
        let until = state.answers_held_until.filter(|_| are_answers).max(state.held_until);
        let held = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        Part { length, delay: late.max(held), is_last: state.halving }
    }
}
