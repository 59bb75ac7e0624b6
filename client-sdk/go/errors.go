package clad

import (
	"errors"
	"fmt"
	"time"

	"clad/internal/wire"
)

// Code is the code of an error of the daemon (docs/PROTOCOL.md, section 7).
type Code uint16

// Codes that a client meets. Unknown ones are kept as they are; [Refusal.Retryable] and [Refusal.MaybeWritten] count.
const (
	CodeUnsupportedVersion Code = 1
	CodeMalformedFrame     Code = 2
	CodeBadChecksum        Code = 3
	CodeFrameTooLarge      Code = 4
	CodeRecordTooLarge     Code = 5
	CodeAppendTooLarge     Code = 6
	CodeBadRecord          Code = 7
	CodeLevelUnreachable   Code = 8
	CodeSequenceGap        Code = 9
	CodeSequenceOverlap    Code = 10
	CodeSequenceTooOld     Code = 11
	CodeProducerFenced     Code = 12
	CodeProducerNotYours   Code = 13
	CodeTooManyProducers   Code = 14
	CodeWindowExceeded     Code = 15
	CodeBusy               Code = 16
	CodeNoSpace            Code = 17
	CodeJournalFailed      Code = 18
	CodeShuttingDown       Code = 19
	CodePermissionDenied   Code = 20
	CodeCursorAbandoned    Code = 21
	CodeCursorUnknown      Code = 22
	CodeHandshakeTimeout   Code = 23
	CodeIdleTimeout        Code = 24
	CodeTooManyConnections Code = 25
	CodeInternal           Code = 26
	CodeRingUnavailable    Code = 27
	CodeQuotaExceeded      Code = 28
	CodeFilterUnsupported  Code = 29
	CodeHistoryParted      Code = 34
	CodeOriginUnknown      Code = 35
	CodeTooManyOrigins     Code = 36
	CodeForwardLoop        Code = 37
)

var codeNames = [...]string{
	1: "unsupported_version", 2: "malformed_frame", 3: "bad_checksum", 4: "frame_too_large", 5: "record_too_large",
	6: "append_too_large", 7: "bad_record", 8: "level_unreachable", 9: "sequence_gap", 10: "sequence_overlap",
	11: "sequence_too_old", 12: "producer_fenced", 13: "producer_not_yours", 14: "too_many_producers",
	15: "window_exceeded", 16: "busy", 17: "no_space", 18: "journal_failed", 19: "shutting_down",
	20: "permission_denied", 21: "cursor_abandoned", 22: "cursor_unknown", 23: "handshake_timeout",
	24: "idle_timeout", 25: "too_many_connections", 26: "internal", 27: "ring_unavailable", 28: "quota_exceeded",
	29: "filter_unsupported",
	34: "history_parted",
	35: "origin_unknown",
	36: "too_many_origins",
	37: "forward_loop",
}

func (c Code) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// Refusal is an error that the daemon sent.
type Refusal struct {
	Code Code
	// Retryable: the same append, unchanged, can succeed later.
	Retryable bool
	// MaybeWritten: a reader may find the records all the same.
	MaybeWritten bool
	// Text is for people, and changes.
	Text string
	// RetryAfter is how long to wait before another try; 0 says nothing.
	RetryAfter time.Duration
	// Record is the index in its append of the record at fault, or -1.
	Record int
	// Limit is the limit that was passed, or 0.
	Limit uint64

	expected *uint64
	parting  *Cursor
}

func (r *Refusal) Error() string {
	if r.Text == "" {
		return r.Code.String()
	}
	return r.Code.String() + ": " + r.Text
}

func refusalOf(e *wire.Error) *Refusal {
	r := &Refusal{
		Code: Code(e.Code), Retryable: e.Flags&wire.FlagRetryable != 0, MaybeWritten: e.Flags&wire.FlagMaybeWritten != 0,
		Text: e.Text, Record: -1, expected: e.Expected,
	}
	if e.RetryMillis != nil {
		r.RetryAfter = time.Duration(*e.RetryMillis) * time.Millisecond
	}
	if e.RecordIndex != nil {
		r.Record = int(*e.RecordIndex)
	}
	if e.Limit != nil {
		r.Limit = *e.Limit
	}
	if e.Parting != nil {
		c := cursorOf(*e.Parting)
		r.parting = &c
	}
	return r
}

