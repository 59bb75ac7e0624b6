//! A disk that the kernel knows: a loop device over a file of the recording device, and a file system on it.
//!
//! Invariants: the loop device writes around the page cache, and says of its own cache what the test says, which is
//! read back, because the setting outlives who made it. Nothing is discarded, and nothing is initialised later than
//! `mkfs`. To programs inside it looks like a plain disk with that cache: the file below stands for the hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::device::Recorder;
use super::{Cache, CutResult, Pages};

/// A file system is busy for a moment after a process in it has ended; so often is it asked again.
const UNMOUNT_ATTEMPTS_MAX: u32 = 500;
const UNMOUNT_RETRY_DELAY: Duration = Duration::from_millis(2);

const NOT_MOUNTED: &str = "does not mount what the cut has left";

/// Whether an error says that the file system itself did not survive the cut: the kernel does not mount it, or calls
/// its structure damaged (EUCLEAN, EBADMSG).
#[must_use]
pub fn is_of_filesystem(error: &str) -> bool {
    [NOT_MOUNTED, "(os error 117)", "(os error 74)"].iter().any(|words| error.contains(words))
}

/// A file system that the log may stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filesystem {
    /// ext4
    Ext4,
    /// xfs
    Xfs,
    /// btrfs
    Btrfs,
}

impl Filesystem {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// Its name, for people and for `mount`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The one of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|filesystem| filesystem.name() == name)
    }

    /// How large a disk it gets: near the least that its `mkfs` takes.
    #[must_use]
    pub const fn disk_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 64 << 20,
            Self::Xfs => 320 << 20,
            Self::Btrfs => 160 << 20,
        }
    }

    const fn make(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => {
                &["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]
            }
            Self::Xfs => &["mkfs.xfs", "-q", "-f", "-K"],
            Self::Btrfs => &["mkfs.btrfs", "-q", "-f", "-K", "-m", "single"],
        }
    }

    /// Options of the mount: a copy of an xfs has the id of the original.
    const fn options(self) -> &'static str {
        match self {
            Self::Ext4 => "nodiscard",
            Self::Xfs => "nodiscard,nouuid",
            Self::Btrfs => "nodiscard",
        }
    }
}

/// A loop device over a recorder, and where it is mounted.
#[derive(Debug)]
pub struct Disk {
    filesystem: Filesystem,
    recorder: Recorder,
    /// `loop7`
    name: String,
    /// Its folder in a `/sys` that shows it as it is.
    sys: PathBuf,
    /// A folder that programs see instead of it.
    shown: PathBuf,
    point: PathBuf,
    attached: bool,
    mounted: bool,
}

