//! Machines made of folders and links, each with a disk that some host really has.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::discover::{boot_id_in, discover_in};
use super::substrate::{Facts, MAX_DEPTH, MIN_BLOCK, Roots};
use super::*;

/// A fake `/proc` and `/sys`.
struct Machine {
    root: tempfile::TempDir,
    roots: Roots,
    table: String,
    next_id: u64,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { proc: root.path().join("proc"), sys: root.path().join("sys") };
        for dir in ["proc/self", "sys/dev/block", "sys/class/block", "sys/devices"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        Self { root, roots, table: String::new(), next_id: 20 }
    }

    fn put(&self, file: PathBuf, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }

    /// A device at a path below `/sys/devices`, with the links that lead to it.
    fn device(&self, path: &str, number: &str) -> PathBuf {
        let dir = self.roots.sys.join("devices").join(path);
        self.put(dir.join("dev"), number);
        symlink(&dir, self.roots.sys.join("dev/block").join(number)).unwrap();
        symlink(&dir, self.roots.sys.join("class/block").join(dir.file_name().unwrap())).unwrap();
        dir
    }

    fn queue(&self, dir: &Path, cache: &str, fua: u8, physical: u32) {
        self.put(dir.join("queue/write_cache"), cache);
        self.put(dir.join("queue/fua"), &fua.to_string());
        self.put(dir.join("queue/physical_block_size"), &physical.to_string());
        self.put(dir.join("queue/logical_block_size"), "512");
        self.put(dir.join("queue/rotational"), "0");
    }

    fn disk(&self, path: &str, number: &str, cache: &str) -> PathBuf {
        let dir = self.device(path, number);
        self.queue(&dir, cache, 0, 512);
        dir
    }

    fn partition(&self, disk: &str, name: &str, number: &str) -> PathBuf {
        let dir = self.device(&format!("{disk}/{name}"), number);
        self.put(dir.join("partition"), "1");
        dir
    }

    fn slave(&self, of: &Path, on: &Path) {
        fs::create_dir_all(of.join("slaves")).unwrap();
        symlink(on, of.join("slaves").join(on.file_name().unwrap())).unwrap();
    }

    fn loop_device(&self, name: &str, number: &str, cache: &str, file: &str) -> PathBuf {
        let dir = self.disk(&format!("virtual/block/{name}"), number, cache);
        self.put(dir.join("loop/backing_file"), file);
        self.put(dir.join("loop/dio"), "0");
        dir
    }

    fn mount(&mut self, number: &str, point: &str, options: &str, kind: &str, source: &str, more: &str) {
        self.next_id += 1;
        let id = self.next_id;
        self.table.push_str(&format!("{id} 1 {number} / {point} {options} shared:1 - {kind} {source} {more}\n"));
        fs::write(self.roots.proc.join("self/mountinfo"), &self.table).unwrap();
        if kind == "ext4" {
            self.journal(source.rsplit('/').next().unwrap(), "77");
        }
    }

    /// Adds the entry of an ext4's journal thread.
    fn journal(&self, name: &str, task: &str) {
        self.put(self.roots.sys.join("fs/ext4").join(name).join("journal_task"), task);
    }

    fn discover(&self, dir: &str) -> Substrate {
        discover_in(&self.roots, Path::new(dir), &|_| Some(Facts::default()))
    }
}

fn plain() -> Machine {
    let mut m = Machine::new();
    let disk = m.disk("pci0/virtio1/block/vda", "254:0", "write back");
    m.queue(&disk, "write back", 0, 4096);
    m.partition("pci0/virtio1/block/vda", "vda1", "254:1");
    m.mount("254:1", "/", "rw,relatime", "ext4", "/dev/vda1", "rw,errors=remount-ro");
    m
}

fn names(s: &Substrate) -> Vec<&str> {
    s.devices.iter().map(|d| d.name.as_str()).collect()
}

fn because(s: &Substrate, word: bool) -> Vec<Obstacle> {
    match s.durability_class(word) {
        DurabilityClass::Written { because } => because,
        DurabilityClass::Durable { .. } => panic!("durable on {s}"),
    }
}

