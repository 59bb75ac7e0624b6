//! Reader for the files of a log with no daemon: nothing is written, no lock is taken, nothing is removed.
//!
//! Invariant: the same rules as at a start define a record, a torn tail (a note) and damage (an error). While a daemon
//! runs, its data in flight may look like a torn tail, and a segment removed by its retention is a gap by that rule.
//! `clad.meta` has passed a segment before its file is removed, so it is read again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use crate::error::{OpenError, ReadError};
use crate::format::footer::Damage;
use crate::format::meta::{Meta, NONE};
use crate::format::segment::SegmentHeader;
use crate::format::{META_NAME, QUARANTINE, segment_name};
use crate::io::{Access, OsStorage, Storage, device, is_bad_place};
use crate::read::catalog::Proof;
use crate::read::listing::SegmentSummary;
use crate::read::segment_reader::SegmentReader;
use crate::recover::plan::{self, Kept, Said, Unsealed};
use crate::recover::scan::{Found, Scan, scan};
use crate::recover::{Segment, State, check_foreign, check_no_remains, in_use_above, list, list_segments, probe};
use crate::write::batch::Batch;
use crate::write::metafile::{self, Loaded};

/// A log's files, as they were when they were opened.
pub struct OfflineLog {
    storage: Arc<OsStorage>,
    meta: Meta,
    parts: Vec<Part>,
    notes: Vec<String>,
    faults: Vec<BrokenSegment>,
    damage: Vec<Damage>,
    end_offset: u64,
    durable_end: u64,
}

/// A segment that is not as it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenSegment {
    /// Its number.
    pub segment: u64,
    /// The problem, printed behind its number.
    pub text: String,
}

impl fmt::Display for BrokenSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}: {}", self.segment, self.text)
    }
}

/// Segments above the highest that `clad.meta` names count where they hold records, as at a start; but a running
/// daemon may have taken one since it was read.
fn adopted(
    storage: &OsStorage,
    mut meta: Meta,
    whole: bool,
    found: &BTreeMap<u64, u64>,
    (notes, faults): (&mut Vec<String>, &mut Vec<BrokenSegment>),
) -> Result<Meta, OpenError> {
    let sure = whole && !meta.latched;
    let above = in_use_above(storage, &meta, found, sure).map_err(OpenError::io("look for segments in use"))?;
    if let Some((segment, e)) = above.unknown {
        let text = format!("its header cannot be read, and nothing says if it is in use: {e}");
        faults.push(BrokenSegment { segment, text });
    }
    let Some(highest) = above.highest else { return Ok(meta) };
    if let Loaded::Found { meta: now, .. } = metafile::load(storage).map_err(OpenError::io("read clad.meta"))?
        && now.highest_segment != NONE
        && now.highest_segment >= highest
    {
        return Ok(now);
    }
    notes.push(format!("clad.meta does not know segment {highest}, which is in use: it counts"));
    meta.highest_segment = highest;
    meta.clean = false;
    Ok(meta)
}

/// A segment without a footer, before it is known what follows it.
struct Open {
    number: u64,
    bytes: u64,
    header: SegmentHeader,
}

/// Segments that recovery abandoned as a whole: nothing in the log names them any more, and the number of their
/// records is unknown. Their bytes are in `quarantine/` until an operator has handled them.
pub(crate) fn abandoned(storage: &dyn Storage, meta: &Meta) -> io::Result<Vec<BrokenSegment>> {
    let names = match storage.list(QUARANTINE) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        names => names?,
    };
    let mut names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    let mut abandoned = Vec::new();
    for name in names {
        let mut parts = name.split('.');
        let (number, range, _, kind) = (parts.next(), parts.next(), parts.next(), parts.next());
        let number = number.and_then(|n| n.parse::<u64>().ok()).filter(|n| *n >= meta.lowest_segment);
        let (Some(number), Some("damaged"), Some(range)) = (number, kind, range) else { continue };
        if range.starts_with("0-") {
            let text = format!(
                "its header was lost, and all of its records: the file is {QUARANTINE}/{name}; this is named until that is \
                 moved away"
            );
            abandoned.push(BrokenSegment { segment: number, text });
        }
    }
    Ok(abandoned)
}

/// One segment.
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) header: SegmentHeader,
    pub(crate) first_offset: u64,
    pub(crate) end_offset: u64,
    pub(crate) content: Content,
}

