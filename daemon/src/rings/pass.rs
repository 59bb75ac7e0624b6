//! One pass over all rings: what is older than its time, in the order of time, goes to the journal.
//!
//! Between rings, what happened before stays before: the pass takes the time, then looks at all rings, and takes only
//! what is older. Whoever commits after it has looked at his ring has a later time than whatever it then takes from
//! the others (`clad_shm::drain` has the proof). Taking ring by ring, whatever lies in them, has not that property.
//!
//! What must hold: a batch is bounded ([`MAX_APPENDS`], [`MAX_BYTES`]), and so is the time under the journal's lock; bytes
//! are counted against the budget before they are handed over; while a batch waits for room, in line with everybody else,
//! nothing else is taken, and nobody looks whether there is some: who gives room back wakes the drain.
//!
//! When an append of a ring is the first of it in a batch, all before it in that ring are stored or refused for good, and
//! the journal takes nothing of a ring behind what it refuses for now. So each append may jump ahead in sequence, over
//! what was refused for good and what the log has lost, and none over what waits.
//!
//! What the journal refuses for now waits in its ring. Where it refuses whoever comes (no space, a failure), all rings
//! wait, and nothing that is behind it in time is taken before it. Where it refuses one producer alone, that one's ring
//! waits: others go on, and lose their order with it for as long. So it does where an append was posted to an earlier daemon
//! and is longer than segments are now, unless the log has it already: until there is a daemon with larger ones.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clad_journal::{Accepted, AppendError, Item, Owed, Sender};
use clad_proto::frame::{AppendHead, AppendView, RingAppendTrailer};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use clad_shm::Entry;

use super::ring::Ring;
use crate::ingest::quota::QuotaGuard;
use crate::ingest::{Arrival, Door, refusal};
use crate::metrics;

const _: () = assert!(RingAppendTrailer::BYTES == clad_shm::TRAILER);

/// Most appends in a batch.
const MAX_APPENDS: usize = 1024;
/// Most bytes in a batch, unless it is one append.
const MAX_BYTES: usize = 256 * 1024;
/// Pause after the journal has refused something for now, until it is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// An append that was copied out of its ring.
struct Taken {
    ring: usize,
    bytes: (usize, usize),
    entry: Entry,
    /// What its answer waits for; known once it was looked into.
    level: AckLevel,
    /// Why it is not handed over.
    refused: Option<Box<ErrorInfo>>,
    /// It waits in its ring, for another daemon.
    waits: bool,
}

impl Taken {
    fn payload_bytes(&self) -> usize {
        (self.bytes.1 - self.bytes.0).saturating_sub(RingAppendTrailer::BYTES)
    }
}

/// What was taken and not yet handed over.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    taken: Vec<Taken>,
    /// Its place in the line for room.
    line: Option<Line>,
}

