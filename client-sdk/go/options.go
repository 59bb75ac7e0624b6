package clad

import (
	"crypto/rand"
	"time"

	"clad/internal/wire"
)

// Options of a [Producer]. Every one has a default: the zero value.
type Options struct {
	// Component (`service.name`) is the program that the records are from.
	Component string
	// Group is resource and scope of the records, where more is to be said than the component. It replaces Component.
	Group *Group
	// Name is for people: the daemon's own messages have it. Default: the component. At most 128 bytes.
	Name string

	// ProducerID resumes a producer that existed before. Give a higher ProducerEpoch than it had: the old producer is
	// fenced off. Sequences resume where the log has them ([Producer.LastStored]). Such a producer can be resumed in
	// turn: it closes without a notice to the daemon that it may be forgotten. Default: a random id, epoch 0.
	ProducerID    ProducerID
	ProducerEpoch uint32
	// Secret binds the id where the daemon cannot know its peer (TCP); at most 32 bytes. Needed only to resume an
	// earlier producer. Default: random there, none on Unix sockets.
	Secret []byte

	// Level is what appends wait for where nothing else is said. Default: the highest that the log offers. A level that
	// the log cannot reach is refused append by append, never lowered.
	Level Level
	// WhenFull is what happens to a record for which there is no room. Default: wait as long as the context allows.
	WhenFull WhenFull
	// MaxBufferedBytes bounds what waits for its receipt, 256 bytes for each append included. Default: 16 MiB, at least
	// 4 KiB. Spare room of buffers comes on top, at most as much again.
	MaxBufferedBytes int
	// MaxInFlightAppends bounds the appends that are sent and unanswered. Default: the daemon's window.
	MaxInFlightAppends int
	// MaxAppendRecords and MaxAppendBytes bound an append into which records are grouped while they wait to be sent.
	// They are taken or refused together. Default: 1024 records, 64 KiB. 1 record: no grouping.
	MaxAppendRecords int
	MaxAppendBytes   int

	// BackoffMin and BackoffMax bound the wait before another try, which doubles. Default: 10 ms, 2 s.
	BackoffMin, BackoffMax time.Duration
	// ConnectTimeout bounds one try to connect, the greeting included. Default: 5 s.
	ConnectTimeout time.Duration
	// DeliveryTimeout is how long an append waits while there is no daemon, or while the daemon refuses it for now.
	// Then it ends with an error. It counts from when the trouble began, or from the append if that was later. Default:
	// 5 minutes. A daemon forgets a producer that was silent for long; exactly-once ends there.
	DeliveryTimeout time.Duration

	// pingAfter and pongWithin are short in tests.
	pingAfter, pongWithin time.Duration
	comesBack             bool
}

const (
	// appendOverhead is the cost of an append in the budget besides its payload.
	appendOverhead = 256
	// pingAfter: a daemon that is silent for so long is asked for a sign of life, which also keeps the connection.
	pingAfter = 15 * time.Second
	// pongWithin is long: a daemon under a slow disk stops reading.
	pongWithin = 60 * time.Second
	// aloneBytes: a longer record is an append of its own, so that no other is refused with it.
	aloneBytes = 32 << 10
	// severityDropPart is the part of the room that less severe records give back at a time.
	severityDropPart = 16
	// reportEvery bounds how often drops are reported.
	reportEvery = time.Second
	// byeTimeout bounds the wait for the daemon to close after BYE.
	byeTimeout = 5 * time.Second
)

func orDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

func (o *Options) finish(a address) {
	if o.ProducerID != (ProducerID{}) {
		o.comesBack = true
	} else {
		random(o.ProducerID[:])
	}
	if o.Secret == nil && !a.knowsPeer() {
		o.Secret = make([]byte, wire.SecretBytesMax)
		random(o.Secret)
	}
	o.Secret = o.Secret[:min(len(o.Secret), wire.SecretBytesMax)]
	if o.Group == nil {
		group := Group{}
		if o.Component != "" {
			group = ComponentGroup(o.Component)
		}
		o.Group = &group
	}
	orDefault(&o.Name, o.Group.Component())
	orDefault(&o.Name, "clad-go")
	orDefault(&o.MaxBufferedBytes, 16<<20)
	o.MaxBufferedBytes = max(o.MaxBufferedBytes, 4<<10)
	if o.MaxInFlightAppends <= 0 {
		o.MaxInFlightAppends = wire.WindowMax
	}
	orDefault(&o.MaxAppendRecords, 1024)
	o.MaxAppendRecords = min(max(o.MaxAppendRecords, 1), wire.AppendRecordsMax)
	orDefault(&o.MaxAppendBytes, 64<<10)
	orDefault(&o.BackoffMin, 10*time.Millisecond)
	orDefault(&o.BackoffMax, 2*time.Second)
	orDefault(&o.ConnectTimeout, 5*time.Second)
	orDefault(&o.DeliveryTimeout, 5*time.Minute)
	orDefault(&o.pingAfter, pingAfter)
	orDefault(&o.pongWithin, pongWithin)
}

// random fills b. Without randomness an id would not be unique, and records would be taken for each other's resends.
func random(b []byte) {
	if _, err := rand.Read(b); err != nil {
		panic("clad: the system gives no random bytes: " + err.Error())
	}
}

// WhenFull is what happens to a record for which there is no room. The zero value waits as long as the context allows.
type WhenFull struct {
	how   uint8
	limit time.Duration
	below Severity
}

const (
	fullWait uint8 = iota
	fullDropNewest
	fullDropOldest
	fullDropBelow
)

var (
	// DropNewest drops the record for which there is no room.
	DropNewest = WhenFull{how: fullDropNewest}
	// DropOldest drops records that were not yet sent, the oldest first, until there is room. If that does not make
	// enough room, it drops the new record.
	DropOldest = WhenFull{how: fullDropOldest}
)

// WaitAtMost waits for room, and drops the record if there is none in time.
func WaitAtMost(limit time.Duration) WhenFull {
	if limit <= 0 {
		return DropNewest
	}
	return WhenFull{how: fullWait, limit: limit}
}

// DropBelow drops a record of a lower severity at once. For another, appends that were never sent make room, if they
// have only records below the severity, a sixteenth of the room at a time. The oldest go first; they are counted as
// dropped, and their tickets end with [ErrDropped]. Where that is not enough, the record waits for at most this time, and
// no longer than its context; 0 is no wait. A record without a severity (0) is below all.
//
// Records that are kept and records that are not go in different appends.
func DropBelow(severity Severity, limit time.Duration) WhenFull {
	return WhenFull{how: fullDropBelow, below: severity, limit: max(limit, 0)}
}

// Stats is a snapshot of what a producer has counted since it was made: records, unless the name says otherwise. A
// record that has ended is counted in one of Acked, Failed and Dropped; when nothing waits, the three add up to
// Submitted. Reports of drops are not among them.
type Stats struct {
	// Submitted: handed over, or dropped instead.
	Submitted uint64
	// Sent for the first time; Resent: again.
	Sent, Resent uint64
	// Acked: reached their level. At level none: handed to the connection.
	Acked uint64
	// Failed: ended with an error.
	Failed uint64
	// Dropped: no room, refused by the call that was to hand it over (too large, not encodable, after the end), or a
	// record that nobody waits for and that is certainly not written. ReportedDrops: those that a record in the log
	// reports, which is all but calls after the end.
	Dropped, ReportedDrops uint64
	// Reconnects: connections made after the first.
	Reconnects uint64
	// BufferedBytes wait for their receipt now, in PendingAppends appends.
	BufferedBytes, PendingAppends uint64
}