fn option_of(filesystem: &str, option: &str) -> Vec<Obstacle> {
    vec![Obstacle::Option { filesystem: filesystem.into(), option: option.into() }]
}

#[test]
fn a_partition_of_a_virtio_disk() {
    let s = plain().discover("/var/lib/clad");
    assert_eq!(s.filesystem, "ext4");
    assert_eq!(s.mount_options, ["rw", "relatime", "errors=remount-ro"]);
    assert_eq!(names(&s), ["vda1", "vda"]);
    assert_eq!(s.devices[0].kind, DeviceKind::Partition);
    assert_eq!((s.devices[0].leaf, s.devices[1].leaf), (false, true));
    assert_eq!(s.devices[1].write_cache, WriteCache::WriteBack);
    assert!(s.hypervisor, "virtio is a hint");
    assert!(s.zeroing_pays());
    assert_eq!(s.block_size, 4096);
    assert_eq!(s.durability_class(false), DurabilityClass::Durable { by_word: Vec::new() });
    assert_eq!(s.volatile_cache().as_deref(), Some("vda has a write cache: write back"));
    assert_eq!(s.notes, [""; 0]);
    assert_eq!(
        s.summary(),
        "ext4 on /, vda1 (partition virtio, write back), vda (disk virtio, write back), block 4096, direct I/O \
         unknown, virtual machine"
    );
}

#[test]
fn encryption_over_raid_over_two_drives_of_which_one_is_volatile() {
    let mut m = Machine::new();
    let (a, b) = (m.disk("nvme/nvme0n1", "259:0", "write back"), m.disk("nvme/nvme1n1", "259:1", "write through"));
    m.queue(&b, "write through", 1, 16384);
    let part = m.partition("nvme/nvme0n1", "nvme0n1p2", "259:2");
    let md = m.disk("virtual/block/md0", "9:0", "write back");
    m.put(md.join("md/level"), "raid1");
    m.slave(&md, &part);
    m.slave(&md, &b);
    let dm = m.disk("virtual/block/dm-0", "253:0", "write back");
    m.put(dm.join("dm/name"), "crypt");
    m.slave(&dm, &md);
    m.mount("253:0", "/var", "rw", "xfs", "/dev/mapper/crypt", "rw");
    let s = m.discover("/var/lib/clad");
    assert_eq!(names(&s), ["dm-0", "md0", "nvme0n1p2", "nvme0n1", "nvme1n1"]);
    assert_eq!(s.devices.iter().filter(|d| d.leaf).count(), 2);
    assert_eq!(s.block_size, 16384);
    assert!(s.devices[4].fua);
    assert!(s.volatile_cache().is_some() && s.durability_class(false).is_durable() && s.zeroing_pays());

    // The mapper that lets no flush through, above a cache that needs it.
    m.queue(&dm, "write through", 0, 512);
    let s = m.discover("/var/lib/clad");
    assert_eq!(because(&s, false), [Obstacle::FlushStops("dm-0".into())]);
    assert!(s.durability_class(true).is_durable());

    // Where nothing is volatile there is nothing to flush.
    for disk in [&a, &b, &md] {
        m.queue(disk, "write through", 0, 512);
    }
    let s = m.discover("/var/lib/clad");
    assert_eq!(s.volatile_cache(), None);
    assert_eq!(s.durability_class(false), DurabilityClass::Durable { by_word: Vec::new() });
}

