//! A small process that keeps the descriptors of rings, where no service manager does (`clad hold`).
//!
//! The daemon starts it with the first ring, hands it a listening socket as its standard input, and talks to it over
//! that socket's path. It maps nothing, reads nothing of what it keeps, and has one thread (`holding`).
//!
//! ```text
//! daemon → holder: op (1 byte), note (57 bytes); with KEEP the two descriptors
//!   KEEP → OK            FORGET → nothing            ALL → RING (note, two descriptors) …, OK
//!   any, while another daemon lives that has asked before → REFUSED (its pid in the note), and the end
//! ```
//! The note of ALL names the data folder in the place of the ring, and its last byte is 1 where rings are wanted only if
//! they are of a daemon of that folder ([`Whose`]): else the note of OK says as its pid how many others there are. Daemons of an
//! earlier version leave it empty, and holders of one do not read it and refuse nobody.
//!
//! Invariants:
//! - Rings are one daemon's. A second one, which should not have come to this socket, is told who has them, and gets none: two
//!   drains of one ring would store it in two logs, and give back for one what only the other has.
//! - It serves its own uid alone (`SO_PEERCRED`), and the daemon trusts only a holder of its own uid.
//! - It outlives the daemon (a session of its own), and ends by itself: [`IDLE`] after it has no ring and no daemon, or
//!   within [`LOOK`] of the removal of its socket, for then nobody can ever ask for a ring again.
//! - It keeps at most [`MAX_KEPT`] rings. A daemon that it does not answer waits [`PATIENCE`] for each answer.
//! - There is none only where the kernel says so: no socket, or one that nobody has. One that is stopped, or slow, or has
//!   more connections than it takes, is none that is gone: what was posted is there. So its socket stays where it is, no other
//!   is started beside it, and a question that it has not answered stays asked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clad_proto::frame::RingId;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

use super::{Note, RING_FDS, StoredRing};
use crate::fds;
use crate::ops::metrics;

/// How long it stays with no ring and no daemon.
pub(crate) const IDLE: Duration = Duration::from_secs(10);
/// How often it looks whether its socket is still there, while it has no daemon.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// Most rings that it keeps.
pub(super) const MAX_KEPT: usize = 4096;
/// Most daemons that it listens to at once: an old one and its successor.
pub(super) const MAX_PEERS: usize = 4;
/// How long a daemon waits for its answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

pub(super) const KEEP: u8 = 1;
pub(super) const FORGET: u8 = 2;
pub(super) const ALL: u8 = 3;
pub(super) const OK: u8 = 4;
pub(super) const RING: u8 = 5;
pub(super) const REFUSED: u8 = 6;
/// One byte and a note.
pub(super) const MESSAGE: usize = 1 + Note::BYTES;

pub(super) fn message(op: u8, note: &Note) -> [u8; MESSAGE] {
    let mut bytes = [op; MESSAGE];
    bytes[1..].copy_from_slice(&note.encode());
    bytes
}

/// Which rings a daemon asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Whatever is there: the place is the daemon's own, and the data folder may have been replaced.
    Anyones,
    /// Those of its data folder: the place may be another daemon's by now, or this folder be a copy of that one's.
    ThisFolders,
}

/// The note of ALL.
fn all_of(folder: [u8; 16], whose: Whose) -> Note {
    Note { id: RingId::from_bytes(folder), other_clock: whose == Whose::ThisFolders, ..Note::default() }
}

/// Why a holder's answer is sure, and is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("process {pid}, another clad, has the rings that are kept there")]
    Taken { pid: u32 },
    #[error("process {pid} of another user (uid {uid}) answers there")]
    Foreign { pid: u32, uid: u32 },
    #[error("the socket is none of a `clad hold`")]
    NoHolder,
    #[error("this user may not go there ({why})")]
    OutOfReach { why: io::Error },
}

impl Refusal {
    fn error(self) -> io::Error {
        let kind = match self {
            Self::Taken { .. } => io::ErrorKind::AddrInUse,
            Self::Foreign { .. } | Self::OutOfReach { .. } => io::ErrorKind::PermissionDenied,
            Self::NoHolder => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, self)
    }

    /// What the kernel refuses us for want of permission is sure, too: a holder's socket is its user's, and made where that
    /// user's daemon may go.
    fn or(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::OutOfReach { why: error }.error(),
            _ => error,
        }
    }

    /// The refusal that an error is.
    pub(super) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// The operation and the ring of a message.
