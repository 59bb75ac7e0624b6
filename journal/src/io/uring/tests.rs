//! Operations that a ring's thread queues for the kernel, seen with a file on which a write lasts: a full pipe.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::state::SyncStyle;
use super::*;
use crate::io::engine::Fallbacks;
use crate::io::{Durability, File, IoBuf, Lock};
use crate::sync::atomic::Ordering;

/// Only a hang takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The end of a pipe that is written to. Everything but its descriptor is refused.
struct Pipe(OwnedFd);

fn none<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl File for Pipe {
    fn write_at(&self, buf: IoBuf, _: u64, _: Durability) -> (IoBuf, io::Result<()>) {
        (buf, none())
    }
    fn read_at(&self, buf: IoBuf, _: u64, _: usize) -> (IoBuf, io::Result<()>) {
        (buf, none())
    }
    fn sync_data(&self) -> io::Result<()> {
        none()
    }
    fn sync_all(&self) -> io::Result<()> {
        none()
    }
    fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
        none()
    }
    fn overwrites_in_place(&self, _: u64) -> io::Result<bool> {
        none()
    }
    fn len(&self) -> io::Result<u64> {
        none()
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        none()
    }
    fn allocate(&self, _: u64) -> io::Result<()> {
        none()
    }
    fn try_lock(&self, _: Lock) -> io::Result<bool> {
        none()
    }
    fn lock(&self, _: Lock) -> io::Result<()> {
        none()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where syncs come behind writes, none is queued before the completion of its write was seen, whatever the kernel does
/// with entries that it gets at once. The write is over when its sync is.
#[test]
fn no_sync_is_queued_beside_its_write() {
    let fallbacks = Arc::new(Fallbacks::new(Arc::new(|_| {})));
    let setup = Setup { style: SyncStyle::Behind, fallbacks };
    let ring = Ring::start(setup).expect("a ring");
    let (mut reading, mut writing) = io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writing, OFlags::NONBLOCK).unwrap();
    let full: usize = std::iter::from_fn(|| writing.write(&[1; 4096]).ok()).sum();
    rustix::fs::fcntl_setfl(&writing, OFlags::empty()).unwrap();
    let queued = || ring.shared.queued.load(Ordering::Relaxed);

    let ticket = Ticket::default();
    let fill = |mut buf: IoBuf| {
        buf.extend_from_slice(&[2; 4096]);
        buf
    };
    let file: Arc<dyn File> = Arc::new(Pipe(writing.into()));
    ring.submit(Operation::write(file, 0, Durability::Synced, 4096, fill, ticket.done()));
    until("nothing is queued", || queued() > 0);
    // Anything to be queued together with the write is queued once the thread has slept and looked again.
    for _ in 0..3 {
        let wakes = ring.wakes();
        ring.wake();
        until("it does not wake", || ring.wakes() > wakes);
    }
    assert_eq!(queued(), 1, "there is more than the write, which is not over");

    reading.read_exact(&mut vec![0; full + 4096]).unwrap();
    let error = ticket.wait().unwrap_err();
    assert_eq!(queued(), 2);
    assert_eq!(
        error.raw_os_error(),
        Some(libc::EINVAL),
        "what the kernel says of a sync of a pipe is the answer: {error}"
    );
}
