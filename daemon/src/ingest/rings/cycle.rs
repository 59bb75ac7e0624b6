//! One drain cycle over all rings: it looks at each, and hands what is there to the journal, a run of each ring in turn.
//!
//! Each ring gives its appends in their order. Between rings nothing is promised; the owners of rings take turns, and
//! the rings of one owner share that turn, so that a user with many rings gets no more of a batch than one with one. Who
//! was visited longest ago comes first.
//!
//! Invariants: a batch is bounded ([`BATCH_APPENDS_MAX`], [`BATCH_BYTES_MAX`]), and so is the time under the journal's
//! lock. Bytes are counted for their owner before they are handed over. Where an owner has no room, its rings wait for
//! their turn in its queue, and the drain does not look at them: returned room wakes the drain. The rings of others
//! continue.
//!
//! When an append is the first of its ring in a batch, all before it in that ring are stored or refused for good. The
//! journal takes nothing of a ring behind what it refuses for now. So each append may jump ahead in sequence, over what
//! was refused for good and what the log has lost, but never over what waits.
//!
//! An append that the journal refuses for now waits in its ring. Where the journal refuses everybody (no space, a
//! failure), all rings wait. Where it refuses one producer alone, the ring of that producer waits: others continue. The
//! same holds for an append that was posted to an earlier daemon and is longer than segments are now. It waits for a
//! daemon with larger segments, unless the log has it already.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clad_journal::{Accepted, AfterRefusal, AppendError, DeferredWrite, Item, Sender};
use clad_proto::frame::{AppendHead, AppendView, RingAppendTrailer};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use clad_shm::Entry;

use super::busy::Asked;
use super::hold::Hold;
use super::ring::Ring;
use crate::access::Rights;
use crate::ingest::quota::{Owner, QuotaGuard, Taking};
use crate::ingest::{Admission, Arrival, refusal};
use crate::ops::metrics;

const _: () = assert!(RingAppendTrailer::BYTES == clad_shm::TRAILER);

/// Most appends in a batch.
const BATCH_APPENDS_MAX: usize = 1024;
/// Most bytes in a batch, unless it is one append.
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Most appends of one ring in one turn.
const RUN_APPENDS_MAX: usize = 64;
/// Most bytes of one ring in one turn, unless it is one append.
const RUN_BYTES_MAX: usize = 32 * 1024;
/// Pause after the journal has refused something for now, until it is asked again.
const JOURNAL_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// An append that was copied out of its ring.
struct Taken {
    ring: usize,
    bytes: (usize, usize),
    entry: Entry,
    /// Level that its answer waits for; known once it was looked into.
    level: AckLevel,
    /// Reason why it is not handed over.
    refused: Option<Box<ErrorInfo>>,
    /// Reason why it waits in its ring, with all behind it there.
    waits: Option<Waits>,
}

/// Condition that an append waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Room for its owner.
    Room,
    /// Another daemon.
    Segments,
}

impl Taken {
    fn payload_bytes(&self) -> usize {
        (self.bytes.1 - self.bytes.0).saturating_sub(RingAppendTrailer::BYTES)
    }
}

/// Appends that were taken and are not handed over yet.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    taken: Vec<Taken>,
    /// Owners whose rings wait for room, and their places in the queue.
    waiters: Vec<(Owner, Taking)>,
    /// Quota that they got there, for the next batch.
    rooms: Vec<(Owner, QuotaGuard)>,
    /// Number of visits to rings, and for each owner the last.
    visits: u64,
    visited: HashMap<Owner, u64>,
}

/// Quota that an owner's appends in a batch take.
struct Room {
    owner: Owner,
    /// One of the owner's rings.
    ring: usize,
    /// Cost of all appends of the owner.
    cost: usize,
    /// `None`: all of them wait.
    guard: Option<QuotaGuard>,
    /// Cost of those that are handed over.
    spent: usize,
    /// One of them waits, and all behind it.
    waits: bool,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    fn is_full(&self) -> bool {
        self.taken.len() >= BATCH_APPENDS_MAX || self.bytes.len() >= BATCH_BYTES_MAX
    }