// ConnectError says why there is no connection.
type ConnectError struct {
	// Address is whom.
	Address string
	// Refusal is the daemon's error, if it answered and does not want this client; else nil.
	Refusal *Refusal
	// Err is the reason otherwise: an error of the system, a breach of the protocol, [ErrProducerShared].
	Err error

	retryable bool
}

func (e *ConnectError) Error() string {
	if e.Refusal != nil {
		return fmt.Sprintf("clad: %s refuses: %v", e.Address, e.Refusal)
	}
	return fmt.Sprintf("clad: %s: %v", e.Address, e.Err)
}

// Unwrap answers the reason.
func (e *ConnectError) Unwrap() error {
	if e.Refusal != nil {
		return e.Refusal
	}
	return e.Err
}

// Retryable says whether another try, without any change, can succeed.
func (e *ConnectError) Retryable() bool {
	if e.Refusal != nil {
		return e.Refusal.Retryable
	}
	return e.retryable
}

// final says that the daemon has refused this client for good.
func (e *ConnectError) final() bool {
	return errors.Is(e.Err, ErrProducerShared) || (e.Refusal != nil && !e.Refusal.Retryable)
}

// ofAnAppend answers the refusal that ended a connection, if it can be the fault of one append and not of its sender.
func (e *ConnectError) ofAnAppend() *Refusal {
	if e.Refusal == nil || e.Refusal.Retryable {
		return nil
	}
	switch e.Refusal.Code {
	case CodeFrameTooLarge, CodeRecordTooLarge, CodeAppendTooLarge, CodeBadRecord, CodeLevelUnreachable,
		CodeSequenceOverlap, CodeSequenceTooOld:
		return e.Refusal
	}
	return nil
}

// ErrProducerShared: the daemon has more of this producer than this producer has sent. Another process uses its id.
var ErrProducerShared = errors.New("the producer is used by somebody else too")

// Reason is why an append did not reach its level.
type Reason uint8

// Reasons.
const (
	// ReasonRefused: the daemon does not take it, or cannot keep it; tried again as long as that made sense.
	ReasonRefused Reason = iota + 1
	// ReasonDeliveryTimeout: no daemon, or one that takes nothing, for longer than [Options.DeliveryTimeout].
	ReasonDeliveryTimeout
	// ReasonTooLarge: longer than this daemon takes, or than the buffer; it was not sent.
	ReasonTooLarge
	// ReasonForgotten: the daemon does not know this producer any more, so it cannot say whether the append is stored.
	ReasonForgotten
	// ReasonLogChanged: another log answers at this address now than the one to which the append was sent.
	ReasonLogChanged
	// ReasonLost: records that had reached a lower level are gone. Only a flush ends with this.
	ReasonLost
	// ReasonFailed: the daemon does not want this producer any more, or never did.
	ReasonFailed
	// ReasonClosed: the producer was closed first.
	ReasonClosed
	// ReasonDropped: there was no room, and the application chose to drop it. It is counted in [Stats.Dropped].
	ReasonDropped
	// ReasonBadRecord: the record cannot be encoded: nested too deep, or text that is not UTF-8.
	ReasonBadRecord
)

// Errors to compare with: errors.Is(err, clad.ErrDropped).
var (
	ErrRefused         = &AppendError{Reason: ReasonRefused}
	ErrDeliveryTimeout = &AppendError{Reason: ReasonDeliveryTimeout}
	ErrTooLarge        = &AppendError{Reason: ReasonTooLarge}
	ErrForgotten       = &AppendError{Reason: ReasonForgotten}
	ErrLogChanged      = &AppendError{Reason: ReasonLogChanged}
	ErrLost            = &AppendError{Reason: ReasonLost}
	ErrFailed          = &AppendError{Reason: ReasonFailed}
	ErrClosed          = &AppendError{Reason: ReasonClosed}
	ErrDropped         = &AppendError{Reason: ReasonDropped}
	ErrBadRecord       = &AppendError{Reason: ReasonBadRecord}
)

// AppendError says why an append did not reach its level. It answers two questions: may I try again
// ([AppendError.Retryable]), may it be written (MaybeWritten).
type AppendError struct {
	Reason Reason
	// MaybeWritten: a reader may find the records although their sender got an error. False: they are certainly not in
	// the log. Another try after a "maybe written" hands over new records: they can then be there twice.
	MaybeWritten bool
	// Err is the cause: a [*Refusal], a [*ConnectError], or another. It may be nil.
	Err error
}

