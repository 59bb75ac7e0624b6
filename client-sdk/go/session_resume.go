package clad

import (
	"errors"
	"time"

	"clad/internal/wire"
)

// The beginning and the end of a connection, and the end of waiting. The table of what WELCOME can say, and what it
// means, is in client-sdk/src/session/resume.rs.

// connected: a connection is there. An error means that another process uses the producer.
func (s *session) connected(w *wire.Welcome) error {
	expected := w.Expected()
	s.compareLog(w)
	if err := s.compareSequences(w, expected); err != nil {
		return err
	}
	highest := levelOf(w.Highest)
	same := s.known != nil && s.known.epoch == w.Epoch
	if s.known == nil {
		s.known = &known{logID: w.LogID}
	}
	s.known.epoch, s.known.highest = w.Epoch, highest
	if !same {
		s.known.placesEnd = min(s.known.placesEnd, w.EpochFirst)
	}
	s.link = &link{
		epoch: w.Epoch, epochFirst: w.EpochFirst, epochFirstKnown: true, highest: highest, window: max(1, int(w.Window)),
		maxAppendBytes: int(w.MaxAppend), expected: expected, watermarks: [3]uint64{w.Received, w.Written, w.Durable},
	}
	if same {
		s.release(0, s.frontier)
	}
	for at := range min(s.frontier, s.entries.n) {
		if s.entries.at(at).stage == stageAccepted {
			s.requeue(at, true)
		}
	}
	s.cursor, s.frontier, s.notBefore = 0, 0, time.Time{}
	if !s.troubleSince.IsZero() {
		// Nothing went forward, so it lasts: but what the tries before this one ended with is over.
		s.troubleWhy = "the daemon is there again, and has answered nothing yet"
	}
	return nil
}

// compareLog: of another log, what may be in the one before stays with it.
func (s *session) compareLog(w *wire.Welcome) {
	if s.known == nil || s.known.logID == w.LogID {
		return
	}
	s.failMaybeWritten(&AppendError{Reason: ReasonLogChanged, MaybeWritten: true})
	s.known = nil
	s.leaveBehind()
}

// leaveBehind leaves the appends that have a receipt: no further progress of them can be reported.
func (s *session) leaveBehind() {
	if s.unflushed != 0 && (s.leftBehind == 0 || s.unflushed < s.leftBehind) {
		s.leftBehind = s.unflushed
	}
	s.unflushed = 0
}

func (s *session) compareSequences(w *wire.Welcome, expected uint64) error {
	k := s.known
	if k == nil || !k.hasSent {
		// Nothing of ours was ever sent to this log: resume where it has this producer.
		first := s.nextIndex
		if s.numbered > 0 {
			first = s.entries.at(0).index
		}
		s.base = expected - first
		return nil
	}
	switch {
	case w.HasLast && w.LastSeq >= k.sentEnd:
		return ErrProducerShared
	case w.HasLast:
		s.checkPlaces(w)
		s.checkReceipts(expected)
	default:
		s.checkPlaces(w)
		if k.hasFirst {
			from, some := w.AbandonedSince(max(s.known.epoch, k.firstEpoch))
			if some && k.firstOffset >= from {
				s.checkReceipts(expected)
			} else {
				s.failMaybeWritten(&AppendError{Reason: ReasonForgotten, MaybeWritten: true})
				if some {
					s.leaveBehind() // in epochs that are not all reported, and the log does not know us
				}
			}
		}
		k.hasFirst = false
		// The daemon's expected sequence says nothing of them any more; their places do, should those be abandoned.
		k.receiptsSeq = 0
	}
	return nil
}

func (s *session) failMaybeWritten(err *AppendError) {
	for at := range min(s.numbered, s.entries.n) {
		if e := s.entries.at(at); e.stage != stageDone && e.maybeWritten() {
			s.finish(at, Receipt{}, err)
		}
	}
	s.trim()
}

