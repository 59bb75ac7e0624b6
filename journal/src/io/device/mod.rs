//! The base of a log: the file system of its folder, its mount, and every device below it.
//!
//! Invariants:
//! - **Down to the last leaf.** A partition leads to its disk, a mapped or RAID device to every slave, a loop device
//!   through its backing file to the file system that holds it, and on from there; a btrfs to all its members. The
//!   walk is bounded (`MAX_DEPTH`, `MAX_DEVICES`) and goes into nothing twice, so that no cycle holds it.
//! - **A device that cannot be resolved counts as volatile and is reported** in [`Substrate::notes`]. Nothing here
//!   fails, because a daemon with missing facts must still start and promise less.
//! - **Only facts from a kernel interface count.** They can be wrong: a hypervisor may report a cache that does not
//!   exist, or hide one that does ([`Substrate::hypervisor`] is the hint for that).
//! - **Files only.** All knowledge comes from `/proc` and `/sys`, whose roots are injected, and from `Facts` about
//!   single paths, which are injected too; so the tests build machines that they do not have.
//!
//! The consequences are decided in one place, `durability_class.rs`: which ack levels are honest here.

mod discover;
mod durability_class;
mod mounts;
mod range;
mod substrate;
mod sysfs;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use discover::boot_id;
pub use discover::discover;
pub use durability_class::{DurabilityClass, Obstacle};
pub use range::{RangeGrounds, RangeRefusal};
pub use substrate::{Device, DeviceKind, FlushStop, Layer, Substrate, WriteCache};
