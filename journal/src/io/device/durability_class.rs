//! The highest ack level that is honest on the found devices, and the reasons against a higher one.
//!
//! | found, here or in any layer below | `durable` |
//! |---|---|
//! | a file system or device in memory | never |
//! | flushes switched off by a mount option; a `volatile` overlay | never |
//! | a loop device that gets no flushes, its file in the page cache | never |
//! | overlay and other stacked file systems, network file systems, FUSE | on the operator's explicit word |
//! | zfs, where a property that is not seen from here decides whether a sync waits | on the operator's explicit word |
//! | a device that swallows flushes above or before a volatile cache | on the operator's explicit word |
//! | ext4 that shows no journal: a power cut may take names and files along | on the operator's explicit word |
//! | ext4, xfs, btrfs, f2fs, unresolved devices included | offered: a sync flushes whatever is there |
//! | any other file system | on the operator's explicit word |
//!
//! `durable` is offered where the file system's sync was measured (ext4, xfs, btrfs) or read (f2fs). Another file
//! system may return from a sync without a flush, as JFS does, and nothing here would show it.
//!
//! The operator's word covers what the kernel cannot see from here: a server's discipline, a battery. It covers
//! nothing that is visibly a lie.

use std::fmt;

use super::substrate::{DeviceKind, FlushStop, Substrate};

/// The highest ack level that may be offered here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurabilityClass {
    /// `durable` may be offered.
    Durable {
        /// Obstacles that only the operator's word overrules; empty where none was needed.
        by_word: Vec<Obstacle>,
    },
    /// Nothing above `written` may be offered.
    Written {
        /// The reasons; never empty.
        because: Vec<Obstacle>,
    },
}

impl DurabilityClass {
    /// Returns true if `durable` may be offered.
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::Durable { .. })
    }
}

impl fmt::Display for DurabilityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, why, obstacles) = match self {
            Self::Durable { by_word } => ("durable", "by the operator's word although", by_word),
            Self::Written { because } => ("written", "because", because),
        };
        f.write_str(level)?;
        for (i, obstacle) in obstacles.iter().enumerate() {
            write!(f, "{} {obstacle}", if i == 0 { format!(", {why}") } else { ";".into() })?;
        }
        Ok(())
    }
}

/// One reason against `durable`, with the type of the file system or the name of the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The file system is memory.
    #[error("{0} keeps its files in memory")]
    MemoryFilesystem(String),
    /// A device is memory.
    #[error("{0} keeps its blocks in memory")]
    MemoryDevice(String),
    /// A mount option switches off the base of `durable`.
    #[error("{filesystem} is mounted with {option}, so a sync flushes nothing")]
    Option {
        /// Type of the file system.
        filesystem: String,
        /// The option.
        option: String,
    },
    /// The file system underneath decides the effect of a sync.
    #[error("{0} stands on another file system that decides what a sync is worth")]
    Stacked(String),
    /// A server decides the effect of a sync.
    #[error("{0} is a network file system, and its server decides what a sync is worth")]
    Network(String),
    /// A process decides the effect of a sync.
    #[error("{0} is served by a process that decides what a sync is worth")]
    Fuse(String),
    /// A property of the data set, which the kernel does not show, decides the effect of a sync.
    #[error("{0} does not show whether a sync waits here, which its property sync decides")]
    Property(String),
    /// The effect of a sync was neither measured nor read.
    #[error("what a sync is worth on {0} was neither measured nor read, as it was on ext4, xfs, btrfs and f2fs")]
    Unmeasured(String),
    /// Nothing keeps names and files whole over a power cut.
    #[error("{0} shows no journal here, so a power cut may take names and files along")]
    NoJournal(String),
    /// A device gets no flushes, or passes none on, and a volatile cache needs them.
    #[error("{0} passes no flush on to a volatile cache")]
    FlushStops(String),
    /// A loop device that gets no flushes.
    #[error("{0} is a file in the page cache and gets no flushes")]
    LoopWithoutFlush(String),
}

impl Obstacle {
    /// Returns true if the operator's explicit word overrules it.
    pub fn yields_to_word(&self) -> bool {
        match self {
            Self::Stacked { .. } | Self::Network { .. } | Self::Fuse { .. } => true,
            Self::Property { .. } | Self::FlushStops { .. } => true,
            Self::Unmeasured { .. } | Self::NoJournal { .. } => true,
            Self::MemoryFilesystem { .. } | Self::MemoryDevice { .. } => false,
            Self::Option { .. } | Self::LoopWithoutFlush { .. } => false,
        }
    }
}

