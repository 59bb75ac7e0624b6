//! A start: the folder, its lock, `clad.meta`, then survey and plan.

use std::sync::Arc;

use super::execute;
use super::recovered::{Recovered, table};
use super::report::Report;
use super::survey::{self, Half, check_foreign, check_no_remains};
use crate::clock::{Clock, Moment};
use crate::config::JournalConfig;
use crate::env::Observer;
use crate::error::OpenError;
use crate::format::meta::NONE;
use crate::io::{Access, File, Lock, Storage};
use crate::write::metafile::{self, Loaded, MetaFile};

/// Opens or creates the log in a folder and recovers it.
///
/// # Errors
/// [`OpenError`]; nothing was changed when it is `Locked`, `Foreign`, `ForeignSegment`, `MetaLost`, `Remains` or
/// `Newer`.
pub(crate) fn start(
    storage: &dyn Storage,
    dir: &str,
    clock: &dyn Clock,
    config: &JournalConfig,
    observer: &Observer,
) -> Result<Recovered, OpenError> {
    let began = clock.boot_ns();
    check_foreign(storage, dir)?;
    let lock = take_lock(storage, dir)?;
    let entries = storage.list("").map_err(OpenError::io("list the data folder"))?;
    let found = survey::segments(&entries);
    let mut recovered = match metafile::load(storage).map_err(OpenError::io("read clad.meta"))? {
        Loaded::Newer(e) => return Err(OpenError::Newer(e.to_string())),
        Loaded::Lost if found.is_empty() => {
            check_no_remains(storage, dir, &entries)?;
            fresh(storage, lock, clock, config)?
        }
        Loaded::Lost => return Err(OpenError::MetaLost { dir: dir.to_owned(), segments: found.len() }),
        Loaded::Found { meta: said, slot, greatest_epoch, whole } => {
            let mut meta = said.clone();
            survey::adopt(storage, &mut meta, &found, whole, observer)?;
            let survey = survey::survey(storage, &meta, &found, observer)?;
            if !survey.missing.is_empty() {
                survey::sync_names(storage, &entries).map_err(OpenError::io("sync the data folder"))?;
            }
            let meta = MetaFile::open_with(storage, said, slot, meta).map_err(OpenError::io("write clad.meta"))?;
            survey::tidy_up(storage, &meta.get(), &entries, Half::Unsealed)?;
            let now = Moment { real_ns: clock.real_ns(), boot_ns: clock.boot_ns() };
            let mut recovered =
                execute::execute(storage, clock.boot_id(), now, config, meta, lock, survey, greatest_epoch, observer)?;
            // It has rewritten that slot.
            recovered.report.meta_slot = !whole;
            recovered
        }
    };
    survey::tidy_up(storage, &recovered.meta.get(), &entries, Half::Any)?;
    recovered.report.took_ns = clock.boot_ns().saturating_sub(began);
    Ok(recovered)
}

pub(crate) fn take_lock(storage: &dyn Storage, dir: &str) -> Result<Arc<dyn File>, OpenError> {
    let name = crate::format::LOCK_NAME;
    let file = match storage.create(name, Access::WriteCached) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => storage.open(name, Access::WriteCached),
        made => made,
    };
    lock(file.map_err(OpenError::io("open clad.lock"))?, dir)
}

/// Takes the lock of a folder by its file.
pub(crate) fn lock(file: Arc<dyn File>, dir: &str) -> Result<Arc<dyn File>, OpenError> {
    match file.try_lock(Lock::Exclusive).map_err(OpenError::io("lock clad.lock"))? {
        true => Ok(file),
        false => Err(OpenError::Locked { dir: dir.to_owned() }),
    }
}

fn fresh(
    storage: &dyn Storage,
    lock: Arc<dyn File>,
    clock: &dyn Clock,
    config: &JournalConfig,
) -> Result<Recovered, OpenError> {
    let mut log_id = [0; 16];
    clock.fill_random(&mut log_id).map_err(OpenError::io("make a log id"))?;
    let meta = MetaFile::create(storage, log_id, clock.real_ns()).map_err(OpenError::io("make clad.meta"))?;
    debug_assert_eq!(meta.get().highest_segment, NONE);
    let report = Report { fresh: true, clean: true, epoch: 1, ..Report::default() };
    Ok(Recovered { meta, lock, producers: table(config), sealed: Vec::new(), next_offset: 0, before: None, report })
}