/// Places of its batches.
pub(crate) enum Content {
    /// Proven by its footer.
    Sealed(Box<Proof>),
    /// Found by a scan; damage in between may have been reported lost, and may be readable now.
    Scanned { kept: Vec<Found>, damage: Vec<Damage> },
}

/// Most scans of a folder that changes meanwhile.
const FOLDER_SCANS_MAX: usize = 16;

/// First checks of a start: all names in the folder belong to a log, and `clad.meta`. Returns the log's id; nothing if
/// a new log would be created. No segment is read, nothing is changed.
///
/// # Errors
/// [`OpenError`], as a start would give it.
pub fn look(dir: &Path) -> Result<Option<[u8; 16]>, OpenError> {
    let name = dir.display().to_string();
    let substrate = device::discover(dir);
    let storage = OsStorage::to_read(dir, substrate.block_size).map_err(OpenError::io(name.clone()))?;
    check_foreign(&storage, &name)?;
    match metafile::load(&storage).map_err(OpenError::io("read clad.meta"))? {
        Loaded::Found { meta, .. } => Ok(Some(meta.log_id)),
        Loaded::Newer(e) => Err(OpenError::Newer(e.to_string())),
        Loaded::Lost => {
            let listing = list(&storage, &name)?;
            match list_segments(&listing).len() {
                0 => check_no_remains(&storage, &name, &listing).map(|()| None),
                segments => Err(OpenError::MetaLost { dir: name, segments }),
            }
        }
    }
}

