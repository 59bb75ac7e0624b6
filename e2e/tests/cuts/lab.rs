//! The recording device with one disk for each file system, freshly made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clad_e2e::Rng;
use clad_e2e::cuts::inside::disk_name;
use clad_e2e::cuts::{Cache, Cut, CutResult, Device, Disk, Event, Filesystem, Pages, Trace};

/// How slow the recording device is: at most so many microseconds for a write and for a flush.
pub(crate) const DEVICE_DELAY_MAX_US: (u64, u64) = (300, 800);

/// One disk, and what is on it when its file system was just made.
pub(crate) struct Bench {
    pub(crate) disk: Disk,
    pub(crate) empty: Arc<Pages>,
    pub(crate) folder: PathBuf,
}

/// The recording device.
pub(crate) struct Lab {
    pub(crate) benches: Vec<Bench>,
    _device: Device,
}

impl Lab {
    /// With these file systems.
    pub(crate) fn new(folder: &Path, filesystems: &[Filesystem]) -> CutResult<Self> {
        let point = folder.join("device");
        std::fs::create_dir_all(&point).map_err(|e| e.to_string())?;
        let name = |filesystem: &Filesystem| disk_name(folder, filesystem.name());
        let files: Vec<_> = filesystems.iter().map(|one| (name(one), one.disk_bytes())).collect();
        let device = Device::serve(&point, &files)?;
        let mut benches = Vec::new();
        for filesystem in filesystems {
            let file = point.join(name(filesystem));
            let disk = Disk::attach(*filesystem, device.recorder(&name(filesystem)), &file, folder)?;
            disk.set_cache(Cache::Volatile)?;
            let empty = disk.make()?;
            benches.push(Bench { disk, empty, folder: folder.to_owned() });
        }
        Ok(Self { benches, _device: device })
    }
}

/// Places to cut between two events: half of them right behind something that was said, where a lie shows.
pub(crate) fn places(
    trace: &Trace,
    from: usize,
    count: usize,
    rng: &mut Rng,
    is_report: fn(&Event) -> bool,
) -> Vec<Cut> {
    let end = trace.events.len();
    let reports: Vec<usize> = (from..end).filter(|at| is_report(&trace.events[*at])).collect();
    let mut cuts = Vec::new();
    for _ in 0..count {
        let anywhere = from as u64 + rng.below((end - from) as u64 + 1);
        let at =
            if rng.coin() && !reports.is_empty() { reports[rng.index(reports.len())] + 1 } else { anywhere as usize };
        cuts.push(Cut::new(at, rng.number() >> 16));
    }
    cuts
}
