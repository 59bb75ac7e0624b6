//! The journal without threads: a second shell around the same committer, executor and recovery, for a simulation that
//! decides itself what happens next.
//!
//! Invariant: nothing happens between two calls. A job that was begun is in flight until it is carried out; it
//! may be carried out before one that was begun earlier, or never (then the process died with it).

use std::io;
use std::sync::{Arc, Mutex};

use crate::clock::Clock;
use crate::config::JournalConfig;
use crate::config::Retention;
use crate::env::Observer;
use crate::error::{AppendError, CursorError, OpenError};
use crate::format::cursors::NamedCursor;
use crate::format::meta::Meta;
use crate::format::origin::OriginEntry;
use crate::handle::open::open_shared;
use crate::io::{IoBuf, Storage};
use crate::read::reader::Reader;
use crate::recover::Report;
use crate::run::background::{self, RetentionState};
use crate::run::shared::Shared;
use crate::sync::atomic::Ordering;
use crate::sync::unpoisoned;
use crate::write::batch::BurstPermits;
use crate::write::committer::{Accepted, AfterRefusal, Append, Item, Job, RotateReply, Sender, Step};
use crate::write::cursor_table::CursorChange;
use crate::write::permits::Permit;
use crate::write::producer::{ProducerId, ProducerState, counted_under};
use crate::write::watermarks::{Level, Watermarks};

/// A journal that moves only by explicit steps.
pub struct Stepper {
    shared: Arc<Shared>,
    report: Report,
    retention: Mutex<RetentionState>,
}

/// A job in flight.
pub struct Begun {
    job: Job,
    /// Kind of the job, for a trace.
    pub kind: Kind,
}

/// Action of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One write, of a batch or a commit marker.
    Write,
    /// A sync.
    Sync,
    /// A range sync.
    SyncRange,
    /// Sealing a segment and opening the next.
    Rotate,
    /// Opening a segment where there is none.
    Open,
    /// Recovery after a failure.
    Recover,
    /// The clean end.
    Close,
}

/// Jobs that could begin.
pub enum Next {
    /// This.
    Job(Begun),
    /// Nothing until an append, a completion, or this boot time (nanoseconds).
    Wait(Option<u64>),
    /// Nothing ever: it is closed.
    Exit,
}