impl OfflineLog {
    /// Looks at a folder.
    ///
    /// # Errors
    /// [`OpenError`]: `MetaLost` where there is no log, `Foreign` where something else lies there too.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let name = dir.display().to_string();
        let substrate = device::discover(dir);
        let storage = OsStorage::to_read(dir, substrate.block_size).map_err(OpenError::io(name.clone()))?;
        let storage = Arc::new(storage);
        for _ in 1..FOLDER_SCANS_MAX {
            match Self::look(&storage, &name) {
                Ok(log) if !log.faults.is_empty() && log.meta_now().is_some_and(|meta| meta != log.meta) => {}
                Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                looked => return looked,
            }
        }
        Self::look(&storage, &name)
    }

    /// One look; a daemon that runs may take files away and add others meanwhile.
    fn look(storage: &Arc<OsStorage>, name: &str) -> Result<Self, OpenError> {
        let (storage, name) = (storage.clone(), name.to_owned());
        let listing = list(storage.as_ref(), &name)?;
        let found = list_segments(&listing);
        // A folder that was named by mistake: what is foreign in it is of no interest.
        if found.is_empty() && !listing.iter().any(|entry| entry.name == META_NAME) {
            return Err(OpenError::MetaLost { dir: name, segments: 0 });
        }
        check_foreign(storage.as_ref(), &name)?;
        let (mut notes, mut faults) = (Vec::new(), Vec::new());
        let meta = match metafile::load(storage.as_ref()).map_err(OpenError::io("read clad.meta"))? {
            Loaded::Found { meta, whole, .. } => {
                if !whole {
                    notes.push(
                        "one of the two copies in clad.meta is invalid: a write of it was cut, or it is damaged; the next start or `clactl repair` rewrites it"
                            .to_owned(),
                    );
                }
                adopted(storage.as_ref(), meta, whole, &found, (&mut notes, &mut faults))?
            }
            Loaded::Newer(e) => return Err(OpenError::Newer(e.to_string())),
            Loaded::Lost => return Err(OpenError::MetaLost { dir: name, segments: found.len() }),
        };
        // A segment named there existed before it was named, and not when the folder was listed.
        let known = |number: &u64| found.contains_key(number);
        let found = match meta.highest_segment {
            NONE => found,
            highest if (meta.lowest_segment..=highest).all(|number| known(&number)) => found,
            _ => list_segments(&list(storage.as_ref(), &name)?),
        };
        faults.extend(abandoned(storage.as_ref(), &meta).map_err(OpenError::io(QUARANTINE))?);
        let mut log = Self {
            storage,
            end_offset: meta.lowest_offset,
            durable_end: meta.lowest_offset,
            meta,
            parts: Vec::new(),
            notes,
            faults,
            damage: Vec::new(),
        };
        let mut open = Vec::new();
        if log.meta.highest_segment != NONE {
            for number in log.meta.lowest_segment..=log.meta.highest_segment {
                log.add(number, &found, &mut open)?;
            }
        }
        log.add_open(open, None).map_err(OpenError::io("segments without a footer"))?;
        log.end_at_the_epoch();
        log.limit_superseded();
        log.note_missing_footers();
        Ok(log)
    }

    fn add(&mut self, number: u64, found: &BTreeMap<u64, u64>, open: &mut Vec<Open>) -> Result<(), OpenError> {
        let name = segment_name(number);
        let Some(bytes) = found.get(&number).copied() else {
            let from = match open.last() {
                Some(before) => format!("behind segment {}", before.number),
                None => format!("from offset {} on", self.end_offset),
            };
            self.fault(number, format!("missing, {from}"));
            return Ok(());
        };
        let segment = match probe(self.storage.as_ref(), number, bytes) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.notes.push(format!("segment {number} is not sealed yet: only the daemon's user can read it"));
                return Ok(());
            }
            Err(e) if is_bad_place(&e) => {
                self.fault(number, format!("its header cannot be read: {e}"));
                return Ok(());
            }
            other => other.map_err(OpenError::io(name.clone()))?,
        };
        match segment.state {
            State::Sealed { header, .. } | State::Unsealed { header } if header.log_id != self.meta.log_id => {
                self.fault(number, "belongs to another log");
            }
            State::Sealed { header, footer, head_checksum } => {
                // It was sealed when all before it was durable: of those that have lost their footers nothing below is
                // a tail.
                let limit = footer.supersedes_from.unwrap_or(footer.first_offset);
                self.add_open(std::mem::take(open), Some(limit)).map_err(OpenError::io(name))?;
                let (first_offset, end_offset) = (footer.first_offset, footer.end_offset);
                if first_offset > self.end_offset {
                    self.damage.push(Damage { from: self.end_offset, to: first_offset });
                }
                self.damage.extend(footer.damage.iter().copied());
                self.end_offset = self.end_offset.max(end_offset);
                self.durable_end = self.durable_end.max(end_offset);
                let proof = Proof { header: header.clone(), footer: *footer, head_checksum };
                let content = Content::Sealed(Box::new(proof));
                self.parts.push(Part { number, bytes, header, first_offset, end_offset, content });
            }
            State::Unsealed { ref header } => {
                let header = header.clone();
                self.note_lost_footer(&segment).map_err(OpenError::io(name))?;
                open.push(Open { number, bytes, header });
            }
            State::Unreadable(e) => self.fault(number, e.to_string()),
        }
        Ok(())
    }

    fn fault(&mut self, segment: u64, text: impl Into<String>) {
        self.faults.push(BrokenSegment { segment, text: text.into() });
    }

    /// A running daemon may have sealed it since the folder was listed: looked at once more before anything is said.
    fn note_lost_footer(&mut self, seen: &Segment) -> io::Result<()> {
        if seen.has_lost_its_footer(self.meta.clean) {
            let file_len = self.storage.open(&segment_name(seen.number), Access::ReadDirect)?.len()?;
            if probe(self.storage.as_ref(), seen.number, file_len)?.has_lost_its_footer(self.meta.clean) {
                self.fault(seen.number, "has lost its footer, and may have lost its end");
            }
        }
        Ok(())
    }

    /// Adds adjacent segments without a footer; the next sealed one continues at `limit`.
    fn add_open(&mut self, open: Vec<Open>, limit: Option<u64>) -> io::Result<()> {
        let (mut seen, boot_id) = (Vec::new(), device::boot_id().unwrap_or_default());
        for Open { number, header, .. } in &open {
            let scan = scan(self.storage.open(&segment_name(*number), Access::ReadDirect)?, header)?;
            seen.push(Unsealed::new(scan, header, &self.meta, boot_id, limit));
        }
        let said = if limit.is_none() { Said::by(&self.meta, boot_id) } else { Said::default() };
        let plan = plan::plan(self.end_offset, said, &seen.iter().collect::<Vec<_>>(), self.meta.latched);
        for ((open, seen), kept) in open.into_iter().zip(seen).zip(plan.kept) {
            self.add_scanned(open, seen.scan, &kept, plan.next_offset);
        }
        Ok(())
    }

    fn add_scanned(&mut self, Open { number, bytes, header }: Open, scan: Scan, planned: &Kept, next_offset: u64) {
        let kept: Vec<_> = planned.batches.iter().map(|i| scan.batches[*i].clone()).collect();
        let end = kept.last().map_or(u64::from(header.block_size), |b| crate::format::align(b.end));
        let behind: u64 = scan.garbage.iter().filter(|g| g.0 >= end).map(|g| g.1 - g.0).sum::<u64>()
            + scan.batches.iter().filter(|b| b.is_data() && b.pos >= end).map(|b| b.end - b.pos).sum::<u64>();
        if behind > 0 {
            self.notes.push(match planned.damage.last().is_some_and(|lost| lost.to == next_offset) {
                false => format!(
                    "torn tail: {behind} bytes behind offset {next_offset} in segment {number}, never confirmed"
                ),
                true => format!(
                    "{behind} bytes at the end of segment {number}: of the damage before offset {next_offset}, or never confirmed"
                ),
            });
        }
        self.damage.extend(planned.damage.iter().copied());
        let claimed_durable = scan.batches.iter().map(|b| b.header.durable).max().unwrap_or(0);
        self.durable_end = self.durable_end.max(claimed_durable.min(next_offset));
        let (first_offset, end_offset) = (planned.first_offset, planned.end_offset);
        self.end_offset = end_offset;
        let content = Content::Scanned { kept, damage: planned.damage.clone() };
        self.parts.push(Part { number, bytes, header, first_offset, end_offset, content });
    }

    /// Everything below the first offset of the newest epoch was assigned, and durable, even if no remaining segment
    /// proves that. The same holds for the end that an interrupted start found proven.
    fn end_at_the_epoch(&mut self) {
        let said = Said::by(&self.meta, device::boot_id().unwrap_or_default());
        let begun = if self.meta.latched { said.durable } else { said.durable.max(said.written) };
        if self.end_offset < begun {
            self.damage.push(Damage { from: self.end_offset, to: begun });
            self.end_offset = begun;
        }
        self.durable_end = self.durable_end.max(said.durable);
    }

    /// Only the last segments may be without a footer: a segment before a sealed one had its own.
    fn note_missing_footers(&mut self) {
        let sealed = |p: &&Part| matches!(&p.content, Content::Sealed(f) if f.footer.supersedes_from.is_none());
        let Some(last) = self.parts.iter().rfind(sealed).map(|p| p.number) else { return };
        let scanned = |p: &&Part| p.number < last && matches!(p.content, Content::Scanned { .. });
        for number in self.parts.iter().filter(scanned).map(|p| p.number).collect::<Vec<_>>() {
            if !self.faults.iter().any(|fault| fault.segment == number) {
                self.fault(number, "has lost its footer");
            }
        }
    }

    /// Of overlapping segments the later counts.
    fn limit_superseded(&mut self) {
        let mut limit = u64::MAX;
        for part in self.parts.iter_mut().rev() {
            part.end_offset = part.end_offset.min(limit);
            if let Content::Sealed(proof) = &part.content
                && let Some(from) = proof.footer.supersedes_from
            {
                limit = limit.min(from);
            }
        }
    }

    /// The log's id.
    pub fn log_id(&self) -> [u8; 16] {
        self.meta.log_id
    }

    /// Content of `clad.meta`.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Notes for an operator that are no damage.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Segments that are missing, cannot be read, or have lost a part.
    pub fn faults(&self) -> &[BrokenSegment] {
        &self.faults
    }

    /// Offsets that cannot be read.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The first offset that retention left.
    pub fn first_offset(&self) -> u64 {
        self.meta.lowest_offset
    }

    /// One past the last.
    pub fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// One past the last offset that the files prove durable: later records are written, and a power cut may still
    /// lose them.
    pub fn durable_end(&self) -> u64 {
        self.durable_end
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let summary = |p: &Part| {
            let footer = match &p.content {
                Content::Sealed(proof) => Some(&proof.footer),
                Content::Scanned { .. } => None,
            };
            SegmentSummary {
                number: p.number,
                first_offset: p.first_offset,
                end_offset: p.end_offset,
                bytes: p.bytes,
                sealed: footer.is_some(),
                times_ns: footer.filter(|f| f.min_time_ns <= f.max_time_ns).map(|f| (f.min_time_ns, f.max_time_ns)),
                damaged: footer.is_some_and(|f| !f.damage.is_empty()),
            }
        };
        self.parts.iter().map(summary).collect()
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Reads from an offset on.
    pub fn read(&self, from: u64) -> OfflineReader<'_> {
        OfflineReader { log: self, next: from, part: 0, open: None, stash: None }
    }

    /// Content of `clad.meta` by now.
    fn meta_now(&self) -> Option<Meta> {
        match metafile::load(self.storage.as_ref()) {
            Ok(Loaded::Found { meta, .. }) if meta.log_id == self.meta.log_id => Some(meta),
            _ => None,
        }
    }

    /// The lowest stored offset by now, if retention has removed this part since it was opened.
    pub(crate) fn retained_past(&self, part: &Part) -> Option<u64> {
        let meta = self.meta_now().filter(|meta| meta.lowest_segment > part.number)?;
        Some(meta.lowest_offset.max(part.end_offset))
    }

    /// A reader over the batches of one part.
    pub(crate) fn batches_of(&self, part: &Part) -> io::Result<SegmentReader> {
        let access = match part.content {
            Content::Sealed(_) => Access::ReadCached,
            Content::Scanned { .. } => Access::ReadDirect,
        };
        let file = self.storage.open(&segment_name(part.number), access)?;
        let (end, damage) = match &part.content {
            Content::Sealed(proof) => (proof.footer.data_end, &proof.footer.damage[..]),
            Content::Scanned { kept, damage } => (kept.last().map_or(0, |b| b.end), &damage[..]),
        };
        Ok(SegmentReader::new(file, &part.header, None, Some(end))?.without(damage))
    }
}

