//! The base of a log: the file system of its folder, its mount, and every device below it.
//!
//! Invariants:
//! - **Down to the last leaf.** A partition leads to its disk, a mapped or RAID device to every slave, a loop device
//!   through its backing file to the file system that holds it, and on from there; a btrfs to all its members. The
//!   walk is bounded ([`MAX_DEPTH`], [`MAX_DEVICES`]) and goes into nothing twice, so that no cycle holds it.
//! - **A device that cannot be resolved counts as volatile and is reported** in [`Substrate::notes`]. Nothing here
//!   fails, because a daemon with missing facts must still start and promise less.
//! - **Only facts from a kernel interface count.** They can be wrong: a hypervisor may report a cache that does not
//!   exist, or hide one that does ([`Substrate::hypervisor`] is the hint for that).
//! - **Files only.** All knowledge comes from `/proc` and `/sys`, whose roots are injected, and from [`Facts`] about
//!   single paths, which are injected too; so the tests build machines that they do not have.
//!
//! The consequences are decided in one place, `durability_class.rs`: which ack levels are honest here.

mod durability_class;
mod mounts;
mod range;
mod sysfs;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

pub use durability_class::{DurabilityClass, Obstacle};
pub use range::{RangeGrounds, RangeRefusal};

/// Layers (partitions, mapped devices, loop files) that the walk goes down.
pub const MAX_DEPTH: usize = 16;
/// Devices that the walk looks at.
pub const MAX_DEVICES: usize = 256;
/// The least block that a direct write covers, whatever a device reports.
pub const MIN_BLOCK: u32 = 4096;

/// Roots of the kernel's files; tests use their own trees here.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

/// The kernel's facts about one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Device number of the file system that holds it; anonymous ones have major 0.
    pub dev: Option<(u32, u32)>,
    /// Device number of the device that it names, if it names a block device.
    pub block_dev: Option<(u32, u32)>,
    /// The id of its mount, as in the first column of mountinfo.
    pub mount_id: Option<u64>,
    /// The file system's magic number.
    pub magic: Option<u64>,
    /// Alignment of a direct write here; `Some(0)` where there is no direct I/O.
    pub direct_align: Option<u32>,
}

/// The mount, file systems and devices below a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substrate {
    /// Type of the file system as mountinfo names it (`ext4`, `fuse.sshfs`), or a name for its magic number.
    pub filesystem: String,
    /// Path of the mount.
    pub mount_point: PathBuf,
    /// Options of this mount, then those of the file system.
    pub mount_options: Vec<String>,
    /// True if the file system shows a journal; checked for ext4 alone, which may have none.
    pub journaled: Option<bool>,
    /// File systems further below: those that hold a loop device's file, or the upper folder of an overlay.
    pub below: Vec<Layer>,
    /// Every device found, upper ones first.
    pub devices: Vec<Device>,
    /// The block that a direct write must cover whole: a power of two, at least [`MIN_BLOCK`], the direct-I/O
    /// alignment, and the physical block of every device.
    pub block_size: u32,
    /// True if the file system reports direct I/O; `None` where it reports nothing.
    pub direct_io: Option<bool>,
    /// True if this looks like a virtual machine: the host then decides what is reported about caches.
    pub hypervisor: bool,
    /// Facts that could not be found out, and oddities; one sentence each.
    pub notes: Vec<String>,
}

/// One file system on the way down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Type, as mountinfo names it.
    pub filesystem: String,
    /// Path of the mount.
    pub mount_point: PathBuf,
    /// Options of the mount, then those of the file system.
    pub mount_options: Vec<String>,
}

/// One block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name (`vda1`).
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Its kind.
    pub kind: DeviceKind,
    /// No further device was found below it.
    pub leaf: bool,
    /// Its report about a cache that a power cut empties.
    pub write_cache: WriteCache,
    /// True if it writes single requests through its cache.
    pub fua: bool,
    /// Bytes that it writes without reading; 0 where it reports none.
    pub physical_block: u32,
    /// Bytes that it can address; 0 where it reports none.
    pub logical_block: u32,
    /// True if it reports that it rotates; virtual disks often report so wrongly.
    pub rotational: bool,
    /// The model that it reports, or the driver behind it (`virtio`).
    pub model: Option<String>,
    /// The reason why a flush that arrives here may go no further down.
    pub stops_flush: Option<FlushStop>,
}

/// Kind of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk of any kind.
    Disk,
    /// A part of a disk: it has its disk's caches.
    Partition,
    /// A file that is used as a disk.
    Loop,
    /// A device-mapper device: LVM, dm-crypt and the like.
    Mapped,
    /// Software RAID.
    Raid,
    /// Another device on top of devices (bcache).
    Stacked,
    /// A disk at the other end of a network (nbd, rbd, drbd).
    Network,
    /// Memory that looks like a disk (zram, brd, null_blk).
    Memory,
    /// The walk could not find out.
    Unknown,
}

