//! Carries the committer's jobs out. No decisions here, and no lock held over them.
//!
//! Invariants of the long ones:
//! - **Rotate**: data synced, footer synced, then `clad.meta` names the next segment, then the next batch. An error up
//!   to the footer is a failure of the log; one after it only means that there is no next segment yet.
//! - **Recover** (after a failure): everything from `from` on is written at its old offsets and epoch into a new file,
//!   on other blocks, synced, sealed, renamed into place and named in `clad.meta`; then the old segment is ended at
//!   `from` by its footer; then the epoch is raised; then a fresh segment is opened. Cut anywhere, the next start
//!   comes to the same log: the new segment counts from its rename on, and supersedes what the old one holds from
//!   `from` on.
//! - **Close**: as a rotation without a next segment, then the mark of a clean end, last of all.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::active::{Active, Placed};
use crate::batch_builder::Batch;
use crate::catalog::{Catalog, Proof, Sealed};
use crate::committer::{Done, FailedJob, Failure, Job, NoSegment, Rescue, Rotation, SyncBy, Wanted};
use crate::env::{Env, Event, Trigger};
use crate::faults::Fault;
use crate::format::batch;
use crate::format::footer::{Before, Damage};
use crate::format::meta::{self, NONE};
use crate::format::segment_name;
use crate::io::{Access, Durability, File, IoBuf};
use crate::prepare::{self, Prepared, Space};
use crate::recovery;
use crate::seal::seal;
use crate::segment_file;
use crate::segment_reader::SegmentReader;
use crate::watermark::Watermarks;

pub(crate) struct Executor {
    pub(crate) env: Env,
    pub(crate) catalog: Arc<Catalog>,
    before: Mutex<Option<Before>>,
    /// Batches that the thread which took them wrote itself, with nothing in flight beside them.
    inline_batches: AtomicU64,
}

/// State of a write in progress.
pub(crate) struct Wrote {
    id: u64,
    durability: Durability,
    records: u32,
    bytes: u64,
    inline: bool,
    began: u64,
}

impl Executor {
    pub(crate) fn new(env: Env, catalog: Arc<Catalog>, before: Option<Before>) -> Self {
        Self { env, catalog, before: Mutex::new(before), inline_batches: AtomicU64::new(0) }
    }

    pub(crate) fn inline_batches(&self) -> u64 {
        self.inline_batches.load(Ordering::Relaxed)
    }

    fn before(&self) -> std::sync::MutexGuard<'_, Option<Before>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries one job out. The buffer is the calling thread's own and comes back.
    pub(crate) fn run(&self, job: Job, buf: IoBuf) -> (Result<Done, Failure>, IoBuf) {
        match job {
            Job::Write { id, file, placed, durability, sync, alone } => {
                let wrote = self.wrote(id, &placed, durability, alone);
                let buf = placed.encode(buf);
                let (buf, written) = match (durability, sync) {
                    (Durability::Synced, SyncBy::Range) => write_and_sync_range(file.as_ref(), buf, placed.pos),
                    _ => file.write_at(buf, placed.pos, durability),
                };
                (self.after_write(&wrote, written), buf)
            }
            Job::Sync { file, upto, range } => {
                let began = self.env.clock.boot_ns();
                let synced = match range {
                    Some((from, to)) => file.sync_range(from, to - from),
                    None => file.sync_data(),
                };
                let again = synced.is_err() && self.env.config.faults.has(Fault::RetryAfterFailedSync);
                let synced = if again { self.sync_reopened() } else { synced };
                (self.after_sync(began, upto, synced), buf)
            }
            Job::Rotate(rotation) => (self.rotate(rotation), buf),
            Job::Open { wanted, next, epoch } => {
                (Ok(Done::Opened { next: self.open_next(wanted, next, epoch, Space::Zeroed) }), buf)
            }
            Job::Recover(rescue) => (self.recover(rescue), buf),
            Job::Close(rotation) => (self.close(rotation), buf),
        }
    }

    /// State of a write that begins now, for its notification.
    pub(crate) fn wrote(&self, id: u64, placed: &Placed, durability: Durability, inline: bool) -> Wrote {
        let (records, bytes) = (placed.records(), placed.len() as u64);
        Wrote { id, durability, records, bytes, inline, began: self.env.clock.boot_ns() }
    }

