//! The daemon's side against holders that are stopped, slow, full, gone, or behind.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, sockopt};

use super::holder::{ALL, FORGET, Holder, KEEP, MESSAGE, OK, RING, Refusal, Whose, listener_at, message, parse};
use super::holding::Holding;
use super::*;
use crate::fds;

/// Long enough for who answers, short enough for who does not.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);
const FOLDER: [u8; 16] = [1; 16];
const OTHER: [u8; 16] = [2; 16];

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(HOLDER_SOCKET);
    (folder, path)
}

fn ring(uid: u32) -> StoredRing {
    let any = || io::stderr().as_fd().try_clone_to_owned().expect("a descriptor");
    let id = clad_proto::frame::RingId::from_bytes([uid as u8; 16]);
    StoredRing { note: Note { id, uid, ..Note::default() }, fds: vec![any(), any()] }
}

fn uids(kept: &[StoredRing]) -> Vec<u32> {
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

fn says(peer: &OwnedFd, op: u8, ring: &StoredRing) {
    let parts = ring.parts();
    fds::send(peer, &message(op, &ring.note), if op == RING { &parts } else { &[] }).expect("sent");
}

#[test]
fn one_that_is_stopped_is_asked_once_and_heard_to_the_end() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path, FOLDER, SHORT);
    for _ in 0..3 {
        assert_eq!(holder.all(Whose::Anyones).unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing is not none");
    }
    let peer = accept(&listener);
    assert_eq!(hears(&peer), ALL);
    says(&peer, RING, &ring(1));
    assert_eq!(holder.all(Whose::Anyones).unwrap_err().kind(), io::ErrorKind::TimedOut, "it has not said all");
    says(&peer, RING, &ring(2));
    says(&peer, OK, &ring(0));
    assert_eq!(uids(&holder.all(Whose::Anyones).expect("all")), [1, 2], "what was said before the pause, too");
    rustix::io::ioctl_fionbio(&listener, true).expect("a socket that does not wait");
    assert!(accept_with(&listener, SocketFlags::CLOEXEC).is_err(), "one connection for all looks");
}

#[test]
fn one_that_hangs_up_is_asked_anew() {
    let (_folder, path) = place();
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path, FOLDER, SHORT);
    assert!(holder.all(Whose::Anyones).is_err());
    drop(accept(&listener));
    assert!(holder.all(Whose::Anyones).is_err(), "it has hung up");
    assert!(holder.all(Whose::Anyones).is_err(), "it is asked by another connection");
    let peer = accept(&listener);
    assert_eq!(hears(&peer), ALL);
    says(&peer, OK, &ring(0));
    assert!(holder.all(Whose::Anyones).expect("all").is_empty());
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
    let mut holder = Holder::at(path.clone(), FOLDER, SHORT);
    assert_eq!(holder.all(Whose::Anyones).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(holder.keep(ring(1)).is_err(), "while the daemon runs");
    assert!(holder.mend().is_err());
    assert_eq!(inode(&path), before, "nobody else is started in its place");
    drop(listener);
    assert!(holder.all(Whose::Anyones).expect("nobody").is_empty(), "now the kernel says that nobody has it");
}

#[test]
fn there_is_none_where_the_kernel_says_so_or_the_operator() {
    let (_folder, path) = place();
    let none = |holder: &mut Holder| holder.all(Whose::Anyones).expect("none").is_empty();
    assert!(none(&mut Holder::at(path.clone(), FOLDER, LONG)), "it was never there");
    drop(listener_at(&path).expect("a socket"));
    assert!(none(&mut Holder::at(path.clone(), FOLDER, LONG)), "it has ended");
    std::fs::remove_file(&path).expect("it was there");
    std::fs::write(&path, "").expect("a file");
    assert!(none(&mut Holder::at(path.join("rings.sock"), FOLDER, LONG)), "there is no such folder");
    std::fs::remove_file(&path).expect("it was there");
    // While it is waited for: it is killed, or its socket is taken away.
    let listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path.clone(), FOLDER, SHORT);
    assert!(holder.all(Whose::Anyones).is_err());
    drop(listener);
    assert!(holder.all(Whose::Anyones).is_err(), "its end is seen");
    assert!(none(&mut holder), "it was killed");
    std::fs::remove_file(&path).expect("it was there");
    let _listener = listener_at(&path).expect("a socket");
    let mut holder = Holder::at(path.clone(), FOLDER, SHORT);
    assert!(holder.all(Whose::Anyones).is_err());
    std::fs::remove_file(&path).expect("it was there");
    assert!(none(&mut holder), "it was given up");
}

