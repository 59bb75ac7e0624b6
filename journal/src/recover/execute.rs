//! Carries a plan out: quarantine, rewrite, seal, raise the epoch.

mod again;
mod copies;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::header;
use super::plan::{self, Kept, Plan, Said, Unsealed};
use super::recovered::{Recovered, table};
use super::report::Report;
use super::scan::{Found, Scan, scan};
use super::survey::{Segment, State, Survey};
use crate::clock::Moment;
use crate::config::JournalConfig;
use crate::env::{Event, Observer};
use crate::error::OpenError;
use crate::format::batch::KIND_TOMBSTONES;
use crate::format::chunk::chunks;
use crate::format::footer::{Before, Damage, Footer};
use crate::format::meta::{Meta, Proof};
use crate::format::segment::SegmentHeader;
use crate::format::tombstone::Tombstone;
use crate::format::{align, checksum, segment_name};
use crate::io::{Access, Durability, File, Storage, read_once};
use crate::read::catalog::{Past, Sealed};
use crate::read::window::Window;
use crate::write::metafile::MetaFile;
use crate::write::owner_bytes::OwnerBytes;
use crate::write::producer::ProducerTable;
use crate::write::seal::seal;
use crate::write::segment_file;

const PIECE: u64 = 1 << 20;

/// One open segment on its way to its footer.
struct Work {
    number: u64,
    header: SegmentHeader,
    file: Arc<dyn File>,
    seen: Unsealed,
    kept: Kept,
    /// Its header could not be read, a new one was made: nothing in it is valid.
    headless: bool,
    /// Batches that were reported lost, and can be read now: from, to.
    lost: Vec<(u64, u64)>,
    /// End of its tail, if that stays in it: there was no room to quarantine it.
    tail_end: Option<u64>,
}

/// A start has it carry out all of a plan, [`PlanExecutor::end`] the part that ends segments by footers.
pub(crate) struct PlanExecutor<'a> {
    storage: &'a dyn Storage,
    /// Knowledge of a start from `clad.meta`; recovery in the process raises the epoch itself.
    meta: Option<&'a MetaFile>,
    /// Content of `clad.meta` at the beginning: the end of each epoch, and the offsets that it reported lost.
    said: Meta,
    observer: &'a Observer,
    boot_id: [u8; 16],
    now: Moment,
    report: Report,
    producers: ProducerTable,
    /// `producers` already includes the segments: storing them once more would push out older entries.
    pub(crate) producers_known: bool,
    sealed: BTreeMap<u64, Sealed>,
    before: Option<Before>,
    next_offset: u64,
    greatest_epoch: u32,
    /// Epochs of the scanned segments, with the first offset of the first in each.
    epochs: BTreeMap<u32, u64>,
    /// A recovery that was cut had found and sealed damage that no report names.
    untold: bool,
    /// Offsets of these segments that are lost from now on, and that only their footers name so far.
    lost: Vec<Damage>,
}

