//! Rings lie in a service manager's descriptor store: they outlive the daemon, in whatever order it and its clients die,
//! and at starts that die themselves. A store that is full, refuses or does not answer costs `posted`, and no record.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use clad_client::{AckLevel, Producer};
use clad_e2e::tool::{OutputStream, Running};
use clad_e2e::{Daemon, FdStore, Rng, Setup, TEST_TIMEOUT, readback, seed};
use clad_proto::ErrorCode;
use nix::sys::signal::Signal;

use crate::death::{Client, once_and_in_order};
use crate::{producer, runtime, submit};

/// Rounds in which client and daemon die.
const DEATHS: u64 = 6;
/// Records at least that a client posts to a daemon that stands still.
const POSTED_RECORDS: u64 = 300;

fn wait_for_names(store: &FdStore, what: &str, mut holds: impl FnMut(&[String]) -> bool) {
    let until = Instant::now() + TEST_TIMEOUT;
    while !holds(&store.names()) {
        assert!(Instant::now() < until, "{what} never was so: {:?}", store.names());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The daemon stands still when it is killed, so that what is posted meanwhile lies in the ring alone. Whoever dies first,
/// and though the next start is killed at its first word: all is there once, and the store is empty when it is drained.
#[test]
fn what_was_posted_outlives_both_in_either_order_and_starts_that_die() {
    let mut rng = Rng::new(seed());
    let mut daemon = Setup::new().with_fd_store().start();
    let mut posted = Vec::new();
    for round in 0..DEATHS {
        let clients: Vec<Client> = (0..2).map(|n| Client::start(&daemon, format!("c{round}-{n}"))).collect();
        // What asked the store whether it took them goes a moment later.
        let is_ring = |name: &String| name.starts_with("clad-ring-") && !name.ends_with("witness");
        wait_for_names(daemon.fd_store(), "one each", |names| names.len() == 2 && names.iter().all(is_ring));
        let names = daemon.fd_store().names();
        daemon.signal(Signal::SIGSTOP);
        let die = || clients.into_iter().map(|client| client.posts_and_dies(POSTED_RECORDS)).collect::<Vec<_>>();
        if round % 2 == 0 {
            posted.extend(die());
            daemon.kill9();
        } else {
            daemon.kill9();
            posted.extend(die());
        }
        assert_eq!(daemon.fd_store().names(), names, "what is stored outlives both");
        for _ in 0..rng.below(3) {
            daemon.start_and_kill9();
        }
        daemon.restart();
        wait_for_names(daemon.fd_store(), "a store that is empty once all is drained", <[String]>::is_empty);
    }
    daemon.wait_for_rings(0);
    let runtime = runtime();
    let last = producer(&runtime, &daemon, "unix");
    runtime.block_on(submit(&last, AckLevel::Written, "last".to_owned())).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    for (name, many) in &posted {
        once_and_in_order(&all, name, *many);
    }
    assert_eq!(daemon.term(), Some(0));
}

/// Names of the rings that the store has. What asked it whether it took one goes a moment later.
fn ring_names(daemon: &Daemon) -> Vec<String> {
    daemon.fd_store().names().into_iter().filter(|name| !name.ends_with("witness")).collect()
}

/// The client lives on. Over a death of the daemon its ring stays stored, and the client continues by that ring. A clean end
/// drains the ring and leaves nothing stored; the next daemon gives the client another one, which is stored again.
#[test]
fn a_client_that_lives_keeps_its_ring_stored() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let client = producer(&runtime, &daemon, "shm");
    let mut posted = Vec::new();
    let mut post = |round: usize, when: &str| {
        let body = format!("{round} {when}");
        submit(&client, AckLevel::Posted, body.clone()).wait(Duration::ZERO).expect("posted");
        posted.push(body);
    };
    for round in 0..4 {
        let names = ring_names(&daemon);
        assert!(names.len() == 1 && client.offers_posted(), "round {round}: {names:?}");
        post(round, "served");
        if round % 2 == 0 {
            daemon.signal(Signal::SIGSTOP);
            post(round, "to one that stands still");
            daemon.kill9();
            post(round, "to nobody");
            daemon.restart();
            assert_eq!(ring_names(&daemon), names, "round {round}");
        } else {
            assert_eq!(daemon.term(), Some(0), "round {round}: {}", daemon.said());
            wait_for_names(daemon.fd_store(), "a store that is empty after a clean end", <[String]>::is_empty);
            daemon.restart();
            wait_for_names(daemon.fd_store(), "another ring that is stored", |names| names.len() == 1);
            // The client has it, too: what it sends now is in there.
            runtime.block_on(client.flush(AckLevel::Written)).expect("written");
        }
    }
    runtime.block_on(client.flush(AckLevel::Written)).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let found: Vec<String> = all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text")).collect();
    assert_eq!(found, posted, "each once, and in order");
}

/// A program at `shm://` of a daemon that can store no ring more: its records are as safe as by any other way, and `posted`,
/// which is not offered to it, is refused.
fn is_served_without_posted(runtime: &tokio::runtime::Runtime, daemon: &Daemon, body: &str) -> Producer {
    let address = daemon.address("shm").parse().expect("an address");
    let producer = runtime.block_on(Producer::builder(address).connect()).expect("connected");
    let refused = runtime.block_on(submit(&producer, AckLevel::Posted, "refused".to_owned()));
    assert!(refused.as_ref().is_err_and(|e| e.code() == Some(ErrorCode::LevelUnreachable)), "{body}: {refused:?}");
    runtime.block_on(submit(&producer, AckLevel::Durable, body.to_owned())).expect("durable");
    producer
}

/// A store with room for one ring and its check, or for less. What it does not take is not left there, and does not push out
/// what it has.
#[test]
fn a_full_store_costs_posted_and_no_record() {
    let runtime = runtime();
    for is_announced in [true, false] {
        for (places, stored) in [(0, 0), (1, 0), (2, 1)] {
            let what = format!("{places} places, announced: {is_announced}");
            let mut daemon = Setup::new().over_fd_store(FdStore::new(places, is_announced)).start();
            let mut expected = vec!["beside".to_owned()];
            let first = (stored == 1).then(|| producer(&runtime, &daemon, "shm"));
            let beside = is_served_without_posted(&runtime, &daemon, "beside");
            wait_for_names(daemon.fd_store(), &what, |names| names.len() == stored);
            daemon.wait_said("its store is full");
            if let Some(first) = &first {
                daemon.signal(Signal::SIGSTOP);
                submit(first, AckLevel::Posted, "posted".to_owned()).wait(Duration::ZERO).expect("posted");
                expected.push("posted".to_owned());
            }
            daemon.kill9();
            daemon.restart();
            runtime.block_on(submit(&beside, AckLevel::Durable, "again".to_owned())).expect("durable");
            if let Some(first) = &first {
                runtime.block_on(first.flush(AckLevel::Durable)).expect("durable");
            }
            let all = runtime.block_on(readback::served(&daemon.address("unix")));
            let mut found: Vec<String> =
                all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text")).collect();
            expected.push("again".to_owned());
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{what}");
        }
    }
}

/// The operator gives the store more places and starts the daemon again: from then on rings are stored.
#[test]
fn a_store_with_more_places_stores_the_next_ring() {
    let runtime = runtime();
    let mut daemon = Setup::new().over_fd_store(FdStore::new(0, true)).start();
    drop(is_served_without_posted(&runtime, &daemon, "before"));
    daemon.kill9();
    daemon.fd_store().set_places(2);
    daemon.restart();
    let client = producer(&runtime, &daemon, "shm");
    submit(&client, AckLevel::Posted, "posted".to_owned()).wait(Duration::ZERO).expect("posted");
    assert_eq!(daemon.fd_store().names().len(), 1);
}

/// A manager that does not read its messages: nobody waits for it but the one whose ring is new, and he for a stated time.
#[test]
fn a_manager_that_does_not_answer_costs_posted_and_no_record() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    let stored = producer(&runtime, &daemon, "shm");
    daemon.fd_store().set_deaf(true);
    let beside = is_served_without_posted(&runtime, &daemon, "beside");
    submit(&stored, AckLevel::Posted, "posted".to_owned()).wait(Duration::ZERO).expect("posted");
    daemon.fd_store().set_deaf(false);
    daemon.kill9();
    daemon.restart();
    for client in [&stored, &beside] {
        runtime.block_on(client.flush(AckLevel::Durable)).expect("durable");
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let found = |body: &str| all.iter().filter(|stored| stored.body == body.as_bytes()).count();
    assert_eq!((found("posted"), found("beside"), all.len()), (1, 1, 2));
}

/// The manager itself does as systemd does (systemd.service(5), `FileDescriptorStoreMax=`; sd_pid_notify_with_fds(3)).
#[test]
fn the_manager_stores_hands_over_and_drops_as_systemd_does() {
    let store = FdStore::new(3, true);
    let pairs: Vec<(UnixStream, UnixStream)> = (0..5).map(|_| UnixStream::pair().expect("a pair")).collect();
    let message = |name: &str| format!("FDSTORE=1\nFDNAME={name}\n");
    store.notify(&message("polled"), &[pairs[0].0.as_fd()]);
    store.notify(&message("again"), &[pairs[0].0.as_fd()]);
    store.notify(&format!("{}FDPOLL=0\n", message("kept")), &[pairs[1].0.as_fd()]);
    store.notify("FDSTORE=1", &[pairs[2].0.as_fd()]);
    store.notify(&message("one too many"), &[pairs[3].0.as_fd()]);
    store.settle();
    assert_eq!(store.names(), ["polled", "kept", "stored"]);
    let mut ours = Vec::new();
    for (near, far) in pairs {
        drop(near);
        ours.push(far);
    }
    drop(ours.remove(0));
    drop(ours.remove(0));
    wait_for_names(&store, "what hangs up goes unless it is not polled", |names| names == ["kept", "stored"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ $LISTEN_PID $LISTEN_FDS $LISTEN_FDNAMES; cat <&4; echo; ls /proc/self/fd | wc -l"]);
    ours[0].write_all(b"through the store").expect("written");
    ours[0].shutdown(std::net::Shutdown::Write).expect("shut");
    let service: Running = store.start(&shell);
    service.wait_end(TEST_TIMEOUT).expect("it ends");
    let pid = service.pid();
    // Three streams, two that are handed over, and the folder that `ls` reads.
    assert_eq!(service.printed(), format!("{pid} {pid} 2 kept:stored\nthrough the store\n6\n"), "{}", service.said());
    assert!(service.wait_for(OutputStream::Stdout, "6", TEST_TIMEOUT));
    store.notify("FDSTOREREMOVE=1\nFDNAME=kept\n", &[]);
    store.notify("READY=1\n", &[]);
    store.settle();
    assert_eq!((store.names(), store.messages()), (vec!["stored".to_owned()], vec!["READY=1\n".to_owned()]));
}
