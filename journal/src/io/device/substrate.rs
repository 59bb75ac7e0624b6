//! Facts about a log's base: its file systems, its devices, and what each reports.

use std::fmt;
use std::path::PathBuf;

/// Layers (partitions, mapped devices, loop files) that the walk goes down.
pub(super) const MAX_DEPTH: usize = 16;
/// Devices that the walk looks at.
pub(super) const MAX_DEVICES: usize = 256;
/// The least block that a direct write covers, whatever a device reports.
pub(super) const MIN_BLOCK: u32 = 4096;

/// Roots of the kernel's files; tests use their own trees here.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    /// `/proc`
    pub(super) proc: PathBuf,
    /// `/sys`
    pub(super) sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

/// The kernel's facts about one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Device number of the file system that holds it; anonymous ones have major 0.
    pub(super) dev: Option<(u32, u32)>,
    /// Device number of the device that it names, if it names a block device.
    pub(super) block_dev: Option<(u32, u32)>,
    /// The id of its mount, as in the first column of mountinfo.
    pub(super) mount_id: Option<u64>,
    /// The file system's magic number.
    pub(super) magic: Option<u64>,
    /// Alignment of a direct write here; `Some(0)` where there is no direct I/O.
    pub(super) direct_align: Option<u32>,
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
    /// The block that a direct write must cover whole: a power of two, at least 4096, the direct-I/O
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    #[default]
    Unknown,
}

/// A device's report about its volatile write cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteCache {
    /// It has one: only a flush makes writes safe.
    WriteBack,
    /// It reports that completed writes are safe.
    WriteThrough,
    /// It reports nothing; counts as volatile.
    #[default]
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
