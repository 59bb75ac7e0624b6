package clad

import (
	"fmt"
	"time"

	"clad/internal/wire"
)

// The session: what a producer has handed over and what it knows of it, over connections that come and go. It is a
// plain state machine, the twin of the Rust client's (client-sdk/src/session/mod.rs, where its rules stand with their
// reasons). Its inputs are submits, greetings, answers, the end of a connection, the time. It does no I/O; the
// producer's lock guards it.
//
//	queued ──sent──▶ sent ──ACCEPTED──▶ accepted ──watermark covers it──▶ done (receipt)
//	   ▲              │                    │
//	   └─ REFUSED for now, connection lost, offset given up by a new epoch ─┘     REFUSED for good ──▶ done (error)
//
// One thing differs from Rust: an append gets its sequence when it is sent first, not when it is submitted. So what was
// never sent can be dropped without a gap in the sequences.
//
// Gaps: only the oldest append without an outcome carries the gap mark, and only when its sequence is beyond what the
// daemon expects. After a refusal nothing is sent before everything in flight is answered.

type session struct {
	maxInFlight     int
	deliveryTimeout time.Duration
	// entries are oldest first; the first one is never done.
	entries deque
	// numbered entries, from the first on, have a sequence: they were sent once.
	numbered  int
	nextIndex uint64
	base      uint64
	nextOrder uint64
	// cursor: no entry before this is queued. frontier: no entry from here on was sent on this connection.
	cursor, frontier int
	link             *link
	known            *known
	flushes          []*flushWait
	flushID          uint32
	// unflushed is the lowest level at which something ended well since the last flush; 0 nothing.
	unflushed Level
	resolved  uint64
	backoff   backoff
	notBefore time.Time
	// troubleSince: nothing goes forward since then; zero: all is well.
	troubleSince time.Time
	troubleWhy   string
	// singleBelow: appends before this index are sent one at a time, for one of them has ended a connection.
	singleBelow uint64
	lost        bool
	// leftBehind is the lowest level at which something ended well in a log that another has taken the place of.
	leftBehind Level

	// onDone gets each outcome; err is nil for a receipt. The entry's payload and tickets are free after it.
	onDone  func(e *entry, receipt Receipt, err *AppendError)
	onFlush func(f *flushWait, err *AppendError)
	// onGone gets each entry that the session does not have any more.
	onGone func(e *entry)
}

type link struct {
	epoch uint32
	// epochFirst is where the epoch began; unknown when it is known by an ACCEPTED alone.
	epochFirst      uint64
	epochFirstKnown bool
	highest         Level
	window          int
	maxAppendBytes  int
	// expected is the sequence that the daemon expects once it has seen everything that was sent.
	expected uint64
	// unsureBelow is the sequence after the last append of level none that was sent, until the daemon has accepted one
	// behind it: expected is only hoped for.
	unsureBelow uint64
	unsure      bool
	inFlight    int
	// hold: one was refused. Nothing is sent until inFlight is 0.
	hold bool
	// watermarks are the ends of received, written, durable in this epoch.
	watermarks [3]uint64
}

// known is the state of the log, over connections.
type known struct {
	logID   LogID
	epoch   uint32
	highest Level
	// first record of ours that was accepted: its place.
	hasFirst    bool
	firstEpoch  uint32
	firstOffset uint64
	// receipts: the sequence and the offset after the last record that has a receipt and is not known to be gone.
	hasReceipts              bool
	receiptsSeq, receiptsEnd uint64
	// placesEnd is the offset after the last record that was accepted.
	placesEnd uint64
	hasSent   bool
	sentEnd   uint64
}

// flushWait waits until everything before it has a level.
type flushWait struct {
	order     uint64
	level     Level
	since     time.Time
	notBefore time.Time
	// asked: the daemon has it, under this id and level, and so many appends had ended well by then.
	asked    bool
	id       uint32
	askedAt  Level
	resolved uint64
	done     chan struct{}
	err      *AppendError
	// abandoned by its caller.
	abandoned bool
	closing   bool
}

