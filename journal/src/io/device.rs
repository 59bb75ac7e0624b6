//! What a log stands on: the file system of its folder, how that is mounted, and every device below it.
//!
//! What must hold:
//! - **Down to the last leaf.** A partition leads to its disk, a mapped or RAID device to every slave, a loop device
//!   through its backing file to the file system that holds it, and on from there; a btrfs to all its members. The
//!   walk is bounded ([`MAX_DEPTH`], [`MAX_DEVICES`]) and goes into nothing twice, so that no cycle holds it.
//! - **What cannot be resolved counts as volatile and is said** in [`Substrate::notes`]; nothing here fails, because
//!   a daemon that knows too little must still start and promise less.
//! - **Nothing is believed that a kernel interface does not say.** And what it says can be wrong: a hypervisor may
//!   report a cache that it does not have, or hide one that it has ([`Substrate::hypervisor`] is the hint for that).
//! - **Files only.** All knowledge comes from `/proc` and `/sys`, whose roots are injected, and from [`Facts`] about
//!   single paths, which are injected too; so the tests build machines that they do not have.
//!
//! What follows from the findings is decided in one place, `durability_class.rs`: which ack levels are honest here.

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
/// The least block that a direct write covers, whatever a device says.
pub const MIN_BLOCK: u32 = 4096;

/// Where the kernel's files are; tests put their own trees here.
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

/// What the kernel says about one path.
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
    /// What a direct write here must be aligned to; `Some(0)` where there is no direct I/O.
    pub direct_align: Option<u32>,
}

/// What a folder stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substrate {
    /// Type of the file system as mountinfo names it (`ext4`, `fuse.sshfs`), or a name for its magic number.
    pub filesystem: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Options of this mount, then those of the file system.
    pub mount_options: Vec<String>,
    /// Whether the file system shows a journal; asked of ext4 alone, which may have none.
    pub journaled: Option<bool>,
    /// File systems further below: those that hold a loop device's file, or the upper folder of an overlay.
    pub below: Vec<Layer>,
    /// Every device found, upper ones first.
    pub devices: Vec<Device>,
    /// The block that a direct write must cover whole: a power of two, at least [`MIN_BLOCK`], the direct-I/O
    /// alignment, and the physical block of every device.
    pub block_size: u32,
    /// Whether the file system says that it has direct I/O; `None` where it does not say.
    pub direct_io: Option<bool>,
    /// Whether this looks like a virtual machine, whose word about caches is the host's word.
    pub hypervisor: bool,
    /// What could not be found out, and what is odd; one sentence each.
    pub notes: Vec<String>,
}

/// One file system on the way down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Type, as mountinfo names it.
    pub filesystem: String,
    /// Where it is mounted.
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
    /// What it is.
    pub kind: DeviceKind,
    /// No further device was found below it.
    pub leaf: bool,
    /// What it says about a cache that a power cut empties.
    pub write_cache: WriteCache,
    /// Whether it writes single requests through its cache.
    pub fua: bool,
    /// Bytes that it writes without reading; 0 where it does not say.
    pub physical_block: u32,
    /// Bytes that it can address; 0 where it does not say.
    pub logical_block: u32,
    /// Whether it says that it turns; virtual disks say so freely.
    pub rotational: bool,
    /// The model that it names, or the driver behind it (`virtio`).
    pub model: Option<String>,
    /// Why a flush that arrives here may go no further down.
    pub stops_flush: Option<FlushStop>,
}

/// What a block device is.
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
    /// Another device that stands on devices (bcache).
    Stacked,
    /// A disk at the other end of a network (nbd, rbd, drbd).
    Network,
    /// Memory that looks like a disk (zram, brd, null_blk).
    Memory,
    /// The walk could not find out.
    Unknown,
}

/// What a device says about its volatile write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// It has one: only a flush makes writes safe.
    WriteBack,
    /// It says that completed writes are safe.
    WriteThrough,
    /// It does not say; counts as volatile.
    Unknown,
}

/// Why a flush ends at a device although what lies below needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushStop {
    /// It reports write through, so the kernel sends it no flushes, and something below has a volatile cache.
    CacheBelow,
    /// The drive says write back, the kernel was told write through: somebody set it so.
    Overridden,
    /// A loop device without flushes whose file lies in the page cache.
    PageCache,
}

impl Substrate {
    /// Bytes written anew cheaper over written zeroes than over plain allocation: ext4 and xfs only. (ext2 and ext3
    /// share ext4's magic number and are told apart by the type of the mount.)
    pub fn zeroing_pays(&self) -> bool {
        matches!(self.filesystem.as_str(), "ext4" | "xfs")
    }

    /// Why completed writes may still be lost to a power cut unless they are flushed; `None` only if every leaf says
    /// write through and nothing on the way is a file or unknown. (What stands on other devices completes a write when
    /// they have; it is they that have caches.)
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

/// Names this boot of the machine; `None` where `/proc` does not say.
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

/// Looks at what a folder stands on. A folder that is not there yet is judged by the nearest one above it.
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

/// Only a plain file tells its alignment, so one without a name is made for the question.
fn direct_align(dir: &Path) -> Option<u32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)).ok()?;
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(stat.stx_dio_offset_align)
}
