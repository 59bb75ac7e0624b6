//! A service manager played by hand: its notification socket, its watchdog, and the sockets that it holds.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use clad_e2e::manager::Manager;
use clad_e2e::raw::hello;
use clad_e2e::tool::{OutputStream, Running};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

#[test]
fn a_start_that_waits_for_a_dead_processs_writes_says_so_and_asks_for_time() {
    let mut daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"x"]);
    daemon.kill9();
    // What a write still on its way to a slow disk would hold.
    let segment = fs::File::open(daemon.dir().join("00000000000000000000.clog")).expect("the active segment");
    let lock = Flock::lock(segment, FlockArg::LockSharedNonblock).map_err(|(_, e)| e).expect("a lock");
    let manager = Manager::new();
    let process = manager.start(&mut daemon.setup().command());
    let said = manager.recv_until("waiting for a dead process's writes to segment 0");
    assert!(!said.iter().any(|message| message.contains("READY=1")), "{said:?}");
    assert!(manager.recv().starts_with("EXTEND_TIMEOUT_USEC="));
    // As long as it waits, it asks again: nobody's timeout ends it.
    assert!(manager.recv().starts_with("EXTEND_TIMEOUT_USEC="));
    drop(lock);
    let said = manager.recv_until("READY=1");
    assert!(said.iter().any(|message| message.contains("reading segment 0")), "{said:?}");
    let ready = said.last().expect("the last");
    assert!(ready.contains("STATUS=group_commit to durable") && ready.contains("unclean end"), "{ready}");
    process.send(Signal::SIGTERM);
    let said = manager.recv_until("STOPPING=1");
    assert!(!said.is_empty());
    process.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(process.code(), Some(0), "{}", process.said());
}

#[test]
fn the_watchdog_is_notified_and_the_status_follows_the_log() {
    let setup = Setup::new();
    let manager = Manager::new();
    let process = manager.start(setup.command().env("WATCHDOG_USEC", "200000"));
    manager.recv_until("READY=1");
    for _ in 0..5 {
        manager.recv_until("WATCHDOG=1");
    }
    let (mut raw, _) = Raw::producer(&setup.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"x"]);
    let said = manager.recv_until("durable 1 |");
    assert!(said.last().is_some_and(|line| line.contains("1 connections")), "{said:?}");
    process.send(Signal::SIGHUP);
    let said = manager.recv_until("READY=1");
    assert!(said.iter().any(|message| message.starts_with("RELOADING=1\nMONOTONIC_USEC=")), "{said:?}");
}

/// A daemon that takes a listening socket as systemd would hand it over; the library that reads it lets a test say which
/// descriptor is the first.
fn on_held_socket(setup: &Setup, listener: &UnixListener) -> Running {
    let held = OwnedFd::from(listener.try_clone().expect("one more descriptor"));
    let mut command = setup.command();
    command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", "0").env_remove("LISTEN_PID").stdin(held);
    Running::start(&mut command)
}

fn ready(process: &Running) {
    assert!(process.wait_for(OutputStream::Stdout, "clad is ready", TEST_TIMEOUT), "{}", process.said());
}

#[test]
fn on_a_held_socket_clients_wait_while_no_daemon_runs() {
    let setup = Setup::new();
    let listener = UnixListener::bind(setup.socket()).expect("a socket");
    let path = setup.socket();
    let early = thread::spawn(move || {
        let (mut raw, _) = Raw::producer(&path);
        raw.append_acked(0, AckLevel::Durable, &[b"before any daemon"]).first_offset
    });
    // It has connected and said HELLO to nobody.
    thread::sleep(Duration::from_millis(50));
    let first = on_held_socket(&setup, &listener);
    assert_eq!(early.join().expect("an ack"), 0);
    first.kill();
    let path = setup.socket();
    let between = thread::spawn(move || {
        let mut raw = Raw::unix(&path);
        raw.greet(&hello()).expect("WELCOME");
        raw.append_acked(0, AckLevel::Durable, &[b"between two"]).first_offset
    });
    thread::sleep(Duration::from_millis(50));
    let second = on_held_socket(&setup, &listener);
    assert_eq!(between.join().expect("an ack"), 1);
    second.send(Signal::SIGTERM);
    second.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(second.code(), Some(0), "{}", second.said());
    assert!(setup.socket().exists(), "the socket is not the daemon's to remove");
    let third = on_held_socket(&setup, &listener);
    ready(&third);
    third.kill();
}

#[test]
fn a_held_socket_that_is_nobodys_is_refused() {
    let setup = Setup::new();
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join("other.sock")).expect("a socket");
    let process = on_held_socket(&setup, &listener);
    process.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(process.code(), Some(78));
    let said = process.said();
    assert!(said.contains("other.sock") && said.contains("ListenStream="), "{said}");
}
