//! The whole journal: who takes its jobs, what its threads learn, how it fails, and how it ends.
//!
//! What must hold in every order, with no time passing:
//! - **Somebody keeps the time**: a log that falls idle gets its commit marker, a failed one recovers, because who sleeps has named
//!   the moment; nobody else wakes him.
//! - **It never comes to rest with work waiting.** What was accepted reaches the level that its policy releases without a
//!   timer; a rotation and a sync that were asked for are answered; a close ends, also one that is given up.
//! - **The watermarks only grow**, whoever publishes and whoever reads them, `received >= written >= durable`, and stand still
//!   from a failure until the recovery.
//! - **A clean end has everything**: the next start finds each record that was accepted; a journal that is dropped has none.
//! - **Every permit comes back.**

use std::sync::Arc;
use std::time::Duration;

use clad_journal::clock::Clock;
use clad_journal::format::segment_name;
use clad_journal::{
    Accepted, Accepting, AfterRefusal, Append, AppendError, Journal, JournalConfig, Level, Permit, Policy, Wants,
    Watermarks, WriteBuffer,
};
use clad_sim::disk::{Fault as DiskFault, OpKind};
use clad_sim::{SimClock, SimDisk};
use shuttle::future::block_on;
use shuttle::thread;
use tokio::sync::Semaphore;

use crate::machine::Machine;

/// Looks at the clock within which what was to come has come.
const WAIT_STEPS_MAX: usize = 5_000;
/// Time after which an idle log gets its commit marker, and time after which a failed one recovers.
const IDLE_COMMIT_MARKER_DELAY: Duration = Duration::from_millis(100);
const RECOVERY_RETRY: Duration = Duration::from_secs(1);
/// Time after which the open batch goes beside a write.
const GROUP_COMMIT_DELAY: Duration = Duration::from_millis(5);
/// A segment is old then.
const ROTATE_NEVER: Duration = Duration::from_secs(3600);
/// Permits in all; each append has its bytes of them.
const PERMITS: usize = 4 << 20;

/// How a model ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was acknowledged; then it is closed.
    Closed,
    /// It is closed while producers append.
    ClosedMeanwhile,
    /// It is given up while they do.
    Abandoned,
    /// It is dropped when they have done.
    Dropped,
}

/// One model.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// How `durable` is reached.
    pub policy: Policy,
    /// With a ring beside the thread.
    pub ring: bool,
    /// Bytes of the appends of each producer.
    pub producers: &'static [&'static [usize]],
    /// Rotations by command.
    pub rotations: usize,
    /// Syncs by command.
    pub syncs: usize,
    /// A write into a segment fails, once.
    pub fails: bool,
    /// Producers make their deferred writes.
    pub deferring: bool,
    /// When all is done the log falls idle, and time passes.
    pub idles: bool,
    /// The log has rested before: who sleeps has named a moment that is far away.
    pub rested: bool,
    /// A write takes as long as it needs for another one to be begun beside it.
    pub slow: bool,
    /// How it ends.
    pub end: End,
}

impl Scene {
    /// No record asks for less than `durable`: then nothing but a sync of its own is left to do when it is answered.
    fn all_durable(&self) -> bool {
        self.fails || self.idles || self.slow || self.rested
    }
}

/// Bytes that are worth a write of their own, and a little.
const LARGE: usize = 66 << 10;
const GROUP: Policy = Policy::GroupCommit { max_delay: GROUP_COMMIT_DELAY, max_bytes: 1 << 20, in_flight: 2 };
const RANGE: Policy = Policy::SyncFileRange { max_delay: GROUP_COMMIT_DELAY, max_bytes: 1 << 20, in_flight: 2 };
const ONE: &[&[usize]] = &[&[100]];
const TWO: &[&[usize]] = &[&[100], &[100]];
const FORGET: Policy = Policy::FireAndForget { sync_interval: Duration::ZERO };

const BASE: Scene = Scene {
    name: "",
    policy: GROUP,
    ring: true,
    producers: &[&[100, 100], &[LARGE, 100]],
    rotations: 0,
    syncs: 0,
    fails: false,
    deferring: false,
    idles: false,
    rested: false,
    slow: false,
    end: End::Closed,
};