func (e *AppendError) Error() string {
	text := ""
	switch e.Reason {
	case ReasonRefused:
		text = "refused"
	case ReasonDeliveryTimeout:
		text = "given up after the delivery timeout"
	case ReasonTooLarge:
		text = "too large"
	case ReasonForgotten:
		text = "the daemon has forgotten this producer and cannot say whether the append is stored"
	case ReasonLogChanged:
		text = "another log answers than the one that the append was sent to"
	case ReasonLost:
		text = "records that were acknowledged at a lower level did not survive a crash, or are gone with their log"
	case ReasonFailed:
		text = "the producer has failed"
	case ReasonClosed:
		text = "the producer ended before the append reached its level"
	case ReasonDropped:
		text = "dropped: no room"
	case ReasonBadRecord:
		text = "the record cannot be encoded"
	default:
		text = "failed"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Reason == ReasonLost {
		return "clad: " + text
	}
	if e.MaybeWritten {
		return "clad: " + text + "; it may be written"
	}
	return "clad: " + text + "; it is not written"
}

// Unwrap answers the cause.
func (e *AppendError) Unwrap() error { return e.Err }

// Is says whether the other error has the same reason.
func (e *AppendError) Is(other error) bool {
	o, ok := other.(*AppendError)
	return ok && o.Reason == e.Reason
}

// Retryable says whether the same records, handed over again, can succeed.
func (e *AppendError) Retryable() bool {
	switch e.Reason {
	case ReasonRefused:
		var r *Refusal
		return errors.As(e.Err, &r) && r.Retryable
	case ReasonDeliveryTimeout, ReasonForgotten, ReasonLogChanged, ReasonLost, ReasonDropped:
		return true
	}
	return false
}

// Code answers the daemon's code, if the daemon refused; else 0.
func (e *AppendError) Code() Code {
	var r *Refusal
	if errors.As(e.Err, &r) {
		return r.Code
	}
	return 0
}

// with answers the error for an append that may be written, or may not.
func (e *AppendError) with(maybe bool) *AppendError {
	if !maybe || e.MaybeWritten || e.Reason == ReasonLost {
		return e
	}
	copied := *e
	copied.MaybeWritten = true
	return &copied
}

// weight orders errors for a report of the worst.
func (e *AppendError) weight() int {
	switch {
	case e.Reason == ReasonLost:
		return 2
	case e.MaybeWritten:
		return 1
	}
	return 0
}

// once says that the next flush does not get the error again by itself.
func (e *AppendError) once() bool {
	var r *Refusal
	return e.Reason == ReasonLost ||
		(e.Reason == ReasonRefused && errors.As(e.Err, &r) && r.Code == CodeJournalFailed && !r.Retryable)
}

func unreachable(level Level) *AppendError {
	text := "this log does not offer the level " + level.String()
	if level == Posted {
		text = "`posted` is offered only by a ring that is stored"
	}
	return &AppendError{Reason: ReasonRefused, Err: &Refusal{Code: CodeLevelUnreachable, Text: text, Record: -1}}
}

// CursorAbandonedError says that the place of a cursor is in a history that was abandoned after a loss. Nothing was
// skipped: read again from Parting. Records that were read from there on are not in the log.
type CursorAbandonedError struct {
	Cursor Cursor
	// Parting is the first place that the cursor's history does not share with the log; nil if the daemon did not say.
	Parting *Cursor
}

func (e *CursorAbandonedError) Error() string {
	text := fmt.Sprintf("clad: the cursor %v belongs to an abandoned history", e.Cursor)
	if e.Parting != nil {
		text += fmt.Sprintf("; the log goes on from %v", *e.Parting)
	}
	return text
}

// CursorUnknownError says that a cursor is of another log, or of a place that this log never had.
type CursorUnknownError struct {
	Cursor Cursor
	Text   string
}

func (e *CursorUnknownError) Error() string {
	return fmt.Sprintf("clad: the cursor %v is not of this log: %s", e.Cursor, e.Text)
}

// DamagedError says that records came damaged.
type DamagedError struct {
	Offset uint64
	Count  uint32
	Err    error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("clad: the %d records from offset %d on came damaged: %v", e.Count, e.Offset, e.Err)
}

// Unwrap answers the damage found.
func (e *DamagedError) Unwrap() error { return e.Err }