impl Disk {
    /// Attaches a loop device to a file of the recording device. `folder` is for its mount point.
    ///
    /// # Errors
    /// When the system does not do so.
    pub fn attach(filesystem: Filesystem, recorder: Recorder, file: &Path, folder: &Path) -> CutResult<Self> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let device = output(&mut losetup)?.trim().to_owned();
        let name = device.trim_start_matches("/dev/").to_owned();
        let (point, shown) = (folder.join(format!("{name}-mount")), folder.join(format!("{name}-shown")));
        let mut disk = Self {
            filesystem,
            recorder,
            sys: real_sys(folder)?.join("block").join(&name),
            name,
            shown,
            point,
            attached: true,
            mounted: false,
        };
        disk.show()?;
        Ok(disk)
    }

    /// What is recorded of it.
    #[must_use]
    pub const fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Its file system.
    #[must_use]
    pub const fn filesystem(&self) -> Filesystem {
        self.filesystem
    }

    /// Where it is mounted, when it is.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// A folder for programs that look into `/sys`: a disk of that number, and what it says about its cache.
    fn show(&mut self) -> CutResult {
        fs::create_dir_all(&self.point).map_err(|e| e.to_string())?;
        fs::create_dir_all(self.shown.join("queue")).map_err(|e| e.to_string())?;
        for file in ["dev", "size", "queue/write_cache", "queue/fua", "queue/rotational"]
            .into_iter()
            .chain(["queue/logical_block_size", "queue/physical_block_size"])
        {
            let text = fs::read(self.sys.join(file)).map_err(|e| format!("{}: {e}", self.sys.join(file).display()))?;
            fs::write(self.shown.join(file), text).map_err(|e| e.to_string())?;
        }
        let real = fs::canonicalize(Path::new("/sys/block").join(&self.name)).map_err(|e| e.to_string())?;
        bind(&self.shown, &real)
    }

    /// Sets what it says about its cache, and looks whether it says so.
    ///
    /// # Errors
    /// When it says something else.
    pub fn set_cache(&self, cache: Cache) -> CutResult {
        let file = self.sys.join("queue/write_cache");
        fs::write(&file, cache.queue_name()).map_err(|e| format!("{}: {e}", file.display()))?;
        let said = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        if said.trim() != cache.queue_name() {
            return Err(format!("{} says {said:?} after {:?} was written to it", file.display(), cache.queue_name()));
        }
        let direct = fs::read_to_string(self.sys.join("loop/dio")).map_err(|e| e.to_string())?;
        if direct.trim() != "1" {
            return Err(format!("{} goes through the page cache", self.name));
        }
        fs::write(self.shown.join("queue/write_cache"), said).map_err(|e| e.to_string())
    }

    /// Makes its file system on an empty disk; what is on it then.
    ///
    /// # Errors
    /// When `mkfs` fails.
    pub fn make(&self) -> CutResult<Arc<Pages>> {
        self.recorder.insert(Arc::default(), Pages::default());
        let words = self.filesystem.make();
        let mut command = Command::new(words[0]);
        output(command.args(&words[1..]).arg(self.device()))?;
        Ok(Arc::new(self.recorder.pages()))
    }

    fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Mounts it: the kernel repairs what a cut has left.
    ///
    /// # Errors
    /// When the kernel does not.
    pub fn mount(&mut self) -> CutResult {
        let filesystem = self.filesystem;
        mount(Some(&self.device()), &self.point, Some(filesystem.name()), MsFlags::empty(), Some(filesystem.options()))
            .map_err(|e| format!("{} {NOT_MOUNTED}: {e}", filesystem.name()))?;
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When it stays busy.
    pub fn unmount(&mut self) -> CutResult {
        if !self.mounted {
            return Ok(());
        }
        let mut tries = 0;
        while let Err(error) = umount2(&self.point, MntFlags::empty()) {
            tries += 1;
            if tries == UNMOUNT_ATTEMPTS_MAX {
                return Err(format!("{}: {error}", self.point.display()));
            }
            thread::sleep(UNMOUNT_RETRY_DELAY);
        }
        self.mounted = false;
        Ok(())
    }

    /// Unmounts it and lets the loop device go.
    ///
    /// # Errors
    /// When it stays busy.
    pub fn detach(mut self) -> CutResult {
        self.clear()
    }

    fn clear(&mut self) -> CutResult {
        self.unmount()?;
        if std::mem::take(&mut self.attached) {
            let _ = umount2(
                &fs::canonicalize(Path::new("/sys/block").join(&self.name)).unwrap_or_default(),
                MntFlags::MNT_DETACH,
            );
            let _ = fs::write(self.sys.join("queue/write_cache"), Cache::Volatile.queue_name());
            output(Command::new("losetup").arg("--detach").arg(self.device()))?;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("{} stays: {error}", self.name);
        }
    }
}

/// A second `/sys` in a folder, in which nothing is hidden.
fn real_sys(folder: &Path) -> CutResult<PathBuf> {
    let point = folder.join("sys");
    if !point.join("block").is_dir() {
        fs::create_dir_all(&point).map_err(|e| e.to_string())?;
        mount(Some("sysfs"), &point, Some("sysfs"), MsFlags::empty(), None::<&str>)
            .map_err(|e| format!("a second /sys: {e}"))?;
    }
    Ok(point)
}

/// The boot id that programs see from now on.
///
/// # Errors
/// When it cannot be put over the real one.
pub fn boot(folder: &Path, id: u128) -> CutResult {
    let digits = format!("{id:032x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    let file = folder.join("boot_id");
    let known = file.exists();
    fs::write(&file, format!("{}\n", parts.join("-"))).map_err(|e| e.to_string())?;
    if known { Ok(()) } else { bind(&file, Path::new("/proc/sys/kernel/random/boot_id")) }
}

fn bind(from: &Path, over: &Path) -> CutResult {
    mount(Some(from), over, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| format!("{} over {}: {e}", from.display(), over.display()))
}

/// Runs a program to its end; what it printed.
fn output(command: &mut Command) -> CutResult<String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{command:?} ended with {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
