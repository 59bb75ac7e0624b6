//! The sealed segments, as readers and retention see them.
//!
//! Invariant: the list is ordered by number and holds the segments in the folder. A footer is read when it is first
//! needed, once, and only its summary is stored: memory must not grow with the log. A reader with an entry can
//! continue after retention has unlinked its open file.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use crate::format::batch::BatchHeader;
use crate::format::footer::{Damage, Footer};
use crate::format::meta::{EpochStart, Meta};
use crate::format::segment::SegmentHeader;
use crate::format::segment_name;
use crate::io::{Access, Storage, is_bad_place};
use crate::recover::scan::{Found, scan};
use crate::recover::{State, probe};
use crate::sync::unpoisoned;

/// A sealed segment's header and footer.
#[derive(Debug)]
pub struct Proof {
    /// Its header.
    pub header: SegmentHeader,
    /// Its footer.
    pub footer: Footer,
    /// Checksum of the footer's head.
    pub head_checksum: u32,
}

/// Summary of a sealed segment. Small and of one size: there may be very many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Offset of its first record.
    pub first_offset: u64,
    /// One past its last.
    pub end_offset: u64,
    /// Least record time; greater than the greatest when it holds none.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// Greatest append time, real.
    pub max_append_ns: i64,
    /// Something in it could not be read when it was sealed.
    pub damaged: bool,
}

impl From<&Footer> for Summary {
    fn from(f: &Footer) -> Self {
        Self {
            first_offset: f.first_offset,
            end_offset: f.end_offset,
            min_time_ns: f.min_time_ns,
            max_time_ns: f.max_time_ns,
            max_append_ns: f.max_append_ns,
            damaged: !f.damage.is_empty(),
        }
    }
}

/// Limits from `clad.meta` for the content of a segment without its footer.
#[derive(Debug)]
pub(crate) struct Past {
    /// Starts of epochs.
    epochs: Vec<EpochStart>,
    /// Offsets that were reported lost.
    lost: Vec<Damage>,
}

impl Past {
    pub(crate) fn of(meta: &Meta) -> Self {
        Self { epochs: meta.epochs.clone(), lost: meta.lost.clone() }
    }
}

/// A sealed segment.
#[derive(Debug)]
pub struct Sealed {
    /// Its number.
    pub number: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// The log that it must be of: a segment of another one under its name is damage.
    log_id: [u8; 16],
    /// As the start left it; all that it has found share it. None where the footer is known.
    past: Option<Arc<Past>>,
    /// Offsets that the footer names as lost.
    damage: Vec<Damage>,
    summary: OnceLock<Option<Summary>>,
}

impl Sealed {
    /// A segment whose footer is read when it is needed.
    pub(crate) fn unread(number: u64, bytes: u64, log_id: [u8; 16], past: Arc<Past>) -> Self {
        Self { number, bytes, log_id, past: Some(past), damage: Vec::new(), summary: OnceLock::new() }
    }

    /// A segment whose footer is known.
    pub(crate) fn known(number: u64, bytes: u64, log_id: [u8; 16], footer: &Footer) -> Self {
        let (damage, summary) = (footer.damage.clone(), OnceLock::from(Some(footer.into())));
        Self { number, bytes, log_id, past: None, damage, summary }
    }

    /// Its summary, read once; `None` when its footer is not valid and a scan finds nothing (damage).
    ///
    /// # Errors
    /// Error of the kernel; the next call tries again.
    pub fn summary(&self, storage: &dyn Storage) -> io::Result<Option<Summary>> {
        if let Some(known) = self.summary.get() {
            return Ok(*known);
        }
        let read = match self.proof(storage) {
            // Handled as damaged, for this time: it must not block access to the segments around it.
            Err(e) if is_bad_place(&e) => return Ok(None),
            read => read?.map(|p| Summary::from(&p.footer)),
        };
        Ok(*self.summary.get_or_init(|| read))
    }

    /// Its summary, if it was read already: for callers that must not wait for the disk.
    pub(crate) fn known_summary(&self) -> Option<Summary> {
        self.summary.get().copied().flatten()
    }

