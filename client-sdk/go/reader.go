package clad

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"clad/internal/wire"
)

// From is where a reader begins. The zero value is the oldest stored record.
type From struct {
	how    uint8
	number uint64
	cursor Cursor
}

// FromOffset begins at an offset of whatever history the log has now.
func FromOffset(offset uint64) From { return From{how: wire.StartOffset, number: offset} }

// FromCursor begins at a place in a history that must be this log's: where an earlier reader stopped.
func FromCursor(c Cursor) From { return From{how: wire.StartCursor, cursor: c} }

// FromTail begins at the last n records; 0 is only what comes from now on.
func FromTail(n uint64) From { return From{how: wire.StartTail, number: n} }

// ReaderOptions of a [Reader]. Every one has a default: the zero value.
type ReaderOptions struct {
	// From is where to begin. Default: the oldest.
	From From
	// Follow continues with what is appended later, over disconnects. Default: end at the end.
	Follow bool
	// Level is the one that a record must have reached: [Written] (the default) or [Durable].
	Level Level
	// Limit ends after this many records; 0 is no limit.
	Limit uint64
	// Since and Until leave out records before and after these times, by their own time, else when they were seen, else
	// when the daemon took them. The zero time is no bound.
	Since, Until time.Time
	// Filter says which records are wanted. The limit counts those that match.
	Filter Filter
	// Name is for people: the daemon's own messages have it.
	Name string

	// BackoffMin and BackoffMax bound the wait before another try to connect. Default: 10 ms, 2 s.
	BackoffMin, BackoffMax time.Duration
	// ConnectTimeout bounds one try to connect, the greeting included. Default: 5 s.
	ConnectTimeout time.Duration
	// ReconnectTimeout is how long a following reader tries to connect again before it ends with an error. Default: 5
	// minutes.
	ReconnectTimeout time.Duration

	pingAfter, pongWithin time.Duration
}

// Event is what a reader gives: [*Records], [Gap], [CaughtUp] or [Progress].
type Event interface{ event() }

// Records are the records of one append that were asked for. Their bytes were checked.
type Records struct {
	// FirstOffset is that of the append; each record has its own.
	FirstOffset uint64
	// Epoch is the one in which the append got its offsets.
	Epoch uint32
	// AppendTime is when the daemon took the append, or an earlier one that was written with it: Unix nanoseconds.
	AppendTime    uint64
	ProducerID    ProducerID
	ProducerEpoch uint32
	Group         Group
	// PeerMeta is what the daemon saw of the sender itself.
	PeerMeta PeerMeta
	Records  []Stored
}

// Stored is a record and its places.
type Stored struct {
	Offset uint64
	// Sequence is the producer's.
	Sequence uint64
	Record   Record
}

// Gap is offsets that cannot be read. The read continues after them.
type Gap struct {
	// From is the first that is missing, To the one after the last.
	From, To uint64
	Reason   GapReason
}

// CaughtUp says that a following reader has given all there is so far. It comes again each time it has.
type CaughtUp struct{ Cursor Cursor }

// Progress says that a reader with a filter has come to a place: all before it was given, or does not match. It comes
// about once in a MiB of the log that is passed over, so that a saved cursor does not stay behind.
type Progress struct{ Cursor Cursor }

func (*Records) event() {}
func (Gap) event()      {}
func (CaughtUp) event() {}
func (Progress) event() {}

// GapReason is why offsets cannot be read.
type GapReason uint8

// Reasons of gaps.
const (
	GapRetention GapReason = 1
	GapDamage    GapReason = 2
)

// PeerMeta is what the daemon saw of a sender. 0 is what it did not see.
type PeerMeta struct {
	// Transport: 1 TCP, 2 Unix, 3 gRPC, 4 shared memory.
	Transport, PID, PIDStart uint64
	UID, GID                 uint64
	HasUID, HasGID           bool
	// Address is that of a network peer.
	Address netip.AddrPort
	// Identity is the name in the certificate of a network peer: its URI, else its DNS name.
	Identity string
	// Other numbers under their tags, and what has bytes.
	Other      map[uint8]uint64
	OtherBytes map[uint8][]byte
}

