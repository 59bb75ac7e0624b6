//! The thread that speaks with whoever keeps the rings.
//!
//! Invariants: what is asked is done in the order in which it was asked; while rings that were given out are kept by
//! nobody it says so on `/healthz`, in the log and by a metric, tries again at once and then after a pause that doubles from
//! [`PAUSE`], and says when it is over; where who keeps does not answer, those who ask next are told so at once, and do not
//! wait one after the other. It sleeps while nothing is asked and nobody has ended.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::holder::Holder;
use super::store::Store;
use super::{Note, StoredRing};
use crate::ops::health::Health;
use crate::ops::metrics;

/// Between two attempts to have the rings kept again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Its cause on `/healthz`.
const CAUSE: &str = "keeper";

/// What is wanted of it.
#[derive(Debug)]
pub(super) enum Ask {
    Keep(StoredRing, mpsc::SyncSender<io::Result<()>>),
    Forget(Note),
    Settle(mpsc::SyncSender<()>),
    End,
}

/// Who keeps them.
#[derive(Debug)]
pub(super) enum Place {
    /// systemd.
    Store(Store),
    /// A process of ours.
    Holder(Holder),
}

impl Place {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Store(_) => "systemd's descriptor store",
            Self::Holder(_) => "a holder process",
        }
    }

    /// The holder's socket.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Store(_) => None,
            Self::Holder(holder) => Some(holder.path()),
        }
    }

    pub(super) fn keep(&mut self, ring: StoredRing) -> io::Result<()> {
        match self {
            Self::Store(store) => store.keep(&ring),
            Self::Holder(holder) => holder.keep(ring),
        }
    }

    fn forget(&mut self, note: &Note) -> io::Result<()> {
        match self {
            Self::Store(store) => store.forget(note),
            Self::Holder(holder) => holder.forget(note),
        }
    }

    /// What is readable when it has ended. (What systemd stored outlives systemd's own restart.)
    fn line(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Store(_) => None,
            Self::Holder(holder) => holder.line(),
        }
    }

    /// It has ended.
    fn ended(&mut self) {
        if let Self::Holder(holder) = self {
            holder.ended();
        }
    }

    /// Rings that it should keep and does not.
    fn unkept(&self) -> usize {
        match self {
            Self::Store(_) => 0,
            Self::Holder(holder) => holder.unkept(),
        }
    }

    fn mend(&mut self) -> io::Result<()> {
        match self {
            Self::Store(_) => Ok(()),
            Self::Holder(holder) => holder.mend(),
        }
    }
}

/// The thread.
pub(super) struct Clerk {
    place: Place,
    asked: mpsc::Receiver<Ask>,
    bell: Arc<OwnedFd>,
    health: Health,
    /// When it tries again to have them kept, and the pause after that.
    again: Option<(Instant, Duration)>,
    /// Who keeps has not answered: nobody else waits for that until then.
    silent: Option<(Instant, String)>,
}

impl Clerk {
    pub(super) fn new(place: Place, asked: mpsc::Receiver<Ask>, bell: Arc<OwnedFd>, health: Health) -> Self {
        Self { place, asked, bell, health, again: None, silent: None }
    }

    /// Until it is told to end.
    pub(super) fn run(mut self) {
        while self.serve() {
            self.look();
            self.wait();
        }
    }

    fn serve(&mut self) -> bool {
        loop {
            match self.asked.try_recv() {
                Ok(Ask::Keep(ring, done)) => drop(done.send(self.keep(ring))),
                Ok(Ask::Forget(note)) => {
                    if let Err(error) = self.place.forget(&note) {
                        tracing::warn!(ring = %note.id, %error, "a ring that was given back is still kept");
                    }
                }
                Ok(Ask::Settle(done)) => drop(done.send(())),
                Err(mpsc::TryRecvError::Empty) => return true,
                Ok(Ask::End) | Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn keep(&mut self, ring: StoredRing) -> io::Result<()> {
        if let Some((until, why)) = &self.silent
            && Instant::now() < *until
        {
            return Err(io::Error::new(io::ErrorKind::TimedOut, why.clone()));
        }
        let kept = self.place.keep(ring);
        let has_waited = |e: &&io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let silent = kept.as_ref().err().filter(has_waited).map(|e| (Instant::now() + PAUSE.0, e.to_string()));
        self.silent = silent;
        kept
    }

    /// Sees to it that what was given out is kept.
    fn look(&mut self) {
        let unkept = self.place.unkept();
        metrics::rings_unprotected(unkept as u64);
        if unkept == 0 {
            if self.again.take().is_some() {
                tracing::info!("the rings are kept again, by {}", self.place.name());
                self.health.restored(CAUSE);
            }
            return;
        }
        let now = Instant::now();
        let pause = match self.again {
            Some((at, _)) if now < at => return,
            Some((_, pause)) => pause,
            None => PAUSE.0,
        };
        self.again = Some((now + pause, (pause * 2).min(PAUSE.1)));
        self.say(unkept, "a holder is looked for, or started");
        if let Err(error) = self.place.mend() {
            tracing::error!(rings = unkept, %error, again_in = ?pause, "the rings are kept by nobody else");
            return self.say(unkept, &format!("no holder answers or can be started: {error}"));
        }
        self.look();
    }

    fn say(&self, unkept: usize, more: &str) {
        let why = format!(
            "{unkept} rings are kept by nobody else, what is posted there ends with clad and its client; {more}"
        );
        self.health.degraded(CAUSE, why);
    }

    /// Until something is asked, or who keeps has ended, or it is time to try again.
    fn wait(&mut self) {
        let left = self.again.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() });
        let bell = self.bell.clone();
        let mut fds = vec![PollFd::new(&*bell, PollFlags::IN)];
        let line = self.place.line();
        fds.extend(line.as_ref().map(|line| PollFd::new(line, PollFlags::IN)));
        let _ = poll(&mut fds, left.as_ref());
        // It says nothing unasked: what is there to read is its end.
        let ended = fds.get(1).is_some_and(|line| !line.revents().is_empty());
        drop(fds);
        let _ = rustix::io::read(&*bell, &mut [0; 8]);
        if ended {
            self.place.ended();
        }
    }
}
