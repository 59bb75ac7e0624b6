//! Where rings are kept: they are one daemon's, in whatever folder others have their sockets; the next daemon of the log finds
//! them, whatever its own socket is.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use clad_client::{AckLevel, Producer};
use clad_e2e::manager::Manager;
use clad_e2e::tool::is_on_path;
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT, not_run, readback};
use nix::sys::signal::Signal;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

use crate::death::{Client, once_and_in_order};
use crate::{producer, runtime, submit};

/// What a start says that takes over rings.
const TAKES_OVER: &str = "rings of an earlier daemon go on";

fn beside(daemon: &Daemon, name: &str) -> String {
    daemon.socket().with_file_name(name).display().to_string()
}

/// A log beside another, with its socket in the same folder. Neither has the other's rings: not when it starts, not while both
/// run, not when one of them is dead.
#[test]
fn two_daemons_in_one_folder_have_each_its_own_rings() {
    let runtime = runtime();
    let mut one = Daemon::start();
    let client = Client::start(&one, "one".to_owned());
    let socket = beside(&one, "audit.sock");
    let mut other = Setup::new().set("ingest.unix.path", &socket).start();
    let address = format!("shm://{socket}").parse().expect("an address");
    let audit = runtime.block_on(Producer::builder(address).connect()).expect("connected");
    assert!(audit.has_ring(), "{:?}", audit.why_no_ring());
    runtime.block_on(submit(&audit, AckLevel::Written, "audit:0".to_owned())).expect("written");
    one.signal(Signal::SIGSTOP);
    let (name, many) = client.posts_and_dies(300);
    one.kill9();
    other.kill9();
    other.restart();
    other.wait_for_rings(1);
    one.restart();
    one.wait_for_rings(0);
    runtime.block_on(submit(&audit, AckLevel::Written, "audit:1".to_owned())).expect("written");
    once_and_in_order(&runtime.block_on(readback::served(&one.address("unix"))), &name, many);
    let audits = runtime.block_on(readback::served(&format!("unix://{socket}")));
    assert_eq!(audits.iter().map(|stored| &stored.body[..]).collect::<Vec<_>>(), [b"audit:0", b"audit:1"]);
}

/// A second daemon is given the socket of the first by mistake: it ends before it has asked for anybody's rings.
#[test]
fn a_start_that_cannot_have_its_socket_takes_no_rings() {
    let runtime = runtime();
    let daemon = Daemon::start();
    let posts = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&posts, AckLevel::Written, "its own".to_owned())).expect("written");
    let socket = daemon.socket().display().to_string();
    let ended = Setup::new().set("ingest.unix.path", &socket).run_to_end();
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    assert!(ended.said.contains("another process answers on this socket"), "{}", ended.said);
    assert!(!ended.said.contains(TAKES_OVER), "{}", ended.said);
    // Also where somebody has removed the file, so that a second one can be made.
    std::fs::remove_file(&socket).expect("it was there");
    let ended = Setup::new().set("ingest.unix.path", &socket).run_to_end();
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    let who = format!("process {}, another clad, has the rings", daemon.pid());
    assert!(ended.said.contains(&who) && !ended.said.contains(TAKES_OVER), "{}", ended.said);
    assert!(!Path::new(&socket).exists(), "its own file is gone with it");
    runtime.block_on(submit(&posts, AckLevel::Written, "goes on".to_owned())).expect("written");
    assert_eq!((daemon.metric("clad_shm_rings"), daemon.metric("clad_shm_rings_unprotected")), (1.0, 0.0));
}

/// The operator moves the socket, turns it off, or gives it back, while records lie in rings.
#[test]
fn what_was_posted_is_found_by_a_start_with_another_socket_or_none() {
    let runtime = runtime();
    let mut daemon = Daemon::start();
    let (clad, other) = (beside(&daemon, "clad.sock"), beside(&daemon, "elsewhere/other.sock"));
    for (round, (socket, next)) in [(&clad, ""), (&clad, &other[..]), (&other, &clad[..])].into_iter().enumerate() {
        daemon.kill9();
        daemon.restart_with("ingest.unix.path", socket);
        let client = Client::at(&format!("shm://{socket}"), format!("round {round}"));
        daemon.signal(Signal::SIGSTOP);
        let (name, many) = client.posts_and_dies(300);
        daemon.kill9();
        if next.is_empty() {
            let manager = Manager::new();
            let mut start = daemon.setup().command();
            let process = manager.start(start.args(["--set", "ingest.unix.path="]).stdin(Stdio::null()));
            manager.recv_until("READY=1");
            process.send(Signal::SIGTERM);
            process.wait_end(TEST_TIMEOUT).expect("it ends");
            assert!(process.code() == Some(0) && process.said().contains(TAKES_OVER), "{}", process.said());
            daemon.restart();
        } else {
            daemon.restart_with("ingest.unix.path", next);
            assert!(daemon.said().contains(TAKES_OVER), "{}", daemon.said());
        }
        daemon.wait_for_rings(0);
        let served = if next.is_empty() { socket } else { next };
        once_and_in_order(&runtime.block_on(readback::served(&format!("unix://{served}"))), &name, many);
    }
}

/// A copy of the data folder has the link to the holder as well, and not the rings.
#[test]
fn a_daemon_on_a_copy_of_the_folder_takes_no_rings() {
    let mut daemon = Daemon::start();
    let client = Client::start(&daemon, "posted".to_owned());
    daemon.signal(Signal::SIGSTOP);
    let (name, many) = client.posts_and_dies(300);
    daemon.kill9();
    let folder = daemon.dir().with_file_name("copy");
    let copied = Command::new("cp").arg("--archive").args([daemon.dir(), &folder]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let copy = Setup::in_folder(&folder).start();
    let said = copy.said();
    assert!(said.contains("for the daemon of another data folder") && !said.contains(TAKES_OVER), "{said}");
    daemon.restart();
    daemon.wait_for_rings(0);
    once_and_in_order(&runtime().block_on(readback::served(&daemon.address("unix"))), &name, many);
}

/// In a folder that others may write, somebody else was first. Nothing would come of waiting for him.
#[test]
fn a_start_does_not_wait_for_a_holder_of_another_user() {
    if !nix::unistd::Uid::effective().is_root() || !is_on_path("setpriv") {
        return not_run("a holder of another user", "it needs root and setpriv");
    }
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let setup = Setup::new().under(&as_nobody);
    let everybodys = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("given");
    let place = setup.socket().with_file_name("rings.sock");
    for folder in [setup.config().parent(), place.parent()] {
        everybodys(folder.expect("a folder"));
    }
    let _listener = listener(&place);
    everybodys(&place);
    let ended = setup.run_to_end();
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    let who = format!("process {} of another user (uid 0) answers there", std::process::id());
    assert!(ended.said.contains(&who) && ended.said.contains("ingest.unix.path"), "{}", ended.said);
}

fn listener(path: &Path) -> OwnedFd {
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    bind(&listener, &SocketAddrUnix::new(path).expect("an address")).expect("bound");
    listen(&listener, 4).expect("it listens");
    listener
}
