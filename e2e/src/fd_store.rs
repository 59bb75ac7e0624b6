//! A service manager played by hand that has a descriptor store, as systemd's (`FileDescriptorStoreMax=`).
//!
//! Invariants: the store outlives every daemon that is started over it, and ends with the test. It holds at most as many
//! descriptors as it was given places; one too many, or the same file again, is closed in silence. A descriptor whose other
//! end hangs up leaves the store, unless it came with `FDPOLL=0`. A barrier is closed once all before it is handled.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::TEST_TIMEOUT;
use crate::binaries::profile_folder;
use crate::tool::Running;

/// Places of a store of which nothing else is said: those of the unit that is shipped.
pub const FD_STORE_PLACES_DEFAULT: usize = 1025;

/// Most descriptors in a message of the kernel's (`SCM_MAX_FD` is 253).
const MESSAGE_FDS_MAX: usize = 200;
/// Last messages of the daemon that are remembered, beside those about the store.
const MESSAGES_REMEMBERED_MAX: usize = 256;
/// Line by which a service says that it is ready.
const READY: &str = "READY=1";
/// Interval between two looks at whether it has.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Program that takes descriptors and becomes the daemon.
const STARTER: &str = "clad-e2e-with-fds";

/// A stored descriptor.
#[derive(Debug)]
struct Entry {
    name: String,
    fd: Arc<OwnedFd>,
    /// It leaves the store when its other end hangs up.
    is_polled: bool,
}

#[derive(Debug)]
struct State {
    entries: Vec<Entry>,
    places: usize,
    /// The manager does not read its socket.
    is_deaf: bool,
    messages: VecDeque<String>,
}

impl State {
    fn store(&mut self, name: &str, fd: OwnedFd, is_polled: bool) {
        let is_known = self.entries.iter().any(|entry| is_same_file(&entry.fd, &fd));
        if self.entries.len() < self.places && !is_known {
            self.entries.push(Entry { name: name.to_owned(), fd: Arc::new(fd), is_polled });
        }
    }

    fn handle(&mut self, text: &str, fds: Vec<OwnedFd>) {
        let has = |word: &str| text.lines().any(|line| line == word);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
        if has("FDSTOREREMOVE=1") {
            self.entries.retain(|entry| entry.name != name);
        } else if has("FDSTORE=1") {
            fds.into_iter().for_each(|fd| self.store(name, fd, !has("FDPOLL=0")));
        } else if !has("BARRIER=1") {
            self.messages.push_back(text.to_owned());
            if self.messages.len() > MESSAGES_REMEMBERED_MAX {
                self.messages.pop_front();
            }
        }
    }
}

