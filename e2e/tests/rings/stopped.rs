//! The process that keeps the rings does not answer at a start of the daemon: it is stopped, as on a machine that thrashes
//! or by a hand. What was posted is there, so the start waits for it, and says so.

use std::process::Stdio;

use clad_client::AckLevel;
use clad_e2e::manager::Manager;
use clad_e2e::tool::{OutputStream, Running};
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT, readback, web};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::death::{Client, once_and_in_order};
use crate::keeper::holder;
use crate::{producer, runtime, submit};

/// A daemon that was killed after its client, with records that it had not drained; and who keeps them, stopped.
fn dead_with_posted() -> (Daemon, Pid, (String, u64)) {
    let mut daemon = Setup::new().fixed_ports().start();
    let client = Client::start(&daemon, "c".to_owned());
    daemon.signal(Signal::SIGSTOP);
    let posted = client.posts_and_dies(300);
    let holder = holder(&daemon);
    kill(holder, Signal::SIGSTOP).expect("stopped");
    daemon.kill9();
    (daemon, holder, posted)
}

fn start(daemon: &Daemon, manager: &Manager) -> Running {
    manager.start(daemon.setup().command().stdin(Stdio::null()))
}

/// It is not ready, and says whom it waits for: in the log, to its manager, on its pages.
fn waits_for(holder: Pid, daemon: &Daemon, manager: &Manager, process: &Running) {
    let whom = format!("process {holder} (clad hold ");
    let mut said = manager.recv_until(&format!("STATUS=waiting: {whom}"));
    said.extend(manager.recv_until("EXTEND_TIMEOUT_USEC="));
    assert!(!said.iter().any(|message| message.contains("READY=1")), "{said:?}");
    for way_out in [format!("kill -CONT {holder}"), format!("kill -KILL {holder}")] {
        assert!(process.wait_for(OutputStream::Stderr, &way_out, TEST_TIMEOUT), "{}", process.said());
    }
    let (code, page) = web::page(daemon.port("metrics"), "/readyz");
    assert!(code == 503 && page.starts_with(&format!("not ready: starting: {whom}")), "{code} {page}");
}

#[test]
fn what_was_posted_outlives_a_start_at_which_the_holder_says_nothing() {
    let (mut daemon, holder, (name, many)) = dead_with_posted();
    let manager = Manager::new();
    // One start after the other that waits and is killed, or is told to end.
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let process = start(&daemon, &manager);
        waits_for(holder, &daemon, &manager, &process);
        process.send(signal);
        process.wait_end(TEST_TIMEOUT).expect("it ends");
        // It could not drain what is kept.
        assert!(signal == Signal::SIGKILL || process.code() == Some(1), "{}", process.said());
        manager.forget();
    }
    let process = start(&daemon, &manager);
    waits_for(holder, &daemon, &manager, &process);
    kill(holder, Signal::SIGCONT).expect("it was stopped");
    manager.recv_until("READY=1");
    assert_eq!(web::page(daemon.port("metrics"), "/readyz").0, 200);
    process.send(Signal::SIGTERM);
    process.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(process.code(), Some(0), "{}", process.said());
    daemon.restart();
    let all = runtime().block_on(readback::served(&daemon.address("unix")));
    once_and_in_order(&all, &name, many);
}

/// The operator's way out: without the holder there is nobody to wait for.
#[test]
fn a_start_goes_on_without_the_rings_when_the_operator_ends_who_has_them() {
    let (mut daemon, holder, _) = dead_with_posted();
    let manager = Manager::new();
    let process = start(&daemon, &manager);
    waits_for(holder, &daemon, &manager, &process);
    // It asks again, as long as it waits: nobody's timeout ends it.
    manager.recv_until("EXTEND_TIMEOUT_USEC=");
    kill(holder, Signal::SIGKILL).expect("it was stopped");
    manager.recv_until("READY=1");
    process.send(Signal::SIGTERM);
    process.wait_end(TEST_TIMEOUT).expect("it ends");
    daemon.restart();
    let runtime = runtime();
    let next = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&next, AckLevel::Written, "a new holder has its ring".to_owned())).expect("written");
}
