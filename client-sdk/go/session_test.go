package clad

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"clad/internal/wire"
)

// The session against a model of the daemon, over seeded histories: appends of every level, connections that break
// between any two messages, kills, power cuts, a journal that fails and recovers, refusals for now and for good.
//
// CLAD_SEED=N begins at that seed, CLAD_SESSION_RUNS=N runs so many.

// world is the daemon, the wire, and what is known of the outcomes.
type world struct {
	t    testing.TB
	seed uint64
	r    *rand.Rand
	now  time.Time
	s    session
	// log is what the daemon has, by offset: the number of an append, and its place in that.
	log              []part
	written, durable int
	epoch            uint32
	first            uint64
	earlier          []wire.EpochStart
	stored           map[uint64]int // from a sequence to its offset
	expected         uint64
	pending          []pendingAck
	connected        bool
	toDaemon         [][]byte
	toClient         [][]byte
	handed           int
	outcomes         map[int]*modelOutcome
	calm             bool
	cuts             []abandoned
}

// abandoned: from this offset on what epochs up to this one gave was abandoned, below this level.
type abandoned struct {
	epoch  uint32
	from   int
	covers Level
}

func (w *world) forgives(o *modelOutcome) bool {
	for _, c := range w.cuts {
		if o.receipt.Epoch <= c.epoch && o.receipt.Level < c.covers && int(o.receipt.FirstOffset)+o.count > c.from {
			return true
		}
	}
	return false
}

// foreign is an append of another producer.
const foreign = -1

type part struct {
	append, at int
	seq        uint64
}

type pendingAck struct {
	seq    uint64
	count  uint32
	offset int
}

type modelOutcome struct {
	receipt Receipt
	err     *AppendError
	count   int
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 9)), now: time.Unix(1e9, 0), epoch: 1, stored: map[uint64]int{},
		outcomes: map[int]*modelOutcome{},
	}
	w.s = session{
		maxInFlight: 1 + w.r.IntN(12), deliveryTimeout: time.Hour, backoff: newBackoff(time.Millisecond, 20*time.Millisecond, seed),
		onGone:  func(*entry) {},
		onFlush: func(*flushWait, *AppendError) {},
		onDone: func(e *entry, receipt Receipt, err *AppendError) {
			number := int(le.Uint32(e.payload))
			if w.outcomes[number] != nil {
				w.fail("append %d has two outcomes", number)
			}
			w.outcomes[number] = &modelOutcome{receipt, err, int(e.count)}
		},
	}
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("CLAD_SEED=%d CLAD_SESSION_RUNS=1: %s", w.seed, fmt.Sprintf(format, args...))
}

// step does one random thing.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.r.IntN(3)) * time.Millisecond)
	switch n := w.r.IntN(100); {
	case n < 20 && !w.calm:
		w.submit()
	case n < 45:
		w.send()
	case n < 65:
		w.serve()
	case n < 85:
		w.hear()
	case n < 91:
		w.advance()
	case n < 92: // another producer
		for range 1 + w.r.IntN(4) {
			w.log = append(w.log, part{append: foreign})
		}
	case n < 93 && !w.calm:
		w.s.flushes = append(w.s.flushes, &flushWait{order: w.s.nextOrder, level: Level(w.r.IntN(6)), since: w.now, done: make(chan struct{})})
	case n < 95:
		w.connect()
	case n < 96 && !w.calm:
		w.cut()
	case n < 97 && !w.calm:
		w.crash(w.written, Written)
	case n < 98 && !w.calm && w.r.IntN(2) == 0:
		w.crash(w.durable, Durable)
	case n < 99 && !w.calm:
		w.journalFails()
	}
	w.s.tick(w.now)
}

func (w *world) submit() {
	number := w.handed
	w.handed++
	level := []Level{None, Received, Written, Durable, Highest, Durable}[w.r.IntN(6)]
	w.s.push(&entry{
		payload: le.AppendUint32(nil, uint32(number)), count: uint32(1 + w.r.IntN(3)), level: level, submitted: w.now,
	})
}

func (w *world) send() {
	if !w.connected {
		return
	}
	if frame, _, ok := w.s.next(nil, w.now); ok {
		w.toDaemon = append(w.toDaemon, frame)
	}
}

func (w *world) answer(frame []byte) { w.toClient = append(w.toClient, frame) }