func peerMetaOf(fields []wire.PeerMeta) (m PeerMeta) {
	for _, n := range fields {
		switch n.Tag {
		case 1:
			m.Transport = n.Value
		case 2:
			m.PID = n.Value
		case 3:
			m.PIDStart = n.Value
		case 4:
			m.UID, m.HasUID = n.Value, true
		case 5:
			m.GID, m.HasGID = n.Value, true
		case 32:
			if ip, port, ok := cutPort(n.Bytes); ok {
				m.Address = netip.AddrPortFrom(ip, port)
			}
		case 33:
			m.Identity = string(n.Bytes)
		default:
			if n.Bytes != nil {
				if m.OtherBytes == nil {
					m.OtherBytes = map[uint8][]byte{}
				}
				m.OtherBytes[n.Tag] = n.Bytes
				continue
			}
			if m.Other == nil {
				m.Other = map[uint8]uint64{}
			}
			m.Other[n.Tag] = n.Value
		}
	}
	return m
}

// cutPort takes an address of 4 or 16 bytes, and a port behind it, in network order.
func cutPort(b []byte) (netip.Addr, uint16, bool) {
	at := max(len(b)-2, 0)
	ip, ok := netip.AddrFromSlice(b[:at])
	if !ok {
		return ip, 0, false
	}
	return ip, binary.BigEndian.Uint16(b[at:]), true
}

// Reader reads a log. It is for one goroutine, except Close.
//
// The cursor moves when an event is given, not before: a reader that resumes from [Reader.Cursor] misses nothing and
// gets nothing twice. Coming back is always by cursor, once there is one: a history that was abandoned in the meantime
// is a [*CursorAbandonedError], never a silent skip.
type Reader struct {
	address address
	opts    ReaderOptions
	stop    context.Context
	halt    context.CancelFunc

	framed    *framed
	info      LogInfo
	cursor    Cursor
	hasCursor bool
	given     uint64
	backoff   backoff
	// outage is since when there is no connection.
	outage time.Time
	// unhook takes back what Close would do to the connection.
	unhook  func() bool
	retryAt time.Time
	ended   bool
	sieve   *sieve
	// alone: the daemon does not evaluate the filter.
	alone bool
	// passedOver is bytes of appends without a match since the last event.
	passedOver int

	// partial frames stay here when a call of Next is cut short.
	buf    []byte
	pingAt time.Time
	// pinged is when a sign of life was asked for, and nothing was heard since.
	pinged time.Time
}

const readRequest = 2

// passedOverBytesMax is the bytes of appends that are dropped here before a Progress.
const passedOverBytesMax = 1 << 20

// OpenReader connects and starts to read. The address is as for [Dial].
func OpenReader(ctx context.Context, addr string, opts ReaderOptions) (*Reader, error) {
	a, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	orDefault(&opts.Level, Written)
	orDefault(&opts.Name, "clad-go reader")
	orDefault(&opts.BackoffMin, 10*time.Millisecond)
	orDefault(&opts.BackoffMax, 2*time.Second)
	orDefault(&opts.ConnectTimeout, 5*time.Second)
	orDefault(&opts.ReconnectTimeout, 5*time.Minute)
	orDefault(&opts.pingAfter, pingAfter)
	orDefault(&opts.pongWithin, pongWithin)
	if opts.Level != Written && opts.Level != Durable {
		return nil, fmt.Errorf("clad: a log is read at written or durable, not at %v", opts.Level)
	}
	sieve, err := newSieve(opts.Filter)
	if err != nil {
		return nil, err
	}
	r := &Reader{address: a, opts: opts, sieve: sieve, backoff: newBackoff(opts.BackoffMin, opts.BackoffMax, seed())}
	r.stop, r.halt = context.WithCancel(context.Background())
	if err := r.connect(ctx); err != nil {
		r.halt()
		return nil, err
	}
	return r, nil
}

// Cursor is the place to resume from later: after what the last event gave, and what the filter left out since. It is
// false before the first. [Cursor.String] and [ParseCursor] are the form that a program stores.
func (r *Reader) Cursor() (Cursor, bool) { return r.cursor, r.hasCursor }