impl Substrate {
    /// The highest ack level that is honest here. `operator_word` is true if the operator stated explicitly that a sync
    /// is worth its name (a battery, a server that keeps its promise).
    pub fn durability_class(&self, operator_word: bool) -> DurabilityClass {
        let mut obstacles = filesystem_obstacles(&self.filesystem, &self.mount_options);
        if self.journaled == Some(false) {
            obstacles.push(Obstacle::NoJournal(self.filesystem.clone()));
        }
        for layer in &self.below {
            obstacles.extend(filesystem_obstacles(&layer.filesystem, &layer.mount_options));
        }
        obstacles.extend(self.devices.iter().filter_map(|d| {
            let device = d.name.clone();
            match (d.kind, d.stops_flush) {
                (DeviceKind::Memory, _) => Some(Obstacle::MemoryDevice(device)),
                (_, Some(FlushStop::PageCache)) => Some(Obstacle::LoopWithoutFlush(device)),
                (_, Some(FlushStop::CacheBelow | FlushStop::Overridden)) => Some(Obstacle::FlushStops(device)),
                (_, None) => None,
            }
        }));
        if obstacles.iter().all(|o| operator_word && o.yields_to_word()) {
            DurabilityClass::Durable { by_word: obstacles }
        } else {
            if operator_word {
                obstacles.retain(|o| !o.yields_to_word());
            }
            DurabilityClass::Written { because: obstacles }
        }
    }
}

/// File systems whose sync was measured, or read in the kernel's source.
const MEASURED: [&str; 4] = ["ext4", "xfs", "btrfs", "f2fs"];

/// Base of a file system, as far as a sync is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilesystemClass {
    /// Blocks on devices of this machine.
    Disk,
    /// Memory.
    Memory,
    /// Another file system of this machine.
    Stacked,
    /// A server.
    Network,
    /// A process.
    Fuse,
}

pub(super) fn filesystem_class(filesystem: &str) -> FilesystemClass {
    match filesystem {
        "tmpfs" | "ramfs" | "rootfs" | "devtmpfs" | "hugetlbfs" => FilesystemClass::Memory,
        "overlay" | "overlayfs" | "aufs" | "unionfs" | "ecryptfs" => FilesystemClass::Stacked,
        "nfs" | "nfs4" | "cifs" | "smb2" | "smb3" | "smbfs" | "ceph" | "9p" | "virtiofs" | "afs" | "coda"
        | "lustre" | "beegfs" | "orangefs" | "pvfs2" | "gpfs" | "glusterfs" | "vboxsf" | "vmhgfs" | "prl_fs" => {
            FilesystemClass::Network
        }
        "fuse" | "fuseblk" => FilesystemClass::Fuse,
        other if other.starts_with("fuse.") || other.starts_with("fuseblk.") => FilesystemClass::Fuse,
        _ => FilesystemClass::Disk,
    }
}

fn filesystem_obstacles(filesystem: &str, options: &[String]) -> Vec<Obstacle> {
    let name = || filesystem.to_owned();
    let mut found = Vec::new();
    match filesystem_class(filesystem) {
        // `sync=disabled`: fsync returns at once. `zfs get sync` shows it, no mount option does.
        FilesystemClass::Disk if filesystem == "zfs" => found.push(Obstacle::Property(name())),
        FilesystemClass::Disk if MEASURED.contains(&filesystem) => {}
        FilesystemClass::Disk => found.push(Obstacle::Unmeasured(name())),
        FilesystemClass::Memory => found.push(Obstacle::MemoryFilesystem(name())),
        FilesystemClass::Stacked => found.push(Obstacle::Stacked(name())),
        FilesystemClass::Network => found.push(Obstacle::Network(name())),
        FilesystemClass::Fuse => found.push(Obstacle::Fuse(name())),
    }
    let overlay = matches!(filesystem, "overlay" | "overlayfs");
    for option in options {
        let off = match option.as_str() {
            "nobarrier" | "barrier=0" | "barrier=none" | "fsync_mode=nobarrier" | "journal_flush_disabled" => true,
            "volatile" | "fsync=volatile" => overlay,
            _ => false,
        };
        if off {
            found.push(Obstacle::Option { filesystem: name(), option: option.clone() });
        }
    }
    found
}