#[test]
fn a_loop_device_leads_to_the_file_system_of_its_file() {
    let mut m = plain();
    let dir = m.loop_device("loop3", "7:3", "write back", "/srv/disk.img");
    m.mount("7:3", "/mnt/log", "rw", "ext4", "/dev/loop3", "rw");
    let s = m.discover("/mnt/log");
    assert_eq!(names(&s), ["loop3", "vda1", "vda"]);
    assert_eq!(s.below.len(), 1);
    assert_eq!(s.below[0].mount_point, Path::new("/"));
    assert!(s.durability_class(false).is_durable() && s.volatile_cache().is_some());

    // Without flushes its file stays in the page cache, which the operator's word cannot make safe.
    m.queue(&dir, "write through", 0, 512);
    let s = m.discover("/mnt/log");
    assert_eq!(because(&s, true), [Obstacle::LoopWithoutFlush("loop3".into())]);
    // With direct I/O the disk's cache is what is left to flush.
    m.put(dir.join("loop/dio"), "1");
    assert_eq!(because(&m.discover("/mnt/log"), false), [Obstacle::FlushStops("loop3".into())]);
}

#[test]
fn what_the_file_of_a_loop_device_lies_on_counts_too() {
    let mut m = plain();
    m.loop_device("loop0", "7:0", "write back", "/tmp/disk.img");
    m.mount("0:30", "/tmp", "rw", "tmpfs", "tmpfs", "rw,size=1g");
    m.mount("7:0", "/mnt/log", "rw", "xfs", "/dev/loop0", "rw");
    let s = m.discover("/mnt/log");
    assert_eq!(because(&s, true), [Obstacle::MemoryFilesystem("tmpfs".into())]);
    assert_eq!(s.summary().split(", ").nth(1), Some("over tmpfs on /tmp"));
}

#[test]
fn a_loop_device_on_itself_ends() {
    let mut m = Machine::new();
    m.loop_device("loop0", "7:0", "write back", "/mnt/a/disk.img");
    m.mount("7:0", "/mnt/a", "rw", "ext4", "/dev/loop0", "rw");
    let s = m.discover("/mnt/a");
    assert_eq!(names(&s), ["loop0"]);
    assert!(s.volatile_cache().is_some());
}

#[test]
fn slaves_in_a_circle_and_without_end_are_bounded() {
    let mut m = Machine::new();
    let (a, b) = (m.disk("dm-0", "253:0", "write through"), m.disk("dm-1", "253:1", "write through"));
    m.slave(&a, &b);
    m.slave(&b, &a);
    m.mount("253:0", "/a", "rw", "xfs", "/dev/dm-0", "rw");
    assert!(!m.discover("/a").durability_class(false).is_durable(), "a circle is volatile, and nothing here flushes");

    let tower: Vec<_> = (2..40).map(|i| m.disk(&format!("dm-{i}"), &format!("253:{i}"), "write back")).collect();
    tower.windows(2).for_each(|pair| m.slave(&pair[0], &pair[1]));
    m.mount("253:2", "/b", "rw", "xfs", "/dev/dm-2", "rw");
    let s = m.discover("/b");
    assert_eq!(s.devices.len(), MAX_DEPTH + 1);
    assert!(s.notes[0].contains("too many devices"), "{:?}", s.notes);
}

#[test]
fn memory_is_never_durable() {
    let mut m = plain();
    m.mount("0:25", "/dev/shm", "rw,nosuid", "tmpfs", "tmpfs", "rw");
    let s = m.discover("/dev/shm/clad");
    assert_eq!(because(&s, true), [Obstacle::MemoryFilesystem("tmpfs".into())]);
    assert!(!s.zeroing_pays() && s.notes.is_empty());
    assert_eq!(s.durability_class(true).to_string(), "written, because tmpfs keeps its files in memory");

    m.disk("virtual/block/zram0", "252:0", "write through");
    m.mount("252:0", "/fast", "rw", "ext4", "/dev/zram0", "rw");
    assert_eq!(because(&m.discover("/fast"), true), [Obstacle::MemoryDevice("zram0".into())]);
}