/// All of them.
pub const SCENES: &[Scene] = &[
    Scene { name: "group_commit, a ring", ..BASE },
    Scene { name: "group_commit, a ring, rotations", rotations: 1, producers: &[&[100; 3], &[LARGE; 3]], ..BASE },
    Scene { name: "group_commit, threads, rotations", ring: false, rotations: 1, syncs: 1, ..BASE },
    Scene { name: "per_message, a ring", policy: Policy::PerMessage, ..BASE },
    Scene {
        name: "per_message, a ring, a full segment",
        policy: Policy::PerMessage,
        producers: &[&[LARGE; 3], &[LARGE, 100]],
        ..BASE
    },
    Scene { name: "per_message, threads", policy: Policy::PerMessage, ring: false, rotations: 1, ..BASE },
    Scene { name: "sync_file_range, a ring", policy: RANGE, rotations: 1, ..BASE },
    Scene { name: "fire_and_forget, a ring, syncs", policy: FORGET, syncs: 2, rotations: 1, ..BASE },
    Scene { name: "a failure, a ring", fails: true, ..BASE },
    Scene { name: "a failure, threads", fails: true, ring: false, ..BASE },
    Scene { name: "idle, a ring", idles: true, ..BASE },
    Scene { name: "idle, threads", idles: true, ring: false, ..BASE },
    Scene { name: "rested, a slow write, threads", producers: TWO, rested: true, slow: true, ring: false, ..BASE },
    Scene { name: "deferred, a ring", deferring: true, rotations: 1, ..BASE },
    Scene { name: "deferred, threads", deferring: true, ring: false, rotations: 1, ..BASE },
    Scene {
        name: "deferred, fire_and_forget, threads",
        policy: FORGET,
        deferring: true,
        ring: false,
        syncs: 1,
        ..BASE
    },
    Scene { name: "deferred, a failure, threads", deferring: true, fails: true, ring: false, ..BASE },
    Scene { name: "deferred, a failure, a ring", deferring: true, fails: true, ..BASE },
    Scene { name: "deferred, closed meanwhile, a ring", deferring: true, end: End::ClosedMeanwhile, ..BASE },
    Scene {
        name: "deferred, closed meanwhile, threads",
        deferring: true,
        ring: false,
        end: End::ClosedMeanwhile,
        ..BASE
    },
    Scene {
        name: "deferred, per_message, a ring, a full segment",
        policy: Policy::PerMessage,
        deferring: true,
        producers: &[&[LARGE; 3], &[100, LARGE, 100], &[100]],
        ..BASE
    },
    Scene { name: "deferred, idle, a ring", deferring: true, idles: true, ..BASE },
    Scene { name: "deferred, idle, threads", deferring: true, idles: true, ring: false, ..BASE },
    Scene { name: "deferred, alone, idle, threads", producers: ONE, deferring: true, idles: true, ring: false, ..BASE },
    Scene { name: "deferred, rested, threads", deferring: true, rested: true, ring: false, rotations: 1, ..BASE },
    Scene {
        name: "deferred, rested, a failure, threads",
        deferring: true,
        rested: true,
        fails: true,
        ring: false,
        ..BASE
    },
    Scene {
        name: "deferred, rested, closed meanwhile, threads",
        deferring: true,
        rested: true,
        ring: false,
        end: End::ClosedMeanwhile,
        ..BASE
    },
    Scene {
        name: "deferred, rested, a slow write, threads",
        producers: TWO,
        deferring: true,
        rested: true,
        slow: true,
        ring: false,
        ..BASE
    },
    Scene { name: "deferred, abandoned, threads", deferring: true, ring: false, end: End::Abandoned, ..BASE },
    Scene { name: "closed meanwhile, a ring", end: End::ClosedMeanwhile, rotations: 1, ..BASE },
    Scene { name: "closed meanwhile, threads", end: End::ClosedMeanwhile, ring: false, rotations: 1, ..BASE },
    Scene { name: "given up, a ring", end: End::Abandoned, rotations: 1, ..BASE },
    Scene { name: "given up, threads", end: End::Abandoned, ring: false, ..BASE },
    Scene { name: "dropped, a ring", end: End::Dropped, ..BASE },
    Scene { name: "dropped, threads", end: End::Dropped, ring: false, ..BASE },
];

fn config(scene: &Scene) -> JournalConfig {
    JournalConfig {
        policy: scene.policy,
        segment_bytes: 256 << 10,
        max_append_bytes: 128 << 10,
        reserve_free: 0,
        rotate_after: if scene.rested { ROTATE_NEVER } else { Duration::ZERO },
        ..JournalConfig::default()
    }
}

fn open(scene: &Scene, machine: Arc<Machine>, clock: &Arc<SimClock>) -> Journal {
    Journal::open(machine, "model", clock.clone(), config(scene), Arc::new(|_| {})).expect("a sound disk")
}

/// What a producer got.
#[derive(Default)]
struct Got {
    accepted: u64,
}