// Log is the daemon's description of itself at the last greeting.
func (r *Reader) Log() LogInfo { return r.info }

// Close ends the reader; a call of Next that waits ends, too.
func (r *Reader) Close() error {
	r.halt()
	return nil
}

func (r *Reader) filters() bool {
	return r.sieve != nil || !r.opts.Since.IsZero() || !r.opts.Until.IsZero()
}

func (r *Reader) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.ConnectTimeout)
	defer cancel()
	defer context.AfterFunc(r.stop, cancel)()
	f, err := connect(ctx, r.address, wire.Hello{Intent: wire.IntentRead, Name: r.opts.Name})
	if err != nil {
		return err
	}
	if !f.welcome.MayRead {
		f.conn.Close()
		return &Refusal{Code: CodePermissionDenied, Text: r.address.text + " does not let this user read", Record: -1}
	}
	r.info = infoOf(f.welcome)
	f.conn.SetDeadline(time.Now().Add(r.opts.ConnectTimeout))
	if _, err := f.conn.Write(r.request().Put(nil)); err != nil {
		f.conn.Close()
		return r.address.fail(err)
	}
	r.framed, r.buf = f, nil
	r.unhook = context.AfterFunc(r.stop, func() { f.conn.Close() })
	r.pingAt, r.pinged = time.Now().Add(r.opts.pingAfter), time.Time{}
	return nil
}

func (r *Reader) request() wire.Read {
	s := r.opts.From
	if r.hasCursor {
		s = FromCursor(r.cursor)
	}
	q := wire.Read{RequestID: readRequest, Start: max(s.how, wire.StartOffset), MinLevel: r.opts.Level.code()}
	q.Cursor.Offset = s.number
	if s.how == wire.StartCursor {
		q.Cursor = wire.Cursor{LogID: s.cursor.LogID, Epoch: s.cursor.Epoch, Offset: s.cursor.Offset}
	}
	if r.opts.Follow {
		q.Flags |= wire.ReadFollow
	}
	if !r.opts.Since.IsZero() {
		q.Flags, q.Since = q.Flags|wire.ReadSince, r.opts.Since.UnixNano()
	}
	if !r.opts.Until.IsZero() {
		q.Flags, q.Until = q.Flags|wire.ReadUntil, r.opts.Until.UnixNano()
	}
	if r.sieve != nil && !r.alone {
		q.Filter = r.sieve.encoded
	}
	if r.opts.Limit > 0 && !r.filters() { // else the daemon counts what is left out here
		q.Limit = r.opts.Limit - r.given
	}
	return q
}

// Next is the next event; [io.EOF] at the end. While following there is an end only if a limit was set.
//
// Any other error ends the read, except that of the context: then nothing is lost, and the next call continues. A
// following reader connects again by itself, for ReconnectTimeout at most.
func (r *Reader) Next(ctx context.Context) (Event, error) {
	for !r.ended {
		event, err := r.step(ctx)
		switch {
		case err == nil && event != nil:
			r.outage = time.Time{}
			r.backoff.reset()
			return event, nil
		case err == nil:
		case r.stop.Err() != nil:
			r.end()
			return nil, ErrClosed
		case ctx.Err() != nil && r.cutShort(err):
			return nil, ctx.Err()
		default:
			if err := r.failed(err); err != nil {
				return nil, err
			}
		}
	}
	return nil, io.EOF
}

// cutShort says whether the context ended a step, and not the daemon.
func (r *Reader) cutShort(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)
}

func (r *Reader) end() {
	r.ended = true
	r.leave()
	r.halt()
}

// leave closes the connection, if there is one.
func (r *Reader) leave() {
	if r.framed != nil {
		r.unhook()
		r.framed.conn.Close()
		r.framed = nil
	}
}

// failed decides whether to connect again.
func (r *Reader) failed(err error) error {
	now := time.Now()
	r.leave()
	var refusal *Refusal
	if errors.As(err, &refusal) && refusal.Code == CodeFilterUnsupported && r.sieve != nil && !r.alone {
		r.alone = true
		return nil
	}
	if r.outage.IsZero() {
		r.outage = now
	}
	if !r.opts.Follow || !retryable(err) || now.After(r.outage.Add(r.opts.ReconnectTimeout)) {
		r.end()
		return err
	}
	r.retryAt = now.Add(r.backoff.next())
	return nil
}