#[test]
fn an_overlay_needs_a_word_and_a_volatile_one_gets_none() {
    let mut m = plain();
    m.mount("0:40", "/c1", "rw", "overlay", "overlay", "rw,lowerdir=/l,upperdir=/up,workdir=/w");
    m.mount("0:41", "/c2", "rw", "overlay", "overlay", "rw,lowerdir=/l,upperdir=/up,workdir=/w,volatile");
    let s = m.discover("/c1/log");
    assert_eq!(because(&s, false), [Obstacle::Stacked("overlay".into())]);
    assert!(s.durability_class(true).is_durable() && !s.zeroing_pays());
    assert_eq!(names(&s), ["vda1", "vda"], "the upper folder's devices");
    assert_eq!(because(&m.discover("/c2/log"), true), option_of("overlay", "volatile"));

    // Inside a container the upper folder belongs to another namespace.
    let hidden = |p: &Path| (p != Path::new("/up")).then(Facts::default);
    let s = discover_in(&m.roots, Path::new("/c1"), &hidden);
    assert!(s.notes[0].contains("not visible"), "{:?}", s.notes);
    assert_eq!(s.devices[0].kind, DeviceKind::Unknown);
}

#[test]
fn network_and_fuse_need_a_word() {
    let mut m = plain();
    m.mount("0:50", "/n", "rw", "nfs4", "server:/export", "rw,vers=4.2");
    m.mount("0:51", "/f", "rw", "fuse.sshfs", "me@host:", "rw,user_id=0");
    let (n, f) = (m.discover("/n"), m.discover("/f"));
    assert_eq!(because(&n, false), [Obstacle::Network("nfs4".into())]);
    assert_eq!(because(&f, false), [Obstacle::Fuse("fuse.sshfs".into())]);
    assert!(n.durability_class(true).is_durable() && f.durability_class(true).is_durable());
    assert!(
        n.durability_class(true).to_string().starts_with("durable, by the operator's word although nfs4 is a network")
    );
    assert!(n.volatile_cache().is_some());
}

/// Also where it is below: the file of a loop device.
#[test]
fn zfs_needs_a_word_for_what_its_property_decides() {
    let mut m = plain();
    m.mount("0:60", "/z", "rw", "zfs", "tank/log", "rw,xattr,noacl");
    let z = m.discover("/z");
    assert_eq!(because(&z, false), [Obstacle::Property("zfs".into())]);
    assert_eq!(
        z.durability_class(true).to_string(),
        "durable, by the operator's word although zfs does not show whether a sync waits here, which its property sync decides"
    );
    assert_eq!(z.notes, ["tank/log: zfs does not say which devices it stands on; it counts as volatile"]);
    m.loop_device("loop0", "7:0", "write back", "/z/file");
    m.mount("7:0", "/l", "rw", "ext4", "/dev/loop0", "rw");
    assert_eq!(because(&m.discover("/l"), false), [Obstacle::Property("zfs".into())]);
}

/// Only measured or read file systems are trusted. JFS, for one, flushes nothing.
#[test]
fn a_file_system_that_nobody_measured_needs_a_word() {
    for (filesystem, measured) in [
        ("ext4", true),
        ("xfs", true),
        ("btrfs", true),
        ("f2fs", true),
        ("ext2", false),
        ("ext3", false),
        ("jfs", false),
        ("gfs2", false),
        ("bcachefs", false),
        ("vfat", false),
    ] {
        let mut m = Machine::new();
        m.disk("pci/vda", "254:0", "write back");
        m.mount("254:0", "/", "rw", filesystem, "/dev/vda", "rw");
        let s = m.discover("/");
        assert_eq!(s.durability_class(false).is_durable(), measured, "{filesystem}: {}", s.durability_class(false));
        assert!(s.durability_class(true).is_durable(), "{filesystem}");
        // Also where it is below: the file of a loop device.
        m.loop_device("loop0", "7:0", "write back", "/file");
        m.mount("7:0", "/l", "rw", "xfs", "/dev/loop0", "rw");
        assert_eq!(m.discover("/l").durability_class(false).is_durable(), measured, "xfs over {filesystem}");
        if !measured {
            assert_eq!(because(&s, false), [Obstacle::Unmeasured(filesystem.into())]);
        }
    }
}

