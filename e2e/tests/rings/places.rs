//! Whose rings are: they are one daemon's, in whatever folder others have their sockets; the next daemon of the service finds
//! them, whatever its own socket is.

use clad_client::{AckLevel, Producer};
use clad_e2e::{Daemon, Setup, readback};
use nix::sys::signal::Signal;

use crate::death::{Client, once_and_in_order};
use crate::{runtime, submit};

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
    let mut one = Setup::new().with_fd_store().start();
    let client = Client::start(&one, "one".to_owned());
    let socket = beside(&one, "audit.sock");
    let mut other = Setup::new().with_fd_store().set("ingest.unix.path", &socket).start();
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

/// The operator moves the socket, turns it off, or gives it back, while records lie in rings.
#[test]
fn what_was_posted_is_found_by_a_start_with_another_socket_or_none() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let (clad, other) = (beside(&daemon, "clad.sock"), beside(&daemon, "elsewhere/other.sock"));
    for (round, (socket, next)) in [(&clad, ""), (&clad, &other[..]), (&other, &clad[..])].into_iter().enumerate() {
        daemon.kill9();
        daemon.restart_with("ingest.unix.path", socket);
        let client = Client::at(&format!("shm://{socket}"), format!("round {round}"));
        daemon.signal(Signal::SIGSTOP);
        let (name, many) = client.posts_and_dies(300);
        daemon.kill9();
        daemon.restart_with("ingest.unix.path", next);
        assert!(daemon.said().contains(TAKES_OVER), "{}", daemon.said());
        daemon.wait_for_rings(0);
        if next.is_empty() {
            assert_eq!(daemon.term(), Some(0), "{}", daemon.said());
            daemon.restart_with("ingest.unix.path", socket);
        }
        let served = if next.is_empty() { socket } else { next };
        once_and_in_order(&runtime.block_on(readback::served(&format!("unix://{served}"))), &name, many);
    }
}