/// What is let go while the holder is not reached, it is told to let go when it is.
#[test]
fn one_that_comes_back_keeps_what_is_wanted_and_no_more() {
    let (folder, path) = place();
    let process = real(&path);
    let mut holder = Holder::at(path.clone(), FOLDER, LONG);
    assert!(holder.all(Whose::Anyones).expect("none yet").is_empty());
    for uid in 1..=3 {
        holder.keep(ring(uid)).expect("kept");
    }
    holder.ended(); // as it is after no answer
    assert_eq!(holder.unkept(), 3);
    holder.forget(&ring(2).note).expect("nobody to tell");
    holder.mend().expect("it is there");
    assert_eq!(holder.unkept(), 0);
    drop(holder);
    let mut next = Holder::at(path, FOLDER, LONG);
    let mut kept = uids(&next.all(Whose::Anyones).expect("answered"));
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
    let holder = Holder::at(path, FOLDER, LONG);
    let keeper = FdStore::over(Place::Holder(holder), Health::default()).expect("a keeper");
    let ring = ring(1);
    let [one, other] = [ring.fds[0].as_fd(), ring.fds[1].as_fd()];
    assert_eq!(keeper.put(&ring.note, [one, other]).unwrap_err().kind(), io::ErrorKind::TimedOut);
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

fn refused(error: &io::Error) -> &Refusal {
    Refusal::of(error).unwrap_or_else(|| panic!("{error} is none"))
}

/// Another daemon at the same place gets no ring of a living one, nor has it any let go; when that is dead, it gets them all,
/// and what that had said before is done by then.
#[test]
fn rings_are_one_daemons_while_it_lives() {
    let (folder, path) = place();
    let process = real(&path);
    let [mut one, mut other] = [FOLDER, OTHER].map(|of| Holder::at(path.clone(), of, LONG));
    assert!(one.all(Whose::Anyones).expect("none yet").is_empty());
    (1..=3).for_each(|uid| one.keep(ring(uid)).expect("kept"));
    let error = other.all(Whose::Anyones).expect_err("they are another's");
    assert!(matches!(refused(&error), Refusal::Taken { pid } if *pid == std::process::id()), "{error}");
    assert!(matches!(refused(&other.keep(ring(9)).expect_err("not kept")), Refusal::Taken { .. }));
    assert!(other.all(Whose::ThisFolders).expect("answered").is_empty(), "of its own folder there are none");
    one.forget(&ring(2).note).expect("told");
    drop(one);
    assert!(other.all(Whose::ThisFolders).expect("answered").is_empty(), "nor when nobody has them");
    assert_eq!(other.withheld(), 2, "it is told that there are others");
    let mut next = Holder::at(path.clone(), FOLDER, LONG);
    let mut kept = uids(&next.all(Whose::ThisFolders).expect("its folder's"));
    kept.sort_unstable();
    assert_eq!(kept, [1, 3]);
    drop(next);
    // The data folder at this place was replaced.
    assert_eq!(other.all(Whose::Anyones).expect("nobody else is there").len(), 2);
    assert_eq!(other.withheld(), 0);
    drop((other, folder));
    process.join().expect("it ends with its socket");
}

/// Who answers is none of whom an answer will ever come.
#[test]
fn another_programs_socket_is_no_holder() {
    let (_folder, path) = place();
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a stream socket");
    let error = Holder::at(path, FOLDER, LONG).all(Whose::Anyones).expect_err("no holder");
    assert!(matches!(refused(&error), Refusal::NoHolder), "{error}");
}

/// Answers as a holder of an earlier version does: whoever asks.
fn earlier(path: &Path, kept: Vec<StoredRing>) -> JoinHandle<Vec<u32>> {
    let listener = listener_at(path).expect("a socket");
    std::thread::spawn(move || {
        let peer = accept(&listener);
        assert_eq!(hears(&peer), ALL);
        kept.iter().for_each(|ring| says(&peer, RING, ring));
        says(&peer, OK, &ring(0));
        let mut forgotten = Vec::new();
        let mut bytes = [0; MESSAGE];
        while let Ok((n @ 1.., _)) = fds::receive(&peer, &mut bytes) {
            let (op, note) = parse(&bytes[..n]).expect("whole");
            assert_eq!(op, FORGET);
            forgotten.push(note.uid);
        }
        forgotten
    })
}

/// What the next start finds, by its socket, of a data folder.
async fn found(folder: &Path, socket: Option<&str>, data: &str, is_new: bool) -> io::Result<Vec<u32>> {
    let (socket, data) = (socket.map(|socket| folder.join(socket)), folder.join(data));
    let sought = Sought { socket: socket.as_deref(), data: &data, is_new };
    let found = find(sought, InheritedFds::default(), &Health::default(), |_| ()).await?;
    let Some((keeper, kept)) = found else { return Ok(Vec::new()) };
    // All that is wanted of it is done before the next one asks.
    keeper.settle(Instant::now() + LONG);
    let mut uids = uids(&kept);
    uids.sort_unstable();
    Ok(uids)
}

/// The next start has another socket, or none: the rings come along, and are let go where they were.
#[tokio::test]
async fn rings_are_found_where_the_last_daemon_of_the_folder_had_them() {
    let (folder, _) = place();
    let folder = folder.path();
    std::fs::create_dir(folder.join("data")).expect("a folder");
    let names = ["rings.sock", "other.rings.sock", "third.rings.sock"];
    let processes = names.map(|name| real(&folder.join(name)));
    assert!(found(folder, Some("clad.sock"), "data", true).await.expect("none").is_empty());
    let mut first = Holder::at(folder.join("rings.sock"), places::identity(&folder.join("data")), LONG);
    // That one's thread may be about to end.
    while !first.all(Whose::Anyones).is_ok_and(|kept| kept.is_empty()) {
        std::thread::yield_now();
    }
    (1..=2).for_each(|uid| first.keep(ring(uid)).expect("kept"));
    // A copy of the folder, with its link, while the daemon lives and when it is dead; and with a socket beside.
    for lives in [true, false] {
        std::fs::create_dir(folder.join("copy")).expect("a folder");
        std::os::unix::fs::symlink(folder.join("rings.sock"), folder.join("copy/holder.sock")).expect("a link");
        for socket in [None, Some("third.sock")] {
            assert!(found(folder, socket, "copy", false).await.expect("none").is_empty(), "{lives}");
        }
        assert_eq!(places::Link(&folder.join("copy")).left(), [folder.join("rings.sock")], "not forgotten");
        std::fs::remove_file(folder.join("copy/holder.sock")).expect("it is there");
        assert!(found(folder, Some("third.sock"), "copy", false).await.expect("none").is_empty(), "{lives}");
        std::fs::remove_dir_all(folder.join("copy")).expect("it is there");
        first.ended(); // its line
    }
    assert_eq!(found(folder, None, "data", false).await.expect("found"), [1, 2], "without a socket");
    for _again in 0..2 {
        assert_eq!(found(folder, Some("other.sock"), "data", false).await.expect("found"), [1, 2], "moved");
    }
    let mut first = Holder::at(folder.join("rings.sock"), OTHER, LONG);
    let left = std::iter::repeat_with(|| first.all(Whose::Anyones)).find_map(Result::ok).expect("no end");
    assert!(left.is_empty(), "let go where they were");
    drop(first);
    for name in names {
        std::fs::remove_file(folder.join(name)).expect("it was there");
    }
    processes.into_iter().for_each(|process| process.join().expect("it ends with its socket"));
}

/// Each place that has refused is asked again by the next start, also one that no start has asked for want of a place.
#[tokio::test]
async fn every_place_that_refuses_is_remembered() {
    let (folder, _) = place();
    let folder = folder.path();
    std::fs::create_dir(folder.join("data")).expect("a folder");
    let data = folder.join("data");
    let [first, second, third] =
        ["first.rings.sock", "second.rings.sock", "third.rings.sock"].map(|name| folder.join(name));
    let others = [&first, &second].map(|path| std::os::unix::net::UnixListener::bind(path).expect("another program's"));
    let link = places::Link(&data);
    link.set(Some(&first)).and_then(|()| link.set_left(std::slice::from_ref(&second))).expect("links");
    let process = real(&third);
    let left = || link.left().into_iter().collect::<std::collections::BTreeSet<_>>();
    for again in [false, true] {
        assert!(found(folder, Some("third.sock"), "data", false).await.expect("none").is_empty());
        assert_eq!(left(), [first.clone(), second.clone()].into(), "{again}");
    }
    // The rings are at the place of the link, and it is the only one.
    let mut holder = Holder::at(third.clone(), places::identity(&data), LONG);
    while !holder.all(Whose::Anyones).is_ok_and(|kept| kept.is_empty()) {
        std::thread::yield_now();
    }
    holder.keep(ring(1)).expect("kept");
    drop(holder);
    assert_eq!(found(folder, None, "data", false).await.expect("found"), [1]);
    assert_eq!(left(), [first.clone(), second.clone()].into(), "nobody has asked them");
    drop(others);
    std::fs::remove_file(&second).expect("it was there");
    let ours = earlier(&second, vec![ring(2)]);
    assert_eq!(found(folder, Some("third.sock"), "data", false).await.expect("found"), [1, 2], "it has what is ours");
    assert_eq!(ours.join().expect("answered"), [2], "let go there");
    assert!(left().is_empty(), "nobody is at the first any more");
    std::fs::remove_file(&third).expect("it was there");
    process.join().expect("it ends with its socket");
}

/// A runtime whose threads that look have no more rights to files than an ordinary user, also where root runs this.
fn of_an_ordinary_user() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().on_thread_start(|| _ = nix::unistd::setfsuid(65_534.into()));
    runtime.build().expect("a runtime")
}

