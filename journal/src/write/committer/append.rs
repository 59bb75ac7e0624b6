//! The one place where an append is given its offset, or refused.

use crate::clock::Moment;
use crate::error::AppendError;
use crate::format::batch;
use crate::format::chunk::{ChunkHeader, FLAG_FORWARDED};
use crate::format::resend::ResendKey;
use crate::write::batch::{BurstPermits, PendingAppend, Row};
use crate::write::producer::ProducerId;
use crate::write::sequencer::Stands;
use crate::write::watermarks::Level;

use super::room::Room;
use super::{Accepted, AfterRefusal, Committer, Item, Sender};

impl Committer {
    /// Takes runs of appends, each run of one sender, in order: see [`crate::Journal::append`]. `answer` is called for
    /// each append in order. Permits that remain afterwards belong to no append.
    ///
    /// Appends that follow each other in sequence are stored as one row: the table of producers is read at the start
    /// of a row and updated at its end.
    pub(crate) fn append<'a>(
        &mut self,
        runs: impl IntoIterator<Item = (&'a Sender<'a>, &'a [Item<'a>])>,
        after: AfterRefusal,
        now: Moment,
        permits: &mut BurstPermits,
        mut answer: impl FnMut(Result<Accepted, AppendError>),
    ) {
        let (mut refusals, mut ends) = (Refusals::default(), RunEnds::default());
        let mut runs = runs.into_iter().peekable();
        while let Some((from, run)) = runs.next() {
            let (mut why, mut row) = (refusals.of(from), None);
            // For the first of the run: appends in line follow in the row, and an append out of line is judged.
            let mut next = ends.of(from);
            for item in run {
                let known = from.resend.and_then(|key| self.find_resent(&key, run, now));
                let taken = match (&why, known) {
                    (Some(why), _) => Err(why.clone()),
                    (None, Some(known)) => Ok(known),
                    (None, None) if from.forward.is_some() => self.take_forwarded(from, item, now, permits),
                    (None, None) => self.take(from, item, now, &mut row, next.take(), permits),
                };
                if let (Some(key), Ok(taken)) = (from.resend, &taken) {
                    self.remember_resend(key, run, taken);
                }
                match &taken {
                    Err(e) if after == AfterRefusal::Hold && why.is_none() && e.is_for_now() => why = Some(e.clone()),
                    _ => {}
                }
                answer(taken);
            }
            if runs.peek().is_some() {
                ends.note(from, row.as_ref());
                refusals.note(from, why);
            }
            self.sequencer.end_row(&mut row, self.writer.submitted_end, now);
        }
        self.writer.builder.settle(permits);
    }

    /// The answer to an append that is remembered by its key. It needs neither a sequence nor room.
    fn find_resent(&mut self, key: &ResendKey, run: &[Item<'_>], now: Moment) -> Option<Accepted> {
        let [item] = run else { return None };
        self.lifecycle.check().ok()?;
        self.let_resends_age(now);
        let first_offset = self.sequencer.resends().find(key, item.count)?;
        Some(self.accepted(item.count, first_offset, true))
    }

    /// Remembers an append by its key, if it was given an offset.
    fn remember_resend(&mut self, key: ResendKey, run: &[Item<'_>], taken: &Accepted) {
        if run.len() == 1 && !taken.duplicate {
            self.sequencer.resends_mut().remember(key, taken.count, taken.first_offset);
        }
    }

    /// Judges an append, finds room for it, gives it its offset, and stores it in the open batch. `next`: the known next
    /// sequence of this sender, so that it is not judged.
    // Inlined, so that the answer is built in its final place: this runs under the lock, for each append.
    #[inline(always)]
    fn take(
        &mut self,
        from: &Sender<'_>,
        item: &Item<'_>,
        now: Moment,
        row: &mut Option<Row>,
        next: Option<u64>,
        permits: &mut BurstPermits,
    ) -> Result<Accepted, AppendError> {
        self.lifecycle.check()?;
        let header = header(from, item, self.max_append_bytes)?;
        let first_offset = self.watermarks.received;
        let len = ChunkHeader::encoded_len(from.peer_meta.len(), item.payload.len());
        match row {
            Some(row) if row.follows(&header, first_offset) => {
                self.find_room(from.owner, len, 0)?;
                row.extend(&header);
            }
            _ => {
                self.sequencer.end_row(row, self.writer.submitted_end, now);
                let stands = match next == Some(item.first_sequence) {
                    true => Stands::InLine,
                    false => self.sequencer.judge(&header, item.gap, now)?,
                };
                if let Stands::Stored(first_offset) = stands {
                    return Ok(self.accepted(item.count, first_offset, true));
                }
                self.find_room(from.owner, len, 0)?;
                if stands == Stands::First {
                    self.sequencer.evict(self.watermarks.received, now);
                }
                *row = Some(Row { header, first_offset });
            }
        }
        Ok(self.give(from, &header, item, now, permits))
    }

    /// As [`Self::take`], of an append that another log forwards. It is no producer's: it follows its origin's last one.
    fn take_forwarded(
        &mut self,
        from: &Sender<'_>,
        item: &Item<'_>,
        now: Moment,
        permits: &mut BurstPermits,
    ) -> Result<Accepted, AppendError> {
        let Some(forward) = &from.forward else { return Err(AppendError::UnknownOrigin) };
        self.lifecycle.check()?;
        let header = ChunkHeader { flags: FLAG_FORWARDED, ..header(from, item, self.max_append_bytes)? };
        let is_first = self.sequencer.judge_forwarded(&header, forward)?;
        let len = ChunkHeader::encoded_len(from.peer_meta.len(), item.payload.len());
        self.find_room(from.owner, len, is_first.into())?;
        let accepted = self.give(from, &header, item, now, permits);
        let settled = self.watermarks.durable;
        self.sequencer.origins_mut().store(&header, forward, accepted.first_offset, settled);
        Ok(accepted)
    }

    /// Gives an append its offset, and stores it in the open batch.
    #[inline(always)]
    fn give(
        &mut self,
        from: &Sender<'_>,
        header: &ChunkHeader,
        item: &Item<'_>,
        now: Moment,
        permits: &mut BurstPermits,
    ) -> Accepted {
        let first_offset = self.watermarks.received;
        let entering = PendingAppend {
            header,
            peer_meta: from.peer_meta,
            payload: item.payload,
            min_time_ns: item.min_time_ns,
            max_time_ns: item.max_time_ns,
            wants_written: item.level == Level::Written,
            share: item.share,
        };
        let stored = self.writer.builder.push(entering, self.watermarks.epoch, first_offset, now, permits);
        self.quota.held.add(from.owner, stored);
        let given = self.watermarks.give(item.count);
        assert!(given == first_offset, "offset {given} is given to the append at {first_offset}: it would be lost");
        self.accepted(item.count, first_offset, false)
    }

    /// Checks that an append of so many bytes stays within its owner's quota, and has a place behind all that waits.
    /// `new_origins`: it is the first of so many.
    #[inline]
    fn find_room(&mut self, owner: u64, len: usize, new_origins: usize) -> Result<(), AppendError> {
        // The length in the file is known only after the insert, if the append begins a batch.
        self.quota.check(owner, len + batch::LEN).map_err(|limit| AppendError::OwnerQuota { limit })?;
        let found = Room { new_origins, ..self.room() }.check(len);
        if found.is_err() {
            self.note_refused();
        }
        found
    }

    #[cold]
    fn note_refused(&mut self) {
        // With a segment behind this one it is over once that is written to.
        if !self.segments.can_have_next() && self.segments.supply.note_refused() {
            self.watermarks.version += 1;
        }
    }

    fn accepted(&self, count: u32, first_offset: u64, duplicate: bool) -> Accepted {
        Accepted { first_offset, count, epoch: self.watermarks.epoch, failures: self.watermarks.failures, duplicate }
    }
}

/// The header of an append, if its numbers are within their bounds.
#[inline(always)]
fn header(from: &Sender<'_>, item: &Item<'_>, limit: u32) -> Result<ChunkHeader, AppendError> {
    if item.count == 0 || item.payload.len() > limit as usize {
        return Err(AppendError::Size { limit });
    }
    if item.first_sequence.checked_add(item.count.into()).is_none() {
        return Err(AppendError::PastTheLast);
    }
    Ok(ChunkHeader {
        flags: 0,
        count: item.count,
        payload_checksum: item.payload_checksum,
        producer: from.producer,
        owner: from.owner,
        first_sequence: item.first_sequence,
        producer_epoch: from.producer_epoch,
    })
}

/// Refusals that hold for later runs of a burst: for all of them, or for a producer's.
#[derive(Default)]
struct Refusals {
    for_all: Option<AppendError>,
    for_one: Vec<(ProducerId, AppendError)>,
}

impl Refusals {
    fn of(&self, from: &Sender<'_>) -> Option<AppendError> {
        let of_it = || self.for_one.iter().find(|(id, _)| *id == from.producer).map(|(_, why)| why.clone());
        self.for_all.clone().or_else(of_it)
    }

    fn note(&mut self, from: &Sender<'_>, why: Option<AppendError>) {
        match why {
            Some(why) if why.is_for_all() => self.for_all = Some(why),
            Some(why) => self.for_one.push((from.producer, why)),
            None => {}
        }
    }
}

/// The next sequences of senders that have stored under this lock: their next append need not be judged again. Runs of
/// a few senders in turn are short.
#[derive(Default)]
struct RunEnds(Vec<((ProducerId, u64, u32), u64)>);

impl RunEnds {
    fn position(&self, from: &Sender<'_>) -> Option<usize> {
        self.0.iter().position(|(of, _)| *of == (from.producer, from.owner, from.producer_epoch))
    }

    fn of(&self, from: &Sender<'_>) -> Option<u64> {
        self.position(from).map(|at| self.0[at].1)
    }

    /// Notes the end of a run, by its last row.
    fn note(&mut self, from: &Sender<'_>, row: Option<&Row>) {
        let end = row.map(|row| row.header.first_sequence + u64::from(row.header.count));
        match (self.position(from), end) {
            (Some(at), Some(end)) => self.0[at].1 = end,
            (None, Some(end)) => {
                // Another session of the same producer is judged again: this one may have fenced it.
                self.0.retain(|(of, _)| of.0 != from.producer);
                self.0.push(((from.producer, from.owner, from.producer_epoch), end));
            }
            // It may have stored something before the append that was refused.
            (Some(at), None) => drop(self.0.swap_remove(at)),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JournalConfig;
    use crate::format::meta::EpochStart;
    use crate::write::committer::tests::append_one;
    use crate::write::committer::{Append, Done, FailedJob, Failure, Job, NoSegment, Step};
    use crate::write::producer::ProducerTable;
    use crate::write::watermarks::Accepting;

    /// A journal on a full disk tries to open a segment five times a second. A reader at such a moment must not see
    /// room where there is none.
    #[test]
    fn one_more_try_to_open_a_segment_is_no_room() {
        let mut committer = Committer::new(
            JournalConfig::default(),
            ProducerTable::new(16, 16, 0),
            0,
            EpochStart { epoch: 1, first_offset: 0 },
            0,
        );
        let mut now = Moment { real_ns: 0, boot_ns: 0 };
        assert!(matches!(committer.step(now), Step::Run(Job::Open { .. })));
        committer.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
        assert_eq!(committer.watermarks().accepting, Accepting::NoSpace, "between two tries");
        now.boot_ns += 10 * 1_000_000_000;
        assert!(matches!(committer.step(now), Step::Run(Job::Open { .. })));
        assert_eq!(committer.watermarks().accepting, Accepting::NoSpace, "while it tries");
    }

    /// An error is reported by its name and retried at a pause that doubles. Room on the disk does not clear it.
    #[test]
    fn a_segment_that_cannot_be_opened_is_no_want_of_room() {
        let (mut committer, mut now) = fresh();
        let failed = || NoSegment::Failed("too many open files".to_owned());
        let mut pause = 1_000_000_000;
        for _ in 0..8 {
            assert!(matches!(committer.step(now), Step::Run(Job::Open { .. })));
            committer.complete(Ok(Done::Opened { next: Err(failed()) }), now);
            assert!(!committer.set_free_segments(5).report);
            let refused = append(&mut committer, 3, 0).unwrap_err();
            assert_eq!(refused, AppendError::NoSegment { reason: "too many open files".to_owned() });
            assert_eq!(committer.watermarks().accepting, Accepting::NoSpace);
            assert!(matches!(committer.step(now), Step::Wait(Some(due)) if due == now.boot_ns + pause), "{pause}");
            now.boot_ns += pause;
            pause = (pause * 2).min(60_000_000_000);
        }
    }

    fn fresh() -> (Committer, Moment) {
        let began = EpochStart { epoch: 3, first_offset: 40 };
        let mut committer = Committer::new(JournalConfig::default(), ProducerTable::new(16, 16, 0), 50, began, 0);
        committer.begin_with(5, 4096);
        (committer, Moment { real_ns: 0, boot_ns: 0 })
    }

    fn append(committer: &mut Committer, epoch: u32, first_sequence: u64) -> Result<Accepted, AppendError> {
        append_as(committer, 7, epoch, first_sequence)
    }

    fn append_as(
        committer: &mut Committer,
        owner: u64,
        epoch: u32,
        first_sequence: u64,
    ) -> Result<Accepted, AppendError> {
        let a = Append {
            producer: [1; 16],
            owner,
            producer_epoch: epoch,
            first_sequence,
            count: 1,
            gap: true,
            level: Level::Received,
            min_time_ns: 0,
            max_time_ns: 0,
            peer_meta: &[],
            payload: b"x",
            payload_checksum: 0,
            permit: None,
        };
        append_one(committer, a, Moment { real_ns: 0, boot_ns: 0 })
    }

    #[test]
    fn an_epoch_begins_where_it_began_and_not_where_this_start_goes_on() {
        let (committer, _) = fresh();
        let watermarks = committer.watermarks();
        assert_eq!((watermarks.epoch, watermarks.epoch_first, watermarks.received), (3, 40, 50));
    }

    #[test]
    fn a_lower_epoch_is_fenced_also_while_nothing_is_stored() {
        let (mut committer, _) = fresh();
        committer.sequencer.connect(&[1; 16], 7, 4, 7).unwrap();
        committer.sequencer.connect(&[1; 16], 7, 5, 7).unwrap();
        assert_eq!(
            committer.sequencer.producer(&[1; 16], 7).unwrap().map(|state| (state.epoch, state.last)),
            Some((5, None))
        );
        assert_eq!(append(&mut committer, 4, 0), Err(AppendError::Fenced { current: 5 }));
        assert!(append(&mut committer, 5, 0).is_ok());
        assert_eq!(append(&mut committer, 4, 1), Err(AppendError::Fenced { current: 5 }));
    }

    /// From its first session on, and while one lasts: no other owner fences it off, or is first.
    #[test]
    fn a_producer_that_has_stored_nothing_yet_is_its_owners() {
        let (mut committer, _) = fresh();
        committer.sequencer.connect(&[1; 16], 7, 4, 7).unwrap();
        assert_eq!(committer.sequencer.producer(&[1; 16], 8).map(|_| ()), Err(AppendError::NotOwner));
        assert_eq!(committer.sequencer.connect(&[1; 16], 8, u32::MAX, 8), Err(AppendError::NotOwner));
        let theirs = |committer: &mut Committer| append_as(committer, 8, 9, 0);
        assert_eq!(theirs(&mut committer), Err(AppendError::NotOwner));
        committer.sequencer.connect(&[1; 16], 7, 4, 7).unwrap();
        committer.disconnect(&[1; 16], false);
        assert_eq!(theirs(&mut committer), Err(AppendError::NotOwner), "one session is left");
        committer.disconnect(&[1; 16], false);
        assert_eq!(committer.sequencer.connect(&[1; 16], 8, 1, 8), Ok(()), "nothing was stored, and nobody is there");
        assert_eq!(committer.sequencer.connected.len(), 1);
    }

    /// Stored records keep their owner, though it is not connected.
    #[test]
    fn a_producer_that_has_stored_is_its_owners_for_good() {
        let (mut committer, _) = fresh();
        committer.sequencer.connect(&[1; 16], 7, 5, 7).unwrap();
        assert!(append(&mut committer, 5, 0).is_ok());
        committer.disconnect(&[1; 16], false);
        assert_eq!(committer.sequencer.connect(&[1; 16], 8, 6, 8), Err(AppendError::NotOwner));
        assert_eq!(committer.sequencer.connected.len(), 0);
        assert_eq!(append(&mut committer, 5, 1).map(|_| ()), Ok(()), "it is not fenced");
    }

    /// However small the append is, and whichever sender it has.
    #[test]
    fn nothing_is_taken_behind_what_is_refused_for_want_of_room() {
        let config = JournalConfig { segment_bytes: 1 << 20, max_append_bytes: 1 << 20, ..JournalConfig::default() };
        let began = EpochStart { epoch: 3, first_offset: 0 };
        let mut committer = Committer::new(config, ProducerTable::new(16, 16, 0), 0, began, 0);
        committer.segments.supply.coming = true;
        committer.lifecycle.busy = true; // a rotation into the last segment that there is room for
        let big = vec![0; 1020 << 10];
        let item = |first_sequence, payload| Item {
            first_sequence,
            count: 1,
            gap: true,
            level: Level::Received,
            min_time_ns: 0,
            max_time_ns: 0,
            payload,
            payload_checksum: 0,
            share: 0,
        };
        let sender = |id| Sender {
            producer: [id; 16],
            owner: 7,
            producer_epoch: 1,
            peer_meta: &[],
            resend: None,
            forward: None,
        };
        let (a, b) = (sender(1), sender(2));
        let mut offsets = |runs: &[(&Sender<'_>, Vec<Item<'_>>)]| {
            let (mut answers, mut permits) = (Vec::new(), BurstPermits::new(None));
            let runs = runs.iter().map(|(from, run)| (*from, &run[..]));
            committer.append(runs, AfterRefusal::Hold, Moment { real_ns: 0, boot_ns: 0 }, &mut permits, |answer| {
                answers.push(answer.map(|accepted| accepted.first_offset));
            });
            answers
        };
        let no = || Err(AppendError::NoSpace);
        let runs = [
            (&a, vec![item(0, &b"x"[..])]),
            (&b, vec![item(0, b"x")]),
            (&a, vec![item(1, &big), item(2, b"x")]),
            (&b, vec![item(1, b"x")]),
            (&a, vec![item(3, b"x")]),
        ];
        assert_eq!(offsets(&runs), [Ok(0), Ok(1), no(), no(), no(), no()]);
        let runs = [(&a, vec![item(1, &b"x"[..]), item(2, b"x")]), (&b, vec![item(1, b"x")])];
        assert_eq!(offsets(&runs), [Ok(2), Ok(3), Ok(4)], "nothing was jumped over");
    }

    #[test]
    fn runs_in_turn_store_each_sequence_once() {
        let (mut committer, now) = fresh();
        let item = |first_sequence, count| Item {
            first_sequence,
            count,
            gap: true,
            level: Level::Received,
            min_time_ns: 0,
            max_time_ns: 0,
            payload: b"x",
            payload_checksum: 0,
            share: 0,
        };
        let sender = |id, producer_epoch| Sender {
            producer: [id; 16],
            owner: 7,
            producer_epoch,
            peer_meta: &[],
            resend: None,
            forward: None,
        };
        let (a, b, old) = (sender(1, 2), sender(2, 1), sender(1, 1));
        let runs = [
            (&a, vec![item(0, 1), item(1, 1)]),
            (&b, vec![item(5, 1)]),
            (&a, vec![item(2, 1), item(2, 1), item(4, 1), item(2, 1)]),
            (&old, vec![item(5, 1)]),
            (&b, vec![item(5, 1), item(6, 2)]),
            (&a, vec![item(2, 1), item(4, 1), item(5, 1)]),
            (&b, vec![item(7, 2), item(8, 1)]),
        ];
        let (mut answers, mut permits) = (Vec::new(), BurstPermits::new(None));
        committer.append(
            runs.iter().map(|(from, run)| (*from, &run[..])),
            AfterRefusal::Hold,
            now,
            &mut permits,
            |answer| {
                answers.push(answer.map(|accepted| (accepted.first_offset, accepted.duplicate)));
            },
        );
        let (new, again) = (|offset| Ok((offset, false)), |offset| Ok((offset, true)));
        let expected = [
            vec![new(50), new(51)],
            vec![new(52)],
            vec![new(53), again(53), new(54), again(53)],
            vec![Err(AppendError::Fenced { current: 2 })],
            vec![again(52), new(55)],
            vec![again(53), again(54), new(57)],
            vec![Err(AppendError::Overlap { expected: 8 }), new(58)],
        ];
        assert_eq!(answers, expected.concat());
    }

    /// A newer session of a producer between two runs of an older one fences it, also under one lock.
    #[test]
    fn a_run_behind_a_newer_session_is_judged_again() {
        let (mut committer, now) = fresh();
        let item = |first_sequence| Item {
            first_sequence,
            count: 1,
            gap: false,
            level: Level::Received,
            min_time_ns: 0,
            max_time_ns: 0,
            payload: b"x",
            payload_checksum: 0,
            share: 0,
        };
        let sender = |producer_epoch| Sender {
            producer: [1; 16],
            owner: 7,
            producer_epoch,
            peer_meta: &[],
            resend: None,
            forward: None,
        };
        let (old, new) = (sender(1), sender(2));
        let runs = [(&old, [item(0)]), (&new, [item(1)]), (&old, [item(1)])];
        let (mut answers, mut permits) = (Vec::new(), BurstPermits::new(None));
        committer.append(
            runs.iter().map(|(from, run)| (*from, &run[..])),
            AfterRefusal::Hold,
            now,
            &mut permits,
            |answer| {
                answers.push(answer.map(|accepted| accepted.first_offset));
            },
        );
        assert_eq!(answers, [Ok(50), Ok(51), Err(AppendError::Fenced { current: 2 })]);
    }

    #[test]
    fn sequences_end_with_the_numbers() {
        let (mut committer, _) = fresh();
        assert_eq!(append(&mut committer, 1, u64::MAX), Err(AppendError::PastTheLast));
        assert!(append(&mut committer, 1, u64::MAX - 1).is_ok());
        assert_eq!(append(&mut committer, 1, u64::MAX), Err(AppendError::PastTheLast));
    }

    #[test]
    fn what_comes_back_after_the_end_begins_nothing() {
        let (mut committer, now) = fresh();
        assert!(matches!(committer.step(now), Step::Run(Job::Open { .. })));
        committer.abandon();
        committer.complete(Ok(Done::Opened { next: Err(NoSegment::Space) }), now);
        assert_eq!(committer.lifecycle.closed(), Some(false));
        let failure = Failure { reason: "the disk".to_owned(), of: FailedJob::Sync, was_rescue: false };
        committer.complete(Err(failure), now);
        assert_eq!((committer.lifecycle.closed(), committer.lifecycle.failure()), (Some(false), None));
        assert!(matches!(committer.step(now), Step::Exit));
    }
}
