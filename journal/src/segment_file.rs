//! Open files of segments, and the locks that they hold on themselves.
//!
//! What must hold:
//! - **Every description that writes to a segment holds a shared lock on itself**, from before its first write: making,
//!   heading, appending, sealing, rewriting. The kernel lets go of it when the last reference to the description is gone,
//!   and a write in flight is such a reference, also when the process that began it is dead. (The process's other locks
//!   are free at once: a direct write through a ring was seen to land seconds after its process had been reaped.)
//! - **Nothing is concluded from an unsealed segment before its exclusive lock was held**: then nobody writes to it any
//!   more. It is waited for as long as it must, and that is told. A segment whose footer holds needs no lock: its data
//!   was synced before the footer was written.
//! - The descriptions latch: after a failed write or sync they refuse everything until they are opened again.
//!
//! Locks of one process are in each other's way as those of two are: who asks for the exclusive one has closed his own
//! descriptions, or is waiting for their last write.

use std::io;
use std::sync::Arc;

use crate::env::{Event, Observer};
use crate::faults::{Fault, Faults};
use crate::io::{Access, File, LatchedFile, Lock, Storage};

/// Opens a segment to write to it. Who writes elsewhere in it meanwhile has a description of his own.
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

/// Opens a segment that nobody writes to any more, and keeps it so for as long as the file lives. Waits for the writes
/// of a dead process to end, however long that takes, and tells it.
pub(crate) fn open_alone(
    storage: &dyn Storage,
    number: u64,
    access: Access,
    observer: &Observer,
    faults: Faults,
) -> io::Result<Arc<dyn File>> {
    let file = storage.open(&crate::format::segment_name(number), access)?;
    lock_alone(file.as_ref(), number, observer, faults)?;
    Ok(Arc::new(LatchedFile::new(file)))
}

/// Waits until nobody else writes to a segment, and tells it where that is not at once.
pub(crate) fn lock_alone(file: &dyn File, number: u64, observer: &Observer, faults: Faults) -> io::Result<()> {
    if faults.has(Fault::LockNotTaken) || file.try_lock(Lock::Exclusive)? {
        return Ok(());
    }
    observer(&Event::WaitsForWrites { segment: number, over: false });
    file.lock(Lock::Exclusive)?;
    observer(&Event::WaitsForWrites { segment: number, over: true });
    Ok(())
}
