package clad

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"clad/internal/wire"
)

// Level is how safe a record is. The zero value is [Highest].
type Level uint8

// Levels. Each includes those before it.
const (
	// Highest is the highest level that the log offers: [Durable], or [Written] under `fire_and_forget`.
	Highest Level = iota
	// None: no answer is sent, and nothing is promised.
	None
	// Posted exists in rings of shared memory only. This package has none: an append at it is refused.
	Posted
	// Received: the daemon holds the record and has given it an offset. It survives the client's death.
	Received
	// Written: the kernel has completed the write. It survives the death of client and daemon.
	Written
	// Durable: the record is on stable storage. It survives power loss.
	Durable
)

var levelNames = [...]string{"highest", "none", "posted", "received", "written", "durable"}

func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return "level(" + strconv.Itoa(int(l)) + ")"
}

// code is the protocol's number of a level.
func (l Level) code() uint8 { return uint8(l) - 1 }

func levelOf(code uint8) Level { return Level(code + 1) }

// Severity is OpenTelemetry's severity number, 1 to 24; 0 says nothing. Others are kept as they are.
type Severity int32

// Severities.
const (
	SeverityUnset Severity = 0
	SeverityTrace Severity = 1
	SeverityDebug Severity = 5
	SeverityInfo  Severity = 9
	SeverityWarn  Severity = 13
	SeverityError Severity = 17
	SeverityFatal Severity = 21
)

// Policy is how a log reaches [Durable].
type Policy uint8

// Policies.
const (
	PolicyPerMessage    Policy = 1
	PolicyGroupCommit   Policy = 2
	PolicySyncFileRange Policy = 3
	PolicyFireAndForget Policy = 4
)

// LogID names a log for ever.
type LogID [16]byte

func (id LogID) String() string { return hex.EncodeToString(id[:]) }

// ProducerID names a producer.
type ProducerID [16]byte

func (id ProducerID) String() string { return hex.EncodeToString(id[:]) }

// Cursor is a place in a log: that of the next record to read.
type Cursor struct {
	LogID  LogID
	Epoch  uint32
	Offset uint64
}

// String is the text form, which [ParseCursor] reads.
func (c Cursor) String() string { return fmt.Sprintf("%v:%d:%d", c.LogID, c.Epoch, c.Offset) }

// ParseCursor reads the text form of a cursor: `<log id, 32 hex digits>:<epoch>:<offset>`.
func ParseCursor(text string) (c Cursor, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 || len(parts[0]) != 32 {
		return c, fmt.Errorf("clad: %q is no cursor", text)
	}
	_, err = hex.Decode(c.LogID[:], []byte(parts[0]))
	if err == nil {
		var epoch uint64
		epoch, err = strconv.ParseUint(parts[1], 10, 32)
		c.Epoch = uint32(epoch)
	}
	if err == nil {
		c.Offset, err = strconv.ParseUint(parts[2], 10, 64)
	}
	if err != nil {
		return Cursor{}, fmt.Errorf("clad: %q is no cursor: %w", text, err)
	}
	return c, nil
}

func cursorOf(c wire.Cursor) Cursor { return Cursor{LogID: c.LogID, Epoch: c.Epoch, Offset: c.Offset} }

// LogInfo is the daemon's description of itself and its log at a greeting.
type LogInfo struct {
	LogID   LogID
	Epoch   uint32
	Policy  Policy
	Highest Level
	// MayRead says whether this client may read here.
	MayRead bool
	// Window is the number of appends that may be unanswered.
	Window uint32
	// MaxAppendBytes is the longest payload of an append, MaxRecordBytes the longest record.
	MaxAppendBytes, MaxRecordBytes uint32
	// All offsets below had these levels at the greeting.
	Received, Written, Durable uint64
}

func infoOf(w *wire.Welcome) LogInfo {
	return LogInfo{
		LogID: w.LogID, Epoch: w.Epoch, Policy: Policy(w.Policy), Highest: levelOf(w.Highest), MayRead: w.MayRead,
		Window: w.Window, MaxAppendBytes: w.MaxAppend, MaxRecordBytes: w.MaxRecord,
		Received: w.Received, Written: w.Written, Durable: w.Durable,
	}
}

// Receipt is the daemon's word that records have reached a level.
type Receipt struct {
	// LogID is the log that has them.
	LogID LogID
	// Epoch is the one in which the offsets hold.
	Epoch uint32
	// FirstOffset is the offset of the first record; the others follow without a gap. It is 0 at level [None], which
	// has no answer.
	FirstOffset uint64
	// Count is the number of records.
	Count uint32
	// Level is the one that they have reached: the one that was asked for.
	Level Level
}

// LastOffset is the offset of the last record.
func (r Receipt) LastOffset() uint64 { return r.FirstOffset + uint64(max(r.Count, 1)) - 1 }

// Nanos is a time as records have it: Unix nanoseconds, 0 for the zero time and for what does not fit.
func Nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	if n := t.UnixNano(); n > 0 {
		return uint64(n)
	}
	return 0
}
