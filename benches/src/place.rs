//! Where a bench writes: a new folder on a file system that has a disk below it, or on a file system made for the run.
//!
//! Invariants: memory is refused (a sync of it is a no-op, and every figure would be one of nothing); nothing is left
//! behind; what the folder stands on goes into the results, with a word where it is a file and not a disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clad_journal::io::device::{self, Substrate, WriteCache};
use serde::{Deserialize, Serialize};

/// File systems in memory.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// Nothing of it is initialised later, in the background: that would be counted as the bench's.
const EXT4: &[&str] = &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
/// Bytes of a file system that is made for a run.
const IMAGE: u64 = 2 << 30;

/// Where to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// In the folder that is given.
    #[default]
    Folder,
    /// On an ext4 in a file in that folder, behind a loop device. Needs root.
    Ext4,
    /// On an xfs, likewise.
    Xfs,
}

/// A folder to write in; gone when dropped.
pub struct Place {
    // In this order: the folder goes before its file system does.
    folder: tempfile::TempDir,
    substrate: Substrate,
    _mount: Option<Mount>,
}

impl Place {
    /// Makes a folder below `dir`, or on a file system in a file there.
    ///
    /// # Errors
    /// `dir` is in memory, or cannot be written to; the file system cannot be made.
    pub fn new(dir: &Path, on: On) -> Result<Self> {
        refuse_memory(&device::discover(dir), dir)?;
        let mount = match on {
            On::Folder => None,
            On::Ext4 => Some(Mount::new(dir, "mkfs.ext4", EXT4)?),
            On::Xfs => Some(Mount::new(dir, "mkfs.xfs", &["-q", "-f"])?),
        };
        let below = mount.as_ref().map_or(dir, |mount| &mount.point);
        let folder = tempfile::Builder::new().prefix("clad-bench-").tempdir_in(below);
        let folder = folder.with_context(|| format!("cannot write in {}", below.display()))?;
        let substrate = device::discover(folder.path());
        Ok(Self { folder, substrate, _mount: mount })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What it stands on.
    #[must_use]
    pub fn substrate(&self) -> &Substrate {
        &self.substrate
    }

    /// The same for results.
    #[must_use]
    pub fn ground(&self) -> Ground {
        let leaves = self.substrate.devices.iter().filter(|device| device.leaf);
        let cache = |cache| match cache {
            WriteCache::WriteBack => "volatile write cache",
            WriteCache::WriteThrough => "no volatile write cache",
            WriteCache::Unknown => "a write cache that says nothing",
        };
        let device = |device: &device::Device| {
            let model = device.model.as_deref().unwrap_or("disk");
            format!("{model}, {}, {}", cache(device.write_cache), if device.fua { "FUA" } else { "no FUA" })
        };
        let disks: Vec<String> = leaves.map(device).collect();
        let filesystem = match self.substrate.below.first() {
            Some(layer) => {
                format!("{} in a file on {}, behind a loop device", self.substrate.filesystem, layer.filesystem)
            }
            None => self.substrate.filesystem.clone(),
        };
        Ground { filesystem, disks, range_sync_is_safe: self.substrate.range_sync(false).is_ok() }
    }
}

/// What a run stood on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    /// The file system, and the one below where it lies in a file.
    pub filesystem: String,
    /// Every disk at the bottom.
    pub disks: Vec<String>,
    /// Whether the kernel's word is enough for `sync_file_range` on written space.
    pub range_sync_is_safe: bool,
}

fn refuse_memory(substrate: &Substrate, dir: &Path) -> Result<()> {
    let kinds = std::iter::once(&substrate.filesystem).chain(substrate.below.iter().map(|layer| &layer.filesystem));
    for kind in kinds {
        ensure!(
            !MEMORY.contains(&kind.as_str()),
            "{} lies on {kind}, in memory: a sync does nothing there, and the figures would mean nothing; give a folder \
             on a disk",
            dir.display()
        );
    }
    Ok(())
}

/// A file system in a file.
struct Mount {
    point: PathBuf,
    device: Option<String>,
    mounted: bool,
    // The image and the point; after the rest.
    _folder: tempfile::TempDir,
}

impl Mount {
    fn new(dir: &Path, make: &str, options: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("clad-bench-disk-").tempdir_in(dir)?;
        let (point, image) = (folder.path().join("mount"), folder.path().join("image"));
        std::fs::create_dir(&point)?;
        // Allocated, so that what is measured is not how the outer file system finds blocks.
        let file = std::fs::File::create(&image)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, IMAGE)
            .with_context(|| format!("{IMAGE} bytes for a file system in {}", dir.display()))?;
        let mut mount = Self { point, device: None, mounted: false, _folder: folder };
        let device = said(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?;
        mount.device = Some(device.trim().to_owned());
        said(Command::new(make).args(options).arg(device.trim()))?;
        said(Command::new("mount").arg(device.trim()).arg(&mount.point))?;
        mount.mounted = true;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = !self.mounted || said(Command::new("umount").arg(&self.point)).is_ok();
        let detached = match &self.device {
            Some(device) => said(Command::new("losetup").arg("--detach").arg(device)).is_ok(),
            None => true,
        };
        if !unmounted || !detached {
            eprintln!("left behind: {} ({})", self.point.display(), self.device.as_deref().unwrap_or("no device"));
        }
    }
}

/// Runs a program to its end and answers what it printed.
///
/// # Errors
/// It cannot be run, or it failed; then with what it printed.
pub fn said(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let output_text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        bail!("{shown} ended with {}: {}", output.status, output_text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_refused() {
        // Every Linux that runs these tests has one: POSIX shared memory.
        let error = Place::new(Path::new("/dev/shm"), On::Folder).err().expect("refused");
        assert!(error.to_string().contains("tmpfs"), "{error}");
    }

    #[test]
    fn a_folder_is_gone_with_its_place() {
        let dir = crate::test_folder();
        let place = Place::new(dir.path(), On::Folder).expect("a folder");
        let path = place.path().to_owned();
        std::fs::write(path.join("file"), "x").expect("it can be written in");
        assert!(!place.ground().filesystem.is_empty());
        drop(place);
        assert!(!path.exists() && std::fs::read_dir(dir.path()).expect("it is there").next().is_none());
    }
}
