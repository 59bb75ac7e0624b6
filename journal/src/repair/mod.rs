//! Repairs a log that was damaged while no daemon ran, so that a start can resume.
//!
//! A start recovers by itself from every crash, and from damage that leaves the files' frame intact. This module
//! repairs damage that a start refuses or only skips: foreign files in the folder, segments of another log or under a
//! wrong name, a lost `clad.meta`, a header with a wrong byte, a missing footer below sealed segments.
//!
//! Invariants:
//! - Nothing is deleted. Names that are in the way go to `quarantine/`, and so does a copy of every block before it is
//!   changed, synced first.
//! - No valid record is abandoned, none is invented: bytes are accepted by their checksums alone.
//! - Each action by itself leaves a log that is no worse. A repair that is cut anywhere and run again reaches the same
//!   end; run again after its end, it has nothing to do.
//! - A start's conclusions from a lost slot of `clad.meta` are written before that slot is made again: a segment above
//!   those it names may be in use, though its first batch has bit rot.
//! - A dry run writes nothing and names the same actions.
//! - A folder that holds no log, or that nothing identifies, stays unchanged.
//! - The repair has the log alone: it holds `clad.lock`, and locks each segment without a footer before it reads it.

mod meta;
mod report;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::config::JournalConfig;
use crate::error::OpenError;
use crate::format::footer::Damage;
use crate::format::meta::{Meta, NONE};
use crate::format::segment::{HeaderError, SegmentHeader};
use crate::format::{META_NAME, segment_name};
use crate::io::{Access, OsStorage, Storage, device, if_there, is_bad_place};
use crate::recover::{self, PlanExecutor, State, header};
use crate::write::metafile::{self, Loaded, MetaFile};

pub use report::{Action, Left, RepairReport};

/// Repairs the log in a folder. Blocks while a dead process's writes are still under way.
///
/// # Errors
/// [`OpenError`]: `Locked` while a daemon has it, `Newer` when a newer clad wrote any of it (nothing is touched then),
/// `MetaLost` where neither `clad.meta` nor a header identifies the log.
pub fn repair(dir: &Path, dry_run: bool) -> Result<RepairReport, OpenError> {
    let name = dir.display().to_string();
    let substrate = device::discover(dir);
    let storage = OsStorage::open(dir, substrate.block_size, false).map_err(OpenError::io(name.clone()))?;
    repair_storage(&storage, &name, SystemClock::shared().as_ref(), dry_run)
}

/// As [`repair`], on any storage.
///
/// # Errors
/// As [`repair`].
pub fn repair_storage(
    storage: &dyn Storage,
    dir: &str,
    clock: &dyn Clock,
    dry_run: bool,
) -> Result<RepairReport, OpenError> {
    refuse_without_a_log(storage, dir)?;
    let _lock = match dry_run {
        true => look_at_lock(storage, dir)?,
        false => Some(recover::take_lock(storage, dir)?),
    };
    let mut repair = Repair {
        storage,
        clock,
        files: BTreeMap::new(),
        unreadable: Vec::new(),
        report: RepairReport { dry_run, ..RepairReport::default() },
    };
    repair.refuse_newer(dir)?;
    let meta = repair.whose(dir)?;
    repair.quarantine_foreign().map_err(OpenError::io("quarantine foreign names"))?;
    repair.quarantine_unreadable().map_err(OpenError::io("move unreadable segments away"))?;
    repair.put_in_order().map_err(OpenError::io("put segments in order"))?;
    let meta = repair.meta(meta).map_err(OpenError::io("make clad.meta"))?;
    let lost = repair.reseal(&meta)?;
    let noted = repair.change_meta(|now| {
        if lost.iter().all(|lost| meta.knows_lost(*lost)) {
            now.least_epoch = meta.least_epoch;
        }
        lost.into_iter().for_each(|lost| now.lose(lost));
    });
    noted.map_err(OpenError::io("write clad.meta"))?;
    Ok(repair.report)
}

/// Refuses a folder of anything else, named by mistake: not even a lock is made in it.
fn refuse_without_a_log(storage: &dyn Storage, dir: &str) -> Result<(), OpenError> {
    let entries = recover::list(storage, dir)?;
    match entries.iter().any(|entry| entry.name == META_NAME) || !recover::list_segments(&entries).is_empty() {
        true => Ok(()),
        false => Err(OpenError::MetaLost { dir: dir.to_owned(), segments: 0 }),
    }
}