    /// Result of a write; also emits its notification.
    pub(crate) fn after_write(&self, wrote: &Wrote, written: io::Result<()>) -> Result<Done, Failure> {
        let Wrote { id, durability, records, bytes, inline, began } = *wrote;
        if written.is_ok() && records > 0 {
            if inline {
                self.inline_batches.fetch_add(1, Ordering::Relaxed);
            }
            let synced = durability == Durability::Synced;
            self.env.emit(Event::Batch { records, bytes, synced, inline, took: self.since(began) });
        }
        let done = written.map(|()| Done::Write { id, durability });
        done.map_err(|e| Failure::new(FailedJob::Write(id), "write", &e))
    }

    /// The same of a sync.
    pub(crate) fn after_sync(&self, began: u64, upto: u64, synced: io::Result<()>) -> Result<Done, Failure> {
        if synced.is_ok() {
            self.env.emit(Event::Synced { took: self.since(began) });
        }
        synced.map(|()| Done::Sync { upto }).map_err(|e| Failure::new(FailedJob::Sync, "sync", &e))
    }

    /// [`Fault::RetryAfterFailedSync`]: through a newly opened file, because the one that failed refuses.
    fn sync_reopened(&self) -> io::Result<()> {
        self.env.storage.open(&segment_name(self.env.meta.get().highest_segment), Access::WriteCached)?.sync_data()
    }

    fn since(&self, began: u64) -> Duration {
        Duration::from_nanos(self.env.clock.boot_ns().saturating_sub(began))
    }

    // ---- rotation ---------------------------------------------------------------------------------------------

    fn rotate(&self, mut rotation: Box<Rotation>) -> Result<Done, Failure> {
        if let Err(e) = self.seal_active(&rotation) {
            return Err(Failure::new(FailedJob::Rotate(rotation), "seal", &e));
        }
        let (next, epoch) = (rotation.active.end_offset, rotation.active.header.epoch);
        let wanted = std::mem::take(&mut rotation.wanted);
        let space = if wanted.prepared.is_none() { Space::Reserved } else { Space::Zeroed };
        drop(rotation); // its descriptors, and their locks
        Ok(Done::Rotated { next: self.open_next(wanted, next, epoch, space) })
    }

    fn seal_active(&self, rotation: &Rotation) -> io::Result<()> {
        let active = &rotation.active;
        let file = active.files.last().expect("a file for syncs");
        // A commit marker may wait in the page cache, and take its block along: then a footer above would cover
        // missing data. (From Linux 6.15 on, btrfs sends direct writes of checksummed files through the page cache as
        // well. A block whose write-back fails stays as it was there, for the new one lies elsewhere: such a marker
        // takes nothing along.)
        let cached = self.env.config.policy.is_cached() || !self.env.storage.is_direct();
        let unsynced = rotation.unsynced || rotation.marker_unsynced && cached;
        if unsynced && !self.env.config.faults.has(Fault::FooterBeforeData) {
            file.sync_data()?;
        }
        let name = segment_name(active.number);
        let (pos, block) = (active.footer_pos(), active.header.block_size);
        let sealed = seal(self.env.storage.as_ref(), &name, file.as_ref(), &active.seed, &rotation.footer, pos, block)?;
        let footer = rotation.footer.clone();
        *self.before() = Some(Before {
            number: active.number,
            footer_checksum: sealed.head_checksum,
            last_batch_checksum: footer.last_batch_checksum,
        });
        let (first_offset, end_offset) = (footer.first_offset, footer.end_offset);
        self.catalog.add(Sealed::known(active.number, sealed.bytes, active.header.log_id, &footer));
        self.env.emit(Event::Sealed { segment: active.number, first_offset, end_offset, trigger: rotation.trigger });
        Ok(())
    }

    /// The next segment, or why it is tried again later.
    fn open_next(&self, wanted: Wanted, next: u64, epoch: u32, space: Space) -> Result<Active, NoSegment> {
        match self.try_open_next(wanted, next, epoch, space) {
            Ok(Some(active)) => Ok(active),
            Ok(None) => Err(self.no_room(false)),
            Err(e) if e.kind() == io::ErrorKind::StorageFull => Err(self.no_room(true)),
            Err(e) => Err(self.not_opened(format!("open the next segment: {e}"))),
        }
    }

