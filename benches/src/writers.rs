//! Threads that do one thing after the other, each operation timed by itself.
//!
//! Invariants: all begin at once; each does at least one operation (to start it may take longer than the time there
//! is); a writer whose operation fails stops, and the failure is counted; time is from the common start to the end of the
//! last operation.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::clock;
use crate::stats;

/// When to stop: at the first of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Time of a run.
    pub time: Duration,
    /// Operations of each writer.
    pub ops: u64,
}

impl Limit {
    /// So many operations of each writer, however long they take.
    #[must_use]
    pub fn ops(ops: u64) -> Self {
        Self { time: Duration::MAX, ops }
    }
}

/// What the writers did.
#[derive(Clone, Debug)]
pub struct Done {
    /// Operations that succeeded, of each writer.
    pub each: Vec<u64>,
    /// Writers whose operation failed.
    pub failed: u64,
    /// Why, of some.
    pub errors: Vec<String>,
    /// From the start to the end of the last operation.
    pub elapsed: Duration,
    /// Of every operation that succeeded, nanoseconds.
    pub latencies: Histogram<u64>,
}

impl Done {
    /// Operations in all.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.each.iter().sum()
    }
}

/// What one writer did.
struct One {
    ops: u64,
    error: Option<String>,
    begun: Instant,
    end: Instant,
    latencies: Histogram<u64>,
}

/// Runs so many writers. `make` makes what a writer calls for each of its operations; it is given the operation's number.
///
/// # Errors
/// Those of `make`, and a thread that cannot be started.
pub fn run<W>(writers: u32, limit: Limit, make: impl Fn(u32) -> Result<W>) -> Result<Done>
where
    W: FnMut(u64) -> std::io::Result<()> + Send,
{
    let made = (0..writers).map(make).collect::<Result<Vec<W>>>()?;
    let start = Barrier::new(made.len() + 1);
    let ones: Vec<One> = std::thread::scope(|scope| {
        let go = |mut writer: W| {
            let start = &start;
            let go = move || {
                start.wait();
                one(&mut writer, limit)
            };
            std::thread::Builder::new().name("writer".to_owned()).spawn_scoped(scope, go)
        };
        // All of them or none: those that wait for the others would wait for ever.
        let threads: Vec<_> = made.into_iter().map(|writer| go(writer).expect("a thread can be started")).collect();
        start.wait();
        threads.into_iter().map(|thread| thread.join().expect("a writer does not panic")).collect()
    });
    let begun = ones.iter().map(|one| one.begun).min();
    let mut done = Done {
        each: Vec::new(),
        failed: 0,
        errors: Vec::new(),
        elapsed: Duration::ZERO,
        latencies: stats::histogram(),
    };
    for one in ones {
        done.each.push(one.ops);
        done.failed += u64::from(one.error.is_some());
        done.errors.extend(one.error);
        done.elapsed = done.elapsed.max(one.end - begun.unwrap_or(one.end));
        done.latencies.add(&one.latencies)?;
    }
    done.errors.truncate(3);
    Ok(done)
}

fn one(operation: &mut impl FnMut(u64) -> std::io::Result<()>, limit: Limit) -> One {
    let begun = clock::now();
    let mut one = One { ops: 0, error: None, begun, end: begun, latencies: stats::histogram() };
    while one.ops < limit.ops && (one.ops == 0 || one.end - begun < limit.time) {
        if let Err(e) = operation(one.ops) {
            one.error = Some(e.to_string());
            return one;
        }
        let now = clock::now();
        stats::record(&mut one.latencies, now - one.end);
        one.end = now;
        one.ops += 1;
    }
    one
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn every_operation_is_counted_and_timed() {
        let made = AtomicU64::new(0);
        let count = |_| {
            Ok(|_| {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        let done = run(3, Limit::ops(100), count).expect("it runs");
        assert_eq!((done.ops(), made.load(Ordering::Relaxed), done.latencies.len()), (300, 300, 300));
        assert_eq!((done.failed, &done.each[..]), (0, &[100, 100, 100][..]));
        let none = Limit { time: Duration::ZERO, ops: u64::MAX };
        assert_eq!(run(2, none, |_| Ok(|_| Ok(()))).expect("it runs").each, [1, 1], "each makes one at least");
    }

    #[test]
    fn a_failure_stops_its_writer_and_is_counted() {
        let make = |writer| {
            Ok(move |op| match (writer, op) {
                (1, 5) => Err(std::io::Error::other("failed")),
                _ => Ok(()),
            })
        };
        let done = run(2, Limit::ops(10), make).expect("it runs");
        assert_eq!((&done.each[..], done.failed, &done.errors[..]), (&[10, 5][..], 1, &["failed".to_owned()][..]));
        assert_eq!(done.latencies.len(), 15);
    }
}