    /// Takes what is there, as much as the batch has room for; returns what is left.
    pub(super) fn fill(&mut self, rings: &mut [Ring], now: u64) -> Fill {
        rings.iter_mut().for_each(|ring| ring.look(now));
        let mut owners = self.turns(rings);
        while !self.is_full()
            && let Some(mut of_owner) = owners.pop_front()
        {
            let Some(at) = of_owner.pop_front() else { continue };
            self.take_run(rings, at, now);
            if rings[at].is_ready() {
                of_owner.push_back(at);
            }
            owners.push_back(of_owner);
        }
        if self.taken.is_empty() {
            self.rooms.clear(); // of rings that give nothing any more: others can use it
        }
        match () {
            () if rings.iter().any(Ring::is_ready) => Fill::More,
            () if rings.iter().any(Ring::is_blocked) => Fill::Blocked,
            () => Fill::All,
        }
    }

    /// Rings that have something, by owner: who was visited longest ago is first, among owners and among an owner's.
    fn turns(&mut self, rings: &[Ring]) -> VecDeque<VecDeque<usize>> {
        if self.visited.len() > rings.len() {
            self.visited.retain(|owner, _| rings.iter().any(|ring| ring.peer.quota_owner() == *owner));
        }
        let mut ready: Vec<usize> = (0..rings.len()).filter(|at| rings[*at].is_ready()).collect();
        if let [only] = ready[..] {
            return VecDeque::from([VecDeque::from([only])]);
        }
        ready.sort_unstable_by_key(|at| rings[*at].visited);
        let mut owners: HashMap<Owner, VecDeque<usize>> = HashMap::new();
        for at in ready {
            owners.entry(rings[at].peer.quota_owner()).or_default().push_back(at);
        }
        let mut owners: Vec<_> = owners.into_iter().collect();
        owners.sort_unstable_by_key(|(owner, of_owner)| {
            let first = of_owner.front().copied();
            (self.visited.get(owner).copied().unwrap_or_default(), first)
        });
        owners.into_iter().map(|(_, of_owner)| of_owner).collect()
    }

    /// Takes a run of one ring.
    fn take_run(&mut self, rings: &mut [Ring], at: usize, now: u64) {
        let ring = &mut rings[at];
        let (appends, bytes) = (self.taken.len(), self.bytes.len());
        while ring.is_ready()
            && self.taken.len() - appends < RUN_APPENDS_MAX
            && self.bytes.len() - bytes < RUN_BYTES_MAX
            && !self.is_full()
        {
            let from = self.bytes.len();
            if let Some(entry) = ring.take(&mut self.bytes) {
                let bytes = (from, self.bytes.len());
                self.taken.push(Taken { ring: at, bytes, entry, level: AckLevel::None, refused: None, waits: None });
            }
            ring.look(now);
        }
        self.visits += 1;
        ring.visited = self.visits;
        self.visited.insert(ring.peer.quota_owner(), self.visits);
    }

    /// Resumes rings whose owners have got room.
    pub(super) fn admit(&mut self, rings: &mut [Ring], waker: &Waker) {
        let Self { waiters, rooms, .. } = self;
        waiters.retain_mut(|(owner, waiter)| match Pin::new(waiter).poll(&mut Context::from_waker(waker)) {
            Poll::Pending => true,
            Poll::Ready(room) => {
                rooms.extend(room.map(|room| (*owner, room)));
                rings.iter_mut().filter(|ring| ring.peer.quota_owner() == *owner).for_each(Ring::has_room);
                false
            }
        });
    }

