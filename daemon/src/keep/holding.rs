//! The life of the process that keeps rings: `clad hold PATH` ([`super::holder`] has what it says and must hold).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with, sockopt};

use super::holder::{
    ALL, FORGET, IDLE, KEEP, LOOK, MAX_KEPT, MAX_PEERS, MESSAGE, OK, PATIENCE, RING, is_ours, message, parse,
};
use super::{Kept, Note, PARTS};
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

pub(super) struct Holding<'a> {
    listener: OwnedFd,
    path: &'a Path,
    inode: u64,
    peers: Vec<OwnedFd>,
    kept: Vec<Kept>,
    /// Since when it has no ring and no daemon.
    idle_since: Option<Instant>,
}

impl<'a> Holding<'a> {
    pub(super) fn new(listener: OwnedFd, path: &'a Path) -> io::Result<Self> {
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Self { listener, path, inode, peers: Vec::new(), kept: Vec::new(), idle_since: None })
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
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
