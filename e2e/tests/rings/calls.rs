//! What a log call through the SDK asks of the kernel, counted: the writer's thread stops at each of its system calls,
//! and this process counts the stops.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use clad_client::AckLevel;
use clad_e2e::Setup;
use nix::libc::SYS_read;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{runtime, submit};

/// An address, and a level.
const ROLE: &str = "CLAD_RINGS_CALLS";
/// Records before it counts: what is bound late is bound, memory is there.
const WARM_UP: u64 = 5_000;
/// Records that are counted. What all of them may wait for fits the producer's memory.
const RECORDS: u64 = 20_000;
/// What the kernel says at the beginning of a system call.
const BEGINS: u8 = 1;

/// Not a test of its own: the client whose thread is watched.
#[test]
#[expect(clippy::print_stdout, reason = "it says which thread it is")]
fn the_client() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (server, level) = role.split_once(' ').expect("an address and a level");
    let level = level.parse::<AckLevel>().expect("a level");
    let runtime = runtime();
    let address = server.parse().expect("an address");
    let producer = runtime.block_on(clad_client::Producer::builder(address).connect()).expect("connected");
    assert!(producer.has_ring());
    let log =
        |from: u64, upto: u64| (from..upto).for_each(|number| drop(submit(&producer, level, format!("{number}"))));
    log(0, WARM_UP);
    runtime.block_on(producer.flush(AckLevel::Written)).expect("written");
    println!("thread {}", nix::unistd::gettid());
    let mut word = [0];
    std::io::stdin().lock().read_exact(&mut word).expect("go on");
    log(WARM_UP, WARM_UP + RECORDS);
    std::io::stdin().lock().read_exact(&mut word).expect("it is over");
    runtime.block_on(producer.flush(AckLevel::Written)).expect("written");
}

#[test]
fn a_log_call_at_none_makes_no_system_call() {
    counts(AckLevel::None);
}

#[test]
fn a_log_call_at_posted_makes_no_system_call() {
    counts(AckLevel::Posted);
}

#[test]
fn a_log_call_at_written_makes_no_system_call() {
    counts(AckLevel::Written);
}

fn counts(level: AckLevel) {
    let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "64MiB").start();
    let mut client = Command::new(std::env::current_exe().expect("this test"))
        .args(["calls::the_client", "--exact", "--nocapture"])
        .env(ROLE, format!("{} {}", daemon.address("shm"), level.name()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a client");
    let mut lines = BufReader::new(client.stdout.take().expect("its output")).lines();
    let thread = lines.find_map(|line| Some(line.ok()?.strip_prefix("thread ")?.parse().expect("a number")));
    let calls = watch(Pid::from_raw(thread.expect("it says so")), client.stdin.as_mut().expect("its input"));
    drop(client.stdin.take());
    assert!(client.wait().expect("ended").success(), "the client failed");
    assert_eq!(daemon.metric("clad_appended_records_total{transport=\"shm\"}"), (WARM_UP + RECORDS) as f64);
    // It wakes the drain where that slept, and its allocator may want more memory: neither for each record.
    let all: u64 = calls.values().sum();
    assert!(all < RECORDS / 20, "{all} system calls for {RECORDS} records, by number: {calls:?}");
}

/// Lets the thread go on to its next word, and counts the system calls that it makes until then.
fn watch(thread: Pid, input: &mut impl Write) -> BTreeMap<i64, u64> {
    ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).expect("it may be watched");
    ptrace::interrupt(thread).expect("stopped");
    let mut calls = BTreeMap::new();
    let mut began = false;
    loop {
        let stop = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
        let mut signal = None;
        match stop {
            WaitStatus::PtraceSyscall(_) if ptrace::syscall_info(thread).expect("which").op == BEGINS => {
                match number(thread) {
                    number if began && number == SYS_read => break,
                    number => *calls.entry(number).or_default() += 1,
                }
            }
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::PtraceEvent(..) if !began => {
                input.write_all(b"g").expect("written");
                began = true;
                // It waits in the call for that word, which it begins again.
                ptrace::syscall(thread, None).expect("goes on");
                let stop = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
                assert!(matches!(stop, WaitStatus::PtraceSyscall(_)), "{stop:?}");
            }
            WaitStatus::Stopped(_, what) => signal = Some(what),
            other => panic!("{other:?}"),
        }
        ptrace::syscall(thread, signal).expect("goes on");
    }
    ptrace::detach(thread, None).expect("let go");
    input.write_all(b"e").expect("written");
    calls
}

/// The system call that a stopped thread is in.
fn number(thread: Pid) -> i64 {
    let line = std::fs::read_to_string(format!("/proc/{thread}/syscall")).expect("it is stopped");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}