    /// Its header and footer, from the disk: an index and a table of producers are too large to be stored for each.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn proof(&self, storage: &dyn Storage) -> io::Result<Option<Proof>> {
        Ok(match probe(storage, self.number, self.bytes)?.state {
            State::Sealed { header, .. } | State::Unsealed { header } if header.log_id != self.log_id => None,
            State::Sealed { header, footer, head_checksum } => Some(Proof { header, footer: *footer, head_checksum }),
            State::Unsealed { header } => {
                let (limit, lost) = (self.limit(header.epoch), self.lost());
                without_footer(storage, self.number, header, limit, &lost)?
            }
            State::Unreadable(_) => None,
        })
    }

    /// Latest possible end of its records, without its footer: data behind it was cut off once, and those offsets were
    /// assigned again since. A cut comes with a new epoch, which begins there.
    fn limit(&self, epoch: u32) -> u64 {
        let later = self.past.iter().flat_map(|past| past.epochs.iter()).filter(|start| start.epoch > epoch);
        let known = self.known_summary().map(|summary| summary.end_offset);
        later.map(|start| start.first_offset).chain(known).min().unwrap_or(u64::MAX)
    }

    /// Offsets that were reported lost, and so do not come back without its footer.
    fn lost(&self) -> Vec<Damage> {
        let reported = self.past.iter().flat_map(|past| past.lost.iter());
        reported.chain(&self.damage).copied().collect()
    }
}

/// Summary of a sealed segment whose footer is gone (it was cut short, or damaged). A scan finds the intact batches,
/// which stay readable; missing data behind them shows as a gap before the next segment. From `limit` on none counts,
/// nor any that is `lost`.
fn without_footer(
    storage: &dyn Storage,
    number: u64,
    header: SegmentHeader,
    limit: u64,
    lost: &[Damage],
) -> io::Result<Option<Proof>> {
    let scan = scan(storage.open(&segment_name(number), Access::ReadDirect)?, &header)?;
    let is_lost = |h: &BatchHeader| lost.iter().any(|lost| lost.hits(h.first_offset, h.end_offset()));
    let counts = |b: &&Found| b.is_data() && b.header.first_offset < limit && !is_lost(&b.header);
    let data: Vec<_> = scan.batches.iter().filter(counts).collect();
    let (Some(first), Some(last)) = (data.first(), data.last()) else { return Ok(None) };
    let within = |lost: &&Damage| lost.hits(first.header.first_offset, last.header.end_offset());
    let mut footer = Footer::new(number, header.epoch, first.header.first_offset, None);
    data.iter().for_each(|b| footer.add(&b.header, b.pos, b.checksum));
    (footer.data_end, footer.damage) = (last.end, lost.iter().filter(within).copied().collect());
    Ok(Some(Proof { header, footer, head_checksum: 0 }))
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    sealed: RwLock<BTreeMap<u64, Arc<Sealed>>>,
    /// Counts the removals.
    removals: AtomicU64,
}

impl Catalog {
    pub(crate) fn new(sealed: Vec<Sealed>) -> Self {
        let sealed = sealed.into_iter().map(|s| (s.number, Arc::new(s))).collect();
        Self { sealed: RwLock::new(sealed), removals: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, sealed: Sealed) {
        self.write().insert(sealed.number, Arc::new(sealed));
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut all = self.write();
        all.remove(&number);
        self.removals.fetch_add(1, Ordering::Release);
    }

    /// Number of removals so far: while it does not change, the files of the listed segments do not either.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Sealed>> {
        self.read().values().cloned().collect()
    }

    /// The oldest.
    pub(crate) fn first(&self) -> Option<Arc<Sealed>> {
        self.read().values().next().cloned()
    }

    /// Segments and their bytes.
    pub(crate) fn totals(&self) -> (usize, u64) {
        let all = self.read();
        (all.len(), all.values().map(|s| s.bytes).sum())
    }

    /// The segment that holds an offset, or the first one behind it.
    pub(crate) fn find(&self, storage: &dyn Storage, offset: u64) -> io::Result<Option<Arc<Sealed>>> {
        let all = self.all();
        // Binary search by footers, each read once; damaged ones (no footer) are stepped over.
        let (mut low, mut high) = (0, all.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let mut probe_at = middle;
            let end = loop {
                if probe_at >= high {
                    break None;
                }
                match all[probe_at].summary(storage)? {
                    Some(s) => break Some(s.end_offset),
                    None => probe_at += 1,
                }
            };
            match end {
                Some(end) if end <= offset => low = probe_at + 1,
                _ => high = middle,
            }
        }
        Ok(all.get(low..).and_then(|rest| {
            rest.iter().find(|s| s.summary(storage).ok().flatten().is_some_and(|f| f.end_offset > offset)).cloned()
        }))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<u64, Arc<Sealed>>> {
        unpoisoned(self.sealed.read())
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Arc<Sealed>>> {
        unpoisoned(self.sealed.write())
    }
}