// endedByAppend: the connection ends for the sake of an append; disconnected is still to be called.
func (s *session) endedByAppend(refusal *Refusal) {
	if s.link == nil {
		return
	}
	first, last := -1, -1
	for at := range min(s.frontier, s.entries.n) {
		if s.entries.at(at).stage == stageSent {
			if first < 0 {
				first = at
			}
			last = at
		}
	}
	if first >= 0 && first == last && !s.link.unsure {
		e := s.entries.at(first)
		e.stage, e.lost = stageQueued, e.lost || refusal.MaybeWritten
		s.finish(first, Receipt{}, &AppendError{Reason: ReasonRefused, MaybeWritten: refusal.MaybeWritten, Err: refusal})
		s.trim()
	} else if last >= 0 {
		s.singleBelow = max(s.singleBelow, s.entries.at(last).index+1)
	}
}

// disconnected: the connection is gone, or there is still none.
func (s *session) disconnected(now time.Time, why string) {
	for at := range min(s.frontier, s.entries.n) {
		// What was accepted may turn out to be covered when we come back.
		if s.entries.at(at).stage == stageSent {
			s.requeue(at, true)
		}
	}
	s.link = nil
	for _, f := range s.flushes {
		f.asked = false
	}
	if s.idle() {
		s.troubleSince = time.Time{}
	} else {
		s.inTrouble(now, why)
	}
}

// tick abandons what has waited too long through the trouble there is, and ends what need not wait for a connection.
func (s *session) tick(now time.Time) {
	if !s.troubleSince.IsZero() {
		s.expire(now)
	}
	if s.link == nil {
		s.nextFlush(now) // without a connection this gives nothing
	}
}

func (s *session) due(submitted, now time.Time) bool {
	if submitted.Before(s.troubleSince) {
		submitted = s.troubleSince
	}
	return !submitted.Add(s.deliveryTimeout).After(now)
}

func (s *session) expire(now time.Time) {
	for at := 0; at < s.entries.n; {
		e := s.entries.at(at)
		if !s.due(e.submitted, now) {
			break // they are in the order of their submits
		}
		// An append that a live connection has is not abandoned here: its answer comes.
		if e.stage == stageQueued || (s.link == nil && e.stage != stageDone) {
			// Without a daemon that is the reason, whatever it said before it went.
			err := &AppendError{Reason: ReasonDeliveryTimeout, Err: errors.New(s.troubleWhy)}
			if e.refusal != nil && s.link != nil {
				err = &AppendError{Reason: ReasonRefused, Err: e.refusal}
			}
			if s.finish(at, Receipt{}, err) {
				continue
			}
		}
		at++
	}
	why := s.troubleWhy
	s.trim()
	for s.link == nil && len(s.flushes) > 0 && s.due(s.flushes[0].since, now) {
		s.flushEnds(0, &AppendError{Reason: ReasonDeliveryTimeout, MaybeWritten: true, Err: errors.New(why)})
	}
}

// nextTimer is when to call tick and ask what to send, if nothing else happens before; zero: never.
func (s *session) nextTimer() time.Time {
	var first time.Time
	earliest := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if !s.troubleSince.IsZero() {
		expiry := func(submitted time.Time) {
			if submitted.Before(s.troubleSince) {
				submitted = s.troubleSince
			}
			earliest(submitted.Add(s.deliveryTimeout))
		}
		for at := range s.entries.n {
			if e := s.entries.at(at); e.stage == stageQueued || (s.link == nil && e.stage != stageDone) {
				expiry(e.submitted)
				break
			}
		}
		if s.link == nil && len(s.flushes) > 0 {
			expiry(s.flushes[0].since)
		}
	}
	// Without a connection there is nothing to send when these are over.
	if s.link != nil {
		earliest(s.notBefore)
		for _, f := range s.flushes {
			if !f.asked {
				earliest(f.notBefore)
			}
		}
	}
	return first
}

// failAll ends everything.
func (s *session) failAll(err *AppendError) {
	for at := 0; at < s.entries.n; {
		if !s.finish(at, Receipt{}, err) {
			at++
		}
	}
	s.trim()
	for len(s.flushes) > 0 {
		s.flushEnds(0, err.with(true))
	}
}