func retryable(err error) bool {
	var c *ConnectError
	var f *Refusal
	var d *DamagedError
	switch {
	case errors.As(err, &c):
		return c.Retryable()
	case errors.As(err, &f):
		return f.Retryable
	}
	return errors.As(err, &d)
}

// step does one thing: it waits and connects, or takes one frame. Nothing: ask again.
func (r *Reader) step(ctx context.Context) (Event, error) {
	if r.framed == nil {
		if err := r.pause(ctx); err != nil {
			return nil, err
		}
		return nil, r.connect(ctx)
	}
	now := time.Now()
	conn := r.framed.conn
	if !now.Before(r.pingAt) {
		if !r.pinged.IsZero() && !now.Before(r.pinged.Add(r.opts.pongWithin)) {
			return nil, r.address.fail(errSilent)
		}
		conn.SetWriteDeadline(now.Add(r.opts.pongWithin))
		if _, err := conn.Write(wire.PutControl(nil, wire.TPing, 1, nil)); err != nil {
			return nil, r.address.fail(err)
		}
		r.pingAt = now.Add(r.opts.pingAfter)
		if r.pinged.IsZero() {
			r.pinged = now
		}
	}
	conn.SetReadDeadline(r.pingAt)
	cut := func() { conn.SetReadDeadline(time.Unix(1, 0)) }
	stop := context.AfterFunc(ctx, cut)
	h, body, err := r.frame()
	stop()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil && r.stop.Err() == nil {
			return nil, nil // time for a PING
		}
		return nil, err
	}
	r.pinged = time.Time{}
	return r.take(h, body)
}

func (r *Reader) pause(ctx context.Context) error {
	timer := time.NewTimer(time.Until(r.retryAt))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.stop.Done():
		return r.stop.Err()
	}
}

// frame takes one whole frame. What has come of it stays in buf when the deadline passes.
func (r *Reader) frame() (wire.Header, []byte, error) {
	if err := r.fill(wire.HeaderBytes); err != nil {
		return wire.Header{}, nil, err
	}
	h, err := wire.ParseHeader(r.buf[:wire.HeaderBytes])
	if err != nil {
		return h, nil, r.address.broken("%v", err)
	}
	if err := r.fill(wire.HeaderBytes + int(h.Len)); err != nil {
		return h, nil, err
	}
	body := r.buf[wire.HeaderBytes:]
	if h.Type == wire.TRecords {
		r.buf = nil // the records refer to it
	} else {
		r.buf = r.buf[:0]
	}
	if h.Type == wire.TError {
		e, err := wire.ParseError(body)
		if err != nil {
			return h, nil, r.address.broken("ERROR: %v", err)
		}
		return h, nil, r.refused(refusalOf(e), h.RequestID)
	}
	return h, body, nil
}

func (r *Reader) fill(n int) error {
	const step = 1 << 20
	for len(r.buf) < n {
		from := len(r.buf)
		r.buf = append(r.buf, make([]byte, min(step, n-from))...)
		got, err := io.ReadFull(r.framed.in, r.buf[from:])
		r.buf = r.buf[:from+got]
		if err != nil {
			return r.framed.lost(err)
		}
	}
	return nil
}

// refused is a refusal of the READ as what it is.
func (r *Reader) refused(refusal *Refusal, id uint32) error {
	asked := r.opts.From
	if r.hasCursor {
		asked = FromCursor(r.cursor)
	}
	switch {
	case refusal.Code == CodeCursorAbandoned && asked.how == wire.StartCursor:
		return &CursorAbandonedError{Cursor: asked.cursor, Parting: refusal.parting}
	case refusal.Code == CodeCursorUnknown && asked.how == wire.StartCursor:
		return &CursorUnknownError{Cursor: asked.cursor, Text: refusal.Text}
	case id == 0:
		return &ConnectError{Address: r.address.text, Refusal: refusal}
	}
	return refusal
}

func (r *Reader) moved(c Cursor) { r.cursor, r.hasCursor = c, true }

