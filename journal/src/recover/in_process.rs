//! Recovery in the process, after a failure.
//!
//! Invariant: everything from `from` on is written at its old offsets and epoch into a new file, on other blocks,
//! synced, sealed, renamed into place and named in `clad.meta`; then the old segment is ended at `from` by its footer;
//! then the epoch is raised; then a fresh segment is opened. Cut anywhere, the next start comes to the same log: the
//! new segment counts from its rename on, and supersedes what the old one holds from `from` on.

use std::io;
use std::sync::Arc;

use super::execute::PlanExecutor;
use crate::env::{Event, Trigger};
use crate::format::footer::{Damage, Footer};
use crate::format::segment_name;
use crate::io::{Access, Durability, File, IoBuf, if_there};
use crate::read::segment_reader::SegmentReader;
use crate::run::executor::Executor;
use crate::write::active::Active;
use crate::write::batch::Batch;
use crate::write::committer::{Done, FailedJob, Failure, Rescue, Wanted};
use crate::write::prepare::{self, Space};
use crate::write::seal::{SealedFile, seal};
use crate::write::segment_file;
use crate::write::watermarks::Watermarks;

struct InProcess<'a> {
    executor: &'a Executor,
}

/// Carries out the job that recovers: the executor is given it when the journal opens.
pub(crate) fn recover(executor: &Executor, mut rescue: Box<Rescue>) -> Result<Done, Failure> {
    match (InProcess { executor }).try_recover(&mut rescue) {
        Ok(done) => Ok(done),
        Err(e) => Err(Failure::new(FailedJob::Rescue(rescue), "recover", &e)),
    }
}