// serve takes a frame of the client.
func (w *world) serve() {
	if !w.connected || len(w.toDaemon) == 0 {
		return
	}
	frame := w.toDaemon[0]
	w.toDaemon = w.toDaemon[1:]
	h, _ := wire.ParseHeader(frame[:wire.HeaderBytes])
	body := frame[wire.HeaderBytes:]
	if h.Type == wire.TFlush {
		level, _ := wire.ParseFlush(body)
		if !w.calm && w.r.IntN(10) == 0 {
			w.answer((&wire.Error{Code: uint16(CodeBusy), Flags: wire.FlagRetryable}).Put(nil, h.RequestID))
			return
		}
		w.written, w.durable = len(w.log), len(w.log)
		w.pending = nil
		w.answer(wire.Watermark{RequestID: h.RequestID, Offset: uint64(len(w.log)), EpochFirst: w.first, Epoch: w.epoch, Level: level}.Put(nil))
		return
	}
	head, payload, err := wire.ParseAppend(body)
	if err != nil {
		w.fail("%v", err)
	}
	silent := head.Level == None.code()
	refuse := func(code Code, flags uint8) {
		if !silent {
			expected := w.expected
			w.answer(wire.Refused{FirstSeq: head.FirstSeq, Count: head.Count, Error: &wire.Error{Code: uint16(code), Flags: flags, Expected: &expected}}.Put(nil))
		}
	}
	accept := func(offset int) {
		if silent {
			return
		}
		w.answer(wire.Accepted{FirstSeq: head.FirstSeq, FirstOffset: uint64(offset), Count: head.Count, Epoch: w.epoch}.Put(nil))
		if head.Level > Received.code() {
			w.pending = append(w.pending, pendingAck{head.FirstSeq, head.Count, offset})
		}
	}
	end := head.FirstSeq + uint64(head.Count)
	offset, known := w.stored[head.FirstSeq]
	for i := uint64(1); known && i < uint64(head.Count); i++ {
		other, there := w.stored[head.FirstSeq+i]
		known = there && other == offset+int(i)
	}
	switch {
	case known:
		accept(offset)
	case head.FirstSeq < w.expected:
		refuse(CodeSequenceOverlap, 0)
	case head.FirstSeq > w.expected && !head.Gap:
		refuse(CodeSequenceGap, wire.FlagRetryable)
	case !w.calm && w.r.IntN(25) == 0:
		refuse(CodeBusy, wire.FlagRetryable)
	case !w.calm && w.r.IntN(40) == 0:
		refuse(CodeBadRecord, 0)
	default:
		accept(len(w.log))
		for i := range head.Count {
			w.stored[head.FirstSeq+uint64(i)] = len(w.log)
			w.log = append(w.log, part{int(le.Uint32(payload)), int(i), head.FirstSeq + uint64(i)})
		}
		w.expected = end
	}
}

// hear gives an answer to the client.
func (w *world) hear() {
	if !w.connected || len(w.toClient) == 0 {
		return
	}
	frame := w.toClient[0]
	w.toClient = w.toClient[1:]
	h, _ := wire.ParseHeader(frame[:wire.HeaderBytes])
	body := frame[wire.HeaderBytes:]
	switch h.Type {
	case wire.TAccepted:
		a, _ := wire.ParseAccepted(body)
		if err := w.s.accepted(a, w.now); err != nil {
			w.fail("%v", err)
		}
	case wire.TWatermark:
		m, _ := wire.ParseWatermark(h.RequestID, body)
		w.s.watermark(m, w.now)
	case wire.TRefused:
		f, _ := wire.ParseRefused(body)
		w.s.refused(f.FirstSeq, refusalOf(f.Error), w.now)
	case wire.TError:
		e, _ := wire.ParseError(body)
		w.s.flushRefused(h.RequestID, refusalOf(e), w.now)
	}
}

// advance moves the watermarks, and says so.
func (w *world) advance() {
	w.written = w.whole(w.written + w.r.IntN(len(w.log)-w.written+1))
	w.durable = w.whole(w.durable + w.r.IntN(w.written-w.durable+1))
	if w.calm {
		w.written, w.durable = len(w.log), len(w.log)
	}
	kept := w.pending[:0]
	for _, p := range w.pending {
		if p.offset+int(p.count) > w.durable {
			kept = append(kept, p)
		}
	}
	w.pending = kept
	if w.connected {
		level, at := Written, w.written
		if w.r.IntN(2) == 0 {
			level, at = Durable, w.durable
		}
		w.answer(wire.Watermark{Offset: uint64(at), EpochFirst: w.first, Epoch: w.epoch, Level: level.code()}.Put(nil))
	}
}

// whole is the last place up to there that is not within an append: those are never torn.
func (w *world) whole(at int) int {
	for at < len(w.log) && w.log[at].at > 0 {
		at--
	}
	return at
}

