//! The thread of a ring.
//!
//! Steps at each wake-up: begin the operations in the inbox; ask the source until it has nothing; sleep. Each operation
//! is a task of its own, which ends it and rings the bell. Everything is handed to the kernel when the thread parks.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};
use rustix::io::Errno;
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

use super::operation::{Operation, What};
use super::pool::Pool;
use super::state::{ENTRIES, End, MAX_IN_FLIGHT, Setup, Shared, Started, SyncStyle};
use crate::io::engine::{Fallback, Fallbacks};
use crate::io::{Durability, File, IoBuf};
use crate::sync::atomic::Ordering;

/// Longest park while something is in flight: a submission that the kernel deferred (it was short of memory) is made
/// again then.
const NUDGE: Duration = Duration::from_millis(100);

struct Thread {
    shared: Arc<Shared>,
    pool: Pool,
    style: Cell<SyncStyle>,
    in_flight: Cell<usize>,
    fallbacks: Arc<Fallbacks>,
}

/// Runs the ring until a stop is requested; `started` gets the start's result once.
pub(super) fn run(shared: &Arc<Shared>, setup: &Setup, started: &Started) {
    let _end = End(shared.clone());
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(e) => {
            let _ = started.send(Err(e));
            return;
        }
    };
    let thread = Rc::new(Thread {
        shared: shared.clone(),
        pool: Pool::default(),
        style: Cell::new(setup.style),
        in_flight: Cell::new(0),
        fallbacks: setup.fallbacks.clone(),
    });
    let _ = started.send(Ok(()));
    runtime.block_on(thread.serve());
}

fn runtime() -> io::Result<tokio_uring::Runtime> {
    let mut quick = tokio_uring::uring_builder();
    quick.setup_single_issuer().setup_coop_taskrun();
    let build = |ring: &io_uring::Builder| {
        tokio_uring::Runtime::new(tokio_uring::builder().entries(ENTRIES).uring_builder(ring))
    };
    match build(&quick) {
        // A kernel before 6.0 knows neither flag.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => build(&tokio_uring::uring_builder()),
        built => built,
    }
}

impl Thread {
    async fn serve(self: Rc<Self>) {
        loop {
            self.shared.wakes.fetch_add(1, Ordering::Relaxed);
            let until = self.begin_all();
            let idle = self.in_flight.get() == 0;
            if self.shared.looked(self.in_flight.get()) {
                return;
            }
            let bell = self.shared.bell.notified();
            match until.into_iter().chain((!idle).then_some(NUDGE)).min() {
                Some(until) => {
                    let _ = tokio::time::timeout(until, bell).await;
                }
                None => bell.await,
            }
        }
    }

    /// Begins all available work; returns the time until which there is nothing more.
    fn begin_all(self: &Rc<Self>) -> Option<Duration> {
        while self.in_flight.get() < MAX_IN_FLIGHT {
            match self.shared.next() {
                Ok(operation) => self.begin(operation),
                Err(until) => return until,
            }
        }
        None // what ends next rings the bell
    }