    /// Counts each append for its owner. Appends for which the owner has no room wait, with a place in its queue.
    fn count(&mut self, rings: &[Ring]) -> Option<QuotaGuard> {
        let mut owners: Vec<Room> = Vec::new();
        for taken in &self.taken {
            let (owner, cost) = (rings[taken.ring].peer.quota_owner(), Admission::cost(taken.payload_bytes()));
            match owners.iter_mut().find(|room| room.owner == owner) {
                Some(room) => room.cost += cost,
                None => owners.push(Room { owner, ring: taken.ring, cost, guard: None, spent: 0, waits: false }),
            }
        }
        for room in &mut owners {
            let given = self.rooms.iter().position(|(owner, _)| *owner == room.owner);
            room.guard = match given {
                Some(at) => Some(self.rooms.swap_remove(at).1),
                None if self.waiters.iter().any(|(owner, _)| *owner == room.owner) => None,
                None => rings[room.ring].inflight_quota.try_take(room.cost),
            };
        }
        self.rooms.clear(); // of rings that gave nothing
        for taken in &mut self.taken {
            let (owner, cost) = (rings[taken.ring].peer.quota_owner(), Admission::cost(taken.payload_bytes()));
            let Some(room) = owners.iter_mut().find(|room| room.owner == owner) else { continue };
            // The first one is always handed over: if it is longer than the whole quota, the guard holds the whole
            // quota.
            let fits = |guard: &QuotaGuard| room.spent == 0 || room.spent + cost <= guard.num_permits();
            room.waits |= !room.guard.as_ref().is_some_and(fits);
            match room.waits {
                true => taken.waits = Some(Waits::Room),
                false => room.spent += cost,
            }
        }
        for room in &mut owners {
            if room.waits && !self.waiters.iter().any(|(owner, _)| *owner == room.owner) {
                let waiter = rings[room.ring].inflight_quota.take(room.cost - room.spent);
                self.waiters.push((room.owner, waiter));
            }
            if let Some(guard) = &mut room.guard
                && let Some(spent) = guard.split(room.spent)
            {
                room.guard = Some(spent);
            }
        }
        owners.into_iter().filter_map(|room| room.guard).reduce(merged)
    }