type Line = Pin<Box<dyn Future<Output = Option<QuotaGuard>> + Send>>;

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    fn is_full(&self) -> bool {
        self.taken.len() >= MAX_APPENDS || self.bytes.len() >= MAX_BYTES
    }

    /// Takes what is older than `before`, in the order of time; says what is left, and up to which time nothing is.
    pub(super) fn fill(&mut self, rings: &mut [Ring], before: u64) -> (Fill, u64) {
        let mut frontier = before;
        for ring in rings.iter_mut() {
            frontier = frontier.min(ring.look(before));
        }
        while !self.is_full() {
            let Some((at, until)) = next(rings, frontier) else { break };
            // As long as no other ring has anything older, it goes on with this one.
            while let Some(time) = rings[at].front
                && time <= until
                && time < frontier
                && !self.is_full()
            {
                let from = self.bytes.len();
                if let Some(entry) = rings[at].take(&mut self.bytes) {
                    let bytes = (from, self.bytes.len());
                    self.taken.push(Taken {
                        ring: at,
                        bytes,
                        entry,
                        level: AckLevel::None,
                        refused: None,
                        waits: false,
                    });
                }
                frontier = frontier.min(rings[at].look(before));
            }
        }
        match rings.iter().filter_map(|ring| ring.front).min() {
            Some(front) if front < frontier => (Fill::More, front),
            _ if frontier < before => (Fill::Held, frontier),
            _ => (Fill::All, before),
        }
    }

    /// Hands it to the journal. `None`: there is no room for it now, nothing was done, and `waker` is woken when there is.
    pub(super) fn hand_over(&mut self, rings: &mut [Ring], door: &Door, at: Arrival, waker: &Waker) -> Option<Handed> {
        let Self { bytes, taken, line } = self;
        let room = match line {
            Some(_) => Some(ready(line, waker)?),
            None => None,
        };
        let mut items: Vec<Item<'_>> = Vec::with_capacity(taken.len());
        let mut runs: Vec<(usize, usize)> = Vec::new(); // ring, end in `items`
        let mut costs: Vec<(usize, usize)> = Vec::new(); // one of its rings, and bytes, of each owner
        let mut waiting: Vec<usize> = Vec::new(); // rings of which nothing more is handed over
        for taken in taken.iter_mut() {
            taken.waits = waiting.contains(&taken.ring);
            let is_beyond = rings[taken.ring].is_beyond_segments(taken.payload_bytes());
            // What the log has already needs no room in it.
            let is_stored = is_beyond && rings[taken.ring].is_stored(&taken.entry);
            if !taken.waits && is_beyond && !is_stored {
                waiting.push(taken.ring);
                taken.waits = true;
            }
            if taken.waits {
                continue;
            }
            let bytes = &bytes[taken.bytes.0..taken.bytes.1];
            let (level, item) = prepare(&mut rings[taken.ring], &taken.entry, bytes, at);
            taken.level = level;
            let item = if is_stored { Err(refusal(&AppendError::TooOld)) } else { item };
            match item {
                Ok(item) => {
                    let owner = rings[taken.ring].peer.part();
                    match costs.iter_mut().find(|(ring, _)| rings[*ring].peer.part() == owner) {
                        Some((_, cost)) => *cost += item.share,
                        None => costs.push((taken.ring, item.share)),
                    }
                    items.push(item);
                    match runs.last_mut() {
                        Some((ring, end)) if *ring == taken.ring => *end = items.len(),
                        _ => runs.push((taken.ring, items.len())),
                    }
                    taken.refused = None;
                }
                Err(error) => taken.refused = Some(Box::new(error)),
            }
        }
        let permit = match (costs.is_empty(), room) {
            (true, _) => None,
            (_, Some(room)) => room,
            (_, None) => match at_once(rings, &costs) {
                Some(permit) => Some(permit),
                // More than there is in all can only be one append of the largest size; it waits for everything.
                None => {
                    *line = Some(in_line(rings, &costs));
                    ready(line, waker)?
                }
            },
        };
        let senders: Vec<Sender<'_>> = runs.iter().map(|(ring, _)| rings[*ring].sender()).collect();
        let mut from = 0;
        let spans = runs.iter().map(|(_, end)| &items[std::mem::replace(&mut from, *end)..*end]);
        let mut verdicts = Vec::with_capacity(items.len());
        let runs = senders.iter().zip(spans);
        let owed = match items.is_empty() {
            true => None,
            false => door.journal.append_runs_owing(runs, permit, at.moment(), |v| verdicts.push(v)),
        };
        let handed = Handed { owed, ..settle(taken, rings, verdicts, at) };
        bytes.clear();
        taken.clear();
        Some(handed)
    }

    /// A ring begins anew: what was taken of it and not handed over comes again.
    pub(super) fn forget(&mut self, ring: usize) {
        self.taken.retain(|taken| taken.ring != ring);
        if self.taken.is_empty() {
            self.bytes.clear();
            self.line = None;
        }
    }
}

/// Room for what each owner has in the batch, if all of it is there.
fn at_once(rings: &[Ring], costs: &[(usize, usize)]) -> Option<QuotaGuard> {
    let taken: Option<Vec<_>> = costs.iter().map(|(ring, cost)| rings[*ring].admission.try_take(*cost)).collect();
    taken?.into_iter().reduce(merged)
}

/// The same in turn: in the queue of each owner at once.
fn in_line(rings: &[Ring], costs: &[(usize, usize)]) -> Line {
    let taking: Vec<_> = costs.iter().map(|(ring, cost)| rings[*ring].admission.take(*cost)).collect();
    Box::pin(async move {
        let mut room: Option<QuotaGuard> = None;
        for taking in taking {
            let more = taking.await?;
            room = Some(room.into_iter().fold(more, merged));
        }
        room
    })
}

fn merged(mut one: QuotaGuard, other: QuotaGuard) -> QuotaGuard {
    one.merge(other);
    one
}

/// Room, if it is there: then the place in the line is given up.
fn ready(line: &mut Option<Line>, waker: &Waker) -> Option<Option<QuotaGuard>> {
    match line.as_mut()?.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Ready(room) => {
            *line = None;
            Some(room)
        }
        Poll::Pending => None,
    }
}

