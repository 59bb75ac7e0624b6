//! Threads that take the committer's jobs and carry them out.
//!
//! Under `blocking`, one more thread than there may be writes in flight: each waits for a job, and makes the write
//! itself.
//!
//! Under `uring`, two: a blocking thread, and the ring's. The committer decides whose turn it is ([`Turn`]). A job
//! that runs alone (the write of an empty queue, and every long job) belongs to the blocking thread, by one blocking
//! call with no hand-over. Jobs beside others, and a batch worth its own write while more data arrives, belong to the
//! ring's thread. That thread takes one after the other without waiting for any. If the ring also made the lone write,
//! that would cost two more wake-ups for nothing. If a ring alone blocked in it, it could not begin the next.
//!
//! Invariants:
//! - No thread polls. An idle thread sleeps until it is woken or until the moment that the committer named; the thread
//!   whose turn it is watches the time. When the turn passes, the thread that notices wakes the other.
//! - Waking is decided under the core's lock, from the state that the other side left there before it went to sleep:
//!   no wake-up is lost, and a thread that is awake is not woken.
//! - If the thread of the ring is gone (a bug), its turn goes to the blocking thread.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::shared::{Core, CoreGuard, Shared};
use crate::clock::Moment;
use crate::io::uring::{Next, Operation, Source};
use crate::io::{Durability, IoBuf};
use crate::sync::atomic::Ordering;
use crate::write::committer::{Job, Step, SyncBy, Turn};

/// Most memory that a thread's own buffer retains: one huge append does not pin its memory.
const WRITE_BUFFER_RETAINED_BYTES_MAX: usize = 4 << 20;
const WRITE_BUFFER_BYTES: usize = 256 * 1024;

/// A thread's own buffer after a write.
pub(crate) fn shrink_buffer(buf: IoBuf) -> IoBuf {
    if buf.capacity() > WRITE_BUFFER_RETAINED_BYTES_MAX { IoBuf::with_capacity(WRITE_BUFFER_BYTES) } else { buf }
}

impl Shared {
    pub(crate) fn turn(&self, core: &Core, now: Moment) -> Turn {
        match self.storage().ring() {
            Some(ring) if ring.is_alive() => core.committer.turn(now),
            _ => Turn::Thread,
        }
    }

    /// Thread that the new appends need awake. [`Shared::wake_one`] wakes it after the release of the lock, which the
    /// thread needs at once.
    pub(crate) fn wants_waking(&self, core: &mut Core, bytes_before: usize, now: Moment) -> Option<Turn> {
        let nobody = core.watch.sleepers == 0 && !core.watch.ring_rests;
        if nobody || core.committer.writer.pending_bytes() == bytes_before {
            return None;
        }
        let turn = self.turn(core, now);
        let (rests, armed_ns) = match turn {
            Turn::Thread => (core.watch.sleepers > 0, core.watch.armed_ns),
            Turn::Ring => (core.watch.ring_rests, core.watch.ring_armed_ns),
        };
        // With a write in flight, a thread must be awake in time to write the open batch when it is due.
        let unwatched = bytes_before == 0 && !in_time(core, armed_ns, now);
        let wanted = core.committer.writer.wants_wake(bytes_before, core.committer.lifecycle.busy);
        if !rests || !(wanted || unwatched) {
            return None;
        }
        if turn == Turn::Ring {
            core.watch.ring_rests = false;
        }
        Some(turn)
    }

    /// Wakes a thread or the ring, if one is wanted.
    pub(crate) fn wake_one(&self, wanted: Option<Turn>) {
        match (wanted, self.storage().ring()) {
            (Some(Turn::Ring), Some(ring)) => ring.wake(),
            (Some(_), _) => self.work.notify_one(),
            (None, _) => {}
        }
    }

    /// Wakes a thread for a second job, if one could begin after a job was taken.
    pub(crate) fn wake_for_more(&self, core: &mut Core, now: Moment) {
        if core.committer.more_to_do() {
            let turn = self.turn(core, now);
            self.wake(core, turn);
        }
    }

    /// Hands over when a foreign thread leaves: one of the journal's threads takes the next job, and watches the time.
    pub(crate) fn leave_to_others(&self, core: &mut Core, now: Moment) {
        let work = core.committer.wants_somebody();
        if work || !in_time(core, core.watch.armed_ns, now) {
            let turn = self.turn(core, now);
            self.wake(core, turn);
        }
    }

    fn wake(&self, core: &mut Core, turn: Turn) {
        match (turn, self.storage().ring()) {
            (Turn::Ring, Some(ring)) if core.watch.ring_rests => {
                core.watch.ring_rests = false;
                ring.wake();
            }
            (Turn::Ring, Some(_)) => {} // it is awake
            _ if core.watch.sleepers > 0 => self.work.notify_one(),
            _ => {}
        }
    }
}