/// A device's report about its volatile write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// It has one: only a flush makes writes safe.
    WriteBack,
    /// It reports that completed writes are safe.
    WriteThrough,
    /// It reports nothing; counts as volatile.
    Unknown,
}

/// The reason why a flush ends at a device although a layer below needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushStop {
    /// It reports write through, so the kernel sends it no flushes, and something below has a volatile cache.
    CacheBelow,
    /// The drive reports write back, but the kernel is set to write through: somebody overrode it.
    Overridden,
    /// A loop device without flushes whose file lies in the page cache.
    PageCache,
}

impl Substrate {
    /// True if a rewrite over written zeroes is cheaper than over plain allocation: ext4 and xfs only. (ext2 and ext3
    /// share ext4's magic number; the type of the mount distinguishes them.)
    pub fn zeroing_pays(&self) -> bool {
        matches!(self.filesystem.as_str(), "ext4" | "xfs")
    }

    /// The reason why a power cut may still lose completed writes unless they are flushed. `None` only if every leaf
    /// reports write through and nothing on the way is a file or unknown. (A device on top of others completes a write
    /// after they do; the caches are in them.)
    pub fn volatile_cache(&self) -> Option<String> {
        if self.devices.is_empty() {
            return Some(format!("{} names no device", self.filesystem));
        }
        self.devices.iter().find_map(|d| match (d.kind, d.write_cache, d.stops_flush) {
            (DeviceKind::Loop, ..) => Some(format!("{} is a file on another file system", d.name)),
            (_, _, Some(FlushStop::Overridden)) => Some(format!("{} was set to write through by hand", d.name)),
            _ if !d.leaf => None,
            (_, WriteCache::WriteThrough, _) => None,
            (_, cache, _) => Some(format!("{} has a write cache: {cache}", d.name)),
        })
    }

    /// One line for logs and status.
    pub fn summary(&self) -> String {
        let mut line = format!("{} on {}", self.filesystem, self.mount_point.display());
        for layer in &self.below {
            line.push_str(&format!(", over {} on {}", layer.filesystem, layer.mount_point.display()));
        }
        for device in &self.devices {
            line.push_str(&format!(", {device}"));
        }
        let direct = match self.direct_io {
            Some(true) => "direct I/O",
            Some(false) => "no direct I/O",
            None => "direct I/O unknown",
        };
        line.push_str(&format!(", block {}, {direct}", self.block_size));
        if self.hypervisor {
            line.push_str(", virtual machine");
        }
        line
    }
}

impl fmt::Display for Substrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name, self.kind)?;
        if let Some(model) = &self.model {
            write!(f, " {model}")?;
        }
        write!(f, ", {}{})", self.write_cache, if self.fua { ", fua" } else { "" })
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Partition => "partition",
            Self::Loop => "loop",
            Self::Mapped => "mapped",
            Self::Raid => "raid",
            Self::Stacked => "stacked",
            Self::Network => "network disk",
            Self::Memory => "memory",
            Self::Unknown => "unknown device",
        })
    }
}

impl fmt::Display for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteBack => "write back",
            Self::WriteThrough => "write through",
            Self::Unknown => "cache unknown",
        })
    }
}

/// Id of this boot of the machine; `None` where `/proc` has none.
pub fn boot_id() -> Option<[u8; 16]> {
    boot_id_in(&Roots::default())
}

fn boot_id_in(roots: &Roots) -> Option<[u8; 16]> {
    let text = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).ok()?;
    let digits: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |b: u8| char::from(b).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(id)
}

/// Finds the base of a folder. A folder that does not exist yet is judged by the nearest one above it.
pub fn discover(dir: &Path) -> Substrate {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let existing = absolute.ancestors().find_map(|d| fs::canonicalize(d).ok());
    discover_in(&Roots::default(), &existing.unwrap_or(absolute), &look)
}

/// The same on an injected machine: `dir` is absolute and without links, and `look` answers for single paths, `None`
/// where a path cannot be seen.
pub fn discover_in(roots: &Roots, dir: &Path, look: &dyn Fn(&Path) -> Option<Facts>) -> Substrate {
    walk::Walk::new(roots, look).run(dir)
}

fn look(path: &Path) -> Option<Facts> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), mask).ok()?;
    let is_block = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    let has_mount_id = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Some(Facts {
        dev: Some((stat.stx_dev_major, stat.stx_dev_minor)),
        block_dev: is_block.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
        mount_id: has_mount_id.then_some(stat.stx_mnt_id),
        magic: rustix::fs::statfs(path).ok().map(|s| s.f_type as u64 & 0xFFFF_FFFF),
        direct_align: if path.is_dir() { direct_align(path) } else { None },
    })
}

/// Alignment of a direct write. Only a plain file reports it, so this makes one without a name.
fn direct_align(dir: &Path) -> Option<u32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)).ok()?;
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(stat.stx_dio_offset_align)
}