/// Reads batches in order.
pub struct OfflineReader<'a> {
    log: &'a OfflineLog,
    next: u64,
    part: usize,
    open: Option<SegmentReader>,
    stash: Option<Arc<Batch>>,
}

impl OfflineReader<'_> {
    /// The batch that holds the next offset (it may begin before it), or `None` at the end.
    ///
    /// # Errors
    /// [`ReadError::Gap`] once for each unavailable range; the next call continues behind it.
    pub fn next_batch(&mut self) -> Result<Option<Arc<Batch>>, ReadError> {
        if let Some(batch) = self.stash.take() {
            self.next = batch.end_offset();
            return Ok(Some(batch));
        }
        if self.next < self.log.meta.lowest_offset {
            let gap = ReadError::Gap { from: self.next, to: self.log.meta.lowest_offset, damaged: false };
            self.next = self.log.meta.lowest_offset;
            return Err(gap);
        }
        while let Some(part) = self.log.parts.get(self.part) {
            let failed = |source| ReadError::Io { segment: part.number, source };
            if part.end_offset <= self.next {
                self.part += 1;
                self.open = None;
                continue;
            }
            let reader = match &mut self.open {
                Some(reader) => reader,
                None => match self.log.batches_of(part) {
                    Ok(reader) => self.open.insert(reader),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        let kept = self.log.retained_past(part).ok_or(e).map_err(failed)?;
                        let from = std::mem::replace(&mut self.next, kept.min(self.log.end_offset));
                        return Err(ReadError::Gap { from, to: self.next, damaged: false });
                    }
                    Err(e) => return Err(failed(e)),
                },
            };
            match reader.next_batch().map_err(failed)? {
                Some(batch) if batch.end_offset() <= self.next => {}
                Some(batch) if batch.first_offset < part.end_offset => return self.give(batch),
                _ => {
                    let end = part.end_offset;
                    return self.gap(end);
                }
            }
        }
        match self.next < self.log.end_offset {
            true => self.gap(self.log.end_offset),
            false => Ok(None),
        }
    }

    fn gap(&mut self, to: u64) -> Result<Option<Arc<Batch>>, ReadError> {
        let from = std::mem::replace(&mut self.next, to);
        Err(ReadError::Gap { from, to, damaged: true })
    }

    fn give(&mut self, batch: Batch) -> Result<Option<Arc<Batch>>, ReadError> {
        let batch = Arc::new(batch);
        if batch.first_offset > self.next {
            let gap = ReadError::Gap { from: self.next, to: batch.first_offset, damaged: true };
            self.next = batch.first_offset;
            self.stash = Some(batch);
            return Err(gap);
        }
        self.next = batch.end_offset();
        Ok(Some(batch))
    }
}