impl InProcess<'_> {
    fn try_recover(&self, rescue: &mut Rescue) -> io::Result<Done> {
        let meta = self.executor.env.meta.get();
        let old = rescue.active.as_mut().map(|a| {
            a.files.clear(); // our own descriptors first, or their locks would hold us up
            (a.header.number, a.content.first_offset, a.content.before)
        });
        if !rescue.progress.rewritten {
            self.supersede(rescue)?;
            rescue.progress.rewritten = true;
        }
        if let Some((number, first_offset, before)) = old {
            let (env, producers) = (&self.executor.env, rescue.producers.clone());
            let (storage, boot_id) = (env.storage.as_ref(), env.clock.boot_id());
            let mut plan = PlanExecutor::new(storage, &env.observer, boot_id, env.now(), env.meta.get(), producers);
            plan.producers_known = true;
            let ended = plan.end(&[number], rescue.from, first_offset, before);
            let ended = ended.map_err(|e| io::Error::other(e.to_string()))?;
            for s in ended.sealed {
                if let Some(known) = s.known_summary() {
                    let (first_offset, end_offset) = (known.first_offset, known.end_offset);
                    let trigger = Trigger::Recovery;
                    self.executor.env.emit(Event::Sealed { segment: s.number, first_offset, end_offset, trigger });
                }
                self.executor.catalog.add(s);
            }
            ended.damage.into_iter().for_each(|d| rescue.lose(d));
            // It is one of the sealed now, and retention may take it: a further attempt does not look for it.
            rescue.active = None;
        }
        // A watermark also covers offsets assigned one epoch before. All waiters were notified "maybe written", and
        // some data may have been lost: no watermark from now on may cover it.
        let epoch = meta.epoch() + 2;
        let end = rescue.next;
        self.executor.env.meta.update_both(|m| {
            m.push_epoch(epoch, end);
            m.latched = false;
            rescue.progress.lost.iter().for_each(|lost| m.lose(*lost));
        })?;
        // From here on it counts: whatever fails or is cut before this, the next attempt may find it again.
        for lost in &rescue.progress.lost {
            self.executor.env.emit(Event::Lost { from: lost.from, to: lost.to });
        }
        self.executor.env.emit(Event::Recovered { epoch, from: rescue.from, to: end });
        let next = self.executor.open_next(Wanted::default(), end, epoch, Space::Reserved);
        let lost = !rescue.progress.lost.is_empty();
        Ok(Done::Recovered { next, epoch, end, producers: Box::new(rescue.producers.clone()), lost })
    }

    /// Writes everything from `from` on into a new segment, and names it.
    fn supersede(&self, rescue: &mut Rescue) -> io::Result<()> {
        let env = &self.executor.env;
        let _making = env.making();
        if rescue.progress.sealed.is_none() {
            let batches = self.collect_rescued(rescue)?;
            if !batches.is_empty() {
                let (footer, sealed) = self.write_elsewhere(rescue, &batches)?;
                rescue.progress.sealed = Some((Arc::new(footer), sealed));
            } else if rescue.from < rescue.next {
                rescue.lose(Damage { from: rescue.from, to: rescue.next });
            }
        }
        let Some((footer, sealed)) = rescue.progress.sealed.clone() else { return Ok(()) };
        assert!(
            footer.supersedes_from == Some(rescue.from) && footer.end_offset == rescue.next,
            "segment {} supersedes {:?} to {}, not {} to {}: records would be lost",
            footer.segment,
            footer.supersedes_from,
            footer.end_offset,
            rescue.from,
            rescue.next
        );
        env.storage.sync_dir("")?;
        env.meta.update(|m| m.highest_segment = footer.segment)?;
        self.executor.add_sealed(&footer, sealed, Trigger::Recovery);
        footer.damage.iter().for_each(|d| rescue.lose(*d));
        Ok(())
    }

    /// Everything from `from` on: from memory where it is held, else read back from the old segment.
    fn collect_rescued(&self, rescue: &Rescue) -> io::Result<Vec<Arc<Batch>>> {
        let mut all = Vec::new();
        let mut at = rescue.from;
        let mut held = rescue.held.iter().filter(|b| b.end_offset() > rescue.from).peekable();
        while at < rescue.next {
            match held.peek() {
                Some(b) if b.first_offset <= at => {
                    at = at.max(b.end_offset());
                    all.extend(held.next().cloned());
                }
                other => {
                    let to = other.map_or(rescue.next, |b| b.first_offset);
                    all.extend(self.read_back(rescue, at, to)?);
                    at = to;
                }
            }
        }
        Ok(all)
    }

    /// Reads the batches back; unreturned data is lost. If the file cannot be opened, that proves nothing: the next
    /// attempt may succeed.
    fn read_back(&self, rescue: &Rescue, from: u64, to: u64) -> io::Result<Vec<Arc<Batch>>> {
        let Some(active) = &rescue.active else { return Ok(Vec::new()) };
        // Where nothing syncs, the good copy may be in the page cache alone.
        let access = if self.executor.env.config.policy.syncs() { Access::ReadDirect } else { Access::ReadCached };
        let file = if_there(self.executor.env.storage.open(&segment_name(active.header.number), access))?;
        let Some(file) = file else { return Ok(Vec::new()) };
        let mut reader = SegmentReader::new(file, &active.header, active.seek(from), Some(active.footer_pos()))?;
        let mut all = Vec::new();
        while let Some(batch) = reader.next_batch()? {
            if batch.first_offset >= to {
                break;
            }
            if batch.first_offset >= from {
                all.push(Arc::new(batch));
            }
        }
        Ok(all)
    }

    /// Writes batches into a new segment under a temporary name, seals it, and renames it.
    fn write_elsewhere(&self, rescue: &Rescue, batches: &[Arc<Batch>]) -> io::Result<(Footer, SealedFile)> {
        let number = self.executor.next_number();
        let name = segment_name(number);
        let temporary = format!("{name}.tmp");
        let storage = self.executor.env.storage.as_ref();
        let file = self.open_elsewhere(&name, &temporary)?;
        let epoch = batches.first().map_or(0, |b| b.epoch);
        // Whatever the file held is written over or cut off when it is sealed, and until then it has no name.
        let header = prepare::new_header(&self.executor.env, number, epoch, None)?;
        prepare::write_header(file.as_ref(), &header)?;
        let first = batches[0].first_offset;
        let mut active = Active::new(header, vec![file.clone()], first, *self.executor.before());
        let (mut expected, mut damage, mut buf) = (rescue.from, Vec::new(), IoBuf::with_capacity(1 << 20));
        for b in batches {
            if b.first_offset > expected {
                damage.push(Damage { from: expected, to: b.first_offset });
            }
            expected = b.end_offset();
            let watermarks = Watermarks { written: rescue.from, durable: rescue.from, ..Watermarks::default() };
            let placed = active.place(b, false, &watermarks, self.executor.env.now());
            let (back, written) = file.write_at(placed.encode(buf), placed.pos, Durability::Written);
            written?;
            buf = back;
        }
        if expected < rescue.next {
            damage.push(Damage { from: expected, to: rescue.next });
        }
        file.sync_all()?;
        // Accepted once the segment is in place: the next attempt may be able to read data that this one could not.
        let mut producers = rescue.producers.clone();
        damage.iter().for_each(|d| producers.lose(d.from, d.to));
        let mut footer = active.footer();
        footer.first_offset = rescue.from.min(first);
        footer.end_offset = rescue.next;
        footer.damage = damage;
        producers.fill(&mut footer, self.executor.env.now());
        footer.supersedes_from = Some(rescue.from);
        let (pos, block) = (active.footer_pos(), active.header.block_size);
        let sealed = seal(storage, &temporary, file.as_ref(), &active.seed, &footer, pos, block)?;
        if !self.executor.env.meta.get().latched {
            // Under that name it may be all there is of some records, though `clad.meta` does not name it yet: a start
            // that cannot read its header must know that it may be in use.
            self.executor.env.meta.update_both(|m| m.latched = true)?;
        }
        storage.rename(&temporary, &name)?;
        Ok((footer, sealed))
    }

    /// Opens the file of that temporary name, practically empty. An earlier attempt may have left its own. This one
    /// must use other blocks or, if there are none, the same; they are not released for others to take.
    fn open_elsewhere(&self, name: &str, temporary: &str) -> io::Result<Arc<dyn File>> {
        let storage = self.executor.env.storage.as_ref();
        self.executor.env.meta.settle()?;
        let is_there = |name: &str| if_there(storage.open(name, Access::ReadDirect)).map(|file| file.is_some());
        // The prepared segment, now or in an attempt before: its space is there even where no more can be had. It must
        // have lost its name for good before a batch is in it: a start counts what holds one under that name, and this
        // may come to nothing.
        let renamed = || {
            storage.sync_dir("")?;
            segment_file::open(storage, temporary, Access::WriteDirect)
        };
        if is_there(temporary)? {
            if !is_there(name)? && !self.has_made_room(name)? {
                return renamed();
            }
            storage.remove(temporary)?;
        }
        match if_there(storage.rename(name, temporary))? {
            Some(()) => renamed(),
            None => segment_file::create(storage, temporary, Access::WriteDirect),
        }
    }

    /// True if a file of that name with a segment's space could be created.
    fn has_made_room(&self, name: &str) -> io::Result<bool> {
        let storage = self.executor.env.storage.as_ref();
        let made = segment_file::create(storage, name, Access::WriteDirect)
            .and_then(|file| file.allocate(self.executor.env.config.segment_bytes));
        match made {
            Ok(()) => Ok(true),
            Err(e) => {
                let _ = storage.remove(name);
                if e.kind() == io::ErrorKind::StorageFull { Ok(false) } else { Err(e) }
            }
        }
    }
}
