package clad

import (
	"errors"
	"math"
	"time"

	"clad/internal/wire"
)

// Answers of the daemon.

var (
	errBeyond64   = errors.New("an offset beyond 64 bits")
	errOtherCount = errors.New("ACCEPTED counts other records than were sent")
)

// accepted: an append has its offsets. An error means a peer that breaks the protocol.
func (s *session) accepted(a wire.Accepted, now time.Time) error {
	end := a.FirstOffset + uint64(a.Count)
	if end < a.FirstOffset {
		return errBeyond64
	}
	if s.link != nil && s.link.epoch < a.Epoch {
		s.epochRose(a.Epoch, 0, false)
	}
	at := s.find(a.FirstSeq)
	if at < 0 || s.link == nil {
		return nil // it was abandoned in the meantime
	}
	l, k, e := s.link, s.known, s.entries.at(at)
	if e.count != a.Count {
		return errOtherCount
	}
	if e.stage == stageSent {
		l.inFlight--
	}
	if a.Epoch < l.epoch && l.epochFirstKnown && end > l.epochFirst {
		// Given in an epoch that was cut below it since: as good as not answered.
		s.requeue(at, true)
		s.retry(now, 0, "an offset of an abandoned history")
		return nil
	}
	if l.unsure && a.FirstSeq >= l.unsureBelow {
		l.unsure = false
	}
	e.stage, e.acceptedEpoch, e.firstOffset, e.refusal = stageAccepted, a.Epoch, a.FirstOffset, nil
	if !k.hasFirst {
		k.hasFirst, k.firstEpoch, k.firstOffset = true, l.epoch, a.FirstOffset
	}
	k.placesEnd = max(k.placesEnd, end)
	s.troubleSince = time.Time{}
	s.backoff.reset()
	s.release(at, at+1)
	return nil
}

// watermark: all offsets below one have reached a level.
func (s *session) watermark(w wire.Watermark, now time.Time) {
	if s.link == nil {
		return
	}
	if w.Epoch > s.link.epoch {
		s.epochRose(w.Epoch, w.EpochFirst, true)
	}
	if l := s.link; l.epoch == w.Epoch {
		if !l.epochFirstKnown {
			s.known.placesEnd = min(s.known.placesEnd, w.EpochFirst)
		}
		l.epochFirst, l.epochFirstKnown = w.EpochFirst, true
		// What has reached a level has reached those below it.
		for i := range int(w.Level) - 1 {
			l.watermarks[i] = max(l.watermarks[i], w.Offset)
		}
		s.release(0, s.frontier)
	}
	if w.RequestID != 0 {
		s.flushAnswered(w, now)
	}
}

// release gives receipts to what is covered, from `from` to `to`.
func (s *session) release(from, to int) {
	for at := from; at < min(to, s.entries.n) && s.link != nil; at++ {
		e := s.entries.at(at)
		if e.stage != stageAccepted {
			continue
		}
		end := e.firstOffset + uint64(e.count)
		if s.link.covers(e.sentLevel, end) {
			receipt := Receipt{
				LogID: s.known.logID, Epoch: e.acceptedEpoch, FirstOffset: e.firstOffset, Count: e.count, Level: e.sentLevel,
			}
			s.known.noteReceipt(s.seq(e)+uint64(e.count), end)
			s.succeed(at, receipt)
		} else if !s.link.covers(Written, end) {
			break // offsets ascend with sequences, and durable is never ahead of written
		}
	}
	s.trim()
}

// refused: an append is not taken, or not stored.
func (s *session) refused(firstSeq uint64, refusal *Refusal, now time.Time) {
	at := s.find(firstSeq)
	if at < 0 || s.link == nil {
		return
	}
	l, e := s.link, s.entries.at(at)
	if e.stage == stageSent {
		l.inFlight--
	}
	l.hold = true
	l.expected = min(l.expected, e.expected)
	e.lost = e.lost || refusal.MaybeWritten || e.stage == stageAccepted
	e.stage = stageQueued
	s.cursor = min(s.cursor, at)
	if !refusal.Retryable {
		s.finish(at, Receipt{}, &AppendError{Reason: ReasonRefused, MaybeWritten: e.lost, Err: refusal})
		s.trim()
		return
	}
	gap := refusal.Code == CodeSequenceGap
	e.refusal = refusal
	// The appends behind a refused one are refused for its sake, and have its reason.
	if gap && !e.marked && at > 0 && s.entries.at(at-1).refusal != nil {
		e.refusal = s.entries.at(at - 1).refusal
	}
	marked := e.marked
	if gap {
		expected := uint64(0)
		if refusal.expected != nil {
			expected = *refusal.expected
		}
		s.daemonExpects(expected)
	}
	// A gap that was not marked comes from the refusal of what was before, which has its own wait.
	if !gap || marked {
		s.retry(now, refusal.RetryAfter, refusal.Error())
	}
}

// daemonExpects: whatever of ours is from there on is not stored, also if it once was.
func (s *session) daemonExpects(expected uint64) {
	s.link.expected = expected
	for at := range min(s.frontier, s.entries.n) {
		if e := s.entries.at(at); e.stage == stageAccepted && s.seq(e) >= expected {
			s.requeue(at, true)
		}
	}
	s.checkReceipts(expected)
}

