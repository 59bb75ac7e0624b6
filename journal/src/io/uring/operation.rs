//! One operation for a ring, and its waiter.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use crate::io::{Durability, File, IoBuf};
use crate::sync::unpoisoned;

/// Called once, with the result of the operation.
pub(super) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;
/// Fills the buffer of a write, which is empty and large enough.
pub(super) type Fill = Box<dyn FnOnce(IoBuf) -> IoBuf + Send>;

/// The request to the kernel.
pub(super) enum What {
    /// The bytes that `fill` makes, at `pos`; with `range`, and then a range sync of them.
    Write { len: usize, fill: Fill, pos: u64, durability: Durability, range: bool },
    /// Write-back of these bytes from the page cache.
    SyncRange { pos: u64, len: u64 },
    /// All completed writes of the file.
    SyncData,
}

/// A write or a sync, to be made by a ring's thread.
///
/// `done` is called exactly once: on that thread or, when the thread is gone, wherever the operation is dropped. It
/// must not block.
pub struct Operation {
    pub(super) file: Arc<dyn File>,
    /// Taken when it begins.
    pub(super) what: Option<What>,
    done: Option<Done>,
}

impl Operation {
    /// A write of `len` bytes at `pos`. `fill` takes an empty buffer with room for them, and returns it with exactly
    /// them; it runs on the ring's thread.
    pub fn write(
        file: Arc<dyn File>,
        pos: u64,
        durability: Durability,
        len: usize,
        fill: impl FnOnce(IoBuf) -> IoBuf + Send + 'static,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Self {
        let what = What::Write { len, fill: Box::new(fill), pos, durability, range: false };
        Self { file, what: Some(what), done: Some(Box::new(done)) }
    }

    /// A write, followed by a range sync of its bytes: see [`File::sync_range`] for the promise of that.
    pub fn write_and_sync_range(
        file: Arc<dyn File>,
        pos: u64,
        len: usize,
        fill: impl FnOnce(IoBuf) -> IoBuf + Send + 'static,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Self {
        let what = What::Write { len, fill: Box::new(fill), pos, durability: Durability::Written, range: true };
        Self { file, what: Some(what), done: Some(Box::new(done)) }
    }

    /// [`File::sync_range`]; no bytes is a no-op.
    pub(crate) fn sync_range(
        file: Arc<dyn File>,
        pos: u64,
        len: u64,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Self {
        Self { file, what: Some(What::SyncRange { pos, len }), done: Some(Box::new(done)) }
    }

    /// A sync of the file's completed writes.
    pub fn sync_data(file: Arc<dyn File>, done: impl FnOnce(io::Result<()>) + Send + 'static) -> Self {
        Self { file, what: Some(What::SyncData), done: Some(Box::new(done)) }
    }

    /// Reports the result. The file is released first, because the receiver may be about to ask for its lock.
    pub(super) fn end(mut self, result: io::Result<()>) {
        let done = self.done.take();
        drop(self);
        if let Some(done) = done {
            done(result);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(io::Error::other("the ring's thread is gone; nothing is known about this operation")));
        }
    }
}

/// A blocking wait for an operation.
#[derive(Clone, Default)]
pub struct Ticket(Arc<(Mutex<Option<io::Result<()>>>, Condvar)>);

impl Ticket {
    /// Returns the callback to pass as `done`.
    pub fn done(&self) -> impl FnOnce(io::Result<()>) + Send + 'static {
        let its = self.0.clone();
        move |result| {
            *unpoisoned(its.0.lock()) = Some(result);
            its.1.notify_all();
        }
    }

    /// Blocks until it is over.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> io::Result<()> {
        let mut slot = unpoisoned(self.0.0.lock());
        loop {
            match slot.take() {
                Some(result) => return result,
                None => slot = unpoisoned(self.0.1.wait(slot)),
            }
        }
    }
}