fn close(folder: &Path, is_closed: bool) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if is_closed { 0o000 } else { 0o755 };
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// A data folder was copied for another user, and its link leads to where this one may not go.
#[test]
fn a_place_that_this_user_may_not_go_to_is_left_and_remembered() {
    let (folder, _) = place();
    let folder = folder.path();
    ["data", "old", "own"].iter().for_each(|name| std::fs::create_dir(folder.join(name)).expect("a folder"));
    close(folder, false);
    let (data, old) = (folder.join("data"), folder.join("old/rings.sock"));
    let link = places::Link(&data);
    link.set(Some(&old)).expect("a link");
    let find = |socket| {
        let start = async { tokio::time::timeout(LONG, found(folder, socket, "data", false)).await };
        of_an_ordinary_user().block_on(start).expect("it waits for nobody")
    };
    close(&folder.join("old"), true);
    for socket in [None, Some("own/clad.sock"), Some("own/clad.sock")] {
        assert!(find(socket).expect("it goes on").is_empty());
        assert_eq!(link.left(), std::slice::from_ref(&old), "not forgotten");
    }
    // Where it is the daemon's own place, there is none to go on with.
    close(&folder.join("own"), true);
    let error = find(Some("own/clad.sock")).expect_err("it has no place");
    assert!(error.to_string().contains("ingest.unix.path"), "{error}");
    assert_eq!(link.left(), std::slice::from_ref(&old), "not forgotten");
    close(&folder.join("own"), false);
    // It may go there now, and nothing is there.
    close(&folder.join("old"), false);
    assert!(find(Some("own/clad.sock")).expect("nobody is there").is_empty());
    assert!(link.left().is_empty(), "it was asked again");
}

