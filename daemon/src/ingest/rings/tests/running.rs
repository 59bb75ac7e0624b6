//! The drain as the task that it is, on ingest threads: it is woken by what comes, by nothing else, and by all of it.

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use tokio::runtime::Runtime;

use super::super::process::Process;
use super::super::task::DrainTask;
use super::*;

pub(super) fn threads() -> (Runtime, Reactor) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let reactor = Reactor::start(2, runtime.handle()).expect("threads");
    (runtime, reactor)
}

/// A drain that wakes by itself wakes more often than this.
const REST: Duration = Duration::from_millis(200);

/// A drain that runs.
struct Running {
    reactor: Reactor,
    shared: Arc<Shared>,
    journal: Arc<Journal>,
    _dir: tempfile::TempDir,
    _runtime: Runtime,
}

impl Running {
    fn new(rings: impl FnOnce(&Harness) -> Vec<Ring>) -> Self {
        let (runtime, reactor) = threads();
        let harness = Harness::of_reactor(&reactor);
        let drainage = Drainage::new(harness.shared.clone(), rings(&harness));
        let Harness { dir, shared, journal, .. } = harness;
        let timer = shared.bells.timer().expect("a timer");
        reactor.spawn(DrainTask::new(drainage, shared.clone(), timer));
        Self { reactor, shared, journal, _dir: dir, _runtime: runtime }
    }

    /// With one ring.
    fn of_one() -> (Self, Program) {
        let mut program = None;
        let running = Self::new(|harness| {
            let (its_program, ring) = harness.ring(1);
            program = Some(its_program);
            vec![ring]
        });
        (running, program.expect("a program"))
    }

    /// Turns of tasks that the threads began and ended.
    fn turns(&self) -> u64 {
        self.reactor.turns().sum()
    }

    /// The same, once none was for a while, and the drain says that it sleeps.
    fn asleep(&self) -> u64 {
        let began = Instant::now();
        loop {
            let before: Vec<u64> = self.reactor.turns().collect();
            std::thread::sleep(REST);
            let rest = self.reactor.turns().eq(before.iter().copied()) && before.iter().all(|turns| turns % 2 == 0);
            if rest && self.shared.asleep.load(Ordering::SeqCst) {
                return before.iter().sum();
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "it never comes to rest");
        }
    }

    fn stop(&self) {
        self.shared.order(Order::Stop);
        until("the end", || !self.shared.order(Order::Stop));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came");
        std::thread::yield_now();
    }
}

impl Program {
    /// Waits as a program does, asleep until the completion page changes.
    fn waits_for(&self, append: u64, level: clad_shm::Level) {
        let deadline = clock::now() + TEST_TIMEOUT.as_nanos() as u64;
        self.ring.wait_level(append, level, deadline).expect("it is answered");
    }
}

/// Clients that push whenever they like: while it sleeps, as it falls asleep, while it looks. None of them waits for
/// ever.
#[test]
fn no_doorbell_is_missed() {
    const PUSHES: u32 = 3_000;
    let mut programs = Vec::new();
    let running = Running::new(|harness| {
        let (its_programs, rings): (Vec<_>, Vec<_>) = (1..=3).map(|name| harness.ring(name)).unzip();
        programs = its_programs;
        rings
    });
    std::thread::scope(|scope| {
        for (at, program) in programs.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..PUSHES {
                    let append = program.push(AckLevel::Received, "wakes it");
                    program.waits_for(append, clad_shm::Level::Received);
                    let pause = Instant::now();
                    while pause.elapsed() < Duration::from_nanos(u64::from(n) * (at as u64 + 1)) {}
                }
            });
        }
    });
    running.stop();
    assert_eq!(running.journal.watermarks().received, u64::from(3 * PUSHES));
}

/// The same by the watermarks: each is waited for alone.
#[test]
fn no_watermark_is_missed() {
    let (running, program) = Running::of_one();
    for _ in 0..300 {
        let append = program.push(AckLevel::Durable, "durable");
        program.waits_for(append, clad_shm::Level::Durable);
    }
    running.stop();
}