#[test]
fn an_ext4_without_a_journal_needs_a_word() {
    let m = plain();
    let no_journal = [Obstacle::NoJournal("ext4".into())];
    assert_eq!(m.discover("/").journaled, Some(true));
    m.journal("vda1", "<none>");
    assert_eq!(because(&m.discover("/"), false), no_journal);
    assert!(m.discover("/").durability_class(true).is_durable());
    // A kernel that does not name the thread shows the mode of data, where there is a journal.
    fs::remove_dir_all(m.roots.sys.join("fs")).unwrap();
    let s = m.discover("/");
    assert!(
        because(&s, false) == no_journal && s.notes[0].contains("vda1 has a journal cannot be read"),
        "{:?}",
        s.notes
    );
    for (options, journaled) in [("rw\nbarrier\ndata=ordered\n", true), ("rw\nbarrier\nnojournal_checksum\n", false)] {
        m.put(m.roots.proc.join("fs/ext4/vda1/options"), options);
        assert_eq!(
            (m.discover("/").journaled, m.discover("/").durability_class(false).is_durable()),
            (Some(journaled), journaled)
        );
    }
    // A range sync is not more than a sync either, whatever the disk reports about its cache.
    let mut m = Machine::new();
    m.disk("pci/sda", "8:0", "write through");
    m.mount("8:0", "/", "rw", "ext4", "/dev/sda", "rw");
    m.journal("sda", "<none>");
    assert!(matches!(m.discover("/").range_sync(false), Err(RangeRefusal::Unreachable { .. })));
    assert_eq!(m.discover("/").range_sync(true), Ok(RangeGrounds::WriteThrough));
}

#[test]
fn barriers_switched_off_are_refused() {
    for option in ["nobarrier", "barrier=0"] {
        let mut m = Machine::new();
        m.disk("pci/vda", "254:0", "write back");
        m.mount("254:0", "/", "rw", "ext4", "/dev/vda", &format!("rw,{option}"));
        assert_eq!(because(&m.discover("/"), true), option_of("ext4", option));
    }
}

#[test]
fn what_cannot_be_resolved_is_volatile_and_says_so() {
    let mut m = Machine::new();
    m.mount("8:1", "/", "rw", "ext4", "/dev/sda1", "rw");
    let s = m.discover("/");
    assert_eq!((names(&s), s.devices[0].write_cache), (vec!["8:1"], WriteCache::Unknown));
    assert_eq!(s.volatile_cache().as_deref(), Some("8:1 has a write cache: cache unknown"));
    assert_eq!(s.notes, ["8:1: the device is not in /sys; it counts as volatile"]);
    assert!(s.durability_class(false).is_durable(), "a sync flushes what is there, whatever it is");

    let nothing = Machine::new().discover("/var");
    assert_eq!(nothing.filesystem, "unknown");
    assert_eq!(nothing.notes.len(), 2);
    assert!(nothing.volatile_cache().is_some() && !nothing.zeroing_pays());
}

#[test]
fn a_cache_that_somebody_declared_safe_needs_a_word() {
    let mut m = Machine::new();
    let disk = m.disk("pci/vda", "254:0", "write through");
    m.put(disk.join("cache_type"), "write back");
    m.mount("254:0", "/", "rw", "ext4", "/dev/vda", "rw");
    let s = m.discover("/");
    assert_eq!(because(&s, false), [Obstacle::FlushStops("vda".into())]);
    assert!(s.durability_class(true).is_durable() && s.volatile_cache().is_some());
}

/// One disk of this kind under a file system of this type, with these options.
fn range_sync(cache: &str, filesystem: &str, options: &str, word: bool) -> Result<RangeGrounds, RangeRefusal> {
    let mut m = Machine::new();
    m.disk("pci/sda", "8:0", cache);
    m.partition("pci/sda", "sda1", "8:1");
    m.mount("8:1", "/", "rw", filesystem, "/dev/sda1", options);
    m.discover("/var/lib/clad").range_sync(word)
}