/// Checks the lock. A dry run makes no lock file; where there is none, no daemon has the log.
fn look_at_lock(storage: &dyn Storage, dir: &str) -> Result<Option<Arc<dyn crate::io::File>>, OpenError> {
    let file = if_there(storage.open(crate::format::LOCK_NAME, Access::ReadCached));
    file.map_err(OpenError::io("open clad.lock"))?.map(|file| recover::lock(file, dir)).transpose()
}

/// A segment's file.
#[derive(Clone, Debug)]
struct Seen {
    /// The number in the name under which it was found.
    named: u64,
    /// The number in the name under which its bytes lie: a dry run moves nothing.
    lies_at: u64,
    len: u64,
    header: Result<SegmentHeader, HeaderError>,
}

impl Seen {
    fn is_misplaced(&self, number: u64) -> bool {
        self.header.as_ref().is_ok_and(|header| header.number != number)
    }
}

/// Content of `clad.meta`: its slot, and true if the other slot is valid as well.
struct Said {
    meta: Meta,
    slot: u64,
    whole: bool,
}

struct Repair<'a> {
    storage: &'a dyn Storage,
    clock: &'a dyn Clock,
    /// Segments by the number in their names, as they are or would be.
    files: BTreeMap<u64, Seen>,
    /// Segments whose header the device cannot read.
    unreadable: Vec<u64>,
    report: RepairReport,
}