#[allow(clippy::too_many_arguments)] // one caller, and every one of them is needed
pub(super) fn execute(
    storage: &dyn Storage,
    boot_id: [u8; 16],
    now: Moment,
    config: &JournalConfig,
    meta: MetaFile,
    lock: Arc<dyn File>,
    survey: Survey,
    greatest_epoch: u32,
    observer: &Observer,
) -> Result<Recovered, OpenError> {
    let said = meta.get();
    let seen = survey.newest.iter().chain(&survey.open).filter_map(Segment::epoch).max();
    let mut c = PlanExecutor::new(storage, observer, boot_id, now, said.clone(), table(config));
    c.meta = Some(&meta);
    c.greatest_epoch = greatest_epoch.max(said.epoch()).max(seen.unwrap_or(0));
    (c.report.clean, c.report.latched) = (said.clean, said.latched);
    (c.report.missing, c.report.bytes_read) = (survey.missing, survey.bytes_read);
    for (byte, header) in survey.corrected {
        let context = format!("correct the header of segment {}", header.number);
        header::keep_and_write(storage, &header).map_err(OpenError::io(context))?;
        c.report.corrected.push((header.number, byte));
    }
    if let Some(newest) = survey.newest {
        if !said.clean {
            let context = format!("write the footer of segment {} again", newest.number);
            c.write_footer_again(&newest).map_err(OpenError::io(context))?;
        }
        c.take_found(newest);
    }
    if said.least_epoch > 0 {
        c.ask_footers(&survey.proven);
    }
    let missing_footer = survey.open.iter().filter(|s| s.has_lost_its_footer(said.clean)).map(|s| s.number);
    c.report.missing_footer = missing_footer.collect();
    c.recover(survey.open, said.latched)?;
    // For a start that was cut and had found more proven, with the segment gone since: same result as in the plan.
    let proven = Said::by(&said, boot_id);
    let begun = if said.latched { proven.durable } else { proven.durable.max(proven.written) };
    if c.next_offset < begun {
        // The former data is in no remaining segment: none has a footer that could name it.
        c.report.damage.push(Damage { from: c.next_offset, to: begun });
        c.next_offset = begun;
    }
    let clean = said.clean && c.report.scanned == 0 && !c.report.is_damaged();
    c.report.clean = clean;
    let epoch = if clean { said.epoch() } else { c.next_epoch().max(meta.get().least_epoch) };
    let next = c.next_offset;
    meta.update_both(|m| {
        m.clean = false;
        m.latched = false;
        m.least_epoch = 0;
        m.proof = None;
        if !clean {
            // A lost slot may have lost the entry of an epoch: its first segment has that, too.
            for (epoch, first) in c.epochs.range(m.epoch() + 1..epoch) {
                m.push_epoch(*epoch, *first);
            }
            m.push_epoch(epoch, next);
        }
        c.lost.iter().for_each(|lost| m.lose(*lost));
    })
    .map_err(OpenError::io("write clad.meta"))?;
    let PlanExecutor { report, producers, mut sealed, before, .. } = c;
    let past = Arc::new(Past::of(&meta.get()));
    for (number, bytes) in survey.proven {
        sealed.entry(number).or_insert_with(|| Sealed::unread(number, bytes, said.log_id, past.clone()));
    }
    Ok(Recovered {
        meta,
        lock,
        producers,
        sealed: sealed.into_values().collect(),
        next_offset: next,
        before,
        report: Report { epoch, next_offset: next, ..report },
    })
}

/// Result of ending segments.
pub(crate) struct Ended {
    pub(crate) sealed: Vec<Sealed>,
    /// Offsets that are lost.
    pub(crate) damage: Vec<Damage>,
    /// Of these, the ones that `clad.meta` must contain.
    pub(crate) lost: Vec<Damage>,
}

impl<'a> PlanExecutor<'a> {
    /// For a log with this `clad.meta`; `producers`: as its segments below have left them.
    pub(crate) fn new(
        storage: &'a dyn Storage,
        observer: &'a Observer,
        boot_id: [u8; 16],
        now: Moment,
        said: Meta,
        producers: ProducerTable,
    ) -> Self {
        Self {
            storage,
            meta: None,
            observer,
            boot_id,
            now,
            report: Report::default(),
            producers,
            producers_known: false,
            sealed: BTreeMap::new(),
            before: None,
            next_offset: said.lowest_offset,
            greatest_epoch: 0,
            epochs: BTreeMap::new(),
            untold: false,
            lost: Vec::new(),
            said,
        }
    }

    /// Ends adjacent segments by footers: the first begins at `first_offset`, behind the segment `before`, and a later
    /// segment holds the log from `limit` on. Own descriptors of theirs must be closed.
    pub(crate) fn end(
        mut self,
        numbers: &[u64],
        limit: u64,
        first_offset: u64,
        before: Option<Before>,
    ) -> Result<Ended, OpenError> {
        (self.next_offset, self.before) = (first_offset, before);
        let mut group = Vec::new();
        for &number in numbers {
            let context = || OpenError::io(segment_name(number));
            let segment = super::probe_alone(self.storage, number, self.observer).map_err(context())?;
            // An earlier attempt came as far as the footer, and did not report the losses in it.
            if matches!(segment.state, State::Sealed { .. }) {
                self.write_footer_again(&segment).map_err(context())?;
                self.take_found(segment);
            } else {
                group.push(segment);
            }
        }
        self.recover_group(group, true, Some(limit))?;
        Ok(Ended { sealed: self.sealed.into_values().collect(), damage: self.report.damage, lost: self.lost })
    }
}

