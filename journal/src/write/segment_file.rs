//! Open files of segments, and the locks that they hold on themselves.
//!
//! Invariants:
//! - **Every description that writes to a segment holds a shared lock on itself**, from before its first write:
//!   creating, heading, appending, sealing, rewriting. The kernel releases it with the last reference to the
//!   description. A write in flight is such a reference, also when its process is dead. (The process's other locks are
//!   free at once: a direct write through a ring was seen to land seconds after its process had been reaped.)
//! - **Nothing is concluded from an unsealed segment before its exclusive lock was held**: then no process writes to
//!   it any more. The wait has no limit, and is reported. A segment with a valid footer needs no lock: its data was
//!   synced before the footer was written.
//! - The descriptions latch: after a failed write or sync they refuse everything until they are opened again.
//!
//! Locks of one process conflict like those of two: before asking for the exclusive one, a thread closes its own
//! descriptions, or waits for their last write.

use std::io;
use std::sync::Arc;

use crate::env::{Event, Observer};
use crate::io::{Access, File, LatchedFile, Lock, Storage};

/// Opens a segment to write to it. Another writer to another part of it has its own description.
pub(crate) fn open(storage: &dyn Storage, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
    locked(storage.open(name, access)?)
}

/// Makes a segment's file, and opens it to write to it.
pub(crate) fn create(storage: &dyn Storage, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
    locked(storage.create(name, access)?)
}

fn locked(file: Arc<dyn File>) -> io::Result<Arc<dyn File>> {
    file.lock(Lock::Shared)?;
    Ok(Arc::new(LatchedFile::new(file)))
}

/// Opens a segment without other writers, and excludes them for as long as the file lives. Waits for the writes of a
/// dead process to end, however long that takes, and reports it.
pub(crate) fn open_alone(
    storage: &dyn Storage,
    number: u64,
    access: Access,
    observer: &Observer,
) -> io::Result<Arc<dyn File>> {
    let file = storage.open(&crate::format::segment_name(number), access)?;
    lock_alone(file.as_ref(), number, observer)?;
    Ok(Arc::new(LatchedFile::new(file)))
}

/// Waits until no other process writes to a segment, and reports a wait that is not over at once.
pub(crate) fn lock_alone(file: &dyn File, number: u64, observer: &Observer) -> io::Result<()> {
    if file.try_lock(Lock::Exclusive)? {
        return Ok(());
    }
    observer(&Event::WaitsForWrites { segment: number, over: false });
    file.lock(Lock::Exclusive)?;
    observer(&Event::WaitsForWrites { segment: number, over: true });
    Ok(())
}