#[test]
fn a_range_sync_needs_ext4_or_xfs_and_no_volatile_cache_or_a_word() {
    for filesystem in ["ext4", "xfs"] {
        assert_eq!(range_sync("write through", filesystem, "rw", false), Ok(RangeGrounds::WriteThrough));
        assert_eq!(range_sync("write through", filesystem, "rw", true), Ok(RangeGrounds::WriteThrough));
        for cache in ["write back", ""] {
            let refused = range_sync(cache, filesystem, "rw", false);
            assert!(
                matches!(&refused, Err(RangeRefusal::VolatileCache { cache }) if cache.starts_with("sda ")),
                "{refused:?}"
            );
            assert_eq!(range_sync(cache, filesystem, "rw", true), Ok(RangeGrounds::Stated));
        }
    }
    for filesystem in ["ext2", "ext3", "btrfs", "f2fs", "tmpfs", "nfs4", "overlay", "fuse.sshfs", "zfs"] {
        for word in [false, true] {
            let refused = range_sync("write through", filesystem, "rw", word);
            assert_eq!(refused, Err(RangeRefusal::Filesystem { filesystem: filesystem.into() }));
        }
    }
    assert_eq!(range_sync("write through", "ext4", "rw,data=journal", true), Err(RangeRefusal::DataJournal));
    assert!(range_sync("write through", "ext4", "rw,data=ordered", false).is_ok());
    let refused = range_sync("write through", "ext4", "rw,nobarrier", true).unwrap_err();
    assert!(refused.to_string().contains("mounted with nobarrier"), "{refused}");
}

#[test]
fn a_range_sync_looks_at_the_leaves() {
    let mut m = Machine::new();
    let (a, b) = (m.disk("nvme/nvme0n1", "259:0", "write through"), m.disk("nvme/nvme1n1", "259:1", "write through"));
    let md = m.disk("virtual/block/md0", "9:0", "write back");
    m.put(md.join("md/level"), "raid1");
    m.slave(&md, &a);
    m.slave(&md, &b);
    m.mount("9:0", "/var", "rw", "xfs", "/dev/md0", "rw");
    assert_eq!(m.discover("/var/x").range_sync(false), Ok(RangeGrounds::WriteThrough), "what the leaves say counts");
    m.queue(&b, "write back", 0, 512);
    let refused = m.discover("/var/x").range_sync(false).unwrap_err();
    assert!(refused.to_string().contains("nvme1n1 has a write cache: write back"), "one of them is enough: {refused}");
    assert!(refused.to_string().contains("journal.power_loss_protected = true"), "{refused}");

    // A cache that somebody declared safe by hand.
    let disk = m.disk("pci/vda", "254:0", "write through");
    m.put(disk.join("cache_type"), "write back");
    m.mount("254:0", "/", "rw", "ext4", "/dev/vda", "rw");
    let refused = m.discover("/srv").range_sync(false).unwrap_err();
    assert!(refused.to_string().contains("vda was set to write through by hand"), "{refused}");
    assert_eq!(m.discover("/srv").range_sync(true), Ok(RangeGrounds::Stated));
}

#[test]
fn a_range_sync_on_a_loop_device_needs_the_word_and_its_flushes() {
    let mut m = Machine::new();
    m.disk("pci/sda", "8:0", "write through");
    m.mount("8:0", "/", "rw", "ext4", "/dev/sda", "rw");
    let dir = m.loop_device("loop3", "7:3", "write back", "/srv/disk.img");
    m.mount("7:3", "/mnt/log", "rw", "xfs", "/dev/loop3", "rw");
    let asked = |m: &Machine, word| m.discover("/mnt/log").range_sync(word);
    let refused = asked(&m, false).unwrap_err();
    assert!(refused.to_string().contains("loop3 is a file on another file system"), "{refused}");
    assert_eq!(asked(&m, true), Ok(RangeGrounds::Stated));
    // Its file stays in the page cache; a battery does not help.
    m.queue(&dir, "write through", 0, 512);
    for word in [false, true] {
        let refused = asked(&m, word).unwrap_err();
        assert!(matches!(refused, RangeRefusal::Unreachable { .. }), "{refused}");
        assert!(refused.to_string().contains("loop3 is a file in the page cache"), "{refused}");
    }
}