func (l *link) covers(level Level, end uint64) bool {
	return level <= Received || end <= l.watermarks[level-Received]
}

// receiptsCut abandons offsets from `from` on; true if some of them have receipts.
func (k *known) receiptsCut(from uint64) bool {
	cut := k.hasReceipts && k.receiptsEnd > from
	if cut {
		k.receiptsSeq, k.receiptsEnd = 0, from
	}
	return cut
}

func (k *known) noteReceipt(seqEnd, end uint64) {
	if !k.hasReceipts || seqEnd > k.receiptsSeq || (seqEnd == k.receiptsSeq && end > k.receiptsEnd) {
		k.hasReceipts, k.receiptsSeq, k.receiptsEnd = true, seqEnd, end
	}
}

// push takes an append in.
func (s *session) push(e *entry) {
	e.order = s.nextOrder
	s.nextOrder++
	s.entries.push(e)
}

func (s *session) idle() bool { return s.entries.n == 0 && len(s.flushes) == 0 }

// awaitsAnswers says whether an answer to something that was sent is still to come.
func (s *session) awaitsAnswers() bool {
	if s.link == nil {
		return false
	}
	for _, f := range s.flushes {
		if f.asked {
			return true
		}
	}
	return s.frontier > 0
}

func (s *session) seq(e *entry) uint64 { return s.base + e.index }

