//! Power cuts on real kernels and real file systems.
//!
//! Invariants: a *crash image* is a disk that a power cut could have left behind, and every ack has its exact place
//! among the writes, so that what was acknowledged before the cut is known.
//!
//! A disk is a file that this process serves through FUSE, without a page cache, under a loop device ([`device`],
//! [`disk`]). The file system on it is made by the system's own `mkfs` and run by the system's own kernel. Everything
//! that the device is asked, and everything that the workload gets as an answer, goes into one list ([`trace`]). Then the power is
//! cut between two entries of that list: what is on the disk by then is computed ([`cut`]), served as the same disk, and
//! mounted.
//!
//! **The fault model.** A write is *in flight* from when the device took it to when it answered, *complete* from then on,
//! *flushed* once a flush that began after it was complete has been answered.
//! - With a volatile write cache what was flushed survives. Of everything else a seeded choice does: nothing, all, each
//!   512-byte sector by a coin, most sectors, whole writes, a prefix with a torn end, only the latest, single sectors.
//! - Without one, what is complete survives, and the choice is over what was in flight. The loop device is set to
//!   write through, so that the kernel sends no flushes.
//! - File systems survive much of that, but not all: ext4 does not mount with a torn superblock, xfs not with some
//!   directory blocks that were torn while it replayed its log. Such a state says nothing about what lies on it. It is
//!   counted, and made again as on a disk of 4096-byte sectors; a file system that does not survive that is a failure.
//! - The machine is another boot afterwards: the daemon is shown another boot id.
//! - The power can be cut again while the file system is replayed, and while the daemon recovers: what does that is
//!   recorded by the same device.
//!
//! **Not covered:** a device that lies about flushes, one with FUA, one that tears a sector or loses what was flushed,
//! and errors. The simulated disk (`sim/`) has these, but for FUA.
//!
//! What runs here lives in mount and process namespaces of its own ([`inside`]), whose first process serves FUSE while
//! `unshare` holds the mounts: a single last process that did both would wait for itself for ever.

pub mod cut;
pub mod device;
pub mod disk;
pub mod inside;
pub mod pages;
pub mod trace;

pub use cut::{Cache, Cut};
pub use device::{Device, Held, Recorder};
pub use disk::{Disk, Filesystem};
pub use pages::Pages;
pub use trace::{Event, Trace};

/// The error of a system that does not do what was asked: the test stops.
pub type CutResult<T = ()> = Result<T, String>;