/// Rings in which nothing comes wake nobody, also when their doorbells are full of earlier rings.
#[test]
fn idle_rings_wake_nobody_and_a_doorbell_wakes_once() {
    let mut programs = Vec::new();
    let running = Running::new(|harness| {
        let (its_programs, rings): (Vec<_>, Vec<_>) = (1..=16).map(|name| harness.ring(name)).unzip();
        programs = its_programs;
        rings
    });
    for program in &programs {
        let append = program.push(AckLevel::Durable, "once");
        program.waits_for(append, clad_shm::Level::Durable);
        rustix::io::write(&program.waker, &1_000_u64.to_ne_bytes()).expect("rung");
    }
    let before = running.asleep();
    rustix::io::write(&programs[0].waker, &1_u64.to_ne_bytes()).expect("rung");
    until("its turn", || running.turns() > before);
    // A turn begins and ends.
    assert_eq!(running.asleep() - before, 2, "one turn for a doorbell that was rung for nothing");
    running.stop();
}

/// A log call that wants no answer rings nobody while the drain dozes.
#[test]
fn a_steady_trickle_rings_no_doorbell() {
    let (running, program) = Running::of_one();
    program.push(AckLevel::Posted, "the first wakes it");
    let rung = || {
        let mut count = [0; 8];
        rustix::io::read(&program.waker, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    until("it is taken", || running.journal.watermarks().received == 1);
    let mut rings = rung();
    let pushes = 300;
    for _ in 0..pushes {
        program.push(AckLevel::Posted, "trickles");
        std::thread::sleep(Duration::from_micros(200));
    }
    rings += rung();
    // It falls asleep where this thread was kept from running for long.
    assert!(rings < pushes / 4, "{rings} system calls for {pushes} appends");
    running.stop();
}

/// A thread that is at the disk, for any time, holds up no ring: another hears the doorbells.
#[test]
fn a_thread_at_the_disk_holds_up_no_ring() {
    let (running, program) = Running::of_one();
    for _ in 0..30 {
        let (release, blocked) = mpsc::sync_channel::<()>(1);
        let (began, begins) = mpsc::sync_channel(1);
        running.reactor.spawn(async move {
            began.send(()).expect("somebody waits");
            let _ = blocked.recv();
        });
        begins.recv_timeout(TEST_TIMEOUT).expect("it runs");
        for _ in 0..10 {
            let append = program.push(AckLevel::Received, "needs no disk");
            program.waits_for(append, clad_shm::Level::Received);
        }
        drop(release);
    }
    running.stop();
}

/// The write that an append defers is made, whoever makes it; and many at once are written together.
#[test]
fn what_is_drained_is_written() {
    let (running, program) = Running::of_one();
    let last = numbered(1000).iter().map(|text| program.push(AckLevel::Durable, text)).last().expect("some");
    program.waits_for(last, clad_shm::Level::Durable);
    assert_eq!(running.journal.watermarks().durable, 1000);
    running.stop();
}

/// A writer stopped before it committed: the clock of the drain ends that, for nobody rings.
#[test]
fn an_uncommitted_slot_is_given_up_by_the_clock() {
    let (running, program) = Running::of_one();
    running.asleep();
    program.reserve();
    let behind = program.push(AckLevel::Received, "behind the slot");
    program.waits_for(behind, clad_shm::Level::Received);
    running.asleep();
    running.stop();
}

/// The end of a client's process ends its ring, though its connection says nothing.
#[test]
fn the_end_of_a_process_ends_its_ring() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
    let mut program = None;
    let running = Running::new(|harness| {
        let (its_program, mut ring) = harness.ring(1);
        let note = Note { pid: child.id(), ..Note::default() };
        ring.set_process(harness.shared.bells.process(Process::of(&note).watched()));
        program = Some(its_program);
        vec![ring]
    });
    let program = program.expect("a program");
    program.push(AckLevel::Posted, "posted");
    running.asleep();
    assert!(!program.ring.is_closed());
    child.kill().expect("killed");
    child.wait().expect("waited for");
    until("its ring has ended", || running.shared.registry.totals().0 == 0);
    assert!(program.ring.is_closed());
    running.stop();
}

/// While it waits for room it sleeps, whatever comes; and returned room wakes it.
#[test]
fn a_drain_that_waits_for_room_looks_for_nothing() {
    let (running, program) = Running::of_one();
    let budget = running.shared.admission().budget.clone();
    let all = budget.handle(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let last = program.push(AckLevel::Written, "waits");
    until("it waits", || budget.waiting() > 0);
    let before = running.asleep();
    for text in &numbered(100) {
        program.push(AckLevel::Posted, text); // nothing that it could take
    }
    std::thread::sleep(Duration::from_millis(300)); // 3,000 looks, were it to look every 100 us
    let woken = running.asleep() - before;
    assert!(woken < 20, "it woke {woken} times for nothing");
    assert_eq!(program.ring.watermarks().received, 0);
    drop(all);
    program.waits_for(last, clad_shm::Level::Written);
    running.stop();
}