// find answers where the entry of a sequence is that has no outcome yet, or -1.
func (s *session) find(seq uint64) int {
	index := seq - s.base
	low, high := 0, s.numbered
	for low < high {
		mid := (low + high) / 2
		if s.entries.at(mid).index < index {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low < s.numbered && s.entries.at(low).index == index && s.entries.at(low).stage != stageDone {
		return low
	}
	return -1
}

func (s *session) requeue(at int, lost bool) {
	e := s.entries.at(at)
	e.stage = stageQueued
	e.lost = e.lost || lost
	s.cursor = min(s.cursor, at)
}

// finish gives an entry its outcome. It stays among the entries until those before it are gone, or, if it was never
// sent, goes at once; then it answers true.
func (s *session) finish(at int, receipt Receipt, err *AppendError) (gone bool) {
	e := s.entries.at(at)
	if e.stage == stageDone {
		return false
	}
	if err != nil {
		err = err.with(e.maybeWritten())
	}
	e.stage = stageDone
	s.onDone(e, receipt, err)
	if at < s.numbered {
		return false
	}
	s.entries.remove(at)
	s.onGone(e)
	return true
}

// dropBelow drops appends that were never sent and have only records below a severity, oldest first, until they have
// given back so many bytes. It answers how many they gave. Reports of drops stay.
func (s *session) dropBelow(severity Severity, bytes int) (freed int) {
	kept, at := s.numbered, s.numbered
	for ; at < s.entries.n && freed < bytes; at++ {
		e := s.entries.at(at)
		if e.span != nil || e.severity >= severity {
			s.entries.ring[(s.entries.head+kept)&(len(s.entries.ring)-1)] = e
			kept++
			continue
		}
		freed += e.cost
		e.stage = stageDone
		s.onDone(e, Receipt{}, &AppendError{Reason: ReasonDropped})
		s.onGone(e)
	}
	s.entries.cut(kept, at)
	return freed
}

// trim releases what has its outcome at the front. Places in entries are stale after this.
func (s *session) trim() {
	for s.entries.n > 0 && s.entries.at(0).stage == stageDone {
		e := s.entries.at(0)
		s.entries.remove(0)
		s.onGone(e)
		s.cursor = max(0, s.cursor-1)
		s.frontier = max(0, s.frontier-1)
		s.numbered = max(0, s.numbered-1)
	}
	if s.entries.n == 0 && s.link != nil {
		s.troubleSince = time.Time{}
	}
}

// sentOut says what was written: an append of so many records, sent again perhaps, or a FLUSH (no records).
type sentOut struct {
	records uint32
	again   bool
	report  bool
}

// next appends the next message to send to buf; false when there is nothing, or it must wait.
func (s *session) next(buf []byte, now time.Time) ([]byte, sentOut, bool) {
	if id, level, ok := s.nextFlush(now); ok {
		return wire.PutFlush(buf, id, level.code()), sentOut{}, true
	}
	if s.notBefore.After(now) {
		return buf, sentOut{}, false
	}
	s.notBefore = time.Time{}
	for s.link != nil {
		l := s.link
		if l.hold && l.inFlight > 0 {
			break
		}
		l.hold = false
		for s.cursor < s.entries.n && s.entries.at(s.cursor).stage != stageQueued {
			s.cursor++
		}
		at := s.cursor
		if at >= min(l.window, s.maxInFlight) || at >= s.entries.n {
			break
		}
		e := s.entries.at(at)
		if s.singleBelow > 0 {
			if l.inFlight > 0 {
				break
			}
			if at >= s.numbered || e.index >= s.singleBelow {
				s.singleBelow = 0
			}
		}
		var err *AppendError
		switch {
		case e.level == Posted:
			err = unreachable(Posted) // shared memory only; a socket has no word for it
		case len(e.payload) > l.maxAppendBytes:
			err = tooLarge(len(e.payload), l.maxAppendBytes) // sent, it would cost the connection
			if e.maybeWritten() {
				err = &AppendError{Reason: ReasonRefused, Err: err.Err}
			}
		default:
			return s.send(buf, at)
		}
		s.finish(at, Receipt{}, err)
		s.trim()
	}
	return buf, sentOut{}, false
}

func (s *session) send(buf []byte, at int) ([]byte, sentOut, bool) {
	l, k, e := s.link, s.known, s.entries.at(at)
	fresh := at >= s.numbered
	index := e.index
	if fresh {
		index = s.nextIndex
	}
	seq := s.base + index
	if seq > l.expected && at > 0 {
		return buf, sentOut{}, false // only the oldest may jump
	}
	if fresh {
		e.index = index
		s.nextIndex += uint64(e.count)
		s.numbered = at + 1
	}
	e.seal()
	e.marked = seq > l.expected || (l.unsure && at == 0)
	end := seq + uint64(e.count)
	info := sentOut{records: e.count, again: e.wasSent, report: e.span != nil}
	e.wasSent, e.stage, e.expected = true, stageSent, l.expected
	e.sentLevel = e.level
	if e.level == Highest {
		e.sentLevel = l.highest
	}
	l.expected = max(l.expected, end)
	k.sentEnd, k.hasSent = max(k.sentEnd, end), true
	head := wire.AppendHead{
		FirstSeq: seq, Count: e.count, Level: e.sentLevel.code(), Gap: e.marked, PayloadCRC: e.crc,
	}
	buf = append(wire.PutAppend(buf, head, len(e.payload)), e.payload...)
	s.frontier = max(s.frontier, at+1)
	if e.sentLevel == None {
		l.unsureBelow, l.unsure = end, true
		s.succeed(at, Receipt{LogID: k.logID, Epoch: l.epoch, Count: e.count, Level: None})
		s.trim()
	} else {
		l.inFlight++
	}
	return buf, info, true
}

func (s *session) succeed(at int, receipt Receipt) {
	s.resolved++
	if s.unflushed == 0 || receipt.Level < s.unflushed {
		s.unflushed = receipt.Level
	}
	s.finish(at, receipt, nil)
}

func tooLarge(n, limit int) *AppendError {
	return &AppendError{Reason: ReasonTooLarge, Err: fmt.Errorf("%d bytes, %d are taken", n, limit)}
}
