//! One device's folder in `/sys`: what it is and what it says about itself.
//!
//! A file that is missing or empty is an answer that was not given, never an error: kernels differ in what they tell.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Device, DeviceKind, WriteCache};

/// What a device is, told by the folders that only its kind has, else by its name.
pub(super) fn kind(dir: &Path, name: &str) -> DeviceKind {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if dir.join("partition").exists() {
        DeviceKind::Partition
    } else if dir.join("loop").is_dir() {
        DeviceKind::Loop
    } else if dir.join("dm").is_dir() {
        DeviceKind::Mapped
    } else if dir.join("md").is_dir() {
        DeviceKind::Raid
    } else if !list(&dir.join("slaves")).is_empty() {
        DeviceKind::Stacked
    } else if ["zram", "ram", "nullb"].iter().any(|prefix| numbered(prefix)) {
        DeviceKind::Memory
    } else if ["nbd", "rbd", "drbd"].iter().any(|prefix| numbered(prefix)) {
        DeviceKind::Network
    } else {
        DeviceKind::Disk
    }
}

/// What a device says about itself.
pub(super) fn describe(dir: &Path, name: String, number: (u32, u32), kind: DeviceKind) -> Device {
    // A partition has its disk's queue.
    let disk = if kind == DeviceKind::Partition { dir.parent().unwrap_or(dir) } else { dir };
    let queue = |file: &str| word(&disk.join("queue").join(file));
    let size = |file: &str| queue(file).and_then(|text| text.parse().ok()).unwrap_or(0);
    let virtio = disk.ancestors().filter_map(Path::file_name).any(|part| part.to_string_lossy().starts_with("virtio"));
    Device {
        name,
        number,
        kind,
        leaf: false,
        write_cache: match queue("write_cache").as_deref() {
            Some("write back") => WriteCache::WriteBack,
            Some("write through") => WriteCache::WriteThrough,
            _ => WriteCache::Unknown,
        },
        fua: queue("fua").as_deref() == Some("1"),
        physical_block: size("physical_block_size"),
        logical_block: size("logical_block_size"),
        rotational: queue("rotational").as_deref() == Some("1"),
        model: word(&disk.join("device/model")).or_else(|| virtio.then(|| "virtio".to_owned())),
        stops_flush: None,
    }
}

/// What the drive itself says, where that is kept apart from what the kernel was told (virtio, SCSI).
pub(super) fn drive_says_write_back(dir: &Path) -> bool {
    let scsi = list(&dir.join("device/scsi_disk")).into_iter().map(|disk| disk.join("cache_type"));
    let says = |file: PathBuf| word(&file).is_some_and(|text| text.starts_with("write back"));
    says(dir.join("cache_type")) || scsi.into_iter().any(says)
}

/// What lies in a folder, in a fixed order; nothing where there is none.
pub(super) fn list(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort(); // the order of a folder is nobody's promise, and the summary should not change between starts
    found
}

/// The content of a one-line file, trimmed; `None` when it is empty or not there.
pub(super) fn word(file: &Path) -> Option<String> {
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