impl Repair<'_> {
    fn dry(&self) -> bool {
        self.report.dry_run
    }

    /// Refuses data of a newer clad before anything is touched: it is for that version.
    fn refuse_newer(&mut self, dir: &str) -> Result<(), OpenError> {
        for (number, len) in recover::list_segments(&recover::list(self.storage, dir)?) {
            let header = match header::read(self.storage, number) {
                Err(e) if is_bad_place(&e) => {
                    self.unreadable.push(number);
                    continue;
                }
                read => read.map_err(OpenError::io(segment_name(number)))?,
            };
            if let Err(e @ (HeaderError::Newer { .. } | HeaderError::Feature { .. })) = &header {
                return Err(OpenError::Newer(format!("segment {number}: {e}")));
            }
            if let Ok(header) = &header {
                header.check_writable().map_err(|e| OpenError::Newer(format!("segment {number}: {e}")))?;
            }
            self.files.insert(number, Seen { named: number, lies_at: number, len, header });
        }
        Ok(())
    }

    fn quarantine_foreign(&mut self) -> std::io::Result<()> {
        for entry in self.storage.list("")? {
            if !recover::is_ours(&entry) {
                self.quarantine(&entry.name)?;
                self.report.actions.push(Action::QuarantinedForeign { name: entry.name });
            }
        }
        Ok(())
    }

    fn quarantine_unreadable(&mut self) -> std::io::Result<()> {
        for segment in std::mem::take(&mut self.unreadable) {
            self.quarantine(&segment_name(segment))?;
            self.report.actions.push(Action::QuarantinedUnreadable { segment });
        }
        Ok(())
    }

    /// Identifies the log: by `clad.meta`, else by most of the headers. Headers with one wrong byte count, and are
    /// corrected after the log is certain.
    fn whose(&mut self, dir: &str) -> Result<Option<Said>, OpenError> {
        let mut corrected = Vec::new();
        for (&number, seen) in self.files.iter_mut().filter(|(_, seen)| seen.header.is_err()) {
            let found = header::correct(self.storage, number).map_err(OpenError::io(segment_name(number)))?;
            if let Some((byte, header)) = found {
                seen.header = Ok(header.clone());
                corrected.push((byte, header));
            }
        }
        let mut said = match metafile::load(self.storage).map_err(OpenError::io("read clad.meta"))? {
            Loaded::Newer(e) => return Err(OpenError::Newer(e.to_string())),
            Loaded::Found { meta, slot, whole, .. } => Some(Said { meta, slot, whole }),
            Loaded::Lost => None,
        };
        let mut votes: BTreeMap<[u8; 16], usize> = BTreeMap::new();
        for seen in self.files.values() {
            if let Ok(header) = &seen.header {
                *votes.entry(header.log_id).or_default() += 1;
            }
        }
        // Several segments that agree are the log; the one file beside them came from elsewhere.
        if let (Some(Said { meta, .. }), [(_, 2..)]) = (&said, votes.iter().collect::<Vec<_>>().as_slice())
            && !votes.contains_key(&meta.log_id)
        {
            let log_id = meta.log_id;
            self.quarantine(META_NAME).map_err(OpenError::io("quarantine clad.meta"))?;
            self.report.actions.push(Action::QuarantinedOtherMeta { log_id });
            said = None;
        }
        let most = votes.values().max().copied();
        let mut first = votes.iter().filter(|(_, n)| Some(**n) == most).map(|(id, _)| *id);
        self.report.log_id = match (&said, first.next(), first.next()) {
            (Some(said), _, _) => said.meta.log_id,
            (None, Some(id), None) => id,
            _ => return Err(OpenError::MetaLost { dir: dir.to_owned(), segments: self.files.len() }),
        };
        for (byte, header) in corrected {
            if !self.dry() {
                let io = OpenError::io(segment_name(header.number));
                header::keep_and_write(self.storage, &header).map_err(io)?;
            }
            self.report.actions.push(Action::CorrectedHeader { segment: header.number, byte });
        }
        Ok(said)
    }

    /// Puts each segment under its own name, and quarantines those of another log.
    fn put_in_order(&mut self) -> std::io::Result<()> {
        for (number, seen) in self.files.clone() {
            if let Ok(SegmentHeader { log_id, .. }) = seen.header
                && log_id != self.report.log_id
            {
                self.quarantine(&segment_name(number))?;
                self.files.remove(&number);
                self.report.actions.push(Action::QuarantinedOtherLog { segment: number, log_id });
            }
        }
        loop {
            let misplaced: Vec<u64> =
                self.files.iter().filter_map(|(n, seen)| seen.is_misplaced(*n).then_some(*n)).collect();
            let Some(&first) = misplaced.first() else { return Ok(()) };
            let mut moved = false;
            for number in misplaced {
                moved |= self.put_back(number)?;
            }
            if !moved {
                // Each lies under the name of another: one moves away, to a free number.
                let free = self.files.keys().next_back().map_or(0, |highest| highest + 1);
                self.rename(first, free)?;
            }
        }
    }

    /// Returns false where another misplaced segment has its name.
    fn put_back(&mut self, number: u64) -> std::io::Result<bool> {
        let (named, to) = match self.files.get(&number) {
            Some(Seen { named, header: Ok(header), .. }) => (*named, header.number),
            _ => return Ok(true),
        };
        match self.files.get(&to) {
            Some(there) if there.is_misplaced(to) => return Ok(false),
            Some(Seen { header: Ok(_), .. }) => {
                self.quarantine(&segment_name(number))?;
                self.files.remove(&number);
                self.report.actions.push(Action::QuarantinedCopy { segment: named, of: to });
                return Ok(true);
            }
            Some(Seen { header: Err(_), .. }) => {
                self.quarantine(&segment_name(to))?;
                self.report.actions.push(Action::QuarantinedNoHeader { segment: to });
            }
            None => {}
        }
        self.rename(number, to)?;
        self.report.actions.push(Action::PutBack { segment: named, to });
        Ok(true)
    }

    fn rename(&mut self, number: u64, to: u64) -> std::io::Result<()> {
        let Some(seen) = self.files.remove(&number) else { return Ok(()) };
        if !self.dry() {
            self.storage.rename(&segment_name(number), &segment_name(to))?;
            self.storage.sync_dir("")?;
        }
        let lies_at = if self.dry() { seen.lies_at } else { to };
        self.files.insert(to, Seen { lies_at, ..seen });
        Ok(())
    }

    fn probe(&self, number: u64) -> std::io::Result<Option<recover::Segment>> {
        let Some(seen) = self.files.get(&number) else { return Ok(None) };
        recover::probe_as(self.storage, number, seen.lies_at, seen.len, seen.header.clone()).map(Some)
    }

    /// Writes missing footers below sealed segments: a start looks for the newest footer, and no further. Returns the
    /// offsets that the footers name as lost.
    fn reseal(&mut self, meta: &Meta) -> Result<Vec<Damage>, OpenError> {
        let mut lost = Vec::new();
        if meta.highest_segment == NONE {
            return Ok(lost);
        }
        let mut segments = Vec::new();
        for number in meta.lowest_segment..=meta.highest_segment {
            match self.probe(number).map_err(OpenError::io(segment_name(number)))? {
                None => self.report.left.push(Left::Missing(number)),
                Some(s) if matches!(s.state, State::Unreadable(_)) => self.report.left.push(Left::NoHeader(number)),
                Some(s) => {
                    let before = number.checked_sub(1).filter(|before| *before >= meta.lowest_segment);
                    let follows = before.is_none_or(|before| self.files.contains_key(&before));
                    lost.extend(sealed(&s).into_iter().flat_map(|(_, footer)| footer.lost_here(follows)));
                    segments.push(s);
                }
            }
        }
        let proves =
            |s: &recover::Segment| matches!(&s.state, State::Sealed { footer, .. } if footer.supersedes_from.is_none());
        let Some(newest) = segments.iter().rposition(proves) else { return Ok(lost) };
        // A watermark covers offsets of one epoch before: that of the next start must not cover offsets lost here.
        let epochs = segments.iter().filter_map(recover::Segment::epoch);
        let beyond = epochs.fold(meta.epoch(), u32::max) + 2;
        let mut at = 0;
        while at < newest {
            let open = segments[at..newest].iter().take_while(|s| matches!(s.state, State::Unsealed { .. })).count();
            if open > 0 {
                // If this is cut, the next start asks the footers for the abandoned offsets.
                let marked = self.change_meta(|now| now.least_epoch = now.least_epoch.max(beyond));
                marked.map_err(OpenError::io("write clad.meta"))?;
                lost.extend(self.reseal_group(&segments, at..at + open, meta)?);
            }
            at += open.max(1);
        }
        Ok(lost)
    }

    /// Changes both slots. Offsets that footers abandon were reported, now or before, and stay lost without them.
    fn change_meta(&self, change: impl FnOnce(&mut Meta)) -> std::io::Result<()> {
        let Loaded::Found { meta, slot, .. } = metafile::load(self.storage)? else { return Ok(()) };
        let mut wanted = meta.clone();
        change(&mut wanted);
        match self.dry() || wanted == meta {
            true => Ok(()),
            false => MetaFile::open(self.storage, meta, slot)?.update_both(|now| {
                (now.lost, now.least_epoch) = (wanted.lost, wanted.least_epoch);
            }),
        }
    }

    /// Writes footers for segments in a row without them, between sealed ones.
    fn reseal_group(
        &mut self,
        segments: &[recover::Segment],
        group: Range<usize>,
        meta: &Meta,
    ) -> Result<Vec<Damage>, OpenError> {
        let numbers: Vec<u64> = segments[group.clone()].iter().map(|s| s.number).collect();
        let ends = (segments[group.start].number, segments[group.end - 1].number);
        let before = segments[..group.start].iter().rev().find_map(sealed);
        let limit = segments[group.end..].iter().find_map(sealed).map_or(0, |(_, footer)| {
            footer.supersedes_from.map_or(footer.first_offset, |from| from.min(footer.first_offset))
        });
        let first_offset = before.as_ref().map_or(meta.lowest_offset, |(_, footer)| footer.end_offset);
        let (damage, lost) = if self.dry() {
            let open = segments[group].iter().filter_map(|s| match &s.state {
                State::Unsealed { header } => Some((self.files.get(&s.number)?.lies_at, header.clone())),
                _ => None,
            });
            let open: Vec<_> = open.collect();
            let predicted = recover::dry_run(self.storage, self.clock.boot_id(), meta, &open, limit, first_offset);
            (predicted.map_err(OpenError::io(segment_name(ends.0)))?, Vec::new())
        } else {
            let now = Moment { real_ns: self.clock.real_ns(), boot_ns: self.clock.boot_ns() };
            let mut producers = recover::table(&all_resends());
            if let Some((_, footer)) = &before {
                producers.load_footer(footer, now);
            }
            let observer: crate::env::Observer = Arc::new(|_| {});
            let before = before.map(|(checksum, footer)| footer.as_before(checksum));
            let boot_id = self.clock.boot_id();
            let executor = PlanExecutor::new(self.storage, &observer, boot_id, now, meta.clone(), producers);
            let ended = executor.end(&numbers, limit, first_offset, before)?;
            (ended.damage, ended.lost)
        };
        self.report.actions.push(Action::Resealed { segments: ends, lost: damage });
        Ok(lost)
    }

    /// Moves a name to `quarantine/`, under a name that is free there.
    fn quarantine(&self, name: &str) -> std::io::Result<()> {
        if self.dry() {
            return Ok(());
        }
        recover::quarantine_name(self.storage, name).map(|_| ())
    }
}

/// Settings of a daemon that remembers as many appends as any may: what they were is not known here.
fn all_resends() -> JournalConfig {
    let (segment_bytes, resend_entries, resend_keep) = (u64::MAX, usize::MAX, Duration::MAX);
    JournalConfig { segment_bytes, resend_entries, resend_keep, ..JournalConfig::default() }
}

fn sealed(segment: &recover::Segment) -> Option<(u32, &crate::format::footer::Footer)> {
    match &segment.state {
        State::Sealed { footer, head_checksum, .. } => Some((*head_checksum, footer)),
        _ => None,
    }
}
