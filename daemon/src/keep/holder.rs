//! A small process that keeps the descriptors of rings, where no service manager does (`clad hold`).
//!
//! The daemon starts it with the first ring, hands it a listening socket as its standard input, and talks to it over
//! that socket's path. It maps nothing, reads nothing of what it keeps, and has one thread.
//!
//! ```text
//! daemon → holder: op (1 byte), note (57 bytes); with KEEP the two descriptors
//!   KEEP → OK            FORGET → nothing            ALL → RING (note, two descriptors) …, OK
//! ```
//! What must hold:
//! - It serves its own uid alone (`SO_PEERCRED`), and the daemon trusts only a holder of its own uid.
//! - It outlives the daemon (a session of its own), and ends by itself: [`IDLE`] after it has no ring and no daemon, or
//!   within [`LOOK`] of the removal of its socket, for then nobody can ever ask for a ring again.
//! - It keeps at most [`MAX_KEPT`] rings. A daemon that it does not answer waits [`PATIENCE`] and goes on without.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with, sockopt,
};

use super::{Kept, Note, PARTS};
use crate::exit::Exit;
use crate::{fds, metrics};

/// How long it stays with no ring and no daemon.
pub(crate) const IDLE: Duration = Duration::from_secs(10);
/// How often it looks whether its socket is still there, while it has no daemon.
const LOOK: Duration = Duration::from_secs(5);
/// Most rings that it keeps.
const MAX_KEPT: usize = 4096;
/// Most daemons that it listens to at once: an old one and its successor.
const MAX_PEERS: usize = 4;
/// How long a daemon waits for its answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

const KEEP: u8 = 1;
const FORGET: u8 = 2;
const ALL: u8 = 3;
const OK: u8 = 4;
const RING: u8 = 5;
/// One byte and a note.
const MESSAGE: usize = 1 + Note::BYTES;

fn message(op: u8, note: &Note) -> [u8; MESSAGE] {
    let mut bytes = [op; MESSAGE];
    bytes[1..].copy_from_slice(&note.encode());
    bytes
}

/// The operation and the ring of a message.
fn parse(bytes: &[u8]) -> Option<(u8, Note)> {
    let (op, note) = bytes.split_first()?;
    Some((*op, Note::decode(note.try_into().ok()?)))
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// Whether the other end is a process of our own uid.
fn is_ours(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

/// The daemon's side.
#[derive(Debug)]
pub(super) struct Holder {
    path: PathBuf,
    socket: Option<OwnedFd>,
    /// The one that we started, so that it is waited for when it has ended.
    child: Option<Child>,
    /// What it is to keep, with descriptors of our own: when it ends, another is given all of them.
    wanted: Vec<Kept>,
}

impl Holder {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, socket: None, child: None, wanted: Vec::new() }
    }

    /// What is kept; nothing where there is no holder.
    pub(super) fn all(&mut self) -> io::Result<Vec<Kept>> {
        match self.reach() {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        }
        let kept = self.ask(ALL, &Note::default(), &[])?;
        self.wanted = kept.iter().map(Kept::again).collect::<io::Result<_>>()?;
        Ok(kept)
    }

    /// Has a ring kept; starts a holder where there is none.
    pub(super) fn keep(&mut self, ring: Kept) -> io::Result<()> {
        if self.socket.is_none() || self.ask(KEEP, &ring.note, &ring.parts()).is_err() {
            self.mend()?; // with all that it is to keep
            self.ask(KEEP, &ring.note, &ring.parts())?;
        }
        self.wanted.push(ring);
        Ok(())
    }

    pub(super) fn forget(&mut self, note: &Note) -> io::Result<()> {
        self.wanted.retain(|ring| ring.note.id != note.id);
        let Some(socket) = &self.socket else { return Ok(()) };
        fds::send(socket, &message(FORGET, note), &[]).map(drop).inspect_err(|_| self.ended())
    }

    /// Has something to read, but for an answer, only when it has ended.
    pub(super) fn line(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// It has ended, or does not answer: what it was to keep is kept by nobody that we know of.
    pub(super) fn ended(&mut self) {
        if self.socket.take().is_some() && !self.wanted.is_empty() {
            metrics::ring_keeper_lost();
            tracing::warn!(rings = self.wanted.len(), "the holder of the rings has ended, or does not answer");
        }
    }

    /// How many rings nobody is known to keep.
    pub(super) fn unkept(&self) -> usize {
        if self.socket.is_some() { 0 } else { self.wanted.len() }
    }

    /// Finds the holder again, or starts another, and gives it all that is to be kept: of what it has already it takes the
    /// later one.
    pub(super) fn mend(&mut self) -> io::Result<()> {
        if self.reach().is_err() {
            self.start()?;
            self.reach()?;
        }
        let wanted = std::mem::take(&mut self.wanted);
        let given = wanted.iter().try_for_each(|ring| self.ask(KEEP, &ring.note, &ring.parts()).map(drop));
        self.wanted = wanted;
        given.inspect(|()| tracing::info!(rings = self.wanted.len(), "the holder has all rings"))
    }

    fn reach(&mut self) -> io::Result<()> {
        self.socket = None;
        if let Some(Ok(Some(_))) = self.child.as_mut().map(Child::try_wait) {
            self.child = None;
        }
        let socket = seqpacket(SocketFlags::empty())?;
        for which in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&socket, which, Some(PATIENCE))?;
        }
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        if !is_ours(&socket) {
            let text = format!("{} is answered by a process of another user", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        self.socket = Some(socket);
        Ok(())
    }

    /// Starts one. Its socket is made here, so that it can be reached at once.
    fn start(&mut self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = seqpacket(SocketFlags::empty())?;
        bind(&listener, &SocketAddrUnix::new(&self.path)?)?;
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o600))?;
        listen(&listener, MAX_PEERS as i32)?;
        // The binary that runs, also where its file has been replaced since.
        let child = Command::new("/proc/self/exe")
            .arg0("clad")
            .arg("hold")
            .arg(&self.path)
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        tracing::info!(pid = child.id(), socket = %self.path.display(), "started a holder for rings");
        self.child = Some(child);
        Ok(())
    }

    fn ask(&mut self, op: u8, note: &Note, parts: &[BorrowedFd<'_>]) -> io::Result<Vec<Kept>> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let answered = fds::send(socket, &message(op, note), parts).and_then(|_| answers(socket));
        if answered.is_err() {
            self.ended();
        }
        answered
    }
}