impl PlanExecutor<'_> {
    /// Writes the same footer bytes again and syncs them, the length and the mode. A readable footer may still be a
    /// clean page, or one that was never synced. The data below it was synced before it was written.
    fn write_footer_again(&self, segment: &Segment) -> io::Result<()> {
        let State::Sealed { header, footer, .. } = &segment.state else { return Ok(()) };
        let name = segment_name(segment.number);
        let pos = footer.data_end.next_multiple_of(u64::from(header.block_size));
        let file = segment_file::open(self.storage, &name, Access::WriteDirect)?;
        let want = segment.file_len.saturating_sub(pos) as usize;
        file.write_at(read_once(file.as_ref(), pos, want)?, pos, Durability::Written).1?;
        self.storage.set_sealed_mode(&name, true)?;
        file.sync_all()
    }

    /// Takes a segment that was sealed before: in the process, or by a start that was cut before its report.
    fn take_found(&mut self, segment: Segment) {
        if let State::Sealed { footer, .. } = &segment.state {
            let begun = self.said.epoch_start().first_offset;
            let follows = segment.number.checked_sub(1).is_none_or(|before| !self.report.missing.contains(&before));
            // Also below where the epoch began: such a start may have sealed an old segment again. The losses at its
            // start may belong to the segment before, which may be back.
            let own: Vec<Damage> = footer.lost_of_its_own().collect();
            let is_untold = |d: &Damage| d.to > begun || own.contains(d) && !self.said.knows_lost(*d);
            self.lost.extend(footer.lost_here(follows).filter(is_untold));
            self.report.damage.extend(footer.damage.iter().copied().filter(is_untold));
        }
        self.take_sealed(segment);
    }

    /// Reads footers for unreported losses: a start or a `repair` was cut while sealing, and a `repair` seals below
    /// the newest. Losses at the start of a segment whose predecessor did not exist are left out: that one may be
    /// back.
    fn ask_footers(&mut self, sealed: &BTreeMap<u64, u64>) {
        for (number, bytes) in sealed {
            // A footer that cannot be read now adds no loss.
            let Ok(segment) = super::probe(self.storage, *number, *bytes) else { continue };
            self.report.bytes_read += segment.bytes_read;
            let State::Sealed { header, footer, .. } = &segment.state else { continue };
            let is_new = |lost: &Damage| !self.said.knows_lost(*lost) && !self.lost.contains(lost);
            let ours = header.log_id == self.said.log_id;
            let new: Vec<_> = footer.lost_of_its_own().filter(|lost| ours && is_new(lost)).collect();
            self.report.damage.extend(new.iter().copied());
            self.lost.extend(new);
        }
    }

    fn take_sealed(&mut self, segment: Segment) {
        let State::Sealed { header, footer, head_checksum } = segment.state else { return };
        self.producers.load_footer(&footer, self.now);
        // A later segment that repeats the data behind its end knows of that, too. If that segment is lost as a whole,
        // those appends are not stored, and their offsets will be reused.
        self.producers.lose(footer.end_offset, u64::MAX);
        self.next_offset = footer.end_offset;
        let begun = self.meta.map_or(u64::MAX, |meta| meta.get().epoch_start().first_offset);
        self.untold |= footer.damage.iter().any(|d| d.to > begun);
        self.before = Some(footer.as_before(head_checksum));
        self.greatest_epoch = self.greatest_epoch.max(header.epoch);
        self.epochs.entry(header.epoch).or_insert(footer.first_offset);
        self.sealed.insert(segment.number, Sealed::known(segment.number, segment.file_len, self.said.log_id, &footer));
    }

    /// The epoch in which the log resumes after an unclean end.
    fn next_epoch(&self) -> u32 {
        // A watermark covers offsets assigned one epoch before, up to where this one begins; below that may lie a gap.
        let has_gap = self.report.is_damaged() || self.untold;
        self.greatest_epoch + if has_gap { 2 } else { 1 }
    }

    /// Stores in `clad.meta`, before anything is changed, facts that the next start could not find if this one is cut:
    /// the sealed segments, the damage in them, and an earlier record of a clean end. Where the footer is removed, it
    /// also stores the proof of that damage.
    fn announce(&mut self, plan: &Plan) -> Result<(), OpenError> {
        let damaged = plan.kept.iter().any(|kept| !kept.damage.is_empty());
        self.untold |= damaged;
        let (Some(meta), epoch) = (self.meta, self.next_epoch()) else { return Ok(()) };
        let (said, has_gap) = (meta.get(), epoch > self.greatest_epoch + 1);
        let mut proof = Proof { durable: plan.proven_durable, written: plan.proven_end, boot_id: self.boot_id };
        if let Some(before) = said.proof {
            // The proof of a start that was cut; segments with a limit are planned without it.
            proof.durable = proof.durable.max(before.durable);
            proof.written =
                if before.boot_id == self.boot_id { proof.written.max(before.written) } else { proof.written };
        }
        let proof = if damaged { Some(proof) } else { said.proof };
        if !said.clean && (!has_gap || said.least_epoch >= epoch) && said.proof == proof {
            return Ok(());
        }
        let announced = meta.update_both(|m| {
            m.clean = false;
            m.least_epoch = if has_gap { m.least_epoch.max(epoch) } else { m.least_epoch };
            m.proof = proof;
        });
        announced.map_err(OpenError::io("write clad.meta"))
    }

    /// Stores the losses before a further segment is sealed: if this start is cut, the next one reads the newest
    /// sealed segment, and none below it.
    fn note_lost(&self) -> Result<(), OpenError> {
        let Some((meta, said)) = self.meta.map(|meta| (meta, meta.get())) else { return Ok(()) };
        if self.lost.iter().all(|lost| said.knows_lost(*lost)) {
            return Ok(());
        }
        let noted = meta.update_both(|m| self.lost.iter().for_each(|lost| m.lose(*lost)));
        noted.map_err(OpenError::io("write clad.meta"))
    }

    /// Processes the open segments in groups: a sealed one that supersedes ends a group, and limits it.
    fn recover(&mut self, open: Vec<Segment>, latched: bool) -> Result<(), OpenError> {
        let mut group = Vec::new();
        for segment in open {
            let limit = match &segment.state {
                State::Sealed { footer, .. } => footer.supersedes_from,
                _ => {
                    group.push(segment);
                    continue;
                }
            };
            self.recover_group(std::mem::take(&mut group), latched, limit)?;
            let context = format!("write the footer of segment {} again", segment.number);
            self.write_footer_again(&segment).map_err(OpenError::io(context))?;
            self.take_found(segment);
        }
        self.recover_group(group, latched, None)
    }

    fn recover_group(&mut self, group: Vec<Segment>, latched: bool, limit: Option<u64>) -> Result<(), OpenError> {
        if group.is_empty() {
            return Ok(());
        }
        let mut works = Vec::new();
        for segment in group {
            let name = segment_name(segment.number);
            works.push(self.open_and_scan(segment, limit).map_err(OpenError::io(name))?);
        }
        let said = self.meta.filter(|_| limit.is_none()).map(|meta| Said::by(&meta.get(), self.boot_id));
        let seen: Vec<_> = works.iter().map(|w| &w.seen).collect();
        let plan = plan::plan(self.next_offset, said.unwrap_or_default(), &seen, latched);
        self.announce(&plan)?;
        self.note_lost()?;
        for (work, kept) in works.iter_mut().zip(&plan.kept) {
            let lost = work.seen.scan.batches.iter().filter(|batch| batch.is_data() && work.seen.was_lost(batch));
            work.lost = lost.map(|batch| (batch.pos, batch.end)).collect();
            work.kept = kept.clone();
            let context = format!("move the tail of segment {} to quarantine", work.number);
            self.quarantine(work).map_err(OpenError::io(context))?;
        }
        for work in &works {
            let context = format!("write segment {} again and seal it", work.number);
            self.write_again_and_seal(work, &plan).map_err(OpenError::io(context))?;
            self.note_lost()?;
        }
        self.report.cut_at = plan.cut_at.or(self.report.cut_at);
        self.next_offset = plan.next_offset;
        Ok(())
    }

    fn open_and_scan(&mut self, segment: Segment, limit: Option<u64>) -> io::Result<Work> {
        let number = segment.number;
        let file = segment_file::open_alone(self.storage, number, Access::WriteDirect, self.observer)?;
        (self.observer)(&Event::Scanning { segment: number });
        self.report.scanned += 1;
        let (header, headless) = match segment.state {
            State::Unsealed { header } | State::Sealed { header, .. } => (header, false),
            State::Unreadable(_) => (self.headless(number, segment.file_len), true),
        };
        self.greatest_epoch = self.greatest_epoch.max(header.epoch);
        let scan = if headless {
            self.report.unreadable.push(number);
            Scan { garbage: vec![(0, segment.file_len)], ..Scan::default() }
        } else {
            scan(file.clone(), &header)?
        };
        self.report.bytes_read += scan.bytes_read;
        let seen = Unsealed::new(scan, &header, &self.said, self.boot_id, limit);
        Ok(Work { number, header, file, seen, kept: Kept::default(), headless, lost: Vec::new(), tail_end: None })
    }

    /// A header for a segment whose own is gone: it only has to carry an empty footer.
    fn headless(&self, number: u64, file_len: u64) -> SegmentHeader {
        SegmentHeader {
            log_id: self.said.log_id,
            number,
            block_size: self.storage.block_size(),
            // Nothing follows this header but a footer, and the old content is gone from the file by then.
            salt: u64::from(checksum::plain(&number.to_le_bytes())) ^ self.now.real_ns as u64,
            boot_id: self.boot_id,
            created_ns: self.now.real_ns,
            capacity: file_len,
            ..SegmentHeader::default()
        }
    }

    fn write_again_and_seal(&mut self, w: &Work, plan: &Plan) -> io::Result<()> {
        self.write_kept_again(w, plan)?;
        let data_end = kept_end(w);
        let footer = self.footer(w, data_end)?;
        let pos = data_end.max(w.tail_end.unwrap_or(0)).next_multiple_of(u64::from(w.header.block_size));
        let name = segment_name(w.number);
        let sealed = seal(self.storage, &name, w.file.as_ref(), &w.header.seed(), &footer, pos, w.header.block_size)?;
        self.report.damage.extend(footer.damage.iter().copied());
        let follows = self.before.map_or(w.number == self.said.lowest_segment, |before| before.number + 1 == w.number);
        self.lost.extend(footer.lost_here(follows));
        self.take_sealed(Segment {
            number: w.number,
            file_len: sealed.bytes,
            state: State::Sealed {
                header: w.header.clone(),
                footer: Box::new(footer),
                head_checksum: sealed.head_checksum,
            },
            bytes_read: 0,
        });
        Ok(())
    }

    /// Builds the footer from the headers of the preserved batches, and from their chunks.
    fn footer(&mut self, w: &Work, data_end: u64) -> io::Result<Footer> {
        let mut footer = Footer::new(w.number, w.header.epoch, w.kept.first_offset, self.before);
        (footer.data_end, footer.damage) = (data_end, w.kept.damage.clone());
        let (mut window, mut owners) = (Window::new(w.file.clone(), w.header.block_size)?, OwnerBytes::default());
        let mut tombstones = if self.producers_known { Vec::new() } else { tombstones(w, &mut window)? };
        for b in kept(w) {
            let h = &b.header;
            footer.add(h, b.pos, b.checksum);
            window.get(b.pos, (b.end - b.pos) as usize)?;
            window.was_read(b.pos, b.end)?;
            let body = window.get(b.pos + u64::from(b.header_len), h.stored_len as usize)?;
            let mut offset = h.first_offset;
            for chunk in chunks(body).flatten() {
                if !self.producers_known {
                    while let Some(tombstone) = tombstones.pop_if(|t| t.below <= offset) {
                        self.producers.bury(&tombstone);
                    }
                    self.producers.replay_chunk(&chunk, offset, h.append_real_ns, self.now);
                }
                offset += u64::from(chunk.header.count);
                footer.payload_bytes += chunk.payload.len() as u64;
            }
            owners.add_body(body);
        }
        footer.end_offset = w.kept.end_offset;
        if !self.producers_known {
            footer.damage.iter().for_each(|d| self.producers.lose(d.from, d.to));
        }
        footer.owners = owners.for_footer();
        tombstones.iter().rev().for_each(|tombstone| self.producers.bury(tombstone));
        self.producers.fill(&mut footer, self.now);
        Ok(footer)
    }
}