    /// Where the file system says that there is room, that it says so is not believed until it has given a segment.
    fn no_room(&self, refused: bool) -> NoSegment {
        match prepare::lacks(&self.env, self.next_number(), refused) {
            Some(reason) => self.not_opened(reason),
            None => NoSegment::Space,
        }
    }

    fn not_opened(&self, reason: String) -> NoSegment {
        self.env.emit(Event::SegmentFailed { reason: reason.clone() });
        NoSegment::Failed(reason)
    }

    fn try_open_next(&self, wanted: Wanted, next: u64, epoch: u32, space: Space) -> io::Result<Option<Active>> {
        let number = self.next_number();
        let ready = match wanted.prepared.filter(|p| p.header.number == number) {
            Some(prepared) => prepared,
            None => {
                // The background thread stops when it sees that a rotation is under way; what it had finished is used.
                let _making = self.env.making();
                if let Some(finished) = prepare::find_left_over(&self.env, number)? {
                    return self.use_prepared(&finished, next, epoch).map(Some);
                }
                if !wanted.for_accepted && prepare::free_segment_count(&self.env)? == 0 {
                    return Ok(None);
                }
                if space == Space::Reserved {
                    self.env.emit(Event::Unprepared { segment: number });
                }
                match prepare::make(&self.env, number, epoch, space, &mut |_| true)? {
                    Some(made) => made,
                    None => return Ok(None),
                }
            }
        };
        self.use_prepared(&ready, next, epoch).map(Some)
    }

    fn use_prepared(&self, ready: &Prepared, next: u64, epoch: u32) -> io::Result<Active> {
        let (header, files) = prepare::open(&self.env, ready, epoch)?;
        let in_place = self.env.config.policy.needs_in_place() && files[0].overwrites_in_place(header.capacity)?;
        if !self.env.config.faults.has(Fault::SegmentNotNamed) {
            self.env.meta.update(|m| m.highest_segment = header.number)?;
        }
        let mut active = Active::new(header, files, next, *self.before());
        active.in_place = in_place;
        Ok(active)
    }

    fn next_number(&self) -> u64 {
        match self.env.meta.get().highest_segment {
            NONE => 0,
            n => n + 1,
        }
    }

    // ---- close ------------------------------------------------------------------------------------------------

    fn close(&self, rotation: Option<Box<Rotation>>) -> Result<Done, Failure> {
        let fail = |rotation: Option<Box<Rotation>>, e: &io::Error| match rotation {
            Some(rotation) => Failure::new(FailedJob::Rotate(rotation), "seal at the end", e),
            None => Failure::new(FailedJob::Mark, "mark the end", e),
        };
        let mut unused = None;
        if let Some(r) = &rotation {
            if r.active.is_empty() {
                unused = Some(r.active.number);
            } else if let Err(e) = self.seal_active(r) {
                return Err(fail(rotation, &e));
            }
        }
        // Should the last segment lose its end, the next start knows how much that was.
        let end = rotation.as_ref().map(|r| r.active.end_offset).filter(|end| *end > 0);
        let boot_id = self.env.clock.boot_id();
        let marked = self.env.meta.update(|m| {
            m.clean = true;
            m.proof = end.map(|end| meta::Proof { durable: end, written: end, boot_id });
            if let Some(number) = unused {
                // It never held a batch: the next start need not look at it.
                m.highest_segment = number.checked_sub(1).unwrap_or(NONE);
            }
        });
        match marked {
            Ok(()) => Ok(Done::Closed),
            Err(e) => Err(fail(rotation, &e)),
        }
    }

    // ---- recovery in the process ------------------------------------------------------------------------------

    fn recover(&self, mut rescue: Box<Rescue>) -> Result<Done, Failure> {
        match self.try_recover(&mut rescue) {
            Ok(done) => Ok(done),
            Err(e) => Err(Failure::new(FailedJob::Rescue(rescue), "recover", &e)),
        }
    }