/// Rings until OK.
fn answers(socket: &OwnedFd) -> io::Result<Vec<Kept>> {
    let mut kept = Vec::new();
    loop {
        let mut bytes = [0; MESSAGE + 1];
        let (n, fds) = fds::receive(socket, &mut bytes)?;
        match parse(&bytes[..n]) {
            Some((OK, _)) => return Ok(kept),
            Some((RING, note)) if fds.len() == PARTS && kept.len() < MAX_KEPT => kept.push(Kept { note, fds }),
            Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "the holder answers what it should not")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The holder's life: `clad hold PATH`, with its listening socket as standard input.
pub(crate) fn hold(path: &Path) -> Exit {
    // A terminal that closes, or a signal to the daemon's group, is not meant for it.
    let _ = rustix::process::setsid();
    let listener = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(listener) => listener,
        Err(_) => return Exit::Failed,
    };
    match Holding::new(listener, path).and_then(|mut holding| holding.run()) {
        Ok(()) => Exit::Done,
        Err(_) => Exit::Failed,
    }
}

struct Holding<'a> {
    listener: OwnedFd,
    path: &'a Path,
    inode: u64,
    peers: Vec<OwnedFd>,
    kept: Vec<Kept>,
    /// Since when it has no ring and no daemon.
    idle_since: Option<Instant>,
}

impl<'a> Holding<'a> {
    fn new(listener: OwnedFd, path: &'a Path) -> io::Result<Self> {
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Self { listener, path, inode, peers: Vec::new(), kept: Vec::new(), idle_since: None })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            for at in ready.iter().rev().filter_map(|at| at.checked_sub(1)) {
                if !self.serve(at) {
                    self.peers.swap_remove(at);
                }
            }
            if ready.contains(&0) {
                self.accept();
            }
            if self.peers.is_empty() && !self.is_reachable() {
                return Ok(());
            }
            if !self.peers.is_empty() || !self.kept.is_empty() {
                self.idle_since = None;
            } else if self.idle_since.get_or_insert_with(Instant::now).elapsed() >= IDLE {
                return std::fs::remove_file(self.path);
            }
        }
    }

    /// Waits until something comes, and says from whom: 0 is the listener, then the peers.
    fn wait(&self) -> io::Result<Vec<usize>> {
        let sockets = std::iter::once(&self.listener).chain(&self.peers);
        let mut polled: Vec<PollFd<'_>> = sockets.map(|s| PollFd::new(s, PollFlags::IN)).collect();
        // While a daemon is there it sleeps for as long as that is silent.
        let look = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut polled, self.peers.is_empty().then_some(&look)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(polled.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(at, _)| at).collect())
    }

    fn is_reachable(&self) -> bool {
        std::fs::symlink_metadata(self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    fn accept(&mut self) {
        let Ok(peer) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { return };
        if is_ours(&peer) && self.peers.len() < MAX_PEERS {
            // A peer that does not read its answers is not waited for.
            let _ = sockopt::set_socket_timeout(&peer, sockopt::Timeout::Send, Some(PATIENCE));
            self.peers.push(peer);
        }
    }

    /// One message of a peer; `false` when it is gone.
    fn serve(&mut self, at: usize) -> bool {
        let peer = &self.peers[at];
        let mut bytes = [0; MESSAGE + 1];
        let Ok((n, fds)) = fds::receive(peer, &mut bytes) else { return false };
        match parse(&bytes[..n]) {
            Some((KEEP, note)) if fds.len() == PARTS && self.kept.len() < MAX_KEPT => {
                self.kept.retain(|kept| kept.note.id != note.id);
                self.kept.push(Kept { note, fds });
                fds::send(peer, &message(OK, &note), &[]).is_ok()
            }
            Some((FORGET, note)) => {
                self.kept.retain(|kept| kept.note.id != note.id);
                true
            }
            Some((ALL, _)) => self.give_all(peer).is_ok(),
            _ => false,
        }
    }

    fn give_all(&self, peer: &OwnedFd) -> io::Result<()> {
        for kept in &self.kept {
            let parts: Vec<BorrowedFd<'_>> = kept.fds.iter().map(AsFd::as_fd).collect();
            fds::send(peer, &message(RING, &kept.note), &parts)?;
        }
        fds::send(peer, &message(OK, &Note::default()), &[]).map(drop)
    }
}
