//! Threads that have appended and wait for the answer on a place of their own: see [`Appender`](super::Appender).
//!
//! What must hold:
//! - **No wake-up is lost.** A thread enters under the lock of the core under which it saw that its answer is not there, and
//!   whoever changes what it waits for takes it out under that lock.
//! - **It is told once, and what is so.** The answer is made where the thread is taken out and lies in its own place, so that
//!   it asks for nothing that others use when it wakes: of many that are woken together none waits for another.
//! - **A failure answers everybody, and so does the end**, which takes from nobody what was reached by then.
//! - They are woken when the lock is given back.
//!
//! A [`Watcher`](crate::watcher::Watcher) serves tasks, which may go while they wait or be polled by another; a thread that
//! blocks until it is answered does neither, so that a queue in the order of the offsets is enough.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::committer::Accepted;
use crate::error::CommitError;
use crate::marks::{Level, Marks};
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::thread::{self, Thread};

const NONE: u8 = 0;
const REACHED: u8 = 1;
const FAILED: u8 = 2;
const CLOSED: u8 = 3;

/// Where one thread is answered.
#[derive(Debug, Default)]
pub(super) struct Place(Arc<AtomicU8>);

#[derive(Debug)]
struct Waiting {
    /// One past its last offset.
    end: u64,
    /// As its offsets were given under.
    failures: u32,
    place: Arc<AtomicU8>,
    thread: Thread,
}

/// Threads that were answered and are still to be woken.
#[must_use = "they sleep until they are woken"]
#[derive(Debug, Default)]
pub(crate) struct Answered(Vec<Thread>);

/// All that wait, the lowest offset first.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    written: VecDeque<Waiting>,
    durable: VecDeque<Waiting>,
}

/// Whether the answer is there; after a failure the same offset may be somebody else's.
pub(super) fn reached(accepted: &Accepted, level: Level, marks: &Marks) -> Result<bool, CommitError> {
    match marks.failures > accepted.failures {
        true => Err(CommitError::Failed),
        false => Ok(marks.of(level) >= accepted.first_offset + u64::from(accepted.count)),
    }
}

impl Place {
    /// Sleeps until the answer is there.
    pub(super) fn wait(&self) -> Result<(), CommitError> {
        loop {
            match self.0.load(Ordering::Acquire) {
                NONE => thread::park(),
                REACHED => return Ok(()),
                FAILED => return Err(CommitError::Failed),
                _ => return Err(CommitError::Closed),
            }
        }
    }
}

impl Threads {
    /// This thread waits from now on, in its place.
    pub(super) fn enter(&mut self, accepted: &Accepted, level: Level, place: &Place) {
        place.0.store(NONE, Ordering::Relaxed);
        let end = accepted.first_offset + u64::from(accepted.count);
        let (failures, place, thread) = (accepted.failures, Arc::clone(&place.0), thread::current());
        let waiting = Waiting { end, failures, place, thread };
        let queue = if level == Level::Written { &mut self.written } else { &mut self.durable };
        // The last one, as a rule: not who had a write to make first, or came again with what is on its way.
        match queue.back().is_none_or(|last| last.end <= end) {
            true => queue.push_back(waiting),
            false => queue.insert(queue.partition_point(|other| other.end <= end), waiting),
        }
    }

    /// Answers those who need not wait any more.
    pub(super) fn answer(&mut self, marks: &Marks, over: bool) -> Answered {
        let mut answered = Vec::new();
        for (queue, mark) in [(&mut self.written, marks.written), (&mut self.durable, marks.durable)] {
            // All of them were given their offsets under the same failures: those of before were answered then.
            let failed = queue.front().is_some_and(|first| first.failures < marks.failures);
            while let Some(it) = queue.pop_front_if(|it| failed || over || it.end <= mark) {
                let answer = match it.end <= mark {
                    _ if failed => FAILED,
                    true => REACHED,
                    false => CLOSED,
                };
                it.place.store(answer, Ordering::Release);
                if answered.is_empty() {
                    answered.reserve(1 + queue.len());
                }
                answered.push(it.thread);
            }
        }
        Answered(answered)
    }
}

impl Answered {
    /// Wakes them.
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(|thread| thread.unpark());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(threads: &mut Threads, first_offset: u64, level: Level, failures: u32) -> Place {
        let (place, epoch) = (Place::default(), 1);
        threads.enter(&Accepted { first_offset, count: 2, epoch, failures, duplicate: false }, level, &place);
        place
    }

    fn told(places: &[&Place]) -> Vec<u8> {
        places.iter().map(|place| place.0.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn each_is_answered_by_its_own_mark_in_whatever_order_they_came() {
        let mut threads = Threads::default();
        let last = enter(&mut threads, 6, Level::Durable, 0);
        let first = enter(&mut threads, 0, Level::Durable, 0);
        let written = enter(&mut threads, 2, Level::Written, 0);
        let second = enter(&mut threads, 4, Level::Durable, 0);
        let all = [&first, &written, &second, &last];
        let mut answer = |written, durable| {
            let marks = Marks { written, durable, ..Marks::default() };
            (threads.answer(&marks, false).0.len(), told(&all))
        };
        assert_eq!(answer(3, 1), (0, vec![NONE; 4]), "half of an append is not there");
        assert_eq!(answer(6, 2), (2, vec![REACHED, REACHED, NONE, NONE]));
        assert_eq!(answer(8, 7), (1, vec![REACHED, REACHED, REACHED, NONE]));
        assert_eq!(answer(8, 7).0, 0, "nobody is woken twice");
        assert_eq!(answer(8, 8), (1, vec![REACHED; 4]));
        first.wait().expect("it is there");
    }

    #[test]
    fn a_failure_and_the_end_answer_everybody() {
        let mut threads = Threads::default();
        let (below, above) = (enter(&mut threads, 0, Level::Durable, 3), enter(&mut threads, 2, Level::Written, 3));
        let failed = Marks { written: 2, durable: 2, failures: 4, ..Marks::default() };
        assert_eq!(threads.answer(&failed, false).0.len(), 2);
        assert_eq!(told(&[&below, &above]), [FAILED, FAILED], "who was not told before is told of the failure");
        assert!(matches!(above.wait(), Err(CommitError::Failed)));
        let (below, above) = (enter(&mut threads, 2, Level::Durable, 4), enter(&mut threads, 4, Level::Durable, 4));
        assert_eq!(threads.answer(&Marks { durable: 4, ..failed }, true).0.len(), 2);
        assert_eq!(told(&[&below, &above]), [REACHED, CLOSED], "what was reached is");
        assert!(matches!(above.wait(), Err(CommitError::Closed)));
    }
}