/// The manager and its store.
#[derive(Debug)]
pub struct FdStore {
    state: Arc<Mutex<State>>,
    folder: tempfile::TempDir,
    /// The manager says how many places there are (`$FDSTORE`, systemd 254 and later).
    is_announced: bool,
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl FdStore {
    /// A store with so many places.
    ///
    /// # Panics
    /// When there can be no socket for it.
    #[must_use]
    pub fn new(places: usize, is_announced: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("e2e-").tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        let (waker, woken) = UnixStream::pair().expect("a pair");
        [socket.set_nonblocking(true), woken.set_nonblocking(true)].into_iter().for_each(|set| set.expect("set"));
        let state = State { entries: Vec::new(), places, is_deaf: false, messages: VecDeque::new() };
        let state = Arc::new(Mutex::new(state));
        let its = state.clone();
        let thread = thread::spawn(move || serve(&its, &socket, woken));
        Self { state, folder, is_announced, waker: Some(waker), thread: Some(thread) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of what is stored, in the order in which it came.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().entries.iter().map(|entry| entry.name.clone()).collect()
    }

    /// Last messages of the daemon that are not about the store.
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        self.lock().messages.iter().cloned().collect()
    }

    /// Sets the number of places from now on; what is stored stays.
    pub fn set_places(&self, places: usize) {
        self.lock().places = places;
    }

    /// Leaves the daemon's messages unread, or reads them again.
    ///
    /// # Panics
    /// When the manager has ended.
    pub fn set_deaf(&self, is_deaf: bool) {
        self.lock().is_deaf = is_deaf;
        self.waker.as_ref().expect("it runs").write_all(&[0]).expect("the manager is there");
    }

    /// Sends a message with descriptors, as a service does.
    ///
    /// # Panics
    /// When the manager takes none.
    pub fn notify(&self, text: &str, fds: &[BorrowedFd<'_>]) {
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.connect(self.folder.path().join("notify")).expect("the manager");
        send(&socket, text.as_bytes(), fds);
    }

    /// Waits until everything that was sent before is handled.
    ///
    /// # Panics
    /// When the manager takes nothing.
    pub fn settle(&self) {
        let (mut done, barrier) = std::io::pipe().expect("a pipe");
        self.notify("BARRIER=1", &[barrier.as_fd()]);
        drop(barrier);
        assert_eq!(done.read(&mut [0]).expect("a pipe"), 0, "all before it is handled");
    }

    /// Waits until a service that was started has said that it is ready. False where it ends, or does not get there.
    #[must_use]
    pub fn wait_ready(&self, service: &Running) -> bool {
        let until = Instant::now() + TEST_TIMEOUT;
        let has_said = || self.lock().messages.iter().any(|message| message.lines().any(|line| line == READY));
        while !has_said() {
            if !service.is_running() || Instant::now() >= until {
                return false;
            }
            thread::sleep(READY_POLL_INTERVAL);
        }
        true
    }

    /// Starts a program as a service of this manager: with everything that is stored. The messages of the one before it
    /// are forgotten.
    ///
    /// # Panics
    /// When it cannot be started, or the manager is deaf.
    pub fn start(&self, program: &Command) -> Running {
        assert!(!self.lock().is_deaf, "it would not hear that the service is ready");
        self.settle();
        self.lock().messages.clear();
        let stored: Vec<(String, Arc<OwnedFd>)> =
            self.lock().entries.iter().map(|entry| (entry.name.clone(), entry.fd.clone())).collect();
        let flags = SocketFlags::CLOEXEC;
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        for part in stored.chunks(MESSAGE_FDS_MAX) {
            send(&ours, b"f", &part.iter().map(|(_, fd)| fd.as_fd()).collect::<Vec<_>>());
        }
        drop(ours);
        let names: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
        let mut command = Command::new(starter());
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        program.get_current_dir().map(|folder| command.current_dir(folder));
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify")).env("INVOCATION_ID", "0".repeat(32));
        if self.is_announced {
            command.env("FDSTORE", self.lock().places.to_string());
        }
        if !names.is_empty() {
            command.env("LISTEN_FDNAMES", names.join(":")).env("LISTEN_FDS", names.len().to_string());
        }
        Running::start(command.stdin(its))
    }
}

impl Drop for FdStore {
    fn drop(&mut self) {
        drop(self.waker.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn starter() -> PathBuf {
    let path = profile_folder().join(STARTER);
    assert!(path.is_file(), "{} is not there: cargo builds it with the tests of clad-e2e", path.display());
    path
}

fn serve(state: &Mutex<State>, socket: &UnixDatagram, mut woken: UnixStream) {
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let (is_deaf, polled): (bool, Vec<Arc<OwnedFd>>) = {
            let state = lock();
            let polled = state.entries.iter().filter(|entry| entry.is_polled);
            (state.is_deaf, polled.map(|entry| entry.fd.clone()).collect())
        };
        let of_socket = if is_deaf { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&woken, PollFlags::IN), PollFd::new(socket, of_socket)];
        fds.extend(polled.iter().map(|fd| PollFd::new(&**fd, PollFlags::empty()))); // the end is always reported
        if poll(&mut fds, None).is_err() {
            continue; // a signal
        }
        let is_over = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let ended: Vec<&Arc<OwnedFd>> =
            polled.iter().zip(&fds[2..]).filter(|(_, fd)| is_over(fd)).map(|of| of.0).collect();
        let (is_woken, is_notified) = (!fds[0].revents().is_empty(), fds[1].revents().contains(PollFlags::IN));
        lock().entries.retain(|entry| !ended.iter().any(|fd| Arc::ptr_eq(fd, &entry.fd)));
        if is_woken && woken.read(&mut [0; 64]).is_ok_and(|length| length == 0) {
            return;
        }
        while is_notified && let Some((text, fds)) = receive(socket) {
            lock().handle(&text, fds);
        }
    }
}

/// The next message, if one is there.
fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT).ok()?;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    };
    let fds = ancillary.drain().flat_map(rights).collect();
    Some((String::from_utf8_lossy(&bytes[..got.bytes]).into_owned(), fds))
}

fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)), "too many for one message");
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("it waits in the socket");
}

/// True where two descriptors are the same file, as far as a systemd that may not ask the kernel sees.
fn is_same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let file = |fd: &OwnedFd| {
        let stat = rustix::fs::fstat(fd).expect("it is open");
        (stat.st_dev, stat.st_ino, rustix::fs::fcntl_getfl(fd).expect("it is open"))
    };
    file(one) == file(other)
}