/// True if a thread that wakes at that moment is in time for the open batch, before it has waited too long.
fn in_time(core: &Core, armed_ns: Option<u64>, now: Moment) -> bool {
    let commit_delay =
        if core.committer.writer.pending_bytes() > 0 { core.committer.writer.commit_delay_ns() } else { u64::MAX };
    armed_ns.is_some_and(|t| (now.boot_ns..=now.boot_ns.saturating_add(commit_delay)).contains(&t))
}

/// A thread that waits for jobs and carries them out, blocking.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut buf = IoBuf::with_capacity(WRITE_BUFFER_BYTES);
    let mut core = shared.core();
    loop {
        let now = shared.env().now();
        core.given = core.asked;
        if let Some(failed) = core.failed.take() {
            drop(core);
            shared.finish(failed);
            core = shared.core();
            continue;
        }
        if shared.turn(&core, now) == Turn::Ring {
            shared.wake(&mut core, Turn::Ring);
            core = sleep(shared, core, None, now.boot_ns);
            continue;
        }
        match core.committer.step(now) {
            Step::Exit => {
                drop(core);
                shared.wake_all();
                return;
            }
            Step::Run(job) => {
                shared.wake_for_more(&mut core, now);
                let wake_others = matches!(job, Job::Rotate(_) | Job::Open { .. } | Job::Recover(_) | Job::Close(_));
                drop(core);
                shared.at_disk.fetch_add(1, Ordering::Relaxed);
                let (done, back) = shared.executor.run(job, buf);
                shared.at_disk.fetch_sub(1, Ordering::Relaxed);
                buf = shrink_buffer(back);
                shared.finish(done);
                if wake_others {
                    shared.wake_all();
                }
                core = shared.core();
            }
            Step::Wait(until) => {
                core = sleep(shared, core, until, now.boot_ns);
            }
        }
    }
}

fn sleep<'a>(shared: &'a Shared, mut core: CoreGuard<'a>, until: Option<u64>, now: u64) -> CoreGuard<'a> {
    core.watch.sleepers += 1;
    core.watch.armed_ns = match (core.watch.armed_ns, until) {
        (Some(a), Some(u)) if a > now => Some(a.min(u)),
        (a, None) => a,
        (_, u) => u,
    };
    let mut core = match until {
        None => core.wait(&shared.work),
        Some(t) => {
            let pause = Duration::from_nanos(t.saturating_sub(now).max(1_000));
            core.wait_timeout(&shared.work, pause)
        }
    };
    core.watch.sleepers -= 1;
    if until.is_some() {
        core.watch.armed_ns = None;
    }
    core
}

/// Source from which the ring's thread takes jobs.
pub(crate) fn on_ring(shared: &Arc<Shared>) -> Arc<dyn Source> {
    Arc::new(OnRing(Arc::downgrade(shared)))
}

/// It must not keep the journal: the journal has the ring.
struct OnRing(Weak<Shared>);

impl Source for OnRing {
    fn next(&self) -> Next {
        let Some(shared) = self.0.upgrade() else { return Next::Done };
        let now = shared.env().now();
        let mut core = shared.core();
        core.watch.ring_rests = false;
        core.watch.ring_armed_ns = None;
        if core.committer.lifecycle.is_over() {
            return Next::Done;
        }
        let mut until = None;
        if shared.turn(&core, now) == Turn::Ring {
            match core.committer.step(now) {
                Step::Run(job) => {
                    drop(core);
                    return Next::Begin(begin(shared, job));
                }
                Step::Wait(at) => until = at,
                Step::Exit => return Next::Done,
            }
        } else {
            // The other thread may wait for the work that just ended here: to rotate, to close, to write the rest.
            shared.wake(&mut core, Turn::Thread);
        }
        core.watch.ring_rests = true;
        core.watch.ring_armed_ns = until;
        Next::Wait(until.map(|t| Duration::from_nanos(t.saturating_sub(now.boot_ns))))
    }
}

/// A job as an operation of the ring. On its turn there are writes and syncs only.
fn begin(shared: Arc<Shared>, job: Job) -> Operation {
    match job {
        Job::Write { id, file, placed, durability, sync, .. } => {
            let wrote = shared.executor.wrote(id, &placed, durability, false);
            let (pos, len) = (placed.pos, placed.len());
            let fill = move |buf| placed.encode(buf);
            let done = move |written| shared.finish(shared.executor.after_write(&wrote, written));
            match (durability, sync) {
                (Durability::Synced, SyncBy::Range) => Operation::write_and_sync_range(file, pos, len, fill, done),
                _ => Operation::write(file, pos, durability, len, fill, done),
            }
        }
        Job::Sync { file, upto, range } => {
            let began = shared.env().clock.boot_ns();
            let done = move |synced| shared.finish(shared.executor.after_sync(began, upto, synced));
            match range {
                Some((from, to)) => Operation::sync_range(file, from, to - from, done),
                None => Operation::sync_data(file, done),
            }
        }
        Job::Rotate(_) | Job::Open { .. } | Job::Recover(_) | Job::Close(_) => {
            unreachable!("long jobs are begun on the thread's turn only")
        }
    }
}