/// Runs a scene in the order that the scheduler picks; panics where something does not hold.
pub fn run(scene: &Scene) {
    let disk = SimDisk::new(1);
    let clock = SimClock::new([1; 16]);
    let permits = Arc::new(Semaphore::new(PERMITS));
    let machine = Machine::new(disk.clone(), scene.ring);
    let journal = Arc::new(open(scene, machine.clone(), &clock));
    let mut all = Got::default();
    if scene.rested {
        let first = take(&journal, scene, one(0, 0, b"before", true, &permits)).expect("it is taken");
        wait_for(&journal, scene, &first);
        all.accepted += 1;
        await_commit_marker(&journal, &clock, &disk);
    }
    if scene.slow {
        machine.slow_down();
    }
    if scene.fails {
        disk.fail_next(OpKind::SyncedWrite, &segment_name(0), DiskFault::Io);
    }
    let watcher = watch(&journal);
    let mut producers = Vec::new();
    for (number, sizes) in scene.producers.iter().enumerate() {
        let (journal, permits, scene) = (journal.clone(), permits.clone(), *scene);
        if scene.slow && number > 0 {
            machine.wait_for_write(); // or both would go with one
        }
        producers.push(thread::spawn(move || produce(&journal, &scene, number as u8 + 1, sizes, &permits)));
    }
    let operator = {
        let (journal, scene) = (journal.clone(), *scene);
        thread::spawn(move || operate(&journal, &scene))
    };
    let recoverer = scene.fails.then(|| {
        let (journal, clock) = (journal.clone(), clock.clone());
        thread::spawn(move || let_recover(&journal, &clock))
    });
    let clean = match scene.end {
        End::Closed | End::Dropped => None,
        End::ClosedMeanwhile => Some(journal.close(Duration::from_secs(60))),
        End::Abandoned => Some(journal.close(Duration::ZERO)),
    };
    if scene.slow {
        while journal.watermarks().received < 3 {
            thread::yield_now();
        }
        pass_time(&journal, &clock, "the open batch beside a slow write", GROUP_COMMIT_DELAY, || {
            journal.watermarks().durable == 3
        });
    }
    for producer in producers {
        let got = producer.join().expect("a producer");
        all.accepted += got.accepted;
    }
    operator.join().expect("the operator");
    if let Some(recoverer) = recoverer {
        recoverer.join().expect("who lets it recover");
    }
    if scene.idles {
        await_commit_marker(&journal, &clock, &disk);
    }
    let clean = clean.unwrap_or_else(|| scene.end == End::Closed && journal.close(Duration::from_secs(60)));
    assert!(clean || matches!(scene.end, End::Abandoned | End::Dropped), "the end is clean");
    let watermarks = journal.watermarks();
    assert_eq!(watermarks.received, all.accepted, "each record has its offset");
    assert!(!clean || watermarks.durable == watermarks.received, "a clean end has everything: {watermarks:?}");
    drop(Arc::into_inner(journal).expect("nobody else has the journal"));
    watcher.join().expect("the watcher");
    assert_eq!(permits.available_permits(), PERMITS, "every permit is back");
    if scene.end != End::Abandoned {
        let again = open(scene, Machine::new(disk.reopen(), false), &clock);
        assert_eq!(again.report().clean, clean, "the mark of a clean end");
        assert!(!clean || again.watermarks().durable == all.accepted, "the next start finds everything");
    }
}

fn one<'a>(id: u8, sequence: u64, payload: &'a [u8], durable: bool, permits: &Arc<Semaphore>) -> Append<'a> {
    permits.try_acquire_many(payload.len() as u32).expect("there are enough").forget();
    let permit = Permit::new(permits.clone(), payload.len());
    Append {
        producer: [id; 16],
        owner: 7,
        producer_epoch: 1,
        first_sequence: sequence,
        count: 1,
        gap: false,
        level: if sequence.is_multiple_of(2) || durable { Level::Durable } else { Level::Written },
        min_time_ns: 0,
        max_time_ns: 0,
        peer_meta: &[],
        payload,
        payload_checksum: 0,
        permit: Some(permit),
    }
}

fn produce(journal: &Journal, scene: &Scene, id: u8, sizes: &[usize], permits: &Arc<Semaphore>) -> Got {
    let (mut got, mut sequence, mut last) = (Got::default(), 0, None);
    for (at, size) in sizes.iter().enumerate() {
        loop {
            match take(journal, scene, one(id, sequence, &vec![id; *size], scene.all_durable(), permits)) {
                Ok(accepted) => {
                    got.accepted += 1;
                    sequence += 1;
                    last = Some(accepted);
                    break;
                }
                Err(AppendError::Failed { .. }) if scene.fails => thread::yield_now(),
                Err(AppendError::Closing) if scene.end != End::Closed => return got,
                Err(other) => panic!("refused: {other}"),
            }
        }
        // The one after the other where somebody waits, several at once where nobody does.
        if at % 2 == usize::from(id) % 2
            && scene.end == End::Closed
            && let Some(accepted) = &last
        {
            wait_for(journal, scene, accepted);
        }
    }
    if scene.end == End::Closed
        && let Some(accepted) = &last
    {
        wait_for(journal, scene, accepted);
    }
    got
}