/// The folder above the socket of this user's own holder was closed: what was posted is there, so it is waited for.
#[test]
fn a_holder_of_this_user_is_waited_for_also_where_its_folder_was_closed() {
    let (folder, _) = place();
    let folder = folder.path();
    ["data", "old"].iter().for_each(|name| std::fs::create_dir(folder.join(name)).expect("a folder"));
    let (data, old) = (folder.join("data"), folder.join("old/rings.sock"));
    places::Link(&data).set(Some(&old)).expect("a link");
    std::fs::write(folder.join("hold"), "read end").expect("a script that is called as a holder is");
    let mut holder = std::process::Command::new("sh");
    holder.arg("hold").arg(&old).current_dir(folder).stdin(std::process::Stdio::piped());
    let mut holder = holder.spawn().expect("a shell");
    close(&folder.join("old"), true);
    let sought = Sought { socket: None, data: &data, is_new: false };
    let (mut asked, health) = (0, Health::default());
    let found = of_an_ordinary_user().block_on(find(sought, InheritedFds::default(), &health, |silence| {
        asked += 1;
        assert!(silence.to_string().starts_with(&format!("process {} ", holder.id())), "{silence}");
        holder.kill().and_then(|()| holder.wait()).expect("it is ours");
    }));
    assert!(found.expect("it goes on").is_none());
    assert_eq!(asked, 1, "while it lived");
    close(&folder.join("old"), false);
}

