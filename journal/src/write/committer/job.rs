//! Input and output of the committer: appends, jobs, results.

use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::env::Trigger;
use crate::format::footer::{Damage, Footer};
use crate::format::resend::ResendKey;
use crate::format::segment::SegmentHeader;
use crate::io::{Durability, File};
use crate::write::active::{Active, Placed};
use crate::write::batch::Batch;
use crate::write::origin::Forward;
use crate::write::permits::Permit;
use crate::write::producer::{ProducerId, ProducerTable};
use crate::write::seal::SealedFile;
use crate::write::watermarks::Level;

/// One append as a caller submits it.
#[derive(Debug)]
pub struct Append<'a> {
    /// The producer's id.
    pub producer: ProducerId,
    /// The owner that may use that id.
    pub owner: u64,
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// Records.
    pub count: u32,
    /// The sequence may jump ahead.
    pub gap: bool,
    /// The level that a caller waits for.
    pub level: Level,
    /// Least record time.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// Peer metadata from the daemon, at most [`crate::format::chunk::PEER_META_BYTES_MAX`] bytes.
    pub peer_meta: &'a [u8],
    /// The records, opaque.
    pub payload: &'a [u8],
    /// The client's own CRC-32C of the payload, already checked.
    pub payload_checksum: u32,
    /// Permit that admission counted for it.
    pub permit: Option<Permit>,
}

/// Sender of a burst: the fields that all its appends have in common.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The producer's id.
    pub producer: ProducerId,
    /// The owner that may use that id.
    pub owner: u64,
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// Peer metadata from the daemon, at most [`crate::format::chunk::PEER_META_BYTES_MAX`] bytes.
    pub peer_meta: &'a [u8],
    /// Key of the append, for a sender without a sequence that may send it again. The run is then of one append: in a
    /// longer one the key counts for nothing. The peer metadata has it too ([`ResendKey::encode`]).
    pub resend: Option<ResendKey>,
    /// Set where another log forwards the append: then the producer is the origin, the epoch that of the source, and the
    /// sequence a source offset. The run is of one append. The peer metadata names the origin too ([`Origin::encode`]).
    ///
    /// [`Origin::encode`]: crate::format::origin::Origin::encode
    pub forward: Option<Forward>,
}

/// One append of a burst; the fields are those of [`Append`].
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// Records.
    pub count: u32,
    /// The sequence may jump ahead.
    pub gap: bool,
    /// The level that a caller waits for.
    pub level: Level,
    /// Least record time.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// The records, opaque.
    pub payload: &'a [u8],
    /// The client's own CRC-32C of the payload, already checked.
    pub payload_checksum: u32,
    /// Number of the burst's permits that belong to this append: they are held as long as its memory.
    pub share: usize,
}

/// Treatment of appends behind one that is refused for the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRefusal {
    /// Each append is taken or refused exactly as if it had come alone.
    Judge,
    /// A temporary refusal is not overtaken. Where the journal refuses every sender ([`AppendError::is_for_all`]), it
    /// refuses all later appends with the same error. Where it refuses one sender ([`AppendError::is_for_now`]), it
    /// refuses all of that sender's. So an item may have its gap mark where all before it is stored or refused for
    /// good: it jumps over nothing that waits.
    ///
    /// [`AppendError::is_for_all`]: crate::AppendError::is_for_all
    /// [`AppendError::is_for_now`]: crate::AppendError::is_for_now
    Hold,
}

impl<'a> Append<'a> {
    /// As a run of one, and the permit.
    pub fn split(self) -> (Sender<'a>, Item<'a>, Option<Permit>) {
        let from = Sender {
            producer: self.producer,
            owner: self.owner,
            producer_epoch: self.producer_epoch,
            peer_meta: self.peer_meta,
            resend: None,
            forward: None,
        };
        let item = Item {
            first_sequence: self.first_sequence,
            count: self.count,
            gap: self.gap,
            level: self.level,
            min_time_ns: self.min_time_ns,
            max_time_ns: self.max_time_ns,
            payload: self.payload,
            payload_checksum: self.payload_checksum,
            share: self.permit.as_ref().map_or(0, Permit::num_permits),
        };
        (from, item, self.permit)
    }
}

/// Result of an accepted append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Offset of its first record.
    pub first_offset: u64,
    /// Records.
    pub count: u32,
    /// The epoch in which the watermarks are to be read.
    pub epoch: u32,
    /// [`crate::Watermarks::failures`] when the offset was assigned: a greater number later means "maybe written".
    pub failures: u32,
    /// It was stored before; `first_offset` is its place.
    pub duplicate: bool,
}