func (w *world) connect() {
	if w.connected {
		return
	}
	welcome := &wire.Welcome{
		Version: 1, Policy: 2, Highest: 4, LogID: logA, Epoch: w.epoch, Window: 8, EpochFirst: w.first, MaxAppend: 1 << 20,
		MaxRecord: 1 << 20, Received: uint64(len(w.log)), Written: uint64(w.written), Durable: uint64(w.durable),
		Earlier: w.earlier[max(0, len(w.earlier)-32):],
	}
	if w.expected > 0 {
		welcome.HasLast, welcome.LastSeq = true, w.expected-1
		welcome.LastOffset, welcome.LastLevel = uint64(w.stored[w.expected-1]), 2
	}
	if err := w.s.connected(welcome); err != nil {
		w.fail("%v", err)
	}
	w.connected = true
}

func (w *world) cut() {
	if w.connected {
		w.connected, w.toDaemon, w.toClient, w.pending = false, nil, nil, nil
		w.s.disconnected(w.now, "cut")
	}
}

// abandon takes everything from an offset on out of the log; a new epoch begins there. What had at least this level is
// not taken.
func (w *world) abandon(from int, covers Level) {
	for _, p := range w.log[from:] {
		if p.append != foreign {
			delete(w.stored, p.seq)
		}
	}
	w.log = w.log[:from]
	w.expected = 0
	for seq := range w.stored {
		w.expected = max(w.expected, seq+1)
	}
	w.cuts = append(w.cuts, abandoned{w.epoch, from, covers})
	w.earlier = append(w.earlier, wire.EpochStart{Epoch: w.epoch, First: w.first})
	w.epoch++
	w.first, w.written, w.durable = uint64(from), from, from
}

func (w *world) crash(from int, covers Level) {
	w.cut()
	w.abandon(from, covers)
}

// journalFails: what was not written is lost or refused; the connection stays.
func (w *world) journalFails() {
	from := w.whole(w.written + w.r.IntN(len(w.log)-w.written+1))
	pending := w.pending
	w.pending = nil
	w.abandon(from, Written)
	if !w.connected {
		return
	}
	if w.r.IntN(2) == 0 {
		pending = nil // the watermark of the new epoch says it
	}
	for _, p := range pending {
		flags := uint8(wire.FlagRetryable | wire.FlagMaybeWritten)
		w.answer(wire.Refused{FirstSeq: p.seq, Count: p.count, Error: &wire.Error{Code: uint16(CodeJournalFailed), Flags: flags}}.Put(nil))
	}
	w.advance()
}

// check looks for every outcome in the log.
func (w *world) check() {
	places := map[int]int{}
	last := -1
	for offset, p := range w.log {
		if p.append == foreign {
			continue
		}
		if p.at == 0 {
			if _, twice := places[p.append]; twice {
				w.fail("append %d is there twice", p.append)
			}
			if p.append <= last {
				w.fail("append %d comes after %d", p.append, last)
			}
			places[p.append], last = offset, p.append
		} else if places[p.append]+p.at != offset {
			w.fail("append %d is torn", p.append)
		}
	}
	for number := range w.handed {
		o := w.outcomes[number]
		if o == nil {
			w.fail("append %d has no outcome", number)
		}
		at, there := places[number]
		switch {
		case o.err != nil && o.err.Code() == CodeSequenceOverlap:
			w.fail("append %d was overtaken by a jump: %v", number, o.err)
		case o.err != nil && there && !o.err.MaybeWritten:
			w.fail("append %d is certainly not written, and there: %v", number, o.err)
		case o.err == nil && o.receipt.Level != None && !w.forgives(o) && (!there || uint64(at) != o.receipt.FirstOffset):
			w.fail("append %d has a receipt for %d at %v, it is at %d (%v)", number, o.receipt.FirstOffset, o.receipt.Level, at, there)
		}
	}
}

func TestSeededHistories(t *testing.T) {
	runs, first := envNumber("CLAD_SESSION_RUNS", 1500), envNumber("CLAD_SEED", 1)
	receipts, errors, forgiven := 0, map[Reason]int{}, 0
	for seed := first; seed < first+runs; seed++ {
		w := newWorld(t, seed)
		for range 400 {
			w.step()
		}
		w.calm = true
		for n := 0; !w.s.idle(); n++ {
			if n > 100000 {
				w.fail("it does not come to rest: %d appends, %d flushes, %+v", w.s.entries.n, len(w.s.flushes), w.s.link)
			}
			w.step()
		}
		w.check()
		for _, o := range w.outcomes {
			if o.err != nil {
				errors[o.err.Reason]++
			} else if w.forgives(o) {
				forgiven++
			} else {
				receipts++
			}
		}
	}
	t.Logf("%d histories: %d receipts, %d taken by a crash, errors by reason %v", runs, receipts, forgiven, errors)
}

func envNumber(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}