#[test]
fn the_longest_mount_wins_with_its_name_decoded() {
    let mut m = plain();
    m.mount("0:60", r"/var/my\040logs\134", "rw", "tmpfs", "tmpfs", "rw");
    m.mount("254:1", "/var", "rw", "ext4", "/dev/vda1", "rw");
    assert_eq!(m.discover(r"/var/my logs\/clad").mount_point, Path::new(r"/var/my logs\"));
    assert_eq!(m.discover("/var/my logsX").mount_point, Path::new("/var"), "whole components only");
    // A later mount on the same place covers the one before it, unless the kernel names the mount.
    m.mount("0:61", "/var", "rw", "nfs", "s:/", "rw");
    assert_eq!(m.discover("/var/x").filesystem, "nfs");
    let by_id = |_: &Path| Some(Facts { mount_id: Some(23), ..Facts::default() });
    assert_eq!(discover_in(&m.roots, Path::new("/var/x"), &by_id).filesystem, "ext4");
    let by_number = |_: &Path| Some(Facts { dev: Some((254, 1)), ..Facts::default() });
    assert_eq!(discover_in(&m.roots, Path::new("/var/x"), &by_number).mount_point, Path::new("/var"));
}

#[test]
fn the_magic_number_overrules_a_table_that_disagrees() {
    let m = plain();
    let tmpfs = |_: &Path| Some(Facts { magic: Some(0x0102_1994), direct_align: Some(0), ..Facts::default() });
    let s = discover_in(&m.roots, Path::new("/"), &tmpfs);
    assert_eq!((s.filesystem.as_str(), s.direct_io), ("tmpfs", Some(false)));
    assert!(!s.durability_class(true).is_durable());
}

#[test]
fn a_btrfs_stands_on_all_its_members() {
    let mut m = Machine::new();
    let (a, b) = (m.disk("ata/sda", "8:0", "write through"), m.disk("ata/sdb", "8:16", "write back"));
    m.mount("0:70", "/", "rw", "btrfs", "/dev/sda", "rw,subvolid=5");
    assert!(m.discover("/").notes[0].contains("members of the btrfs are not listed"));
    let pool = m.roots.sys.join("fs/btrfs/4f1c/devices");
    fs::create_dir_all(&pool).unwrap();
    symlink(&a, pool.join("sda")).unwrap();
    symlink(&b, pool.join("sdb")).unwrap();
    let s = m.discover("/home");
    assert_eq!((names(&s), s.notes.len()), (vec!["sda", "sdb"], 0));
    assert!(s.volatile_cache().is_some() && !s.zeroing_pays());
}

#[test]
fn a_boot_id_is_sixteen_bytes_or_nothing() {
    let m = Machine::new();
    assert_eq!(boot_id_in(&m.roots), None);
    let file = m.root.path().join("proc/sys/kernel/random/boot_id");
    m.put(file.clone(), "00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(boot_id_in(&m.roots).map(u128::from_be_bytes), Some(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
    m.put(file, "00112233-4455-6677-8899-aabbccddeefg");
    assert_eq!(boot_id_in(&m.roots), None);
}

#[test]
fn this_machine_is_described_consistently() {
    let dir = tempfile::tempdir().unwrap();
    let s = discover(dir.path());
    assert_eq!(s, discover(&dir.path().join("not/there/yet")), "a missing folder is judged by the nearest above it");
    assert!(dir.path().canonicalize().unwrap().starts_with(&s.mount_point), "{s}");
    assert!(s.block_size >= MIN_BLOCK && s.block_size.is_power_of_two());
    assert!(s.devices.iter().all(|d| d.physical_block <= s.block_size));
    assert!(!s.notes.is_empty() || s.devices.iter().all(|d| d.write_cache != WriteCache::Unknown), "said if unknown");
    assert!(
        s.durability_class(true).is_durable() || !s.durability_class(false).is_durable(),
        "a word never takes away"
    );
    assert!(s.summary().starts_with(&s.filesystem));
    assert_eq!(boot_id(), boot_id());
}