/// The daemon before had `audit.sock`, and its holder at the one name of the folder. A log that is new had none.
#[tokio::test]
async fn rings_that_an_earlier_version_kept_are_found_under_the_name_that_it_had() {
    let (folder, path) = place();
    let folder = folder.path();
    std::fs::create_dir(folder.join("data")).expect("a folder");
    let process = real(&folder.join("audit.rings.sock"));
    let holder = earlier(&path, vec![ring(1), ring(2)]);
    // Not those of a daemon that answers on the name that goes with it; nor is a new log's daemon anybody's successor.
    let living = std::os::unix::net::UnixListener::bind(folder.join("clad.sock")).expect("a socket");
    for is_new in [false, true] {
        assert!(found(folder, Some("audit.sock"), "data", is_new).await.expect("none").is_empty());
        std::fs::remove_file(folder.join("data/holder.sock")).expect("it was made");
        std::fs::remove_file(folder.join("clad.sock")).or_else(|e| if is_new { Ok(()) } else { Err(e) }).expect("gone");
    }
    drop(living);
    assert_eq!(found(folder, Some("audit.sock"), "data", false).await.expect("found"), [1, 2]);
    assert_eq!(holder.join().expect("answered"), [1, 2], "let go there");
    assert_eq!(found(folder, Some("audit.sock"), "data", false).await.expect("found"), [1, 2], "kept here");
    std::fs::remove_file(folder.join("audit.rings.sock")).expect("it was there");
    process.join().expect("it ends with its socket");
}

/// Two daemons were given one place. The one that comes second says so, and does not wait for ever.
#[tokio::test]
async fn a_start_ends_where_another_daemon_has_the_place() {
    let (folder, path) = place();
    std::fs::create_dir(folder.path().join("data")).expect("a folder");
    let process = real(&path);
    let mut living = Holder::at(path, OTHER, LONG);
    assert!(living.all(Whose::Anyones).expect("none").is_empty());
    let sought = Sought { socket: Some(&folder.path().join("clad.sock")), data: folder.path(), is_new: true };
    let mut asked = 0;
    let error =
        find(sought, InheritedFds::default(), &Health::default(), |_| asked += 1).await.expect_err("it is another's");
    assert!(asked > 1, "it may be one that is just dying");
    assert!(error.to_string().contains("ingest.unix.path"), "{error}");
    drop((living, folder));
    process.join().expect("it ends with its socket");
}
