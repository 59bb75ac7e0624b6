package clad

import (
	"time"

	"clad/internal/wire"
)

type stage uint8

const (
	// stageQueued: to be sent.
	stageQueued stage = iota
	// stageSent on this connection, not answered.
	stageSent
	// stageAccepted: stored at a place of the connection's epoch.
	stageAccepted
	// stageDone: it has its outcome.
	stageDone
)

// entry is one append and how far it is.
type entry struct {
	order   uint64
	index   uint64
	payload []byte
	count   uint32
	crc     uint32
	sealed  bool
	level   Level
	// severity is the highest of its records.
	severity  Severity
	submitted time.Time
	tickets   []share
	// cost is what it takes of the budget.
	cost int
	// span is not nil for a report of drops, which it is about.
	span *dropSpan

	stage         stage
	acceptedEpoch uint32
	firstOffset   uint64
	// sentLevel is the level that was asked for when it was last sent.
	sentLevel Level
	wasSent   bool
	// lost: a sending of it may have been stored without our knowing.
	lost bool
	// marked: it was last sent with the gap mark.
	marked bool
	// expected is the sequence that the daemon expected when it was last sent.
	expected uint64
	refusal  *Refusal
}

// share is one record's part of an append that others share too.
type share struct {
	index, count uint32
	ticket       *Ticket
}

func (e *entry) maybeWritten() bool {
	return e.lost || e.stage == stageSent || e.stage == stageAccepted
}

// seal ends the grouping: from now on its bytes do not change.
func (e *entry) seal() {
	if !e.sealed {
		e.sealed, e.crc = true, wire.CRC(e.payload)
	}
}

// deque is a ring of entries.
type deque struct {
	ring []*entry
	head int
	n    int
}

func (d *deque) at(i int) *entry { return d.ring[(d.head+i)&(len(d.ring)-1)] }

func (d *deque) last() *entry {
	if d.n == 0 {
		return nil
	}
	return d.at(d.n - 1)
}

func (d *deque) push(e *entry) {
	if d.n == len(d.ring) {
		grown := make([]*entry, max(16, 2*len(d.ring)))
		for i := range d.n {
			grown[i] = d.at(i)
		}
		d.ring, d.head = grown, 0
	}
	d.ring[(d.head+d.n)&(len(d.ring)-1)] = e
	d.n++
}

// remove takes one out; those before it move up, which are few.
func (d *deque) remove(i int) {
	mask := len(d.ring) - 1
	for ; i > 0; i-- {
		d.ring[(d.head+i)&mask] = d.ring[(d.head+i-1)&mask]
	}
	d.ring[d.head&mask] = nil
	d.head = (d.head + 1) & mask
	d.n--
}

// cut takes out those from `from` up to `to`; those behind them move down.
func (d *deque) cut(from, to int) {
	if from == to {
		return
	}
	mask := len(d.ring) - 1
	for ; to < d.n; from, to = from+1, to+1 {
		d.ring[(d.head+from)&mask] = d.at(to)
	}
	for i := from; i < d.n; i++ {
		d.ring[(d.head+i)&mask] = nil
	}
	d.n = from
}
