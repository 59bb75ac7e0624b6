//! Carries the committer's jobs out. No decisions here, and no lock held over them.
//!
//! Invariants of the long ones:
//! - **Rotate**: data synced, footer synced, then `clad.meta` names the next segment, then the next batch. An error up
//!   to the footer is a failure of the log; one after it only means that there is no next segment yet.
//! - **Recover** (after a failure): `recover/in_process.rs`.
//! - **Close**: as a rotation without a next segment, then the mark of a clean end, last of all.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::env::{Env, Event, Trigger};
use crate::format::batch;
use crate::format::footer::{Before, Footer};
use crate::format::meta::{self, NONE};
use crate::format::segment::SegmentHeader;
use crate::format::segment_name;
use crate::io::{Durability, File, IoBuf};
use crate::read::catalog::{Catalog, Sealed};
use crate::sync::unpoisoned;
use crate::write::active::{Active, Placed};
use crate::write::committer::{Done, FailedJob, Failure, Job, NoSegment, Rescue, Rotation, SyncBy, Wanted};
use crate::write::prepare::{self, Space};
use crate::write::seal::{SealedFile, seal};

/// Recovery in the process: it stands above the executor, and is given to it.
pub(crate) type Recover = fn(&Executor, Box<Rescue>) -> Result<Done, Failure>;

pub(crate) struct Executor {
    pub(crate) env: Env,
    pub(crate) catalog: Arc<Catalog>,
    before: Mutex<Option<Before>>,
    recover: Recover,
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
    pub(crate) fn new(env: Env, catalog: Arc<Catalog>, before: Option<Before>, recover: Recover) -> Self {
        Self { env, catalog, before: Mutex::new(before), recover, inline_batches: AtomicU64::new(0) }
    }

    pub(crate) fn inline_batches(&self) -> u64 {
        self.inline_batches.load(Ordering::Relaxed)
    }

    pub(crate) fn before(&self) -> std::sync::MutexGuard<'_, Option<Before>> {
        unpoisoned(self.before.lock())
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
                (self.after_sync(began, upto, synced), buf)
            }
            Job::Rotate(rotation) => (self.rotate(rotation), buf),
            Job::Open { wanted, next, epoch } => {
                (Ok(Done::Opened { next: self.open_next(wanted, next, epoch, Space::Zeroed) }), buf)
            }
            Job::Recover(rescue) => ((self.recover)(self, rescue), buf),
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

    fn since(&self, began: u64) -> Duration {
        Duration::from_nanos(self.env.clock.boot_ns().saturating_sub(began))
    }

    // ---- rotation ---------------------------------------------------------------------------------------------

    fn rotate(&self, mut rotation: Box<Rotation>) -> Result<Done, Failure> {
        if let Err(e) = self.seal_active(&rotation) {
            return Err(Failure::new(FailedJob::Rotate(rotation), "seal", &e));
        }
        let (next, epoch) = (rotation.active.content.end_offset, rotation.active.header.epoch);
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
        if unsynced {
            file.sync_data()?;
        }
        let name = segment_name(active.header.number);
        let (pos, block) = (active.footer_pos(), active.header.block_size);
        let sealed = seal(self.env.storage.as_ref(), &name, file.as_ref(), &active.seed, &rotation.footer, pos, block)?;
        self.add_sealed(&rotation.footer, sealed, rotation.trigger);
        Ok(())
    }

    /// Names the newest sealed segment to the next footer, the readers and the operator.
    pub(crate) fn add_sealed(&self, footer: &Footer, sealed: SealedFile, trigger: Trigger) {
        let &Footer { segment, first_offset, end_offset, .. } = footer;
        *self.before() = Some(footer.as_before(sealed.head_checksum));
        self.catalog.add(Sealed::known(segment, sealed.bytes, self.env.meta.get().log_id, footer));
        self.env.emit(Event::Sealed { segment, first_offset, end_offset, trigger });
    }

    /// The next segment, or why it is tried again later.
    pub(crate) fn open_next(&self, wanted: Wanted, next: u64, epoch: u32, space: Space) -> Result<Active, NoSegment> {
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
        let ready = match wanted.prepared.filter(|p| p.number == number) {
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

    fn use_prepared(&self, ready: &SegmentHeader, next: u64, epoch: u32) -> io::Result<Active> {
        let (header, files) = prepare::open(&self.env, ready, epoch)?;
        let in_place = self.env.config.policy.needs_in_place() && files[0].overwrites_in_place(header.capacity)?;
        self.env.meta.update(|m| m.highest_segment = header.number)?;
        let mut active = Active::new(header, files, next, *self.before());
        active.in_place = in_place;
        Ok(active)
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.env.meta.get().next_segment()
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
                unused = Some(r.active.header.number);
            } else if let Err(e) = self.seal_active(r) {
                return Err(fail(rotation, &e));
            }
        }
        // Should the last segment lose its end, the next start knows how much that was.
        let end = rotation.as_ref().map(|r| r.active.content.end_offset).filter(|end| *end > 0);
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
}

/// Writes through the same open file, so that it gets its own errors. A direct write is at the device when it ends,
/// and the range sync takes 0.2 µs. It is made anyway, because a kernel may write through the page cache after all.
fn write_and_sync_range(file: &dyn File, buf: IoBuf, pos: u64) -> (IoBuf, io::Result<()>) {
    let (buf, written) = file.write_at(buf, pos, Durability::Written);
    let synced = written.and_then(|()| file.sync_range(pos, buf.len() as u64));
    (buf, synced)
}

const _: () = assert!(batch::LEN + prepare::HEADER_BYTES < 4096);