/// Takes an append, and makes the deferred write, one in three times by others.
fn take(journal: &Journal, scene: &Scene, append: Append<'_>) -> Result<Accepted, AppendError> {
    if !scene.deferring {
        return append.submit(journal);
    }
    let others = append.first_sequence % 3 == 2;
    let (from, item, permit) = append.split();
    let mut answer = None;
    let runs = [(&from, &[item][..])];
    let outcome = journal.append(runs, AfterRefusal::Judge, permit, journal.now(), |a| answer = Some(a));
    let (accepted, mut deferred) = (answer.expect("an answer")?, outcome.deferred_write);
    let mut buffer = WriteBuffer::default();
    while let Some(due) = deferred.filter(|_| !others) {
        deferred = due.write(&mut buffer);
    }
    Ok(accepted)
}

/// Waits until a record has the highest level that no timer is needed for, or was answered "maybe written".
fn wait_for(journal: &Journal, scene: &Scene, accepted: &Accepted) {
    let timed = matches!(scene.policy, Policy::FireAndForget { .. });
    let (level, end, never) =
        (if timed { Level::Written } else { Level::Durable }, accepted.first_offset + 1, u64::MAX);
    let (written, durable) = if timed { (end, never) } else { (never, end) };
    let wants = Wants { written, durable };
    let mut watermarks = journal.watcher();
    block_on(async move {
        loop {
            let now = watermarks.now();
            if now.failures > accepted.failures || now.of(level) >= end {
                return;
            }
            watermarks.reached(wants).await.expect("the journal is there");
        }
    });
}

fn operate(journal: &Journal, scene: &Scene) {
    for _ in 0..scene.rotations {
        let answer = block_on(journal.rotate());
        assert!(scene.end != End::Closed || matches!(answer, Ok(Ok(_))), "a rotation is answered: {answer:?}");
    }
    for _ in 0..scene.syncs {
        let target = journal.request_sync();
        let mut watermarks = journal.subscribe();
        block_on(async move {
            while watermarks.borrow_and_update().durable < target {
                watermarks.changed().await.expect("the journal is there");
            }
        });
    }
}

/// Lets time pass, once it has failed, until it takes appends again.
fn let_recover(journal: &Journal, clock: &SimClock) {
    let mut watermarks = journal.subscribe();
    block_on(async move {
        while watermarks.borrow_and_update().failures == 0 {
            watermarks.changed().await.expect("the journal is there");
        }
    });
    pass_time(journal, clock, "the recovery", RECOVERY_RETRY, || journal.watermarks().accepting != Accepting::Failed);
}

/// Lets time pass until the commit marker of an idle log has its last watermarks.
fn await_commit_marker(journal: &Journal, clock: &SimClock, disk: &SimDisk) {
    let written = || disk.counters_of(&segment_name(0)).writes;
    let before = written();
    pass_time(journal, clock, "the commit marker of an idle log", IDLE_COMMIT_MARKER_DELAY, || written() > before);
}

/// Lets time pass, to the next moment at which somebody has asked to be woken, until something has come of it. It must
/// come within so much time: who names a later moment is not woken.
fn pass_time(journal: &Journal, clock: &SimClock, what: &str, within: Duration, over: impl Fn() -> bool) {
    let latest = clock.boot_ns() + within.as_nanos() as u64;
    for _ in 0..WAIT_STEPS_MAX {
        if over() {
            return;
        }
        if let Some(at) = journal.alarm().filter(|at| *at <= latest) {
            clock.step(Duration::from_nanos(at.saturating_sub(clock.boot_ns())));
            journal.ring_alarm();
        }
        thread::yield_now();
    }
    panic!("nobody keeps the time for {what}");
}

/// Looks at every change that is reported to it, until the journal is gone.
fn watch(journal: &Journal) -> thread::JoinHandle<()> {
    let mut watermarks = journal.subscribe();
    thread::spawn(move || {
        block_on(async move {
            let mut before = *watermarks.borrow_and_update();
            while watermarks.changed().await.is_ok() {
                let now = *watermarks.borrow_and_update();
                follows(&before, &now);
                before = now;
            }
        });
    })
}

/// What every reader must find, from one look to the next.
pub(crate) fn follows(before: &Watermarks, now: &Watermarks) {
    assert!(now.version >= before.version, "an older value replaced a newer one: {before:?}, {now:?}");
    assert!(now.received >= now.written && now.written >= now.durable, "{now:?}");
    assert!(
        now.received >= before.received && now.written >= before.written && now.durable >= before.durable,
        "a mark fell: {before:?}, {now:?}"
    );
    let failed = |watermarks: &Watermarks| watermarks.accepting == Accepting::Failed;
    if failed(before) && failed(now) && before.failures == now.failures {
        assert_eq!((before.written, before.durable), (now.written, now.durable), "released after a failure");
    }
}