/// Tells the rings what became of it.
fn settle(taken: &[Taken], rings: &mut [Ring], verdicts: Vec<Result<Accepted, AppendError>>, at: Arrival) -> Handed {
    let mut handed = Handed::default();
    let mut counts = Counts::default();
    let mut verdicts = verdicts.into_iter();
    let (mut touched, mut stopped) = (vec![false; rings.len()], vec![false; rings.len()]);
    for taken in taken {
        if taken.waits {
            // Handed over was nothing from here on.
            if !std::mem::replace(&mut stopped[taken.ring], true) {
                touched[taken.ring] = true;
                rings[taken.ring].wait_for_segments(&taken.entry, taken.payload_bytes());
            }
            continue;
        }
        let verdict = match &taken.refused {
            None => verdicts.next().map(|verdict| verdict.map_err(Refused::ByTheLog)),
            Some(error) => Some(Err(Refused::AtTheDoor(error))),
        };
        let (Some(verdict), false) = (verdict, stopped[taken.ring]) else { continue };
        let ring = &mut rings[taken.ring];
        touched[taken.ring] = true;
        handed.asked |= taken.level >= AckLevel::Received;
        handed.waits |= taken.level >= AckLevel::Written;
        let error = match verdict {
            Ok(accepted) => {
                counts.add(&accepted, taken.payload_bytes(), taken.level);
                ring.accepted(&taken.entry, taken.level, &accepted, at.since);
                continue;
            }
            // What is refused for now waits in its ring, and so does all behind it.
            Err(Refused::ByTheLog(why)) if why.is_for_now() => {
                stopped[taken.ring] = true;
                ring.put_back(&taken.entry);
                match why.is_for_all() {
                    true => {
                        let until = Instant::now() + PAUSE;
                        handed.hold.get_or_insert_with(|| Hold { until, why: refusal(&why) });
                    }
                    false => ring.hold(refusal(&why)),
                }
                continue;
            }
            Err(Refused::ByTheLog(why)) => refusal(&why),
            Err(Refused::AtTheDoor(error)) => error.clone(),
        };
        let failures = ring.door.journal.marks().failures;
        ring.refused(&taken.entry, taken.level, &error, failures, at.since);
    }
    counts.tell(at.since);
    for (ring, _) in rings.iter_mut().zip(touched).filter(|(_, touched)| *touched) {
        ring.announce();
    }
    handed
}

/// Who refused an append.
enum Refused<'a> {
    ByTheLog(AppendError),
    AtTheDoor(&'a ErrorInfo),
}

/// What [`Batch::fill`] left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Nothing that is old enough.
    All,
    /// More that is old enough.
    More,
    /// Something is held up.
    Held,
}

/// Nothing is taken until then.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) until: Instant,
    pub(super) why: ErrorInfo,
}

/// What came of a batch.
#[derive(Default)]
pub(super) struct Handed {
    /// The journal takes nothing now.
    pub(super) hold: Option<Hold>,
    /// Somebody asked for an answer.
    pub(super) asked: bool,
    /// Somebody waits for the disk.
    pub(super) waits: bool,
    /// The write that it wants, and for which nobody was woken.
    pub(super) owed: Option<Owed>,
}

/// An append as the journal takes it, or why it does not get it; and the level that it asks for.
#[inline]
fn prepare<'a>(
    ring: &mut Ring,
    entry: &Entry,
    bytes: &'a [u8],
    at: Arrival,
) -> (AckLevel, Result<Item<'a>, ErrorInfo>) {
    let Some((trailer, payload)) = RingAppendTrailer::split(bytes) else {
        let text = "the trailer of the append is not what belongs there";
        // Whatever level it was to have: who waits for it is told.
        return (AckLevel::Received, Err(ErrorInfo::new(ErrorCode::BadRecord, text)));
    };
    // What wants no answer is taken like what has it with its offset. It is `posted` as it lies here, whatever it waits for: a
    // level that this log has not (and an earlier daemon's had) takes nothing back, and the ring tells its owner.
    let level = match trailer.level {
        level if level < AckLevel::Received => AckLevel::None,
        level => level.min(ring.door.highest),
    };
    let (first_seq, count, payload_crc) = (entry.sequence, entry.records, trailer.payload_crc);
    let view = AppendView { head: AppendHead { first_seq, count, level, gap: true, payload_crc }, payload };
    // Taken when the entry was checked; it is that of the payload, for the trailer of an entry is that of an append.
    let item = ring.door.item(&view, entry.sum, at, &mut ring.known_group);
    (trailer.level, item.ok_or_else(|| ring.door.why_not(&view)))
}

/// The ring with the oldest front below the frontier, and the time of the next oldest one.
fn next(rings: &[Ring], frontier: u64) -> Option<(usize, u64)> {
    let (mut oldest, mut until) = (None, u64::MAX);
    for (at, ring) in rings.iter().enumerate() {
        let Some(time) = ring.front.filter(|time| *time < frontier) else { continue };
        match oldest {
            Some((_, before)) if before <= time => until = until.min(time),
            Some((_, before)) => {
                until = until.min(before);
                oldest = Some((at, time));
            }
            None => oldest = Some((at, time)),
        }
    }
    oldest.map(|(at, _)| (at, until))
}

/// What is counted once for all.
#[derive(Default)]
struct Counts {
    fresh: u64,
    bytes: u64,
    again: u64,
    received: (u64, u64),
}

impl Counts {
    fn add(&mut self, accepted: &Accepted, bytes: usize, level: AckLevel) {
        let records = u64::from(accepted.count);
        match accepted.duplicate {
            true => self.again += records,
            false => (self.fresh, self.bytes) = (self.fresh + records, self.bytes + bytes as u64),
        }
        if level == AckLevel::Received {
            self.received = (self.received.0 + 1, self.received.1 + records);
        }
    }

    fn tell(&self, since: Instant) {
        if self.fresh > 0 {
            metrics::appended(metrics::Transport::Shm, self.fresh, self.bytes);
        }
        if self.again > 0 {
            metrics::deduplicated(self.again);
        }
        if self.received.0 > 0 {
            metrics::acked(metrics::Level::Received, self.received.0, self.received.1, since.elapsed());
        }
    }
}
