//! The daemon's side against holders that are stopped, slow, full, gone, or behind.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, sockopt};

use super::holder::{ALL, FORGET, Holder, KEEP, MESSAGE, OK, RING, listener_at, message, parse};
use super::holding::Holding;
use super::*;
use crate::fds;

/// Long enough for who answers, short enough for who does not.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(HOLDER_SOCKET);
    (folder, path)
}

fn ring(uid: u32) -> Kept {
    let any = || io::stderr().as_fd().try_clone_to_owned().expect("a descriptor");
    let id = clad_proto::frame::RingId::from_bytes([uid as u8; 16]);
    Kept { note: Note { id, uid, ..Note::default() }, fds: vec![any(), any()] }
}

fn uids(kept: &[Kept]) -> Vec<u32> {
    kept.iter().map(|kept| kept.note.uid).collect()
}

fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).expect("it is there").ino()
}

/// A holder as it is, in a thread. Ends when its socket's file is gone and nobody is connected.
pub(crate) fn real(path: &Path) -> JoinHandle<()> {
    let listener = listener_at(path).expect("a socket");
    let path = path.to_owned();
    std::thread::spawn(move || {
        Holding::new(listener, &path).and_then(|mut holding| holding.run()).expect("it ends well")
    })
}

fn accept(listener: &OwnedFd) -> OwnedFd {
    let peer = accept_with(listener, SocketFlags::CLOEXEC).expect("a daemon");
    sockopt::set_socket_timeout(&peer, sockopt::Timeout::Recv, Some(LONG)).expect("a bound");
    peer
}

fn hears(peer: &OwnedFd) -> u8 {
    let mut bytes = [0; MESSAGE];
    let (n, _) = fds::receive(peer, &mut bytes).expect("a message");
    parse(&bytes[..n]).expect("whole").0
}

fn says(peer: &OwnedFd, op: u8, ring: &Kept) {
    let parts = ring.parts();
    fds::send(peer, &message(op, &ring.note), if op == RING { &parts } else { &[] }).expect("sent");
}

#[test]
fn one_that_is_stopped_is_asked_once_and_heard_to_the_end() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path, SHORT);
    for _ in 0..3 {
        assert_eq!(holder.all().unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing is not none");
    }
    let peer = accept(&listener);
    assert_eq!(hears(&peer), ALL);
    says(&peer, RING, &ring(1));
    assert_eq!(holder.all().unwrap_err().kind(), io::ErrorKind::TimedOut, "it has not said all");
    says(&peer, RING, &ring(2));
    says(&peer, OK, &ring(0));
    assert_eq!(uids(&holder.all().expect("all")), [1, 2], "what was said before the pause, too");
    rustix::io::ioctl_fionbio(&listener, true).expect("a socket that does not wait");
    assert!(accept_with(&listener, SocketFlags::CLOEXEC).is_err(), "one connection for all looks");
}

#[test]
fn one_that_hangs_up_is_asked_anew() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path, SHORT);
    assert!(holder.all().is_err());
    drop(accept(&listener));
    assert!(holder.all().is_err(), "it has hung up");
    assert!(holder.all().is_err(), "it is asked by another connection");
    let peer = accept(&listener);
    assert_eq!(hears(&peer), ALL);
    says(&peer, OK, &ring(0));
    assert!(holder.all().expect("all").is_empty());
}

/// Daemons that were killed while they waited have left their connections in its queue: the kernel takes no more of them,
/// which is no word about whether it is there.
#[test]
fn one_whose_queue_is_full_is_there_and_its_socket_stays() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let socket = || {
        let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("one");
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(Duration::from_millis(1))).expect("set");
        socket
    };
    let address = SocketAddrUnix::new(&path).expect("an address");
    let dead = std::iter::from_fn(|| {
        let socket = socket();
        connect(&socket, &address).is_ok().then_some(socket)
    });
    assert!(dead.take(100).count() < 100, "its queue has an end");
    let before = inode(&path);
    let mut holder = Holder::at(path.clone(), SHORT);
    assert_eq!(holder.all().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(holder.keep(ring(1)).is_err(), "while the daemon runs");
    assert!(holder.mend().is_err());
    assert_eq!(inode(&path), before, "nobody else is started in its place");
    drop(listener);
    assert!(holder.all().expect("nobody").is_empty(), "now the kernel says that nobody has it");
}

#[test]
fn there_is_none_where_the_kernel_says_so_or_the_operator() {
    let (_folder, path) = place();
    let none = |holder: &mut Holder| holder.all().expect("none").is_empty();
    assert!(none(&mut Holder::at(path.clone(), LONG)), "it was never there");
    drop(listener_at(&path).expect("a socket"));
    assert!(none(&mut Holder::at(path.clone(), LONG)), "it has ended");
    std::fs::remove_file(&path).expect("it was there");
    // While it is waited for: it is killed, or its socket is taken away.
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path.clone(), SHORT);
    assert!(holder.all().is_err());
    drop(listener);
    assert!(holder.all().is_err(), "its end is seen");
    assert!(none(&mut holder), "it was killed");
    std::fs::remove_file(&path).expect("it was there");
    let _listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path.clone(), SHORT);
    assert!(holder.all().is_err());
    std::fs::remove_file(&path).expect("it was there");
    assert!(none(&mut holder), "it was given up");
}

/// What is let go while the holder is not reached, it is told to let go when it is.
#[test]
fn one_that_comes_back_keeps_what_is_wanted_and_no_more() {
    let (folder, path) = place();
    let process = real(&path);
    let mut holder = Holder::at(path.clone(), LONG);
    assert!(holder.all().expect("none yet").is_empty());
    for uid in 1..=3 {
        holder.keep(ring(uid)).expect("kept");
    }
    holder.ended(); // as it is after no answer
    assert_eq!(holder.unkept(), 3);
    holder.forget(&ring(2).note).expect("nobody to tell");
    holder.mend().expect("it is there");
    assert_eq!(holder.unkept(), 0);
    drop(holder);
    let mut next = Holder::at(path, LONG);
    let mut kept = uids(&next.all().expect("answered"));
    kept.sort_unstable();
    assert_eq!(kept, [1, 3]);
    drop((next, folder));
    process.join().expect("it ends with its socket");
}

/// Whoever wants a ring while the keeper says nothing is told within a time, and the ring that it may have taken after all
/// is let go.
#[test]
fn nobody_waits_for_ever_for_a_ring_to_be_kept() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let holder = Holder::at(path, LONG);
    let keeper = Keeper::over(Place::Holder(holder), Health::default()).expect("a keeper");
    let ring = ring(1);
    let [one, other] = [ring.fds[0].as_fd(), ring.fds[1].as_fd()];
    assert_eq!(keeper.keep(&ring.note, [one, other]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    let peer = accept(&listener);
    // It looks for what is there, has it kept, and then let go.
    let mut heard = Vec::new();
    while heard.last() != Some(&FORGET) {
        heard.push(hears(&peer));
        if heard.last() != Some(&FORGET) {
            says(&peer, OK, &ring);
        }
    }
    assert_eq!(heard, [ALL, KEEP, FORGET]);
}