func (r *Reader) take(h wire.Header, body []byte) (Event, error) {
	if h.Type == wire.TPong {
		return nil, nil
	}
	if h.RequestID != readRequest {
		return nil, r.address.broken("a frame of type %#x for another request", uint8(h.Type))
	}
	switch h.Type {
	case wire.TRecords:
		return r.records(body)
	case wire.TGap:
		g, err := wire.ParseGap(body)
		if err != nil {
			return nil, r.address.broken("GAP: %v", err)
		}
		r.moved(Cursor{r.info.LogID, g.Epoch, g.To})
		return Gap{From: g.From, To: g.To, Reason: GapReason(g.Reason)}, nil
	case wire.TCaughtUp:
		c, err := wire.ParseCaughtUp(body)
		if err != nil {
			return nil, r.address.broken("CAUGHT_UP: %v", err)
		}
		r.moved(cursorOf(c))
		return CaughtUp{cursorOf(c)}, nil
	case wire.TProgress:
		c, err := wire.ParseCaughtUp(body)
		if err != nil {
			return nil, r.address.broken("PROGRESS: %v", err)
		}
		r.moved(cursorOf(c))
		r.passedOver = 0
		return Progress{cursorOf(c)}, nil
	case wire.TReadEnd:
		c, _, err := wire.ParseReadEnd(body)
		if err != nil {
			return nil, r.address.broken("READ_END: %v", err)
		}
		r.moved(cursorOf(c))
		r.end()
		return nil, nil
	}
	return nil, r.address.broken("a frame of type %#x where an answer to a read belongs", uint8(h.Type))
}

func (r *Reader) records(body []byte) (Event, error) {
	f, err := wire.ParseRecords(body)
	if err != nil {
		return nil, r.address.broken("RECORDS: %v", err)
	}
	damaged := func(err error) error { return &DamagedError{Offset: f.FirstOffset, Count: f.Count, Err: err} }
	if wire.CRC(f.Payload) != f.PayloadCRC {
		return nil, damaged(errors.New("their checksum is wrong"))
	}
	group, records, err := DecodePayload(f.Payload, f.Count)
	if err != nil {
		return nil, damaged(err)
	}
	out := &Records{
		FirstOffset: f.FirstOffset, Epoch: f.Epoch, AppendTime: f.AppendTime, ProducerID: f.ProducerID,
		ProducerEpoch: f.ProducerEpoch, Group: group, PeerMeta: peerMetaOf(f.Meta),
	}
	end := f.FirstOffset + uint64(f.Skip) + uint64(f.Take)
	for i := f.Skip; i < f.Skip+f.Take; i++ {
		if !r.wanted(&records[i], f.AppendTime) || r.sieve != nil && !r.sieve.matches(out, &records[i]) {
			continue
		}
		stored := Stored{Offset: f.FirstOffset + uint64(i), Sequence: f.FirstSeq + uint64(i), Record: records[i]}
		out.Records = append(out.Records, stored)
		r.given++
		if r.given == r.opts.Limit {
			end = stored.Offset + 1
			r.end() // the daemon counts too; this is for times, and a connection that ends before it says so
			break
		}
	}
	r.moved(Cursor{r.info.LogID, f.Epoch, end})
	if len(out.Records) > 0 {
		r.passedOver = 0
		return out, nil
	}
	if r.passedOver += len(f.Payload); r.sieve == nil || r.passedOver < passedOverBytesMax {
		return nil, nil
	}
	r.passedOver = 0
	return Progress{r.cursor}, nil
}

// wanted compares a record's time with the bounds. Times beyond 2^63 - 1 count as that.
func (r *Reader) wanted(record *Record, appended uint64) bool {
	if r.opts.Since.IsZero() && r.opts.Until.IsZero() {
		return true
	}
	time := record.Time
	if time == 0 {
		time = record.ObservedTime
	}
	if time == 0 {
		time = appended
	}
	at := int64(min(time, 1<<63-1))
	return (r.opts.Since.IsZero() || at >= r.opts.Since.UnixNano()) &&
		(r.opts.Until.IsZero() || at <= r.opts.Until.UnixNano())
}