impl Stepper {
    /// Recovers the log, as [`crate::Journal::open`] does.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        config: JournalConfig,
        observer: Observer,
    ) -> Result<Self, OpenError> {
        let (shared, report) = open_shared(storage, "simulated", clock, config, observer)?;
        Ok(Self { shared, report, retention: Mutex::default() })
    }

    /// Findings and actions of the start.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// [`crate::Journal::append`] of a run of one.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn append(&self, append: Append<'_>) -> Result<Accepted, AppendError> {
        let (from, item, permit) = append.split();
        self.append_burst(&from, &[item], permit).pop().expect("a run of one has one answer")
    }

    /// [`crate::Journal::append`] of one run.
    pub fn append_burst(
        &self,
        from: &Sender<'_>,
        burst: &[Item<'_>],
        permit: Option<Permit>,
    ) -> Vec<Result<Accepted, AppendError>> {
        let (now, mut permits, mut answers) = (self.shared.env().now(), BurstPermits::new(permit), Vec::new());
        self.shared.with(|c| c.append([(from, burst)], AfterRefusal::Judge, now, &mut permits, |a| answers.push(a)));
        answers
    }

    /// As [`crate::Journal::producer`].
    ///
    /// # Errors
    /// [`AppendError::NotOwner`].
    pub fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        self.shared.with(|c| c.sequencer.producer(id, owner))
    }

    /// As [`crate::Journal::connect`].
    ///
    /// # Errors
    /// [`AppendError::NotOwner`].
    pub fn connect(&self, id: &ProducerId, owner: u64, epoch: u32) -> Result<(), AppendError> {
        self.shared.with(|c| c.sequencer.connect(id, owner, epoch, counted_under(owner)))
    }

    /// As [`crate::Journal::disconnect`].
    pub fn disconnect(&self, id: &ProducerId, forget: bool) {
        self.shared.with(|c| c.disconnect(id, forget));
    }

    /// As [`crate::Journal::origins`].
    pub fn origins(&self) -> Vec<OriginEntry> {
        self.shared.with(|c| c.sequencer.origins().all())
    }

    /// As [`crate::Journal::drop_origin`].
    pub fn drop_origin(&self, origin: &OriginEntry) -> bool {
        self.shared.with(|c| c.drop_origin(origin.owner, &origin.producer)).is_some()
    }

    /// True if [`crate::Journal::forgotten`] would wait.
    pub fn is_forgetting(&self, id: &ProducerId) -> bool {
        self.shared.with(|c| c.sequencer.is_forgetting(id))
    }

    /// The watermarks now.
    pub fn watermarks(&self) -> Watermarks {
        self.shared.watermarks()
    }

    /// Content of `clad.meta`.
    pub fn meta(&self) -> Meta {
        self.shared.env().meta.get()
    }

    /// Begins the next job, if there is one.
    pub fn begin(&self) -> Next {
        let now = self.shared.env().now();
        match self.shared.with(|c| c.step(now)) {
            Step::Run(job) => {
                let kind = match &job {
                    Job::Write { .. } => Kind::Write,
                    Job::Sync { range: None, .. } => Kind::Sync,
                    Job::Sync { .. } => Kind::SyncRange,
                    Job::Rotate(_) => Kind::Rotate,
                    Job::Open { .. } => Kind::Open,
                    Job::Recover(_) => Kind::Recover,
                    Job::Close(_) => Kind::Close,
                };
                Next::Job(Begun { job, kind })
            }
            Step::Wait(until) => Next::Wait(until),
            Step::Exit => Next::Exit,
        }
    }

    /// Carries a job out and takes its result.
    pub fn execute(&self, begun: Begun) {
        let (done, _) = self.shared.executor.run(begun.job, IoBuf::with_capacity(0));
        self.shared.finish(done);
    }

    /// One look of the background thread: prepares the next segment if one is wanted and there is room.
    pub fn prepare(&self) {
        background::look_for_space(&self.shared);
    }

    /// The other check of the background thread: removes segments by the rules of retention.
    pub fn retain(&self) {
        unpoisoned(self.retention.lock()).apply(&self.shared);
    }

    /// [`crate::Journal::change_cursors`].
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn change_cursors(&self, changes: &[CursorChange], max: usize) -> io::Result<Vec<Result<(), CursorError>>> {
        self.shared.cursors.change(self.shared.storage().as_ref(), changes, max, self.shared.env().now())
    }

    /// [`crate::Journal::cursors`].
    pub fn cursors(&self) -> Arc<Vec<NamedCursor>> {
        self.shared.cursors.all()
    }

    /// [`crate::Journal::held_bytes`].
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }

    /// Replaces the rules of retention.
    pub fn set_retention(&self, retention: Retention) {
        self.shared.set_retention(retention);
    }

    /// Bytes of appends that wait for the disk.
    pub fn in_flight_bytes(&self) -> usize {
        self.shared.with(|c| c.writer.in_flight_bytes())
    }

    /// Boot time at which the oldest record that is not durable was taken.
    pub fn oldest_undurable_boot_ns(&self) -> Option<u64> {
        self.shared.with(|c| c.oldest_undurable_boot_ns())
    }

    /// Requests a rotation; the answer is dropped.
    pub fn request_rotate(&self) {
        let (reply, _): (RotateReply, _) = tokio::sync::oneshot::channel();
        self.shared.with(|c| c.request_rotate(reply));
    }

    /// Asks for a sync of everything received.
    pub fn request_sync(&self) -> u64 {
        self.shared.with(|c| c.request_sync())
    }

    /// Stops taking appends; jobs continue until [`Next::Exit`].
    pub fn close(&self) {
        self.shared.with(|c| c.close());
    }

    /// A reader, as [`crate::Journal::reader`].
    pub fn reader(&self, from: u64, level: Level) -> Reader {
        Reader::new(self.shared.clone(), from, level).impatient()
    }
}