    /// Hands the batch to the journal.
    pub(super) fn hand_over(&mut self, rings: &mut [Ring], admission: &Admission, at: Arrival) -> Handed {
        let permit = self.count(rings);
        let Self { bytes, taken, .. } = self;
        let mut items: Vec<Item<'_>> = Vec::with_capacity(taken.len());
        let mut runs: Vec<(usize, usize)> = Vec::new(); // ring, end in `items`
        let mut waiting: Vec<usize> = Vec::new(); // rings of which nothing more is handed over
        for taken in taken.iter_mut() {
            if taken.waits.is_none() && waiting.contains(&taken.ring) {
                taken.waits = Some(Waits::Segments);
            }
            let is_beyond = rings[taken.ring].is_beyond_segments(taken.payload_bytes());
            // An append that the log has already needs no room in it.
            let is_stored = is_beyond && rings[taken.ring].is_stored(&taken.entry);
            if taken.waits.is_none() && is_beyond && !is_stored {
                waiting.push(taken.ring);
                taken.waits = Some(Waits::Segments);
            }
            if taken.waits.is_some() {
                continue;
            }
            let bytes = &bytes[taken.bytes.0..taken.bytes.1];
            let (level, item) = prepare(&mut rings[taken.ring], &taken.entry, bytes, at);
            taken.level = level;
            let item = if is_stored { Err(refusal(&AppendError::TooOld)) } else { item };
            match item {
                Ok(item) => {
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
        let senders: Vec<Sender<'_>> = runs.iter().map(|(ring, _)| rings[*ring].sender()).collect();
        let mut from = 0;
        let spans = runs.iter().map(|(_, end)| &items[std::mem::replace(&mut from, *end)..*end]);
        let mut verdicts = Vec::with_capacity(items.len());
        let runs = senders.iter().zip(spans);
        let deferred_write = match items.is_empty() {
            true => None,
            false => {
                let journal = &admission.journal;
                let outcome =
                    journal.append(runs, AfterRefusal::Hold, permit, at.moment(), |verdict| verdicts.push(verdict));
                outcome.deferred_write
            }
        };
        let handed = Handed { deferred_write, ..settle(taken, rings, verdicts, at) };
        bytes.clear();
        taken.clear();
        handed
    }
}

fn merged(mut one: QuotaGuard, other: QuotaGuard) -> QuotaGuard {
    one.merge(other);
    one
}

/// Reports the verdicts to the rings.
fn settle(taken: &[Taken], rings: &mut [Ring], verdicts: Vec<Result<Accepted, AppendError>>, at: Arrival) -> Handed {
    let mut handed = Handed::default();
    let mut counts = Counts::default();
    let mut verdicts = verdicts.into_iter();
    let (mut touched, mut stopped) = (vec![false; rings.len()], vec![false; rings.len()]);
    for taken in taken {
        if let Some(waits) = taken.waits {
            // From here on, nothing was handed over.
            if !std::mem::replace(&mut stopped[taken.ring], true) {
                touched[taken.ring] = true;
                match waits {
                    Waits::Room => rings[taken.ring].wait_for_room(&taken.entry),
                    Waits::Segments => rings[taken.ring].wait_for_segments(&taken.entry, taken.payload_bytes()),
                }
            }
            continue;
        }
        let verdict = match &taken.refused {
            None => verdicts.next().map(|verdict| verdict.map_err(Refused::ByJournal)),
            Some(error) => Some(Err(Refused::ByAdmission(error))),
        };
        let (Some(verdict), false) = (verdict, stopped[taken.ring]) else { continue };
        let ring = &mut rings[taken.ring];
        let sends_on = std::mem::replace(&mut touched[taken.ring], true);
        if taken.level >= AckLevel::Received && handed.asked < Asked::Stream {
            let streams = sends_on || ring.in_flight.has_unanswered();
            handed.asked = if streams { Asked::Stream } else { Asked::Answers };
        }
        let error = match verdict {
            Ok(accepted) => {
                counts.add(&accepted, taken.payload_bytes(), taken.level);
                ring.accepted(&taken.entry, taken.level, &accepted, at.since);
                continue;
            }
            // An append that is refused for now waits in its ring, with all behind it.
            Err(Refused::ByJournal(why)) if why.is_for_now() => {
                stopped[taken.ring] = true;
                ring.put_back(&taken.entry);
                match why.is_for_all() {
                    true => {
                        let until = Instant::now() + JOURNAL_RETRY_PAUSE;
                        handed.hold.get_or_insert_with(|| Hold { until, why: refusal(&why) });
                    }
                    false => ring.hold(ring.producer.refusal(&why)),
                }
                continue;
            }
            Err(Refused::ByJournal(why)) => refusal(&why),
            Err(Refused::ByAdmission(error)) => error.clone(),
        };
        let failures = ring.admission.journal.watermarks().failures;
        ring.refused(&taken.entry, taken.level, &error, failures, at.since);
    }
    counts.report(at.since);
    for (ring, _) in rings.iter_mut().zip(touched).filter(|(_, touched)| *touched) {
        ring.announce();
    }
    handed
}

/// Origin of the refusal of an append.
enum Refused<'a> {
    ByJournal(AppendError),
    ByAdmission(&'a ErrorInfo),
}

/// Remainder that [`Batch::fill`] left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Nothing.
    All,
    /// More than the batch has room for.
    More,
    /// Something behind an uncommitted slot of its ring.
    Blocked,
}

/// Result of a batch.
#[derive(Default)]
pub(super) struct Handed {
    /// The journal takes nothing now.
    pub(super) hold: Option<Hold>,
    /// Answers that the clients asked for.
    pub(super) asked: Asked,
    /// The write that the batch wants, and for which no thread was woken.
    pub(super) deferred_write: Option<DeferredWrite>,
}

/// An append as the journal takes it, or the reason why the journal does not get it; and the level that it asks for.
#[inline]
fn prepare<'a>(
    ring: &mut Ring,
    entry: &Entry,
    bytes: &'a [u8],
    at: Arrival,
) -> (AckLevel, Result<Item<'a>, ErrorInfo>) {
    let Some((trailer, payload)) = RingAppendTrailer::split(bytes) else {
        let text = "the trailer of the append is not what belongs there";
        // The answer goes to the waiting client, whatever level it was to have.
        return (AckLevel::Received, Err(ErrorInfo::new(ErrorCode::BadRecord, text)));
    };
    // An append that wants no answer is taken like one that gets it with its offset. It is `posted` as it lies here. A
    // level that this log does not have (and an earlier daemon's had) takes nothing back, and the ring notifies its
    // owner.
    let level = match trailer.level {
        level if level < AckLevel::Received => AckLevel::None,
        level => level.min(ring.admission.highest),
    };
    let (first_seq, count, payload_crc) = (entry.sequence, entry.records, trailer.payload_crc);
    let view = AppendView { head: AppendHead { first_seq, count, level, gap: true, payload_crc }, payload };
    // The checksum was taken when the entry was checked. It is that of the payload, for an entry has the trailer of an
    // append.
    (trailer.level, ring.admission.item(&view, entry.sum, at, &mut ring.known_group, &Rights::default()))
}

/// Counters that are updated once for all.
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

    fn report(&self, since: Instant) {
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
