//! Reading a log while it is written, without touching the writer.
//!
//! Invariant: a reader sees the records below the watermark it asked for, in order, each record once. A range that it
//! cannot have is a typed gap, reported once, and the reader continues behind it. The newest batches come from memory.
//! Older ones of the active segment are read in the way in which it is written (never through the page cache where
//! direct writes go around it), sealed ones through the page cache. A reader holds a shared lock on sealed segments
//! only: no lock of a reader may delay recovery.

use std::sync::Arc;
use std::time::Duration;

use crate::error::ReadError;
use crate::format::segment_name;
use crate::io::{Access, File, Lock, is_bad_place};
use crate::read::catalog::Sealed;
use crate::read::segment_reader::SegmentReader;
use crate::run::shared::Shared;
use crate::write::batch::Batch;
use crate::write::watermarks::Level;

/// Looks, a millisecond apart, for a record that must be there before it is an error: the longest recovery is shorter.
const MISSING_RECORD_POLLS_MAX: u32 = 90_000;
/// Number of looks after which a record that nothing moves counts as damaged.
const DAMAGED_RECORD_POLLS: u32 = 4;
/// Cost of a look that returns no batch: a segment's footer that is read to pass over it, or a millisecond's wait.
const EMPTY_READ_COST_BYTES: usize = 64 * 1024;

/// A place in the log and the means to continue from there.
pub struct Reader {
    shared: Arc<Shared>,
    next: u64,
    level: Level,
    open: Option<Open>,
    stash: Option<Arc<Batch>>,
    times: Option<(i64, i64)>,
    empty_polls: u32,
    polls_max: u32,
}

struct Open {
    number: u64,
    reader: SegmentReader,
    /// Its last offset's end, when it is sealed.
    sealed_end: Option<u64>,
}

/// Result of a look of a [`Reader`].
#[derive(Debug)]
pub enum Found {
    /// The batch that holds the next offset; it may begin before it.
    Batch(Arc<Batch>),
    /// The reader has caught up.
    CaughtUp,
    /// The budget is used up, and more may be there. The place has moved over the data that was passed.
    NotYet,
}

