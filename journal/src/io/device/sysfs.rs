//! One device's folder in `/sys`: its kind and its properties.
//!
//! A missing or empty file is an answer that was not given, never an error: kernels report different properties.

use std::fs;
use std::path::{Path, PathBuf};

use super::substrate::{Device, DeviceKind, WriteCache};

/// Kind of a device, by the folders that only its kind has, else by its name.
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

/// Properties that a device reports.
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

/// True if the drive itself reports write back, where the kernel's own setting is separate (virtio, SCSI).
pub(super) fn drive_says_write_back(dir: &Path) -> bool {
    let scsi = list(&dir.join("device/scsi_disk")).into_iter().map(|disk| disk.join("cache_type"));
    let says = |file: PathBuf| word(&file).is_some_and(|text| text.starts_with("write back"));
    says(dir.join("cache_type")) || scsi.into_iter().any(says)
}

/// Entries of a folder, in a fixed order; none where there is no folder.
pub(super) fn list(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort(); // a folder has no fixed order, and the summary must not change between starts
    found
}

/// The content of a one-line file, trimmed; `None` when it is empty or not there.
pub(super) fn word(file: &Path) -> Option<String> {
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