    fn begin(self: &Rc<Self>, operation: Operation) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.shared.begins(self.in_flight.get());
        let its = self.clone();
        tokio_uring::spawn(async move {
            let guard = Begun(its.clone());
            its.execute(operation).await;
            drop(guard);
        });
    }

    async fn execute(&self, mut operation: Operation) {
        let latched = operation.file.latch().map_or(Ok(()), |latch| latch.check());
        let result = match (latched, operation.what.take()) {
            (Err(e), _) => Err(e),
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(What::SyncData)) => self.note(&operation, self.sync_data(&operation.file).await),
            (Ok(()), Some(What::SyncRange { pos, len })) => {
                self.note(&operation, self.sync_range(&operation.file, pos, len).await)
            }
            (Ok(()), Some(What::Write { len, fill, pos, durability, range })) => {
                let buf = fill(self.pool.take(len));
                let wrote = buf.len() as u64;
                let (buf, mut done) = self.write(&operation.file, buf, pos, durability).await;
                self.pool.give(buf);
                if range && done.is_ok() {
                    done = self.sync_range(&operation.file, pos, wrote).await;
                }
                self.note(&operation, done)
            }
        };
        operation.end(result);
    }

    fn note(&self, operation: &Operation, done: io::Result<()>) -> io::Result<()> {
        match operation.file.latch() {
            Some(latch) => latch.note(done),
            None => done,
        }
    }

    async fn write(
        &self,
        file: &Arc<dyn File>,
        mut buf: IoBuf,
        pos: u64,
        durability: Durability,
    ) -> (IoBuf, io::Result<()>) {
        let synced = durability == Durability::Synced;
        let mut at = 0;
        while at < buf.len() {
            let by_itself = synced && self.style.get() == SyncStyle::PerWrite;
            let (back, written) = self.write_some(file.clone(), buf, at, pos, by_itself).await;
            buf = back;
            match written {
                Ok(0) => return (buf, Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => at += n as usize,
                Err(Errno::INTR) => {}
                Err(e @ Errno::OPNOTSUPP) if by_itself => {
                    self.style.set(SyncStyle::Behind);
                    self.fallbacks.add(Fallback::write_sync_refused(&e.into()));
                }
                Err(e) => return (buf, Err(e.into())),
            }
        }
        // Never linked to the write: a kernel that is short of memory takes the first of a pair alone. The sync, which
        // it gets later, then runs beside that write, not behind it.
        let behind = synced && self.style.get() == SyncStyle::Behind && at > 0;
        let done = match (behind, file.latch().map_or(Ok(()), |latch| latch.check())) {
            (false, _) => Ok(()),
            // Since the write began another sync may have failed and consumed the error, which this one then misses.
            (true, Err(e)) => Err(e),
            (true, Ok(())) => self.sync_data(file).await,
        };
        (buf, done)
    }

    async fn sync_data(&self, file: &Arc<dyn File>) -> io::Result<()> {
        let entry = opcode::Fsync::new(descriptor(file)).flags(types::FsyncFlags::DATASYNC).build();
        match self.queue(file.clone(), entry).await.1 {
            Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    async fn sync_range(&self, file: &Arc<dyn File>, mut pos: u64, len: u64) -> io::Result<()> {
        const ALL: u32 =
            libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let end = pos + len;
        // Never with 0 bytes: to the kernel that means "to the end".
        while pos < end {
            let piece = u32::try_from(end - pos).unwrap_or(1 << 30);
            let entry = opcode::SyncFileRange::new(descriptor(file), piece).offset(pos).flags(ALL).build();
            if let Err(e) = self.queue(file.clone(), entry).await.1 {
                return Err(e.into());
            }
            pos += u64::from(piece);
        }
        Ok(())
    }

    /// Writes the rest of `buf` from `at` on, or a part of it; with `by_itself` it also syncs that.
    async fn write_some(
        &self,
        file: Arc<dyn File>,
        buf: IoBuf,
        at: usize,
        pos: u64,
        by_itself: bool,
    ) -> (IoBuf, Result<u32, Errno>) {
        let fd = descriptor(&file);
        let flags = if by_itself { libc::RWF_DSYNC } else { 0 };
        let rest = &buf[at..];
        let (start, len) = (rest.as_ptr(), rest.len() as u32);
        let pos = pos + at as u64;
        let entry = opcode::Write::new(fd, start, len).offset(pos).rw_flags(flags).build();
        let ((buf, _), written) = self.queue((buf, file), entry).await;
        (buf, written)
    }

    /// Queues one operation. It owns `data` until its completion was seen, also when its waiter is gone.
    fn queue<D: Unpin + 'static>(
        &self,
        data: D,
        entry: squeue::Entry,
    ) -> impl Future<Output = (D, Result<u32, Errno>)> + use<D> {
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        UnsubmittedOneshot::new(data, Answer(std::marker::PhantomData), entry).submit()
    }
}

/// An operation in flight: it counts until its end was reported, also when the report panics.
struct Begun(Rc<Thread>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.shared.bell.notify_one();
    }
}

/// Result of an operation: the values that it owned, and the kernel's answer.
struct Answer<D>(std::marker::PhantomData<D>);

impl<D> OneshotOutputTransform for Answer<D> {
    type Output = (D, Result<u32, Errno>);
    type StoredData = D;
    fn transform_oneshot_output(self, data: D, done: cqueue::Entry) -> Self::Output {
        let code = done.result();
        (data, u32::try_from(code).map_err(|_| Errno::from_raw_os_error(-code)))
    }
}

fn descriptor(file: &Arc<dyn File>) -> types::Fd {
    // A file without one is never given to a ring; the kernel refuses this number.
    types::Fd(file.descriptor().map_or(-1, |fd| fd.as_raw_fd()))
}