/// Next content of the active segment.
enum Behind {
    Batch(Batch),
    /// Nothing that holds, up to this offset.
    Gap(u64),
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, from: u64, level: Level) -> Self {
        Self {
            shared,
            next: from,
            level,
            open: None,
            stash: None,
            times: None,
            empty_polls: 0,
            polls_max: MISSING_RECORD_POLLS_MAX,
        }
    }

    /// For a journal in which nothing moves during a read.
    pub(crate) fn impatient(self) -> Self {
        Self { polls_max: 4 * DAMAGED_RECORD_POLLS, ..self }
    }

    /// Passes over sealed segments and batches that hold no record of this time range (both ends included).
    #[must_use]
    pub fn within(self, since_ns: i64, until_ns: i64) -> Self {
        Self { times: Some((since_ns, until_ns)), ..self }
    }

    fn outside(&self, min_ns: i64, max_ns: i64) -> bool {
        self.times.is_some_and(|(since, until)| max_ns < since || min_ns > until)
    }

    /// The offset that comes next.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The batch that holds the next offset (it may begin before it), or `None` when the reader has caught up.
    /// Blocks for a disk read where the batch is not in memory.
    ///
    /// # Errors
    /// [`ReadError::Gap`] once for each unavailable range; the next call continues behind it.
    pub fn next_batch(&mut self) -> Result<Option<Arc<Batch>>, ReadError> {
        loop {
            match self.look(&mut { usize::MAX })? {
                Found::Batch(batch) => return Ok(Some(batch)),
                Found::CaughtUp => return Ok(None),
                Found::NotYet => {}
            }
        }
    }

    /// As [`Self::next_batch`], for callers that must not wait while nothing of a time range is found, or a record is
    /// being moved. It returns after so many bytes, which are subtracted; the returned batch is counted, too. Beyond
    /// them it reads one batch at most, or the rest of a segment that is damaged.
    ///
    /// # Errors
    /// As [`Self::next_batch`].
    pub fn look(&mut self, bytes: &mut usize) -> Result<Found, ReadError> {
        while *bytes > 0 {
            if let Some(batch) = self.stash.take() {
                self.next = batch.end_offset();
                return Ok(Found::Batch(batch));
            }
            let limit = self.shared.watermarks().of(self.level);
            if self.next >= limit {
                return Ok(Found::CaughtUp);
            }
            if let Some(batch) = self.shared.recent(self.next) {
                self.open = None;
                if batch.end_offset() > limit {
                    return Ok(Found::CaughtUp);
                }
                *bytes = bytes.saturating_sub(batch.stored_len() as usize);
                self.next = batch.end_offset();
                if self.outside(batch.min_time_ns, batch.max_time_ns) {
                    continue;
                }
                return Ok(Found::Batch(batch));
            }
            let at_rest = if self.empty_polls < DAMAGED_RECORD_POLLS { None } else { self.shared.at_rest() };
            let before = self.next;
            let mut found = self.read_next()?;
            // Segments that hold nothing of the times that are asked for were passed over: that is no look in vain.
            let stuck = found.is_none() && self.next == before;
            if stuck && at_rest.is_some() {
                let behind = self.behind_damage(limit)?;
                match behind.filter(|_| at_rest == self.shared.at_rest()) {
                    Some(Behind::Batch(batch)) => found = Some(batch),
                    Some(Behind::Gap(to)) => {
                        self.empty_polls = 0;
                        let from = std::mem::replace(&mut self.next, to);
                        return Err(ReadError::Gap { from, to, damaged: true });
                    }
                    None => {}
                }
            }
            self.empty_polls = if stuck && found.is_none() { self.empty_polls + 1 } else { 0 };
            self.pause()?;
            *bytes =
                bytes.saturating_sub(found.as_ref().map_or(EMPTY_READ_COST_BYTES, |batch| batch.stored_len() as usize));
            if let Some(batch) = found {
                if batch.end_offset() > limit {
                    self.open = None;
                    return Ok(Found::CaughtUp);
                }
                let passed = self.outside(batch.min_time_ns, batch.max_time_ns);
                let batch = self.accept(batch)?;
                if passed {
                    continue;
                }
                return Ok(Found::Batch(batch));
            }
        }
        Ok(Found::NotYet)
    }

    /// Between two looks for a record that must be there: a rotation or a recovery is moving it. Bounded.
    fn pause(&self) -> Result<(), ReadError> {
        match self.empty_polls {
            0 => {}
            n if n < 16.min(self.polls_max) => std::thread::yield_now(),
            n if n < self.polls_max => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                let text = format!("offset {} is written and cannot be found", self.next);
                return Err(ReadError::Io { segment: u64::MAX, source: std::io::Error::other(text) });
            }
        }
        Ok(())
    }

    fn accept(&mut self, batch: Batch) -> Result<Arc<Batch>, ReadError> {
        let batch = Arc::new(batch);
        if batch.first_offset > self.next {
            let gap = ReadError::Gap { from: self.next, to: batch.first_offset, damaged: true };
            self.next = batch.first_offset;
            self.stash = Some(batch);
            return Err(gap);
        }
        self.next = batch.end_offset();
        Ok(batch)
    }

    /// The next batch from the open segment, or `None` after moving to another one.
    fn read_next(&mut self) -> Result<Option<Batch>, ReadError> {
        if self.open.is_none() {
            // Retention may be removing segments: then a search for a removed offset finds nothing.
            let lowest = self.shared.lowest_offset();
            if self.next < lowest {
                let from = std::mem::replace(&mut self.next, lowest);
                return Err(ReadError::Gap { from, to: lowest, damaged: false });
            }
            match self.locate() {
                // Retention was faster: the segment is out of the list by now, look again.
                Err(ReadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                other => other?,
            }
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        let number = open.number;
        loop {
            match open.reader.next_batch() {
                Ok(Some(batch)) if batch.end_offset() <= self.next => {}
                // In the next block of the active segment; the data between is searched first.
                Ok(Some(batch)) if open.sealed_end.is_none() && batch.first_offset > self.next => break,
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => break,
                Err(source) => return Err(ReadError::Io { segment: number, source }),
            }
        }
        let sealed_end = open.sealed_end;
        self.open = None;
        match sealed_end {
            Some(end) if end > self.next => {
                let gap = ReadError::Gap { from: self.next, to: end, damaged: true };
                self.next = end;
                Err(gap)
            }
            Some(_) => Ok(None),
            None => {
                // The active segment was sealed, or a write is on its way: look again.
                Ok(None)
            }
        }
    }

    /// Searches the next data in the active segment over bad places: a reader of a growing segment ends at the first.
    /// The next record is there, or nothing up to the next valid batch is. `None` where no search is possible.
    fn behind_damage(&mut self, limit: u64) -> Result<Option<Behind>, ReadError> {
        // There is no segment to continue in, and none of the existing ones holds it.
        let Some((number, first, end)) = self.shared.active_extent() else { return Ok(Some(Behind::Gap(limit))) };
        if first > self.next {
            return Ok(Some(Behind::Gap(first.min(limit))));
        }
        let Some(header) = self.shared.active_header(number) else { return Ok(None) };
        let io = |source| ReadError::Io { segment: number, source };
        let file = self.open_active(number)?;
        let start = self.shared.seek_active(self.next).and_then(|(n, _, start)| start.filter(|_| n == number));
        let mut reader = SegmentReader::new(file, &header, start, Some(end)).map_err(io)?;
        while let Some(batch) = reader.next_batch().map_err(io)? {
            if batch.end_offset() > self.next {
                if batch.first_offset > self.next {
                    return Ok(Some(Behind::Gap(batch.first_offset.min(limit))));
                }
                self.open = Some(Open { number, reader, sealed_end: None });
                return Ok(Some(Behind::Batch(batch)));
            }
        }
        Ok(Some(Behind::Gap(limit)))
    }

    /// In the way in which it is written: pages that a direct write went around would be old.
    fn open_active(&self, number: u64) -> Result<Arc<dyn File>, ReadError> {
        let cached = self.shared.env().config.policy.is_cached();
        let access = if cached { Access::ReadCached } else { Access::ReadDirect };
        let opened = self.shared.storage().open(&segment_name(number), access);
        opened.map_err(|source| ReadError::Io { segment: number, source })
    }

    fn locate(&mut self) -> Result<(), ReadError> {
        let io = |segment, source| ReadError::Io { segment, source };
        let storage = self.shared.storage();
        if let Some((number, first, start)) = self.shared.seek_active(self.next)
            && first <= self.next
        {
            let file = self.open_active(number)?;
            let header = self.shared.active_header(number);
            if let Some(header) = header {
                let reader = SegmentReader::new(file, &header, start, None).map_err(|e| io(number, e))?;
                self.open = Some(Open { number, reader, sealed_end: None });
            }
            return Ok(());
        }
        let found = self.shared.catalog().find(storage.as_ref(), self.next).map_err(|e| io(u64::MAX, e))?;
        let Some(sealed) = found else {
            return Ok(()); // a rotation is under way: the segment is between active and sealed
        };
        // As it was when it was sealed, or first looked at: its file may say less by now.
        let known_end = sealed.known_summary().map_or(0, |s| s.end_offset);
        let look = || sealed.proof(storage.as_ref());
        let proof = match look().or_else(|_| look()) {
            // Handled as damaged, for this time: it must not block reads of the data behind it.
            Err(e) if is_bad_place(&e) => None,
            proof => proof.map_err(|e| io(sealed.number, e))?,
        };
        let Some(proof) = proof else {
            return self.abandon_segment(&sealed, known_end);
        };
        let footer = &proof.footer;
        let sealed_end = footer.end_offset.max(known_end);
        if footer.first_offset > self.next {
            // First the range removed by retention meanwhile; behind it there may be damage.
            let lowest = self.shared.lowest_offset();
            let to = if self.next < lowest { lowest.min(footer.first_offset) } else { footer.first_offset };
            let gap = ReadError::Gap { from: self.next, to, damaged: self.next >= lowest };
            self.next = to;
            return Err(gap);
        }
        if footer.damage.is_empty() && self.outside(footer.min_time_ns, footer.max_time_ns) {
            self.next = sealed_end;
            return Ok(());
        }
        let file = storage.open(&segment_name(sealed.number), Access::ReadCached).map_err(|e| io(sealed.number, e))?;
        let _ = file.try_lock(Lock::Shared).map_err(|e| io(sealed.number, e))?;
        let after = footer.index.partition_point(|e| e.first_offset <= self.next);
        let start = after.checked_sub(1).map(|i| footer.index[i].position);
        let reader = SegmentReader::new(file, &proof.header, start, Some(footer.data_end));
        let reader = reader.map_err(|e| io(sealed.number, e))?.without(&footer.damage);
        self.open = Some(Open { number: sealed.number, reader, sealed_end: Some(sealed_end) });
        Ok(())
    }

    /// Nothing in a sealed segment can be believed any more: all of it is a gap, if it is still in the list. Else
    /// retention has taken it, and its file may be another segment's by now.
    fn abandon_segment(&mut self, sealed: &Sealed, end: u64) -> Result<(), ReadError> {
        if end <= self.next || !self.shared.catalog().all().iter().any(|s| s.number == sealed.number) {
            return Ok(());
        }
        let from = std::mem::replace(&mut self.next, end);
        Err(ReadError::Gap { from, to: end, damaged: true })
    }
}
