//! The way down: from a path to its mount, from the mount to its devices, from each device to what it stands on.
//!
//! Nothing here returns an error. A device that cannot be followed becomes [`DeviceKind::Unknown`], whose cache is
//! unknown and so volatile; a note says what is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::durability_class::{FilesystemClass, filesystem_class};
use super::mounts::{self, Mount};
use super::substrate::{
    Device, DeviceKind, Facts, FlushStop, Layer, MAX_DEPTH, MAX_DEVICES, MIN_BLOCK, Roots, Substrate, WriteCache,
};
use super::sysfs::{describe, drive_says_write_back, kind, list, word};

type Look<'a> = &'a dyn Fn(&Path) -> Option<Facts>;

pub(super) struct Walk<'a> {
    roots: &'a Roots,
    look: Look<'a>,
    mounts: Vec<Mount>,
    /// Mounts already gone through, by id.
    seen_mounts: Vec<u64>,
    /// Devices already gone through, and whether a power cut may empty a cache at or below them. While the walk is
    /// below a device it stands here as volatile, which ends a cycle on the safe side.
    seen: BTreeMap<(u32, u32), bool>,
    devices: Vec<Device>,
    /// Of the file system on top, where that is ext4.
    journaled: Option<bool>,
    notes: Vec<String>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(roots: &'a Roots, look: Look<'a>) -> Self {
        let table = fs::read(roots.proc.join("self/mountinfo"));
        let mut notes = Vec::new();
        if let Err(e) = &table {
            notes.push(format!("the mount table cannot be read: {e}"));
        }
        let mounts = mounts::parse(&table.unwrap_or_default());
        Self {
            roots,
            look,
            mounts,
            seen_mounts: Vec::new(),
            seen: BTreeMap::new(),
            devices: Vec::new(),
            journaled: None,
            notes,
        }
    }

    pub(super) fn run(mut self, dir: &Path) -> Substrate {
        let facts = (self.look)(dir).unwrap_or_default();
        let mut layers = self.filesystem(dir, &facts, 0);
        let top = layers.remove(0);
        let physical = self.devices.iter().map(|d| d.physical_block).max().unwrap_or(0);
        let block_size = MIN_BLOCK.max(facts.direct_align.unwrap_or(0)).max(physical);
        Substrate {
            filesystem: top.filesystem,
            mount_point: top.mount_point,
            mount_options: top.mount_options,
            journaled: self.journaled,
            below: layers,
            block_size: block_size.checked_next_power_of_two().unwrap_or(MIN_BLOCK),
            direct_io: facts.direct_align.map(|align| align > 0),
            hypervisor: self.hypervisor(),
            devices: self.devices,
            notes: self.notes,
        }
    }

    /// The file system of a path and all file systems below that; never empty. Their devices are added to the walk.
    fn filesystem(&mut self, path: &Path, facts: &Facts, depth: usize) -> Vec<Layer> {
        let named = facts.magic.and_then(magic_name);
        let Some(mount) = mounts::find(&self.mounts, path, facts).cloned() else {
            self.unresolved(&path.display().to_string(), "its mount is not in the mount table");
            let filesystem = named.unwrap_or("unknown").to_owned();
            return vec![Layer { filesystem, mount_point: PathBuf::new(), mount_options: Vec::new() }];
        };
        let mut filesystem = mount.filesystem.clone();
        if let Some(named) = named
            && !same_family(named, &filesystem)
        {
            // The table changed meanwhile, or hides a mount: the magic number is that of the path itself.
            self.notes.push(format!("{} is {named}, the mount table says {filesystem}", path.display()));
            filesystem = named.to_owned();
        }
        if depth == 0 && filesystem == "ext4" {
            self.journaled = Some(self.shows_a_journal(&mount));
        }
        let mut layers =
            vec![Layer { filesystem, mount_point: mount.mount_point.clone(), mount_options: mount.options.clone() }];
        if self.seen_mounts.contains(&mount.id) {
            return layers;
        }
        self.seen_mounts.push(mount.id);
        for device in self.devices_of(&mount) {
            layers.extend(self.device(&device, depth).1);
        }
        if let Some(upper) = mount.option("upperdir") {
            layers.extend(self.upper_folder(Path::new(upper), &mount, depth));
        }
        layers
    }

    /// True if an ext4 has a journal: by its thread, or by its mode of data where the kernel names no thread.
    fn shows_a_journal(&mut self, mount: &Mount) -> bool {
        let (major, minor) = mount.number;
        let device = fs::canonicalize(self.roots.sys.join(format!("dev/block/{major}:{minor}")));
        let device = device.unwrap_or_else(|_| mount.source.clone());
        let Some(name) = device.file_name() else { return false };
        let task = fs::read_to_string(self.roots.sys.join("fs/ext4").join(name).join("journal_task"));
        let options = || fs::read_to_string(self.roots.proc.join("fs/ext4").join(name).join("options"));
        match task
            .map(|task| task.trim().parse::<u32>().is_ok())
            .or_else(|_| options().map(|options| options.lines().any(|option| option.starts_with("data="))))
        {
            Ok(true) => true,
            Ok(false) => {
                self.notes.push(format!("the ext4 on {} has no journal", name.display()));
                false
            }
            Err(e) => {
                self.notes.push(format!("whether the ext4 on {} has a journal cannot be read: {e}", name.display()));
                false
            }
        }
    }

    /// An overlay writes into its upper folder, on another file system, whose path may belong to another namespace.
    fn upper_folder(&mut self, upper: &Path, overlay: &Mount, depth: usize) -> Vec<Layer> {
        let seen = (self.look)(upper).filter(|_| upper.is_absolute() && depth < MAX_DEPTH);
        let mount = seen.and_then(|facts| mounts::find(&self.mounts, upper, &facts));
        match (seen, mount) {
            (Some(facts), Some(mount)) if mount.id != overlay.id => self.filesystem(upper, &facts, depth + 1),
            _ => {
                self.unresolved(&upper.display().to_string(), "the overlay's upper folder is not visible from here");
                Vec::new()
            }
        }
    }

    /// The folders in `/sys` of the devices that a mount stands on directly.
    fn devices_of(&mut self, mount: &Mount) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if mount.number.0 != 0 {
            found.extend(self.by_number(mount.number));
        } else if filesystem_class(&mount.filesystem) != FilesystemClass::Disk {
            // None of its own; durability_class.rs judges these by their class.
        } else if mount.source.starts_with("/dev") {
            found.extend(self.members(mount));
        } else {
            // zfs, for one, names its pool.
            let name = mount.source.display().to_string();
            self.unresolved(&name, &format!("{} does not say which devices it stands on", mount.filesystem));
        }
        // A log or a realtime section may lie on a device of its own.
        for key in ["logdev", "rtdev", "journal_path"] {
            if let Some(path) = mount.option(key) {
                found.extend(self.by_path(Path::new(path)));
            }
        }
        found
    }

    /// File systems of several devices have an anonymous number and name one device, or some, as their source.
    fn members(&mut self, mount: &Mount) -> Vec<PathBuf> {
        let source = mount.source.to_string_lossy().into_owned();
        if mount.filesystem == "bcachefs" {
            return source.split(':').filter_map(|one| self.by_path(Path::new(one))).collect();
        }
        let Some(first) = self.by_path(&mount.source) else { return Vec::new() };
        if mount.filesystem != "btrfs" {
            return vec![first];
        }
        let name = first.file_name().map(PathBuf::from).unwrap_or_default();
        let pools = list(&self.roots.sys.join("fs/btrfs"));
        match pools.iter().map(|pool| pool.join("devices")).find(|devices| devices.join(&name).exists()) {
            Some(devices) => {
                let (good, bad): (Vec<_>, Vec<_>) = list(&devices).into_iter().partition(|d| d.exists());
                for missing in bad {
                    self.unresolved(&missing.display().to_string(), "a member of the btrfs cannot be followed");
                }
                good.iter().filter_map(|d| fs::canonicalize(d).ok()).collect()
            }
            None => {
                self.unresolved(&source, "the members of the btrfs are not listed");
                vec![first]
            }
        }
    }

    fn by_number(&mut self, (major, minor): (u32, u32)) -> Option<PathBuf> {
        let found = fs::canonicalize(self.roots.sys.join(format!("dev/block/{major}:{minor}"))).ok();
        if found.is_none() {
            self.unresolved(&format!("{major}:{minor}"), "the device is not in /sys");
        }
        found
    }

    fn by_path(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(number) = (self.look)(path).and_then(|facts| facts.block_dev) {
            return self.by_number(number);
        }
        let class = self.roots.sys.join("class/block");
        let name = path.file_name().unwrap_or_default();
        let by_name = fs::canonicalize(class.join(name)).ok();
        let mapped = || list(&class).into_iter().find(|d| word(&d.join("dm/name")).as_deref() == name.to_str());
        let found = by_name.or_else(|| fs::canonicalize(mapped()?).ok());
        if found.is_none() {
            self.unresolved(&path.display().to_string(), "the device is not in /sys");
        }
        found
    }

    /// Walks through one device and everything below it. Returns true if a power cut may empty a cache at or below it,
    /// and the file systems that were met on the way.
    fn device(&mut self, dir: &Path, depth: usize) -> (bool, Vec<Layer>) {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(number) = word(&dir.join("dev")).and_then(|text| mounts::parse_number(&text)) else {
            self.unresolved(&name, "the device has no number in /sys");
            return (true, Vec::new());
        };
        if let Some(volatile) = self.seen.get(&number) {
            return (*volatile, Vec::new());
        }
        if depth >= MAX_DEPTH || self.seen.len() >= MAX_DEVICES {
            self.unresolved(&name, "too many devices above this one");
            return (true, Vec::new());
        }
        self.seen.insert(number, true);
        let kind = kind(dir, &name);
        let at = self.devices.len();
        self.devices.push(describe(dir, name.clone(), number, kind));
        let slaves = list(&dir.join("slaves"));
        let mut layers = Vec::new();
        let mut below = None;
        if kind == DeviceKind::Partition {
            let parent = dir.parent().unwrap_or(dir);
            below = Some(self.device(parent, depth + 1).0);
        } else if kind == DeviceKind::Loop {
            let (volatile, more) = self.backing_file(dir, &name, depth);
            layers = more;
            below = Some(volatile);
        } else if !slaves.is_empty() {
            let mut any = false;
            for slave in slaves {
                match fs::canonicalize(&slave) {
                    Ok(real) => {
                        let (volatile, more) = self.device(&real, depth + 1);
                        any |= volatile;
                        layers.extend(more);
                    }
                    Err(_) => {
                        self.unresolved(&slave.display().to_string(), "the device cannot be followed");
                        any = true;
                    }
                }
            }
            below = Some(any);
        } else if matches!(kind, DeviceKind::Mapped | DeviceKind::Raid) {
            self.unresolved(&name, "the devices below it are not listed");
            below = Some(true);
        }
        let volatile = self.judge(at, dir, below);
        self.seen.insert(number, volatile);
        (volatile, layers)
    }

    /// The file system that holds a loop device's file.
    fn backing_file(&mut self, dir: &Path, name: &str, depth: usize) -> (bool, Vec<Layer>) {
        let file = word(&dir.join("loop/backing_file")).map(PathBuf::from);
        let facts = file.as_deref().and_then(|f| (self.look)(f));
        match (file, facts) {
            (Some(file), Some(facts)) => {
                let before = self.devices.len();
                let layers = self.filesystem(&file, &facts, depth + 1);
                // Met before, or without a device: nothing proves it safe.
                let found = &self.devices[before..];
                let volatile = found.is_empty() || found.iter().any(|d| d.write_cache != WriteCache::WriteThrough);
                (volatile, layers)
            }
            (file, _) => {
                let file = file.unwrap_or_default();
                self.unresolved(name, &format!("its file {} cannot be seen from here", file.display()));
                (true, Vec::new())
            }
        }
    }

    /// Fills in the properties that depend on lower layers; `below` is true if those are volatile, `None` for a leaf.
    fn judge(&mut self, at: usize, dir: &Path, below: Option<bool>) -> bool {
        let device = &mut self.devices[at];
        device.leaf = below.is_none();
        let through = device.write_cache == WriteCache::WriteThrough;
        match (device.kind, below) {
            (DeviceKind::Loop, _) if through && word(&dir.join("loop/dio")).as_deref() != Some("1") => {
                device.stops_flush = Some(FlushStop::PageCache);
                true
            }
            (DeviceKind::Partition, Some(volatile)) => volatile,
            (_, Some(volatile)) => {
                device.stops_flush = (through && volatile).then_some(FlushStop::CacheBelow);
                volatile || !through
            }
            (_, None) if through && drive_says_write_back(dir) => {
                device.stops_flush = Some(FlushStop::Overridden);
                true
            }
            (_, None) => {
                if device.write_cache == WriteCache::Unknown {
                    self.notes.push(format!("{} does not say whether it has a write cache", device.name));
                }
                !through
            }
        }
    }

    fn unresolved(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name}: {why}; it counts as volatile"));
        self.devices.push(Device { name: name.to_owned(), leaf: true, ..Device::default() });
    }

    fn hypervisor(&self) -> bool {
        let cpu = fs::read_to_string(self.roots.proc.join("cpuinfo")).unwrap_or_default();
        let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let models = ["virtio", "QEMU", "VMware", "VBOX", "Virtual", "Elastic Block Store", "PersistentDisk"];
        flags.split_whitespace().any(|flag| flag == "hypervisor")
            || self.roots.sys.join("hypervisor/type").exists()
            || self.devices.iter().filter_map(|d| d.model.as_deref()).any(|m| models.iter().any(|v| m.contains(v)))
    }
}

/// File systems that the magic number distinguishes from all others, or a name for their family.
fn magic_name(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0xEF53 => "ext",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x794C_7630 => "overlay",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "cifs",
        0x00C3_6400 => "ceph",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse",
        0x2FC1_2FC1 => "zfs",
        _ => return None,
    })
}

fn same_family(named: &str, filesystem: &str) -> bool {
    match named {
        "ext" => matches!(filesystem, "ext2" | "ext3" | "ext4"),
        "tmpfs" => matches!(filesystem, "tmpfs" | "devtmpfs" | "rootfs"),
        "ramfs" => matches!(filesystem, "ramfs" | "rootfs" | "devtmpfs"),
        "nfs" => filesystem.starts_with("nfs"),
        "cifs" => matches!(filesystem, "cifs" | "smb2" | "smb3" | "smbfs"),
        "fuse" => filesystem.starts_with("fuse") || filesystem == "virtiofs",
        other => other == filesystem,
    }
}