pub(super) fn parse(bytes: &[u8]) -> Option<(u8, Note)> {
    let (op, note) = bytes.split_first()?;
    Some((*op, Note::decode(note.try_into().ok()?)))
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// The process at the other end, where it is one of our own uid.
pub(super) fn our_peer(socket: impl AsFd) -> Result<u32, Refusal> {
    let peer = sockopt::socket_peercred(socket).ok();
    let pid = peer.as_ref().map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
    match peer {
        Some(peer) if peer.uid == rustix::process::getuid() => Ok(pid),
        peer => Err(Refusal::Foreign { pid, uid: peer.map_or(u32::MAX, |peer| peer.uid.as_raw()) }),
    }
}

/// Whether the kernel says that nobody is there. (One that takes no further connection is an `EAGAIN`.)
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::ConnectionRefused)
}

/// A socket that listens there.
pub(super) fn listener_at(path: &Path) -> io::Result<OwnedFd> {
    let listener = seqpacket(SocketFlags::empty())?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&listener, MAX_PEERS as i32)?;
    Ok(listener)
}

/// A connection to it.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    /// The socket's file that it was made by.
    inode: u64,
    /// What was said of an answer that is not over: what was asked is not to be asked again.
    heard: Option<Vec<StoredRing>>,
}

impl Line {
    fn to(path: &Path, patience: Duration) -> io::Result<Self> {
        let socket = seqpacket(SocketFlags::empty())?;
        for which in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&socket, which, Some(patience))?;
        }
        let inode = std::fs::symlink_metadata(path).map_err(Refusal::or)?.ino();
        match connect(&socket, &SocketAddrUnix::new(path)?) {
            Err(Errno::PROTOTYPE) => return Err(Refusal::NoHolder.error()), // a stream socket
            connected => connected.map_err(|e| Refusal::or(e.into()))?,
        }
        our_peer(&socket).map_err(Refusal::error)?;
        Ok(Self { socket, inode, heard: None })
    }

    /// Whether its file is still the one at this place: without it, whoever removed it wants no answer.
    fn is_at(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == self.inode)
    }

    fn say(&self, op: u8, note: &Note, parts: &[BorrowedFd<'_>]) -> io::Result<()> {
        fds::send(&self.socket, &message(op, note), parts).map(drop)
    }

    /// Rings until OK, and the note of that. What was said before a pause that was too long is not lost.
    fn hear(&mut self) -> io::Result<(Vec<StoredRing>, Note)> {
        let heard = self.heard.get_or_insert_default();
        loop {
            let mut bytes = [0; MESSAGE + 1];
            let (n, fds) = fds::receive(&self.socket, &mut bytes)?;
            match parse(&bytes[..n]) {
                Some((OK, note)) => return Ok((self.heard.take().unwrap_or_default(), note)),
                Some((RING, note)) if fds.len() == RING_FDS && heard.len() < MAX_KEPT => {
                    heard.push(StoredRing { note, fds })
                }
                Some((REFUSED, owner)) => return Err(Refusal::Taken { pid: owner.pid }.error()),
                Some(_) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the holder answers what it should not"));
                }
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

/// The daemon's side.
#[derive(Debug)]
pub(super) struct Holder {
    path: PathBuf,
    /// The data folder whose daemon this is.
    folder: [u8; 16],
    patience: Duration,
    line: Option<Line>,
    /// Rings that it keeps for a daemon of another folder, as it said when it was asked for those of this one.
    withheld: u32,
    /// It has all that it is to keep.
    has_all: bool,
    /// The one that we started, so that it is waited for when it has ended.
    child: Option<Child>,
    /// What it is to keep, with descriptors of our own: when it ends, another is given all of them.
    wanted: Vec<StoredRing>,
}

impl Holder {
    pub(super) fn at(path: PathBuf, folder: [u8; 16], patience: Duration) -> Self {
        Self { path, folder, patience, line: None, withheld: 0, has_all: false, child: None, wanted: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn withheld(&self) -> u32 {
        self.withheld
    }

    /// What is kept; nothing where there is no holder. Blocks for twice its patience, unless the holder is answering.
    ///
    /// # Errors
    /// It has not said (all of) it: to be called again. Where it said that it will not, a [`Refusal`].
    ///
    /// Others than were asked for are counted ([`Holder::withheld`]).
    pub(super) fn all(&mut self, whose: Whose) -> io::Result<Vec<StoredRing>> {
        if self.line.as_ref().is_none_or(|line| line.heard.is_none() || !line.is_at(&self.path)) {
            match self.reach() {
                Err(e) if is_nobody(&e) => return Ok(Vec::new()),
                reached => reached?,
            }
            self.say(ALL, &all_of(self.folder, whose), &[])?;
        }
        let Some(line) = &mut self.line else { return Err(io::ErrorKind::NotConnected.into()) };
        match line.hear() {
            Ok((kept, said)) => {
                self.withheld = if whose == Whose::ThisFolders { said.pid } else { 0 };
                self.wanted = kept.iter().map(StoredRing::again).collect::<io::Result<_>>()?;
                self.has_all = true;
                Ok(kept)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no answer yet"))
            }
            Err(e) => {
                self.line = None;
                Err(e)
            }
        }
    }

    /// Has a ring kept; starts a holder where there is none.
    pub(super) fn keep(&mut self, ring: StoredRing) -> io::Result<()> {
        if self.line.is_none() || self.ask(KEEP, &ring.note, &ring.parts()).is_err() {
            self.mend()?; // with all that it is to keep
            self.ask(KEEP, &ring.note, &ring.parts())?;
        }
        self.wanted.push(ring);
        Ok(())
    }

    pub(super) fn forget(&mut self, note: &Note) -> io::Result<()> {
        self.wanted.retain(|ring| ring.note.id != note.id);
        // One that is not reached now is told when it is.
        if self.line.is_some() { self.say(FORGET, note, &[]) } else { Ok(()) }
    }

    /// Has something to read, but for an answer, only when it has ended.
    pub(super) fn line(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(|line| line.socket.as_fd())
    }

    /// It has ended, or does not answer: what it was to keep is kept by nobody that we know of.
    pub(super) fn ended(&mut self) {
        // One that dies may take a connection still, and is lost once for all that.
        let had_all = std::mem::take(&mut self.has_all);
        if self.line.take().is_some() && had_all && !self.wanted.is_empty() {
            metrics::ring_keeper_lost();
            tracing::warn!(rings = self.wanted.len(), "the holder of the rings has ended, or does not answer");
        }
    }

    /// How many rings nobody is known to keep.
    pub(super) fn unkept(&self) -> usize {
        if self.line.is_some() { 0 } else { self.wanted.len() }
    }

    /// Finds the holder again, or starts another where there is none, and gives it all that is to be kept: of what it has
    /// already it takes the later one. What it has and is not to keep (it was not reached when that was let go, or has read
    /// late what it was asked) it is told to let go.
    pub(super) fn mend(&mut self) -> io::Result<()> {
        match self.reach() {
            Err(e) if is_nobody(&e) => {
                self.start()?;
                self.reach()?;
            }
            reached => reached?,
        }
        let kept = self.ask(ALL, &all_of(self.folder, Whose::Anyones), &[])?;
        let is_wanted = |note: &Note| self.wanted.iter().any(|ring| ring.note.id == note.id);
        let late: Vec<Note> = kept.iter().map(|ring| ring.note).filter(|note| !is_wanted(note)).collect();
        late.iter().try_for_each(|note| self.say(FORGET, note, &[]))?;
        let wanted = std::mem::take(&mut self.wanted);
        let given = wanted.iter().try_for_each(|ring| self.ask(KEEP, &ring.note, &ring.parts()).map(drop));
        self.wanted = wanted;
        given?;
        self.has_all = true;
        tracing::info!(rings = self.wanted.len(), "the holder has all rings");
        Ok(())
    }

    fn reach(&mut self) -> io::Result<()> {
        (self.line, self.has_all) = (None, false);
        if let Some(Ok(Some(_))) = self.child.as_mut().map(Child::try_wait) {
            self.child = None;
        }
        self.line = Some(Line::to(&self.path, self.patience)?);
        Ok(())
    }

    /// Starts one, where nobody is. Its socket is made here, so that it can be reached at once.
    fn start(&mut self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = listener_at(&self.path)?;
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

    fn say(&mut self, op: u8, note: &Note, parts: &[BorrowedFd<'_>]) -> io::Result<()> {
        let line = self.line.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        line.say(op, note, parts).inspect_err(|_| self.ended())
    }

    fn ask(&mut self, op: u8, note: &Note, parts: &[BorrowedFd<'_>]) -> io::Result<Vec<StoredRing>> {
        self.say(op, note, parts)?;
        let line = self.line.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        line.hear().map(|(kept, _)| kept).inspect_err(|_| self.ended())
    }
}
