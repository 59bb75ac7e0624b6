//! The life of the process that keeps rings: `clad hold PATH` ([`super::holder`] has what it says and must hold).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with, sockopt};

use super::holder::{
    ALL, FORGET, IDLE, KEEP, LOOK, MAX_KEPT, MAX_PEERS, MESSAGE, OK, PATIENCE, REFUSED, RING, message, our_peer, parse,
};
use super::{Note, RING_FDS, StoredRing, has_hung_up};
use crate::exit::Exit;
use crate::fds;

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

/// A daemon that is connected.
struct Peer {
    /// Which one: what is ready is served by name, for others may go meanwhile.
    name: u64,
    socket: OwnedFd,
    pid: u32,
}

pub(super) struct Holding<'a> {
    listener: OwnedFd,
    path: &'a Path,
    inode: u64,
    /// The oldest first.
    peers: Vec<Peer>,
    /// The one whose rings they are, and the data folder of the last that was.
    owner: Option<u64>,
    folder: [u8; 16],
    named: u64,
    kept: Vec<StoredRing>,
    /// Since when it has no ring and no daemon.
    idle_since: Option<Instant>,
}

impl<'a> Holding<'a> {
    pub(super) fn new(listener: OwnedFd, path: &'a Path) -> io::Result<Self> {
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Self {
            listener,
            path,
            inode,
            peers: Vec::new(),
            owner: None,
            folder: [0; 16],
            named: 0,
            kept: Vec::new(),
            idle_since: None,
        })
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            for ready in self.wait()? {
                match ready {
                    Some(peer) => self.serve(peer),
                    None => self.accept(),
                }
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

    /// Waits until something comes, and says from which peer, or that somebody wants to be one.
    fn wait(&self) -> io::Result<Vec<Option<u64>>> {
        let sockets = self.peers.iter().map(|peer| &peer.socket).chain(std::iter::once(&self.listener));
        let mut polled: Vec<PollFd<'_>> = sockets.map(|s| PollFd::new(s, PollFlags::IN)).collect();
        // While a daemon is there it sleeps for as long as that is silent.
        let look = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut polled, self.peers.is_empty().then_some(&look)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let names = self.peers.iter().map(|peer| Some(peer.name)).chain(std::iter::once(None));
        Ok(names.zip(&polled).filter(|(_, fd)| !fd.revents().is_empty()).map(|(name, _)| name).collect())
    }

    fn is_reachable(&self) -> bool {
        std::fs::symlink_metadata(self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    fn accept(&mut self) {
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { return };
        if let (Ok(pid), true) = (our_peer(&socket), self.peers.len() < MAX_PEERS) {
            // A peer that does not read its answers is not waited for.
            let _ = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE));
            self.named += 1;
            self.peers.push(Peer { name: self.named, socket, pid });
        }
    }

    fn peer(&self, name: u64) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    /// One message of a peer, which may be its end.
    fn serve(&mut self, name: u64) {
        if self.obey(name).is_none() {
            self.peers.retain(|peer| peer.name != name);
            self.owner = self.owner.filter(|owner| *owner != name);
        }
    }

    /// Nothing when it is gone, or is to go.
    fn obey(&mut self, name: u64) -> Option<()> {
        let mut bytes = [0; MESSAGE + 1];
        let (n, fds) = fds::receive(&self.peer(name)?.socket, &mut bytes).ok()?;
        let (op, note) = parse(&bytes[..n])?;
        if op == ALL && note.other_clock && *note.id.as_bytes() != self.folder {
            let withheld = u32::try_from(self.kept.len()).unwrap_or(u32::MAX);
            return self.say(name, OK, &Note { pid: withheld, ..Note::default() });
        }
        if let Some(pid) = self.rival_of(name) {
            self.say(name, REFUSED, &Note { pid, ..Note::default() });
            return None;
        }
        self.owner = Some(name);
        match op {
            KEEP if fds.len() == RING_FDS && self.kept.len() < MAX_KEPT => {
                self.kept.retain(|kept| kept.note.id != note.id);
                self.kept.push(StoredRing { note, fds });
                self.say(name, OK, &note)
            }
            FORGET => {
                self.kept.retain(|kept| kept.note.id != note.id);
                Some(())
            }
            ALL => {
                self.folder = *note.id.as_bytes();
                self.give_all(name)
            }
            _ => None,
        }
    }

    /// Another daemon whose rings they are. What one that is dead had said still counts, and comes first.
    fn rival_of(&mut self, name: u64) -> Option<u32> {
        while let Some(owner) = self.owner.filter(|owner| *owner != name) {
            let peer = self.peer(owner)?;
            if !has_hung_up(&peer.socket, Duration::ZERO).unwrap_or(false) {
                return Some(peer.pid);
            }
            self.serve(owner);
        }
        None
    }

    fn say(&self, name: u64, op: u8, note: &Note) -> Option<()> {
        fds::send(&self.peer(name)?.socket, &message(op, note), &[]).ok().map(drop)
    }

    fn give_all(&self, name: u64) -> Option<()> {
        let peer = self.peer(name)?;
        for kept in &self.kept {
            fds::send(&peer.socket, &message(RING, &kept.note), &kept.parts()).ok()?;
        }
        self.say(name, OK, &Note::default())
    }
}