/// The tombstones in the preserved part of a segment, the lowest offset last.
fn tombstones(w: &Work, window: &mut Window) -> io::Result<Vec<Tombstone>> {
    let mut all = Vec::new();
    for b in w.seen.scan.batches.iter().filter(|b| is_tombstones(b) && b.pos < kept_end(w)) {
        window.get(b.pos, (b.end - b.pos) as usize)?;
        window.was_read(b.pos, b.end)?;
        all.extend(Tombstone::decode(window.get(b.pos + u64::from(b.header_len), b.header.stored_len as usize)?));
    }
    all.sort_by_key(|t: &Tombstone| std::cmp::Reverse(t.below));
    Ok(all)
}

fn kept(w: &Work) -> impl Iterator<Item = &Found> {
    w.kept.batches.iter().map(|i| &w.seen.scan.batches[*i])
}

/// End of the last preserved batch of records in the file.
fn records_end(w: &Work) -> u64 {
    kept(w).last().map_or(u64::from(w.header.block_size), |b| align(b.end))
}

/// End of the preserved data in the file: the last batch of records, or the tombstones that follow it. Records before
/// a tombstone were durable before it was written, so a reported tombstone is never behind the cut.
fn kept_end(w: &Work) -> u64 {
    let records = records_end(w);
    let behind = w.seen.scan.batches[w.seen.scan.batches.partition_point(|b| b.pos < records)..].iter();
    let follows = behind.take_while(|b| !b.is_data()).scan(records, |end, b| {
        let is_contiguous = b.pos == *end || b.pos == end.next_multiple_of(u64::from(w.header.block_size));
        *end = align(b.end);
        is_contiguous.then_some((b, *end))
    });
    follows.filter(|(b, _)| is_tombstones(b)).last().map_or(records, |(_, end)| end)
}

fn is_tombstones(batch: &Found) -> bool {
    batch.header.kind == KIND_TOMBSTONES
}