// checkReceipts checks that everything that has a receipt is still there.
func (s *session) checkReceipts(expected uint64) {
	if k := s.known; k != nil && k.hasReceipts && k.receiptsSeq > expected {
		k.receiptsSeq = expected
		s.lost = true
	}
}

// checkPlaces does the same by their places: the sequence alone says nothing where a gap mark has passed over what is
// gone.
func (s *session) checkPlaces(w *wire.Welcome) {
	if s.known == nil {
		return
	}
	if from, some := w.AbandonedSince(s.known.epoch); some && s.known.receiptsCut(from) {
		s.lost = true
	}
}

// epochRose: the journal has recovered while we are connected. Offsets from `first` on were abandoned and are given
// again.
func (s *session) epochRose(epoch uint32, first uint64, firstKnown bool) {
	l, k := s.link, s.known
	// Only the epoch that follows directly says where the one before was cut.
	cut := uint64(0)
	if firstKnown && l.epoch != math.MaxUint32 && l.epoch+1 == epoch {
		cut = first
	}
	l.epoch, l.epochFirst, l.epochFirstKnown, l.watermarks = epoch, first, firstKnown, [3]uint64{}
	k.epoch = epoch
	if firstKnown {
		k.placesEnd = min(k.placesEnd, first)
		if k.receiptsCut(first) {
			s.lost = true
		}
	}
	for at := range min(s.frontier, s.entries.n) {
		if e := s.entries.at(at); e.stage == stageAccepted && e.firstOffset+uint64(e.count) > cut {
			s.requeue(at, true)
		}
	}
}

// retry waits before the next sending.
func (s *session) retry(now time.Time, wait time.Duration, why string) {
	if at := now.Add(max(s.backoff.next(), wait)); at.After(s.notBefore) {
		s.notBefore = at
	}
	s.inTrouble(now, why)
}

func (s *session) inTrouble(now time.Time, why string) {
	if s.troubleSince.IsZero() {
		s.troubleSince = now
	}
	s.troubleWhy = why
}

// nextFlush ends the flushes that need no asking, and gives the next one that does.
func (s *session) nextFlush(now time.Time) (id uint32, level Level, ok bool) {
	for at := 0; at < len(s.flushes); {
		f := s.flushes[at]
		if s.entries.n > 0 && s.entries.at(0).order < f.order {
			return 0, 0, false // nor is any later one ready
		}
		highest := Highest
		if s.known != nil {
			highest = s.known.highest
		}
		level := f.level
		if level == Highest {
			level = highest
		}
		if s.leftBehind != 0 {
			if level == Highest {
				return 0, 0, false
			}
			if level > s.leftBehind {
				s.leftBehind = 0
				s.flushEnds(at, &AppendError{Reason: ReasonLost})
				continue
			}
		}
		if s.unflushed == 0 || (level != Highest && level <= s.unflushed) {
			s.flushEnds(at, nil)
			continue
		}
		if level == Highest || s.link == nil {
			return 0, 0, false
		}
		if level == Posted || level > highest {
			s.flushEnds(at, unreachable(level).with(true))
			continue
		}
		if f.asked || f.notBefore.After(now) {
			at++
			continue
		}
		s.flushID++
		if s.flushID == 0 {
			s.flushID = 1
		}
		f.asked, f.id, f.askedAt, f.resolved = true, s.flushID, level, s.resolved
		return f.id, level, true
	}
	return 0, 0, false
}

func (s *session) askedFlush(id uint32) int {
	for at, f := range s.flushes {
		if f.asked && f.id == id {
			return at
		}
	}
	return -1
}

func (s *session) flushAnswered(w wire.Watermark, now time.Time) {
	at := s.askedFlush(w.RequestID)
	if at < 0 {
		return
	}
	f := s.flushes[at]
	if w.Epoch != s.link.epoch || levelOf(w.Level) < f.askedAt || w.Offset < s.known.placesEnd {
		s.askAgain(f, now)
		return
	}
	if s.resolved == f.resolved {
		s.unflushed = max(s.unflushed, f.askedAt)
	}
	s.flushEnds(at, nil)
}

func (s *session) flushRefused(id uint32, refusal *Refusal, now time.Time) {
	at := s.askedFlush(id)
	if at < 0 {
		return
	}
	f := s.flushes[at]
	if refusal.Retryable && f.since.Add(s.deliveryTimeout).After(now) {
		s.askAgain(f, now)
		return
	}
	s.flushEnds(at, &AppendError{Reason: ReasonRefused, MaybeWritten: true, Err: refusal})
}

func (s *session) askAgain(f *flushWait, now time.Time) {
	f.asked = false
	f.notBefore = now.Add(s.backoff.next())
}

func (s *session) flushEnds(at int, err *AppendError) {
	f := s.flushes[at]
	s.flushes = append(s.flushes[:at], s.flushes[at+1:]...)
	// A flush whose end is an abandonment is not notified of a loss: the next one is.
	if err == nil && s.lost {
		s.lost = false
		err = &AppendError{Reason: ReasonLost}
	}
	s.onFlush(f, err)
}

// pruneFlushes releases the flushes without a waiter; not those that the daemon has, for their answer may be reported
// once.
func (s *session) pruneFlushes() {
	kept := s.flushes[:0]
	for _, f := range s.flushes {
		if f.asked || !f.abandoned {
			kept = append(kept, f)
		}
	}
	clear(s.flushes[len(kept):])
	s.flushes = kept
}