/// A job to carry out.
pub(crate) enum Job {
    /// One write, and the way to make it durable. `alone`: nothing was in flight beside it when it began.
    Write { id: u64, file: Arc<dyn File>, placed: Placed, durability: Durability, sync: SyncBy, alone: bool },
    /// A sync of everything below `upto`; a range sync of these bytes, where that is enough.
    Sync { file: Arc<dyn File>, upto: u64, range: Option<(u64, u64)> },
    /// Seal the active segment and open the next one.
    Rotate(Box<Rotation>),
    /// Open a segment where there is none; the next batch has this offset.
    Open { wanted: Wanted, next: u64, epoch: u32 },
    /// Recover after a failure.
    Recover(Box<Rescue>),
    /// The last job: seal, and record a clean end.
    Close(Option<Box<Rotation>>),
}

/// Method that makes a write durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncBy {
    /// With its metadata, past the disk's cache.
    Data,
    /// By write-back of its bytes alone.
    Range,
}

/// The next segment.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) prepared: Option<SegmentHeader>,
    /// Records that have their offsets wait for it: it may use the reserved space.
    pub(crate) for_accepted: bool,
}

/// Input of a rotation.
pub(crate) struct Rotation {
    pub(crate) active: Active,
    pub(crate) footer: Footer,
    pub(crate) unsynced: bool,
    /// A commit marker rewrote a part of the segment after its last sync.
    pub(crate) marker_unsynced: bool,
    pub(crate) wanted: Wanted,
    pub(crate) trigger: Trigger,
}

/// Input of a recovery in the process.
pub(crate) struct Rescue {
    /// The segment that failed, until it is ended.
    pub(crate) active: Option<Active>,
    pub(crate) prepared: Option<SegmentHeader>,
    /// The offset from which the log is written again.
    pub(crate) from: u64,
    /// The offset at which the log resumes.
    pub(crate) next: u64,
    /// Batches of the failed range that are in memory, by first offset, without gaps where nothing was released.
    pub(crate) held: Vec<Arc<Batch>>,
    /// Producers as of `next`.
    pub(crate) producers: ProducerTable,
    pub(crate) progress: Progress,
}

/// Progress of a recovery in the process, over all of its attempts.
#[derive(Default)]
pub(crate) struct Progress {
    /// The superseding segment, sealed and under its own name: `clad.meta` may name it, so it is not removed again.
    pub(crate) sealed: Option<(Arc<Footer>, SealedFile)>,
    /// That segment is certainly named, or there was nothing to write.
    pub(crate) rewritten: bool,
    /// Offsets that could not be restored. They are reported when the recovery counts.
    pub(crate) lost: Vec<Damage>,
}

impl Rescue {
    /// Records offsets that cannot be restored: their producers' sequences are open again.
    pub(crate) fn lose(&mut self, gone: Damage) {
        self.progress.lost.push(gone);
        self.producers.lose(gone.from, gone.to);
    }
}

/// Reason why there is no next segment yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoSegment {
    /// No room.
    Space,
    /// It cannot be opened or created: too many open files, or a disk error.
    Failed(String),
}

/// Result of a job.
pub(crate) enum Done {
    Write { id: u64, durability: Durability },
    Sync { upto: u64 },
    Rotated { next: Result<Active, NoSegment> },
    Opened { next: Result<Active, NoSegment> },
    Recovered { next: Result<Active, NoSegment>, epoch: u32, end: u64, producers: Box<ProducerTable>, lost: bool },
    Closed,
}

/// Taker of the next job, where a ring runs beside the blocking thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Every job that runs alone: the write of an empty queue, and every long job.
    Thread,
    /// Writes and syncs beside others, and a batch that is worth its own write while more data arrives.
    Ring,
}

/// Next step.
pub(crate) enum Step {
    Run(Job),
    /// Nothing until an append, a completion, or this boot time.
    Wait(Option<u64>),
    Exit,
}

/// The sealed segment (number, first offset, end); nothing if the active segment held no record; or the reason of a
/// failure.
pub type RotateAnswer = Result<Option<(u64, u64, u64)>, String>;

/// A request to seal the active segment.
pub(crate) type RotateReply = oneshot::Sender<RotateAnswer>;

/// A job that failed.
pub(crate) struct Failure {
    pub(crate) of: FailedJob,
    pub(crate) reason: String,
    pub(crate) was_rescue: bool,
}

/// The failed job.
pub(crate) enum FailedJob {
    Write(u64),
    Sync,
    Rotate(Box<Rotation>),
    /// The record of a clean end, with everything sealed.
    Mark,
    Rescue(Box<Rescue>),
}

impl Failure {
    pub(crate) fn new(of: FailedJob, what: &str, error: &io::Error) -> Self {
        let was_rescue = matches!(of, FailedJob::Rescue(_));
        Self { of, reason: format!("{what}: {error}"), was_rescue }
    }
}