    fn try_recover(&self, rescue: &mut Rescue) -> io::Result<Done> {
        let meta = self.env.meta.get();
        let old = rescue.active.as_mut().map(|a| {
            a.files.clear(); // our own descriptors first, or their locks would hold us up
            (a.number, a.first_offset, a.before)
        });
        if !rescue.rewritten {
            let batches = self.collect_rescued(rescue)?;
            if !batches.is_empty() {
                self.write_elsewhere(rescue, &batches)?;
            } else if rescue.from < rescue.next {
                rescue.lose(Damage { from: rescue.from, to: rescue.next });
            }
            rescue.rewritten = true;
        }
        if let Some((number, first_offset, before)) = old {
            let producers = rescue.producers.clone();
            let ended = recovery::end_at(&self.env, number, rescue.from, first_offset, before, producers);
            let ended = ended.map_err(|e| io::Error::other(e.to_string()))?;
            for s in ended.sealed {
                if let Some(known) = s.known_summary() {
                    let (first_offset, end_offset) = (known.first_offset, known.end_offset);
                    let trigger = Trigger::Recovery;
                    self.env.emit(Event::Sealed { segment: s.number, first_offset, end_offset, trigger });
                }
                self.catalog.add(s);
            }
            ended.damage.into_iter().for_each(|d| rescue.lose(d));
            // It is one of the sealed now, and retention may take it: a further attempt does not look for it.
            rescue.active = None;
        }
        // A watermark also covers offsets assigned one epoch before. All waiters were notified "maybe written", and
        // some data may have been lost: no watermark from now on may cover it.
        let epoch = if self.env.config.faults.has(Fault::OffsetReused) { meta.epoch() } else { meta.epoch() + 2 };
        let end = rescue.next;
        self.env.meta.update_both(|m| {
            m.push_epoch(epoch, end);
            m.latched = false;
            rescue.lost.iter().for_each(|lost| m.lose(*lost));
        })?;
        // From here on it counts: whatever fails or is cut before this, the next attempt may find it again.
        rescue.lost.iter().for_each(|lost| self.env.emit(Event::Lost { from: lost.from, to: lost.to }));
        self.env.emit(Event::Recovered { epoch, from: rescue.from, to: end });
        let next = self.open_next(Wanted::default(), end, epoch, Space::Reserved);
        let lost = !rescue.lost.is_empty();
        Ok(Done::Recovered { next, epoch, end, producers: rescue.producers.clone(), lost })
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
        let access = if self.env.config.policy.syncs() { Access::ReadDirect } else { Access::ReadCached };
        let file = match self.env.storage.open(&segment_name(active.number), access) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
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

    /// Writes batches into a new segment under a temporary name, seals it, and puts it in place.
    fn write_elsewhere(&self, rescue: &mut Rescue, batches: &[Arc<Batch>]) -> io::Result<()> {
        let _making = self.env.making();
        let number = self.next_number();
        let name = segment_name(number);
        let temporary = format!("{name}.tmp");
        let storage = self.env.storage.as_ref();
        if let Some((proof, bytes)) = self.already_there(rescue, number) {
            let damage = proof.footer.damage.clone();
            self.put_in_place(number, proof, bytes)?;
            damage.into_iter().for_each(|d| rescue.lose(d));
            return Ok(());
        }
        let file = self.open_elsewhere(&name, &temporary)?;
        let epoch = batches.first().map_or(0, |b| b.epoch);
        // Whatever the file held is written over or cut off when it is sealed, and until then it has no name.
        let header = prepare::new_header(&self.env, number, epoch, None)?;
        prepare::write_header(file.as_ref(), &header)?;
        let first = batches[0].first_offset;
        let mut active = Active::new(header, vec![file.clone()], first, *self.before());
        let (mut expected, mut damage, mut buf) = (rescue.from, Vec::new(), IoBuf::with_capacity(1 << 20));
        for b in batches {
            if b.first_offset > expected {
                damage.push(Damage { from: expected, to: b.first_offset });
            }
            expected = b.end_offset();
            let watermarks = Watermarks { written: rescue.from, durable: rescue.from, ..Watermarks::default() };
            let placed = active.place(b, false, &watermarks, self.env.now());
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
        footer.damage.clone_from(&damage);
        footer.producers = producers.snapshot(footer.end_offset, self.env.now());
        footer.supersedes_from = Some(rescue.from);
        let (pos, block) = (active.footer_pos(), active.header.block_size);
        let sealed = seal(storage, &temporary, file.as_ref(), &active.seed, &footer, pos, block)?;
        if !self.env.meta.get().latched {
            // Under that name it may be all there is of some records, though `clad.meta` does not name it yet: a start
            // that cannot read its header must know that it may be in use.
            self.env.meta.update_both(|m| m.latched = true)?;
        }
        storage.rename(&temporary, &name)?;
        let proof = Proof { header: active.header.clone(), footer, head_checksum: sealed.head_checksum };
        self.put_in_place(number, proof, sealed.bytes)?;
        damage.into_iter().for_each(|d| rescue.lose(d));
        Ok(())
    }

    /// Opens the file of that temporary name, practically empty. An earlier attempt may have left its own. This one
    /// must use other blocks or, if there are none, the same; they are not released for others to take.
    fn open_elsewhere(&self, name: &str, temporary: &str) -> io::Result<Arc<dyn File>> {
        let storage = self.env.storage.as_ref();
        self.env.meta.settle()?;
        let is_there = |name: &str| match storage.open(name, Access::ReadDirect) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            opened => opened.map(|_| true),
        };
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
        match storage.rename(name, temporary) {
            Ok(()) => renamed(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                segment_file::create(storage, temporary, Access::WriteDirect)
            }
            Err(e) => Err(e),
        }
    }

    /// True if a file of that name with a segment's space could be created.
    fn has_made_room(&self, name: &str) -> io::Result<bool> {
        let storage = self.env.storage.as_ref();
        let made = segment_file::create(storage, name, Access::WriteDirect)
            .and_then(|file| file.allocate(self.env.config.segment_bytes));
        match made {
            Ok(()) => Ok(true),
            Err(e) => {
                let _ = storage.remove(name);
                if e.kind() == io::ErrorKind::StorageFull { Ok(false) } else { Err(e) }
            }
        }
    }

    /// A segment that an earlier attempt had already written, sealed and renamed. `clad.meta` may name it, though that
    /// write was reported as failed: its name must not be removed again.
    fn already_there(&self, rescue: &Rescue, number: u64) -> Option<(Proof, u64)> {
        let storage = self.env.storage.as_ref();
        let bytes = storage.open(&segment_name(number), Access::ReadDirect).ok()?.len().ok()?;
        match recovery::probe(storage, number, bytes).ok()?.state {
            recovery::State::Sealed { header, footer, head_checksum }
                if header.number == number
                    && footer.supersedes_from == Some(rescue.from)
                    && footer.end_offset == rescue.next =>
            {
                Some((Proof { header, footer: *footer, head_checksum }, bytes))
            }
            _ => None,
        }
    }

    fn put_in_place(&self, number: u64, proof: Proof, bytes: u64) -> io::Result<()> {
        self.env.storage.sync_dir("")?;
        self.env.meta.update(|m| m.highest_segment = number)?;
        *self.before() = Some(Before {
            number,
            footer_checksum: proof.head_checksum,
            last_batch_checksum: proof.footer.last_batch_checksum,
        });
        let (first_offset, end_offset) = (proof.footer.first_offset, proof.footer.end_offset);
        self.catalog.add(Sealed::known(number, bytes, proof.header.log_id, &proof.footer));
        self.env.emit(Event::Sealed { segment: number, first_offset, end_offset, trigger: Trigger::Recovery });
        Ok(())
    }
}

/// Writes through the same open file, so that it gets its own errors. A direct write is at the device when it ends,
/// and the range sync takes 0.2 µs. It is made anyway, because a kernel may write through the page cache after all.
fn write_and_sync_range(file: &dyn File, buf: IoBuf, pos: u64) -> (IoBuf, io::Result<()>) {
    let (buf, written) = file.write_at(buf, pos, Durability::Written);
    let synced = written.and_then(|()| file.sync_range(pos, buf.len() as u64));
    (buf, synced)
}

const _: () = assert!(batch::LEN + prepare::HEADER_BYTES < 4096);
